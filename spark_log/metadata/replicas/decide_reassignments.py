"""Decisions: the replicas of partitions are changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_log.bounds import Int, Long, Text
from spark_log.errors import (
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision
from spark_log.metadata.replicas.decide_replicas import (
    check_can_lead,
    check_min_insync,
    check_replica_list,
    fewest_synchronous,
)
from spark_log.metadata.replicas.reassignments import goes_back, is_moving
from spark_log.metadata.replicas.replicas import group_at, group_number, min_insync
from spark_log.metadata.state import State, TopicKey
from spark_log.text import counted


class NewReplicas(NamedTuple):
    """The change of a partition."""

    topic_id: Text
    partition: Int
    replicas: tuple[Int, ...] | None
    """None: those that it had before its reassignment."""
    version: Long = 0
    """Version of the reassignment to cancel.  A retry succeeds if it is cancelled."""


def decide_reassign(
    state: State, wanted: Sequence[NewReplicas], *, keeps_factor: bool = False, keeps_moves: bool = False
) -> Decision[int]:
    """Give partitions other replicas.  The reply is how many have changed.

    As in Kafka, another list for a partition that moves replaces the first one, and None cancels it.

    keeps_factor:  reject a list of another length.
    keeps_moves:   reject another list for a partition that moves.
    Raises UnknownTopicOrPartition, InvalidReplicaAssignment, InvalidReplicationFactor, ReassignmentInProgress;
    InvalidRequest for fewer replicas than `min.insync.replicas`; NoReassignmentInProgress.
    """
    changed = []
    for one in wanted:
        key = one.topic_id, one.partition
        _check_there(state, key)
        replicas = _former(state, key, one.version) if one.replicas is None else one.replicas
        before = group_at(state, group_number(state, key)).replicas
        if replicas != before:
            _check(state, key, before, replicas, keeps_factor=keeps_factor)
            changed.append(r.Replicas(*key, replicas))
    if not changed:
        return Decision((), 0)
    if keeps_moves:
        cancelled = {(one.topic_id, one.partition) for one in wanted if one.replicas is None}
        check_not_moving(state, {(one.topic_id, one.partition) for one in changed} - cancelled)
    return Decision((r.ReassignRecord(partitions=tuple(changed)),), len(changed))


def check_not_moving(state: State, keys: Iterable[TopicKey]) -> None:
    """Raises ReassignmentInProgress if some of these partitions move."""
    found = [f"{state.topics[key[0]].name}-{key[1]}" for key in sorted(keys) if is_moving(state, key)]
    if found:
        named = ", ".join([*found[:3], *(["…"] if found[3:] else [])])
        raise ReassignmentInProgress(
            f"{counted(len(found), 'partition')} {'is' if len(found) == 1 else 'are'} being moved ({named}): wait until "
            "`pylog reassign list` is empty, or give --additional, which gives partitions that move another target"
        )


def _check_there(state: State, key: TopicKey) -> None:
    topic = state.topics.get(key[0])
    if topic is None or topic.deleted:
        raise UnknownTopicOrPartition(f"topic id {key[0]} does not exist (any more)")
    if key not in state.partitions:
        raise UnknownTopicOrPartition(f"topic {topic.name!r} has no partition {key[1]}, it has {topic.partitions}")


def _check(
    state: State, key: TopicKey, before: Sequence[int], replicas: tuple[int, ...], *, keeps_factor: bool
) -> None:
    name = state.topics[key[0]].name
    check_replica_list(state, f"topic {name!r}, partition {key[1]}", replicas)
    check_can_lead(state, name, replicas)
    if keeps_factor and len(replicas) != len(before):
        raise InvalidReplicationFactor(
            f"topic {name!r}, partition {key[1]}: {counted(len(replicas), 'replica')}, and it has {len(before)}: a change "
            "of the replication factor was not allowed"
        )
    check_min_insync(name, min_insync(state, key[0]), fewest_synchronous(state, [replicas]))


def _former(state: State, key: TopicKey, version: int) -> tuple[int, ...]:
    """The replicas to which a cancellation returns."""
    if is_moving(state, key) and not goes_back(state, key):
        return group_at(state, state.reassignments[key].origin).replicas
    row = state.reassignments.get(key)
    if row is not None and version and row.version > version:
        return group_at(state, group_number(state, key)).replicas  # the first attempt of this command was applied
    raise NoReassignmentInProgress(
        f"topic {state.topics[key[0]].name!r}, partition {key[1]}: nothing to cancel: it is not moving to other replicas"
    )
