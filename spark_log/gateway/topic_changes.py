"""The answers to requests that create, delete and configure topics, by the functions that `pylog topic` uses.

Each topic of a request is one change, and has its own error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spark_log.client.admin.admin import Admin
from spark_log.errors import (
    AccessDenied,
    AuthorizationFailed,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    SparkLogError,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from spark_log.gateway.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredConfigs,
    ConfigChanges,
    ConfigsAsked,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedConfigs,
    GrownTopic,
    TopicToCreate,
    TopicToDelete,
    TopicToGrow,
)
from spark_log.gateway.codec import NO_UUID
from spark_log.gateway.error_codes import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_TOPIC,
    KAFKA_STORAGE_ERROR,
    MESSAGE_CHARS,
    NONE,
    TOPIC_ALREADY_EXISTS,
    TOPIC_AUTHORIZATION_FAILED,
    TOPIC_DELETION_DISABLED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from spark_log.gateway.followed_state import FollowedState
from spark_log.gateway.topics import ServedTopics
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import DeleteTopic, SeveralCommands
from spark_log.metadata.state import State
from spark_log.model import NewTopic
from spark_log.runtime.daemon_threads import DaemonThreads

TOPIC = 2
"""The kind of a resource; others, such as brokers, have no configs here."""
SET, DELETE = 0, 1
SET_BY_TOPIC, DEFAULT = 1, 5
"""Sources of a config."""
CODES: tuple[tuple[type[SparkLogError], int], ...] = (
    (TopicAlreadyExists, TOPIC_ALREADY_EXISTS),
    (UnknownTopicOrPartition, UNKNOWN_TOPIC_OR_PARTITION),
    (InvalidTopic, INVALID_TOPIC),
    (InvalidPartitions, INVALID_PARTITIONS),
    (InvalidReplicationFactor, INVALID_REPLICATION_FACTOR),
    (InvalidReplicaAssignment, INVALID_REPLICA_ASSIGNMENT),
    (InvalidConfig, INVALID_CONFIG),
    (InvalidRequest, INVALID_REQUEST),
    (TopicDeletionDisabled, TOPIC_DELETION_DISABLED),
    (AccessDenied, TOPIC_AUTHORIZATION_FAILED),
    (AuthorizationFailed, TOPIC_AUTHORIZATION_FAILED),
    (SparkLogError, KAFKA_STORAGE_ERROR),
)


class ChangeOutcome(NamedTuple):
    """Whether a change was made."""

    code: int
    message: str | None
    result: Any = None


def refused(code: int, message: str) -> ChangeOutcome:
    return ChangeOutcome(code, message[:MESSAGE_CHARS])


class TopicChanges:
    """Belongs to one event loop."""

    def __init__(self, journal: Journal, followed: FollowedState, served: ServedTopics, *, read_only: bool) -> None:
        self._journal = journal
        self._followed = followed
        self._admin = Admin(journal)
        self._served = served
        self._read_only = read_only
        self._threads = DaemonThreads(1, "pylog-gateway-topics")

    async def create_topics(self, request: CreateTopicsRequest, version: int) -> CreateTopicsResponse:
        again = _named_again([topic.name for topic in request.topics])
        found = []
        for topic in request.topics:
            made = await self._change(topic.name, again, self._create, topic, request.validate_only)
            partitions, factor, topic_id = made.result or (-1, -1, NO_UUID)
            found.append(
                CreatedTopic(
                    name=topic.name,
                    topic_id=topic_id,
                    error_code=made.code,
                    error_message=made.message,
                    num_partitions=partitions,
                    replication_factor=factor,
                    configs=None if made.code else (),
                )
            )
        return CreateTopicsResponse(topics=found)

    def _create(self, topic: TopicToCreate, validate_only: bool) -> tuple[int, int, str]:
        """Number of partitions, replicas, and id.  Replicas are those of the log: Kafka's clients see one."""
        if topic.assignments:
            raise InvalidReplicaAssignment("brokers cannot be chosen here: use `pylog topic create NAME --assign 0:1`")
        if nothing := [one.name for one in topic.configs if one.value is None]:
            raise InvalidConfig(f"{nothing[0]} is set to nothing: give a value, or leave the config out")
        configs = {one.name: one.value for one in topic.configs if one.value is not None}
        partitions = 1 if topic.num_partitions == -1 else topic.num_partitions
        made = self._admin.create_topics([NewTopic(topic.name, partitions, configs)], validate_only)
        return partitions, 1, NO_UUID if validate_only else made[topic.name]

    async def delete_topics(self, request: DeleteTopicsRequest, version: int) -> DeleteTopicsResponse:
        asked = request.topics or [TopicToDelete(name=name) for name in request.topic_names]
        state, found = await self._followed.newest(), []
        names = [one.name or _name_of(state, one.topic_id) for one in asked]
        again = _named_again(names)
        for one, name in zip(asked, names, strict=True):
            if not name:
                done = ChangeOutcome(UNKNOWN_TOPIC_ID, None)
            elif one.name and one.topic_id != NO_UUID:
                done = refused(INVALID_REQUEST, "name a topic by its name or by its id, not by both")
            else:
                done = await self._change(name, again, self._delete, name, None if one.name else one.topic_id)
            found.append(
                DeletedTopic(name=name or None, topic_id=one.topic_id, error_code=done.code, error_message=done.message)
            )
        return DeleteTopicsResponse(responses=found)

    def _delete(self, name: str, topic_id: str | None) -> None:
        """topic_id:  only the topic with this id is deleted, and not one of the same name that was created later."""
        if topic_id is None:
            self._admin.delete_topics([name])
        else:
            self._journal.propose(SeveralCommands(commands=(DeleteTopic(name=name, topic_id=topic_id),)))

    async def create_partitions(self, request: CreatePartitionsRequest, version: int) -> CreatePartitionsResponse:
        again, found = _named_again([topic.name for topic in request.topics]), []
        for topic in request.topics:
            done = await self._change(topic.name, again, self._grow, topic, request.validate_only)
            found.append(GrownTopic(name=topic.name, error_code=done.code, error_message=done.message))
        return CreatePartitionsResponse(results=found)

    def _grow(self, topic: TopicToGrow, validate_only: bool) -> None:
        if topic.assignments:
            raise InvalidReplicaAssignment("brokers cannot be chosen here: leave the assignments out")
        if validate_only:
            raise InvalidRequest("partitions cannot be validated without a change")
        self._admin.create_partitions({topic.name: topic.count})

    async def alter_configs(self, request: AlterConfigsRequest, version: int) -> AlterConfigsResponse:
        again, found = _named_again([one.resource_name for one in request.resources]), []
        for one in request.resources:
            done = await self._change(one.resource_name, again, self._alter, one, request.validate_only)
            found.append(
                AlteredConfigs(
                    error_code=done.code,
                    error_message=done.message,
                    resource_type=one.resource_type,
                    resource_name=one.resource_name,
                )
            )
        return AlterConfigsResponse(responses=found)

    def _alter(self, asked: ConfigChanges, validate_only: bool) -> None:
        if asked.resource_type != TOPIC or validate_only:
            raise InvalidRequest("only configs of topics can be altered, and not validated without a change")
        if any(one.config_operation not in (SET, DELETE) for one in asked.configs):
            raise InvalidRequest("configs are set or deleted; APPEND and SUBTRACT are not supported")
        if again := _named_again([one.name for one in asked.configs]):
            raise InvalidRequest(f"configs are named twice: {', '.join(sorted(again))}; name each once")
        for one in asked.configs:
            if one.config_operation == SET and one.value is None:
                raise InvalidConfig(f"{one.name} is set to nothing: give a value, or delete the config")
        values = {one.name: one.value if one.config_operation == SET else None for one in asked.configs}
        self._admin.incremental_alter_configs({asked.resource_name: values})

    async def describe_configs(self, request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
        found = []
        for one in request.resources:
            done = await self._answered(one.resource_name, self._describe, one)
            found.append(
                DescribedConfigs(
                    error_code=done.code,
                    error_message=done.message,
                    resource_type=one.resource_type,
                    resource_name=one.resource_name,
                    configs=done.result or (),
                )
            )
        return DescribeConfigsResponse(results=found)

    def _describe(self, asked: ConfigsAsked) -> list[DescribedConfig]:
        if asked.resource_type != TOPIC:
            raise InvalidRequest("only topics have configs here")
        keys = asked.configuration_keys
        return [
            DescribedConfig(
                name=name,
                value=entry.value,
                config_source=SET_BY_TOPIC if entry.source == "topic" else DEFAULT,
                documentation=entry.doc,
            )
            for name, entry in self._admin.describe_configs([asked.resource_name])[asked.resource_name].items()
            if not keys or name in keys
        ]

    async def _change(self, name: str, again: set[str], change: Callable[..., Any], *values: Any) -> ChangeOutcome:
        """again:  names that the request has twice: these topics are not changed."""
        if self._read_only:
            return refused(TOPIC_AUTHORIZATION_FAILED, "this gateway serves reads only")
        if name in again:
            return refused(INVALID_REQUEST, f"topic {name!r} is named twice")
        return await self._answered(name, change, *values)

    async def _answered(self, name: str, function: Callable[..., Any], *values: Any) -> ChangeOutcome:
        if not self._served.serves(name):
            return refused(TOPIC_AUTHORIZATION_FAILED, f"topic {name!r} is not served")
        try:
            return ChangeOutcome(NONE, None, await asyncio.shield(self._threads.submit(function, *values)))
        except SparkLogError as error:
            return refused(next(code for kind, code in CODES if isinstance(error, kind)), str(error))

    def close(self) -> None:
        self._threads.close()


def _name_of(state: State, topic_id: str) -> str:
    """The name of a topic; empty if the topic was deleted."""
    topic = state.live_topic(topic_id)
    return topic.name if topic is not None else ""


def _named_again(names: Sequence[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}
