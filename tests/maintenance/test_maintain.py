"""A round of maintenance: what goes when the fence has passed, and rounds every so often."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from simulation.harness.stores import ControlledStore, Faults, FaultyStore, Wrapper
from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.cli.commands.maintenance import next_step
from spark_log.client.producer.append import upload_rows
from spark_log.client.producer.commit import PlainProducer
from spark_log.errors import NoSpace, StorageError, UploadFenced
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import (
    checkpoint,
    collect_garbage,
    find_garbage,
    maintain_every,
    maintain_once,
    maintain_round,
    plan_round,
)
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.recovery.verify import verify
from spark_log.store.local import LocalStore
from tests.maintenance.logs import append_small, new_log, pass_the_fence


def short_fence(log: Log) -> None:
    log.journal.propose(lambda s, now: decide_set_configs(s, None, {"gc.fence.age.ms": "1"}))


# Promise: retention.md#when-the-space-is-free, storage.md#how-long-a-write-or-a-read-may-take
def test_what_was_replaced_goes_when_the_fence_has_passed(tmp_path: Path) -> None:
    """Merged objects, old records and all checkpoints but two are deleted, and the log is as before."""
    log = new_log(tmp_path)
    short_fence(log)
    append_small(log, 20)
    before = log.read("t")
    pass_the_fence(log)
    assert len(list(tmp_path.glob("data/*/*.seg"))) == 1
    assert len(list(tmp_path.glob("meta/ckpt/*"))) == 2
    assert len(list(tmp_path.glob("meta/log/*"))) <= 3
    assert log.read("t").equals(before)
    assert verify(log, deep=True) == []


# Promise: topic-configs.md#the-log
def test_a_shorter_time_for_writes_and_reads_holds_for_those_under_way(tmp_path: Path) -> None:
    """Their operations fail or succeed completely: the write is refused whole, the read finds the records where they
    are now.
    """
    log = new_log(tmp_path)
    append_small(log, 20)
    before, epoch = log.read("t"), log.journal.state.version
    upload, scan = upload_rows(log.journal, "t", [{"value": b"late"}], epoch), log.scan("t")
    short_fence(log)
    pass_the_fence(log)
    log.journal.refresh()
    with pytest.raises(UploadFenced):
        PlainProducer(log.journal).commit(epoch, [upload])
    assert scan.read_all().equals(before)
    assert log.read("t").equals(before)


# Promise: storage.md#how-long-a-write-or-a-read-may-take
def test_an_append_that_took_too_long_is_refused_for_certain(tmp_path: Path) -> None:
    """It was never applied, and the error says so: a retry adds its records once."""
    log = new_log(tmp_path)
    short_fence(log)

    def slowly() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [b"late"]})
        append_small(others, 3)
        pass_the_fence(others)

    others = connect(str(tmp_path), durability="os")
    late = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.binary())]), slowly())
    with pytest.raises(UploadFenced, match="again") as refused:
        log.append("t", late)
    assert refused.value.retriable and not refused.value.maybe_applied
    assert log.append("t", [{"value": b"late"}])
    assert log.read("t")["value"].to_pylist().count(b"late") == 1


# Promise: cli.md#pylog-gc
def test_uploads_that_nobody_committed_are_collected(tmp_path: Path) -> None:
    """An object that no record names goes with the fence, not before."""
    log = new_log(tmp_path)
    append_small(log, 1)
    upload_rows(log.journal, "t", [{"value": b"never committed"}], log.journal.state.version)
    append_small(log, 3, first=1)
    maintain_once(log)
    assert find_garbage(log) == [] == collect_garbage(log)
    short_fence(log)
    pass_the_fence(log)
    assert len(list(tmp_path.glob("data/*/*.seg"))) == 1


# Promise: storage-failures.md#what-a-killed-writer-leaves
@pytest.mark.parametrize("run", [lambda log: maintain_once(log).unfinished, collect_garbage], ids=["maintain", "gc"])
def test_what_killed_writers_had_begun_is_swept(tmp_path: Path, run: Callable[[Log], object]) -> None:
    """Files that nobody wrote to for as long as an upload may take, and an hour at least; and nobody else's."""
    log = new_log(tmp_path)
    append_small(log, 1)
    short_fence(log)
    before = log.read("t")
    killed = [tmp_path / folder / f".tmp-{n}" for n, folder in enumerate(["data", "data/0000000000000001", "meta/log"])]
    kept = [tmp_path / "data/.tmp-young", tmp_path / ".tmp-other", tmp_path / "meta/mine"]
    for file in [*killed, *kept]:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"half")
    for file in [*killed, kept[1], kept[2]]:
        os.utime(file, (time.time() - 3700, time.time() - 3700))
    assert run(log) in (3, [])
    assert [file for file in [*killed, *kept] if file.exists()] == kept
    assert log.read("t").equals(before)


# Promise: storage-failures.md#when-the-disk-is-full
def test_maintenance_frees_a_full_disk(tmp_path: Path) -> None:
    """Data dropped by retention is deleted although no space is left to merge the rest."""
    log = new_log(tmp_path, retention_bytes="40000")
    short_fence(log)
    for _ in range(10):
        log.append("t", [{"value": os.urandom(600)} for _ in range(10)])
    full = FaultyStore(LocalStore(str(tmp_path), "os"), random.Random(1), Faults(full_after=20_000))
    log = Log(Journal.open(full, create=False))
    for _ in range(3):
        time.sleep(0.005)
        with pytest.raises(StorageError, match="no space left"):
            maintain_once(log)
    left = log.read("t").num_rows // 10
    assert 0 < left < 10
    assert len(list(tmp_path.glob("data/*/*.seg"))) == left


def fill(folder: Path) -> None:
    """Leave not a byte."""
    with suppress(OSError), open(folder / "filler", "ab", buffering=0) as file:
        while True:
            file.write(bytes(512))


def full_log(folder: Path, **configs: str) -> Log:
    """On a disk that is full of its records and of somebody else's file."""
    log = new_log(folder / "log", **configs)
    short_fence(log)
    with suppress(NoSpace):
        while True:
            log.append("t", [{"value": os.urandom(20_000)} for _ in range(3)])
    fill(folder)
    return log


# Promise: storage-failures.md#when-the-disk-is-full
@pytest.mark.parametrize("how", ["retention", "trim", "delete", "config"])
def test_a_disk_without_a_byte_left_is_emptied(mount: Callable[[str], Path], how: str) -> None:
    """Records that make room have the reserve's room, which the data of others never has; afterwards the reserve is
    whole again.
    """
    disk = mount("size=4m")
    log = full_log(disk, **{"retention_bytes": "200000"} if how == "retention" else {})
    reserve = disk / "log/meta/reserve"
    before = log.read("t")
    with pytest.raises(NoSpace):
        log.admin.create_topics([NewTopic("another")])
    match how:
        case "trim":
            log.admin.delete_records({TopicPartition("t", 0): before.num_rows - 9})
        case "delete":
            log.admin.delete_topics(["t"])
        case "config":
            log.admin.incremental_alter_configs({"t": {"retention.bytes": "200000"}})
        case _:
            pass
    for _ in range(4):
        fill(disk)  # what is free is anybody's
        time.sleep(0.005)
        maintain_round(log)
        assert reserve.stat().st_size
    assert sum(file.stat().st_size for file in disk.glob("log/data/*/*")) < 600_000
    (disk / "filler").unlink()
    time.sleep(0.005)
    assert maintain_round(log).problems == ()
    assert reserve.stat().st_size == 1 << 20
    if how != "delete":
        left = log.read("t")
        assert 0 < left.num_rows < 20 and left.equals(before.slice(before.num_rows - left.num_rows))
        assert log.append("t", [{"value": b"fits again"}])


# Promise: storage-failures.md#when-the-disk-is-full
def test_a_coordinator_releases_a_log_whose_disk_is_full(mount: Callable[[str], Path]) -> None:
    """So that maintenance can empty the disk without it."""
    disk = mount("size=4m")
    log = new_log(disk / "log")
    epoch = log.journal.take_over(0, "here:1", "host")
    fill(disk)
    assert log.journal.release(epoch)
    assert not connect(str(disk / "log")).journal.state.coordinator.address


# Promise: storage-failures.md#when-the-disk-is-full
def test_a_disk_that_stays_full_is_reported_with_what_to_do(tmp_path: Path) -> None:
    """Nothing is due to be deleted: the command says so, and every duty that needs no room is done."""
    control = tmp_path / "control"
    log = new_log(tmp_path / "log")
    short_fence(log)
    append_small(log, 5)
    log = Log(Journal.open(ControlledStore(LocalStore(str(tmp_path / "log"), "os"), control), create=False))
    control.write_text("full")
    report = maintain_round(log)
    assert report.no_space and "no space left" in report.problems[0]
    assert "the disk is full" in next_step(report) and "run `pylog maintain` again" in next_step(report)
    control.unlink()
    report = maintain_round(log)
    assert not report.no_space and report.problems == ()


# Promise: storage-failures.md#when-the-disk-is-full
def test_what_was_removed_is_deleted_by_the_third_round_at_the_latest(tmp_path: Path) -> None:
    """Each a `gc.fence.age.ms` after the one before; the rounds say how many objects wait."""
    log = new_log(tmp_path)
    short_fence(log)
    append_small(log, 5)
    log.admin.delete_records({TopicPartition("t", 0): -1})
    reports = []
    for _ in range(3):
        reports.append(maintain_once(log))
        time.sleep(0.01)
    assert (reports[0].waiting, reports[0].collected) == (5, 0)
    assert reports[2].waiting == 0 and sum(report.collected for report in reports) == 5


# Promise: cli.md#pylog-maintain
def test_what_a_round_would_do_is_said_without_doing_it(tmp_path: Path) -> None:
    """Nothing is written, not even a file that is deleted again; and the round does as much."""
    log = new_log(tmp_path, retention_bytes="6000")
    short_fence(log)
    upload_rows(log.journal, "t", [{"value": b"never committed"}], log.journal.state.version)
    append_small(log, 12)
    time.sleep(0.01)
    paths = [*tmp_path.rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in paths}
    plan = plan_round(log)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert plan.expired_records > 0 and plan.merged_slices > 1 and plan.collected == 1
    assert plan.merged_bytes > 0 and plan.collected_bytes > 0
    report = maintain_once(log)
    done = (report.expired_records, report.merged_slices, report.collected)
    assert done == (plan.expired_records, plan.merged_slices, plan.collected)


def test_what_would_be_collected_is_said_without_doing_it(tmp_path: Path) -> None:
    """`find_garbage` names what `collect_garbage` deletes."""
    log = new_log(tmp_path)
    short_fence(log)
    append_small(log, 3)
    upload_rows(log.journal, "t", [{"value": b"never committed"}], log.journal.state.version)
    append_small(log, 3, first=3)
    time.sleep(0.01)
    found, version = find_garbage(log), log.journal.refresh().version
    assert len(found) == 1
    assert log.journal.refresh().version == version
    assert collect_garbage(log) == found


# Promise: spark-read.md#options-of-a-read, storage.md#what-is-where
def test_pins_of_old_queries_go(tmp_path: Path) -> None:
    """Pins at or below the fence are deleted; newer ones, and files that are no pins, stay."""
    log = new_log(tmp_path)
    short_fence(log)
    pins = tmp_path / "meta" / "pin"
    pins.mkdir()
    append_small(log, 5)
    (pins / "old").write_bytes(b'{"version":1,"topics":{}}')
    (pins / "new").write_bytes(b'{"version":1000000,"topics":{}}')
    (pins / "other").write_bytes(b"not a pin")
    pass_the_fence(log)
    assert sorted(file.name for file in pins.iterdir()) == ["new", "other"]


# Promise: cli.md#pylog-checkpoint
def test_a_checkpoint_alone(tmp_path: Path) -> None:
    """It is of the newest version, and one is enough."""
    log = new_log(tmp_path)
    append_small(log, 5)
    assert checkpoint(log) == checkpoint(log) == log.journal.refresh().version
    assert len(list(tmp_path.glob("meta/ckpt/*"))) == 1


def test_rounds_go_on(tmp_path: Path) -> None:
    """`maintain_every` does a round whenever the interval has passed."""
    log = new_log(tmp_path)
    rounds = maintain_every(log, 20)
    append_small(log, 3)
    assert next(rounds).merged_slices == 3
    append_small(log, 3, first=3)
    began = time.monotonic()
    assert [report.merged_slices for report in islice(rounds, 2)] == [4, 0]
    assert time.monotonic() - began >= 0.02


class Refusing(Wrapper):
    """Refuses so many listings."""

    listings = 0

    def list(self, prefix: str) -> list[str]:
        if self.listings:
            self.listings -= 1
            raise StorageError(f"{prefix}: access denied")
        return self.inner.list(prefix)


# Promise: service.md#as-a-service
def test_rounds_go_on_after_one_that_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A storage that refuses for a while does not end maintenance; one that refuses at its start does."""
    store = Refusing(LocalStore(str(tmp_path), "os"))
    log, others = Log(Journal.open(store, create=True)), new_log(tmp_path)
    rounds = maintain_every(log, 1)
    next(rounds)
    append_small(others, 3)
    store.listings = 1
    assert next(rounds).merged_slices == 3
    assert "failed, retrying in its next run: " in caplog.text and "access denied" in caplog.text
    store.listings = 1
    with pytest.raises(StorageError, match="access denied"):
        next(maintain_every(log, 1))


@pytest.mark.parametrize("partitions", [1, 3])
def test_progress_ends_at_its_end(tmp_path: Path, partitions: int) -> None:
    """The progress events, one per new object, grow to the total."""
    log = new_log(tmp_path, partitions=partitions)
    append_small(log, 10, partitions=partitions)
    seen: list[tuple[str, int, int]] = []
    maintain_once(log, progress=lambda *step: seen.append(step))
    assert len(seen) == 1
    assert [at for _, at, _ in seen] == sorted(at for _, at, _ in seen)
    assert seen[-1][1] == seen[-1][2]
