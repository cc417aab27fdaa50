"""The process around a machine of `spark_log.quorum`: its disk, its clock and its connections.  Begin with `node.py`;
`docs/raft.md` is the guide.
"""
