"""What a member tells the assignor, and what the assignor gives it: the bytes that JoinGroup and SyncGroup carry.

They are JSON documents with Kafka's fields (ConsumerProtocolSubscription, ConsumerProtocolAssignment).  The coordinator looks
into subscriptions only to know which topics a group reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from spark_log.model import TopicPartition

CONSUMER = "consumer"
"""Protocol type of groups whose members send subscriptions."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one member."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    """What it has at the moment; where all is given up before joining, what it had until then."""
    generation: int = -1
    """In which it got that; -1: never was in one."""
    rack: str | None = None
    user_data: bytes = b""
    """Of an assignor that keeps something with the members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as assignors see it."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    """In which it got what it owns; -1: it does not say."""
    rack: str | None = None
    user_data: bytes = b""


class Assignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one member got."""

    partitions: tuple[TopicPartition, ...] = ()
    counts: dict[str, int] = {}
    """For the leader: how many partitions each topic had.  A static leader that starts again and need not assign sees by it
    whether there are more now, and the group has to rebalance."""
    unsettled: bool = False
    """For the leader of a cooperative assignment: some have to give up partitions that nobody has got yet, so it joins again.
    Kafka leaves that to those who give up, and the partitions lie idle if such a static member starts again instead."""
    user_data: bytes = b""


_encoder = msgspec.json.Encoder()
_subscription = msgspec.json.Decoder(Subscription)
_assignment = msgspec.json.Decoder(Assignment)


def encode(value: Subscription | Assignment) -> bytes:
    return _encoder.encode(value)


def decode_subscription(data: bytes) -> Subscription | None:
    """None if it is something else: of another protocol type, or of a client that this pylog does not know."""
    try:
        return _subscription.decode(data)
    except msgspec.DecodeError:
        return None


def decode_assignment(data: bytes) -> Assignment:
    """Nothing for a member that the leader left out.  Raises msgspec.DecodeError for anything else that is none."""
    return _assignment.decode(data) if data else Assignment()


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that members read; None if one of them does not say."""
    known = [decode_subscription(data) for data in metadata]
    if None in known:
        return None
    return frozenset(topic for one in known if one is not None for topic in one.topics)
