"""The setting of a run: the actors of the simulation of the log, as clients of coordinators on a quorum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from simulation.coordinator_sim.erasures import Erasures
from simulation.coordinator_sim.links import SimulatedLinks
from simulation.coordinator_sim.network import Network
from simulation.coordinator_sim.nodes import SimulatedNode
from simulation.coordinator_sim.storage import SimulatedStorage
from simulation.coordinator_sim.world import CLUSTER, QuorumWorld
from simulation.levels import TODAY
from simulation.log_sim.constants import CLOCK_SKEW_MAX_MS
from simulation.log_sim.content import PlainCodec
from simulation.log_sim.promises.oracle import Oracle
from simulation.log_sim.readers_and_maintenance import persistent
from simulation.log_sim.setting import UPGRADE, Simulation
from simulation.log_sim.world import FaultRates, World
from simulation.verdict import Violation
from spark_log.errors import CoordinatorNotAvailable, CorruptObject, SparkLogError, StorageUnavailable
from spark_log.journal import maintenance, metadata_log
from spark_log.journal.context import Context, DecisionRule, Proposal
from spark_log.journal.served_log import ServedLog
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.metadata import records as r
from spark_log.metadata.commands import CreateTopic, SetConfigs
from spark_log.metadata.features import METADATA_VERSION
from spark_log.metadata.groups.group_commands import CommitOffsets
from spark_log.metadata.replay import next_version
from spark_log.metadata.state import GroupState, State, TopicKey
from spark_log.quorum.messages import ReplicaKey
from spark_log.store.object_names import SNAPSHOTS, log_key, snapshot_version

Result = TypeVar("Result")

WAIT_MS = 8_000
"""How long a client waits for a coordinator."""
CLOCK_MS = 2_000
"""The clock of a leader may be so far from the right time."""
REMOVED_MS = 20_000
MEMBERS_GROUP = "members"
SIZES = (1, 2, 3, 3, 3, 3, 4, 5)


class QuorumOracle(Oracle):
    """With what a quorum promises in addition.

    same        all nodes have the same batch at a version, and the state that all batches up to it make
    refused     a refusal is true of the log, at a version that was the newest one while the client waited, or later
    monotonic   no view of a process is older than its last one
    claimed     all processes have the value of a claim that was made first, and the state at its version
    copied      the fence does not pass a copy of the metadata beside the records
    owned       a partition has one member in a generation, and what members commit never goes back
    level       a node that does not know a level gets no batch of it
    forgotten   when a leader says that nothing of before an erasure is left, no disk and no copy has it (`erasures.py`)
    digests     the digests that nodes compute of their states at a version are equal, as the nodes compare them
    """

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self._claims: dict[str, bytes] = {}
        self._owners: dict[tuple[int, TopicKey], str] = {}

    def decided(self, version: int, data: bytes, now: int) -> None:
        """A node has a batch that is final, and no other node had it before."""
        super().written(log_key(version), data, None, now)

    def check_claim(self, name: str, value: bytes) -> None:
        first = self._claims.setdefault(name, value)
        if first != value:
            raise Violation(f"claimed: {name} is {first!r} for one process and {value!r} for another")
        self.seen["claims"] += 1

    def check_version(self, state: State, version: int, where: str) -> None:
        if state.version != version:
            raise Violation(f"claimed: {where} has version {state.version}, not {version}")
        self.check_state(state, where)

    def own(self, generation: int, keys: Sequence[TopicKey], member: str) -> None:
        for key in keys:
            owner = self._owners.setdefault((generation, key), member)
            if owner != member:
                raise Violation(f"owned: {key} is {owner}'s and {member}'s in generation {generation}")

    def check_positions(self, before: State) -> None:
        """After a version."""
        was, now = (state.groups.get(MEMBERS_GROUP, GroupState()).offsets for state in (before, self.state))
        for key, position in was.items() if was is not now else ():
            if key in now and now[key].offset < position.offset:
                raise Violation(f"owned: the position of {key} goes from {position.offset} to {now[key].offset}")

    def _check_led(self, record: r.AnyRecord, epoch: int) -> None:
        """Epochs of the quorum in which nobody took the log over leave gaps."""
        if isinstance(record, r.TakeOverRecord):
            if record.epoch <= self._last_leader:
                raise Violation(f"led: {record.address} took over with epoch {record.epoch} after {self._last_leader}")
            self._leads = self._last_leader = record.epoch
        elif self.state.version and epoch != self._leads:
            raise Violation(f"led: a {type(record).__name__} was written with epoch {epoch}, {self._leads} leads")

    def check_refusal(self, decide: DecisionRule, error: SparkLogError, seen: int, asked: int, now: int) -> None:
        """
        seen:   the version of the client's view.
        asked:  the newest version when the client asked for the first time.
        """
        start = max(seen, asked)
        for state in self.states[start:]:
            for time in (state.time, now, now - CLOCK_MS, now + CLOCK_MS):
                if _refusal(decide, state, time) is type(error):
                    self.seen["refusals"] += 1
                    return
        raise Violation(f"refused: {error!r} is true at no version from {start} on: {decide}")


def _refusal(decide: DecisionRule, state: State, now: int) -> type[SparkLogError] | None:
    try:
        decide(next_version(state, now), now)
    except SparkLogError as error:
        return type(error)
    return None


def _is_of_member(command: Proposal) -> bool:
    return isinstance(command.decide, CommitOffsets) and command.decide.by is not None


class QuorumSimulation(Simulation):
    ages = (5_000, 12_000)
    clock_error_ms = 1_000
    """The leader's clock may be so far from the median."""
    world: QuorumWorld
    oracle: QuorumOracle

    def _choose(self, seed: int) -> None:
        self._seed = seed
        self.codec = PlainCodec()
        self.together = self.peeks = self.compacts = False

    def _make_oracle(self, rates: FaultRates) -> Oracle:
        return QuorumOracle(self.codec, self.grace, self.constants, rates.ahead_ms, self.memoized)

    def _make_world(self, rates: FaultRates, transcript: bool) -> World:
        return QuorumWorld(self.rng, rates, self.oracle, transcript=transcript)

    # ------------------------------------------------------------------------------------------------------- beginning

    def _start(self, interval: int, partitions: int) -> None:
        world = self.world
        self.context = Context(world, self.rng, coordinator_wait_ms=WAIT_MS, limits=self.constants.limits, served=True)
        self._connect()
        voters = tuple(ReplicaKey(number, "a") for number in range(1, self.rng.choice(SIZES) + 1))
        for key in voters:
            world.nodes[key.id] = SimulatedNode(world, key, voters)
        for node in world.nodes.values():
            node.start()
        world.start("first", lambda: self._first(interval, partitions), counts=True)

    def _connect(self) -> None:
        world = self.world
        self._logs: dict[str, ServedLog] = {}
        self._batches: dict[int, bytes] = {}
        """The batches of the quorum, by version."""
        world.observed = self._observed
        world.network, world.links, world.storage = Network(world), SimulatedLinks(world), SimulatedStorage(world)
        world.erasures = Erasures(world, self._seed)
        if world.erasures.are_drawn:  # they wait for a removed node until the leader forgets it
            world.times = replace(world.times, observer_timeout_ms=REMOVED_MS)

    def add_operators(self) -> None:
        """Those that are part of the setting."""

    def restored(self) -> Steps[None]:
        """Another quorum takes the place of this one, if the setting has that."""
        yield from ()

    def bootstrap_records(self, state: State) -> tuple[r.AnyRecord, ...]:
        """The records of a log that an earlier pylog began, maybe."""
        begins_higher = not state.version and self.world.level > TODAY
        return (r.FeatureLevelRecord(name=METADATA_VERSION, level=self.world.level),) if begins_higher else ()

    def _first(self, interval: int, partitions: int) -> Steps[None]:
        configs: dict[str, str | None] = {
            "gc.fence.age.ms": str(self.age),
            "metadata.checkpoint.interval": str(interval),
            "producer.id.expiration.ms": str(self.rng.choice((1, self.age))),
            "log.clock.skew.max.ms": str(CLOCK_SKEW_MAX_MS),
            "offsets.retention.minutes": str(self.rng.choice((1, 10_080))),
        }
        commands = [
            Proposal(SetConfigs(name=None, changes=configs)),
            Proposal(CreateTopic(name="t0", partitions=partitions, configs={}, topic_id="id0")),
        ]
        while not all(command.done for command in commands):
            try:
                view = yield from self.log.open()
                yield from self.log.propose(view, [command for command in commands if not command.done])
            except CoordinatorNotAvailable:
                yield Sleep(100)

    # ----------------------------------------------------------------------------------------------------------- checks

    def _observed(self, node: SimulatedNode, before: State, state: State) -> State:
        """A node has another final state."""
        try:
            for version in range(before.version + 1, state.version + 1):
                for data in node.coordinator.after(version - 1, version, 1 << 30):
                    self._check_batch(node, version, data)
            self.oracle.check_state(state, f"that of {node}")
            if state.version and state.levels[METADATA_VERSION] > node.level:
                raise Violation(f"level: {node} knows {node.level}, and the log has {state.levels[METADATA_VERSION]}")
        except Violation as broken:
            self.world.violate(str(broken))
        return state

    def _check_batch(self, node: SimulatedNode, version: int, data: bytes) -> None:
        if version == self.oracle.state.version + 1:
            self._batches[version] = data
            state = self.oracle.state
            self.oracle.decided(version, data, self.now)
            self.oracle.check_positions(state)
            self._check_fence(state)
        if self._batches.get(version) != data:
            raise Violation(f"same: {node} has another batch at version {version}")

    def _check_fence(self, before: State) -> None:
        """A copy of the metadata names objects that were dropped after it."""
        fence, copies = self.oracle.state.fence, self.world.storage.list(SNAPSHOTS)
        if fence > before.fence:
            self.oracle.seen["fences"] += 1
            copied = min(map(snapshot_version, copies), default=0)
            if fence > copied:
                raise Violation(f"copied: the fence is at {fence}, and a copy of the metadata has {copied}")

    @property
    def log(self) -> ServedLog:
        """The log of the process that runs now."""
        assert self.world.current is not None
        return self._logs.setdefault(self.world.current.name, ServedLog(self.context, CLUSTER))

    def _checked(self, view: Any, before: Any, since: int = 0) -> Any:
        if before is not None and view.state.version < before.state.version:
            raise Violation(f"monotonic: a view of {view.state.version} after {before.state.version}")
        self.oracle.check_view(view, since)
        return view

    # ------------------------------------------------------------------------------------------------ what actors do

    def lasting(self, steps: Callable[[], Steps[None]]) -> Callable[[], Steps[None]]:
        """The steps of a process that is started again when it has given up."""
        return persistent(steps)

    def when_served(self, steps: Callable[[], Steps[None]]) -> Callable[[], Steps[None]]:
        """The steps of a process that needs the quorum from the beginning."""
        return steps

    def load(self) -> Steps[Any]:
        since = self.oracle.state.version
        while True:
            view = yield from self.log.open()
            if "t0" in view.state.names:
                return self._checked(view, None, since)
            yield Sleep(100)

    def refresh(self, view: Any) -> Steps[Any]:
        since = self.oracle.state.version
        return self._checked((yield from self.log.refresh(view)), view, since)

    def look(self, view: Any) -> Steps[Any]:
        return self._checked((yield from self.log.look(view)), view)

    def peek(self, view: Any) -> Steps[Any]:
        yield from ()
        return view

    def propose(self, view: Any, commands: Sequence[Proposal], context: Context | None = None) -> Steps[Any]:
        waiting, asked = [command for command in commands if not command.done], self.oracle.state.version
        after = self._checked((yield from self.log.propose(view, commands)), view)
        for command in waiting:
            error = command.error
            if error is None or error.maybe_applied or isinstance(error, CoordinatorNotAvailable):
                continue
            if command.decide is not UPGRADE and not _is_of_member(command):  # refused for a node, or by the group
                self.oracle.check_refusal(command.decide, error, view.state.version, asked, self.now)
        return after

    def decided(self, view: Any, steps: Steps[Result]) -> Steps[tuple[Any, Result]]:
        return (yield from metadata_log.decided(self.log, view, steps))

    def run_maintenance(self, view: Any, context: Context | None = None) -> Steps[Any]:
        if self.rng.random() < 0.7:
            return view
        try:
            return (yield from self.maintenance_if_due(view, self.context))
        except (StorageUnavailable, CoordinatorNotAvailable, CorruptObject):
            return view

    def maintenance_if_due(self, view: Any, context: Context) -> Steps[Any]:
        view, _ = yield from self.decided(view, maintenance.seal_and_expire(view.state, context))
        return self._checked(view, None)
