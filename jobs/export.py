"""Exports a range of a topic to a table of Parquet files, of Delta or of Iceberg, partitioned by the records' time.

    spark-submit jobs/export.py --help

`pyspark_pylog/jobs/export.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.export import main

if __name__ == "__main__":
    main()
