"""Groups that members share through a coordinator, in the metadata log."""

from __future__ import annotations

import pytest

from spark_log.client.admin.group_listing import describe_group
from spark_log.errors import GroupInUse, IllegalGeneration
from spark_log.groups.group import Roster, RosterMember
from spark_log.groups.subscription import Subscription, encode
from spark_log.metadata import commands as c
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.groups import group_commands as gc
from spark_log.metadata.groups.decide_groups import decide_join_group
from spark_log.metadata.records import Batch, GroupCommit, OffsetEntry, ReleaseRecord, TakeOverRecord
from spark_log.metadata.replay import replay
from spark_log.metadata.topics.decide_topics import decide_set_configs
from tests.unit.metadata.history import History, positions

MINUTE = 60_000


class Led(History):
    """A log that a coordinator has."""

    def __init__(self) -> None:
        super().__init__()
        self.write(TakeOverRecord(epoch=1, address="here:9550", host="here", cluster_id="c"))

    def write(self, *records: object) -> None:
        epoch = 1 if self.batches else 0
        batch = Batch(id=f"b{len(self.batches)}", time=self.now, epoch=max(epoch, 1), records=tuple(records))  # type: ignore[arg-type]
        self.batches.append(batch)
        self.states.append(replay(self.state, batch))


@pytest.fixture
def log() -> Led:
    return Led()


def member(name: str, *topics: str) -> RosterMember:
    return RosterMember(name, None, "client", "host", 10_000, 60_000, encode(Subscription(topics=topics)), b"")


def roster(generation: int, *members: RosterMember) -> Roster:
    return Roster(generation, "consumer", "range", members[0].member_id if members else None, members)


def share(log: Led, generation: int, *members: RosterMember) -> None:
    log.do(gc.SetGeneration(group="g", roster=roster(generation, *members)))


def test_a_generation_fences_the_ones_before(log: Led) -> None:
    """Positions are committed under the generation that was journaled, and under no other."""
    topic = log.create()
    share(log, 5, member("a", "t"))
    log.do(gc.CommitOffsets(commit=positions("g", topic, 1, generation=5)))
    share(log, 6, member("a", "t"), member("b", "t"))
    with pytest.raises(IllegalGeneration):
        log.do(gc.CommitOffsets(commit=positions("g", topic, 2, generation=5)))
    with pytest.raises(IllegalGeneration):
        share(log, 5, member("a", "t"))
    assert log.state.groups["g"].offsets[topic, 0].offset == 1


def test_a_shared_group_survives_a_checkpoint(log: Led) -> None:
    """A coordinator that starts finds the members of the last generation and what each was assigned."""
    share(log, 5, member("a", "t"), member("b", "t")._replace(group_instance_id="i", assignment=b"\x00\xff"))
    assert decode_checkpoint(encode_checkpoint(log.state), "checkpoint") == log.state


def test_who_is_no_member_does_not_take_or_move_a_shared_group(log: Led) -> None:
    """A stream, an administrator's offsets, a transaction's and a removal are refused, and told who is there."""
    topic = log.create()
    share(log, 5, member("a", "t"))
    for command in (
        gc.JoinGroup(group="g", member="m", token="t", owner="a query", timeout_ms=5),
        gc.RemoveMember(group="g"),
        gc.DeleteOffsets(group="g"),
        gc.DeleteOffsets(group="g", partitions=((topic, 0),)),
        gc.CommitOffsets(commit=positions("g", topic, 9)),
        c.Append(commit=log.upload((topic, 0, 1), groups=(positions("g", topic, 9),))),
    ):
        with pytest.raises(GroupInUse, match="shared by 1 member, a among them") as caught:
            log.do(command)
        assert caught.value.owner == "a"


# Promise: service.md#groups
def test_a_group_that_a_stream_keeps_is_not_moved_from_outside(log: Led) -> None:
    """As long as its session lasts: positions without a generation are an administrator's, a bookmark's, a
    transaction's.
    """
    topic = log.create()
    log.do(gc.JoinGroup(group="g", member="m", token="t", owner="a query", timeout_ms=60_000))
    for command in (
        gc.CommitOffsets(commit=positions("g", topic, 9)),
        c.Append(commit=log.upload((topic, 0, 1), groups=(positions("g", topic, 9),))),
    ):
        with pytest.raises(GroupInUse, match="held by a query"):
            log.do(command)


def test_members_of_a_shared_group_are_described(log: Led) -> None:
    """By the admin, from the state alone; nobody knows whether they still run when the log is nobody's."""
    share(log, 5, member("a", "t"), member("b", "t"))
    found = describe_group(log.state, "g")
    assert (found.state, found.generation, [one.member_id for one in found.members]) == ("Stable", 5, ["a", "b"])
    log.write(ReleaseRecord(epoch=1))
    assert describe_group(log.state, "g") == found._replace(state="Unknown")


def test_a_group_that_a_stream_keeps_gets_no_members(log: Led) -> None:
    """Two that publish to one group would hide each other's progress."""
    log.do(gc.JoinGroup(group="g", member="m", token="t", owner="a query", timeout_ms=60_000))
    with pytest.raises(GroupInUse, match="held by a query"):
        share(log, log.state.version + 1, member("a", "t"))


def test_without_a_coordinator_members_are_gone(log: Led) -> None:
    """Nobody watches over them then: an embedded consumer takes the group, under a higher generation."""
    share(log, 5, member("a", "t"))
    log.write(ReleaseRecord(epoch=1))
    log.now += 1
    generation = log.state.groups["g"].generation
    decision = gc.JoinGroup(group="g", member="m")(log.state, log.now)
    assert decision.reply > generation
    assert decision.records


def test_an_embedded_consumer_ends_the_roster(log: Led) -> None:
    """And a coordinator's next generation ends its time in turn."""
    log.do(lambda state, now: decide_join_group(state, "g", "m"))
    generation = log.state.groups["g"].generation
    share(log, generation + 1, member("a", "t"))
    assert log.state.groups["g"].member == ""
    log.do(lambda state, now: decide_join_group(state, "g", "m"))
    assert log.state.groups["g"].roster is None
    assert log.state.groups["g"].generation > generation + 1


def test_positions_of_topics_that_members_read_do_not_expire(log: Led) -> None:
    """Those of topics that none reads any more do, and may be deleted (OffsetMetadataManager's conditions)."""
    read, unread = log.create("read"), log.create("unread")
    log.do(lambda state, now: decide_set_configs(state, None, {"offsets.retention.minutes": "1"}))
    share(log, 5, member("a", "read"))
    for topic in (read, unread):
        log.do(gc.CommitOffsets(commit=positions("g", topic, 1, generation=5)))
    log.now += MINUTE
    log.do(c.Expire())
    assert set(log.state.groups["g"].offsets) == {(read, 0)}
    log.do(gc.CommitOffsets(commit=positions("g", unread, 1, generation=5)))
    log.do(gc.DeleteOffsets(group="g", partitions=((unread, 0),)))
    assert set(log.state.groups["g"].offsets) == {(read, 0)}


def test_an_empty_group_expires_with_all_its_positions(log: Led) -> None:
    """The time counts from when the last member went; positions that open transactions ask for stay."""
    topic = log.create(partitions=2)
    log.do(lambda state, now: decide_set_configs(state, None, {"offsets.retention.minutes": "1"}))
    share(log, 5, member("a", "t"))
    log.do(gc.CommitOffsets(commit=positions("g", topic, 1, generation=5)))
    log.now += MINUTE
    share(log, 6)
    log.now += MINUTE - 2
    log.do(c.Expire())
    assert "g" in log.state.groups
    log.do(c.Expire(held=(("g", topic, 0),)))
    assert "g" in log.state.groups
    log.do(c.Expire())
    assert "g" not in log.state.groups


# Promise: topic-configs.md#the-log
def test_a_client_without_membership_keeps_its_positions_by_committing_them(log: Led) -> None:
    """The client assigns partitions to itself, in a group whose members have left; one of the partitions is idle."""
    topic = log.create(partitions=2)
    log.do(lambda state, now: decide_set_configs(state, None, {"offsets.retention.minutes": "1"}))
    share(log, 5, member("a", "t"))
    share(log, 6)
    for offset in range(1, 10):
        log.now += MINUTE // 2
        moved = (OffsetEntry(topic, 0, 1), OffsetEntry(topic, 1, offset))
        for entry in moved:
            log.do(gc.CommitOffsets(commit=GroupCommit("g", -1, (entry,))))
        log.do(c.Expire())
        assert set(log.state.groups["g"].offsets) == {(topic, 0), (topic, 1)}
    log.now += MINUTE + 1
    log.do(c.Expire())
    assert "g" not in log.state.groups


def test_positions_that_are_committed_again_soon_are_not_written(log: Led) -> None:
    """Kafka's clients commit every five seconds."""
    topic = log.create()
    log.do(gc.CommitOffsets(commit=positions("g", topic, 1)))
    version = log.state.version
    log.now += MINUTE
    log.do(gc.CommitOffsets(commit=positions("g", topic, 1)))
    assert log.state.version == version
