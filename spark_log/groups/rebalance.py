"""The join and sync phases of a rebalance, from its first cause to the new generation.

A `Step` holds a copy of the group while one request or one timer changes it, and collects answers and records.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from spark_log.groups.group import (
    NEXT_STATES,
    ConsumerGroupState,
    Group,
    GroupConfig,
    InitialDelay,
    JournalRecord,
    Reply,
    Roster,
    StepOutcome,
    Write,
)
from spark_log.groups.members import Member
from spark_log.groups.messages import Code, JoinGroupResponse, Response, SyncGroupResponse


@dataclass(slots=True)
class Step:
    group: Group
    now_ms: int
    config: GroupConfig
    correlation_id: int = -1
    """Correlation id of the request."""
    replies: list[Reply] = field(default_factory=list)
    records: list[JournalRecord] = field(default_factory=list)

    def outcome(self) -> StepOutcome:
        return StepOutcome(self.group, tuple(self.replies), tuple(self.records))

    def answer(self, response: Response) -> None:
        """Answer the request of this step."""
        self.answer_waiting(self.correlation_id, response)

    def answer_waiting(self, correlation_id: int, response: Response) -> None:
        self.replies.append(Reply(correlation_id, response))

    def wake(self, at_ms: int) -> None:
        """Set a timer of the group to `at_ms`."""
        if self.group.wake_ms is None or at_ms < self.group.wake_ms:
            self.group.wake_ms = at_ms

    def touch(self, member: Member, timeout_ms: int | None = None) -> None:
        """Extend the member's session."""
        deadline = self.now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.group.members[member.member_id] = replace(member, deadline_ms=deadline)
        self.wake(deadline)

    def forget_pending(self, member_id: str) -> None:
        """An id that was assigned to a client, if it was, is used or not valid any more."""
        if member_id in self.group.pending:
            self.group.pending = self.group.pending.delete(member_id)

    def enter(self, state: ConsumerGroupState) -> None:
        """Another state of the group.  Raises AssertionError for one that does not follow its state."""
        before = self.group.state
        if state not in NEXT_STATES[before]:
            raise AssertionError(f"group {self.group.group_id!r} cannot go from {before.value} to {state.value}")
        self.group.state = state
        self.group.state_ms = self.now_ms

    def journal(self, roster: Roster, then: Write) -> None:
        """Have `roster` journaled; `then` continues when the journal has answered."""
        ticket = self.group.next_ticket
        self.group.next_ticket += 1
        self.group.writes[ticket] = then
        self.records.append(JournalRecord(ticket, roster))


# --------------------------------------------------------------------------------------------------------- who is in it


def add_member(step: Step, member: Member) -> None:
    """Add a new member; its first rebalance may take longer than its session."""
    group = step.group
    if group.leader is None:
        group.leader = member.member_id
    step.forget_pending(member.member_id)
    if member.group_instance_id is not None:
        group.static_ids = group.static_ids.set(member.group_instance_id, member.member_id)
    step.touch(replace(member, is_new=True), step.config.new_member_join_timeout_ms)


def remove_member(step: Step, member: Member) -> None:
    """Remove a member; waiting requests get UNKNOWN_MEMBER_ID.  Any other member may become leader."""
    group = step.group
    del group.members[member.member_id]
    if member.group_instance_id is not None:
        group.static_ids = group.static_ids.delete(member.group_instance_id)
    answer_parked(step, member, Code.UNKNOWN_MEMBER_ID)
    if group.leader == member.member_id:
        group.leader = next(iter(group.members), None)


def answer_parked(step: Step, member: Member, error: Code) -> None:
    """Reject a member's waiting request; the caller clears the wait."""
    if member.join is not None:
        step.answer_waiting(member.join, JoinGroupResponse(error=error, member_id=member.member_id))
    if member.sync is not None:
        step.answer_waiting(member.sync, SyncGroupResponse(error=error))


def validate(group: Group, member_id: str, group_instance_id: str | None) -> Code:
    """Whether these ids belong to one member."""
    if group_instance_id is not None:
        mapped = group.static_ids.get(group_instance_id)
        if mapped is None:
            return Code.UNKNOWN_MEMBER_ID
        if mapped != member_id:
            return Code.FENCED_INSTANCE_ID
    return Code.NONE if member_id in group.members else Code.UNKNOWN_MEMBER_ID


# ----------------------------------------------------------------------------------------------------------- the phases


def rebalance_or_complete(step: Step) -> None:
    """The members, or their subscriptions, have changed."""
    if step.group.state is ConsumerGroupState.PREPARING_REBALANCE:
        maybe_complete_join(step)
    elif step.group.state is not ConsumerGroupState.DEAD:
        prepare_rebalance(step)


def prepare_rebalance(step: Step) -> None:
    """Have all members join again.  A group that was empty first waits for more members (KIP-134)."""
    group = step.group
    if group.state is ConsumerGroupState.COMPLETING_REBALANCE:
        give_assignments(step, {}, Code.REBALANCE_IN_PROGRESS)
    group.sync_deadline_ms = None
    first = group.state is ConsumerGroupState.EMPTY
    step.enter(ConsumerGroupState.PREPARING_REBALANCE)
    if first:
        delay = step.config.initial_rebalance_delay_ms
        group.initial = InitialDelay(delay, max(group.rebalance_timeout_ms - delay, 0))
        _wait_for_joins(step, delay)
    elif group.all_joined:
        complete_join(step)
    else:
        _wait_for_joins(step, group.rebalance_timeout_ms)


def maybe_complete_join(step: Step) -> None:
    """End the join phase if no member is missing; the initial delay never ends early."""
    group = step.group
    if group.state is ConsumerGroupState.PREPARING_REBALANCE and group.initial is None and group.all_joined:
        complete_join(step)


def join_phase_over(step: Step) -> None:
    """The join phase, or a round of the initial delay, has timed out."""
    group = step.group
    if group.initial is not None and group.initial.new_member and group.initial.remaining_ms:
        delay, remaining, _ = group.initial
        again = min(step.config.initial_rebalance_delay_ms, remaining)
        group.initial = InitialDelay(again, max(remaining - delay, 0))
        _wait_for_joins(step, again)
    else:
        complete_join(step)


def _wait_for_joins(step: Step, timeout_ms: int) -> None:
    step.group.join_deadline_ms = step.now_ms + timeout_ms
    step.wake(step.group.join_deadline_ms)


def complete_join(step: Step) -> None:
    """Begin the next generation with the joined members, and with static members that did not rejoin."""
    group = step.group
    group.join_deadline_ms = None
    for member in list(group.members.values()):
        if member.join is None and member.group_instance_id is None:
            remove_member(step, member)
    if not _elect_leader(group):
        _wait_for_joins(step, group.rebalance_timeout_ms)
        return
    group.initial = None
    group.generation += 1
    if group.members:
        _start_generation(step)
    else:
        group.protocol = None
        step.enter(ConsumerGroupState.EMPTY)
        step.journal(group.roster(), None)


def _elect_leader(group: Group) -> bool:
    """Select a leader among the joined members.  False if the group has members, but none of them joined."""
    leader = group.members.get(group.leader) if group.leader is not None else None
    if leader is None or leader.join is None:
        joined = next((member.member_id for member in group.members.values() if member.join is not None), None)
        if joined is None:
            return not group.members
        group.leader = joined
    return True


def _start_generation(step: Step) -> None:
    group = step.group
    group.protocol = select_protocol(group)
    step.enter(ConsumerGroupState.COMPLETING_REBALANCE)
    for member in list(group.members.values()):
        if member.join is not None:
            step.answer_waiting(member.join, joined_response(group, member))
        step.touch(replace(member, join=None, is_new=False, owes_sync=True, assignment=b""))
    group.sync_deadline_ms = step.now_ms + group.rebalance_timeout_ms
    step.wake(group.sync_deadline_ms)


def select_protocol(group: Group) -> str | None:
    """The protocol that most members prefer, among those that all support; on a tie, the first one."""
    some = next(iter(group.members.values()))
    candidates = frozenset(group.members.supporting(known.name for known in some.protocols))
    votes = Counter(
        next(known.name for known in member.protocols if known.name in candidates)
        for member in group.members.values()
        if candidates
    )
    return votes.most_common(1)[0][0] if votes else None


def joined_response(group: Group, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
    """The response for `member`; the leader's response includes the members."""
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        members=group.joined_members() if group.leader == member.member_id else (),
        skip_assignment=skip_assignment,
    )


def give_assignments(step: Step, assignments: dict[str, bytes], error: Code) -> None:
    """Store each member's assignment, and answer waiting members.  With an error nothing is stored."""
    group = step.group
    for member in list(group.members.values()):
        assignment = assignments.get(member.member_id, b"")
        waiting = member.sync
        kept = replace(member, sync=None, assignment=assignment)
        if waiting is None:
            group.members[member.member_id] = kept
            continue
        step.answer_waiting(
            waiting, synced_response(group, assignment) if error is Code.NONE else SyncGroupResponse(error=error)
        )
        step.touch(kept)


def synced_response(group: Group, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment)


def sync_phase_over(step: Step) -> None:
    """Remove members that joined and never requested their assignment."""
    step.group.sync_deadline_ms = None
    missing = [member for member in step.group.members.values() if member.owes_sync]
    for member in missing:
        remove_member(step, member)
    if missing:
        prepare_rebalance(step)
