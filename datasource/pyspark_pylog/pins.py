"""One version for all tasks of a query.

An open end is resolved when the query runs: the first task to ask puts the ends of all partitions under the query's name
(`meta/pin/…`, put-if-absent), and every other task, of any scan in the query, reads them.  A second file, by scan, holds
the slices of each task, so that only one task plans; a third, by load, which task reads which offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec
from pyspark import TaskContext

from spark_log.client.plan import SliceRead
from spark_log.clock import SystemClock
from spark_log.errors import ObjectNotFound, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.metadata.progress_topic import Progress, progress_of
from spark_log.model import TopicPartition
from spark_log.store.base import ObjectStore

PINS = "meta/pin/"
TRIES = 5
POSITIONS_MAX = 2000
"""Of groups, that a pin holds: about 10 ms of work and 300 KB."""

File = TypeVar("File", bound=msgspec.Struct)


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What a query sees of the log."""

    version: int
    topics: dict[str, tuple[str, list[int]]]
    """Name: (id, end of each partition)."""
    progress: Progress | None = None
    """Where groups stand, should another scan of the query ask; None if that is too much to write down on a chance."""

    def ends(self) -> dict[TopicPartition, int]:
        return {TopicPartition(name, n): end for name, (_, ends) in self.topics.items() for n, end in enumerate(ends)}


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Slices of each task of one scan."""

    version: int
    tasks: list[list[SliceRead]]


class Query(NamedTuple):
    """Names, unique to a query, for its pin and for the plan of one scan in it."""

    pin: str
    plan: str


def query_of_task(scan: str) -> Query:
    """The query that this task belongs to.

    Spark gives all tasks of a query one execution id, counted from 0 in each application.  Jobs on an RDD have none:
    there the tasks of a stage agree.
    """
    context = TaskContext.get()
    assert context is not None, "read() runs in a task"
    execution = context.getLocalProperty("spark.sql.execution.id")
    application = context.getLocalProperty("spark.app.id")
    if execution is None or application is None:
        name = f"{PINS}{scan}-stage-{context.stageId()}"
    else:
        started = context.getLocalProperty("spark.app.startTime") or "0"
        name = f"{PINS}{application}-{started}-{execution}"
    return Query(name, f"{name}-{scan}")


def pinned(store: ObjectStore, name: str, make: Callable[[], bytes]) -> bytes:
    """The bytes under `name`: whoever comes first makes them."""
    for _ in range(TRIES):
        try:
            return store.get(name)
        except ObjectNotFound:
            pass
        try:
            store.put_new(name, make())
        except StorageUnavailable:
            continue
    return store.get(name)


def make_pin(journal: Journal) -> bytes:
    """The log as it is now."""
    state = journal.refresh()
    topics = {
        name: (topic_id, [part.end for _, part in state.topic_partitions(topic_id)])
        for name, topic_id in sorted(state.names.items())
    }
    positions = len(state.forgotten) + sum(len(group.offsets) for group in state.groups.values())
    progress = progress_of(state) if positions <= POSITIONS_MAX else None
    return encode(Pin(version=state.version, topics=topics, progress=progress))


def read_pin(data: bytes) -> Pin:
    return decode(data, Pin)


def encode(file: msgspec.Struct) -> bytes:
    """With the time, by which upkeep knows the files of queries long gone."""
    return msgspec.json.encode({**msgspec.structs.asdict(file), "made_ms": SystemClock().now_ms()})


def decode(data: bytes, kind: type[File]) -> File:
    return msgspec.json.decode(data, type=kind)
