"""The metadata log in one process: opening it, following it, and changing it by proposals.

`journal.py` is what everybody else uses: `Journal.open`, `refresh`, `propose`.  `metadata_log.py` is the interface of
the log behind it, with three implementations: on shared storage (`journal/storage`), as a coordinator serves it
(`served_log.py`, `topic_feed.py`), and in a quorum (`server/quorum/log.py`).

Protocols are written as steps: generators that yield operations (`store_operations.py`) and get their results, so that
a simulation can interleave processes at each of them (docs/decisions/0003-protocol-as-steps.md).  `batch_decision.py`
decides on commands that share a batch.  `maintenance.py` is the work that a writer does beside its commits: sealing,
checkpoints, garbage collection.  `failure_isolation.py` and `set_aside.py` keep one bad object from stopping it.
"""
