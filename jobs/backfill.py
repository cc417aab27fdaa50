"""Writes the rows of a table into a topic, with their keys and times.

    spark-submit jobs/backfill.py --help

`pyspark_pylog/jobs/backfill.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.backfill import main

if __name__ == "__main__":
    main()
