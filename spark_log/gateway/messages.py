"""The fields of the served requests and responses, by version.

These are facts of Kafka's protocol, taken from the message schemas of Apache Kafka 4.1 (Apache License 2.0): names,
types and versions.  Tagged fields are left out, as codec.py says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_log.gateway.codec import data, fixed, several, text, uuid

UNKNOWN_OPERATIONS = -(1 << 31)
"""The value for `authorized_operations` that are not computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    api_key: int = fixed("int16")
    api_version: int = fixed("int16")
    correlation_id: int = fixed("int32")
    client_id: str | None = text(nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    client_software_name: str = text(3)
    client_software_version: str = text(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    api_key: int = fixed("int16")
    min_version: int = fixed("int16")
    max_version: int = fixed("int16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    error_code: int = fixed("int16")
    api_keys: Sequence[ApiVersion] = several(ApiVersion)
    throttle_time_ms: int = fixed("int32", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic:
    topic_id: str = uuid(10)
    name: str | None = text(nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    topics: Sequence[MetadataRequestTopic] | None = several(MetadataRequestTopic, nullable=True)
    allow_auto_topic_creation: bool = fixed("bool", 4)
    include_cluster_authorized_operations: bool = fixed("bool", 8, 10)
    include_topic_authorized_operations: bool = fixed("bool", 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBroker:
    node_id: int = fixed("int32")
    host: str = text()
    port: int = fixed("int32")
    rack: str | None = text(1, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPartition:
    error_code: int = fixed("int16")
    partition_index: int = fixed("int32")
    leader_id: int = fixed("int32")
    leader_epoch: int = fixed("int32", 7, default=-1)
    replica_nodes: Sequence[int] = several("int32")
    isr_nodes: Sequence[int] = several("int32")
    offline_replicas: Sequence[int] = several("int32", 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTopic:
    error_code: int = fixed("int16")
    name: str | None = text(nullable=True)
    topic_id: str = uuid(10)
    is_internal: bool = fixed("bool", 1)
    partitions: Sequence[MetadataPartition] = several(MetadataPartition)
    topic_authorized_operations: int = fixed("int32", 8, default=UNKNOWN_OPERATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    throttle_time_ms: int = fixed("int32", 3)
    brokers: Sequence[MetadataBroker] = several(MetadataBroker)
    cluster_id: str | None = text(2, nullable=True)
    controller_id: int = fixed("int32", 1, default=-1)
    topics: Sequence[MetadataTopic] = several(MetadataTopic)
    cluster_authorized_operations: int = fixed("int32", 8, 10, default=UNKNOWN_OPERATIONS)
    error_code: int = fixed("int16", 13)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    partition_index: int = fixed("int32")
    current_leader_epoch: int = fixed("int32", 4, default=-1)
    timestamp: int = fixed("int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    name: str = text()
    partitions: Sequence[ListOffsetsPartition] = several(ListOffsetsPartition)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    replica_id: int = fixed("int32")
    isolation_level: int = fixed("int8", 2)
    topics: Sequence[ListOffsetsTopic] = several(ListOffsetsTopic)
    timeout_ms: int = fixed("int32", 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    partition_index: int = fixed("int32")
    error_code: int = fixed("int16")
    timestamp: int = fixed("int64", 1, default=-1)
    offset: int = fixed("int64", 1, default=-1)
    leader_epoch: int = fixed("int32", 4, default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTopic:
    name: str = text()
    partitions: Sequence[ListedOffset] = several(ListedOffset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    throttle_time_ms: int = fixed("int32", 2)
    topics: Sequence[ListedTopic] = several(ListedTopic)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFrom:
    """A partition, and where to read it."""

    partition: int = fixed("int32")
    current_leader_epoch: int = fixed("int32", 9, default=-1)
    fetch_offset: int = fixed("int64")
    last_fetched_epoch: int = fixed("int32", 12, default=-1)
    log_start_offset: int = fixed("int64", 5, default=-1)
    partition_max_bytes: int = fixed("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic:
    topic: str = text(0, 12)
    topic_id: str = uuid(13)
    partitions: Sequence[FetchedFrom] = several(FetchedFrom)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenPartitions:
    topic: str = text(7, 12)
    topic_id: str = uuid(13)
    partitions: Sequence[int] = several("int32", 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRecordsRequest:
    replica_id: int = fixed("int32", 0, 14, default=-1)
    max_wait_ms: int = fixed("int32")
    min_bytes: int = fixed("int32")
    max_bytes: int = fixed("int32", 3)
    isolation_level: int = fixed("int8", 4)
    session_id: int = fixed("int32", 7)
    session_epoch: int = fixed("int32", 7, default=-1)
    topics: Sequence[FetchedTopic] = several(FetchedTopic)
    forgotten_topics_data: Sequence[ForgottenPartitions] = several(ForgottenPartitions, 7)
    rack_id: str = text(11)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: int = fixed("int64")
    first_offset: int = fixed("int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    partition_index: int = fixed("int32")
    error_code: int = fixed("int16")
    high_watermark: int = fixed("int64", default=-1)
    last_stable_offset: int = fixed("int64", 4, default=-1)
    log_start_offset: int = fixed("int64", 5, default=-1)
    aborted_transactions: Sequence[AbortedTransaction] | None = several(AbortedTransaction, 4, nullable=True)
    preferred_read_replica: int = fixed("int32", 11, default=-1)
    records: bytes | None = data()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopicRecords:
    topic: str = text(0, 12)
    topic_id: str = uuid(13)
    partitions: Sequence[FetchedPartition] = several(FetchedPartition)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRecordsResponse:
    throttle_time_ms: int = fixed("int32", 1)
    error_code: int = fixed("int16", 7)
    session_id: int = fixed("int32", 7)
    responses: Sequence[FetchedTopicRecords] = several(FetchedTopicRecords)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedPartition:
    index: int = fixed("int32")
    records: bytes | None = data()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedTopic:
    name: str = text()
    partitions: Sequence[ProducedPartition] = several(ProducedPartition)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    transactional_id: str | None = text(3, nullable=True)
    acks: int = fixed("int16")
    timeout_ms: int = fixed("int32")
    topics: Sequence[ProducedTopic] = several(ProducedTopic)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecord:
    batch_index: int = fixed("int32")
    message: str | None = text(nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResult:
    index: int = fixed("int32")
    error_code: int = fixed("int16")
    base_offset: int = fixed("int64", default=-1)
    log_append_time_ms: int = fixed("int64", 2, default=-1)
    log_start_offset: int = fixed("int64", 5, default=-1)
    record_errors: Sequence[RefusedRecord] = several(RefusedRecord, 8)
    error_message: str | None = text(8, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceTopicResult:
    name: str = text()
    partitions: Sequence[ProduceResult] = several(ProduceResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    topics: Sequence[ProduceTopicResult] = several(ProduceTopicResult)
    throttle_time_ms: int = fixed("int32", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAsked:
    partition: int = fixed("int32")
    current_leader_epoch: int = fixed("int32", 2, default=-1)
    leader_epoch: int = fixed("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsOfTopic:
    topic: str = text()
    partitions: Sequence[EpochAsked] = several(EpochAsked)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    replica_id: int = fixed("int32", 3, default=-2)
    topics: Sequence[EpochsOfTopic] = several(EpochsOfTopic)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    error_code: int = fixed("int16")
    partition: int = fixed("int32")
    leader_epoch: int = fixed("int32", 1, default=-1)
    end_offset: int = fixed("int64", default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndsOfTopic:
    topic: str = text()
    partitions: Sequence[EpochEnd] = several(EpochEnd)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = fixed("int32", 2)
    topics: Sequence[EpochEndsOfTopic] = several(EpochEndsOfTopic)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    transactional_id: str | None = text(nullable=True)
    transaction_timeout_ms: int = fixed("int32")
    producer_id: int = fixed("int64", 3, default=-1)
    producer_epoch: int = fixed("int16", 3, default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    throttle_time_ms: int = fixed("int32")
    error_code: int = fixed("int16")
    producer_id: int = fixed("int64", default=-1)
    producer_epoch: int = fixed("int16")
