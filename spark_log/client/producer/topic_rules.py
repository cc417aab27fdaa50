"""The rules of a topic for its records: keys, sizes, times and partitions, over whole batches.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.configs.settings import has_cleanup_policy, topic_config
from spark_log.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge, SparkLogError
from spark_log.metadata.replicas.replica_state import OWN_GROUP
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.metadata.topics.schemas import schema_of
from spark_log.schema.column_configs import AUTO, stored_sort_columns
from spark_log.schema.topic_schema import TopicSchema
from spark_log.segment.arrays.numpy_arrays import array_of, mask_of, numbers_or
from spark_log.segment.compression import TopicCompression, topic_compression
from spark_log.segment.partitioners import (
    no_such_partition,
    outside,
)
from spark_log.segment.record_columns import Rows, micros
from spark_log.segment.row_batches import row_bytes
from spark_log.segment.schema import schema_version

_NO_LIMIT_MS = 2**63 - 1
Numbers = npt.NDArray[np.integer[Any]]
Int64s = npt.NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class TopicSpec(NamedTuple):
    """The properties of a topic that a writer needs.  Sent to tasks."""

    topic_id: str
    name: str
    partitions: int
    max_message_bytes: int
    compression: TopicCompression
    append_time: bool
    before_max_ms: int
    after_max_ms: int
    compacted: bool
    """Records must have keys."""
    groups: tuple[int, ...] = ()
    """The placement group of each partition; empty: all are in the log's own root."""
    min_insync: int = 1
    """`min.insync.replicas`."""
    schema: TopicSchema | None = None
    """The newest version of its schema; None: values are bytes."""
    auto_schema: bool = False
    """`schema.auto`: without a schema, the first typed write sets it."""
    sets_schema: bool = False
    """The topic has no schema yet: the commit of the rows gives it this one."""
    stats_columns: str = AUTO
    """`stats.columns`."""
    sort_columns: tuple[str, ...] = ()
    """`sort.columns`, as they are stored."""

    def group(self, partition: int) -> int:
        """The placement group of a partition."""
        return self.groups[partition] if self.groups else OWN_GROUP


def topic_spec(state: State, name: str, first: TopicSchema | None = None) -> TopicSpec:
    """The spec of an existing topic.  Raises UnknownTopicOrPartition.

    first:  the schema that a write gives to the topic if it has none.
    """
    topic_id, topic = topic_named(state, name)
    known = schema_of(state, topic_id)
    schema = known or first
    return TopicSpec(
        topic_id,
        name,
        topic.partitions,
        topic_config(topic.configs, "max.message.bytes"),
        topic_compression(topic.configs),
        topic_config(topic.configs, "message.timestamp.type") == "LogAppendTime",
        topic_config(topic.configs, "message.timestamp.before.max.ms"),
        topic_config(topic.configs, "message.timestamp.after.max.ms"),
        has_cleanup_policy(topic.configs, "compact"),
        state.assignments.get(topic_id, ()),
        topic_config(topic.configs, "min.insync.replicas"),
        schema,
        bool(topic_config(topic.configs, "schema.auto")),
        known is None and first is not None,
        str(topic_config(topic.configs, "stats.columns")),
        stored_sort_columns(topic_config(topic.configs, "sort.columns"), schema),
    )


@dataclass(frozen=True, eq=False)
class TopicTable:
    """Topics by number, and their rules as arrays: checks and partitions of rows of many topics take one pass."""

    specs: tuple[TopicSpec, ...]

    @cached_property
    def partitions(self) -> Int64s:
        return np.array([spec.partitions for spec in self.specs])

    @cached_property
    def max_message_bytes(self) -> Int64s:
        return np.array([spec.max_message_bytes for spec in self.specs])

    @cached_property
    def before_max_ms(self) -> Int64s:
        """Without a limit for log append time, which ignores the records' own times; as `after_max_ms`."""
        return np.array([_NO_LIMIT_MS if spec.append_time else spec.before_max_ms for spec in self.specs])

    @cached_property
    def after_max_ms(self) -> Int64s:
        return np.array([_NO_LIMIT_MS if spec.append_time else spec.after_max_ms for spec in self.specs])

    @cached_property
    def compacted(self) -> npt.NDArray[np.bool_]:
        return np.array([spec.compacted for spec in self.specs])


class TopicRows(NamedTuple):
    """Rows of one or more topics."""

    topics: TopicTable
    numbers: Numbers | None
    """The number of each row's topic; None if the table has one topic."""
    rows: Rows

    @classmethod
    def of(cls, spec: TopicSpec, rows: Rows) -> TopicRows:
        return cls(TopicTable((spec,)), None, rows)

    @property
    def num_rows(self) -> int:
        return int(self.rows.records.num_rows)

    def spec(self, row: int) -> TopicSpec:
        """The topic of a row."""
        return self.topics.specs[0 if self.numbers is None else self.numbers[row]]

    def each(self, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """values: by topic.  The value for each row; or the only one, which numpy broadcasts."""
        return values if self.numbers is None else values[self.numbers]

    def take(self, at: Numbers) -> TopicRows:
        """The rows at these indexes, ascending."""
        if len(at) == self.num_rows:
            return self
        return TopicRows(self.topics, None if self.numbers is None else self.numbers[at], take_rows(self.rows, at))


def take_rows(rows: Rows, at: Numbers) -> Rows:
    """The rows at these indexes."""
    taken = array_of(at, pa.int64())
    return Rows(rows.records.take(taken), None if rows.partitions is None else rows.partitions.take(taken))


class Fault(NamedTuple):
    """A rule that some rows of a batch violate."""

    kind: type[SparkLogError]
    rows: npt.NDArray[np.bool_]
    """A mask of the rows."""
    reason: Callable[[int], str]
    """The message for a row, by its index."""


def faults_of(batch: TopicRows, now_ms: int) -> list[Fault]:
    """The rules of their topics that rows violate: on keys, on size, on time, and on explicit partitions."""
    if batch.num_rows == 0:
        return []
    found = (_no_key(batch), _too_large(batch), *_out_of_time(batch, now_ms), _no_partition(batch))
    return [fault for fault in found if fault is not None]


def check_rules(batch: TopicRows, now_ms: int, first: int) -> None:
    """Raises the error of the first row that violates a rule.  first: the number of the first row, for messages."""
    for fault in faults_of(batch, now_ms):
        row = int(fault.rows.argmax())
        error = fault.kind(f"row {first + row}: {fault.reason(row)}")
        if isinstance(error, InvalidRecord):
            error.row = first + row
        raise error


def _no_key(batch: TopicRows) -> Fault | None:
    keys = batch.rows.records.column("key")
    if not keys.null_count or not batch.topics.compacted.any():
        return None
    wrong = _nulls(keys) & batch.each(batch.topics.compacted)
    if not wrong.any():
        return None
    return Fault(InvalidRecord, wrong, lambda row: no_key(batch.spec(row).name))


def keyless_topics(batch: TopicRows) -> set[str]:
    """Ids of the topics of the rows that have no key."""
    keys = batch.rows.records.column("key")
    if not keys.null_count:
        return set()
    numbers = [0] if batch.numbers is None else np.flatnonzero(np.bincount(batch.numbers[_nulls(keys)])).tolist()
    return {batch.topics.specs[number].topic_id for number in numbers}


def checked_versions(batch: TopicRows) -> list[tuple[str, int]]:
    """(topic id, version of its schema) of the topics that have rows; 0 if these are bytes.

    Raises InvalidRecord for bytes to a topic with a schema, and for rows that were converted by another version than
    the spec's.
    """
    version = schema_version(batch.rows.records.schema)
    numbers = [0] if batch.numbers is None else np.flatnonzero(np.bincount(batch.numbers)).tolist()
    specs = [batch.topics.specs[number] for number in numbers]
    for spec in specs:
        if (spec.schema.version if spec.schema is not None else 0) != version:
            raise InvalidRecord(
                f"topic {spec.name!r} has a schema, and these rows are not by its version: its values are columns, not "
                "bytes; write a frame with these columns, or send dicts"
                if spec.schema is not None
                else f"topic {spec.name!r} has no schema, and these rows have columns of data"
            )
    return [(spec.topic_id, version) for spec in specs]


def _nulls(column: pa.Array) -> npt.NDArray[np.bool_]:
    return mask_of(column.is_null())


def no_key(topic: str) -> str:
    """The message for a record without a key."""
    return (
        f"a record of topic {topic!r} has no key, and the topic has cleanup.policy=compact, which keeps the latest "
        "record of each key: give every record a key, or write to a topic that is not compacted"
    )


def _too_large(batch: TopicRows) -> Fault | None:
    limits = batch.topics.max_message_bytes
    if _all_within(batch.rows.records, int(limits.min())):
        return None
    sizes = row_bytes(batch.rows.records)
    wrong = sizes > batch.each(limits)
    if not wrong.any():
        return None

    def reason(row: int) -> str:
        spec = batch.spec(row)
        return (
            f"a record of {sizes[row]} bytes is larger than max.message.bytes={spec.max_message_bytes} of topic "
            f"{spec.name!r}; raise it with `pylog topic alter {spec.name} -c max.message.bytes={sizes[row]}`"
        )

    return Fault(MessageTooLarge, wrong, reason)


def _all_within(records: pa.RecordBatch, limit: int) -> bool:
    """Whether no row exceeds `limit`.  Compares the size of halves first, at a tenth of the cost of single rows."""
    if records.nbytes <= limit:
        return True
    half = records.num_rows // 2
    if not half or "headers" in records.schema.names:  # which count more than their bytes
        return False
    return _all_within(records.slice(0, half), limit) and _all_within(records.slice(half), limit)


def _out_of_time(batch: TopicRows, now_ms: int) -> list[Fault]:
    before, after = batch.topics.before_max_ms, batch.topics.after_max_ms
    if before.min() == after.min() == _NO_LIMIT_MS:
        return []
    stamps = micros(batch.rows.records)
    faults = []
    if now_ms - int(stamps.min()) // 1000 > before.min():
        times = stamps // 1000
        faults.append(_times_fault(batch, times, now_ms - times > batch.each(before), now_ms, "before"))
    if int(stamps.max()) // 1000 - now_ms > after.min():
        times = stamps // 1000
        faults.append(_times_fault(batch, times, times - now_ms > batch.each(after), now_ms, "after"))
    return [fault for fault in faults if fault.rows.any()]


def _times_fault(
    batch: TopicRows, times: npt.NDArray[np.int64], wrong: npt.NDArray[np.bool_], now_ms: int, side: str
) -> Fault:
    def reason(row: int) -> str:
        spec = batch.spec(row)
        limit = spec.before_max_ms if side == "before" else spec.after_max_ms
        return (
            f"a record of topic {spec.name!r} has timestamp {times[row]} ms, more than "
            f"message.timestamp.{side}.max.ms={limit} {side} the present ({now_ms} ms)"
        )

    return Fault(InvalidTimestamp, wrong, reason)


def _no_partition(batch: TopicRows) -> Fault | None:
    wanted = batch.rows.partitions
    if wanted is None or wanted.null_count == len(wanted):
        return None
    numbers = numbers_or(0, wanted)
    wrong = outside(numbers, batch.each(batch.topics.partitions))
    if not wrong.any():
        return None

    def reason(row: int) -> str:
        spec = batch.spec(row)
        number = int(numbers[row])
        named = no_such_partition("a record names", number, spec.partitions, spec.name)
        more = f", or give the topic more with `pylog topic alter {spec.name} --partitions {number + 1}`"
        return f"{named}; leave its partition out{more if number >= 0 else ''}"

    return Fault(InvalidRecord, wrong, reason)


def specs_of(state: State) -> Mapping[str, TopicSpec]:
    """The specs of all existing topics, by name."""
    return {name: topic_spec(state, name) for name in state.names}
