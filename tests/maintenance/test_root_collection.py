"""Garbage collection on the roots of brokers, and what `pylog maintain` does for brokers."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from spark_log import Log, connect
from spark_log.client.admin.brokers import add_broker as add_root
from spark_log.client.admin.brokers import remove_broker, replace_broker, return_broker
from spark_log.errors import InvalidRequest
from spark_log.journal.maintenance import fence_and_expire
from spark_log.maintenance.maintain import Maintainer, collect_garbage, maintain_round
from spark_log.maintenance.maintain_report import MaintainReport
from spark_log.maintenance.root_collection import RootCollector
from spark_log.metadata.replicas.replica_commands import FenceBroker
from spark_log.metadata.replicas.replica_state import FenceCause
from spark_log.replication.broker_prober import Prober, ProbeReport
from spark_log.store.object_names import data_key
from tests.maintenance.logs import maintenance
from tests.replication.replicated_logs import (
    add_broker,
    create_topic,
    folder_of,
    group_of,
    move_away,
    put,
    replicated_log,
)
from tests.restored import set_back_and_written

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")


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


def test_the_clock_of_a_file_server_may_be_years_behind(log: Log, tmp_path: Path) -> None:
    """Marks of live probers stay: one that is gone would look like an older disk."""
    prober, then = Prober(log), 1_000_000_000
    prober.round(5_000)
    meta, data = (folder_of(log, tmp_path, 2) / name for name in ("meta", "data"))
    data.mkdir(exist_ok=True)
    (live,), dead, writing = meta.glob("probe-*"), meta / "probe-dead-1", data / ".tmp-writing"
    for file, age_s in ((live, 0), (dead, 5_000), (writing, 1)):
        file.write_bytes(file.read_bytes() if file is live else b"x")
        os.utime(file, (then - age_s, then - age_s))
    assert RootCollector(log.journal).round(log.journal.refresh()).unfinished == 1
    assert (live.exists(), dead.exists(), writing.exists()) == (True, False, True)
    assert prober.round(5_000) == ProbeReport()


def test_unfinished_files_of_dead_writers_are_deleted(log: Log, tmp_path: Path) -> None:

    data = folder_of(log, tmp_path, 1) / "data" / "0000000000000001"
    data.mkdir(parents=True)
    old, young = data / ".tmp-old", data / ".tmp-young"
    for file in (old, young):
        file.write_bytes(b"x")
    os.utime(old, (1, 1))
    assert maintain_round(log).unfinished == 1
    assert (old.exists(), young.exists()) == (False, True)


# Promise: copies.md#copy-a-log
def test_a_copy_of_the_log_deletes_nothing_on_the_roots_of_the_original(log: Log, tmp_path: Path) -> None:
    """It names the same brokers, and knows nothing of what the original has written since."""
    create_topic(log, "u", [1, 2])
    put(log, [1, 2], topic="u")
    maintain_round(log)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    put(log, [1, 2], topic="u")
    with connect(tmp_path / "copy", durability="os") as copy:
        copy.admin.delete_topics(["u"])
        for _ in range(5):
            _later(copy)
        reason = copy.journal.refresh().brokers[1].reason
    assert f"belongs to the log at file://{tmp_path}/log" in reason
    assert f"delete file://{tmp_path}/broker-1/meta/log.json" in reason
    assert log.read("u").num_rows == 20


# Promise: copies.md#copy-a-log
def test_a_copy_of_the_log_writes_nothing_on_the_roots_of_the_original(log: Log, tmp_path: Path) -> None:
    """Its brokers leave the ISR of the copy, and are fenced there with the reason."""
    put(log, [0, 1, 2])
    maintain_round(log)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    before = {broker: objects_on(log, tmp_path, broker) for broker in (1, 2)}
    with connect(tmp_path / "copy", durability="os") as copy:
        copy.append("t", [{"value": "of the copy"}])
        assert group_of(copy.journal.refresh()).isr == (0,)
        (first, _) = Prober(copy).until_sure().fenced
        assert f"belongs to the log at file://{tmp_path}/log" in first
        assert copy.read("t").num_rows == 11
    assert {broker: objects_on(log, tmp_path, broker) for broker in (1, 2)} == before
    assert group_of(log.journal.refresh()).isr == (0, 1, 2)


def test_a_copy_of_the_log_that_removes_a_broker_leaves_its_root_alone(log: Log, tmp_path: Path) -> None:
    add_root(log.journal, 3, str(tmp_path / "broker-3"))
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with connect(tmp_path / "copy", durability="os") as copy:
        remove_broker(copy.journal, 3)
    log.journal.roots.check(3, again=True)
    remove_broker(log.journal, 3)
    assert not list((tmp_path / "broker-3").rglob("*.json"))


def test_a_log_that_was_moved_goes_on_collecting(log: Log, tmp_path: Path) -> None:
    put(log, [0, 1, 2])
    maintain_round(log)
    (tmp_path / "log").rename(tmp_path / "moved")
    with connect(tmp_path / "moved", durability="os") as moved:
        drop(moved)
        assert sum(_later(moved).collected for _ in range(3)) == 3


def _later(log: Log) -> MaintainReport:
    """The report of a round, after a commit and a short time."""
    log.admin.incremental_alter_configs({None: {"replica.lag.time.max.ms": str(time.monotonic_ns() % 1000 + 1)}})
    time.sleep(0.005)
    return maintain_round(log)


# Promise: replicas.md#when-a-disk-fails
def test_a_full_root_that_is_fenced_is_emptied_of_garbage(log: Log, tmp_path: Path) -> None:
    """Otherwise it would stay full; but nothing is deleted on one that was fenced by hand."""
    put(log, [0, 1, 2])
    fence(log, 2, "its root has failed all checks for 9 s: no space left on device", "check")
    fence(log, 1, "its disk is making noises")
    drop(log)
    maintainer = Maintainer(log)
    for _ in range(3):
        time.sleep(0.005)
        maintainer.round()
    assert [len(objects_on(log, tmp_path, broker)) for broker in (0, 1, 2)] == [0, 1, 0]


def test_what_an_old_disk_brings_back_is_deleted_again(log: Log, tmp_path: Path) -> None:
    name, maintainer = put(log, [0, 1, 2]), Maintainer(log)
    drop(log)
    for _ in range(4):
        time.sleep(0.005)
        maintainer.round()
    fence(log, 2, "its root is not usable", "check")
    log.journal.roots[2].put(name, [b"x"])
    assert return_broker(log.journal, 2)
    maintainer.round()
    assert objects_on(log, tmp_path, 2) == []


def fence(log: Log, broker: int, reason: str, cause: FenceCause = "admin") -> None:
    log.journal.propose(FenceBroker(broker=broker, reason=reason, cause=cause))


def test_what_late_uploads_leave_in_a_directory_of_before_is_deleted(log: Log, tmp_path: Path) -> None:
    """Once the fence has passed its replacement; nothing else in the root is touched."""
    old = folder_of(log, tmp_path, 1)
    add_broker(log, 1, str(tmp_path / "broker-1"), replaces=True)
    left, other = old / data_key(1, "late.seg"), tmp_path / "broker-1" / "mine" / "data" / "x"
    for file in (left, other):
        file.parent.mkdir(parents=True)
        file.touch()
    collector = RootCollector(log.journal)
    assert collector.round(log.journal.refresh()).names == [] and left.exists(), "the fence is older"
    pass_the_fence(log)
    put(log, [0, 1, 2])
    collector.round(log.journal.refresh())
    assert not left.exists() and other.exists() and len(objects_on(log, tmp_path, 1)) == 1


# Promise: copies.md#if-you-restore-a-disk-snapshot
def test_a_directory_of_before_stays_in_a_log_that_was_set_back(log: Log, tmp_path: Path) -> None:
    """In the snapshot of the log's disk, it is the directory of the broker."""
    put(log, [0, 1, 2])
    old = folder_of(log, tmp_path, 1)
    shutil.copytree(tmp_path / "log", tmp_path / "snapshot")
    add_broker(log, 1, str(tmp_path / "broker-1"), replaces=True)
    for _ in range(3):
        time.sleep(0.005)
        put(log, [0])
        maintenance(log.journal, fence_and_expire)
    state = log.journal.refresh()
    assert state.brokers[1].former[0][1] <= state.fence
    set_back_and_written(log, tmp_path / "snapshot", state.version)
    assert RootCollector(log.journal).round(state).names == [] and list(old.rglob("*.seg"))


def test_a_disk_that_is_registered_again_gets_another_directory(tmp_path: Path) -> None:
    """One that the broker had before is deleted when the fence has passed."""
    log = connect(str(tmp_path / "log"), durability="os")
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    first, second = str(tmp_path / "broker-1"), str(tmp_path / "other")
    add_root(log.journal, 1, first)
    replace_broker(log.journal, 1, second)
    with pytest.raises(InvalidRequest, match="had this directory before.*delete meta/broker.json"):
        replace_broker(log.journal, 1, first)
    (tmp_path / "broker-1" / "meta" / "broker.json").unlink()
    replace_broker(log.journal, 1, first)
    create_topic(log, "t", [1])
    for _ in range(2):
        log.append("t", [{"value": b"1"}])
        pass_the_fence(log)
    assert log.read("t").num_rows == 2
