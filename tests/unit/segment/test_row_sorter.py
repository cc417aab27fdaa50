"""Rows held until their batches are full, and sorted by destination."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import cast

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from spark_log.segment.row_sorter import RowSorter
from tests.unit.segment.builders import START_US, numbered, records

_BATCHES = st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=40), st.booleans()), max_size=8)
_LARGE = 1 << 40


def times_of(rows: pa.RecordBatch) -> list[int]:
    return cast(list[int], rows.column("timestamp").cast(pa.int64()).to_pylist())


@given(_BATCHES, st.sampled_from([4, 300, 70_000]), st.sampled_from([3, 10, 1000]), st.sampled_from([400, _LARGE]))
def test_sorting_keeps_every_record_and_their_order(
    batches: list[tuple[list[int], bool]], count: int, batch_rows: int, held_bytes: int
) -> None:
    """As filtering once for each destination does, however often rows are taken; with and without headers."""
    sorter = RowSorter(batch_rows, _LARGE, held_bytes)
    expected, found = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    total = 0

    def collect(taken: Iterator[tuple[int, pa.RecordBatch]]) -> None:
        parts = list(taken)
        assert [destination for destination, _ in parts] == sorted({destination for destination, _ in parts})
        for destination, rows in parts:
            found[destination] += times_of(rows)

    for destinations, headers in batches:
        times = range(total, total + len(destinations))
        extra = ([("h", b"1")],) if headers else ()
        rows = records([(b"k", b"v", time, *extra) for time in times], headers=headers)
        sorter.add(rows, np.asarray(destinations, dtype=np.int64), count)
        for destination, time in zip(destinations, times, strict=True):
            expected[destination].append(time)
        total += len(destinations)
        if sorter.is_due:
            collect(sorter.take_batches())
    collect(sorter.take_all())

    assert found == expected
    assert sorter.bytes == 0
    assert list(sorter.take_all()) == []


def test_numbers_may_be_added_while_rows_wait() -> None:
    """A later batch may be for destinations that did not exist before."""
    sorter = RowSorter(1000, _LARGE)
    sorter.add(numbered(3), np.array([0, 1, 0]), 2)
    sorter.add(numbered(2), np.array([5, 1]), 6)

    assert [(destination, part.num_rows) for destination, part in sorter.take_all()] == [(0, 2), (1, 2), (5, 1)]


def test_rows_are_due_when_their_batches_are_full() -> None:
    """On average over the destinations that have rows."""
    sorter = RowSorter(5, _LARGE)
    sorter.add(numbered(14), np.array([0] * 13 + [2]), 3)
    assert sorter.is_due
    sorter.add(numbered(5), np.array([7, 8, 9, 8, 9]), 10)
    assert not sorter.is_due
    sorter.add(numbered(6), np.array([0] * 6), 10)
    assert sorter.is_due


def test_large_rows_fill_a_batch_by_their_bytes() -> None:
    """Nine or ten rows of 1 kB are a batch of 10 kB."""
    sorter = RowSorter(1000, 10_000)
    sorter.add(numbered(6, value_bytes=1000), np.zeros(6, np.int64), 1)
    assert not sorter.is_due
    sorter.add(numbered(3, value_bytes=1000), np.zeros(3, np.int64), 1)
    assert sorter.is_due


def test_rows_are_taken_in_full_batches() -> None:
    """Rows beyond a destination's full batches are held for the next one, unless they are at least half of one."""
    sorter = RowSorter(10, _LARGE)
    sorter.add(numbered(47), np.repeat([0, 1, 2], [23, 16, 8]), 3)

    taken = [(destination, part.num_rows) for destination, part in sorter.take_batches()]

    assert taken == [(0, 20), (1, 16), (2, 8)]
    assert [(destination, part.num_rows) for destination, part in sorter.take_all()] == [(0, 3)]


def test_rows_are_due_when_they_take_too_much_memory() -> None:
    """However short their batches are: those with the most bytes are taken until half of the memory is free."""
    sorter = RowSorter(1000, _LARGE, held_bytes=20_000)
    sorter.add(numbered(10, value_bytes=1000), np.arange(10), 10)
    assert not sorter.is_due
    sorter.add(numbered(10, value_bytes=1000), np.array([3, 3, 3, 3, 3, 5, 5, 5, 5, 5]), 10)
    assert sorter.is_due

    taken = [(destination, part.num_rows) for destination, part in sorter.take_batches()]

    assert taken == [(3, 6), (5, 6)]
    assert not sorter.is_due
    assert sorter.bytes < 10_000


def test_a_few_large_rows_do_not_stay_and_fill_the_memory() -> None:
    """Memory is freed by bytes, not by rows: a destination of many small rows would free almost nothing."""
    sorter = RowSorter(1000, _LARGE, held_bytes=20_000)
    sorter.add(numbered(200), np.zeros(200, np.int64), 2)
    sorter.add(numbered(2, value_bytes=20_000), np.ones(2, np.int64), 2)

    assert [(destination, part.num_rows) for destination, part in sorter.take_batches()] == [(1, 2)]


def test_a_large_batch_does_not_join_others() -> None:
    """Together they might be more than an Arrow array holds; alone, it is not copied."""
    sorter = RowSorter(1000, _LARGE, held_bytes=20_000)
    small, large = numbered(10, value_bytes=100), numbered(10, value_bytes=2000)
    assert sorter.fits(large)
    sorter.add(small, np.zeros(10, np.int64), 1)
    assert sorter.fits(small)
    assert not sorter.fits(large)


@pytest.mark.parametrize("destinations", [[7] * 100, [2] * 60 + [5] * 40])
def test_rows_that_are_in_order_are_not_copied(destinations: list[int]) -> None:
    """The batch itself, or slices of it."""
    rows = numbered(100)
    sorter = RowSorter(10, _LARGE)
    before = pa.total_allocated_bytes()

    sorter.add(rows, np.array(destinations), 8)
    parts = list(sorter.take_batches())

    assert [destination for destination, _ in parts] == sorted(set(destinations))
    assert pa.Table.from_batches([part for _, part in parts]).equals(pa.table(rows))
    assert pa.total_allocated_bytes() == before


def test_a_small_held_slice_does_not_keep_a_large_batch_alive() -> None:
    """Held rows are copied out of the batch they were cut from, so that it can be freed."""
    before = pa.total_allocated_bytes()
    sorter = RowSorter(1000, _LARGE)

    for _ in range(50):
        large = records([(None, bytes(100_000), START_US)] * 10 + [(None, b"x", START_US)])
        sorter.add(large.slice(10), np.zeros(1, np.int64), 1)

    assert pa.total_allocated_bytes() - before < 2_000_000


def test_rows_that_stay_do_not_keep_the_others_alive() -> None:
    """They are a copy: the memory of rows that were taken and encoded is free."""
    before = pa.total_allocated_bytes()
    sorter = RowSorter(100, _LARGE)
    sorter.add(numbered(1040, value_bytes=10_000), np.r_[np.arange(1000) % 10, np.full(40, 10)], 11)

    assert len(list(sorter.take_batches())) == 10

    assert sorter.bytes == pytest.approx(400_000, rel=0.1)
    assert pa.total_allocated_bytes() - before < 800_000
