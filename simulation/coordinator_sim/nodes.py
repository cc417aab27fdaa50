"""A node of the simulated quorum: the product's coordinator, server and replica, on a simulated machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

from aiohttp import web

from simulation.coordinator_sim.world import CLUSTER, QuorumWorld
from simulation.harness.simulated_process import ProcessLoop, SimulatedFiles, SimulatedThreads
from simulation.levels import TOMORROW
from simulation.log_sim.world import Actor
from spark_log.errors import ConcurrentChange, StorageUnavailable
from spark_log.groups.group import GroupConfig
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.http.head_first import HeadFirst
from spark_log.metadata.state import State
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.directory import write_format
from spark_log.quorum.node.disk import Disk
from spark_log.quorum.node.node_config import NodeConfig
from spark_log.quorum.node.node_host import NodeHost
from spark_log.quorum.node.vote_and_identity import Meta
from spark_log.quorum.voters import Voters
from spark_log.quorum.wire import Received
from spark_log.server.group_coordinator import Groups
from spark_log.server.quorum.coordinator import QuorumCoordinator
from spark_log.server.server import Server
from spark_log.server.tokens import Tokens

GROUPS = GroupConfig(initial_rebalance_delay_ms=100, min_session_timeout_ms=0)
DIGEST_MS = 1_000
COPY_S = 6.0
ASK_S = 0.7
STORE_ERRORS = 0.1
"""How often the storage does not answer a node that prepares to lead."""


class NoThreads:
    """Duties do not run in the nodes: maintainers do them, as clients."""

    def start(self, work: Callable[[], None], name: str) -> None:
        pass


class FastThread:
    """Its work takes no time: the seed decides nothing about it."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop

    def submit(self, function: Callable[..., Any], *values: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        future.set_result(function(*values))
        return future

    def close(self) -> None:
        """Nothing is under way."""


class NodeClock:
    def __init__(self, node: SimulatedNode) -> None:
        self._node = node

    def now_ms(self) -> int:
        return self._node.world.now + self._node.skew_ms

    def monotonic_ms(self) -> int:
        return self._node.world.now + self._node.ahead_ms

    def sleep_ms(self, milliseconds: float) -> None:
        """A thread that waits for the storage.  It takes no time."""


class Directory(NamedTuple):
    meta: Meta
    disk: Disk

    def close(self) -> None:
        """Nothing is locked."""


class Port:
    """Nobody connects: the network delivers."""

    async def start(self, host: str, port: int, tls: object) -> int:
        return port

    async def stop(self) -> None:
        pass


class Links:
    """The connections of one process to the other nodes."""

    def __init__(
        self,
        node: SimulatedNode,
        me: Any,
        refused: Callable[[int], None],
        accepted: Callable[[ReplicaKey, Voters], None],
    ):
        self.me = me
        self._node, self._loop, self._refused, self._accepted = node, node.loop, refused, accepted
        self._directories: dict[int, str] = {}
        """By node that was connected."""
        self._loop.create_task(self._introduce())

    async def _introduce(self) -> None:
        """Connect to each other process of a node that runs."""
        connected: dict[int, object] = {}
        while True:
            for other in self._node.world.others(self._node):
                if other.runs and connected.get(other.key.id) is not other.coordinator:
                    connected[other.key.id] = other.coordinator
                    self._directories[other.key.id] = other.key.directory
                    self._accepted(other.key, other.voters)
            await asyncio.sleep(0.2)

    def send(self, sent: Received) -> None:
        if not self._loop.is_dead:
            self._node.world.network.send(self._node, sent, self._refused)

    def addresses(self) -> dict[int, str]:
        return {}

    def directories(self) -> dict[int, str]:
        return {}

    def problems(self) -> dict[int, str | None]:
        return {}

    def known(self) -> dict[int, str]:
        """All nodes are peers."""
        return {one.key.id: self._directories.get(one.key.id, "") for one in self._node.world.others(self._node)}

    def levels(self) -> dict[int, int]:
        """The levels of the nodes that are connected."""
        network, me = self._node.world.network, self._node.key.id
        others = [node for node in self._node.world.others(self._node) if node.runs]
        return {one.key.id: one.level for one in others if (one.key.id, me) not in network.blocked}

    async def flush(self) -> None:
        await asyncio.sleep(0.02)

    async def close(self) -> None:
        pass


class SimulatedHost(NodeHost):
    """One process on the machine of a node."""

    threads: Any = NoThreads()

    def __init__(self, node: SimulatedNode) -> None:
        self._node, self._loop, self._world = node, node.loop, node.world
        self.clock = NodeClock(node)
        self._rng = Random(node.world.rng.random())
        self.receive: Callable[[Received], None] = lambda received: None
        self.disk_threads: SimulatedThreads | None = None

    def monotonic_s(self) -> float:
        return self._loop.time()

    def random(self) -> Random:
        return self._rng

    ids = random

    def daemon_threads(self, count: int, name: str) -> Any:
        if name == "pylog-quorum-digest":
            return FastThread(self._loop)
        found = SimulatedThreads(self._loop, self._world, count, self._node.work_ms)
        if name == "pylog-quorum-disk":
            self.disk_threads = found
        return found

    def open_directory(self, config: NodeConfig) -> Any:
        return Directory(self._node.meta, Disk(self._node.files, segment_bytes=self._world.segment_bytes))

    def port(self, me: Any, secret: str, receive: Callable[[Received], None], **values: Any) -> Any:
        self.receive = receive
        return Port()

    def links(self, me: Any, secret: str, tls: object, peers: object, **values: Any) -> Any:
        return Links(self._node, me, **values)


class _Content:
    def is_eof(self) -> bool:
        return True


class _Connection(HeadFirst):
    """The body of its request is there."""

    def __init__(self) -> None:
        """Without aiohttp's."""

    def let_in(self, request: web.BaseRequest) -> None:
        """Nothing is kept."""


class HttpRequest:
    """The part of a request of aiohttp that the server reads."""

    protocol = _Connection()
    transport = None
    remote = "client"
    content = _Content()
    headers: Mapping[str, str] = {}

    def __init__(self, method: str, path: str, body: bytes) -> None:
        self.method, self.path, self._body = method, path, body
        self.content_length = len(body)

    async def read(self) -> bytes:
        return self._body


class SimulatedNode:
    """A machine with a disk, on which a process runs or does not."""

    def __init__(self, world: QuorumWorld, key: ReplicaKey, voters: Voters) -> None:
        """
        voters:  that the directory is formatted with; empty: it joins.
        """
        self.world, self.key = world, key
        self.address = f"node{key.id}:1"
        self.meta = Meta(cluster_id=CLUSTER, node_id=key.id, directory_id=key.directory)
        self.files = SimulatedFiles()
        write_format(self.files, self.meta, voters)
        self.skew_ms = 0
        self.ahead_ms = world.rng.randrange(100_000)
        self.level = world.rng.choice([world.level, TOMORROW]) if voters else TOMORROW
        """The newest level of the log that its pylog knows."""
        self.is_slow = False
        """Its disk takes long for everything."""
        self.is_ready = True
        """The operator has prepared its directory."""
        self.threads: list[Actor] = []
        """The threads of the present process that use the storage."""
        self.runs = self.is_stopped = False
        self.starts = 0
        self.has_begun = self.was_leading = False
        """The present process takes part."""
        self.is_ending = False
        """The present process was terminated, and ends as soon as it has handed over."""
        self.seen = State()
        """The state that the process had last."""
        self.coordinator: Any = None
        """A `QuorumCoordinator`, as soon as the process has begun."""

    def __str__(self) -> str:
        return f"node {self.key.id}{self.key.directory}"

    @property
    def leads(self) -> bool:
        return self.runs and self.coordinator is not None and bool(self.coordinator.leading)

    @property
    def decides(self) -> bool:
        """It leads, and has batches that are not final."""
        return self.leads and len(self.coordinator._log.pipeline) > 0

    @property
    def log_end(self) -> int:
        status = None if self.coordinator is None else self.coordinator.node.status()
        return 0 if status is None else int(status.log_end)

    @property
    def voters(self) -> Voters:
        return () if self.coordinator is None else self.coordinator.node._voters()

    def work_ms(self) -> int:
        rng = self.world.rng
        if self.is_slow or self.world.happens(self.world.slowness):
            return rng.randrange(50, 1500)
        return rng.randrange(1, 5)

    # -------------------------------------------------------------------------------------------------- start and stop

    def start(self) -> None:
        self.runs, self.is_stopped, self.is_ending, self.starts = True, False, False, self.starts + 1
        self.coordinator, self.seen, self.has_begun, self.was_leading = None, State(), False, False
        self.loop = ProcessLoop(self.world, self._failed, self.ahead_ms)
        self.loop.after_run, self.loop.shuffle = self._after_run, self.world.rng.shuffle
        self.host = SimulatedHost(self)
        self.world.note(f"{self} starts")
        self.loop.call_soon(self._boot)

    def _boot(self) -> None:
        world, host = self.world, self.host
        config = NodeConfig(
            directory=f"/{self}",
            cluster_id=CLUSTER,
            node_id=self.key.id,
            listen="127.0.0.1:1",
            peers={},
            secret="a-secret-of-the-nodes",
            snapshot_bytes=world.snapshot_bytes,
            slow_disk_ms=world.slow_disk_ms,
            digest_ms=DIGEST_MS,
            times=world.times,
        )
        self.coordinator = QuorumCoordinator(config, world.storage, prepare=self._prepare, host=host)
        self.coordinator.address = self.address
        self.coordinator.node.config = replace(self.coordinator.node.config, level=self.level)
        groups = Groups(self.coordinator, self.coordinator.clock, self.coordinator.unique, GROUPS)
        self.coordinator.held = groups.held_positions
        self.server = Server(
            self.coordinator,
            groups,
            tokens=Tokens({}),
            limits=ConnectionLimits(),
            serves_metadata=True,
            daemon_threads=host.daemon_threads,
            monotonic_s=host.monotonic_s,
        )
        self.server.begin()
        self.loop.create_task(self._run())

    async def _run(self) -> None:
        loop = self.loop
        try:
            await self.coordinator.start()
            self.has_begun = True
            loop.create_task(self._copy_often())
            if self.world.erasures.are_drawn:
                loop.create_task(self._ask_of_erasures())
            await self.coordinator.node.run()
        except Exception as error:  # noqa: BLE001
            if not loop.is_dead:
                self._failed(error)

    async def _copy_often(self) -> None:
        """The leader's copies of the state beside the records; in the product, a thread writes them."""
        while True:
            await asyncio.sleep(COPY_S)
            if self.leads:
                with suppress(StorageUnavailable, ConcurrentChange):
                    self.coordinator.root_snapshots.write()

    async def _ask_of_erasures(self) -> None:
        """The leader's maintenance does it in the product."""
        while True:
            await asyncio.sleep(ASK_S)
            if self.leads:
                with suppress(StorageUnavailable):
                    self.world.erasures.ask(self.coordinator)

    async def _prepare(self) -> None:
        await asyncio.sleep(0.005)
        if self.world.happens(STORE_ERRORS):
            raise StorageUnavailable("the simulated storage does not answer")
        await self.world.prepare(self)

    def _failed(self, error: BaseException) -> None:
        self.world.violate(f"{self} failed: {type(error).__name__}: {error}")

    def _after_run(self) -> None:
        if self.coordinator is None:
            return
        if (state := self.coordinator.state) is not self.seen:
            self.seen = self.world.observed(self, self.seen, state)
        was_leading, self.was_leading = self.was_leading, self.leads
        if self.leads and not was_leading:
            self.world.when_led(self)
            if self.world.is_former(self):
                self.world.violate(f"replaced: {self} leads, and another quorum has replaced its own")
        if problem := self.coordinator.node.digests.problem:
            self.world.violate(f"digests: {self}: {problem}")

    def crash(self) -> None:
        """SIGKILL, or a power cut: of what was not synced, anything may be left."""
        if not self.runs:
            return
        self.world.note(f"{self} crashes")
        threads = self.host.disk_threads
        self.loop.kill()
        while self.threads:
            self.world.end(self.threads.pop())
        self.runs = self.is_stopped = False
        work = threads.waiting[0][0] if threads is not None and threads.waiting else None
        self.files.crash(self.world.rng, work)
        self.world.network.ended(self)

    def terminate(self) -> None:
        """SIGTERM: it hands over, and ends."""
        if self.has_begun:
            self.is_ending = True
            self.input(lambda: self.loop.create_task(self._stop(self.starts)))

    async def _stop(self, starts: int) -> None:
        await self.coordinator.stop()
        if self.starts == starts:
            self.world.call(1, lambda: self.crash() if self.starts == starts else None)

    def stop(self) -> None:
        """SIGSTOP: what arrives waits."""
        self.is_stopped = True
        self.loop.stop_process()

    def resume(self) -> None:
        if self.runs and self.is_stopped:
            self.is_stopped = False
            self.loop.continue_process()

    def make_snapshot(self) -> None:
        """Makes a snapshot, as after many entries."""
        node = self.coordinator.node
        self.input(lambda: node._snapshots._make(node._applier.end))

    # ---------------------------------------------------------------------------------------------------------- inputs

    def input(self, function: Callable[[], object]) -> None:
        """On its event loop, when the process runs; nothing, if it does not."""
        if self.runs:
            self.loop.call_soon(function)

    def receive(self, received: Received) -> None:
        if received.message.target == self.key:
            self.input(partial(self.host.receive, received))

    def answer(self, method: str, path: str, body: bytes, answered: Callable[[int, bytes], None]) -> None:
        """Answer a client."""

        async def answer() -> None:
            request: Any = HttpRequest(method, path, body)
            response: Any = await self.server.answer(request)
            answered(response.status, bytes(response.body))

        self.input(lambda: self.loop.create_task(answer()))

    def ask(self, steps: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """An operator's command; its errors are the operator's."""

        async def run() -> None:
            try:
                await steps()
            except Exception as error:  # noqa: BLE001
                self.world.note(f"{self}: {error!r}")

        self.input(lambda: self.loop.create_task(run()))
