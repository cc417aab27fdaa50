"""A group in a world where everything goes wrong, from one seed: the machine, the metadata state and the assignors are
real.

The network delays requests and answers, sometimes for longer than a session; the journal is slow; the coordinator
crashes, with what it was writing written or not, and its clock jumps; members crash, leave, come back, and hold still.
Then the faults stop, and the group has to come to rest.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

from spark_log.errors import SparkLogError
from spark_log.groups.assignors import assign_members, make_assignor, what_members_read
from spark_log.groups.group import ConsumerGroupState, Group, GroupConfig, JournalRecord, StepOutcome, restore
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    Journaled,
    LeaveGroupRequest,
    LeavingMember,
    MemberProtocol,
    OffsetCommitRequest,
    OffsetCommitResponse,
    Request,
    Response,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_log.groups.racks import Cluster
from spark_log.groups.state_machine import next_deadline, step, tick
from spark_log.groups.subscription import Subscription, decode_assignment, encode
from spark_log.metadata import records as r
from spark_log.metadata.decision import Decision
from spark_log.metadata.groups.group_commands import CommitOffsets, SetGeneration
from spark_log.metadata.replay import next_version, replay
from spark_log.metadata.state import State
from spark_log.model import TopicPartition

CONFIG = GroupConfig(initial_rebalance_delay_ms=500, min_session_timeout_ms=0)
SESSION_MS = 10_000
REBALANCE_MS = 15_000
FAULTS_MS = 50_000
CALM_MS = 60_000
"""Long enough for what is late to arrive, and for two rounds after that."""
MUTATIONS = (
    "assignments are told before they are durable",
    "commits are not fenced",
    "a restart forgets the generation",
)
"""Rules of the coordinator's shell that may be taken away."""


class Violation(Exception):
    """An invariant does not hold."""


class World:
    def __init__(self, seed: int, mutation: str = "") -> None:
        self.rng = random.Random(seed)
        self.mutation = mutation
        self.now_ms = 0
        self.faulty = True
        self.partitions = {"t": self.rng.randint(1, 4), "u": self.rng.randint(0, 3)}
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        """The owner of a partition in a generation, as members were told."""
        strategies = self.rng.choice([["range"], ["sticky"], ["cooperative-sticky"], ["roundrobin", "range"]])
        self.coordinator = Coordinator(self)
        self.clients = [
            Client(self, f"c{n}", f"i{n}" if self.rng.random() < 0.4 else None, strategies)
            for n in range(self.rng.randint(2, 4))
        ]
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, delay_ms: int, what: Callable[[], None]) -> int:
        """Have something happen later; when."""
        self._count += 1
        when = self.now_ms + delay_ms
        heapq.heappush(self._events, (when, self._count, what))
        return when

    def delay_ms(self) -> int:
        """Of a message or a write."""
        if self.faulty and self.rng.random() < 0.04:
            return self.rng.randint(1_000, 15_000)
        return self.rng.randint(1, 60)

    def run(self) -> None:
        for client in self.clients:
            self.at(self.rng.randint(0, 3_000), client.start)
        for _ in range(self.rng.randint(3, 10)):
            self.at(self.rng.randint(1_000, FAULTS_MS), self._fault)
        self._run_until(FAULTS_MS)
        self.faulty = False
        self.coordinator.start()
        for client in self.clients:
            client.start()
        self._run_until(FAULTS_MS + CALM_MS)
        self._check_rest()

    def _run_until(self, end_ms: int) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, what = heapq.heappop(self._events)
            what()
        self.now_ms = end_ms

    def _fault(self) -> None:
        client = self.rng.choice(self.clients)
        back = self.rng.randint(100, 12_000)
        match self.rng.randrange(8):
            case 0 | 1:
                client.crash()
                self.at(back, client.start)
            case 2:
                client.leave()
                self.at(back, client.start)
            case 3:
                client.held_up_until = self.now_ms + back * 2
            case 4 | 5 | 6:
                self.coordinator.crash()
                self.at(back // 4, self.coordinator.start)
            case _:
                self.coordinator.skew_ms += self.rng.choice([-20_000, -500, 3_000, 3_600_000])
                self.partitions["u"] += 1
                self.coordinator.turn()

    def own(self, generation: int, partition: TopicPartition, who: str) -> None:
        """Never two owners in one generation."""
        before = self.owners.setdefault((generation, partition), who)
        if before != who:
            raise Violation(f"{partition} is {before}'s and {who}'s in generation {generation}")

    def _check_rest(self) -> None:
        """Every partition is owned, once, by a member of the generation in force."""
        group = self.coordinator.group
        if group is None or group.state is not ConsumerGroupState.STABLE:
            raise Violation(f"the group has not come to rest: {group}")
        owned = sorted(tp for client in self.clients for tp in client.owned)
        wanted = sorted(TopicPartition(topic, n) for topic, count in self.partitions.items() for n in range(count))
        if owned != wanted or {client.generation for client in self.clients} != {group.generation}:
            raise Violation(f"owned at rest: {[(c.name, c.generation, sorted(c.owned)) for c in self.clients]}")


class Coordinator:
    """The shell of the machine: its journal is a queue, of which a crash loses an end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.up = True
        self.run = 0
        """Which one of its lives it is."""
        self.group: Group | None = None
        self.skew_ms = 10_000_000
        self.state = State()
        self.topics: dict[str, str] = {}
        self._waiting: dict[int, Callable[[Response], None]] = {}
        self._requests = 0
        self._writes: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._wakes: set[int] = set()
        self._write(r.TakeOverRecord(epoch=1, address="here:9550", host="here", cluster_id="c"))
        for topic in world.partitions:
            self._write(r.CreateTopicRecord(topic_id=topic, name=topic, partitions=50))

    @property
    def clock_ms(self) -> int:
        return self.world.now_ms + self.skew_ms

    def crash(self) -> None:
        """The first part of an unfinished write survives, and nobody gets an answer."""
        self.up = False
        written = self.world.rng.randint(0, len(self._writes))
        for apply, _ in self._writes[:written]:
            apply()
        self._writes.clear()
        self._waiting.clear()
        self.group = None

    def start(self) -> None:
        if self.up:
            return
        self.up = True
        self.run += 1
        known = self.state.groups.get("g")
        if known is not None and known.roster is not None and self.world.mutation != MUTATIONS[2]:
            self.group = restore("g", known.roster, self.clock_ms)
            self._plan_wake()

    def receive(self, request: Request, answer: Callable[[Response], None]) -> None:
        if self.up and isinstance(request, OffsetCommitRequest) and self.world.mutation == MUTATIONS[1]:
            answer(OffsetCommitResponse())
        elif self.up:
            self.turn()
            self._requests += 1
            self._waiting[self._requests] = answer
            self._step(request, self._requests)

    def turn(self) -> None:
        """Let timers run out."""
        deadline = None if self.group is None else next_deadline(self.group)
        if self.up and self.group is not None and deadline is not None and deadline <= self.clock_ms:
            self._take(tick(self.group, self.clock_ms, config=CONFIG))
        self._plan_wake()

    def _plan_wake(self) -> None:
        deadline = None if self.group is None else next_deadline(self.group)
        if deadline is not None:
            when = max(deadline - self.skew_ms, self.world.now_ms)
            if when not in self._wakes:
                self._wakes.add(when)
                self.world.at(when - self.world.now_ms, lambda: (self._wakes.discard(when), self.turn())[1])

    def _step(self, request: Request, correlation_id: int) -> None:
        known = self.state.groups.get("g")
        floor = known.generation if known is not None and self.world.mutation != MUTATIONS[2] else 0
        outcome = step(
            self.group, request, self.clock_ms, correlation_id=correlation_id, config=CONFIG, generation=floor
        )
        self._take(outcome)
        self._plan_wake()

    def _take(self, outcome: StepOutcome) -> None:
        self.group = outcome.group
        for record in outcome.records:
            self._journal(record)
        for reply in outcome.replies:
            answer = self._waiting.pop(reply.correlation_id, None)
            if answer is not None:
                answer(reply.response)

    def _journal(self, record: JournalRecord) -> None:
        def apply() -> None:
            self._decide(SetGeneration(group="g", roster=record.roster))

        def done(error: Code = Code.NONE) -> None:
            self._step(Journaled(group_id="g", ticket=record.ticket, error=error), 0)

        if self.world.mutation == MUTATIONS[0]:
            self.write(apply, lambda: None)
            done()
        else:
            self.write(apply, done)

    def write(self, apply: Callable[[], None], done: Callable[[], None]) -> None:
        """Make something durable, after all earlier writes, and continue."""
        entry = (apply, done)
        self._writes.append(entry)
        if len(self._writes) == 1:
            self._plan_write()

    def _plan_write(self) -> None:
        run = self.run

        def written() -> None:
            if self.run == run and self.up and self._writes:
                apply, done = self._writes.pop(0)
                apply()
                if self._writes:
                    self._plan_write()
                done()

        self.world.at(self.world.delay_ms(), written)

    def commit(self, request: OffsetCommitRequest, offsets: dict[TopicPartition, int]) -> None:
        """Positions that the machine has let pass; the journal looks at the generation once more."""
        fenced = self.world.mutation != MUTATIONS[1]
        generation = request.generation_id if fenced else self.state.groups["g"].generation
        entries = tuple(r.OffsetEntry(*tp, offset) for tp, offset in sorted(offsets.items()))

        def apply() -> None:
            before = self.state
            self._decide(CommitOffsets(commit=r.GroupCommit("g", generation, entries)))
            self._check_monotone(before)

        self.write(apply, lambda: None)

    def committed(self, partition: TopicPartition) -> int:
        known = self.state.groups.get("g")
        position = known.offsets.get(partition) if known is not None else None
        return 0 if position is None else position.offset

    def _check_monotone(self, before: State) -> None:
        """Nothing that was committed is taken back by somebody who was replaced."""
        known, now = before.groups.get("g"), self.state.groups.get("g")
        if known is not None and now is not None:
            for key, position in known.offsets.items():
                if now.offsets[key].offset < position.offset:
                    raise Violation(f"{key} went from {position.offset} back to {now.offsets[key].offset}")

    def _decide(self, command: Callable[[State, int], Decision[None]]) -> None:
        try:
            decision = command(next_version(self.state, self.clock_ms), self.clock_ms)
        except SparkLogError:
            return
        if decision.records:
            self._write(*decision.records)

    def _write(self, *records: r.AnyRecord) -> None:
        self.state = replay(self.state, r.Batch(id="x", time=self.clock_ms, epoch=1, records=records))


class Client:
    """A member, as Kafka's consumer is one."""

    def __init__(self, world: World, name: str, instance: str | None, strategies: Sequence[str]) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.alive = False
        self.life = 0
        self.held_up_until = 0
        self.owned: dict[TopicPartition, int] = {}
        """With the position up to which it has read."""
        self.generation = -1
        self._assignors = {name: make_assignor(name) for name in strategies}
        self._cooperative = all(assignor.cooperative for assignor in self._assignors.values())

    def start(self) -> None:
        if not self.alive:
            self.alive = True
            self.life += 1
            self._forget()
            self._asked: Request | None = None
            self._asked_ms = -1
            self._asked_run = -1
            self._arrives: dict[int, int] = {}
            self._leads: tuple[Cluster, tuple[JoinedMember, ...]] | None = None
            self._poll(self.life)

    def crash(self) -> None:
        self.alive = False
        self.owned = {}

    def leave(self) -> None:
        if self.alive and self.member_id and self.instance is None:
            self._send(LeaveGroupRequest(group_id="g", members=(LeavingMember(self.member_id),)))
        self.crash()

    def _forget(self) -> None:
        """It is not a member any more, and its partitions are lost."""
        self.member_id = ""
        self._lose()

    def _lose(self) -> None:
        self.generation = -1
        self.owned = {}
        self._last: tuple[TopicPartition, ...] = ()

    # ------------------------------------------------------------------------------------------------------------ requests

    def _poll(self, life: int) -> None:
        """The regular actions of a member."""
        if not self.alive or life != self.life:
            return
        self.world.at(self.world.rng.randint(1_500, 3_000), lambda: self._poll(life))
        if self.world.now_ms < self.held_up_until:
            return
        if self._asked is not None:
            broken = self._asked_run != self.world.coordinator.run
            if broken or self.world.now_ms - self._asked_ms > REBALANCE_MS + SESSION_MS:
                self._ask(self._asked) if isinstance(self._asked, SyncGroupRequest) else self._join()
        elif self.generation < 0 or self._metadata_changed():
            self._join()
        else:
            self._read_and_commit()
            self._send(
                HeartbeatRequest(
                    group_id="g",
                    member_id=self.member_id,
                    generation_id=self.generation,
                    group_instance_id=self.instance,
                )
            )

    def _metadata_changed(self) -> bool:
        return self._leads is not None and what_members_read(self.world.partitions, self._leads[1]) != self._leads[0]

    def _join(self) -> None:
        if not self._cooperative and self.owned:
            self._last, self.owned = tuple(self.owned), {}
        told = encode(
            Subscription(topics=("t", "u"), owned=tuple(self.owned) or self._last, generation=self.generation)
        )
        self._leads = None
        self._ask(
            JoinGroupRequest(
                group_id="g",
                member_id=self.member_id,
                group_instance_id=self.instance,
                protocols=tuple(MemberProtocol(name, told) for name in self._assignors),
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                new_member_id=f"{self.name}-{self.life}-{self.world.rng.randrange(10**9)}",
            )
        )

    def _ask(self, request: Request) -> None:
        self._asked, self._asked_ms, self._asked_run = request, self.world.now_ms, self.world.coordinator.run
        self._send(request)

    def _read_and_commit(self) -> None:
        for tp in self.owned:
            self.owned[tp] += self.world.rng.randint(0, 3)
        request = OffsetCommitRequest(
            group_id="g",
            member_id=self.member_id,
            generation_id=self.generation,
            group_instance_id=self.instance,
        )
        self._send(request, dict(self.owned))

    def _send(self, request: Request, offsets: dict[TopicPartition, int] | None = None) -> None:
        """On a connection, which keeps the order, and which the coordinator's end breaks but the member's does not."""
        life, run, world = self.life, self.world.coordinator.run, self.world
        arrives = max(self._arrives.get(run, 0), world.now_ms + world.delay_ms())
        self._arrives[run] = arrives

        def answered(response: Response) -> None:
            if isinstance(response, OffsetCommitResponse) and response.error is Code.NONE and offsets:
                assert isinstance(request, OffsetCommitRequest)
                world.coordinator.commit(request, offsets)
            world.at(world.delay_ms(), lambda: self._answer(life, request, response))

        def arrived() -> None:
            if world.coordinator.run == run:
                world.coordinator.receive(request, answered)

        world.at(arrives - world.now_ms, arrived)

    # ------------------------------------------------------------------------------------------------------------- answers

    def _answer(self, life: int, request: Request, response: Response) -> None:
        if not self.alive or life != self.life:
            return
        match response:
            case JoinGroupResponse() if request is self._asked:
                self._asked = None
                self._joined(response)
            case SyncGroupResponse() if request is self._asked:
                self._asked = None
                self._synced(request, response)
            case HeartbeatResponse() if isinstance(request, HeartbeatRequest):
                current = (request.member_id, request.generation_id) == (self.member_id, self.generation)
                if current and self._asked is None and response.error is not Code.NONE:
                    self._refused(response.error)
            case _:
                pass

    def _joined(self, response: JoinGroupResponse) -> None:
        if response.error is Code.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self._join()
        elif response.error is not Code.NONE:
            self._refused(response.error)
        else:
            self.member_id = response.member_id
            assignments = {}
            if response.leader == self.member_id:
                cluster = what_members_read(self.world.partitions, response.members)
                self._leads = (cluster, response.members)
                if not response.skip_assignment:
                    assignor = self._assignors[response.protocol_name or ""]
                    assignments = assign_members(assignor, cluster, response.members, self.member_id)
            self._ask(
                SyncGroupRequest(
                    group_id="g",
                    member_id=self.member_id,
                    generation_id=response.generation_id,
                    group_instance_id=self.instance,
                    protocol_name=response.protocol_name,
                    assignments=assignments,
                )
            )

    def _synced(self, request: Request, response: SyncGroupResponse) -> None:
        assert isinstance(request, SyncGroupRequest)
        if response.error is not Code.NONE:
            self._refused(response.error)
            return
        told = decode_assignment(response.assignment)
        if self._leads is not None and told.counts:
            self._leads = (Cluster({} if told.unsettled else told.counts), self._leads[1])
        assigned = told.partitions
        self.generation = request.generation_id
        for tp in assigned:
            self.world.own(self.generation, tp, self.instance or self.member_id)
        revoked = self.owned.keys() - set(assigned)
        self.owned = {tp: self.owned.get(tp, self.world.coordinator.committed(tp)) for tp in assigned}
        if self._cooperative and revoked:
            self._join()

    def _refused(self, error: Code) -> None:
        match error:
            case Code.UNKNOWN_MEMBER_ID:
                self._forget()
                self._join()
            case Code.ILLEGAL_GENERATION:
                self._lose()
                self._join()
            case Code.REBALANCE_IN_PROGRESS:
                self._join()
            case Code.FENCED_INSTANCE_ID:
                self.crash()  # a late request of its former life has replaced it
                self.world.at(1_000, self.start)
            case _:
                self._asked = None
