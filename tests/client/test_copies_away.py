"""Reads while the roots with the only copies are away: the error is retriable, and nothing counts as lost."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import spark_log
from simulation.harness.broker_roots import register_broker
from spark_log.client.admin.brokers import return_broker
from spark_log.client.log import Log
from spark_log.client.reader.fetch import fetch
from spark_log.client.reader.scan_batches import fetch_ranges
from spark_log.errors import CorruptObject, ObjectNotFound, StorageUnavailable
from spark_log.maintenance.maintain import merge
from spark_log.metadata.replicas.replica_commands import FenceBroker
from spark_log.model import TopicPartition
from spark_log.recovery.verify import verify
from tests.logged import logged
from tests.replication.replicated_logs import create_topic, folder_of, move_away, move_back, put, replicated_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """With a topic "u" on brokers 1 and 2 alone."""
    log = replicated_log(tmp_path)
    create_topic(log, "u", (1, 2))
    return log


def _count(log: Log, topic: str = "u") -> int:
    return sum(batch.num_rows for batch in log.scan(topic))


# Promise: replicas.md#when-a-disk-fails
def test_roots_that_are_not_mounted(log: Log, tmp_path: Path) -> None:
    put(log, [1, 2], topic="u")
    for broker in (1, 2):
        move_away(tmp_path, broker)
    with pytest.raises(StorageUnavailable, match=r"broker 1: .*is its disk mounted\?.*broker 2: ") as failed:
        _count(log)
    assert failed.value.retriable
    assert str(failed.value).count("Its records can be read again when these roots are back") == 1
    with pytest.raises(StorageUnavailable):
        spark_log.connect(log.url).consumer("u", auto_offset_reset="earliest").poll(timeout_ms=5000)
    with pytest.raises(StorageUnavailable):
        log.journal.objects.size(next(iter(log.journal.state.objects)))
    move_back(tmp_path, 2)
    assert _count(log) == 10


# Promise: replicas.md#when-a-disk-fails
def test_the_logs_own_root_is_not_mounted(log: Log, tmp_path: Path) -> None:
    """As on a machine that has the metadata from a coordinator: the other copy is missing, but nothing is lost."""
    create_topic(log, "v", (0, 1))
    name = put(log, [0, 1], topic="v")
    (folder_of(log, tmp_path, 1) / name).unlink()
    own = Path(log.url.removeprefix("file://"))
    own.rename(tmp_path / "away")
    with pytest.raises(
        StorageUnavailable, match=r"broker 0: .*is its disk mounted\?.* when this root is back"
    ) as failed:
        log.journal.objects.get(name)
    assert "If it is lost for good, `pylog recover` makes a log of its mirror" in str(failed.value)
    assert "broker replace" not in str(failed.value), "that is refused for broker 0"
    (tmp_path / "away").rename(own)
    assert log.journal.objects.get(name)


# Promise: replicas.md#when-a-disk-fails
def test_a_log_without_brokers_is_not_mounted(tmp_path: Path) -> None:
    """As on an executor: the records of an empty folder do not count as lost, and the error names the mount."""
    log = spark_log.connect(tmp_path / "log", durability="os")
    log.append("t", [{"value": b"x"}])
    (planned,) = log.plan("t")
    (tmp_path / "log").rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match=r"/log has no meta/format on .*is its disk mounted\?.* is back"):
            next(fetch(log.journal.objects, planned))
        (tmp_path / "log").mkdir(exist_ok=True)
    (tmp_path / "log").rmdir()
    (tmp_path / "away").rename(tmp_path / "log")
    (tmp_path / "log" / planned.slice.object).unlink()
    with pytest.raises(ObjectNotFound, match="is missing, but has the offsets 0 to 0"):
        next(fetch(log.journal.objects, planned))


def test_a_root_of_another_broker(log: Log, tmp_path: Path) -> None:
    put(log, [1], topic="u")
    (away := move_away(tmp_path, 1)).rename(tmp_path / "kept")
    shutil.copytree(tmp_path / "broker-2", tmp_path / "broker-1")
    with pytest.raises(StorageUnavailable, match="another disk is in its place"):
        _count(log)
    shutil.rmtree(tmp_path / "broker-1")
    (tmp_path / "kept").rename(away)
    move_back(tmp_path, 1)
    assert _count(log) == 10


def test_a_fenced_broker(log: Log, tmp_path: Path) -> None:
    """Also if its root is there: it may be an older copy of the disk."""
    name = put(log, [1], topic="u")
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    assert _count(log) == 10, "copies on fenced brokers are read"
    path = folder_of(log, tmp_path, 1) / name
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(StorageUnavailable, match=r"broker 1 .* is fenced: by hand"):
        _count(log)
    path.write_bytes(data)
    assert _count(log) == 10


def test_one_copy_is_damaged_and_the_root_of_the_other_is_away(log: Log, tmp_path: Path) -> None:
    name = put(log, [1, 2], topic="u")
    path = folder_of(log, tmp_path, 1) / name
    path.write_bytes(bytes(path.stat().st_size))
    move_away(tmp_path, 2)
    with pytest.raises(StorageUnavailable, match="broker 2"):
        _count(log)


def test_right_roots_that_lack_an_object(log: Log, tmp_path: Path) -> None:
    name = put(log, [1, 2], topic="u")
    for broker in (1, 2):
        (folder_of(log, tmp_path, broker) / name).unlink()
    with pytest.raises(ObjectNotFound, match="cannot be read from any of the 2 roots") as failed:
        _count(log)
    assert str(failed.value).count("--repair-from") == 1


def test_damaged_copies_are_described_once(log: Log, tmp_path: Path) -> None:
    name = put(log, [1, 2], topic="u")
    for broker in (1, 2):
        path = folder_of(log, tmp_path, broker) / name
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptObject) as failed:
        _count(log)
    assert (failed.value.start, failed.value.end) == (0, 10)
    for text in ("--repair-from", "--lose-data", "offsets 0 to 9"):
        assert str(failed.value).count(text) == 1


def test_an_old_plan_of_objects_that_were_merged(log: Log, tmp_path: Path) -> None:
    """A reader plans again: the records are in another object now, on a root that is there."""
    names = [put(log, [1, 2], topic="u") for _ in range(12)]
    reads = log.plan("u")
    merge(log)
    assert len(log.plan("u")) == 1
    for name in names:
        (folder_of(log, tmp_path, 1) / name).unlink()
    move_away(tmp_path, 2)
    assert sum(part.records.num_rows for part in fetch_ranges(log.journal, reads, None)) == 120


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return logged(caplog, "another copy of", "other copies of", "--repair", "trim")


def test_a_root_that_is_away_is_warned_of_once(log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        put(log, [1, 2], topic="u")
    move_away(tmp_path, 1)
    with caplog.at_level(logging.WARNING):
        assert _count(log) == 30
    (warned,) = logged(caplog, "another copy")
    assert "is its disk mounted? Bring this root back" in warned
    assert not any("--repair" in text or "trim" in text for text in _warnings(caplog))


def test_a_damaged_copy_is_warned_of_once(log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [put(log, [1, 2], topic="u") for _ in range(3)]
    for name in names:
        path = folder_of(log, tmp_path, 1) / name
        path.write_bytes(bytes(path.stat().st_size))
    with caplog.at_level(logging.WARNING):
        assert _count(log) == 30
    (warned,) = _warnings(caplog)
    assert "`pylog verify --deep --repair` replaces bad copies" in warned
    assert "--repair-from" not in warned and "trim" not in warned


# Promise: replicas.md#when-a-disk-fails
def test_verify_names_fenced_brokers_with_only_copies(log: Log) -> None:
    put(log, [1], topic="u")
    put(log, [1], topic="u")
    put(log, [1, 2], topic="u")
    assert verify(log, deep=True) == []
    log.journal.propose(FenceBroker(broker=1, reason="by hand"))
    for deep in (False, True):
        (problem,) = verify(log, deep)
        assert problem.what == "broker 1"
        assert problem.message == (
            "2 objects have their only copies on broker 1, which is fenced: by hand: their records cannot be read until it "
            "is back"
        )
    log.journal.propose(FenceBroker(broker=2, reason="its root is away", cause="check"))
    found = {problem.what: problem.message for problem in verify(log)}
    assert found.keys() == {"broker 1", "broker 1, broker 2"}
    assert "1 object has its only copies on brokers 1 and 2, which are fenced" in found["broker 1, broker 2"]


def test_more_objects_of_a_root_are_counted_seldom(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [put(log, [1, 2], topic="u") for _ in range(3)]
    for name in names[:2]:
        (folder_of(log, tmp_path, 1) / name).unlink()
    with caplog.at_level(logging.WARNING):
        assert _count(log) == 30
    monkeypatch.setattr("spark_log.roots.read_failover.WARN_EVERY_S", 0)
    (folder_of(log, tmp_path, 1) / names[2]).unlink()
    with caplog.at_level(logging.WARNING):
        assert _count(log) == 30
    first, more = _warnings(caplog)
    assert "another copy of" in first
    assert f"other copies of 2 more objects in {folder_of(log, tmp_path, 1).as_uri()} were read" in more


# Promise: replicas.md#when-a-disk-fails
def test_records_that_only_a_deposed_leader_has(log: Log, tmp_path: Path) -> None:
    """After an unclean election their reads fail, and the error says what to do; nothing else is lost."""
    log.append("u", [{"value": b"on both"}])
    log.journal.propose(FenceBroker(broker=2, reason="its root is away", cause="check"))
    log.append("u", [{"value": b"on one"}])
    log.journal.propose(FenceBroker(broker=1, reason="its root burns", cause="check"))
    return_broker(log.journal, 2)
    assert log.admin.elect_leaders("unclean") == {TopicPartition("u", 0): 2}
    move_away(tmp_path, 1)
    log.append("u", [{"value": b"later"}])
    for _ in range(2):
        with pytest.raises(
            StorageUnavailable, match="its root burns.*`pylog broker replace 1 --lose-data` gives these"
        ):
            log.read("u")
        assert log.read("u", 0, 2)["value"].to_pylist() == [b"later"]
    register_broker(log, 1, str(tmp_path / "broker-1"), replaces=True, lose_data=True)
    with pytest.raises(ObjectNotFound, match="the offsets 1 to 1 .* Without a copy, continue at offset 2"):
        log.read("u")
    assert log.read("u", 0, 2)["value"].to_pylist() == [b"later"]
