"""Backups of a log: whole versions in another folder or bucket, which share the objects that they have in common.

    spark-submit jobs/backup.py --help

`pyspark_pylog/jobs/backup.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.backup import main

if __name__ == "__main__":
    main()
