"""The automatic election of leaders: replay elects the leader of a placement group whenever its ISR changes.  Pure."""

from __future__ import annotations

from spark_log.metadata.replica_state import NO_LEADER, PlacementGroup
from spark_log.metadata.replicas import can_lead
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
