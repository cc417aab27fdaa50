"""Groups in the metrics."""

from __future__ import annotations

from spark_log.client.admin.group_listing import describe_group
from spark_log.groups.group import Roster, RosterMember
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.groups.group_commands import CommitOffsets, JoinGroup, SetGeneration
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.monitoring.log_metrics import summary_of
from tests.server.test_groups import Hand


def test_a_group_in_the_metrics_is_the_group_that_is_described() -> None:
    """A shared group, one without members, one of a consumer, one of a stream, and one with positions only."""
    hand = Hand()
    member = RosterMember("m", None, "", "", 10_000, 10_000, b"", b"")
    hand.decide(CreateTopic(name="t", partitions=1, topic_id="id"))
    hand.decide(SetGeneration(group="shared", roster=Roster(3, "consumer", "range", "m", (member,))))
    hand.decide(SetGeneration(group="empty", roster=Roster(4)))
    hand.decide(JoinGroup(group="consumer", member="m"))
    hand.decide(JoinGroup(group="stream", member="s", token="query", owner="a stream", timeout_ms=60_000))
    hand.decide(CommitOffsets(commit=GroupCommit("positions", -1, (OffsetEntry("id", 0, 0),))))
    assert len(hand.state.groups) == 5
    for name in hand.state.groups:
        described = describe_group(hand.state, name)
        assert summary_of(hand.state, name) == (described.state, len(described.members), described.generation), name
