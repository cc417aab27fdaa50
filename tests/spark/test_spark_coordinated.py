"""Queries that share a group through a coordinator: `group.members=auto`.

They make Spark's calls in Spark's order over a checkpoint; the coordinator runs in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.progress.coordinated_progress import CoordinatedProgress
from pyspark_pylog.progress.offset_format import Offset

import spark_log
from simulation.harness.clocks import ManualClock
from spark_log import NewTopic, TopicPartition
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.runtime.clock import SystemClock
from tests.services import Services
from tests.spark.builders import DEADLINE_S, asked
from tests.spark.driver import Row, Stream

ALL = {TopicPartition("t", number) for number in range(4)}


class Query(Stream):
    """A member of group g, over the checkpoint of an earlier one if there is one."""

    def __init__(self, url: str, before: Query | None = None, /, **options: Any) -> None:
        topics = options.pop("topics", "t")
        given = {"group.id": "g", "group.members": "auto", **options}
        super().__init__(url, topics, clock=SystemClock(), **given)
        self.offsets = [] if before is None else list(before.offsets)
        self.got: list[Row] = []

    def step(self) -> None:
        """A batch if there is one."""
        self.got += self.batch() or []

    @property
    def owned(self) -> frozenset[TopicPartition]:
        progress = self.reader._progress
        return progress._owned or frozenset() if progress._assigned else frozenset()


class Group:
    """The queries of a group, with the log that they read."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.log = spark_log.connect(url)
        self.log.admin.create_topics([NewTopic("t", 4)])
        self.queries: list[Query] = []
        self.records = 0

    def start(self, before: Query | None = None, /, **options: Any) -> Query:
        query = Query(self.url, before, **options)
        self.queries.append(query)
        return query

    def stop(self, query: Query) -> None:
        self.queries.remove(query)
        query.reader.stop()

    def append(self) -> None:
        """Two records to each partition."""
        self.log.append("t", [{"value": "x", "partition": number} for number in range(4) for _ in range(2)])
        self.records += 8

    def until(self, condition: Callable[[], bool], seconds: float = DEADLINE_S) -> None:
        """Have all take a step in turn, until it is so."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, [sorted(query.owned) for query in self.queries]
            for query in self.queries:
                query.step()

    def is_shared(self) -> bool:
        """Whether every partition has one owner, and each query some."""
        owned = [query.owned for query in self.queries]
        return all(owned) and sum(map(len, owned)) == 4 and set().union(*owned) == ALL

    def committed(self) -> list[int]:
        return [at.offset for _, at in sorted(self.log.admin.list_consumer_group_offsets("g").items())]


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    services = Services()
    yield services
    services.close()


@pytest.fixture
def group(services: Services, tmp_path: Path) -> Iterator[Group]:
    group = Group(services.url(tmp_path / "log"))
    yield group
    for query in group.queries:
        query.reader.stop()
    services.stop_all()


# Promise: tasks/share-a-topic.md#let-a-coordinator-divide-the-partitions
def test_queries_that_come_and_go_share_a_topic_and_read_each_record_once(group: Group) -> None:
    """A partition moves between two batches: its next owner starts exactly where the former one has ended."""
    first = group.start(maxOffsetsPerTrigger=3)
    group.append()
    group.until(lambda: first.owned == ALL and bool(first.got))
    second = group.start(maxOffsetsPerTrigger=3)
    group.append()
    group.until(group.is_shared)
    group.append()
    group.until(lambda: len(first.got) + len(second.got) >= group.records)
    assert {name for name, _ in second.got} == {f"t-{tp.partition}" for tp in second.owned}
    first.step()  # idle: all is published
    group.stop(first)
    group.append()
    group.until(lambda: second.owned == ALL and len(first.got) + len(second.got) >= group.records)
    again = group.start(first)
    group.until(group.is_shared)
    group.append()
    group.until(lambda: len(first.got) + len(second.got) + len(again.got) >= group.records)
    got = [*first.got, *second.got, *again.got]
    assert sorted(got) == sorted(set(got)) and len(got) == group.records, (first.batches, second.batches, again.batches)
    assert again.got, "it continues where the group is, not where its checkpoint is"
    members = group.log.admin.describe_consumer_groups(["g"])["g"].members
    assert sorted(member.client_id for member in members) == ["stream", "stream"]


# Promise: tasks/share-a-topic.md#let-a-coordinator-divide-the-partitions, tasks/share-a-topic.md#what-is-guaranteed
def test_a_query_that_lost_its_partitions_moves_nothing_back(group: Group) -> None:
    """Its batch took too long, or it was taken for dead.  Others have read on; it gets partitions again."""
    late = group.start()
    group.append()
    group.until(lambda: late.owned == ALL and len(late.got) == 8)
    group.append()
    assert late.plan()
    late.reader._progress.flush()
    group.log.admin.remove_members_from_consumer_group("g")
    group.queries.remove(late)
    other = group.start()
    group.until(lambda: other.owned == ALL and len(other.got) == 8)
    other.step()
    assert group.committed() == [4, 4, 4, 4]
    group.queries.append(late)
    assert len(late.read()) == 8, "the batch that it was in is read by both"
    group.until(group.is_shared)
    assert group.committed() == [4, 4, 4, 4]
    group.append()
    group.until(lambda: len(late.got) + len(other.got) == 24)
    assert len(set(late.got + other.got)) == 24


# Promise: tasks/share-a-topic.md#let-a-coordinator-divide-the-partitions, tasks/share-a-topic.md#what-is-guaranteed
def test_a_batch_that_was_planned_is_read_again_whatever_the_assignment(group: Group) -> None:
    """After a restart, before the query has partitions; then it continues where the group is."""
    died = group.start()
    group.until(lambda: died.owned == ALL)
    group.append()
    assert died.plan()
    group.stop(died)
    again = Query(group.url, died)
    assert len(again.read()) == 8 and again.owned == frozenset()
    group.queries.append(again)
    group.append()
    group.until(lambda: len(again.got) == 8)
    assert {offset for _, offset in again.got} == {2, 3}


# Promise: tasks/share-a-topic.md#let-a-coordinator-divide-the-partitions
def test_an_available_now_run_waits_for_its_partitions_and_leaves(group: Group) -> None:
    """So the next one, without its checkpoint, continues where it has ended."""
    group.append()
    assert len(Query(group.url).restart("available-now").run()) == 8
    assert group.committed() == [2, 2, 2, 2]
    assert group.log.admin.describe_consumer_groups(["g"])["g"].state == "Empty"
    group.append()
    assert len(Query(group.url).restart("available-now").run()) == 8


# Promise: tasks/share-a-topic.md#let-a-coordinator-divide-the-partitions
def test_a_start_is_kept_for_those_who_come_later(group: Group) -> None:
    """`latest` means the end when the group began: the first owner publishes it before there is any record."""
    group.append()
    first = group.start(startingOffsets="latest")
    group.until(lambda: first.owned == ALL)
    assert group.committed() == [2, 2, 2, 2]
    group.queries.remove(first)
    group.append()
    group.log.admin.remove_members_from_consumer_group("g")
    second = group.start(startingOffsets="latest")
    group.until(lambda: len(second.got) == 8)
    first.reader.stop()


# Promise: tasks/share-a-topic.md#what-is-guaranteed
def test_topics_and_partitions_that_come_later_are_read_from_their_first_record(group: Group) -> None:
    """Also with `latest`, and by a query that had nothing to read yet: its checkpoint is empty."""
    query = group.start(topics=None, subscribePattern="^[tu]$", startingOffsets="latest")
    other = group.start(topics=None, subscribePattern="^v$", startingOffsets="latest")
    group.until(lambda: query.owned == ALL and other.reader._progress._assigned)
    group.log.admin.create_topics([NewTopic("v", 1)])
    group.log.append("v", [{"value": "x"}])
    group.until(lambda: other.got == [("v-0", 0)])
    group.stop(query)
    group.log.admin.create_partitions({"t": 5})
    group.log.append("t", [{"value": "x", "partition": 4}])
    later = group.start(startingOffsets="latest")
    group.until(lambda: later.got == [("t-4", 0)])


class Unassigned(CoordinatedProgress):
    """A member of a group that never has an assignment."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__("g")
        self.clock = clock

    def is_assigned(self, journal: Journal, topics: Iterable[str], at: Offset, wait_ms: float) -> bool:
        self.clock.sleep_ms(wait_ms)
        return False


def test_a_query_waits_for_its_partitions_as_long_as_for_its_triggers(log: spark_log.Log, url: str) -> None:
    """With a trigger each minute it does not miss the next one; a query without a pause returns immediately."""
    log.admin.create_topics([NewTopic("t", 1)])
    clock = ManualClock()
    query = Stream(url, clock=clock)
    query.reader._progress = Unassigned(clock)
    start, began_ms = query.reader.initialOffset(), clock.monotonic_ms()
    for trigger, end_ms in (0, 200), (60_000, 120_000), (1_000_000, 1_300_000):
        clock.sleep_ms(trigger - (clock.monotonic_ms() - began_ms))
        assert query.reader.latestOffset(start, query.limit) == start
        assert clock.monotonic_ms() - began_ms == end_ms


# Promise: tasks/share-a-topic.md#let-a-coordinator-divide-the-partitions
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"group.id": "g", "path": "/log"}, "auto needs the URL of a coordinator, as in pylog://"),
        ({}, "option group.members: needs group.id"),
        ({"group.id": "g", "group.member": "0"}, "option group.member: with group.members=auto"),
        ({"group.id": "g", "startingOffsets": "latest-per-key"}, "option startingOffsets: with group.members=auto"),
    ],
)
def test_an_invalid_use_is_refused(options: dict[str, str], sentence: str) -> None:
    """With what to use instead."""
    with pytest.raises(InvalidRequest, match=sentence):
        read_options(asked("pylog://127.0.0.1:1", "t", **{"group.members": "AUTO", **options}), streaming=True)
    given = asked("pylog://127.0.0.1:1", None, **{"assign": '{"t":[0]}', "group.id": "g", "group.members": "auto"})
    with pytest.raises(InvalidRequest, match="option assign: with group.members=auto"):
        read_options(given, streaming=True)
