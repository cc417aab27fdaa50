"""The answers to members of groups: join, sync, heartbeat and leave."""

from __future__ import annotations

import logging

from spark_log.errors import GroupInUse, SparkLogError
from spark_log.gateway.api import FromClient
from spark_log.gateway.codec import MalformedFrame
from spark_log.gateway.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    INCONSISTENT_GROUP_PROTOCOL,
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
)
from spark_log.gateway.followed_state import FollowedState
from spark_log.gateway.groups.consumer_protocol import (
    assignment_to_kafka,
    assignment_to_log,
    subscription_to_kafka,
    subscription_to_log,
)
from spark_log.gateway.groups.group_codes import group_code_of, number_of
from spark_log.gateway.groups.group_machine import GroupMachine
from spark_log.gateway.groups.group_messages import (
    MemberHeartbeatRequest,
    MemberHeartbeatResponse,
    MemberJoinResponse,
    MemberOfGroup,
    MembersAssignment,
    MembersLeaveRequest,
    MembersLeaveResponse,
    MemberSyncRequest,
    MemberSyncResponse,
    MemberThatLeft,
)
from spark_log.gateway.groups.served_groups import ServedGroups
from spark_log.groups.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    MemberProtocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_log.groups.subscription import CONSUMER, subscribed_topics

KNOWS_MEMBER_IDS = 4
"""Since this version of JoinGroup, a client joins again with the id that it gets (KIP-394)."""
KNOWS_SKIPPED_ASSIGNMENTS = 9
"""Since this version of JoinGroup, a static leader that restarts learns that it must not assign (KIP-814)."""
NULLABLE_PROTOCOL = 7
logger = logging.getLogger("spark_log")


class MemberRequests:
    """Belongs to one event loop."""

    def __init__(self, machine: GroupMachine, followed: FollowedState, served: ServedGroups) -> None:
        self._machine = machine
        self._followed = followed
        self._served = served

    async def join(self, asked: FromClient, version: int) -> MemberJoinResponse:
        request = asked.request
        try:
            found = await self._join(asked, version)
        except GroupInUse as error:
            logger.warning("a Kafka client at %s cannot join: %s", asked.host, error)
            found = INCONSISTENT_GROUP_PROTOCOL
        except SparkLogError as error:
            logger.warning("group %s: a Kafka client at %s cannot join: %s", request.group_id, asked.host, error)
            found = group_code_of(error)
        if isinstance(found, int):
            found_name = None if version >= NULLABLE_PROTOCOL else ""
            return MemberJoinResponse(error_code=found, member_id=request.member_id, protocol_name=found_name)
        translates = found.protocol_type == CONSUMER
        return MemberJoinResponse(
            error_code=number_of(found.error),
            generation_id=found.generation_id,
            protocol_type=found.protocol_type,
            protocol_name=found.protocol_name if version >= NULLABLE_PROTOCOL else found.protocol_name or "",
            leader=found.leader,
            skip_assignment=found.skip_assignment,
            member_id=found.member_id,
            members=[
                MemberOfGroup(
                    member_id=one.member_id,
                    group_instance_id=one.group_instance_id,
                    metadata=subscription_to_kafka(one.metadata) if translates else one.metadata,
                )
                for one in found.members
            ],
        )

    async def _join(self, asked: FromClient, version: int) -> JoinGroupResponse | int:
        """The machine's answer, or the error code of a join that is not passed on."""
        request = asked.request
        if not self._served.may_change(await self._followed.recent(), request.group_id):
            return GROUP_AUTHORIZATION_FAILED
        offered = {one.name: one.metadata or b"" for one in request.protocols}
        if request.protocol_type == CONSUMER:
            try:
                offered = {name: subscription_to_log(metadata) for name, metadata in offered.items()}
            except MalformedFrame as error:
                logger.warning("group %s: a subscription cannot be read: %s", request.group_id, error)
                return INCONSISTENT_GROUP_PROTOCOL
            if not self._served.serves_topics(subscribed_topics(offered.values())):
                return TOPIC_AUTHORIZATION_FAILED
        timeout_ms = request.session_timeout_ms
        answer = await self._machine.ask(
            JoinGroupRequest(
                group_id=request.group_id,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocols=tuple(MemberProtocol(name, metadata) for name, metadata in offered.items()),
                session_timeout_ms=timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms if version >= 1 else timeout_ms,
                client_id=asked.client_id,
                require_known_member_id=version >= KNOWS_MEMBER_IDS,
                supports_skipping_assignment=version >= KNOWS_SKIPPED_ASSIGNMENTS,
            ),
            asked.host,
        )
        assert isinstance(answer, JoinGroupResponse)
        return answer

    async def sync(self, request: MemberSyncRequest, version: int) -> MemberSyncResponse:
        if self._served.read_only:
            return MemberSyncResponse(error_code=GROUP_AUTHORIZATION_FAILED, assignment=b"")
        # Clients that do not name the type are consumers: those of Connect and of schema registries do.
        is_consumer = request.protocol_type in (None, CONSUMER)
        asked = SyncGroupRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            generation_id=request.generation_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=_assignments(request, translates=is_consumer),
        )
        try:
            answer = await self._machine.ask(asked, "")
        except SparkLogError as error:
            return MemberSyncResponse(error_code=group_code_of(error), assignment=b"")
        assert isinstance(answer, SyncGroupResponse)
        assignment = answer.assignment
        return MemberSyncResponse(
            error_code=number_of(answer.error),
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=assignment_to_kafka(assignment) if answer.protocol_type == CONSUMER else assignment,
        )

    async def heartbeat(self, request: MemberHeartbeatRequest, version: int) -> MemberHeartbeatResponse:
        return MemberHeartbeatResponse(
            error_code=await self.error_of_member(
                request.group_id, request.member_id, request.generation_id, request.group_instance_id
            )
        )

    async def error_of_member(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> int:
        """The error code for a heartbeat of a member."""
        if self._served.read_only:
            return GROUP_AUTHORIZATION_FAILED
        asked = HeartbeatRequest(
            group_id=group_id, member_id=member_id, generation_id=max(generation, -1), group_instance_id=instance_id
        )
        try:
            answer = await self._machine.ask(asked, "")
        except SparkLogError as error:
            return group_code_of(error)
        assert isinstance(answer, HeartbeatResponse)
        return number_of(answer.error)

    async def leave(self, request: MembersLeaveRequest, version: int) -> MembersLeaveResponse:
        named = [LeavingMember(one.member_id, one.group_instance_id) for one in request.members]
        members = tuple(named if version >= 3 else [LeavingMember(request.member_id)])
        if not self._served.may_change(await self._followed.recent(), request.group_id):
            return MembersLeaveResponse(error_code=GROUP_AUTHORIZATION_FAILED)
        try:
            answer = await self._machine.ask(LeaveGroupRequest(group_id=request.group_id, members=members), "")
        except SparkLogError as error:
            return MembersLeaveResponse(error_code=group_code_of(error))
        assert isinstance(answer, LeaveGroupResponse)
        left = [
            MemberThatLeft(
                member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=number_of(one.error)
            )
            for one in answer.members
        ]
        code = number_of(answer.error)
        if version < 3:  # it has one error, which is that of the member
            return MembersLeaveResponse(error_code=code or (left[0].error_code if left else NONE))
        return MembersLeaveResponse(error_code=code, members=left)


def _assignments(request: MemberSyncRequest, *, translates: bool) -> dict[str, bytes]:
    return {one.member_id: _assignment(one, translates=translates) for one in request.assignments}


def _assignment(one: MembersAssignment, *, translates: bool) -> bytes:
    sent = one.assignment or b""
    if not translates or not sent:
        return sent
    try:
        return assignment_to_log(sent)
    except MalformedFrame:
        return sent
