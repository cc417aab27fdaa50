"""Replay of brokers, replicas and copies: the part of `replay` that changes them.  Total and deterministic.

A replica in the ISR is active and lacks no object of its group.  If there is no such replica, one stays that is fenced
or lacks some.  `_settled` keeps this rule: it runs after every change of copies and brokers.  A commit needs no run:
the replicas that did not get its objects have left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec.structs import replace as moved

from spark_log.metadata import records as r
from spark_log.metadata.erasures import with_copied_roots, with_former_roots
from spark_log.metadata.replicas.copy_retention import droppable, first_dropped, keeps_newest, with_dropped
from spark_log.metadata.replicas.leader_election import elect_leader
from spark_log.metadata.replicas.replica_state import (
    NO_LEADER,
    OWN_BROKER,
    OWN_GROUP,
    Broker,
    Copies,
    PlacementGroup,
    Reassignment,
    ReplicaMember,
    Role,
)
from spark_log.metadata.replicas.replicas import can_lead, copies_of, deficits, is_active, is_current, keeps
from spark_log.metadata.state import ObjectRow, State, TopicKey, without
from spark_log.model import DataObject, Placed

MISSES_KEPT_MS = 3_600_000
"""After an hour without a missed write, a replica has missed none."""
FORMER_MAX = 8
"""How many directories of a broker are remembered, in which late uploads may have left files."""


# ----------------------------------------------------------------------------------------------------- topics and groups


def with_replicas(state: State, topic_id: str, replicas: Sequence[tuple[int, ...]]) -> State:
    """The partitions of a topic after those that have a group, in the groups of their replica lists.

    Groups that do not exist yet are made.
    """
    known = state.assignments.get(topic_id)
    before = (OWN_GROUP,) * (state.topics[topic_id].partitions - len(replicas)) if known is None else known
    numbers = dict[tuple[int, ...], int]()
    for one in dict.fromkeys(replicas):
        state, numbers[one] = with_group(state, one)
    assigned = (*before, *(numbers[one] for one in replicas))
    if not any(assigned):
        return state
    return replace(state, assignments=state.assignments.set(topic_id, assigned))


def with_group(state: State, replicas: tuple[int, ...]) -> tuple[State, int]:
    """A state that has the group of a replica list, and its number."""
    if replicas == (OWN_BROKER,):
        return state, OWN_GROUP
    for number, group in state.placement_groups.items():
        if group.replicas == replicas:
            return state, number
    number = max(state.groups_made, *state.placement_groups, OWN_GROUP) + 1
    new = _new_group(state, replicas)
    return replace(state, placement_groups=state.placement_groups.set(number, new)), number


def _new_group(state: State, replicas: Sequence[int]) -> PlacementGroup:
    """All active replicas are in sync: there is nothing that they could lack."""
    roles: list[Role] = ["isr" if can_lead(state, broker) else "out" for broker in replicas]
    members = tuple(ReplicaMember(broker, role, state.version) for broker, role in zip(replicas, roles, strict=True))
    return elect_leader(state, PlacementGroup(members))


# ------------------------------------------------------------------------------------------------------- copies of objects


@dataclass(slots=True)
class _Recount:
    """Changes of `State.copies` by one record."""

    state: State
    made: int = field(init=False)
    _numbers: dict[tuple[int, tuple[int, ...], bool], int] = field(init=False, default_factory=dict)
    _changes: dict[int, list[int]] = field(init=False, default_factory=lambda: defaultdict(lambda: [0, 0]))
    new: dict[int, Copies] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.made = self.state.copies_made

    def number(self, group: int, brokers: tuple[int, ...], pending: bool) -> int:
        """The key of these holders; 0 for group 0."""
        if group == OWN_GROUP:
            return 0
        if not self._numbers:
            rows = sorted(self.state.copies.items(), reverse=True)  # of equal ones, the first
            self._numbers.update({(known.group, known.brokers, known.pending): number for number, known in rows})
        number = self._numbers.get((group, brokers, pending))
        if number is None:
            self.made = number = self.made + 1
            self._numbers[group, brokers, pending] = number
            self.new[number] = Copies(group, brokers, 0, 0, pending)
        return number

    def add(self, number: int, size: int, sign: int = 1) -> None:
        """Count an object, or one that is gone."""
        change = self._changes[number]
        change[0] += sign
        change[1] += sign * size

    def result(self) -> State:
        """The state with the new counts.  Holders of no object have no row."""
        copies = self.state.copies
        for number, (objects, size) in sorted(self._changes.items()):
            known = copies.get(number) or self.new.get(number)
            if known is None:
                continue  # of an object in the log's own root
            left = known._replace(objects=known.objects + objects, bytes=known.bytes + size)
            if left.objects:
                copies = copies.set(number, left)
            elif number in copies:
                copies = copies.delete(number)
        return replace(self.state, copies=copies, copies_made=self.made)


def placed_rows(
    state: State, objects: Sequence[DataObject], placed: Sequence[Placed], live: Sequence[int], *, pending: bool = False
) -> tuple[State, dict[str, ObjectRow]] | None:
    """The rows of new objects, and the state with their copies counted.  Objects without entries get no row.

    pending:  they are of a commit that readers do not see yet.
    None if an object has no copy that counts, or if `placed` is not for these objects.
    """
    if placed and len(placed) != len(objects):
        return None
    counts, rows = _Recount(state), dict[str, ObjectRow]()
    for number, (made, entries) in enumerate(zip(objects, live, strict=True)):
        where = placed[number] if placed else Placed(OWN_GROUP)
        brokers = counted(state, where)
        if brokers is None:
            return None
        if entries:
            key = counts.number(where.group, brokers, pending)
            rows[made.name] = ObjectRow(made.size, made.index_position, entries, key)
            counts.add(key, made.size)
    return (counts.result() if any(row.copies for row in rows.values()) else state), rows


def counted(state: State, where: Placed) -> tuple[int, ...] | None:
    """The replicas whose copy of an object counts, ascending; None if there are none.

    A fenced broker's does not: its root may have been listed for its return already, and may have lost the copy before.
    Copies on brokers that keep only the newest objects count by `Held` only, which says of which object each is.
    """
    if where.group == OWN_GROUP:
        return ()
    group = state.placement_groups.get(where.group)
    if group is None:
        return None
    replicas = group.replicas
    found = {
        broker
        for broker, epoch in where.held
        if broker in replicas and _counts(state, broker, epoch) and not keeps_newest(state, broker)
    }
    return tuple(sorted(found)) or None


def _counts(state: State, broker: int, epoch: int) -> bool:
    return is_current(state, broker, epoch) and is_active(state, broker)


def held_by_all(state: State, placed: Iterable[Placed]) -> dict[int, frozenset[int]]:
    """By group, the replicas that have all of some new objects."""
    found: dict[int, frozenset[int]] = {}
    for where in placed:
        if where.group != OWN_GROUP:
            brokers = frozenset(counted(state, where) or ())
            found[where.group] = found.get(where.group, brokers) & brokers
    return found


def lacking_isr(state: State, placed: Iterable[Placed]) -> dict[int, tuple[int, ...]]:
    """By group, the in-sync replicas that do not have all of some new objects, if there are any."""
    found = {
        number: tuple(broker for broker in state.placement_groups[number].isr if broker not in held)
        for number, held in held_by_all(state, placed).items()
        if number in state.placement_groups
    }
    return {number: lacking for number, lacking in found.items() if lacking}


def is_led(state: State, placed: Sequence[Placed]) -> bool:
    """Whether an in-sync replica of each group has all of some new objects."""
    return _are_led(state, held_by_all(state, placed))


def _are_led(state: State, held_by: Mapping[int, frozenset[int]]) -> bool:
    return all(held.intersection(state.placement_groups[number].isr) for number, held in held_by.items())


def with_missed(state: State, placed: Sequence[Placed], upload_epoch: int) -> State | None:
    """Replicas that did not get all objects of a commit leave the ISR, or stop joining.

    None if no replica of an ISR has them.
    """
    held_by = held_by_all(state, placed)
    if not _are_led(state, held_by):
        return None
    for number, held in held_by.items():
        group = state.placement_groups[number]
        members = tuple(
            member if member.role == "out" or member.broker in held else _missed(state, member, upload_epoch)
            for member in group.members
        )
        state = _with_group(state, number, members)
    return state


def _missed(state: State, member: ReplicaMember, upload_epoch: int) -> ReplicaMember:
    if member.since > upload_epoch:  # the writer did not know that it had to put there
        return member._replace(role="joining")
    kept = member.misses if state.time - member.missed < MISSES_KEPT_MS else 0
    return ReplicaMember(member.broker, "out", state.version, state.time, kept + 1)


def swapped_copies(state: State, dropped: Iterable[ObjectRow], placed: Sequence[Placed]) -> State:
    """After a swap: objects that were dropped are not counted any more, and replicas may lack nothing now."""
    counts, gone = _Recount(state), list(dropped)
    for row in gone:
        counts.add(row.copies, row.size, -1)
    groups = {copies.group for row in gone if (copies := copies_of(state, row)) is not None}
    if not groups and not placed:
        return state
    return _settled(counts.result(), groups | {where.group for where in placed} - {OWN_GROUP})


def replay_held(state: State, record: r.HeldRecord) -> State | None:
    return _recopied(state, record.copies, held=True)


def replay_missing(state: State, record: r.MissingRecord) -> State | None:
    return _recopied(state, record.copies, held=False)


def _recopied(state: State, copies: Iterable[r.Copy], *, held: bool) -> State | None:
    """Add copies of objects, or remove them.  Those that do not fit the state are left out."""
    counts, rows, groups = _Recount(state), dict[str, ObjectRow](), set[int]()
    for name, broker, epoch in copies:
        row = rows.get(name) or state.objects.get(name)
        known = None if row is None else _holders(state, counts, row)
        if row is None or known is None or not (_counts if held else is_current)(state, broker, epoch):
            continue
        if held and not keeps(state, broker, name):
            continue
        if broker not in state.placement_groups[known.group].replicas or (broker in known.brokers) == held:
            continue
        now = {*known.brokers, broker} if held else {*known.brokers} - {broker}
        counts.add(row.copies, row.size, -1)
        rows[name] = row = moved(row, copies=counts.number(known.group, tuple(sorted(now)), known.pending))
        counts.add(row.copies, row.size)
        groups.add(known.group)
    if not rows:
        return None
    return _settled(replace(counts.result(), objects=state.objects.update(rows)), groups)


def _holders(state: State, counts: _Recount, row: ObjectRow) -> Copies | None:
    """Where an object is; None if it is in the log's own root."""
    return state.copies.get(row.copies) or counts.new.get(row.copies)


def not_pending(state: State, names: Iterable[str]) -> State:
    """Objects of a commit that readers see from now on: a replica that lacks them has a deficit."""
    counts, rows = _Recount(state), dict[str, ObjectRow]()
    for name in names:
        row = state.objects.get(name)
        known = None if row is None else _holders(state, counts, row)
        if row is not None and known is not None:
            rows[name] = moved(row, copies=counts.number(known.group, known.brokers, False))
            counts.add(row.copies, row.size, -1)
            counts.add(rows[name].copies, row.size)
    return replace(counts.result(), objects=state.objects.update(rows)) if rows else state


# ---------------------------------------------------------------------------------------------------------------- brokers


def replay_register(state: State, record: r.RegisterBrokerRecord) -> State:
    """A broker with an empty directory: whatever it had under another one is gone.

    The directory is not a former root any more: the broker was removed while nobody reached it, and is back.
    """
    state, old = with_former_roots(state, [record.broker]), state.brokers.get(record.broker)
    new = Broker(
        record.url,
        record.directory,
        record.rack,
        tuple(sorted(record.options.items())),
        record.is_async,
        epoch=state.version,
        since=state.time,
        drained=old is not None and old.drained,
        former=() if old is None else _former(old, state.version),
        mount_point=record.mount_point,
    )
    new = first_dropped(state, new, record.keep_ms)
    copies = state.copies.update(
        {
            number: known._replace(brokers=tuple(one for one in known.brokers if one != record.broker))
            for number, known in state.copies.items()
            if record.broker in known.brokers
        }
    )
    former = without(state.former_roots, [record.directory])
    state = replace(state, brokers=state.brokers.set(record.broker, new), copies=copies, former_roots=former)
    for number in _groups_with(state, record.broker):
        state = _with_roles(state, number, {record.broker: "out"})
    return _entered(state, record.broker)


def _former(known: Broker, version: int) -> tuple[tuple[str, int], ...]:
    """The directories that a broker has had, when this one is replaced."""
    return ((known.directory, version), *known.former)[:FORMER_MAX]


def replay_alter(state: State, record: r.AlterBrokerRecord) -> State | None:
    """Broker 0 has a row only if it has a rack."""
    known = state.brokers.get(record.broker, Broker("", "") if record.broker == OWN_BROKER else None)
    if known is None:
        return None
    rack = known.rack if record.rack is None else record.rack
    drained = known.drained if record.drained is None or record.broker == OWN_BROKER else record.drained
    if (rack, drained) == (known.rack, known.drained):
        return None
    if record.broker == OWN_BROKER and not rack:
        return replace(state, brokers=state.brokers.delete(OWN_BROKER))
    return replace(state, brokers=state.brokers.set(record.broker, known._replace(rack=rack, drained=drained)))


def replay_fence(state: State, record: r.FenceBrokerRecord) -> State | None:
    known = state.brokers.get(record.broker)
    if known is None or known.epoch != record.epoch or not known.directory:
        return None
    if known.fenced:
        return _fenced_by_hand(state, record) if known.returns else None
    known = known._replace(fenced=True, reason=record.reason, cause=record.cause, since=state.time)
    state = replace(state, brokers=state.brokers.set(record.broker, known))
    return _settled(state, _groups_with(state, record.broker))


def _fenced_by_hand(state: State, record: r.FenceBrokerRecord) -> State | None:
    """A broker whose root has failed is not taken back any more when that answers again.

    It gets another epoch, so that a return that is under way is void.
    """
    if record.cause != "admin":
        return None
    known = state.brokers[record.broker]._replace(reason=record.reason, cause="admin", epoch=state.version)
    return replace(state, brokers=state.brokers.set(record.broker, known))


def replay_return(state: State, record: r.ReturnBrokerRecord) -> State | None:
    known = state.brokers.get(record.broker)
    if known is None or not known.fenced or known.epoch != record.epoch:
        return None
    gone = [r.Copy(name, record.broker, record.epoch) for name in record.missing]
    state = replay_missing(state, r.MissingRecord(copies=tuple(gone))) or state
    known = known._replace(fenced=False, reason="", cause="admin", epoch=state.version, since=state.time)
    return _entered(replace(state, brokers=state.brokers.set(record.broker, known)), record.broker)


def _entered(state: State, broker: int) -> State:
    """A broker is active now: it is in sync where it lacks nothing."""
    groups = _groups_with(state, broker)
    for number in groups:
        if can_lead(state, broker) and broker not in deficits(state, number):
            state = _with_roles(state, number, {broker: "isr"})
    return _settled(state, groups)


def replay_remove(state: State, record: r.RemoveBrokerRecord) -> State | None:
    """Groups with the broker, of which nothing is left, go with it.  Void if there are others.

    Uploads for such groups, which partitions had before they were moved, are void from now on.
    """
    gone = _groups_with(state, record.broker)
    used = {number for numbers in state.assignments.values() for number in numbers}
    used |= {copies.group for copies in state.copies.values()}
    used |= {number for row in state.reassignments.values() for number in (row.origin, *row.left)}
    if record.broker not in state.brokers or used.intersection(gone):
        return None
    state = with_former_roots(state, [record.broker])
    groups, rows = state.placement_groups, dict[TopicKey, Reassignment]()
    for number in gone:
        groups = groups.delete(number)
    for key, row in state.reassignments.items():
        if not set(gone).isdisjoint(row.former):
            rows[key] = row._replace(former=tuple(one for one in row.former if one not in gone))
    return replace(
        state,
        brokers=state.brokers.delete(record.broker),
        placement_groups=groups,
        groups_made=max(state.groups_made, *gone, OWN_GROUP),
        reassignments=state.reassignments.update(rows),
    )


def replay_join(state: State, record: r.JoinIsrRecord) -> State:
    for number, broker in record.members:
        group = state.placement_groups.get(number)
        if group is None or not can_lead(state, broker):
            continue
        if broker not in group.isr:
            state = _settled(_with_roles(state, number, {broker: "joining"}), [number])
    return state


def replay_lag(state: State, record: r.LagRecord) -> State:
    """The last active member of an ISR stays, and so does one that nobody could copy to."""
    for name, broker in record.lacking:
        row = state.objects.get(name)
        known = None if row is None else copies_of(state, row)
        if known is None or not known.pending or broker in known.brokers:
            continue
        group = state.placement_groups[known.group]
        others = [one for one in group.isr if one != broker and can_lead(state, one)]
        if broker in group.isr and others and any(is_active(state, one) for one in known.brokers):
            members = tuple(
                _missed(state, one, state.version) if one.broker == broker else one for one in group.members
            )
            state = _with_group(state, known.group, members)
    return state


def replay_drop(state: State, record: r.DropCopiesRecord) -> State | None:
    known = state.brokers.get(record.broker)
    if known is None or not known.keep_ms or known.epoch != record.epoch or record.upto < known.dropped:
        return None
    now = with_dropped(state, known, record.upto)
    old = [
        r.Copy(name, record.broker, record.epoch)
        for name in droppable(state, record.broker, record.upto, record.answering)
    ]
    state = replay_missing(state, r.MissingRecord(copies=tuple(old))) or state
    return replace(state, brokers=state.brokers.set(record.broker, now))


def replay_elect(state: State, record: r.ElectLeaderRecord) -> State | None:
    group = state.placement_groups.get(record.group)
    if group is None or record.leader not in group.replicas or not can_lead(state, record.leader):
        return None
    if group.leader == record.leader or (record.leader not in group.isr and group.leader != NO_LEADER):
        return None
    if record.leader not in group.isr:  # unclean: what it lacks was acknowledged, and may be lost
        roles: dict[int, Role] = {**dict.fromkeys(group.isr, "out"), record.leader: "isr"}
        group = _with_roles(state, record.group, roles).placement_groups[record.group]
    led = PlacementGroup(group.members, record.leader, state.placement_groups[record.group].leader_epoch + 1)
    return replace(state, placement_groups=state.placement_groups.set(record.group, led))


def replay_reset(state: State, record: r.ResetReplicasRecord) -> State | None:
    new = with_copied_roots(state)
    if new.former_roots == state.former_roots and not (
        state.brokers or state.placement_groups or state.assignments or state.copies
    ):
        return None
    return without_replicas(new)


def without_replicas(state: State) -> State:
    """A state in which all objects are in the log's own root.

    Keys of copies that objects still have are never used again, so they mean that root.  Nor are numbers of groups:
    uploads that are under way may name them.
    """
    none = State()
    return replace(
        state,
        brokers=none.brokers,
        placement_groups=none.placement_groups,
        groups_made=max((state.groups_made, *state.placement_groups)),
        assignments=none.assignments,
        reassignments=none.reassignments,
        copies=none.copies,
    )


def _groups_with(state: State, broker: int) -> list[int]:
    return sorted(number for number, group in state.placement_groups.items() if broker in group.replicas)


def _settled(state: State, groups: Iterable[int]) -> State:
    """Groups after a change of copies or brokers, in which the ISR is again as the rule says.

    Joining replicas that lack nothing enter.  If no member is active without a deficit, each active replica without one
    enters, joining or not.
    """
    for number in sorted(groups):
        group, lacking = state.placement_groups[number], deficits(state, number)
        active = {broker for broker in group.replicas if can_lead(state, broker)}
        fit = active - lacking.keys()
        entering = fit if fit.isdisjoint(group.isr) else fit.intersection(group.joining)
        isr = fit.intersection(group.isr) | entering
        if not isr and group.isr:
            isr = {min(group.isr, key=lambda one: (one not in active, lacking.get(one, 0), one != group.leader))}
        roles: dict[int, Role] = {
            member.broker: "isr" if member.broker in isr else "joining"
            for member in group.members
            if member.broker in isr or (member.role == "joining" and member.broker in active)
        }
        state = _with_roles(state, number, {**dict.fromkeys(group.replicas, "out"), **roles})
    return state


def _with_roles(state: State, number: int, roles: Mapping[int, Role]) -> State:
    """A group in which some replicas have other roles, with the leader that follows from them."""
    before = state.placement_groups[number]
    return _with_group(
        state, number, tuple(_in_role(state, one, roles.get(one.broker, one.role)) for one in before.members)
    )


def _in_role(state: State, member: ReplicaMember, role: Role) -> ReplicaMember:
    entered_or_left = (member.role == "out") != (role == "out")
    return member._replace(role=role, since=state.version if entered_or_left else member.since)


def _with_group(state: State, number: int, members: tuple[ReplicaMember, ...]) -> State:
    """A group with these members, and with the leader that follows from them."""
    before = state.placement_groups[number]
    group = elect_leader(state, before._replace(members=members))
    return state if group == before else replace(state, placement_groups=state.placement_groups.set(number, group))


REPLAY_REPLICAS: Mapping[type[r.Record], Callable[[State, Any], State | None]] = {
    r.RegisterBrokerRecord: replay_register,
    r.AlterBrokerRecord: replay_alter,
    r.FenceBrokerRecord: replay_fence,
    r.ReturnBrokerRecord: replay_return,
    r.RemoveBrokerRecord: replay_remove,
    r.HeldRecord: replay_held,
    r.MissingRecord: replay_missing,
    r.JoinIsrRecord: replay_join,
    r.LagRecord: replay_lag,
    r.DropCopiesRecord: replay_drop,
    r.ElectLeaderRecord: replay_elect,
    r.ResetReplicasRecord: replay_reset,
}
