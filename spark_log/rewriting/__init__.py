"""Segments take the place of others: merging, compaction and erasure, as steps of the commit protocol.

`rewrite.py` rewrites slices, with all of their records or only some of them, and `segment_swaps.py` replaces the old
ones in one record, so readers see either.  Three users decide which: `merge.py` (small slices become large ones, by
`merge_policy.py`), `compaction_rounds.py` (older records of a key go, by `compaction_rules.py`), and `erasing.py`
(records of given keys go, from dead copies too).

`slice_reads.py` reads in parts that fit into memory.  `maintenance_memory.py` remembers a round, so that the next one
looks only at changes.  Rounds and their order are in `maintenance`; `client/admin/erasure.py` starts an erasure.
"""
