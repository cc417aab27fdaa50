"""Maintenance of a log: retention, merging, compaction, checkpoints and garbage collection, for logs of any size.

    spark-submit jobs/maintain.py --help

`pyspark_pylog/jobs/maintain.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.maintain import main

if __name__ == "__main__":
    main()
