"""The rules of the coordinator on a quorum, each removed in turn: the simulation has to notice.

The product has no switches for this.  A mutation replaces functions of its modules for the length of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from simulation.mutation import Mutation, Patch
from spark_log.errors import NotLeaderOrFollower
from spark_log.journal.storage import claims
from spark_log.journal.store_operations import Put, Steps
from spark_log.metadata import replay as replay_module
from spark_log.metadata.decision import Decision
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.groups import decide_groups as group_decisions
from spark_log.metadata.groups import replay_groups
from spark_log.metadata.maintenance import decide_maintenance as maintenance
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.disk import Disk
from spark_log.quorum.node.snapshots import LOOK_S, NodeSnapshots
from spark_log.quorum.node.voter_clocks import VoterClocks
from spark_log.quorum.ready import Kept
from spark_log.server.group_coordinator import Groups
from spark_log.server.pending_commands import PendingCommands
from spark_log.server.quorum import commands as quorum_commands
from spark_log.server.quorum import founding as quorum_founding
from spark_log.server.quorum.commands import QuorumCommands
from spark_log.server.quorum.forgetting import Forgetting
from spark_log.server.quorum.leader import KnownLeader
from spark_log.server.quorum.pipeline import Offer, Pipeline
from spark_log.server.quorum.root import QuorumRoot
from spark_log.server.quorum.state import QuorumState
from spark_log.server.quorum.take_over import TakeOver

# ------------------------------------------------------------------------------------------------------------- replies


def _answered_when_offered(self: Pipeline[PendingCommands], offer: Offer[PendingCommands]) -> None:
    _offer(self, offer)
    replies, offer.replies = offer.replies, []
    for one in replies:
        one.complete()


_offer = Pipeline.offer


def _not_attached(self: Pipeline[Any], replies: Iterable[Any]) -> bool:
    return False


def _certain(self: QuorumCommands, index: int, begun_s: float, future: asyncio.Future[int]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is None or not getattr(error, "maybe_applied", False):
        _ended(self, index, begun_s, future)
        return
    for one in self._log.pipeline.unknown(index):
        one.give_up(self._coordinator.not_leading())


_ended = QuorumCommands._ended


# ------------------------------------------------------------------------------------------------------------ pipeline


def _first_of_index(self: Pipeline[Any], index: int, data: bytes) -> Offer[Any] | None:
    first = self._offers[0] if self._offers else None
    if first is None or first.index != index:
        return None
    self._offers.popleft()
    self.state = first.state
    return first


def _kept(self: Pipeline[Any], index: int) -> list[Any]:
    return []


async def _leads_immediately(self: TakeOver, leader: KnownLeader) -> bool:
    await self._until_caught_up(leader)
    try:
        self._coordinator.node.begin_append(self._batch(leader.epoch), leader.epoch)
    except NotLeaderOrFollower:
        return False
    return self._ended(leader)


async def _immediately(self: TakeOver, leader: KnownLeader) -> None:
    pass


# --------------------------------------------------------------------------------------------------------------- reads


async def _unconfirmed(self: QuorumCommands, asked: list[PendingCommands]) -> None:
    self._done.extend(asked)
    self._coordinator.publish_soon()


def _own_clock(self: VoterClocks, own_ms: int, monotonic_ms: int, others: Iterable[Any]) -> int:
    return own_ms


def _applied_twice(self: QuorumState, index: int, data: bytes) -> None:
    _apply(self, index, data)
    if len(data) % 16 == 0:
        self.pipeline.state = replay(self.final, decode_batch(data, "the last batch"))


_apply = QuorumState.apply


# -------------------------------------------------------------------------------------------------- claims and members


def _claimed_by_the_last(name: str, value: bytes) -> Steps[bytes]:
    yield Put(name, (value,))
    return value


def _newest_state(self: QuorumState, version: int) -> State:
    return self.final


def _any_member(self: Groups, command: object) -> None:
    return None


def _fence_by_age(state: State, now_ms: int, copied: int | None = None) -> Decision[int]:
    return _decide_fence(state, now_ms)


_decide_fence = maintenance.decide_fence


def _of_any_generation(*_: object) -> bool:
    return True


def _unchecked(*_: object) -> None:
    return None


# ------------------------------------------------------------------------------------------------------------- erasures


async def _forgets_with_the_next_snapshot(self: NodeSnapshots, version: int) -> None:
    self._make(self._applier.end)
    self.forgotten = version


def _own_alone(self: Forgetting, state: State) -> None:
    _look(self, state)
    status = self._status()
    self._forgotten = status.forgotten if status is not None and status.role == "leader" else 0


_look = Forgetting.look


def _without_sync(self: Disk, end: int) -> bool:
    self._delete_old(Kept(self.snapshot.offset))
    return self.snapshot.offset >= end


async def _in_the_same_file(self: NodeSnapshots, version: int) -> None:
    end = self._applier.end
    self._make(end)
    while self._is_making:
        await asyncio.sleep(LOOK_S)
    if await self._writer.submit(self._disk.forget, end):
        self.forgotten = version


# ------------------------------------------------------------------------------------------------------------ adoptions


def _not_moved(self: QuorumRoot, *_: object) -> None:
    self._is_claimed = True


def _any_directory(key: ReplicaKey) -> str:
    return "any"


MUTATIONS = {
    "answered_when_offered": Mutation(
        "a reply waits for its batch", (Patch(Pipeline, "offer", _answered_when_offered),)
    ),
    "refusal_not_final": Mutation(
        "a reply without records waits for the batch before it", (Patch(Pipeline, "attach", _not_attached),)
    ),
    "unknown_is_certain": Mutation(
        "a change whose fate is unknown may be applied", (Patch(QuorumCommands, "_ended", _certain),)
    ),
    "offer_of_index": Mutation(
        "an offer is final if the entry has its bytes", (Patch(Pipeline, "final", _first_of_index),)
    ),
    "truncated_kept": Mutation(
        "what was decided on removed batches is removed", (Patch(Pipeline, "truncated", _kept),)
    ),
    "leads_immediately": Mutation(
        "a leader decides when its take-over is final", (Patch(TakeOver, "run", _leads_immediately),)
    ),
    "begins_behind": Mutation(
        "a leader begins a log only if there is none",
        (Patch(TakeOver, "_until_caught_up", _immediately),),
    ),
    "reads_unconfirmed": Mutation(
        "a confirmed read, and a refusal, wait for a majority", (Patch(QuorumCommands, "_confirm", _unconfirmed),)
    ),
    "last_claim": Mutation("the first claim stays", (Patch(claims, "claim", _claimed_by_the_last),)),
    "claimed_newest": Mutation(
        "tasks of a query read the version that was claimed", (Patch(QuorumState, "state_at", _newest_state),)
    ),
    "commits_unchecked": Mutation(
        "what a member commits is of the generation in force",
        (
            Patch(Groups, "refusal", _any_member),
            Patch(replay_module, "groups_hold", _of_any_generation),
            Patch(replay_groups, "groups_hold", _of_any_generation),
            Patch(group_decisions, "check_generation", _unchecked),
        ),
    ),
    "fence_before_copy": Mutation(
        "the fence waits for the copy of the metadata", (Patch(maintenance, "decide_fence", _fence_by_age),)
    ),
    "levels_unchecked": Mutation(
        "the level of the log is raised when all nodes know it",
        (Patch(quorum_commands, "refuse_levels", _unchecked),),
    ),
    "own_clock": Mutation("a leader's clock is near that of the others", (Patch(VoterClocks, "bounded", _own_clock),)),
    "not_moved": Mutation(
        "a quorum decides when the log has moved for good", (Patch(QuorumRoot, "claim", _not_moved),)
    ),
    "two_directories": Mutation(
        "one directory gets the state of a log", (Patch(quorum_founding, "key_text", _any_directory),)
    ),
    "forgets_later": Mutation(
        "a node has forgotten when its files are deleted",
        (Patch(NodeSnapshots, "_replace_log", _forgets_with_the_next_snapshot),),
    ),
    "forgets_in_the_same_file": Mutation(
        "a node begins a new file before it forgets", (Patch(NodeSnapshots, "_replace_log", _in_the_same_file),)
    ),
    "forgets_without_sync": Mutation("deletions are synced", (Patch(Disk, "forget", _without_sync),)),
    "forgotten_by_the_leader": Mutation("an erasure waits for all nodes", (Patch(Forgetting, "look", _own_alone),)),
    "replay_diverges": Mutation("all nodes replay alike", (Patch(QuorumState, "apply", _applied_twice),)),
}
