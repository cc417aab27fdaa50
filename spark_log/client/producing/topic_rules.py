"""The rules of a topic for its records: sizes, times and partitions, over whole batches.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge, SparkLogError
from spark_log.metadata.decide.topics import topic_named
from spark_log.metadata.state import State
from spark_log.segment.conform import Rows, micros
from spark_log.segment.partitioners import (
    no_such_partition,
    outside,
)
from spark_log.segment.schema import RECORD_SCHEMA
from spark_log.segment.writer import row_bytes
from spark_log.settings import topic_config

_NO_LIMIT_MS = 2**63 - 1


class TopicSpec(NamedTuple):
    """The properties of a topic that a writer needs.  Sent to tasks."""

    topic_id: str
    name: str
    partitions: int
    max_message_bytes: int
    compression: str
    """The topic's `compression.type`: a codec, or `producer`."""
    append_time: bool
    before_max_ms: int
    after_max_ms: int


def topic_spec(state: State, name: str) -> TopicSpec:
    """The spec of an existing topic.  Raises UnknownTopicOrPartition."""
    topic_id, topic = topic_named(state, name)
    return TopicSpec(
        topic_id,
        name,
        topic.partitions,
        topic_config(topic.configs, "max.message.bytes"),
        topic_config(topic.configs, "compression.type"),
        topic_config(topic.configs, "message.timestamp.type") == "LogAppendTime",
        topic_config(topic.configs, "message.timestamp.before.max.ms"),
        topic_config(topic.configs, "message.timestamp.after.max.ms"),
    )


class Fault(NamedTuple):
    """A rule of the topic that some rows of a batch violate."""

    kind: type[SparkLogError]
    rows: npt.NDArray[np.bool_]
    """A mask of the rows."""
    reason: Callable[[int], str]
    """The message for a row, by its index."""


def faults_of(spec: TopicSpec, rows: Rows, now_ms: int) -> list[Fault]:
    """The rules that rows violate: on size, on time, and on explicit partitions."""
    if rows.records.num_rows == 0:
        return []
    found = (_too_large(spec, rows.records), *_out_of_time(spec, rows.records, now_ms), _no_partition(spec, rows))
    return [fault for fault in found if fault is not None]


def _too_large(spec: TopicSpec, records: pa.RecordBatch) -> Fault | None:
    if _all_within(records, spec.max_message_bytes):
        return None
    sizes = row_bytes(records)
    wrong = sizes > spec.max_message_bytes
    if not wrong.any():
        return None

    def reason(row: int) -> str:
        return (
            f"a record of {sizes[row]} bytes is larger than max.message.bytes={spec.max_message_bytes} of topic "
            f"{spec.name!r}; raise it with `pylog topic alter {spec.name} -c max.message.bytes=…`"
        )

    return Fault(MessageTooLarge, wrong, reason)


def _all_within(records: pa.RecordBatch, limit: int) -> bool:
    """Whether no row exceeds `limit`.  Compares the size of halves first, at a tenth of the cost of single rows."""
    if records.nbytes <= limit:
        return True
    half = records.num_rows // 2
    if not half or records.num_columns > len(RECORD_SCHEMA):  # headers count more than their bytes
        return False
    return _all_within(records.slice(0, half), limit) and _all_within(records.slice(half), limit)


def _out_of_time(spec: TopicSpec, records: pa.RecordBatch, now_ms: int) -> list[Fault]:
    if spec.append_time or (spec.before_max_ms == spec.after_max_ms == _NO_LIMIT_MS):
        return []
    stamps = micros(records)
    faults = []
    if now_ms - int(stamps.min()) // 1000 > spec.before_max_ms:
        times = stamps // 1000
        faults.append(_times_fault(spec, times, now_ms - times > spec.before_max_ms, now_ms, "before"))
    if int(stamps.max()) // 1000 - now_ms > spec.after_max_ms:
        times = stamps // 1000
        faults.append(_times_fault(spec, times, times - now_ms > spec.after_max_ms, now_ms, "after"))
    return faults


def _times_fault(
    spec: TopicSpec, times: npt.NDArray[np.int64], wrong: npt.NDArray[np.bool_], now_ms: int, side: str
) -> Fault:
    limit = spec.before_max_ms if side == "before" else spec.after_max_ms

    def reason(row: int) -> str:
        return (
            f"a record of topic {spec.name!r} has timestamp {times[row]} ms, more than "
            f"message.timestamp.{side}.max.ms={limit} {side} the present ({now_ms} ms)"
        )

    return Fault(InvalidTimestamp, wrong, reason)


def _no_partition(spec: TopicSpec, rows: Rows) -> Fault | None:
    wanted = rows.partitions
    if wanted is None or wanted.null_count == len(wanted):
        return None
    numbers = pc.fill_null(wanted, 0).to_numpy()
    wrong = outside(numbers, spec.partitions)
    if not wrong.any():
        return None

    def reason(row: int) -> str:
        named = no_such_partition("a record names", int(numbers[row]), spec.partitions, spec.name)
        return f"{named}; leave the column 'partition' out, or give the topic more partitions"

    return Fault(InvalidRecord, wrong, reason)


def specs_of(state: State) -> Mapping[str, TopicSpec]:
    """The specs of all existing topics, by name."""
    return {name: topic_spec(state, name) for name in state.names}
