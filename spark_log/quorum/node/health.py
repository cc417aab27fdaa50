"""Whether a quorum is healthy, by the answers of its nodes.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spark_log.errors import SparkLogError
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.admin import leader_among
from spark_log.quorum.node.node_config import SLOW_DISK_MS
from spark_log.quorum.node.node_status import NodeStatus
from spark_log.quorum.voters import key_text
from spark_log.text import counted

COPY = "quorum copy"
Answers = Mapping[str, NodeStatus | SparkLogError]


class QuorumFinding(NamedTuple):
    """The result of one check."""

    check: str
    healthy: bool
    says: str


def quorum_findings(answers: Answers) -> list[QuorumFinding]:
    """
    answers:  by address, as `QuorumAdmin.answers` gives them.
    """
    try:
        _, leader = leader_among(answers)
    except SparkLogError as error:
        return [QuorumFinding("quorum", False, str(error))]
    nodes = {one.key: one for one in answers.values() if isinstance(one, NodeStatus)}
    voters = [_voter(leader, key, nodes.get(key)) for key in leader.voters]
    return [
        _quorum(leader, voters),
        *voters,
        *_application(leader),
        *_without_vote(leader),
        *_unclear(leader),
        *_copy(leader),
        *_without_answer(leader, answers),
    ]


def _quorum(leader: NodeStatus, voters: list[QuorumFinding]) -> QuorumFinding:
    """How many more nodes may fail."""
    good, needed = sum(one.healthy for one in voters), len(voters) // 2 + 1
    spare = max(0, good - needed)
    more = "no further node may fail" if spare == 0 else f"{spare} more may fail"
    says = f"node {leader.key.id} leads epoch {leader.epoch}; {good} of {len(voters)} voters are well, {more}"
    return QuorumFinding("quorum", good >= needed, says)


def _voter(leader: NodeStatus, key: ReplicaKey, own: NodeStatus | None) -> QuorumFinding:
    check = f"quorum node {key.id}"
    problem = _problem(leader, key, own)
    if problem:
        return QuorumFinding(check, False, problem)
    lag = next((one.lag for one in leader.replication if one.key == key), 0)
    return QuorumFinding(
        check, True, "leads" if key == leader.key else f"follows, {counted(lag, 'entry', 'entries')} behind"
    )


def _problem(leader: NodeStatus, key: ReplicaKey, own: NodeStatus | None) -> str:
    """The problem of a voter; empty: none."""
    if own is not None and own.is_full:
        return "its disk is full: free some space"
    if own is not None and own.writing_ms > SLOW_DISK_MS:
        return f"its disk has not finished a write for {own.writing_ms // 1000} s"
    if own is not None and own.is_state_wrong:
        return own.state_problem
    if key == leader.key:
        return ""
    found = next((one for one in leader.replication if one.key == key), None)
    if found is None or found.is_silent:
        why = leader.problems.get(key.id) or "it is connected, and does not fetch"
        return f"the leader cannot reach it: {why}"
    return leader.problems.get(key.id) or ""


def _application(leader: NodeStatus) -> Iterator[QuorumFinding]:
    if leader.application_problem:
        yield QuorumFinding("log", False, f"no node leads the log: {leader.application_problem}")


def _without_vote(leader: NodeStatus) -> Iterator[QuorumFinding]:
    """Nodes that run and do not vote.  One that runs with another directory than the voter's is named by the voter."""
    ids = {voter.id for voter in leader.voters}
    for one in leader.replication:
        if one.key.id not in ids and not one.is_silent:
            says = f"it fetches without a vote: run `pylog quorum add-voter {key_text(one.key)}`, or stop the node"
            yield QuorumFinding(f"quorum node {one.key.id}", False, says)


def _unclear(leader: NodeStatus) -> Iterator[QuorumFinding]:
    """States that differ, without a majority for one of them."""
    if leader.state_problem and not leader.is_state_wrong:
        yield QuorumFinding("quorum states", False, leader.state_problem)


def _copy(leader: NodeStatus) -> Iterator[QuorumFinding]:
    if leader.copy_problem:
        yield QuorumFinding(COPY, False, leader.copy_problem)


def _without_answer(leader: NodeStatus, answers: Answers) -> Iterator[QuorumFinding]:
    """Addresses that were asked, and that are not those of voters, which have a finding."""
    known = set(leader.addresses.values())
    for address, answer in answers.items():
        if isinstance(answer, SparkLogError) and address not in known:
            yield QuorumFinding(f"quorum node at {address}", False, str(answer))
