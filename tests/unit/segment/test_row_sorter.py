"""Rows held until their slices are long enough, and sorted by destination."""

from __future__ import annotations

from collections import defaultdict

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from spark_log.segment.row_sorter import RowSorter
from tests.unit.segment.builders import START_US, numbered, records

_BATCHES = st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=20), st.booleans()), max_size=5)


@given(_BATCHES, st.sampled_from([4, 300, 70_000]))
def test_sorting_keeps_every_record_and_their_order(batches: list[tuple[list[int], bool]], count: int) -> None:
    """As filtering once for each destination does, for 8, 16 and 32 bit numbers, with and without headers."""
    sorter = RowSorter()
    expected = defaultdict[int, list[int]](list)
    total = 0
    for destinations, headers in batches:
        times = range(total, total + len(destinations))
        extra = ([("h", b"1")],) if headers else ()
        rows = records([(b"k", b"v", time, *extra) for time in times], headers=headers)
        sorter.add(rows, np.asarray(destinations, dtype=np.int64), count)
        for destination, time in zip(destinations, times, strict=True):
            expected[destination].append(time)
        total += len(destinations)

    found = list(sorter.take_sorted())

    assert [destination for destination, _ in found] == sorted(expected)
    assert {d: part.column("timestamp").cast(pa.int64()).to_pylist() for d, part in found} == expected
    assert list(sorter.take_sorted()) == []


def test_numbers_may_be_added_while_rows_wait() -> None:
    """A later batch may be for destinations that did not exist before."""
    sorter = RowSorter()
    sorter.add(numbered(3), np.array([0, 1, 0]), 2)
    sorter.add(numbered(2), np.array([5, 1]), 6)

    assert [(destination, part.num_rows) for destination, part in sorter.take_sorted()] == [(0, 2), (1, 2), (5, 1)]


def test_rows_are_due_when_their_slices_are_long_enough() -> None:
    """On average over the destinations that have rows."""
    sorter = RowSorter(slice_rows=5)
    sorter.add(numbered(14), np.array([0] * 13 + [2]), 3)
    assert sorter.is_due
    sorter.add(numbered(5), np.array([7, 8, 9, 8, 9]), 10)
    assert not sorter.is_due
    sorter.add(numbered(6), np.array([0] * 6), 10)
    assert sorter.is_due


def test_rows_are_due_when_they_take_too_much_memory() -> None:
    """However short their slices are."""
    sorter = RowSorter(slice_rows=1000, held_bytes=20_000)
    sorter.add(numbered(10, value_bytes=1000), np.arange(10), 10)
    assert not sorter.is_due
    sorter.add(numbered(10, value_bytes=1000), np.arange(10), 10)
    assert sorter.is_due


def test_a_large_batch_does_not_join_others() -> None:
    """Together they might be more than an Arrow array holds; alone, it is not copied."""
    sorter = RowSorter(held_bytes=20_000)
    small, large = numbered(10, value_bytes=100), numbered(10, value_bytes=2000)
    assert sorter.fits(large)
    sorter.add(small, np.zeros(10, np.int64), 1)
    assert sorter.fits(small)
    assert not sorter.fits(large)


def test_a_batch_for_one_destination_is_not_copied() -> None:
    """The batch itself."""
    rows = numbered(100)
    sorter = RowSorter()
    before = pa.total_allocated_bytes()

    sorter.add(rows, np.full(100, 7), 8)
    ((destination, part),) = sorter.take_sorted()

    assert destination == 7
    assert part.equals(rows)
    assert pa.total_allocated_bytes() == before


def test_a_small_held_slice_does_not_keep_a_large_batch_alive() -> None:
    """Held rows are copied out of the batch they were cut from, so that it can be freed."""
    before = pa.total_allocated_bytes()
    sorter = RowSorter()

    for _ in range(50):
        large = records([(None, bytes(100_000), START_US)] * 10 + [(None, b"x", START_US)])
        sorter.add(large.slice(10), np.zeros(1, np.int64), 1)

    assert pa.total_allocated_bytes() - before < 2_000_000


def test_sorted_rows_do_not_keep_the_others_alive() -> None:
    """Each is a copy: what is encoded is freed, and what waits takes its own bytes."""
    before = pa.total_allocated_bytes()
    sorter = RowSorter()
    sorter.add(numbered(1000, value_bytes=10_000), np.arange(1000) % 100, 100)

    kept = [part for destination, part in sorter.take_sorted() if destination < 5]

    assert sum(part.nbytes for part in kept) == pytest.approx(500_000, rel=0.1)
    assert pa.total_allocated_bytes() - before < 1_000_000
