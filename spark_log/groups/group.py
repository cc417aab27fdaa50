"""A group in the coordinator, and the part of it that is journaled.

A `Group` is not shared: `state_machine.step` and `state_machine.tick` change a copy and return it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec
from immutables import Map
from msgspec import Struct
from msgspec.structs import replace

from spark_log.bounds import IntOrLess, Known, Long, Opaque, Text
from spark_log.groups.members import Member, Members
from spark_log.groups.messages import JoinedMember, MemberProtocol, Response


class ConsumerGroupState(str, Enum):
    EMPTY = "Empty"
    """No members; may hold offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits for members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All have joined; waits until the leader's assignment is durable."""
    STABLE = "Stable"
    UNKNOWN = "Unknown"
    """The log has its members, but no coordinator says whether they still run: members of a gateway, or of a
    coordinator that was stopped."""
    DEAD = "Dead"
    """Deleted, or moved to another coordinator."""


NEXT_STATES: Mapping[ConsumerGroupState, frozenset[ConsumerGroupState]] = {
    ConsumerGroupState.EMPTY: frozenset([ConsumerGroupState.PREPARING_REBALANCE]),
    ConsumerGroupState.PREPARING_REBALANCE: frozenset(
        [ConsumerGroupState.COMPLETING_REBALANCE, ConsumerGroupState.EMPTY]
    ),
    ConsumerGroupState.COMPLETING_REBALANCE: frozenset(
        [ConsumerGroupState.STABLE, ConsumerGroupState.PREPARING_REBALANCE]
    ),
    ConsumerGroupState.STABLE: frozenset([ConsumerGroupState.PREPARING_REBALANCE]),
    ConsumerGroupState.DEAD: frozenset(),
}
"""The states that may follow each one, as Kafka's valid previous states."""
LIVE_STATES = tuple(state.value for state in ConsumerGroupState if state is not ConsumerGroupState.DEAD)
"""States of existing groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The coordinator's settings, under Kafka's names."""

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2_147_483_647
    metadata_bytes_max: int = 8 << 20
    """Metadata of all members together, which the leader gets in one answer, and the log in one record."""
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait for its first rebalance to end."""


class RosterMember(NamedTuple):
    """The journaled part of a member."""

    member_id: Known
    """The id of the member.  All texts here were checked when it joined."""
    group_instance_id: Known | None
    client_id: Known
    client_host: Known
    session_timeout_ms: IntOrLess
    rebalance_timeout_ms: IntOrLess
    subscription: Opaque
    """Its metadata for the generation's protocol."""
    assignment: Opaque


class Roster(NamedTuple):
    """The journaled part of a generation: enough to restart without a rebalance (Kafka's GroupMetadataValue)."""

    generation: IntOrLess
    protocol_type: Known | None = None
    protocol: Known | None = None
    leader: Known | None = None
    members: tuple[RosterMember, ...] = ()
    state_ms: Long = 0
    """When the group entered its state."""


class JournalRecord(NamedTuple):
    """A record for the shell to make durable, in the order of tickets; it answers each with `Journaled`."""

    ticket: int
    roster: Roster


class Reply(NamedTuple):
    """The answer to a request, possibly an earlier one."""

    correlation_id: int
    response: Response


class StepOutcome(NamedTuple):
    """The result of a step."""

    group: Group | None
    """None: the group does not exist."""
    replies: tuple[Reply, ...] = ()
    """Answers to this request, or to others that waited; empty if this one waits."""
    records: tuple[JournalRecord, ...] = ()


class InitialDelay(NamedTuple):
    """The first rebalance of a group waits for more members, in rounds."""

    delay_ms: int
    """Length of the current round."""
    remaining_ms: int
    new_member: bool = False
    """A member joined in this round."""


class SyncWrite(NamedTuple):
    """The leader's assignment is being journaled."""

    generation: int
    assignments: dict[Text, bytes]


class ReplaceWrite(NamedTuple):
    """A static member's new id is being journaled."""

    generation: int
    before: Member
    after: Member
    leader_before: Text | None
    skips: bool


Write: TypeAlias = SyncWrite | ReplaceWrite | None
"""None: nobody waits for the write."""


class Group(Struct):
    """Only a step changes a group, and only its copy.  A struct, because each heartbeat copies it."""

    group_id: Text
    state: ConsumerGroupState = ConsumerGroupState.EMPTY
    generation: int = 0
    protocol_type: Text | None = None
    protocol: Text | None = None
    leader: Text | None = None
    members: Members = msgspec.field(default_factory=Members)
    static_ids: Map[Text, Text] = Map()
    """Instance id to member id."""
    pending: Map[Text, int] = Map()
    """Ids that were assigned to clients but not yet used to join, and when they expire."""
    initial: InitialDelay | None = None
    """In PreparingRebalance of a group that was empty."""
    join_deadline_ms: int | None = None
    """When the join phase ends without the missing members; for the initial delay, when its round ends."""
    sync_deadline_ms: int | None = None
    """When members that have not synced are removed."""
    state_ms: int = 0
    """When the group entered this state."""
    wake_ms: int | None = None
    """No timer expires earlier; it may be too early, because heartbeats do not move it."""
    writes: dict[int, Write] = msgspec.field(default_factory=dict)
    """By ticket, writes that the journal has not answered yet."""
    next_ticket: int = 0

    def copy(self) -> Group:
        return replace(self, members=self.members.copy(), writes=self.writes.copy())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        return not self.pending and self.members.joining == len(self.members)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )

    def roster(self, assignments: dict[str, bytes] | None = None) -> Roster:
        """The record to journal.  assignments: those of the new generation; None: the current ones."""
        return Roster(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            tuple(
                RosterMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    member.metadata(self.protocol),
                    member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
            self.state_ms,
        )


def restore(group_id: str, roster: Roster, now_ms: int) -> Group:
    """The group of a journaled generation, after the start of a coordinator.

    With members it is Stable and each has a full session; without members it is Empty.
    """
    members = Members(
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            (MemberProtocol(roster.protocol or "", member.subscription),),
            deadline_ms=now_ms + member.session_timeout_ms,
            assignment=member.assignment,
        )
        for member in roster.members
    )
    return Group(
        group_id,
        ConsumerGroupState.STABLE if members else ConsumerGroupState.EMPTY,
        roster.generation,
        roster.protocol_type,
        roster.protocol,
        roster.leader,
        members,
        Map({m.group_instance_id: m.member_id for m in members.values() if m.group_instance_id is not None}),
        state_ms=roster.state_ms,
        wake_ms=min((m.deadline_ms for m in members.values()), default=None),
    )
