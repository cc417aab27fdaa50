"""Which topics a gateway serves, and the answer to Metadata.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_log.errors import InvalidRequest
from spark_log.gateway.codec import NO_UUID
from spark_log.gateway.error_codes import (
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from spark_log.gateway.leader_epochs import leader_epoch
from spark_log.gateway.messages import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from spark_log.metadata.state import State

NODE = 0
"""The gateway is the only broker, and leads all partitions."""


@dataclass(frozen=True, slots=True)
class ServedTopics:
    """The topics whose names have one of these prefixes; without prefixes, all."""

    prefixes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "" in self.prefixes:  # as from a variable that is not set
            raise InvalidRequest(
                "--prefix is empty, which would serve all topics: give a prefix, or leave out the option"
            )

    def serves(self, name: str) -> bool:
        return not self.prefixes or name.startswith(self.prefixes)

    def names(self, state: State) -> Iterator[str]:
        return (name for name in sorted(state.names) if self.serves(name))

    def by_name(self, state: State, name: str) -> tuple[int, str]:
        """An error code, and the id of a topic."""
        if not self.serves(name):
            return TOPIC_AUTHORIZATION_FAILED, NO_UUID
        topic_id = state.names.get(name)
        return (UNKNOWN_TOPIC_OR_PARTITION, NO_UUID) if topic_id is None else (NONE, topic_id)

    def by_id(self, state: State, topic_id: str) -> int:
        """The error code for a topic's id.  A topic of the same name that was created later has another id."""
        topic = state.topics.get(topic_id)
        if topic is None or topic.deleted:
            return UNKNOWN_TOPIC_ID
        return NONE if self.serves(topic.name) else TOPIC_AUTHORIZATION_FAILED


def metadata(
    served: ServedTopics, state: State, request: MetadataRequest, version: int, cluster_id: str, host: str, port: int
) -> MetadataResponse:
    """Topics that do not exist are not created.  One that is named twice is answered once."""
    every = request.topics is None or (version == 0 and not request.topics)
    asked = [MetadataRequestTopic(name=name) for name in served.names(state)] if every else request.topics or ()
    return MetadataResponse(
        brokers=[MetadataBroker(node_id=NODE, host=host, port=port)],
        cluster_id=cluster_id,
        controller_id=NODE,
        topics=[_topic(served, state, one) for one in {one.name or one.topic_id: one for one in asked}.values()],
    )


def _topic(served: ServedTopics, state: State, asked: MetadataRequestTopic) -> MetadataTopic:
    if asked.name is None:
        code, topic_id = served.by_id(state, asked.topic_id), asked.topic_id
    else:
        code, topic_id = served.by_name(state, asked.name)
    if code != NONE:
        return MetadataTopic(error_code=code, name=asked.name, topic_id=topic_id)
    topic, epoch = state.topics[topic_id], leader_epoch(state, topic_id)
    partitions = [
        MetadataPartition(
            partition_index=number, leader_id=NODE, leader_epoch=epoch, replica_nodes=(NODE,), isr_nodes=(NODE,)
        )
        for number in range(topic.partitions)
    ]
    return MetadataTopic(name=topic.name, topic_id=topic_id, partitions=partitions)
