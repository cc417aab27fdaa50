"""A node of a quorum: one event loop that gives a machine its inputs, and does what it says.

    node = Node(config, state)
    await node.start()
    index = await node.append(b"...")       on the leader: when the entry is final, and was applied here
    await node.confirm()                    on the leader: then a read of the state sees everything acknowledged before
    await node.run()                        until `stop`; raises the error that ended the node

The disk has one thread, which makes one write durable after another, and snapshots have another one.  So neither a slow
disk nor a slow node delays the loop.  A write or an fsync that fails ends the node, because nobody knows what the disk
has then.  A full disk does not: the node gives up the lead, and tries again until there is space.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from spark_log.errors import CorruptObject, InvalidRequest, NoSpace, SparkLogError
from spark_log.http.address import split_address
from spark_log.http.tls import Tls, node_contexts
from spark_log.log_lines import logger
from spark_log.quorum.leading import VoterChange
from spark_log.quorum.machine import Machine
from spark_log.quorum.messages import Entry, FetchSnapshotResponse, Message, ReplicaKey
from spark_log.quorum.node.applier import Applier, StateMachine
from spark_log.quorum.node.handshake import NodeIdentity
from spark_log.quorum.node.node_config import NodeConfig, check_node_config
from spark_log.quorum.node.node_host import NodeHost
from spark_log.quorum.node.node_status import NodeStatus, replication_of, voter_problems
from spark_log.quorum.node.node_tools import NodeTools
from spark_log.quorum.node.pending_appends import PendingAppends, not_leader
from spark_log.quorum.node.persist_thread import PersistThread
from spark_log.quorum.node.snapshots import NodeSnapshots
from spark_log.quorum.node.state_digests import StateDigests
from spark_log.quorum.node.voter_clocks import VoterClocks
from spark_log.quorum.ready import Kept, ReadChunk, Ready, Restored
from spark_log.quorum.snapshot_format import is_frame
from spark_log.quorum.voters import Voters, check_quorum
from spark_log.quorum.wire import NodeDigest, Received

ENTRY_BYTES_MAX = 8 << 20
UNKNOWN_S = 2.0
"""How long an append waits for its fate after this node has lost the lead."""
WATCH_S = 1.0
CLOSE_S = 5.0
"""For the writes that are under way when the node ends."""
Result = TypeVar("Result")


class Node:
    """Belongs to one event loop."""

    def __init__(
        self,
        config: NodeConfig,
        state: StateMachine,
        on_leader: Callable[[int, ReplicaKey | None], None] = lambda epoch, leader: None,
        host: NodeHost | None = None,
        on_judged: Callable[[], None] = lambda: None,
    ) -> None:
        """
        on_leader:  called with each new epoch or leader; None: it is not known.
        host:       None: this machine.
        on_judged:  called when a comparison of states has found something else than before: see `digests`.
        """
        check_node_config(config)
        self.config = config
        self.port = 0
        """That it listens on."""
        self.digests = StateDigests()
        """The digests of the application's states, of this node and of others."""
        self.copy_problem: Callable[[], str] = str
        """The `copy_problem` of `NodeStatus`."""
        self._state = state
        self._on_leader, self._on_judged = on_leader, on_judged
        self._host = host or NodeHost()
        self._clock = self._host.clock
        self._clocks = VoterClocks()
        self._machine: Machine | None = None
        self._forgotten: dict[ReplicaKey, int] = {}
        """By node, the version before which its disk has nothing."""
        self._named_voters: Voters = ()
        """By the node that was connected last."""
        self._pending = PendingAppends()
        self._appending: list[tuple[bytes, asyncio.Future[int]]] = []
        self._reads: dict[int, asyncio.Future[None]] = {}
        """By the number that the machine confirms."""
        self._led_by: tuple[int, ReplicaKey | None] = (0, None)
        self._elections = 0
        self._tick: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.application_problem: Callable[[], str] = str
        """The `application_problem` of `NodeStatus`."""

    # --------------------------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Open the directory, listen, and take part.

        Raises InvalidRequest, InconsistentClusterId and CorruptObject for a directory that cannot be used.
        """
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        config = self.config
        self._directory = self._host.open_directory(config)
        disk = self._directory.disk
        self._readers = self._host.daemon_threads(2, "pylog-quorum-snapshot")
        self._writer = PersistThread(
            disk,
            self._host.daemon_threads(1, "pylog-quorum-disk"),
            self._clock,
            persisted=self._persisted,
            full=self._give_up_lead,
            failed=self._fail,
        )
        self._applier = Applier(self._state, disk, self._readers, self._applied, self._host.monotonic_s)
        self._applier.restored = self._pending.skipped
        self._snapshots = NodeSnapshots(
            disk,
            self._applier,
            threads=self._readers,
            writer=self._writer.thread,
            machine=lambda: self._machine,
            snapshotted=self._snapshotted,
            spawn=self._spawn,
            has_ended=self._ended.done,
            bytes_max=config.snapshot_bytes,
        )
        try:
            restored = await self._writer.thread.submit(disk.load)
            if restored.snapshot.offset:
                await self._applier.restore(restored.snapshot)
            await self._connect(restored)
        except BaseException:
            await self._release(CLOSE_S)
            raise
        self._spawn(self._applier.run())
        self._spawn(self._watch())
        loop.call_soon(self._input, Machine.tick)

    async def _connect(self, restored: Restored) -> None:
        config = self.config
        address, port = split_address(config.listen, "listen")
        server_tls, client_tls = node_contexts(config.certificate, config.key, config.ca)
        identity = NodeIdentity(
            cluster_id=config.cluster_id,
            key=self.key,
            address=config.advertise,
            process=uuid4().hex,
            level=config.level,
        )
        self._server = self._host.port(
            identity,
            config.secret,
            self._receive,
            connected=self._meet,
            voters=self._voters,
            tools=NodeTools(self).by_path,
        )
        try:
            self.port = await self._server.start(address, port, server_tls)
        except OSError as error:
            raise InvalidRequest(f"cannot listen on {config.listen}: {error.strerror or error}") from error
        # The connections introduce the other nodes to it.
        self._machine = Machine(self.key, restored, config.times, self._host.random(), self._clock.monotonic_ms())
        identity = replace(identity, address=config.advertise or f"{address}:{self.port}")
        try:
            self._links = self._host.links(
                identity, config.secret, client_tls, config.peers, refused=self._refused, accepted=self._accepted
            )
        except BaseException:
            await self._server.stop()
            raise

    def use_tls(self, server: Tls | None, client: Tls | None) -> None:
        """Certificates for new connections, as `node_contexts` makes them; those that are open continue."""
        self._server.use(server)
        self._links.use(client)

    def _meet(self, other: NodeIdentity) -> None:
        self._links.meet(other)

    def _voters(self) -> Voters:
        """The voters of the log; those that another node has named, as long as there are none."""
        return (() if self._machine is None else self._machine.voters) or self._named_voters

    def _accepted(self, other: ReplicaKey, voters: Voters) -> None:
        """Raises InvalidRequest if another quorum was formed under the same cluster id."""
        check_quorum(self._voters(), voters)  # also of a spare node: its log may be that of another quorum
        self._named_voters = voters or self._named_voters
        self._input(lambda machine, now_ms: machine.meet(other, now_ms))

    @property
    def key(self) -> ReplicaKey:
        return self._directory.meta.key

    async def run(self) -> None:
        """Wait for the end.  Raises the error that ended the node."""
        await asyncio.shield(self._ended)

    async def stop(self, close_s: float = CLOSE_S) -> None:
        """Hand over, if this node leads, and stop.

        close_s:  for the writes that are under way.  The directory of a disk that hangs longer stays locked until the
                  process ends.
        """
        if not self._ended.done():
            await self.hand_over()
            await self._links.flush()
            self._end(None)
        await self._close(close_s)

    def _fail(self, error: BaseException) -> None:
        """The node says nothing from here on, and the process should end."""
        logger.error("the node ends: %s", error)
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
            self._ended.exception()  # `run` raises it
        if self._tick is not None:
            self._tick.cancel()
        self._pending.give_up(self._pending.waiting(), "the node has ended")
        for _, future in self._appending:
            _refuse(future, not_leader(None, 0))
        self._lose_reads()
        self._applier.give_up(not_leader(None, 0))

    async def _close(self, close_s: float) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._links.close()
        await self._server.stop()
        await self._release(close_s)

    async def _release(self, close_s: float) -> None:
        """End the threads, and unlock the directory, unless one of them may still change it."""
        self._writer.close()
        self._readers.close()
        ends_s = self._host.monotonic_s() + close_s
        while self._writer.thread.is_alive or self._readers.is_alive:
            if self._host.monotonic_s() > ends_s:
                logger.error(
                    "the disk has not answered: %s stays locked until this process ends", self.config.directory
                )
                return
            await asyncio.sleep(0.005)
        self._directory.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # ----------------------------------------------------------------------------------------------------- applications

    async def append(self, data: bytes) -> int:
        """Add an entry; its index, when a majority has it on disk and it was applied here.

        Raises NotLeaderOrFollower.  With `maybe_applied`, this node lost the lead and does not know what became of the
        entry: append it again on the new leader, under an id by which the application recognises it.
        """
        self._check_append(data)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        if not self._appending:
            loop.call_soon(self._append_all)
        self._appending.append((data, future))
        return await future

    def begin_append(self, data: bytes, epoch: int) -> tuple[int, asyncio.Future[int]]:
        """Add an entry now; its index, and a future that ends as `append` does.  Raises what `append` raises if nothing
        was added.

        epoch:  in which the entry was made: if this node was elected again meanwhile, nothing is added.
        """
        self._check_append(data)
        if self._machine is None or self._machine.epoch != epoch:
            raise not_leader(self._led_by[1], self._led_by[0])
        start = self._input(lambda machine, now_ms: machine.append([data], now_ms))
        if start is None or self._machine is None:
            raise not_leader(self._led_by[1], self._led_by[0])
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending.add(start, self._machine.epoch, future)
        return start, future

    def _check_append(self, data: bytes) -> None:
        if len(data) > ENTRY_BYTES_MAX:
            raise InvalidRequest(f"an entry of {len(data):,} bytes: expected {ENTRY_BYTES_MAX:,} at most")
        if self._writer.is_full:
            raise NoSpace(f"the disk of {self.config.directory} is full: free some space")

    def _append_all(self) -> None:
        """All appends of one round of the loop together."""
        appending, self._appending = self._appending, []
        data = [one for one, _ in appending]
        start = self._input(lambda machine, now_ms: machine.append(data, now_ms))
        for index, (_, future) in enumerate(appending):
            if start is None or self._machine is None:
                _refuse(future, not_leader(self._led_by[1], self._led_by[0]))
            else:
                self._pending.add(start + index, self._machine.epoch, future)

    def time_ms(self) -> int:
        """This machine's clock, unless it is ahead of those of the other voters."""
        others = [key for key in self._voters() if key != self.key]
        return self._clocks.bounded(self._clock.now_ms(), self._clock.monotonic_ms(), others)

    async def confirm(self) -> None:
        """Wait until the state here has everything that any node acknowledged before this call.

        Raises NotLeaderOrFollower.
        """
        noted = 0 if self._machine is None else self._machine.high_watermark
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._input(partial(self._ask_to_confirm, future)) is None:
            raise not_leader(self._led_by[1], self._led_by[0])
        await future
        await self._applier.reached(noted)

    def _ask_to_confirm(self, future: asyncio.Future[None], machine: Machine, now_ms: int) -> int | None:
        number = machine.confirm(now_ms)
        if number is not None:
            self._reads[number] = future
        return number

    async def hand_over(self, to: int | None = None) -> bool:
        """Let another voter lead; False if this node does not lead, or is the only voter.

        to:  the id of the voter; None: the most up-to-date one.
        """
        if not self._input(partial(self._begin_to_hand_over, to)):
            return False
        deadline_s = asyncio.get_running_loop().time() + 2 * self.config.times.election_timeout_ms / 1000
        while self._machine is not None and self._machine.is_leader:
            if asyncio.get_running_loop().time() > deadline_s:
                return False
            await asyncio.sleep(0.01)
        return True

    @staticmethod
    def _begin_to_hand_over(to: int | None, machine: Machine, now_ms: int) -> bool:
        successor = next((voter for voter in machine.voters if voter.id == to), None)
        return (to is None or successor is not None) and machine.hand_over(now_ms, successor)

    def add_voter(self, key: ReplicaKey) -> VoterChange:
        """Begin to add a replica that fetches already, on the leader."""
        return self._input(lambda machine, now_ms: machine.add_voter(key, now_ms)) or VoterChange.NOT_LEADER_OR_FOLLOWER

    def remove_voter(self, key: ReplicaKey) -> VoterChange:
        """Begin to remove another replica, on the leader."""
        return (
            self._input(lambda machine, now_ms: machine.remove_voter(key, now_ms)) or VoterChange.NOT_LEADER_OR_FOLLOWER
        )

    def status(self) -> NodeStatus | None:
        """None until the node knows the voters."""
        machine = self._machine
        if machine is None or not self._voters():
            return None
        now_ms = self._clock.monotonic_ms()
        return NodeStatus(
            cluster_id=self.config.cluster_id,
            key=self.key,
            role=machine.role,
            epoch=machine.epoch,
            leader=machine.leader,
            voters=self._voters(),
            are_voters_committed=machine.log.voters_end <= machine.high_watermark,
            high_watermark=machine.high_watermark,
            log_start=machine.log.start.offset,
            log_end=machine.log.end,
            durable_end=machine.durable_end,
            applied=self._applier.end,
            snapshot=machine.log.snapshot,
            replication=replication_of(machine, now_ms, self._forgotten),
            addresses={self.key.id: self._links.me.address, **self._links.addresses()},
            problems=self.problems(),
            elections=self._elections,
            writes=self._writer.writes,
            write_ms_sum=self._writer.ms_sum,
            write_ms_max=self._writer.ms_max,
            writing_ms=self._writer.writing_ms,
            is_full=self._writer.is_full,
            compared=self.digests.compared,
            state_problem=self.digests.problem,
            is_state_wrong=self.digests.is_wrong,
            copy_problem=self.copy_problem(),
            levels={self.key.id: self.config.level, **self._links.levels()},
            application_problem=self.application_problem(),
            forgotten=self._snapshots.forgotten,
            others_forgotten=self._others_forgotten(),
        )

    def _others_forgotten(self) -> dict[int, int]:
        """By node that does not vote, as in `NodeStatus`: another directory than that of the voter counts, too."""
        voters, found = self._voters(), dict[int, int]()
        voting = {voter.id for voter in voters}
        for node, directory in self._links.known().items():
            key = ReplicaKey(node, directory)
            if key not in voters and (directory or node not in voting):
                found[node] = self._forgotten.get(key, 0)
        return found

    def problems(self) -> dict[int, str | None]:
        """Problems of the connections, and of voters to which there is none; empty until the node knows the voters."""
        if self._machine is None or not self._voters():
            return {}
        others = tuple(voter for voter in self._voters() if voter != self.key)
        return voter_problems(others, self._links.problems(), self._links.directories())

    # ----------------------------------------------------------------------------------------------------------- inputs

    def _input(self, act: Callable[[Machine, int], Result]) -> Result | None:
        """Give the machine an input, and do what it says; None without a machine."""
        if self._machine is None or self._ended.done():
            return None
        try:
            result = act(self._machine, self._clock.monotonic_ms())
            self._carry_out(self._machine, self._machine.ready())
        except Exception as error:
            logger.exception("an invariant of the replica %s is broken", self.key)
            self._fail(error)
            return None
        return result

    def _send(self, message: Message) -> None:
        self._links.send(Received(self._clock.now_ms(), message, self.digests.to_send, self._snapshots.forgotten))

    def _receive(self, received: Received) -> None:
        message = received.message
        self._clocks.note(message.source, received.clock_ms, self._clock.monotonic_ms())
        self._note_digests(message.source, received.digests)
        self._forgotten[message.source] = received.forgotten
        if isinstance(message, FetchSnapshotResponse) and message.size is not None and not is_frame(message.data):
            logger.error("node %d sent a chunk of a snapshot that is damaged; it is asked again", message.source.id)
            return
        self._input(lambda machine, now_ms: machine.step(message, now_ms))

    def note_digest(self, form: int, version: int, digest: str) -> None:
        """The application has computed the digest of its state at a version; all nodes do so at the same ones.

        form:  digests of another form are not compared with this one.
        """
        self._note_digests(self.key, [NodeDigest(self.key, form, version, digest)])

    def _note_digests(self, source: ReplicaKey, digests: Iterable[NodeDigest]) -> None:
        if self.digests.note(self.key, self._voters(), source, digests):
            if self.digests.problem:
                logger.error("node %d: %s", self.key.id, self.digests.problem)
            self._on_judged()

    def _refused(self, node_id: int) -> None:
        """Nobody listens at the address of a node."""
        leader = self._led_by[1]
        if leader is not None and leader.id == node_id:
            self._input(lambda machine, now_ms: machine.unreachable(leader, now_ms))

    def _persisted(self, number: int) -> None:
        self._input(lambda machine, now_ms: machine.persisted(number, now_ms))

    def _give_up_lead(self) -> None:
        self._input(Machine.hand_over)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            if self._writer.writing_ms > self.config.slow_disk_ms and self._input(Machine.hand_over):
                logger.error("the disk has not finished a write for %d ms; another node leads", self._writer.writing_ms)

    # ---------------------------------------------------------------------------------------------------------- outputs

    def _carry_out(self, machine: Machine, ready: Ready) -> None:
        if ready.persist is not None:
            if ready.persist.truncate_to is not None:
                self._pending.truncated(ready.persist.truncate_to)
            self._writer.write(ready.persist)
        for message in ready.send:
            self._send(message)
        for read in ready.read:
            self._spawn(self._answer(read))
        self._applier.give(ready.restore, ready.committed)
        for number in ready.confirmed:
            _resolve(self._reads.pop(number, None))
        self._note_leader(machine)
        self._schedule_tick(machine)

    def _note_leader(self, machine: Machine) -> None:
        was_leader = self._led_by[1] == machine.key
        if self._led_by == (machine.epoch, machine.leader):
            return
        self._elections += machine.leader is not None
        self._led_by = machine.epoch, machine.leader
        if was_leader:
            self._lose_reads()
            why = "this node does not lead any more"
            asyncio.get_running_loop().call_later(UNKNOWN_S, self._pending.give_up, self._pending.waiting(), why)
        self._on_leader(machine.epoch, machine.leader)

    def _lose_reads(self) -> None:
        reads, self._reads = self._reads, {}
        for future in reads.values():
            _refuse(future, not_leader(self._led_by[1], self._led_by[0]))

    def _schedule_tick(self, machine: Machine) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        deadline_ms = machine.next_deadline()
        if deadline_ms is not None:
            after_s = max(0, deadline_ms - self._clock.monotonic_ms()) / 1000
            self._tick = asyncio.get_running_loop().call_later(after_s, self._input, Machine.tick)

    async def _answer(self, read: ReadChunk) -> None:
        """Send a chunk of a snapshot; nothing, if it is damaged here."""
        disk, request = self._directory.disk, read.request
        try:
            data, size = await self._readers.submit(disk.read_chunk, request.snapshot, request.start)
        except CorruptObject as error:
            logger.error("%s; a follower cannot fetch it from here: this node hands over", error)
            self._give_up_lead()
        else:
            self._send(read.answer(data, size))

    def _applied(self, entry: Entry) -> None:
        self._pending.final(entry)
        self._snapshots.look()

    def forget(self, version: int) -> None:
        """Begin to replace what the directory has of the entries that are applied by a snapshot.

        version:  of the application's state: `status().forgotten` has it when nothing of before is left.  If it does
                  not get it, as on a full disk, call this again.
        """
        self._snapshots.forget(version)

    def _snapshotted(self, end: int, keep_from: int) -> Kept | None:
        return self._input(lambda machine, now_ms: machine.snapshotted(end, keep_from, now_ms))


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _refuse(future: asyncio.Future[Any], error: SparkLogError) -> None:
    if not future.done():
        future.set_exception(error)
