"""Brokers, placement groups, copies of objects, and reassignments: state, questions, commands, decisions and replay.

`replica_state.py` has the values, and `replicas.py` the questions about them.  docs/decisions/0064-replicas.md says
why.
"""
