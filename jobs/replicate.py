"""Copies to brokers what they lack, with the tasks of a Spark job: for large backlogs, such as a new or replaced disk.

    spark-submit jobs/replicate.py --help

`pyspark_pylog/jobs/replicate.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.replicate import main

if __name__ == "__main__":
    main()
