"""Bytes of the metadata log: batches of records, checkpoints, slice indexes, lists of dropped objects; and a state's
digest.

docs/format/metadata.md describes them byte by byte.
"""
