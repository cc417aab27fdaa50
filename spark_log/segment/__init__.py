"""Segment objects: Arrow record batches to bytes and back, indexes, checksums, partitioners.

Pure: bytes and batches in, bytes and batches out, except for a spool file that the caller opens.  The byte layout is in
docs/format/segment.md.  `writer.py` builds one object from rows of many partitions, and `reader.py` finds and decodes
the batches of a run.  `record_columns.py` and `typed_rows.py` convert what users give, for topics without and with a
schema; `value_read.py` is the way back.  `batch_index.py` is the index at the end of an object, with the statistics by
which `column_conditions.py` leaves batches out.

`segment/arrays` has Arrow arrays without pandas and without copies, and `segment/keys` hashes and sets of record keys.
"""
