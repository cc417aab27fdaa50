"""Situations that are rare among random faults, made on purpose when the faults are over."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from simulation.coordinator_sim.nodes import SimulatedNode
from simulation.coordinator_sim.setting import QuorumSimulation
from simulation.coordinator_sim.world import CLUSTER, QuorumWorld
from simulation.verdict import Violation
from spark_log.errors import SparkLogError
from spark_log.http.failures import Failure, error_of
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.metadata.commands import CreateTopic
from spark_log.quorum.node.node import UNKNOWN_S
from spark_log.rpc.messages import (
    ChangesReply,
    ChangesRequest,
    ClaimReply,
    ClaimRequest,
    CommandsReply,
    CommandsRequest,
    decode,
    encode,
)
from spark_log.server.quorum.commands import OFFERS_MAX

LOOK_MS = 10
REPLACED_MS = 2_400
"""Less than a pause that the server notices without its replica."""
ANSWERED_MS = 500
FATE_MS = int(UNKNOWN_S * 1000) + 3_000
"""A leader that is cut off answers by then: it resigns, and knows the fate of a batch, or says that it does not."""
SNAPSHOT_MS = 50
FILLERS = 12
"""More bytes than a fetch of 1,000 bytes has."""


class Change:
    """A new topic, asked of a node once, as a client would not."""

    def __init__(self, sim: QuorumSimulation, node: SimulatedNode, name: str = "") -> None:
        self.name = name or sim.fresh("probe")
        self.topic_id = sim.fresh("id")
        self._node, self._oracle = node, sim.oracle
        self._answers: list[tuple[int, bytes]] = []
        command = CreateTopic(name=self.name, partitions=1, topic_id=self.topic_id)
        asked = CommandsRequest(cluster_id=CLUSTER, since=0, commands=(command,))
        node.answer("POST", "/v1/commands", encode(asked), lambda *answer: self._answers.append(answer))

    @property
    def is_answered(self) -> bool:
        return bool(self._answers)

    @property
    def error(self) -> SparkLogError | None:
        """The error in the answer."""
        status, body = self._answers[0]
        if status != 200:
            return error_of(decode(body, Failure, "the error"))
        reply: CommandsReply = decode(body, CommandsReply, "the reply")
        failure = reply.outcomes[0].failure
        return None if failure is None else error_of(failure)

    def check(self) -> None:
        """When the fate of all batches is known: there is an answer, and it was true."""
        if not self.is_answered:
            raise Violation(f"answered: {self._node} runs, and has not answered for {FATE_MS} ms")
        error, is_there = self.error, self._oracle.state.names.get(self.name) == self.topic_id
        if error is None and not is_there:
            raise Violation(f"acked: {self._node} has created {self.name}, and it is not in the log")
        if error is not None and not error.maybe_applied and is_there:
            raise Violation(f"certain: {self._node} has not created {self.name}, {error!r}, and it is in the log")
        self._oracle.seen["unknown" if error is not None and error.maybe_applied else "certain"] += 1


# -------------------------------------------------------------------------------------------------------------- waiting


def _until(holds: Callable[[], bool], limit_ms: int, look_ms: int = LOOK_MS) -> Steps[bool]:
    for _ in range(limit_ms // look_ms):
        if holds():
            return True
        yield Sleep(look_ms)
    return holds()


def _leader(world: QuorumWorld) -> Steps[SimulatedNode | None]:
    """The leader, if it could be replaced: three or more nodes, all of which vote."""
    yield from _until(lambda: world.leader() is not None, 5_000)
    leader: SimulatedNode | None = world.leader()
    keys = {node.key for node in world.nodes.values()}
    return leader if leader is not None and len(keys) > 2 and set(leader.voters) == keys else None


def _is_replaced(world: QuorumWorld, leader: SimulatedNode) -> bool:
    return world.leader() not in (None, leader)


def _cut_off(world: QuorumWorld, node: SimulatedNode) -> None:
    """From the other nodes; clients reach it."""
    others = [other.key.id for other in world.others(node)]
    world.network.blocked |= {pair for other in others for pair in ((node.key.id, other), (other, node.key.id))}


# --------------------------------------------------------------------------------------------------------------- probes


def stale_leader(sim: QuorumSimulation) -> Steps[None]:
    """A leader that is stopped or cut off gets a confirmed read when another one leads."""
    world = sim.world
    leader = yield from _leader(world)
    if leader is None:
        return
    if world.rng.random() < 0.5:
        leader.stop()
    else:
        _cut_off(world, leader)
    is_replaced = yield from _until(lambda: _is_replaced(world, leader), REPLACED_MS)
    if is_replaced and leader.leads:
        sim.oracle.seen["stale leaders"] += 1
        yield from _read(sim, leader)
    world.network.blocked.clear()
    leader.resume()


def _read(sim: QuorumSimulation, leader: SimulatedNode) -> Steps[None]:
    """The answer has everything that was final when the read began, if there is one."""
    asked = ChangesRequest(cluster_id=CLUSTER, since=0, wait_ms=0, confirmed=True)
    answers: list[tuple[int, bytes]] = []
    leader.answer("POST", "/v1/changes", encode(asked), lambda *answer: answers.append(answer))
    version = sim.oracle.state.version
    leader.resume()
    yield Sleep(ANSWERED_MS)
    for status, body in answers:
        if status == 200 and decode(body, ChangesReply, "the reply").version < version:
            raise Violation(f"fresh: {leader} was replaced, and answers a confirmed read of version {version}")


def lost_fate(sim: QuorumSimulation) -> Steps[None]:
    """A leader is cut off when others have its batch: it does not learn that they commit it.  The next leader is asked
    for the same in the moment in which it leads.
    """
    world = sim.world
    leader = yield from _leader(world)
    if leader is None:
        return
    change = Change(sim, leader)
    yield from _until(lambda: leader.decides, 100, 1)
    end = leader.log_end
    yield from _until(lambda: any(other.log_end >= end for other in world.others(leader)), 100, 1)
    _cut_off(world, leader)
    later: list[Change] = []
    world.when_led = lambda node: later.append(Change(sim, node, change.name))
    yield Sleep(FATE_MS)
    world.network.blocked.clear()
    yield from _until(lambda: world.leader() is not None, 5_000)
    world.when_led = lambda node: None
    for one in [change, *(one for one in later if one.is_answered)]:
        one.check()


def removed_batches(sim: QuorumSimulation) -> Steps[None]:
    """A leader decides when it is cut off already: what nobody else has is removed.  Then it leads again."""
    world = sim.world
    leader = yield from _leader(world)
    if leader is None:
        return
    _cut_off(world, leader)
    changes = [Change(sim, leader)]
    yield from _until(lambda: _is_replaced(world, leader) and not leader.leads, FATE_MS)
    world.network.blocked.clear()
    newest = world.leader()
    yield Sleep(FATE_MS)
    if newest is not None:
        newest.ask(lambda: newest.coordinator.node.hand_over(leader.key.id))
        yield from _until(lambda: leader.leads, 2_000)
    changes.append(Change(sim, leader))
    yield Sleep(FATE_MS)
    for change in changes:
        change.check()


def snapshot_of_less(sim: QuorumSimulation) -> Steps[None]:
    """A leader that is cut off decides more than the next one: it gets a snapshot that ends before its own log, and
    then entries in place of those that it has offered.
    """
    world = sim.world
    leader = yield from _leader(world)
    if leader is None:
        return
    _cut_off(world, leader)
    changes = []
    for _ in range(OFFERS_MAX):
        changes.append(Change(sim, leader))
        yield Sleep(2)
    yield from _until(lambda: _is_replaced(world, leader), FATE_MS)
    newest = world.leader()
    if newest is not None and newest is not leader:
        yield from _write_snapshots(sim, newest)
    world.network.blocked.clear()
    yield Sleep(FATE_MS)
    for change in changes:
        change.check()


def _write_snapshots(sim: QuorumSimulation, leader: SimulatedNode) -> Steps[None]:
    """Two, because the log is kept from the one before the newest on; and then some batches."""
    for _ in range(2):
        change = Change(sim, leader)
        yield from _until(lambda: change.is_answered, ANSWERED_MS)  # noqa: B023
        leader.make_snapshot()
        yield Sleep(SNAPSHOT_MS)
    for _ in range(3):
        Change(sim, leader)
        yield Sleep(2)


def early_refusal(sim: QuorumSimulation) -> Steps[None]:
    """A leader dies as soon as it has refused something because of a batch that is not final."""
    world = sim.world
    leader = yield from _leader(world)
    if leader is None:
        return
    for number in range(FILLERS):
        Change(sim, leader, f"{number}{'-' * 200}{sim.fresh('probe')}")
        yield Sleep(1)
    first = Change(sim, leader)
    yield Sleep(1)
    refused = Change(sim, leader, first.name)
    yield from _until(lambda: refused.is_answered, FATE_MS, 1)
    leader.crash()
    yield from _until(lambda: world.leader() is not None, 5_000)
    leader.start()
    if refused.is_answered and first.name not in sim.oracle.state.names:
        raise Violation(f"refused: {refused.error!r}, and {first.name} is not in the log")
    if refused.is_answered:
        refused.check()


def two_claims(sim: QuorumSimulation) -> Steps[None]:
    """Two processes that claim at the same time get the same value."""
    world, answers = sim.world, list[tuple[int, bytes]]()
    yield from _until(lambda: world.leader() is not None, 5_000)
    leader: Any = world.leader()
    for by in range(2 if leader is not None else 0):
        value = json.dumps({"version": 1, "made_ms": 1, "by": by})
        asked = ClaimRequest(cluster_id=CLUSTER, name="meta/pin/probe", value=value)
        leader.answer("POST", "/v1/claim", encode(asked), lambda *answer: answers.append(answer))
    yield Sleep(ANSWERED_MS)
    for status, body in answers:
        if status == 200 and (value := decode(body, ClaimReply, "the reply").value) is not None:
            sim.oracle.check_claim("meta/pin/probe", value.encode())


def restored(sim: QuorumSimulation) -> Steps[None]:
    """The nodes are lost, and another quorum continues with the disk of one."""
    yield from sim.restored()


PROBES = (stale_leader, removed_batches, snapshot_of_less, lost_fate, early_refusal, two_claims, restored)
