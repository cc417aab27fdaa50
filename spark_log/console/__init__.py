"""The console: web pages that show a log, and change it for an admin.

`site.py` answers in JSON, for the topics and groups that a token may see.  `records.py` has its pages of records, with
the filters of `filters.py`, and `plans.py` the dry runs of changes.  `http_routes.py` serves all over HTTP, on an event
loop that never blocks; pages and scripts are files in `static`.  `history.py` keeps numbers over time, bounded, and
`history_file.py` saves them for the next process.

It runs in two places: in a process, `pylog console` (`standalone.py`, on the port of `local_port.py`, with the changes
of `local_changes.py`), and on the port of a coordinator (`of_coordinator.py`).
"""
