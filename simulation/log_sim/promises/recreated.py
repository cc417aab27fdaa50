"""A topic that is deleted and created again under its name, and readers that commit how far they have read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from simulation.log_sim.blocking import SimulatedProcess, SimulatedStore, blocking
from simulation.log_sim.clients import REFUSED
from simulation.log_sim.content import Row
from simulation.log_sim.promises.delivered import GROUP
from simulation.log_sim.setting import Simulation
from simulation.log_sim.threads import SimulatedThreads
from spark_log.client.log import Log
from spark_log.errors import SparkLogError, StorageUnavailable, TopicAlreadyExists
from spark_log.journal.journal import Journal
from spark_log.journal.store_operations import Steps
from spark_log.model import ConsumerRecord, NewTopic

TOPIC = "again"
EXPECTED = (*REFUSED, StorageUnavailable, TopicAlreadyExists)
PAUSES_MS = (5, 100, 1000)


def recreator(sim: Simulation) -> Steps[None]:
    """Delete and create the topic, write to it, and look for none of its readers."""

    def use(log: Log, process: SimulatedProcess) -> None:
        while True:
            if TOPIC in log.journal.refresh().names and sim.rng.random() < 0.3:
                log.admin.delete_topics([TOPIC])
                process.sleep_ms(sim.rng.choice((0, *PAUSES_MS)))
            if TOPIC not in log.journal.refresh().names:
                log.create_topic(NewTopic(TOPIC, 1))
            rows = [Row(sim.fresh("r"), 0, process.now_ms()) for _ in range(sim.rng.randint(1, 6))]
            log.append(TOPIC, [{"value": json.dumps(row).encode()} for row in rows])
            process.sleep_ms(sim.rng.choice(PAUSES_MS))

    return _process(sim, use)


def rereader(sim: Simulation) -> Steps[None]:
    """A consumer that commits what it has read some time later, by numbers or not."""

    def use(log: Log, process: SimulatedProcess) -> None:
        with log.consumer(TOPIC, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            for _ in range(sim.rng.randint(1, 6)):
                for tp, records in consumer.poll(max_records=sim.rng.choice((2, 20))).items():
                    _deliver(sim, records)
                    process.sleep_ms(sim.rng.choice(PAUSES_MS))
                    log.journal.refresh()  # as another thread of the process does
                    consumer.commit({tp: records[-1].offset + 1} if sim.rng.random() < 0.5 else None)
                    sim.oracle.seen["read again"] += len(records)
                process.sleep_ms(sim.rng.choice(PAUSES_MS))

    return _process(sim, use)


def _deliver(sim: Simulation, records: Sequence[ConsumerRecord]) -> None:
    for record in records:
        row = Row(*json.loads(record.value or b""))
        sim.oracle.delivered.note(sim.oracle.rows, record.partition, record.offset, row)


def _process(sim: Simulation, use: Callable[[Log, SimulatedProcess], None]) -> Steps[None]:
    """A process that does this again and again, whatever a client may get."""

    def run(process: SimulatedProcess) -> None:
        store, threads = SimulatedStore(process), SimulatedThreads(process)
        log = Log(Journal.open(store, create=False, clock=process, rng=sim.rng, threads=threads))
        while True:
            try:
                use(log, process)
            except SparkLogError as error:
                if not (error.maybe_applied or error.retriable or isinstance(error, EXPECTED)):
                    raise
                sim.oracle.seen["reads put off"] += 1
            process.sleep_ms(sim.rng.choice(PAUSES_MS))

    return blocking(sim.world, run)
