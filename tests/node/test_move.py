"""A log moves to another storage while clients use it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import spark_log
from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, LogMoved, StorageUnavailable, UploadFenced
from spark_log.journal.journal import Journal
from spark_log.node.move import move_log
from spark_log.store.local import LocalStore
from spark_log.store.open import open_store


def opened(path: Path) -> Log:
    """The log at a folder, wherever it was moved to."""
    return Log(Journal.open(open_store(str(path)), create=False))


def values(log: Log, topic: str = "t") -> list[str]:
    return [value.as_py().decode() for value in log.read(topic, columns=["value"])["value"]]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = spark_log.connect(tmp_path / "old", create=True)
    for number in range(5):
        log.append("t", [{"value": str(number)}])
    return log


def test_a_moved_log_has_everything_and_both_urls_lead_to_it(log: Log, tmp_path: Path) -> None:
    """With the same id; nothing in the former place is needed."""
    new = open_store(str(tmp_path / "new"))
    moved = move_log(opened(tmp_path / "old"), new)
    assert moved.url == new.url
    for path in ("old", "new"):
        with spark_log.connect(tmp_path / path) as again:
            assert again.url == new.url and again.journal.cluster_id == log.journal.cluster_id
            again.append("t", [{"value": path}])
    shutil.rmtree(tmp_path / "old")
    with spark_log.connect(tmp_path / "new") as again:
        assert values(again) == [*map(str, range(5)), "old", "new"]
        assert again.journal.state.coordinator.address == ""


def test_a_client_of_the_former_place_is_told(log: Log, tmp_path: Path) -> None:
    """Each call, so that it neither writes there nor reads old records."""
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
    assert consumer.poll(timeout_ms=1000)
    move_log(opened(tmp_path / "old"), open_store(str(tmp_path / "new")))
    for _ in range(2):
        with pytest.raises(LogMoved, match="was moved to file://.*/new"):
            log.append("t", [{"value": "x"}])
        with pytest.raises(LogMoved):
            log.read("t")
    with pytest.raises(LogMoved):
        for _ in range(10):
            consumer.poll(timeout_ms=500)
