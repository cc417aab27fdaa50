"""The requests of clients: as `HttpLink`, on the simulated network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from simulation.coordinator_sim.network import Refused
from simulation.coordinator_sim.world import CLUSTER, AskMember, QuorumWorld
from simulation.harness.simulated_process import ProcessLoop
from simulation.log_sim.world import Actor
from spark_log.errors import CoordinatorNotAvailable, LogMoved, NotCoordinator, SparkLogError
from spark_log.http.failures import Failure, error_of
from spark_log.journal.store_operations import (
    Answered,
    Ask,
    AskChanges,
    AskClaim,
    AskSnapshot,
    Changes,
    LinkOp,
    Snapshot,
)
from spark_log.metadata.decide_coordinators import check_is_here
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint
from spark_log.metadata.state import Leadership, State
from spark_log.rpc.client import LEADERLESS_S, SILENT_PAUSE_S, SILENT_S
from spark_log.rpc.messages import (
    GROUP_PATHS,
    ChangesReply,
    ChangesRequest,
    ClaimReply,
    ClaimRequest,
    CommandsReply,
    CommandsRequest,
    GroupAnswered,
    MemberRequest,
    MemberResponse,
    SnapshotChunk,
    SnapshotRequest,
    decode,
    encode,
)
from spark_log.rpc.request_errors import no_answer

ANSWER_MS = 30_000


class SimulatedLinks:
    """Those of all clients, by their names."""

    def __init__(self, world: QuorumWorld) -> None:
        self._world = world
        self.loop = ProcessLoop(world, lambda error: world.violate(f"a client failed: {error!r}"))
        self._links: dict[str, Link] = {}
        self._states: dict[bytes, State] = {}
        """The states of snapshots, each decoded once."""

    def ask(self, actor: Actor, op: LinkOp | AskMember, answered: Callable[[Any], None]) -> None:
        link = self._links.setdefault(actor.name, Link(self._world, self.loop, self._decoded))

        async def ask() -> None:
            try:
                answered(await link.ask(op))
            except SparkLogError as error:
                answered(error)

        self.loop.call_soon(lambda: self.loop.create_task(ask()))

    def _decoded(self, data: bytes) -> State:
        if data not in self._states:
            self._states[data] = decode_checkpoint(data, "a snapshot")
        return self._states[data]


class Link:
    """The requests of one process."""

    def __init__(self, world: QuorumWorld, loop: ProcessLoop, decoded: Callable[[bytes], State]) -> None:
        self._world, self._loop, self._decoded = world, loop, decoded
        self._last = ""
        """The address that last answered as the leader."""
        self._leaderless = (-1, -math.inf)
        self._silent: dict[str, float] = {}
        """Addresses that did not answer, and when."""

    async def ask(self, op: LinkOp | AskMember) -> Any:
        match op:
            case Ask():
                return await self._commands(op)
            case AskChanges(holder, since, head, confirmed):
                asked = ChangesRequest(
                    cluster_id=CLUSTER, since=since, head=head.decode(), wait_ms=0, confirmed=confirmed
                )
                reply: ChangesReply = decode(await self._any(holder, "/v1/changes", asked), ChangesReply, "the reply")
                return Changes(reply.version, [text.encode() for text in reply.batches], lacks_head=reply.lacks_head)
            case AskSnapshot():
                return await self._snapshot(op)
            case AskClaim(holder, name, value, wait_ms):
                return await self._claim(holder, name, value, wait_ms)
            case AskMember(request):
                return await self._member(request)
        raise AssertionError(f"{op} is not simulated")

    async def _commands(self, op: Ask) -> Answered:
        asked = CommandsRequest(
            cluster_id=CLUSTER, since=op.since, head=op.head.decode(), commands=tuple(op.commands), held=None
        )
        limit_ms = min(ANSWER_MS, op.limit_ms)
        data = await self._first(op.holder, "/v1/commands", encode(asked), limit_ms=limit_ms, changes_nothing=False)
        reply: CommandsReply = decode(data, CommandsReply, "the reply")
        outcomes = [
            command.unpack(outcome.reply) if outcome.failure is None else error_of(outcome.failure)
            for command, outcome in zip(op.commands, reply.outcomes, strict=True)
        ]
        return Answered(outcomes, [text.encode() for text in reply.batches])

    async def _snapshot(self, op: AskSnapshot) -> Snapshot | None:
        """In one chunk: the states are small."""
        asked = SnapshotRequest(cluster_id=CLUSTER, version=op.version, at_least=op.at_least)
        line, _, data = (await self._any(op.holder, "/v1/snapshot", asked)).partition(b"\n")
        found: SnapshotChunk = decode(line, SnapshotChunk, "the reply")
        if not found.size:
            return None
        assert len(data) == found.size, "a small state has one chunk"
        return Snapshot(self._decoded(data), found.head.encode())

    async def _claim(self, holder: Leadership, name: str, value: bytes | None, wait_ms: int) -> bytes | None:
        text = None if value is None else value.decode()
        asked = ClaimRequest(cluster_id=CLUSTER, name=name, value=text, wait_ms=wait_ms)
        reply: ClaimReply = decode(await self._first(holder, "/v1/claim", encode(asked)), ClaimReply, "the reply")
        return None if reply.value is None else reply.value.encode()

    async def _member(self, request: MemberRequest) -> MemberResponse:
        path = next(path for path, kind in GROUP_PATHS.items() if isinstance(request, kind))
        body = encode({"cluster_id": CLUSTER, "request": request, "wait_ms": 0})
        data = await self._first(Leadership(), path, body, changes_nothing=False)
        answered: GroupAnswered = decode(data, GroupAnswered, "the reply")
        return answered.response

    async def _any(self, holder: Leadership, path: str, asked: ChangesRequest | SnapshotRequest) -> bytes:
        epoch, when_s = self._leaderless
        if epoch != holder.epoch or self._loop.time() - when_s >= LEADERLESS_S:
            try:
                return await self._first(holder, path, encode(asked))
            except (CoordinatorNotAvailable, NotCoordinator):
                self._leaderless = holder.epoch, self._loop.time()
        anyone = encode(msgspec.structs.replace(asked, standby=True))
        return await self._first(holder, path, anyone, leads=False)

    async def _first(
        self,
        holder: Leadership,
        path: str,
        body: bytes,
        *,
        limit_ms: float = ANSWER_MS,
        changes_nothing: bool = True,
        leads: bool = True,
    ) -> bytes:
        failures: list[tuple[str, SparkLogError]] = []
        for address in self._candidates(holder):
            try:
                data = await self._request(address, path, body, limit_ms)
            except (CoordinatorNotAvailable, NotCoordinator, LogMoved) as error:
                if error.maybe_applied and not changes_nothing:
                    raise
                failures.append((address, error))
                continue
            if leads:
                self._last = address
            return data
        raise no_answer(failures)

    def _candidates(self, holder: Leadership) -> list[str]:
        check_is_here(holder)
        found = list(dict.fromkeys([holder.address, *(node.address for node in self._world.machines.values())]))
        first = self._last if self._last == holder.address else None
        found = [address for address in found if address]
        return sorted(found, key=lambda address: (self._silent_s(address) < SILENT_S, address != first))

    def _silent_s(self, address: str) -> float:
        return self._loop.time() - self._silent.get(address, -math.inf)

    async def _request(self, address: str, path: str, body: bytes, limit_ms: float) -> bytes:
        if self._silent_s(address) < SILENT_PAUSE_S:
            raise CoordinatorNotAvailable(f"{address}: it does not answer")
        try:
            status, data = await self._world.network.ask(self._loop, address, "POST", path, body, limit_ms)
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._silent[address] = self._loop.time()
            failed = CoordinatorNotAvailable(f"{address}: {error}")
            failed.maybe_applied = not isinstance(error, Refused)
            raise failed from error
        self._silent.pop(address, None)
        if status != 200:
            raise error_of(decode(data, Failure, "the error"))
        return data
