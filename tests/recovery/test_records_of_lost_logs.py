"""Records that a process of a lost log puts into the folder of the log that was restored there from an older copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.errors import CorruptObject, LogRestored, SparkLogError, StorageUnavailable
from spark_log.journal.garbage_collection import collect
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.repair import repair
from spark_log.recovery.verify import verify
from spark_log.store.base import Bytes
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, LOG, data_key, log_key
from tests.maintenance.logs import new_log, pass_the_fence
from tests.restored import copy_of, restored, set_back

Names: TypeAlias = list[str]
"""Needed because a class below has a method named `list`."""


class Killed(BaseException):
    """The process of a client is killed."""


class Unanswered(Wrapper):
    """A store that carries a change out and does not answer; the process may be killed meanwhile."""

    def __init__(self, inner: LocalStore, error: BaseException) -> None:
        super().__init__(inner)
        self._error = error
        self.answers = True

    def put_new(self, key: str, data: bytes) -> bool:
        found = super().put_new(key, data)
        if not self.answers:
            raise self._error
        return found


class Lost:
    """A log of which a mirror lacks some records, and a process that is about to change it."""

    def __init__(self, folder: Path, error: BaseException, records: int) -> None:
        self.url = str(folder / "log")
        log = new_log(folder / "log")
        log.append("t", [{"value": b"old"}])
        log.journal.finish_maintenance()
        self._records = records
        self._copy = copy_of(log, folder / "copy")
        self._snapshot = shutil.copytree(folder / "log", folder / "snapshot")
        self.store = Unanswered(LocalStore(self.url), error)
        self.late = spark_log.Log(Journal.open(self.store, create=False))
        for _ in range(records):
            self.late.append("t", [{"value": b"lost"}])
        self.late.journal.finish_maintenance()
        self.version = self.late.journal.state.version

    def restore(self) -> spark_log.Log:
        self.store.answers = False
        return restored(self.url, self._copy)

    def restore_twice(self) -> spark_log.Log:
        """The lost log is one that was restored from the same copy."""
        again = shutil.copytree(self._copy, self._copy.with_name("again"))
        restored(self.url, self._copy)
        self.late = spark_log.Log(Journal.open(self.store, create=False))
        for _ in range(self._records):
            self.late.append("t", [{"value": b"lost"}])
        self.version = self.late.journal.state.version
        self.store.answers = False
        return restored(self.url, again)

    def set_back(self) -> spark_log.Log:
        """A snapshot of the disk begins no history."""
        self.store.answers = False
        return set_back(self.url, self._snapshot)


def values(log: spark_log.Log) -> list[bytes]:
    return list(log.read("t", columns=["value"])["value"].to_pylist())


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize(("records", "restore"), [(8, Lost.restore), (13, Lost.restore), (8, Lost.restore_twice)])
@pytest.mark.parametrize("error", [StorageUnavailable("no answer"), Killed()], ids=["unanswered", "killed"])
def test_a_record_of_a_lost_log_is_not_one_of_the_restored_log(
    tmp_path: Path, error: BaseException, records: int, restore: Callable[[Lost], spark_log.Log]
) -> None:
    """Its commit names an object that is not there.  The restored log opens, whole, until it has passed the record."""
    lost = Lost(tmp_path, error, records)
    log = restore(lost)
    with pytest.raises((SparkLogError, Killed)):
        lost.late.append("t", [{"value": b"late"}])
    late, written = log_key(lost.version + 1), [b"old"]
    assert late in log.journal.metadata.list(LOG)
    while log.journal.state.version < lost.version + 3:
        assert not repair(LocalStore(lost.url), is_alive=lambda holder: False, dry_run=True).needed
        with spark_log.connect(lost.url) as other:
            assert values(other) == written and not verify(other)
        written.append(b"new %d" % len(written))
        log.append("t", [{"value": written[-1]}])
    assert values(log) == values(spark_log.connect(lost.url)) == written
    maintain_once(log)
    assert not verify(log)


def test_a_hole_in_a_restored_log_is_one(tmp_path: Path) -> None:
    """Behind it are records of the log's own history, or of one that begins in the hole."""
    log = new_log(tmp_path / "log")
    copy = copy_of(log, tmp_path / "copy")
    first = log.journal.state.version + 1
    log = restored(str(tmp_path / "log"), copy)
    for _ in range(8):
        log.append("t", [{"value": b"new"}])
    store = log.journal.metadata
    for version in (log.journal.state.version - 2, *range(first, first + 3)):
        store.delete([log_key(version)])
        with pytest.raises(CorruptObject, match="is missing, but"):
            spark_log.connect(store.url)


def test_a_record_without_an_answer_is_taken_back_from_a_disk_that_was_set_back(tmp_path: Path) -> None:
    """Nothing else would say that it is not of the log."""
    lost = Lost(tmp_path, StorageUnavailable("no answer"), 8)
    log = lost.set_back()
    with pytest.raises(LogRestored) as raised:
        lost.late.append("t", [{"value": b"late"}])
    assert raised.value.maybe_applied
    assert log_key(lost.version + 1) not in log.journal.metadata.list(LOG)
    assert values(spark_log.connect(lost.url)) == [b"old"]


class Interrupted(Wrapper):
    """A store in which something happens after its next operation of one kind on such a file."""

    def __init__(self, inner: LocalStore) -> None:
        super().__init__(inner)
        self._next: tuple[str, str, Callable[[], object]] | None = None

    def after(self, operation: str, prefix: str, happens: Callable[[], object]) -> None:
        self._next = operation, prefix, happens

    def _did(self, operation: str, key: str) -> None:
        if self._next is not None and operation == self._next[0] and key.startswith(self._next[1]):
            happens, self._next = self._next[2], None
            happens()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        found = super().get(key, start, end)
        self._did("get", key)
        return found

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        super().put(key, chunks)
        self._did("put", key)

    def list(self, prefix: str) -> Names:
        found = super().list(prefix)
        self._did("list", prefix)
        return found

    def delete(self, keys: Iterable[str]) -> None:
        some = [*keys]
        super().delete(some)
        self._did("delete", some[0])


class Replaced:
    """A log with 20 more changes than its copy, a client of it, and the store of that client."""

    def __init__(self, folder: Path, *, known_early: bool = False) -> None:
        """
        known_early:  the client knows no checkpoint that is newer than the copy.
        """
        self.url = str(folder / "log")
        log = new_log(folder / "log")
        log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1", "metadata.checkpoint.interval": "1000"}})
        log.append("t", [{"value": b"old"}])
        self._copy = copy_of(log, folder / "copy")
        self._written = [b"old"]
        self.store = Interrupted(LocalStore(self.url))
        self.client = spark_log.Log(Journal.open(self.store, create=False))
        for _ in range(20):
            if known_early and not self.client.journal.view.checkpoint:
                maintain_once(self.client)
            self.client.append("t", [{"value": b"lost"}])
        if not known_early:
            maintain_once(self.client)
        self.client.append("t", [{"value": b"lost"}])

    def restore(self, checkpoints: int = 0, records: int = 1) -> None:
        """With new records, and so many checkpoints after the copy's own."""
        log = restored(self.url, self._copy)
        for number in range(records):
            self._written.append(b"new %d" % number)
            log.append("t", [{"value": self._written[-1]}])
            if number < checkpoints:
                log.journal.run(log.journal.metadata_log.checkpoint(log.journal.view))

    def check(self) -> None:
        with spark_log.connect(self.url) as log:
            assert log.journal.state.restores and values(log) == self._written and not verify(log)


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("checkpoints", [0, 2])
def test_maintenance_writes_no_checkpoint_of_a_lost_log(tmp_path: Path, checkpoints: int) -> None:
    """It would take the place of the restored log's newest checkpoint, however many that has written."""
    replaced = Replaced(tmp_path, known_early=bool(checkpoints))
    journal = replaced.client.journal
    replaced.restore(checkpoints, 1 + checkpoints)
    assert spark_log.connect(replaced.url).journal.state.version < journal.state.version
    with pytest.raises(LogRestored):
        journal.run(journal.metadata_log.checkpoint(journal.view))
    replaced.check()


def test_maintenance_of_a_process_that_knows_no_record_writes_no_checkpoint_of_a_lost_log(tmp_path: Path) -> None:
    """The log was opened from its newest checkpoint.  The restored log has another record at that version."""
    replaced = Replaced(tmp_path)
    maintain_once(replaced.client)
    journal = Journal.open(replaced.store, create=False)
    assert not journal.view.head and journal.view.checkpoint
    replaced.restore(records=40)
    with pytest.raises(LogRestored):
        journal.run(journal.metadata_log.checkpoint(journal.view))
    replaced.check()


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("checkpoints", [0, 2])
def test_maintenance_takes_the_checkpoint_of_a_lost_log_back(tmp_path: Path, checkpoints: int) -> None:
    """It was put after the log was restored, and was to be put before."""
    replaced = Replaced(tmp_path, known_early=bool(checkpoints))
    journal = replaced.client.journal
    restore = partial(replaced.restore, checkpoints, 1 + checkpoints)
    replaced.store.after("list", CHECKPOINTS, lambda: replaced.store.after("list", CHECKPOINTS, restore))
    with pytest.raises(LogRestored):
        journal.run(journal.metadata_log.checkpoint(journal.view))
    replaced.check()


def test_a_log_is_not_opened_from_the_checkpoint_of_a_lost_one(tmp_path: Path) -> None:
    """It was read before the log was restored, and the records after it are read afterwards."""
    replaced = Replaced(tmp_path)
    maintain_once(replaced.client)
    replaced.store.after("get", CHECKPOINTS, replaced.restore)
    assert Journal.open(replaced.store, create=False).state == spark_log.connect(replaced.url).journal.state
    replaced.check()


# Promise: copies.md#restore-a-log-from-a-copy
def test_garbage_of_a_lost_log_is_not_deleted_in_the_restored_one(tmp_path: Path) -> None:
    """The new objects are garbage for a process that knows the lost log, and lists the restored one."""
    replaced = Replaced(tmp_path)
    journal = replaced.client.journal
    maintain_once(replaced.client)
    view, context = journal.view, journal.context
    replaced.restore()
    look = partial(journal.metadata_log.refresh, view)
    with pytest.raises(LogRestored):
        journal.run(collect(view.state, context, look=look))
    replaced.check()


class SetBack:
    """A log of which maintenance has deleted a topic's objects, an older snapshot of its disk that has them, and the
    maintenance of a process that knows nothing of the snapshot."""

    def __init__(self, folder: Path) -> None:
        self._url, self._snapshot = str(folder / "log"), folder / "snapshot"
        log = new_log(folder / "log")
        log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
        log.append("t", [{"value": b"old"}])
        log.journal.finish_maintenance()
        shutil.copytree(folder / "log", self._snapshot)
        log.admin.delete_topics(["t"])
        pass_the_fence(log)
        self.store = Interrupted(LocalStore(self._url))
        self._journal = Journal.open(self.store, create=False)

    def set_back(self) -> None:
        """To the snapshot, which then has as many versions as the log had."""
        with set_back(self._url, self._snapshot) as log:
            while log.journal.state.version <= self._journal.view.state.version:
                log.append("t", [{"value": b"new"}])

    def collect(self) -> list[str]:
        journal, view = self._journal, self._journal.view
        look = partial(journal.metadata_log.refresh, view)
        names, remembered = journal.run(collect(view.state, journal.context, look=look))
        assert remembered is None
        return names

    def check(self) -> None:
        with spark_log.connect(self._url) as log:
            assert values(log)[:2] == [b"old", b"new"] and not verify(log)


# Promise: copies.md#if-you-restore-a-disk-snapshot
def test_garbage_of_a_log_that_was_set_back_is_not_deleted_there(tmp_path: Path) -> None:
    """A snapshot of the disk has the objects of a topic that was deleted after it, and begins no history."""
    lost = SetBack(tmp_path)
    lost.set_back()
    assert lost.collect() == []
    lost.check()


# Promise: copies.md#if-you-restore-a-disk-snapshot
def test_a_disk_is_set_back_while_garbage_is_deleted(tmp_path: Path) -> None:
    """The deletions that are under way are the only ones."""
    lost = SetBack(tmp_path)
    for number in range(1500):
        lost.store.put(data_key(0, f"{number:04d}.seg"), [b"never committed"])
    lost.store.after("delete", data_key(0, ""), lost.set_back)
    assert lost.collect() == [data_key(0, f"{number:04d}.seg") for number in range(1000)]
    lost.check()
