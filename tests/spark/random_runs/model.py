"""The expected results of a random run: plain values, separate from the log.

The model knows each record that was acknowledged, each trim and each topic that was created again.  A query's position
is that of its checkpoint; from that, the model derives which records each micro-batch has, which of them are lost, and
which batches must be refused.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from spark_log.model import TopicPartition


class Record(NamedTuple):
    """A record, unique by its value."""

    key: str | None
    value: str
    is_old: bool = False
    """Retention may remove it."""


@dataclass
class Part:
    """A partition: all records that it ever had, and the first that is still there."""

    records: list[Record] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return len(self.records)


@dataclass
class Topic:
    """One life of a topic: created again under the same name, it is another."""

    id: str
    parts: list[Part]


class Row(NamedTuple):
    """A record with its place, as a batch read gives it."""

    topic: str
    partition: int
    offset: int
    value: str


class Violation(AssertionError):
    """A promise does not hold."""


def require(holds: bool, message: str) -> None:
    """Raises Violation."""
    if not holds:
        raise Violation(message)


class Model:
    """The topics of a log, and all former ones."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[str, Topic] = {}
        self._numbers = itertools.count()

    def new_records(self, count: int, *, is_old: bool = False) -> list[Record]:
        return [Record(None, f"v{next(self._numbers)}", is_old) for _ in range(count)]

    def create(self, name: str, topic_id: str, partitions: int) -> None:
        self.topics[name] = self.by_id[topic_id] = Topic(topic_id, [Part() for _ in range(partitions)])

    def named(self, names: Iterable[str]) -> Iterator[tuple[TopicPartition, Topic, Part]]:
        """The partitions of those of the topics that exist."""
        for name in sorted(set(names) & self.topics.keys()):
            for number, part in enumerate(self.topics[name].parts):
                yield TopicPartition(name, number), self.topics[name], part

    def living(self, name: str, topic_id: str, partition: int) -> Part | None:
        """A partition, if its topic has not been deleted since."""
        topic = self.topics.get(name)
        if topic is None or topic.id != topic_id or partition >= len(topic.parts):
            return None
        return topic.parts[partition]


# ------------------------------------------------------------------------------------------------- positions of queries


@dataclass(frozen=True)
class Position:
    """An offset of a query, from its checkpoint."""

    ends: Mapping[TopicPartition, int]
    ids: Mapping[str, str]

    @property
    def places(self) -> dict[tuple[TopicPartition, str], int]:
        return {(tp, self.ids[tp.topic]): end for tp, end in self.ends.items()}


NOWHERE = Position({}, {})


def parse_position(text: str) -> Position:
    """A file of `offsets`: the third line is the offset of the one source."""
    line = json.loads(text.splitlines()[2])
    ends = {
        TopicPartition(topic, int(number)): end
        for topic, numbers in line.items()
        if not topic.startswith("@")
        for number, end in numbers.items()
    }
    return Position(ends, line["@topics"])


@dataclass
class Checkpoint:
    """The files of a checkpoint as they are at one moment."""

    offsets: dict[int, str]
    commits: set[int]

    @property
    def latest(self) -> int:
        """-1: the query has planned nothing."""
        return max(self.offsets, default=-1)

    @property
    def pending(self) -> int | None:
        """A batch that was planned, and is not known as done."""
        return self.latest if self.latest >= 0 and self.latest not in self.commits else None

    def position(self, batch: int) -> Position:
        return parse_position(self.offsets[batch]) if batch >= 0 else NOWHERE


def read_checkpoint(folder: Path) -> Checkpoint:
    def numbered(kind: str) -> dict[int, Path]:
        return {int(path.name): path for path in (folder / kind).glob("[0-9]*")}

    return Checkpoint(
        {number: path.read_text() for number, path in numbered("offsets").items()}, set(numbered("commits"))
    )


class Loss(NamedTuple):
    """Records that a query was to read, and that are gone; an error names the partition."""

    tp: TopicPartition
    why: str


@dataclass(frozen=True)
class Batch:
    """The plan of a micro-batch: start and end in each partition."""

    starts: Mapping[TopicPartition, int]
    position: Position


@dataclass(frozen=True)
class Source:
    """The source of a stream."""

    topics: tuple[str, ...]
    """All that it may find."""
    by_pattern: bool
    starting: str = "earliest"


def plan_batch(model: Model, source: Source, before: Position | None, after: Position) -> tuple[Batch, list[Loss]]:
    """A batch that was planned in the log as it is.

    before:  None for the first batch of a query.
    """
    starts, losses = {}, []
    for tp, topic_id in ((tp, after.ids[tp.topic]) for tp in after.ends):
        part = model.living(tp.topic, topic_id, tp.partition)
        if part is None:
            raise Violation(f"a batch was planned of {tp}, which is not there")
        if before is None:
            starts[tp] = part.start if source.starting == "earliest" else part.end
            continue
        known = tp in before.ends and before.ids[tp.topic] == topic_id
        expected = before.ends[tp] if known else 0
        starts[tp] = max(expected, part.start)
        if expected < part.start:
            losses.append(Loss(tp, "trimmed"))
    return Batch(starts, after), losses + (vanished(model, before) if before is not None else [])


def vanished(model: Model, at: Position) -> list[Loss]:
    """Partitions at which a query stands and whose topic is gone."""
    return [Loss(tp, "deleted") for tp in at.ends if model.living(tp.topic, at.ids[tp.topic], tp.partition) is None]


def losses_ahead(model: Model, source: Source, at: Position) -> list[Loss]:
    """The records that a query at that position has lost."""
    found = vanished(model, at)
    for tp, topic, part in model.named(source.topics):
        known = tp in at.ends and at.ids[tp.topic] == topic.id
        if (at.ends[tp] if known else 0) < part.start:
            found.append(Loss(tp, "trimmed"))
    return found


def rows_of(model: Model, batch: Batch) -> tuple[list[tuple[TopicPartition, Record]], list[Loss]]:
    """The rows of a batch that runs in the log as it is, by partition and offset."""
    rows: list[tuple[TopicPartition, Record]] = []
    losses = []
    for tp, end in sorted(batch.position.ends.items()):
        start = batch.starts[tp]
        part = model.living(tp.topic, batch.position.ids[tp.topic], tp.partition)
        if start < end and (part is None or part.start > start):
            losses.append(Loss(tp, "gone before the batch was read"))
        if part is not None:
            require(end <= part.end, f"a batch of {tp} ends at {end}, beyond the end {part.end}")
            rows += [(tp, record) for record in part.records[max(start, part.start) : end]]
    return rows, losses


# ------------------------------------------------------------------------------------------------- identities of a sink


@dataclass(frozen=True)
class Committed:
    """The last commit of an identity."""

    batch: int
    values: tuple[str, ...]
    places: Mapping[tuple[TopicPartition, str], int]
    """Where it ended."""
    starts: Mapping[TopicPartition, int]


@dataclass
class Identity:
    """A query, or a `producerId` that queries have one after the other."""

    holder: str
    former: set[str] = field(default_factory=set)
    last: Committed | None = None


class Verdict(NamedTuple):
    """The outcome of a batch."""

    outcome: str
    """`written`, `repeated`, `refused`, `fenced`, or `nothing` to write.  `either`: same rows, other source offsets."""
    last: int


class Identities:
    """The last write of each identity."""

    def __init__(self) -> None:
        self._known: dict[str, Identity] = {}

    def judge(self, producer_id: str | None, query: str, commit: Committed) -> Verdict:
        if not commit.values:
            return Verdict("nothing", -1)
        known = self._known.get(producer_id or query)
        if known is not None and query in known.former:
            return Verdict("fenced", -1)
        if known is None or known.holder != query or known.last is None or commit.batch > known.last.batch:
            return Verdict("written", -1)
        last = known.last
        if commit.batch < last.batch or sorted(commit.values) != sorted(last.values):
            return Verdict("refused", last.batch)
        alike = commit.places == last.places and commit.starts == last.starts
        return Verdict("repeated" if alike else "either", last.batch)

    def write(self, producer_id: str | None, query: str, commit: Committed) -> None:
        known = self._known.setdefault(producer_id or query, Identity(query))
        if known.holder != query:
            known.former.add(known.holder)
            known.holder = query
        known.last = commit
