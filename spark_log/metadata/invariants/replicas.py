"""Rules of brokers, placement groups, copies of objects and reassignments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from spark_log.metadata.invariants.partitions import shown_partition
from spark_log.metadata.replicas.reassignments import is_moving, objects_elsewhere
from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_BROKER, OWN_GROUP
from spark_log.metadata.replicas.replicas import can_lead
from spark_log.metadata.state import State
from spark_log.model import Slice


def brokers_have_their_directories(state: State) -> Iterator[str]:
    """Each broker has another directory.  Broker 0 has none, and a row only if it has a rack."""
    owners = dict[str, int]()
    for broker, known in state.brokers.items():
        if broker == OWN_BROKER:
            if known.directory or known.url or not known.rack:
                yield f"broker 0 has the row {known}, expected a rack and no directory"
        elif not known.directory or known.directory in owners:
            yield f"broker {broker} has the directory {known.directory!r}, as broker {owners.get(known.directory)}"
        owners[known.directory] = broker


def only_fenced_brokers_have_reasons(state: State) -> Iterator[str]:
    """A reason and a cause are those of a fence, and broker 0 is never fenced."""
    for broker, known in state.brokers.items():
        if ((known.reason or known.cause != "admin") and not known.fenced) or (known.fenced and broker == OWN_BROKER):
            yield f"broker {broker} is {'fenced' if known.fenced else 'active'}, for the reason {known.reason!r}"


def brokers_delete_what_they_have_dropped(state: State) -> Iterator[str]:
    """A broker drops copies before it deletes their files, and remembers the times of later versions only."""
    for broker, known in state.brokers.items():
        versions = [known.dropped, *(version for version, _ in known.marks)]
        if known.deletable > known.dropped or any(before >= after for before, after in pairwise(versions)):
            dropped = f"has dropped copies up to {known.dropped}, deletes them up to {known.deletable}"
            yield f"broker {broker} {dropped}, and has marks {known.marks}"


def former_roots_are_not_in_use(state: State) -> Iterator[str]:
    """A directory is either that of a broker or a former one."""
    for broker, known in state.brokers.items():
        if known.directory in state.former_roots:
            yield f"broker {broker} has the directory {known.directory!r}, which is a former root"


def replicas_are_registered(state: State) -> Iterator[str]:
    """A placement group has at least one replica, each on another registered broker; two groups differ."""
    numbers = dict[tuple[int, ...], int]()
    for number, group in state.placement_groups.items():
        replicas = group.replicas
        unknown = [one for one in replicas if one != OWN_BROKER and one not in state.brokers]
        if not replicas or len(set(replicas)) < len(replicas) or unknown or number == OWN_GROUP:
            yield f"group {number} has the replicas {replicas}, of which {unknown} are not registered"
        if replicas in numbers:
            yield f"groups {numbers[replicas]} and {number} have the same replicas {replicas}"
        numbers[replicas] = number


def leaders_are_in_sync(state: State) -> Iterator[str]:
    """The leader is an active member of the ISR; a group has no leader only if its ISR has no active member."""
    for number, group in state.placement_groups.items():
        active = [one for one in group.isr if can_lead(state, one)]
        if group.leader not in active and not (group.leader == NO_LEADER and not active):
            yield f"group {number} has the leader {group.leader}, the ISR {group.isr}, and of these {active} are active"


def in_sync_replicas_lack_nothing(state: State) -> Iterator[str]:
    """All members of an ISR are active and have each object of which a copy is known; or the ISR has one member."""
    lacking = defaultdict[int, set[int]](set)
    for copies in state.copies.values():
        group = state.placement_groups.get(copies.group)
        if group is not None and copies.brokers and not copies.pending:
            lacking[copies.group].update(one for one in group.isr if one not in copies.brokers)
    for number, group in state.placement_groups.items():
        unfit = [one for one in group.isr if one in lacking[number] or not can_lead(state, one)]
        if len(group.isr) > 1 and unfit:
            yield f"group {number} has the ISR {group.isr}, and {unfit} lack objects or are not active"


def copies_are_on_replicas(state: State) -> Iterator[str]:
    """Copies are counted on replicas of the objects' group, ascending."""
    for key, copies in state.copies.items():
        group = state.placement_groups.get(copies.group)
        replicas = () if group is None else group.replicas
        if tuple(sorted(set(copies.brokers).intersection(replicas))) != copies.brokers or group is None:
            yield f"copies {key} are on brokers {copies.brokers}, and group {copies.group} has the replicas {replicas}"


def copies_count_their_objects(state: State) -> Iterator[str]:
    """A row of copies counts the live objects with its key and their bytes, and is there as long as it has one."""
    found = {key: [0, 0] for key in state.copies}
    for row in state.objects.values() if found else ():
        if row.copies in found:
            found[row.copies][0] += 1
            found[row.copies][1] += row.size
    for key, copies in state.copies.items():
        if [copies.objects, copies.bytes] != found[key] or not copies.objects:
            has = f"counts {copies.objects} objects of {copies.bytes} bytes"
            yield f"copies {key} {has}, and there are {found[key][0]} of {found[key][1]} bytes"


def keys_of_copies_were_made(state: State) -> Iterator[str]:
    """No row of copies has a key above the highest one that was given away."""
    for key in state.copies:
        if not 0 < key <= state.copies_made:
            yield f"there are copies {key}, and the last key that was given away is {state.copies_made}"


def assignments_name_groups(state: State) -> Iterator[str]:
    """A topic in other groups than group 0 has the group of each of its partitions."""
    groups = {OWN_GROUP, *state.placement_groups}
    for topic_id, numbers in state.assignments.items():
        topic = state.topics.get(topic_id)
        partitions = 0 if topic is None else topic.partitions
        if len(numbers) != partitions or not any(numbers) or not groups.issuperset(numbers):
            name = topic_id if topic is None else topic.name
            yield f"{name} with {partitions} partitions is in the groups {numbers}, and there are {sorted(groups)}"


def reassignments_name_groups(state: State) -> Iterator[str]:
    """A reassignment is of a partition of a live topic, and names groups that exist."""
    groups = {OWN_GROUP, *state.placement_groups}
    for key, row in state.reassignments.items():
        if key not in state.partitions or state.live_topic(key[0]) is None:
            yield f"there is a reassignment of {shown_partition(state, key)}, which is not there"
        if not groups.issuperset((row.origin, *row.left, *row.former)):
            yield f"{shown_partition(state, key)} has the reassignment {row}, and there are groups {sorted(groups)}"


def partitions_elsewhere_move(state: State) -> Iterator[str]:
    """A partition with a live slice on other brokers than its replicas moves; slice indexes are in the own root."""
    if not state.placement_groups:
        return
    for key, part in state.partitions.items():
        if state.live_topic(key[0]) is None or is_moving(state, key):
            continue
        names = objects_elsewhere(state, key, (entry.object for entry in part.entries if isinstance(entry, Slice)))
        if names:
            yield f"{shown_partition(state, key)} does not move, and has slices on other brokers in {sorted(names)}"
