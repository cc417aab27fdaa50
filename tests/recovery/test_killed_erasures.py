"""The entry of an erasure that was killed, in a log that was moved, recovered or repaired since: its advice ends it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from spark_log import Log
from spark_log.cli.commands.erase import report_text
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.commands import Report
from spark_log.metadata.records import ErasedRecord
from spark_log.recovery.log_move import move_log
from spark_log.recovery.mirror import Mirror, begin_mirror
from spark_log.recovery.mirror_recovery import recover
from spark_log.recovery.repair import repair
from spark_log.store.local import LocalStore
from spark_log.store.object_names import LOG

KEY, OTHER = b"erase-me", b"other"


def killed(folder: Path) -> Log:
    """A log with an erasure that has begun.  The topic has a schema, so the metadata has values of its columns."""
    log = spark_log.connect(str(folder), durability="os")
    log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
    log.admin.create_topics([spark_log.NewTopic("t", schema="name STRING")])
    for key in (KEY, OTHER):
        log.append("t", [{"key": key, "name": key.decode()}])
    begins = ErasedRecord(topic_id=log.journal.refresh().names["t"], incomplete=True, begins="killed")
    log.journal.propose(Report.of(log.journal.state, begins), maintenance=False)
    return log


def moved(folder: Path) -> Path:
    there = LocalStore(str(folder / "new"))
    move_log(Log(Journal.open(LocalStore(str(folder / "log")), create=False)), there)
    return folder / "new"


def recovered(folder: Path) -> Path:
    store = LocalStore(str(folder / "mirror"))
    with spark_log.connect(str(folder / "log")) as log:
        begin_mirror(log, store)
        Mirror(log, store).round()
    shutil.rmtree(folder / "log")
    recover(store)
    return folder / "mirror"


def repaired(folder: Path) -> Path:
    """A version after it is lost, and given up."""
    with spark_log.connect(str(folder / "log")) as log:
        for value in ("lost", "kept"):
            log.append("u", [{"value": value}])
    store = LocalStore(str(folder / "log"))
    store.delete([store.list(LOG)[-2]])
    repair(store, is_alive=lambda _: False, accept_loss=True)
    return folder / "log"


def recreated(folder: Path) -> Path:
    with spark_log.connect(str(folder / "log")) as log:
        log.admin.delete_topics(["t"])
        log.append("t", [{"key": KEY, "value": "of the new topic"}])
    return folder / "log"


# Promise: tasks/erase.md#interrupted
@pytest.mark.parametrize("change", [moved, recovered, repaired, recreated])
def test_the_advice_ends_the_entry(tmp_path: Path, change: Callable[[Path], Path]) -> None:
    """Maintenance does the rest."""
    killed(tmp_path / "log").close()
    with spark_log.connect(str(change(tmp_path))) as log:
        (listed,) = log.admin.list_erasures()
        name = listed.topic_id if listed.deleted else listed.topic
        assert listed.running and (not listed.deleted or f"`pylog topic erase {name}`" in listed.left)
        assert log.admin.erase_records(name, [KEY]).problems == ()
        assert not any(one.incomplete for one in log.admin.list_erasures())
        for directory in log.journal.state.former_roots:
            log.admin.forget_root(directory)
        for _ in range(4):
            log.append("u", [{"value": "later"}])
            maintain_once(log)
        assert log.admin.list_erasures() == []


# Promise: tasks/erase.md#interrupted
def test_an_erasure_of_other_keys_says_that_it_ends_the_entry(tmp_path: Path) -> None:
    """The log does not know the keys of the one that was killed."""
    with killed(tmp_path) as log:
        assert log.admin.erase_records("t", [OTHER], dry_run=True).ended == ()
        report = log.admin.erase_records("t", [OTHER])
        (ended,) = report.ended
        assert "if it was for other keys, run it again" in ended and ended in report_text(report)
        assert not any(one.incomplete for one in log.admin.list_erasures())
        assert log.admin.erase_records("t", [KEY]).ended == ()
