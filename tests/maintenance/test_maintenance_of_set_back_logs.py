"""Maintenance that began before the folder of the log was set back to an older copy, which others have continued.

No record says so.  Its plans and its memory are of the log as it was before.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_log import Log, TopicPartition, connect
from spark_log.journal.context import Context
from spark_log.journal.store_operations import Steps
from spark_log.maintenance.maintain import Maintainer, maintain_once
from spark_log.maintenance.retention import expire_records
from spark_log.metadata.lines import is_of_plan, plan_of
from spark_log.metadata.replay import next_version
from spark_log.metadata.state import State
from spark_log.recovery.verify import verify
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from tests.maintenance.logs import HOUR_MS, append_small, maintenance, new_log
from tests.maintenance.test_maintenance_of_restored_logs import DUTIES, held, merge_small, values
from tests.restored import set_back
from tests.rewriting.test_compaction import STEPS, append, compacted, latest, records, run_clean


def snapshot(log: Log, folder: Path) -> Path:
    """The files of the log as they are now: no mirror."""
    shutil.copytree(log.url.removeprefix("file://"), folder)
    return folder


# Promise: copies.md#restore-a-log-from-a-copy
@pytest.mark.parametrize("duty", DUTIES)
def test_what_was_prepared_before_is_not_recorded(tmp_path: Path, duty: str) -> None:
    log = new_log(tmp_path / "log")
    append_small(log, 20)
    if duty == "list dropped":
        maintenance(log.journal, merge_small)
    copy = snapshot(log, tmp_path / "copy")
    append_small(log, 3, first=20)

    def restore() -> None:
        with set_back(str(tmp_path / "log"), copy) as other:
            append_small(other, 8, first=100)

    steps, limits = DUTIES[duty]
    maintenance(log.journal, lambda state, context: held(steps(state, context), restore), limits)
    with connect(str(tmp_path / "log")) as found:
        wanted = [*range(60), *range(300, 324)]
        assert values(found) == wanted and not verify(found)
        maintain_once(log)
        assert values(found) == wanted and not verify(found)


# Promise: copies.md#restore-a-log-from-a-copy
def test_a_pass_of_compaction_removes_nothing_for_lost_records(tmp_path: Path) -> None:
    """Its map has the newest offset of each key, and the log has other records there by now."""
    log, memory = compacted(tmp_path / "log"), MaintenanceMemory()
    append(log, [(key, "kept") for key in "abc"])
    copy = snapshot(log, tmp_path / "copy")
    append(log, [(key, "lost") for key in "abc"])
    while memory.compaction_pass is None or memory.compaction_pass.end is None:
        assert run_clean(log, STEPS, memory, ends_passes=False).left
    with set_back(str(tmp_path / "log"), copy) as found:
        for number in range(6):
            append(found, [("d", str(number)), ("e", str(number))])
        while run_clean(log, STEPS, memory, ends_passes=False).left:
            pass
        assert latest(records(found)) == {b"a": b"kept", b"b": b"kept", b"c": b"kept", b"d": b"5", b"e": b"5"}
        assert not verify(found, deep=True)


# Promise: copies.md#restore-a-log-from-a-copy
def test_retention_removes_no_new_records(tmp_path: Path) -> None:
    """Its offset is that of an old record in the log of before, and of a new one in the log as it is."""
    log = new_log(tmp_path / "log", retention_ms="3600000")
    append_small(log, 2)
    copy = snapshot(log, tmp_path / "copy")
    append_small(log, 3, first=100, age_ms=2 * HOUR_MS)
    log.admin.delete_records({TopicPartition("t", 0): 6})
    removed: list[Any] = []

    def restore() -> None:
        with set_back(str(tmp_path / "log"), copy) as other:
            append_small(other, 5, first=2)

    def expire(state: State, context: Context) -> Steps[Any]:
        removed.append((yield from held(expire_records(state, context), restore))[1])

    maintenance(log.journal, expire)
    with connect(str(tmp_path / "log")) as found:
        assert removed == [{}] and values(found) == [*range(21)]


def test_a_maintainer_forgets_what_it_knew(tmp_path: Path) -> None:
    """It would continue from the objects that it has looked at, and from the fence that it has reached."""
    log = new_log(tmp_path / "log")
    append_small(log, 3)
    copy = snapshot(log, tmp_path / "copy")
    append_small(log, 3, first=3)
    maintainer = Maintainer(log)
    maintainer.round()
    kept = maintainer._memory
    maintainer.round()
    assert maintainer._memory is kept is not None
    with set_back(str(tmp_path / "log"), copy) as other:
        while other.journal.state.version <= log.journal.state.version:
            append_small(other, 1, first=100)
        maintainer.round()
        assert maintainer._memory is not kept
        assert not verify(other)


def test_a_plan_is_of_one_line(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log")
    append_small(log, 2)
    copy, before = snapshot(log, tmp_path / "copy"), plan_of(log.journal.state)
    append_small(log, 1, first=2)
    plan = plan_of(log.journal.refresh())
    append_small(log, 2, first=3)
    assert is_of_plan(log.journal.state, before) and is_of_plan(log.journal.state, plan)
    with set_back(str(tmp_path / "log"), copy) as other:
        assert is_of_plan(other.journal.state, before) and not is_of_plan(other.journal.state, plan)
        append_small(other, 3, first=100)
        assert is_of_plan(next_version(other.journal.state, 0), before)
        assert not is_of_plan(next_version(other.journal.state, 0), plan)
        assert is_of_plan(other.journal.state, before) and not is_of_plan(other.journal.state, plan)
        for wrong in ("@", "@x:y", f"other{plan}", "@99999999999999999999:aaaaaaaa"):
            assert not is_of_plan(other.journal.state, wrong)
