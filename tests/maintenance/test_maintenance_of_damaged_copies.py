"""Maintenance reads another copy where one is missing or damaged, and its results are whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import spark_log
from spark_log.client.log import Log
from spark_log.maintenance.maintain import merge
from tests.client.replicated import commit_copies, with_copies

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")

VALUES = [b"%d" % number for number in range(12)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = spark_log.connect(tmp_path / "log", create=True)
    with_copies(log, [tmp_path / "disk1", tmp_path / "disk2"])
    for value in VALUES:
        commit_copies(log, "t", [value])
    return log


def _deleted(path: Path) -> None:
    path.unlink()


def _damaged(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("harm", [_deleted, _damaged])
def test_a_merge_reads_whole_copies(log: Log, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """The leader has lost all objects, and the second replica every second one."""
    for path in (tmp_path / "log" / "data").rglob("*.seg"):
        harm(path)
    for path in sorted((tmp_path / "disk1").rglob("*.seg"))[::2]:
        harm(path)
    merge(log)
    assert len(log.plan("t")) == 1
    assert log.read("t").column("value").to_pylist() == VALUES


@pytest.mark.parametrize("harm", [_deleted, _damaged])
def test_an_erasure_reads_whole_copies(log: Log, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    commit_copies(log, "t", [b"x"])
    for path in (tmp_path / "log" / "data").rglob("*.seg"):
        harm(path)
    report = log.admin.erase_records("t", ["k"])
    assert report.records == len(VALUES) + 1
    assert log.read("t").num_rows == 0
