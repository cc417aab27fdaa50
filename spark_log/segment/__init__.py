"""Segment objects: Arrow record batches to bytes and back, indexes, checksums, partitioners.

Pure: bytes and batches in, bytes and batches out.  The one file it touches is a spool that its caller opened.  The byte
layout is in docs/format/segment.md.
"""
