"""Replay of reassignments: partitions get other replicas, and their older records are moved there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from spark_log.metadata import records as r
from spark_log.metadata.replicas.reassignments import has_same_brokers, pending_elsewhere, places_of_pending
from spark_log.metadata.replicas.replay_replicas import with_group
from spark_log.metadata.replicas.replica_state import OWN_GROUP, Reassignment
from spark_log.metadata.replicas.replicas import group_number, group_numbers
from spark_log.metadata.state import State, TopicKey


def replay_reassign(state: State, record: r.ReassignRecord) -> State | None:
    """Partitions that are not there any more are left out."""
    numbers, rows = dict[str, list[int]](), dict[TopicKey, Reassignment]()
    for topic_id, partition, replicas in record.partitions:
        key = topic_id, partition
        if key not in state.partitions or state.topics[topic_id].deleted or key in rows or not replicas:
            continue
        state, group = with_group(state, replicas)
        if group != group_number(state, key):
            rows[key] = _reassigned(state, key, group)
            numbers.setdefault(topic_id, list(group_numbers(state, topic_id)))[partition] = group
    if not rows:
        return None
    return replace(_with_numbers(state, numbers), reassignments=state.reassignments.update(rows))


def _reassigned(state: State, key: TopicKey, group: int) -> Reassignment:
    part, before, known = state.partitions[key], group_number(state, key), state.reassignments.get(key)
    known = known or Reassignment(before, (), (), 0)
    origin, homes = known.origin if known.left else before, known.left
    if (part.end, part.edition) != (known.end, known.edition):
        homes = (*homes, before)  # otherwise it got nothing
    left = _others(state, group, homes) if part.entries or part.end != part.readable_end else ()
    former = tuple(dict.fromkeys((*known.former, before)))
    new = Reassignment(origin if left else group, left, former, state.version)
    return new._replace(end=part.end, edition=part.edition) if len(left) == len(set(homes)) else new


def _others(state: State, group: int, some: Iterable[int]) -> tuple[int, ...]:
    """Those of some groups that have other brokers, each once."""
    return tuple(one for one in dict.fromkeys(some) if not has_same_brokers(state, one, group))


def _with_numbers(state: State, numbers: Mapping[str, list[int]]) -> State:
    """Topics whose partitions have these groups.  One that is in group 0 only has no row."""
    assignments = state.assignments
    for topic_id, some in numbers.items():
        if any(some):
            assignments = assignments.set(topic_id, tuple(some))
        elif topic_id in assignments:
            assignments = assignments.delete(topic_id)
    return replace(state, assignments=assignments)


def replay_moved(state: State, record: r.MovedRecord) -> State | None:
    """A late commit since the slices were looked at may have put others in former groups; a swap has not."""
    rows, unseen = dict[TopicKey, Reassignment](), pending_elsewhere(state)
    for topic_id, partition, version, seen in record.partitions:
        key = topic_id, partition
        row = state.reassignments.get(key)
        if row is None or key not in state.partitions or not row.left or key in unseen:
            continue
        if row.version == version and row.late <= seen:
            rows[key] = Reassignment(group_number(state, key), (), row.former, row.version)
    return replace(state, reassignments=state.reassignments.update(rows)) if rows else None


def with_late_slices(state: State, places: Mapping[TopicKey, set[int]]) -> State:
    """After a commit: partitions move (again) whose new slices are in objects of former groups.

    places:  the groups of its objects, by partition.
    """
    if not state.reassignments:
        return state
    rows = dict[TopicKey, Reassignment]()
    for key, groups in places.items():
        row = state.reassignments.get(key)
        late = () if row is None else _others(state, group_number(state, key), sorted(groups.intersection(row.former)))
        if row is not None and late:
            origin = row.origin if row.left else late[0]
            left = tuple(dict.fromkeys((*row.left, *late)))
            rows[key] = row._replace(origin=origin, left=left, late=state.version)
    return replace(state, reassignments=state.reassignments.update(rows)) if rows else state


def with_new_objects(state: State, keys: Iterable[TopicKey]) -> State:
    """After a record that replaced pending slices: the groups of these partitions may have some of their records now.

    Their ends and editions do not show it.
    """
    rows = {key: state.reassignments[key]._replace(end=-1, edition=-1) for key in keys if key in state.reassignments}
    return replace(state, reassignments=state.reassignments.update(rows)) if rows else state


def places_of_slices(record: r.CommitRecord) -> dict[TopicKey, set[int]]:
    """The groups of the objects of a commit, by partition.  For one whose slices are in an index: all groups."""
    where = [one.group for one in record.placed] or [OWN_GROUP] * len(record.objects)
    found = dict[TopicKey, set[int]]()
    for number, run in record.slices:
        found.setdefault((run.topic_id, run.partition), set()).add(where[number])
    for topic_id, partition, _ in record.pieces:
        found.setdefault((topic_id, partition), set()).update(where)
    return found


def without_ended(state: State, fence: int) -> State:
    """After the fence has moved: no upload for former replicas can be committed any more.

    Those that are committed, and pending, are late when they become visible.  Groups that nothing uses go away.
    """
    if not state.placement_groups:
        return state
    rows, late = state.reassignments, _pending_late(state)
    for key, row in state.reassignments.items():
        if row.version <= fence and not row.left and key not in late:
            rows = rows.delete(key)
    return _without_unused(replace(state, reassignments=rows))


def _pending_late(state: State) -> set[TopicKey]:
    """Partitions of which pending commits have objects of former groups."""
    return {
        key
        for commit in state.pending
        for key, groups in places_of_pending(state, commit).items()
        if (row := state.reassignments.get(key)) is not None and groups.intersection(row.former)
    }


def _without_unused(state: State) -> State:
    used = {number for numbers in state.assignments.values() for number in numbers}
    used |= {copies.group for copies in state.copies.values()}
    used |= {number for row in state.reassignments.values() for number in (row.origin, *row.left, *row.former)}
    groups = state.placement_groups
    for number in set(groups).difference(used):
        groups = groups.delete(number)
    made = max((number for number in state.placement_groups if number not in groups), default=0)
    return replace(state, placement_groups=groups, groups_made=max(state.groups_made, made))
