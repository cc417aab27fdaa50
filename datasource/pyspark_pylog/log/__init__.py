"""Opening logs for Spark: in the driver, and in the tasks that it plans.

`open_log.py` opens in the driver, and keeps journals for later calls.  `planned_log.py` is what a task gets instead,
and `task_metadata.py` the only module in which a task opens the metadata log.
"""
