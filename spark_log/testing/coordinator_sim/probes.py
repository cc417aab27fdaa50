"""Situations that are rare among random faults, made on purpose when the faults are over."""

from __future__ import annotations

from spark_log.journal.store_operations import Sleep, Steps
from spark_log.net.messages import ChangesReply, ChangesRequest, decode, encode
from spark_log.testing.coordinator_sim.nodes import SimulatedNode
from spark_log.testing.coordinator_sim.setting import QuorumSimulation
from spark_log.testing.coordinator_sim.world import CLUSTER
from spark_log.testing.verdict import Violation

LOOKS, LOOK_MS = 240, 10
"""Less than a pause that the server notices without its replica."""
ANSWERED_MS = 500


def stale_leader(sim: QuorumSimulation) -> Steps[None]:
    """A leader that is stopped or cut off gets a confirmed read when another one leads."""
    world = sim.world
    found = world.leader()
    if found is None or len(world.nodes) < 3:
        return
    leader: SimulatedNode = found
    is_stopped = world.rng.random() < 0.5
    if is_stopped:
        leader.stop()
    else:
        others = [node.key.id for node in world.others(leader)]
        world.network.blocked |= {pair for other in others for pair in ((leader.key.id, other), (other, leader.key.id))}
    looks = 0
    while (newest := world.leader()) is leader and looks < LOOKS:
        looks += 1
        yield Sleep(LOOK_MS)
    if newest is not leader and newest is not None and leader.leads:
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
