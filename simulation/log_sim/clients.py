"""Actors that use the product as applications do: `Log` with producers, transactions, consumers, scans, retention and
maintenance.

They run only in seeds that encode real segments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from simulation.log_sim.blocking import SimulatedProcess, SimulatedStore, blocking
from simulation.log_sim.content import Row
from simulation.log_sim.setting import Simulation
from simulation.log_sim.threads import SimulatedThreads
from simulation.verdict import Violation
from spark_log.client.log import Log
from spark_log.client.producer.futures import RecordFuture
from spark_log.errors import (
    ClockSkewed,
    DataLoss,
    IllegalGeneration,
    InvalidTimestamp,
    ProducerFenced,
    RequestTimedOut,
    SparkLogError,
    TransactionTimedOut,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.journal.journal import Journal
from spark_log.journal.store_operations import Steps
from spark_log.maintenance.maintain import Maintainer
from spark_log.metadata.state import TopicKey
from spark_log.model import TopicPartition

REFUSED = (
    ClockSkewed,
    IllegalGeneration,
    InvalidTimestamp,
    ProducerFenced,
    TransactionTimedOut,
    UnknownTopicOrPartition,
    UploadFenced,
)
"""Errors that a client may certainly get because of what other actors do."""


@dataclass(frozen=True, slots=True)
class _Client:
    """One client process."""

    sim: Simulation
    log: Log
    clock: SimulatedProcess
    maintainer: Maintainer

    def pause(self) -> None:
        if self.sim.rng.random() < self.sim.p_pause:
            self.clock.sleep_ms(self.sim.rng.choice(self.sim.pauses))

    def rows(self) -> list[Row]:
        """Some rows with values that no other client writes."""
        payload, now = self.sim.fresh("c"), self.clock.now_ms()
        return [Row(payload, number, now) for number in range(self.sim.rng.randint(1, 4))]


def client(sim: Simulation, duties: Iterable[Callable[[_Client], None]]) -> Steps[None]:
    """A process that performs some of the duties below, in any order."""
    chosen = list(duties)

    def use(process: SimulatedProcess) -> None:
        journal = Journal.open(
            SimulatedStore(process),
            create=False,
            clock=process,
            rng=sim.rng,
            limits=sim.constants.limits,
            threads=SimulatedThreads(process),
        )
        log = Log(journal)
        me = _Client(sim, log, process, Maintainer(log, saves_memory=True))
        for _ in range(sim.rng.randint(6, 15)):
            sim.rng.choice(chosen)(me)
            me.pause()

    return blocking(sim.world, use)


def append(me: _Client) -> None:
    """`log.append`, plain or under an application's identity."""
    rows = me.rows()
    identity: dict[str, Any] = {}
    if me.sim.rng.random() < 0.3:
        version = me.sim.progress["app"] = me.sim.progress.get("app", 0) + 1
        identity = {"txn_app_id": f"app{version}", "txn_version": 1}
    _commit(me, rows, lambda: me.log.append("t0", _table(me, rows), **identity))


def transact(me: _Client) -> None:
    """`log.transaction`: records and positions, an abort, or a timeout."""
    rows, aborts = me.rows(), me.sim.rng.random() < 0.2

    def run() -> Mapping[TopicPartition, range]:
        with me.log.transaction("client", transaction_timeout_ms=me.sim.rng.choice((200, 5000))) as transaction:
            transaction.append("t0", _table(me, rows))
            me.pause()
            if aborts:
                raise UploadFenced("given up")
        return transaction.offsets

    _commit(me, rows, run)


def consume(me: _Client) -> None:
    """`log.consumer` in a group: take the group, read on, commit."""
    try:
        with me.log.consumer("t0", group_id="clients", auto_offset_reset="earliest") as consumer:
            for _ in range(me.sim.rng.randint(1, 3)):
                for tp, records in consumer.poll(max_records=20).items():
                    rows = [Row(*json.loads(record.value or b"")) for record in records]
                    me.sim.oracle.check_read(_key(me, tp), records[0].offset, rows)
                    me.sim.oracle.seen["consumed"] += len(rows)
                me.pause()
    except REFUSED:
        me.sim.oracle.seen["consumers replaced"] += 1


def scan(me: _Client) -> None:
    """`log.read`: plan and fetch one version completely."""
    try:
        table = me.log.read("t0", columns=["partition", "offset", "value"])
    except DataLoss:  # the partition was trimmed, or its indexes were replaced, during planning
        me.sim.oracle.seen["scans again"] += 1
        return
    found: dict[int, list[tuple[int, Row]]] = {}
    for number, offset, value in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
        found.setdefault(number, []).append((offset, Row(*json.loads(value))))
    for number, read in found.items():
        start = read[0][0]
        assert [offset for offset, _ in read] == list(range(start, start + len(read))), "offsets have no gaps"
        me.sim.oracle.check_read(_key(me, TopicPartition("t0", number)), start, [row for _, row in read])
    me.sim.oracle.seen["scanned"] += table.num_rows


def follow(me: _Client) -> None:
    """Act as a standby coordinator: refresh the view and run maintenance.

    A refresh may end before the deletion of objects that were deleted while it ran.  The next refresh must not.
    """
    journal, oracle, before = me.log.journal, me.sim.oracle, 0
    for _ in range(me.sim.rng.randint(2, 6)):
        begun = oracle.state.version
        journal.run_maintenance()
        if journal.state.version < before:
            raise Violation(
                f"fresh: a process that looks is at {journal.state.version}, {before} was there at its last look"
            )
        before = begun
        me.pause()


def commit_from_threads(me: _Client) -> None:
    """Several threads on one journal: their changes share puts, and one thread runs maintenance."""
    failed: list[SparkLogError] = []

    def work() -> None:
        try:
            for _ in range(me.sim.rng.randint(1, 3)):
                me.sim.rng.choice((append, append, transact, scan, follow))(me)
        except SparkLogError as error:
            failed.append(error)

    threads = [me.clock.start(work) for _ in range(me.sim.rng.randint(2, 4))]
    for thread in threads:
        thread.join()
    me.sim.oracle.seen["threads"] += len(threads)
    for error in failed:
        raise error


def produce(me: _Client) -> None:
    """`log.producer`: single records, batched and written by the producer's threads, in order within each partition."""
    rng, sent = me.sim.rng, list[tuple[Row, RecordFuture]]()
    partitions = me.log.journal.refresh().topics["id0"].partitions
    with me.log.producer(
        linger_ms=rng.choice((0, 5, 200)),
        buffer_memory=rng.choice((100, 300, 10_000)),
        batch_size=100,
        max_block_ms=rng.choice((200, 5000)),
        delivery_timeout_ms=rng.choice((500, 10_000)),
    ) as producer:
        for _ in range(rng.randint(1, 12)):
            row, number = me.rows()[0], rng.randrange(partitions)
            try:
                future = producer.send("t0", json.dumps(row).encode(), partition=number, timestamp_ms=row.time_ms)
            except RequestTimedOut:
                me.sim.oracle.refuse_rows([row])
            else:
                sent.append((row, future))
            me.pause()
    places: dict[TopicPartition, int] = {}
    for row, future in sent:
        for tp, span in _commit(me, [row], lambda future=future: _place(future)).items():  # type: ignore[misc]
            if span.start <= places.get(tp, -1):
                raise Violation(f"order: {row.payload} is at {span.start} of {tp}, after what was sent before it")
            places[tp] = span.start
            me.sim.oracle.seen["produced"] += 1


def _place(future: RecordFuture) -> Mapping[TopicPartition, range]:
    """Where a record is; nothing if its offset was forgotten before the answer."""
    at = future.result()
    return {TopicPartition(at.topic, at.partition): range(at.offset, at.offset + 1)} if at.offset >= 0 else {}


def maintain(me: _Client) -> None:
    """A round of `pylog maintain`, often not the first of its process."""
    me.maintainer.round_or_raise()


DUTIES = (append, append, append, transact, consume, scan, follow, commit_from_threads, produce)


def _commit(
    me: _Client, rows: list[Row], run: Callable[[], Mapping[TopicPartition, range]]
) -> Mapping[TopicPartition, range]:
    """Commit rows and check the result against the log.  Returns the offsets of the rows if they are known."""
    oracle = me.sim.oracle
    try:
        offsets = run()
    except SparkLogError as error:
        if not error.maybe_applied:
            oracle.refuse_rows(rows)
        if not error.maybe_applied and not isinstance(error, REFUSED) and not error.retriable:
            raise
        return {}
    by_key = {_key(me, tp): span for tp, span in offsets.items()}
    oracle.ack_rows(rows, by_key)
    return offsets


def _table(me: _Client, rows: list[Row]) -> pa.Table:
    partitions = me.log.journal.refresh().topics["id0"].partitions
    return pa.table(
        {
            "value": [json.dumps(row).encode() for row in rows],
            "partition": pa.array([me.sim.rng.randrange(partitions) for _ in rows], pa.int32()),
            "timestamp": pa.array([1000 * row.time_ms for row in rows], pa.timestamp("us", "UTC")),
        }
    )


def _key(me: _Client, tp: TopicPartition) -> TopicKey:
    return me.log.journal.state.names[tp.topic], tp.partition


def user(sim: Simulation) -> Callable[[], Steps[None]]:
    """Append, transact, consume and scan."""
    return partial(client, sim, DUTIES)


def maintainer(sim: Simulation) -> Callable[[], Steps[None]]:
    """Only maintenance."""
    return partial(client, sim, (maintain,))
