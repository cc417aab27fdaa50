"""Directories of nodes for a log that a quorum continues, and how tests use them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import spark_log
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_format import parse_format
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.directory import DataDirectory, format_directory, open_directory
from spark_log.quorum.node.file_operations import LocalFiles
from spark_log.quorum.node.node_config import NodeConfig
from spark_log.quorum.node.vote_and_identity import Meta
from spark_log.runtime.clock import SystemClock
from spark_log.serve.serve_config import ServeConfig
from spark_log.serve.serve_quorum import RunningNode, start_quorum
from spark_log.server.quorum.founding import (
    Founded,
    adopt_log,
    restore_log,
)
from spark_log.server.quorum.root import Claimant
from spark_log.server.quorum.state import Content
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import FORMAT_KEY
from spark_log.store.open import open_store
from tests.processes import free_port
from tests.quorum.node.quorum_nodes import SECRET, TIMES, until
from tests.recovery.dying import Died
from tests.recovery.test_move import values
from tests.services import QUICK
from tests.spark.driver import Stream

URL = "pylog://127.0.0.1:9550,127.0.0.1:9551"


class Nodes:
    """Three directories that are formatted, and empty, for a log in a folder."""

    def __init__(self, folder: Path, cluster_id: str, count: int = 3, name: str = "a") -> None:
        self.folder, self._cluster_id, self._name = folder, cluster_id, name
        self.voters = tuple(ReplicaKey(node, f"{name}{node}") for node in range(1, count + 1))
        self._ports = {key.id: free_port() for key in self.voters}
        for key in self.voters:
            meta = Meta(cluster_id=cluster_id, node_id=key.id, directory_id=key.directory)
            format_directory(str(self.path(key.id)), meta, ())

    def path(self, node: int) -> Path:
        return self.folder / f"{self._name}{node}"

    @property
    def addresses(self) -> list[str]:
        """For tools."""
        return [f"127.0.0.1:{port}" for port in self._ports.values()]

    def replace_disk(self, node: int) -> ReplicaKey:
        """Another directory in place of a lost one."""
        shutil.rmtree(self.path(node))
        key = ReplicaKey(node, f"new-{node}")
        format_directory(
            str(self.path(node)), Meta(cluster_id=self._cluster_id, node_id=node, directory_id=key.directory), ()
        )
        return key

    def open(self, node: int = 1, open_files: Callable[[str], LocalFiles] = LocalFiles) -> DataDirectory:
        path = str(self.path(node))
        return open_directory(path, cluster_id=self._cluster_id, node_id=node, open_files=open_files)

    def config(self, node: int) -> ServeConfig:
        quorum = NodeConfig(
            directory=str(self.path(node)),
            cluster_id=self._cluster_id,
            node_id=node,
            listen=f"127.0.0.1:{self._ports[node]}",
            peers={other: f"127.0.0.1:{port}" for other, port in self._ports.items() if other != node},
            secret=SECRET,
            times=TIMES,
        )
        return ServeConfig(
            url=str(self.folder / "log"), listen="127.0.0.1:0", maintain_ms=None, quorum=quorum, groups=QUICK
        )

    @asynccontextmanager
    async def running(self, *nodes: int) -> AsyncIterator[list[RunningNode]]:
        """These nodes, when one of them leads."""
        found = [await start_quorum(self.config(node)) for node in nodes or range(1, len(self.voters) + 1)]
        try:
            await until(lambda: any(one.coordinator.leading for one in found), "a node leads")
            yield found
        finally:
            for one in found:
                await one.stop()


def address(nodes: Sequence[RunningNode]) -> str:
    return "pylog://" + ",".join(one.coordinator.address for one in nodes)


def levels(node: RunningNode) -> dict[int, int] | None:
    status = node.coordinator.node.status()
    return None if status is None else status.levels


def leader_of(content: Content) -> Claimant:
    return Claimant(state=content.state, founding=content.founding, address="127.0.0.1:1")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """Of a log with three records in the topic t."""
    with spark_log.connect(tmp_path / "log", create=True) as log:
        for number in range(3):
            log.append("t", [{"value": str(number)}])
    return open_store(str(tmp_path / "log"))


def cluster_id(store: ObjectStore) -> str:
    return parse_format(store.get(FORMAT_KEY), store.url).cluster_id


def adopt(store: ObjectStore, nodes: Nodes, node: int = 1) -> Founded:
    with nodes.open(node) as directory:
        return adopt_log(Journal.open(store, create=False), directory, nodes.voters, URL)


def restore(store: ObjectStore, nodes: Nodes, source: DataDirectory | None = None) -> Founded:
    with nodes.open() as directory:
        unique = f"id-{nodes.voters[0].directory}"
        return restore_log(store, directory, nodes.voters, unique, source, now_ms=SystemClock().now_ms())


def append_and_read(url: str, *new: str) -> list[str]:
    with spark_log.connect(url) as log:
        for value in new:
            log.append("t", [{"value": value}])
        return values(log)


def batch_at(stream: Stream, url: str) -> object:
    """The next batch of a streaming query, which is started again from its checkpoint with another URL."""
    return stream.restart(path=url).batch()


class DyingFiles(LocalFiles):
    """Dies before an operation that changes something."""

    left = 0

    def _count(self) -> None:
        if DyingFiles.left == 0:
            raise Died
        DyingFiles.left -= 1

    def append(self, name: str, data: bytes) -> None:
        self._count()
        super().append(name, data)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)


def run_until_done(nodes: Nodes, run: Callable[[DataDirectory, int], Founded]) -> tuple[int, Founded]:
    """Run a command that is killed at each of its writes in the directory in turn; how often it was, and its result.

    run:  is given how often it was killed before.
    """
    for deaths in range(20):
        DyingFiles.left = deaths
        with suppress(Died), nodes.open(open_files=DyingFiles) as directory:
            return deaths, run(directory, deaths)
    raise AssertionError("it does not end")


async def cannot_lead(nodes: Nodes, why: str) -> None:
    """Start the first one, which says why it does not lead."""
    node = await start_quorum(nodes.config(1))
    try:
        await until(lambda: why in node.coordinator.health().reason, why)
        assert not node.coordinator.leading
    finally:
        await node.stop()
