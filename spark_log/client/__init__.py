"""The API of applications: `connect`, producers, consumers, readers and administration.

`log.py` has `connect` and `Log`, with doors to the four packages: `producer` (from rows to one commit), `consumer`
(partitions, positions and groups), `reader` (from positions to batches of Arrow), and `admin` (the operations of
Kafka's Admin).  `open_journal.py` is where a URL becomes a journal, on storage or through a coordinator.

Settings are a table, `client_settings.py`, and its types for editors, `typed_settings.py`.  `arguments.py` refuses odd
arguments of public calls in one way.  A reader imports nothing of a consumer, a consumer nothing of a producer, and
none of them `admin`.
"""
