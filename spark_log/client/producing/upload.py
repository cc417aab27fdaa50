"""Writing objects: the steps of a task, a producer or an append before the commit.

An upload turns rows into objects under an upload epoch, and returns exactly what it wrote.  Objects become visible
when a commit names them; objects that no commit names are garbage.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple, cast

from spark_log.client.producing.topic_rules import TopicSpec, faults_of
from spark_log.errors import InvalidRecord
from spark_log.journal.object_names import data_key
from spark_log.model import DataObject, Run
from spark_log.segment.conform import Rows
from spark_log.segment.partitioners import (
    Partitioner,
    assign_partitions,
    make_partitioner,
    split,
)
from spark_log.segment.schema import COMPRESSIONS, DEFAULT_COMPRESSION
from spark_log.segment.writer import SegmentWriter
from spark_log.store.base import Chunks, ObjectStore

BUFFER_BYTES = 64 << 20


class Uploaded(NamedTuple):
    """The result of an upload, in commit order."""

    objects: tuple[DataObject, ...]
    slices: tuple[tuple[int, Run], ...]
    """(index of the object, run)."""

    @property
    def rows(self) -> int:
        return sum(run.rows for _, run in self.slices)


NOTHING = Uploaded((), ())


def join_uploads(uploads: Iterable[Uploaded]) -> Uploaded:
    """Concatenate uploads."""
    objects: list[DataObject] = []
    slices: list[tuple[int, Run]] = []
    for upload in uploads:
        slices += [(number + len(objects), run) for number, run in upload.slices]
        objects += upload.objects
    return Uploaded(tuple(objects), tuple(slices))


class Uploader:
    """Writes rows to one object (one per codec, if the topics use several).

    epoch:        upload epoch: a state version that the writer had read before.
    partitioner:  a name for `make_partitioner`; each topic gets a separate instance.
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
        """Add rows of one topic.  After InvalidRecord, MessageTooLarge or InvalidTimestamp, nothing must be
        committed."""
        for fault in faults_of(spec, rows, now_ms):
            raise fault.kind(fault.reason(int(fault.rows.argmax())))
        self.add(spec, rows)

    def add(self, spec: TopicSpec, rows: Rows) -> None:
        """Add rows of one topic that are already validated."""
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
        """Write the objects durably, and return their contents."""
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
        """Discard data that was not written."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def _open_spool() -> BinaryIO:
    return cast(BinaryIO, tempfile.TemporaryFile(prefix="pylog-"))
