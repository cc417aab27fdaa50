"""Writing objects: what a task, a producer or an append does before anything is committed.

An upload turns rows into objects under an upload epoch and says exactly what it wrote.  Nothing of it is visible before a
commit names it, and what no commit names is garbage.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge, SparkLogError
from spark_log.journal.object_names import data_key
from spark_log.metadata.decide import topic_named
from spark_log.metadata.state import State
from spark_log.model import DataObject, Run
from spark_log.segment.conform import Rows, micros
from spark_log.segment.partitioners import (
    Partitioner,
    assign_partitions,
    make_partitioner,
    no_such_partition,
    outside,
    split,
)
from spark_log.segment.schema import COMPRESSIONS, DEFAULT_COMPRESSION, RECORD_SCHEMA
from spark_log.segment.writer import SegmentWriter, row_bytes
from spark_log.settings import topic_config
from spark_log.store.base import Chunks, ObjectStore

BUFFER_BYTES = 64 << 20
_NO_LIMIT_MS = 2**63 - 1


class TopicSpec(NamedTuple):
    """What a writer has to know of a topic.  Travels to tasks."""

    topic_id: str
    name: str
    partitions: int
    max_message_bytes: int
    compression: str
    """`producer`, or what the topic wants."""
    append_time: bool
    before_max_ms: int
    after_max_ms: int


def topic_spec(state: State, name: str) -> TopicSpec:
    """The spec of a live topic.  Raises UnknownTopicOrPartition."""
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


class Uploaded(NamedTuple):
    """What an upload wrote, in the order in which it is to be committed."""

    objects: tuple[DataObject, ...]
    slices: tuple[tuple[int, Run], ...]
    """(number of the object, run)."""

    @property
    def rows(self) -> int:
        return sum(run.rows for _, run in self.slices)


NOTHING = Uploaded((), ())


def join_uploads(uploads: Iterable[Uploaded]) -> Uploaded:
    """Uploads one after the other, as one."""
    objects: list[DataObject] = []
    slices: list[tuple[int, Run]] = []
    for upload in uploads:
        slices += [(number + len(objects), run) for number, run in upload.slices]
        objects += upload.objects
    return Uploaded(tuple(objects), tuple(slices))


class Uploader:
    """Rows in, one object out (one per codec, where the topics want several).

    epoch:        upload epoch, the version of the state that the writer had seen before.
    partitioner:  a name that `make_partitioner` knows; each topic gets an instance of its own.
    compression:  for topics whose `compression.type` is `producer`.
    """

    def __init__(
        self,
        store: ObjectStore,
        epoch: int,
        rng: random.Random,
        *,
        partitioner: str = "default",
        compression: str = DEFAULT_COMPRESSION,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        if compression not in COMPRESSIONS:
            raise InvalidRecord(f"compression {compression!r} is not one of {', '.join(COMPRESSIONS)}")
        self._store = store
        self._epoch = epoch
        self._rng = rng
        self._partitioner = partitioner
        self._compression = compression
        self._buffer_bytes = buffer_bytes
        self._partitioners: dict[str, Partitioner] = {}
        self._writers: dict[str, SegmentWriter] = {}

    def append(self, spec: TopicSpec, rows: Rows, now_ms: int) -> None:
        """Add rows of one topic.  Raises InvalidRecord, MessageTooLarge, InvalidTimestamp; nothing is committed then."""
        for fault in faults_of(spec, rows, now_ms):
            raise fault.kind(fault.reason(int(fault.rows.argmax())))
        self.add(spec, rows)

    def add(self, spec: TopicSpec, rows: Rows) -> None:
        """Add rows of one topic that have no faults."""
        records = rows.records
        if records.num_rows == 0:
            return
        partitioner = self._partitioners.get(spec.topic_id)
        if partitioner is None:
            partitioner = self._partitioners[spec.topic_id] = make_partitioner(self._partitioner, self._rng)
        numbers = assign_partitions(records, rows.partitions, spec.partitions, partitioner, topic=spec.name)
        writer = self._writer(spec)
        for number, part in split(records, numbers, spec.partitions):
            writer.append(spec.topic_id, number, part)

    def _writer(self, spec: TopicSpec) -> SegmentWriter:
        codec = self._compression if spec.compression == "producer" else spec.compression
        codec = "none" if codec == "uncompressed" else codec
        if codec not in self._writers:
            self._writers[codec] = SegmentWriter(
                compression=codec,
                buffer_bytes=self._buffer_bytes,
                open_spool=_open_spool,
            )
        return self._writers[codec]

    def finish(self) -> Uploaded:
        """Put the objects, durably, and say what they hold."""
        try:
            return join_uploads(self._put(writer) for _, writer in sorted(self._writers.items()))
        finally:
            self.close()

    def _put(self, writer: SegmentWriter) -> Uploaded:
        written = writer.finish()
        if not written.runs:
            return NOTHING
        name = data_key(self._epoch, f"{self._rng.getrandbits(64):016x}.seg")
        self._store.put(name, Chunks(written.chunks))
        return Uploaded(
            (DataObject(name, written.size, written.index_position),), tuple((0, run) for run in written.runs)
        )

    def close(self) -> None:
        """Drop what was not put."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def _open_spool() -> BinaryIO:
    return cast(BinaryIO, tempfile.TemporaryFile(prefix="pylog-"))


class Fault(NamedTuple):
    """A rule that some rows of a batch break."""

    kind: type[SparkLogError]
    rows: npt.NDArray[np.bool_]
    """Which."""
    reason: Callable[[int], str]
    """Of a row, by its number: the sentence."""


def faults_of(spec: TopicSpec, rows: Rows, now_ms: int) -> list[Fault]:
    """The topic's rules that rows break: of size, of time, and of partitions that they name."""
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
    """Whether no row can be larger than `limit`: halves are weighed until they are within it, a tenth of weighing each row."""
    if records.nbytes <= limit:
        return True
    half = records.num_rows // 2
    if not half or records.num_columns > len(RECORD_SCHEMA):  # headers weigh more than their bytes
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
    """The specs of all live topics, by name."""
    return {name: topic_spec(state, name) for name in state.names}
