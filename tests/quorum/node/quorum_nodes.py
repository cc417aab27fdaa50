"""Nodes of a quorum in one process, for tests: real disks, real connections, one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_log.errors import NotLeaderOrFollower
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.directory import format_directory
from spark_log.quorum.node.node import Node
from spark_log.quorum.node.node_config import NodeConfig
from spark_log.quorum.node.vote_and_identity import Meta
from spark_log.quorum.ready import Config
from spark_log.serve.serve_config import ServeConfig
from tests.processes import free_port

TIMES = Config(fetch_timeout_ms=1500, election_timeout_ms=1000, fetch_wait_ms=100, retry_ms=300)
"""Short, so that tests start fast.  On a slow machine there are more elections, which no test may rely on."""
LIMIT_S = 120.0
"""Of a wait: far more than it takes on a machine that is ten times slower."""
SECRET = "0123456789abcdef"


class Entries:
    """The application: a list of what was appended, the first of each, for an entry of unknown fate is repeated."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def apply(self, index: int, data: bytes) -> None:
        if data not in self.data:
            self.data.append(data)

    def snapshot(self) -> Iterable[bytes]:
        return [data + b"\n" for data in self.data]

    def restore(self, pieces: Iterator[bytes]) -> None:
        self.data = b"".join(pieces).splitlines()


class Cluster:
    def __init__(self, folder: Path, count: int = 3, **config: Any) -> None:
        self.folder, self._config = folder, config
        self.addresses = {node: f"127.0.0.1:{free_port()}" for node in range(1, count + 1)}
        self.states: dict[int, Entries] = {}
        self.nodes: dict[int, Node] = {}
        voters = tuple(ReplicaKey(node, f"d{node}") for node in self.addresses)
        for key in voters:
            self.format(key, voters)

    def path(self, node: int) -> Path:
        return self.folder / str(node)

    def format(self, key: ReplicaKey, voters: tuple[ReplicaKey, ...] = ()) -> None:
        meta = Meta(cluster_id="c", node_id=key.id, directory_id=key.directory)
        format_directory(str(self.path(key.id)), meta, voters)

    def node(self, node: int, **config: Any) -> Node:
        values = {
            "directory": str(self.path(node)),
            "cluster_id": "c",
            "node_id": node,
            "listen": self.addresses.get(node, "127.0.0.1:0"),
            "peers": {other: address for other, address in self.addresses.items() if other != node},
            "secret": SECRET,
            "times": TIMES,
            **self._config,
            **config,
        }
        self.states[node] = Entries()
        return Node(NodeConfig(**values), self.states[node])

    async def start(self, *nodes: int) -> None:
        for node in nodes or self.addresses:
            self.nodes[node] = self.node(node)
            await self.nodes[node].start()

    async def stop(self, node: int) -> None:
        await self.nodes.pop(node).stop()

    async def leader(self) -> int:
        def leaders() -> list[int]:
            return [node for node, one in self.nodes.items() if (s := one.status()) and s.role == "leader"]

        await until(lambda: len(leaders()) == 1, "one of the nodes leads")
        return leaders()[0]

    async def append(self, data: bytes) -> int:
        """On the node that leads, until it is acknowledged."""
        while True:
            with suppress(NotLeaderOrFollower):
                return await self.nodes[await self.leader()].append(data)
            await asyncio.sleep(0.01)  # a leader that hands over refuses it without a pause

    async def confirmed(self) -> int:
        """The node that leads, when its state has everything that was acknowledged before."""
        while True:
            with suppress(NotLeaderOrFollower):
                await self.nodes[leader := await self.leader()].confirm()
                return leader
            await asyncio.sleep(0.01)

    async def hand_over_to(self, node: int) -> None:
        """Until this node leads."""
        while (leader := await self.leader()) != node:
            await self.nodes[leader].hand_over(node)
            await asyncio.sleep(0.01)

    async def all_have(self, data: list[bytes]) -> None:
        await until(lambda: all(self.states[node].data == data for node in self.nodes), "all nodes have the entries")


@asynccontextmanager
async def cluster(folder: Path, count: int = 3, **config: Any) -> AsyncIterator[Cluster]:
    found = Cluster(folder, count, **config)
    try:
        await found.start()
        yield found
    finally:
        for node in list(found.nodes):
            await found.stop(node)


async def until(true: Callable[[], object], what: str) -> None:
    deadline_s = asyncio.get_running_loop().time() + LIMIT_S
    while not true():
        assert asyncio.get_running_loop().time() < deadline_s, f"not within {LIMIT_S:.0f} s: {what}"
        await asyncio.sleep(0.01)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Raises TimeoutError, whose cause has the place where the test waits."""
    asyncio.run(asyncio.wait_for(test(), 3 * LIMIT_S))


# ------------------------------------------------------------------------------------- nodes with a coordinator on them


def one_node(folder: Path, cluster: str = "a-cluster", **settings: Any) -> ServeConfig:
    """The configuration of the only node of a quorum, with its directory, formatted, and its records in a folder."""
    directory = folder / cluster
    meta = Meta(cluster_id=cluster, node_id=1, directory_id="directory-1")
    if not directory.exists():
        format_directory(str(directory), meta, (meta.key,))
    node = NodeConfig(
        directory=str(directory),
        cluster_id=cluster,
        node_id=1,
        listen="127.0.0.1:0",
        peers={},
        secret="a-secret-of-the-nodes",
    )
    return ServeConfig(
        url=str(folder / "records"), listen="127.0.0.1:0", maintain_ms=None, quorum=replace(node, **settings)
    )


def three_nodes(folder: Path) -> list[ServeConfig]:
    keys = tuple(ReplicaKey(number, f"directory-{number}") for number in (1, 2, 3))
    addresses = {key.id: f"127.0.0.1:{free_port()}" for key in keys}
    for key in keys:
        meta = Meta(cluster_id="a-cluster", node_id=key.id, directory_id=key.directory)
        format_directory(str(folder / f"node-{key.id}"), meta, keys)
    return [
        one_node(
            folder,
            directory=str(folder / f"node-{key.id}"),
            node_id=key.id,
            listen=addresses[key.id],
            peers={node: address for node, address in addresses.items() if node != key.id},
            times=TIMES,
        )
        for key in keys
    ]
