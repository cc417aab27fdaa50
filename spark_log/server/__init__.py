"""Coordinators, and the port that clients ask.

A coordinator is the single process that writes a log's metadata while it leads, or a standby: `coordinator.py`, on
shared storage; `server/quorum`, on a quorum of nodes.  `server.py` has the port: it authenticates (`tokens.py`), limits
(`quotas.py`), audits (`audit.py`), and passes commands to a `service.py`, which both coordinators implement.  Clients
follow the log by long polls (`long_poll.py`, `change_replies.py`) and begin with a snapshot (`snapshots.py`).

`group_coordinator.py` runs Kafka's group protocol.  `coordinator_duties.py` does maintenance and replication beside the
commits.  Records of topics never pass through here.
"""
