"""Which replica of a quorum has a wrong state, by the digests that all of them send."""

from __future__ import annotations

from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.state_digests import StateDigests
from spark_log.quorum.wire import NodeDigest

ONE, TWO, THREE = VOTERS = tuple(ReplicaKey(number, f"d{number}") for number in (1, 2, 3))


class Replica:
    def __init__(self, key: ReplicaKey) -> None:
        self.key, self.digests = key, StateDigests()

    def computes(self, version: int, digest: str, form: int = 1) -> bool:
        return self.digests.note(self.key, VOTERS, self.key, [NodeDigest(self.key, form, version, digest)])

    def hears(self, *others: Replica) -> bool:
        found = [self.digests.note(self.key, VOTERS, other.key, other.digests.to_send) for other in others]
        return any(found)


def replicas() -> tuple[Replica, Replica, Replica]:
    return Replica(ONE), Replica(TWO), Replica(THREE)


def test_a_follower_hears_of_a_majority_from_the_leader() -> None:
    """Followers do not talk to each other.  The wrong one says so, and the others have nothing to say."""
    leader, second, third = replicas()
    for replica, digest in ((leader, "a"), (second, "a"), (third, "b")):
        replica.computes(10, digest)
    assert not leader.hears(second) and leader.digests.compared == 10
    assert third.hears(leader) and third.digests.is_wrong
    assert "its state at version 10 is not that of the other nodes" in third.digests.problem
    assert leader.hears(third) and second.hears(leader)
    assert not (leader.digests.problem or second.digests.problem)
    assert leader.digests.do_differ and second.digests.do_differ


# Promise: quorum.md#when-the-states-of-nodes-differ
def test_a_leader_may_be_the_wrong_one() -> None:
    leader, second, third = replicas()
    for replica, digest in ((leader, "b"), (second, "a"), (third, "a")):
        replica.computes(10, digest)
    assert leader.hears(second) and not leader.digests.is_wrong
    assert "no majority agrees: those of nodes 1 and 2" in leader.digests.problem
    assert leader.hears(third) and leader.digests.is_wrong
    second.hears(leader)
    assert not second.digests.problem


# Promise: quorum.md#when-the-states-of-nodes-differ
def test_a_wrong_state_stays_wrong_until_it_is_compared_again() -> None:
    """Also while the others are away, and after a restart; then it may be right."""
    leader, second, third = replicas()
    for replica, digest in ((leader, "a"), (second, "a"), (third, "b")):
        replica.computes(10, digest)
    leader.hears(second, third)
    third.hears(leader)
    leader.computes(20, "c")
    third.computes(20, "d")
    third.hears(leader)
    assert third.digests.is_wrong
    restarted = Replica(THREE)
    leader.hears(third)
    restarted.computes(20, "c")
    assert not restarted.hears(leader) and not restarted.digests.problem and restarted.digests.compared == 20
    leader.hears(restarted)
    assert not leader.digests.problem and not leader.digests.do_differ


# Promise: quorum.md#when-the-states-of-nodes-differ
def test_versions_and_forms_are_compared_with_their_own() -> None:
    """A node that is behind, or of another release."""
    leader, second, third = replicas()
    leader.computes(10, "a")
    leader.computes(20, "b")
    second.computes(10, "a")
    third.computes(20, "x", form=2)
    assert not leader.hears(second, third)
    assert leader.digests.compared == 10 and not leader.digests.problem


def test_nodes_of_a_newer_release_do_not_keep_others_from_comparing() -> None:
    """While one node of three is upgraded, the two others still find that their states differ."""
    leader, second, third = replicas()
    for version in range(10, 100, 10):
        third.computes(version, "x", form=2)
        leader.hears(third)
        second.hears(third)
    leader.computes(100, "a")
    second.computes(100, "b")
    assert leader.hears(second) and leader.digests.compared == 100
