"""A log that begins on the storage, and that a quorum adopts while embedded clients use it.

An operator adopts the log with one directory, or two do so with one each.  Their commands are killed before any
operation on the storage or on the disk, and run again.  Another operator may cancel: then the directories are
formatted again, and the log is adopted once more.  A coordinator of the former kind takes the log over now and then,
and may wake up when the log has moved.  So may writers, readers and janitors, which open the log in the quorum as
soon as they learn of it.  At last, another quorum continues with one disk of this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from simulation.coordinator_sim.nodes import Directory, SimulatedNode
from simulation.coordinator_sim.setting import WAIT_MS, QuorumOracle, QuorumSimulation
from simulation.coordinator_sim.world import CLUSTER
from simulation.harness.simulated_process import Crashed
from simulation.levels import TOMORROW
from simulation.log_sim.blocking import SimulatedProcess, SimulatedStore, blocking
from simulation.log_sim.promises.oracle import Oracle, unlinked
from simulation.log_sim.setting import UPGRADE, Simulation, driven
from simulation.log_sim.threads import SimulatedThreads
from simulation.log_sim.world import Actor, FaultRates
from simulation.log_sim.writers import PlainIdentity, attempt, identified, late_writers
from simulation.verdict import Violation
from spark_log.client.log import Log
from spark_log.errors import CoordinatorNotAvailable, InvalidRequest, LogMoved, SparkLogError
from spark_log.journal.context import Context, Proposal
from spark_log.journal.journal import Journal
from spark_log.journal.served_log import ServedView
from spark_log.journal.storage import opening
from spark_log.journal.storage.log_format import parse_format
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Ask, Get, Sleep, Steps
from spark_log.metadata import records as r
from spark_log.metadata.commands import Append, SetConfigs
from spark_log.metadata.decide_coordinators import check_is_here, moved_error, moved_to, moving_to
from spark_log.metadata.features import METADATA_VERSION
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint
from spark_log.metadata.restores import with_restore
from spark_log.metadata.state import State
from spark_log.quorum.messages import EMPTY, Kind, ReplicaKey
from spark_log.quorum.node.disk import Disk
from spark_log.recovery.log_move import cancel_move
from spark_log.server.quorum.founding import adopt_log, restore_log, stored_content
from spark_log.server.quorum.root import Claimant, QuorumRoot
from spark_log.store.object_names import CHECKPOINTS, FORMAT_KEY, LOG, checkpoint_version, log_version

SIZES = (1, 3, 3, 5)
STANDBY = "standby:1"
URL = "pylog://node1:1,node2:1,node3:1"
OPERATIONS = 60
"""A command has about so many on the storage."""
FILE_OPERATIONS = 12
RESTORED = 10
"""Numbers of the nodes of a restored quorum are so much higher."""
RETURNED_MS = 3_000
CANCELLED = 0.3
"""How often an operator cancels an adoption."""


class AdoptionOracle(QuorumOracle):
    """With what an adoption promises.

    closed   nodes decide only when the log has moved for good, and nothing is written on the storage from then on
    founded  all nodes have the state of one directory
    """

    fork: State | None = None
    """On the storage, after the record that the log has moved."""
    is_cancelled = False
    """The present adoption is, whatever the command that did it has said."""
    lost: State | None = None
    """The newest one of the quorum that was lost."""

    def restored(self, history: str) -> None:
        """Another quorum continues in a new history."""
        self.lost = self.state
        self.states[-1] = with_restore(self.state, history, self.state.version)

    def written(self, key: str, content: Any, decided: State | None, now: int) -> None:
        """On the storage."""
        if key.startswith(LOG):
            self._written(key, content, decided, now)
        elif key.startswith(CHECKPOINTS) and self.fork is not None and checkpoint_version(key) == self.fork.version:
            self.check_state(decode_checkpoint(unlinked(content), key), key)
        else:
            super().written(key, content, decided, now)

    def _written(self, key: str, content: bytes, decided: State | None, now: int) -> None:
        version = log_version(key)
        if self.fork is not None and version > self.fork.version:
            raise Violation(f"closed: {key} is written, and version {self.fork.version} has moved the log")
        if self.fork is None and version == self.state.version + 1:
            after = self.memoized.replay(self.state, self.memoized.decode_batch(content, key))
            if moved_to(after.coordinator):
                self.fork = after
                return
        if self.fork is None:
            super().written(key, content, decided, now)

    def decided(self, version: int, data: bytes, now: int) -> None:
        if self.fork is None:
            raise Violation(f"closed: a node decides version {version}, and the log on the storage can continue")
        super().decided(version, data, now)

    def check_state(self, state: State, where: str) -> None:
        if not moved_to(state.coordinator):
            if state != self.lost:
                super().check_state(state, where)
        elif state != self.fork:
            raise Violation(f"state: {where} has moved, and is not the fold of the log on the storage")

    def check_view(self, view: Any, since: int = 0) -> None:
        """One of a log that has moved is not read."""
        super().check_view(view, 0 if moved_to(view.state.coordinator) else since)

    def _check_led(self, record: r.AnyRecord, epoch: int) -> None:
        if self.fork is None:
            self.is_cancelled |= isinstance(record, r.ReleaseRecord) and bool(moving_to(self.state.coordinator))
            Oracle._check_led(self, record, epoch)
        else:
            super()._check_led(record, epoch)


class AdoptionSimulation(QuorumSimulation):
    oracle: AdoptionOracle

    def _make_oracle(self, rates: FaultRates) -> Oracle:
        return AdoptionOracle(self.codec, self.grace, self.constants, rates.ahead_ms, self.memoized)

    def _start(self, interval: int, partitions: int) -> None:
        world = self.world
        world.level = TOMORROW
        self.context = Context(world, self.rng, coordinator_wait_ms=WAIT_MS, limits=self.constants.limits)
        self._connect()
        world.prepare = self._prepare
        self._roots: dict[tuple[SimulatedNode, int], tuple[SimulatedProcess, QuorumRoot]] = {}
        """The roots of processes of nodes."""
        self.adopting = 0
        """Operators that adopt the log."""
        self._founding = ""
        self._attempts, self._size = 0, self.rng.choice(SIZES)
        world.alone(self._begin(interval, partitions))

    def add_operators(self) -> None:
        self.format_nodes()
        start, rng = self.world.start, self.rng
        if rng.random() < CANCELLED:
            start("canceller", partial(canceller, self), counts=True)
        for n in range(rng.choice((0, 1))):
            start(f"standby{n}", partial(standby, self), counts=False, leaves_zombies=True)
        for n in range(2):
            start(f"sleeper{n}", self.lasting(partial(sleeper, self, f"s{n}")), counts=False)
        start("late", self.lasting(partial(late_writers, self, "late")), counts=False)
        start("adoption", self.adopted, counts=True)

    def adopted(self) -> Steps[None]:
        """Wait until the log is in the quorum."""
        while self.world.leader() is None:
            yield Sleep(100)

    # ----------------------------------------------------------------------------------------------------------- nodes

    def format_nodes(self) -> None:
        """Directories for another attempt."""
        world, name = self.world, chr(ord("a") + self._attempts)
        for node in world.nodes.values():
            node.crash()
        self._attempts, self._founding, self.oracle.is_cancelled = self._attempts + 1, "", False
        self.voters = tuple(ReplicaKey(number, name) for number in range(1, self._size + 1))
        for key in self.voters:
            node = world.nodes[key.id] = SimulatedNode(world, key, ())
            node.is_ready = False
        for key in self.voters[: self.rng.choice((1, 1, 2))]:
            self.adopting += 1
            world.start(f"adopter{key.id}", partial(adopter, self, key.id), counts=True)

    def restored(self) -> Steps[None]:
        """All nodes are lost but for one disk, which has everything that was acknowledged.  Another quorum continues
        with that, and the former nodes come back: they do not lead.
        """
        world = self.world
        for node in world.nodes.values():
            node.crash()
        newest = max(world.nodes.values(), key=_last_entry)
        self._decide_all(newest)
        world.former, self._founding = world.nodes, ""
        self.voters = tuple(ReplicaKey(key.id + RESTORED, key.directory) for key in self.voters)
        world.nodes = {key.id: SimulatedNode(world, key, ()) for key in self.voters}
        first = world.nodes[self.voters[0].id]
        yield from killed_at_times(self, first, lambda: blocking(world, partial(_restore, self, first, newest)))
        begun: Any = Directory(first.meta, Disk(first.files))
        self.oracle.restored(stored_content(begun, begun.disk.load()).founding)
        for node in world.machines.values():
            world.call(self.rng.choice((1, 300, 2500)), node.start)
        yield from self.adopted()
        yield Sleep(RETURNED_MS)

    def _decide_all(self, node: SimulatedNode) -> None:
        """The entries of a disk become final, whether a majority had them or not."""
        directory: Any = Directory(node.meta, Disk(node.files))
        found = directory.disk.load()
        entries = [one.data for one in found.entries if one.kind is Kind.DATA and one.offset >= found.snapshot.offset]
        last = stored_content(directory, found).state.version
        for version, data in enumerate(entries, last - len(entries) + 1):
            if version > self.oracle.state.version:
                self._batches[version] = data
                self.oracle.decided(version, data, self.now)

    def start_nodes(self) -> None:
        for node in self.world.nodes.values():
            node.is_ready = True
            self.world.call(self.rng.choice((1, 300, 2500)), partial(self._start_node, node))

    def _start_node(self, node: SimulatedNode) -> None:
        if self.world.nodes.get(node.key.id) is node and not node.runs:
            node.start()

    async def _prepare(self, node: SimulatedNode) -> None:
        """Claim the folder, in a thread of the node's process."""
        loop, done = node.loop, asyncio.get_running_loop().create_future()
        process, root = self._root(node)
        coordinator = node.coordinator
        leader = Claimant(
            state=coordinator.state,
            founding=coordinator.founding,
            address=node.address,
        )

        def claim() -> None:
            error = None
            try:
                root.claim(leader, self.context.unique())
            except SparkLogError as failed:
                error = failed
            loop.post(partial(_end, done, error))

        machine = Actor(str(node), _nothing, counts=False)
        thread = Actor(f"{node} claims", lambda: process.steps(claim), counts=False, main=machine)
        node.threads.append(thread)
        self.world.add(thread)
        await done

    def _root(self, node: SimulatedNode) -> tuple[SimulatedProcess, QuorumRoot]:
        """The root as the present process of the node knows it."""
        found = self._roots.get((node, node.starts))
        if found is None:
            process = SimulatedProcess(self.world)
            store, threads = SimulatedStore(process), SimulatedThreads(process)
            root = QuorumRoot(store, CLUSTER, clock=process, rng=self.rng, threads=threads)
            found = self._roots[node, node.starts] = process, root
        return found

    def _observed(self, node: SimulatedNode, before: State, state: State) -> State:
        if self.world.is_former(node):
            return super()._observed(node, before, state)
        founding = node.coordinator.founding
        self._founding = self._founding or founding
        if state.version and founding != self._founding:
            self.world.violate(f"founded: {node} has the state {founding}, and another node {self._founding}")
        return super()._observed(node, before, state)

    # ------------------------------------------------------------------------------------------------ what actors do

    def journal(self, process: SimulatedProcess) -> Journal:
        """A journal of the log on the storage."""
        return Journal.open(
            SimulatedStore(process),
            create=False,
            clock=process,
            rng=self.rng,
            limits=self.constants.limits,
            threads=SimulatedThreads(process),
        )

    def lasting(self, steps: Callable[[], Steps[None]]) -> Callable[[], Steps[None]]:
        """A process opens the log again when it was moved."""
        again = super().lasting(steps)

        def run() -> Steps[None]:
            while True:
                try:
                    yield from again()
                    return
                except LogMoved:
                    self.oracle.seen["moved"] += 1
                    yield Sleep(self.rng.choice((20, 300)))

        return run

    def when_served(self, steps: Callable[[], Steps[None]]) -> Callable[[], Steps[None]]:
        def run() -> Steps[None]:
            while self.oracle.fork is None:
                yield Sleep(100)
            yield from steps()

        return run

    def load(self) -> Steps[Any]:
        since = self.oracle.state.version
        data: bytes = yield Get(FORMAT_KEY)
        if not parse_format(data, URL).quorum:
            view = yield from opening.open_view()
            if not moved_to(view.state.coordinator):
                self.oracle.check_view(view, since)
                return view
        return (yield from super().load())

    def refresh(self, view: Any) -> Steps[Any]:
        if isinstance(view, ServedView):
            return (yield from super().refresh(view))
        return self._here((yield from Simulation.refresh(self, view)))

    def look(self, view: Any) -> Steps[Any]:
        if isinstance(view, ServedView):
            return (yield from super().look(view))
        after = yield from opening.poll(view, relist=self.rng.random() < 0.2, together=False)
        self.oracle.check_view(after)
        return self._here(after)

    def _here(self, view: View) -> View:
        """Checks a view as a journal does.  Raises LogMoved."""
        if url := moved_to(view.state.coordinator):
            raise moved_error(url)
        return view

    def propose(self, view: Any, commands: Sequence[Proposal], context: Context | None = None) -> Steps[Any]:
        if isinstance(view, ServedView):
            return (yield from super().propose(view, commands, context))
        try:
            return (yield from embedded(Simulation.propose(self, view, commands)))
        except LogMoved as moved:
            for command in commands:
                is_unsure = moved.maybe_applied or getattr(command, "unsure", False)
                if isinstance(command.decide, Append) and not (command.done or is_unsure):
                    self.oracle.refuse(command.decide.commit)
            raise

    def decided(self, view: Any, steps: Steps[Any]) -> Steps[tuple[Any, Any]]:
        if isinstance(view, ServedView):
            return (yield from super().decided(view, steps))
        return (yield from embedded(Simulation.decided(self, view, steps)))

    def run_maintenance(self, view: Any, context: Context | None = None) -> Steps[Any]:
        if isinstance(view, ServedView):
            return (yield from super().run_maintenance(view))
        return (yield from Simulation.run_maintenance(self, view))

    def maintenance_if_due(self, view: Any, context: Context) -> Steps[Any]:
        if isinstance(view, ServedView):
            return (yield from super().maintenance_if_due(view, context))
        return (yield from embedded(Simulation.maintenance_if_due(self, view, context)))


def _last_entry(node: SimulatedNode) -> tuple[int, int]:
    """The epoch and the end of a log: an entry that was committed is in the newest one."""
    found = Disk(node.files).load()
    last = found.entries[-1] if found.entries else None
    return (found.snapshot.epoch, found.snapshot.offset - 1) if last is None else (last.epoch, last.offset)


def _restore(sim: AdoptionSimulation, node: SimulatedNode, lost: SimulatedNode, process: SimulatedProcess) -> None:
    directory: Any = Directory(node.meta, Disk(node.files))
    source: Any = Directory(lost.meta, Disk(lost.files))
    restore_log(SimulatedStore(process), directory, sim.voters, sim.fresh("restored"), source, now_ms=sim.now)
    sim.oracle.seen["restored"] += 1


def _nothing() -> Steps[None]:
    yield from ()


def _end(done: asyncio.Future[None], error: SparkLogError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def embedded(steps: Steps[Any]) -> Steps[Any]:
    """The steps of a client whose log has no quorum yet: no coordinator answers it."""

    def refuse(request: Any) -> None:
        if isinstance(request, Ask):
            check_is_here(request.holder)
            raise CoordinatorNotAvailable(f"{request.holder.address} does not answer")

    return driven(steps, refuse)


# ------------------------------------------------------------------------------------------------------------- operators


def adopter(sim: AdoptionSimulation, number: int) -> Steps[None]:
    """Runs `pylog quorum adopt` with the directory of a node, until the log is adopted, there or elsewhere."""
    yield Sleep(sim.rng.choice((1, 500, 3000)))
    node = sim.world.nodes[number]
    while sim.oracle.fork is None and not sim.oracle.is_cancelled:
        try:
            yield from killed_at_times(sim, node, lambda: blocking(sim.world, partial(_adopt, sim, node)))
            break
        except InvalidRequest:
            held = sim.oracle.state.coordinator
            if moving_to(held) or Disk(node.files).load().snapshot != EMPTY:
                break  # with another directory, or it is cancelled
        except SparkLogError:
            sim.oracle.seen["adoptions again"] += 1
        yield Sleep(sim.rng.choice((10, 300)))
    sim.adopting -= 1
    if not (sim.adopting or sim.oracle.is_cancelled):
        sim.start_nodes()


def _adopt(sim: AdoptionSimulation, node: SimulatedNode, process: SimulatedProcess) -> None:
    journal = sim.journal(process)
    held = journal.state.coordinator
    if journal.state.levels[METADATA_VERSION] < TOMORROW:
        journal.propose(UPGRADE)
    if held.address == STANDBY and sim.rng.random() < 0.3:
        journal.release(held.epoch + 1)
    directory: Any = Directory(node.meta, Disk(node.files))
    adopt_log(journal, directory, sim.voters, URL)
    sim.oracle.seen["adoptions"] += 1


def killed_at_times(sim: AdoptionSimulation, node: SimulatedNode, steps: Callable[[], Steps[None]]) -> Steps[None]:
    """A command that is killed before an operation, on the storage or on the disk of a node, and run again."""
    while True:
        dies = sim.rng.random() < 0.6
        left = sim.rng.randrange(OPERATIONS) if dies else -1
        node.files.crash(sim.rng, None)
        node.files.die_before(sim.rng.randrange(FILE_OPERATIONS) if dies else None)

        def count(request: Any) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise Crashed

        task = steps()
        try:
            return (yield from driven(task, count))
        except Crashed:
            sim.oracle.seen["killed adoptions"] += 1
            if sim.oracle.is_cancelled:
                return
        finally:
            task.close()
            node.files.die_before(None)
        yield Sleep(sim.rng.choice((10, 300)))


def canceller(sim: AdoptionSimulation) -> Steps[None]:
    """Runs `pylog move --cancel`, and begins again with other directories, unless the log has moved.

    It may have been killed between both.
    """
    while sim.oracle.fork is None and not (sim.oracle.is_cancelled or moving_to(sim.oracle.state.coordinator)):
        yield Sleep(20)
    yield Sleep(sim.rng.choice((1, 300, 2000, 4000)))
    while sim.oracle.fork is None:
        if moving_to(sim.oracle.state.coordinator):
            try:
                yield from blocking(sim.world, lambda process: cancel_move(Log(sim.journal(process))))
                sim.oracle.seen["cancelled"] += 1
            except SparkLogError:
                yield Sleep(sim.rng.choice((10, 300)))
        elif sim.adopting:
            yield Sleep(50)
        else:
            sim.format_nodes()
            return


def standby(sim: AdoptionSimulation) -> Steps[None]:
    """A coordinator that keeps the log on the storage."""
    while sim.oracle.fork is None:
        yield Sleep(sim.rng.choice((300, 2000)))
        try:
            yield from blocking(sim.world, partial(_lead, sim))
        except SparkLogError:
            sim.oracle.seen["standbys refused"] += 1


def _lead(sim: AdoptionSimulation, process: SimulatedProcess) -> None:
    """For a moment.  It may sleep before, or meanwhile."""
    journal = sim.journal(process)
    held = journal.state.coordinator
    if held.address == STANDBY:
        journal.release(held.epoch + 1)
    process.sleep_ms(sim.rng.choice((1, 100, 3000)))
    epoch = journal.take_over(journal.state.coordinator.epoch, STANDBY, "elsewhere")
    process.sleep_ms(sim.rng.choice((1, 100, 3000)))
    journal.propose(SetConfigs(name=None, changes={"num.partitions": str(sim.rng.randint(1, 3))}), maintenance=False)
    journal.release(epoch)


def sleeper(sim: AdoptionSimulation, name: str) -> Steps[None]:
    """A writer that commits what it has prepared when the log has moved."""
    view = yield from sim.load()
    if isinstance(view, ServedView):
        return
    commit = yield from sim.upload(view, sim.fresh("p"))
    while sim.oracle.fork is None:
        yield Sleep(sim.rng.choice((100, 500)))
    yield Sleep(sim.rng.choice((1, 100, 3000)))
    yield from attempt(sim, view, [identified(commit, PlainIdentity(sim, name).next(view.state))])
