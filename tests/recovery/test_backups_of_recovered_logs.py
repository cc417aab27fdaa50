"""Backups of a log that was recovered from a mirror, in the folder of the lost one; and lost descriptions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_log import connect
from spark_log.errors import InvalidRequest, NoLog
from spark_log.recovery.backup import kept_by_version, prune
from spark_log.recovery.backup_files import ABOUT
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.whole_copies import needed_objects
from spark_log.store.local import LocalStore
from tests.maintenance.logs import append_small, new_log
from tests.recovery.test_backup import CLOCK, Place, values


@pytest.fixture
def place(tmp_path: Path) -> Place:
    log = new_log(tmp_path / "log")
    append_small(log, 2)
    return Place(log, tmp_path / "backups")


# Promise: tasks/backup.md#restore
def test_a_recovered_log_continues_the_backups_of_the_lost_one(place: Place, tmp_path: Path) -> None:
    """Each backup has the records of one history, also one that the lost log had begun.  Nobody takes that of the lost
    log for the latest without knowing."""
    mirror = LocalStore(str(tmp_path / "mirror"), "os")
    begin_mirror(place.log, mirror)
    Mirror(place.log, mirror).round()
    append_small(place.log, 8, first=2)
    before, lost = place.make().backup, values(place.log)
    append_small(place.log, 2, first=10)
    place.dies_after(1)
    shutil.rmtree(tmp_path / "log")
    recover(mirror)
    place.log = connect(mirror.url, create=False)
    append_small(place.log, 1, first=50)
    after, found = place.make().backup, values(place.log)
    assert after.end.version < before.end.version and place.lost() == set()
    with pytest.raises(InvalidRequest, match="an older copy of the log took its place"):
        place.restored(tmp_path / "latest")
    assert values(place.restored(tmp_path / "after", after.id)[0]) == found
    assert values(place.restored(tmp_path / "before", before.id)[0]) == lost
    assert prune(place.files, CLOCK.now_ms(), keep=1).removed == ()
    assert kept_by_version(place.files, CLOCK.now_ms(), keep=1) == [before]
    assert kept_by_version(place.files, CLOCK.now_ms(), keep=2) == []
    append_small(place.log, 12, first=60)
    last = place.make().backup
    assert kept_by_version(place.files, CLOCK.now_ms(), keep=1) == []
    assert prune(place.files, CLOCK.now_ms(), keep=1).removed == (before.id, after.id)
    assert values(place.restored(tmp_path / "last", "latest")[0]) == values(place.log)
    assert [one.id for one in place.files.complete()] == [last.id]


# Promise: tasks/erase.md#copies-elsewhere
def test_a_backup_that_is_kept_for_its_version_is_removed_by_hand(place: Place, tmp_path: Path) -> None:
    """By the file that the job names: nothing is left of its records."""
    mirror = LocalStore(str(tmp_path / "mirror"), "os")
    begin_mirror(place.log, mirror)
    Mirror(place.log, mirror).round()
    append_small(place.log, 30, first=2)
    place.make()
    shutil.rmtree(tmp_path / "log")
    recover(mirror)
    place.log = connect(mirror.url, create=False)
    last = place.make().backup
    (kept,) = kept_by_version(place.files, CLOCK.now_ms(), keep=1)
    place.files.store.delete([kept.end.state])
    assert prune(place.files, CLOCK.now_ms(), keep=1).objects > 0
    assert [one.id for one in place.files.complete()] == [last.id]
    state = place.files.state(last.end.state)
    assert state is not None and place.files.places().keys() == needed_objects(state).keys()


# Promise: tasks/backup.md#if-a-job-is-killed
def test_backups_that_have_lost_their_description_are_restored(place: Place, tmp_path: Path) -> None:
    """They are continued when the operator says of which log they are; an empty folder may be that of another disk."""
    place.make()
    (place.root / ABOUT).unlink()
    place.files.check()
    assert values(place.restored(tmp_path / "new")[0]) == values(place.log)
    with pytest.raises(InvalidRequest, match="put this line into backups.json there") as refused:
        place.make()
    said = str(refused.value)
    (place.root / ABOUT).write_text(said[said.index("{") : said.index("}") + 1])
    append_small(place.log, 1, first=2)
    assert place.make().objects == 1
    shutil.rmtree(place.root)
    place.root.mkdir()
    with pytest.raises(NoLog, match="is its disk mounted"):
        place.files.check()
