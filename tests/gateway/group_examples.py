"""A request and a response of each kind that is about groups, and kafka-python's classes of them."""

from __future__ import annotations

from typing import Any

import kafka.protocol.admin.groups as kafka_groups
import kafka.protocol.consumer.group as kafka_members
import kafka.protocol.metadata.find_coordinator as kafka_coordinators

import spark_log.gateway.groups.group_messages as g
import spark_log.gateway.groups.position_messages as p
from spark_log.gateway.api import (
    COMMIT_POSITIONS,
    DELETE_GROUPS,
    DELETE_POSITIONS,
    DESCRIBE_GROUPS,
    FETCH_POSITIONS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    SYNC_GROUP,
    Api,
)

_RESULTS = [p.PartitionResults(name="t", partitions=[p.PartitionResult(partition_index=1, error_code=3)])]
_ASKED = [p.PositionsAsked(name="t", partition_indexes=(1, 2))]
_FOUND = [
    p.CommittedPositions(
        name="t", partitions=[p.CommittedPosition(partition_index=1, committed_offset=1 << 40, metadata="m")]
    )
]

GROUP_EXAMPLES: dict[Api, tuple[Any, Any]] = {
    FIND_COORDINATOR: (
        g.FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=("g", "h")),
        g.FindCoordinatorResponse(
            node_id=0, host="h", port=9092, coordinators=[g.FoundCoordinator(key="g", host="h", port=9092)]
        ),
    ),
    JOIN_GROUP: (
        g.MemberJoinRequest(
            group_id="g",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=300_000,
            member_id="m",
            group_instance_id="i",
            protocol_type="consumer",
            protocols=[g.OfferedProtocol(name="range", metadata=b"\0\1")],
            reason="r",
        ),
        g.MemberJoinResponse(
            generation_id=3,
            protocol_type="consumer",
            protocol_name="range",
            leader="m",
            member_id="m",
            skip_assignment=True,
            members=[g.MemberOfGroup(member_id="m", group_instance_id="i", metadata=b"\0\1")],
        ),
    ),
    SYNC_GROUP: (
        g.MemberSyncRequest(
            group_id="g",
            generation_id=3,
            member_id="m",
            protocol_type="consumer",
            protocol_name="range",
            assignments=[g.MembersAssignment(member_id="m", assignment=b"a")],
        ),
        g.MemberSyncResponse(protocol_type="consumer", protocol_name="range", assignment=b"a"),
    ),
    HEARTBEAT: (
        g.MemberHeartbeatRequest(group_id="g", generation_id=3, member_id="m", group_instance_id="i"),
        g.MemberHeartbeatResponse(error_code=27),
    ),
    LEAVE_GROUP: (
        g.MembersLeaveRequest(group_id="g", member_id="m", members=[g.MemberToLeave(member_id="m", reason="r")]),
        g.MembersLeaveResponse(members=[g.MemberThatLeft(member_id="m", group_instance_id="i", error_code=25)]),
    ),
    COMMIT_POSITIONS: (
        p.CommitPositionsRequest(
            group_id="g",
            generation_id=3,
            member_id="m",
            topics=[
                p.PositionsOfTopic(
                    name="t",
                    partitions=[
                        p.PositionToCommit(partition_index=1, committed_offset=1 << 40, committed_metadata="m")
                    ],
                )
            ],
        ),
        p.CommitPositionsResponse(topics=_RESULTS),
    ),
    FETCH_POSITIONS: (
        p.FetchPositionsRequest(
            group_id="g",
            topics=_ASKED,
            groups=[p.GroupPositionsAsked(group_id="g", topics=_ASKED)],
            require_stable=True,
        ),
        p.FetchPositionsResponse(topics=_FOUND, groups=[p.CommittedOfGroup(group_id="g", topics=_FOUND)]),
    ),
    DESCRIBE_GROUPS: (
        g.DescribeGroupsRequest(groups=("g", "h")),
        g.DescribeGroupsResponse(
            groups=[
                g.DescribedGroup(
                    group_id="g",
                    group_state="Stable",
                    members=[g.DescribedMember(member_id="m", member_metadata=b"", member_assignment=b"a")],
                )
            ]
        ),
    ),
    LIST_GROUPS: (
        g.ListGroupsRequest(states_filter=("Stable",), types_filter=("classic",)),
        g.ListGroupsResponse(groups=[g.ListedGroup(group_id="g", protocol_type="consumer", group_state="Stable")]),
    ),
    DELETE_GROUPS: (
        g.DeleteGroupsRequest(groups_names=("g",)),
        g.DeleteGroupsResponse(results=[g.DeletedGroup(group_id="g", error_code=68)]),
    ),
    DELETE_POSITIONS: (
        p.DeletePositionsRequest(
            group_id="g",
            topics=[p.PositionsToDelete(name="t", partitions=[p.PartitionToDelete(partition_index=1)])],
        ),
        p.DeletePositionsResponse(topics=_RESULTS),
    ),
}
GROUP_PEERS: dict[Api, tuple[Any, Any]] = {
    FIND_COORDINATOR: (kafka_coordinators.FindCoordinatorRequest, kafka_coordinators.FindCoordinatorResponse),
    JOIN_GROUP: (kafka_members.JoinGroupRequest, kafka_members.JoinGroupResponse),
    SYNC_GROUP: (kafka_members.SyncGroupRequest, kafka_members.SyncGroupResponse),
    HEARTBEAT: (kafka_members.HeartbeatRequest, kafka_members.HeartbeatResponse),
    LEAVE_GROUP: (kafka_members.LeaveGroupRequest, kafka_members.LeaveGroupResponse),
    COMMIT_POSITIONS: (kafka_members.OffsetCommitRequest, kafka_members.OffsetCommitResponse),
    FETCH_POSITIONS: (kafka_members.OffsetFetchRequest, kafka_members.OffsetFetchResponse),
    DESCRIBE_GROUPS: (kafka_groups.DescribeGroupsRequest, kafka_groups.DescribeGroupsResponse),
    LIST_GROUPS: (kafka_groups.ListGroupsRequest, kafka_groups.ListGroupsResponse),
    DELETE_GROUPS: (kafka_groups.DeleteGroupsRequest, kafka_groups.DeleteGroupsResponse),
    DELETE_POSITIONS: (kafka_members.OffsetDeleteRequest, kafka_members.OffsetDeleteResponse),
}
