"""A worker that serves micro-batches keeps the log open, and never takes it for another."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark_pylog.log.open_log import KEPT, KEPT_MAX, KeptJournals, kept_journal
from pyspark_pylog.log.planned_log import PlannedRoots
from pyspark_pylog.options.parse import Location, write_options
from pyspark_pylog.sink.log_of_query import journal_to_write

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.errors import NoLog, UnsupportedVersion
from spark_log.journal.journal import Journal
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from tests.spark.driver import Frame, rows


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


@pytest.mark.parametrize("spelling", ["{}", "file://{}", "{}/", "{}/../log"])
def test_the_log_of_a_query_is_known_by_any_spelling_of_its_url(tmp_path: Path, spelling: str) -> None:
    """A query that is started again with another one begins no second log where its log is away."""
    path, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text("{}")
    common = {"topic": "t", "checkpointlocation": str(checkpoint), "durability": "os"}
    journal_to_write(write_options({"path": str(path), **common}, streaming=True))
    shutil.rmtree(path)
    advice = "bring its disk back, or start the query with a new checkpoint$"
    with pytest.raises(NoLog, match=f"disk is mounted. The query .* has written to the log .*: {advice}"):
        journal_to_write(write_options({"path": spelling.format(path), **common}, streaming=True))
    assert not path.exists()


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


class Held(Wrapper):
    """A store whose reads wait until `free` is set, once `holds` is."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.holds, self.reading, self.free = False, threading.Event(), threading.Event()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if self.holds:
            self.reading.set()
            assert self.free.wait(30)
        return super().get(key, start, end)


def test_a_journal_is_there_for_others_while_a_thread_refreshes_it(tmp_path: Path) -> None:
    """Otherwise a task would open the log again."""
    store, kept, key = (
        Held(LocalStore(str(tmp_path), "os")),
        KeptJournals(),
        ("url", None, PlannedRoots(((0, "root"),))),
    )
    journal = kept.refreshed(key, lambda: Journal.open(store, create=True))
    store.holds = True
    with ThreadPoolExecutor(1) as pool:
        refreshed = pool.submit(kept.refreshed, key, pytest.fail)
        assert store.reading.wait(30)
        assert kept.get(key) is journal
        store.free.set()
        assert refreshed.result(30) is journal is kept.get(key)
        store.holds = False


def test_a_journal_whose_refresh_failed_is_opened_again(tmp_path: Path) -> None:
    """A log may have been restored, or its storage may be another one."""
    kept, key = KeptJournals(), ("url", None, PlannedRoots(((0, "root"),)))
    path = tmp_path / "log"
    kept.refreshed(key, lambda: Journal.open(LocalStore(str(path), "os"), create=True))
    (path / "meta" / "format").write_bytes(b"damaged")
    with pytest.raises(UnsupportedVersion):
        kept.refreshed(key, pytest.fail)
    assert kept.get(key) is None


def test_a_read_sees_the_log_that_is_there_now(tmp_path: Path) -> None:
    """The process that plans it keeps the log from earlier reads: of an older copy by now, or of another log."""
    url, copy = str(tmp_path / "log"), tmp_path / "copy"
    log = spark_log.connect(url, durability="os")
    log.create_topic(spark_log.NewTopic("t", 1))
    log.append("t", [{"value": b"x"}])
    shutil.copytree(url, copy)
    log.append("t", [{"value": b"lost"}])
    assert Frame(url).run() == rows("t-0", 0, 2)
    shutil.rmtree(url)
    shutil.copytree(copy, url)
    assert Frame(url).run("2") == rows("t-0", 0, 1)
    shutil.rmtree(url)
    log = spark_log.connect(url, durability="os")
    log.create_topic(spark_log.NewTopic("t", 1))
    log.append("t", [{"value": b"x"} for _ in range(5)])
    assert Frame(url).run("3") == rows("t-0", 0, 5)
