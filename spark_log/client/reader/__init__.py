"""Reads: from positions to offsets, to byte ranges of objects, to batches of Arrow.

`positions_to_offsets.py` resolves, `plan.py` finds the slices, `prune.py` leaves out what a condition excludes, and
`fetch.py` reads and decodes.  `scan.py` is the public way through all of them.
"""
