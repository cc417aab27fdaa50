"""Records of a log that come late: a process that slept puts them when the log has deleted what had their names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.errors import InvalidRequest
from spark_log.journal.storage.seen_log import is_set_back, seen_by
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.formats.batch_format import encode_batch
from spark_log.metadata.records import Batch
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, LOG, log_key, log_version
from tests.maintenance.logs import append_small, new_log


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """A log that keeps few records."""
    log = new_log(tmp_path / "log")
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1", "metadata.checkpoint.interval": "2"}})
    append_small(log, 3)
    return log


def come_late(log: spark_log.Log, version: int) -> None:
    """The log deletes the record of a version, and a record that has lost against it comes."""
    for _ in range(4):
        append_small(log, 3)
        maintain_once(log)
    log.journal.finish_maintenance()
    store = log.journal.metadata
    assert log_key(version) not in store.list(LOG), "it was deleted"
    assert store.put_new(log_key(version), b"pylog-batch 1 2 00000000\n{}")


def test_a_late_record_is_not_taken_for_a_restored_log(log: spark_log.Log, tmp_path: Path) -> None:
    """At the mirror's version: the mirror is behind, and nothing else."""
    store = LocalStore(str(tmp_path / "mirror"))
    begin_mirror(log, store)
    before = Mirror(log, store).round().version
    come_late(log, before)
    with pytest.raises(InvalidRequest, match="has deleted or lost records or objects of the versions up to the newest"):
        Mirror(log, store).round()
    assert Mirror(log, store).round(catch_up=True).version == log.journal.state.version


def test_a_late_record_is_not_copied(log: spark_log.Log, tmp_path: Path) -> None:
    """After the mirror's version; a deletion that was killed has left other records."""
    folder, logged = tmp_path / "mirror", dict[str, bytes]()
    begin_mirror(log, LocalStore(str(folder)))
    for _ in range(12):
        Mirror(log, LocalStore(str(folder))).round(catch_up=True)
        shutil.copytree(folder, tmp_path / str(log.journal.state.version), dirs_exist_ok=True)
        append_small(log, 1)
        maintain_once(log)
        logged |= {name: log.journal.metadata.get(name) for name in log.journal.metadata.list(LOG)}
    log.journal.finish_maintenance()
    first = log_version(log.journal.metadata.list(LOG)[0])
    before = max(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit() and int(path.name) < first - 1)
    for version in {before, *range(before + 2, first)}:
        log.journal.metadata.put_new(log_key(version), logged[log_key(version)])
    log.journal.metadata.put_new(log_key(before + 1), encode_batch(Batch(id="late", time=1, records=())))
    with pytest.raises(InvalidRequest, match="has deleted or lost records or objects of the versions up to the newest"):
        Mirror(log, LocalStore(str(tmp_path / str(before)))).round()


def test_a_late_record_does_not_say_that_the_disk_was_set_back(log: spark_log.Log) -> None:
    """As a query and an export would take it, and would be refused."""
    seen = seen_by(log.journal, log.journal.refresh())
    assert seen.record
    come_late(log, seen.version)
    assert not is_set_back(spark_log.connect(log.journal.metadata.url).journal, seen)


class Slow(Wrapper):
    """The root of a mirror, to which another process copies as soon as this one lists its checkpoints."""

    def __init__(self, log: spark_log.Log, store: LocalStore) -> None:
        super().__init__(store)
        self._other: Mirror | None = Mirror(log, store)
        self._log = log

    def list(self, prefix: str) -> list[str]:
        other, self._other = (self._other, None) if prefix == CHECKPOINTS else (None, self._other)
        if other is not None:
            append_small(self._log, 2)
            other.round()
        return super().list(prefix)


def test_a_mirror_that_another_process_has_brought_further_is_not_refused(tmp_path: Path) -> None:
    """The log keeps its records for the usual time: neither process comes too late for them."""
    log = new_log(tmp_path / "log")
    append_small(log, 3)
    store = LocalStore(str(tmp_path / "mirror"))
    begin_mirror(log, store)
    Mirror(log, store).round()
    mirror = Mirror(spark_log.connect(log.journal.metadata.url), Slow(log, store))
    assert mirror.round().version == log.journal.state.version
