"""Which records of a partition compaction keeps: the newest offset of each key, in bounded memory.

A pass of compaction adds the keys of the records that were appended since the last one, in any number of batches, until
all are added or the memory is full.  Then `keep` says of any batch up to there which records stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.segment.arrays.numpy_arrays import mask_of
from spark_log.segment.keys.key_hashes import Half, Hashes, KeyHasher
from spark_log.segment.offsets import Offsets, as_array

FOLD_ROWS = 1 << 16
"""Records that wait at least, before they are sorted into the map."""
_AMBIGUOUS = -1
"""The newest offset for keys whose hashes agree in their first half only: none of their records is removed."""

_Mask = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]


class NewestOffsets:
    """The newest offset of each key.

    keys_max: about the number of keys, and of records that wait to be sorted in, that it holds at a time.
    """

    def __init__(self, hasher: KeyHasher, keys_max: int) -> None:
        self._hasher = hasher
        self._keys_max = keys_max
        self._map = (np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64))
        """The halves of the hashes, and the newest offset; by the first half, ascending."""
        self._waiting: list[tuple[Half, Half, _Ints]] = []
        self._waiting_rows = 0

    def __len__(self) -> int:
        """The number of keys."""
        self._fold()
        return len(self._map[0])

    @property
    def is_full(self) -> bool:
        """Whether no further records should be added.

        Otherwise at least an eighth is free after each fold, so folds are rare.
        """
        return len(self._map[0]) > self._keys_max - self._keys_max // 8

    @property
    def collides(self) -> bool:
        """Whether hashes of different keys agree in their first half.  Another hasher tells these keys apart."""
        self._fold()
        return bool((self._map[2] == _AMBIGUOUS).any())

    def add(self, keys: pa.Array, offsets: Offsets) -> None:
        """Records with their offsets, which may come in any order.  A record without a key is ignored."""
        has_key = _is_valid(keys)
        high, low = self._hasher.hash(keys)
        self._waiting.append((high[has_key], low[has_key], as_array(offsets)[has_key]))
        self._waiting_rows += int(has_key.sum())
        known = len(self._map[0])
        if self._waiting_rows >= max(FOLD_ROWS, known) or known + self._waiting_rows >= self._keys_max:
            self._fold()

    def update(self, keys: pa.Array, offsets: Offsets) -> None:
        """Newer records of keys that were added.  Other keys are ignored, so this takes no memory."""
        self._fold()
        if len(self._map[0]):
            order, at, equal = self._find(self._hasher.hash(keys))
            equal &= _is_valid(keys)[order] & (self._map[2][at] > _AMBIGUOUS)
            np.maximum.at(self._map[2], at[equal], as_array(offsets)[order[equal]])

    def offsets(self) -> _Ints:
        """The newest offset of each key, ascending; without keys that collide."""
        self._fold()
        return np.sort(self._map[2][self._map[2] > _AMBIGUOUS])

    def newest(self, hashes: Hashes) -> _Ints:
        """The newest offset of each key; -1 for a key that was not added."""
        self._fold()
        found = np.full(len(hashes.high), _AMBIGUOUS)
        if len(self._map[0]):
            order, at, equal = self._find(hashes)
            found[order] = np.where(equal, self._map[2][at], _AMBIGUOUS)
        return found

    def _find(self, hashes: Hashes) -> tuple[_Ints, _Ints, _Mask]:
        """An order of the hashes, and in this order their places in the map and whether they are there.

        Neighbours in this order are near each other in memory, which takes a quarter of the time.
        """
        high, low, _ = self._map
        order = np.argsort(hashes.high)
        at = np.minimum(np.searchsorted(high, hashes.high[order]), len(high) - 1)
        return order, at, (high[at] == hashes.high[order]) & (low[at] == hashes.low[order])

    def keep(self, keys: pa.Array, values: pa.Array | None, offsets: Offsets, tombstones_from: int) -> _Mask:
        """Which records stay: those with a key that no newer record has, and no tombstone before `tombstones_from`.

        values: to tell tombstones, which are null; None: there are none to remove.
        """
        at = as_array(offsets)
        keep = _is_valid(keys) & (at >= self.newest(self._hasher.hash(keys)))
        if values is not None and values.null_count:
            keep &= _is_valid(values) | (at >= tombstones_from)
        return keep

    def _fold(self) -> None:
        """Sort the waiting records into the map."""
        if not self._waiting_rows:
            return
        high, low, offsets = (np.concatenate(columns) for columns in zip(self._map, *self._waiting, strict=True))
        order = np.argsort(high)
        high, low, offsets = high[order], low[order], offsets[order]
        starts = np.flatnonzero(np.concatenate(([True], high[1:] != high[:-1])))
        lowest, oldest = np.minimum.reduceat(low, starts), np.minimum.reduceat(offsets, starts)
        is_one = (np.maximum.reduceat(low, starts) == lowest) & (oldest > _AMBIGUOUS)
        newest = np.where(is_one, np.maximum.reduceat(offsets, starts), _AMBIGUOUS)
        self._map, self._waiting, self._waiting_rows = (high[starts], lowest, newest), [], 0


def _is_valid(column: pa.Array) -> _Mask:
    if not column.null_count:
        return np.ones(len(column), bool)
    valid: _Mask = mask_of(column.is_valid())
    return valid
