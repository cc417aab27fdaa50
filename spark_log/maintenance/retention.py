"""Retention: removing the front of partitions by age or size.

As in Kafka, with slices instead of segments: whole slices are removed, from the front.  By time, while the newest
record of the first slice is older than `retention.ms`; by size, while the rest still has `retention.bytes`.  A `Trim`
removes the records; then the slices are pruned, and their objects are collected once the fence has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_log.configs.settings import has_cleanup_policy, topic_config
from spark_log.journal.context import Context, Proposal
from spark_log.journal.failure_isolation import OnFailure, raise_failure, resolve_each
from spark_log.journal.set_aside import NEVER
from spark_log.journal.store_operations import Decide, Steps
from spark_log.log_lines import logger
from spark_log.metadata.commands import Start, Trim
from spark_log.metadata.lines import is_of_plan, plan_of
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Partition, State, TopicKey
from spark_log.model import Slice
from spark_log.rewriting.maintenance_memory import MaintenanceMemory

Entry = Slice | Piece


class RetentionLimits(NamedTuple):
    """The limits of a partition."""

    oldest_us: int | None
    """Slices whose newest record is older are removed; None: no limit."""
    bytes: int | None


class ExpiredFront(NamedTuple):
    """The expired front of a partition."""

    start: int
    """The partition's new start."""
    records: int
    bytes: int
    """Size of the removed slices."""


@dataclass(frozen=True, slots=True)
class ExpiredTopic:
    """The records of a topic that retention removed."""

    topic: str
    records: int
    bytes: int


def limits_of(configs: Mapping[str, str], now_ms: int) -> RetentionLimits:
    """The limits of a topic with these configs."""
    if not has_cleanup_policy(configs, "delete"):
        return RetentionLimits(None, None)
    age, size = topic_config(configs, "retention.ms"), topic_config(configs, "retention.bytes")
    return RetentionLimits(None if age < 0 else (now_ms - age) * 1000, None if size < 0 else size)


def size_of(entry: Entry) -> int:
    """Bytes of the runs."""
    return entry.bytes if isinstance(entry, Piece) else entry.length


def expired(entries: Sequence[Entry], limits: RetentionLimits) -> int:
    """How many of the first entries are removed: each that is too old or exceeds the size."""
    count = _by_size(entries, limits.bytes)
    return count + _by_time(entries[count:], limits.oldest_us)


def _by_time(entries: Sequence[Entry], oldest_us: int | None) -> int:
    if oldest_us is None:
        return 0
    return next((i for i, entry in enumerate(entries) if entry.max_us >= oldest_us), len(entries))


def _by_size(entries: Sequence[Entry], limit: int | None) -> int:
    if limit is None:
        return 0
    excess = sum(map(size_of, entries)) - limit
    for number, entry in enumerate(entries):
        excess -= size_of(entry)
        if excess < 0:
            return number
    return len(entries)


def _live(part: Partition) -> list[Entry]:
    return [entry for entry in part.entries if entry.end > part.start]


def _limited(state: State, now_ms: int, memory: MaintenanceMemory) -> dict[TopicKey, RetentionLimits]:
    """Partitions that have limits and records, and of which something may have expired since the last round."""
    found = {}
    for topic_id, topic in sorted(state.topics.items()):
        limits = limits_of(topic.configs, now_ms)
        if not topic.deleted and limits != RetentionLimits(None, None):
            for number, part in state.topic_partitions(topic_id):
                key = (topic_id, number)
                if part.entries and memory.may_expire(state, key, part, now_ms):
                    found[key] = limits
    return found


def find_expired(
    state: State, now_ms: int, on_failure: OnFailure = raise_failure, memory: MaintenanceMemory | None = None
) -> Steps[dict[TopicKey, ExpiredFront]]:
    """The expired slices at the front of each partition that has some.

    A slice index is read only at the border between expired entries and those that stay, because a part of its slices
    may have expired.  If it is unreadable, it is reported to `on_failure`, and stays until all of its slices have
    expired.  Its slices below the partition's start do not count.
    """
    memory = memory or MaintenanceMemory()
    limited = _limited(state, now_ms, memory)
    entries = {key: _live(state.partitions[key]) for key in limited}
    first = {key: expired(entries[key], limits) for key, limits in limited.items()}
    while doubtful := {
        key: (entry,)
        for key, count in first.items()
        if count < len(entries[key])
        and isinstance(entry := entries[key][count], Piece)
        and _may_lose(entry, limited[key])
    }:
        resolved = yield from resolve_each(state, doubtful, on_failure, memory.aside)
        for key in doubtful.keys() - resolved.keys():
            del limited[key], entries[key], first[key]
        for key, slices in resolved.items():
            at = first[key]
            entries[key][at : at + 1] = [one for one in slices if one.end > state.partitions[key].start]
            first[key] = expired(entries[key], limited[key])
    for key in limited:
        if not first[key]:
            memory.set_kept(state, key, _expires_ms(entries[key], limited[key], now_ms))
    return {key: _removal(state.partitions[key], entries[key][:count]) for key, count in first.items() if count}


def _removal(part: Partition, gone: Sequence[Entry]) -> ExpiredFront:
    end = gone[-1].end
    return ExpiredFront(end, end - part.start, sum(map(size_of, gone)))


def _expires_ms(entries: Sequence[Entry], limits: RetentionLimits, now_ms: int) -> int:
    """When the first entry of a partition may expire by its time."""
    if limits.oldest_us is None or not entries:
        return NEVER
    entry = entries[0]
    oldest_us = entry.min_us if isinstance(entry, Piece) else entry.max_us
    # After the millisecond in which the limit passes the time.
    return now_ms + (oldest_us - limits.oldest_us) // 1000 + 1


def _may_lose(piece: Piece, limits: RetentionLimits) -> bool:
    return limits.bytes is not None or (limits.oldest_us is not None and piece.min_us < limits.oldest_us)


def expire_records(
    state: State, context: Context, on_failure: OnFailure = raise_failure, memory: MaintenanceMemory | None = None
) -> Steps[tuple[State, dict[TopicKey, ExpiredFront]]]:
    """Trim expired records.  Returns the state afterwards, and the removal of each partition."""
    removals = yield from find_expired(state, context.clock.now_ms(), on_failure, memory)
    if not removals:
        return state, {}
    starts = tuple(Start(*key, removal.start) for key, removal in removals.items())
    plan = plan_of(state)
    trim = Proposal(Trim(starts=starts, known_only=True, history=plan))
    after: State = yield Decide([trim])
    if not is_of_plan(after, plan):
        return after, {}
    for gone in expired_topics(state, removals):
        logger.info("topic %s: retention removed %d records, %d bytes", gone.topic, gone.records, gone.bytes)
    return after, removals


def expired_topics(state: State, removals: Mapping[TopicKey, ExpiredFront]) -> tuple[ExpiredTopic, ...]:
    """The sums by topic."""
    found: dict[str, tuple[int, int]] = {}
    for (topic_id, _), removal in removals.items():
        records, size = found.get(topic_id, (0, 0))
        found[topic_id] = records + removal.records, size + removal.bytes
    return tuple(ExpiredTopic(state.topics[topic_id].name, *sums) for topic_id, sums in sorted(found.items()))
