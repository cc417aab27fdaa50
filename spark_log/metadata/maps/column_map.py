"""Maps in blocks of columns, which never change: the base of a `LayeredMap`, and what is asked of all its rows.

The answers look at columns, and make no rows but those that they return.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.metadata.maps.column_blocks import Block
from spark_log.metadata.maps.layered_map import LayeredMap, Removal
from spark_log.metadata.state import ObjectRow, Partition, TopicKey
from spark_log.model import Slice

Key = TypeVar("Key")
Value = TypeVar("Value")
Default = TypeVar("Default")

BLOCK_BYTES = 1 << 20
"""Size of a block, about: between half of it and twice of it, unless there are few rows or a single row is longer."""
PART_ROWS = 4096
"""Rows that are sorted, or put into columns, in one call: one for many rows would stop all other threads until its end.
"""
KEPT_MAX = 100_000
"""Number of values that are kept after they were made.

Plans and consumers ask for the same ones again, and a consumer sees by `is` that a partition has not changed.
"""


class ColumnMap(Mapping[Key, Value]):
    """A map in blocks, which never changes."""

    def __init__(self, blocks: Sequence[Block[Key, Value]]) -> None:
        self.blocks = blocks
        self._firsts: list[Any] = [block.key(0) for block in blocks]
        self._size = sum(block.batch.num_rows for block in blocks)
        self._kept: dict[Any, Value] = {}

    @overload
    def get(self, key: Key, /) -> Value | None: ...
    @overload
    def get(self, key: Key, /, default: Value | Default) -> Value | Default: ...
    def get(self, key: Key, /, default: Any = None) -> Any:
        value = self._kept.get(key)
        if value is not None:
            return value
        found = self.find(key)
        if found is None:
            return default
        block, at = found
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        value = self._kept[key] = block.value(at)
        return value

    def find(self, key: Any) -> tuple[Block[Key, Value], int] | None:
        """The block with the key, and the number of its row."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return None
        block = self.blocks[number]
        at = block.place(key)
        return (block, at) if at < block.batch.num_rows and block.key(at) == key else None

    def __getitem__(self, key: Key) -> Value:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self.find(key) is not None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Key]:
        return chain.from_iterable(block.keys() for block in self.blocks)

    def items(self) -> ItemsView[Key, Value]:
        return _Items(self)

    def __eq__(self, other: object) -> bool:
        """Whether the blocks are equal; in other blocks, equal rows are another map."""
        return isinstance(other, ColumnMap) and [b.batch for b in self.blocks] == [b.batch for b in other.blocks]

    __hash__ = None  # type: ignore[assignment]


class _Items(ItemsView[Key, Value]):
    _mapping: ColumnMap[Key, Value]

    def __iter__(self) -> Iterator[tuple[Key, Value]]:
        """In order; rows are made and not kept."""
        return chain.from_iterable(zip(block.keys(), block.values(), strict=True) for block in self._mapping.blocks)


def inline_slices(partitions: LayeredMap[TopicKey, Partition]) -> Counter[str]:
    """By topic id, the number of slices that are not in a piece.  Makes no rows of those that are in columns."""
    counts = Counter[str]()
    base: Any = partitions.base
    for block in base.blocks if base else ():
        counts.update(block.inline_by_topic)
    for key, part in partitions.changes.items():
        if base and (found := base.find(key)):
            block, at = found
            counts[key[0]] -= block.inline[at]
        if not isinstance(part, Removal):
            counts[key[0]] += sum(isinstance(entry, Slice) for entry in part.entries)
    return counts


def maybe_trimmed(partitions: LayeredMap[TopicKey, Partition]) -> Iterator[TopicKey]:
    """Keys of all partitions with entries below their start, and of some others.  Makes no rows."""
    base: Any = partitions.base
    for block in base.blocks if base else ():
        yield from block.trimmed
    yield from partitions.changes


def stored_bytes(objects: LayeredMap[str, ObjectRow]) -> int:
    """The size of all objects.  Makes no rows but those that have changed."""
    base: Any = objects.base
    total: int = sum(block.size for block in base.blocks) if base else 0
    for name, row in objects.changes.items():
        total -= base[name].size if name in base else 0
        total += 0 if isinstance(row, Removal) else row.size
    return total


def first_name(version: int) -> str:
    """Names of objects of uploads at or after a version are not less than this."""
    return f"data/{version:016x}/"


def rows_with_copies(
    objects: LayeredMap[str, ObjectRow], keys: Collection[int], after: int = -1
) -> Iterator[tuple[str, ObjectRow]]:
    """The objects whose `copies` is one of `keys`, in order of their names, so those with the oldest upload first.

    after:  only uploads after this version.
    Looks at a block when its rows are asked for, and makes no other rows.
    """
    base: Any = objects.base
    first = first_name(after + 1)
    changed = sorted((name, row) for name, row in objects.changed() if row.copies in keys and name >= first)
    blocks = (block.with_copies(keys, after) for block in base.blocks) if base else ()
    stored = (row for row in chain.from_iterable(blocks) if row[0] not in objects.changes)
    return heapq.merge(stored, changed, key=itemgetter(0))


def last_with_copies(objects: LayeredMap[str, ObjectRow], keys: Collection[int]) -> tuple[str, ObjectRow] | None:
    """The last of `rows_with_copies`, which has the newest upload; None if there are none."""
    base: Any = objects.base
    found = max(((n, row) for n, row in objects.changed() if row.copies in keys), key=itemgetter(0), default=None)
    for block in reversed(base.blocks) if base else ():
        stored = [row for row in block.with_copies(keys) if row[0] not in objects.changes]
        if stored:
            return stored[-1] if found is None else max(stored[-1], found, key=itemgetter(0))
    return found


def fold(
    rows: LayeredMap[Key, Value], kind: type[Block[Key, Value]], block_bytes: int = BLOCK_BYTES
) -> LayeredMap[Key, Value]:
    """An equal map with its changes in the base.  Blocks without changes stay as they are."""
    changes = list(in_order(row for row in rows.changes.items() if kind.fits(row[0])))
    others = [(key, value) for key, value in rows.changed() if not kind.fits(key)]
    base = rows.base if isinstance(rows.base, ColumnMap) else ColumnMap[Key, Value](())
    return LayeredMap.over(ColumnMap(list(_folded(base, changes, kind, block_bytes))), others)


def in_order(rows: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """By key."""
    rest = iter(rows)
    parts = iter(lambda: sorted(islice(rest, PART_ROWS), key=itemgetter(0)), [])
    return heapq.merge(*parts, key=itemgetter(0))


def _folded(
    base: ColumnMap[Key, Value],
    changes: Sequence[tuple[Key, Value | Removal]],
    kind: type[Block[Key, Value]],
    block_bytes: int,
) -> Iterator[Block[Key, Value]]:
    blocks = base.blocks or [kind(_batch(kind, ()))]
    keys: list[Any] = [key for key, _ in changes]
    ends = [bisect_left(keys, block.key(0)) for block in blocks[1:]]
    small = _batch(kind, ())
    for block, low, high in zip(blocks, [0, *ends], [*ends, len(changes)], strict=True):
        if low == high and block.batch.num_rows and not small.num_rows:
            yield block
            continue
        small = _joined([small, _changed(block, changes[low:high], kind)])
        if small.nbytes >= block_bytes // 2:
            yield from map(kind, _parts(small, block_bytes))
            small = _batch(kind, ())
    if small.num_rows:
        yield from map(kind, _parts(small, block_bytes))


def _changed(
    block: Block[Key, Value], changes: Sequence[tuple[Key, Value | Removal]], kind: type[Block[Key, Value]]
) -> pa.RecordBatch:
    """The rows of a block with changes, which are in order."""
    count = block.batch.num_rows
    new = [(key, value) for key, value in changes if not isinstance(value, Removal)]
    numbers = np.arange(count)
    for key, _ in changes:
        at = block.place(key)
        if at < count and block.key(at) == key:
            numbers[at] = -1
    places = np.fromiter((block.place(key) for key, _ in new), np.int64, len(new))
    numbers = np.insert(numbers, places, np.arange(count, count + len(new)))
    return _joined([block.batch, _batch(kind, new)], numbers[numbers >= 0])


def _batch(kind: type[Block[Key, Value]], rows: Sequence[tuple[Key, Value]]) -> pa.RecordBatch:
    starts = range(0, max(1, len(rows)), PART_ROWS)
    parts = [pa.record_batch(kind.columns(rows[at : at + PART_ROWS]), schema=kind.SCHEMA) for at in starts]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(batches: Sequence[pa.RecordBatch], numbers: npt.NDArray[Any] | None = None) -> pa.RecordBatch:
    """The rows of batches, or those with these numbers, as one batch."""
    table = pa.Table.from_batches(batches)
    if numbers is not None:
        table = table.take(pa.array(numbers))
    return pa.record_batch([column.combine_chunks() for column in table.columns], schema=table.schema)


def _parts(batch: pa.RecordBatch, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """A batch in equal parts of the size of a block."""
    count = max(1, round(batch.nbytes / block_bytes))
    bounds = [batch.num_rows * number // count for number in range(count + 1)]
    return (batch.slice(low, high - low) for low, high in pairwise(bounds) if low < high)
