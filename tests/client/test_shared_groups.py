"""Consumers that share the topics of a group through a coordinator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log.client.consuming.consumer import Consumer
from spark_log.errors import AuthenticationFailed, FencedInstanceId, GroupInUse, IllegalGeneration, InvalidRequest
from spark_log.groups.group import GroupConfig
from spark_log.groups.racks import Cluster
from spark_log.groups.range_and_round_robin import Assigned
from spark_log.groups.subscription import Subscriber
from spark_log.model import TopicPartition
from spark_log.net.tokens import parse_tokens
from tests.node.test_serve import Process, free_port
from tests.services import Services

ROOT = Path(__file__).parents[2]
ALL = {TopicPartition("t", number) for number in range(4)}


class Listener:
    """Records the calls that it gets."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("assigned", sorted(tp.partition for tp in partitions)))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoked", sorted(tp.partition for tp in partitions)))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("lost", sorted(tp.partition for tp in partitions)))


class Team:
    """Consumers of one log, each with a separate connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.log = spark_log.connect(self.url)
        self.log.admin.create_topics([spark_log.NewTopic("t", 4)])
        self.members: list[Consumer] = []
        self.got: list[tuple[str, int, int]] = []

    def join(self, listener: Listener | None = None, **settings: object) -> Consumer:
        given = {"group_id": "g", "auto_offset_reset": "earliest", **settings}
        topics, pattern = given.pop("topics", ["t"]), given.pop("pattern", None)
        consumer = spark_log.connect(self.url).consumer(**given)
        consumer.subscribe(() if pattern else topics, pattern=pattern, listener=listener)  # type: ignore[arg-type]
        self.members.append(consumer)
        return consumer

    def poll_until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Have all poll in turn, till it is so."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, [sorted(member.assignment()) for member in self.members]
            for member in self.members:
                for tp, records in member.poll(10).items():
                    self.got += [(*tp, record.offset) for record in records]

    def is_shared(self) -> bool:
        """Whether every partition has one owner, and each member some."""
        parts = [member.assignment() for member in self.members]
        return all(parts) and sum(map(len, parts)) == len(ALL) and set().union(*parts) == ALL

    def fill(self, count: int = 20) -> None:
        self.log.append("t", [{"value": b"%d" % n, "partition": n % 4} for n in range(count)])

    def generation(self) -> int:
        return self.log.admin.describe_consumer_groups(["g"])["g"].generation

    def close(self) -> None:
        for member in self.members:
            member.close()


@pytest.fixture
def team(services: Services, tmp_path: Path) -> Iterator[Team]:
    found = Team(services.url(tmp_path / "log"))
    yield found
    found.close()
    services.stop_all()


# ------------------------------------------------------------------------------------------------------- who has what


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


# --------------------------------------------------------------------------------------------------------- who may commit


def test_an_auto_commit_of_who_was_removed_says_so(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is committed, and the warning says what follows."""
    team.fill()
    consumer = team.join()
    team.poll_until(lambda: len(team.got) == 20)
    team.log.admin.remove_members_from_consumer_group("g")
    consumer.close()
    assert said(caplog, "auto-commit of group g failed: this consumer was removed from the group; poll() rejoins, and")
    assert team.log.admin.list_consumer_group_offsets("g") == {}


def test_who_was_removed_commits_nothing_is_told_and_joins_again(team: Team) -> None:
    """Its positions are refused; the next poll tells the listener what is lost, and makes it a member again."""
    listener = Listener()
    team.fill()
    consumer = team.join(listener, enable_auto_commit=False)
    team.poll_until(lambda: len(team.got) == 20)
    team.log.admin.remove_members_from_consumer_group("g")
    with pytest.raises(IllegalGeneration, match="is not a member"):
        consumer.commit()
    assert team.log.admin.list_consumer_group_offsets("g") == {}
    team.poll_until(lambda: listener.told[-1] == ("assigned", [0, 1, 2, 3]) and len(listener.told) > 1)
    assert ("lost", [0, 1, 2, 3]) in listener.told
    team.poll_until(lambda: len(team.got) == 40)
    consumer.commit()
    assert sum(at.offset for at in team.log.admin.list_consumer_group_offsets("g").values()) == 20


class Careful(Listener):
    """Commits what it is about to give up."""

    consumer: Consumer

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        super().on_partitions_revoked(partitions)
        self.consumer.commit()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_listener_may_commit_what_it_is_about_to_give_up(team: Team, strategy: str) -> None:
    """So nothing is read twice, although the consumer commits nothing automatically."""
    listener = Careful()
    team.fill(40)
    settings = {"partition_assignment_strategy": strategy, "enable_auto_commit": False}
    listener.consumer = team.join(listener, **settings)
    team.poll_until(lambda: len(team.got) == 40)
    team.join(**settings)
    team.poll_until(team.is_shared)
    team.fill(8)
    team.poll_until(lambda: len(team.got) >= 48)
    assert "revoked" in dict(listener.told) and len(team.got) == len(set(team.got)) == 48


def test_positions_that_a_transaction_commits_are_fenced_too(team: Team) -> None:
    """By the generation in which the transaction was given them."""
    team.fill()
    consumer = team.join(enable_auto_commit=False)
    team.poll_until(lambda: len(team.got) == 20)
    txn = team.log.transaction("etl")
    txn.__enter__()
    txn.send("t", b"x")
    txn.commit_offsets(consumer)
    team.join()
    team.poll_until(team.is_shared)
    with pytest.raises(IllegalGeneration):
        txn.__exit__(None, None, None)


def test_of_two_with_one_instance_id_the_older_ones_transaction_is_refused(team: Team) -> None:
    """The generation is still its own, but its place is another's: neither records nor positions are in."""
    old = team.join(group_instance_id="a")
    team.poll_until(team.is_shared)
    txn = team.log.transaction("copy")
    txn.__enter__()
    txn.append("out", [{"value": b"twice"}])
    txn.commit_offsets(old, {TopicPartition("t", 0): 1})
    team.members.remove(old)
    new = team.join(group_instance_id="a")
    team.poll_until(lambda: new.assignment() == ALL)
    with pytest.raises(FencedInstanceId):
        txn.__exit__(None, None, None)
    assert team.log.read("out").num_rows == 0 and new.committed(TopicPartition("t", 0)) is None
    old.close()


def test_positions_are_committed_while_a_poll_waits(team: Team) -> None:
    """Every `auto_commit_interval_ms`, although nothing comes that would end the waiting."""
    team.fill()
    consumer = team.join(auto_commit_interval_ms=1500)
    team.poll_until(lambda: len(team.got) == 20)
    began = time.monotonic()
    waiting = threading.Thread(target=consumer.poll, args=(6000,))
    waiting.start()
    while sum(at.offset for at in team.log.admin.list_consumer_group_offsets("g").values()) < 20:
        assert time.monotonic() - began < 4.5
        time.sleep(0.1)
    waiting.join()


def test_who_is_no_member_does_not_commit_for_a_group_that_is_shared(team: Team) -> None:
    """Neither a consumer with partitions assigned by hand, nor an administrator, a bookmark or a transaction that names
    the group, nor one without the coordinator's groups.
    """
    team.fill(4)
    team.join(enable_auto_commit=False)
    team.poll_until(team.is_shared)
    with team.log.consumer(group_id="g") as other:
        other.assign([TopicPartition("t", 0)])
        with pytest.raises(IllegalGeneration):
            other.commit({TopicPartition("t", 0): 1})
    with pytest.raises(GroupInUse):
        team.log.admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 1})
    with pytest.raises(GroupInUse), team.log.bookmark("g", "t"):
        pass
    txn = team.log.transaction("x")
    txn.__enter__()
    txn.commit_offsets("g", {TopicPartition("t", 0): 1})
    with pytest.raises(GroupInUse):
        txn.__exit__(None, None, None)
    assert team.log.admin.list_consumer_group_offsets("g") == {}
    with (
        spark_log.connect(team.log.journal.store.url) as embedded,
        pytest.raises(GroupInUse),
        embedded.consumer("t", group_id="g") as other,
    ):
        other.poll()


def test_a_bookmark_does_not_move_a_group_that_consumers_joined_meanwhile(team: Team) -> None:
    """It was free when the run began; the run is refused when it ends, and nothing is moved."""
    team.fill(4)
    bookmark = team.log.bookmark("g", "t").__enter__()
    team.join(enable_auto_commit=False)
    team.poll_until(team.is_shared)
    with pytest.raises(GroupInUse):
        bookmark.__exit__(None, None, None)
    assert team.log.admin.list_consumer_group_offsets("g") == {}


def test_a_consumer_that_does_not_poll_gives_its_partitions_up(team: Team) -> None:
    """max_poll_interval_ms: the others have them, and its commit is refused till it polls again."""
    listener = Listener()
    slow, quick = team.join(listener, max_poll_interval_ms=700, heartbeat_interval_ms=100), team.join()
    team.poll_until(team.is_shared)
    team.members.remove(slow)
    team.poll_until(lambda: quick.assignment() == ALL)
    with pytest.raises(IllegalGeneration):
        slow.commit({TopicPartition("t", 0): 7})
    team.members.append(slow)
    team.poll_until(team.is_shared)
    assert [what for what, _ in listener.told][-2:] == ["lost", "assigned"]


# --------------------------------------------------------------------------------------------------------- static members


def test_a_static_member_that_starts_again_has_its_partitions_and_nobody_rebalances(team: Team) -> None:
    """Within its session."""
    listener = Listener()
    team.join(listener, group_instance_id="a")
    static = team.join(group_instance_id="b")
    team.poll_until(team.is_shared)
    generation, had, told = team.generation(), static.assignment(), list(listener.told)
    team.members.remove(static)
    static.close()
    again = team.join(group_instance_id="b")
    team.poll_until(lambda: again.assignment() == had)
    assert (team.generation(), listener.told) == (generation, told)


def test_of_two_consumers_with_one_instance_id_the_older_one_ends(team: Team) -> None:
    """It says why, at every poll, and cannot commit."""
    old = team.join(group_instance_id="a")
    team.poll_until(team.is_shared)
    team.members.remove(old)
    new = team.join(group_instance_id="a")
    team.poll_until(lambda: new.assignment() == ALL)
    with pytest.raises(FencedInstanceId, match="'a'"):
        old.poll(5000)
    with pytest.raises(FencedInstanceId):
        old.poll()
    with pytest.raises(FencedInstanceId):
        old.commit({TopicPartition("t", 0): 1})
    old.close()
    assert new.assignment() == ALL


# ------------------------------------------------------------------------------------------------------- what goes wrong


def test_what_the_coordinator_refuses_is_said_in_words(team: Team) -> None:
    """A session that is too short, and assignors that the others do not have."""
    short = team.join(session_timeout_ms=50, heartbeat_interval_ms=10)
    with pytest.raises(InvalidRequest, match="session_timeout_ms"):
        team.poll_until(team.is_shared)
    short.close()
    team.members.clear()
    team.join(partition_assignment_strategy="range")
    team.poll_until(team.is_shared)
    team.join(partition_assignment_strategy="sticky")
    with pytest.raises(InvalidRequest, match="support none of sticky"):
        team.poll_until(team.is_shared)


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


def test_a_restart_of_the_coordinator_is_no_rebalance(services: Services, tmp_path: Path) -> None:
    """The members keep generation and partitions, continue to read and commit; no listener is called."""
    running = services.start(tmp_path / "log")
    team, listener = Team(services.url(tmp_path / "log")), Listener()
    first, second = team.join(listener, heartbeat_interval_ms=100), team.join(heartbeat_interval_ms=100)
    team.poll_until(team.is_shared)
    generation, told = team.generation(), list(listener.told)
    had = first.assignment(), second.assignment()
    address = running.coordinator.address
    services.stop(running)
    time.sleep(0.3)
    services.start(tmp_path / "log", listen=address)
    team.fill()
    team.poll_until(lambda: len(team.got) == 20)
    time.sleep(0.5)
    team.poll_until(lambda: True)
    first.commit()
    second.commit()
    assert sum(at.offset for at in team.log.admin.list_consumer_group_offsets("g").values()) == 20
    assert (team.generation(), listener.told) == (generation, told)
    assert (first.assignment(), second.assignment()) == had
    team.members.remove(second)
    second.close()
    team.poll_until(lambda: first.assignment() == ALL)
    team.close()
    services.stop_all()


def test_heartbeats_that_are_refused_are_heard_of(services: Services, tmp_path: Path) -> None:
    """After a coordinator returns that rejects the consumer's token, the next poll raises its error, and its partitions
    are lost.
    """
    running = services.start(tmp_path / "log")
    team, listener = Team(services.url(tmp_path / "log")), Listener()
    consumer = team.join(listener, heartbeat_interval_ms=100)
    team.poll_until(team.is_shared)
    services.stop(running)
    services.start(
        tmp_path / "log", listen=running.coordinator.address, tokens=parse_tokens({"me": "admin a-token-of-the-tests"})
    )
    with pytest.raises(AuthenticationFailed, match="no token"):
        team.poll_until(lambda: False)
    assert listener.told[-1] == ("lost", [0, 1, 2, 3]) and consumer.assignment() == set()
    consumer.close(autocommit=False)
    services.stop_all()


MEMBER = """
import json, sys
import spark_log
consumer = spark_log.connect(sys.argv[1]).consumer(
    "t", group_id="g", auto_offset_reset="earliest", session_timeout_ms=1000, heartbeat_interval_ms=200,
    auto_commit_interval_ms=0,
)
while True:
    for tp, records in consumer.poll(100).items():
        print(json.dumps([tp.partition, [record.offset for record in records]]), flush=True)
"""


def test_partitions_of_a_process_that_is_killed_go_to_the_others_when_its_session_is_over(team: Team) -> None:
    """Nothing is left out, and what it had committed is not read again."""
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, team.url], cwd=ROOT, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        team.fill(4)
        theirs = [json.loads(process.stdout.readline()) for _ in range(4)]
        assert sorted(partition for partition, _ in theirs) == [0, 1, 2, 3]
        survivor = team.join(auto_commit_interval_ms=0)
        team.poll_until(lambda: len(survivor.assignment()) == 2)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
        process.stdout.close()
    killed = time.monotonic()
    team.poll_until(lambda: survivor.assignment() == ALL)
    assert time.monotonic() - killed < 5
    team.fill(40)
    team.poll_until(lambda: len({at for at in team.got if at[2] >= 1}) == 40)
    assert [at for at in team.got if at[2] == 0] == [], "those had been committed by the one that was killed"


def test_a_coordinator_that_is_killed_and_started_again_has_its_groups(tmp_path: Path) -> None:
    """Real processes: members keep their partitions, read on meanwhile, and commit; no listener is called."""
    conf = tmp_path / "coordinator.ini"
    conf.write_text("[groups]\ninitial.rebalance.delay = 1ms\n")
    port = free_port()
    process = Process(tmp_path / "log", port, "--conf", str(conf), "--maintain-every", "never")
    team, listener = Team(f"pylog://{process.address}"), Listener()
    first, second = team.join(listener, enable_auto_commit=False), team.join(enable_auto_commit=False)
    team.poll_until(team.is_shared)
    generation, told = team.generation(), list(listener.told)
    team.fill(8)
    process.kill()
    team.poll_until(lambda: len(team.got) == 8)
    process = Process(tmp_path / "log", port, "--conf", str(conf), "--maintain-every", "never")
    team.fill(8)
    team.poll_until(lambda: len(team.got) == 16)
    first.commit()
    second.commit()
    assert sum(at.offset for at in team.log.admin.list_consumer_group_offsets("g").values()) == 16
    assert (team.generation(), listener.told) == (generation, told)
    team.close()
    assert process.terminate() == 0


def test_members_keep_their_partitions_when_a_standby_takes_over(
    services: Services, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator is killed and stays away.  The standby has the groups with their members, and accepts their
    positions.

    Each member logs once that it asks again, and once that it is answered.
    """
    first = Process(tmp_path / "log", free_port(), "--maintain-every", "never")
    standby = services.start(tmp_path / "log", takeover_ms=1000)
    team, listener = Team(f"pylog://{first.address},{standby.coordinator.address}"), Listener()
    one, other = (
        team.join(told, enable_auto_commit=False, heartbeat_interval_ms=200) for told in (listener, Listener())
    )
    team.poll_until(team.is_shared)
    generation, told = team.generation(), list(listener.told)
    first.kill()
    team.fill(8)
    assert standby.coordinator.leading
    team.poll_until(lambda: len(team.got) == 8)
    one.commit()
    other.commit()
    assert sum(at.offset for at in team.log.admin.list_consumer_group_offsets("g").values()) == 8
    assert (team.generation(), listener.told) == (generation, told)
    team.poll_until(lambda: len(said(caplog, "answers again")) >= 2)
    away, again = said(caplog, "the coordinator does not respond; retrying"), said(caplog, "answers again")
    assert (len(away), len(again)) == (2, 2), [away, again]
    team.close()
    services.stop_all()


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


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
