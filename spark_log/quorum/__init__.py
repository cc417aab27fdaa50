"""A replicated log of bytes by KRaft's protocol.  Pure: `machine.py` is the place to begin, `docs/raft.md` the guide."""
