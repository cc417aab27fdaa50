"""A client of a log that was set back to an older copy leaves a record behind the end of the copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from spark_log import Log
from spark_log.errors import CorruptObject, LogRestored
from spark_log.maintenance.maintain import maintain_once, maintain_round
from spark_log.recovery.repair import RepairReport, repair
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_repair import verify_and_repair
from spark_log.store.local import LocalStore
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG, log_key, log_version
from tests.maintenance.logs import new_log
from tests.recovery.test_records_of_lost_logs import Killed, Lost, values


def left_behind(folder: Path, records: int) -> tuple[Lost, str]:
    """A log that was set back, and the record that a client has left there, which was killed."""
    lost = Lost(folder, Killed(), records)
    lost.set_back()
    with pytest.raises(Killed):
        lost.late.append("t", [{"value": b"late"}])
    return lost, log_key(lost.version + 1)


def repaired(url: str) -> RepairReport:
    return repair(LocalStore(url), is_alive=lambda holder: False)


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("records", [3, 8, 13])
def test_a_log_opens_before_a_record_that_a_client_has_left(tmp_path: Path, records: int) -> None:
    """Until it reaches that version, at each distance, and afterwards."""
    lost, stray = left_behind(tmp_path, records)
    log, written = spark_log.connect(lost.url), [b"old"]
    while log.journal.state.version < lost.version + 3:
        with spark_log.connect(lost.url) as other:
            assert values(other) == written
            assert [one.what for one in verify(other) if one.what != LOG] == [stray]
        written.append(b"new %d" % len(written))
        log.append("t", [{"value": written[-1]}])
    assert values(log) == values(spark_log.connect(lost.url)) == written


# Promise: cli.md#pylog-repair
def test_what_a_client_has_left_is_named_kept_and_moved_away(tmp_path: Path) -> None:
    lost, stray = left_behind(tmp_path, 8)
    log, store = spark_log.connect(lost.url), LocalStore(lost.url)
    (problem,) = [one for one in verify(log) if one.what == stray]
    end = log.journal.state.version
    assert (
        f"the log ends at version {end}, and versions {end + 1} to {lost.version} before this one are"
        in problem.message
    )
    assert "1 record in data/" in problem.message
    objects = {*store.list(DATA)}
    assert maintain_round(log).problems and objects <= {*store.list(DATA)} and stray in store.list(LOG)
    log.close()
    report = repaired(lost.url)
    assert [one.key for one in report.others] == [stray] and not report.lost
    assert stray not in store.list(LOG)
    with spark_log.connect(lost.url) as log:
        (problem,) = verify(log)
        assert problem.what == LOG and "are lost: clients that had read version" in problem.message
        assert maintain_round(log).problems and objects <= {*store.list(DATA)}
        assert verify_and_repair(log, repair=True, lose_data=True).problems == ()
        log.append("t", [{"value": b"new"}])
        maintain_once(log)
        assert not verify(log) and values(log) == [b"old", b"new"]


def append_late(log: Log) -> None:
    log.append("t", [{"value": b"late"}])


def write_checkpoint(log: Log) -> None:
    log.journal.run(log.journal.metadata_log.checkpoint(log.journal.view))


# Promise: copies.md#if-you-restore-a-disk-snapshot
@pytest.mark.parametrize("change", [append_late, write_checkpoint])
def test_a_client_whose_own_record_is_left_notices_it(tmp_path: Path, change: Callable[[Log], object]) -> None:
    """It was put when the folder had been listed to be deleted.  The record before it is gone."""
    lost = Lost(tmp_path, Killed(), 8)
    last = log_key(lost.version)
    data = LocalStore(lost.url).get(last)
    lost.set_back()
    lost.store.answers = True
    LocalStore(lost.url).put(last, (data,))
    with pytest.raises(LogRestored):
        change(lost.late)
    with spark_log.connect(lost.url) as log:
        store = log.journal.metadata
        assert store.list(LOG)[-1] == last and len(store.list(CHECKPOINTS)) < 2
        while log.journal.state.version < lost.version + 1:
            log.append("t", [{"value": b"new"}])
        lost.late.append("t", [{"value": b"NEXT"}])
        assert values(lost.late) == values(log)
        assert {*values(log)} == {b"old", b"new", b"NEXT"} and lost.late.journal.state.set_backs


def long_log(folder: Path) -> tuple[LocalStore, int]:
    """A log of which many records are after the newest checkpoint."""
    log = new_log(folder)
    for number in range(30):
        log.append("t", [{"value": b"%d" % number}])
    log.journal.finish_maintenance()
    log.close()
    return LocalStore(str(folder)), log.journal.state.version


# Promise: format/metadata.md#what-a-reader-refuses
@pytest.mark.parametrize(("first", "last"), [(20, 9), (2, 2), (1, 1), (6, 4)])
def test_versions_that_are_lost_in_the_middle_are_lost(tmp_path: Path, first: int, last: int) -> None:
    """Versions from `first` to `last` before the end: others follow them, or only one is missing."""
    store, end = long_log(tmp_path / "log")
    store.delete([log_key(version) for version in range(end - first, end - last + 1)])
    files = store.list("meta/"), store.list(DATA)
    with pytest.raises(CorruptObject, match=f"{log_key(end - first)} is missing, but"):
        spark_log.connect(store.url)
    with pytest.raises(CorruptObject, match="nothing was changed"):
        repaired(store.root)
    assert (store.list("meta/"), store.list(DATA)) == files


def test_a_single_record_that_is_left_of_the_end_is_treated_as_the_lost_end(tmp_path: Path) -> None:
    """Nothing tells it from one of a client: it is named, and so are the lost versions, whose objects are kept."""
    store, end = long_log(tmp_path / "log")
    store.delete([log_key(version) for version in range(end - 6, end)])
    with spark_log.connect(store.url) as log:
        assert {one.what for one in verify(log)} == {log_key(end), LOG}
        objects = {*store.list(DATA)}
        assert maintain_round(log).problems and objects <= {*store.list(DATA)}
    with pytest.raises(CorruptObject, match="nothing was changed"):
        repaired(store.root)
    assert log_version(store.list(LOG)[-1]) == end
