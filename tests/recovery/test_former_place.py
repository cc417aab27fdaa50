"""A log at the URL from which another one was moved, and clients that still use that URL."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import spark_log
from spark_log.client.admin.second_logs import OFTEN_MS, second_logs
from spark_log.client.log import Log
from spark_log.errors import InconsistentClusterId, NoLog, UnsupportedVersion
from spark_log.maintenance.maintain import maintain_once
from spark_log.recovery.log_move import move_log
from spark_log.recovery.repair import repair
from spark_log.recovery.verify import verify
from spark_log.store.open import open_store
from tests.recovery.test_move import opened, values


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = spark_log.connect(tmp_path / "old", create=True)
    for number in range(5):
        log.append("t", [{"value": str(number)}])
    return log


# Promise: copies.md#move-a-log
def test_the_former_url_does_not_lead_to_another_log(log: Log, tmp_path: Path) -> None:
    """No log is created there either, if the disk of the new place is not mounted."""
    move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new")))
    (tmp_path / "new").rename(tmp_path / "away")
    with pytest.raises(
        NoLog, match="from .*/old to .*/new, and nothing is there: is its disk mounted.*move --cancel --force -u "
    ):
        spark_log.connect(tmp_path / "old", create=True)
    (left,) = repair(open_store(str(tmp_path / "old")), is_alive=lambda holder: False, dry_run=True).left
    assert "was moved to" in left and "`pylog move --cancel --force`" in left
    with pytest.raises(NoLog, match="is its disk mounted"):
        move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new")))
    spark_log.connect(tmp_path / "new", create=True).append("u", [{"value": "x"}])
    with pytest.raises(InconsistentClusterId, match="was moved from .*/old to .*/new, which has a different log"):
        spark_log.connect(tmp_path / "old")


# Promise: copies.md#move-a-log
def test_a_copy_that_is_restored_in_the_former_place_is_named(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy does not know of the move, and clients with the former URL write to it."""
    shutil.copytree(tmp_path / "old", tmp_path / "yesterday")
    move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new")))
    with spark_log.connect(tmp_path / "new") as moved:
        assert verify(moved) == [] and "second log" not in caplog.text
        shutil.rmtree(tmp_path / "old")
        (tmp_path / "yesterday").rename(tmp_path / "old")
        assert verify(moved) == []
    assert f"there is a second log with the same id at {open_store(str(tmp_path / 'old')).url}" in caplog.text


# Promise: copies.md#move-a-log
def test_another_log_that_is_begun_in_the_former_place_is_named(log: Log, tmp_path: Path) -> None:
    """By a client that still has the former URL, after the former root was deleted."""
    log.close()
    move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new")))
    shutil.rmtree(tmp_path / "old")
    with spark_log.connect(tmp_path / "new") as moved:
        assert second_logs(moved.journal) == [] and maintain_once(moved).second_logs == ()
        with spark_log.connect(tmp_path / "old", create=True) as other:
            other.append("t", [{"value": "x"}])
        (found,) = second_logs(moved.journal)
        assert found.is_defect and f"there is another log at {(tmp_path / 'old').as_uri()}" in found.text
        assert second_logs(moved.journal, OFTEN_MS) == [found]
        assert maintain_once(moved).second_logs == (found.text,)
        (directory,) = moved.journal.state.former_roots
        assert f"`pylog broker forget-root {directory}`" in found.text
        moved.admin.forget_root(directory)
        assert second_logs(moved.journal) == []


# Promise: copies.md#move-a-log
def test_no_log_begins_in_the_former_place_while_its_metadata_is_there(log: Log, tmp_path: Path) -> None:
    """A client that would create one is led to the new place, and one that has not all of it is refused."""
    log.close()
    new = move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new"))).url
    shutil.rmtree(tmp_path / "old" / "data")
    with spark_log.connect(tmp_path / "old", create=True) as again:
        again.append("t", [{"value": "5"}])
        assert again.url == new and len(values(again)) == 6
        assert verify(again) == [] and second_logs(again.journal) == []
    (tmp_path / "old" / "meta" / "format").unlink()
    with pytest.raises(UnsupportedVersion, match="meta/format is missing"):
        spark_log.connect(tmp_path / "old", create=True)
