"""Decisions about groups: generations, owners, committed positions and their expiry."""

from __future__ import annotations

import dataclasses

import pytest

from spark_log.errors import (
    GroupInUse,
    IllegalGeneration,
    InvalidRequest,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartition,
)
from spark_log.groups.group import Roster
from spark_log.metadata import commands as c
from spark_log.metadata import records as r
from spark_log.metadata.commits.decide_commits import decide_commit
from spark_log.metadata.decision import Decision
from spark_log.metadata.groups import group_commands as gc
from spark_log.metadata.groups.decide_groups import (
    check_group_free,
    decide_commit_offsets,
    decide_delete_offsets,
    decide_join_group,
    decide_set_generation,
)
from spark_log.metadata.groups.group_commands import RenewSession
from spark_log.metadata.maintenance.decide_maintenance import decide_expire
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import (
    decide_delete_topic,
    decide_set_configs,
)
from tests.unit.metadata.history import History, positions


def test_a_consumer_of_an_older_generation_is_refused(log: History) -> None:
    """A newer one owns the group: neither positions alone nor positions with records are taken."""
    topic = log.create()
    first = log.do(lambda state, now: decide_join_group(state, "g", "m1"))
    second = log.do(lambda state, now: decide_join_group(state, "g", "m2"))
    assert first < second
    stale = positions("g", topic, 0, generation=first)
    with pytest.raises(IllegalGeneration) as caught:
        log.do(lambda state, now: decide_commit_offsets(state, (stale,), now))
    assert caught.value.current == second
    with pytest.raises(IllegalGeneration):
        log.commit((topic, 0, 1), groups=(stale,))
    assert log.state.partitions[topic, 0].end == 0
    log.do(lambda state, now: decide_commit_offsets(state, (positions("g", topic, 5, generation=second),), now))
    assert log.state.groups["g"].offsets[topic, 0].offset == 5


def test_joining_again_as_the_same_member_keeps_the_generation(log: History) -> None:
    """A retry whose first try was in."""
    first, again = (log.do(lambda state, now: decide_join_group(state, "g", "m")) for _ in range(2))
    assert first == again
    assert log.state.version == 1


def hold(log: History, member: str, token: str) -> int:
    """Take group g as a member with a session of 100 ms."""

    def decide(state: State, now: int) -> Decision[int]:
        check_group_free(state, "g", now, token)
        return decide_join_group(state, "g", member, token=token, owner=f"query {token}", timeout_ms=100)

    return log.do(decide)


def test_a_member_that_is_alive_keeps_its_group(log: History) -> None:
    """Another one is refused, with who holds it; each sign of life counts, and when they stop, the group is free."""
    first = hold(log, "m1", "a")
    for _ in range(3):
        log.now += 80
        with pytest.raises(GroupInUse, match=r"held by query a since 1970-01-01T00:00:01.*free in 1 s") as caught:
            hold(log, "m2", "b")
        assert caught.value.owner == "query a"
        log.do(RenewSession(group="g", generation=first))
    log.now += 101
    assert hold(log, "m2", "b") > first
    with pytest.raises(IllegalGeneration):
        log.do(RenewSession(group="g", generation=first))


def test_a_commit_is_known_again_though_its_group_was_taken_meanwhile(log: History) -> None:
    """Its answer was lost; to refuse the repeat would say of a commit that is in that it is not."""
    topic = log.create()
    moves = (r.GroupCommit("g", gc.UNFENCED, (r.OffsetEntry(topic, 0, 1),)),)
    command = c.Append(commit=log.upload((topic, 0, 3), producer="p", sequence=0, groups=moves))
    first = log.do(command)
    hold(log, "m", "a")
    assert log.do(command) == first._replace(repeated=True, last=0)
    with pytest.raises(GroupInUse):
        log.do(c.Append(commit=log.upload((topic, 0, 3), producer="p", sequence=1, groups=moves)))


def test_a_query_that_comes_back_has_its_group_at_once(log: History) -> None:
    """The same token, alive or not; what is left of it from before is fenced."""
    first = hold(log, "m1", "a")
    assert hold(log, "m2", "a") > first
    with pytest.raises(IllegalGeneration):
        log.do(RenewSession(group="g", generation=first))


def test_positions_committed_by_the_member_are_a_sign_of_life(log: History) -> None:
    """Those of somebody who names the group only are not."""
    topic = log.create()
    generation = hold(log, "m1", "a")
    log.now += 80
    log.do(lambda state, now: decide_commit_offsets(state, (positions("g", topic, 1, generation=generation),), now))
    log.now += 80
    with pytest.raises(GroupInUse):
        hold(log, "m2", "b")
    log.do(lambda state, now: decide_commit_offsets(state, (positions("g", topic, 2),), now))
    log.now += 30
    hold(log, "m2", "b")


def test_a_group_that_is_left_is_free(log: History) -> None:
    """And so is one without a session."""
    hold(log, "m1", "a")
    log.do(lambda state, now: decide_join_group(state, "g", ""))
    hold(log, "m2", "b")
    log.do(lambda state, now: decide_join_group(state, "g", "consumer"))
    hold(log, "m3", "c")


def test_positions_of_a_group_in_use_do_not_expire(log: History) -> None:
    """The time counts from when the group was last in use, as in Kafka: partitions may be idle for long."""
    topic = log.create()
    log.do(lambda state, now: decide_set_configs(state, None, {"offsets.retention.minutes": "1"}))
    generation = hold(log, "m1", "a")
    log.do(lambda state, now: decide_commit_offsets(state, (positions("g", topic, 1, generation=generation),), now))
    log.now += 70_000
    log.do(RenewSession(group="g", generation=generation))
    assert log.do(decide_expire) == 0
    log.now += 70_000
    assert log.do(decide_expire) == 1
    assert "g" not in log.state.groups


def test_a_group_that_never_committed_expires_as_well(log: History) -> None:
    """Otherwise each name that a consumer ever joined with would stay in the state for ever."""
    log.create()
    log.do(lambda state, now: decide_set_configs(state, None, {"offsets.retention.minutes": "1"}))
    log.do(lambda state, now: decide_join_group(state, "g", "m1"))
    log.now += 50_000
    assert log.do(decide_expire) == 0
    log.now += 20_000
    assert log.do(decide_expire) == 1
    assert "g" not in log.state.groups


def test_a_group_deleted_in_the_version_of_a_join_is_gone_and_its_generation_is_not_given_again(log: History) -> None:
    """A coordinator decides commands that come together in one version: two consumers would commit under one
    generation.
    """
    state = next_version(log.state, log.now)
    generations = []
    for member in ("m1", "m2"):
        join = decide_join_group(state, "g", member)
        generations.append(join.reply)
        state = replay_records(state, join.records)
        state = replay_records(state, decide_delete_offsets(state, "g", ()).records)
        assert "g" not in state.groups
    assert generations == [1, 2]


def test_generations_do_not_grow_with_the_log(log: History) -> None:
    """They fit into the 32 bits of Kafka's protocol, however old the log is."""
    state = dataclasses.replace(log.state, version=2**40)
    join = decide_join_group(state, "g", "m")
    assert join.reply == 1
    state = replay_records(state, join.records)
    state = replay_records(state, decide_join_group(state, "other", "m").records)
    state = replay_records(state, decide_join_group(state, "other", "n").records)
    state = replay_records(state, decide_delete_offsets(state, "other", ()).records)
    assert decide_join_group(state, "g", "n").reply == 2, "of a group that is there, its own"
    assert decide_join_group(state, "new", "m").reply == 3, "it may be one that was deleted"


@pytest.mark.parametrize("again", ["bookmark", "roster"])
def test_a_group_that_comes_back_is_above_its_former_generations(log: History, again: str) -> None:
    """Also if it comes back by positions that nobody fenced, or by members of a coordinator."""
    topic = log.create()
    for member in ("m1", "m2"):
        log.do(lambda state, now, member=member: decide_join_group(state, "g", member))
    log.do(lambda state, now: decide_delete_offsets(state, "g", ()))
    if again == "bookmark":
        log.do(lambda state, now: decide_commit_offsets(state, (positions("g", topic, 1),), now))
        assert log.do(lambda state, now: decide_join_group(state, "g", "m3")) == 3
    else:
        with pytest.raises(IllegalGeneration):
            log.do(lambda state, now: decide_set_generation(state, "g", Roster(2)))
        log.do(lambda state, now: decide_set_generation(state, "g", Roster(3)))


# Promise: clients.md#bookmarks
def test_a_bookmark_is_kept_longer_than_a_group(log: History) -> None:
    """Otherwise a job that runs once a month would begin again."""
    topic = log.create()
    log.do(lambda state, now: decide_set_configs(state, None, {"streaming.identity.retention.ms": "2000000000"}))
    log.do(lambda state, now: decide_commit_offsets(state, (positions("monthly", topic, 1),), now))
    log.now += 1_900_000_000
    assert log.do(decide_expire) == 0
    log.now += 200_000_000
    assert log.do(decide_expire) == 1


def test_positions_that_stand_already_write_nothing(log: History) -> None:
    """A consumer that polls an idle topic leaves the log alone."""
    topic = log.create()
    for _ in range(2):
        log.do(lambda state, now: decide_commit_offsets(state, (positions("g", topic, 3),), now))
    assert log.state.version == 2


def test_positions_of_unknown_partitions_are_refused(log: History) -> None:
    """Nothing can be committed for what is not there."""
    with pytest.raises(UnknownTopicOrPartition):
        log.do(lambda state, now: decide_commit_offsets(state, (positions("g", "nothing", 3),), now))


@pytest.mark.parametrize("offset", [-1, -5, 2**63])
def test_a_number_out_of_range_is_not_a_position(log: History, offset: int) -> None:
    """Alone, and with records: the group and the partition are named."""
    topic = log.create("orders")
    moved = positions("g", topic, offset)
    commit = log.upload((topic, 0, 1), groups=(moved,))
    for decide in (
        lambda state, now: decide_commit_offsets(state, (moved,), now),
        lambda state, now: decide_commit(state, commit),
    ):
        with pytest.raises(InvalidRequest, match=rf"group 'g': invalid offset {offset} for orders-0: expected 0 to"):
            log.do(decide)


# Promise: clients.md#consumer
def test_a_note_is_as_long_as_kafkas_at_most(log: History) -> None:
    """With positions alone, and with those that go with records: nothing of the commit is in."""
    topic = log.create()
    longest, longer = (
        r.GroupCommit("g", -1, (r.OffsetEntry(topic, 0, 1, note),)) for note in ("\u00e9" * 2048, "\u00e9" * 2049)
    )
    log.do(lambda state, now: decide_commit_offsets(state, (longest,), now))
    with pytest.raises(OffsetMetadataTooLarge, match="of t-0 has 4098 bytes; expected at most 4096"):
        log.do(lambda state, now: decide_commit_offsets(state, (longer,), now))
    with pytest.raises(OffsetMetadataTooLarge):
        log.commit((topic, 0, 1), groups=(longer,))
    assert log.state.partitions[topic, 0].end == 0


def test_positions_are_forgotten_one_by_one_or_with_their_group(log: History) -> None:
    """No partitions named: the group goes."""
    topic = log.create(partitions=2)
    both = tuple(positions("g", topic, 1, partition=number) for number in range(2))
    log.do(lambda state, now: decide_commit_offsets(state, both, now))
    log.do(lambda state, now: decide_delete_offsets(state, "g", ((topic, 0),)))
    assert set(log.state.groups["g"].offsets) == {(topic, 1)}
    log.do(lambda state, now: decide_delete_offsets(state, "g", ()))
    assert "g" not in log.state.groups


def test_a_position_that_was_forgotten_is_remembered_as_such_for_a_while(log: History) -> None:
    """Until the fence has passed that, or it is committed again."""
    topic = log.create(partitions=2)
    both = tuple(positions("g", topic, 1, partition=number) for number in range(2))
    log.do(lambda state, now: decide_commit_offsets(state, both, now))
    log.do(lambda state, now: decide_delete_topic(state, "t"))
    gone = (log.state.version, log.state.time)
    assert dict(log.state.forgotten) == {("g", "t", 0): gone, ("g", "t", 1): gone}
    topic = log.create()
    log.do(lambda state, now: decide_commit_offsets(state, (positions("g", topic, 2),), now))
    assert dict(log.state.forgotten) == {("g", "t", 1): gone}
    log.pass_fence()
    assert not log.state.forgotten
