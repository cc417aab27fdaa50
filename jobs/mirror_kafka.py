"""Copies topics from Kafka into a log, with keys, headers, timestamps and the positions of consumer groups.

    spark-submit jobs/mirror_kafka.py --help

`pyspark_pylog/jobs/mirror_kafka.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.mirror_kafka import main

if __name__ == "__main__":
    main()
