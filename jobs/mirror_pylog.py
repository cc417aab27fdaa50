"""Copies topics from one log to another, such as one in another region, with their positions of consumer groups.

    spark-submit jobs/mirror_pylog.py --help

`pyspark_pylog/jobs/mirror_pylog.py` has the program.  It may import what is not public; a program of yours may not.
"""

from pyspark_pylog.jobs.mirror_pylog import main

if __name__ == "__main__":
    main()
