"""Which of Kafka's error codes a client gets for an answer of the group machine, or for an error of a change."""

from __future__ import annotations

from collections.abc import Mapping

from spark_log.errors import (
    AccessDenied,
    AuthorizationFailed,
    FencedInstanceId,
    GroupIdNotFound,
    GroupInUse,
    IllegalGeneration,
    InvalidRequest,
    NotCoordinator,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    SparkLogError,
    UnknownTopicOrPartition,
)
from spark_log.gateway.error_codes import (
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_GROUP_ID,
    INVALID_REQUEST,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NONE,
    NOT_COORDINATOR,
    OFFSET_METADATA_TOO_LARGE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from spark_log.groups.messages import Code

_NUMBERS: Mapping[Code, int] = {
    Code.NONE: NONE,
    Code.COORDINATOR_NOT_AVAILABLE: COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR: NOT_COORDINATOR,
    Code.ILLEGAL_GENERATION: ILLEGAL_GENERATION,
    Code.INCONSISTENT_GROUP_PROTOCOL: INCONSISTENT_GROUP_PROTOCOL,
    Code.INVALID_GROUP_ID: INVALID_GROUP_ID,
    Code.UNKNOWN_MEMBER_ID: UNKNOWN_MEMBER_ID,
    Code.INVALID_SESSION_TIMEOUT: INVALID_SESSION_TIMEOUT,
    Code.REBALANCE_IN_PROGRESS: REBALANCE_IN_PROGRESS,
    Code.GROUP_ID_NOT_FOUND: GROUP_ID_NOT_FOUND,
    Code.GROUP_MAX_SIZE_REACHED: GROUP_MAX_SIZE_REACHED,
    Code.MEMBER_ID_REQUIRED: MEMBER_ID_REQUIRED,
    Code.FENCED_INSTANCE_ID: FENCED_INSTANCE_ID,
}
"""The codes of answers to members."""

_OF_ERRORS: tuple[tuple[type[Exception], int], ...] = (
    (IllegalGeneration, ILLEGAL_GENERATION),
    (RebalanceInProgress, REBALANCE_IN_PROGRESS),
    (FencedInstanceId, FENCED_INSTANCE_ID),
    (GroupInUse, UNKNOWN_MEMBER_ID),
    (GroupIdNotFound, GROUP_ID_NOT_FOUND),
    (OffsetMetadataTooLarge, OFFSET_METADATA_TOO_LARGE),
    (UnknownTopicOrPartition, UNKNOWN_TOPIC_OR_PARTITION),
    (AuthorizationFailed, GROUP_AUTHORIZATION_FAILED),
    (AccessDenied, GROUP_AUTHORIZATION_FAILED),
    (NotCoordinator, NOT_COORDINATOR),
    (InvalidRequest, INVALID_REQUEST),
    (SparkLogError, COORDINATOR_NOT_AVAILABLE),
)


def number_of(code: Code) -> int:
    return _NUMBERS.get(code, UNKNOWN_SERVER_ERROR)


def group_code_of(error: SparkLogError) -> int:
    """Clients find the coordinator again and retry after COORDINATOR_NOT_AVAILABLE: a commit may be repeated."""
    return next(number for kind, number in _OF_ERRORS if isinstance(error, kind))
