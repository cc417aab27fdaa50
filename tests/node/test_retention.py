"""Retention: whole slices, from the front, by age and by size."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_log import Log
from spark_log.metadata.decide import decide_set_configs
from spark_log.metadata.records import Piece
from spark_log.model import Slice
from spark_log.node.maintain import checkpoint, expire, maintain_once
from spark_log.node.retention import Limits, expired, limits_of
from spark_log.node.verify import verify
from tests.node.logs import HOUR_MS, append_small, new_log, slices


def offsets(log: Log) -> list[int]:
    return list(log.read("t")["offset"].to_pylist())


def test_old_records_go(tmp_path: Path) -> None:
    """Slices whose newest record is older than retention.ms go, and their objects are dropped."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 4, age_ms=2 * HOUR_MS)
    append_small(log, 2, first=4)
    report = maintain_once(log)
    assert report.expired_records == 12
    assert offsets(log) == list(range(12, 18))
    assert verify(log) == []


def test_a_whole_topic_can_expire(tmp_path: Path) -> None:
    """An idle topic ends empty, and goes on where it was."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 4, age_ms=2 * HOUR_MS)
    assert expire(log) == 12
    assert offsets(log) == []
    append_small(log, 1, first=4)
    assert offsets(log) == [12, 13, 14]


def test_a_young_slice_keeps_those_behind_it(tmp_path: Path) -> None:
    """Only the front goes: offsets have no holes."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 1)
    append_small(log, 3, first=1, age_ms=2 * HOUR_MS)
    assert expire(log) == 0


def test_sealed_slices_expire_one_by_one(tmp_path: Path) -> None:
    """A piece that holds old and young slices is looked into."""
    log = new_log(tmp_path, retention_ms=str(HOUR_MS))
    append_small(log, 200, age_ms=2 * HOUR_MS)
    append_small(log, 100, first=200)
    checkpoint(log)
    state = log.journal.refresh()
    assert any(isinstance(entry, Piece) for entry in state.partitions[state.names["t"], 0].entries)
    assert expire(log) == 600
    assert offsets(log)[0] == 600
    assert verify(log, deep=True) == []


def test_by_size_the_oldest_go_while_enough_stays(tmp_path: Path) -> None:
    """What remains has at least retention.bytes, and would not without its first slice."""
    log = new_log(tmp_path)
    append_small(log, 10)
    size = slices(log)[0].length
    limit = str(3 * size + 1)
    log.journal.propose(lambda s, now: decide_set_configs(s, "t", {"retention.bytes": limit}))
    expire(log)
    assert 3 <= len(slices(log)) <= 5
    kept = sum(piece.length for piece in slices(log))
    assert kept >= 3 * size + 1 > kept - slices(log)[0].length


def test_without_delete_in_the_policy_records_stay(tmp_path: Path) -> None:
    """cleanup.policy decides whether there is retention at all."""
    now = int(time.time() * 1000)
    assert limits_of({"cleanup.policy": "compact", "retention.ms": "1"}, now) == Limits(None, None)
    assert limits_of({"retention.ms": "-1"}, now) == Limits(None, None)
    assert limits_of({"retention.ms": "1000", "retention.bytes": "5"}, 2000) == Limits(1_000_000, 5)


def piece(size: int, max_us: int) -> Slice:
    return Slice(0, 1, "o", 0, size, 0, 1, 0, max_us)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(None, None), 0),
        (Limits(10, None), 1),
        (Limits(21, None), 2),
        (Limits(99, None), 4),
        (Limits(None, 40), 0),
        (Limits(None, 25), 1),
        (Limits(None, 0), 4),
        (Limits(10, 15), 2),
    ],
)
def test_counts(limits: Limits, expected: int) -> None:
    """By time strictly older ones, by size while the rest is not below the limit; the larger of the two."""
    entries = [piece(10, 9), piece(10, 20), piece(10, 30), piece(10, 40)]
    assert expired(entries, limits) == expected
