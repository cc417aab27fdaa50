"""The metadata log on shared storage: opening, following, appending, checkpoints and claims, as steps.

`commit_protocol.py` appends a batch under the next version, put-if-absent, and reads it back.  `opening.py` finds the
newest state: a checkpoint, the records after it, and a listing that confirms the end.  `storage_log.py` implements
`MetadataLog` with both.
"""
