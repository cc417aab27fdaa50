"""Commits of consumers that share a group: only members commit, and only for partitions that they own."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

import pytest

import spark_log
from spark_log.client.consumer.consumer import Consumer
from spark_log.errors import FencedInstanceId, GroupInUse, IllegalGeneration
from spark_log.model import TopicPartition
from tests.client.team import ALL, Listener, Team
from tests.logged import logged


def test_an_auto_commit_of_who_was_removed_says_so(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is committed, and the warning says what follows."""
    team.fill()
    consumer = team.join()
    team.poll_until(lambda: len(team.got) == 20)
    team.log.admin.remove_members_from_consumer_group("g")
    consumer.close()
    assert logged(
        caplog, "auto-commit of group g failed: this consumer was removed from the group; poll() rejoins, and"
    )
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


# Promise: clients.md#transactions
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


# Promise: service.md#groups
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
        spark_log.connect(team.log.journal.metadata.url) as embedded,
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
