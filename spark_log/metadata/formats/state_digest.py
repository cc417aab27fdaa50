"""A number that equal states share, whatever their layers: nodes compare their states by it.

The two large maps may have the same rows in other blocks on each node.  So each row has a hash, and a map the sum of
them: that of a block is computed once, and only rows that have changed since are hashed again.  Other maps are hashed
as the rows of a checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.metadata.formats.checkpoint_format import row_lines
from spark_log.metadata.maps.column_blocks import Block, ObjectBlock, PartitionBlock
from spark_log.metadata.maps.column_map import PART_ROWS, ColumnMap
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.state import State

DIGEST_FORM = 10
"""Raise it with each change of what is hashed: nodes compare digests of one form only."""
Hashes = npt.NDArray[np.uint64]
_FACTOR = 0x9E3779B97F4A7C15
"""Odd, so no bit of a hash is lost when it is multiplied."""


def state_digest(state: State) -> str:
    """In hexadecimal."""
    found = blake2b(digest_size=16)
    for lines in row_lines(state, but=("partitions", "objects")):
        found.update(lines)
    for rows, kind in ((state.partitions, PartitionBlock), (state.objects, ObjectBlock)):
        found.update(b"%s %d %d\n" % (kind.KIND.encode(), len(rows), _sum(rows, kind)))
    return found.hexdigest()


def _sum(rows: LayeredMap[Any, Any], kind: type[Block[Any, Any]]) -> int:
    """The sum of the hashes of all rows, modulo 2^64."""
    base = rows.base if isinstance(rows.base, ColumnMap) else ColumnMap[Any, Any](())
    replaced = _replaced(base, rows.changes) if base.blocks else 0
    return (sum(map(_block_sum, base.blocks)) - replaced + _changed_sum(rows, kind)) % 2**64


def _block_sum(block: Block[Any, Any]) -> int:
    if block.digest is None:
        block.digest = _total(block.batch)
    return block.digest


def _replaced(base: ColumnMap[Any, Any], keys: Iterable[Any]) -> int:
    """The sum of the rows of the base that have changed, or are gone."""
    last = base.blocks[-1].key(base.blocks[-1].batch.num_rows - 1)
    blocks, rows = dict[int, Block[Any, Any]](), defaultdict[int, list[int]](list)
    for key in keys:
        if key <= last and (found := base.find(key)) is not None:
            blocks[id(found[0])] = found[0]
            rows[id(found[0])].append(found[1])
    return sum(_total(block.batch.take(pa.array(rows[one], pa.int64()))) for one, block in blocks.items())


def _changed_sum(rows: LayeredMap[Any, Any], kind: type[Block[Any, Any]]) -> int:
    """The sum of the rows that are not in the base.  Keys that fit no column are never there."""
    total, changed = 0, rows.changed()
    for part in _parts(changed):
        fitting = [row for row in part if kind.fits(row[0])]
        total += _total(pa.record_batch(kind.columns(fitting), schema=kind.SCHEMA)) if fitting else 0
        if len(fitting) < len(part):
            others = [repr(row) for row in part if not kind.fits(row[0])]
            total += int(_mixed(_texts(pa.array(others, pa.string()))).sum())
    return total


def _parts(rows: Iterator[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
    return iter(lambda: list(islice(rows, PART_ROWS)), [])


def _total(batch: pa.RecordBatch) -> int:
    return int(_mixed(_combined([_hashes(column) for column in batch.columns])).sum())


def _hashes(column: pa.Array) -> Hashes:
    """The hashes of the values of a column without nulls."""
    kind = column.type
    if pa.types.is_struct(kind):
        return _combined([_hashes(child) for child in column.flatten()])
    if pa.types.is_list(kind):
        bounds = _bounds(column)
        values = column.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
        return _joined(_mixed(_hashes(values)), bounds - bounds[0])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(column)
    width = kind.bit_width // 8
    values = np.frombuffer(column.buffers()[1] or b"", f"i{width}", len(column), width * column.offset)
    return values.astype(np.uint64)


def _texts(column: pa.Array) -> Hashes:
    bounds, data = _bounds(column), column.buffers()[2]
    values = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    return _joined(values.astype(np.uint64) + np.uint64(1), bounds - bounds[0])


def _bounds(column: pa.Array) -> npt.NDArray[np.int64]:
    """The bounds of the texts or lists of a column."""
    found = np.frombuffer(column.buffers()[1] or bytes(4), np.int32)
    return found[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _joined(values: Hashes, bounds: npt.NDArray[np.int64]) -> Hashes:
    """One hash for each range of values, in which their order counts."""
    lengths = np.diff(bounds)
    places = np.arange(len(values)) - np.repeat(bounds[:-1], lengths)
    powers = np.cumprod(np.full(int(lengths.max(initial=0)) + 1, _FACTOR, np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values * powers[places])])
    return sums[bounds[1:]] - sums[bounds[:-1]] + lengths.astype(np.uint64)


def _combined(columns: Sequence[Hashes]) -> Hashes:
    """One hash for each row."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = _mixed(found * np.uint64(_FACTOR) + column)
    return found


def _mixed(values: Hashes) -> Hashes:
    """The finalizer of SplitMix64: each bit of the result depends on all bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
