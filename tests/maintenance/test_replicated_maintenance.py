"""Merging, compaction and erasure of topics with replicas: new objects are where the old ones are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from simulation.harness.broker_roots import ControlledRoots, register_broker
from spark_log import Log, NewTopic, connect
from spark_log.maintenance.maintain import checkpoint, maintain_once, merge
from spark_log.metadata.replicas.replica_commands import FenceBroker, ReturnBroker
from spark_log.metadata.replicas.replicas import copies_of, deficit
from spark_log.recovery.verify import verify

ALL = (0, 1, 2)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Brokers 0, 1 and 2."""
    with connect(tmp_path / "log", durability="os") as log:
        for broker in (1, 2):
            register_broker(log, broker, str(tmp_path / f"broker{broker}"))
        yield log


@pytest.fixture
def roots(log: Log, tmp_path: Path) -> Iterator[ControlledRoots]:
    (tmp_path / "orders").mkdir()
    roots = ControlledRoots.of(log, tmp_path / "orders")
    yield roots
    for broker in (1, 2):
        roots.order(broker, "")


def create(log: Log, *replicas: tuple[int, ...], name: str = "t", **configs: str) -> None:
    given = {key.replace("_", "."): value for key, value in configs.items()}
    log.admin.create_topics([NewTopic(name, len(replicas), given, replica_assignment=dict(enumerate(replicas)))])


def append(log: Log, commits: int, partitions: int = 1, topic: str = "t") -> None:
    for number in range(commits):
        log.append(
            topic,
            pa.table(
                {
                    "key": [b"k%d" % (number % 3)] * partitions,
                    "value": [b"%d" % number] * partitions,
                    "partition": list(range(partitions)),
                }
            ),
        )


def segments(log: Log) -> list[tuple[int, ...]]:
    """The holders of each segment; () for one in the log's own root."""
    state = log.journal.refresh()
    rows = [row for name, row in sorted(state.objects.items()) if name.endswith(".seg")]
    return sorted(() if (copies := copies_of(state, row)) is None else copies.brokers for row in rows)


def test_a_merged_segment_is_on_all_replicas(log: Log, tmp_path: Path) -> None:
    create(log, ALL)
    append(log, 10)
    before = log.read("t")
    assert maintain_once(log).segments == 1
    assert segments(log) == [ALL]
    (name,) = log.journal.state.objects
    for broker in (1, 2):
        assert (tmp_path / f"broker{broker}" / log.journal.state.brokers[broker].directory / name).exists()
    assert log.read("t").equals(before)
    assert verify(log, deep=True) == []


def test_partitions_of_different_groups_share_no_object(log: Log) -> None:
    create(log, (0, 1), (1, 2), (0, 2), (0, 1))
    create(log, (0,), (0,), name="u")
    append(log, 5, 4)
    append(log, 5, 2, "u")
    merge(log)
    assert segments(log) == [(), (0, 1), (0, 2), (1, 2)]


def test_indexes_of_replicated_partitions_are_in_the_own_root(log: Log) -> None:
    """Sealing, and merges of sealed slices."""
    create(log, ALL)
    append(log, 300)
    checkpoint(log)
    state = log.journal.refresh()
    indexes = [row for name, row in state.objects.items() if name.endswith(".idx")]
    assert indexes
    assert all(copies_of(state, row) is None for row in indexes)
    before = log.read("t")
    maintain_once(log)
    assert segments(log) == [ALL]
    assert log.read("t").equals(before)


def test_compaction_and_erasure_keep_the_copies(log: Log) -> None:
    create(log, ALL, cleanup_policy="compact", min_cleanable_dirty_ratio="0", segment_ms="1")
    append(log, 12)
    maintain_once(log)
    assert set(segments(log)) == {ALL}
    assert len(log.read("t")) < 12
    log.admin.erase_records("t", keys=[b"k1"])
    assert b"k1" not in log.read("t").column("key").to_pylist()
    assert set(segments(log)) == {ALL}


def test_a_replica_that_missed_the_new_object_gets_it_before_the_swap(
    log: Log, roots: ControlledRoots, tmp_path: Path
) -> None:
    """It fails while the object is put, and is back for the copy."""
    create(log, ALL)
    append(log, 10)
    (tmp_path / "broker2").rename(tmp_path / "unmounted")
    report = merge(log)
    assert report.segments == 0, "nothing is swapped without it"
    assert log.journal.refresh().placement_groups[1].isr == ALL
    assert segments(log) == [ALL] * 10
    (tmp_path / "unmounted").rename(tmp_path / "broker2")
    assert merge(log).segments == 1
    assert segments(log) == [ALL]


def test_maintenance_waits_for_a_fenced_replica_and_does_the_rest(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is read or written for a merge that could not be swapped in."""
    create(log, ALL)
    create(log, (0, 1), name="u")
    append(log, 10)
    append(log, 10, topic="u")
    journal = log.journal
    journal.propose(FenceBroker(broker=2, reason="test"))
    with caplog.at_level(logging.WARNING, "spark_log"):
        assert merge(log).segments == 1, "of the other topic"
    assert "merging 1 partition: waiting for a broker that must have the new objects: broker 2" in caplog.text
    assert len(segments(log)) == 11
    journal.propose(ReturnBroker(broker=2, epoch=journal.refresh().brokers[2].epoch))
    assert merge(log).segments == 1
    assert segments(log) == [(0, 1), ALL]


def test_a_replica_that_is_out_gets_what_replaces_its_objects(log: Log, roots: ControlledRoots) -> None:
    """A swap leaves no fewer copies than there were, and a merge of what it lacks is not waited for."""
    create(log, ALL)
    append(log, 5)
    roots.order(2, "full")
    append(log, 5)
    roots.order(2, "")
    state = log.journal.refresh()
    assert state.placement_groups[1].isr == (0, 1)
    assert deficit(state, 1, 2).objects == 5
    assert merge(log).segments == 1
    assert segments(log) == [ALL]
