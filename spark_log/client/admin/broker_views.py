"""Brokers and replicas as an administrator sees them, and elections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_log.client.reader.plan import chunks
from spark_log.client.reader.positions_to_offsets import partition_of, partitions_of
from spark_log.client.representations import described
from spark_log.client.validate import partition_keys
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.metadata.replicas.reassignments import PartitionReassignment, moving, reassignment_of
from spark_log.metadata.replicas.replica_commands import AlterReassignments, ElectLeader, NewReplicas
from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_BROKER, Broker
from spark_log.metadata.replicas.replicas import (
    Deficit,
    can_lead,
    deficit,
    group_at,
    group_number,
    is_active,
    min_insync,
)
from spark_log.metadata.state import State, TopicKey
from spark_log.model import TopicPartition

ELECTIONS = ("preferred", "unclean")


@described
class BrokerDescription(NamedTuple):
    """A broker: a root in which objects have copies.  Broker 0 is the log's own root."""

    broker: int
    root: str
    """URL of its root."""
    rack: str
    state: str
    """"active" or "fenced"."""
    reason: str
    """Why it is fenced."""
    is_async: bool
    """No write waits for it."""
    leads: int
    """Number of partitions that it leads."""
    replicas: int
    """Number of partitions that have a replica on it."""
    objects: int
    """Number of objects of which it has a copy; for broker 0, with those that have their only copy there."""
    bytes: int
    """Their size."""
    lacking_objects: int
    """Number of objects that it should have and lacks, by the log; the root of a fenced broker may lack more."""
    lacking_bytes: int
    """Their size."""
    epoch: int
    """Version of the log with its registration, or its last return."""
    directory: str
    """Name of the folder on its root that has the copies."""
    since: int
    """The log's time when it was registered, fenced or returned, in milliseconds; 0 for broker 0."""
    keep_ms: int
    """It keeps only the objects that were written in this time; 0: all."""
    is_drained: bool
    """It gets no replicas automatically any more."""


class ReplicaDescription(NamedTuple):
    """The replicas of a partition: these fields of `PartitionDescription`."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    under_replicated: bool
    under_min_isr: bool
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@described
class LogDir(NamedTuple):
    """The contents of a broker."""

    root: str
    bytes: int
    """Size of its copies."""
    lacking_bytes: int
    """Size of the copies that it lacks."""
    partitions: dict[TopicPartition, int]
    """Size of the records of each partition that has a replica on it."""


def describe_replicas(state: State, key: TopicKey) -> ReplicaDescription:
    """The replicas of a partition."""
    group, move = group_at(state, group_number(state, key)), reassignment_of(state, key)
    waited_for = [broker for broker in group.replicas if broker == OWN_BROKER or not state.brokers[broker].is_async]
    return ReplicaDescription(
        group.leader,
        group.leader_epoch,
        group.replicas if move is None else move.replicas,
        group.isr,
        under_replicated=len(group.isr) < len(waited_for),
        under_min_isr=len(group.isr) < min_insync(state, key[0]),
        adding=() if move is None else move.adding_replicas,
        removing=() if move is None else move.removing_replicas,
    )


def describe_brokers(state: State, own_url: str) -> list[BrokerDescription]:
    """All brokers, by id."""
    leads, replicas = Counter[int](), Counter[int]()
    for number, partitions in _partitions_by_group(state).items():
        group = group_at(state, number)
        leads[group.leader] += partitions
        replicas.update(dict.fromkeys(group.replicas, partitions))
    for move in _moves(state, None).values():
        replicas.update(move.removing_replicas)
    found = []
    for broker in sorted({OWN_BROKER, *state.brokers}):
        known = state.brokers.get(broker) or Broker(own_url, "")
        has, lacks = _held(state, broker), _lacked(state, broker)
        found.append(
            BrokerDescription(
                broker=broker,
                root=known.url or own_url,
                rack=known.rack,
                state="active" if is_active(state, broker) else "fenced",
                reason=known.reason,
                is_async=known.is_async,
                leads=leads[broker],
                replicas=replicas[broker],
                objects=has.objects,
                bytes=has.bytes,
                lacking_objects=lacks.objects,
                lacking_bytes=lacks.bytes,
                epoch=known.epoch,
                directory=known.directory,
                since=known.since,
                keep_ms=known.keep_ms,
                is_drained=known.drained,
            )
        )
    return found


def _partitions_by_group(state: State) -> Counter[int]:
    """Number of partitions of each group, of the topics that exist."""
    found = Counter[int]()
    for topic_id, topic in state.topics.items():
        if not topic.deleted:
            found.update(state.assignments.get(topic_id) or {0: topic.partitions})
    return found


def _held(state: State, broker: int) -> Deficit:
    some = [copies for copies in state.copies.values() if broker in copies.brokers]
    objects, size = sum(copies.objects for copies in some), sum(copies.bytes for copies in some)
    if broker == OWN_BROKER:
        alone = [row for row in state.objects.values() if row.copies not in state.copies]
        objects, size = objects + len(alone), size + sum(row.size for row in alone)
    return Deficit(objects, size)


def _lacked(state: State, broker: int) -> Deficit:
    groups = [number for number, group in state.placement_groups.items() if broker in group.replicas]
    found = [deficit(state, number, broker) for number in groups]
    return Deficit(sum(one.objects for one in found), sum(one.bytes for one in found))


def describe_log_dirs(state: State, own_url: str) -> dict[int, LogDir]:
    """The contents of each broker, by id."""
    sizes: dict[int, dict[TopicPartition, int]] = {}
    for name, topic_id in sorted(state.names.items()):
        for number, part in state.topic_partitions(topic_id):
            size = sum(chunk.bytes for chunk in chunks(part, part.start, part.end))
            for broker in describe_replicas(state, (topic_id, number)).replicas:
                sizes.setdefault(broker, {})[TopicPartition(name, number)] = size
    return {
        one.broker: LogDir(one.root, one.bytes, one.lacking_bytes, sizes.get(one.broker, {}))
        for one in describe_brokers(state, own_url)
    }


def elect_leaders(
    journal: Journal, election: str, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, int]:
    """Choose leaders.  Returns the new leader of each partition whose leader has changed."""
    if election not in ELECTIONS:
        raise InvalidRequest(f"election {election!r}: expected one of {', '.join(ELECTIONS)}")
    state = journal.refresh()
    before = _leaders(state, partitions)
    numbers = {group_number(state, partition_of(state, tp)[0]) for tp in before}
    for number in sorted(numbers & set(state.placement_groups)):
        leader = _candidate(state, number, election)
        if leader is not None:
            journal.propose(ElectLeader(group=number, leader=leader, unclean=election == "unclean"))
    after = _leaders(journal.refresh(), list(before))
    return {tp: leader for tp, leader in after.items() if leader != before[tp]}


def alter_reassignments(
    journal: Journal,
    wanted: Mapping[TopicPartition, Iterable[int] | None],
    *,
    keeps_factor: bool,
    keeps_moves: bool,
) -> None:
    """Give partitions other replicas, or cancel that."""
    partition_keys("alter_partition_reassignments", wanted)
    state, changes = journal.refresh(), list[NewReplicas]()
    for tp, replicas in wanted.items():
        key = partition_of(state, tp)[0]
        row = state.reassignments.get(key)
        brokers = None if replicas is None else _broker_ids(tp, replicas)
        changes.append(NewReplicas(*key, brokers, 0 if row is None else row.version))
    if changes:
        command = AlterReassignments(partitions=tuple(changes), keeps_factor=keeps_factor, keeps_moves=keeps_moves)
        journal.propose(command)


def _broker_ids(tp: TopicPartition, replicas: Iterable[int]) -> tuple[int, ...]:
    if isinstance(replicas, str | bytes) or not isinstance(replicas, Iterable):
        raise InvalidRequest(f"{tp.topic}-{tp.partition}: {replicas!r} is not a list of broker ids, as [1, 2, 3]")
    found = tuple(replicas)
    if wrong := [one for one in found if isinstance(one, bool) or not isinstance(one, int)]:
        raise InvalidRequest(f"{tp.topic}-{tp.partition}: {wrong[0]!r} is not a broker id")
    return found


def list_reassignments(
    state: State, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, PartitionReassignment]:
    """The partitions that move."""
    keys = None if partitions is None else [partition_of(state, tp)[0] for tp in partitions]
    return {TopicPartition(state.topics[key[0]].name, key[1]): move for key, move in _moves(state, keys).items()}


def _moves(state: State, keys: Iterable[TopicKey] | None) -> dict[TopicKey, PartitionReassignment]:
    some = moving(state) if keys is None else keys
    return {key: move for key in some if (move := reassignment_of(state, key)) is not None}


def _leaders(state: State, partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, int]:
    if partitions is None:
        partitions = [tp for name in sorted(state.names) for tp in partitions_of(state, name)]
    return {tp: group_at(state, group_number(state, partition_of(state, tp)[0])).leader for tp in partitions}


def _candidate(state: State, number: int, election: str) -> int | None:
    """The broker to elect; None if the leader stays.

    Preferred: the first replica, if it is in sync.  Unclean: of a group without a leader, the active replica that lacks
    the fewest bytes.
    """
    group = state.placement_groups[number]
    if election == "preferred":
        first = group.replicas[0]
        return first if first in group.isr and can_lead(state, first) else None
    fit = [broker for broker in group.replicas if can_lead(state, broker)]
    return None if group.leader != NO_LEADER or not fit else min(fit, key=lambda one: deficit(state, number, one).bytes)
