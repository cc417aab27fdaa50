"""A coordinator on a node of a quorum: the leader decides on commands, and the others follow its log.

`coordinator.py` is the coordinator, `state.py` the state machine of a node, `commands.py` the commands that wait on the
leader, and `pipeline.py` its batches that are not final yet.  `take_over.py` is how an elected node begins to lead, and
`founding.py` how a quorum continues a log.  `root_snapshots.py` copies the metadata beside the records.
"""
