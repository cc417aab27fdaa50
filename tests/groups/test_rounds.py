"""The rounds of the group protocol, where the vectors do not look: what is durable when, slow journals, restarts."""

from __future__ import annotations

import time

from spark_log.groups.group import ConsumerGroupState, GroupConfig, Roster, restore
from spark_log.groups.messages import Code, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, MemberProtocol
from spark_log.groups.state_machine import step
from tests.groups.members import CONFIG, Coordinator, stable


def test_members_join_and_get_what_the_leader_assigned() -> None:
    """Joins wait for the rebalance, syncs for the leader's assignment; each member gets its own part."""
    at = Coordinator()
    a, b = at.join("a", new=True), at.join("b", new=True)
    assert at.waits(a) and at.waits(b)
    at.advance(6_000)
    assert [member.member_id for member in at.joined(a).members] == ["a", "b"]
    assert (at.joined(b).leader, at.joined(b).generation_id, at.joined(b).members) == ("a", 1, ())
    follower = at.sync("b", 1)
    assert at.waits(follower)
    leader = at.sync("a", 1, {"a": b"0", "b": b"1"})
    assert (at.synced(leader).assignment, at.synced(follower).assignment) == (b"0", b"1")
    assert at.group is not None and at.group.state is ConsumerGroupState.STABLE


def test_an_assignment_is_told_after_it_is_durable() -> None:
    """A coordinator that dies between must not have told anybody what nobody remembers."""
    at = Coordinator()
    at.join("a", new=True)
    at.advance(3_000)
    at.holds = []
    synced = at.sync("a", 1, {"a": b"all"})
    assert at.waits(synced)
    at.journaled(at.holds[0])
    assert at.synced(synced).assignment == b"all"


def test_an_assignment_of_a_past_round_does_not_come_into_force() -> None:
    """A member that joins while the journal works starts a new round, which the journal's answer does not end."""
    at = Coordinator()
    at.join("a", new=True)
    at.advance(3_000)
    at.holds = []
    synced = at.sync("a", 1, {"a": b"all"})
    at.join("b", new=True)
    assert at.synced(synced).error is Code.REBALANCE_IN_PROGRESS
    at.journaled(at.holds[0])
    assert at.group is not None and at.group.state is ConsumerGroupState.PREPARING_REBALANCE


def test_a_restarted_coordinator_goes_on_with_the_generation() -> None:
    """The journaled state is enough: members continue to heartbeat, and get the same assignment without a rebalance."""
    at = stable("a", "b")
    roster = at.rosters[-1]
    assert isinstance(roster, Roster)
    at.group = restore("g", roster, at.now_ms + 20_000)
    at.advance(20_000)
    assert at.heartbeat("a", 1) is Code.NONE
    assert at.synced(at.sync("b", 1)).assignment == b"b"
    assert at.commit("a", 1) is Code.NONE
    at.advance(10_000)
    assert at.group is not None and list(at.group.members) == []


def test_a_restarted_coordinator_knows_static_members() -> None:
    """Their instance ids are journaled too, so that an impostor stays fenced."""
    at = Coordinator()
    at.join("a", new=True, instance="i")
    at.advance(3_000)
    at.sync("a", 1, {"a": b"x"})
    roster = at.rosters[-1]
    assert isinstance(roster, Roster)
    at.group = restore("g", roster, at.now_ms)
    assert at.commit("other", 1, instance="i") is Code.FENCED_INSTANCE_ID


def test_a_replaced_static_member_is_told_when_its_id_is_durable() -> None:
    """The leader gets the members and must not assign; if the journal refuses, the old id is valid again."""
    at = Coordinator()
    at.join("a", new=True, instance="i")
    at.advance(3_000)
    at.sync("a", 1, {"a": b"x"})
    at.holds = []
    again = at.join("a2", new=True, instance="i")
    assert at.waits(again)
    at.journaled(at.holds.pop())
    assert (at.joined(again).skip_assignment, at.joined(again).generation_id) == (True, 1)
    third = at.join("a3", new=True, instance="i")
    at.journaled(at.holds.pop(), Code.NOT_ENOUGH_REPLICAS)
    assert at.joined(third).error is Code.COORDINATOR_NOT_AVAILABLE
    assert at.heartbeat("a2", 1) is Code.NONE


def test_a_request_sent_again_frees_the_first_one() -> None:
    """A member whose connection broke asks again; nobody is left waiting for an answer for ever."""
    at = stable("a", "b")
    first = at.join("a")
    second = at.join("a")
    assert at.joined(first).error is Code.REBALANCE_IN_PROGRESS
    at.join("b")
    assert at.joined(second).generation_id == 2


def test_a_new_group_starts_above_the_generations_of_a_deleted_one() -> None:
    """Members of a group that was deleted stay fenced when a group of the same id is made."""
    request = JoinGroupRequest(
        group_id="g",
        new_member_id="m",
        protocols=(MemberProtocol("range"),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
    )
    made = step(None, request, 0, config=CONFIG, generation=41).group
    assert made is not None and made.generation == 41


def test_a_step_leaves_the_group_that_it_was_given() -> None:
    """A decision can be tried out for nothing."""
    at = stable("a")
    before = at.group
    assert before is not None
    deadline = before.members["a"].deadline_ms
    outcome = step(before, HeartbeatRequest(group_id="g", member_id="a", generation_id=1), at.now_ms + 5, config=CONFIG)
    assert outcome.replies[0].response == HeartbeatResponse()
    assert before.members["a"].deadline_ms == deadline
    assert outcome.group is not None and outcome.group.members["a"].deadline_ms == at.now_ms + 5 + 10_000


def test_the_protocol_is_what_most_members_like_best() -> None:
    """Each votes for the first of its list that all support (GroupMetadata.selectProtocol)."""
    at = Coordinator(GroupConfig(min_session_timeout_ms=0))
    lists = {"a": ("sticky", "range"), "b": ("range", "sticky"), "c": ("roundrobin", "range", "sticky")}
    ids = [at.join(n, new=True, protocols=tuple(MemberProtocol(x) for x in names)) for n, names in lists.items()]
    at.advance(60_000)
    assert {at.joined(i).protocol_name for i in ids} == {"range"}


def test_who_commits_without_being_a_member_makes_a_group() -> None:
    """It is there from then on: a generation that it never had is refused by member id, not as an unknown group."""
    at = Coordinator()
    assert at.commit("m", 1) is Code.GROUP_ID_NOT_FOUND
    assert at.commit("", -1) is Code.NONE
    assert at.commit("m", 1) is Code.UNKNOWN_MEMBER_ID


def test_a_hundred_members_rebalance_within_a_fraction_of_a_second() -> None:
    """43 ms were measured on a busy machine; half a second is what is promised."""
    names = [f"m{n}" for n in range(100)]
    at = stable(*names)
    started = time.perf_counter()
    joins = [at.join(name) for name in names]
    for name in names:
        at.sync(name, 2, dict.fromkeys(names, b"x") if name == names[0] else None)
    assert time.perf_counter() - started < 0.5
    assert {at.joined(join).generation_id for join in joins} == {2}
    assert at.group is not None and at.group.state is ConsumerGroupState.STABLE


# Promise: service.md#as-a-service
def test_the_metadata_of_all_members_has_a_limit() -> None:
    """Otherwise many members, each with as much as one may have, would fill the coordinator's memory and its log."""
    at = stable("a", "b", config=GroupConfig(min_session_timeout_ms=0, initial_rebalance_delay_ms=0, max_size=3))
    limit = GroupConfig().metadata_bytes_max
    large = tuple(MemberProtocol(name, bytes(limit // 2)) for name in ("range", "sticky"))
    refused = at.join("c", new=True, protocols=large)
    assert at.joined(refused).error is Code.GROUP_MAX_SIZE_REACHED
    assert at.group is not None and list(at.group.members) == ["a", "b"]
    assert at.heartbeat("a", 1) is Code.NONE
    half = (MemberProtocol("range", bytes(limit // 2)),)
    assert at.waits(at.join("b", protocols=half))
    assert at.waits(at.join("b", protocols=half)), "what a member had before does not count"
    assert at.joined(at.join("c", new=True, protocols=half)).error is Code.GROUP_MAX_SIZE_REACHED


def test_a_first_member_with_too_much_metadata_makes_no_group() -> None:
    at = Coordinator()
    large = (MemberProtocol("range", bytes(GroupConfig().metadata_bytes_max + 1)),)
    assert at.joined(at.join("a", new=True, protocols=large)).error is Code.GROUP_MAX_SIZE_REACHED
    assert at.group is None or not at.group.members
