"""Three nodes of a quorum as processes, `pylog serve --quorum`: clients ride through everything that happens to them.

The check needs no search: a record that was acknowledged before another was begun has a smaller offset; each that was
acknowledged is there, and none is there twice.  `make chaos` runs more rounds of faults.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from random import Random

import pytest

import spark_log
from simulation.harness.quorum_process import wait_until
from simulation.harness.serving_nodes import ServingNodes
from simulation.harness.tcp_proxy import TcpProxies
from tests.chaos.riders import Appender, check_order, values_of
from tests.processes import free_port

ROUNDS = int(os.environ.get("QUORUM_ROUNDS", "0"))
SKEW_MS = 5 * 365 * 86_400_000


class Setting:
    """Nodes, a proxy for each directed pair, and writers."""

    def __init__(self, folder: Path, proxies: TcpProxies, skew_ms: Callable[[int], int] = lambda node: 0) -> None:
        self.nodes = ServingNodes(folder, [free_port() for _ in range(6)], between=proxies.between, skew_ms=skew_ms)
        self.proxies = proxies
        self.nodes.start()
        self.writers = [Appender(self.nodes.url, name) for name in ("a", "b")]

    def wait_for(self, more: int = 3) -> None:
        for writer in self.writers:
            writer.wait_for(more)

    def cut(self, node: int, *, is_heard: bool) -> None:
        """Nothing that the node says arrives, or it hears nothing."""
        for pair in permutations(self.nodes.addresses, 2):
            self.proxies.set(*pair, is_cut=pair[is_heard] == node)

    def heal(self) -> None:
        for pair in permutations(self.nodes.addresses, 2):
            self.proxies.set(*pair)

    def check(self) -> None:
        """Each acknowledged record is there, once, and in its order; all nodes have it."""
        for writer in self.writers:
            writer.stop()
        with spark_log.connect(self.nodes.url) as log:
            check_order([one for writer in self.writers for one in writer.found], values_of(log, "orders"))
        newest = max(health.version for node in self.nodes.addresses if (health := self.nodes.health(node)))
        wait_until(lambda: all(self._has(node, newest) for node in self.nodes.addresses), "all nodes have all of it")

    def _has(self, node: int, version: int) -> bool:
        health = self.nodes.health(node)
        return health is not None and health.version >= version


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Setting]]:
    settings: list[Setting] = []
    with TcpProxies() as proxies:

        def start(**values: Callable[[int], int]) -> Setting:
            settings.append(Setting(tmp_path, proxies, **values))
            return settings[-1]

        yield start
        for setting in settings:
            for writer in setting.writers:
                writer.end()
            setting.nodes.kill_all()


# Promise: service.md#keep-the-metadata-in-a-quorum
def test_clients_ride_through_the_death_of_leaders(start: Callable[..., Setting]) -> None:
    """SIGKILL, SIGSTOP, and a leader that is heard by nobody; the clock of one node is five years ahead."""
    setting = start(skew_ms=lambda node: SKEW_MS if node == 1 else 0)
    nodes = setting.nodes
    setting.wait_for()
    killed = nodes.leader()
    nodes.kill(killed)
    setting.wait_for()
    nodes.start(killed)
    stopped = nodes.leader()
    nodes.signal(stopped, signal.SIGSTOP)
    try:
        setting.wait_for()
    finally:
        nodes.signal(stopped, signal.SIGCONT)
    setting.cut(nodes.leader(but=stopped), is_heard=False)
    setting.wait_for()
    setting.heal()
    setting.check()
    with spark_log.connect(f"pylog://{nodes.addresses[stopped]}") as log:  # it names the leader
        log.append("orders", [{"value": "last"}])
        written = log.read("orders", columns=["timestamp"]).to_pylist()
        assert all(row["timestamp"].year == written[0]["timestamp"].year for row in written)


def test_a_node_whose_disk_is_full_ends_and_comes_back(start: Callable[..., Setting]) -> None:
    """A file that cannot grow ends the leader; a copy of its directory that lacks the last bytes catches up."""
    setting = start()
    nodes = setting.nodes
    setting.wait_for()
    full = nodes.leader()
    log = nodes.directory(full) / "0000000001.log"
    size = log.stat().st_size + 20
    resource.prlimit(nodes.processes[full].pid, resource.RLIMIT_FSIZE, (size, size))
    setting.wait_for()
    assert nodes.wait(full) == 1
    kept = nodes.directory(full).rename(nodes.folder / "kept")
    shutil.copytree(kept, nodes.directory(full))
    log.write_bytes(log.read_bytes()[:-7])
    nodes.start(full)
    setting.wait_for()
    setting.check()


@pytest.mark.skipif(not ROUNDS, reason="make chaos")
def test_random_faults_lose_nothing(start: Callable[..., Setting]) -> None:
    """Many of them, one after another, some of them together."""
    setting, rng = start(skew_ms=lambda node: SKEW_MS if node == 1 else 0), Random(ROUNDS)
    nodes = setting.nodes
    for _ in range(ROUNDS):
        setting.wait_for(2)
        leader = nodes.leader()
        victim = leader if rng.random() < 0.7 else rng.choice([node for node in nodes.addresses if node != leader])
        match rng.choice(("kill", "stop", "unheard", "deaf", "terminate", "break", "slow")):
            case "kill":
                nodes.kill(victim)
            case "stop":
                nodes.signal(victim, signal.SIGSTOP)
            case "unheard" | "deaf" as how:
                setting.cut(victim, is_heard=how == "deaf")
            case "terminate":
                nodes.signal(victim, signal.SIGTERM)
                nodes.wait(victim)
            case "break":
                for number, pair in enumerate(permutations(nodes.addresses, 2)):
                    setting.proxies.set(*pair, break_after=2000 + 37 * number)
            case "slow":
                for pair in permutations(nodes.addresses, 2):
                    setting.proxies.set(*pair, delay_s=0.02)
        setting.wait_for(rng.choice((1, 3)))
        with suppress(ProcessLookupError):
            nodes.signal(victim, signal.SIGCONT)
        setting.heal()
        if nodes.processes[victim].poll() is not None:
            nodes.start(victim)
    setting.check()
