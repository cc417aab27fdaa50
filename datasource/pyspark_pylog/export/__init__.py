"""Export of a topic to the files of a table: what `jobs/export.py` plans in the driver and does in its tasks."""
