"""How often Spark's driver waits for an object store, without Spark: its calls, by processes that know the log.

`benchmarks/spark_round_trips.py` counts the same with Spark's own processes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from pyspark.sql.types import StructType
from pyspark_pylog import DefaultSource
from pyspark_pylog.open_log import KEPT
from pyspark_pylog.planned_log import Roots

import spark_log
from spark_log.journal.journal import Journal
from spark_log.store.memory import MemoryStore
from spark_log.testing.slow_store import SlowStore, counts, round_trips

TRIES = 4
"""The fewest round trips count: on a busy machine, parallel requests start late."""
LATENCY_MS = 30


class Near(NamedTuple):
    """A log in a store, without delay for the test itself and with one for the data source."""

    url: str
    log: spark_log.Log
    store: SlowStore


@pytest.fixture
def near() -> Iterator[Near]:
    """Topic t, of one partition with ten records.  This process knows the log."""
    inner = MemoryStore(uuid.uuid4().hex)
    log = spark_log.connect(inner.url)
    log.create_topic(spark_log.NewTopic("t", 1))
    log.append("t", [{"value": b"%d" % number} for number in range(10)])
    store = SlowStore(inner, get_ms=LATENCY_MS, put_ms=LATENCY_MS, jitter=False)
    KEPT.refreshed((inner.url, None, Roots(((0, inner.url),))), lambda: Journal.open(store, create=False))
    yield Near(inner.url, log, store)
    log.close()


def trips(store: SlowStore, do: Callable[[], object], between: Callable[[], object] = lambda: None) -> int:
    """The fewest round trips of some tries; `between` comes before each of them."""
    found = []
    for _ in range(TRIES):
        between()
        with store.watched() as requests:
            do()
        assert counts(requests)["list"], "the data source asks this store"
        found.append(round_trips(requests))
    return min(found)


def planned(near: Near) -> int:
    """Plan a batch read, up to the start of its tasks: `load()`, and the plan.  Returns the number of records in it."""
    source = DefaultSource({"path": near.url, "subscribe": "t"})
    schema = source.schema()
    assert isinstance(schema, StructType)
    tasks = source.reader(schema).partitions()
    return sum(read.end - read.start for task in tasks for read in task.reads)  # type: ignore[attr-defined]


def test_a_batch_read_is_planned_in_two(near: Near) -> None:
    """A look at the schema, and one at the end of the log."""
    assert trips(near.store, lambda: planned(near)) == 2


def test_a_batch_read_after_a_commit_is_planned_in_three(near: Near) -> None:
    """New records are confirmed before a read depends on them.  They are in the plan."""
    seen = []
    found = trips(near.store, lambda: seen.append(planned(near)), lambda: near.log.append("t", [{"value": b"x"}]))
    assert found == 3
    assert seen == [11, 12, 13, 14]
