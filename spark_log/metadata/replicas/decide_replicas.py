"""Decisions: brokers, replicas, and where the objects of commits and swaps have to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from msgspec import structs

from spark_log import text
from spark_log.configs.settings import cluster_config
from spark_log.errors import (
    BrokerNotAvailable,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
)
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision, decide_if_changed
from spark_log.metadata.replay import replay_records
from spark_log.metadata.replicas.copy_retention import keeps_newest
from spark_log.metadata.replicas.decide_copy_retention import check_keep
from spark_log.metadata.replicas.placement import place, synchronous_brokers, topic_shift, usable_brokers
from spark_log.metadata.replicas.reassignments import is_moving, may_be_in
from spark_log.metadata.replicas.replay_reassignments import places_of_slices
from spark_log.metadata.replicas.replay_replicas import counted, held_by_all, lacking_isr
from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_BROKER, OWN_GROUP, FenceCause
from spark_log.metadata.replicas.replicas import (
    Targets,
    can_lead,
    copies_of,
    epoch_of,
    group_at,
    group_number,
    is_active,
    is_async,
    last_copies,
    min_insync,
    targets_of,
)
from spark_log.metadata.state import ObjectRow, State, TopicKey
from spark_log.model import ACKS_ALL, Placed

AnyPlaced = TypeVar("AnyPlaced", r.CommitRecord, r.SwapRecord)

BROKERS_MAX = 1000
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
            f"topic {name!r}: none of the brokers {_ids(replicas)} of a partition is active and synchronous"
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
            f"({_ids(ring)}): add brokers with `pylog broker add`, or choose at most {len(ring)}"
            + (f"; drained: {_ids(drained)} (`pylog broker alter ID --not-drained`)" if drained else "")
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
        raise InvalidRequest(f"placement groups {_ids(unknown)} do not exist (any more): upload the data again")


def _misplaced(what: str, groups: set[int]) -> InvalidRequest:
    return InvalidRequest(
        f"the objects of {what} are not where the replicas of its partitions are (placement groups {_ids(groups)}): "
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
            f"no in-sync replica of brokers {_ids(group.replicas)} is active ({_whys(state, group.replicas)}): bring one "
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
        f"{len(have)} of the in-sync replicas {_ids(group.isr)} have the records, and min.insync.replicas is {least} "
        f"(replicas: {_ids(group.replicas)}; {_whys(state, group.replicas)})",
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


# ---------------------------------------------------------------------------------------------------------------- brokers


def decide_register(state: State, record: r.RegisterBrokerRecord, *, replaces: bool, lose_data: bool) -> Decision[None]:
    """Register a broker, or give one another directory.  A retry with the same directory changes nothing.

    Raises InvalidRequest for an invalid id, a root that another broker has, or a directory with last copies.
    """
    known = state.brokers.get(record.broker)
    if known is not None and known.directory == record.directory:
        return Decision((), None)
    if record.broker == OWN_BROKER or not 0 < record.broker < BROKERS_MAX:
        raise InvalidRequest(
            f"broker {record.broker}: expected an id from 1 to {BROKERS_MAX - 1}; 0 is the log's own root"
        )
    if (known is not None) != replaces:
        raise (
            BrokerNotAvailable(f"broker {record.broker} is not registered: `pylog broker add` registers it")
            if replaces
            else InvalidRequest(
                f"broker {record.broker} is registered already, with {known.url if known else ''}: choose another id, or "
                f"`pylog broker replace {record.broker}` if its disk was replaced"
            )
        )
    twin = next((i for i, one in state.brokers.items() if one.url == record.url and i != record.broker), None)
    if twin is not None:
        raise InvalidRequest(f"{record.url} is the root of broker {twin}: each broker has a root to itself")
    if known is not None and record.directory in dict(known.former):
        raise InvalidRequest(
            f"{record.url}: broker {record.broker} had this directory before, {record.directory}, and what is left in it "
            "is deleted: delete meta/broker.json there, so that it gets another one"
        )
    check_keep(record.broker, record.keep_ms, is_async=record.is_async)
    lost = last_copies(state, record.broker)
    if lost.objects and not lose_data:
        raise InvalidRequest(
            f"broker {record.broker} has the last copies of {text.counted(lost.objects, 'object')}"
            f"{_beside_fenced(state, record.broker)}: bring its old directory back, or lose them by --lose-data "
            "(lose_data=True)"
        )
    return Decision((record,), None)


def _beside_fenced(state: State, broker: int) -> str:
    """Which fenced brokers may also have objects of which an active broker has the last copies."""
    fenced = {
        one
        for copies in state.copies.values()
        if is_active(state, broker) and broker in copies.brokers and len(copies.brokers) > 1
        for one in copies.brokers
        if not is_active(state, one)
    }
    return f", beside those of brokers that are fenced ({_ids(fenced)})" if fenced else ""


def decide_alter(state: State, record: r.AlterBrokerRecord) -> Decision[bool]:
    """Change the rack of a broker, or whether it gets replicas automatically.

    The reply is False if nothing changes.
    """
    if record.broker != OWN_BROKER or record.drained:
        _registered(state, record.broker)
    return decide_if_changed(state, record)


def decide_fence_broker(state: State, broker: int, epoch: int | None, reason: str, cause: FenceCause) -> Decision[bool]:
    """Fence a broker.  The reply is False if it was fenced already, or has another epoch."""
    known = _registered(state, broker)
    if epoch not in (None, known):
        return Decision((), False)
    return decide_if_changed(state, r.FenceBrokerRecord(broker=broker, epoch=known, reason=reason, cause=cause))


def decide_return(state: State, broker: int, epoch: int, missing: Sequence[str]) -> Decision[bool]:
    """Take a fenced broker back, without the objects that it lacks."""
    _registered(state, broker)
    record = r.ReturnBrokerRecord(broker=broker, epoch=epoch, missing=tuple(missing))
    return decide_if_changed(state, record)


def decide_remove(state: State, broker: int, *, force: bool = False) -> Decision[None]:
    """Remove a broker.

    force:  even if uploads for it may be committed, which began before its partitions were moved.
    Raises InvalidRequest if it has replicas.
    """
    _registered(state, broker)
    _check_moved_off(state, broker, force=force)
    changed = decide_if_changed(state, record := r.RemoveBrokerRecord(broker=broker))
    if not changed.records:
        named = sorted(
            topic.name
            for topic_id, numbers in state.assignments.items()
            if (topic := state.topics.get(topic_id)) is not None
            and any(broker in group_at(state, number).replicas for number in set(numbers))
        )
        raise InvalidRequest(
            f"broker {broker} has replicas of {text.counted(len(named), 'topic')} ({', '.join(named[:3])}): move them to "
            f"other brokers with `pylog broker drain {broker}`, or delete the topics, and wait until maintenance has removed "
            "the records of deleted ones"
        )
    return Decision((record,), None)


def _check_moved_off(state: State, broker: int, *, force: bool) -> None:
    """Raises InvalidRequest if partitions are being moved off the broker, or were so a short time ago."""
    groups = {number for number, group in state.placement_groups.items() if broker in group.replicas}
    moving = {key[0] for key, row in state.reassignments.items() if not groups.isdisjoint((row.origin, *row.left))}
    if moving:
        named = ", ".join(sorted(state.topics[topic_id].name for topic_id in moving)[:3])
        raise InvalidRequest(
            f"partitions of {text.counted(len(moving), 'topic')} ({named}) are still being moved off broker {broker}, or "
            "may return to it: wait until `pylog maintain`, `pylog replicate` or a coordinator has moved the records"
        )
    if not force and any(not groups.isdisjoint(row.former) for row in state.reassignments.values()):
        raise InvalidRequest(
            f"partitions were moved off broker {broker}, and writes that began before may still put records there: wait "
            "until the fence has passed (`gc.fence.age.ms`), or remove the broker with "
            f"`pylog broker remove {broker} --force`; such writes then fail, and have to be run again"
        )


def decide_elect(state: State, number: int, leader: int, *, unclean: bool) -> Decision[bool]:
    """Make a replica the leader of a group.  Raises InvalidRequest if it may not lead."""
    group = state.placement_groups.get(number)
    if group is None or leader not in group.replicas:
        raise InvalidRequest(f"broker {leader} is not a replica of placement group {number}")
    if not can_lead(state, leader):
        raise LeaderNotAvailable(f"broker {leader} cannot lead: {_whys(state, [leader])}")
    if leader not in group.isr and not unclean:
        raise InvalidRequest(
            f"broker {leader} is not in sync ({_ids(group.isr)}): wait until it is, or elect it by `pylog elect "
            "unclean`, which may lose records"
        )
    if leader not in group.isr and group.leader != NO_LEADER:
        raise InvalidRequest(
            f"placement group {number} has a leader, broker {group.leader}: an unclean election is for a group without one"
        )
    return decide_if_changed(state, r.ElectLeaderRecord(group=number, leader=leader))


def decide_pending_copies(state: State, copies: Sequence[r.Copy], late: Sequence[tuple[str, int]]) -> Decision[bool]:
    """Write copies of objects of pending commits, and which in-sync replicas did not get theirs in time."""
    pending = {name for one in state.pending for name in one.objects}
    some = tuple(copy for copy in copies if copy.object in pending)
    records = (r.HeldRecord(copies=some), r.LagRecord(lacking=tuple(late)))
    written: list[r.AnyRecord] = []
    for record in records:
        after = replay_records(state, [record])
        if after is not state:
            written.append(record)
        state = after
    return Decision(tuple(written), bool(written))


def _registered(state: State, broker: int) -> int:
    """The epoch of a registered broker.  Raises BrokerNotAvailable; InvalidRequest for broker 0."""
    known = state.brokers.get(broker)
    if broker == OWN_BROKER:
        raise InvalidRequest("broker 0 is the log's own root, which has the metadata: it is never fenced or removed")
    if known is None:
        raise BrokerNotAvailable(f"broker {broker} is not registered: `pylog broker list` shows those that are")
    return known.epoch


def _ids(brokers: Sequence[int] | set[int] | Mapping[int, object]) -> str:
    return ", ".join(map(str, brokers if isinstance(brokers, Sequence) else sorted(brokers))) or "(none)"


def _whys(state: State, brokers: Sequence[int]) -> str:
    """The brokers that are not active, with the reasons."""
    fenced = [(one, known) for one in brokers if (known := state.brokers.get(one)) is not None and known.fenced]
    return "; ".join(f"broker {one} is fenced: {known.reason}" for one, known in fenced) or "all are active"
