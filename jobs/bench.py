"""Measures a log under the load of Spark: rates of writes and reads, and the latency of a stream.

    spark-submit jobs/bench.py --help

`pyspark_pylog/jobs/bench.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.bench import main

if __name__ == "__main__":
    main()
