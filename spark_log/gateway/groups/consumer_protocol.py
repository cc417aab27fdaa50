"""Subscriptions and assignments of consumers, in Kafka's form and in the log's.  Pure.

In Kafka they are bytes that clients write and read (ConsumerProtocolSubscription and ConsumerProtocolAssignment); in
the log, JSON with the same fields (`groups/subscription.py`).  A coordinator reads subscriptions, and `pylog group
describe` reads assignments.  Data of assignors is kept as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from spark_log.bounds import UNREADABLE
from spark_log.gateway.codec import FrameBytes, data, fixed, layout, several, text
from spark_log.groups.subscription import (
    ProtocolAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode,
)
from spark_log.model import TopicPartition

LAST_VERSION = 3
"""Clients write newer versions so that readers of this one understand them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsOfTopic:
    topic: str = text()
    partitions: Sequence[int] = several("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSubscription:
    topics: Sequence[str] = several("text")
    user_data: bytes | None = data()
    owned_partitions: Sequence[PartitionsOfTopic] = several(PartitionsOfTopic, 1)
    generation_id: int = fixed("int32", 2, default=-1)
    rack_id: str | None = text(3, nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAssignment:
    assigned_partitions: Sequence[PartitionsOfTopic] = several(PartitionsOfTopic)
    user_data: bytes | None = data()


def subscription_to_log(metadata: bytes) -> bytes:
    """Raises MalformedFrame."""
    found: KafkaSubscription = _read(KafkaSubscription, metadata)
    return encode(
        Subscription(
            topics=tuple(found.topics),
            owned=_partitions(found.owned_partitions),
            generation=found.generation_id,
            rack=found.rack_id,
            user_data=found.user_data or b"",
        )
    )


def subscription_to_kafka(metadata: bytes) -> bytes:
    """Metadata that is not a subscription of the log stays as it is."""
    found = decode_subscription(metadata)
    if found is None:
        return metadata
    return _written(
        KafkaSubscription(
            topics=found.topics,
            user_data=found.user_data or None,
            owned_partitions=_by_topic(found.owned),
            generation_id=found.generation,
            rack_id=found.rack,
        )
    )


def assignment_to_log(assignment: bytes) -> bytes:
    """Raises MalformedFrame."""
    found: KafkaAssignment = _read(KafkaAssignment, assignment)
    return encode(
        ProtocolAssignment(partitions=_partitions(found.assigned_partitions), user_data=found.user_data or b"")
    )


def assignment_to_kafka(assignment: bytes) -> bytes:
    """Bytes that are not an assignment of the log stay as they are."""
    try:
        found = decode_assignment(assignment)
    except UNREADABLE:
        return assignment
    return kafka_assignment(found.partitions, found.user_data)


def kafka_assignment(partitions: Iterable[TopicPartition], user_data: bytes = b"") -> bytes:
    return _written(KafkaAssignment(assigned_partitions=_by_topic(partitions), user_data=user_data or None))


def _read(kind: type, sent: bytes) -> Any:
    source = FrameBytes(sent)
    version = int.from_bytes(source.take(2), "big", signed=True)
    return layout(kind, min(max(version, 0), LAST_VERSION), False).read(source)


def _written(message: object) -> bytes:
    kind: type = type(message)
    parts = [LAST_VERSION.to_bytes(2, "big")]
    layout(kind, LAST_VERSION, False).write(message, parts.append)
    return b"".join(parts)


def _partitions(topics: Sequence[PartitionsOfTopic]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(one.topic, number) for one in topics for number in one.partitions)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsOfTopic]:
    return [
        PartitionsOfTopic(topic=topic, partitions=[one.partition for one in found])
        for topic, found in groupby(sorted(partitions), lambda one: one.topic)
    ]
