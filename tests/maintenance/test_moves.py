"""Partitions move to other brokers: their slices are rewritten there, beside reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from simulation.harness.broker_roots import commit_on_leader, register_broker
from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.maintenance.maintain import maintain_once
from spark_log.maintenance.partition_moves import Mover, Moves
from spark_log.maintenance.replicate import replicate_once
from spark_log.metadata.replicas.replica_commands import FenceBroker, ReturnBroker
from spark_log.metadata.replicas.replicas import copies_of
from spark_log.recovery.verify import verify
from spark_log.replication.copy_throttle import Pace
from spark_log.runtime.clock import SystemClock
from tests.logged import logged

TP = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Brokers 0, 1 and 2."""
    with connect(tmp_path / "log", durability="os") as log:
        for broker in (1, 2):
            register_broker(log, broker, str(tmp_path / f"broker{broker}"))
        yield log


def create(log: Log, *replicas: tuple[int, ...]) -> None:
    log.admin.create_topics([NewTopic("t", len(replicas), {}, replica_assignment=dict(enumerate(replicas)))])


def append(log: Log, partitions: int = 1, commits: int = 3) -> None:
    for number in range(commits):
        rows = [{"value": b"%d" % number, "partition": one} for one in range(partitions)]
        log.append("t", pa.Table.from_pylist(rows, pa.schema([("value", pa.binary()), ("partition", pa.int32())])))


def holders(log: Log) -> set[tuple[int, ...]]:
    """The brokers of the segments; () for those in the log's own root."""
    state = log.journal.refresh()
    rows = [row for name, row in state.objects.items() if name.endswith(".seg")]
    return {() if (copies := copies_of(state, row)) is None else copies.brokers for row in rows}


def records(log: Log) -> list[tuple[int, int, bytes]]:
    rows = log.read("t", columns=["partition", "offset", "value"]).to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


class CountingPace(Pace):
    """No limit; counts what passes."""

    bytes = 0

    def take(self, size: int) -> None:
        self.bytes += size


def mover(log: Log) -> Mover:
    return Mover(log, CountingPace(SystemClock()))


# Promise: replicas.md#move-partitions
def test_maintain_moves_only_the_slices_of_the_partition(log: Log) -> None:
    """Also those that are too large to merge; the other partition of their objects stays where it is."""
    create(log, (0, 1), (0, 1))
    log.admin.incremental_alter_configs({"t": {"segment.bytes": "1048576"}})
    log.append("t", [{"value": bytes(range(256)) * 3000, "partition": number} for number in range(2)])
    append(log, 2)
    before = records(log)
    log.admin.alter_partition_reassignments({TP: [1, 2]})
    report = maintain_once(log)
    assert report.moved_partitions == 1 and report.moved_bytes > 1000
    assert holders(log) == {(0, 1), (1, 2)} and records(log) == before
    assert log.admin.list_partition_reassignments() == {}
    assert log.admin.describe_topics(["t"])["t"].partitions[0].replicas == (1, 2)
    assert not verify(log, deep=True)
    assert maintain_once(log).moved_bytes == 0


def test_the_replication_factor_is_raised_and_lowered(log: Log) -> None:
    """From the log's own root alone to three replicas, and back."""
    log.admin.create_topics([NewTopic("t", 2)])
    append(log, 2)
    before = records(log)
    log.admin.alter_partition_reassignments({TopicPartition("t", number): [number, 2, 1 - number] for number in (0, 1)})
    shown = list[str]()
    assert replicate_once(log, progress=lambda what, at, total: shown.append(what)).moved_partitions == 2
    assert "move" in shown
    assert holders(log) == {(0, 1, 2)} and records(log) == before
    log.admin.create_partitions({"t": 3})
    log.admin.alter_partition_reassignments({TopicPartition("t", number): [0] for number in range(3)})
    maintain_once(log)
    assert holders(log) == {()} and records(log) == before
    append(log, 3)


# Promise: replicas.md#move-partitions
def test_a_move_waits_for_a_replica_that_is_fenced(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """Reads work meanwhile, and a cancellation moves back what was written since."""
    create(log, (0, 1))
    append(log)
    log.journal.propose(FenceBroker(broker=2, reason="by hand"))
    log.admin.alter_partition_reassignments({TP: [0, 2]})
    append(log)
    found, _ = mover(log).move_all()
    assert (found.slices, found.partitions) == (0, 0) and len(records(log)) == 6
    assert "waiting for a broker that must have the new objects: broker 2" in caplog.text
    log.admin.alter_partition_reassignments({TP: None})
    assert mover(log).move_all()[0].partitions == 1
    assert holders(log) == {(0, 1)} and len(records(log)) == 6
    epoch = log.journal.refresh().brokers[2].epoch
    log.journal.propose(ReturnBroker(broker=2, epoch=epoch))


# Promise: storage-failures.md#when-an-object-is-lost-or-damaged
def test_an_object_that_cannot_be_read_is_left_where_it_is(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named once; the others move, and it does when it was restored."""
    create(log, (0, 1))
    append(log, commits=5)
    bad = log.plan("t")[2].slice.object
    copies = {path: path.read_bytes() for path in tmp_path.rglob("*.seg") if str(path).endswith(bad)}
    assert len(copies) == 2
    for path, data in copies.items():
        path.write_bytes(bytes(len(data)))
    log.admin.alter_partition_reassignments({TP: [1, 2]})
    running = mover(log)
    for _ in range(4):
        running.round()
    assert [read.slice.object == bad for read in log.plan("t")] == [False, True, False]
    assert len(logged(caplog, "moving t-0 failed")) == 1
    assert log.admin.list_partition_reassignments() != {}
    for path, data in copies.items():
        path.write_bytes(data)
    found, _ = mover(log).move_all()
    assert found.partitions == 1 and log.admin.list_partition_reassignments() == {}
    assert not verify(log, deep=True)


# Promise: replicas.md#move-partitions
def test_a_mover_that_runs_for_long_moves_what_the_newest_state_has(log: Log) -> None:
    """Within the limit of copying, which counts each copy.  A second mover finds nothing left."""
    create(log, (0, 1), (1, 2), (0, 2))
    append(log, 3)
    before = records(log)
    one = Mover(log, pace := CountingPace(SystemClock()))
    assert one.round().partitions == 0 and not one.has_news()
    log.admin.alter_partition_reassignments({TopicPartition("t", number): [2, 1, 0] for number in range(3)})
    assert one.has_news(), "it does not rest when a move begins"
    assert one.round().partitions == 3 and mover(log).round().slices == 0
    one.round()
    assert not one.has_news()
    done = one.take()
    assert pace.bytes == 3 * done.bytes
    assert done.slices == 9 and done.partitions == 3 and one.take().slices == 0
    assert holders(log) == {(0, 1, 2)} and records(log) == before


def test_a_mover_rests_while_a_pending_commit_holds_up_the_end_of_a_move(log: Log) -> None:
    """Rounds without a pause are for those that do something: this one asks for nothing, and counts nothing as done."""
    create(log, (1, 2))
    commit_on_leader(log, "t", [{"value": b"of a writer that has died"}])
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    log.admin.alter_partition_reassignments({TP: [2, 0]})
    before = log.journal.refresh()
    assert mover(log).round() == Moves() and log.journal.refresh().version == before.version
    log.journal.propose(ReturnBroker(broker=1, epoch=before.brokers[1].epoch))
    assert replicate_once(log).moved_partitions == 1
    assert holders(log) == {(0, 2)} and records(log) == [(0, 0, b"of a writer that has died")]
