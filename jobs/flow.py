"""Runs a Python function on records as they arrive, in tasks of Spark that stay, each record exactly once.

    spark-submit jobs/flow.py --help

`pyspark_pylog/jobs/flow.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.flow import main

if __name__ == "__main__":
    main()
