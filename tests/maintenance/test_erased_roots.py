"""Erasures beside roots that maintenance cannot reach: they are not done, and a broker that returns has no such
copy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.harness.broker_roots import commit_on_leader, register_broker
from simulation.harness.clocks import ManualClock
from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.cli.commands.erase import report_text
from spark_log.client.admin.erasure_status import problems_of
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import Maintainer, collect_garbage, maintain_once
from spark_log.recovery.verify import verify
from spark_log.replication.replicator import Replicator
from spark_log.store.local import LocalStore

KEY = b"customer-17"
SECRET = b"secret-person"
DAY_MS = 24 * 3_600_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Brokers 1 and 2 have the topic `people`."""
    with connect(tmp_path / "log", durability="os") as log:
        for broker in (1, 2):
            register_broker(log, broker, str(tmp_path / f"broker{broker}"))
        log.admin.create_topics([NewTopic("people", 1, replica_assignment={0: [1, 2]})])
        yield log


def append(log: Log) -> None:
    log.append("people", [{"key": KEY, "value": SECRET}], compression="none")
    log.append("people", [{"key": b"customer-18", "value": b"other"}], compression="none")


def pass_the_fence(log: Log) -> None:
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    for _ in range(3):
        log.append("people", [{"key": b"customer-18", "value": b"more"}])
        maintain_once(log)


def having(folder: Path) -> set[str]:
    """The folders of roots that have the record."""
    files = [path for path in folder.rglob("*") if path.is_file() and SECRET in path.read_bytes()]
    return {path.relative_to(folder).parts[0] for path in files}


# Promise: tasks/erase.md#roots-that-cannot-be-reached
def test_an_erasure_is_done_when_maintenance_has_deleted_the_copies_on_each_root(log: Log, tmp_path: Path) -> None:
    """The log's own root, and those of both brokers."""
    append(log)
    assert (report := log.admin.erase_records("people", [KEY])).problems == report.unreached == ()
    assert report.records == 1
    (listed,) = log.admin.list_erasures()
    assert (listed.topic, listed.unreached, len(listed.waits_for), listed.incomplete) == ("people", (), 3, False)
    assert verify(log) == []
    pass_the_fence(log)
    assert log.admin.list_erasures() == []
    assert having(tmp_path) == set()


# Promise: tasks/erase.md#roots-that-cannot-be-reached
def test_a_broker_that_is_fenced_after_an_erasure_keeps_it_open_and_has_no_copy_when_it_is_back(
    log: Log, tmp_path: Path
) -> None:
    """The list and `verify` name it; the return deletes the copy before the broker is active."""
    append(log)
    log.admin.erase_records("people", [KEY])
    log.admin.fence_broker(2, "disk at the workshop")
    pass_the_fence(log)
    assert having(tmp_path) == {"broker2"}
    (listed,) = log.admin.list_erasures()
    assert listed.waits_for == listed.unreached
    assert "broker 2" in listed.unreached[0]
    assert "disk at the workshop" in listed.unreached[0]
    (problem,) = [one for one in verify(log) if one.what.startswith("erasure")]
    assert "`pylog broker unfence 2`" in problem.message
    assert log.admin.unfence_broker(2)
    assert having(tmp_path) == set()
    assert log.admin.list_erasures() == []
    assert not [one for one in verify(log) if one.what.startswith("erasure")]


# Promise: tasks/erase.md#roots-that-cannot-be-reached
def test_the_report_names_a_root_that_cannot_be_reached(log: Log, tmp_path: Path) -> None:
    """A fenced broker, and one whose root is gone and is not fenced yet."""
    register_broker(log, 3, str(tmp_path / "broker3"))
    log.admin.fence_broker(3, "in a drawer")
    append(log)
    report = log.admin.erase_records("people", [KEY])
    assert "in a drawer" in report.unreached[0]
    assert report.problems == report.unreached
    (tmp_path / "broker2").rename(tmp_path / "away")
    report = log.admin.erase_records("people", [KEY])
    assert [text for text in report.unreached if "broker 2" in text and "does not answer" in text]


# Promise: tasks/erase.md#roots-that-cannot-be-reached
def test_the_files_of_a_removed_broker_are_named_until_they_are_deleted(log: Log, tmp_path: Path) -> None:
    """Its disk is kept, so the erasure before stays open, and the next one names the root."""
    register_broker(log, 3, str(tmp_path / "broker3"))
    directory = log.journal.refresh().brokers[3].directory
    append(log)
    log.admin.erase_records("people", [KEY])
    log.admin.remove_broker(3)
    pass_the_fence(log)
    (listed,) = log.admin.list_erasures()
    assert directory in listed.unreached[0]
    report = log.admin.erase_records("people", [KEY])
    assert len(report.former_roots) == 1
    assert f"`pylog broker forget-root {directory}`" in report.former_roots[0]
    with pytest.raises(InvalidRequest, match="not the directory"):
        log.admin.forget_root("abc")
    log.admin.forget_root(directory)
    assert log.admin.erase_records("people", [KEY]).former_roots == ()
    pass_the_fence(log)
    assert log.admin.list_erasures() == []


# Promise: tasks/erase.md#interrupted
def test_an_incomplete_erasure_is_listed_until_one_of_the_topic_is_complete(log: Log, tmp_path: Path) -> None:
    """A broker that was fenced a moment ago: the records cannot be rewritten without it yet."""
    append(log)
    log.admin.fence_broker(2, "for a moment")
    report = log.admin.erase_records("people", [KEY])
    assert report.records == 0
    assert len(report.problems) == 2
    assert log.admin.list_erasures()[0].incomplete
    assert "not all records were erased" in verify(log)[0].message
    log.admin.unfence_broker(2)
    assert log.admin.erase_records("people", [KEY]).records == 1
    assert not any(one.incomplete for one in log.admin.list_erasures())


def test_a_log_without_brokers_records_the_end_of_its_erasures(tmp_path: Path) -> None:
    """Also if only garbage is collected; a late one is a problem with what to run."""
    with connect(tmp_path / "alone", durability="os") as log:
        append(log)
        log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
        assert log.admin.erase_records("people", [KEY]).problems == ()
        state = log.journal.refresh()
        assert problems_of(state, state.time) == []
        ((what, says),) = problems_of(state, state.time + 100)
        assert "people" in what
        assert "`pylog maintain`" in says
        for _ in range(3):
            append(log)
            collect_garbage(log)
        assert log.admin.list_erasures() == []


# Promise: tasks/erase.md#when-the-records-are-gone
@pytest.mark.parametrize("root", ["log", "broker2"])
def test_a_file_of_a_dead_writer_keeps_an_erasure_open_until_it_is_deleted(log: Log, tmp_path: Path, root: str) -> None:
    """Nobody knows for an hour that the writer is dead, and the fence may be faster."""
    append(log)
    data = next((path.parent for path in (tmp_path / root).rglob("*.seg")), tmp_path / root / "data" / f"{1:016x}")
    data.mkdir(parents=True, exist_ok=True)
    left = data / ".tmp-0123456789abcdef"
    left.write_bytes(SECRET)
    log.admin.erase_records("people", [KEY])
    pass_the_fence(log)
    (listed,) = log.admin.list_erasures()
    assert len(listed.waits_for) == 1
    assert having(tmp_path) == {root}
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    pass_the_fence(log)
    assert log.admin.list_erasures() == []
    assert having(tmp_path) == set()


def test_a_file_that_was_begun_long_after_an_erasure_delays_nothing(log: Log, tmp_path: Path) -> None:
    """Writers write all the time."""
    append(log)
    log.admin.erase_records("people", [KEY])
    left = tmp_path / "broker2" / next((tmp_path / "broker2").rglob("*.seg")).parent / ".tmp-0123456789abcdef"
    left.write_bytes(b"of another writer")
    os.utime(left, (time.time() + 3700, time.time() + 3700))
    pass_the_fence(log)
    assert log.admin.list_erasures() == []
    assert left.exists()


def test_a_broker_that_returns_with_a_file_of_a_dead_writer_leaves_the_erasure_open(log: Log, tmp_path: Path) -> None:
    append(log)
    log.admin.erase_records("people", [KEY])
    log.admin.fence_broker(2, "disk at the workshop")
    left = next((tmp_path / "broker2").rglob("*.seg")).parent / ".tmp-0123456789abcdef"
    left.write_bytes(SECRET)
    pass_the_fence(log)
    assert log.admin.unfence_broker(2)
    assert len(log.admin.list_erasures()) == 1
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    pass_the_fence(log)
    assert log.admin.list_erasures() == []
    assert having(tmp_path) == set()


@pytest.mark.parametrize("when", ["before the end", "after the end"])
def test_a_broker_that_is_added_in_the_middle_gets_no_copy(log: Log, tmp_path: Path, when: str) -> None:
    """It copies from another one while the records are erased there."""

    def add() -> None:
        with connect(log.url, durability="os") as other:
            register_broker(other, 3, str(tmp_path / "broker3"))
            other.admin.alter_partition_reassignments({TopicPartition("people", 0): [3, 1, 2]})
            maintain_once(other)
            assert "broker3" in having(tmp_path) or when == "after the end"

    def progress(step: str, done: int, total: int) -> None:
        if when == "before the end" and not (tmp_path / "broker3").exists():
            add()

    append(log)
    report = log.admin.erase_records("people", [KEY], progress=progress)
    assert report.records == 1
    if when == "after the end":
        add()
    waits = len(log.admin.list_erasures()[0].waits_for)
    assert waits == (4 if when == "before the end" else 3)
    pass_the_fence(log)
    maintain_once(log)
    assert log.admin.list_erasures() == []
    assert having(tmp_path) == set()
    assert log.admin.describe_topics(["people"])["people"].partitions[0].replicas == (3, 1, 2)
    assert log.read("people").column("value").to_pylist()[0] == b"other"


def test_records_that_only_a_leader_had_go_with_the_others(log: Log, tmp_path: Path) -> None:
    """They were written with acks=1, and given up while its root was away.  It comes back."""
    append(log)
    commit_on_leader(log, "people", [{"key": KEY, "value": SECRET + b" too"}])
    log.admin.fence_broker(1, "at the workshop")
    (tmp_path / "broker1").rename(tmp_path / "away")
    log.admin.incremental_alter_configs({None: {"replica.lost.after.ms": "1"}})
    replicator = Replicator(log)
    while log.journal.refresh().pending:
        replicator.round()
    log.admin.elect_leaders("preferred", [TopicPartition("people", 0)])
    assert log.admin.erase_records("people", [KEY]).problems
    pass_the_fence(log)
    (listed,) = log.admin.list_erasures()
    assert "broker 1" in listed.unreached[0]
    (tmp_path / "away").rename(tmp_path / "broker1")
    assert log.admin.unfence_broker(1)
    assert log.admin.erase_records("people", [KEY]).problems == ()
    pass_the_fence(log)
    assert log.admin.list_erasures() == []
    assert having(tmp_path) == set()


# Promise: tasks/erase.md#when-the-records-are-gone
@pytest.mark.parametrize("hours", [8, 9, 10])
def test_uploads_that_come_late_until_an_erasure_is_done_are_gone(tmp_path: Path, hours: int) -> None:
    """Maintenance has looked at all objects since the erasure, and an upload that hung comes after that."""
    clock = ManualClock(int(time.time() * 1000))
    log = Log(Journal.open(LocalStore(str(tmp_path / "log"), "os"), create=True, clock=clock))
    log.admin.incremental_alter_configs(
        {None: {"log.clock.skew.max.ms": str(DAY_MS), "gc.fence.age.ms": str(DAY_MS // 8)}}
    )
    log.admin.create_topics([NewTopic("people", 1)])
    maintenance = Maintainer(log)

    def pass_hour() -> None:
        clock.ms += 3_600_000
        log.append("people", [{"key": b"customer-18", "value": b"more"}])
        assert maintenance.round().problems == ()

    for _ in range(hours):
        pass_hour()
    append(log)
    late = tmp_path / "log" / "data" / f"{1:016x}" / f"{'0' * 16}-{'1' * 16}.seg"
    log.admin.erase_records("people", [KEY])
    for _ in range(8):
        if log.admin.list_erasures():
            late.parent.mkdir(parents=True, exist_ok=True)
            late.write_bytes(SECRET)
            pass_hour()
    assert log.admin.list_erasures() == []
    assert having(tmp_path) == set()


# Promise: tasks/erase.md#when-the-records-are-gone
@pytest.mark.parametrize("root", ["log", "broker2"])
def test_an_upload_that_came_late_is_gone_when_an_erasure_is_done(tmp_path: Path, root: str) -> None:
    """A writer hung in it for longer than the fence: maintenance has collected the garbage of its time before."""
    clock = ManualClock(int(time.time() * 1000))
    log = Log(Journal.open(LocalStore(str(tmp_path / "log"), "os"), create=True, clock=clock))
    log.admin.incremental_alter_configs(
        {None: {"log.clock.skew.max.ms": str(DAY_MS), "gc.fence.age.ms": str(DAY_MS // 8)}}
    )
    for broker in (1, 2):
        register_broker(log, broker, str(tmp_path / f"broker{broker}"))
    log.admin.create_topics([NewTopic("people", 1, replica_assignment={0: [1, 2]})])
    maintenance = Maintainer(log)

    def pass_hours(hours: int) -> None:
        for _ in range(hours):
            clock.ms += 3_600_000
            log.append("people", [{"key": b"customer-18", "value": b"more"}])
            assert maintenance.round().problems == ()

    pass_hours(8)
    append(log)
    data = next((path.parent.parent for path in (tmp_path / root).rglob("*.seg")), tmp_path / root / "data")
    late = data / f"{1:016x}" / f"{'0' * 16}-{'1' * 16}.seg"
    late.parent.mkdir(parents=True, exist_ok=True)
    late.write_bytes(SECRET)
    log.admin.erase_records("people", [KEY])
    pass_hours(8)
    assert log.admin.list_erasures() == []
    assert having(tmp_path) == set()


# Promise: tasks/erase.md#roots-that-cannot-be-reached
@pytest.mark.parametrize("fenced", [False, True])
def test_an_erasure_says_which_broker_it_waits_for_and_what_helps(log: Log, tmp_path: Path, fenced: bool) -> None:
    """Nothing is erased while a replica is away, and the list says so.  Another run erases when it is back."""
    append(log)
    (tmp_path / "broker2").rename(tmp_path / "away")
    if fenced:
        log.admin.fence_broker(2, "disk at the workshop")
    report = log.admin.erase_records("people", [KEY])
    assert report.records == 0
    assert "waiting for a broker" in report.problems[0]
    assert str(tmp_path / "broker2") in report.problems[0]
    assert ("`pylog broker unfence 2`" if fenced else "`pylog broker fence 2`") in report.problems[0]
    assert "`pylog broker replace 2`" in report.problems[0]
    assert report_text(report).startswith("not all records with these keys were erased")
    (listed,) = log.admin.list_erasures()
    assert listed.incomplete
    assert ("when the roots that cannot be reached are back" in listed.left) == fenced
    (tmp_path / "away").rename(tmp_path / "broker2")
    if fenced:
        log.admin.unfence_broker(2)
    assert log.admin.erase_records("people", [KEY]).records == 1
    assert not any(one.incomplete for one in log.admin.list_erasures())
