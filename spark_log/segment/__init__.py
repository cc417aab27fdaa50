"""Segment objects: Arrow record batches to bytes and back, indexes, checksums, partitioners.

Pure: bytes and batches in, bytes and batches out, except for a spool file that the caller opens.  The byte layout is in
docs/format/segment.md.
"""
