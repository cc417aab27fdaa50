"""Whether a quorum is healthy, by the answers of its nodes."""

from __future__ import annotations

from dataclasses import replace

from spark_log.errors import CoordinatorNotAvailable
from spark_log.quorum.machine import AWAY_MS
from spark_log.quorum.messages import EMPTY, ReplicaKey
from spark_log.quorum.node.health import Answers, quorum_findings
from spark_log.quorum.node.node_status import NodeStatus, ReplicaStatus

ONE, TWO, THREE = (ReplicaKey(number, f"d{number}") for number in (1, 2, 3))


def of_replica(key: ReplicaKey, fetched_ms_ago: int = 100) -> ReplicaStatus:
    return ReplicaStatus(
        key=key, is_voter=True, log_end=9, lag=1, fetched_ms_ago=fetched_ms_ago, caught_up_ms_ago=fetched_ms_ago
    )


LEADS = NodeStatus(
    cluster_id="c",
    key=ONE,
    role="leader",
    epoch=7,
    leader=ONE,
    voters=(ONE, TWO, THREE),
    are_voters_committed=True,
    high_watermark=10,
    log_start=0,
    log_end=10,
    durable_end=10,
    applied=10,
    snapshot=EMPTY,
    replication=(of_replica(TWO), of_replica(THREE)),
    addresses={1: "a:1", 2: "b:1", 3: "c:1"},
    problems={2: None, 3: None},
    elections=1,
    writes=1,
    write_ms_sum=1,
    write_ms_max=1,
    writing_ms=0,
    is_full=False,
)
AWAY = CoordinatorNotAvailable("the node at c:1 does not answer: Connection refused")


def said(answers: Answers) -> dict[str, tuple[bool, str]]:
    return {check: (healthy, says) for check, healthy, says in quorum_findings(answers)}


# Promise: quorum.md#watch-it
def test_a_quorum_says_how_many_nodes_may_fail() -> None:
    """All are well; one is away; two are, and the leader has not noticed yet; none leads."""
    found = said({"a:1": LEADS})
    assert found["quorum"] == (True, "node 1 leads epoch 7; 3 of 3 voters are well, 1 more may fail")
    assert found["quorum node 2"] == (True, "follows, 1 entry behind")
    problems = {2: None, 3: "it cannot be reached: Connection refused"}
    one_away = replace(LEADS, replication=(of_replica(TWO), of_replica(THREE, AWAY_MS + 1)), problems=problems)
    found = said({"a:1": one_away, "c:1": AWAY})
    assert found["quorum"] == (True, "node 1 leads epoch 7; 2 of 3 voters are well, no further node may fail")
    assert found["quorum node 3"][0] is False and "Connection refused" in found["quorum node 3"][1]
    assert "quorum node at c:1" not in found
    assert said({"a:1": replace(one_away, replication=())})["quorum"][0] is False
    alone = replace(LEADS, role="prospective", leader=None)
    assert said({"a:1": alone, "c:1": AWAY}) == {
        "quorum": (False, f"no node leads: node 1 is prospective in epoch 7; {AWAY}")
    }


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_a_quorum_whose_log_nobody_leads_is_not_healthy() -> None:
    """The nodes have elected a leader, and its application cannot lead, such as beside another log."""
    assert "log" not in said({"a:1": LEADS})
    found = said({"a:1": replace(LEADS, application_problem="another log is there")})
    assert found["log"] == (False, "no node leads the log: another log is there")


def test_a_node_without_a_vote_is_named() -> None:
    """A forgotten `add-voter`.  Not a removed directory that no longer fetches, nor one whose voter is named."""
    new = replace(of_replica(ReplicaKey(3, "new")), is_voter=False)
    two_left = replace(LEADS, voters=(ONE, TWO), replication=(of_replica(TWO), new))
    healthy, says = said({"a:1": two_left})["quorum node 3"]
    assert not healthy and "it fetches without a vote: run `pylog quorum add-voter 3@new`" in says
    silent = replace(new, fetched_ms_ago=AWAY_MS + 1)
    assert "quorum node 3" not in said({"a:1": replace(two_left, replication=(of_replica(TWO), silent))})
    other = replace(LEADS, replication=(of_replica(TWO), of_replica(THREE), new))
    assert said({"a:1": other})["quorum node 3"] == (True, "follows, 1 entry behind")


# Promise: quorum.md#watch-it
def test_a_node_says_what_its_disk_lacks() -> None:
    """The leader does not know that."""
    full = replace(LEADS, key=TWO, role="follower", is_full=True)
    hung = replace(LEADS, key=THREE, role="follower", writing_ms=12_000)
    found = said({"a:1": LEADS, "b:1": full, "c:1": hung, "d:1": AWAY})
    assert found["quorum node 2"] == (False, "its disk is full: free some space")
    assert found["quorum node 3"] == (False, "its disk has not finished a write for 12 s")
    assert found["quorum node at d:1"] == (False, str(AWAY))


# Promise: quorum.md#watch-it
def test_a_copy_that_is_late_is_named() -> None:
    """By the leader, which writes it."""
    assert said({"a:1": replace(LEADS, copy_problem="it is late")})["quorum copy"] == (False, "it is late")
    assert "quorum copy" not in said({"a:1": LEADS})


# Promise: quorum.md#when-the-states-of-nodes-differ
def test_states_that_differ_are_named() -> None:
    """A node whose state is wrong is not well; without a majority, no node is named."""
    wrong = replace(LEADS, key=TWO, role="follower", replication=(), state_problem="its state is", is_state_wrong=True)
    found = said({"a:1": LEADS, "b:1": wrong})
    assert found["quorum node 2"] == (False, "its state is") and found["quorum"][0]
    assert "2 of 3 voters are well, no further node may fail" in found["quorum"][1]
    assert said({"a:1": replace(LEADS, state_problem="the states differ")})["quorum states"] == (
        False,
        "the states differ",
    )
