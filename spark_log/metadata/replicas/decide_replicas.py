"""Decisions: brokers, replicas, and where the objects of commits and swaps have to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from msgspec import structs

from spark_log import text
from spark_log.configs.settings import cluster_config
from spark_log.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
)
from spark_log.metadata import records as r
from spark_log.metadata.replicas.copy_retention import keeps_newest
from spark_log.metadata.replicas.placement import place, synchronous_brokers, topic_shift, usable_brokers
from spark_log.metadata.replicas.reassignments import is_moving, may_be_in
from spark_log.metadata.replicas.replay_reassignments import places_of_slices
from spark_log.metadata.replicas.replay_replicas import counted, held_by_all, lacking_isr
from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_BROKER, OWN_GROUP
from spark_log.metadata.replicas.replicas import (
    Targets,
    can_lead,
    copies_of,
    epoch_of,
    group_at,
    group_number,
    is_active,
    is_async,
    min_insync,
    targets_of,
)
from spark_log.metadata.state import ObjectRow, State, TopicKey
from spark_log.model import ACKS_ALL, Placed

AnyPlaced = TypeVar("AnyPlaced", r.CommitRecord, r.SwapRecord)

WAITED_FOR_MS = 3_600_000
"""A swap does not wait for a replica that has been fenced for this long."""


# ----------------------------------------------------------------------------------------------------------------- topics


def decide_replicas(
    state: State,
    name: str,
    topic_id: str,
    first: int,
    total: int,
    factor: int | None,
    replicas: Sequence[tuple[int, ...]],
) -> tuple[tuple[int, ...], ...]:
    """The replica lists of partitions [first, total) of a topic; empty if all are in the log's own root.

    factor:    the replication factor; None: `default.replication.factor` of the log.
    replicas:  the lists, if the caller gives them.
    Raises InvalidReplicationFactor, InvalidReplicaAssignment.
    """
    if replicas:
        if factor is not None:
            raise InvalidReplicaAssignment(f"topic {name!r}: give a replication factor or an assignment, not both")
        _check_assignment(state, name, first, total, replicas)
        lists = [tuple(one) for one in replicas]
    else:
        factor = int(cluster_config(state.configs, "default.replication.factor")) if factor is None else factor
        check_factor(state, name, factor)
        lists = _placed(state, topic_id, first, total, factor)
    if all(one == (OWN_BROKER,) for one in lists):
        return ()
    for one in lists:
        check_can_lead(state, name, one)
    return tuple(lists)


def check_can_lead(state: State, name: str, replicas: Sequence[int]) -> None:
    """Raises InvalidReplicaAssignment if a partition with these replicas would have no leader."""
    if not any(can_lead(state, broker) for broker in replicas):
        raise InvalidReplicaAssignment(
            f"topic {name!r}: none of the brokers {ids_text(replicas)} of a partition is active and synchronous"
        )


def _placed(state: State, topic_id: str, first: int, total: int, factor: int) -> list[tuple[int, ...]]:
    """A single replica is in the log's own root: the metadata is there, so another root would gain nothing."""
    if factor == 1:
        return [(OWN_BROKER,)] * (total - first)
    shift = topic_shift(topic_id)
    return place(usable_brokers(state), factor, range(shift + first, shift + total))


def check_factor(state: State, name: str, factor: int) -> None:
    """Raises InvalidReplicationFactor unless so many brokers can hold replicas."""
    ring = [one.broker for one in usable_brokers(state)]
    if factor < 1:
        raise InvalidReplicationFactor(f"topic {name!r}: replication factor {factor}; expected 1 or more")
    if factor > len(ring):
        drained = [one.broker for one in synchronous_brokers(state) if one.broker not in ring]
        raise InvalidReplicationFactor(
            f"topic {name!r}: replication factor {factor}, and {text.counted(len(ring), 'broker')} can hold replicas "
            f"({ids_text(ring)}): add brokers with `pylog broker add`, or choose at most {len(ring)}"
            + (f"; drained: {ids_text(drained)} (`pylog broker alter ID --not-drained`)" if drained else "")
        )


def _check_assignment(state: State, name: str, first: int, total: int, replicas: Sequence[Sequence[int]]) -> None:
    if len(replicas) != total - first:
        raise InvalidReplicaAssignment(
            f"topic {name!r}: the assignment has {text.counted(len(replicas), 'partition')}, expected {total - first}"
        )
    for number, one in enumerate(replicas, first):
        check_replica_list(state, f"topic {name!r}, partition {number}", one)
        if len(one) != len(replicas[0]):
            raise InvalidReplicaAssignment(
                f"topic {name!r}, partition {number}: {text.counted(len(one), 'replica')}; partition {first} has "
                f"{len(replicas[0])}: all partitions of a topic have the same number"
            )


def check_replica_list(state: State, of: str, replicas: Sequence[int]) -> None:
    """Raises InvalidReplicaAssignment for an empty list, unknown brokers, and one that is named twice."""
    if not replicas:
        raise InvalidReplicaAssignment(f"{of}: no broker is listed; expected one or more")
    if twice := [broker for broker in replicas if replicas.count(broker) > 1]:
        raise InvalidReplicaAssignment(f"{of}: broker {twice[0]} is listed twice")
    if unknown := [broker for broker in replicas if epoch_of(state, broker) is None]:
        raise InvalidReplicaAssignment(f"{of}: {text.unknown_brokers(unknown)}")


def fewest_synchronous(state: State, lists: Sequence[Sequence[int]]) -> int:
    """The lowest number of replicas of a partition that can be in sync: all but the asynchronous ones."""
    counts = [sum(not (known := state.brokers.get(one)) or not known.is_async for one in some) for some in lists]
    return min(counts, default=1)


def check_min_insync(name: str, wanted: int, replicas: int) -> None:
    """Raises InvalidRequest if a topic could never be written to."""
    if wanted > replicas:
        raise InvalidRequest(
            f"topic {name!r}: min.insync.replicas={wanted}, and its partitions have {text.counted(replicas, 'replica')}: "
            "no write would succeed; choose a lower number, or a higher replication factor"
        )


# ---------------------------------------------------------------------------------------------------- commits and swaps


def check_replicas(state: State, commit: r.CommitRecord) -> None:
    """Whether enough in-sync replicas have the objects of a commit; with acks=1, whether one of them has.

    Raises LeaderNotAvailable, NotEnoughReplicas; InvalidRequest for an object of another group than its records.
    """
    _check_places(state, commit)
    least = _least(state, commit)
    for number, held in sorted(held_by_all(state, commit.placed).items()):
        _check_group(state, commit, number, held, least.get(number, 1) if commit.acks == ACKS_ALL else 1)


def without_places(record: AnyPlaced) -> AnyPlaced:
    """The record as in a log without brokers, if all of its objects are in the log's own root."""
    if record.placed and not (
        all(where.group == OWN_GROUP for where in record.placed) and len(record.placed) == len(record.objects)
    ):
        return record
    if isinstance(record, r.CommitRecord):
        record = structs.replace(record, acks=ACKS_ALL) if record.acks != ACKS_ALL else record
    return structs.replace(record, placed=()) if record.placed else record


def _check_places(state: State, commit: r.CommitRecord) -> None:
    """Raises InvalidRequest unless each object is in the group of its slices, or in one that their partition had when
    the upload began.  Those of pieces are in an index."""
    where = [one.group for one in commit.placed] if commit.placed else [OWN_GROUP] * len(commit.objects)
    _check_numbers(state, commit, where)
    epoch, in_index = commit.upload_epoch, {OWN_GROUP, *where}
    wrong = {
        group_number(state, key)
        for number, run in commit.slices
        if not may_be_in(state, key := (run.topic_id, run.partition), where[number], epoch)
    }
    wrong |= {
        group_number(state, key)
        for topic_id, number, _ in commit.pieces
        if not any(may_be_in(state, key := (topic_id, number), group, epoch) for group in in_index)
    }
    if wrong:
        raise _misplaced("a commit", wrong)


def _check_numbers(state: State, record: r.CommitRecord | r.SwapRecord, where: Sequence[int]) -> None:
    if len(where) != len(record.objects):
        raise InvalidRequest(
            f"a commit names {text.counted(len(record.objects), 'object')} and {text.counted(len(where), 'place')}: "
            "expected the same number"
        )
    if unknown := {one for one in where if one != OWN_GROUP and one not in state.placement_groups}:
        raise InvalidRequest(f"placement groups {ids_text(unknown)} do not exist (any more): upload the data again")


def _misplaced(what: str, groups: set[int]) -> InvalidRequest:
    return InvalidRequest(
        f"the objects of {what} are not where the replicas of its partitions are (placement groups {ids_text(groups)}): "
        "upload the data again"
    )


def _least(state: State, commit: r.CommitRecord) -> dict[int, int]:
    """By group of the commit's objects: the highest `min.insync.replicas` of the topics in it.

    A group that a partition had before it was moved may have fewer replicas than the topic requires by now.
    """
    found: dict[int, int] = {}
    for key, groups in places_of_slices(commit).items():
        least = min_insync(state, key[0])
        for number in groups:
            most = least
            if number != group_number(state, key):
                most = min(least, fewest_synchronous(state, [group_at(state, number).replicas]))
            found[number] = max(found.get(number, 1), most)
    return found


def _check_group(state: State, commit: r.CommitRecord, number: int, held: frozenset[int], least: int) -> None:
    group = group_at(state, number)
    if group.leader == NO_LEADER:
        raise LeaderNotAvailable(
            f"no in-sync replica of brokers {ids_text(group.replicas)} is active ({fenced_text(state, group.replicas)}): bring one "
            "back, or choose another leader by `pylog elect unclean`, which may lose records",
            placement_group=number,
        )
    have = [broker for broker in group.isr if broker in held]
    if len(have) >= least:
        return
    absent = {
        made.name: tuple(broker for broker in group.isr if broker not in (counted(state, where) or ()))
        for made, where in zip(commit.objects, commit.placed, strict=True)
        if where.group == number
    }
    lacking = {name: brokers for name, brokers in absent.items() if brokers}
    raise NotEnoughReplicas(
        f"{len(have)} of the in-sync replicas {ids_text(group.isr)} have the records, and min.insync.replicas is {least} "
        f"(replicas: {ids_text(group.replicas)}; {fenced_text(state, group.replicas)})",
        lacking=lacking,
        placement_group=number,
    )


def has_copies(state: State, swap: r.SwapRecord) -> bool:
    """Whether the new objects of a swap have the copies that they need.

    It has not if its partitions got other replicas since the objects were put.

    Raises InvalidRequest for an object of another group than its partitions.
    """
    keys = [(change.topic_id, change.partition) for change in swap.changes]
    if wrong := _misplaced_groups(state, swap):
        if any(key in state.reassignments for key in keys):
            return False
        raise _misplaced("a swap", wrong)
    removed = () if gives_up_indexes(state, swap) else swap.removed  # nothing is left that would have fewer copies
    old = [row for name in removed if (row := state.objects.get(name)) is not None]
    placed = all(counted(state, where) is not None for where in swap.placed)
    return placed and not lacking_for_swap(state, swap.placed, old, moves_to(state, keys))


def gives_up_indexes(state: State, swap: r.SwapRecord) -> bool:
    """Whether a swap gives up the records of slice indexes that cannot be read, and no others."""
    pieces = {
        (change.topic_id, change.partition, entry.start, entry.end)
        for change in swap.changes
        if (part := state.partitions.get((change.topic_id, change.partition))) is not None
        for entry in part.entries
        if isinstance(entry, r.Piece) and change.start <= entry.start and entry.end <= change.end
    }
    return bool(swap.lost) and pieces.issuperset(swap.lost)


def _misplaced_groups(state: State, swap: r.SwapRecord) -> set[int]:
    """The groups of new objects that are not where the replicas of their partitions are."""
    places = [one.group for one in swap.placed] if swap.placed else [OWN_GROUP] * len(swap.objects)
    _check_numbers(state, swap, places)
    where = {made.name: group for made, group in zip(swap.objects, places, strict=True)}
    groups = {(one.topic_id, one.partition): group_number(state, (one.topic_id, one.partition)) for one in swap.changes}
    indexes = {piece.object for change in swap.changes for piece in change.pieces}
    wrong = {group for name, group in where.items() if name not in indexes}.difference(groups.values())
    wrong |= {
        groups[change.topic_id, change.partition]
        for change in swap.changes
        for entry in change.slices
        if where.get(entry.object, groups[change.topic_id, change.partition])
        != groups[change.topic_id, change.partition]
    }
    return wrong


def lacking_for_swap(
    state: State, placed: Sequence[Placed], old: Sequence[ObjectRow], moved_to: Mapping[int, int] = MappingProxyType({})
) -> dict[int, tuple[int, ...]]:
    """By group, the replicas that must have the new objects of a swap, and do not.

    All in-sync replicas; and those that have one of the old objects, so that the swap does not leave fewer copies than
    there were, unless they have been fenced for an hour.

    moved_to:  the groups to which partitions of the swap move, with `min.insync.replicas`: all synchronous replicas
               must have their objects.
    """
    found = {number: set(brokers) for number, brokers in lacking_isr(state, placed).items()}
    held = held_by_all(state, placed)
    for row in old:
        copies = state.copies.get(row.copies)
        if copies is None or copies.group not in held:
            continue
        for broker in copies.brokers:
            if broker not in held[copies.group] and _is_waited_for(state, broker):
                found.setdefault(copies.group, set()).add(broker)
    for number, least in moved_to.items():
        if number in held and (lacking := _moved_replicas(state, number, least) - held[number]):
            found.setdefault(number, set()).update(lacking)
    return {number: tuple(sorted(brokers)) for number, brokers in found.items()}


def _moved_replicas(state: State, number: int, least: int) -> set[int]:
    """The replicas that must have the objects of a group to which a partition moves: all but asynchronous ones and
    those that have been fenced for an hour, but not fewer than `min.insync.replicas`."""
    synchronous = {one for one in group_at(state, number).replicas if not is_async(state, one)}
    waited_for = {one for one in synchronous if _is_waited_for(state, one)}
    return waited_for if len(waited_for) >= min(least, len(synchronous)) else synchronous


def moves_to(state: State, keys: Iterable[TopicKey]) -> dict[int, int]:
    """The groups to which some of these partitions move, with the highest `min.insync.replicas` of their topics."""
    found: dict[int, int] = {}
    for key in keys:
        if is_moving(state, key):
            number = group_number(state, key)
            found[number] = max(found.get(number, 1), min_insync(state, key[0]))
    return found


def swap_targets(
    state: State, group: int, old: Sequence[ObjectRow], moved_to: Mapping[int, int] = MappingProxyType({})
) -> Targets | None:
    """Where the new objects of a swap are put, so that it fits; None if a replica that must have them is fenced.

    old:       the objects that are replaced.
    moved_to:  as for `lacking_for_swap`.
    """
    targets = targets_of(state, group)
    if group == OWN_GROUP:
        return targets
    holders = {
        broker for row in old if (c := copies_of(state, row)) is not None and c.group == group for broker in c.brokers
    }
    if group in moved_to:
        holders |= _moved_replicas(state, group, moved_to[group])
    known = {broker for broker, _ in targets.all}
    more = tuple(
        (broker, epoch)
        for broker in sorted(holders - known)
        if is_active(state, broker)
        and not keeps_newest(state, broker)
        and (epoch := epoch_of(state, broker)) is not None
    )
    targets = targets._replace(joining=(*targets.joining, *more), least=len(targets.isr))
    if not targets.isr or lacking_for_swap(state, [Placed(group, targets.all)], old, moved_to):
        return None
    return targets


def fenced_for_swap(
    state: State, group: int, old: Sequence[ObjectRow], moved_to: Mapping[int, int] = MappingProxyType({})
) -> tuple[int, ...]:
    """The fenced replicas that a swap waits for, where `swap_targets` is None.  The arguments are the same."""
    active = [one for one in {OWN_BROKER, *state.brokers} if is_active(state, one)]
    places = tuple((one, epoch) for one in active if (epoch := epoch_of(state, one)) is not None)
    lacking = lacking_for_swap(state, [Placed(group, places)], old, moved_to).get(group, ())
    return lacking or tuple(one for one in group_at(state, group).replicas if not is_active(state, one))


def _is_waited_for(state: State, broker: int) -> bool:
    known = state.brokers.get(broker)
    if known is None:
        return True
    return not known.is_async and not (known.fenced and state.time - known.since > WAITED_FOR_MS)


def ids_text(brokers: Sequence[int] | set[int] | Mapping[int, object]) -> str:
    return ", ".join(map(str, brokers if isinstance(brokers, Sequence) else sorted(brokers))) or "(none)"


def fenced_text(state: State, brokers: Sequence[int]) -> str:
    """The brokers that are not active, with the reasons."""
    fenced = [(one, known) for one in brokers if (known := state.brokers.get(one)) is not None and known.fenced]
    return "; ".join(f"broker {one} is fenced: {known.reason}" for one, known in fenced) or "all are active"
