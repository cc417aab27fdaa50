"""`__consumer_offsets`: committed positions of groups as records.  They are made from the state; no object stores them.

As in Kafka's topic of that name after compaction, there is one record, the latest, for each position that a group
committed.  A removed position has a record without a value until the fence has passed the removal (a day).  Kafka's
rule distributes groups over 50 partitions.  Key and value are JSON:

    {"group":"billing","topic":"orders","partition":0}
    {"offset":42,"metadata":"","committed":1769853600000}

The offset of a record is the version of the log in which the position was committed or removed.  It grows with time,
the positions of one commit share it, and all partitions end one past the last version in which any position changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from typing_extensions import assert_never

from spark_log.conditions import EVERYTHING, Condition
from spark_log.errors import InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition
from spark_log.metadata.state import State
from spark_log.model import PROGRESS_TOPIC
from spark_log.positions import At, AtTime, Earliest, Latest, LatestMinus, OfGroup, Position, SinceNow

PARTITIONS = 50


class ProgressRecord(NamedTuple):
    """One position of one group."""

    partition: int
    offset: int
    time_ms: int
    key: str
    value: str | None


class CommittedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The whole topic at one version of the log."""

    version: int
    end: int
    """End offset of every partition."""
    records: tuple[ProgressRecord, ...]
    """Sorted by partition and offset."""

    def offsets_of(self, positions: Mapping[int, Position], now_ms: int) -> dict[int, int]:
        """Resolve positions by partition; a time after the last record is the end.  Raises as `offset_of`."""
        found = {number: self.offset_of(number, position, now_ms) for number, position in positions.items()}
        return {number: self.end if offset is None else offset for number, offset in found.items()}

    def offset_of(self, partition: int, position: Position, now_ms: int) -> int | None:
        """Resolve a position in a partition; None for a time after the last record.

        Raises OffsetOutOfRange for a number beyond the end, InvalidRequest for a group: groups have no positions here.
        """
        match position:
            case Earliest():
                return 0
            case Latest():
                return self.end
            case LatestMinus(count):
                offsets = [record.offset for record in self.records if record.partition == partition]
                return self.end if not count else 0 if count > len(offsets) else offsets[-count]
            case At(offset):
                if offset > self.end:
                    raise OffsetOutOfRange(
                        f"offset {offset} is beyond the end of {PROGRESS_TOPIC}, {self.end}", start=0, end=self.end
                    )
                return offset
            case SinceNow(ms):
                return self._first_at(now_ms - ms)
            case AtTime(ms):
                return self._first_at(ms)
            case OfGroup(name):
                raise InvalidRequest(
                    f"group:{name}: no group has a position in {PROGRESS_TOPIC}; give an offset or a time instead"
                )
            case _:
                assert_never(position)

    def _first_at(self, ms: int) -> int | None:
        """The first offset at or after a time, one for all partitions, most of which are empty."""
        return min((record.offset for record in self.records if record.time_ms >= ms), default=None)

    def between(
        self, starts: Mapping[int, int], ends: Mapping[int, int], where: Condition = EVERYTHING
    ) -> list[ProgressRecord]:
        """Records from `starts` up to `ends`, by partition, that match the condition."""
        return [
            record
            for record in self.records
            if record.partition in starts
            and starts[record.partition] <= record.offset < ends[record.partition]
            and record.partition in where.partition
            and record.offset in where.offset
            and record.time_ms * 1000 in where.time_us
        ]


def progress_of(state: State) -> CommittedOffsets:
    """The topic at the state's version."""
    return CommittedOffsets(version=state.version, end=state.progressed + 1, records=tuple(sorted(_records(state))))


def _records(state: State) -> Iterator[ProgressRecord]:
    for (group, name, number), when in state.forgotten.items():
        yield ProgressRecord(partition_of_group(group), when.version, when.time, _key(group, name, number), None)
    for group, known in state.groups.items():
        partition = partition_of_group(group)
        for (topic_id, number), at in known.offsets.items():
            topic = state.topics.get(topic_id)
            if topic is not None and not topic.deleted:
                value = _json({"offset": at.offset, "metadata": at.metadata, "committed": at.time})
                yield ProgressRecord(partition, at.version, at.time, _key(group, topic.name, number), value)


def _key(group: str, topic: str, partition: int) -> str:
    return _json({"group": group, "topic": topic, "partition": partition})


def _json(fields: Mapping[str, object]) -> str:
    return msgspec.json.encode(fields).decode()


def partition_of_group(group: str) -> int:
    """Kafka's rule: Java's hash of the name, without its sign, modulo the number of partitions."""
    code = 0
    for unit in np.frombuffer(group.encode("utf-16-le", "surrogatepass"), "<u2").tolist():
        code = (31 * code + unit) & 0xFFFF_FFFF
    signed = code - (1 << 32) if code >> 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % PARTITIONS


def progress_partitions(wanted: Sequence[int] | None) -> list[int]:
    """All partitions, or those requested, in order.  Raises UnknownTopicOrPartition."""
    for number in wanted or ():
        if not 0 <= number < PARTITIONS:
            raise UnknownTopicOrPartition(
                f"topic {PROGRESS_TOPIC!r} has no partition {number}, it has {PARTITIONS} (0 to {PARTITIONS - 1})"
            )
    return list(range(PARTITIONS)) if wanted is None else sorted(set(wanted))


def to_batch(records: Sequence[ProgressRecord], schema: pa.Schema) -> pa.RecordBatch:
    """Records with the columns of `schema`, as of any topic."""
    return pa.RecordBatch.from_arrays([_column(records, field) for field in schema], schema=schema)


def _column(records: Sequence[ProgressRecord], field: pa.Field) -> pa.Array:
    match field.name:
        case "key":
            return pa.array([record.key.encode() for record in records], field.type)
        case "value":
            return pa.array([None if r.value is None else r.value.encode() for r in records], field.type)
        case "topic":
            return pa.array([PROGRESS_TOPIC] * len(records), field.type)
        case "partition":
            return pa.array([record.partition for record in records], field.type)
        case "offset":
            return pa.array([record.offset for record in records], field.type)
        case "timestamp":
            return pa.array([record.time_ms * 1000 for record in records], pa.int64()).cast(field.type)
        case "timestampType":  # the log's time, as with LogAppendTime
            return pa.array([1] * len(records), field.type)
        case _:
            return pa.nulls(len(records), field.type)
