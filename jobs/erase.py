"""Removes all records of some keys from a large topic, with the tasks of a Spark job.

    spark-submit jobs/erase.py --help

`pyspark_pylog/jobs/erase.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.erase import main

if __name__ == "__main__":
    main()
