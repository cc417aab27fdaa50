"""Coordinators on a quorum as processes, as `pylog serve --quorum`, for tests and benchmarks.  Clocks may be wrong.

python -m simulation.harness.serving_nodes FILE SKEW_MS SNAPSHOT_BYTES LEVEL WATCHES

FILE is the configuration of `pylog serve`, SKEW_MS how far its clock is ahead, and SNAPSHOT_BYTES how much log there is
between two snapshots; 0: as much as by default.  LEVEL is the newest level of a log that the process knows, as one of
an earlier pylog.  With WATCHES 1, it logs the pauses of its event loop; looking for them takes a few % of a core.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulation import ROOT
from simulation.harness.clocks import SkewedClock
from simulation.harness.quorum_process import CLUSTER, LIMIT_S, SECRET, wait_until
from simulation.levels import TODAY, support_level
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.directory import format_directory
from spark_log.quorum.node.node_host import NodeHost
from spark_log.quorum.node.vote_and_identity import Meta
from spark_log.rpc.health_check import health_of
from spark_log.rpc.messages import Health
from spark_log.runtime.clock import SystemClock
from spark_log.serve.serve import serve
from spark_log.serve.serve_config import read_config

TURN_S, PAUSE_MS = 0.005, 10
"""Between two looks at the event loop, and the shortest pause that is logged."""
PAUSED = "the event loop has paused for %.0f ms, with %.0f ms of CPU of its thread, which waited %.0f ms for a core"
SCHEDULED = Path("/proc/thread-self/schedstat")
PAUSE = re.compile(PAUSED.replace("%.0f", "([0-9]+)"))
logger = logging.getLogger("spark_log")


def main() -> None:
    path, skew_ms, snapshot_bytes, level, watches = sys.argv[1], *map(int, sys.argv[2:])
    support_level(level)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    host = NodeHost(clock=SkewedClock(SystemClock(), skew_ms))
    config = read_config(path, {}, {})
    if snapshot_bytes and config.quorum is not None:
        config = replace(config, quorum=replace(config.quorum, snapshot_bytes=snapshot_bytes))
    serving = serve(config, lambda line: print(line, flush=True), host=host)
    asyncio.run(_watched(serving) if watches else serving)


async def _watched(work: Coroutine[Any, Any, None]) -> None:
    """Log pauses of the event loop: one of its steps is long, or other threads or processes have held it up."""
    watch = asyncio.create_task(_watch())
    try:
        await work
    finally:
        watch.cancel()


async def _watch() -> None:
    while True:
        begun_s, cpu_s, waited_ms = time.perf_counter(), time.thread_time(), _waited_ms()
        await asyncio.sleep(TURN_S)
        pause_ms = (time.perf_counter() - begun_s - TURN_S) * 1000
        if pause_ms > PAUSE_MS:
            cpu_ms = (time.thread_time() - cpu_s) * 1000
            logger.info(PAUSED, pause_ms, cpu_ms, _waited_ms() - waited_ms)


def _waited_ms() -> float:
    """How long this thread was ready to run while others had the cores.  0 where that is not known."""
    return int(SCHEDULED.read_text().split()[1]) / 1e6 if SCHEDULED.exists() else 0.0


class ServingNodes:
    """Nodes 1 to N on ports of this machine.  Their records are in one folder."""

    def __init__(
        self,
        folder: Path,
        ports: Sequence[int],
        between: Callable[[int, int, str], str] = lambda source, target, address: address,
        skew_ms: Callable[[int], int] = lambda node: 0,
        for_clients: Callable[[int, str], str] = lambda node, address: address,
        snapshot_bytes: int = 0,
        level: int = TODAY,
        watches: bool = False,
        settings: str = "",
    ) -> None:
        """
        ports:           two for each node.
        between:         the address under which the first node reaches the second.
        skew_ms:         how far the clock of a node is ahead.
        for_clients:     the address under which clients reach a node.
        snapshot_bytes:  of the log, between two snapshots; 0: the default.
        level:           the newest level of a log that nodes know.
        watches:         nodes note the pauses of their event loops.
        settings:        lines of the coordinator's part of the configuration.
        """
        self.level, self._watches, self._settings = level, watches, settings
        self.folder, self._skew_ms, self._snapshot_bytes = folder, skew_ms, snapshot_bytes
        count = len(ports) // 2
        self.addresses = {node: f"127.0.0.1:{port}" for node, port in enumerate(ports[:count], 1)}
        """Addresses of the nodes' ports for clients."""
        self._for_clients = {node: for_clients(node, address) for node, address in self.addresses.items()}
        listens = {node: f"127.0.0.1:{port}" for node, port in enumerate(ports[count:], 1)}
        voters = tuple(ReplicaKey(node, f"dir-{node}") for node in self.addresses)
        self.processes: dict[int, subprocess.Popen[str]] = {}
        for key in voters:
            meta = Meta(cluster_id=CLUSTER, node_id=key.id, directory_id=key.directory)
            format_directory(str(self.directory(key.id)), meta, voters)
            peers = {node: between(key.id, node, address) for node, address in listens.items() if node != key.id}
            self._write_config(key.id, listens[key.id], peers)

    def _write_config(self, node: int, listen: str, peers: dict[int, str]) -> None:
        text = ",".join(f"{other}@{address}" for other, address in peers.items())
        self._config(node).write_text(
            f"[coordinator]\nurl = {self.folder / 'records'}\nlisten = {self.addresses[node]}\n"
            f"advertise = {self._for_clients[node]}\ndurability = os\n{self._settings}\n"
            f"[quorum]\ndirectory = {self.directory(node)}\nlisten = {listen}\npeers = {text}\nsecret = {SECRET}\n"
        )

    def directory(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def log(self, node: int) -> str:
        """The messages of a node."""
        return self._log(node).read_text()

    def _log(self, node: int) -> Path:
        return self.folder / f"node-{node}.err"

    def _config(self, node: int) -> Path:
        return self.folder / f"node-{node}.ini"

    def pauses(self, node: int, since: int = 0) -> list[tuple[int, int, int]]:
        """The pauses of its event loop, in milliseconds, each with the CPU time of the loop's thread, and how long that
        waited for a core.

        since:  the length of its log at the beginning.
        """
        return [(int(wall), int(cpu), int(wait)) for wall, cpu, wait in PAUSE.findall(self.log(node)[since:])]

    @property
    def url(self) -> str:
        return "pylog://" + ",".join(self._for_clients.values())

    # -------------------------------------------------------------------------------------------------- start and stop

    def start(self, *nodes: int) -> None:
        """These, or all; returns when they listen."""
        started = nodes or tuple(self.addresses)
        for node in started:
            command = [sys.executable, "-m", "simulation.harness.serving_nodes", str(self._config(node))]
            with self._log(node).open("ab") as err:
                self.processes[node] = subprocess.Popen(
                    [*command, *map(str, (self._skew_ms(node), self._snapshot_bytes, self.level, int(self._watches)))],
                    stdout=subprocess.PIPE,
                    stderr=err,
                    text=True,
                    cwd=ROOT,
                )
        for node in started:
            out = self.processes[node].stdout
            assert out is not None
            if "listening on" not in out.readline():
                raise EOFError(f"node {node} did not start: {self.log(node)[-2000:]}")

    def signal(self, node: int, number: signal.Signals) -> None:
        os.kill(self.processes[node].pid, number)

    def wait(self, node: int) -> int:
        """The exit status of a node that ends."""
        process = self.processes[node]
        status = process.wait(LIMIT_S)
        if process.stdout is not None:
            process.stdout.close()
        return status

    def kill(self, node: int) -> None:
        self.processes[node].kill()
        self.wait(node)

    def kill_all(self) -> None:
        for node in self.processes:
            self.kill(node)

    # ---------------------------------------------------------------------------------------------------------- status

    def health(self, node: int) -> Health | None:
        """None if it does not answer."""
        return None if self.processes[node].poll() is not None else health_of(self.addresses[node], tls=False)

    def leader(self, but: int = 0) -> int:
        """The node that leads, if it is another one than `but`."""
        found: list[int] = []

        def leads() -> bool:
            found[:] = [node for node in self.processes if node != but and (h := self.health(node)) and h.leading]
            return len(found) == 1

        wait_until(leads, "one of the nodes leads")
        return found[0]

    def epoch(self) -> int:
        """The epoch of the leader."""
        found = self.health(self.leader())
        return found.epoch if found is not None else 0


if __name__ == "__main__":
    main()
