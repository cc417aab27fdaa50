"""Tables of exports that were restored to an earlier version, or forget their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from spark_log.errors import InvalidRequest
from tests.unit.exported_tables import FORMATS, Case, case_of, changed_by_others, records


@pytest.fixture(params=FORMATS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return case_of(request.param, tmp_path)


def restore(case: Case, run: int) -> None:
    """Restore the version after a run; 0: after the creation of the table, which Iceberg cannot."""
    if case.settings.format == "delta":
        found = [one["version"] for one in case.delta().history() if one.get("pylog.run") == str(run)]
        case.delta().restore(found[0] if run else 0)
    else:
        table = case.iceberg()
        [snapshot] = [one.snapshot_id for one in table.snapshots() if one.summary["pylog.run"] == str(run)]
        table.manage_snapshots().set_current_snapshot(snapshot).commit()


# Promise: tasks/export.md#delta-and-iceberg
def test_a_table_that_was_restored_to_an_earlier_version_is_refused(case: Case) -> None:
    """Until the last run is in it again, in whatever way, also after changes of others."""
    for number in (1, 2, 3):
        assert case.run(number, records(2, first=2 * number))
    rows = case.rows(records(1))
    restore(case, 1)
    for _ in range(2):
        with pytest.raises(
            InvalidRequest, match="has the runs up to 1, and run 3 is done: .* restore the version that has"
        ):
            case.table().check(rows, 3)
        changed_by_others(case)
    if case.settings.format == "delta":
        restore(case, 0)
        with pytest.raises(InvalidRequest, match="has no run, and run 3 is done"):
            case.table().check(rows, 3)
    restore(case, 3)
    case.table().check(rows, 3)
    assert case.run(4, records(1))
    assert case.offsets() == [0, 2, 3, 4, 5, 6, 7]


# Promise: tasks/export.md#delta-and-iceberg
def test_a_run_that_was_not_done_before_a_restore_is_committed_again(case: Case) -> None:
    """It is in the table once."""
    for number in (1, 2):
        assert case.run(number, records(2, first=2 * number))
    restore(case, 1)
    assert not case.table().has(2)
    assert case.run(2, records(2, first=4)) and not case.run(2, records(2, first=4))
    assert case.offsets() == [2, 3, 4, 5]


# Promise: tasks/export.md#delta-and-iceberg
def test_a_history_that_is_too_short_is_not_needed(case: Case) -> None:
    """The table has the number of its last run, too."""
    assert case.run(1, records(2)) and case.run(2, records(2, first=2))
    changed_by_others(case)
    if case.settings.format == "delta":
        *earlier, newest = sorted(Path(unquote(case.url.removeprefix("file://")), "_delta_log").glob("*.json"))
        for file in earlier:
            file.unlink()
        assert "pylog.run" not in newest.read_text()
    else:
        table = case.iceberg()
        current = table.current_snapshot()
        table.maintenance.expire_snapshots().by_ids(
            [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current.snapshot_id]
        ).commit()
        assert current.summary.get("pylog.run") is None
    assert case.table().has(2) and not case.table().has(3)
    assert case.run(3, records(2, first=4))
    assert case.offsets() == list(range(6))


def commit_of_spark(case: Case, commit: dict[str, Any]) -> None:
    """A commit without files, as Spark would make it."""
    folder = Path(unquote(case.url.removeprefix("file://")), "_delta_log")
    number = case.delta().version() + 1
    (folder / f"{number:020}.json").write_text(json.dumps({"commitInfo": {"timestamp": 1_700_000_000_000, **commit}}))


# Promise: tasks/export.md#delta-and-iceberg
def test_a_delta_table_that_spark_has_restored(tmp_path: Path) -> None:
    """To a version, or to a time: its history does not say which version that is."""
    case = case_of("delta", tmp_path)
    assert case.run(1, records(2)) and case.run(2, records(2, first=2))
    commit_of_spark(case, {"operation": "RESTORE", "operationParameters": {"version": 1, "timestamp": None}})
    assert case.log().last_run() == 1
    commit_of_spark(case, {"operation": "RESTORE", "operationParameters": {"version": None, "timestamp": "2024-05-01"}})
    with pytest.raises(InvalidRequest, match="was restored to a time, and .*: restore it to the version of the last"):
        case.table().check(case.rows(records(1)), 2)
    commit_of_spark(case, {"operation": "RESTORE", "operationParameters": {"version": 2, "timestamp": None}})
    assert case.log().last_run() == 2


# Promise: tasks/export.md#delta-and-iceberg
def test_a_delta_table_that_forgets_its_last_run_is_refused(tmp_path: Path) -> None:
    """By the property that does it."""
    case = case_of("delta", tmp_path)
    assert case.run(1, records(2))
    case.delta().alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})
    with pytest.raises(
        InvalidRequest, match=r"setTransactionRetentionDuration \(interval 1 days\).* UNSET TBLPROPERTIES"
    ):
        case.table().check(case.rows(records(1)), 1)
