"""How fast does librdkafka consume from a gateway and produce to it, beside `log.read` and, on request, a real Kafka?

    python benchmarks/gateway.py
    python benchmarks/gateway.py --kafka       # with a broker, which is downloaded once

Records have 100 bytes and go to 4 partitions.  The gateway is a process.  `first` reads from the storage: it decodes
segments and encodes batches.  `again` finds the batches of the first in the gateway's memory, as far as 128 MiB go.
`consume(10_000)` of confluent-kafka makes a Python object of each record, in the process of the benchmark.  The seconds
of CPU are those of the gateway for a million records.

It then produces the records again, in batches of up to 1 MB and of 16 KB, and of 2 KB to 32 partitions, and waits for
the answers with acks=all.  `tail` consumes some of them then, which the gateway has in memory.  `JSON` are records of
about 100 bytes with five fields: to a topic without a schema and to one with columns, in turn.

By hand: the gateway decodes a record in 0.1 us and encodes it in 0.3 to 1 us, so it gives a million records in 1 to 2 s
of CPU; librdkafka and Python take 1 to 2 us a record.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import common

import spark_log
from benchmarks.beside_kafka.machine import cpu_seconds
from simulation.harness import kafka
from spark_log import NewTopic

ROOT = Path(__file__).parent.parent
PARTITIONS = 4
BYTES = 100
ROWS = 1_000_000
TOPIC = "orders"
BATCHES = {"1 MB batches": (1_000_000, PARTITIONS), "16 KB batches": (16_384, PARTITIONS), "2 KB batches": (2_048, 32)}
"""Bytes of a batch, and partitions."""
TAIL_SHARE = 2
"""The gateway's memory has this part of the records for certain, with what it takes beside them."""


class Timed(NamedTuple):
    """One run of a client."""

    seconds: float
    cpu: float
    """Seconds of the server."""


def main() -> None:
    given = arguments()
    values = [os.urandom(BYTES) for _ in range(1000)]
    with common.folder() as url, spark_log.connect(url, durability="os") as log:
        log.create_topic(NewTopic(TOPIC, PARTITIONS))
        for start in range(0, given.rows, 100_000):
            rows = range(start, min(start + 100_000, given.rows))
            log.append(TOPIC, [{"value": values[n % 1000], "partition": n % PARTITIONS} for n in rows])
        figures = {"log.read": statistics.median(common.clock(lambda: log.read(TOPIC)) for _ in range(given.rounds))}
        report("log.read", given.rows, figures["log.read"])
        for name, runs in of_gateway(url, given.rows, given.rounds).items():
            figures[name] = report(f"gateway, {name}", given.rows, *medians(runs))
        with gateway(url) as server:
            for name, (size, partitions) in BATCHES.items():
                log.create_topic(NewTopic(f"produced-{size}", partitions))
                runs = [
                    produce(*server, f"produced-{size}", values, given.rows, size, partitions)
                    for _ in range(given.rounds)
                ]
                figures[f"produce {name}"] = report(f"gateway, {name}", given.rows, *medians(runs))
        figures |= of_columns(log, url, given.rows, given.rounds)
        figures["tail"] = of_tail(log, url, values, given.rows // TAIL_SHARE, given.rounds) * TAIL_SHARE
    if given.kafka:
        for name, runs in of_kafka(values, given.rows, given.rounds).items():
            figures[f"kafka {name}"] = report(f"Kafka, {name}", given.rows, *medians(runs))
    common.report("gateway", rows=given.rows, **{name: given.rows / seconds for name, seconds in figures.items()})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"records ({ROWS:,})")
    parser.add_argument("--rounds", type=int, default=3, help="of each that count (3)")
    parser.add_argument("--kafka", action="store_true", help="consume from a real broker, too")
    return parser.parse_args()


def of_gateway(url: str, rows: int, rounds: int) -> dict[str, list[Timed]]:
    """Each round has a new gateway, which has read nothing."""
    runs: dict[str, list[Timed]] = {"first": [], "again": []}
    for _ in range(rounds):
        with gateway(url) as (address, pid):
            for name in runs:
                runs[name].append(consume(address, pid, rows))
    return runs


def of_columns(log: spark_log.Log, url: str, rows: int, rounds: int) -> dict[str, float]:
    """Seconds for the same JSON, as bytes and as columns."""
    values = [
        b'{"id": %d, "amount": %d.25, "country": "NZ", "at": "2026-01-31T10:00:00.123456Z", "sku": "sku-%04d"}'
        % (n, n, n)
        for n in range(1000)
    ]
    schemas = {
        "JSON": None,
        "JSON into columns": "id BIGINT, amount DECIMAL(10,2), country STRING, at TIMESTAMP, sku STRING",
    }
    runs: dict[str, list[Timed]] = {name: [] for name in schemas}
    with gateway(url) as server:
        for number, schema in enumerate(schemas.values()):
            log.create_topic(NewTopic(f"json-{number}", PARTITIONS, schema=schema))
        for _ in range(rounds):
            for number, name in enumerate(schemas):
                runs[name].append(produce(*server, f"json-{number}", values, rows, 1_000_000))
    return {f"produce {name}": report(f"gateway, {name}", rows, *medians(each)) for name, each in runs.items()}


def of_tail(log: spark_log.Log, url: str, values: list[bytes], rows: int, rounds: int) -> float:
    """Seconds, each round of a new gateway."""
    runs = []
    for number in range(rounds):
        log.create_topic(NewTopic(f"tail-{number}", PARTITIONS))
        with gateway(url) as server:
            produce(*server, f"tail-{number}", values, rows, 16_384)
            runs.append(consume(*server, rows, f"tail-{number}"))
    return report("gateway, tail", rows, *medians(runs))


@contextmanager
def gateway(url: str) -> Iterator[tuple[str, int]]:
    """Address and process id."""
    command = [sys.executable, "-m", "spark_log.cli", "-u", url, "gateway", "--listen", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1], process.pid
        finally:
            process.terminate()


def of_kafka(values: list[bytes], rows: int, rounds: int) -> dict[str, list[Timed]]:
    with kafka.broker(ROOT / ".pylog" / "kafka", 29_492, {"num.partitions": str(PARTITIONS)}) as broker:
        server = broker.address, broker.pids[0]
        produce(*server, TOPIC, values, rows, 1 << 20)
        runs = {"consume": [consume(*server, rows) for _ in range(rounds)]}
        for name, (size, _) in BATCHES.items():
            runs[name] = [produce(*server, f"produced-{size}", values, rows, size) for _ in range(rounds)]
        return runs


def produce(
    address: str, pid: int, topic: str, values: list[bytes], rows: int, size: int, partitions: int = PARTITIONS
) -> Timed:
    """All records, until the last answer."""
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "linger.ms": 20, "batch.size": size, "acks": "all"}
    )
    cpu, began = cpu_seconds([pid]), time.perf_counter()
    for n in range(rows):
        while True:
            try:
                producer.produce(topic, values[n % 1000], partition=n % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return Timed(time.perf_counter() - began, cpu_seconds([pid]) - cpu)


def consume(address: str, pid: int, rows: int, topic: str = TOPIC) -> Timed:
    """All records, from the first message to the last."""
    import confluent_kafka

    settings = {"bootstrap.servers": address, "group.id": f"bench-{random.random()}", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    cpu, found = cpu_seconds([pid]), 0
    began = time.perf_counter()
    while found < rows:
        messages = consumer.consume(10_000, 0.2)
        assert all(message.error() is None for message in messages)
        found += len(messages)
    seconds = time.perf_counter() - began
    consumer.close()
    assert found == rows
    return Timed(seconds, cpu_seconds([pid]) - cpu)


def medians(runs: list[Timed]) -> tuple[float, float]:
    return statistics.median(run.seconds for run in runs), statistics.median(run.cpu for run in runs)


def report(name: str, rows: int, seconds: float, cpu: float | None = None) -> float:
    text = "" if cpu is None else f"   {cpu * 1e6 / rows:5.2f} s of CPU a million"
    print(f"{name:26} {rows / seconds:12,.0f} records/s{text}")
    return seconds


if __name__ == "__main__":
    main()
