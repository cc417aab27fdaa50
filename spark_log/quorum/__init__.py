"""A log of bytes, replicated by KRaft's protocol.  Pure: inputs with a time go in, and `ready` says what to do.

Begin with `machine.py`; `docs/raft.md` is the guide.  `roles.py` has the states of a replica, `election.py`,
`leading.py` and `following.py` the rules of each, and `core.py` the state that they share.  `replica_log.py` is the log
in memory, `unit_format.py` and `snapshot_format.py` are its bytes in files, and `wire.py` those of messages.

The machine knows nothing of pylog's records: entries are bytes.  The process around it is `quorum/node`, and pylog's
own use of both is `server/quorum`.
"""
