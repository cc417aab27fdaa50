"""Creates and alters topics and groups, and moves replicas, as a file describes them.

    spark-submit jobs/admin.py --help

`pyspark_pylog/jobs/admin.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.admin import main

if __name__ == "__main__":
    main()
