"""One simulated log with brokers: its world, its oracle, its topics, and the times that the actors keep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from msgspec import structs

from simulation.log_sim.blocking import format_file
from simulation.log_sim.constants import CLOCK_SKEW_MAX_MS, Constants
from simulation.log_sim.content import PlainCodec
from simulation.log_sim.memoized_functions import MemoizedFunctions
from simulation.log_sim.setting import COORDINATOR_WAIT_MS, Simulation
from simulation.log_sim.world import FaultRates
from simulation.mutation import Patch
from simulation.replica_sim.oracle import ReplicaOracle, directory_of
from simulation.replica_sim.roots import Disk, ReplicaWorld
from spark_log.journal.context import Context, DecisionRule, Proposal
from spark_log.journal.maintenance_limits import LIMITS
from spark_log.journal.storage import commit_protocol, opening
from spark_log.journal.store_operations import Steps
from spark_log.metadata.decision import Decision
from spark_log.metadata.replicas import decide_replicas, replay_replicas, replica_commands
from spark_log.metadata.replicas.reassignments import moving, objects_elsewhere
from spark_log.metadata.replicas.replica_commands import RegisterBroker
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import can_lead, deficit, keeps
from spark_log.metadata.state import State
from spark_log.metadata.topics.decide_topics import decide_create_topic, decide_set_configs
from spark_log.roots.broker_roots import BROKER_KEY, BrokerFile
from spark_log.store.object_names import FORMAT_KEY, META, upload_epoch

CLUSTER = "simulated"
BY_HAND = "by hand"
"""The reason of brokers that an administrator fenced: only an administrator returns them."""

COPIES_IN = (2, 7)
"""Last digits of the seeds in which backups are made."""


def broker_file(broker: int, directory: str) -> bytes:
    """The content of `meta/broker.json`."""
    return msgspec.json.encode(BrokerFile(cluster_id=CLUSTER, broker=broker, directory=directory))


class ReplicaSimulation(Simulation):
    """The state that actors share.  The seed decides every draw."""

    oracle: ReplicaOracle
    world: ReplicaWorld

    def __init__(self, seed: int, *, transcript: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.codec = PlainCodec()
        self.together = self.peeks = self.compacts = self.erases = False
        self.age = rng.choice((2500, 6000, 20_000))
        self.pauses = rng.choice(((20, 300), (20, 3000)))
        self.p_pause = rng.choice((0.3, 0.9))
        self.truncations = 1
        self.session_ms = rng.choice((100, 600))
        """`broker.session.timeout.ms`."""
        self.lag_ms = rng.choice((50, 500))
        """`replica.lag.time.max.ms`."""
        self.waited_ms = rng.choice((1000, 10_000))
        self.harm = rng.choice((0.0, 0.3, 1.0))
        """How often a fault of a root is one that takes copies."""
        self.constants = replace(Constants.draw(rng), limits=LIMITS)
        rates = replace(FaultRates.draw(rng, self.age), astray=0.0)
        self.grace = self.age - 2 * rates.skew_ms
        self.memoized = MemoizedFunctions()
        self.acks_rng = random.Random(f"acks {seed}")
        """Decides which writes have acks=1; apart from `rng`, so that seeds without such writes stay as they were."""
        self.lost_ms = self.acks_rng.choice((300, 5000))
        """`replica.lost.after.ms`."""
        self.oracle = oracle = ReplicaOracle(self.grace, self.constants, self.waited_ms, self.lost_ms, self.memoized)
        self.world = world = ReplicaWorld(rng, rates, oracle, transcript=transcript)
        self.roots = world.store
        oracle.watch(self.roots)
        self.roots.files[META][FORMAT_KEY] = format_file()
        self.context = Context(world, rng, coordinator_wait_ms=COORDINATOR_WAIT_MS)
        self.progress = {}
        self._names = 0
        self.healing = False
        """The faults are over."""
        self.busy = True
        """Mergers still merge."""
        self.brokers = rng.choice((3, 3, 4))
        self.moves = seed % 5 == 4
        """Partitions get other replicas."""
        self.old_disks = seed % 5 == 3
        """An old copy of a disk is mounted in its place now and then."""
        self.fences_again = seed % 10 == 8
        """Brokers that a check has fenced are fenced by hand, too."""
        self.copies = seed % 10 in COPIES_IN
        """Backups are made, and restored elsewhere."""
        self.leader_share = self.acks_rng.choice((0.0, 0.0, 0.3, 0.8))
        """How many of the writes that is."""
        if self.copies:  # else hardly any commit is pending when a copy is made
            self.leader_share = max(self.leader_share, 0.5)
        self.keep_ms = random.Random(f"keep {seed}").choice((0, self.age // 2))
        """For how long an asynchronous broker keeps objects; it changes no other draw of the seed."""

    def begin(self) -> Steps[None]:
        """Create the log, its brokers and its topics."""
        rng, brokers = self.rng, self.brokers
        configs: dict[str, str | None] = {
            "gc.fence.age.ms": str(self.age),
            "metadata.checkpoint.interval": str(rng.choice((4, 12, 50))),
            "producer.id.expiration.ms": str(self.age),
            "log.clock.skew.max.ms": str(CLOCK_SKEW_MAX_MS),
        }
        view = yield from opening.open_view()
        decisions: list[DecisionRule] = [lambda state, now: decide_set_configs(state, None, configs)]
        decisions += [self._register(broker, brokers) for broker in range(1, brokers)]
        decisions += [self._topic(name, brokers) for name in ("a", "b", "c")]
        view = yield from commit_protocol.propose(view, [Proposal(decide) for decide in decisions], self.context)
        for broker, known in view.state.brokers.items():
            files = {BROKER_KEY: broker_file(broker, known.directory)}
            self.roots.mounted[broker] = Disk(files)

    def _register(self, broker: int, brokers: int) -> DecisionRule:
        made = RegisterBroker(
            broker=broker,
            directory=self.fresh("dir"),
            url=f"simulated://broker{broker}",
            rack=self.rng.choice(("", "x", "y")),
            is_async=brokers == 4 and broker == 3 and self.rng.random() < 0.6,
        )
        return structs.replace(made, keep_ms=self.keep_ms) if made.is_async else made

    def _topic(self, name: str, brokers: int) -> DecisionRule:
        rng = self.rng
        factor = rng.choice((1, 2, 2, 3))
        least = min(factor, rng.choice((1, 2)))
        partitions = rng.randint(1, 2)
        lists = [tuple(rng.sample(range(brokers), factor)) for _ in range(partitions)]
        configs = {"min.insync.replicas": str(least)}
        by_hand = rng.random() < 0.5

        def decide(state: State, now: int) -> Decision[str]:
            given: Sequence[tuple[int, ...]] = lists if by_hand and self._valid(state, lists, least) else ()
            number = None if given else min(factor, sum(can_lead(state, b) for b in range(brokers)))
            return decide_create_topic(
                state, name, partitions, configs, f"id-{name}", replication_factor=number, replicas=given
            )

        return decide

    @staticmethod
    def _valid(state: State, lists: Sequence[tuple[int, ...]], least: int) -> bool:
        """Whether enough of each list can be in an ISR."""
        return all(sum(can_lead(state, broker) for broker in one) >= least for one in lists)

    def patches(self) -> tuple[Patch, ...]:
        """The product's constants for this run."""
        return (
            *self.constants.patches(),
            *self.memoized.patches(),
            Patch(replay_replicas, "MISSES_KEPT_MS", 5000),
            Patch(decide_replicas, "WAITED_FOR_MS", self.waited_ms),
            Patch(replica_commands, "KEEP_MS_MIN", 1),
        )

    # ------------------------------------------------------------------------------------------------------------ the end

    def unhealed(self) -> str:
        """The work that maintenance has left; empty: nothing."""
        if self.roots.away:
            return "a disk is not mounted yet"
        state = self.oracle.state
        fenced = [broker for broker, known in state.brokers.items() if known.fenced]
        if fenced:
            return f"brokers {fenced} are fenced"
        for number, group in state.placement_groups.items():
            wanted = tuple(broker for broker in group.replicas if can_lead(state, broker))
            if group.isr != wanted:
                return f"the ISR of group {number} is {group.isr}, expected {wanted}"
            for broker in group.replicas:
                if deficit(state, number, broker).objects:
                    return f"broker {broker} lacks objects of group {number}"
        if state.pending:
            return f"readers do not see {state.pending[0].objects}"
        if unnoticed := self.oracle.unnoticed(state):
            return f"{unnoticed[0]} is not there"
        for name, row in self.memoized.objects(state).items():
            known = state.copies.get(row.copies)
            if known is not None and not known.brokers:
                brokers = state.placement_groups[known.group].replicas
                some = [broker for broker in brokers if keeps(state, broker, name)]
                if found := [broker for broker in some if self.oracle.has_copy(state, broker, name)]:
                    return f"{name} has no known copy, and brokers {found} have it"
        for key in moving(state):
            part = state.partitions[key]
            names = objects_elsewhere(state, key, (entry.object for entry in part.entries))
            waits = part.end != part.readable_end  # for objects that no root has
            if any(self.oracle.is_readable(state, name) for name in names) or not (names or waits):
                return f"partition {key} moves"
        return ""

    def garbage(self) -> list[str]:
        """Files on roots that the fence has passed and nothing refers to."""
        state, found = self.oracle.state, list[str]()
        for broker in (OWN_BROKER, *state.brokers):
            disk = self.roots.own if broker == OWN_BROKER else self.roots.mounted[broker]
            start = f"{directory_of(state, broker)}/data/".lstrip("/")
            for key in disk.files:
                if not key.startswith(start):
                    continue
                name = key[len(start) - len("data/") :]
                kept = name in state.objects or name in state.dropped
                if not kept and upload_epoch(name) <= state.fence:
                    found.append(f"{broker}: {key}")
        return found
