"""A worker that serves micro-batches keeps the log open, and never takes it for another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark_pylog.open_log import KEPT, KEPT_MAX, kept_journal
from pyspark_pylog.options.parse import Location

import spark_log


def location(path: Path) -> Location:
    return Location(url=str(path), storage={}, durability="os")


def topics(path: Path) -> set[str]:
    """Of the journal that is kept."""
    return set(kept_journal(location(path)).state.names)


def test_a_journal_is_opened_once_and_is_at_the_end(tmp_path: Path) -> None:
    """Writes of others in between are known."""
    log = spark_log.connect(str(tmp_path / "log"), durability="os")
    first = kept_journal(location(tmp_path / "log"))
    log.create_topic(spark_log.NewTopic("late", 1))
    again = kept_journal(location(tmp_path / "log"))
    assert again is first
    assert set(again.state.names) == {"late"}


def test_a_log_that_was_begun_again_is_another_one(tmp_path: Path) -> None:
    """A folder that was removed and filled again: everything known of the old log is forgotten."""
    path = tmp_path / "log"
    for topic in ("old", "new"):
        log = spark_log.connect(str(path), durability="os")
        log.create_topic(spark_log.NewTopic(topic, 1))
        assert topics(path) == {topic}
        shutil.rmtree(path)
    assert not kept_journal(location(path), create=True).state.names


def test_a_log_whose_checkpoint_has_passed_is_read_from_that(tmp_path: Path) -> None:
    """Records that were known are gone from the storage by then."""
    path = tmp_path / "log"
    log = spark_log.connect(str(path), durability="os")
    log.create_topic(spark_log.NewTopic("t", 1))
    topics(path)
    for number in range(250):
        log.append("t", [{"value": b"%d" % number}])
    state = kept_journal(location(path)).state
    assert state.version == log.journal.state.version
    assert state.partitions[state.names["t"], 0].end == 250


def test_a_relative_path_follows_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text names another log elsewhere."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        log = spark_log.connect("log", durability="os")
        log.create_topic(spark_log.NewTopic(name, 1))
        assert topics(Path("log")) == {name}


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    """A worker that serves many logs does not hold them all."""
    for number in range(KEPT_MAX + 2):
        kept_journal(location(tmp_path / str(number)), create=True)
    assert len(KEPT) == KEPT_MAX
