"""Brokers are checked, and get the copies that they lack.

`broker_prober.py` checks the roots of brokers, fences those that fail, and takes back those that it fenced.
`replicator.py` works in rounds: it copies to each broker what it lacks, oldest uploads first (`missing_copies.py`,
`copy_to_broker.py`), and lets replicas that have caught up join their ISR.  All bytes are checked on the way
(`checked_copies.py`), within a limit per second (`copy_throttle.py`).  `leader_balance.py` makes preferred replicas
leaders again.

The rules are in `metadata/replicas`.  These rounds run in a coordinator, in `pylog replicate`, and in `pylog maintain`:
`maintenance/replicate.py`.
"""
