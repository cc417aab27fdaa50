"""Which part of a partition compaction cleans, and when (docs/decisions/0058-compaction.md)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.metadata.state import CleanedPart
from spark_log.model import Slice
from spark_log.rewriting.dirty_part import DirtyPart, Due, dirty_part
from spark_log.rewriting.maintenance_memory import NEVER
from spark_log.rewriting.merge_policy import window_ms

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 1_000 * DAY + 12 * HOUR
COMPACT = {"cleanup.policy": "compact", "segment.ms": str(DAY)}
"""The windows of segments are days."""


def piece(start: int, at_ms: int, *, rows: int = 10, mib: int = 1, oldest_ms: int | None = None) -> Slice:
    """A slice whose newest record has a time."""
    first_us = 1000 * (at_ms if oldest_ms is None else oldest_ms)
    return Slice(start, start + rows, f"o{start}", 0, mib << 20, 0, 1, first_us, 1000 * at_ms)


def days(*ages: int, mib: int = 1) -> list[Slice]:
    """Slices of ten records, of so many days ago."""
    return [piece(10 * number, NOW - age * DAY, mib=mib) for number, age in enumerate(ages)]


def found(slices: list[Slice], upto: int = 0, *, start: int = 0, now_ms: int = NOW, **configs: object) -> DirtyPart:
    given = COMPACT | {name.replace("_", "."): str(value) for name, value in configs.items()}
    return dirty_part(slices, start, CleanedPart(upto) if upto else None, given, now_ms, now_ms)


# ----------------------------------------------------------------------------------------------------------- which part


# Promise: tasks/keep-the-latest.md#when-compaction-runs
def test_the_active_segment_is_left() -> None:
    """The slices of the newest window, today's."""
    part = found(days(2, 1, 0, 0))
    assert (part.start, part.end) == (0, 20)


def test_the_active_segment_ends_with_its_window_without_a_later_record() -> None:
    """An idle topic is compacted, too."""
    slices = days(2, 1, 0, 0)
    midnight = 1_001 * DAY
    assert found(slices).until_ms == midnight
    assert found(slices, now_ms=midnight - 1).end == 20
    assert found(slices, now_ms=midnight).end == 40


def test_a_full_slice_ends_the_active_segment() -> None:
    """As Kafka rolls a segment at `segment.bytes`; a slice is full at half of it, because merging leaves it."""
    slices = [*days(0, 0), piece(20, NOW, mib=5), piece(30, NOW)]
    assert found(slices, segment_bytes=10 << 20).end == 30
    assert found(slices, segment_bytes=11 << 20).end == 0


# Promise: topic-configs.md#when-records-are-compacted
def test_the_window_is_the_lesser_of_segment_ms_and_the_maximum_lag() -> None:
    assert window_ms(COMPACT | {"max.compaction.lag.ms": str(HOUR)}) == HOUR
    assert window_ms(COMPACT | {"segment.ms": "1000", "max.compaction.lag.ms": str(HOUR)}) == 1_000
    assert window_ms({"cleanup.policy": "delete", "retention.ms": "-1", "max.compaction.lag.ms": "5"}) == 7 * DAY


def test_a_record_of_the_future_keeps_later_ones_in_the_active_segment() -> None:
    """Kafka keeps them there until the segment is full, too.  Earlier ones are compacted."""
    slices = [*days(2, 1), piece(20, NOW + 3650 * DAY), piece(30, NOW)]
    assert found(slices).end == 20


# Promise: tasks/keep-the-latest.md#when-compaction-runs
def test_records_younger_than_the_minimum_lag_and_all_after_them_are_left() -> None:
    slices = days(9, 3, 5, 2, 0)
    part = found(slices, min_compaction_lag_ms=4 * DAY)
    assert (part.end, part.until_ms) == (10, NOW + 12 * HOUR)
    later = NOW + DAY
    assert found(slices, now_ms=later - 1, min_compaction_lag_ms=4 * DAY).until_ms == later
    assert found(slices, now_ms=later, min_compaction_lag_ms=4 * DAY).end == 30


def test_the_minimum_lag_does_not_look_at_clean_records() -> None:
    """A late record with a fresh timestamp, cleaned before the lag was set."""
    slices = [piece(0, NOW - HOUR), *(piece(10 + 10 * n, NOW - 9 * DAY) for n in range(2))]
    day_after = NOW + 12 * HOUR
    assert found(slices, 10, now_ms=day_after, min_compaction_lag_ms=2 * DAY).end == 30
    assert found(slices, 0, now_ms=day_after, min_compaction_lag_ms=2 * DAY).end == 0


def test_the_dirty_part_begins_at_the_cleaner_point() -> None:
    part = found(days(3, 2, 1, 0), 10)
    assert (part.start, part.end, part.bytes, part.clean_bytes) == (10, 30, 2 << 20, 1 << 20)
    assert part.ratio == pytest.approx(2 / 3)


def test_a_start_after_the_cleaner_point_is_where_the_dirty_part_begins() -> None:
    """Retention or a trim has removed the clean part, and some of the dirty one."""
    part = found(days(3, 2, 1, 0)[1:], 10, start=15)
    assert (part.start, part.end, part.bytes, part.clean_bytes) == (15, 30, 3 << 19, 0)


def test_a_slice_that_merging_made_over_the_cleaner_point_counts_by_its_share() -> None:
    part = found([piece(0, NOW - 2 * DAY, rows=40, mib=4), piece(40, NOW)], 10)
    assert (part.start, part.end, part.bytes, part.clean_bytes) == (10, 40, 3 << 20, 1 << 20)


def test_a_clean_partition_has_an_empty_dirty_part() -> None:
    for part in found(days(3, 2, 0), 20), found(days(3, 2, 0), 30), found([]):
        assert (part.bytes, part.ratio, part.due) == (0, 0.0, None) and part.start == part.end


# ----------------------------------------------------------------------------------------------------------------- when


# Promise: tasks/keep-the-latest.md#when-compaction-runs
def test_a_pass_is_due_when_the_dirty_part_exceeds_the_ratio() -> None:
    slices = days(4, 3, 2, 1, 0)
    assert found(slices, 20).due is None
    assert found(slices, 10).due is Due.DIRTY_RATIO
    assert found(slices, 20, min_cleanable_dirty_ratio=0.49).due is Due.DIRTY_RATIO
    assert found(slices, 30, min_cleanable_dirty_ratio=0).due is Due.DIRTY_RATIO
    assert found(slices, 0, min_cleanable_dirty_ratio=1).due is None


# Promise: tasks/keep-the-latest.md#when-compaction-runs
def test_a_pass_is_due_when_a_dirty_record_is_older_than_the_maximum_lag() -> None:
    """By the oldest record, in whatever order the times come; and by time alone."""
    slices = [*days(9, 9, 9), piece(30, NOW - 2 * DAY, oldest_ms=NOW - 6 * DAY), piece(40, NOW)]
    part = found(slices, 30, max_compaction_lag_ms=7 * DAY)
    assert part.due is None
    due_ms = NOW + DAY + 1
    assert found(slices, 30, now_ms=due_ms - 1, max_compaction_lag_ms=7 * DAY).until_ms == due_ms
    assert found(slices, 30, now_ms=due_ms, max_compaction_lag_ms=7 * DAY).due is Due.LAG


def test_without_a_dirty_record_nothing_is_due_however_old_the_clean_ones_are() -> None:
    part = found(days(9, 9, 0), 20, max_compaction_lag_ms=DAY)
    assert (part.due, part.until_ms) == (None, 1_001 * DAY)


def test_tombstones_go_before_the_horizon_by_the_time_of_the_log() -> None:
    """The clock of a process may be years ahead for a moment."""
    cleaned, slices = CleanedPart(20, ((10, NOW - 2 * DAY), (20, NOW - HOUR))), days(3, 2, 0)

    def horizon(now_ms: int, log_ms: int, **configs: str) -> int:
        given = COMPACT | {name.replace("_", "."): value for name, value in configs.items()}
        return dirty_part(slices, 0, cleaned, given, now_ms, log_ms).tombstones_from

    assert horizon(NOW, NOW) == horizon(NOW + 3650 * DAY, NOW) == 10
    assert horizon(NOW, NOW, delete_retention_ms="0") == 20
    assert horizon(NOW + DAY, NOW - DAY - 1) == 0


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.sampled_from([1, 4, 70])), max_size=8),
    st.integers(0, 200),
    st.sampled_from([0, DAY, 5 * DAY]),
    st.sampled_from([2**63 - 1, 7 * DAY, 30 * DAY]),
)
def test_the_part_changes_by_time_when_it_says(
    made: list[tuple[int, int, int]], upto: int, min_lag: int, max_lag: int
) -> None:
    """Until then a round need not look; and from the last such time on, nothing changes."""
    slices, at = list[Slice](), 0
    for age, rows, mib in made:
        slices.append(piece(at, NOW - age * DAY, rows=rows, mib=mib))
        at += rows
    cleaned = CleanedPart(min(upto, at)) if upto else None
    configs = COMPACT | {"min.compaction.lag.ms": str(min_lag), "max.compaction.lag.ms": str(max_lag)}

    def seen(now_ms: int) -> tuple[int, Due | None]:
        part = dirty_part(slices, 0, cleaned, configs, now_ms, now_ms)
        assert part.start <= part.end <= at or part.start == part.end
        assert part.until_ms > now_ms
        return part.end, part.due

    for hours in range(-24 * 9, 24 * 45, 12):
        now_ms = NOW + hours * HOUR
        until_ms = dirty_part(slices, 0, cleaned, configs, now_ms, now_ms).until_ms
        for later in (now_ms + 1, now_ms + 6 * HOUR, now_ms + 11 * HOUR, until_ms - 1):
            if later < until_ms and later < NEVER - 1:
                assert seen(later) == seen(now_ms)
