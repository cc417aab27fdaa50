"""The console: web pages that show a log.

`site.py` answers in JSON, for the topics and groups that a token may see, and `records.py` has its pages of records.
`http_routes.py` serves both over HTTP, on an event loop that never blocks; pages and scripts are files in `static`.
`history.py` keeps numbers over time, bounded.

It runs in two places: in a process, `pylog console` (`standalone.py`, on the port of `local_port.py`), and on the port
of a coordinator (`of_coordinator.py`).
"""
