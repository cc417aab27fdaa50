"""Questions about brokers, replicas and copies of objects.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from spark_log.configs.settings import topic_config
from spark_log.metadata.maps.column_map import first_name, rows_with_copies
from spark_log.metadata.replicas.replica_state import (
    NO_LEADER,
    OWN,
    OWN_BROKER,
    OWN_GROUP,
    Copies,
    PlacementGroup,
)
from spark_log.metadata.state import ObjectRow, State, TopicKey
from spark_log.model import ACKS_ALL


class Deficit(NamedTuple):
    """The objects that a replica of a group lacks, although another broker has them."""

    objects: int = 0
    bytes: int = 0


class Targets(NamedTuple):
    """Where a writer puts the objects of a placement group.  Sent to tasks."""

    group: int = OWN_GROUP
    isr: tuple[tuple[int, int], ...] = ((OWN_BROKER, 0),)
    """(broker, epoch) of the in-sync replicas."""
    joining: tuple[tuple[int, int], ...] = ()
    """(broker, epoch) of the replicas that are about to enter the ISR."""
    least: int = 1
    """`min.insync.replicas`: a writer does not wait long for others when this many in-sync replicas have an object."""
    leader_only: bool = False
    """There are other replicas, which get the objects later, or if the leader does not take them: acks=1."""

    @property
    def all(self) -> tuple[tuple[int, int], ...]:
        """(broker, epoch) of all replicas that get the objects."""
        return (*self.isr, *self.joining)


def targets_of(state: State, group: int, least: int = 1, acks: int = ACKS_ALL) -> Targets:
    """Where objects of a placement group are put: its active replicas that are in the ISR or joining it; with acks=1
    its leader alone."""
    if group == OWN_GROUP:
        return Targets(least=least)
    known = group_at(state, group)
    if acks != ACKS_ALL and known.leader != NO_LEADER:
        return Targets(group, _with_epochs(state, [known.leader]), leader_only=True)
    return Targets(group, _with_epochs(state, known.isr), _with_epochs(state, known.joining), least)


def _with_epochs(state: State, brokers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (one, epoch) for one in brokers if is_active(state, one) and (epoch := epoch_of(state, one)) is not None
    )


def is_active(state: State, broker: int) -> bool:
    """Whether a broker is registered and not fenced."""
    known = state.brokers.get(broker)
    return broker == OWN_BROKER or (known is not None and not known.fenced)


def can_lead(state: State, broker: int) -> bool:
    """Whether a broker may be in an ISR: it is active, and not asynchronous."""
    return is_active(state, broker) and not is_async(state, broker)


def has_active(state: State, copies: Copies) -> bool:
    """Whether an active broker has some objects."""
    return any(is_active(state, broker) for broker in copies.brokers)


def is_async(state: State, broker: int) -> bool:
    """Whether no write waits for a broker."""
    known = state.brokers.get(broker)
    return known is not None and known.is_async


def epoch_of(state: State, broker: int) -> int | None:
    """The epoch of a registered broker; 0 for broker 0, None for an unknown one."""
    known = state.brokers.get(broker)
    if broker == OWN_BROKER:
        return 0
    return None if known is None else known.epoch


def keeps(state: State, broker: int, name: str) -> bool:
    """Whether a broker keeps objects as old as this one."""
    known = state.brokers.get(broker)
    return known is None or not known.keep_ms or name >= first_name(known.dropped + 1)


def is_current(state: State, broker: int, epoch: int) -> bool:
    """Whether a copy that was put under this epoch counts: the broker has neither returned nor been replaced since."""
    return epoch_of(state, broker) == epoch


def group_at(state: State, number: int) -> PlacementGroup:
    """A placement group."""
    return OWN if number == OWN_GROUP else state.placement_groups[number]


def group_numbers(state: State, topic_id: str) -> tuple[int, ...]:
    """The group of each partition of a topic."""
    return state.assignments.get(topic_id) or (OWN_GROUP,) * state.topics[topic_id].partitions


def group_number(state: State, key: TopicKey) -> int:
    """The group of a partition."""
    numbers = state.assignments.get(key[0])
    return OWN_GROUP if numbers is None else numbers[key[1]]


def copies_of(state: State, row: ObjectRow) -> Copies | None:
    """Where an object has copies; None: in the log's own root, as all objects of group 0."""
    return state.copies.get(row.copies) if row.copies else None


def has_copy(state: State, broker: int, name: str) -> bool:
    """Whether a broker has an object, by the state; an object in the log's own root is not asked for."""
    row = state.objects.get(name)
    known = copies_of(state, row) if row is not None else None
    return known is not None and broker in known.brokers


def holders(state: State, row: ObjectRow) -> tuple[int, ...]:
    """Brokers from which an object can be read, in the order in which a reader tries them.

    First the leader of its group, then other active brokers with a copy, in replica order; then fenced ones.  Without
    any known copy: all replicas of the group, because a copy that was found damaged may have been repaired.

    Then the other replicas, which may have a good copy although the state knows of none: the row of a client that holds
    some topics may be older than its state, and a copy that was reported as missing may have been repaired before.  The
    last one is the first again: it is read if it has failed for a short time only.
    """
    found = copies_of(state, row)
    if found is None:  # in the log's own root, unless the row is old
        others = sorted(state.brokers, key=lambda broker: (not is_active(state, broker), broker)) if row.copies else ()
        return tuple(dict.fromkeys((OWN_BROKER, *others)))
    group = state.placement_groups[found.group]
    order = {broker: number for number, broker in enumerate((group.leader, *group.replicas))}
    some = found.brokers or group.replicas
    known = sorted(some, key=lambda broker: (not is_active(state, broker), order.get(broker, len(order))))
    others = [broker for broker in group.replicas if broker not in some]
    return (*known, *others, *(known[:1] if others else ()))


def deficit(state: State, number: int, broker: int) -> Deficit:
    """The objects that a replica of a group lacks.

    Those without any known good copy are left out, pending ones, and those that it need not keep.
    """
    lacking = [one for one in lacked(state, number, broker) if not state.copies[one].pending]
    if (known := state.brokers.get(broker)) is not None and known.keep_ms:
        sizes = [row.size for _, row in rows_with_copies(state.objects, lacking, known.dropped)] if lacking else []
        return Deficit(len(sizes), sum(sizes))
    copies = [state.copies[one] for one in lacking]
    return Deficit(sum(c.objects for c in copies), sum(c.bytes for c in copies))


def deficits(state: State, number: int) -> dict[int, int]:
    """The replicas of a group that lack objects, with the number of these.  Pending ones do not count."""
    found: dict[int, int] = {}
    replicas = group_at(state, number).replicas
    for copies in state.copies.values():
        if copies.group == number and copies.brokers and not copies.pending:
            for broker in replicas:
                if broker not in copies.brokers:
                    found[broker] = found.get(broker, 0) + copies.objects
    return found


def lacked(state: State, number: int, broker: int) -> Iterator[int]:
    """Ids of the copies that a replica of a group has not, although another broker has them; also pending ones."""
    for one, copies in state.copies.items():
        if copies.group == number and copies.brokers and broker not in copies.brokers:
            yield one


def lacked_objects(
    state: State, broker: int, where: Callable[[Copies], bool] = lambda copies: True
) -> Iterator[tuple[str, ObjectRow]]:
    """The objects that a broker should have and has not, although another one has them, the oldest uploads first.

    where:  of these, the ones whose copies are as it says.
    """
    groups = [number for number, group in state.placement_groups.items() if broker in group.replicas]
    keys = {one for number in groups for one in lacked(state, number, broker) if where(state.copies[one])}
    known = state.brokers.get(broker)
    after = known.dropped if known is not None and known.keep_ms else -1
    return rows_with_copies(state.objects, keys, after) if keys else iter(())


def min_insync(state: State, topic_id: str) -> int:
    """`min.insync.replicas` of a topic."""
    configs = state.topics[topic_id].configs
    return int(topic_config(configs, "min.insync.replicas"))


def last_copies(state: State, broker: int) -> Deficit:
    """Objects that only this broker has.  While it is active, copies on fenced brokers do not count: nobody knows
    whether their disks come back."""
    is_known = is_active(state, broker)
    some = [
        copies
        for copies in state.copies.values()
        if broker in copies.brokers
        and all(one == broker or (is_known and not is_active(state, one)) for one in copies.brokers)
    ]
    return Deficit(sum(c.objects for c in some), sum(c.bytes for c in some))


def are_gone(state: State, names: Iterable[str]) -> bool:
    """Whether no broker has a copy of any of these objects, as far as the log knows.

    Slice indexes do not count, nor do objects in the log's own root: the process that gives up their records has looked
    for them there.
    """
    segments = [name for name in names if not name.endswith(".idx")]
    rows = [copies_of(state, row) for name in segments if (row := state.objects.get(name)) is not None]
    return len(rows) == len(segments) and all(known is None or not known.brokers for known in rows)
