"""The fields of requests that change topics, by version.

These are facts of Kafka's protocol, as those of messages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_log.gateway.codec import fixed, several, text, uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplicas:
    partition_index: int = fixed("int32")
    broker_ids: Sequence[int] = several("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedValue:
    name: str = text()
    value: str | None = text(nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToCreate:
    name: str = text()
    num_partitions: int = fixed("int32", default=-1)
    replication_factor: int = fixed("int16", default=-1)
    assignments: Sequence[PartitionReplicas] = several(PartitionReplicas)
    configs: Sequence[NamedValue] = several(NamedValue)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    topics: Sequence[TopicToCreate] = several(TopicToCreate)
    timeout_ms: int = fixed("int32")
    validate_only: bool = fixed("bool", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedConfig:
    name: str = text()
    value: str | None = text(nullable=True)
    read_only: bool = fixed("bool")
    config_source: int = fixed("int8", default=-1)
    is_sensitive: bool = fixed("bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    name: str = text()
    topic_id: str = uuid(7)
    error_code: int = fixed("int16")
    error_message: str | None = text(1, nullable=True)
    num_partitions: int = fixed("int32", 5, default=-1)
    replication_factor: int = fixed("int16", 5, default=-1)
    configs: Sequence[CreatedConfig] | None = several(CreatedConfig, 5, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    throttle_time_ms: int = fixed("int32", 2)
    topics: Sequence[CreatedTopic] = several(CreatedTopic)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToDelete:
    name: str | None = text(nullable=True)
    topic_id: str = uuid()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest:
    topics: Sequence[TopicToDelete] = several(TopicToDelete, 6)
    topic_names: Sequence[str] = several("text", 0, 5)
    timeout_ms: int = fixed("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    name: str | None = text(nullable=True)
    topic_id: str = uuid(6)
    error_code: int = fixed("int16")
    error_message: str | None = text(5, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse:
    throttle_time_ms: int = fixed("int32", 1)
    responses: Sequence[DeletedTopic] = several(DeletedTopic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasOfNew:
    broker_ids: Sequence[int] = several("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToGrow:
    name: str = text()
    count: int = fixed("int32")
    assignments: Sequence[ReplicasOfNew] | None = several(ReplicasOfNew, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    topics: Sequence[TopicToGrow] = several(TopicToGrow)
    timeout_ms: int = fixed("int32")
    validate_only: bool = fixed("bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownTopic:
    name: str = text()
    error_code: int = fixed("int16")
    error_message: str | None = text(nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse:
    throttle_time_ms: int = fixed("int32")
    results: Sequence[GrownTopic] = several(GrownTopic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigsAsked:
    resource_type: int = fixed("int8")
    resource_name: str = text()
    configuration_keys: Sequence[str] | None = several("text", nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest:
    resources: Sequence[ConfigsAsked] = several(ConfigsAsked)
    include_synonyms: bool = fixed("bool", 1)
    include_documentation: bool = fixed("bool", 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    name: str = text()
    value: str | None = text(nullable=True)
    source: int = fixed("int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    name: str = text()
    value: str | None = text(nullable=True)
    read_only: bool = fixed("bool")
    config_source: int = fixed("int8", 1, default=-1)
    is_sensitive: bool = fixed("bool")
    synonyms: Sequence[ConfigSynonym] = several(ConfigSynonym, 1)
    config_type: int = fixed("int8", 3)
    documentation: str | None = text(3, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfigs:
    error_code: int = fixed("int16")
    error_message: str | None = text(nullable=True)
    resource_type: int = fixed("int8")
    resource_name: str = text()
    configs: Sequence[DescribedConfig] = several(DescribedConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    throttle_time_ms: int = fixed("int32")
    results: Sequence[DescribedConfigs] = several(DescribedConfigs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    name: str = text()
    config_operation: int = fixed("int8")
    value: str | None = text(nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanges:
    resource_type: int = fixed("int8")
    resource_name: str = text()
    configs: Sequence[ConfigChange] = several(ConfigChange)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    """The message IncrementalAlterConfigs."""

    resources: Sequence[ConfigChanges] = several(ConfigChanges)
    validate_only: bool = fixed("bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredConfigs:
    error_code: int = fixed("int16")
    error_message: str | None = text(nullable=True)
    resource_type: int = fixed("int8")
    resource_name: str = text()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    """The message IncrementalAlterConfigs."""

    throttle_time_ms: int = fixed("int32")
    responses: Sequence[AlteredConfigs] = several(AlteredConfigs)
