"""Which records compaction keeps, against a compactor that goes record by record."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import given, settings

from spark_log.segment.keys.key_hashes import Hashes, KeyHasher
from spark_log.segment.keys.newest_offsets import NewestOffsets


class Record(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def columns(records: Sequence[Record]) -> tuple[pa.Array, pa.Array, np.ndarray]:
    return (
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        np.array([record.offset for record in records], np.int64),
    )


def batches(records: Sequence[Record], rows: int) -> Iterator[Sequence[Record]]:
    yield from (records[at : at + rows] for at in range(0, len(records), rows))


def one_pass(
    records: Sequence[Record], dirty: int, keys_max: int, rows: int, tombstones_from: int, seed: int
) -> tuple[list[Record], int]:
    """The records that stay, and the end of the pass.  dirty: offset of the first record that was in no pass."""
    newest, end = NewestOffsets(KeyHasher(random.Random(seed)), keys_max), dirty
    for some in batches([record for record in records if record.offset >= dirty], rows):
        if newest.is_full:
            break
        keys, _, offsets = columns(some)
        newest.add(keys, offsets)
        end = some[-1].offset + 1
    kept: list[Record] = []
    for some in batches(records, rows):
        keys, values, offsets = columns(some)
        stays = newest.keep(keys, values, offsets, tombstones_from)
        kept += [record for record, keep in zip(some, stays, strict=True) if keep or record.offset >= end]
    return kept, end


def dumb_pass(records: Sequence[Record], dirty: int, end: int, tombstones_from: int) -> list[Record]:
    """The same, record by record (kafka: LogCleaner, Cleaner.shouldRetainRecord)."""
    newest = {
        record.key: record.offset for record in records if dirty <= record.offset < end and record.key is not None
    }
    return [
        record
        for record in records
        if record.offset >= end
        or (
            record.key is not None
            and record.offset >= newest.get(record.key, -1)
            and (record.value is not None or record.offset >= tombstones_from)
        )
    ]


records_ = st.lists(
    st.tuples(st.sampled_from([None, b"", b"a", b"b", b"c", b"long" * 70]), st.none() | st.binary(max_size=3)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), pairs=records_, keys_max=st.integers(1, 8), rows=st.integers(1, 7), seed=st.integers(0, 99))
def test_passes_keep_what_a_dumb_compactor_keeps(
    data: st.DataObject, pairs: list[tuple[bytes | None, bytes | None]], keys_max: int, rows: int, seed: int
) -> None:
    """Several passes in little memory; each ends where the memory was full.  At the end, each key has one record."""
    records = [Record(offset, *pair) for offset, pair in enumerate(pairs)]
    dirty = 0
    while dirty < len(pairs):
        tombstones_from = data.draw(st.integers(0, dirty), "tombstones_from")
        kept, end = one_pass(records, dirty, keys_max, rows, tombstones_from, seed)
        assert end > dirty, "a pass makes progress"
        assert kept == dumb_pass(records, dirty, end, tombstones_from)
        records, dirty = kept, end
    with_key = [record.key for record in records]
    assert None not in with_key and len(set(with_key)) == len(with_key)
    latest = {key: value for key, value in pairs if key is not None}
    left = {record.key: record.value for record in records}
    assert {key: value for key, value in left.items() if value is not None} == {
        key: value for key, value in latest.items() if value is not None
    }


@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.integers(0, 30), min_size=1, max_size=300), seed=st.integers(0, 99))
def test_the_newest_offset_of_each_key_is_found(numbers: list[int], seed: int) -> None:
    """In whatever order batches are added; -1 for others."""
    records = [Record(offset, b"%d" % number, b"") for offset, number in enumerate(numbers)]
    hasher = KeyHasher(random.Random(seed))
    newest = NewestOffsets(hasher, 1000)
    parts = list(batches(records, 20))
    random.Random(seed).shuffle(parts)
    for some in parts:
        keys, _, offsets = columns(some)
        newest.add(keys, offsets)
    expected = {number: offset for offset, number in enumerate(numbers)}
    asked = pa.array([b"%d" % number for number in range(40)], pa.binary())
    assert newest.newest(hasher.hash(asked)).tolist() == [expected.get(number, -1) for number in range(40)]
    assert len(newest) == len(expected)


def test_many_keys_are_sorted_in_several_times() -> None:
    """The map grows by folding what waits, and keeps every key."""
    hasher = KeyHasher(random.Random(1))
    newest = NewestOffsets(hasher, 1_000_000)
    keys = pa.array([b"%d" % number for number in range(150_000)], pa.binary())
    for first in range(0, 300_000, 10_000):
        newest.add(keys.slice(first % 150_000, 10_000), range(first, first + 10_000))
    assert newest.newest(hasher.hash(keys)).tolist() == list(range(150_000, 300_000))
    assert not newest.is_full


class HalfHasher(KeyHasher):
    """The first halves of all hashes are equal."""

    def hash(self, keys: pa.Array) -> Hashes:
        found = super().hash(keys)
        return Hashes(np.zeros_like(found.high), found.low)


def test_keys_whose_hashes_half_agree_keep_their_records() -> None:
    """And the map says so: another hasher tells them apart."""
    newest = NewestOffsets(HalfHasher(random.Random(1)), 100)
    keys, values, offsets = columns([Record(at, key, b"") for at, key in enumerate((b"a", b"b", b"a"))])
    newest.add(keys, offsets)
    assert newest.keep(keys, values, offsets, 0).tolist() == [True, True, True]
    assert newest.collides
    assert newest.offsets().tolist() == []
    assert len(newest) == 1
    newest.add(pa.array([b"a"], pa.binary()), range(3, 4))
    assert newest.keep(keys, values, offsets, 0).tolist() == [True, True, True]


def test_an_update_does_not_hide_that_hashes_half_agree() -> None:
    """The view of the latest records would lose all of these keys but one."""
    for key in (b"a", b"b", b"c"):
        newest = NewestOffsets(HalfHasher(random.Random(1)), 100)
        newest.add(pa.array([b"a", b"b"], pa.binary()), range(2))
        newest.update(pa.array([key], pa.binary()), range(2, 3))
        assert newest.collides
        assert newest.offsets().tolist() == []


@settings(max_examples=60, deadline=None)
@given(
    added=st.lists(st.sampled_from([None, b"", b"a", b"b"]), max_size=20),
    updated=st.lists(st.sampled_from([None, b"", b"a", b"b", b"c"]), max_size=20),
    seed=st.integers(0, 99),
)
def test_an_update_changes_only_keys_that_were_added(
    added: list[bytes | None], updated: list[bytes | None], seed: int
) -> None:
    """Also for a key that comes several times, and without a key."""
    newest = NewestOffsets(KeyHasher(random.Random(seed)), 100)
    newest.add(pa.array(added, pa.binary()), range(len(added)))
    newest.update(pa.array(updated, pa.binary()), range(len(added), len(added) + len(updated)))
    last = {key: offset for offset, key in enumerate(added + updated) if key is not None and key in added}
    assert newest.offsets().tolist() == sorted(last.values())
    assert not newest.collides
