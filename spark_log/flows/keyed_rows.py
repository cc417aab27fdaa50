"""Rows by key, over whole Arrow tables: what a flow holds of its state.  Pure.

Rows are in runs, the newer of which replace rows of the older ones.  A run is merged with the one before it as soon as
it has at least half as many rows.  So there are few runs, and a change of some keys costs about as much as these keys.
Keys are compared by hashes of 16 bytes, as in a view of the latest records.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.segment.keys.key_hashes import Hashes, KeyHasher

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NONE = -1


class _Run(NamedTuple):
    hashes: Hashes
    """The keys' hashes, all different, in ascending order of their first halves."""
    rows: pa.Table
    """In the same order."""
    deleted: Mask
    """Keys whose row was deleted: they hide rows of older runs."""

    def __len__(self) -> int:
        return len(self.deleted)

    def find(self, wanted: Hashes) -> Ints:
        """The row of each key, or NONE."""
        high, low = self.hashes
        place, found = np.searchsorted(high, wanted.high), np.full(len(wanted.high), NONE)
        left = np.arange(len(wanted.high))
        while len(left):  # again only for keys whose hashes agree in their first half
            left = left[place[left] < len(high)]
            left = left[high[place[left]] == wanted.high[left]]
            is_same = low[place[left]] == wanted.low[left]
            found[left[is_same]] = place[left[is_same]]
            left = left[~is_same]
            place[left] += 1
        return found


class KeyedRows:
    """Rows with a column `key`, at most one for each key.  Immutable."""

    def __init__(self, schema: pa.Schema, hasher: KeyHasher, runs: Sequence[_Run] = (), count: int = 0) -> None:
        self.schema = schema
        self._hasher = hasher
        self._runs = tuple(runs)
        self._count = count

    @classmethod
    def of(cls, rows: pa.Table, rng: random.Random) -> KeyedRows:
        """rows:  of different keys; in a column `key`, binary without nulls."""
        return cls(rows.schema, KeyHasher(rng)).changed(rows, np.zeros(rows.num_rows, bool))

    def __len__(self) -> int:
        return self._count

    def find(self, keys: pa.Array) -> pa.Table:
        """The rows of these keys.  keys:  binary, different, without nulls."""
        parts = [run.rows.take(pa.array(rows)) for run, rows in self._found(self._hasher.hash(keys))]
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def _found(self, wanted: Hashes) -> list[tuple[_Run, Ints]]:
        """By run, the newest rows of some keys, without deleted ones."""
        found, left = [], wanted
        for run in reversed(self._runs):
            rows = run.find(left)
            known = rows[rows != NONE]
            if len(known):
                found.append((run, known[~run.deleted[known]]))
                left = _at(left, rows == NONE)
        return found

    def changed(self, rows: pa.Table, deleted: Mask) -> KeyedRows:
        """These rows replace those of their keys; of several rows of a key, the last one counts.

        rows:     with the columns of `schema`.
        deleted:  rows whose key loses its row.
        """
        if not rows.num_rows:
            return self
        hashes = self._hasher.hash(rows.column("key").combine_chunks())
        order = np.lexsort((np.arange(rows.num_rows), hashes.low, hashes.high))
        last = order[_differs_from_next(_at(hashes, order))]
        run = _Run(_at(hashes, last), _taken(rows, last), deleted[last])
        before = sum(len(known) for _, known in self._found(run.hashes))
        runs = [*self._runs, run]
        while len(runs) > 1 and 2 * len(runs[-1]) >= len(runs[-2]):
            newer = runs.pop()
            runs.append(_merged(runs.pop(), newer, is_oldest=not runs))
        return KeyedRows(self.schema, self._hasher, runs, self._count - before + int((~run.deleted).sum()))


def _merged(older: _Run, newer: _Run, *, is_oldest: bool) -> _Run:
    keep = newer.find(older.hashes) == NONE
    high, low, deleted = (
        np.concatenate([one[keep], other])
        for one, other in (
            (older.hashes.high, newer.hashes.high),
            (older.hashes.low, newer.hashes.low),
            (older.deleted, newer.deleted),
        )
    )
    rows = np.concatenate([np.flatnonzero(keep), len(older) + np.arange(len(newer))])
    order = np.lexsort((low, high))
    if is_oldest:  # there is nothing to hide
        order = order[~deleted[order]]
    return _Run(
        Hashes(high[order], low[order]), _taken(pa.concat_tables([older.rows, newer.rows]), rows[order]), deleted[order]
    )


def _taken(rows: pa.Table, at: Ints) -> pa.Table:
    """Rows in one chunk, in which later ones are found faster."""
    return rows.combine_chunks().take(pa.array(at)).combine_chunks()


def _at(hashes: Hashes, at: npt.NDArray[Any]) -> Hashes:
    return Hashes(hashes.high[at], hashes.low[at])


def _differs_from_next(hashes: Hashes) -> Mask:
    differs = (hashes.high[1:] != hashes.high[:-1]) | (hashes.low[1:] != hashes.low[:-1])
    return np.concatenate([differs, [True]])
