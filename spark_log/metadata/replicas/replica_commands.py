"""Commands of brokers and replicas, which decide themselves.

`decide_replicas.py` has what they share with commits and swaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from spark_log.bounds import Int, Long, Text
from spark_log.errors import (
    BrokerNotAvailable,
    InvalidReplicationFactor,
    InvalidRequest,
    LeaderNotAvailable,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from spark_log.metadata import records as r
from spark_log.metadata.command_base import Command, PlannedCommand, topic_names
from spark_log.metadata.decision import Decision, decide_if_changed
from spark_log.metadata.replay import replay_records
from spark_log.metadata.replicas.copy_retention import next_dropped
from spark_log.metadata.replicas.decide_replicas import (
    check_can_lead,
    check_min_insync,
    check_replica_list,
    fenced_text,
    fewest_synchronous,
    ids_text,
)
from spark_log.metadata.replicas.reassignments import goes_back, is_moving
from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_BROKER, Broker, FenceCause
from spark_log.metadata.replicas.replicas import can_lead, group_at, group_number, is_active, last_copies, min_insync
from spark_log.metadata.state import State, TopicKey, entries_of
from spark_log.text import counted

BROKERS_MAX = 1000
KEEP_MS_MIN = 60_000
"""A broker keeps objects for this long at least: copies take time, too."""

# ---------------------------------------------------------------------------------------------------------------- brokers


class RegisterBroker(Command, frozen=True, kw_only=True, tag="register_broker"):
    """Register a broker whose root has a new, empty directory.  A retry with the same directory changes nothing.

    Rejected with InvalidRequest: an invalid id, a root that another broker has, a directory with last copies.
    """

    broker: Int
    directory: Text
    url: Text
    rack: Text = ""
    options: dict[Text, Text] = msgspec.field(default_factory=dict)
    is_async: bool = False
    keep_ms: Long = 0
    """It keeps only the objects that were written in this time; 0: all."""
    mount_point: Text = ""
    """Where the disk of its root is mounted, as in the record."""
    replaces: bool = False
    """The broker exists: it gets this directory in place of the one that it had."""
    lose_data: bool = False
    """Even if the old directory has the last copies of objects."""

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        known = state.brokers.get(self.broker)
        if known is not None and known.directory == self.directory:
            return Decision((), None)
        if self.broker == OWN_BROKER or not 0 < self.broker < BROKERS_MAX:
            raise InvalidRequest(
                f"broker {self.broker}: expected an id from 1 to {BROKERS_MAX - 1}; 0 is the log's own root"
            )
        if (known is not None) != self.replaces:
            raise (
                BrokerNotAvailable(f"broker {self.broker} is not registered: `pylog broker add` registers it")
                if self.replaces
                else InvalidRequest(
                    f"broker {self.broker} is registered already, with {known.url if known else ''}: choose another id, or "
                    f"`pylog broker replace {self.broker}` if its disk was replaced"
                )
            )
        self._check_root(state)
        record = {name: getattr(self, name) for name in r.RegisterBrokerRecord.__struct_fields__}
        return Decision((r.RegisterBrokerRecord(**record),), None)

    def _check_root(self, state: State) -> None:
        known = state.brokers.get(self.broker)
        twin = next((i for i, one in state.brokers.items() if one.url == self.url and i != self.broker), None)
        if twin is not None:
            raise InvalidRequest(f"{self.url} is the root of broker {twin}: each broker has a root to itself")
        if known is not None and self.directory in dict(known.former):
            raise InvalidRequest(
                f"{self.url}: broker {self.broker} had this directory before, {self.directory}, and what is left in it "
                "is deleted: delete meta/broker.json there, so that it gets another one"
            )
        if self.keep_ms and not self.is_async:
            raise InvalidRequest(
                f"broker {self.broker} is to keep only the newest objects, so it cannot be in an ISR: register it as "
                "asynchronous, by --async (is_async=True)"
            )
        if self.keep_ms and self.keep_ms < KEEP_MS_MIN:
            raise InvalidRequest(
                f"broker {self.broker}: {self.keep_ms} ms is too short a time to keep objects; expected 1 minute or more"
            )
        lost = last_copies(state, self.broker)
        if lost.objects and not self.lose_data:
            raise InvalidRequest(
                f"broker {self.broker} has the last copies of {counted(lost.objects, 'object')}"
                f"{_beside_fenced(state, self.broker)}: bring its old directory back, or lose them by --lose-data "
                "(lose_data=True)"
            )


def _beside_fenced(state: State, broker: int) -> str:
    """Which fenced brokers may also have objects of which an active broker has the last copies."""
    fenced = {
        one
        for copies in state.copies.values()
        if is_active(state, broker) and broker in copies.brokers and len(copies.brokers) > 1
        for one in copies.brokers
        if not is_active(state, one)
    }
    return f", beside those of brokers that are fenced ({ids_text(fenced)})" if fenced else ""


class AlterBroker(Command, frozen=True, kw_only=True, tag="alter_broker"):
    """Change the rack of a broker, which may be broker 0, or whether it gets replicas automatically.

    The reply is False if nothing changes.
    """

    broker: Int
    rack: Text | None = None
    """None: as it is."""
    drained: bool | None = None
    """It gets no replicas automatically any more; None: as it is."""

    def __call__(self, state: State, now_ms: int) -> Decision[bool]:
        if self.broker != OWN_BROKER or self.drained:
            registered(state, self.broker)
        record = r.AlterBrokerRecord(broker=self.broker, rack=self.rack, drained=self.drained)
        return decide_if_changed(state, record)


class FenceBroker(Command, frozen=True, kw_only=True, tag="fence_broker"):
    """Take a broker out of all ISRs.  The reply is False if it was fenced, or has another epoch.

    If a check had fenced it, and this is not one, it gets this reason, and the reply is True.
    """

    broker: Int
    epoch: Long | None = None
    """Its epoch when it did not answer; None: any."""
    reason: Text = ""
    cause: FenceCause = "admin"

    def __call__(self, state: State, now_ms: int) -> Decision[bool]:
        known = registered(state, self.broker).epoch
        if self.epoch not in (None, known):
            return Decision((), False)
        record = r.FenceBrokerRecord(broker=self.broker, epoch=known, reason=self.reason, cause=self.cause)
        return decide_if_changed(state, record)


class ReturnBroker(PlannedCommand, frozen=True, kw_only=True, tag="return_broker"):
    """A fenced broker is back.  The reply is False if it was not fenced, or has another epoch."""

    broker: Int
    epoch: Long
    missing: tuple[Text, ...] = ()
    """The objects that it lacks."""

    def decide(self, state: State, now_ms: int) -> Decision[bool]:
        registered(state, self.broker)
        record = r.ReturnBrokerRecord(broker=self.broker, epoch=self.epoch, missing=self.missing)
        return decide_if_changed(state, record)


class RemoveBroker(Command, frozen=True, kw_only=True, tag="remove_broker"):
    """Remove a broker.  Rejected with InvalidRequest if it has replicas."""

    broker: Int
    directory: Text = ""
    """Its directory.  A retry succeeds if the broker is gone, and a new one with the same id is kept."""
    force: bool = False
    """Even if uploads for it may be committed, which began before its partitions were moved."""

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        known = state.brokers.get(self.broker)
        if self.directory and (known is None or known.directory != self.directory):
            return Decision((), None)
        registered(state, self.broker)
        self._check_moved_off(state)
        changed = decide_if_changed(state, record := r.RemoveBrokerRecord(broker=self.broker))
        if not changed.records:
            named = sorted(
                topic.name
                for topic_id, numbers in state.assignments.items()
                if (topic := state.topics.get(topic_id)) is not None
                and any(self.broker in group_at(state, number).replicas for number in set(numbers))
            )
            raise InvalidRequest(
                f"broker {self.broker} has replicas of {counted(len(named), 'topic')} ({', '.join(named[:3])}): move them to "
                f"other brokers with `pylog broker drain {self.broker}`, or delete the topics, and wait until maintenance "
                "has removed the records of deleted ones"
            )
        return Decision((record,), None)

    def _check_moved_off(self, state: State) -> None:
        """Raises InvalidRequest if partitions are being moved off the broker, or were so a short time ago."""
        groups = {number for number, group in state.placement_groups.items() if self.broker in group.replicas}
        moving = {key[0] for key, row in state.reassignments.items() if not groups.isdisjoint((row.origin, *row.left))}
        if moving:
            named = ", ".join(sorted(state.topics[topic_id].name for topic_id in moving)[:3])
            raise InvalidRequest(
                f"partitions of {counted(len(moving), 'topic')} ({named}) are still being moved off broker {self.broker}, "
                "or may return to it: wait until `pylog maintain`, `pylog replicate` or a coordinator has moved the records"
            )
        if not self.force and any(not groups.isdisjoint(row.former) for row in state.reassignments.values()):
            raise InvalidRequest(
                f"partitions were moved off broker {self.broker}, and writes that began before may still put records there: "
                "wait until the fence has passed (`gc.fence.age.ms`), or remove the broker with "
                f"`pylog broker remove {self.broker} --force`; such writes then fail, and have to be run again"
            )


def registered(state: State, broker: int) -> Broker:
    """The broker of this number.  Raises BrokerNotAvailable; InvalidRequest for broker 0."""
    known = state.brokers.get(broker)
    if broker == OWN_BROKER:
        raise InvalidRequest(
            "broker 0 is the log's own root, which has the metadata: it is never fenced, removed or replaced"
        )
    if known is None:
        raise BrokerNotAvailable(f"broker {broker} is not registered: `pylog broker list` shows those that are")
    return known


# --------------------------------------------------------------------------------------------------------------- replicas


class AddPendingCopies(PlannedCommand, frozen=True, kw_only=True, tag="add_pending_copies"):
    """Record copies of objects of pending commits, by who writes: others are left out."""

    role = "write"
    copies: tuple[r.Copy, ...]
    late: tuple[tuple[Text, Int], ...] = ()
    """(object, broker) of those that could not be copied within `replica.lag.time.max.ms`."""

    def decide(self, state: State, now_ms: int) -> Decision[bool]:
        pending = {name for one in state.pending for name in one.objects}
        some = tuple(copy for copy in self.copies if copy.object in pending)
        written: list[r.AnyRecord] = []
        for record in (r.HeldRecord(copies=some), r.LagRecord(lacking=self.late)):
            after = replay_records(state, [record])
            if after is not state:
                written.append(record)
            state = after
        return Decision(tuple(written), bool(written))

    def topics(self, state: State) -> Sequence[str]:
        """Those of the pending commits that have these objects."""
        names = {copy.object for copy in self.copies} | {name for name, _ in self.late}
        commits = [one for one in state.pending if not names.isdisjoint(one.objects)]
        return topic_names(state, [topic_id for one in commits for topic_id, _ in entries_of(one)])


class DropCopies(PlannedCommand, frozen=True, kw_only=True, tag="drop_copies"):
    """Drop old copies of a broker that keeps only the newest objects.  The reply is False if it is not time."""

    broker: Int
    answering: tuple[Int, ...]
    """The brokers whose roots have just answered: only they count as having other copies."""

    def decide(self, state: State, now_ms: int) -> Decision[bool]:
        known = state.brokers.get(self.broker)
        upto = None if known is None else next_dropped(known, state.version - 1, now_ms)
        if known is None or upto is None:
            return Decision((), False)
        record = r.DropCopiesRecord(broker=self.broker, epoch=known.epoch, upto=upto, answering=self.answering)
        return Decision((record,), True)


class JoinIsr(Command, frozen=True, kw_only=True, tag="join_isr"):
    """Let replicas join the ISR of their group."""

    members: tuple[tuple[Int, Int], ...]
    """(group, broker)."""

    def __call__(self, state: State, now_ms: int) -> Decision[bool]:
        return decide_if_changed(state, r.JoinIsrRecord(members=self.members))


class ElectLeader(Command, frozen=True, kw_only=True, tag="elect_leader"):
    """Make a replica the leader of a group.  The reply is False if it leads already.

    Rejected with InvalidRequest or LeaderNotAvailable if it may not lead.
    """

    group: Int
    leader: Int
    unclean: bool = False
    """Even if it is not in the ISR: acknowledged records that no active broker has are lost."""

    def __call__(self, state: State, now_ms: int) -> Decision[bool]:
        group, leader = state.placement_groups.get(self.group), self.leader
        if group is None or leader not in group.replicas:
            raise InvalidRequest(f"broker {leader} is not a replica of placement group {self.group}")
        if not can_lead(state, leader):
            raise LeaderNotAvailable(f"broker {leader} cannot lead: {fenced_text(state, [leader])}")
        if leader not in group.isr and not self.unclean:
            raise InvalidRequest(
                f"broker {leader} is not in sync ({ids_text(group.isr)}): wait until it is, or elect it by `pylog elect "
                "unclean`, which may lose records"
            )
        if leader not in group.isr and group.leader != NO_LEADER:
            raise InvalidRequest(
                f"placement group {self.group} has a leader, broker {group.leader}: an unclean election is for a group "
                "without one"
            )
        return decide_if_changed(state, r.ElectLeaderRecord(group=self.group, leader=leader))


class ResetReplicas(Command, frozen=True, kw_only=True, tag="reset_replicas"):
    """Forget all brokers: the log was recovered from a mirror, which has all objects in one root."""

    def __call__(self, state: State, now_ms: int) -> Decision[bool]:
        return decide_if_changed(state, r.ResetReplicasRecord())


# ---------------------------------------------------------------------------------------------------------- reassignments


class NewReplicas(NamedTuple):
    """The change of a partition."""

    topic_id: Text
    partition: Int
    replicas: tuple[Int, ...] | None
    """None: those that it had before its reassignment."""
    version: Long = 0
    """Version of the reassignment to cancel.  A retry succeeds if it is cancelled."""


class AlterReassignments(Command, frozen=True, kw_only=True, tag="alter_reassignments"):
    """Give partitions other replicas, or cancel that.  The reply is how many have changed.

    As in Kafka, another list for a partition that moves replaces the first one, and None cancels it.
    """

    partitions: tuple[NewReplicas, ...]
    keeps_factor: bool = False
    """Reject a list of another length than before."""
    keeps_moves: bool = False
    """Reject another list for a partition that moves."""

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        changed = []
        for one in self.partitions:
            key = one.topic_id, one.partition
            _check_there(state, key)
            replicas = _former(state, key, one.version) if one.replicas is None else one.replicas
            before = group_at(state, group_number(state, key)).replicas
            if replicas != before:
                self._check(state, key, before, replicas)
                changed.append(r.Replicas(*key, replicas))
        if not changed:
            return Decision((), 0)
        if self.keeps_moves:
            cancelled = {(one.topic_id, one.partition) for one in self.partitions if one.replicas is None}
            check_not_moving(state, {(one.topic_id, one.partition) for one in changed} - cancelled)
        return Decision((r.ReassignRecord(partitions=tuple(changed)),), len(changed))

    def _check(self, state: State, key: TopicKey, before: Sequence[int], replicas: tuple[int, ...]) -> None:
        name = state.topics[key[0]].name
        check_replica_list(state, f"topic {name!r}, partition {key[1]}", replicas)
        check_can_lead(state, name, replicas)
        if self.keeps_factor and len(replicas) != len(before):
            raise InvalidReplicationFactor(
                f"topic {name!r}, partition {key[1]}: {counted(len(replicas), 'replica')}, and it has {len(before)}: a change "
                "of the replication factor was not allowed"
            )
        check_min_insync(name, min_insync(state, key[0]), fewest_synchronous(state, [replicas]))

    def topics(self, state: State) -> Sequence[str]:
        return sorted({state.topics[one.topic_id].name for one in self.partitions if one.topic_id in state.topics})


def check_not_moving(state: State, keys: Iterable[TopicKey]) -> None:
    """Raises ReassignmentInProgress if some of these partitions move."""
    found = [f"{state.topics[key[0]].name}-{key[1]}" for key in sorted(keys) if is_moving(state, key)]
    if found:
        named = ", ".join([*found[:3], *(["…"] if found[3:] else [])])
        raise ReassignmentInProgress(
            f"{counted(len(found), 'partition')} {'is' if len(found) == 1 else 'are'} being moved ({named}): wait until "
            "`pylog reassign list` is empty, or give --additional, which gives partitions that move another target"
        )


def _check_there(state: State, key: TopicKey) -> None:
    topic = state.topics.get(key[0])
    if topic is None or topic.deleted:
        raise UnknownTopicOrPartition(f"topic id {key[0]} does not exist (any more)")
    if key not in state.partitions:
        raise UnknownTopicOrPartition(f"topic {topic.name!r} has no partition {key[1]}, it has {topic.partitions}")


def _former(state: State, key: TopicKey, version: int) -> tuple[int, ...]:
    """The replicas to which a cancellation returns."""
    if is_moving(state, key) and not goes_back(state, key):
        return group_at(state, state.reassignments[key].origin).replicas
    row = state.reassignments.get(key)
    if row is not None and version and row.version > version:
        return group_at(state, group_number(state, key)).replicas  # the first attempt of this command was applied
    raise NoReassignmentInProgress(
        f"topic {state.topics[key[0]].name!r}, partition {key[1]}: nothing to cancel: it is not moving to other replicas"
    )
