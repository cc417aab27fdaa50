"""The coordinator's side of the classic group protocol, as a pure machine over one group.

`step` takes a request, `tick` handles expired timers.  Both return the group's new state, the answers that are due
(also to earlier requests: joins and syncs wait until their phase is over) and the records to make durable.  The shell

- keeps the groups by id, and calls `next_deadline` to know when to tick;
- gives each request a unique correlation id, and an id for the member that it may create;
- writes `records` in the order of their tickets, sends `replies` immediately, and steps the group with `Journaled` for
  each record when the journal has answered.  That step returns the answers that must wait until the record is durable;
- after a restart passes each group of the state to `group.restore`: its roster, or `Roster(generation)` if it has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace
from typing_extensions import assert_never

from spark_log.groups.group import ConsumerGroupState, Group, GroupConfig, ReplaceWrite, Reply, StepOutcome, SyncWrite
from spark_log.groups.join import join, replaced
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    Journaled,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    MemberLeft,
    OffsetCommitRequest,
    OffsetCommitResponse,
    Request,
    Response,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_log.groups.rebalance import (
    Step,
    give_assignments,
    join_phase_over,
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete,
    remove_member,
    sync_phase_over,
    synced_response,
    validate,
)
from spark_log.text import is_name

DEFAULTS = GroupConfig()

_TRANSLATED = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS: Code.COORDINATOR_NOT_AVAILABLE,
    Code.REQUEST_TIMED_OUT: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER: Code.NOT_COORDINATOR,
    Code.KAFKA_STORAGE_ERROR: Code.NOT_COORDINATOR,
    Code.MESSAGE_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    Code.RECORD_LIST_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    Code.INVALID_FETCH_SIZE: Code.UNKNOWN_SERVER_ERROR,
}
"""Errors that members get when the journal fails."""


def step(
    group: Group | None,
    request: Request,
    now_ms: int,
    *,
    correlation_id: int = 0,
    config: GroupConfig = DEFAULTS,
    generation: int = 0,
) -> StepOutcome:
    """Apply `request` to `group`.

    group:       None if it does not exist; its first member, or a commit without a member, creates it.
    generation:  the new group starts here, so its first generation is the next: not below any that a deleted group of
                 the same id had, so that its members stay fenced.
    """
    if isinstance(request, JoinGroupRequest):
        error = _check_join(group, request, config)
        if error is not Code.NONE:
            return StepOutcome(
                group, (Reply(correlation_id, JoinGroupResponse(error=error, member_id=request.member_id)),)
            )
    elif group is None:
        unknown = _unknown_group(request)
        if unknown is not None:
            return StepOutcome(None, (Reply(correlation_id, unknown),))
        if isinstance(request, Journaled):
            return StepOutcome(None)
    group = group or Group(request.group_id, generation=generation, state_ms=now_ms)
    at = Step(group.copy(), now_ms, config, correlation_id)
    match request:
        case JoinGroupRequest():
            join(at, request)
        case SyncGroupRequest():
            _sync(at, request)
        case HeartbeatRequest():
            _heartbeat(at, request)
        case LeaveGroupRequest():
            _leave(at, request)
        case OffsetCommitRequest():
            at.answer(OffsetCommitResponse(error=_offset_commit(at, request)))
        case Journaled():
            _journaled(at, request)
        case _ as never:
            assert_never(never)
    return at.outcome()


def _check_join(group: Group | None, request: JoinGroupRequest, config: GroupConfig) -> Code:
    if not is_name(request.group_id):
        return Code.INVALID_GROUP_ID
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        return Code.INVALID_SESSION_TIMEOUT
    return Code.UNKNOWN_MEMBER_ID if group is None and request.member_id else Code.NONE


def _unknown_group(request: Request) -> Response | None:
    """The answer if the group does not exist; None if there is none, or the group is created."""
    match request:
        case SyncGroupRequest():
            return SyncGroupResponse(error=Code.UNKNOWN_MEMBER_ID)
        case HeartbeatRequest():
            return HeartbeatResponse(error=Code.UNKNOWN_MEMBER_ID)
        case LeaveGroupRequest():
            return LeaveGroupResponse(
                members=tuple(
                    MemberLeft(leaving.member_id, leaving.group_instance_id, Code.UNKNOWN_MEMBER_ID)
                    for leaving in request.members
                )
            )
        case OffsetCommitRequest():
            if request.generation_id < 0:
                return None
            known = request.knows_group_id_not_found
            return OffsetCommitResponse(error=Code.GROUP_ID_NOT_FOUND if known else Code.ILLEGAL_GENERATION)
        case _:
            return None


# ----------------------------------------------------------------------------------------------------------------- sync


def _sync(at: Step, request: SyncGroupRequest) -> None:
    group = at.group
    error = _check_sync(group, request)
    if error is not Code.NONE:
        at.answer(SyncGroupResponse(error=error))
        return
    member = replace(group.members[request.member_id], owes_sync=False)
    if group.state is ConsumerGroupState.STABLE:
        at.touch(member)
        at.answer(synced_response(group, member.assignment))
        _all_synced(group)
        return
    if member.sync is not None:
        at.answer_waiting(member.sync, SyncGroupResponse(error=Code.REBALANCE_IN_PROGRESS))  # sent twice: see _park
    group.members[member.member_id] = replace(member, sync=at.correlation_id)
    _all_synced(group)
    if group.leader == member.member_id:
        assignments = {name: request.assignments.get(name, b"") for name in group.members}
        at.journal(group.roster(assignments), SyncWrite(group.generation, assignments))


def _check_generation(group: Group, request: SyncGroupRequest | HeartbeatRequest) -> Code:
    """Whether a member of the current generation sent a request."""
    if group.state is ConsumerGroupState.DEAD:
        return Code.COORDINATOR_NOT_AVAILABLE
    error = validate(group, request.member_id, request.group_instance_id)
    if error is not Code.NONE:
        return error
    return Code.NONE if request.generation_id == group.generation else Code.ILLEGAL_GENERATION


def _check_sync(group: Group, request: SyncGroupRequest) -> Code:
    error = _check_generation(group, request)
    if error is not Code.NONE:
        return error
    if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (None, group.protocol):
        return Code.INCONSISTENT_GROUP_PROTOCOL
    return Code.REBALANCE_IN_PROGRESS if group.state is ConsumerGroupState.PREPARING_REBALANCE else Code.NONE


def _all_synced(group: Group) -> None:
    """Stop the sync timer when all members have requested their assignment."""
    if not group.members.unsynced:
        group.sync_deadline_ms = None


def _journaled(at: Step, request: Journaled) -> None:
    write = at.group.writes.pop(request.ticket, None)
    error = _TRANSLATED.get(request.error, request.error)
    match write:
        case SyncWrite():
            _assigned(at, write, error)
        case ReplaceWrite():
            replaced(at, write, error)
        case None:
            pass
        case _ as never:
            assert_never(never)


def _assigned(at: Step, write: SyncWrite, error: Code) -> None:
    """The assignment is durable, or failed and the members join again; ignored if another rebalance has begun."""
    group = at.group
    if group.state is not ConsumerGroupState.COMPLETING_REBALANCE or group.generation != write.generation:
        return
    if error is not Code.NONE:
        give_assignments(at, {}, error)
        prepare_rebalance(at)
        return
    at.enter(ConsumerGroupState.STABLE)
    give_assignments(at, write.assignments, Code.NONE)


# -------------------------------------------------------------------------------------------------- heartbeat and leave


def _heartbeat(at: Step, request: HeartbeatRequest) -> None:
    error = heartbeat_error(at.group, request)
    if error in (Code.NONE, Code.REBALANCE_IN_PROGRESS):
        at.touch(at.group.members[request.member_id])
    at.answer(HeartbeatResponse(error=error))


def heartbeat_error(group: Group | None, request: HeartbeatRequest) -> Code:
    """The error in the reply to a heartbeat."""
    if group is None:
        return Code.UNKNOWN_MEMBER_ID
    error = _check_generation(group, request)
    if error is not Code.NONE:
        return error
    return Code.REBALANCE_IN_PROGRESS if group.state is ConsumerGroupState.PREPARING_REBALANCE else Code.NONE


def _leave(at: Step, request: LeaveGroupRequest) -> None:
    if at.group.state is ConsumerGroupState.DEAD:
        at.answer(LeaveGroupResponse(error=Code.COORDINATOR_NOT_AVAILABLE))
        return
    left = tuple(
        MemberLeft(leaving.member_id, leaving.group_instance_id, _leave_one(at, leaving)) for leaving in request.members
    )
    at.answer(LeaveGroupResponse(members=left))
    if any(member.error is Code.NONE for member in left) and at.group.state is not ConsumerGroupState.EMPTY:
        rebalance_or_complete(at)


def _leave_one(at: Step, leaving: LeavingMember) -> Code:
    group, member_id = at.group, leaving.member_id
    if not member_id:
        member_id = group.static_ids.get(leaving.group_instance_id or "", "")
    elif member_id in group.pending:
        at.forget_pending(member_id)
        return Code.NONE
    else:
        error = validate(group, member_id, leaving.group_instance_id)
        if error is not Code.NONE:
            return error
    member = group.members.get(member_id)
    if member is None:
        return Code.UNKNOWN_MEMBER_ID
    remove_member(at, member)
    return Code.NONE


def _offset_commit(at: Step, request: OffsetCommitRequest) -> Code:
    group = at.group
    if group.state is ConsumerGroupState.DEAD:
        return Code.COORDINATOR_NOT_AVAILABLE
    if request.generation_id < 0 and group.state is ConsumerGroupState.EMPTY:
        return Code.NONE
    if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
        return Code.NONE if request.transactional else Code.UNKNOWN_MEMBER_ID
    error = validate(group, request.member_id, request.group_instance_id)
    if error is not Code.NONE:
        return error
    if request.generation_id != group.generation:
        return Code.ILLEGAL_GENERATION
    if group.state is ConsumerGroupState.COMPLETING_REBALANCE and not request.transactional:
        return Code.REBALANCE_IN_PROGRESS
    if group.state in (ConsumerGroupState.STABLE, ConsumerGroupState.PREPARING_REBALANCE):
        at.touch(group.members[request.member_id])
    return Code.NONE


# --------------------------------------------------------------------------------------------------------------- timers


def next_deadline(group: Group) -> int | None:
    """When to call `tick`, at the latest; None: no timer runs.  That tick may have nothing to do."""
    return group.wake_ms


def tick(group: Group, now_ms: int, *, config: GroupConfig = DEFAULTS) -> StepOutcome:
    """Handle all timers that have expired at `now_ms`, the earliest first."""
    if group.wake_ms is None or group.wake_ms > now_ms:
        return StepOutcome(group)
    at = Step(group.copy(), now_ms, config)
    while due := sorted(timer for timer in _timers(at.group) if timer.at_ms <= now_ms):
        for timer in due:
            _run_out(at, timer)
    at.group.wake_ms = min((timer.at_ms for timer in _timers(at.group)), default=None)
    return at.outcome()


class _Timer(NamedTuple):
    at_ms: int
    kind: int
    """`_PENDING` … `_SYNC_PHASE`: of simultaneous timers, the lower one is first."""
    member_id: str = ""


_PENDING, _SESSION, _JOIN_PHASE, _SYNC_PHASE = range(4)


def _timers(group: Group) -> Iterator[_Timer]:
    for member_id, at_ms in group.pending.items():
        yield _Timer(at_ms, _PENDING, member_id)
    for member_id, member in group.members.items():
        expires_ms = member.expires_ms
        if expires_ms is not None:
            yield _Timer(expires_ms, _SESSION, member_id)
    if group.join_deadline_ms is not None:
        yield _Timer(group.join_deadline_ms, _JOIN_PHASE)
    if group.sync_deadline_ms is not None:
        yield _Timer(group.sync_deadline_ms, _SYNC_PHASE)


def _run_out(at: Step, timer: _Timer) -> None:
    """Handle a timer, unless an earlier one has stopped it."""
    group, at_ms = at.group, timer.at_ms
    if timer.kind == _PENDING and group.pending.get(timer.member_id) == at_ms:
        at.forget_pending(timer.member_id)
        maybe_complete_join(at)
    elif timer.kind == _SESSION:
        member = group.members.get(timer.member_id)
        if member is not None and member.expires_ms == at_ms:
            remove_member(at, member)
            rebalance_or_complete(at)
    elif timer.kind == _JOIN_PHASE and group.join_deadline_ms == at_ms:
        join_phase_over(at)
    elif timer.kind == _SYNC_PHASE and group.sync_deadline_ms == at_ms:
        sync_phase_over(at)
