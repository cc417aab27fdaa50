"""One version for all tasks of a query.

The first task pins it: it claims the query's name (`meta/pin/…`) for the start and the end of every partition, and all
other tasks, of any scan in the query, read them (`journal/storage/claims.py`).  The pin also contains the records added
since the scan of that task was planned; another scan of the query puts its growth under a separate name (`growth.py`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec
from pyspark import TaskContext

from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import newest_journal
from pyspark_pylog.source.growth import Growth, PinnedTopic
from spark_log.bounds import UNREADABLE
from spark_log.client.reader.plan import OffsetRange, SliceRead
from spark_log.errors import ConcurrentChange, CorruptObject
from spark_log.journal.journal import Journal
from spark_log.metadata.erasures import erased_at
from spark_log.metadata.groups.consumer_offsets import CommittedOffsets, progress_of
from spark_log.metadata.restores import has_read, history_of
from spark_log.metadata.state import State
from spark_log.runtime.clock import SystemClock
from spark_log.store.object_names import PINS

POSITIONS_MAX = 2000
"""Maximum number of group positions in a pin: about 10 ms of work and 300 KB."""

File = TypeVar("File", bound=msgspec.Struct)


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """The version of the log that a query reads."""

    version: int
    topics: dict[str, PinnedTopic]
    progress: CommittedOffsets | None = None
    """Positions of groups, for another scan of the query; None if there are too many to store in advance."""
    growth: dict[str, Growth] = {}
    """By scan: the growth for the task that made the pin."""
    made_ms: int = 0
    """When, by the clock of the machine of that task."""
    history: str = ""
    """The history of the log when the pin was made."""


class PinNames(NamedTuple):
    """Names, unique to a query, of its pin and of the growth of one scan."""

    pin: str
    growth: str


def query_of_task(scan: str, token: str | None) -> PinNames:
    """The names of the pins of the query to which the calling task belongs.

    Spark gives all tasks of a query one execution id, counted from 0 in each application.  A job on an RDD has no such
    id, so the tasks of each stage share a pin instead.

    token:  of the log.  The names are hashes with it: they are made of ids that others see in Spark's UI, and who
            claims a name first decides what the query reads.
    """
    context = TaskContext.get()
    assert context is not None, "read() runs in a task"
    execution = context.getLocalProperty("spark.sql.execution.id")
    application = context.getLocalProperty("spark.app.id")
    if execution is None or application is None:
        name = f"{scan}-stage-{context.stageId()}"
    else:
        started = context.getLocalProperty("spark.app.startTime") or "0"
        name = f"{application}-{started}-{execution}"
    return names_of(name, scan, token)


def names_of(query: str, scan: str, token: str | None) -> PinNames:
    """The names of the pins of a query, by its ids."""
    return PinNames(*(PINS + _hidden(name, token) for name in (query, f"{query}-{scan}")))


def _hidden(name: str, token: str | None) -> str:
    return name if not token else hmac.new(token.encode(), name.encode(), hashlib.sha256).hexdigest()


def check_history(log: PlannedLog, pin: Pin, planned: Iterable[SliceRead | OffsetRange] | None = None) -> None:
    """Raise ConcurrentChange if the log was restored from a copy since a frame was planned, and its queries may have
    other records of it now.

    A pin does not survive a restore, so nothing tells a task whether its query began before: other tasks may have
    returned records of the lost log.

    planned:  all that the query reads here; None: also what was added since the plan.
    """
    if pin.history == log.history:
        return
    state = None if planned is None else newest_journal(log).state
    if state is None or not all(
        has_read(state, log.history, (one.topic_id, one.partition), one.end) for one in planned or ()
    ):
        raise _restored(log.roots.store().url)


def check_history_of(pin: Pin, journal: Journal) -> None:
    """Raises ConcurrentChange if the log was restored from a copy since a query has pinned it."""
    if pin.history != history_of(journal.state):
        raise _restored(journal.metadata.url)


def _restored(where: str) -> ConcurrentChange:
    return ConcurrentChange(
        f"the log at {where} was restored from a copy since this frame was planned, and tasks of the same query may have "
        "read the lost log: load again, and make temporary views again"
    )


def doubtful_reads(pin: Pin, reads: Iterable[SliceRead], planned: int) -> list[SliceRead]:
    """The planned reads of which records are gone by a pin.  That is rare, so a task looks at the log itself.

    planned:  the version of the plan: an older pin, of another scan, ends earlier.
    """
    return [read for read in reads if _is_doubtful(pin.topics.get(read.topic), read, pin.version >= planned)]


def _is_doubtful(topic: PinnedTopic | None, read: SliceRead, newer: bool) -> bool:
    if topic is None or topic.topic_id != read.topic_id or read.partition >= len(topic.starts):
        return True
    return topic.starts[read.partition] > read.start or (newer and topic.ends[read.partition] < read.end)


def check_gone(pin: Pin, reads: Iterable[SliceRead], state: State, planned: int) -> None:
    """Raises ConcurrentChange for a pin by which records are gone that the log still has.

    reads:  the doubtful ones.
    state:  the newest one: a partition's start never decreases.
    """
    for read in reads:
        topic, part = pin.topics.get(read.topic), state.partitions.get((read.topic_id, read.partition))
        if part is None or state.names.get(read.topic) != read.topic_id:
            continue
        if (
            topic is None
            or topic.topic_id != read.topic_id
            or read.partition >= len(topic.starts)
            or part.start < topic.starts[read.partition]
            or (pin.version >= planned and topic.ends[read.partition] < read.end <= part.readable_end)
        ):
            raise ConcurrentChange(
                f"the version that the tasks of this query agreed on lacks records of {read.topic}-{read.partition}, which "
                "the log has: another process has claimed the query's name; run the query again, and look for the claim "
                "in the coordinator's audit log"
            )


def pin_of(state: State) -> Pin:
    """The pin of a query at this state."""
    positions = len(state.forgotten) + sum(len(group.offsets) for group in state.groups.values())
    return Pin(
        version=state.version,
        topics={name: _topic(state, topic_id) for name, topic_id in sorted(state.names.items())},
        progress=progress_of(state) if positions <= POSITIONS_MAX else None,
        history=history_of(state),
    )


def _topic(state: State, topic_id: str) -> PinnedTopic:
    parts = [part for _, part in state.topic_partitions(topic_id)]
    starts, ends = [part.start for part in parts], [part.readable_end for part in parts]
    return PinnedTopic(topic_id, starts, ends, erased_at(state, topic_id))


def encode(file: msgspec.Struct) -> bytes:
    """Adds the time, by which maintenance recognises files of old queries."""
    return msgspec.json.encode({**msgspec.structs.asdict(file), "made_ms": SystemClock().now_ms()})


def decode(data: bytes, kind: type[File]) -> File:
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise CorruptObject(
            f"the pin of a query, a file of meta/pin/, is damaged: {error}. Run the query again"
        ) from error
