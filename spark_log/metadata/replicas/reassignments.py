"""Questions about partitions whose replicas were changed.  Pure.

A partition *moves* as long as it may have live slices in objects of groups with other brokers.  Its new records are in
its own group from the record of the reassignment on.  Groups with the same brokers in another order differ in their
preferred leader only, so nothing is moved between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_log.metadata.replicas.replica_state import OWN_GROUP
from spark_log.metadata.replicas.replicas import copies_of, group_at, group_number
from spark_log.metadata.state import ObjectRow, PendingCommit, State, TopicKey


class PartitionReassignment(NamedTuple):
    """A partition that moves to other replicas."""

    replicas: tuple[int, ...]
    """Broker ids: the new replicas, then those that still have records of the partition."""
    adding_replicas: tuple[int, ...]
    """New replicas."""
    removing_replicas: tuple[int, ...]
    """Brokers that are not replicas any more when the move is done."""


def reassignment_of(state: State, key: TopicKey) -> PartitionReassignment | None:
    """How a partition moves; None if it does not."""
    row = state.reassignments.get(key)
    if row is None or not row.left:
        return None
    target = group_at(state, group_number(state, key)).replicas
    origin = group_at(state, row.origin).replicas
    leaving = dict.fromkeys(broker for group in row.left for broker in group_at(state, group).replicas)
    removing = tuple(broker for broker in leaving if broker not in target)
    return PartitionReassignment((*target, *removing), tuple(one for one in target if one not in origin), removing)


def moving(state: State) -> list[TopicKey]:
    """The partitions that move, in order."""
    return sorted(key for key, row in state.reassignments.items() if row.left)


def is_moving(state: State, key: TopicKey) -> bool:
    """Whether a partition moves."""
    row = state.reassignments.get(key)
    return row is not None and bool(row.left)


def goes_back(state: State, key: TopicKey) -> bool:
    """Whether a partition that moves returns to the replicas that it had: its move was cancelled."""
    row = state.reassignments[key]
    return has_same_brokers(state, row.origin, group_number(state, key))


def has_same_brokers(state: State, one: int, other: int) -> bool:
    """Whether two groups have the same brokers, in whatever order."""
    return one == other or set(group_at(state, one).replicas) == set(group_at(state, other).replicas)


def may_be_in(state: State, key: TopicKey, group: int, upload_epoch: int) -> bool:
    """Whether an object of a group may have records of a partition that were uploaded under an epoch.

    Uploads that began before the partition got other replicas are for those that it had.
    """
    if group == group_number(state, key):
        return True
    row = state.reassignments.get(key)
    return row is not None and group in row.former and upload_epoch < row.version


def group_of_row(state: State, row: ObjectRow) -> int:
    """The group of a live object with this row."""
    copies = copies_of(state, row)
    return OWN_GROUP if copies is None else copies.group


def objects_elsewhere(state: State, key: TopicKey, names: Iterable[str]) -> frozenset[str]:
    """Those of some live objects that are in groups with other brokers than the partition's."""
    number = group_number(state, key)
    groups = {name: group_of_row(state, row) for name in names if (row := state.objects.get(name)) is not None}
    others = {group for group in set(groups.values()) if not has_same_brokers(state, group, number)}
    return frozenset(name for name, group in groups.items() if group in others) if others else frozenset()


def places_of_pending(state: State, commit: PendingCommit) -> dict[TopicKey, set[int]]:
    """The groups of the objects of a commit, by partition.  For one whose slices are in an index: all groups."""
    groups = {name: group_of_row(state, state.objects[name]) for name in commit.objects}
    found = dict[TopicKey, set[int]]()
    for topic_id, number, piece in commit.slices:
        found.setdefault((topic_id, number), set()).add(groups[piece.object])
    for topic_id, number, _ in commit.pieces:
        found.setdefault((topic_id, number), set()).update(groups.values())
    return found


def pending_elsewhere(state: State) -> frozenset[TopicKey]:
    """Partitions that move, and have pending commits in objects of groups with other brokers.

    Nobody has looked at these slices, so the move is not done.
    """
    return frozenset(
        key
        for commit in state.pending
        for key, groups in places_of_pending(state, commit).items()
        if is_moving(state, key)
        and not all(has_same_brokers(state, group, group_number(state, key)) for group in groups)
    )
