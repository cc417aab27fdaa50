"""Builds one segment object from rows of many partitions, which arrive in any order.

Rows are gathered per partition into batches, and each batch is encoded once.  Encoded batches stay in memory up to
`buffer_bytes` and go to a spool file above that; runs are assembled when the object is streamed out.  Memory is
`buffer_bytes` plus about two batches, whatever the object's size and number of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_log.errors import InvalidRecord, StorageError
from spark_log.model import Run
from spark_log.schema.column_configs import AUTO
from spark_log.segment.arrays import ipc
from spark_log.segment.arrays.dictionaries import dictionary_schema, plain, with_dictionaries, worthwhile
from spark_log.segment.batch_index import BatchEntry, encode_index
from spark_log.segment.compression import UNSET, Compression
from spark_log.segment.offsets import Offsets, from_column
from spark_log.segment.record_columns import micros
from spark_log.segment.row_batches import (
    bytes_max,
    concat,
    has_headers,
    row_bytes,
    unpinned,
    with_headers,
    with_offsets,
)
from spark_log.segment.schema import OFFSET, RECORD_SCHEMA, base_of, run_schema, schema_version
from spark_log.segment.statistics import Stats, columns_with_stats, encode_stats, joined, stats_of
from spark_log.segment.typed_rows import with_base

_MIB = 1 << 20
BATCH_ROWS = 10_000
BATCH_BYTES = 2 * _MIB
"""Raw bytes."""
PLAIN = ipc.write_options(None)
CHUNK_BYTES = 1 << 18
"""A write of a few hundred bytes costs as much as one of this size."""


@dataclass(slots=True)
class _Encoded:
    """One record batch message: in memory, or in the spool file."""

    first: int
    """Offset of its first row, relative to the run's base."""
    last: int
    rows: int
    min_us: int
    max_us: int
    length: int
    crc: int
    data: bytes | None
    stats: Stats
    """Statistics of its data columns."""
    spool_position: int = 0


class EncodedRows(NamedTuple):
    """Rows of bytes that another process has encoded as one record batch message.

    By `RECORD_SCHEMA`, or by `RECORD_SCHEMA_HEADERS`.
    """

    data: bytes
    crc: int
    """Checksum of `data`."""
    rows: int
    min_us: int
    max_us: int
    headers: bool
    keyless: bool
    """Some of them have no key."""


@dataclass(slots=True)
class _Partition:
    """The rows of one partition: encoded batches, then rows that wait for their batch to fill."""

    stats_columns: str = AUTO
    """The topic's config `stats.columns`."""

    base: pa.Schema = RECORD_SCHEMA
    """Its columns without headers and offsets."""
    dictionaries: frozenset[str] = frozenset()
    """Columns that are stored as dictionaries."""
    headers: bool = False
    holes: bool = False
    """Some offsets before `end` have no row, so the run stores the offsets."""
    end: int = 0
    """The offset after the last row, relative to the run's base."""
    encoded: list[_Encoded] = field(default_factory=list)
    crc: int = crc32c(ipc.schema_message(RECORD_SCHEMA))
    """Checksum of the run so far: its schema message and the encoded batches."""
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    """Rows that wait."""
    bytes: int = 0
    """Raw bytes of these rows."""

    @property
    def kind(self) -> tuple[str, bool, bool]:
        """Its schema follows from these; the first one has all of it in hex, and is empty for bytes."""
        base = "" if self.base is RECORD_SCHEMA else ipc.schema_message(self.stored_schema).hex()
        return base, self.headers, self.holes

    @property
    def schema(self) -> pa.Schema:
        return run_schema(headers=self.headers, holes=self.holes, base=self.base)

    @property
    def stored_schema(self) -> pa.Schema:
        """With its dictionaries."""
        return dictionary_schema(self.schema, self.dictionaries)

    @property
    def is_empty(self) -> bool:
        """Whether it has no row yet."""
        return not self.rows and not self.encoded


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive bytes of the object."""

    data: bytes | None
    """None if it is in the spool."""
    spool_position: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSegment:
    """A finished object.  `chunks()` can be called again, for another attempt, until the writer is closed."""

    runs: tuple[Run, ...]
    """Sorted by topic id and partition, one for each partition with rows or holes."""
    stats: tuple[bytes, ...]
    """Statistics of the data columns of each run."""
    size: int
    """Bytes of the object."""
    index_position: int
    _parts: tuple[_Part, ...] = field(repr=False)
    _spool: BinaryIO | None = field(repr=False)

    def chunks(self) -> Iterator[bytes]:
        """The object's bytes from start to end, in chunks of about `CHUNK_BYTES`, or of one batch if it is larger."""
        waiting: list[bytes] = []
        size = 0
        for part in self._parts:
            waiting.append(_load(part, self._spool))
            size += part.length
            if size >= CHUNK_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
        yield b"".join(waiting)


class SegmentWriter:
    """Collects rows by partition and encodes them as one object.

    batch_rows, batch_bytes:  a batch is closed when it reaches either (raw bytes; `bytes_max`); a larger row is a
                  separate batch.
    buffer_bytes: bytes kept in memory before the spool file is used.
    open_spool:   opens a buffered file to write and read (`TemporaryFile()`) on first use; None keeps everything in
                  memory.
    """

    def __init__(
        self,
        *,
        compression: Compression = UNSET,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = 64 * _MIB,
        open_spool: Callable[[], BinaryIO] | None = None,
    ) -> None:
        self.rows = 0
        """Rows appended so far."""
        self._options = ipc.write_options(compression.arrow_codec())
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._waiting_max = max(buffer_bytes * 3 // 4, 2 * batch_bytes)
        self._open_spool = open_spool
        self._spool: BinaryIO | None = None
        self._spool_end = 0
        self._waiting_bytes = 0
        self._kept: list[_Encoded] = []
        self._kept_bytes = 0
        self._reserved_bytes = 0
        self._partitions: dict[tuple[str, int], _Partition] = {}

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory: encoded batches, and rows that wait for their batch to fill."""
        return self._kept_bytes + self._waiting_bytes

    @property
    def total_bytes(self) -> int:
        """The approximate size of the object: the spool file and the bytes in memory."""
        return self._spool_end + self.buffered_bytes

    def append(
        self,
        topic_id: str,
        partition: int,
        rows: pa.RecordBatch | pa.Table,
        *,
        offsets: Offsets | None = None,
        close_batch: bool = False,
        stats_columns: str = AUTO,
    ) -> None:
        """Adds rows to the end of a partition.

        rows: `RECORD_SCHEMA` or `typed_base`, with or without headers, timestamps not null.  They may be copied later;
              buffers must not be changed afterwards.  A run has the newest of the versions of its rows; it has either
              bytes or data columns.
        offsets: of the rows, relative to the run's base, after those of earlier rows; None: they follow without holes.
        close_batch: encode all of them now; otherwise the last ones wait until their batch is full.
        stats_columns: the topic's config, by which data columns get statistics.
        """
        into = self._partitions.setdefault((topic_id, partition), _Partition(stats_columns))
        at = 0
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else (rows,):
            if batch.num_rows:
                self._gather(into, batch, None if offsets is None else offsets[at : at + batch.num_rows])
                at += batch.num_rows
                if close_batch:
                    self._encode(into)
                elif into.waiting:
                    into.waiting[-1] = unpinned(into.waiting[-1])
        self._relieve()

    def append_encoded(self, topic_id: str, partition: int, rows: EncodedRows) -> None:
        """Adds a batch to the end of a partition, to which no rows were appended before."""
        into = self._partitions.setdefault((topic_id, partition), _Partition())
        if rows.headers and not into.headers:
            self._encode_again(into, headers=True, holes=False)
        if rows.headers != into.headers:
            raise AssertionError("a batch without headers follows one with headers")
        first, into.end = into.end, into.end + rows.rows
        self._spill_if_above(self._buffer_bytes - len(rows.data))
        self._add(
            into,
            _Encoded(
                first=first,
                last=into.end - 1,
                rows=rows.rows,
                min_us=rows.min_us,
                max_us=rows.max_us,
                length=len(rows.data),
                crc=rows.crc,
                data=rows.data,
                stats={},
            ),
        )
        self.rows += rows.rows

    def extend(self, topic_id: str, partition: int, end: int) -> None:
        """The run covers the offsets up to `end`, relative to its base; those after its last row have no row."""
        into = self._partitions.setdefault((topic_id, partition), _Partition())
        if into.end > end:
            raise InvalidRecord(f"partition {partition} has rows up to offset {into.end}: its run cannot end at {end}")
        if into.end < end:
            self._add_holes(into)
            into.end = end

    def reserve(self, size: int) -> None:
        """Leaves that many bytes of the buffer to the caller, until the next call."""
        self._reserved_bytes = size
        self._relieve()

    def finish(self) -> WrittenSegment:
        """Encodes the rows that wait, and lays out the object of everything appended so far."""
        for partition in self._partitions.values():
            self._encode(partition)
        keys = sorted(key for key, partition in self._partitions.items() if partition.encoded or partition.holes)
        by_kind = {self._partitions[key].kind: self._partitions[key].stored_schema for key in keys}
        schemas = sorted(by_kind)
        messages = [ipc.schema_message(by_kind[kind]) for kind in schemas]
        runs: list[Run] = []
        entries: list[BatchEntry] = []
        parts: list[_Part] = []
        position = 0
        for topic_id, number in keys:
            partition = self._partitions[topic_id, number]
            schema = schemas.index(partition.kind)
            run_parts = _run_parts(messages[schema], partition.encoded)
            run = _run(topic_id, number, position, run_parts, partition)
            entries += _entries(run, len(messages[schema]), schema, partition.encoded)
            parts += run_parts
            runs.append(run)
            position += run.length
        index = encode_index(entries, messages, self._options)
        parts.append(_part(index))
        return WrittenSegment(
            runs=tuple(runs),
            stats=tuple(encode_stats(joined([one.stats for one in self._partitions[key].encoded])) for key in keys),
            size=position + len(index),
            index_position=position,
            _parts=tuple(parts),
            _spool=self._spool,
        )

    def close(self) -> None:
        """Closes the spool file; finished objects can no longer be read."""
        if self._spool is not None:
            self._spool.close()
        self._partitions.clear()
        self._kept.clear()

    # -------------------------------------------------------------------------------------------- rows to batches

    def _gather(self, into: _Partition, batch: pa.RecordBatch, offsets: Offsets | None) -> None:
        headers = has_headers(batch)
        batch = self._evolved(into, batch)
        schema = run_schema(headers=headers, holes=False, base=into.base)
        if not batch.schema.equals(schema):
            raise InvalidRecord(f"rows have the columns {_columns(batch.schema)}, expected {_columns(schema)}")
        if nulls := batch.column("timestamp").null_count:
            raise InvalidRecord(f"{nulls} of {batch.num_rows} records have no timestamp: each needs one")
        if headers and not into.headers:
            self._encode_again(into, headers=True, holes=into.holes)
        batch = self._placed(into, batch, offsets)
        size, limit = batch.nbytes, bytes_max(into.base, self._batch_bytes)
        if into.rows + batch.num_rows <= self._batch_rows and into.bytes + size <= limit:
            self._wait(into, batch, size)
        elif into.bytes + size <= limit:
            self._cut_by_rows(into, batch)
        else:
            self._cut(into, batch)
        self.rows += batch.num_rows

    def _evolved(self, into: _Partition, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows by the newest version of the run's schema: theirs, or that of earlier rows, which are converted."""
        base = base_of(batch.schema)
        if base.equals(into.base, check_metadata=True):
            return batch
        if into.is_empty:
            into.base = RECORD_SCHEMA if base.equals(RECORD_SCHEMA, check_metadata=True) else base
            into.crc = crc32c(ipc.schema_message(into.schema))
            return batch
        if not (schema_version(base) and schema_version(into.base)):
            before, rows = _columns(into.base), _columns(base)
            raise InvalidRecord(f"a run has either bytes or data columns: rows of {rows} follow rows of {before}")
        if schema_version(base) < schema_version(into.base):
            return with_base(batch, into.base)
        before, into.base = into.stored_schema, base
        into.waiting = [with_base(waiting, base) for waiting in into.waiting]
        self._encode_again(into, headers=into.headers, holes=into.holes, before=before)
        return batch

    def _placed(self, into: _Partition, batch: pa.RecordBatch, offsets: Offsets | None) -> pa.RecordBatch:
        """The rows with their offsets, if the run stores them."""
        if offsets is None:
            offsets = range(into.end, into.end + batch.num_rows)
        if offsets[0] < into.end:
            raise InvalidRecord(f"offset {offsets[0]} follows offset {into.end - 1}: offsets of a run ascend")
        if not isinstance(offsets, range) or offsets.start > into.end:
            self._add_holes(into)
        into.end = int(offsets[-1]) + 1
        return with_offsets(batch, offsets) if into.holes else batch

    def _cut_by_rows(self, into: _Partition, batch: pa.RecordBatch) -> None:
        """Like `_cut`, when batches fill by rows and not by bytes: the sizes of single rows are not needed."""
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, self._batch_rows - into.rows)
            self._wait(into, part, part.nbytes)
            start += part.num_rows

    def _cut(self, into: _Partition, batch: pa.RecordBatch) -> None:
        """Fills batches up to their limits; the remaining rows wait."""
        ends, limit = np.cumsum(row_bytes(batch)), bytes_max(into.base, self._batch_bytes)
        start = 0
        while start < batch.num_rows:
            done = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, done + limit - into.bytes, side="right")) - start
            count = min(self._batch_rows - into.rows, fitting, batch.num_rows - start)
            if count <= 0 and into.rows:
                self._encode(into)
                continue
            count = max(count, 1)
            self._wait(into, batch.slice(start, count), int(ends[start + count - 1]) - done)
            start += count

    def _wait(self, into: _Partition, batch: pa.RecordBatch, size: int) -> None:
        into.waiting.append(batch)
        into.rows += batch.num_rows
        into.bytes += size
        self._waiting_bytes += size
        if into.rows >= self._batch_rows or into.bytes >= bytes_max(into.base, self._batch_bytes):
            self._encode(into)

    def _relieve(self) -> None:
        """Bounds the memory of waiting rows with many partitions: the largest become batches early, half of all."""
        self._spill_if_above(self._buffer_bytes)
        if self._waiting_bytes <= self._waiting_max:
            return
        for partition in sorted(self._partitions.values(), key=lambda partition: partition.bytes, reverse=True):
            if self._waiting_bytes <= self._waiting_max // 2:
                return
            self._encode(partition)

    # ------------------------------------------------------------------------------------------- batches to bytes

    def _encode(self, partition: _Partition) -> None:
        if not partition.rows:
            return
        batch = concat(partition.waiting, partition.schema)
        partition.waiting.clear()
        self._waiting_bytes -= partition.bytes
        partition.rows = partition.bytes = 0
        self._keep(partition, batch)

    def _keep(self, partition: _Partition, batch: pa.RecordBatch) -> None:
        self._spill_if_above(self._buffer_bytes - ipc.raw_size(batch))
        if not partition.encoded and partition.base is not RECORD_SCHEMA:
            partition.dictionaries = worthwhile(batch)
            partition.crc = crc32c(ipc.schema_message(partition.stored_schema))
        stored = with_dictionaries(batch, partition.dictionaries)
        data = ipc.encode_batch(stored, self._options_for(stored))
        times = micros(batch)
        offsets = self._offsets(partition, batch)
        encoded = _Encoded(
            first=int(offsets[0]),
            last=int(offsets[-1]),
            rows=batch.num_rows,
            min_us=int(times.min()),
            max_us=int(times.max()),
            length=len(data),
            crc=crc32c(data),
            data=data,
            stats=stats_of(stored, columns_with_stats(batch.schema, partition.stats_columns)),
        )
        self._add(partition, encoded)

    def _add(self, partition: _Partition, encoded: _Encoded) -> None:
        assert encoded.data is not None
        partition.encoded.append(encoded)
        partition.crc = crc32c(encoded.data, partition.crc)
        self._kept.append(encoded)
        self._kept_bytes += encoded.length

    def _options_for(self, batch: pa.RecordBatch) -> pa.ipc.IpcWriteOptions:
        """Small typed batches are not compressed; of bytes all are, as before there were types."""
        return PLAIN if schema_version(batch.schema) and ipc.is_too_small(batch) else self._options

    def _spill_if_above(self, buffered_bytes: int) -> None:
        if self._open_spool is None or self.buffered_bytes + self._reserved_bytes <= buffered_bytes:
            return
        if self._kept:
            self._spill(self._open_spool)

    def _spill(self, open_spool: Callable[[], BinaryIO]) -> None:
        if self._spool is None:
            self._spool = open_spool()
        try:
            self._spool.seek(self._spool_end)
            self._spool.writelines(encoded.data for encoded in self._kept if encoded.data is not None)
            self._spool.flush()
        except OSError as error:
            raise StorageError(f"the spool file for rows on their way to storage cannot be written: {error}") from error
        for encoded in self._kept:
            encoded.data, encoded.spool_position = None, self._spool_end
            self._spool_end += encoded.length
        self._kept.clear()
        self._kept_bytes = 0

    @staticmethod
    def _offsets(partition: _Partition, batch: pa.RecordBatch) -> Offsets:
        """The offsets of the rows of the partition's next batch."""
        if partition.holes:
            return from_column(batch.column(OFFSET.name))
        first = partition.encoded[-1].last + 1 if partition.encoded else 0
        return range(first, first + batch.num_rows)

    def _add_holes(self, partition: _Partition) -> None:
        """The run has offsets without a row: from now on, it stores the offset of each row."""
        if partition.holes:
            return
        first = partition.end - partition.rows
        for number, batch in enumerate(partition.waiting):
            partition.waiting[number] = with_offsets(batch, range(first, first + batch.num_rows))
            first += batch.num_rows
        self._encode_again(partition, headers=partition.headers, holes=True)

    def _encode_again(
        self, partition: _Partition, *, headers: bool, holes: bool, before: pa.Schema | None = None
    ) -> None:
        """A run has one schema: batches encoded before the first header, hole or newer row are encoded again.

        before:  the schema that they were encoded by, if that has changed.
        """
        message = ipc.schema_message(before or partition.stored_schema)
        old, had_holes = partition.encoded, partition.holes
        partition.headers, partition.holes, partition.encoded, partition.dictionaries = headers, holes, [], frozenset()
        partition.crc = crc32c(ipc.schema_message(partition.schema))
        for encoded in old:
            data = _load(_Part(encoded.data, encoded.spool_position, encoded.length, encoded.crc), self._spool)
            self._forget(encoded)
            batch = plain(ipc.decode_batch(message, data, ()), len(data))
            if before is not None:
                batch = with_base(batch, partition.base)
            if headers:
                batch = with_headers(batch)
            if holes and not had_holes:
                batch = with_offsets(batch, range(encoded.first, encoded.last + 1))
            self._keep(partition, batch)

    def _forget(self, encoded: _Encoded) -> None:
        if encoded.data is not None:
            self._kept = [kept for kept in self._kept if kept is not encoded]
            self._kept_bytes -= encoded.length


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


def _part(data: bytes) -> _Part:
    return _Part(data, 0, len(data), crc32c(data))


def _load(part: _Part, spool: BinaryIO | None) -> bytes:
    if part.data is not None:
        return part.data
    assert spool is not None, "a part is in memory or in the spool"
    spool.seek(part.spool_position)
    data = spool.read(part.length)
    if crc32c(data) != part.crc:
        raise StorageError(f"the spool file returned other bytes than were written, at byte {part.spool_position}")
    return data


def _run_parts(message: bytes, encoded: Sequence[_Encoded]) -> list[_Part]:
    batches = [_Part(batch.data, batch.spool_position, batch.length, batch.crc) for batch in encoded]
    return [_part(message), *batches, _part(ipc.END)]


def _run(topic_id: str, number: int, position: int, parts: Sequence[_Part], partition: _Partition) -> Run:
    encoded = partition.encoded
    return Run(
        topic_id=topic_id,
        partition=number,
        position=position,
        length=sum(part.length for part in parts),
        crc=crc32c(ipc.END, partition.crc),
        rows=sum(batch.rows for batch in encoded),
        batches=len(encoded),
        min_us=min((batch.min_us for batch in encoded), default=0),
        max_us=max((batch.max_us for batch in encoded), default=0),
    )


def _entries(run: Run, offset: int, schema: int, encoded: Sequence[_Encoded]) -> Iterator[BatchEntry]:
    """offset: where the run's first batch starts in it."""
    position = run.position + offset
    for batch in encoded:
        yield BatchEntry(
            topic_id=run.topic_id,
            partition=run.partition,
            first=batch.first,
            last=batch.last,
            rows=batch.rows,
            position=position,
            length=batch.length,
            min_us=batch.min_us,
            max_us=batch.max_us,
            crc32c=batch.crc,
            schema=schema,
            stats=encode_stats(batch.stats),
        )
        position += batch.length
