"""Members of a group that the leader runs: they join, share the partitions, and commit under their generation."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from simulation.coordinator_sim.setting import MEMBERS_GROUP, QuorumSimulation
from simulation.coordinator_sim.world import AskMember
from spark_log.errors import (
    CoordinatorNotAvailable,
    IllegalGeneration,
    NotCoordinator,
    RebalanceInProgress,
    UnknownTopicOrPartition,
)
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberProtocol,
    SyncGroupRequest,
)
from spark_log.journal.context import Proposal
from spark_log.journal.store_operations import Sleep
from spark_log.metadata.groups.group_commands import CommitOffsets, Committer
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.state import State, TopicKey

SESSION_MS, REBALANCE_MS = 2_000, 3_000
AGAIN_MS = 100
Requests = Generator[Any, Any, Any]


def member(sim: QuorumSimulation) -> Requests:
    """Join again and again; a process that crashes comes back as a new member."""
    member_id = ""
    while True:
        try:
            member_id = yield from _one_generation(sim, member_id)
        except (CoordinatorNotAvailable, NotCoordinator):
            yield Sleep(AGAIN_MS)


def _one_generation(sim: QuorumSimulation, member_id: str) -> Requests:
    """Returns the member id with which to join again; empty if it is not a member any more."""
    joined = yield AskMember(_join(member_id))
    if joined.error is Code.MEMBER_ID_REQUIRED:
        return joined.member_id
    if joined.error is not Code.NONE:
        yield Sleep(AGAIN_MS)
        return ""
    view = yield from sim.load()
    member_id, generation = joined.member_id, joined.generation_id
    sync = SyncGroupRequest(
        group_id=MEMBERS_GROUP,
        member_id=member_id,
        generation_id=generation,
        assignments=_assignments(joined, view.state),
    )
    synced = yield AskMember(sync)
    if synced.error is not Code.NONE:
        return "" if synced.error is Code.UNKNOWN_MEMBER_ID else member_id
    keys: list[TopicKey] = [(topic, number) for topic, number in json.loads(synced.assignment or b"[]")]
    sim.oracle.own(generation, keys, member_id)
    return (yield from _commit_often(sim, view, member_id, generation, keys))


def _join(member_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=MEMBERS_GROUP,
        member_id=member_id,
        protocols=(MemberProtocol("range"),),
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
    )


def _assignments(joined: JoinGroupResponse, state: State) -> dict[str, bytes]:
    """By the leader: each partition of "t0" to one member."""
    if joined.leader != joined.member_id:
        return {}
    keys = sorted(key for key in state.partitions if key[0] == state.names["t0"])
    ids = sorted(one.member_id for one in joined.members)
    return {one: json.dumps(keys[at :: len(ids)]).encode() for at, one in enumerate(ids)}


def _commit_often(sim: QuorumSimulation, view: Any, member_id: str, generation: int, keys: list[TopicKey]) -> Requests:
    """Commit what is there, until the group rebalances.  Some members leave after a while."""
    beat = HeartbeatRequest(group_id=MEMBERS_GROUP, member_id=member_id, generation_id=generation)
    for _ in range(sim.rng.choice((3, 30))):
        yield Sleep(sim.rng.choice((50, 400)))
        answered = yield AskMember(beat)
        if answered.error is not Code.NONE:
            return "" if answered.error is Code.UNKNOWN_MEMBER_ID else member_id
        view = yield from sim.refresh(view)
        ends = tuple(OffsetEntry(*key, view.state.partitions[key].end) for key in keys)
        yield from sim.pause()
        commit = CommitOffsets(commit=GroupCommit(MEMBERS_GROUP, generation, ends), by=Committer(member_id))
        proposal = Proposal(commit)
        view = yield from sim.propose(view, [proposal])
        if isinstance(proposal.error, IllegalGeneration | RebalanceInProgress | UnknownTopicOrPartition):
            return member_id
        if proposal.error is not None:
            raise proposal.error
        sim.oracle.seen["members' commits"] += 1
    yield AskMember(LeaveGroupRequest(group_id=MEMBERS_GROUP, members=(LeavingMember(member_id),)))
    return ""
