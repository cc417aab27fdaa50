"""Exports of a log that was restored from an older copy, and has other records at the offsets that were exported."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from pyspark_pylog.export.manifest import Manifest
from pyspark_pylog.export.planning import Planner
from pyspark_pylog.export.tables import Folder

from spark_log import Log, NewTopic, connect
from spark_log.errors import DataLoss
from spark_log.positions import parse_position
from tests.restored import copy_of, restored, set_back
from tests.unit.exported_tables import case_of


def put(log: Log, count: int) -> None:
    log.append("t", [{"value": "v"}] * count)


def planner_of(log: Log, folder: Path, topic_id: str = "") -> Planner:
    """topic_id:  that of the export; empty: that of the topic."""
    case = case_of("delta", folder)
    topic_id = topic_id or log.admin.describe_topics(["t"])["t"].topic_id
    settings = msgspec.structs.replace(case.settings, topic_id=topic_id, value_as="binary")
    return Planner(log.journal, Manifest(case.url, {}), Folder("t"), settings, parse_position("latest", "--end"))


def export(log: Log, folder: Path) -> None:
    """One run, up to the end."""
    planner, manifest = planner_of(log, folder), Manifest(case_of("delta", folder).url, {})
    run = planner.plan(manifest.last(), planner.ends(), 1 << 20, 1, skip_lost=False)
    assert run is not None
    manifest.plan(manifest.last() + 1, run)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = connect(str(tmp_path / "log"), durability="os")
    log.admin.create_topics([NewTopic("t", 1)])
    put(log, 6)
    return log


# Promise: copies.md#restore-a-log-from-a-copy
def test_an_export_that_is_ahead_of_the_copy_is_refused_also_when_the_log_has_grown(log: Log, tmp_path: Path) -> None:
    copy = copy_of(log, tmp_path / "copy")
    put(log, 4)
    export(log, tmp_path)
    log = restored(log.url.removeprefix("file://"), copy)
    put(log, 20)
    with pytest.raises(
        DataLoss,
        match=r"t-0 before offset 10, and the log was restored from a copy that has 6 .* with another --to and",
    ):
        export(log, tmp_path)


def test_an_export_that_has_only_what_is_in_the_copy_continues(log: Log, tmp_path: Path) -> None:
    export(log, tmp_path)
    copy = copy_of(log, tmp_path / "copy")
    put(log, 4)
    log = restored(log.url.removeprefix("file://"), copy)
    put(log, 2)
    assert planner_of(log, tmp_path).next_starts(1) == {0: 6}
    export(log, tmp_path)
    assert planner_of(log, tmp_path).next_starts(2) == {0: 8}


def test_an_export_of_a_log_whose_disk_was_set_back_is_refused(log: Log, tmp_path: Path) -> None:
    url = log.url.removeprefix("file://")
    shutil.copytree(url, tmp_path / "copy")
    put(log, 1)
    put(log, 1)
    export(log, tmp_path)
    log = set_back(url, tmp_path / "copy")
    put(log, 9)
    with pytest.raises(DataLoss, match=r"seen version \d+ of the log, which was set back to an older copy since"):
        export(log, tmp_path)
