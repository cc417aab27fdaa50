"""The process around a machine of `spark_log.quorum`: its disk, its clock and its connections.

Begin with `node.py`: one event loop gives the machine its inputs, and does what it says.  `docs/raft.md` is the guide.
A write is durable before its answer leaves: `persist_thread.py` and `disk.py`.  `links.py` opens the connections to the
other nodes, `port.py` accepts theirs, and `handshake.py` checks both ends.  `applier.py` gives committed entries to the
application, and `snapshots.py` keeps the log short.

Operators look at a node and change the voters through `admin.py`, from outside; `node_tools.py` answers them.
`inspection.py` reads a directory that a node may be using.
"""
