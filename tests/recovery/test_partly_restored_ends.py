"""The last versions of a log are lost, and only some of their files are copied back, or clients have written since."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import SkewedClock
from spark_log import Log
from spark_log.errors import CorruptObject
from spark_log.journal.journal import Journal
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.maintenance.maintain import checkpoint, maintain_round
from spark_log.recovery.lost_ends import lost_text
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_repair import verify_and_repair
from spark_log.runtime.clock import SystemClock
from spark_log.store.object_names import (
    CHECKPOINTS,
    DATA,
    LOG,
    LOST_VERSIONS,
    checkpoint_version,
    data_key,
    log_key,
    log_version,
)
from tests.recovery.test_lost_ends import FENCE_MS, lose_after, pass_the_fence, repaired, store_of, young_log


class LostEnd:
    """A log that has lost its last five commits, which maintenance has noticed."""

    def __init__(self, folder: Path, *, is_noted: bool = True) -> None:
        log = young_log(folder)
        self.folder, self.store, self.version = folder, store_of(folder), log.journal.state.version
        before = {*self.store.list(DATA)}
        for number in range(5):
            log.append("t", [{"value": f"b{number}"}])
        log.close()
        self.objects = {*self.store.list(DATA)} - before
        self.records = {log_version(name): self.store.get(name) for name in self.store.list(LOG)}
        lose_after(folder, self.version)
        if is_noted:
            assert maintain_round(self.opened()).problems

    def opened(self) -> Log:
        return spark_log.connect(str(self.folder), create=False)

    def copy_back(self, *versions: int) -> None:
        for version in versions:
            self.store.put(log_key(version), (self.records[version],))


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("copied", [1, 3, 4])
def test_a_loss_lasts_until_all_its_objects_are_named_again(tmp_path: Path, copied: int) -> None:
    end = LostEnd(tmp_path)
    end.copy_back(*range(end.version + 1, end.version + copied + 1))
    log = end.opened()
    for text in (verify(log)[-1].message, lost_text(log.journal), *maintain_round(log).problems):
        assert f"Copy ALL files of meta/log/ after version {end.version + copied}" in text and "again, with" not in text
    assert pass_the_fence(log) and end.objects <= {*end.store.list(DATA)}
    assert end.store.size(LOST_VERSIONS)


def test_a_loss_that_was_restored_step_by_step_is_over(tmp_path: Path) -> None:
    end = LostEnd(tmp_path)
    for version in range(end.version + 1, end.version + 6):
        end.copy_back(version)
        assert bool(maintain_round(end.opened()).problems) == (version < end.version + 5)
    log = end.opened()
    assert verify(log) == [] and lost_text(log.journal) == "" and pass_the_fence(log) == []
    assert end.store.size(LOST_VERSIONS) is None
    assert [one.decode() for one in log.read("t").column("value").to_pylist()][3:8] == [f"b{n}" for n in range(5)]


def test_what_is_left_after_a_copy_in_part_can_be_given_up(tmp_path: Path) -> None:
    end = LostEnd(tmp_path)
    end.copy_back(end.version + 1, end.version + 2)
    log = end.opened()
    maintain_round(log)
    assert verify_and_repair(log, repair=True, lose_data=True).problems == ()
    assert pass_the_fence(log, appends=3) == [] and lost_text(log.journal) == ""
    assert not {name for name in end.objects & {*end.store.list(DATA)} if name not in log.journal.state.objects}
    assert end.store.size(LOST_VERSIONS) is None


def test_writes_after_a_copy_in_part_are_told_from_what_was_copied(tmp_path: Path) -> None:
    end = LostEnd(tmp_path)
    end.copy_back(end.version + 1, end.version + 2)
    log = end.opened()
    time.sleep(3 * FENCE_MS / 1000)
    log.append("t", [{"value": "LATE"}])
    (problem,) = verify(log)
    assert f"version {end.version + 3} was given again" in problem.message
    assert "Do not copy files of lost versions" in problem.message and "No record names 3 objects" in problem.message
    assert maintain_round(log).problems


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_write_after_the_loss_is_named(tmp_path: Path, is_noted: bool) -> None:
    """Copying a later file would replace it."""
    end = LostEnd(tmp_path, is_noted=is_noted)
    log = end.opened()
    time.sleep(3 * FENCE_MS / 1000)
    log.append("t", [{"value": "LATE"}])
    for text in (verify(log)[-1].message, lost_text(log.journal), *maintain_round(log).problems):
        assert f"version {end.version + 1} was given again" in text and "Do not copy files" in text
        assert f"at least versions {end.version + 1} to {end.version + 4} of the log are lost" in text
    log.close()
    with pytest.raises(CorruptObject, match=f"version {end.version + 1} was given again.*Do not copy"):
        repaired(tmp_path)


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("is_noted", [False, True])
def test_a_client_that_was_not_stopped_does_not_hide_a_write_after_the_loss(tmp_path: Path, is_noted: bool) -> None:
    """It uploads, and its commit is refused.  Copying a later file would replace what others have written."""
    end = LostEnd(tmp_path, is_noted=False)
    log = end.opened()
    time.sleep(3 * FENCE_MS / 1000)
    log.append("t", [{"value": "LATE"}])
    if is_noted:
        assert "Do not copy files" in maintain_round(log).problems[0]
    time.sleep(3 * FENCE_MS / 1000)
    end.store.put(data_key(end.version + 5, "0123456789abcdef.seg"), (b"x",))
    for text in (lost_text(log.journal), *maintain_round(log).problems):
        assert f"version {end.version + 1} was given again" in text and "Do not copy files" in text


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_an_upload_without_a_commit_is_not_a_loss_of_versions_that_were_copied_back(tmp_path: Path) -> None:
    """Its note lasts, but nothing was given again: who appends records from a backup would have them twice."""
    end = LostEnd(tmp_path, is_noted=False)
    end.store.put(data_key(end.version + 2, "0123456789abcdef.seg"), (b"x",))
    assert maintain_round(end.opened()).problems
    end.copy_back(*range(end.version + 1, end.version + 6))
    log = end.opened()
    assert "no record names 1 object" in lost_text(log.journal)
    time.sleep(3 * FENCE_MS / 1000)
    log.append("t", [{"value": "LATE"}])
    for text in (verify(log)[-1].message, lost_text(log.journal), *maintain_round(log).problems):
        assert "given again" not in text and "no record names 1 object" in text
        assert f"from version {end.version + 6} on, so do not copy files" in text
    assert verify_and_repair(log, repair=True, lose_data=True).problems == ()
    assert log.read("t").num_rows == 9


def test_the_rest_of_a_copy_in_part_is_lost_and_not_what_was_copied(tmp_path: Path) -> None:
    end = LostEnd(tmp_path)
    end.copy_back(end.version + 1, end.version + 2)
    log = end.opened()
    time.sleep(3 * FENCE_MS / 1000)
    log.append("t", [{"value": "LATE"}])
    assert f"at least versions {end.version + 3} to {end.version + 4} of the log are lost" in lost_text(log.journal)


def test_a_loss_with_a_list_of_dropped_objects_ends(tmp_path: Path) -> None:
    log = young_log(tmp_path)
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "3600000"}})
    version, store = log.journal.state.version, store_of(tmp_path)
    log = Log(Journal.open(store, create=False, limits=replace(LIMITS, dropped_inline=0)))
    log.append("t", [{"value": "b"}])
    log.admin.delete_topics(["t"])
    maintain_round(log)
    assert log.journal.state.dropped_lists
    records = {name: store.get(name) for name in store.list(LOG)}
    lose_after(tmp_path, version)
    store.delete([name for name in store.list(CHECKPOINTS) if checkpoint_version(name) > version])
    assert maintain_round(spark_log.connect(str(tmp_path))).problems
    for name, data in records.items():
        store.put(name, (data,))
    assert lost_text(spark_log.connect(str(tmp_path)).journal) == ""


def test_a_loss_after_another_one_was_given_up_is_noticed(tmp_path: Path) -> None:
    """Also before the log has as many versions again as it had before the first one."""
    end = LostEnd(tmp_path)
    log = end.opened()
    assert verify_and_repair(log, repair=True, lose_data=True).problems == ()
    for number in range(3):
        log.append("t", [{"value": f"c{number}"}])
    log.close()
    lose_after(tmp_path, end.version + 1)
    log = end.opened()
    assert lost_text(log.journal) and verify(log) and maintain_round(log).problems
    assert verify_and_repair(log, repair=True, lose_data=True).problems == ()
    assert maintain_round(log).problems == ()


class LostAhead(LostEnd):
    """The clock of the writers was ahead."""

    def __init__(self, folder: Path, *, is_noted: bool, before: int) -> None:
        """before:  commits with that clock before those that are lost."""
        young_log(folder).close()
        self.folder, self.store = folder, store_of(folder)
        ahead = SkewedClock(SystemClock(), 300_000)
        with Log(Journal.open(self.store, create=False, clock=ahead)) as log:
            for number in range(before):
                log.append("t", [{"value": f"a{number}"}])
            self.version = log.journal.state.version
            for number in range(5):
                log.append("t", [{"value": f"b{number}"}])
        self.records = {log_version(name): self.store.get(name) for name in self.store.list(LOG)}
        lose_after(folder, self.version)
        if is_noted:
            assert maintain_round(self.opened()).problems


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize(("copied", "before"), [(0, 1), (1, 1), (3, 1), (3, 0)])
@pytest.mark.parametrize("is_noted", [False, True])
def test_a_clock_that_was_ahead_does_not_say_that_versions_were_given_again(
    tmp_path: Path, copied: int, before: int, is_noted: bool
) -> None:
    """An operator who believes that stops to copy, and gives the rest up."""
    end = LostAhead(tmp_path, is_noted=is_noted, before=before)
    end.copy_back(*range(end.version + 1, end.version + copied + 1))
    if is_noted:
        maintain_round(end.opened())
    log = end.opened()
    for text in (verify(log)[-1].message, lost_text(log.journal), *maintain_round(log).problems):
        assert f"Copy ALL files of meta/log/ after version {end.version + copied}" in text and "again, with" not in text
    end.copy_back(*range(end.version + copied + 1, end.version + 6))
    log = end.opened()
    assert maintain_round(log).problems == () and lost_text(log.journal) == ""


class RestoredByCheckpoint(LostEnd):
    """A checkpoint of the last version but one was copied back; the objects of the last one are orphans."""

    def __init__(self, folder: Path, *, is_noted: bool) -> None:
        super().__init__(folder / "log", is_noted=is_noted)
        copy = folder / "copy"
        shutil.copytree(self.folder, copy)
        for version in sorted(self.records)[:-1]:
            (copy / log_key(version)).write_bytes(self.records[version])
        (copy / LOST_VERSIONS).unlink(missing_ok=True)
        checkpoint(spark_log.connect(str(copy)))
        newest = store_of(copy).list(CHECKPOINTS)[-1]
        self.store.put(newest, (store_of(copy).get(newest),))
        self.last = max(self.records)
        assert checkpoint_version(newest) == self.last - 1


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("is_noted", [False, True])
def test_an_upload_behind_a_checkpoint_that_was_copied_back_is_kept_for_its_record(
    tmp_path: Path, is_noted: bool
) -> None:
    """Maintenance neither writes its version, nor deletes it; clients may write."""
    end = RestoredByCheckpoint(tmp_path, is_noted=is_noted)
    for _ in range(3):
        (problem,) = maintain_round(end.opened()).problems
        assert f"the log is at version {end.last - 1}, and no record names 1 object" in problem
    assert end.opened().journal.state.version == end.last - 1 and end.objects <= {*end.store.list(DATA)}
    assert "no record names 1 object" in lost_text(end.opened().journal)
    end.copy_back(end.last)
    log = end.opened()
    assert maintain_round(log).problems == () and lost_text(log.journal) == ""
    assert [one.decode() for one in log.read("t").column("value").to_pylist()][3:] == [f"b{n}" for n in range(5)]


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_an_upload_behind_a_checkpoint_does_not_hold_up_writes_and_can_be_given_up(tmp_path: Path) -> None:
    end = RestoredByCheckpoint(tmp_path, is_noted=False)
    log = end.opened()
    assert maintain_round(log).problems
    (orphan,) = end.objects - {*log.journal.state.objects}
    log.append("t", [{"value": "LATE"}])
    assert pass_the_fence(log) and orphan in end.store.list(DATA) and orphan not in log.journal.state.objects
    assert [one.decode() for one in log.read("t").column("value").to_pylist()][7] == "LATE"
    assert verify_and_repair(log, repair=True, lose_data=True).problems == ()
    assert pass_the_fence(log) == [] and lost_text(log.journal) == ""
