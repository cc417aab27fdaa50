"""A storage is lost, damaged or replaced: mirrors, moves, backups, verification and repair.

`mirror.py` follows a log version by version into another root, and recovers it there.  `backup.py` copies whole
versions, which share objects, and `restore_backup.py` makes a log of one.  `log_move.py` moves a log to another
storage.  `verify.py` checks that the storage has what the state names; `verify_repair.py` replaces what has a good copy
elsewhere; `lost_records.py` gives up what has none.  `repair.py` rebuilds the metadata of a log that does not open.

Each of them leaves a log whose readers notice when it lacks what they have seen: `metadata/restores.py`.
"""
