"""A log of bytes, replicated by KRaft's protocol.  Pure.  Begin with `machine.py`; `docs/raft.md` is the guide."""
