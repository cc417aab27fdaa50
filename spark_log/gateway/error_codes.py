"""Kafka's error codes, and which one a client gets for an error of a read or of a write."""

from __future__ import annotations

from spark_log.errors import (
    AccessDenied,
    AuthorizationFailed,
    CommitUnknown,
    CorruptObject,
    InvalidRecord,
    InvalidTimestamp,
    LeaderNotAvailable,
    MessageTooLarge,
    NotEnoughReplicas,
    RequestTimedOut,
    SparkLogError,
    UnknownTopicOrPartition,
)
from spark_log.roots.replica_puts import NoReplica

MESSAGE_CHARS = 1000
"""The longest message beside a code: a client names topics of any length."""
UNKNOWN_SERVER_ERROR = -1
NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
REQUEST_TIMED_OUT = 7
MESSAGE_TOO_LARGE = 10
OFFSET_METADATA_TOO_LARGE = 12
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
INVALID_TOPIC = 17
NOT_ENOUGH_REPLICAS = 19
INVALID_REQUIRED_ACKS = 21
ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
INVALID_TIMESTAMP = 32
UNSUPPORTED_VERSION = 35
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
KAFKA_STORAGE_ERROR = 56
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
FETCH_SESSION_ID_NOT_FOUND = 70
TOPIC_DELETION_DISABLED = 73
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
UNSUPPORTED_COMPRESSION_TYPE = 76
MEMBER_ID_REQUIRED = 79
GROUP_MAX_SIZE_REACHED = 81
FENCED_INSTANCE_ID = 82
GROUP_SUBSCRIBED_TO_TOPIC = 86
INVALID_RECORD = 87
UNKNOWN_TOPIC_ID = 100


def code_of(error: SparkLogError) -> int:
    """For a record that cannot be read.  A client retries after KAFKA_STORAGE_ERROR, and stops at CORRUPT_MESSAGE."""
    match error:
        case CorruptObject():
            return CORRUPT_MESSAGE
        case UnknownTopicOrPartition():
            return UNKNOWN_TOPIC_OR_PARTITION
        case _:
            return KAFKA_STORAGE_ERROR


def write_code_of(error: Exception) -> int:
    """For a batch that was not written, or of which that is not known."""
    codes: tuple[tuple[type[Exception], int], ...] = (
        (MessageTooLarge, MESSAGE_TOO_LARGE),
        (InvalidTimestamp, INVALID_TIMESTAMP),
        (InvalidRecord, INVALID_RECORD),
        (UnknownTopicOrPartition, UNKNOWN_TOPIC_OR_PARTITION),
        (NotEnoughReplicas, NOT_ENOUGH_REPLICAS),
        (LeaderNotAvailable, NOT_ENOUGH_REPLICAS),  # clients see one leader, the gateway, and it is there
        (NoReplica, NOT_ENOUGH_REPLICAS),
        (CommitUnknown, REQUEST_TIMED_OUT),
        (RequestTimedOut, REQUEST_TIMED_OUT),
        (AccessDenied, TOPIC_AUTHORIZATION_FAILED),
        (AuthorizationFailed, TOPIC_AUTHORIZATION_FAILED),
        (SparkLogError, KAFKA_STORAGE_ERROR),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), UNKNOWN_SERVER_ERROR)
