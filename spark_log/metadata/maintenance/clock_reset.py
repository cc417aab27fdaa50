"""The log's time set back, and with it the times in the state.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from immutables import Map

from spark_log.metadata.replicas.replica_state import Broker, PlacementGroup
from spark_log.metadata.state import CleanedPart, ErasedTopic, GroupState, ShareMember, State

Key = TypeVar("Key")
Value = TypeVar("Value")


def reset_clock(state: State, time: int) -> State | None:
    """The state with the log's time set back; None if the log's time is not later.

    No time in the state is later than the log's time: times of the wrong clock are set back to it.

    The fence compares these times with a later present, so it still passes no version before its age.
    """
    if not 0 <= time < state.time:
        return None
    return replace(
        state,
        time=time,
        times=tuple((version, min(at, time)) for version, at in state.times),
        topics=_clamped(state.topics, lambda topic: topic._replace(created_ms=min(topic.created_ms, time))),
        producers=_clamped(state.producers, lambda known: known._replace(time=min(known.time, time))),
        kafka_producers=_clamped(state.kafka_producers, lambda row: row._replace(time=min(row.time, time))),
        kafka_expired=min(state.kafka_expired, time),
        groups=_clamped(state.groups, lambda group: _group_by(group, time)),
        coordinator=state.coordinator._replace(since=min(state.coordinator.since, time)),
        cleaned=_clamped(state.cleaned, lambda part: _cleaned_by(part, time)),
        forgotten=_clamped(state.forgotten, lambda when: when._replace(time=min(when.time, time))),
        brokers=_clamped(state.brokers, lambda broker: _broker_by(broker, time)),
        placement_groups=_clamped(state.placement_groups, lambda group: _replicas_by(group, time)),
        erasures=_clamped(state.erasures, lambda topic: _erased_by(topic, time)),
    )


def _broker_by(broker: Broker, time: int) -> Broker:
    marks = tuple((version, min(at, time)) for version, at in broker.marks)
    dropped_at = (broker.dropped_at[0], min(broker.dropped_at[1], time))
    return broker._replace(since=min(broker.since, time), marks=marks, dropped_at=dropped_at)


def _clamped(things: Map[Key, Value], clamp: Callable[[Value], Value]) -> Map[Key, Value]:
    return things.update({key: new for key, thing in things.items() if (new := clamp(thing)) != thing})


def _group_by(group: GroupState, time: int) -> GroupState:
    """A group without changes after a time."""
    session = group.session and group.session._replace(since=min(group.session.since, time))
    roster = group.roster and group.roster._replace(state_ms=min(group.roster.state_ms, time))
    offsets = _clamped(group.offsets, lambda position: position._replace(time=min(position.time, time)))
    shares = tuple(_share_by(member, time) for member in group.shares)
    return group._replace(seen=min(group.seen, time), session=session, roster=roster, offsets=offsets, shares=shares)


def _share_by(member: ShareMember, time: int) -> ShareMember:
    session = member.session._replace(since=min(member.session.since, time))
    return member._replace(seen=min(member.seen, time), session=session)


def _replicas_by(group: PlacementGroup, time: int) -> PlacementGroup:
    """A placement group without missed writes after a time."""
    return group._replace(members=tuple(one._replace(missed=min(one.missed, time)) for one in group.members))


def _cleaned_by(part: CleanedPart, time: int) -> CleanedPart:
    """A partition without passes after a time."""
    return part._replace(horizons=tuple((offset, min(at, time)) for offset, at in part.horizons))


def _erased_by(topic: ErasedTopic, time: int) -> ErasedTopic:
    """A topic without erasures after a time: a file that is younger than an erasure ends it."""
    unfinished = tuple(one._replace(time=min(one.time, time)) for one in topic.unfinished)
    return topic._replace(time=min(topic.time, time), unfinished=unfinished)
