"""Records that a process of a lost log puts into the folder of the log that was restored there from an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import CorruptObject, LogRestored, SparkLogError, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.journal.object_names import LOG, log_key
from spark_log.node.maintain import maintain_once
from spark_log.node.repair import repair
from spark_log.node.verify import verify
from spark_log.store.local import LocalStore
from spark_log.testing.stores import Wrapper
from tests.node.logs import new_log
from tests.restored import copy_of, restored, set_back


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
        log.journal.finish_upkeep()
        self._copy = copy_of(log, folder / "copy")
        self._snapshot = shutil.copytree(folder / "log", folder / "snapshot")
        self.store = Unanswered(LocalStore(self.url), error)
        self.late = spark_log.Log(Journal.open(self.store, create=False))
        for _ in range(records):
            self.late.append("t", [{"value": b"lost"}])
        self.late.journal.finish_upkeep()
        self.version = self.late.journal.state.version

    def restore(self) -> spark_log.Log:
        self.store.answers = False
        return restored(self.url, self._copy)

    def set_back(self) -> spark_log.Log:
        """A snapshot of the disk begins no history."""
        self.store.answers = False
        return set_back(self.url, self._snapshot)


def values(log: spark_log.Log) -> list[bytes]:
    return list(log.read("t", columns=["value"])["value"].to_pylist())


@pytest.mark.parametrize("records", [8, 13])
@pytest.mark.parametrize("error", [StorageUnavailable("no answer"), Killed()], ids=["unanswered", "killed"])
def test_a_record_of_a_lost_log_is_not_one_of_the_restored_log(
    tmp_path: Path, error: BaseException, records: int
) -> None:
    """Its commit names an object that is not there.  The restored log opens, whole, until it has passed the record."""
    lost = Lost(tmp_path, error, records)
    log = lost.restore()
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
