"""The source: batch and streaming reads.

A batch read (`batch.py`, `latest_view.py`) resolves its options to ranges (`ranges.py`), divides them among tasks
(`splits.py`), and lets these agree on one version (`query_pins.py`); `read_task.py` reads.  A streaming query
(`stream.py`) answers Spark's calls; `resume.py` and `restored.py` decide how it continues in a log that has changed.
`read_columns.py` gives Spark its columns, exactly.
"""
