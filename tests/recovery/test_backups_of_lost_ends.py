"""A log that lacks what its last backup has is not backed up silently: the next removal would delete the only copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import LogRestored
from spark_log.maintenance.maintain import checkpoint
from spark_log.recovery.backup import check_follows
from spark_log.recovery.repair import repair
from tests.maintenance.logs import append_small, new_log
from tests.recovery.test_backup import Place
from tests.recovery.test_lost_ends import lose_after, store_of


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """With five commits, and a backup of them."""
    log = new_log(tmp_path / "log")
    append_small(log, 2)
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    append_small(log, 3, first=2)
    place = Place(log, tmp_path / "backups")
    check_follows(log, place.files)
    place.make()
    check_follows(log, place.files)
    return place


def opened(folder: Path) -> spark_log.Log:
    return spark_log.connect(str(folder), create=False)


# Promise: tasks/backup.md#if-the-log-lacks-what-the-backups-have
@pytest.mark.parametrize("written", [0, 2, 3, 20, 100])
def test_a_log_that_has_lost_versions_is_refused(place: Place, tmp_path: Path, written: int) -> None:
    """Also when it has as many again, or more."""
    place.log.close()
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "older", tmp_path / "log")
    log = opened(tmp_path / "log")
    append_small(log, written, first=100)
    with pytest.raises(LogRestored, match="give --force once, or begin new backups in an empty folder"):
        check_follows(log, place.files)


def test_the_last_records_are_lost(place: Place, tmp_path: Path) -> None:
    version = place.log.journal.refresh().version
    place.log.close()
    lose_after(tmp_path / "log", version - 2)
    with pytest.raises(LogRestored, match=f"of version {version}, and .* has version {version - 2}"):
        check_follows(opened(tmp_path / "log"), place.files)


def test_a_backup_that_was_made_nevertheless_is_continued(place: Place, tmp_path: Path) -> None:
    log = opened(tmp_path / "older")
    shutil.copytree(tmp_path / "older", tmp_path / "again")
    place.log = opened(tmp_path / "again")
    append_small(place.log, 1, first=100)
    place.make()
    check_follows(place.log, place.files)
    append_small(place.log, 1, first=101)
    check_follows(place.log, place.files)
    with pytest.raises(LogRestored):
        check_follows(log, place.files)


@pytest.mark.parametrize("more", [0, 1, 100])
def test_a_log_that_goes_on_is_backed_up(place: Place, more: int) -> None:
    """Whatever it has merged and deleted since."""
    append_small(place.log, more, first=100)
    spark_log.connect(place.log.url).admin.delete_topics(["t"])
    checkpoint(place.log)
    check_follows(place.log, place.files)


def test_a_log_with_an_accepted_loss_is_backed_up(place: Place, tmp_path: Path) -> None:
    """Somebody has decided it."""
    version = place.log.journal.refresh().version
    place.log.close()
    lose_after(tmp_path / "log", version - 2)
    store = store_of(tmp_path / "log")
    store.put(f"data/{version + 5:016x}/0123456789abcdef.seg", (b"x",))
    repair(store, is_alive=lambda _: False, accept_loss=True)
    check_follows(opened(tmp_path / "log"), place.files)
