"""The replicator brings each replica what it lacks, from good copies only, and lets it join its ISR."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.harness.broker_roots import ControlledRoots
from simulation.harness.clocks import ManualClock, SkewedClock
from spark_log import Log
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import Report
from spark_log.metadata.records import Copy, HeldRecord, MissingRecord
from spark_log.metadata.replicas.replica_commands import FenceBroker
from spark_log.metadata.replicas.replicas import epoch_of
from spark_log.model import ACKS_LEADER
from spark_log.replication import copy_to_broker
from spark_log.replication.checked_copies import BadCopy, check_copy
from spark_log.replication.copy_threads import LATE_MS, CopyThreads
from spark_log.replication.copy_throttle import pace_of
from spark_log.replication.copy_to_broker import SMALL_PARALLEL, ObjectCopying
from spark_log.replication.hung_threads import HUNG_MAX
from spark_log.replication.missing_copies import copies_wanted
from spark_log.replication.object_search import ObjectSearch
from spark_log.replication.replicator import Replicator
from spark_log.runtime.clock import SystemClock
from spark_log.runtime.threads import SystemThreads, Thread
from spark_log.store.local import LocalStore
from spark_log.store.open import open_store
from tests.logged import logged
from tests.replication.replicated_logs import (
    add_broker,
    brokers_of,
    create_topic,
    folder_of,
    group_of,
    put,
    replicated_log,
)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return replicated_log(tmp_path, replica_lag_time_max_ms="1")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def pad(file: Path) -> None:
    """A file whose end was never written, as after a power cut."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def flip(at: float) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[int((len(data) - 1) * at)] ^= 1
        file.write_bytes(data)

    return damage


# Promise: cli.md#pylog-replicate, replicas.md#what-keeps-replicas-in-sync
def test_a_replica_gets_what_it_lacks_and_is_in_sync_again(log: Log, tmp_path: Path) -> None:
    names = [put(log, [0, 1, 2]), put(log, [0, 1]), put(log, [0, 1])]
    assert group_of(log.journal.state).isr == (0, 1)
    replicator = Replicator(log)
    report = replicator.round()
    assert (report.objects, report.problems, report.joined) == (2, (), ((1, 2),))
    assert report.lag[2].objects == 0
    state = log.journal.refresh()
    assert [brokers_of(state, name) for name in names] == [(0, 1, 2)] * 3
    assert group_of(state).isr == (0, 1, 2)
    for name in names:
        assert (folder_of(log, tmp_path, 2) / name).read_bytes() == (tmp_path / "log" / name).read_bytes()
    assert Replicator(log).round().objects == 0


def test_the_logs_own_root_gets_copies_too(log: Log, tmp_path: Path) -> None:
    name = put(log, [1])
    Replicator(log).round()
    assert (tmp_path / "log" / name).exists()
    assert group_of(log.journal.refresh()).isr == (0, 1, 2)


# Promise: replicas.md#change-brokers
def test_an_asynchronous_broker_gets_copies_and_never_joins(tmp_path: Path) -> None:
    log = replicated_log(tmp_path, 1, replica_lag_time_max_ms="1")
    add_broker(log, 7, str(tmp_path / "far"), is_async=True)
    create_topic(log, "far", (0, 7))
    name = put(log, [0], topic="far")
    report = Replicator(log).round()
    assert (report.objects, report.joined) == (1, ())
    state = log.journal.refresh()
    assert brokers_of(state, name) == (0, 7)
    assert group_of(state, "far").isr == (0,)


def test_only_replicas_with_a_copy_are_sources(log: Log) -> None:
    """Not those to which it is copied at this moment: their copies would be found missing, and be made twice."""
    put(log, [0])
    state = log.journal.refresh()
    for broker in (1, 2):
        assert [[source for source, _ in one.sources] for one in copies_wanted(state, broker)] == [[0]]


def test_a_fenced_broker_gets_nothing(log: Log) -> None:
    put(log, [0, 1])
    log.journal.propose(FenceBroker(broker=2, reason="by hand"))
    report = Replicator(log).round()
    assert (report.objects, report.joined, report.problems) == (0, (), ())
    assert report.lag[2].objects == 1


# Promise: cli.md#pylog-replicate
@pytest.mark.parametrize("damage", [Path.unlink, cut, pad, flip(0), flip(0.3), flip(0.6), flip(0.9), flip(1)])
def test_a_bad_copy_is_never_copied(log: Log, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """It is recorded as missing, the next copy is taken, and the damaged one replaced."""
    name = put(log, [0, 1])
    good = (tmp_path / "log" / name).read_bytes()
    damage(tmp_path / "log" / name)
    replicator = Replicator(log)
    report = replicator.round()
    assert report.removed == (f"broker 0: {name}",)
    replicator.round()
    state = log.journal.refresh()
    assert brokers_of(state, name) == (0, 1, 2)
    assert all((folder_of(log, tmp_path, broker) / name).read_bytes() == good for broker in (0, 1, 2))


def test_an_object_without_a_good_copy_is_named_and_found_again(log: Log, tmp_path: Path) -> None:
    name = put(log, [0, 1])
    files = [tmp_path / "log" / name, folder_of(log, tmp_path, 1) / name]
    good = files[0].read_bytes()
    for file in files:
        flip(0.3)(file)
    report = Replicator(log).round()
    assert report.unrecoverable == (name,)
    assert brokers_of(log.journal.refresh(), name) == ()
    files[1].write_bytes(good)
    replicator = Replicator(log)
    assert (replicator.round().found, replicator.round().unrecoverable) == (1, ())
    assert brokers_of(log.journal.refresh(), name) == (0, 1, 2)


def test_each_object_without_a_copy_is_searched_for(log: Log, tmp_path: Path) -> None:
    """Not always the same ones, if there are more than a search looks for."""
    names = [put(log, [1]), put(log, [1])]
    folder, epoch = folder_of(log, tmp_path, 1), epoch_of(log.journal.state, 1) or 0
    (folder / names[0]).unlink()
    log.journal.propose(Report(record=MissingRecord(copies=tuple(Copy(name, 1, epoch) for name in names))))
    search = ObjectSearch(log.journal, names_max=1)
    assert [search.round(log.journal.refresh()) for _ in range(2)] == [0, 1]
    assert [brokers_of(log.journal.refresh(), name) for name in names] == [(), (1,)]


def test_a_swapped_source_is_not_recorded_as_damaged(log: Log, tmp_path: Path) -> None:
    """Its disk is gone, and comes back: that is the prober's matter."""
    name = put(log, [1, 2])
    (tmp_path / "broker-1").rename(tmp_path / "away")
    report = Replicator(log).round()
    assert (report.objects, report.removed) == (1, ())
    assert brokers_of(log.journal.refresh(), name) == (0, 1, 2)


def test_no_copy_is_made_on_a_root_that_is_not_the_brokers(log: Log, tmp_path: Path) -> None:
    """An unmounted disk leaves an empty folder."""
    put(log, [0, 1])
    (tmp_path / "broker-2").rename(tmp_path / "away")
    (tmp_path / "broker-2").mkdir()
    report = Replicator(log).round()
    assert report.objects == 0
    assert "is its disk mounted?" in report.problems[0]
    assert not list((tmp_path / "broker-2").iterdir())


# Promise: replicas.md#what-keeps-replicas-in-sync
def test_a_replica_waits_after_it_has_missed_a_write(tmp_path: Path) -> None:
    log = replicated_log(tmp_path, replica_lag_time_max_ms="3600000")
    put(log, [0, 1])
    report = Replicator(log).round()
    assert (report.objects, report.joined) == (1, ())
    assert group_of(log.journal.refresh()).isr == (0, 1)


def with_clock(tmp_path: Path, skew_ms: int) -> Replicator:
    """In a process whose clock is wrong by less than `log.clock.skew.max.ms`."""
    clock = SkewedClock(SystemClock(), skew_ms)
    return Replicator(Log(Journal.open(open_store(str(tmp_path / "log")), create=False, clock=clock)))


def test_a_clock_that_is_behind_keeps_no_replica_out(tmp_path: Path) -> None:
    """Writers and the replicator are on different machines."""
    log = replicated_log(tmp_path, replica_lag_time_max_ms="300")
    put(log, [0, 1])
    replicator, until = with_clock(tmp_path, -500_000), time.monotonic() + 30
    while group_of(log.journal.refresh()).isr != (0, 1, 2):
        assert time.monotonic() < until, "it would be out for 8 minutes"
        replicator.round()
        time.sleep(0.1)


def test_a_clock_that_is_ahead_lets_no_replica_join_early(tmp_path: Path) -> None:
    log = replicated_log(tmp_path, replica_lag_time_max_ms="400000")
    replicator = with_clock(tmp_path, 500_000)
    replicator.round()
    put(log, [0, 1])
    report = replicator.round()
    assert (report.objects, report.joined) == (1, ())


def test_a_throttle_limits_the_bytes(log: Log) -> None:
    names = [put(log, [0, 1], width=40_000) for _ in range(3)]
    clock = log.journal.context.clock
    began = clock.monotonic_ms()
    report = Replicator(log, pace=pace_of(log, 1_000_000)).round()
    taken_s = (clock.monotonic_ms() - began) / 1000
    assert report.objects == len(names)
    assert report.bytes / 1_000_000 - 0.5 < taken_s < report.bytes / 1_000_000 + 2


# Promise: replicas.md#what-keeps-replicas-in-sync
def test_only_the_named_brokers_get_copies(log: Log) -> None:
    name = put(log, [0])
    Replicator(log, brokers=[2]).round()
    assert brokers_of(log.journal.refresh(), name) == (0, 2)


# Promise: cli.md#pylog-replicate
def test_two_replicators_at_once(log: Log, tmp_path: Path) -> None:
    """Both copy; what the second one records is void."""
    from threading import Thread

    names = [put(log, [0, 1]) for _ in range(20)]
    from spark_log import connect

    others = [Replicator(connect(str(tmp_path / "log"))) for _ in range(2)]
    threads = [Thread(target=one.round) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = log.journal.refresh()
    assert all(brokers_of(state, name) == (0, 1, 2) for name in names)
    assert group_of(state).isr == (0, 1, 2)


def test_a_copy_of_a_replaced_broker_does_not_count(log: Log, tmp_path: Path) -> None:
    """It was put under an older epoch, on another disk."""
    name = put(log, [0, 1])
    state = log.journal.refresh()
    old = state.brokers[2].epoch
    (tmp_path / "broker-2").rename(tmp_path / "away")
    add_broker(log, 2, str(tmp_path / "broker-2"), replaces=True)

    assert not log.journal.propose(Report(record=HeldRecord(copies=(Copy(name, 2, old),))))
    assert Replicator(log).round().objects == 1


def test_every_byte_of_an_object_is_checked(log: Log) -> None:
    """A flipped bit anywhere makes a copy bad."""
    name = put(log, [0], rows=3, width=10)
    log.journal.propose(Report(record=MissingRecord(copies=(Copy("data/none", 0, 0),))))
    store, row = log.journal.roots[0], log.journal.refresh().objects[name]
    good = store.get(name)
    check_copy(store, name, row)
    for at in range(len(good)):
        store.put(name, [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :]])
        with pytest.raises(BadCopy):
            check_copy(store, name, row)


# Promise: replicas.md#wait-for-the-leader-only
def test_a_replica_that_does_not_get_pending_objects_leaves_the_isr(log: Log, tmp_path: Path) -> None:
    """Its root takes nothing for `replica.lag.time.max.ms`: readers would wait for it for ever."""
    name = put(log, [0], acks=ACKS_LEADER)
    key = (log.journal.refresh().names["t"], 0)
    assert group_of(log.journal.state).isr == (0, 1, 2) and log.journal.state.partitions[key].readable_end == 0
    folder_of(log, tmp_path, 2).mkdir()
    (folder_of(log, tmp_path, 2) / "data").write_text("this is not a folder")
    replicator = Replicator(log)
    replicator.round()
    time.sleep(0.002)
    replicator.round()
    state = log.journal.refresh()
    assert (group_of(state).isr, brokers_of(state, name)) == ((0, 1), (0, 1))
    assert state.partitions[key].readable_end == state.partitions[key].end > 0


def test_no_replica_leaves_the_isr_because_the_root_with_the_object_is_away(log: Log, tmp_path: Path) -> None:
    """The record would be visible on that root alone, and when its broker is fenced, nobody could lead."""
    put(log, [1], acks=ACKS_LEADER)
    (tmp_path / "broker-1").rename(tmp_path / "away")
    replicator = Replicator(log)
    for _ in range(3):
        replicator.round()
        time.sleep(0.002)
    state = log.journal.refresh()
    assert group_of(state).isr == (0, 1, 2) and state.pending
    (tmp_path / "away").rename(tmp_path / "broker-1")
    replicator.round()
    assert group_of(log.journal.refresh()).isr == (0, 1, 2) and not log.journal.state.pending


def test_a_root_that_is_slow_for_days_is_named_ever_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A round takes a second here, and each report has the problem.  The log has it after 0, 1, 2, 4, … 32 seconds."""
    clock = ManualClock(round(time.time() * 1000))  # the storage compares it with its own
    log = Log(Journal.open(LocalStore(f"{tmp_path}/log", "os"), create=True, clock=clock))
    add_broker(log, 1, str(tmp_path / "broker-1"))
    create_topic(log, "t", (0, 1))
    put(log, [0])
    (tmp_path / "orders").mkdir()
    roots = ControlledRoots.of(log, tmp_path / "orders")
    roots.order(1, "hang")
    copying, read_ms = CopyThreads(log.journal, pace_of(log)), clock.monotonic_ms() - 5000
    for number in range(40):
        done = copying.copy(log.journal.state, read_ms + number, [1], -LATE_MS)
        assert "copying to broker 1 is late" in done[1].problems[0]
        clock.sleep_ms(1000)
    assert len(logged(caplog, "copying to broker 1 is late")) == 7
    roots.order(1, "")
    copied = copying.copy(log.journal.state, clock.monotonic_ms(), [1], 60_000)[1]
    assert copied.objects == 1
    assert copied.planned is not None and copied.planned[1] == read_ms, "not when the thread began"


def test_a_pass_that_still_copies_when_its_time_is_over_is_no_problem(tmp_path: Path) -> None:
    """Until it has copied nothing for as long as a round waits."""
    clock = ManualClock(round(time.time() * 1000))
    log = Log(Journal.open(LocalStore(f"{tmp_path}/log", "os"), create=True, clock=clock))
    add_broker(log, 1, str(tmp_path / "broker-1"))
    create_topic(log, "t", (0, 1))
    put(log, [0])
    second = put(log, [0])
    (tmp_path / "orders").mkdir()
    roots = ControlledRoots.of(log, tmp_path / "orders")
    roots.order(1, "hang")
    replicator, limit_ms = Replicator(log), 100 - LATE_MS
    report = replicator.round(limit_ms)
    assert report.busy and not report.problems, "the next round waits for it"
    clock.sleep_ms(100)
    report = replicator.round(limit_ms)
    assert not report.busy and "does not answer" in report.problems[0]
    roots.order(1, f"hang {second}")
    while replicator.round(limit_ms).problems:
        pass
    clock.sleep_ms(100)
    assert "does not answer" in replicator.round(limit_ms).problems[0]
    roots.order(1, "")
    while not (report := replicator.round(limit_ms)).objects:
        pass
    assert report.objects == 2 and not report.problems


# Promise: replicas.md#what-keeps-replicas-in-sync
def test_a_replica_does_not_join_because_an_old_backlog_was_copied_at_last(tmp_path: Path) -> None:
    """A slow root takes longer for it than a round: what it has missed meanwhile counts."""
    clock = ManualClock(round(time.time() * 1000))
    log = Log(Journal.open(LocalStore(f"{tmp_path}/log", "os"), create=True, clock=clock))
    log.admin.incremental_alter_configs({None: {"replica.lag.time.max.ms": "1000"}})
    add_broker(log, 1, str(tmp_path / "broker-1"))
    create_topic(log, "t", (0, 1))
    put(log, [0])
    (tmp_path / "orders").mkdir()
    roots = ControlledRoots.of(log, tmp_path / "orders")
    roots.order(1, "hang")
    replicator = Replicator(log)
    replicator.round(-LATE_MS)
    clock.sleep_ms(5000)
    put(log, [0])
    roots.order(1, "")
    while not (report := replicator.round(-LATE_MS)).objects:
        time.sleep(0.01)
    assert (report.objects, report.joined) == (1, ())
    assert replicator.round(60_000).objects == 1
    assert group_of(log.journal.refresh()).isr == (0, 1)


# Promise: replicas.md#when-a-disk-fails
def test_a_root_that_hangs_with_each_object_keeps_few_threads(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it does: each round would leave some more.  Its objects are copied when it is mounted again."""
    monkeypatch.setattr(copy_to_broker, "STALLED_S", 0.05)
    names = [put(log, [1]) for _ in range(4)]
    roots = ControlledRoots.of(log, tmp_path / "orders")
    roots.folder.mkdir()
    roots.order(1, "hang data/")
    rounds = 0
    while (report := Replicator(log).round()) and not any("its root hangs" in problem for problem in report.problems):
        rounds += 1
    assert rounds <= HUNG_MAX
    left = [one for one in threading.enumerate() if one.name == "pylog-copy"]
    assert Replicator(log).round().problems and Replicator(log).round().problems
    assert len([one for one in threading.enumerate() if one.name == "pylog-copy"]) <= len(left)
    roots.mount_again(1)  # the threads hang with the former mount
    while brokers_of(log.journal.refresh(), names[0]) != (0, 1, 2):
        Replicator(log).round()
    (roots.folder / "1").unlink()


def test_small_objects_share_threads(log: Log) -> None:
    """To start a thread takes as long as to copy one."""
    names = [put(log, [0]) for _ in range(64)]
    threads = CountedThreads()
    copying = ObjectCopying(log.journal.roots, 1, pace_of(log), threads)
    found = copying.run(list(copies_wanted(log.journal.refresh(), 1)))
    assert sorted(name for name, _ in found.done) == sorted(names) and not found.problems
    assert SMALL_PARALLEL <= threads.started <= len(names) / 2


def test_a_bad_small_object_leaves_the_others_of_its_thread(log: Log, tmp_path: Path) -> None:
    names = [put(log, [0]) for _ in range(40)]
    bad = folder_of(log, tmp_path, 0) / names[20]
    bad.write_bytes(bad.read_bytes()[:-1] + b"x")
    copying = ObjectCopying(log.journal.roots, 1, pace_of(log))
    found = copying.run(list(copies_wanted(log.journal.refresh(), 1)))
    assert sorted(name for name, _ in found.done) == sorted({*names} - {names[20]})
    assert [copy.object for copy in found.bad] == [names[20]]


def test_small_objects_behind_one_that_hangs_come_from_another_root(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_to_broker, "STALLED_S", 0.2)
    names = [put(log, [1, 2]) for _ in range(40)]
    roots = ControlledRoots.of(log, tmp_path / "orders")
    roots.folder.mkdir()
    roots.order(1, f"hang {names[20]}")
    copying = ObjectCopying(log.journal.roots, 0, pace_of(log))
    found = copying.run(list(copies_wanted(log.journal.refresh(), 0)))
    roots.order(1, "")
    assert sorted(name for name, _ in found.done) == sorted(names)


class CountedThreads(SystemThreads):
    """Real threads, which are counted."""

    def __init__(self) -> None:
        self.started = 0

    def start(self, work: Callable[[], None], name: str) -> Thread:
        self.started += 1
        return super().start(work, name)
