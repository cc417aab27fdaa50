"""The growth of a frame since its plan: records added to open ends, up to the version that the query pins.

Also decides which planned records still exist at that version: records trimmed since are not read.  Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.progress.loss import TRIMMED, Loss
from pyspark_pylog.source.ranges import asked_for, is_open
from spark_log.client.reader.plan import OffsetRange, SliceRead
from spark_log.errors import UnknownTopicOrPartition
from spark_log.model import TopicPartition
from spark_log.positions import At, Earliest, LatestMinus, OfGroup

FIXED = -1
"""Used instead of an offset: nothing is added to this partition."""

GroupEnds = Mapping[str, Mapping[int, int]]
"""By topic id and partition, for ends that are committed offsets of a group."""


class PinnedTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic at the pinned version."""

    topic_id: str
    starts: list[int]
    ends: list[int]
    erased: int = -1
    """The version of the end of the last erasure of its records."""


Topics = Mapping[str, PinnedTopic]
"""By name, all topics at the pinned version."""


class Planned(msgspec.Struct, frozen=True, array_like=True):
    """Partitions of a topic at `load()`."""

    topic_id: str
    upto: list[int]
    """The first offset that the plan of `load()` does not cover; FIXED if nothing is added."""
    turns: list[int]
    """The task that reads the first added records."""


class Basis(msgspec.Struct, frozen=True, array_like=True):
    """The part of the plan that a task needs to share the growth with other tasks."""

    topics: dict[str, Planned]
    tasks: int
    """Number of tasks that read added records."""

    def place(self, topic: str, topic_id: str, partition: int) -> tuple[int, int]:
        """The first offset beyond the plan of `load()`, and the task that reads it; 0 for a new partition."""
        planned = self.topics.get(topic)
        if planned is None or planned.topic_id != topic_id or partition >= len(planned.upto):
            return 0, _turn(topic_id, partition, self.tasks)
        return planned.upto[partition], planned.turns[partition]

    def encode(self) -> bytes:
        return zlib.compress(msgspec.msgpack.encode(self), 1)


def decode_basis(data: bytes) -> Basis:
    return msgspec.msgpack.decode(zlib.decompress(data), type=Basis)


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The growth of one scan, at the pinned version."""

    tasks: list[list[SliceRead]]
    ends: dict[str, dict[int, int]] = {}
    """`GroupEnds`."""


NONE = Growth(tasks=[])


def basis_of(
    ranges: Iterable[OffsetRange], dealt: Sequence[Sequence[SliceRead]], options: ReadOptions, tasks: int
) -> Basis:
    """The basis of a plan of `ranges`; the task after that of a range's end reads the first added records."""
    last = {(read.topic_id, read.partition): number for number, reads in enumerate(dealt) for read in reads}
    topics: dict[str, Planned] = {}
    for rng in ranges:
        planned = topics.setdefault(rng.topic, Planned(rng.topic_id, [], []))
        missing = rng.partition + 1 - len(planned.upto)
        planned.upto.extend([FIXED] * missing)
        planned.turns.extend([0] * missing)
        if is_open(options.end.of(TopicPartition(rng.topic, rng.partition))):
            planned.upto[rng.partition] = max(rng.start, rng.end)
            owner = last.get((rng.topic_id, rng.partition))
            turn = _turn(rng.topic_id, rng.partition, tasks) if owner is None else (owner + 1) % tasks
            planned.turns[rng.partition] = turn
    return Basis(topics, tasks)


def _turn(topic_id: str, partition: int, tasks: int) -> int:
    return zlib.crc32(f"{topic_id}-{partition}".encode()) % tasks


def ends_with_groups(options: ReadOptions) -> bool:
    """Whether an end is a group's committed offset, which a pin does not contain."""
    return any(isinstance(position, OfGroup) for position in options.end.positions)


def partitions_there(topics: Topics, options: ReadOptions) -> list[TopicPartition]:
    """The partitions of a frame at the pinned version.  Raises UnknownTopicOrPartition for a topic that was deleted."""
    check_there(topics, options)
    return asked_for(options, topics, lambda name: len(topics[name].ends) if name in topics else 0)


def check_there(topics: Topics, options: ReadOptions) -> None:
    """Raise UnknownTopicOrPartition if a topic that is read by its name to an open end was deleted after `load()`.

    If its end is not open, its planned records count as lost instead.
    """
    for name in (*options.subscribe, *(tp.topic for tp in options.assign)):
        if name not in topics and is_open(options.end.of_topic(name)):
            raise UnknownTopicOrPartition(
                f"topic {name!r} was deleted after this frame was planned: leave it out, or create it again and load again"
            )


def additions(
    topics: Topics, options: ReadOptions, basis: Basis, group_ends: GroupEnds
) -> tuple[list[OffsetRange], list[Loss]]:
    """The ranges that were added to open ends since `load()`, and the parts of them that are lost already.

    All records of partitions that did not exist at `load()` are added.
    """
    ranges, losses = [], []
    for tp in partitions_there(topics, options):
        topic = topics[tp.topic]
        upto, _ = basis.place(tp.topic, topic.topic_id, tp.partition)
        position = options.start.of(tp)
        if upto == FIXED or not is_open(options.end.of(tp)):
            continue
        stop, there = _end(topic, tp, options, group_ends), topic.starts[tp.partition]
        if upto == 0 and isinstance(position, At):
            upto = position.offset
        if upto < min(there, stop) and not isinstance(position, Earliest):
            losses.append(Loss(tp, upto, min(there, stop), TRIMMED))
        if max(upto, there) < stop:
            ranges.append(OffsetRange(tp.topic, topic.topic_id, tp.partition, max(upto, there), stop))
    return ranges, losses


def ranges_at(
    topics: Topics, planned: Iterable[OffsetRange], options: ReadOptions, group_ends: GroupEnds
) -> tuple[list[OffsetRange], list[Loss]]:
    """The ranges of a frame at the pinned version, in order, and the parts of the planned ranges that are lost.

    planned:  the range of each partition at `load()`, including empty ranges.
    """
    starts = {(rng.topic_id, rng.partition): rng for rng in planned}
    ranges, losses = [], []
    for tp in sorted(partitions_there(topics, options)):
        topic, position = topics[tp.topic], options.start.of(tp)
        known = starts.pop((topic.topic_id, tp.partition), None)
        if known is None and not is_open(options.end.of(tp)):
            continue
        first = known.start if known else position.offset if isinstance(position, At) else 0
        stop = _end(topic, tp, options, group_ends) if is_open(options.end.of(tp)) or known is None else known.end
        there = topic.starts[tp.partition]
        if first < min(there, stop) and not isinstance(position, Earliest):
            losses.append(Loss(tp, first, min(there, stop), TRIMMED))
        if max(first, there) < stop:
            ranges.append(OffsetRange(tp.topic, topic.topic_id, tp.partition, max(first, there), stop))
    for rng in starts.values():
        tp = TopicPartition(rng.topic, rng.partition)
        if rng.start < rng.end and not (isinstance(options.start.of(tp), Earliest) and is_open(options.end.of(tp))):
            losses.append(Loss(tp, rng.start, rng.end, _gone(rng.topic, topics.get(rng.topic))))
    return ranges, losses


def _end(topic: PinnedTopic, tp: TopicPartition, options: ReadOptions, group_ends: GroupEnds) -> int:
    """The end of a partition at the pinned version, if its position determines it."""
    end = topic.ends[tp.partition]
    match options.end.of(tp):
        case LatestMinus(records):
            return max(topic.starts[tp.partition], end - records)
        case OfGroup():
            return group_ends.get(topic.topic_id, {}).get(tp.partition, end)
    return end


def still_there(
    reads: Iterable[SliceRead], topics: Topics, options: ReadOptions, group_ends: GroupEnds
) -> tuple[list[SliceRead], list[Loss]]:
    """The planned reads that still exist at the pinned version, and the lost ranges.

    With the start `earliest`, trimmed records are not lost: the read starts at the first existing record.
    """
    kept, losses = [], []
    for read in reads:
        tp = TopicPartition(read.topic, read.partition)
        of_first = isinstance(options.start.of(tp), Earliest)
        topic = topics.get(read.topic)
        if topic is None or topic.topic_id != read.topic_id:
            if not (of_first and is_open(options.end.of(tp))):
                losses.append(Loss(tp, read.start, read.end, _gone(read.topic, topic)))
            continue
        first, stop = topic.starts[read.partition], _end(topic, tp, options, group_ends)
        if read.start < first and not of_first:
            losses.append(Loss(tp, read.start, min(first, read.end), TRIMMED))
        if max(first, read.start) < min(stop, read.end):
            kept.append(replace(read, start=max(first, read.start), end=min(stop, read.end)))
    return kept, _joined(losses)


def _gone(name: str, now: PinnedTopic | None) -> str:
    return f"topic {name!r} was deleted{' and created again' if now else ''} after this frame was planned"


def _joined(losses: Sequence[Loss]) -> list[Loss]:
    """Merges adjacent ranges."""
    joined: list[Loss] = []
    for loss in losses:
        last = joined[-1] if joined else None
        if last and (last.tp, last.end, last.why) == (loss.tp, loss.start, loss.why):
            joined[-1] = Loss(loss.tp, last.start, loss.end, loss.why)
        else:
            joined.append(loss)
    return joined
