"""Nodes of a quorum compare their states: one with another state than the others does not lead, and answers nobody."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

from immutables import Map

from spark_log.metadata.commands import CreateTopic
from spark_log.serve.serve_quorum import RunningNode, start_quorum
from tests.quorum.node.quorum_nodes import three_nodes, until
from tests.server.quorum.test_quorum_coordinator import answered, create

COMMAND_S = 0.02
"""Between commands, which each have another time, and so are compared."""


def damage(node: RunningNode) -> None:
    """A row of its state is another one, as after a fault of memory or a replay that went wrong."""
    pipeline = node.coordinator._log.pipeline
    pipeline.rebase(replace(pipeline.state, configs=Map({"retention.ms": "666"})))


def differs(node: RunningNode) -> bool:
    return node.coordinator.node.digests.is_wrong


async def commands_until(nodes: list[RunningNode], node: RunningNode, name: str) -> None:
    """Create topics until the state of the node was found to be wrong."""
    number = 0
    while not differs(node):
        await answered(nodes, CreateTopic(name=f"{name}-{number}", partitions=1, topic_id=f"{name}-{number}"))
        number += 1
        await asyncio.sleep(COMMAND_S)


# Promise: quorum.md#when-the-states-of-nodes-differ
def test_a_node_with_another_state_does_not_lead_and_answers_nobody(tmp_path: Path) -> None:
    """A leader hands over.  The log continues, and has what was acknowledged.  The node stays a voter."""

    async def scenario() -> None:
        configs = [replace(one, quorum=replace(one.quorum, digest_ms=1)) for one in three_nodes(tmp_path) if one.quorum]
        nodes = [await start_quorum(config) for config in configs]
        try:
            leader, _ = await answered(nodes, create("orders"))
            follower = next(node for node in nodes if node is not leader)
            await until(lambda: all(node.coordinator.node.digests.compared for node in nodes), "states are compared")
            assert not any(map(differs, nodes)) and follower.coordinator.followed_s > 0
            damage(leader)
            await asyncio.wait_for(commands_until(nodes, leader, "late"), 60)
            await until(lambda: any(node.coordinator.leading for node in nodes), "another node leads")
            led_by, found = await answered(nodes, create("last"))
            assert led_by is not leader and found == ["id-of-last"]
            health, status = leader.coordinator.health(), leader.coordinator.node.status()
            assert not health.healthy and "is not that of the other nodes: restart this node" in health.reason
            assert leader.coordinator.followed_s == -math.inf
            assert status is not None and leader.coordinator.node.key in status.voters
            good = [node for node in nodes if node is not leader]
            await until(
                lambda: all({"orders", "last"} <= set(node.coordinator.state.names) for node in good), "the log"
            )
            assert not any(map(differs, good))
        finally:
            for node in nodes:
                await node.stop()

    asyncio.run(scenario())
