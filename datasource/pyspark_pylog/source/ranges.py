"""Converts options to ranges of offsets: which partitions, from where, to where, and how lost records are handled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.options.patterns import finds
from pyspark_pylog.progress.loss import TRIMMED, Loss, report
from spark_log.client.reader.plan import REPLAN_TRIES, OffsetRange
from spark_log.client.reader.positions_to_offsets import committed_offset, offsets_for_times, partition_of, resolve
from spark_log.errors import DataLoss, InvalidRequest, UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.metadata.state import GroupState, State
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.model import TopicPartition
from spark_log.positions import At, AtTime, OfGroup, Position, SinceNow
from spark_log.text import counted

Result = TypeVar("Result")


def wanted_partitions(state: State, options: ReadOptions) -> list[TopicPartition]:
    """Partitions that the options ask for, in order.

    A named topic must exist; partitions of `assign` that do not exist are ignored, as in Kafka's connector.
    """
    return asked_for(options, state.names, lambda name: topic_named(state, name)[1].partitions)


def asked_for(options: ReadOptions, names: Iterable[str], count: Callable[[str], int]) -> list[TopicPartition]:
    """The partitions that the options request, of existing topics, given with their partition counts."""
    if options.assign:
        return [tp for tp in options.assign if tp.partition < count(tp.topic)]
    wanted: Iterable[str] = options.subscribe
    if options.pattern:
        wanted = sorted(name for name in names if finds(options.pattern, name))
    return [TopicPartition(name, number) for name in wanted for number in range(count(name))]


def topics_asked_for(options: ReadOptions, names: Iterable[str]) -> list[str]:
    """The existing topics that the options request."""
    topics = {tp.topic for tp in options.assign}.union(options.subscribe)
    return sorted(name for name in names if name in topics or (options.pattern and finds(options.pattern, name)))


def is_asked_for(options: ReadOptions, tp: TopicPartition) -> bool:
    """Whether the options request a partition, even if it does not exist."""
    if options.pattern:
        return finds(options.pattern, tp.topic)
    return tp in options.assign or tp.topic in options.subscribe


def _check_there(options: ReadOptions, tps: Iterable[TopicPartition]) -> None:
    """Rejects a position of a missing topic or partition: it would be ignored without notice."""
    counts = Counter(tp.topic for tp in tps)
    for bounds in (options.start, options.end):
        for topic in sorted(bounds.named - set(counts)):
            raise InvalidRequest(f"option {bounds.option} names {topic!r}, and there is no such topic")
        for topic, number in sorted(bounds.partitions):
            if number >= counts[topic]:
                raise InvalidRequest(
                    f"option {bounds.option} names {topic}-{number}, and topic {topic!r} has "
                    f"{counted(counts[topic], 'partition')} (0 to {counts[topic] - 1})"
                )


def start_offsets(
    journal: Journal,
    options: ReadOptions,
    tps: Iterable[TopicPartition],
    standing: Mapping[TopicPartition, int] = MappingProxyType({}),
    stops: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> dict[TopicPartition, int]:
    """The offset at which the read of each partition starts.

    tps:       the partitions.
    standing:  offsets that take precedence over the options, such as the committed offsets of a group.
    stops:     where reads end: lost records count only up to there.
    Raises DataLoss if the options, or a group that they name, give an offset that is trimmed.  With
    failOnDataLoss=false it gives a warning instead, and the read starts at the first existing offset.
    Raises InvalidRequest for an offset beyond the end, and for a timestamp after the last record, unless
    `startingOffsetsByTimestampStrategy` is `latest`.
    """
    state = journal.state
    positions = {tp: options.start.of(tp) for tp in tps}
    if not options.assign:
        _check_there(options, wanted_partitions(state, options))
    starts = {tp: standing[tp] for tp in positions if tp in standing}
    stated = {tp: _stated(state, tp, position) for tp, position in positions.items() if tp not in starts}
    losses = []
    for tp, offset in stated.items():
        if offset is not None:
            starts[tp] = max(offset, first := partition_of(state, tp)[1].start)
            gone = min(first, stops.get(tp, first))
            losses += [Loss(tp, offset, gone, TRIMMED)] if offset < gone else []
    report(losses, options.fail_on_data_loss)
    if options.no_match_is_error:
        times = {tp: p.ms for tp, p in positions.items() if isinstance(p, AtTime) and tp not in starts}
        starts |= _at_times(journal, options.start.option, times)
    starts |= resolve(journal, {tp: p for tp, p in positions.items() if tp not in starts})
    return {tp: starts[tp] for tp in positions}


def _stated(state: State, tp: TopicPartition, position: Position) -> int | None:
    """The offset given as a number or by a group; None if neither."""
    key, part = partition_of(state, tp)
    if isinstance(position, OfGroup):
        known = state.groups.get(position.name, GroupState()).offsets.get(key)
        return None if known is None else min(known.offset, part.readable_end)
    if not isinstance(position, At):
        return None
    if position.offset > part.readable_end:
        raise InvalidRequest(
            f"option startingOffsets: {position.offset} is beyond the end of {tp.topic}-{tp.partition}, {part.readable_end}"
        )
    return position.offset


def _at_times(journal: Journal, option: str, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    found = offsets_for_times(journal, times)
    for tp, offset in found.items():
        if offset is None:
            raise InvalidRequest(
                f"option {option}: no record of {tp.topic}-{tp.partition} is at or after {times[tp]}; "
                "startingOffsetsByTimestampStrategy=latest starts at the end instead"
            )
    return {tp: offset for tp, offset in found.items() if offset is not None}


def _end_offsets(
    journal: Journal, options: ReadOptions, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The end of each partition; `ends` are the ends of the log, which limit given offsets."""
    positions: dict[TopicPartition, Position] = {tp: options.end.of(tp) for tp in ends}
    fixed = {tp: min(p.offset, ends[tp]) for tp, p in positions.items() if isinstance(p, At)}
    found = resolve(journal, {tp: p for tp, p in positions.items() if tp not in fixed})
    return {tp: fixed[tp] if tp in fixed else min(found[tp], ends[tp]) for tp in positions}


def is_open(end: Position) -> bool:
    """Whether an end depends on the time of the query."""
    return not isinstance(end, At | AtTime | SinceNow)


def is_fixed(options: ReadOptions, tps: Iterable[TopicPartition]) -> bool:
    """Whether no end depends on the time of the query."""
    return not any(is_open(options.end.of(tp)) for tp in tps)


def _is_explicit(start: Position, end: Position) -> bool:
    """Whether the user set both start and end, so that a start beyond the end is a mistake.

    A time may be beyond an open end because the query sees less of the log than exists by now.
    """
    return isinstance(start, At) or (isinstance(start, AtTime) and isinstance(end, At))


def replanned(plan: Callable[[], Result], newer: Callable[[], State]) -> Result:
    """A plan, which is made again by a newer state if records were removed, or topics deleted, in between.

    newer:  the newest state that is known; the error is raised if it is the same twice, and after `REPLAN_TRIES`.
    """
    state = newer()
    for _ in range(REPLAN_TRIES):
        try:
            return plan()
        except (DataLoss, UnknownTopicOrPartition):
            before, state = state, newer()
            if state is before:
                raise
    return plan()


def batch_ranges(journal: Journal, options: ReadOptions) -> tuple[State, list[OffsetRange]]:
    """The range of each partition of a batch read, including empty ranges, and the state in which all were resolved.

    Raises InvalidRequest for a start beyond its end.
    """
    while True:  # searching for a timestamp may refresh the journal
        state = journal.state
        ranges = _ranges(journal, options)
        if journal.state is state:
            return state, ranges


def _ranges(journal: Journal, options: ReadOptions) -> list[OffsetRange]:
    state = journal.state
    tps = sorted(wanted_partitions(state, options))
    stops = _end_offsets(journal, options, {tp: partition_of(state, tp)[1].readable_end for tp in tps})
    starts = start_offsets(journal, options, tps, stops=stops)
    for tp in tps:
        asked = options.start.of(tp)
        first = asked.offset if isinstance(asked, At) else starts[tp]
        if _is_explicit(asked, options.end.of(tp)) and first > stops[tp]:
            raise InvalidRequest(
                f"option {options.start.option}: the start of {tp.topic}-{tp.partition}, {first}, is beyond its end by "
                f"{options.end.option}, {stops[tp]}; give a start at or before the end"
            )
    return [OffsetRange(tp.topic, state.names[tp.topic], tp.partition, starts[tp], stops[tp]) for tp in tps]


def group_offsets(state: State, options: ReadOptions, tps: Iterable[TopicPartition]) -> dict[str, dict[int, int]]:
    """Ends that are a group's committed offsets, by topic id and partition.  Raises GroupIdNotFound."""
    found: dict[str, dict[int, int]] = {}
    for tp in tps:
        position = options.end.of(tp)
        if isinstance(position, OfGroup):
            key, part = partition_of(state, tp)
            found.setdefault(key[0], {})[tp.partition] = committed_offset(state, position.name, key, part)
    return found
