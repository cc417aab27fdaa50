"""Nodes of a quorum as processes, for tests and benchmarks: each replicates a dictionary, and reads commands.

    python -m simulation.harness.quorum_process CONFIG       a `NodeConfig` as JSON; commands on standard input

A command is a line of JSON, `{"number": 1, "do": "append", …}`; so is a reply, which has the same number.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulation import ROOT
from spark_log.errors import SparkLogError
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.directory import format_directory
from spark_log.quorum.node.file_operations import LocalFiles
from spark_log.quorum.node.node import Node
from spark_log.quorum.node.node_config import TIMES, NodeConfig
from spark_log.quorum.node.node_host import NodeHost
from spark_log.quorum.node.vote_and_identity import Meta

SECRET = "a-secret-of-the-nodes"
CLUSTER = "test-cluster"
LIMIT_S = 120.0
"""The limit of a wait: far more than it takes on a machine that is ten times slower."""


# ---------------------------------------------------------------------------------------------------------- the process


class Dictionary:
    """The application: ids of commands, in the order in which they were first applied, with the index of each."""

    def __init__(self) -> None:
        self.indexes: dict[str, int] = {}

    def apply(self, index: int, data: bytes) -> None:
        self.indexes.setdefault(data.partition(b" ")[0].decode(), index)

    def snapshot(self) -> Iterable[bytes]:
        copy = dict(self.indexes)
        return (f"{name} {index}\n".encode() for name, index in copy.items())

    def restore(self, pieces: Iterator[bytes]) -> None:
        lines = b"".join(pieces).decode().splitlines()
        self.indexes = {name: int(index) for name, index in (line.split() for line in lines)}


class HungFiles(LocalFiles):
    """Files of a disk on which each fsync waits for as long as a file exists beside their directory."""

    def sync(self, name: str) -> None:
        while Path(f"{self.path}.hung").exists():
            time.sleep(0.01)
        super().sync(name)


class Program:
    def __init__(self, config: NodeConfig) -> None:
        self.state = Dictionary()
        self.node = Node(config, self.state, host=NodeHost(HungFiles))

    async def run(self) -> None:
        await self.node.start()
        self._say({"number": 0, "port": self.node.port})
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        reading = asyncio.create_task(self._read(reader))
        try:
            await asyncio.wait([reading, asyncio.create_task(self.node.run())], return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            await self.node.stop()
        await self.node.run()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        tasks = set()
        while line := await reader.readline():
            tasks.add(task := asyncio.create_task(self._answer(json.loads(line))))
            task.add_done_callback(tasks.discard)

    async def _answer(self, command: dict[str, Any]) -> None:
        try:
            reply = await getattr(self, f"_{command.pop('do')}")(**{k: v for k, v in command.items() if k != "number"})
        except SparkLogError as error:
            reply = {
                "error": str(error),
                "maybe_applied": error.maybe_applied,
                "leader": getattr(error, "leader", None),
            }
        self._say({"number": command["number"], **reply})

    def _say(self, reply: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()

    async def _append(self, name: str, size: int = 0) -> dict[str, Any]:
        return {"index": await self.node.append(f"{name} {'x' * size}".encode())}

    async def _load(self, count: int, clients: int) -> dict[str, Any]:
        """Append so many entries with so many clients; the milliseconds of each, and of all."""
        times: list[float] = []

        async def client(number: int) -> None:
            for one in range(count // clients):
                begun = time.perf_counter()
                await self.node.append(f"load-{begun}-{number}-{one} {'x' * 200}".encode())
                times.append((time.perf_counter() - begun) * 1000)

        begun = time.perf_counter()
        await asyncio.gather(*map(client, range(clients)))
        return {"times": times, "ms": (time.perf_counter() - begun) * 1000}

    async def _dump(self) -> dict[str, Any]:
        return {"indexes": self.state.indexes}

    async def _confirm(self) -> dict[str, Any]:
        await self.node.confirm()
        return {"indexes": self.state.indexes}

    async def _status(self) -> dict[str, Any]:
        status = self.node.status()
        if status is None:
            return {"role": "joining"}
        return {
            "role": status.role,
            "epoch": status.epoch,
            "leader": None if status.leader is None else status.leader.id,
            "voters": [list(key) for key in status.voters],
            "high_watermark": status.high_watermark,
            "applied": status.applied,
            "snapshot": status.snapshot.offset,
            "replicas": [one.key.id for one in status.replication],
            "problems": {str(node): problem for node, problem in status.problems.items()},
            "is_full": status.is_full,
            "writing_ms": status.writing_ms,
        }

    async def _hand_over(self) -> dict[str, Any]:
        return {"done": await self.node.hand_over()}

    async def _add_voter(self, node: int, directory: str) -> dict[str, Any]:
        return {"change": self.node.add_voter(ReplicaKey(node, directory)).value}

    async def _remove_voter(self, node: int, directory: str) -> dict[str, Any]:
        return {"change": self.node.remove_voter(ReplicaKey(node, directory)).value}


def main() -> None:
    values = json.loads(sys.argv[1])
    peers = {int(node): address for node, address in values.pop("peers").items()}
    config = NodeConfig(peers=peers, times=replace(TIMES, **values.pop("times", {})), **values)
    logging.basicConfig(level=logging.INFO, format=f"node {config.node_id}: %(message)s")
    try:
        asyncio.run(Program(config).run())
    except SparkLogError as error:
        sys.exit(f"pylog: {error}")


# -------------------------------------------------------------------------------------------------------- from the test


class QuorumProcess:
    """One node."""

    def __init__(self, config: dict[str, Any], log: Path) -> None:
        self.node_id: int = config["node_id"]
        self._replies: dict[int, Future[dict[str, Any]]] = {0: Future()}
        self._lock = threading.Lock()
        self._number = 0
        command = [sys.executable, "-m", "simulation.harness.quorum_process", json.dumps(config)]
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, cwd=ROOT
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            reply = json.loads(line)
            self._replies.pop(reply["number"]).set_result(reply)
        with self._lock:
            waiting, self._replies = self._replies, {}
        for future in waiting.values():
            future.set_exception(EOFError(f"node {self.node_id} is gone"))

    def wait_until_started(self) -> None:
        started = self._replies.get(0)
        if started is not None:
            started.result(LIMIT_S)

    def ask(self, do: str, timeout_s: float = LIMIT_S, **values: Any) -> dict[str, Any]:
        """Raises EOFError or BrokenPipeError if the process is gone, TimeoutError if it does not answer."""
        future: Future[dict[str, Any]] = Future()
        assert self.process.stdin is not None
        with self._lock:
            if not self._reader.is_alive():
                raise EOFError(f"node {self.node_id} is gone")
            self._number += 1
            self._replies[self._number] = future
            self.process.stdin.write(json.dumps({"number": self._number, "do": do, **values}) + "\n")
            self.process.stdin.flush()
        return future.result(timeout_s)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Nothing if it has ended."""
        self.process.kill()
        self.process.wait()
        self._close()

    def stop(self) -> int:
        """Stops as its application would; the exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(LIMIT_S)
        self._close()
        return status

    def _close(self) -> None:
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


class QuorumProcesses:
    """Nodes 1 to N on ports of this machine, each with a directory in a folder."""

    def __init__(
        self,
        folder: Path,
        ports: Sequence[int],
        between: Callable[[int, int, str], str] = lambda source, target, address: address,
        **config: Any,
    ) -> None:
        """
        between:  the address under which the first node reaches the second, if it is another one.
        """
        self.folder, self._between = folder, between
        self._config = config
        self.addresses = {node: f"127.0.0.1:{port}" for node, port in enumerate(ports, 1)}
        self.nodes: dict[int, QuorumProcess] = {}
        voters = tuple(ReplicaKey(node, f"dir-{node}") for node in self.addresses)
        for key in voters:
            self.format(key.id, key.directory, voters)

    def directory(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def format(self, node: int, directory_id: str, voters: Sequence[ReplicaKey] = ()) -> None:
        meta = Meta(cluster_id=CLUSTER, node_id=node, directory_id=directory_id)
        format_directory(str(self.directory(node)), meta, tuple(voters))

    def start(self, *nodes: int) -> None:
        """These, or all."""
        for node in nodes or self.addresses:
            if node in self.nodes:
                self.nodes[node].kill()
            config = {
                "directory": str(self.directory(node)),
                "cluster_id": CLUSTER,
                "node_id": node,
                "listen": self.addresses[node],
                "peers": {
                    other: self._between(node, other, address)
                    for other, address in self.addresses.items()
                    if other != node
                },
                "secret": SECRET,
                **self._config,
            }
            self.nodes[node] = QuorumProcess(config, self.folder / f"node-{node}.err")
        for node in nodes or self.addresses:
            self.nodes[node].wait_until_started()

    def hang_disk(self, node: int) -> None:
        """Until `heal_disk`."""
        Path(f"{self.directory(node)}.hung").touch()

    def heal_disk(self, node: int) -> None:
        Path(f"{self.directory(node)}.hung").unlink()

    def log(self, node: int) -> str:
        """The messages of a node."""
        return (self.folder / f"node-{node}.err").read_text()

    def leader(self, timeout_s: float = LIMIT_S) -> QuorumProcess:
        """The node that leads."""
        found: list[QuorumProcess] = []

        def leads() -> bool:
            found[:] = [node for node in self.nodes.values() if self.try_ask(node, "status").get("role") == "leader"]
            return len(found) == 1

        wait_until(leads, "one of the nodes leads", timeout_s)
        return found[0]

    def try_ask(self, node: QuorumProcess, do: str, timeout_s: float = 0.5, **values: Any) -> dict[str, Any]:
        """Empty if the node is gone, or does not answer in time."""
        try:
            return node.ask(do, timeout_s, **values)
        except (EOFError, OSError, TimeoutError):
            return {}

    def append(self, name: str, timeout_s: float = LIMIT_S, try_s: float = 0.5, **values: Any) -> int:
        """Append on the node that leads, under an id, until it is acknowledged; its index.

        try_s:  for each node, doubled after each round: a slow machine may need longer.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for node in list(self.nodes.values()):
                reply = self.try_ask(node, "append", try_s, name=name, **values)
                if "index" in reply:
                    return int(reply["index"])
            try_s = min(2 * try_s, 10.0)
            time.sleep(0.02)
        raise TimeoutError(f"{name} was not acknowledged within {timeout_s:g} s")

    def kill_all(self) -> None:
        for node in self.nodes.values():
            node.kill()


def wait_until(true: Any, what: str, timeout_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
