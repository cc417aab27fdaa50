"""The answers to requests that find the coordinator, and that list, describe and delete groups."""

from __future__ import annotations

from collections.abc import Callable

from spark_log.client.admin.group_listing import GroupDescription, describe_group
from spark_log.errors import GroupInUse, SparkLogError
from spark_log.gateway.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    INVALID_REQUEST,
    NON_EMPTY_GROUP,
    NONE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from spark_log.gateway.followed_state import FollowedState
from spark_log.gateway.groups.consumer_protocol import kafka_assignment
from spark_log.gateway.groups.group_codes import group_code_of
from spark_log.gateway.groups.group_machine import GroupMachine
from spark_log.gateway.groups.group_messages import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from spark_log.gateway.groups.served_groups import ServedGroups
from spark_log.gateway.topics import NODE
from spark_log.groups.group import ConsumerGroupState
from spark_log.groups.subscription import CONSUMER
from spark_log.metadata.groups.group_commands import DeleteOffsets
from spark_log.metadata.state import GroupState, State
from spark_log.rpc.messages import GroupView

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""
NAMES_ERRORS = 6
"""The version of DescribeGroups that has an error for a group that does not exist."""
CLASSIC = "classic"
"""The type of all groups here."""


class GroupAdmin:
    """Belongs to one event loop."""

    def __init__(
        self,
        machine: GroupMachine,
        followed: FollowedState,
        served: ServedGroups,
        advertised: Callable[[], tuple[str, int]],
    ) -> None:
        """
        advertised:  host and port of this gateway, for its clients.
        """
        self._machine = machine
        self._followed = followed
        self._served = served
        self._advertised = advertised

    async def find_coordinator(self, request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
        """This gateway is the coordinator of all groups."""
        keys = request.coordinator_keys if version >= 4 else [request.key]
        found = [self._coordinator(key, request.key_type) for key in keys]
        if version >= 4:
            return FindCoordinatorResponse(coordinators=found)
        (one,) = found
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator(self, key: str, kind: int) -> FoundCoordinator:
        if kind == TRANSACTION:
            reason, code = "this gateway serves no transactions", TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return FoundCoordinator(key=key, error_code=code, error_message=reason)
        if kind != GROUP:
            return FoundCoordinator(key=key, error_code=INVALID_REQUEST, error_message="there are no share groups")
        host, port = self._advertised()
        return FoundCoordinator(key=key, node_id=NODE, host=host, port=port)

    async def list_groups(self, request: ListGroupsRequest, version: int) -> ListGroupsResponse:
        state, views = await self._followed.newest(), await self._machine.views()
        states = {name.casefold() for name in request.states_filter}
        types = {name.casefold() for name in request.types_filter}
        found = [
            (name, describe_group(state, name, views.get(name)).state)
            for name in sorted({*state.groups, *views})
            if self._served.serves(state, name, views.get(name))
        ]
        return ListGroupsResponse(
            groups=[
                ListedGroup(
                    group_id=name,
                    protocol_type=_protocol_type(state, name, views.get(name)),
                    group_state=is_now,
                    group_type=CLASSIC,
                )
                for name, is_now in found
                if (not states or is_now.casefold() in states) and (not types or CLASSIC in types)
            ]
        )

    async def describe_groups(self, request: DescribeGroupsRequest, version: int) -> DescribeGroupsResponse:
        state, views = await self._followed.newest(), await self._machine.views()
        return DescribeGroupsResponse(
            groups=[self._described(state, name, views.get(name), version) for name in dict.fromkeys(request.groups)]
        )

    def _described(self, state: State, name: str, view: GroupView | None, version: int) -> DescribedGroup:
        if not self._served.serves(state, name, view):
            return DescribedGroup(error_code=GROUP_AUTHORIZATION_FAILED, group_id=name)
        found = describe_group(state, name, view)
        if found.state == ConsumerGroupState.DEAD.value:
            code = GROUP_ID_NOT_FOUND if version >= NAMES_ERRORS else NONE
            why = f"group {name} does not exist" if code else None
            return DescribedGroup(error_code=code, error_message=why, group_id=name, group_state=found.state)
        return DescribedGroup(
            group_id=name,
            group_state=found.state,
            protocol_type=_protocol_type(state, name, view),
            protocol_data=found.protocol,
            members=_members(found),
        )

    async def delete_groups(self, request: DeleteGroupsRequest, version: int) -> DeleteGroupsResponse:
        state = await self._followed.newest()
        names = dict.fromkeys(request.groups_names)
        return DeleteGroupsResponse(
            results=[DeletedGroup(group_id=name, error_code=await self._delete(state, name)) for name in names]
        )

    async def _delete(self, state: State, name: str) -> int:
        if not self._served.may_change(state, name):
            return GROUP_AUTHORIZATION_FAILED
        if name in await self._machine.views():
            return NON_EMPTY_GROUP
        if name not in state.groups:
            return GROUP_ID_NOT_FOUND
        try:
            await self._machine.change(DeleteOffsets(group=name, known=True))
        except GroupInUse:
            return NON_EMPTY_GROUP
        except SparkLogError as error:
            return group_code_of(error)
        return NONE


def _protocol_type(state: State, name: str, view: GroupView | None) -> str:
    roster = state.groups.get(name, GroupState()).roster if view is None else view.roster
    return CONSUMER if roster is None or roster.protocol_type is None else roster.protocol_type


def _members(found: GroupDescription) -> list[DescribedMember]:
    """A consumer that does not share its group has no assignment."""
    return [
        DescribedMember(
            member_id=one.member_id,
            group_instance_id=one.group_instance_id,
            client_id=one.client_id,
            client_host=f"/{one.host}",
            member_metadata=b"",
            member_assignment=b"" if one.assignment is None else kafka_assignment(one.assignment),
        )
        for one in found.members
    ]
