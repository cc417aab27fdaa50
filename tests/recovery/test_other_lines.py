"""Clients wrote after versions were lost, and then somebody copies files of the lost versions back beside theirs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log import Log
from spark_log.errors import CorruptObject, InvalidRequest, LogRestored
from spark_log.journal.journal import Journal
from spark_log.journal.other_lines import records_of_other_lines
from spark_log.maintenance.maintain import checkpoint, maintain_round
from spark_log.recovery.log_move import move_log
from spark_log.recovery.lost_ends import lost_text
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_repair import verify_and_repair
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG, log_key
from tests.recovery.test_lost_ends import lose_after, pass_the_fence, repaired, young_log
from tests.recovery.test_partly_restored_ends import LostEnd
from tests.server.quorum.founding import Nodes, adopt, cluster_id

LOST = [f"b{number}" for number in range(5)]


def values(log: Log) -> list[str]:
    """The values after the first three."""
    return [one.decode() for one in log.read("t").column("value").to_pylist()][3:]


class LateWrites(LostEnd):
    """Clients have written after the loss; `copy` is a copy of the log from before it."""

    def __init__(self, folder: Path, late: int = 1, *, with_checkpoint: bool = False) -> None:
        super().__init__(folder / "log", is_noted=False)
        self.copy = folder / "copy"
        shutil.copytree(self.folder, self.copy)
        for version, data in self.records.items():
            (self.copy / log_key(version)).write_bytes(data)
        if with_checkpoint:
            checkpoint(spark_log.connect(str(self.copy)))
        self.late = [f"LATE{number}" for number in range(late)]
        self.client = self.opened()
        for value in self.late:
            self.client.append("t", [{"value": value}])

    def put_back(self, command: str) -> None:
        """With `$log` and `$copy` as the folders."""
        variables = {"log": str(self.folder), "copy": str(self.copy), "PATH": "/bin:/usr/bin"}
        subprocess.run(command, shell=True, env=variables, check=False)

    def others(self) -> list[str]:
        """The records that do not count, as `verify` names them."""
        found = verify(self.opened())
        return [one.what for one in found if "the log has another version" in one.message]


RECORDS, ALL = "cp -n $copy/meta/log/* $log/meta/log/", "cp -rn $copy/. $log/"
NEWEST = "cp $(ls -d $copy/meta/ckpt/* | tail -1) $log/meta/ckpt/"


# Promise: format/metadata.md#records
@pytest.mark.parametrize(
    ("command", "late", "with_checkpoint", "kept", "others"),
    [
        (RECORDS, 1, False, ["LATE0"], (2, 5)),
        (ALL, 3, False, ["LATE0", "LATE1", "LATE2"], (4, 5)),
        (NEWEST, 1, True, LOST, (1, 1)),
        (ALL, 3, True, LOST, (1, 3)),
        ("cp $copy/meta/log/* $log/meta/log/", 7, False, LOST, (6, 7)),
        (
            "cp $(ls -d $copy/meta/log/* | tail -1) $log/meta/log/",
            7,
            False,
            ["LATE0", "LATE1", "LATE2", "LATE3"],
            (5, 7),
        ),
    ],
)
def test_two_lines_are_not_replayed_as_one(
    tmp_path: Path, command: str, late: int, with_checkpoint: bool, kept: list[str], others: tuple[int, int]
) -> None:
    """Otherwise the log would be a mixture, in which offsets of acknowledged records shift."""
    end = LateWrites(tmp_path, late, with_checkpoint=with_checkpoint)
    end.put_back(command)
    with end.opened() as log:
        assert values(log) == kept
        log.append("t", [{"value": "NEXT"}])
        assert values(log) == values(end.opened()) == [*kept, "NEXT"]
        assert end.others() == [log_key(end.version + number) for number in range(others[0], others[1] + 1)]


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize(("command", "with_checkpoint"), [(RECORDS, False), (NEWEST, True)])
def test_what_does_not_count_is_kept_until_it_is_given_up(tmp_path: Path, command: str, with_checkpoint: bool) -> None:
    """Whatever maintenance does."""
    end = LateWrites(tmp_path, with_checkpoint=with_checkpoint)
    end.put_back(command)
    log, names = end.opened(), end.others()
    found = log.journal.run(records_of_other_lines(log.journal.state))
    objects = {name for one in found for name in one.objects}
    assert objects and pass_the_fence(log) and objects <= {*end.store.list(DATA)}
    assert {*names} <= {*end.store.list(LOG)}, "no fence passes them"
    log.close()
    report = repaired(end.folder)
    assert [one.key for one in report.others] == names and {*names} <= {*report.moved}
    assert not {*names} & {*end.store.list(LOG)}
    log = end.opened()
    assert pass_the_fence(log) and objects <= {*end.store.list(DATA)}
    (problem,) = verify(log)
    assert "given again" in problem.message and all(name in problem.message for name in objects)
    assert "given again" in lost_text(log.journal) and not repaired(end.folder).needed
    assert verify_and_repair(log, repair=True, lose_data=True).problems == ()
    assert pass_the_fence(log) == [] and not objects & {*end.store.list(DATA)}


def test_a_log_is_not_moved_away_from_what_does_not_count(tmp_path: Path) -> None:
    """The objects would stay in the former place, and nothing would name them."""
    end = LateWrites(tmp_path)
    end.put_back(RECORDS)
    with (
        end.opened() as log,
        pytest.raises(InvalidRequest, match="the log has another version .* `pylog repair` moves"),
    ):
        move_log(log, LocalStore(str(tmp_path / "new")))
    store = LocalStore(str(end.folder))
    with pytest.raises(InvalidRequest, match="the log has another version"):
        adopt(store, Nodes(tmp_path, cluster_id(store)))


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_records_behind_a_hole_are_not_replayed_when_it_is_filled(tmp_path: Path) -> None:
    end = LateWrites(tmp_path)
    end.copy_back(end.version + 2)
    with pytest.raises(CorruptObject, match=f"versions {end.version + 1} .*given again"):
        repaired(end.folder)
    end.copy_back(*range(end.version + 3, end.version + 6))
    assert values(end.opened()) == ["LATE0"]


def test_a_client_that_wrote_late_continues_in_its_line(tmp_path: Path) -> None:
    end = LateWrites(tmp_path)
    end.put_back(RECORDS)
    end.client.append("t", [{"value": "NEXT"}])
    assert values(end.client) == values(end.opened()) == ["LATE0", "NEXT"]
    assert not end.client.journal.state.set_backs


def test_a_client_that_has_read_the_lost_versions_notices_the_other_line(tmp_path: Path) -> None:
    """Its record is there, so it has to compare what follows."""
    log = young_log(tmp_path)
    version = log.journal.state.version
    for value in ("b0", "b1"):
        log.append("t", [{"value": value}])
    record = tmp_path / log_key(version + 1)
    data, last = record.read_bytes(), tmp_path / log_key(version + 2)
    other = last.read_bytes()
    record.unlink()
    last.unlink()
    with spark_log.connect(str(tmp_path), create=False) as late:
        late.append("t", [{"value": "LATE"}])
        last.write_bytes(other)
        late.append("t", [{"value": "NEXT"}])
    assert data and values(log) == ["LATE", "NEXT"]
    assert log.journal.state.set_backs and log.journal.state.line == spark_log.connect(str(tmp_path)).journal.state.line


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_only_its_writer_notices_that_the_one_late_record_was_overwritten(tmp_path: Path) -> None:
    """The record leaves an object, as a writer does that is killed before its commit."""
    end = LateWrites(tmp_path)
    end.put_back("cp $copy/meta/log/* $log/meta/log/")
    with end.opened() as log:
        assert values(log) == LOST and verify(log) == []
    assert not end.client.journal.state.set_backs
    end.client.append("t", [{"value": "NEXT"}])
    assert end.client.journal.state.set_backs and values(end.opened()) == [*LOST, "NEXT"]


def test_a_record_that_takes_the_name_of_a_deleted_one_is_none_of_another_line(tmp_path: Path) -> None:
    """A request that hung until the log had deleted the record."""
    log = young_log(tmp_path)
    first = (tmp_path / log_key(1)).read_bytes()
    assert pass_the_fence(log) == []
    deleted = log.journal.state.version - 6
    (tmp_path / log_key(deleted)).write_bytes(first)
    assert log.journal.run(records_of_other_lines(log.journal.refresh())) == []
    assert verify(log) == [] and pass_the_fence(log) == []


def test_maintenance_says_what_is_in_its_way(tmp_path: Path) -> None:
    end = LateWrites(tmp_path)
    end.put_back(RECORDS)
    log = end.opened()
    pass_the_fence(log)
    (first, *_) = maintain_round(log).problems
    assert f"nothing is deleted, because of {log_key(end.version + 2)}" in first
    assert "and 3 more" in first and "`pylog repair` moves the file away" in first
    assert len(end.store.list(CHECKPOINTS)) == 2


class IdleClient(LateWrites):
    """A client that has read the lost versions, and was idle until some of them were copied back."""

    def __init__(self, folder: Path, *, store: Callable[[Path], ObjectStore]) -> None:
        super().__init__(folder)
        self.clock = SkewedTime()
        shutil.rmtree(self.folder / "meta")
        shutil.copytree(self.copy / "meta", self.folder / "meta")
        self.idle = Log(Journal.open(store(self.folder), create=False, clock=self.clock))
        assert values(self.idle) == LOST
        lose_after(self.folder, self.version)
        with self.opened() as late:
            late.append("t", [{"value": "LATE0"}])
        self.put_back(RECORDS)
        assert (self.folder / log_key(self.idle.journal.state.version)).exists()

    def wait(self, milliseconds: int) -> None:
        self.clock.passed_ms += milliseconds


def on_disk(folder: Path) -> ObjectStore:
    return LocalStore(str(folder))


class Bucket(Wrapper):
    """A store whose requests are slow."""

    local = False

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalStore(str(folder)))


class SkewedTime(SystemClock):
    """The system's clock, whose monotonic time a test advances."""

    passed_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.passed_ms


# Promise: format/metadata.md#records
def test_an_idle_client_gets_no_acknowledgement_for_a_record_that_does_not_count(tmp_path: Path) -> None:
    """The record that it follows is there, and one before that is another one by now."""
    end = IdleClient(tmp_path, store=on_disk)
    end.wait(2000)
    end.idle.append("t", [{"value": "NEXT"}])
    assert values(end.idle) == values(end.opened()) == ["LATE0", "NEXT"]
    assert end.idle.journal.state.set_backs


def test_an_idle_client_does_not_go_back_to_a_log_with_fewer_versions(tmp_path: Path) -> None:
    """Its commits are not in it, so it has to hear of that."""
    end = IdleClient(tmp_path, store=on_disk)
    end.wait(2000)
    for name in end.store.list(LOG)[-3:]:
        (end.folder / name).unlink()
    with pytest.raises(LogRestored):
        end.idle.append("t", [{"value": "NEXT"}])
    assert values(end.opened()) == ["LATE0"]


# Promise: format/metadata.md#records
@pytest.mark.parametrize("store", [on_disk, Bucket])
def test_no_checkpoint_of_another_line_takes_the_place_of_the_log(
    tmp_path: Path, store: Callable[[Path], ObjectStore]
) -> None:
    end = IdleClient(tmp_path, store=store)
    end.wait(2000)
    journal = end.idle.journal
    view = journal.run(journal.metadata_log.checkpoint(journal.view))
    assert view.state.set_backs and end.store.list(CHECKPOINTS)[-1] == view.checkpoint
    assert values(end.opened()) == ["LATE0"]
    assert end.others() == [log_key(end.version + number) for number in range(2, 6)]
