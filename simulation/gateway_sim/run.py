"""Run one seed from its first step to the verdict.

order   the batches of a producer are in the log once and in order; in a topic that was created again from one that had
        no answer on
acked   a batch that is acknowledged is in the log, at the offset of its answer
fatal   the first batch without an answer is never out of order, at which clients stop
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

from simulation.gateway_sim.mutations import MUTATIONS
from simulation.log_sim.blocking import SimulatedProcess, blocking, format_file
from simulation.log_sim.memoized_functions import MemoizedFunctions
from simulation.log_sim.mirrored import opened
from simulation.log_sim.restored import run_for, run_until
from simulation.log_sim.run import SAME_ORIGIN
from simulation.log_sim.world import FaultRates, World
from simulation.mutation import mutated, patched
from simulation.verdict import Result, Violation, violation_of
from spark_log.client.log import Log
from spark_log.errors import SparkLogError
from spark_log.gateway.error_codes import NONE, OUT_OF_ORDER_SEQUENCE_NUMBER
from spark_log.gateway.produced_batches import Produced
from spark_log.gateway.rounds import NO_OUTCOME, RoundWriter, Waiting
from spark_log.journal.store_operations import Sleep, Steps
from spark_log.metadata import records as r
from spark_log.metadata import replay
from spark_log.metadata.commits.kafka_producers import BATCHES_KEPT, producer_id
from spark_log.metadata.state import State
from spark_log.model import ACKS_ALL, NewTopic
from spark_log.store.object_names import FORMAT_KEY, LOG, META

TOPIC, PARTITIONS, GATEWAYS, CLIENTS = "t", 2, 2, 3
AGE_MS = 600
"""Clocks are wrong by up to a tenth of this."""
USED_MS, CALM_MS = (4000, 16_000), 60_000
ANSWER_MS = (300, 2000)
"""How long a client waits for an answer."""
TIMEOUT_MS = 1000
RECREATED_MS = (700, 3000)
RESTARTED = 0.3
"""Probability."""


class Answer(NamedTuple):
    """The answer of a gateway to a batch."""

    sequence: int
    code: int
    offset: int


@dataclass(eq=False)
class Client:
    """A producer that writes one partition: batches of one record, whose value is the sequence."""

    partition: int
    producer: int = -1
    acked: int = 0
    """The first sequence without an answer."""
    end: int = 0
    """The first sequence that was never sent."""
    connection: int = 0
    """Its number: an answer on an earlier one is not read, and its requests are dropped."""
    answers: list[Answer] = field(default_factory=list)


class Sent(NamedTuple):
    """A batch on a connection."""

    client: Client
    connection: int
    sequence: int

    @property
    def is_open(self) -> bool:
        return self.connection == self.client.connection


class Watcher:
    """Sees every change of the store."""

    def __init__(self, memoized: MemoizedFunctions) -> None:
        self.seen = Counter[str]()
        self.state = memoized.state_in(None, "")
        self.last: dict[tuple[int, int], tuple[str, int]] = {}
        """The topic id and the sequence of the last batch, by producer and partition."""
        self.offsets = defaultdict[tuple[int, int], set[int]](set)
        """By producer and sequence."""
        self._memoized = memoized

    def written(self, key: str, content: Any, decided: State | None, now: int) -> None:
        if not key.startswith(LOG) or int(key.removeprefix(LOG)[:20]) != self.state.version + 1:
            return
        batch = self._memoized.decode_batch(content, key)
        if replay.is_in_line(self.state, batch):
            state = replay.next_version(self.state, batch.time)
            for record in batch.records:
                if isinstance(record, r.CommitRecord):
                    self._check(record, state)
                state = replay.replay_records(state, [record])
        self.state = self._memoized.replay(self.state, batch)

    def _check(self, commit: r.CommitRecord, before: State) -> None:
        for part in commit.kafka_batches:
            end = before.partitions[part.topic_id, part.partition].end
            for one in part.batches:
                topic_id, last = self.last.get((one.producer, part.partition), (part.topic_id, -1))
                if one.sequence != last + 1 and (topic_id == part.topic_id or one.sequence > last):
                    raise Violation(f"order: producer {one.producer} writes {one.sequence} after {last}")
                self.seen["begun again"] += one.sequence != last + 1
                self.last[one.producer, part.partition] = part.topic_id, one.sequence
                self.offsets[one.producer, one.sequence].add(end + one.at)

    def deleted(self, key: str, now: int) -> None:
        """Nothing that is needed is deleted in this time."""


class GatewaySimulation:
    """The state that actors share.  The seed decides every draw."""

    def __init__(self, seed: int, *, transcript: bool = False) -> None:
        self.rng = random.Random(seed)
        self.memoized = MemoizedFunctions()
        self.oracle = Watcher(self.memoized)
        rates = replace(FaultRates.draw(self.rng, AGE_MS), astray=0.0)
        self.world = World(self.rng, rates, self.oracle, transcript=transcript)
        self.world.store.files[META][FORMAT_KEY] = format_file()
        self.clients = [Client(n % PARTITIONS) for n in range(CLIENTS)]
        self.requests: list[list[Sent]] = [[] for _ in range(GATEWAYS)]
        """Requests that a gateway has not read."""
        self.is_ending = False
        self.world.alone(blocking(self.world, lambda process: _create(opened(self, process))))


def simulate(seed: int, mutation: str = "", *, transcript: bool = False) -> Result:
    """Run a seed, without one of the rules if a mutation is named."""
    with patched((SAME_ORIGIN,)):
        sim = GatewaySimulation(seed, transcript=transcript)
        with patched(sim.memoized.patches()), mutated(MUTATIONS, mutation):
            violation = violation_of(partial(_simulate, sim))
            sim.world.close()
    counts = sim.oracle.seen + Counter(steps=sim.world.events, versions=sim.oracle.state.version)
    return Result(seed, violation, counts, sim.world.transcript())


def _simulate(sim: GatewaySimulation) -> None:
    start = sim.world.start
    for number in range(GATEWAYS):
        start(f"gateway {'xy'[number]}", _process(sim, partial(_serve, sim, number)), counts=False, leaves_zombies=True)
    for number, client in enumerate(sim.clients):
        start(f"client {'abc'[number]}", partial(_produce, sim, client), counts=False)
    start("operator", _process(sim, partial(_recreate, sim)), counts=False)
    run_for(sim, sim.rng.choice(USED_MS))
    sim.world.end_faults()
    sim.world.end_all(but=("gateway ", "client "))
    sim.is_ending = True
    start("last", _process(sim, partial(_await_clients, sim)), counts=True)
    run_until(sim, 2 * CALM_MS, "a process is stuck")


def _process(sim: GatewaySimulation, use: Callable[[Log, SimulatedProcess], None]) -> Callable[[], Steps[None]]:
    """A process that begins again after errors of the storage."""

    def run(process: SimulatedProcess) -> None:
        while True:
            try:
                return use(opened(sim, process), process)
            except SparkLogError as error:
                if not (error.maybe_applied or error.retriable):
                    raise
            process.sleep_ms(10)

    return partial(blocking, sim.world, run)


# ---------------------------------------------------------------------------------------------------------- the actors


def _produce(sim: GatewaySimulation, client: Client) -> Steps[None]:
    """One connection after the other.  Each begins with all batches that have no answer, unless the client has ended
    meanwhile, and is a new producer."""
    while True:
        if client.producer < 0 or (not sim.is_ending and sim.rng.random() < RESTARTED):
            sim.oracle.seen["producers"] += 1
            client.producer = producer_id(sim.world.now_ms(), sim.oracle.seen["producers"])
            client.acked = client.end = 0
        client.connection, client.answers, sent = client.connection + 1, [], client.acked
        requests, until_ms = sim.rng.choice(sim.requests), 0.0
        while not until_ms or sent == client.acked or sim.world.monotonic_ms() < until_ms:
            if sent == client.acked:
                until_ms = sim.world.monotonic_ms() + sim.rng.choice(ANSWER_MS)
            most = client.end if sim.is_ending else client.acked + BATCHES_KEPT
            for sequence in range(sent, min(most, sent + sim.rng.choice((1, 1, 5)))):
                requests.append(Sent(client, client.connection, sequence))
                sent = sequence + 1
            client.end = max(client.end, sent)
            yield Sleep(sim.rng.choice((1, 5, 30)))
            answers, client.answers = client.answers, []
            if not all(_is_written(sim, client, answer) for answer in answers):
                break
        sim.oracle.seen["connections"] += 1
        yield Sleep(sim.rng.choice((1, 50)))


def _is_written(sim: GatewaySimulation, client: Client, answer: Answer) -> bool:
    if answer.code == OUT_OF_ORDER_SEQUENCE_NUMBER and answer.sequence == client.acked:
        raise Violation(f"fatal: {answer} to producer {client.producer}, which has answers to all before")
    if answer.code != NONE:
        return False
    if answer.offset not in sim.oracle.offsets[client.producer, answer.sequence]:
        raise Violation(f"acked: {answer} to producer {client.producer}")
    client.acked = answer.sequence + 1
    sim.oracle.seen["acked"] += 1
    return True


def _serve(sim: GatewaySimulation, number: int, log: Log, process: SimulatedProcess) -> None:
    writer = RoundWriter(log.journal)
    while not ((actor := sim.world.current) and actor.zombie):
        taken, sim.requests[number] = [one for one in sim.requests[number] if one.is_open], []
        if not taken:
            process.sleep_ms(5)
            continue
        state = log.journal.refresh() if sim.rng.random() < 0.2 else log.journal.state
        round_ = [_waiting(one, state.names.get(TOPIC, "")) for one in taken]
        writer.write(round_)
        for one, waiting in zip(taken, round_, strict=True):
            outcome = (waiting.repeated or waiting).outcome or NO_OUTCOME
            if one.is_open:
                one.client.answers.append(Answer(one.sequence, outcome.code, outcome.offset))


def _waiting(one: Sent, topic_id: str) -> Waiting:
    value = b"%d" % one.sequence
    body = b"\0\0\0\1" + bytes([2 * len(value)]) + value + b"\0"
    record = memoryview(bytes([2 * len(body)]) + body)
    batch = Produced(0, 1, one.client.producer, 0, one.sequence, 1, record)
    return Waiting(TOPIC, topic_id, one.client.partition, batch, ACKS_ALL, TIMEOUT_MS, cast(Any, None))


def _recreate(sim: GatewaySimulation, log: Log, process: SimulatedProcess) -> None:
    while True:
        if TOPIC not in log.journal.refresh().names:
            _create(log)
        process.sleep_ms(sim.rng.choice(RECREATED_MS))
        log.admin.delete_topics([TOPIC])
        sim.oracle.seen["deleted"] += 1


def _create(log: Log) -> None:
    log.admin.create_topics([NewTopic(TOPIC, PARTITIONS)])


# ------------------------------------------------------------------------------------------------------------- the end


def _await_clients(sim: GatewaySimulation, log: Log, process: SimulatedProcess) -> None:
    """Each batch gets its answer.  The records are those of the batches."""
    until_ms = process.monotonic_ms() + CALM_MS
    while any(client.acked < client.end for client in sim.clients):
        if TOPIC not in log.journal.refresh().names:  # the operator's last request has arrived
            _create(log)
        if process.monotonic_ms() > until_ms:
            raise Violation(f"progress: not all batches have an answer: {sim.clients}")
        process.sleep_ms(100)
    topic_id = log.journal.refresh().names.get(TOPIC)
    for client in sim.clients:
        of_topic, last = sim.oracle.last.get((client.producer, client.partition), ("", -1))
        if of_topic == topic_id and b"%d" % last not in log.read(TOPIC, client.partition)["value"].to_pylist():
            raise Violation(f"order: {TOPIC}-{client.partition} has no record of {client} with {last}")
