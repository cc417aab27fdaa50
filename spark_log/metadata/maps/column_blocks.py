"""Blocks of rows of the state's two large maps in Arrow columns, as a checkpoint stores them.

A block has some thousand rows, sorted by key, as one record batch.  A row is found by binary search, and made when it
is asked for.  `column_map.py` makes maps of them.

objects:     epoch: uint64, id: string       of the name `data/<epoch>/<id>`
             size, index_position, live: int64
             copies: int64; in a checkpoint it is left out if all are 0
partitions:  topic_id: string, partition, start, end, edition: int64
             entries: list of      start, end: int64; object: string; position, length, crc, count, bytes, min_us,
                                   max_us, time_kind: int64; sealed: int8, 1 for a piece
             stats: list of binary, one for each entry, empty without statistics; in a checkpoint it is left out if all
             are empty
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, repeat
from typing import Any, ClassVar, Generic, Literal, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from spark_log.metadata.maps.frames import encode_columns
from spark_log.metadata.records import Piece
from spark_log.metadata.state import ObjectRow, Partition, TopicKey
from spark_log.model import Slice, kind_and_stats

Key = TypeVar("Key")
Value = TypeVar("Value")

_OBJECT_NAME = re.compile(r"data/([0-9a-f]{16})/(.+)", re.DOTALL)
_ENTRY = pa.struct(
    [
        *((name, pa.int64()) for name in ("start", "end")),
        ("object", pa.string()),
        *(
            (name, pa.int64())
            for name in ("position", "length", "crc", "count", "bytes", "min_us", "max_us", "time_kind")
        ),
        ("sealed", pa.int8()),
    ]
)
_STATS = pa.list_(pa.binary())


class Block(ABC, Generic[Key, Value]):
    """Rows of one table, sorted by key."""

    KIND: ClassVar[str]
    """The kind of its frame in a checkpoint."""
    SCHEMA: ClassVar[pa.Schema]

    def __init__(self, batch: pa.RecordBatch, frame: memoryview | None = None) -> None:
        """frame: the bytes of the frame that it was read from."""
        self.batch = batch
        self.was_read = frame is not None
        """Its bytes have been decoded, to these rows."""
        self.digest: int | None = None
        """Its part of the state's digest, as soon as that was computed."""
        self._frame = frame

    @property
    def frame(self) -> memoryview:
        """Its bytes in a checkpoint.  They are kept: the next checkpoint has the same, unless its rows change."""
        if self._frame is None:
            self._frame = memoryview(encode_columns(self.KIND, self.stored(self.batch)))
        return self._frame

    @classmethod
    def stored(cls, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that a checkpoint has."""
        return batch

    @classmethod
    def maybe_read(cls, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The inverse of `stored`; None for other columns."""
        return batch if batch.schema == cls.SCHEMA else None

    @staticmethod
    def fits(key: Any) -> bool:
        """Whether a row with the key can be in a block."""
        return True

    @staticmethod
    @abstractmethod
    def columns(rows: Sequence[tuple[Any, Any]]) -> list[pa.Array]:
        """The columns of rows that are in order."""

    @abstractmethod
    def key(self, at: int) -> Key: ...

    @abstractmethod
    def value(self, at: int) -> Value: ...

    @abstractmethod
    def keys(self) -> Iterable[Key]: ...

    @abstractmethod
    def values(self) -> Iterable[Value]: ...

    @abstractmethod
    def place(self, key: Key) -> int:
        """Number of the first row that is not before the key; of any row if the key does not fit."""


@lru_cache(maxsize=8)
def _zeros(rows: int) -> pa.Array:
    """A column of zeros, which all blocks of as many rows share.  `pa.array` would import pandas for an array of
    numpy.
    """
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(bytes(8 * rows))])


class ObjectBlock(Block[str, ObjectRow]):
    KIND = "object_columns"
    SCHEMA = pa.schema(
        [
            ("epoch", pa.uint64()),
            ("id", pa.string()),
            *((name, pa.int64()) for name in ("size", "index_position", "live", "copies")),
        ]
    )

    def __init__(self, batch: pa.RecordBatch, frame: memoryview | None = None) -> None:
        super().__init__(batch, frame)
        epochs, ids, *numbers = batch.columns
        self._epochs, self._ids, self._numbers = _numbers(epochs), _Texts(ids), tuple(map(_numbers, numbers))

    @classmethod
    def stored(cls, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without copies in a log without brokers, which so pays nothing for them."""
        return batch if pc.max(batch.column("copies")).as_py() else batch.select(cls.SCHEMA.names[:-1])

    @classmethod
    def maybe_read(cls, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        if batch.schema.names == cls.SCHEMA.names[:-1]:
            batch = batch.append_column(cls.SCHEMA.field("copies"), _zeros(batch.num_rows))
        return batch if batch.schema == cls.SCHEMA else None

    @staticmethod
    def fits(key: str) -> bool:
        return _OBJECT_NAME.fullmatch(key) is not None

    @staticmethod
    def columns(rows: Sequence[tuple[str, ObjectRow]]) -> list[pa.Array]:
        names = [name for name, _ in rows]
        return [
            pa.array([int(name[5:21], 16) for name in names], pa.uint64()),
            pa.array([name[22:] for name in names], pa.string()),
            *(pa.array([getattr(row, name) for _, row in rows], pa.int64()) for name in ObjectBlock.SCHEMA.names[2:]),
        ]

    def key(self, at: int) -> str:
        return f"data/{self._epochs[at]:016x}/{self._ids[at]}"

    def value(self, at: int) -> ObjectRow:
        sizes, positions, live, copies = self._numbers
        return ObjectRow(sizes[at], positions[at], live[at], copies[at])

    def keys(self) -> Iterable[str]:
        return [f"data/{epoch:016x}/{text}" for epoch, text in zip(self._epochs.tolist(), self._ids, strict=True)]

    def values(self) -> Iterable[ObjectRow]:
        return map(ObjectRow, *(column.tolist() for column in self._numbers))

    @cached_property
    def size(self) -> int:
        return sum(self._numbers[0])

    def with_copies(self, keys: Collection[int], after: int = -1) -> Iterator[tuple[str, ObjectRow]]:
        """The rows whose `copies` is one of `keys`, of uploads after a version, in order; no others are made."""
        low = bisect_right(self._epochs, after)
        found = low + np.flatnonzero(np.isin(np.asarray(self._numbers[3])[low:], list(keys)))
        return ((self.key(at), self.value(at)) for at in found.tolist())

    def place(self, key: str) -> int:
        try:
            epoch, text = int(key[5:21], 16), key[22:]
        except ValueError:
            return self.batch.num_rows
        low = bisect_left(self._epochs, epoch)
        if low == len(self._epochs) or self._epochs[low] != epoch:
            return low
        if self._ids[low] >= text:
            return low
        high = bisect_right(self._epochs, epoch, low)
        return low + bisect_left(range(low, high), text, key=self._ids.__getitem__)


class PartitionBlock(Block[TopicKey, Partition]):
    KIND = "partition_columns"
    SCHEMA = pa.schema(
        [
            ("topic_id", pa.string()),
            *((name, pa.int64()) for name in ("partition", "start", "end", "edition")),
            ("entries", pa.list_(_ENTRY)),
            ("stats", _STATS),
        ]
    )

    def __init__(self, batch: pa.RecordBatch, frame: memoryview | None = None) -> None:
        super().__init__(batch, frame)
        topics, *numbers, entries, stats = batch.columns
        self._topics, self._numbers = _Texts(topics), list(map(_numbers, numbers))
        self._stats = _Blobs(stats.values) if _offsets(stats.values)[-1] else None
        self._bounds = _offsets(entries)
        self._sealed = _numbers(entries.values.field("sealed"))
        self._entry_ends = _numbers(entries.values.field("end"))
        self._entries = [
            _Texts(column) if column.type == pa.string() else _numbers(column) for column in entries.values.flatten()
        ]

    @classmethod
    def stored(cls, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without statistics in a log that has none."""
        return batch if _offsets(batch.column("stats").values)[-1] else batch.select(cls.SCHEMA.names[:-1])

    @classmethod
    def maybe_read(cls, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        if batch.schema.names == cls.SCHEMA.names[:-1]:
            entries = batch.column("entries")
            none = _no_blobs(len(entries.values))
            bounds = entries.buffers()[:2]
            lists = pa.ListArray.from_buffers(_STATS, len(entries), bounds, offset=entries.offset, children=[none])
            batch = batch.append_column(cls.SCHEMA.field("stats"), lists)
        return batch if batch.schema == cls.SCHEMA else None

    @staticmethod
    def columns(rows: Sequence[tuple[TopicKey, Partition]]) -> list[pa.Array]:
        keys, parts = [key for key, _ in rows], [part for _, part in rows]
        bounds = list(accumulate((len(part.entries) for part in parts), initial=0))
        entries = [_entry_row(entry) for part in parts for entry in part.entries]
        columns = zip(*entries, strict=True) if entries else repeat((), len(_ENTRY))
        made = [pa.array(column, field.type) for column, field in zip(columns, _ENTRY, strict=True)]
        return [
            pa.array([topic_id for topic_id, _ in keys], pa.string()),
            pa.array([number for _, number in keys], pa.int64()),
            *(pa.array([getattr(part, name) for part in parts], pa.int64()) for name in ("start", "end", "edition")),
            pa.ListArray.from_arrays(
                pa.array(bounds, pa.int32()), pa.StructArray.from_arrays(made, fields=list(_ENTRY)), pa.list_(_ENTRY)
            ),
            pa.ListArray.from_arrays(
                pa.array(bounds, pa.int32()),
                pa.array([_stats(entry) for part in parts for entry in part.entries], pa.binary()),
                _STATS,
            ),
        ]

    def key(self, at: int) -> TopicKey:
        return self._topics[at], self._numbers[0][at]

    def value(self, at: int) -> Partition:
        low, high = self._bounds[at], self._bounds[at + 1]
        _, starts, ends, editions = self._numbers
        return Partition(starts[at], ends[at], editions[at], tuple(self._made(low, high)))

    def keys(self) -> Iterable[TopicKey]:
        return zip(self._topics, self._numbers[0].tolist(), strict=True)

    def values(self) -> Iterable[Partition]:
        entries = list(self._made(self._bounds[0], self._bounds[-1]))
        bounds = [bound - self._bounds[0] for bound in self._bounds]
        lists = (tuple(entries[low:high]) for low, high in pairwise(bounds))
        _, starts, ends, editions = (column.tolist() for column in self._numbers)
        return map(Partition, starts, ends, editions, lists)

    @cached_property
    def inline(self) -> list[int]:
        """Number of slices of each row that are not in a piece."""
        totals = [0, *accumulate(1 - sealed for sealed in self._sealed)]
        return [totals[high] - totals[low] for low, high in pairwise(self._bounds)]

    @cached_property
    def inline_by_topic(self) -> Counter[str]:
        counts = Counter[str]()
        for topic_id, count in zip(self._topics, self.inline, strict=True):
            counts[topic_id] += count
        return counts

    @cached_property
    def trimmed(self) -> list[TopicKey]:
        """Keys of the rows whose first entry is below their start."""
        lows, highs, starts = np.asarray(self._bounds[:-1]), np.asarray(self._bounds[1:]), np.asarray(self._numbers[1])
        rows = np.flatnonzero(lows < highs)
        below = np.asarray(self._entry_ends)[lows[rows]] <= starts[rows]
        return [self.key(at) for at in rows[below].tolist()]

    def _made(self, low: int, high: int) -> Iterator[Slice | Piece]:
        stats = repeat(b"") if self._stats is None else self._stats[low:high]
        return map(_entry, *(column[low:high] for column in self._entries), stats)

    def place(self, key: TopicKey) -> int:
        topic_id, number = key
        if topic_id not in self._spans:
            return bisect_left(self._topics, topic_id)
        return bisect_left(self._numbers[0], number, *self._spans[topic_id])

    @cached_property
    def _spans(self) -> dict[str, tuple[int, int]]:
        """The rows of each topic."""
        ends = accumulate(Counter(self._topics).values(), initial=0)
        return dict(zip(dict.fromkeys(self._topics), pairwise(ends), strict=True))


def _entry_row(entry: Slice | Piece) -> tuple[Any, ...]:
    if isinstance(entry, Piece):
        *head, slices, size, min_us, max_us, time_kind = astuple(entry)
        return *head, slices, size, min_us, max_us, time_kind, 1
    *head, batches, min_us, max_us, _ = astuple(entry)
    return *head, batches, 0, min_us, max_us, entry.time_kind, 0


def _stats(entry: Slice | Piece) -> bytes:
    return entry.stats if isinstance(entry, Slice) else b""


def _entry(
    start: int,
    end: int,
    name: str,
    position: int,
    length: int,
    crc: int,
    count: int,
    size: int,
    min_us: int,
    max_us: int,
    time_kind: int,
    sealed: int,
    stats: bytes,
) -> Slice | Piece:
    if sealed:
        return Piece(start, end, name, position, length, crc, count, size, min_us, max_us, time_kind)
    more = kind_and_stats(time_kind, stats)
    return Slice(start, end, name, position, length, crc, count, min_us, max_us, more)


class _Strings(Sequence[Value]):
    """A column of values without nulls that differ in length."""

    def __init__(self, column: pa.Array) -> None:
        self._bounds, data = _offsets(column), column.buffers()[2]
        self._data = memoryview(data or b"")

    @staticmethod
    @abstractmethod
    def _made(data: memoryview) -> Value: ...

    @overload
    def __getitem__(self, at: int) -> Value: ...
    @overload
    def __getitem__(self, at: slice) -> list[Value]: ...
    def __getitem__(self, at: int | slice) -> Value | list[Value]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        return self._made(self._data[self._bounds[at] : self._bounds[at + 1]])

    def __len__(self) -> int:
        return len(self._bounds) - 1


class _Texts(_Strings[str]):
    @staticmethod
    def _made(data: memoryview) -> str:
        return str(data, "utf-8")


class _Blobs(_Strings[bytes]):
    @staticmethod
    def _made(data: memoryview) -> bytes:
        return bytes(data)


@lru_cache(maxsize=8)
def _no_blobs(rows: int) -> pa.Array:
    """A column of empty bytes, which all blocks of as many rows share."""
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bytes(4 * (rows + 1))), pa.py_buffer(b"")])


_FORMATS: dict[pa.DataType, Literal["b", "q", "Q"]] = {pa.int8(): "b", pa.int64(): "q", pa.uint64(): "Q"}


def _numbers(column: pa.Array) -> memoryview:
    """A column of numbers without nulls."""
    values = memoryview(column.buffers()[1] or b"").cast("B").cast(_FORMATS[column.type])
    return values[column.offset : column.offset + len(column)]


def _offsets(column: pa.Array) -> memoryview:
    """The bounds of the texts or lists of a column."""
    bounds = memoryview(column.buffers()[1] or bytes(4)).cast("B").cast("i")
    return bounds[column.offset : column.offset + len(column) + 1]
