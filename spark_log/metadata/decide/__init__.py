"""Decisions: `decide_x(state, command, now_ms)` reads a state and returns the records of a command, and a reply.

The state has the version that the records will get, but not their effects (`replay.next_version`).

A decision never changes anything.  If its work is already done (a retry of a commit, an offset that is committed), it
returns the reply and no records.  If the command is rejected, it raises an error of `spark_log.errors`.
"""
