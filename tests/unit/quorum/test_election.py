"""Votes, pre-votes and the three causes of an election."""

from __future__ import annotations

import pytest

from spark_log.quorum.messages import EMPTY, EndQuorumEpoch, NotLeaderResponse, Position, VoteRequest, VoteResponse
from tests.unit.quorum.replicas import (
    CONFIG,
    LATER_MS,
    ONE,
    THREE,
    TWO,
    begin,
    fetched,
    give,
    granted,
    leader,
    replica,
    sent,
    vote,
    work,
)


def answer(messages: list[object]) -> VoteResponse:
    (message,) = messages
    assert isinstance(message, VoteResponse)
    return message


# Promise: raft.md#write-the-loop
def test_a_vote_is_durable_before_it_is_said() -> None:
    """Otherwise a replica that crashes could vote twice in an epoch."""
    machine = replica()
    machine.step(vote(TWO, ONE, 1, EMPTY), 0)
    ready = machine.ready()
    assert ready.persist is not None and (ready.persist.epoch, ready.persist.voted) == (1, TWO)
    assert ready.send == () and machine.ready().send == ()
    machine.persisted(ready.persist.number, 0)
    assert answer(list(machine.ready().send)).granted


def test_one_vote_in_an_epoch() -> None:
    """The same candidate gets it again, another one does not, also after a restart."""
    machine = replica()
    assert answer(give(machine, vote(TWO, ONE, 1, EMPTY))).granted
    assert answer(give(machine, vote(TWO, ONE, 1, EMPTY))).granted
    assert not answer(give(machine, vote(THREE, ONE, 1, EMPTY))).granted
    assert answer(give(machine, vote(THREE, ONE, 2, EMPTY))).granted
    restarted = replica(epoch=2, voted=THREE)
    assert not answer(give(restarted, vote(TWO, ONE, 2, EMPTY))).granted


def test_a_replica_that_knows_the_leader_votes_for_nobody_else_in_the_epoch() -> None:
    """Also if it has not voted."""
    machine = replica()
    give(machine, begin(TWO, ONE, 1))
    rejected = answer(give(machine, vote(THREE, ONE, 1, EMPTY)))
    assert not rejected.granted and rejected.leader == TWO and machine.leader == TWO


@pytest.mark.parametrize(
    ("end", "expected"),
    [((3, 1), True), ((2, 3), True), ((2, 4), True), ((2, 2), False), ((1, 9), False)],
    ids=["later epoch", "same", "longer", "shorter", "earlier epoch"],
)
@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_vote_is_for_a_log_that_is_up_to_date(end: tuple[int, int], expected: bool, pre_vote: bool) -> None:
    """Raft 5.4.1: the epoch of the last entry decides, then the end."""
    machine = replica(ONE, 1, 1, 2)
    assert answer(give(machine, vote(TWO, ONE, 4, Position(*end), pre_vote))).granted is expected


def test_a_pre_vote_writes_nothing() -> None:
    """KIP-996: it is not a vote, and more than one candidate may get it."""
    machine = replica()
    for candidate in (TWO, THREE):
        machine.step(vote(candidate, ONE, 0, EMPTY, pre_vote=True), 0)
        ready = machine.ready()
        assert ready.persist is None and answer(list(ready.send)).granted


def test_a_follower_that_hears_from_its_leader_grants_no_pre_vote() -> None:
    """One that has followed and has no answer yet does."""
    machine = replica()
    give(machine, begin(TWO, ONE, 1))
    assert answer(give(machine, vote(THREE, ONE, 1, EMPTY, pre_vote=True))).granted
    give(machine, fetched(TWO, ONE, 1, EMPTY))
    rejected = answer(give(machine, vote(THREE, ONE, 1, EMPTY, pre_vote=True)))
    assert not rejected.granted and rejected.leader == TWO


def test_a_candidate_counts_its_vote_when_it_is_durable() -> None:
    """A voter alone leads with the report of its disk."""
    machine = replica(voters=(ONE,))
    machine.tick(0)
    ready = machine.ready()
    assert machine.role == "candidate" and ready.persist is not None
    machine.persisted(ready.persist.number, 0)
    assert machine.is_leader


def test_votes_of_replicas_that_are_not_voters_do_not_count() -> None:
    """Nor those of the directory that a node had before."""
    machine = replica()
    machine.tick(LATER_MS)
    sent(machine, LATER_MS)
    for stranger in (TWO._replace(directory="b"), TWO._replace(id=9)):
        give(machine, granted(stranger, ONE, 0, pre_vote=True), LATER_MS)
    assert machine.role == "prospective"
    give(machine, granted(TWO, ONE, 0, pre_vote=True), LATER_MS)
    assert machine.role == "candidate" and machine.epoch == 1


def test_a_fetch_timeout_begins_an_election() -> None:
    """The first cause.  Without a majority the replica follows its leader again, in the same epoch."""
    machine = replica()
    give(machine, begin(TWO, ONE, 1))
    machine.tick(LATER_MS)
    assert machine.role == "prospective" and machine.epoch == 1 and machine.leader == TWO
    assert [type(message) for message in sent(machine, LATER_MS)] == [VoteRequest, VoteRequest]
    machine.tick(LATER_MS + 2 * CONFIG.election_timeout_ms)
    assert machine.role == "follower" and machine.epoch == 1


def test_a_slow_disk_is_not_a_silent_leader() -> None:
    """A follower that waits for its disk cannot fetch: it does not stand for election meanwhile."""
    machine = replica()
    machine.step(begin(TWO, ONE, 1), 0)
    ready = machine.ready()
    assert machine.next_deadline() is None
    machine.tick(10 * LATER_MS)
    assert machine.role == "follower" and ready.persist is not None
    machine.persisted(ready.persist.number, 10 * LATER_MS)
    assert machine.role == "follower"


# Promise: raft.md#times
def test_a_lost_quorum_ends_the_epoch() -> None:
    """The second cause: the leader resigns, and says so."""
    machine = leader()
    machine.tick(2 * LATER_MS)
    assert not machine.is_leader
    ends = [message for message in sent(machine, 2 * LATER_MS) if isinstance(message, EndQuorumEpoch)]
    assert [message.target for message in ends] == [TWO, THREE]


def test_the_end_of_an_epoch_begins_an_election() -> None:
    """The third cause: the first successor stands immediately, the next one waits; nobody follows that leader again."""
    for place, key in enumerate((TWO, THREE)):
        machine = replica(key)
        give(machine, begin(ONE, key, 1))
        give(machine, EndQuorumEpoch(source=ONE, target=key, epoch=1, successors=(TWO, THREE)))
        assert machine.next_deadline() == place * CONFIG.election_timeout_ms // 4
        give(machine, begin(ONE, key, 1))
        assert machine.leader is None


def test_a_replica_that_knows_no_voters_votes_and_does_not_stand() -> None:
    """It may be among those of a quorum that begins with a state: a majority without the state must not begin."""
    machine = replica(TWO, voters=())
    machine.tick(10 * LATER_MS)
    assert machine.role == "unattached"
    assert not any(isinstance(message, VoteRequest) for message in sent(machine, 10 * LATER_MS))
    answers = give(machine, vote(ONE, TWO, 2, Position(epoch=1, offset=7)), 10 * LATER_MS)
    assert answers == [granted(TWO, ONE, 2)]


# Promise: raft.md#stop-a-node
def test_a_refused_connection_begins_an_election() -> None:
    """Nobody listens at the leader's address: its process is gone."""
    machine = replica()
    give(machine, begin(TWO, ONE, 1))
    machine.unreachable(THREE, 0)
    assert machine.role == "follower"
    machine.unreachable(TWO, 0)
    assert machine.role == "prospective"


# Promise: raft.md#differences-from-kafka
def test_a_leader_that_restarts_does_not_lead_its_epoch_again() -> None:
    """It may have lost entries that it had announced.  It does not follow itself either."""
    machine = replica(ONE, 1, epoch=1, voted=ONE)
    assert not machine.is_leader
    give(machine, NotLeaderResponse(source=TWO, target=ONE, epoch=1, leader=ONE))
    give(machine, granted(TWO, ONE, 1))
    assert machine.role == "unattached"
    machine.tick(LATER_MS)
    give(machine, granted(TWO, ONE, 1, pre_vote=True), LATER_MS)
    assert machine.role == "candidate" and machine.epoch == 2


def test_a_request_of_an_earlier_epoch_is_answered_with_the_present_one() -> None:
    """And changes nothing; a response is ignored."""
    machine = replica(epoch=5)
    (message,) = give(machine, begin(TWO, ONE, 4))
    assert message == NotLeaderResponse(source=ONE, target=TWO, epoch=5, leader=None)
    assert give(machine, granted(TWO, ONE, 4)) == []
    assert machine.epoch == 5 and machine.leader is None


def test_two_leaders_in_an_epoch_are_a_broken_invariant() -> None:
    """The node stops, before it mixes their logs."""
    machine = replica()
    give(machine, begin(TWO, ONE, 1))
    with pytest.raises(AssertionError, match="only one can have a majority"):
        machine.step(begin(THREE, ONE, 1), 0)


# Promise: raft.md#append-entries, raft.md#times
def test_every_input_handles_the_timers_first() -> None:
    """A leader that was stopped for long does not take in what waited for it."""
    machine = leader()
    assert machine.append([b"x"], 2 * LATER_MS) is None
    assert machine.role == "unattached"
    machine = leader()
    assert machine.append([b"x"], LATER_MS) == 2
    assert len(work(machine, LATER_MS)) == 2
