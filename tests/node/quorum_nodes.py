"""Nodes of a quorum in one process, for tests: real disks, real connections, one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from spark_log.errors import NotLeaderOrFollower
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.ready import Config
from spark_log.quorum_node.directory import format_directory
from spark_log.quorum_node.node import Node
from spark_log.quorum_node.node_config import NodeConfig
from spark_log.quorum_node.state_file import Meta
from tests.processes import free_port

TIMES = Config(fetch_timeout_ms=600, election_timeout_ms=200, fetch_wait_ms=100, retry_ms=300)
SECRET = "0123456789abcdef"


class Entries:
    """The application: a list of what was appended."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def apply(self, index: int, data: bytes) -> None:
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

        await until(lambda: len(leaders()) == 1)
        return leaders()[0]

    async def append(self, data: bytes) -> int:
        while True:
            with suppress(NotLeaderOrFollower):
                return await self.nodes[await self.leader()].append(data)

    async def all_have(self, data: list[bytes]) -> None:
        await until(lambda: all(self.states[node].data == data for node in self.nodes))


@asynccontextmanager
async def cluster(folder: Path, count: int = 3, **config: Any) -> AsyncIterator[Cluster]:
    found = Cluster(folder, count, **config)
    try:
        await found.start()
        yield found
    finally:
        for node in list(found.nodes):
            await found.stop(node)


async def until(true: Callable[[], object], seconds: float = 20) -> None:
    deadline_s = asyncio.get_running_loop().time() + seconds
    while not true():
        assert asyncio.get_running_loop().time() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.01)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))
