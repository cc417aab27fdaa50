"""The things that tasks learn of the log beyond their plan: from the driver's roots, the same log, and never an older
one.
"""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import agreed_value, journal_since, newest_journal
from pyspark_pylog.options.parse import Location

import spark_log
from simulation.harness.slow_store import SlowStore, counts
from spark_log.errors import DataLoss, InconsistentClusterId
from tests.services import Services
from tests.spark.driver import Frame, Write, rows, through


def seen(url: str) -> PlannedLog:
    """As the driver ships it."""
    location = Location(url=url, storage={}, durability="os")
    shipped: PlannedLog = pickle.loads(pickle.dumps(planned_log(location, journal_of(location))))
    return shipped


def test_a_task_sees_what_came_after_its_plan(url: str, log: spark_log.Log) -> None:
    """The newest state if it needs that, and otherwise any that is not older than the plan."""
    before = seen(url)
    assert newest_journal(before).state.version == before.version
    log.create_topic(spark_log.NewTopic("t", 1))
    assert not journal_since(before).state.names
    assert set(journal_since(seen(url)).state.names) == {"t"}
    assert set(newest_journal(before).state.names) == {"t"}


def test_a_state_that_is_new_enough_costs_no_request(url: str, log: spark_log.Log) -> None:
    """A journal that the process has is looked at again in one round, and not at all by who knows that it is new
    enough.
    """
    log.create_topic(spark_log.NewTopic("t", 1))
    store = SlowStore(log.journal.objects, get_ms=0, put_ms=0)
    shipped = through(store, seen(url))
    newest_journal(shipped)
    with store.watched() as requests:
        journal_since(shipped)
    assert requests == []
    with store.watched() as requests:
        newest_journal(shipped)
    assert counts(requests) == {"get": 3, "list": 1}


def test_another_log_at_the_place_is_refused(url: str, log: spark_log.Log) -> None:
    """By both ids, whether this process knows the old log or not."""
    shipped = seen(url)
    newest_journal(shipped)
    shutil.rmtree(url)
    other = spark_log.connect(url, durability="os")
    for one in (shipped, through(other.journal.objects, shipped)):
        with pytest.raises(InconsistentClusterId, match=f"{other.cluster_id}, not {log.cluster_id}"):
            newest_journal(one)


def test_an_older_copy_is_refused(url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """A task must not read less than the driver planned, and call it the log."""
    log.create_topic(spark_log.NewTopic("t", 1))
    shutil.copytree(url, tmp_path / "copy")
    log.append("t", [{"value": b"x"}])
    shipped = seen(url)
    shutil.rmtree(url)
    shutil.move(tmp_path / "copy", url)
    with pytest.raises(
        DataLoss, match=f"ends at version {shipped.version - 1}, .* planned at version {shipped.version}"
    ):
        newest_journal(shipped)


def test_all_get_the_value_that_came_first(url: str, log: spark_log.Log) -> None:
    """A later task does not make one."""
    shipped = seen(url)
    assert agreed_value(shipped, "meta/pin/q", lambda _: b"first") == b"first"
    assert agreed_value(shipped, "meta/pin/q", lambda _: pytest.fail("made again")) == b"first"


def test_a_process_keeps_a_value_that_was_agreed_on(url: str, log: spark_log.Log) -> None:
    """Its later tasks ask for nothing, also when maintenance has removed the pin of a long query."""
    shipped = seen(url)
    assert agreed_value(shipped, "meta/pin/long", lambda _: b"first") == b"first"
    log.journal.metadata.delete(["meta/pin/long"])
    assert agreed_value(shipped, "meta/pin/long", lambda _: pytest.fail("made again")) == b"first"


def test_tasks_do_not_need_the_coordinator(tmp_path: Path) -> None:
    """The driver asked it where the objects are: tasks upload and read while it is away."""
    services = Services()
    try:
        running = services.start(tmp_path / "log")
        url = f"pylog://{running.coordinator.address}"
        Write(url, pa.record_batch({"value": ["a"]}), topic="t").run()
        write, frame = Write(url, pa.record_batch({"value": ["b"]}), topic="t"), Frame(url)
        services.stop(running)
        write.task()
        assert frame.run() == rows("t-0", 0, 1)
    finally:
        services.close()


def test_what_is_shipped_shows_no_secret(url: str, log: spark_log.Log) -> None:
    """In the text of a task, as debug logs have it."""
    shipped = seen(url)
    secret = replace(shipped, token="sesame", roots=replace(shipped.roots, storage=(("secret", "sesame"),)))
    assert "sesame" not in repr(secret)
    assert "sesame" not in repr(Location(url=url, storage={"secret": "sesame"}, token="sesame"))
