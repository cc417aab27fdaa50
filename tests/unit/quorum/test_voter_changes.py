"""One voter at a time; directory ids."""

from __future__ import annotations

import pytest

from spark_log.quorum.leading import VoterChange
from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import (
    EMPTY,
    Entry,
    FetchRequest,
    Kind,
    NotLeaderResponse,
    Position,
    ReplicaKey,
    VoteResponse,
)
from spark_log.quorum.voters import Voters, encode_voters
from tests.unit.quorum.replicas import (
    CONFIG,
    LATER_MS,
    ONE,
    THREE,
    TWO,
    VOTERS,
    data,
    fetch,
    fetched,
    give,
    granted,
    leader,
    replica,
    sent,
    vote,
)

FOUR = ReplicaKey(4, "a")
FIRST = Position(1, 2)


def serving() -> Machine:
    """A leader that has committed its first entries; node 4 fetches as an observer, and has them."""
    machine = leader()
    for follower in (TWO, THREE, FOUR):
        give(machine, fetch(follower, ONE, 1, FIRST), LATER_MS)
    return machine


# Promise: raft.md#change-the-voters
def test_a_replica_that_fetches_and_has_everything_is_added() -> None:
    """The new set is in force immediately, and counts for its own entry."""
    machine = serving()
    assert machine.add_voter(FOUR, LATER_MS) is VoterChange.NONE
    assert machine.voters == (*VOTERS, FOUR)
    sent(machine, LATER_MS)
    give(machine, fetch(TWO, ONE, 1, Position(1, 3)), LATER_MS)
    assert machine.high_watermark == 2
    give(machine, fetch(FOUR, ONE, 1, Position(1, 3)), LATER_MS)
    assert machine.high_watermark == 3


# Promise: quorum.md#replace-a-disk-or-a-machine, raft.md#change-the-voters
def test_one_that_lacks_entries_is_not_added() -> None:
    """Nor one that does not fetch, or no longer."""
    machine = leader()
    give(machine, fetch(TWO, ONE, 1, FIRST), LATER_MS)
    assert machine.add_voter(FOUR, LATER_MS) is VoterChange.REQUEST_TIMED_OUT
    give(machine, fetch(FOUR, ONE, 1, EMPTY), LATER_MS)
    assert machine.add_voter(FOUR, LATER_MS) is VoterChange.REQUEST_TIMED_OUT
    give(machine, fetch(FOUR, ONE, 1, FIRST), LATER_MS)
    later = LATER_MS + CONFIG.fetch_timeout_ms
    give(machine, fetch(TWO, ONE, 1, FIRST), later)
    assert machine.add_voter(FOUR, later) is VoterChange.REQUEST_TIMED_OUT


# Promise: quorum.md#replace-a-disk-or-a-machine, raft.md#change-the-voters
def test_a_second_change_waits_for_the_first() -> None:
    machine = serving()
    assert machine.add_voter(FOUR, LATER_MS) is VoterChange.NONE
    assert machine.remove_voter(THREE, LATER_MS) is VoterChange.REQUEST_TIMED_OUT
    sent(machine, LATER_MS)
    for follower in (TWO, THREE):
        give(machine, fetch(follower, ONE, 1, Position(1, 3)), LATER_MS)
    assert machine.remove_voter(THREE, LATER_MS) is VoterChange.NONE
    assert machine.voters == (ONE, TWO, FOUR)


# Promise: raft.md#change-the-voters
def test_a_new_leader_first_commits_an_entry_of_its_epoch() -> None:
    """Otherwise two sets of voters without a common majority may be in force (Raft, single-server changes)."""
    machine = leader(1, epoch=1)
    assert machine.remove_voter(THREE, LATER_MS) is VoterChange.REQUEST_TIMED_OUT
    give(machine, fetch(TWO, ONE, 2, machine.log.position), LATER_MS)
    assert machine.remove_voter(THREE, LATER_MS) is VoterChange.NONE


# Promise: quorum.md#when-a-majority-is-lost, raft.md#change-the-voters
def test_a_change_that_leaves_no_majority_that_fetches_is_refused() -> None:
    """Node 2 was not heard of: without node 3 the leader would lose its quorum."""
    machine = leader()
    later = LATER_MS * 2 - 1
    give(machine, fetch(THREE, ONE, 1, FIRST), later)
    give(machine, fetch(THREE, ONE, 1, FIRST, 2), later + 1)
    assert machine.remove_voter(THREE, later + 1) is VoterChange.REQUEST_TIMED_OUT
    assert machine.remove_voter(TWO, later + 1) is VoterChange.NONE


def test_a_voter_whose_removal_is_not_committed_stands_for_election() -> None:
    """The leader lost the entry, which only the removed voter has.  That one is elected, and resigns when its removal
    is committed (Raft's thesis, 4.2.2).
    """
    removal = Entry(2, 1, Kind.VOTERS, encode_voters((TWO,)))
    machine = replica(ONE, voters=(ONE, TWO), entries=(*data(1, 1), removal), epoch=1)
    machine.tick(LATER_MS)
    assert machine.role == "prospective" and machine.voters == (TWO,)
    give(machine, granted(TWO, ONE, 1, pre_vote=True), LATER_MS)
    give(machine, granted(TWO, ONE, 2), LATER_MS)
    assert machine.is_leader and machine.high_watermark == 0
    give(machine, fetch(TWO, ONE, 2, machine.log.position), LATER_MS)
    assert machine.high_watermark == 4 and machine.role == "unattached"
    machine.tick(3 * LATER_MS)
    assert machine.role == "unattached"


# Promise: raft.md#change-the-voters
def test_what_cannot_be_changed() -> None:
    machine = serving()
    assert machine.add_voter(ReplicaKey(3, "b"), LATER_MS) is VoterChange.DUPLICATE_VOTER
    assert machine.remove_voter(FOUR, LATER_MS) is VoterChange.VOTER_NOT_FOUND
    assert machine.remove_voter(ReplicaKey(3, "b"), LATER_MS) is VoterChange.VOTER_NOT_FOUND
    assert machine.remove_voter(ONE, LATER_MS) is VoterChange.INVALID_REQUEST
    assert replica(TWO).add_voter(FOUR, 0) is VoterChange.NOT_LEADER_OR_FOLLOWER
    assert replica(TWO).remove_voter(THREE, 0) is VoterChange.NOT_LEADER_OR_FOLLOWER


# Promise: raft.md#write-the-disk
def test_a_new_disk_does_not_answer_for_the_old_one() -> None:
    """Messages for another directory id are ignored."""
    machine = replica(ReplicaKey(3, "b"))
    assert not any(isinstance(message, VoteResponse) for message in give(machine, vote(ONE, THREE, 5, EMPTY)))
    assert machine.epoch == 0


def test_a_replica_that_is_not_a_voter_asks_for_the_leader_and_stands_for_no_election() -> None:
    """It asks the voters of other nodes; an answer to a fetch shows the leader as well."""
    machine = replica(ReplicaKey(3, "b"))
    machine.tick(0)
    (request,) = sent(machine)
    assert isinstance(request, FetchRequest) and request.target in (ONE, TWO)
    machine.tick(10 * LATER_MS)
    assert machine.role == "unattached" and machine.epoch == 0
    give(machine, fetched(ONE, machine.key, 0, EMPTY))
    assert machine.leader == ONE


# Promise: raft.md#change-the-voters
@pytest.mark.parametrize("voters", [(), (THREE,), (ONE, THREE)], ids=["none", "its former disk", "one that is gone"])
def test_a_replica_that_is_not_a_voter_asks_every_node_that_it_meets(voters: Voters) -> None:
    """A new disk knows no voters, and those in a log that is not complete may all be gone.  So it also finds the next
    leader, if the first one dies before the replica has the whole log.
    """
    machine = replica(ReplicaKey(3, "b"), voters=voters)
    machine.meet(ReplicaKey(1, "b"), 0)
    machine.meet(TWO, 0)
    sent(machine)  # asked before it had met all
    asked = set()
    for time in range(20):
        machine.tick(time * LATER_MS)
        asked |= {message.target for message in sent(machine, time * LATER_MS)}
    assert asked == {ReplicaKey(1, "b"), TWO}
    late_ms = 20 * LATER_MS
    (request,) = give(machine, NotLeaderResponse(source=TWO, target=machine.key, epoch=1, leader=ONE), late_ms)
    assert request.target == ONE
