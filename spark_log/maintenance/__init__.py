"""The duties that keep a log small: `pylog maintain`, once or periodically.

`maintain.py` has a round: retention, merging, compaction, checkpoints, garbage collection, and the brokers.  Each duty
is also available separately.  A maintainer is an ordinary process: several may run concurrently, beside writers and
readers, and each may be killed at any time.  `workers.py` lets other processes, such as the tasks of a Spark
job, do the rewriting.

`partition_moves.py` moves partitions to other brokers, `root_collection.py` deletes on the roots of brokers, and
`erasure_ends.py` says when nothing of erased records is left.  Jobs and programs of users may import this package: its
functions take a `Log`.
"""
