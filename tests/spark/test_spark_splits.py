"""Which records a task reads: without Spark."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_pylog.source.splits import split_by_bytes, split_ranges

from spark_log.client.reader.plan import OffsetRange, SliceRead
from spark_log.model import Slice

# (minPartitions, maxRecordsPerPartition, ranges, what is read by task), from the tests of Spark's Kafka connector.
KAFKAS = [
    (None, None, [(1, 2), (1, 1)], [(1, 2)]),
    (3, None, [(0, 1), (0, 1), (0, 1)], [(0, 1), (0, 1), (0, 1)]),
    (4, None, [(1, 5)], [(1, 2), (2, 3), (3, 4), (4, 5)]),
    (4, None, [(1, 5), (1, 21)], [(1, 5), (1, 7), (7, 14), (14, 21)]),
    (4, None, [(1, 1), (1, 21)], [(1, 6), (6, 11), (11, 16), (16, 21)]),
    (4, None, [(1, 2), (1, 1001)], [(1, 2), (1, 334), (334, 667), (667, 1001)]),
    (1, None, [(1, 5), (1, 21)], [(1, 5), (1, 21)]),
    (3, None, [(1, 11)], [(1, 4), (4, 7), (7, 11)]),
    (6, None, [(0, 10), (0, 10), (0, 1)], [(0, 3), (3, 6), (6, 10), (0, 3), (3, 6), (6, 10), (0, 1)]),
    (None, 4, [(1, 5)], [(1, 5)]),
    (None, 4, [(1, 2)], [(1, 2)]),
    (None, 4, [(1, 6)], [(1, 3), (3, 6)]),
    (1, 20, [(1, 40)], [(1, 20), (20, 40)]),
    (4, 20, [(1, 40)], [(1, 10), (10, 20), (20, 30), (30, 40)]),
]
SIZES = [
    (9, None, [10000, 15000, 20000], [5000] * 9),
    (6, None, [500, 12000, 15001], [500, 6000, 6000, 5000, 5000, 5001]),
    (6, None, [1, 1, 10000], [1, 1, 2500, 2500, 2500, 2500]),
    (None, 20, [39, 49, 59], [19, 20, 16, 16, 17, 19, 20, 20]),
]


def ranges(bounds: list[tuple[int, int]]) -> list[OffsetRange]:
    return [OffsetRange("t", "id", number, start, end) for number, (start, end) in enumerate(bounds)]


# Promise: spark-read.md#options-of-a-read
@pytest.mark.parametrize(("least", "most", "given_", "expected"), KAFKAS)
def test_ranges_are_cut_as_kafkas_connector_cuts_them(
    least: int | None, most: int | None, given_: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    """Its own cases."""
    assert [(rng.start, rng.end) for rng in split_ranges(ranges(given_), least, most)] == expected


@pytest.mark.parametrize(("least", "most", "sizes", "expected"), SIZES)
def test_pieces_have_the_sizes_of_kafkas_connector(
    least: int | None, most: int | None, sizes: list[int], expected: list[int]
) -> None:
    """Larger pieces come last, and they differ by one record at most."""
    found = split_ranges(ranges([(0, size) for size in sizes]), least, most)
    assert [rng.end - rng.start for rng in found] == expected


bounds = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)).map(lambda b: (b[0], b[0] + b[1])), max_size=6)
limits = st.none() | st.integers(1, 60)


@given(bounds, limits, limits)
def test_cut_ranges_cover_what_was_asked_for(
    given_: list[tuple[int, int]], least: int | None, most: int | None
) -> None:
    """Every record once, in order; none above maxRecordsPerPartition."""
    whole = ranges(given_)
    pieces = split_ranges(whole, least, most)
    covered = [(piece.partition, at) for piece in pieces for at in range(piece.start, piece.end)]
    assert covered == [(rng.partition, at) for rng in whole for at in range(rng.start, rng.end)]
    assert most is None or all(piece.end - piece.start <= most for piece in pieces)


def slice_read(number: int, start: int, rows: int, length: int) -> SliceRead:
    piece = Slice(start, start + rows, f"data/{number}.seg", 0, length, 0, 1, 0, 0)
    return SliceRead("t", "id", number, start, start + rows, piece, 0, length)


slices = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 100), st.integers(1, 10_000)), max_size=8)


@given(slices, st.integers(1, 20_000))
def test_reads_are_dealt_out_completely_and_in_order(given_: list[tuple[int, int, int]], bytes_each: int) -> None:
    """By bytes: every record goes to one task, and tasks one after the other have the order of the reads."""
    reads = [slice_read(number, *parts) for number, parts in enumerate(given_)]
    covered = [at for task in split_by_bytes(reads, bytes_each) for at in offsets(task)]
    assert covered == offsets(reads)


def offsets(reads: Iterable[SliceRead]) -> list[tuple[int, int]]:
    return [(read.partition, at) for read in reads for at in range(read.start, read.end)]


def test_one_large_slice_is_shared_evenly() -> None:
    """Splitting by bytes cuts inside of slices."""
    tasks = split_by_bytes([slice_read(0, 0, 1000, 1_000_000)], 250_000)
    assert [[(part.start, part.end) for part in task] for task in tasks] == [
        [(0, 250)],
        [(250, 500)],
        [(500, 750)],
        [(750, 1000)],
    ]


# Promise: spark-read.md#options-of-a-read
def test_small_partitions_share_a_task() -> None:
    """A task costs tens of milliseconds, so a hundred small partitions are one."""
    assert len(split_by_bytes([slice_read(number, 0, 10, 100) for number in range(100)], 64 << 20)) == 1
