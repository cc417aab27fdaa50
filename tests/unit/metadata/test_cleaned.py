"""The cleaner point of a partition, and the horizon of its tombstones (docs/decisions/0058-compaction.md)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.metadata.commands import AnyCommand, MarkCleaned, ResetClock
from spark_log.metadata.maintenance.accepted_loss import renew
from spark_log.metadata.maintenance.cleaner_point import HORIZON_PARTS, moved_point, tombstones_from
from spark_log.metadata.records import Cleaned, CleanedRecord
from spark_log.metadata.state import CleanedPart
from spark_log.metadata.topics.decide_topics import decide_delete_topic, decide_trim
from tests.unit.metadata.history import History

DAY = 86_400_000


@pytest.fixture
def log() -> History:
    return History()


def mark(log: History, *partitions: Cleaned) -> bool:
    """As a coordinator does that received the command."""
    received: AnyCommand = msgspec.json.decode(msgspec.json.encode(MarkCleaned(partitions=partitions)), type=AnyCommand)
    return bool(log.do(received))


# ------------------------------------------------------------------------------------------------------------ the state


def test_a_pass_moves_the_point_to_its_end(log: History) -> None:
    topic = log.create(partitions=2)
    log.commit((topic, 0, 10), (topic, 1, 10))
    assert mark(log, Cleaned(topic, 0, 4), Cleaned(topic, 1, 10))
    at = log.state.time
    assert dict(log.state.cleaned) == {(topic, 0): CleanedPart(4, ((4, at),)), (topic, 1): CleanedPart(10, ((10, at),))}
    assert mark(log, Cleaned(topic, 0, 10))
    assert log.state.cleaned[topic, 0].upto == 10


VOID: dict[str, Callable[[str], Cleaned]] = {
    "the point is there": lambda topic: Cleaned(topic, 0, 4),
    "the point is beyond it": lambda topic: Cleaned(topic, 0, 3),
    "beyond the end": lambda topic: Cleaned(topic, 0, 11),
    "no such partition": lambda topic: Cleaned(topic, 1, 4),
    "no such topic": lambda topic: Cleaned("none", 0, 4),
    "a deleted topic": lambda topic: Cleaned("gone-1", 0, 4),
}


@pytest.mark.parametrize("what", VOID)
def test_a_void_point_changes_nothing_and_is_not_decided(log: History, what: str) -> None:
    """A slow maintainer may name a point that another one has passed, or a topic that is gone."""
    topic = log.create()
    gone = log.create("gone")
    log.commit((topic, 0, 10), (gone, 0, 10))
    assert mark(log, Cleaned(topic, 0, 4))
    log.do(lambda state, now: decide_delete_topic(state, "gone"))
    before, void = log.state, VOID[what](topic)
    assert gone == "gone-1"
    assert not mark(log, void) and log.state is before
    log.write(CleanedRecord(partitions=(void,)))
    assert log.state.cleaned == before.cleaned


def test_of_several_partitions_those_that_have_moved_are_written(log: History) -> None:
    topic = log.create(partitions=2)
    log.commit((topic, 0, 10), (topic, 1, 10))
    mark(log, Cleaned(topic, 0, 10))
    assert mark(log, Cleaned(topic, 0, 10), Cleaned(topic, 1, 10))
    assert log.batches[-1].records == (CleanedRecord(partitions=(Cleaned(topic, 1, 10),)),)


def test_the_point_goes_with_its_topic_and_a_new_one_of_that_name_has_none(log: History) -> None:
    topic, other = log.create(), log.create("u")
    log.commit((topic, 0, 10), (other, 0, 10))
    mark(log, Cleaned(topic, 0, 10), Cleaned(other, 0, 10))
    log.do(lambda state, now: decide_delete_topic(state, "t"))
    assert list(log.state.cleaned) == [(other, 0)]
    again = log.create()
    log.commit((again, 0, 10))
    assert not mark(log, Cleaned(topic, 0, 10))
    assert list(log.state.cleaned) == [(other, 0)]


def test_appends_and_trims_leave_the_point(log: History) -> None:
    topic = log.create()
    log.commit((topic, 0, 10))
    mark(log, Cleaned(topic, 0, 4))
    known = log.state.cleaned
    log.commit((topic, 0, 10))
    log.do(lambda state, now: decide_trim(state, {(topic, 0): 7}))
    assert log.state.cleaned == known


def test_after_an_accepted_loss_everything_is_dirty(log: History) -> None:
    """The swaps of the pass may be among the lost versions."""
    topic = log.create()
    log.commit((topic, 0, 10))
    mark(log, Cleaned(topic, 0, 10))
    assert not renew(log.state, 1_000_000_000, {topic: "new"}, log.state.objects).cleaned


def test_tombstones_are_kept_as_long_after_the_clock_was_set_back(log: History) -> None:
    topic = log.create()
    log.commit((topic, 0, 10))
    now, log.now = log.now, log.now + 365 * DAY
    mark(log, Cleaned(topic, 0, 10))
    log.now = now
    log.do(ResetClock(force=True))
    assert log.state.cleaned[topic, 0].horizons == ((10, log.state.time),)


# ------------------------------------------------------------------------------------------------------------- horizons


def test_a_tombstone_is_kept_from_the_end_of_the_first_pass_over_it() -> None:
    part = moved_point(None, 10, 5 * DAY, DAY)
    part = moved_point(part, 20, 5 * DAY + DAY // 2, DAY)
    assert tombstones_from(part, 6 * DAY - 1, DAY) == 0
    assert tombstones_from(part, 6 * DAY, DAY) == 10
    assert tombstones_from(part, 6 * DAY + DAY // 2, DAY) == 20
    assert tombstones_from(None, 9 * DAY, DAY) == 0


def test_without_retention_a_tombstone_goes_in_the_second_pass() -> None:
    part = moved_point(None, 10, 5, 0)
    assert tombstones_from(part, 5, 0) == 10


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, DAY)), max_size=200),
    st.sampled_from([0, 1, 1_000, DAY, 10 * DAY]),
)
def test_tombstones_stay_as_long_as_they_should_and_hardly_longer(passes: list[tuple[int, int]], kept_ms: int) -> None:
    """Against a list of all passes; the pairs are few, whatever the number of passes."""
    part, upto, now, ends = None, 0, 0, list[tuple[int, int]]()
    for records, later in passes:
        upto, now = upto + records, now + later
        ends.append((upto, now))
        part = moved_point(part, upto, now, kept_ms)
        exact = max((offset for offset, time in ends if time + kept_ms <= now), default=0)
        longest = kept_ms + kept_ms // HORIZON_PARTS
        late = max((offset for offset, time in ends if time + longest <= now), default=0)
        assert late <= tombstones_from(part, now, kept_ms) <= exact
        assert len(part.horizons) <= 2 * HORIZON_PARTS + 4
        assert list(part.horizons) == sorted(part.horizons) and part.upto == upto
