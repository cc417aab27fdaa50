"""The requests that a gateway serves: their keys, their versions, and who answers each.

A request that is not served closes the connection, as Kafka does: clients look at ApiVersions first.  ApiVersions
itself is answered whatever its version, so that a newer client can ask again with an older one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from spark_log.gateway.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from spark_log.gateway.codec import LAST, FrameBytes, MalformedFrame, layout
from spark_log.gateway.error_codes import NONE, UNSUPPORTED_VERSION
from spark_log.gateway.groups.group_messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberHeartbeatRequest,
    MemberHeartbeatResponse,
    MemberJoinRequest,
    MemberJoinResponse,
    MembersLeaveRequest,
    MembersLeaveResponse,
    MemberSyncRequest,
    MemberSyncResponse,
)
from spark_log.gateway.groups.position_messages import (
    CommitPositionsRequest,
    CommitPositionsResponse,
    DeletePositionsRequest,
    DeletePositionsResponse,
    FetchPositionsRequest,
    FetchPositionsResponse,
)
from spark_log.gateway.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRecordsRequest,
    FetchRecordsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
    RequestHeader,
)


class Api(NamedTuple):
    """One kind of request."""

    key: int
    first: int
    last: int
    flexible: int
    """The first flexible version."""
    request: type
    response: type


PRODUCE = Api(0, 3, 11, 9, ProduceRequest, ProduceResponse)
FETCH = Api(1, 4, 17, 12, FetchRecordsRequest, FetchRecordsResponse)
LIST_OFFSETS = Api(2, 1, 10, 6, ListOffsetsRequest, ListOffsetsResponse)
METADATA = Api(3, 0, 13, 9, MetadataRequest, MetadataResponse)
API_VERSIONS = Api(18, 0, 4, 3, ApiVersionsRequest, ApiVersionsResponse)
INIT_PRODUCER_ID = Api(22, 0, 5, 2, InitProducerIdRequest, InitProducerIdResponse)
OFFSET_FOR_LEADER_EPOCH = Api(23, 2, 4, 4, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse)
CREATE_TOPICS = Api(19, 2, 7, 5, CreateTopicsRequest, CreateTopicsResponse)
DELETE_TOPICS = Api(20, 1, 6, 4, DeleteTopicsRequest, DeleteTopicsResponse)
DESCRIBE_CONFIGS = Api(32, 1, 4, 4, DescribeConfigsRequest, DescribeConfigsResponse)
CREATE_PARTITIONS = Api(37, 0, 3, 2, CreatePartitionsRequest, CreatePartitionsResponse)
ALTER_CONFIGS = Api(44, 0, 1, 1, AlterConfigsRequest, AlterConfigsResponse)
"""Its name in Kafka is IncrementalAlterConfigs."""
COMMIT_POSITIONS = Api(8, 2, 9, 8, CommitPositionsRequest, CommitPositionsResponse)
FETCH_POSITIONS = Api(9, 1, 9, 6, FetchPositionsRequest, FetchPositionsResponse)
FIND_COORDINATOR = Api(10, 0, 6, 3, FindCoordinatorRequest, FindCoordinatorResponse)
JOIN_GROUP = Api(11, 0, 9, 6, MemberJoinRequest, MemberJoinResponse)
HEARTBEAT = Api(12, 0, 4, 4, MemberHeartbeatRequest, MemberHeartbeatResponse)
LEAVE_GROUP = Api(13, 0, 5, 4, MembersLeaveRequest, MembersLeaveResponse)
SYNC_GROUP = Api(14, 0, 5, 4, MemberSyncRequest, MemberSyncResponse)
DESCRIBE_GROUPS = Api(15, 0, 6, 5, DescribeGroupsRequest, DescribeGroupsResponse)
LIST_GROUPS = Api(16, 0, 5, 3, ListGroupsRequest, ListGroupsResponse)
DELETE_GROUPS = Api(42, 0, 2, 2, DeleteGroupsRequest, DeleteGroupsResponse)
DELETE_POSITIONS = Api(47, 0, 0, LAST, DeletePositionsRequest, DeletePositionsResponse)
READS = FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, OFFSET_FOR_LEADER_EPOCH
WRITES = PRODUCE, INIT_PRODUCER_ID
CHANGES = CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS, CREATE_PARTITIONS, ALTER_CONFIGS
MEMBERS = FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, COMMIT_POSITIONS, FETCH_POSITIONS
GROUPS = DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, DELETE_POSITIONS
APIS = {api.key: api for api in (*READS, *WRITES, *CHANGES, *MEMBERS, *GROUPS)}

Handler = Callable[[Any, int], Awaitable[object]]
"""Answers a request of a version; None: the client waits for no answer."""
_HEADER = layout(RequestHeader, 0, False)


class FromClient(NamedTuple):
    """A request to join a group, and who sent it."""

    request: MemberJoinRequest
    client_id: str
    host: str


class Request(NamedTuple):
    """A decoded frame."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    body: object
    """None: a version of ApiVersions that is not known."""


def parse_request(frame: bytes) -> Request:
    """Raises MalformedFrame, also for a request that is not served."""
    source = FrameBytes(frame)
    header: RequestHeader = _HEADER.read(source)
    version = header.api_version
    api = APIS.get(header.api_key)
    if api is None or (api is not API_VERSIONS and not api.first <= version <= api.last):
        raise MalformedFrame(f"request {header.api_key} of version {version} is not served")
    body = None
    if api.first <= version <= api.last:
        flexible = version >= api.flexible
        if flexible:
            source.skip_tags()
        # Bytes behind it are ignored, as by Kafka: librdkafka sends three behind Metadata.
        body = layout(api.request, version, flexible).read(source)
    return Request(api, version, header.correlation_id, header.client_id, body)


def response_parts(request: Request, body: object) -> list[bytes]:
    """The bytes of a response, with its length in front."""
    version = request.version if request.body is not None else 0
    flexible = version >= request.api.flexible
    parts = [b"", request.correlation_id.to_bytes(4, "big", signed=True)]
    if flexible and request.api is not API_VERSIONS:  # its header has no tags: a client may not know its version yet
        parts.append(b"\0")
    layout(request.api.response, version, flexible).write(body, parts.append)
    parts[0] = sum(map(len, parts)).to_bytes(4, "big")
    return parts


async def answer(request: Request, handlers: Mapping[Api, Handler], host: str) -> list[bytes]:
    """host:  the client's address."""
    if request.api is API_VERSIONS:
        return response_parts(request, api_versions(NONE if request.body is not None else UNSUPPORTED_VERSION))
    body = request.body
    if isinstance(body, MemberJoinRequest):
        body = FromClient(body, request.client_id or "", host)
    response = await handlers[request.api](body, request.version)
    return response_parts(request, response) if response is not None else []


def api_versions(code: int) -> ApiVersionsResponse:
    keys = [ApiVersion(api_key=api.key, min_version=api.first, max_version=api.last) for api in APIS.values()]
    return ApiVersionsResponse(error_code=code, api_keys=keys)
