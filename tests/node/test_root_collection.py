"""Garbage collection on the roots of brokers, and what `pylog maintain` does for brokers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_log import Log
from spark_log.node.maintain import Maintainer, collect_garbage, maintain_round
from tests.node.replicated_logs import folder_of, group_of, move_away, put, replicated_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return replicated_log(tmp_path, replica_lag_time_max_ms="1", gc_fence_age_ms="1", broker_session_timeout_ms="500")


def drop(log: Log) -> None:
    """Delete the topic, so that no object is live."""
    log.admin.delete_topics(["t"])


def pass_the_fence(log: Log, rounds: int = 3) -> int:
    total = 0
    for _ in range(rounds):
        time.sleep(0.005)
        total += maintain_round(log).collected
    return total


def objects_on(log: Log, tmp_path: Path, broker: int) -> list[str]:
    return sorted(path.name for path in (folder_of(log, tmp_path, broker) / "data").rglob("*.seg"))


def test_dropped_objects_are_deleted_on_all_roots(log: Log, tmp_path: Path) -> None:
    put(log, [0, 1, 2])
    put(log, [0, 1, 2])
    drop(log)
    assert pass_the_fence(log) == 6
    assert [objects_on(log, tmp_path, broker) for broker in (0, 1, 2)] == [[], [], []]


def test_uploads_without_a_commit_are_deleted_on_all_roots(log: Log, tmp_path: Path) -> None:
    """And copies that no record names are kept while the object is live."""
    kept = put(log, [0, 1])
    stray = f"{kept[:22]}feedfeedfeedfeed.seg"
    for broker in (1, 2):
        log.journal.roots[broker].put(stray, [b"x"])
    pass_the_fence(log)
    name = kept.rpartition("/")[2]
    assert [objects_on(log, tmp_path, broker) for broker in (0, 1, 2)] == [[name]] * 3


def test_later_rounds_find_later_garbage(log: Log, tmp_path: Path) -> None:
    """A maintainer remembers each root."""
    maintainer = Maintainer(log)
    put(log, [0, 1, 2])
    maintainer.round()
    drop(log)
    for _ in range(4):
        time.sleep(0.005)
        maintainer.round()
    assert [objects_on(log, tmp_path, broker) for broker in (0, 1, 2)] == [[], [], []]


def test_a_root_that_is_gone_does_not_stop_the_others(log: Log, tmp_path: Path) -> None:
    put(log, [0, 1, 2])
    drop(log)
    away, maintainer = move_away(tmp_path, 2), Maintainer(log)
    problems = list[str]()
    for _ in range(3):
        time.sleep(0.005)
        problems += maintainer.round().problems
    assert "garbage collection on broker 2 failed" in problems[0]
    assert [objects_on(log, tmp_path, broker) for broker in (0, 1)] == [[], []]
    assert list(away.rglob("*.seg"))


def test_gc_by_hand(log: Log, tmp_path: Path) -> None:
    name = put(log, [0, 1, 2])
    drop(log)
    names = list[str]()
    for _ in range(3):
        time.sleep(0.005)
        names += collect_garbage(log)
    assert sorted(names) == [f"broker 1: {name}", f"broker 2: {name}", name]


def test_maintain_checks_brokers_and_copies(log: Log, tmp_path: Path) -> None:
    put(log, [0])
    put(log, [0])
    move_away(tmp_path, 2)
    report = maintain_round(log)
    assert (report.copied, report.joined, report.returned_brokers) == (2, 1, ())
    assert "broker 2: its root is not usable" in report.fenced_brokers[0]
    state = log.journal.refresh()
    assert [copies.brokers for copies in state.copies.values()] == [(0, 1)]
    assert group_of(state).isr == (0, 1)


def test_unfinished_files_of_dead_writers_are_deleted(log: Log, tmp_path: Path) -> None:
    import os

    data = folder_of(log, tmp_path, 1) / "data" / "0000000000000001"
    data.mkdir(parents=True)
    old, young = data / ".tmp-old", data / ".tmp-young"
    for file in (old, young):
        file.write_bytes(b"x")
    os.utime(old, (1, 1))
    assert maintain_round(log).unfinished == 1
    assert (old.exists(), young.exists()) == (False, True)
