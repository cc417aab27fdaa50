"""The metadata that a member sends to the assignor, and its assignment: the bytes in JoinGroup and SyncGroup.

They are JSON documents with Kafka's fields (ConsumerProtocolSubscription, ConsumerProtocolAssignment).  The coordinator
reads subscriptions only to know which topics a group reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.model import TopicPartition

CONSUMER = "consumer"
"""Protocol type of groups whose members send subscriptions."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The subscription of one member."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    """Its current partitions; if it gives up all before joining, those that it had until then."""
    generation: int = -1
    """Generation in which it got them; -1: none yet."""
    rack: str | None = None
    user_data: bytes = b""
    """Data of an assignor that keeps state with the members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as assignors see it."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    """Generation in which it got its partitions; -1: unknown."""
    rack: str | None = None
    user_data: bytes = b""


class ProtocolAssignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The assignment of one member."""

    partitions: tuple[TopicPartition, ...] = ()
    counts: dict[str, int] = {}
    """For the leader: the partition count of each topic.  A static leader that restarts and must not assign compares
    it, and rebalances the group if there are more now."""
    unsettled: bool = False
    """For the leader of a cooperative assignment: some partitions must be revoked before they can be assigned, so it
    joins again.  Kafka relies on the members that revoke; then partitions stay unassigned if such a static member
    restarts."""
    user_data: bytes = b""


_encoder = msgspec.json.Encoder()
_subscription = msgspec.json.Decoder(Subscription)
_assignment = msgspec.json.Decoder(ProtocolAssignment)


def encode(value: Subscription | ProtocolAssignment) -> bytes:
    return _encoder.encode(value)


def decode_subscription(data: bytes) -> Subscription | None:
    """None for other data: of another protocol type, or of an unsupported client."""
    try:
        return _subscription.decode(data)
    except UNREADABLE:
        return None


def decode_assignment(data: bytes) -> ProtocolAssignment:
    """Empty for a member that the leader left out.  Raises msgspec.DecodeError for invalid data."""
    return _assignment.decode(data) if data else ProtocolAssignment()


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that members subscribe to; None if one is unknown."""
    known = [decode_subscription(data) for data in metadata]
    if None in known:
        return None
    return frozenset(topic for one in known if one is not None for topic in one.topics)
