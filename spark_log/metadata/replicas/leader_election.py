"""The leader of a placement group.  Pure.

Replay elects a leader whenever the ISR changes.  A preferred leader that is in sync again is elected by a command.
"""

from __future__ import annotations

from collections import Counter

from spark_log.metadata.replicas.replica_state import NO_LEADER, PlacementGroup
from spark_log.metadata.replicas.replicas import can_lead, group_at
from spark_log.metadata.state import State


def elect_leader(state: State, group: PlacementGroup) -> PlacementGroup:
    """A group with the leader that follows from its members; another leader has another epoch."""
    leader = next_leader(state, group)
    return group if leader == group.leader else group._replace(leader=leader, leader_epoch=group.leader_epoch + 1)


def next_leader(state: State, group: PlacementGroup) -> int:
    """The leader stays while it is in the ISR and active; otherwise the first such replica in replica order."""
    fit = [broker for broker in group.isr if can_lead(state, broker)]
    if group.leader in fit:
        return group.leader
    return fit[0] if fit else NO_LEADER


def imbalanced_groups(state: State, percentage: int) -> list[tuple[int, int]]:
    """(placement group, preferred leader) where that is in sync and does not lead.

    As in Kafka, only of brokers that do not lead more than so many percent of the partitions whose preferred leader
    they are.
    """
    partitions = Counter[int]()
    for topic_id, numbers in state.assignments.items():
        if topic_id in state.topics and not state.topics[topic_id].deleted:
            partitions.update(numbers)
    preferred, led_by_others = Counter[int](), Counter[int]()
    for number, count in partitions.items():
        group = group_at(state, number)
        preferred[group.replicas[0]] += count
        led_by_others[group.replicas[0]] += count * (group.leader != group.replicas[0])
    found = []
    for number in sorted(set(partitions).intersection(state.placement_groups)):
        group = group_at(state, number)
        first = group.replicas[0]
        is_over = led_by_others[first] * 100 > preferred[first] * percentage
        if is_over and group.leader != first and first in group.isr and can_lead(state, first):
            found.append((number, first))
    return found
