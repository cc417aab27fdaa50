"""The sink: batch and streaming writes, each applied exactly once.

`writer.py` answers Spark's calls: tasks upload, and the driver makes one commit of all uploads.  `exactly_once.py` has
the identity under which a repeated micro-batch is recognised, and `bad_records.py` rows that cannot be written.
`foreach_batch.py` is the same for `foreachBatch`.
"""
