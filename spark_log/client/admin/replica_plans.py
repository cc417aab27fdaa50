"""New replicas for partitions that exist.  Only plans: `log.admin.alter_partition_reassignments` carries them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spark_log.client.reader.positions_to_offsets import partitions_of
from spark_log.errors import BrokerNotAvailable, InvalidReplicaAssignment, InvalidReplicationFactor, InvalidRequest
from spark_log.metadata.replicas.decide_replicas import check_factor
from spark_log.metadata.replicas.placement import (
    Replicas,
    Usable,
    is_drained,
    spread,
    synchronous_brokers,
    topic_shift,
    usable_brokers,
    without,
)
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import epoch_of, group_at, group_numbers
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.model import TopicPartition
from spark_log.text import counted

Plan = dict[TopicPartition, Replicas]


def current_replicas(state: State, topics: Iterable[str]) -> Plan:
    """The replicas of all partitions of topics; of those that move, the new ones.  Raises UnknownTopicOrPartition."""
    found = {}
    for name in topics:
        numbers = group_numbers(state, topic_named(state, name)[0])
        found.update(
            {tp: group_at(state, numbers[tp.partition]).replicas for tp in partitions_of(state, name)},
        )
    return found


def spread_over(
    state: State, topics: Iterable[str], brokers: Sequence[int], factor: int | None = None, *, rack_aware: bool = True
) -> Plan:
    """Plan replicas for all partitions of topics: evenly on the given brokers, with few moves.

    factor:      the replication factor of all topics; None: each topic keeps its own.
    rack_aware:  if False, racks are ignored.
    Raises UnknownTopicOrPartition, InvalidReplicaAssignment, InvalidReplicationFactor.
    """
    chosen = _chosen(state, brokers)
    if not rack_aware:
        chosen = [one._replace(rack="") for one in chosen]
    plan = Plan()
    for name in topics:
        current = current_replicas(state, [name])
        wanted = max(map(len, current.values())) if factor is None else factor
        if not 1 <= wanted <= len(chosen):
            raise InvalidReplicationFactor(
                f"topic {name!r}: replication factor {wanted}, and the assignment is for "
                f"{counted(len(chosen), 'broker')}: name more brokers, or give a replication factor from 1 to {len(chosen)}"
            )
        plan.update(_spread(state, name, current, chosen, wanted))
    return plan


def _chosen(state: State, brokers: Sequence[int]) -> list[Usable]:
    usable = {one.broker: one for one in synchronous_brokers(state)}
    for broker in brokers:
        if epoch_of(state, broker) is None:
            raise InvalidReplicaAssignment(
                f"broker {broker} is not registered: `pylog broker list` shows those that are"
            )
        if broker not in usable:
            raise InvalidReplicaAssignment(
                f"broker {broker} is asynchronous, and is not chosen automatically: name it in the assignment by hand"
            )
        if is_drained(state, broker):
            raise InvalidReplicaAssignment(
                f"broker {broker} was drained, and is not chosen automatically: `pylog broker alter {broker} --not-drained` "
                "changes that"
            )
        if brokers.count(broker) > 1:
            raise InvalidReplicaAssignment(f"broker {broker} is named twice")
    chosen = [usable[broker] for broker in brokers]
    if all(one.fenced for one in chosen):
        raise InvalidReplicaAssignment(f"none of the brokers {', '.join(map(str, brokers))} is active")
    return chosen


def _spread(
    state: State, topic: str, current: Mapping[TopicPartition, Replicas], brokers: Sequence[Usable], factor: int
) -> Plan:
    lists = spread(list(current.values()), brokers, factor, topic_shift(state.names[topic]))
    return dict(zip(current, lists, strict=True))


def with_factor(state: State, topic: str, factor: int) -> Plan:
    """Plan replicas for a topic's partitions with another replication factor, spread over all usable brokers.

    Asynchronous replicas stay, and count as replicas.  If one synchronous replica is left, it is in the log's own root.
    Raises UnknownTopicOrPartition, InvalidReplicationFactor.
    """
    current = current_replicas(state, [topic])
    usable = usable_brokers(state)
    known = {one.broker for one in synchronous_brokers(state)}
    late = {tp: tuple(one for one in replicas if one not in known) for tp, replicas in current.items()}
    plan = Plan()
    for count in sorted({len(one) for one in late.values()}):
        some = {tp: replicas for tp, replicas in current.items() if len(late[tp]) == count}
        if factor <= count and count:
            raise InvalidReplicationFactor(
                f"topic {topic!r}: replication factor {factor}, and its partitions have {counted(count, 'asynchronous replica')}; "
                f"expected {count + 1} or more"
            )
        check_factor(state, topic, factor - count)
        lists: Plan = dict.fromkeys(some, (OWN_BROKER,))
        if factor - count > 1:
            lists = _spread(state, topic, some, usable, factor - count)
        plan.update({tp: (*lists[tp], *late[tp]) for tp in some})
    return dict(sorted(plan.items()))


def drained(state: State, broker: int) -> Plan:
    """Plan new replicas for the partitions with a replica on a broker, so that other brokers take its place.

    Raises BrokerNotAvailable; InvalidRequest for broker 0; InvalidReplicationFactor if too few brokers are left.
    """
    if broker == OWN_BROKER:
        raise InvalidRequest("broker 0 is the log's own root, which has the metadata: it cannot be drained or removed")
    if broker not in state.brokers:
        raise BrokerNotAvailable(f"broker {broker} is not registered: `pylog broker list` shows those that are")
    current = current_replicas(state, sorted(state.names))
    fit = [one for one in synchronous_brokers(state) if one.broker == broker or not is_drained(state, one.broker)]
    found = without(broker, current.values(), fit)
    if found.stuck:
        topics = sorted({tp.topic for tp, replicas in current.items() if replicas in found.stuck})
        factor = max(map(len, found.stuck))
        raise InvalidReplicationFactor(
            f"broker {broker} has replicas of {counted(len(topics), 'topic')} ({', '.join(topics[:3])}) with "
            f"{factor} replicas, and no other broker is left for them: add one with `pylog broker add`, or lower the "
            "factor with `pylog topic alter TOPIC --replication-factor N`"
        )
    return {tp: found.lists[replicas] for tp, replicas in current.items() if replicas in found.lists}
