"""Three nodes of a quorum as processes, with faults: acknowledged entries stay, in their order.

The check needs no search: an entry that was acknowledged before another was begun has a smaller index, on all nodes.
"""

from __future__ import annotations

import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simulation.harness.quorum_process import LIMIT_S, SECRET, QuorumProcesses, wait_until
from simulation.harness.tcp_proxy import TcpProxies
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.admin import LATER, QuorumAdmin
from tests.processes import free_port


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., QuorumProcesses]]:
    """Starts nodes, with more settings, and kills them in the end."""
    found = []

    def start(**config: Any) -> QuorumProcesses:
        config = {"snapshot_bytes": 2000, **config}
        found.append(QuorumProcesses(tmp_path, [free_port() for _ in range(3)], **config))
        found[0].start()
        return found[0]

    yield start
    for quorum in found:
        quorum.kill_all()


@pytest.fixture
def quorum(start: Callable[..., QuorumProcesses]) -> QuorumProcesses:
    return start()


@pytest.fixture
def proxies() -> Iterator[TcpProxies]:
    with TcpProxies() as found:
        yield found


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
        wait_until(lambda: len(self.found) >= expected, f"{more} more entries of {self._name} are acknowledged")

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def check(quorum: QuorumProcesses, found: list[Acknowledged]) -> None:
    """Each acknowledged entry is on all nodes, which agree; one that was acknowledged before another began is before
    it.
    """
    dumps: list[dict[str, int]] = []

    def agree() -> bool:
        dumps[:] = [quorum.try_ask(node, "dump", 10.0).get("indexes", {}) for node in quorum.nodes.values()]
        return all(dump == dumps[0] and all(one.name in dump for one in found) for dump in dumps)

    wait_until(agree, "all nodes have all acknowledged entries")
    indexes = dumps[0]
    wrong = [
        (first, second)
        for first in found
        for second in found
        if first.ended_s < second.begun_s and indexes[first.name] >= indexes[second.name]
    ]
    assert wrong == []


# Promise: quorum.md#choose-the-number-of-nodes, quorum.md#drills, quorum.md#when-a-node-is-lost, raft.md#faults
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
    wait_until(lambda: quorum.leader().ask("status")["snapshot"] > 0, "the leader has a snapshot")
    check(quorum, [one for client in clients for one in client.found])


# Promise: quorum.md#drills, raft.md#faults
def test_a_node_whose_disk_fails_ends_and_is_repaired(quorum: QuorumProcesses) -> None:
    """A write that fails ends the leader with the file; a flipped byte stops its start; a copy that lacks the last
    bytes catches up.
    """
    found = [acknowledged(quorum, f"before-{number}", size=3000) for number in range(5)]
    failing = quorum.leader()
    log = quorum.directory(failing.node_id) / "0000000001.log"
    resource.prlimit(failing.process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 20, log.stat().st_size + 20))
    found += [acknowledged(quorum, f"meanwhile-{number}") for number in range(5)]
    assert failing.process.wait(LIMIT_S) == 1
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


# Promise: quorum.md#drills, raft.md#faults
def test_partitions_and_broken_connections_lose_nothing(
    start: Callable[..., QuorumProcesses], proxies: TcpProxies
) -> None:
    """Under load: the leader is heard by nobody, then hears nobody; connections break in the middle of messages; the
    network is slow.
    """
    quorum = start(between=proxies.between)
    pairs = [(source, target) for source in (1, 2, 3) for target in (1, 2, 3) if source != target]
    client = Client(quorum, "a")
    try:
        client.wait_for(5)
        for is_heard in (False, True):
            leader = quorum.leader().node_id
            for pair in pairs:
                proxies.set(*pair, is_cut=pair[is_heard] == leader)
            client.wait_for(5)
            for pair in pairs:
                proxies.set(*pair)
            client.wait_for(5)
        for number, pair in enumerate(pairs):
            proxies.set(*pair, break_after=2000 + 37 * number)
        client.wait_for(10)
        for pair in pairs:
            proxies.set(*pair, delay_s=0.02)
        client.wait_for(5)
    finally:
        client.stop()
        for pair in pairs:
            proxies.set(*pair)
    check(quorum, client.found)


# Promise: quorum.md#drills, raft.md#faults
def test_a_disk_that_hangs_costs_the_lead_and_no_append(start: Callable[..., QuorumProcesses]) -> None:
    """The followers commit without the leader's disk; it hands over, and catches up when the disk answers again."""
    quorum = start(slow_disk_ms=1000)
    client = Client(quorum, "a")
    try:
        client.wait_for(5)
        hung = quorum.leader()
        quorum.hang_disk(hung.node_id)
        wait_until(lambda: (s := hung.ask("status"))["role"] != "leader" and s["writing_ms"] > 1000, "it hands over")
        client.wait_for(20)
        quorum.heal_disk(hung.node_id)
    finally:
        client.stop()
    check(quorum, client.found)


# Promise: quorum.md#drills, quorum.md#replace-a-disk-or-a-machine, raft.md#tools-of-operators
def test_a_lost_disk_is_replaced_under_load(quorum: QuorumProcesses) -> None:
    """With the commands' way to the nodes: the old directory is removed, and the new one is added.  The leader makes
    snapshots in less time than the new disk takes to fetch one.
    """
    admin = QuorumAdmin(list(quorum.addresses.values()), SECRET)
    client = Client(quorum, "a")
    try:
        client.wait_for(5)
        lost = quorum.leader()
        lost.kill()
        shutil.rmtree(quorum.directory(lost.node_id))
        quorum.format(lost.node_id, "new")
        quorum.start(lost.node_id)
        client.wait_for(5)
        admin.remove_voter(ReplicaKey(lost.node_id, f"dir-{lost.node_id}"), LIMIT_S)
        admin.add_voter(f"{lost.node_id}@new", LIMIT_S)
        client.wait_for(5)
        with suppress(*LATER):  # not if nodes elect just then
            admin.hand_over(lost.node_id)
        client.wait_for(5)
    finally:
        client.stop()
    check(quorum, client.found)
