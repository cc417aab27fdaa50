"""The values that every part of pylog speaks of.  Plain data: no I/O, no clock.

Units: offsets count records, positions and lengths count bytes, `_us` is microseconds and `_ms` milliseconds since
1970-01-01 UTC.  Ranges are half-open, [start, end).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

EARLIEST = -2
"""Stands for the first offset of a partition, as in Kafka."""
LATEST = -1
"""Stands for the end of a partition, as in Kafka."""

PROGRESS_TOPIC = "__consumer_offsets"
"""Where groups stand, as records that are made of the log's state (metadata/consumer_offsets.py).  It is only read."""

CREATE_TIME = 0
"""A slice's timestamps are the records' own, set by their producers."""
APPEND_TIME = 1
"""All records of the slice have the log's time of their commit, `min_us` = `max_us`; what the rows say is ignored."""
APPEND_TIME_IN_ROWS = 2
"""The rows hold the log's times: slices of the kind above, merged."""


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, and the note that was committed with it."""

    offset: int
    metadata: str = ""


class RecordMetadata(NamedTuple):
    """Where a record was put."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds."""


class ConsumerRecord(Struct, frozen=True, gc=False):
    """One record, as a consumer gets it.

    A struct that the garbage collector does not follow: a named tuple takes twice as long to make, and the collections that
    millions of them bring about take more than all else that reading does.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    """() if there are none."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    num_partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    """Kafka's names, values as text."""


class Run(NamedTuple):
    """Consecutive records of one partition inside an object, as its writer reports them (docs/format/segment.md)."""

    topic_id: str
    partition: int
    position: int
    """Where the run's Arrow stream starts in the object."""
    length: int
    """Bytes of the stream, end marker included."""
    crc: int
    """crc32c of those bytes."""
    rows: int
    batches: int
    min_us: int
    max_us: int


class Slice(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A run with its place in the partition: records [start, end) are rows 0, 1, … of the run.

    A struct that the garbage collector does not follow, as there may be a million of them.
    """

    start: int
    end: int
    object: str
    """The object's name relative to the root, `data/<upload epoch>/<id>.seg`."""
    position: int
    length: int
    crc: int
    batches: int
    min_us: int
    max_us: int
    time_kind: int = 0
    """`CREATE_TIME`, `APPEND_TIME` or `APPEND_TIME_IN_ROWS`."""


class DataObject(NamedTuple):
    """An object as its writer reports it, and as the state keeps it."""

    name: str
    size: int
    """Bytes in all."""
    index_position: int
    """Where its index starts; the index and the tail reach from there to the end."""
