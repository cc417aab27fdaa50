"""Rules of producers and consumer groups."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from spark_log.groups.group import Roster
from spark_log.metadata.commits.kafka_producers import BATCHES_KEPT, batches_of
from spark_log.metadata.state import GroupState, State

# ------------------------------------------------------------------------------------------------------------ producers


def producers_have_one_holder(state: State) -> Iterator[str]:
    """The holder of an identity is not one of those that were fenced."""
    for name, known in state.producers.items():
        if known.epoch < 0 or known.holder in known.former:
            yield f"{name} has the holder {known.holder!r} in epoch {known.epoch}, after {known.former}"


def last_commits_are_of_their_producers(state: State) -> Iterator[str]:
    """The last commit has a sequence, and was written when the producer was last heard of, or before."""
    for name, known in state.producers.items():
        last = known.last_commit
        if last is not None and (last.sequence < 0 or last.version > known.version):
            yield f"{name} was last seen at version {known.version}, and has the last commit {last}"


def last_commits_count_their_rows(state: State) -> Iterator[str]:
    """The offsets that a last commit remembers are as many as its rows."""
    for name, known in state.producers.items():
        if (last := known.last_commit) is not None and last.packed:
            rows = sum(len(span) for span in last.ranges.values())
            if rows != last.rows:
                yield f"{name} has a last commit of {last.rows} rows, with {rows} offsets"


def lost_sequences_are_not_ahead(state: State) -> Iterator[str]:
    """Sequences of lost commits are ascending, and not above the last one."""
    for name, known in state.producers.items():
        lost = known.lost
        if lost and (any(before >= after for before, after in pairwise(lost)) or lost[-1] > known.last):
            yield f"{name} has lost the sequences {lost}, and its last one is {known.last}"


def aborted_transactions_have_no_commit(state: State) -> Iterator[str]:
    """An epoch whose transaction was aborted has no commit, and no timeout."""
    for name, known in state.producers.items():
        if known.aborted and (known.last_commit is not None or known.timeout_ms):
            yield f"{name}: epoch {known.epoch} was aborted, and has {known.last_commit} and {known.timeout_ms} ms"


def batches_of_kafka_are_in_order(state: State) -> Iterator[str]:
    """A row of Kafka's producers has one to five batches, at ascending offsets of its partition."""
    for key, row in state.kafka_producers.items():
        batches, part = batches_of(row), state.partitions.get((row.topic_id, key[2]))
        overlap = any(after.offset < before.offset + before.records for before, after in pairwise(batches))
        if not 0 < len(batches) <= BATCHES_KEPT or overlap:
            yield f"Kafka's producer {key} has the batches {batches}"
        elif part is not None and batches[-1].offset + batches[-1].records > part.end:
            yield f"Kafka's producer {key} has the batches {batches} in a partition that ends at {part.end}"


# --------------------------------------------------------------------------------------------------------------- groups


def groups_have_one_kind_of_owner(state: State) -> Iterator[str]:
    """A group is owned by one member, by members with shares, or by members that a coordinator assigns partitions."""
    for name, group in state.groups.items():
        kinds = [bool(group.member), bool(group.shares), group.roster is not None]
        if sum(kinds) > 1 or (group.session is not None and not group.member):
            session = "a session" if group.session is not None else "no session"
            yield f"group {name!r} has the member {group.member!r}, {session}, {group.shares} and {group.roster}"


def shares_do_not_overlap(state: State) -> Iterator[str]:
    """No partition belongs to two members with shares, and no member joined in a generation to come."""
    for name, group in state.groups.items():
        for one, other in combinations(group.shares, 2):
            if one.share.overlaps(other.share) or one.member == other.member:
                yield f"group {name!r}: {one.member} owns {one.share}, and {other.member} owns {other.share}"
        for one in group.shares:
            if not one.share.is_valid or one.generation > group.generation:
                yield f"group {name!r} of generation {group.generation} has {one}"


def rosters_are_of_their_generation(state: State) -> Iterator[str]:
    """A roster is that of the group's generation; its members have different ids, and the leader is one of them."""
    for name, group in state.groups.items():
        if group.roster is not None and (text := _wrong_roster(group, group.roster)):
            yield f"group {name!r} {text}"


def _wrong_roster(group: GroupState, roster: Roster) -> str:
    ids = [one.member_id for one in roster.members]
    instances = [one.group_instance_id for one in roster.members if one.group_instance_id is not None]
    if roster.generation != group.generation:
        return f"has generation {group.generation}, and a roster of {roster.generation}"
    if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
        return f"has the members {ids}, with the static ids {instances}"
    if roster.leader is not None and roster.leader not in ids:
        return f"is led by {roster.leader}, and has the members {ids}"
    return ""


def positions_are_of_partitions(state: State) -> Iterator[str]:
    """A committed position is an offset in a partition of a live topic."""
    for name, group in state.groups.items():
        for (topic_id, number), at in group.offsets.items():
            topic = state.live_topic(topic_id)
            if topic is None or not 0 <= number < topic.partitions or at.offset < 0:
                yield f"group {name!r} has {at.offset} in partition {number} of {topic_id!r}, which is {topic}"


def positions_are_progress(state: State) -> Iterator[str]:
    """Each position was committed, and each removal happened, by the last version that did any of this."""
    for name, group in state.groups.items():
        for key, at in group.offsets.items():
            if at.version > state.progressed:
                yield f"group {name!r} has a position in {key} of version {at.version}, after {state.progressed}"
    for key3, when in state.forgotten.items():
        if when.version > state.progressed:
            yield f"the position {key3} was removed at version {when.version}, after {state.progressed}"


def removed_positions_are_gone(state: State) -> Iterator[str]:
    """A position is not among the removed ones when it is there again."""
    for name, topic_name, number in state.forgotten:
        group, topic_id = state.groups.get(name), state.names.get(topic_name)
        if group is not None and topic_id is not None and (topic_id, number) in group.offsets:
            yield f"group {name!r} has a position in {topic_name}-{number}, which is among the removed ones"
