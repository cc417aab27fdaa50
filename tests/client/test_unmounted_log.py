"""A disk with a log is not mounted: processes that have the log open, and those that open it then."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark_pylog.log.planned_log import PlannedLog, PlannedRoots
from pyspark_pylog.log.task_metadata import newest_journal

import spark_log
from spark_log.client.log import Log
from spark_log.errors import CommitUnknown, WrongRoot
from spark_log.journal.store_operations import Changes
from spark_log.maintenance.maintain import Maintainer, maintain_round, plan_round
from spark_log.recovery.verify import verify
from spark_log.store.local import LocalStore
from tests.server.asking import eventually
from tests.services import Services

ROW = [{"value": b"x"}]
CREATED = re.compile(r"(created a new log at \S+, because there was none\n)+")
"""All that a process says that created logs."""


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """With a record, and the position of a group."""
    log = spark_log.connect(tmp_path / "log", durability="os")
    log.append("t", ROW)
    return log


def changes(log: Log) -> list[Callable[[], object]]:
    """Ways to write to a log; each begins with what its process knows of the log."""
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
    consumer.poll(timeout_ms=2000)
    return [
        lambda: log.append("t", ROW),
        consumer.commit,
        lambda: log.admin.create_topics([spark_log.NewTopic("u")]),
        lambda: log.read("t"),
    ]


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
def test_a_process_that_has_the_log_open_writes_nothing_and_continues(log: Log, tmp_path: Path) -> None:
    """The error asks for the mount; when the disk is back, the same process continues."""
    tried = changes(log)
    (tmp_path / "log").rename(tmp_path / "disk")
    (tmp_path / "log").mkdir()
    for change in tried:
        with pytest.raises(WrongRoot, match=r"has no meta/format on .*is its disk mounted\?"):
            change()
    assert [path for path in (tmp_path / "log").rglob("*") if path.is_file()] == []
    (tmp_path / "log").rename(tmp_path / "empty")
    (tmp_path / "disk").rename(tmp_path / "log")
    for change in tried:
        change()
    assert log.read("t").num_rows == 2 and verify(log, deep=True) == []


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
def test_nothing_makes_the_folder_of_a_log_again(log: Log, tmp_path: Path) -> None:
    """Otherwise `mv MIRROR LOG` would put the mirror into that folder."""
    tried, transaction = changes(log), log.transaction("tx").__enter__()
    transaction.append("t", ROW)
    consumer = log.consumer("t", group_id="h")
    consumer.poll(timeout_ms=100)
    producer = log.producer()
    producer.send("t", b"x").result(10)
    (tmp_path / "log").rename(tmp_path / "disk")
    tried += [
        lambda: transaction.__exit__(None, None, None),
        lambda: log.transaction("new").__enter__(),
        lambda: producer.send("t", b"y").result(10),
        lambda: maintain_round(log),
        lambda: log.admin.erase_records("t", ["k"]),
        lambda: log.admin.delete_topics(["t"]),
    ]
    for change in tried:
        with pytest.raises(WrongRoot, match=r"is its disk mounted\?"):
            change()
        assert not (tmp_path / "log").exists()
    for close in (consumer.close, producer.close, log.close):
        close()
        assert not (tmp_path / "log").exists()
    (tmp_path / "disk").rename(tmp_path / "log")
    assert spark_log.connect(tmp_path / "log", create=False).read("t").num_rows == 2


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
def test_who_only_uploads_does_not_make_the_folder_again(log: Log, tmp_path: Path) -> None:
    """Such as a task of a Spark query, which has not read the log."""
    tasks = PlannedRoots(((0, log.url),), durability="os").store()
    first, second = "data/0000000000000001/0123456789abcdef.seg", "data/0000000000000001/0123456789abcde0.seg"
    uploads = LocalStore(str(tmp_path / "log"), durability="os")
    uploads.put(first, (b"x",))
    (tmp_path / "log").rename(tmp_path / "disk")
    for store in (tasks, uploads):
        with pytest.raises(WrongRoot, match=r"is its disk mounted\?"):
            store.put(second, (b"x",))
        assert not (tmp_path / "log").exists()
    (tmp_path / "disk").rename(tmp_path / "log")
    tasks.put(second, (b"x",))


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
def test_a_task_that_opens_the_log_asks_for_the_mount_on_its_machine(log: Log, tmp_path: Path) -> None:
    """Its driver has found the log on another one, so the error does not say how to create it."""
    planned = PlannedLog(log.url, None, PlannedRoots(((0, log.url),), durability="os"), log.journal.cluster_id, 1)
    (tmp_path / "log").rename(tmp_path / "disk")
    (tmp_path / "log").mkdir()
    with pytest.raises(WrongRoot, match=r"has no meta/format on .*is its disk mounted\?"):
        newest_journal(planned)
    assert list((tmp_path / "log").iterdir()) == []
    (tmp_path / "log").rmdir()
    (tmp_path / "disk").rename(tmp_path / "log")
    assert newest_journal(planned).state.version == log.journal.state.version


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
@pytest.mark.parametrize("versions", [1, 20, 120])
def test_a_log_that_was_begun_in_the_folder_is_another_one(log: Log, tmp_path: Path, versions: int) -> None:
    """A process that has the log open does not continue in the other one, be that shorter or longer; nor does one of
    the other log in this one, when the disk is mounted again."""
    for _ in range(10):
        log.append("t", ROW)
    tried = changes(log)
    (tmp_path / "log").rename(tmp_path / "disk")
    other = spark_log.connect(tmp_path / "log", durability="os")
    for _ in range(versions):
        other.append("t", ROW)
    for change in tried:
        with pytest.raises((WrongRoot, CommitUnknown), match="is the root of log .*a new log was begun in the folder"):
            change()
    assert other.read("t").num_rows == versions
    others = changes(other)
    (tmp_path / "log").rename(tmp_path / "begun")
    (tmp_path / "disk").rename(tmp_path / "log")
    for change in others:
        with pytest.raises((WrongRoot, CommitUnknown), match="a new log was begun in the folder"):
            change()
    for change in tried:
        change()
    assert log.read("t").num_rows == 12 and verify(log, deep=True) == []
    begun = spark_log.connect(tmp_path / "begun", create=False)
    for _ in range(2):
        records = begun.read("t").drop_columns(["topic", "offset"])
        log.append("t", records, txn_app_id="begun", txn_version=1)
    assert log.read("t").num_rows == 12 + versions


def test_a_client_of_a_coordinator_puts_nothing_in_a_log_that_was_begun_in_its_folder(
    services: Services, tmp_path: Path
) -> None:
    """The coordinator is on another machine, where the disk is mounted: it would take the change."""
    running = services.start(tmp_path / "log", Elsewhere(tmp_path / "disk", tmp_path / "log"))
    eventually(lambda: running.coordinator.leading)
    (tmp_path / "log").symlink_to(tmp_path / "disk")
    client = spark_log.connect(f"pylog://{running.coordinator.address}", durability="os")
    client.append("t", ROW)
    producer = client.producer(linger_ms=0)
    (tmp_path / "log").unlink()
    other = spark_log.connect(tmp_path / "log", durability="os")
    other.append("t", ROW)
    files = {path for path in (tmp_path / "log").rglob("*") if path.is_file()}
    for write in (lambda: client.append("t", ROW), lambda: producer.send("t", b"x").result(60)):
        with pytest.raises(WrongRoot, match="a new log was begun in the folder"):
            write()
    assert {path for path in (tmp_path / "log").rglob("*") if path.is_file()} == files
    (tmp_path / "log").rename(tmp_path / "begun")
    (tmp_path / "log").symlink_to(tmp_path / "disk")
    client.append("t", ROW)
    assert producer.send("t", b"x").result(60).offset == 2
    assert client.read("t").num_rows == 3 and verify(client, deep=True) == []
    producer.close()


class Elsewhere(LocalStore):
    """The store of a coordinator on another machine, where another disk is mounted under the same path."""

    def __init__(self, disk: Path, path: Path) -> None:
        super().__init__(str(disk), durability="os")
        self._path_there = path

    @property
    def url(self) -> str:
        return self._path_there.as_uri()


def test_maintenance_does_not_continue_in_a_log_that_was_begun_in_the_folder(log: Log, tmp_path: Path) -> None:
    """After a round that failed, the next one opens the log again."""
    maintainer = Maintainer(log)
    maintainer.round_or_raise()
    (tmp_path / "log").rename(tmp_path / "disk")
    other = spark_log.connect(tmp_path / "log", durability="os")
    for _ in range(20):
        other.append("u", ROW)
    version = other.journal.state.version
    for maintenance in (maintainer.round_or_raise, maintainer.round_or_raise, lambda: plan_round(log)):
        with pytest.raises(WrongRoot, match="a new log was begun in the folder"):
            maintenance()
    assert other.journal.refresh().version == version, "nothing was written in it"
    (tmp_path / "log").rename(tmp_path / "begun")
    (tmp_path / "disk").rename(tmp_path / "log")
    maintainer.round_or_raise()
    log.append("t", ROW)
    assert log.read("t").num_rows == 2


def test_a_client_that_is_far_behind_its_coordinator_does_not_continue_there(log: Log, tmp_path: Path) -> None:
    """It reads the newest checkpoint from the storage, which may not be mounted on its machine."""
    journal = log.journal
    (tmp_path / "log").rename(tmp_path / "disk")
    other = spark_log.connect(tmp_path / "log", durability="os")
    for _ in range(20):
        other.append("u", ROW)
    Maintainer(other).round_or_raise()
    with pytest.raises(WrongRoot, match="a new log was begun in the folder"):
        journal.run(journal.metadata_log.follow(journal.view, Changes(100)))


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
def test_no_log_begins_in_a_mount_point_of_fstab_without_its_disk(tmp_path: Path) -> None:
    """By default a path without a log gets a new one; `/etc/fstab` tells that one would be on the wrong disk."""
    point = tmp_path / "disk"
    point.mkdir()
    (tmp_path / "fstab").write_text(f"# disks\n/dev/none {point} ext4 defaults,nofail 0 2\n")
    said = in_namespace(tmp_path / "fstab", f"spark_log.connect('{point}/log')")
    assert f"there is no log at file://{point}/log: {point} is in /etc/fstab, and is not mounted on " in said
    assert not (point / "log").exists()
    mounted = f"import subprocess; subprocess.run(['mount', '-t', 'tmpfs', 'x', '{point}'], check=True); "
    assert CREATED.fullmatch(in_namespace(tmp_path / "fstab", f"{mounted}spark_log.connect('{point}/log')"))
    beside = f"log = spark_log.connect('{tmp_path}/log'); log.admin.add_broker(1, '{point}/root')"
    assert f"{point} is in /etc/fstab, and is not mounted: mount it" in in_namespace(tmp_path / "fstab", beside)


# Promise: storage-failures.md#when-the-disk-of-a-log-is-not-mounted
def test_a_process_begins_no_log_where_it_had_one_open_on_a_disk_that_is_away(tmp_path: Path) -> None:
    """As the sink of a query does, which opens the log for each micro-batch.  A deleted log begins again."""
    point = tmp_path / "disk"
    point.mkdir()
    (tmp_path / "fstab").write_text("")
    mount = f"subprocess.run(['mount', '-t', 'tmpfs', 'x', '{point}'], check=True)"
    unmount = f"subprocess.run(['umount', '-l', '{point}'], check=True)"
    opened = f"import shutil, subprocess; {mount}; spark_log.connect('{point}/log')"
    again = f"spark_log.connect('{point}/log')"
    said = in_namespace(tmp_path / "fstab", f"{opened}; {unmount}; {again}")
    assert f"there is no log at file://{point}/log: nothing is mounted at {point} on " in said
    assert not (point / "log").exists()
    for ends in (f"shutil.rmtree('{point}/log')", f"{unmount}; {mount}"):  # the second leaves an empty disk
        assert CREATED.fullmatch(in_namespace(tmp_path / "fstab", f"{opened}; {ends}; {again}"))


def in_namespace(fstab: Path, code: str) -> str:
    """The errors of a process that has another `/etc/fstab`."""
    if os.geteuid() != 0 or not Path("/etc/fstab").exists():
        pytest.skip("mounting needs root, and a file to mount over")
    program = f"import spark_log; {code}"
    command = ["unshare", "-m", "sh", "-c", 'mount --bind "$1" /etc/fstab && shift && exec "$@"', "sh", str(fstab)]
    done = subprocess.run([*command, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine does not let tests mount: {done.stderr.strip()}")
    return done.stderr
