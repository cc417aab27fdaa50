"""Commands of brokers and replicas."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from spark_log.bounds import Int, Long, Text
from spark_log.metadata import records as r
from spark_log.metadata.command_base import Command, PlannedCommand, topic_names
from spark_log.metadata.decision import Decision, decide_if_changed
from spark_log.metadata.replicas import decide_reassignments as reassignments
from spark_log.metadata.replicas import decide_replicas as replicas
from spark_log.metadata.replicas.decide_copy_retention import decide_drop
from spark_log.metadata.replicas.decide_reassignments import NewReplicas
from spark_log.metadata.replicas.replica_state import FenceCause
from spark_log.metadata.state import State, entries_of


class RegisterBroker(Command, frozen=True, kw_only=True, tag="register_broker"):
    """Register a broker whose root has a new, empty directory."""

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
        record = r.RegisterBrokerRecord(
            broker=self.broker,
            directory=self.directory,
            url=self.url,
            rack=self.rack,
            options=self.options,
            is_async=self.is_async,
            keep_ms=self.keep_ms,
            mount_point=self.mount_point,
        )
        return replicas.decide_register(state, record, replaces=self.replaces, lose_data=self.lose_data)


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
        record = r.AlterBrokerRecord(broker=self.broker, rack=self.rack, drained=self.drained)
        return replicas.decide_alter(state, record)


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
        return replicas.decide_fence_broker(state, self.broker, self.epoch, self.reason, self.cause)


class ReturnBroker(PlannedCommand, frozen=True, kw_only=True, tag="return_broker"):
    """A fenced broker is back.  The reply is False if it was not fenced, or has another epoch."""

    broker: Int
    epoch: Long
    missing: tuple[Text, ...] = ()

    def decide(self, state: State, now_ms: int) -> Decision[bool]:
        return replicas.decide_return(state, self.broker, self.epoch, self.missing)


class RemoveBroker(Command, frozen=True, kw_only=True, tag="remove_broker"):
    """Remove a broker that has no replicas."""

    broker: Int
    directory: Text = ""
    """Its directory.  A retry succeeds if the broker is gone, and a new one with the same id is kept."""
    force: bool = False
    """Even if uploads for it may be committed, which began before its partitions were moved."""

    def __call__(self, state: State, now_ms: int) -> Decision[None]:
        known = state.brokers.get(self.broker)
        if self.directory and (known is None or known.directory != self.directory):
            return Decision((), None)
        return replicas.decide_remove(state, self.broker, force=self.force)


class AddPendingCopies(PlannedCommand, frozen=True, kw_only=True, tag="add_pending_copies"):
    """Record copies of objects of pending commits, by who writes: others are left out."""

    role = "write"
    copies: tuple[r.Copy, ...]
    late: tuple[tuple[Text, Int], ...] = ()
    """(object, broker) of those that could not be copied within `replica.lag.time.max.ms`."""

    def decide(self, state: State, now_ms: int) -> Decision[bool]:
        return replicas.decide_pending_copies(state, self.copies, self.late)

    def topics(self, state: State) -> Sequence[str]:
        """Those of the pending commits that have these objects."""
        names = {copy.object for copy in self.copies} | {name for name, _ in self.late}
        commits = [one for one in state.pending if not names.isdisjoint(one.objects)]
        return topic_names(state, [topic_id for one in commits for topic_id, _ in entries_of(one)])


class DropCopies(PlannedCommand, frozen=True, kw_only=True, tag="drop_copies"):
    """Drop old copies of a broker that keeps only the newest objects, if it is time."""

    broker: Int
    answering: tuple[Int, ...]
    """The brokers whose roots have just answered: only they count as having other copies."""

    def decide(self, state: State, now_ms: int) -> Decision[bool]:
        return decide_drop(state, self.broker, self.answering, now_ms)


class JoinIsr(Command, frozen=True, kw_only=True, tag="join_isr"):
    """Let replicas join the ISR of their group."""

    members: tuple[tuple[Int, Int], ...]
    """(group, broker)."""

    def __call__(self, state: State, now_ms: int) -> Decision[bool]:
        return decide_if_changed(state, r.JoinIsrRecord(members=self.members))


class ElectLeader(Command, frozen=True, kw_only=True, tag="elect_leader"):
    """Make a replica the leader of a group.  The reply is False if it leads already."""

    group: Int
    leader: Int
    unclean: bool = False
    """Even if it is not in the ISR: acknowledged records that no active broker has are lost."""

    def __call__(self, state: State, now_ms: int) -> Decision[bool]:
        return replicas.decide_elect(state, self.group, self.leader, unclean=self.unclean)


class AlterReassignments(Command, frozen=True, kw_only=True, tag="alter_reassignments"):
    """Give partitions other replicas, or cancel that.  The reply is how many have changed."""

    partitions: tuple[NewReplicas, ...]
    keeps_factor: bool = False
    """Reject a list of another length than before."""
    keeps_moves: bool = False
    """Reject another list for a partition that moves."""

    def __call__(self, state: State, now_ms: int) -> Decision[int]:
        return reassignments.decide_reassign(
            state, self.partitions, keeps_factor=self.keeps_factor, keeps_moves=self.keeps_moves
        )

    def topics(self, state: State) -> Sequence[str]:
        return sorted({state.topics[one.topic_id].name for one in self.partitions if one.topic_id in state.topics})


class ResetReplicas(Command, frozen=True, kw_only=True, tag="reset_replicas"):
    """Forget all brokers: the log was recovered from a mirror, which has all objects in one root."""

    def __call__(self, state: State, now_ms: int) -> Decision[bool]:
        return decide_if_changed(state, r.ResetReplicasRecord())
