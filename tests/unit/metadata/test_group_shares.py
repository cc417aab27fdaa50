"""Members that own a share of a group's partitions by number: who may join, commit and leave."""

from __future__ import annotations

import pytest

from spark_log.errors import GroupInUse, IllegalGeneration, InvalidRequest
from spark_log.groups.member_share import Share
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.groups import group_commands as gc
from spark_log.metadata.maintenance.clock_reset import reset_clock
from spark_log.metadata.records import GroupCommit, OffsetEntry
from tests.unit.metadata.history import History

SESSION_MS = 100


@pytest.fixture
def log() -> History:
    return History()


def join(log: History, member: str, number: int, of: int, token: str = "") -> int:
    """The generation of a query that has joined; its token is its name unless given."""
    session = {"token": token or member, "owner": f"query {member}", "timeout_ms": SESSION_MS}
    return int(log.do(gc.JoinGroup(group="g", member=member, share=Share(number, of), **session)))


def commit(log: History, topic: str, generation: int, *offsets: tuple[int, int]) -> None:
    """Commit (partition, offset)s."""
    entries = tuple(OffsetEntry(topic, number, offset) for number, offset in offsets)
    log.do(gc.CommitOffsets(commit=GroupCommit("g", generation, entries)))


def members(log: History) -> list[tuple[str, str]]:
    return [(one.member, str(one.share)) for one in log.state.groups["g"].shares]


def committed(log: History, topic: str) -> dict[int, int]:
    return {number: at.offset for (_, number), at in log.state.groups["g"].offsets.items()}


# Promise: tasks/share-a-topic.md#share-a-topic-among-queries
@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_each_partition_has_one_owner(of: int) -> None:
    """However many there are, also more members than partitions, and a partition that is added moves no other."""
    shares = [Share(number, of) for number in range(of)]
    for partition in range(10):
        assert [share.number for share in shares if share.owns(partition)] == [partition % of]


def test_a_member_joins_again_until_it_is_replaced(log: History) -> None:
    """Its new generation makes its older commits void.  A later member keeps the share, also after it has left."""
    topic = log.create("t", 1)
    mine = {"group": "g", "member": "a", "token": "a", "timeout_ms": SESSION_MS, "share": Share(0, 1)}
    with pytest.raises(IllegalGeneration, match="member 'a' has been replaced, or was removed"):
        log.do(gc.JoinGroup(**mine, replaces=("a",)))
    first = log.do(gc.JoinGroup(**mine))
    assert log.do(gc.JoinGroup(**mine)) == first
    again = log.do(gc.JoinGroup(**mine, replaces=("a",)))
    with pytest.raises(IllegalGeneration):
        commit(log, topic, first, (0, 1))
    commit(log, topic, again, (0, 1))
    join(log, "b", 0, 1, token="a")
    log.do(gc.LeaveGroup(group="g", member="b"))
    with pytest.raises(IllegalGeneration, match="has been replaced"):
        log.do(gc.JoinGroup(**mine, replaces=("a",)))


# Promise: tasks/share-a-topic.md#what-is-guaranteed
def test_each_member_commits_the_positions_of_its_share(log: History) -> None:
    """One group has all positions; those of another share are refused, and of a generation that nobody has."""
    topic = log.create("t", 4)
    first, second = join(log, "a", 0, 2), join(log, "b", 1, 2)
    assert first < second
    commit(log, topic, first, (0, 3), (2, 4))
    commit(log, topic, second, (1, 5))
    assert committed(log, topic) == {0: 3, 1: 5, 2: 4}
    for generation, offset in (first, (1, 9)), (second, (2, 9)), (second + 1, (0, 9)), (gc.UNFENCED, (0, 9)):
        with pytest.raises((IllegalGeneration, GroupInUse)):
            commit(log, topic, generation, offset)
    assert committed(log, topic) == {0: 3, 1: 5, 2: 4}


# Promise: tasks/share-a-topic.md#change-the-number-of-queries
def test_a_number_that_is_held_is_refused_and_so_is_another_count(log: History) -> None:
    """Until its query leaves, or its session is over; the others keep theirs."""
    join(log, "a", 0, 2)
    join(log, "b", 1, 2)
    for number, of in (0, 2), (1, 2), (2, 3), (0, 3):
        with pytest.raises(GroupInUse, match=r"held by query [ab] since .*free in 1 s"):
            join(log, "x", number, of)
    log.do(gc.LeaveGroup(group="g", member="b"))
    join(log, "c", 1, 2)
    assert members(log) == [("a", "number 0 of 2"), ("c", "number 1 of 2")]
    log.now += SESSION_MS + 1
    join(log, "d", 2, 3)
    assert members(log) == [("d", "number 2 of 3")]


# Promise: tasks/share-a-topic.md#when-a-query-ends
def test_a_query_that_comes_back_has_its_number_and_what_is_left_of_it_is_fenced(log: History) -> None:
    """Its token is that of its checkpoint.  With another number of the same count, it leaves its old one."""
    topic = log.create("t", 4)
    first = join(log, "a1", 0, 2, token="a")
    again = join(log, "a2", 0, 2, token="a")
    with pytest.raises(IllegalGeneration):
        commit(log, topic, first, (0, 1))
    commit(log, topic, again, (0, 2))
    join(log, "a3", 1, 2, token="a")
    assert members(log) == [("a3", "number 1 of 2")]


def test_each_member_has_its_own_session(log: History) -> None:
    """A sign of life of one does not keep the number of another."""
    join(log, "a", 0, 2)
    second = join(log, "b", 1, 2)
    log.now += 80
    log.do(gc.RenewSession(group="g", generation=second))
    log.now += 30
    join(log, "c", 0, 2)
    with pytest.raises(GroupInUse, match="held by query b"):
        join(log, "d", 1, 2)


# Promise: tasks/share-a-topic.md#when-a-query-ends
def test_whoever_takes_the_whole_group_waits_for_all_numbers(log: History) -> None:
    """A stream without a number, and a consumer; and a number waits for them.  An administrator removes all."""
    join(log, "a", 0, 2)
    alone = gc.JoinGroup(group="g", member="s", token="s", owner="a stream", timeout_ms=SESSION_MS)
    for whole in alone, gc.JoinGroup(group="g", member="consumer"):
        with pytest.raises(GroupInUse, match="held by query a"):
            log.do(whole)
    log.do(gc.RemoveMember(group="g", member=""))
    assert members(log) == []
    generation = log.do(alone)
    with pytest.raises(GroupInUse, match="held by a stream"):
        join(log, "a", 0, 2)
    log.now += SESSION_MS + 1
    join(log, "a", 0, 2)
    with pytest.raises(IllegalGeneration):
        log.do(gc.RenewSession(group="g", generation=generation))


# Promise: tasks/share-a-topic.md#what-is-guaranteed
def test_a_member_that_left_commits_no_more(log: History) -> None:
    """Also the one that had joined last, whose generation was the group's."""
    topic = log.create("t", 2)
    generation = join(log, "a", 0, 2)
    log.do(gc.LeaveGroup(group="g", member="a"))
    with pytest.raises(IllegalGeneration):
        commit(log, topic, generation, (0, 1))
    assert log.do(gc.LeaveGroup(group="g", member="a")) == gc.UNFENCED


def test_shares_outlive_a_checkpoint_and_a_wrong_clock(log: History) -> None:
    """And a group without them has a row that older pylogs read."""
    join(log, "a", 0, 2)
    join(log, "b", 1, 2)
    assert decode_checkpoint(encode_checkpoint(log.state), "checkpoint") == log.state
    reset = reset_clock(log.state, 1)
    assert reset is not None and {(one.seen, one.session.since) for one in reset.groups["g"].shares} == {(1, 1)}


# Promise: tasks/share-a-topic.md#share-a-topic-among-queries
def test_invalid_shares_are_refused(log: History) -> None:
    """A number that is not below the count, a member without a session."""
    for number, of in (2, 2), (-1, 2), (0, 0), (0, 1001):
        with pytest.raises(InvalidRequest, match="is not a share of a group"):
            join(log, "a", number, of)
    with pytest.raises(InvalidRequest, match="is not a share of a group"):
        log.do(gc.JoinGroup(group="g", member="a", share=Share(0, 2)))
