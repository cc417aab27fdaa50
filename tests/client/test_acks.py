"""acks=0 and acks=1: who waits for which copies, and when readers see the records."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from simulation.harness.broker_roots import ControlledRoots, commit_on_leader, register_broker
from spark_log.client.admin.answering_roots import RootAnswers
from spark_log.client.admin.brokers import return_broker
from spark_log.client.admin.erasure import await_pending
from spark_log.client.producer.pending_copies import (
    WaitingCopy,
    await_visible,
    copied,
    copy_in_background,
    still_lacking,
    wait_for_copies,
)
from spark_log.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    NotEnoughReplicas,
    OffsetOutOfRange,
    RequestTimedOut,
    SparkLogError,
    StorageUnavailable,
)
from spark_log.maintenance.replicate import replicate_once
from spark_log.metadata.commands import Report
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.commits.pending_commits import lacking_objects
from spark_log.metadata.records import Copy, MissingRecord
from spark_log.metadata.replicas.replica_commands import FenceBroker
from spark_log.metadata.replicas.replicas import epoch_of
from spark_log.model import LATEST, TopicPartition
from spark_log.monitoring.health_findings import broker_findings
from spark_log.recovery.verify import verify
from spark_log.replication import fenced_copies
from spark_log.replication.copy_throttle import Pace
from spark_log.replication.fenced_copies import ATTEMPTS, FencedCopies
from spark_log.replication.replicator import Replicator
from tests.logged import logged
from tests.services import Services

ROWS = [{"value": b"%d" % number} for number in range(9)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    """Brokers 0, 1 and 2, a topic "t" on all of them, and "u" on 1 and 2."""
    log = spark_log.connect(tmp_path / "log", durability="os")
    for broker in (1, 2):
        register_broker(log, broker, str(tmp_path / f"broker{broker}"))
    for name, replicas in (("t", (0, 1, 2)), ("u", (1, 2))):
        log.admin.create_topics([spark_log.NewTopic(name, replica_assignment={0: replicas})])
    (tmp_path / "orders").mkdir()
    yield log
    wait_for_copies(log.journal)
    log.close()


@pytest.fixture
def roots(log: spark_log.Log, tmp_path: Path) -> Iterator[ControlledRoots]:
    roots = ControlledRoots.of(log, tmp_path / "orders")
    yield roots
    for broker in (1, 2):
        roots.order(broker, "")


def ends(log: spark_log.Log, topic: str = "t") -> tuple[int, int]:
    """The high watermark and the end of the topic's partition."""
    state = log.journal.refresh()
    part = state.partitions[state.names[topic], 0]
    return part.readable_end, part.end


def isr(log: spark_log.Log, topic: str = "t") -> tuple[int, ...]:
    return log.admin.describe_topics([topic])[topic].partitions[0].isr


# Promise: replicas.md#wait-for-the-leader-only
@pytest.mark.parametrize("acks", [1, "0"])
def test_an_append_waits_for_the_leader_only(log: spark_log.Log, roots: ControlledRoots, acks: str | int) -> None:
    """Readers see the records when all in-sync replicas have them, which this process copies to later."""
    roots.order(1, "hang")
    assert log.append("t", ROWS, acks=acks) == {TopicPartition("t", 0): range(9)}
    assert isr(log) == (0, 1, 2), "an append that waits for a root takes it out of the ISR"
    assert ends(log) == (0, 9) and log.read("t").num_rows == 0
    described = log.admin.describe_topics(["t"])["t"].partitions[0]
    assert (described.high_watermark, described.end, described.rows) == (0, 9, 0)
    assert log.admin.list_offsets({TopicPartition("t", 0): LATEST}) == {TopicPartition("t", 0): 0}
    roots.order(1, "")
    wait_for_copies(log.journal)
    assert log.read("t").num_rows == 9 and isr(log) == (0, 1, 2)


# Promise: replicas.md#wait-for-the-leader-only
def test_an_append_with_acks_all_copies_what_is_pending_before_it(log: spark_log.Log) -> None:
    """It is acknowledged when readers see it."""
    commit_on_leader(log, "t", ROWS)
    commit_on_leader(log, "t", ROWS)
    assert ends(log) == (0, 18)
    assert log.append("t", ROWS) == {TopicPartition("t", 0): range(18, 27)}
    assert ends(log) == (27, 27) and isr(log) == (0, 1, 2)


# Promise: replicas.md#wait-for-the-leader-only
def test_records_with_acks_all_are_not_acknowledged_before_readers_see_them(log: spark_log.Log) -> None:
    """The error says that they are in the log."""
    pending = Committed(7, {}, repeated=True, pending=True)
    with pytest.raises(RequestTimedOut, match="readers do not see it yet") as late:
        await_visible(log.journal, pending, lambda: pending, 0)
    assert late.value.maybe_applied


# Promise: replicas.md#wait-for-the-leader-only
def test_a_partition_whose_earlier_records_are_on_a_root_that_is_away_delays_no_other(log: spark_log.Log) -> None:
    """Nothing is written behind them.  Other partitions are written, also those of the same replicas."""
    log.admin.create_topics([spark_log.NewTopic("v", replica_assignment={0: (1, 2)})])
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    with log.producer(delivery_timeout_ms=700, linger_ms=50) as producer:
        late, *others = [producer.send(topic, b"x") for topic in ("u", "v", "t")]
        assert [other.result(30).offset for other in others] == [0, 0] and not late.done()
        with pytest.raises(NotEnoughReplicas, match="earlier records of u-0"):
            late.result(30)
    assert ends(log, "u") == (0, 9) and ends(log, "v") == ends(log, "t") == (1, 1)


def test_offsets_of_pending_records_are_in_range(log: spark_log.Log) -> None:
    """As in Kafka: a reader that stands there waits, and is not reset."""
    commit_on_leader(log, "t", ROWS)
    tp = TopicPartition("t", 0)
    with log.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 6)
        assert consumer.poll(timeout_ms=0) == {} and consumer.position(tp) == 6 and consumer.lag() == {tp: 0}
        assert log.read("t", 0, 6, 9).num_rows == log.read("t", 0, 6).num_rows == 0
        for read in (lambda: consumer.poll(timeout_ms=0), lambda: log.read("t", 0, 10)):
            consumer.seek(tp, 10)
            with pytest.raises(OffsetOutOfRange, match="it has 0 to 9"):
                read()
        consumer.seek(tp, 6)
        Replicator(log).round()
        assert [one.offset for one in consumer.poll(timeout_ms=1000)[tp]] == [6, 7, 8]


# Promise: replicas.md#wait-for-the-leader-only
def test_a_producer_with_acks_0_does_not_wait(log: spark_log.Log) -> None:
    with log.producer(acks=0) as producer:
        assert producer.send("t", b"x").result(30).offset == -1
    wait_for_copies(log.journal)
    assert ends(log) == (1, 1)


def test_a_leader_whose_root_takes_nothing_is_passed_over(log: spark_log.Log, roots: ControlledRoots) -> None:
    """Nobody else checks the roots here: the writer puts to all replicas, and later another one leads."""
    log.admin.incremental_alter_configs({None: {"replica.lag.time.max.ms": "1"}})
    roots.order(1, "full")
    with log.producer(acks=1) as producer:
        assert producer.send("u", b"x").result(30).offset == 0
    assert log.append("u", ROWS, acks=1) == {TopicPartition("u", 0): range(1, 10)}
    wait_for_copies(log.journal)
    assert ends(log, "u") == (10, 10) and isr(log, "u") == (2,)


# Promise: replicas.md#wait-for-the-leader-only
def test_writes_that_happen_once_need_acks_all(log: spark_log.Log) -> None:
    """As in Kafka, an idempotent producer does if that is asked for; a transaction takes nothing else."""
    with pytest.raises(InvalidRequest, match="needs acks=all"):
        log.append("t", ROWS, "app", 1, acks=1)
    with pytest.raises(InvalidRequest, match="expected acks='all'"):
        log.producer(acks=1, enable_idempotence=True)


def test_a_topic_with_one_copy_has_nothing_pending(log: spark_log.Log) -> None:
    log.create_topic(spark_log.NewTopic("v"))
    log.append("v", ROWS, acks=1)
    assert ends(log, "v") == (9, 9)


# Promise: replicas.md#wait-for-the-leader-only
def test_records_that_are_lost_before_readers_see_them_hold_up_nobody(log: spark_log.Log, tmp_path: Path) -> None:
    """The disk of the leader is replaced: their offsets have no records, and the log says which."""
    log.append("u", ROWS)
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    register_broker(log, 1, str(tmp_path / "broker1"), replaces=True, lose_data=True)
    Replicator(log).round()
    log.append("u", ROWS)
    assert ends(log, "u") == (27, 27)
    assert log.read("u")["offset"].to_pylist() == [*range(9), *range(18, 27)]
    assert log.admin.describe_topics(["u"])["u"].partitions[0].lost == ((9, 18),)
    (found,) = [one for one in broker_findings(log.journal.state) if one.what == "records"]
    assert found.healthy and found.says.startswith("warning: 9 records were lost")
    assert verify(log, deep=True) == []


# Promise: tasks/erase.md#before
def test_an_erasure_waits_for_records_that_readers_do_not_see_yet(log: spark_log.Log) -> None:
    """Otherwise they would become visible after it, with the erased key."""
    log.append("t", [{"key": b"k", "value": b"1"}, {"key": b"other", "value": b"2"}])
    commit_on_leader(log, "t", [{"key": b"k", "value": b"3"}])
    assert log.admin.erase_records("t", ["k"], dry_run=True).records == 1
    with pytest.raises(RequestTimedOut, match="do not see all records of t-0 yet.*Nothing was erased"):
        await_pending(log.journal, "t", 0)
    copies = threading.Timer(0.2, Replicator(log).round)
    copies.start()
    report = log.admin.erase_records("t", ["k"])
    copies.join()
    assert report.records == 2 and report.before == {0: 3} and log.read("t")["key"].to_pylist() == [b"other"]


# Promise: replicas.md#wait-for-the-leader-only
def test_records_on_a_root_that_is_fenced_by_hand_are_copied_from_there(log: spark_log.Log) -> None:
    """It answers, so nothing is given up, whenever that would be."""
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    commit_on_leader(log, "t", ROWS)
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    assert Replicator(log).round().problems == ()
    assert ends(log, "t") == ends(log, "u") == (9, 9) and log.read("u").num_rows == log.read("t").num_rows == 9


# Promise: replicas.md#wait-for-the-leader-only
def test_a_fenced_root_that_hangs_holds_up_nothing(log: spark_log.Log, roots: ControlledRoots, tmp_path: Path) -> None:
    """Nor is anything given up while it is not known whether it answers."""
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    roots.order(1, "hang")
    replicator = Replicator(log)
    began = time.monotonic()
    report = replicator.round()
    assert time.monotonic() - began < 5 and "1 object on fenced brokers alone (1)" in report.problems[0]
    assert ends(log, "u") == (0, 9)
    roots.order(1, "")
    while ends(log, "u") != (9, 9):
        replicator.round()
    assert log.read("u").num_rows == 9


# Promise: replicas.md#wait-for-the-leader-only
def test_records_on_a_fenced_root_that_is_away_are_given_up_after_a_time(log: spark_log.Log, tmp_path: Path) -> None:
    """Before, they wait for its return."""
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    (tmp_path / "broker1").rename(tmp_path / "away")
    Replicator(log).round()
    assert ends(log, "u") == (0, 9)
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    replicator = Replicator(log)
    while ends(log, "u") != (9, 9):
        replicator.round()
    assert log.read("u").num_rows == 0


# Promise: replicas.md#when-a-disk-fails
def test_an_old_backup_of_a_fenced_root_is_not_the_last_word(log: spark_log.Log, tmp_path: Path) -> None:
    """It is mounted for a moment.  The disk that comes back in its place has the records."""
    shutil.copytree(tmp_path / "broker1", tmp_path / "backup")
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="its root is not usable", cause="check"))
    (tmp_path / "broker1").rename(tmp_path / "disk")
    (tmp_path / "backup").rename(tmp_path / "broker1")
    replicator = Replicator(log)
    replicator.round()
    assert ends(log, "u") == (0, 9)
    return_broker(log.journal, 1)
    replicator.round()
    assert ends(log, "u") == (0, 9), "the copy is missing now"
    log.journal.propose(FenceBroker(broker=1, reason="its root is not usable", cause="check"))
    shutil.rmtree(tmp_path / "broker1")
    (tmp_path / "disk").rename(tmp_path / "broker1")
    return_broker(log.journal, 1)
    while ends(log, "u") != (9, 9):
        replicator.round()
    assert log.read("u").num_rows == 9


# Promise: replicas.md#when-a-disk-fails
def test_records_whose_file_is_missing_are_given_up_after_a_time(log: spark_log.Log, tmp_path: Path) -> None:
    """So that readers do not wait for ever."""
    commit_on_leader(log, "u", ROWS)
    (name,) = log.journal.refresh().pending[0].objects
    log.journal.propose(Report(record=MissingRecord(copies=(Copy(name, 1, epoch_of(log.journal.state, 1) or 0),))))
    log.journal.roots[1].delete([name])
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    replicator = Replicator(log)
    while ends(log, "u") != (9, 9):
        replicator.round()
    assert log.read("u").num_rows == 0


# Promise: replicas.md#when-a-disk-fails
def test_a_replicator_that_was_stopped_looks_once_more(log: spark_log.Log, tmp_path: Path) -> None:
    """The time was over while it was stopped, and the right disk is there again, which nobody has noticed yet."""
    commit_on_leader(log, "u", ROWS)
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "600"}})
    (name,) = log.journal.refresh().pending[0].objects
    (file,) = (tmp_path / "broker1").rglob("*.seg")
    file.rename(tmp_path / "away")
    log.journal.propose(Report(record=MissingRecord(copies=(Copy(name, 1, epoch_of(log.journal.state, 1) or 0),))))
    replicator = Replicator(log)
    replicator.round()
    time.sleep(0.7)
    replicator.round()
    assert ends(log, "u") == (0, 9)
    log.journal.propose(FenceBroker(broker=1, reason="its root is not usable", cause="check"))
    (tmp_path / "away").rename(file)
    return_broker(log.journal, 1)
    while ends(log, "u") != (9, 9):
        replicator.round()
    assert log.read("u").num_rows == 9


def test_a_root_that_answers_after_failed_attempts_is_copied_from(log: spark_log.Log, tmp_path: Path) -> None:
    """One attempt, or two, say little about a root, even if the time is over."""
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    (tmp_path / "broker1").rename(tmp_path / "away")
    replicator = Replicator(log)
    for _ in range(ATTEMPTS - 1):
        replicator.round()
        time.sleep(0.002)
    assert ends(log, "u") == (0, 9)
    (tmp_path / "away").rename(tmp_path / "broker1")
    while ends(log, "u") != (9, 9):
        replicator.round()
    assert log.read("u").num_rows == 9


def test_the_last_attempt_begins_when_the_time_is_over(
    log: spark_log.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_copies, "AGAIN_MS", 0)
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    (tmp_path / "broker1").rename(tmp_path / "away")
    fenced, (commit,) = FencedCopies(log.journal, Pace(log.journal.context.clock)), log.journal.refresh().pending
    assert not fenced.have_failed(log.journal.state, commit, 0)
    while not fenced.have_failed(log.journal.state, commit, 0):
        fenced.round(log.journal.state)
    assert not fenced.have_failed(log.journal.state, commit, log.journal.context.clock.monotonic_ms() + 1)


def test_records_on_fenced_roots_that_answer_are_not_given_up_when_their_partition_moves(
    log: spark_log.Log, tmp_path: Path
) -> None:
    """No active broker is to have a copy of them, so nobody copies them: a fenced one has to come back."""
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    commit_on_leader(log, "u", ROWS)
    log.admin.alter_partition_reassignments({TopicPartition("u", 0): (0,)})
    for broker in (1, 2):
        log.journal.propose(FenceBroker(broker=broker, reason="by hand"))
    replicator = Replicator(log)
    for _ in range(ATTEMPTS + 1):
        replicator.round()
        time.sleep(0.002)
    assert ends(log, "u") == (0, 9)
    (tmp_path / "broker1").rename(tmp_path / "away")
    for _ in range(ATTEMPTS - 1):
        replicator.round()
    assert ends(log, "u") == (0, 9), "it may be away for a moment"
    replicator.round()
    assert ends(log, "u") == (9, 9) and log.read("u").num_rows == 0


# Promise: replicas.md#wait-for-the-leader-only
def test_nothing_is_given_up_while_it_is_copied(
    log: spark_log.Log, roots: ControlledRoots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root that was away is back when the time is over: an attempt of before says nothing."""
    monkeypatch.setattr(fenced_copies, "AGAIN_MS", 0)
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    (tmp_path / "broker1").rename(tmp_path / "away")
    replicator = Replicator(log)
    replicator.round()
    (tmp_path / "away").rename(tmp_path / "broker1")
    roots.order(1, "hang")
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    replicator.round()
    assert ends(log, "u") == (0, 9)
    roots.order(1, "")
    while ends(log, "u") != (9, 9):
        replicator.round()
    assert log.read("u").num_rows == 9


# Promise: replicas.md#when-a-disk-fails
@pytest.mark.parametrize("order", ["keyless", "denied", "denied data/"])
def test_a_process_without_access_gives_nothing_up(log: spark_log.Log, roots: ControlledRoots, order: str) -> None:
    """Another one, which has access, copies it."""
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    roots.order(1, order)
    replicator = Replicator(log)
    for _ in range(ATTEMPTS + 1):
        replicator.round()
        time.sleep(0.002)
    assert ends(log, "u") == (0, 9)
    roots.order(1, "")
    replicate_once(log)
    assert log.read("u").num_rows == 9


# Promise: replicas.md#what-keeps-replicas-in-sync
def test_a_process_for_one_broker_copies_from_fenced_ones_to_it_only(log: spark_log.Log, tmp_path: Path) -> None:
    """It gives nothing up for a root that it does not see: another process may copy from there."""
    register_broker(log, 3, str(tmp_path / "broker3"))
    log.admin.create_topics([spark_log.NewTopic("v", replica_assignment={0: (1, 2, 3)})])
    commit_on_leader(log, "v", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    replicate_once(log, brokers=[2])
    assert [copies.brokers for copies in log.journal.refresh().copies.values()] == [(1, 2)]
    (tmp_path / "broker1").rename(tmp_path / "away")
    log.journal.propose(FenceBroker(broker=2, reason="by hand"))
    (tmp_path / "broker2").rename(tmp_path / "away2")
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    replicator = Replicator(log, brokers=[3])
    for _ in range(ATTEMPTS + 1):
        replicator.round()
        time.sleep(0.002)
    assert ends(log, "v") == (0, 9)
    replicator = Replicator(log)
    while ends(log, "v") != (9, 9):
        replicator.round()


# Promise: replicas.md#wait-for-the-leader-only
def test_a_single_run_waits_for_copies_from_fenced_roots(
    log: spark_log.Log, roots: ControlledRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end with its process."""
    monkeypatch.setattr(fenced_copies, "WAIT_S", 0.0)
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    roots.order(2, "slow 0.1")
    assert replicate_once(log).problems == () and ends(log, "u") == (9, 9)


def test_copies_from_fenced_roots_keep_to_the_limit(log: spark_log.Log) -> None:
    """The one that a process was given."""
    commit_on_leader(log, "u", [{"value": random.Random(1).randbytes(300_000)}])
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    began = time.monotonic()
    replicate_once(log, bytes_per_s=300_000)
    assert ends(log, "u") == (1, 1) and time.monotonic() - began >= 0.7


# Promise: replicas.md#wait-for-the-leader-only
def test_a_root_whose_description_is_in_a_cache_keeps_one_thread(
    log: spark_log.Log, roots: ControlledRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk hangs: each copy that is begun would keep others, for as long as the disk does."""
    monkeypatch.setattr(fenced_copies, "AGAIN_MS", 0)
    monkeypatch.setattr(fenced_copies, "ANSWER_S", 0.05)
    commit_on_leader(log, "u", ROWS)
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    before = set(threading.enumerate())
    roots.order(1, "hang data/")
    replicator = Replicator(log)
    for _ in range(3):
        replicator.round()
    begun = [one.name for one in set(threading.enumerate()) - before if one.name.startswith("pylog-")]
    assert "pylog-copy" not in begun and begun.count("pylog-ask-1") == 1
    assert ends(log, "u") == (0, 9)
    roots.order(1, "")
    while ends(log, "u") != (9, 9):
        replicator.round()


def test_a_hung_root_says_nothing_about_the_one_in_its_place(
    log: spark_log.Log, roots: ControlledRoots, tmp_path: Path
) -> None:
    answers = RootAnswers(log.journal)
    roots.order(1, "hang")
    assert answers.among([1], 0.1) == set()
    assert answers.among([0, 2], 30.0) == {0, 2}
    register_broker(log, 1, str(tmp_path / "other"), replaces=True)
    roots.folder = tmp_path / "no orders"
    assert answers.among([0, 1, 2], 30.0) == {0, 1, 2}
    roots.folder = tmp_path / "orders"


def test_clients_of_a_coordinator_record_their_copies(log: spark_log.Log, services: Services, tmp_path: Path) -> None:
    """They hold some topics only, and see when a commit becomes visible."""
    with spark_log.connect(services.url(tmp_path / "log")) as client:
        assert client.append("t", ROWS, acks=1) == {TopicPartition("t", 0): range(9)}
        wait_for_copies(client.journal)
        assert client.read("t").num_rows == 9
        assert client.append("t", ROWS) == {TopicPartition("t", 0): range(9, 18)}
        assert client.read("t").num_rows == 18
    assert isr(log) == (0, 1, 2)


def test_a_log_that_does_not_answer_makes_no_pending_commit_unknown(log: spark_log.Log) -> None:
    """Whether readers see it is asked again.  An error that ends the wait says that the commit is in the log."""
    pending = Committed(1, {}, repeated=False, pending=True)
    answers: list[SparkLogError | Committed] = [
        StorageUnavailable("the root is away"),
        CoordinatorNotAvailable("the coordinator restarts"),
        pending._replace(repeated=True, pending=False),
    ]

    def again() -> Committed:
        answer = answers.pop(0)
        if isinstance(answer, SparkLogError):
            raise answer
        return answer

    until_ms = log.journal.context.clock.monotonic_ms() + 60_000
    assert await_visible(log.journal, pending, again, until_ms) == pending._replace(pending=False)
    answers.append(NotEnoughReplicas("too few", lacking={}))
    with pytest.raises(NotEnoughReplicas) as refused:
        await_visible(log.journal, pending, again, until_ms)
    assert refused.value.maybe_applied


def test_a_copy_that_fails_again_and_again_is_warned_of_once(
    log: spark_log.Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And no copy is made to a broker that was fenced meanwhile."""
    for _ in range(2):
        commit_on_leader(log, "u", ROWS)
    lacking = lacking_objects(log.journal.state, log.journal.state.pending)
    (tmp_path / "broker2").rename(tmp_path / "away")
    for _ in range(2):
        assert copied(log.journal, lacking, log.journal.context.clock.monotonic_ms() + 10_000) == ()
    assert len(logged(caplog, "was not copied to broker 2")) == 1
    log.journal.propose(FenceBroker(broker=2, reason="by hand"))
    assert list(still_lacking(log.journal.newest, [WaitingCopy(one, 0) for one in lacking])) == []


def test_a_writer_blames_no_replica_for_a_leader_whose_root_is_away(log: spark_log.Log, tmp_path: Path) -> None:
    """It gives up, the others stay in sync, and the replicator copies when the root is back."""
    log.admin.incremental_alter_configs({None: {"replica.lag.time.max.ms": "1"}})
    commit_on_leader(log, "u", ROWS)
    (tmp_path / "broker1").rename(tmp_path / "away")
    copy_in_background(log.journal, lacking_objects(log.journal.state, log.journal.state.pending))
    wait_for_copies(log.journal)
    assert isr(log, "u") == (1, 2) and ends(log, "u") == (0, 9)
    (tmp_path / "away").rename(tmp_path / "broker1")
    Replicator(log).round()
    assert isr(log, "u") == (1, 2) and ends(log, "u") == (9, 9)
