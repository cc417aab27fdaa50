"""The values that all parts of pylog use.  Plain data: no I/O, no clock.

Units: offsets count records, positions and lengths count bytes, `_us` is microseconds and `_ms` milliseconds since
1970-01-01 UTC.  Ranges are half-open, [start, end).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from spark_log.bounds import Checksum, Int, Known, Long, Size, Stats, Time, TimeKind

EARLIEST = -2
"""The first offset of a partition, as in Kafka."""
LATEST = -1
"""The end of a partition, as in Kafka."""

PROGRESS_TOPIC = "__consumer_offsets"
"""Committed offsets of groups as records, made from the log's state (metadata/groups/consumer_offsets.py).
Read-only.
"""

CREATE_TIME = 0
"""A slice's timestamps are those of its records, set by their producers."""
APPEND_TIME = 1
"""All records of the slice have the log's time at commit, `min_us` = `max_us`; timestamps in the rows are ignored."""
APPEND_TIME_IN_ROWS = 2
"""The rows hold the log's times: merged from `APPEND_TIME` slices."""

ACKS_ALL = -1
"""A commit counts when enough in-sync replicas have its objects."""
ACKS_LEADER = 1
"""A commit counts when the leader has them.  A commit with acks=0 is the same: only its client does not wait."""


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, and the metadata that was committed with it."""

    offset: int
    metadata: str = ""


class RecordMetadata(NamedTuple):
    """The position of an appended record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds."""


class ConsumerRecord(Struct, frozen=True, gc=False):
    """One record, as a consumer returns it.

    A struct that the garbage collector does not track: a named tuple takes twice as long to make, and millions of them
    cause collections that cost more than the rest of a read.
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
    """By name: Kafka's, and some of pylog's own, such as `schema.auto`; values as text."""
    replication_factor: int | None = None
    """How many copies of each record, each on a different broker; None: the log's `default.replication.factor`."""
    replica_assignment: Mapping[int, Sequence[int]] | None = None
    """The brokers of each partition, the preferred leader first; instead of `replication_factor`."""
    schema: object = None
    """The columns of the topic's values: an Arrow schema, DDL (`"id BIGINT NOT NULL, name STRING"`) or a Spark
    `StructType`; None: values are bytes."""


class Run(NamedTuple):
    """Consecutive records of one partition inside an object, as its writer reports them (docs/format/segment.md)."""

    topic_id: Known
    partition: Int
    position: Size
    """Where the run's Arrow stream starts in the object."""
    length: Size
    """Bytes of the stream, end marker included."""
    crc: Checksum
    """crc32c of those bytes."""
    rows: Int
    batches: Int
    min_us: Time
    max_us: Time


class KindAndStats(NamedTuple):
    """The time kind of a slice, and its statistics.

    A class, because msgspec cannot decode a union of a number with bounds and a plain tuple: it crashes.
    """

    time_kind: TimeKind
    stats: Stats


class Slice(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A run with its place in the partition: records [start, end) are rows 0, 1, … of the run.

    A struct that the garbage collector does not track, because there may be a million of them.
    """

    start: Long
    end: Long
    object: Known
    """The object's name relative to the root, `data/<upload epoch>/<id>.seg`."""
    position: Size
    length: Size
    crc: Checksum
    batches: Int
    min_us: Time
    max_us: Time
    more: TimeKind | KindAndStats = 0
    """The time kind: `CREATE_TIME`, `APPEND_TIME` or `APPEND_TIME_IN_ROWS`; or a pair of it and the statistics of data
    columns (segment/statistics.py).  A slice of bytes has none, and keeps the form that it had before these."""

    @property
    def time_kind(self) -> int:
        return self.more if isinstance(self.more, int) else self.more[0]

    @property
    def stats(self) -> bytes:
        """Empty if there are none."""
        return b"" if isinstance(self.more, int) else self.more[1]


def kind_and_stats(time_kind: int, stats: bytes) -> int | KindAndStats:
    """The last field of a slice."""
    return KindAndStats(time_kind, stats) if stats else time_kind


class DataObject(NamedTuple):
    """An object as its writer reports it, and as the state stores it."""

    name: Known
    size: Size
    """Total bytes of the object."""
    index_position: Size
    """Where its index starts; index and tail end at the end of the object."""


class Placed(NamedTuple):
    """Where a writer has put an object."""

    group: Int
    """The placement group whose partitions it has records of."""
    held: tuple[tuple[Int, Long], ...] = ()
    """(broker, epoch of the broker when the put began), of all that have it; none in group 0: the log's own root."""
