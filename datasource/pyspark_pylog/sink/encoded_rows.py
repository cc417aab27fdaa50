"""Batches of rows that `native/PylogWriter.java` has encoded, in a task of its writer in Python.

Java writes the messages of batches to a file.  The first row that it hands over has, in the column `ENCODED`, what is
in the file.  The row itself, and those that follow, are left to Python.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_log.client.producer.topic_rules import TopicSpec
from spark_log.client.producer.upload import Uploader
from spark_log.errors import InvalidRecord, StorageError
from spark_log.segment.writer import EncodedRows

ENCODED = "pylog.encoded"
HEAD = struct.Struct("<qBi")
"""Rows of the task that are encoded, flags, and the length of the path that follows."""
ROW = 1
"""Flag: the row with this is one that is left to Python."""
HEADERS, KEYLESS = 1, 2
"""Flags of a batch: it has headers; some of its rows have no key."""
BATCHES = np.dtype(
    [
        ("topic", "<i4"),
        ("partition", "<i4"),
        ("rows", "<i4"),
        ("flags", "<i4"),
        ("min_us", "<i8"),
        ("max_us", "<i8"),
        ("position", "<i8"),
        ("length", "<i8"),
        ("crc", "<i8"),
    ]
)


def check_no_encoded(names: Sequence[str]) -> None:
    """Raises InvalidRecord for a frame that has the column: its rows would be taken for those of Java."""
    if ENCODED in names:
        raise InvalidRecord(f"column {ENCODED!r} has a name that pylog uses itself: rename or drop it")


class LeftToPython(NamedTuple):
    """A batch of rows that are left to Python."""

    rows: pa.RecordBatch
    encoded: int
    """Rows of the task that were encoded before them."""


def take_encoded(batch: pa.RecordBatch, topics: Sequence[TopicSpec], uploader: Uploader) -> LeftToPython:
    """Give the uploader what Java has encoded.  Raises StorageError if it cannot be read.

    topics:  by their numbers in Java's rules.
    """
    if ENCODED not in batch.schema.names:
        return LeftToPython(batch, 0)
    head, rows = batch.column(ENCODED)[0].as_py(), batch.drop_columns([ENCODED])
    if head is None:
        return LeftToPython(rows, 0)
    count, flags, length = HEAD.unpack_from(head)
    if count:
        path = head[HEAD.size : HEAD.size + length].decode()
        for topic, partition, encoded in _batches(path, head[HEAD.size + length :]):
            uploader.add_encoded(topics[topic], partition, encoded)
    return LeftToPython(rows if flags & ROW else rows.slice(1), count)


def _batches(path: str, listed: bytes) -> Iterator[tuple[int, int, EncodedRows]]:
    """The batches in a file, each with its topic and its partition."""
    try:
        with open(path, "rb") as file:
            for topic, partition, rows, flags, first, last, position, length, crc in np.frombuffer(
                listed, BATCHES
            ).tolist():
                file.seek(position)
                data = file.read(length)
                if crc32c(data) != crc:
                    raise StorageError(f"the file {path} has other bytes than Spark wrote, at byte {position}")
                has_headers, is_keyless = bool(flags & HEADERS), bool(flags & KEYLESS)
                yield topic, partition, EncodedRows(data, crc, rows, first, last, has_headers, is_keyless)
    except OSError as error:
        raise StorageError(
            f"the rows that Spark has encoded cannot be read: {error}; set spark.pylog.nativeRead=false if Spark's "
            "processes of Python have no access to its files"
        ) from error
