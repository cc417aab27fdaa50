"""Three nodes of a quorum as processes, `pylog serve --quorum`: clients ride through the death of leaders."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import spark_log
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum_node.directory import format_directory
from spark_log.quorum_node.state_file import Meta
from tests.processes import Process, eventually, free_port

KEYS = tuple(ReplicaKey(number, f"directory-{number}") for number in (1, 2, 3))


class Nodes:
    """Of one quorum, on ports of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports, self._peer_ports = ({key.id: free_port() for key in KEYS} for _ in range(2))
        peers = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self._peer_ports.items())
        self._conf = folder / "node.ini"
        self._conf.write_text(f"[quorum]\npeers = {peers}\nsecret = a-secret-of-the-nodes\n")
        for key in KEYS:
            format_directory(
                str(folder / key.directory),
                Meta(cluster_id="cluster", node_id=key.id, directory_id=key.directory),
                KEYS,
            )
        self.running: dict[int, Process] = {}

    def start(self, *nodes: int) -> None:
        with ThreadPoolExecutor() as threads:
            for node, process in zip(nodes, threads.map(self._process, nodes), strict=True):
                self.running[node] = process

    def _process(self, node: int) -> Process:
        flags = [
            "--conf", str(self._conf),
            "--quorum", str(self.folder / f"directory-{node}"),
            "--quorum-listen", f"127.0.0.1:{self._peer_ports[node]}",
        ]  # fmt: skip
        log = self.folder / f"node-{node}.log"
        return Process(self.folder / "records", self._ports[node], *flags, stderr=log)

    @property
    def url(self) -> str:
        return "pylog://" + ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def leader(self) -> int:
        found: list[int] = []

        def is_led() -> bool:
            found[:] = [node for node, process in self.running.items() if process.leads]
            return bool(found)

        eventually(is_led)
        return found[0]

    def kill(self, node: int) -> None:
        self.running.pop(node).kill()

    def kill_all(self) -> None:
        for node in tuple(self.running):
            self.kill(node)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    found.start(1, 2, 3)
    yield found
    found.kill_all()


def test_clients_ride_through_the_death_of_leaders(nodes: Nodes) -> None:
    """SIGKILL and SIGSTOP: each append that returned is there once, and a stopped leader follows when it continues."""
    with spark_log.connect(nodes.url) as log:
        sent = 0

        def append() -> None:
            nonlocal sent
            for _ in range(3):
                log.append("orders", [{"value": str(sent)}])
                sent += 1

        append()
        killed = nodes.leader()
        nodes.kill(killed)
        append()
        nodes.start(killed)
        stopped = nodes.leader()
        nodes.running[stopped].stop()
        try:
            append()
        finally:
            nodes.running[stopped].go_on()
        append()
        found = [int(row["value"]) for row in log.read("orders", columns=["value"]).to_pylist()]
        assert found == list(range(sent))
    eventually(lambda: not nodes.running[stopped].leads)
    with spark_log.connect(f"pylog://{nodes.running[stopped].address}") as log:  # it names the leader
        log.append("orders", [{"value": "last"}])
        assert len(log.read("orders", columns=["value"])) == sent + 1
