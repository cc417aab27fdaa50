"""Decisions: maintenance: the fence, expired producers and positions, swaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from immutables import Map

from spark_log.configs.settings import (
    cluster_config,
)
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision
from spark_log.metadata.features import SUPPORTED
from spark_log.metadata.groups.shared_groups import expired_positions, members_in_force
from spark_log.metadata.replay import known_objects
from spark_log.metadata.replicas.decide_replicas import gives_up_indexes, has_copies, without_places
from spark_log.metadata.replicas.replicas import are_gone
from spark_log.metadata.state import GroupState, ProducerKey, State, TopicKey

Key = TypeVar("Key")
Value = TypeVar("Value")
STREAM_RETENTION = "streaming.identity.retention.ms"


def decide_fence(state: State, now_ms: int, copied: int | None = None) -> Decision[int]:
    """Advance the fence to the version before the newest one stamped older than `gc.fence.age.ms`.

    It is the version before, because a record is stamped after its writer saw its predecessor, but may be written long
    after that.  The reply is the fence in effect.

    copied:  the version of the oldest copy of the metadata from which the log might be restored.  The fence does not
             pass it, because the copy names objects that were dropped later.  None: no copy is kept.
    """
    limit = now_ms - cluster_config(state.configs, "gc.fence.age.ms")
    upto = max((version for version, time in state.times if time <= limit), default=0) - 1
    upto = upto if copied is None else min(upto, copied)
    if upto <= state.fence:
        return Decision((), state.fence)
    return Decision((r.FenceRecord(upto=upto),), upto)


def bootstrap_records(state: State) -> tuple[r.AnyRecord, ...]:
    """The first records of a new log: it begins at the highest levels.  Other logs get none."""
    if state.version:
        return ()
    return tuple(r.FeatureLevelRecord(name=name, level=level) for name, level in SUPPORTED.items() if level > 1)


def decide_expire(
    state: State,
    now_ms: int,
    held: frozenset[tuple[str, str, int]] = frozenset(),
    producers: Iterable[str] | None = None,
    groups: Iterable[str] | None = None,
    kafka: Iterable[ProducerKey] | None = None,
) -> Decision[int]:
    """Remove idle producers and expired positions of groups.  The reply counts them.

    held:       (group, topic id, partition) of positions to keep.
    producers:  the only ones to check, as `groups` and `kafka`: commits wait for a decision, and a log may have many.
    """
    ages = {
        True: cluster_config(state.configs, "producer.id.expiration.ms"),
        False: cluster_config(state.configs, STREAM_RETENTION),
    }
    idle = sorted(
        name
        for name, known in _some(state.producers, producers)
        if known.version <= state.fence and known.time < now_ms - ages[known.plain]
    )
    rows = sorted(
        key
        for key, row in _some(state.kafka_producers, kafka)
        if row.version <= state.fence and row.time < now_ms - ages[True]
    )
    records = list[r.AnyRecord]()
    if idle or rows:
        records.append(r.ExpireProducersRecord(producers=tuple(idle), kafka=tuple(rows)))
    usual = now_ms - cluster_config(state.configs, "offsets.retention.minutes") * 60_000
    for name, group in sorted(_some(state.groups, groups)):
        # Never joined: a bookmark.  Its next run may be a month later, and would begin from the start.
        limit = usual if group.generation else min(usual, now_ms - ages[False])
        members = members_in_force(state, name)
        expired = expired_positions(state, name, limit) if members else _expired_alone(group, usual, limit)
        old = tuple(sorted(key for key in expired if (name, *key) not in held))
        whole = len(old) == len(group.offsets) and not members
        if old or (whole and group.seen <= limit):
            records.append(r.DeleteOffsetsRecord(group=name, partitions=() if whole else old))
    count = len(idle) + len(rows) + sum(isinstance(x, r.DeleteOffsetsRecord) for x in records)
    return Decision(tuple(records), count)


def _some(known: Map[Key, Value], keys: Iterable[Key] | None) -> Iterable[tuple[Key, Value]]:
    """Entries of a map, those with these keys if there are any."""
    return known.items() if keys is None else [(key, known[key]) for key in keys if key in known]


def _expired_alone(group: GroupState, usual: int, limit: int) -> Iterator[TopicKey]:
    """For a group without members: the time counts from the group's last use, and from the commit of a position."""
    if group.seen <= usual:
        yield from (key for key, position in group.offsets.items() if position.time <= limit)


def decide_swap(state: State, swap: r.SwapRecord) -> Decision[bool]:
    """Write a prepared swap.  The reply is False, and nothing is written, if it would be void, leaves fewer copies than
    there were, or gives up records of which a broker has a copy.

    Raises InvalidRequest if a new object is not where the replicas of its partitions are.
    """
    fits = bool(swap.changes) and state.fence < swap.upload_epoch < state.version
    fits = fits and not known_objects(state, swap.objects)
    fits = fits and all(
        (part := state.partitions.get((c.topic_id, c.partition))) is not None and part.edition == c.edition
        for c in swap.changes
    )
    swap = without_places(swap)
    fits = fits and has_copies(state, swap) and (not swap.lost or _may_give_up(state, swap))
    return Decision((swap,), True) if fits else Decision((), False)


def _may_give_up(state: State, swap: r.SwapRecord) -> bool:
    """Whether no broker is known to have the records; or their slice indexes go, as a whole."""
    return gives_up_indexes(state, swap) or are_gone(state, swap.removed)
