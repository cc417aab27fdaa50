"""A disk of one node of a quorum has no space: its coordinator gives up the lead, and clients notice nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spark_log.errors import InvalidRequest, NotLeaderOrFollower
from spark_log.serve.serve_quorum import RunningNode, start_quorum
from tests.quorum.node.quorum_nodes import run, three_nodes, until
from tests.server.quorum.test_quorum_coordinator import answered, create


def fill(filler: Path) -> None:
    """Leave no block of the file system."""
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


async def create_until(nodes: list[RunningNode], true: Callable[[], object]) -> list[str]:
    """Create topics until something is true; their names."""
    names: list[str] = []
    while not true():
        names.append(f"topic-{len(names)}")
        await answered(nodes, create(names[-1]))
    return names


def is_full(node: RunningNode) -> bool:
    status = node.coordinator.node.status()
    return status is not None and status.is_full


def test_a_node_without_space_hands_over_and_returns(tmp_path: Path, mount: Callable[[str], Path]) -> None:
    """Commands are answered meanwhile by the others.  When there is space, it has everything, and may lead again."""
    small = mount("size=1m")
    (small / "d").mkdir()
    (tmp_path / "node-1").symlink_to(small / "d")

    async def scenario() -> None:
        nodes = [await start_quorum(config) for config in three_nodes(tmp_path)]
        full = nodes[0]
        try:
            await answered(nodes, create("first"))
            while not full.coordinator.leading:
                for node in nodes:
                    with suppress(InvalidRequest, NotLeaderOrFollower):
                        await node.coordinator.node.hand_over(1)
                await asyncio.sleep(0.05)
            fill(small / "filler")
            names = await create_until(nodes, lambda: is_full(full))
            names += await create_until(nodes, lambda: any(node.coordinator.leading for node in nodes[1:]))
            led_by, _ = await answered(nodes[1:], create("last"))
            assert led_by is not full and not full.coordinator.leading
            assert f"the disk of {full.coordinator.node.config.directory} is full" in full.coordinator.health().reason
            (small / "filler").unlink()
            await until(
                lambda: {*names, "first", "last"} <= set(full.coordinator.state.names), "the node has caught up"
            )
            await until(lambda: full.coordinator.health().healthy, "it is healthy")
        finally:
            (small / "filler").unlink(missing_ok=True)
            for node in nodes:
                await node.stop()

    run(scenario)
