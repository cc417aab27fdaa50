"""Three nodes of a quorum as processes that are killed and stopped: acknowledged entries stay, in their order."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_log.testing.quorum_process import QuorumProcesses, wait_until
from tests.processes import free_port


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    found = QuorumProcesses(tmp_path, [free_port() for _ in range(3)], snapshot_bytes=2000)
    found.start()
    yield found
    found.kill_all()


class Acknowledged(NamedTuple):
    name: str
    begun_s: float
    ended_s: float


class Client:
    """Appends one entry after another, each again until it is acknowledged."""

    def __init__(self, quorum: QuorumProcesses, name: str) -> None:
        self._quorum, self._name = quorum, name
        self.found: list[Acknowledged] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            name, begun_s = f"{self._name}-{len(self.found)}", time.monotonic()
            self._quorum.append(name, size=50)
            self.found.append(Acknowledged(name, begun_s, time.monotonic()))

    def wait_for(self, more: int) -> None:
        expected = len(self.found) + more
        wait_until(lambda: len(self.found) >= expected)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def check(quorum: QuorumProcesses, found: list[Acknowledged]) -> None:
    """Each acknowledged entry is on all nodes, which agree; one that was acknowledged before another began is before
    it.
    """
    dumps: list[dict[str, int]] = []

    def agree() -> bool:
        dumps[:] = [quorum.try_ask(node, "dump").get("indexes", {}) for node in quorum.nodes.values()]
        return all(dump == dumps[0] and all(one.name in dump for one in found) for dump in dumps)

    wait_until(agree)
    indexes = dumps[0]
    wrong = [
        (first, second)
        for first in found
        for second in found
        if first.ended_s < second.begun_s and indexes[first.name] >= indexes[second.name]
    ]
    assert wrong == []


def test_acknowledged_entries_survive_kills_and_stops(quorum: QuorumProcesses) -> None:
    """SIGKILL of the leader, SIGSTOP of the leader, SIGKILL of all, each under load, with snapshots meanwhile."""
    clients = [Client(quorum, name) for name in ("a", "b")]
    try:
        for client in clients:
            client.wait_for(10)
        killed = quorum.leader()
        killed.kill()
        clients[0].wait_for(10)
        quorum.start(killed.node_id)
        stopped = quorum.leader()
        stopped.signal(signal.SIGSTOP)
        clients[0].wait_for(10)
        stopped.signal(signal.SIGCONT)
        clients[0].wait_for(10)
        for node in list(quorum.nodes.values()):
            node.kill()
        quorum.start()
        clients[0].wait_for(10)
    finally:
        for client in clients:
            client.stop()
    assert quorum.leader().ask("status")["snapshot"] > 0
    check(quorum, [one for client in clients for one in client.found])


def test_a_node_whose_disk_fails_ends_and_is_repaired(quorum: QuorumProcesses) -> None:
    """A write that fails ends the leader with the file; a flipped byte stops its start; a copy that lacks the last
    bytes catches up.
    """
    found = [acknowledged(quorum, f"before-{number}", size=3000) for number in range(5)]
    failing = quorum.leader()
    log = quorum.directory(failing.node_id) / "0000000001.log"
    resource.prlimit(failing.process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 20, log.stat().st_size + 20))
    found += [acknowledged(quorum, f"meanwhile-{number}") for number in range(5)]
    assert failing.process.wait(20) == 1
    assert f"pylog: [Errno 27] {log} failed: File too large" in quorum.log(failing.node_id)

    whole = log.read_bytes()
    log.write_bytes(whole.replace(b"PQU1", b"PQU2", 1))
    with pytest.raises(EOFError):
        quorum.start(failing.node_id)
    assert f"pylog: {log} is damaged at position 0, and a unit follows at" in quorum.log(failing.node_id)

    log.write_bytes(whole[:-5])
    quorum.start(failing.node_id)
    check(quorum, found)


def acknowledged(quorum: QuorumProcesses, name: str, size: int = 0) -> Acknowledged:
    begun_s = time.monotonic()
    quorum.append(name, size=size)
    return Acknowledged(name, begun_s, time.monotonic())
