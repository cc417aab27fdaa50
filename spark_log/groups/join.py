"""JoinGroup: who may join, and whether that starts a rebalance (kafka: GroupMetadataManager.classicGroupJoin)."""

from __future__ import annotations

from msgspec.structs import replace

from spark_log.groups.group import ConsumerGroupState, ReplaceWrite
from spark_log.groups.members import Member, bytes_of
from spark_log.groups.messages import Code, JoinGroupRequest, JoinGroupResponse
from spark_log.groups.rebalance import (
    Step,
    add_member,
    answer_parked,
    joined_response,
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete,
    select_protocol,
    validate,
)

_NO_MEMBERS = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)


def join(step: Step, request: JoinGroupRequest) -> None:
    """A JoinGroup for an existing group."""
    group = step.group
    if not (_has_room(step, request.member_id) and _has_bytes(step, request)):
        _forget(step, request.member_id)
        step.answer(JoinGroupResponse(error=Code.GROUP_MAX_SIZE_REACHED))
    elif group.state is ConsumerGroupState.DEAD:
        _refuse(step, request, Code.COORDINATOR_NOT_AVAILABLE)
    elif not _supports(step, request):
        _refuse(step, request, Code.INCONSISTENT_GROUP_PROTOCOL)
    elif not request.member_id:
        _join_new(step, request)
    elif request.member_id in group.pending:
        if request.group_instance_id is not None:
            _refuse(step, request, Code.UNKNOWN_SERVER_ERROR)  # a static member is never given an id in advance
        else:
            _add(step, request, request.member_id)
    else:
        error = validate(group, request.member_id, request.group_instance_id)
        if error is Code.NONE and group.state in _NO_MEMBERS:
            error = Code.UNKNOWN_MEMBER_ID
        if error is not Code.NONE:
            _refuse(step, request, error)
        else:
            _rejoin(step, request, group.members[request.member_id])


def _refuse(step: Step, request: JoinGroupRequest, error: Code) -> None:
    step.answer(JoinGroupResponse(error=error, member_id=request.member_id))


def _has_room(step: Step, member_id: str) -> bool:
    """Checks the group's maximum size: during a join phase waiting members count, otherwise all."""
    group, limit = step.group, step.config.max_size
    member = group.members.get(member_id)
    match group.state:
        case ConsumerGroupState.EMPTY | ConsumerGroupState.DEAD:
            return True
        case ConsumerGroupState.PREPARING_REBALANCE:
            return (member is not None and member.join is not None) or group.members.joining < limit
        case _:
            return member is not None or len(group.members) < limit


def _has_bytes(step: Step, request: JoinGroupRequest) -> bool:
    """Whether the metadata of all members stays below its limit.  A static member replaces itself."""
    members = step.group.members
    member_id = request.member_id or step.group.static_ids.get(request.group_instance_id or "", "")
    replaced = bytes_of(members[member_id].protocols) if member_id in members else 0
    return members.metadata_bytes - replaced + bytes_of(request.protocols) <= step.config.metadata_bytes_max


def _forget(step: Step, member_id: str) -> None:
    """Remove a member without room in the new generation, or an id that was assigned to a client."""
    group = step.group
    step.forget_pending(member_id)
    member = group.members.get(member_id)
    if member is not None:
        del group.members[member_id]
        if member.group_instance_id is not None:
            group.static_ids = group.static_ids.delete(member.group_instance_id)
        if group.leader == member_id:
            group.leader = next(iter(group.members), None)


def _supports(step: Step, request: JoinGroupRequest) -> bool:
    group = step.group
    if group.state is ConsumerGroupState.EMPTY:
        return bool(request.protocol_type and request.protocols)
    return request.protocol_type == group.protocol_type and bool(
        group.members.supporting(offered.name for offered in request.protocols)
    )


def _join_new(step: Step, request: JoinGroupRequest) -> None:
    group = step.group
    if request.group_instance_id is not None and request.group_instance_id in group.static_ids:
        _replace_static(step, request)
    elif request.group_instance_id is not None or not request.require_known_member_id:
        _add(step, request, request.new_member_id)
    else:
        until_ms = step.now_ms + request.session_timeout_ms
        group.pending = group.pending.set(request.new_member_id, until_ms)
        step.wake(until_ms)
        step.answer(JoinGroupResponse(error=Code.MEMBER_ID_REQUIRED, member_id=request.new_member_id))


def _add(step: Step, request: JoinGroupRequest, member_id: str) -> None:
    group = step.group
    if not group.members:
        group.protocol_type = request.protocol_type
    add_member(
        step,
        Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            join=step.correlation_id,
        ),
    )
    if group.initial is not None:
        group.initial = group.initial._replace(new_member=True)
    rebalance_or_complete(step)


def _rejoin(step: Step, request: JoinGroupRequest, member: Member) -> None:
    """A known member joins.  The leader, or a changed subscription, starts a rebalance; others get the last answer."""
    group = step.group
    same = member.protocols == request.protocols
    if group.state is ConsumerGroupState.COMPLETING_REBALANCE and same:
        answered = True
    else:
        answered = group.state is ConsumerGroupState.STABLE and same and group.leader != member.member_id
    if answered:
        step.touch(member)
        step.answer(joined_response(group, member))
    else:
        _park(step, request, member)
        rebalance_or_complete(step)


def _park(step: Step, request: JoinGroupRequest, member: Member) -> Member:
    """Store the member's current metadata, and let it wait for the end of the join phase."""
    if member.join is not None:
        # The member has sent a second request, so the first one is answered to free its connection.
        step.answer_waiting(
            member.join, JoinGroupResponse(error=Code.REBALANCE_IN_PROGRESS, member_id=member.member_id)
        )
    parked = replace(
        member,
        protocols=request.protocols,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        join=step.correlation_id,
    )
    step.group.members[member.member_id] = parked
    return parked


def _replace_static(step: Step, request: JoinGroupRequest) -> None:
    """A static member has restarted: it keeps its place under a new id; requests under the old id are fenced."""
    group, instance_id = step.group, request.group_instance_id
    assert instance_id is not None
    before = group.members[group.static_ids[instance_id]]
    del group.members[before.member_id]
    answer_parked(step, before, Code.FENCED_INSTANCE_ID)
    leader_before = group.leader
    if group.leader == before.member_id:
        group.leader = request.new_member_id
    group.static_ids = group.static_ids.set(instance_id, request.new_member_id)
    quiet = replace(before, member_id=request.new_member_id, join=None, sync=None, is_new=False)
    after = _park(step, request, quiet)
    step.touch(after)
    if group.state is ConsumerGroupState.STABLE and select_protocol(group) == group.protocol:
        before = replace(before, join=None, sync=None)
        skips = request.supports_skipping_assignment
        write = ReplaceWrite(group.generation, before, group.members[after.member_id], leader_before, skips)
        step.journal(group.roster(), write)
    elif group.state is ConsumerGroupState.PREPARING_REBALANCE:
        maybe_complete_join(step)
    else:
        prepare_rebalance(step)


def replaced(step: Step, write: ReplaceWrite, error: Code) -> None:
    """The journal has answered for a static member's new id.  If it failed, the old id is valid again."""
    group, after = step.group, write.after
    member = group.members.get(after.member_id)
    current = group.state is ConsumerGroupState.STABLE and group.generation == write.generation
    if not current or member is None or member.join != after.join or member.join is None:
        return  # a rebalance has begun meanwhile, and the member waits for its end
    if error is not Code.NONE:
        _roll_back(step, write, error)
        return
    joined = replace(member, join=None)
    step.touch(joined)
    response = joined_response(group, joined, skip_assignment=write.skips and group.leader == joined.member_id)
    if not write.skips:
        # An old client would assign again if it saw itself as the leader, so it gets the former leader's id.
        response = replace_leader(response, write.leader_before or "")
    step.answer_waiting(member.join, response)


def replace_leader(response: JoinGroupResponse, leader: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        member_id=response.member_id,
        generation_id=response.generation_id,
        protocol_type=response.protocol_type,
        protocol_name=response.protocol_name,
        leader=leader,
    )


def _roll_back(step: Step, write: ReplaceWrite, error: Code) -> None:
    group, before, after = step.group, write.before, write.after
    assert before.group_instance_id is not None and after.join is not None
    del group.members[after.member_id]
    group.static_ids = group.static_ids.set(before.group_instance_id, before.member_id)
    if group.leader == after.member_id:
        group.leader = before.member_id
    step.touch(before)
    step.answer_waiting(after.join, JoinGroupResponse(error=error, generation_id=group.generation))
