"""Consumer groups: Kafka's classic group protocol, its assignors, and the rules of committed offsets.  Pure.

`state_machine.py` is the coordinator's side of the protocol: a machine over one group (`group.py`), which gets requests
with a time, and answers with responses and with a new roster.  `join.py` and `rebalance.py` are its phases.
`assignors.py` lists the assignors by name: range, round-robin, and the sticky ones.  `messages.py` and
`subscription.py` have Kafka's requests and bytes.

The machine runs in `server/group_coordinator.py`, with timers and waiting requests.  Rosters and committed offsets are
part of the log's state: `metadata/groups`.
"""
