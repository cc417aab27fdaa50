"""How many checkpoints a log writes: one an interval, and none while it is idle."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.journal.journal import Journal
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.server.coordinator import Coordinator, LeaderStatus
from spark_log.server.local_link import LocalLink
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS

INTERVAL = 20
MINUTES_10 = 600
"""Rounds of maintenance, one a second."""


class CheckpointCounts(Wrapper):
    """Counts checkpoints that are put."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.checkpoints = 0

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self.checkpoints += key.startswith(CHECKPOINTS)
        super().put(key, chunks)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointCounts:
    """Of a log with a topic and a short interval."""
    store = CheckpointCounts(LocalStore(str(tmp_path / "log"), durability="os"))
    log = spark_log.Log(Journal.open(store, create=True))
    configs: dict[str, str | None] = {"metadata.checkpoint.interval": str(INTERVAL)}
    log.journal.propose(lambda state, now: decide_set_configs(state, None, configs))
    log.create_topic(spark_log.NewTopic("t", 1))
    return store


@pytest.fixture
def maintenance(store: CheckpointCounts) -> Iterator[Journal]:
    """The journal of a coordinator's maintenance, which follows it."""
    leading = threading.Event()
    coordinator = Coordinator(store, host="here", ask_leader=lambda holder: LeaderStatus.SILENT)
    coordinator.address = "127.0.0.1:1"
    coordinator.on_change = lambda: leading.set() if coordinator.leading else None
    thread = threading.Thread(target=coordinator.run)
    thread.start()
    assert leading.wait(30)
    yield Journal.open(store, create=False, link=LocalLink(coordinator), served=True)
    coordinator.stop()
    thread.join()


def append(journal: Journal) -> None:
    spark_log.Log(journal).append("t", [{"value": b"x"}])


def test_a_busy_coordinator_writes_a_checkpoint_an_interval(store: CheckpointCounts, maintenance: Journal) -> None:
    """However often maintenance looks."""
    first = maintenance.state.version
    for _ in range(5 * INTERVAL):
        append(maintenance)
        maintenance.run_maintenance()
    assert 3 <= store.checkpoints <= (maintenance.state.version - first) // INTERVAL + 1


def test_an_idle_coordinator_writes_none(store: CheckpointCounts, maintenance: Journal) -> None:
    """Once the last interval is written down."""
    for _ in range(INTERVAL):
        append(maintenance)
    maintenance.run_maintenance()
    assert store.checkpoints == 1
    for _ in range(MINUTES_10):
        maintenance.run_maintenance()
    assert store.checkpoints == 1


def test_commits_that_change_nothing_write_none(store: CheckpointCounts) -> None:
    """A consumer that commits where it stands, after the commit that was due."""
    log = spark_log.Log(Journal.open(store, create=False))
    group = log.consumer("t", group_id="g", enable_auto_commit=False)
    append(log.journal)
    group.poll(1000)
    group.commit()
    while not store.checkpoints:
        append(log.journal)
    for _ in range(50):
        group.commit()
    assert store.checkpoints == 1


def test_who_followed_a_coordinator_writes_none_after_it(store: CheckpointCounts, maintenance: Journal) -> None:
    """Its view has the checkpoint of the time when it was opened; others were written since."""
    follower = Journal.open(store, create=False)
    for _ in range(INTERVAL):
        append(maintenance)
        maintenance.run_maintenance()
    assert store.checkpoints == 1
    stale = follower.view.checkpoint
    follower.view = maintenance.view._replace(checkpoint=stale)  # as `follow` leaves it
    follower.run_maintenance()
    assert store.checkpoints == 1
