"""The log in memory, and majorities."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.quorum.messages import EMPTY, Entry, Kind, Position, ReplicaKey
from spark_log.quorum.replica_log import ReplicaLog
from spark_log.quorum.voters import Voters, decode_voters, encode_voters, is_majority, majority_reached
from tests.unit.quorum.replicas import VOTERS, data

SMALLER = VOTERS[:2]


def log_of(*epochs: int) -> ReplicaLog:
    log = ReplicaLog(EMPTY, VOTERS)
    log.append(data(*epochs))
    return log


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, (0, 0)), (1, (1, 2)), (2, (1, 2)), (3, (3, 5)), (4, (4, 6)), (9, (4, 6))]
)
def test_where_an_epoch_ends(epoch: int, expected: tuple[int, int]) -> None:
    """The largest one that is not above the one that is asked for."""
    assert log_of(1, 1, 3, 3, 3, 4).end_of_epoch(epoch) == expected


def test_entries_follow_each_other() -> None:
    """Without gaps, and not from an earlier epoch."""
    for wrong in (Entry(3, 2, Kind.DATA, b""), Entry(2, 1, Kind.DATA, b"")):
        with pytest.raises(AssertionError, match="does not follow"):
            log_of(2, 2).append([wrong])


def test_voters_are_in_force_when_they_are_appended_and_void_when_truncated() -> None:
    """Whether they are committed or not (KIP-853)."""
    log = log_of(1, 1)
    log.append([Entry(2, 1, Kind.VOTERS, encode_voters(SMALLER)), Entry(3, 1, Kind.DATA, b"")])
    assert log.voters == SMALLER and log.voters_end == 3
    assert (log.voters_at(2), log.voters_at(3)) == (VOTERS, SMALLER)
    log.truncate(3)
    assert log.voters == SMALLER
    log.truncate(2)
    assert log.voters == VOTERS and log.voters_end == 0


def test_bytes_of_a_read() -> None:
    """At least one entry, if there is any."""
    log = log_of(*[1] * 12)
    assert [entry.offset for entry in log.read_bytes(9, 4)] == [9, 10]
    assert [entry.offset for entry in log.read_bytes(10, 0)] == [10]
    assert log.read_bytes(12, 9) == ()


def test_a_log_that_contains_its_snapshot_keeps_the_entries_behind_it() -> None:
    log = ReplicaLog.restore(Position(1, 2), VOTERS, data(1, 1, 2))
    assert (log.start, log.position) == (Position(1, 2), Position(2, 3))


@pytest.mark.parametrize("epochs", [(1,), (2, 2, 2), (1, 2, 2)], ids=["shorter", "other epoch", "other end of epoch"])
def test_a_log_that_a_snapshot_replaced_is_dropped(epochs: tuple[int, ...]) -> None:
    """The replica died after it received the snapshot, and before it deleted the log."""
    log = ReplicaLog.restore(Position(1, 2), SMALLER, data(*epochs))
    assert (log.position, log.voters) == (Position(1, 2), SMALLER)


def test_a_log_that_begins_behind_its_snapshot_is_damaged() -> None:
    with pytest.raises(AssertionError, match="begins at 2, behind the end of the snapshot"):
        ReplicaLog.restore(Position(1, 1), VOTERS, data(1, 1, 1)[2:])


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Entry], list[Voters]]:
    """Entries with ascending epochs, and the voters that are in force before each offset."""
    epochs = sorted(draw(st.lists(st.integers(1, 4), min_size=1, max_size=12)))
    entries, sets = [], [VOTERS]
    for offset, epoch in enumerate(epochs):
        voters = draw(st.sampled_from([None, VOTERS, SMALLER]))
        kind = Kind.DATA if voters is None else Kind.VOTERS
        entries.append(Entry(offset, epoch, kind, b"x" if voters is None else encode_voters(voters)))
        sets.append(sets[-1] if voters is None else voters)
    return entries, sets


@given(logs(), st.data())
def test_a_compacted_log_is_the_rest_of_the_whole_one(
    content: tuple[list[Entry], list[Voters]], draws: st.DataObject
) -> None:
    """Fast lookups against dumb ones, before and after truncation and compaction."""
    entries, sets = content
    log = ReplicaLog(EMPTY, VOTERS)
    log.append(entries)
    end = draws.draw(st.integers(0, len(entries)), "truncated to")
    snapshot = draws.draw(st.integers(0, end), "snapshot")
    keep_from = draws.draw(st.integers(0, snapshot), "kept from")
    log.truncate(end)
    log.compact(snapshot, keep_from)
    epochs = [0, *(entry.epoch for entry in entries[:end])]
    assert log.read(keep_from, end) == tuple(entries[keep_from:end])
    assert (log.end, log.position) == (end, Position(epochs[end], end))
    assert (log.start, log.snapshot) == (Position(epochs[keep_from], keep_from), Position(epochs[snapshot], snapshot))
    assert [log.voters_at(at) for at in range(keep_from, end + 1)] == sets[keep_from : end + 1]
    assert log.voters == sets[end]
    for epoch in range(epochs[keep_from], 6):
        known = [at for at in range(keep_from, end + 1) if epochs[at] <= epoch]
        assert log.end_of_epoch(epoch) == Position(epochs[known[-1]], known[-1])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_what_a_majority_has_reached(values: list[int]) -> None:
    """Compared with all majorities."""
    size = len(values) // 2 + 1
    assert majority_reached(values) == max(min(some) for some in combinations(values, size))


def test_more_than_half_is_a_majority() -> None:
    four = (*VOTERS, ReplicaKey(4, "a"))
    assert not is_majority(four[:2], four) and is_majority(four[:3], four)
    assert not is_majority([ReplicaKey(1, "b"), ReplicaKey(2, "b")], VOTERS)


def test_voters_are_encoded() -> None:
    assert decode_voters(encode_voters(VOTERS)) == VOTERS
