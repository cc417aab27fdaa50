"""Why a change of voters is refused, voters that disagree, and the metrics of a node."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from simulation.levels import supporting
from spark_log.cli.commands.quorum_admin import replication_rows, status_fields
from spark_log.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    NotLeaderOrFollower,
    RequestTimedOut,
    SparkLogError,
)
from spark_log.journal.context import Proposal
from spark_log.metadata.commands import DeleteTopic, SeveralCommands, UpdateFeature
from spark_log.metadata.features import METADATA_VERSION
from spark_log.quorum.leading import VoterChange
from spark_log.quorum.messages import EMPTY, ReplicaKey
from spark_log.quorum.node.admin import leader_among, replica_to_add
from spark_log.quorum.node.node_metrics import metrics_text
from spark_log.quorum.node.node_status import NodeStatus, ReplicaStatus, voter_problems
from spark_log.quorum.node.node_tools import refusal
from spark_log.quorum.voters import check_quorum
from spark_log.server.quorum.commands import check_nodes_understand, refuse_levels
from spark_log.server.quorum.description import quorum_reply

ONE, TWO, THREE = (ReplicaKey(number, f"d{number}") for number in (1, 2, 3))


def of_replica(key: ReplicaKey, log_end: int, *, is_voter: bool) -> ReplicaStatus:
    return ReplicaStatus(
        key=key, is_voter=is_voter, log_end=log_end, lag=90 - log_end, fetched_ms_ago=250, caught_up_ms_ago=None
    )


LEADS = NodeStatus(
    cluster_id="c",
    key=ONE,
    role="leader",
    epoch=7,
    leader=ONE,
    voters=(ONE, TWO),
    are_voters_committed=True,
    high_watermark=80,
    log_start=5,
    log_end=90,
    durable_end=90,
    applied=80,
    snapshot=EMPTY,
    replication=(of_replica(TWO, 90, is_voter=True), of_replica(THREE, 30, is_voter=False)),
    addresses={},
    problems={2: None, 3: "it does not answer"},
    elections=4,
    writes=10,
    write_ms_sum=25,
    write_ms_max=9,
    writing_ms=0,
    is_full=False,
)


# Promise: cli.md#pylog-quorum-add-voter, cli.md#pylog-quorum-remove-voter, raft.md#tools-of-operators
@pytest.mark.parametrize(
    ("change", "key", "status", "reason"),
    [
        (
            VoterChange.DUPLICATE_VOTER,
            ReplicaKey(2, "new"),
            LEADS,
            "node 2 is a voter already, as 2@d2: remove that one",
        ),
        (VoterChange.DUPLICATE_VOTER, TWO, LEADS, "node 2 is a voter already, as 2@d2: there is nothing to do"),
        (VoterChange.VOTER_NOT_FOUND, ReplicaKey(2, "new"), LEADS, "2@new is not a voter: the voters are 1@d1, 2@d2"),
        (VoterChange.INVALID_REQUEST, ONE, LEADS, "node 1 leads: let another node lead first"),
        (VoterChange.REQUEST_TIMED_OUT, THREE, LEADS, "3@d3 lacks 50 committed entries; wait for it"),
        (
            VoterChange.REQUEST_TIMED_OUT,
            ReplicaKey(4, "d4"),
            LEADS,
            "4@d4 does not fetch from the leader; start that node",
        ),
        (VoterChange.REQUEST_TIMED_OUT, TWO, LEADS, "no majority of the other voters fetches; start them first"),
        (
            VoterChange.REQUEST_TIMED_OUT,
            THREE,
            replace(LEADS, replication=(replace(of_replica(THREE, 30, is_voter=False), fetched_ms_ago=42_500),)),
            "3@d3 has not fetched from the leader for 42 s; start that node",
        ),
        (
            VoterChange.REQUEST_TIMED_OUT,
            THREE,
            replace(LEADS, are_voters_committed=False),
            "another change is not committed",
        ),
        (VoterChange.NOT_LEADER_OR_FOLLOWER, TWO, replace(LEADS, leader=TWO), "this node does not lead; node 2 does"),
    ],
)
def test_a_change_that_is_refused_names_the_obstacle(
    change: VoterChange, key: ReplicaKey, status: NodeStatus, reason: str
) -> None:
    error = refusal(change, status, key)
    assert reason in str(error)
    later = change in (VoterChange.REQUEST_TIMED_OUT, VoterChange.NOT_LEADER_OR_FOLLOWER)
    assert isinstance(error, RequestTimedOut | NotLeaderOrFollower) == later


def test_of_a_nodes_directories_the_one_that_fetches_is_added() -> None:
    """The leader knows the removed directory for some minutes.  As long as the new one does not fetch, the one that
    fetched last is named; two that fetch are not told apart.
    """
    old = replace(of_replica(THREE, 30, is_voter=False), fetched_ms_ago=42_500)
    new = of_replica(ReplicaKey(3, "new"), 30, is_voter=False)
    assert replica_to_add(replace(LEADS, replication=(old,)), "3") == THREE
    assert replica_to_add(replace(LEADS, replication=(old, new)), "3") == new.key
    assert replica_to_add(replace(LEADS, replication=(old, new)), "3@d3") == THREE
    assert replica_to_add(replace(LEADS, replication=(replace(old, fetched_ms_ago=90_000), old)), "3") == THREE
    with pytest.raises(InvalidRequest, match="'3' is several replicas that the leader knows"):
        replica_to_add(replace(LEADS, replication=(of_replica(THREE, 30, is_voter=False), new)), "3")
    with pytest.raises(InvalidRequest, match="'4' is not a replica that the leader knows"):
        replica_to_add(LEADS, "4")


# Promise: quorum.md#watch-it, raft.md#tools-of-operators
def test_metrics_have_the_leader_the_lag_and_the_disk() -> None:
    lines = metrics_text(LEADS).splitlines()
    expected = {
        "pylog_quorum_epoch 7",
        "pylog_quorum_leader 1",
        "pylog_quorum_high_watermark 80",
        'pylog_quorum_lag{node="3",voter="false"} 60',
        'pylog_quorum_fetch_age_seconds{node="2",voter="true"} 0.25',
        'pylog_quorum_connected{node="3"} 0',
        "# TYPE pylog_quorum_elections_total counter",
        "pylog_quorum_fsyncs_total 10",
        "pylog_quorum_fsync_seconds_total 0.025",
    }
    assert expected <= set(lines)
    assert "pylog_quorum_leader -1" in metrics_text(replace(LEADS, leader=None, replication=()))


def test_the_newest_leader_counts() -> None:
    """One that was stopped may still think that it leads.  Without a leader, every answer is in the error."""
    old = replace(LEADS, key=TWO, epoch=6)
    answers: dict[str, NodeStatus | SparkLogError] = {"a:1": old, "b:1": LEADS}
    assert leader_among(answers) == ("b:1", LEADS)
    answers = {"a:1": replace(LEADS, role="prospective"), "b:1": CoordinatorNotAvailable("b:1 is away")}
    with pytest.raises(CoordinatorNotAvailable, match="no node leads: node 1 is prospective in epoch 7; b:1 is away"):
        leader_among(answers)


# Promise: raft.md#between-nodes
def test_two_quorums_of_one_cluster_id_are_told_apart() -> None:
    """Nodes that were formatted with `--standalone` each.  One that joins, or is behind, is not refused."""
    check_quorum((ONE, TWO), (TWO, THREE))
    check_quorum((), (ONE,))
    with pytest.raises(InvalidRequest, match="another quorum has the same cluster id: its voters are 2@d2, and here"):
        check_quorum((ONE,), (TWO,))


# Promise: quorum.md#set-up-three-nodes
def test_a_voter_that_runs_with_another_directory_is_a_problem() -> None:
    """A typing error in `--initial-voters`, or a new disk whose voter was not changed."""
    found = voter_problems((TWO, THREE), {2: None, 4: None}, {2: "other", 4: "d4"})
    assert found[2] is not None and "it runs with the directory id other, and the voter has d2" in found[2]
    assert found[3] == "its address is not known: add it to the peers of this node" and found[4] is None
    assert voter_problems((TWO,), {2: None}, {2: "d2"}) == {2: None}


# Promise: quorum.md#stop-restart-and-update-nodes
def test_a_level_that_a_node_does_not_understand_is_refused() -> None:
    """Also while a voter is away: it may run an older pylog."""
    levels = {one.id: 4 for one in LEADS.voters}
    check_nodes_understand(4, replace(LEADS, levels=levels))
    first, *_, last = sorted(levels)
    with pytest.raises(
        InvalidRequest, match=f"level 4 of metadata.version: node {first} supports level 3; update pylog"
    ):
        check_nodes_understand(4, replace(LEADS, levels={**levels, first: 3}))
    del levels[last]
    with pytest.raises(
        InvalidRequest, match=f"level 4 of metadata.version: node {last} is not connected; update pylog"
    ):
        check_nodes_understand(4, replace(LEADS, levels=levels))


def test_only_commands_that_raise_the_level_are_refused() -> None:
    """Alone, or in the atomic set in which the admin client sends them."""
    older = replace(LEADS, levels={one.id: 3 for one in LEADS.voters})
    raises, other = UpdateFeature(name=METADATA_VERSION, level=4), DeleteTopic(name="orders")
    unknown = (UpdateFeature(name=METADATA_VERSION, level=99), UpdateFeature(name="nope", level=4))
    asked = [Proposal(one) for one in (raises, SeveralCommands(commands=(other, raises)), other, *unknown)]
    with supporting(4):
        refuse_levels(asked, 3, lambda: older)
    assert [(type(one.error), one.done) for one in asked] == [(InvalidRequest, True)] * 2 + [(type(None), False)] * 3
    again = [Proposal(raises)]
    with supporting(4):
        refuse_levels(again, 4, lambda: older)
    assert not again[0].done


# Promise: quorum.md#watch-it
def test_clients_get_the_replicas_as_kafka_names_them() -> None:
    """The leader is a voter that has everything; -1 for a time that is not known."""
    found = quorum_reply(replace(LEADS, addresses={1: "one:9551"}), now_ms=10_000)
    assert (found.leader_id, found.leader_epoch, found.high_watermark, found.nodes) == (1, 7, 80, {1: "one:9551"})
    rows = [msgspec.structs.astuple(one) for one in (*found.voters, *found.observers)]
    assert rows == [(1, "d1", 90, 0, 10_000, 10_000, 0), (2, "d2", 90, 0, 9750, -1, 0), (3, "d3", 30, 60, 9750, -1, 0)]


def test_a_replica_that_has_not_fetched_from_this_leader_has_no_lag() -> None:
    """As in Kafka, its offset is -1: nobody knows what it has.  The largest lag is that of a replica without entries,
    as in `pylog_quorum_lag`: a follower that is dead since the election is not left out.
    """
    two = replace(of_replica(TWO, 0, is_voter=True), has_fetched=False)
    status = replace(LEADS, replication=(two,))
    columns = ("log_end_offset", "lag", "last_fetch_timestamp", "last_caught_up_timestamp", "status")
    leader, follower = replication_rows(found := quorum_reply(status, 10_000))
    assert [leader[name] for name in columns] == [90, 0, 10_000, 10_000, "Leader"]
    assert [follower[name] for name in columns] == [-1, -1, -1, -1, "Follower"]
    shown = status_fields(found, status.cluster_id, 10_000)
    assert (shown["max_follower_lag"], shown["max_follower_lag_time_ms"]) == (90, -1)
    assert 'pylog_quorum_lag{node="2",voter="true"} 90' in metrics_text(status)
