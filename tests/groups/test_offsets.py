"""Rules of committed offsets that depend on a group's life."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_log.groups.group import ConsumerGroupState, Group
from spark_log.groups.messages import Code, MemberProtocol
from spark_log.groups.offset_deletion import check_delete_group, check_delete_offsets, check_metadata, may_expire
from spark_log.groups.subscription import Subscription, encode
from spark_log.model import TopicPartition
from tests.groups.members import Coordinator

T0 = TopicPartition("t", 0)


def test_a_note_is_measured_in_bytes() -> None:
    """Kafka's limit, 4096 by default."""
    assert check_metadata("é" * 2048) is Code.NONE
    assert check_metadata("é" * 2049) is Code.OFFSET_METADATA_TOO_LARGE


@pytest.mark.parametrize(
    ("group", "stored", "error"),
    [
        (None, False, Code.GROUP_ID_NOT_FOUND),
        (None, True, Code.NONE),
        (Group("g"), False, Code.NONE),
        (Group("g", ConsumerGroupState.STABLE), True, Code.NON_EMPTY_GROUP),
        (Group("g", ConsumerGroupState.DEAD), True, Code.GROUP_ID_NOT_FOUND),
    ],
)
def test_only_an_empty_group_is_deleted(group: Group | None, stored: bool, error: Code) -> None:
    """A group may be in the log alone, or in the coordinator alone."""
    assert check_delete_group(group, stored=stored) is error


def reading(topic: str) -> Group:
    """A stable group of one member."""
    at = Coordinator()
    at.join("a", new=True, protocols=(MemberProtocol("range", encode(Subscription(topics=(topic,)))),))
    at.advance(3_000)
    at.sync("a", 1, {"a": b""})
    assert at.group is not None
    return at.group


def test_offsets_that_members_need_are_not_deleted() -> None:
    """Those of other topics are; of members that speak no consumer protocol none."""
    group = reading("t")
    other = TopicPartition("u", 0)
    assert check_delete_offsets(group, [T0, other], stored=True) == (
        Code.NONE,
        {T0: Code.GROUP_SUBSCRIBED_TO_TOPIC, other: Code.NONE},
    )
    assert check_delete_offsets(replace(group, protocol_type="connect"), [T0], stored=True) == (
        Code.NON_EMPTY_GROUP,
        {},
    )


def test_nothing_expires_while_members_join() -> None:
    """Their topics are not known yet."""
    assert may_expire(reading("t"))
    assert not may_expire(replace(reading("t"), state=ConsumerGroupState.PREPARING_REBALANCE))
