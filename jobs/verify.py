"""Checks that the storage of a log has what its metadata refers to, with the tasks of a Spark job.

    spark-submit jobs/verify.py --help

`pyspark_pylog/jobs/verify.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.verify import main

if __name__ == "__main__":
    main()
