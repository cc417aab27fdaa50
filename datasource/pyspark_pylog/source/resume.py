"""How a stream continues in a log that has changed: pure decisions from its offset, its options and the log's state.

A removed partition is a loss, even if all of it had been read: it might have got more records.  A topic that the
options no longer request is not a loss.  A partition created since the last check is read from record 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.progress.loss import TRIMMED, Loss
from pyspark_pylog.progress.offset_format import Ends, Offset
from pyspark_pylog.source.ranges import is_asked_for
from spark_log.client.reader.plan import OffsetRange
from spark_log.errors import DataLoss, UnknownTopicOrPartition
from spark_log.metadata.state import Partition, State
from spark_log.model import TopicPartition


def check_topics(state: State, options: ReadOptions, at: Offset) -> None:
    """Raises UnknownTopicOrPartition if a topic read by its name was deleted, whatever failOnDataLoss says."""
    for topic in sorted({*options.subscribe, *(tp.topic for tp in options.assign)} & at.ids.keys()):
        if topic not in state.names:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} was deleted, and the stream reads it by its name: leave it out, or create it again and "
                "set failOnDataLoss=false"
            )


def check_target(state: State, target: Offset) -> None:
    """Raise DataLoss if a topic in the target of an available-now run is gone, whatever failOnDataLoss is, as in Kafka.

    The run was planned to read this topic up to that end, and cannot.
    """
    for topic, topic_id in sorted(target.ids.items()):
        if state.names.get(topic) != topic_id:
            what = "was deleted and created again" if topic in state.names else "was deleted"
            raise DataLoss(
                f"topic {topic!r} {what} during this available-now run, which cannot reach its end: run the query again. "
                "What was lost is decided then, by failOnDataLoss"
            )


def go_on(
    state: State,
    options: ReadOptions,
    at: Offset,
    tps: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> tuple[Ends, list[Loss]]:
    """Where a stream at the offset `at` continues in each of `tps`, and what it lost.

    committed:  positions of queries that share the partitions: what one of them has read, no other reads.
    Raises DataLoss if the offset is beyond the end of the log.
    """
    starts: Ends = {}
    losses: list[Loss] = []
    for tp in tps:
        topic_id = state.names[tp.topic]
        part = state.partitions[topic_id, tp.partition]
        if tp in at.ends and at.same_topic(tp.topic, topic_id):
            _check_end(tp, at.ends[tp], part)
            wanted = max(at.ends[tp], committed.get(tp, 0))
        else:
            wanted = committed.get(tp, 0 if _followed(options, at, tp) else part.start)
        starts[tp] = max(wanted, part.start)
        if wanted < part.start:
            losses.append(Loss(tp, wanted, part.start, TRIMMED))
    return starts, _vanished(state, options, at, starts) + losses


def planned_ranges(state: State, start: Offset, end: Offset) -> tuple[list[OffsetRange], list[Loss]]:
    """The ranges of the batch from `start` to `end` that still exist, and what was lost since it was planned.

    Raises DataLoss if the plan goes beyond the end of the log.
    """
    ranges: list[OffsetRange] = []
    losses: list[Loss] = []
    for tp, stop in sorted(end.ends.items()):
        topic_id = end.ids.get(tp.topic, state.names.get(tp.topic))
        part = None
        if topic_id is not None and state.names.get(tp.topic) == topic_id:
            part = state.partitions.get((topic_id, tp.partition))
        first = _first(start, end, tp)
        if first is None:  # planned by an older pylog
            first = 0 if part is None else part.start
        if part is None or topic_id is None:
            if first < stop:
                losses.append(Loss(tp, first, stop, f"topic {tp.topic!r} was deleted before the batch was read"))
            continue
        _check_end(tp, stop, part)
        begin = max(first, part.start)
        if first < min(begin, stop):
            losses.append(Loss(tp, first, min(begin, stop), TRIMMED))
        if begin < stop:
            ranges.append(OffsetRange(tp.topic, topic_id, tp.partition, begin, stop))
    return ranges, losses


def split_at(ranges: Iterable[OffsetRange], latest: Ends) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """The parts of ranges that are before the end of the view of their partition, and those after it."""
    before, after = [], []
    for rng in ranges:
        end = latest.get(TopicPartition(rng.topic, rng.partition), rng.start)
        before.append(rng._replace(end=min(rng.end, end)))
        after.append(rng._replace(start=max(rng.start, end)))
    return [rng for rng in before if rng.start < rng.end], [rng for rng in after if rng.start < rng.end]


def _first(start: Offset, end: Offset, tp: TopicPartition) -> int | None:
    if tp in end.starts:
        return end.starts[tp]
    return start.ends.get(tp) if start.same_topic(tp.topic, end.ids.get(tp.topic)) else None


def _check_end(tp: TopicPartition, wanted: int, part: Partition) -> None:
    if wanted > part.readable_end:
        raise DataLoss(
            f"the checkpoint is at offset {wanted} of {tp.topic}-{tp.partition}, beyond the end of the log, {part.readable_end}: "
            "this log is an older copy, or another one; restore the newer copy, or start the query with a new checkpoint"
        )


def _followed(options: ReadOptions, at: Offset, tp: TopicPartition) -> bool:
    """Whether an earlier check would have found a partition that is new to the stream, so that it reads all of it.

    No, if the user may just have added it to the options.
    """
    return bool(options.pattern) or (not options.assign and any(known.topic == tp.topic for known in at.ends))


def _vanished(state: State, options: ReadOptions, at: Offset, there: Ends) -> list[Loss]:
    losses = []
    for tp, known in sorted(at.ends.items()):
        now, then = state.names.get(tp.topic), at.ids.get(tp.topic, state.names.get(tp.topic))
        if (tp in there and now == then) or not is_asked_for(options, tp):
            continue
        if now is None:
            why = f"topic {tp.topic!r} was deleted"
        elif now != then:
            why = f"topic {tp.topic!r} was deleted and created again"
        else:
            why = f"topic {tp.topic!r} has fewer partitions now"
        part = None if then is None else state.partitions.get((then, tp.partition))
        losses.append(Loss(tp, known, None if part is None else part.readable_end, why))
    return losses
