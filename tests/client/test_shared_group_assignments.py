"""Consumers of a group share its partitions through a coordinator: who owns which."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import InvalidRequest
from spark_log.groups.group import GroupConfig
from spark_log.groups.racks import Cluster
from spark_log.groups.range_and_round_robin import Assigned
from spark_log.groups.subscription import Subscriber
from spark_log.model import TopicPartition
from tests.client.team import ALL, Listener, Team
from tests.services import Services


# Promise: clients.md#consumer, service.md#groups
def test_members_share_the_partitions_and_every_record_is_read_once(team: Team) -> None:
    """Three join one after the other while records come: positions go along with the partitions."""
    team.fill(40)
    for _ in range(3):
        team.join(auto_commit_interval_ms=0)
        team.poll_until(team.is_shared)
        team.fill(40)
    team.poll_until(lambda: len(team.got) >= 160)
    assert len(set(team.got)) == len(team.got) == 160


def test_partitions_of_a_member_that_leaves_go_to_the_others(team: Team) -> None:
    """At once, and it is not shown as a member any more."""
    first, second = team.join(), team.join()
    team.poll_until(team.is_shared)
    team.members.remove(second)
    second.close()
    began = time.monotonic()
    team.poll_until(lambda: first.assignment() == ALL)
    assert time.monotonic() - began < 2
    assert len(team.log.admin.describe_consumer_groups(["g"])["g"].members) == 1
    first.close()
    assert team.log.admin.describe_consumer_groups(["g"])["g"].state == "Empty"


def test_an_eager_member_gives_all_up_before_it_joins_again(team: Team) -> None:
    """The listener hears of what is revoked before, and of what is assigned after it."""
    listener = Listener()
    first = team.join(listener, partition_assignment_strategy="range")
    team.poll_until(team.is_shared)
    team.join(partition_assignment_strategy="range")
    team.poll_until(team.is_shared)
    mine = sorted(tp.partition for tp in first.assignment())
    assert listener.told == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3]), ("assigned", mine)]


# Promise: service.md#groups
def test_a_cooperative_member_gives_up_only_what_moves(team: Team) -> None:
    """And it reads the rest all the time."""
    listener = Listener()
    first = team.join(listener, partition_assignment_strategy=["cooperative-sticky"])
    team.poll_until(team.is_shared)
    team.join(partition_assignment_strategy=["cooperative-sticky"])
    smallest = 4

    def shared() -> bool:
        nonlocal smallest
        smallest = min(smallest, len(first.assignment()))
        return team.is_shared()

    team.poll_until(shared)
    kept = {tp.partition for tp in first.assignment()}
    assert smallest == len(kept) == 2
    assert [what for what in listener.told if what[1]] == [
        ("assigned", [0, 1, 2, 3]),
        ("revoked", sorted({0, 1, 2, 3} - kept)),
    ]


def test_sticky_members_keep_what_they_had_though_they_gave_it_up(team: Team) -> None:
    """They tell the assignor what they had until then."""
    first, second = (team.join(partition_assignment_strategy="sticky") for _ in range(2))
    team.poll_until(team.is_shared)
    had = first.assignment()
    team.members.remove(second)
    second.close()
    team.poll_until(lambda: first.assignment() == ALL)
    third = team.join(partition_assignment_strategy="sticky")
    team.poll_until(team.is_shared)
    before = first.assignment()
    fourth = team.join(partition_assignment_strategy="sticky")
    team.poll_until(team.is_shared)
    assert len(had) == 2 and first.assignment() <= before
    assert len(third.assignment()) + len(fourth.assignment()) + len(first.assignment()) == 4


def test_new_partitions_are_shared_out_and_read_from_their_beginning(team: Team) -> None:
    """By the leader, who sees them; also by consumers that begin at the end."""
    first, second = (team.join(auto_offset_reset="latest") for _ in range(2))
    team.poll_until(team.is_shared)
    team.log.admin.create_partitions({"t": 6})
    team.log.append("t", [{"value": b"new", "partition": 5}])
    team.poll_until(lambda: len(first.assignment()) + len(second.assignment()) == 6)
    team.poll_until(lambda: ("t", 5, 0) in team.got)
    assert first.assignment().isdisjoint(second.assignment())


def test_new_topics_that_match_a_pattern_are_shared_out(team: Team) -> None:
    """Each member sends its new subscription."""
    first, second = team.join(pattern="t.*"), team.join(pattern="t.*")
    team.poll_until(team.is_shared)
    team.log.admin.create_topics([spark_log.NewTopic("two", 2), spark_log.NewTopic("other", 2)])
    team.poll_until(lambda: len(first.assignment()) + len(second.assignment()) == 6)
    assert {tp.topic for tp in first.assignment() | second.assignment()} == {"t", "two"}


class Backwards:
    """An assignor of a user: the last member gets all."""

    name = "backwards"
    cooperative = False

    def assign(self, cluster: Cluster, members: list[Subscriber]) -> Assigned:
        last = max(member.member_id for member in members)
        return {last: [TopicPartition(*tp) for tp in sorted(ALL)]}


class Broken(Backwards):
    name = "broken"

    def assign(self, cluster: Cluster, members: list[Subscriber]) -> Assigned:
        raise ZeroDivisionError("no members, no cry")


def test_an_assignor_of_a_user_is_used(team: Team) -> None:
    """By its class or its name."""
    where = f"{__name__}:Backwards"
    first, second = (team.join(partition_assignment_strategy=where) for _ in range(2))
    team.poll_until(
        lambda: bool(first._membership and second._membership) and first.assignment() != second.assignment()
    )
    team.poll_until(lambda: {len(first.assignment()), len(second.assignment())} == {0, 4})
    assert first.assignment() | second.assignment() == ALL


def test_a_member_that_subscribes_to_more_or_to_nothing_is_taken_at_its_word(team: Team) -> None:
    """The group rebalances.  A member without topics has left it, and may assign itself partitions."""
    first, second = team.join(), team.join()
    team.poll_until(team.is_shared)
    team.log.admin.create_topics([spark_log.NewTopic("u", 2)])
    first.subscribe(["t", "u"])
    team.poll_until(lambda: {tp for tp in first.assignment() if tp.topic == "u"} == {("u", 0), ("u", 1)})
    first.unsubscribe()
    assert (first.assignment(), first.subscription()) == (set(), None)
    team.members.remove(first)
    team.poll_until(lambda: second.assignment() == ALL)
    team.fill(4)
    first.assign([TopicPartition("t", 0)])
    assert [record.offset for record in first.poll(5000)["t", 0]] == [0]  # type: ignore[index]
    first.close(autocommit=False)


def test_the_leader_assigns_topics_that_it_does_not_read(team: Team) -> None:
    """It holds the topics of the other members as long as it leads, and sees when they grow."""
    team.log.admin.create_topics([spark_log.NewTopic("u", 1)])
    first = team.join()
    team.poll_until(lambda: len(first.assignment()) == len(ALL))
    second = team.join(topics=["u"])
    team.poll_until(lambda: len(second.assignment()) == 1 and len(first.assignment()) == len(ALL))
    team.log.admin.create_partitions({"u": 3})
    team.poll_until(lambda: len(second.assignment()) == 3 and first.assignment() == ALL)


def test_the_first_round_waits_for_more_members(services: Services, tmp_path: Path) -> None:
    """As long as the coordinator is configured to: so members that start together share from the first generation."""
    services.start(tmp_path / "log", groups=GroupConfig(initial_rebalance_delay_ms=500, min_session_timeout_ms=100))
    team, listener = Team(services.url(tmp_path / "log")), Listener()
    team.join(listener)
    team.join()
    team.poll_until(team.is_shared)
    assert len(listener.told) == 1 and len(listener.told[0][1]) == 2
    team.close()
    services.stop_all()


def test_an_assignor_that_fails_is_heard_of(team: Team) -> None:
    """By the poll of the leader, where it ran; nothing hangs."""
    team.join(partition_assignment_strategy=f"{__name__}:Broken")
    with pytest.raises(InvalidRequest, match="no members, no cry"):
        team.poll_until(team.is_shared)


def test_a_strategy_that_is_none_is_refused_at_once(team: Team) -> None:
    """With those that there are; and heartbeats that are rarer than a session is long."""
    with pytest.raises(InvalidRequest, match="cooperative-sticky"):
        team.join(partition_assignment_strategy="best")
    with pytest.raises(InvalidRequest, match="heartbeat_interval_ms"):
        team.join(heartbeat_interval_ms=50_000)
