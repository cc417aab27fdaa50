"""`pylog bench`: throughput and latency, like Kafka's kafka-producer-perf-test and kafka-consumer-perf-test.

Each call sends or returns records through the clients that programs use.
"""

from __future__ import annotations

import random
import string
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from spark_log.cli.common.base import DURATION, Failed, Noun, create_option, pass_session, verb
from spark_log.cli.common.completion import complete_topics
from spark_log.cli.common.output import echo, emit_fields
from spark_log.cli.common.session import CommandSession
from spark_log.errors import InvalidRequest
from spark_log.text import duration_text

if TYPE_CHECKING:
    from spark_log.client.consumer.consumer import Consumer
    from spark_log.client.producer.futures import RecordFuture
    from spark_log.client.producer.producer import Producer

PAYLOADS = 20_000
"""Number of random payloads: more than fit into a batch, so that compression cannot exploit repetition."""
SAMPLES = 100_000
"""Approximate number of latency samples: each takes a callback."""
CHUNK = 1000
"""Futures are checked in chunks of this size."""
PERCENTILES = (50, 95, 99, 99.9)
REPORT_EVERY_S = 5.0
SLEEP_MIN_S = 0.002
"""Shorter sleeps take longer than requested."""


@click.group(cls=Noun)
def bench() -> None:
    """Measure throughput and latency."""


num_records = partial(
    click.option, "-n", "--num-records", type=click.IntRange(min=1), default=1_000_000, show_default=True
)

# ---------------------------------------------------------------------------------------------------------------- produce


@verb(bench)
@click.argument("topic", shell_complete=complete_topics)
@num_records(help="The number of records.")
@click.option(
    "--record-size", type=click.IntRange(min=0), help="Bytes of each value, which is random letters. [default: 100]"
)
@click.option(
    "--payload-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Take the values from the lines of this file instead.",
)
@click.option(
    "--throughput", type=click.FloatRange(min=0, min_open=True), help="The maximum number of records a second."
)
@click.option(
    "--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True, help="The acks of the producer."
)
@click.option(
    "--linger-ms", type=click.IntRange(min=0), default=5, show_default=True, help="The linger_ms of the producer."
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=0),
    default=16_384,
    show_default=True,
    help="The batch_size of the producer.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "lz4", "none"]),
    default="zstd",
    show_default=True,
    help="The compression of the producer.",
)
@create_option
@pass_session
def produce(
    session: CommandSession,
    topic: str,
    create: bool,
    num_records: int,
    record_size: int | None,
    payload_file: str | None,
    throughput: float | None,
    acks: Literal["0", "1", "all"],
    linger_ms: int,
    batch_size: int,
    compression: Literal["zstd", "lz4", "none"],
) -> None:
    """Measure how fast records are sent, one by one, and acknowledged.

    A topic that does not exist is created.  A latency is the time from the call that sends a record to its
    acknowledgement.

    \b
    Example:
      pylog bench produce orders -n 1000000 --record-size 100 --throughput 50000
    """
    if record_size is not None and payload_file is not None:
        raise click.UsageError("give either --record-size or --payload-file")
    values = payloads(100 if record_size is None else record_size) if payload_file is None else lines_of(payload_file)
    log = session.connect(create=create)
    with log.producer(acks=acks, linger_ms=linger_ms, batch_size=batch_size, compression_type=compression) as producer:
        producer.partitions_for(topic)  # create the topic before the clock starts
        run = _Sending(producer, topic, values, num_records)
        run.go(throughput)
    emit_fields(
        session, {"topic": topic, **figures(num_records, run.bytes, run.seconds), **latencies_ms(run.latencies)}
    )


def payloads(size: int) -> list[bytes]:
    """Values of random letters, the same in every run."""
    rng = random.Random(1)
    return ["".join(rng.choices(string.ascii_letters, k=size)).encode() for _ in range(PAYLOADS if size else 1)]


def lines_of(path: str) -> list[bytes]:
    """Raises InvalidRequest if the file is empty."""
    lines = Path(path).read_bytes().splitlines()
    if not lines:
        raise InvalidRequest(f"--payload-file: {path} is empty; give a file with a value in each line")
    return lines


class _Sending:
    """One run of `bench produce`."""

    def __init__(self, producer: Producer, topic: str, values: Sequence[bytes], count: int) -> None:
        self._producer, self._topic, self._values, self._count = producer, topic, values, count
        self._every = max(1, count // SAMPLES)
        self.latencies: list[float] = []
        """In seconds."""
        self.bytes = 0
        self.seconds = 0.0

    def go(self, throughput: float | None) -> None:
        """Send all records and wait for them.  Raises Failed if some were not acknowledged."""
        begun = time.perf_counter()
        reported = begun
        waiting: deque[list[RecordFuture]] = deque()
        for first in range(0, self._count, CHUNK):
            numbers = range(first, min(first + CHUNK, self._count))
            waiting.append([self._send(number, begun, throughput) for number in numbers])
            while waiting and waiting[0][-1].done():
                _check(waiting.popleft())
            if (now := time.perf_counter()) - reported >= REPORT_EVERY_S:
                reported = now
                echo(
                    f"{numbers.stop:,} of {self._count:,} records sent, {numbers.stop / (now - begun):,.0f}/s", err=True
                )
        self._producer.flush()
        self.seconds = time.perf_counter() - begun
        for futures in waiting:
            _check(futures)

    def _send(self, number: int, begun: float, throughput: float | None) -> RecordFuture:
        value = self._values[number % len(self._values)]
        self.bytes += len(value)
        if throughput is not None:
            early = begun + number / throughput - time.perf_counter()
            if early > SLEEP_MIN_S:
                time.sleep(early)
        if number % self._every:
            return self._producer.send(self._topic, value)
        sent = time.perf_counter()
        future = self._producer.send(self._topic, value)
        future.add_done_callback(lambda _: self.latencies.append(time.perf_counter() - sent))
        return future


def _check(futures: Sequence[RecordFuture]) -> None:
    for future in futures:
        if (error := future.exception()) is not None:
            raise Failed(f"a record was not acknowledged: {error}") from error


# -------------------------------------------------------------------------------------------------------------- consume


@verb(bench)
@click.argument("topic", shell_complete=complete_topics)
@num_records(help="Stop after this number of records.")
@click.option("-g", "--group", help="Read as a member of this group, without committing.")
@click.option(
    "--from-latest", is_flag=True, help="Read records that are sent from now on, and measure their latencies."
)
@click.option("--arrow", is_flag=True, help="Read Arrow tables instead of an object for each record.")
@click.option(
    "--max-poll-records",
    type=click.IntRange(min=1),
    help="The maximum number of records of a poll. [default: 500, or no limit with --arrow]",
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=DURATION,
    default="10s",
    show_default=True,
    help="Stop when no record arrives for this long.",
)
@pass_session
def consume(
    session: CommandSession,
    topic: str,
    num_records: int,
    group: str | None,
    from_latest: bool,
    arrow: bool,
    max_poll_records: int | None,
    timeout_ms: int,
) -> None:
    """Measure how fast records are read, from the first poll that returns some.

    A latency is the time since a record's timestamp, so it is only right if the clocks of the machines agree.

    \b
    Example:
      pylog bench consume orders -n 1000000
    """
    start = "latest" if from_latest else "earliest"
    log = session.connect()
    settings: dict[str, Any] = {"group_id": group, "auto_offset_reset": start, "enable_auto_commit": False}
    with log.consumer(topic, **settings) as consumer:
        receive = _tables if arrow else _objects
        polls = receive(consumer, timeout_ms, max_poll_records)
        run = _Receiving(num_records, with_latencies=from_latest)
        run.go(polls)
    if not run.records:
        raise Failed(f"no record of {topic} arrived within {duration_text(timeout_ms)}")
    fields: dict[str, Any] = {"topic": topic, **figures(run.records, run.bytes, run.seconds), "polls": run.polls}
    emit_fields(session, fields | (latencies_ms(run.latencies) if from_latest else {}))


class _Polled:
    """The result of one poll."""

    def __init__(self, records: int, size: int, first_ms: int, last_ms: int) -> None:
        self.records, self.bytes = records, size
        self.stamps_ms = (first_ms, last_ms)
        """Timestamps of its first and its last record."""


def _objects(consumer: Consumer, timeout_ms: int, records_max: int | None) -> Iterator[_Polled]:
    """Poll records until a poll returns nothing."""
    while found := consumer.poll(timeout_ms, max_records=records_max):
        records = [record for of_partition in found.values() for record in of_partition]
        size = sum(len(record.key or b"") + len(record.value or b"") for record in records)
        yield _Polled(len(records), size, records[0].timestamp, records[-1].timestamp)


def _tables(consumer: Consumer, timeout_ms: int, records_max: int | None) -> Iterator[_Polled]:
    """Poll Arrow tables; counts the bytes of keys and values in Arrow."""
    while (table := consumer.poll_arrow(timeout_ms, max_records=records_max)).num_rows:
        stamps = table.column("timestamp")
        first, last = (int(stamps[row].value) // 1000 for row in (0, -1))
        yield _Polled(table.num_rows, table.column("key").nbytes + table.column("value").nbytes, first, last)


class _Receiving:
    """One run of `bench consume`."""

    def __init__(self, count: int, with_latencies: bool) -> None:
        self._count, self._with_latencies = count, with_latencies
        self.records = self.bytes = self.polls = 0
        self.seconds = 0.0
        self.latencies: list[float] = []

    def go(self, polls: Iterator[_Polled]) -> None:
        """Take polls until there are enough records.  The clock starts after the first poll, which resolves the
        positions."""
        begun = last = time.perf_counter()
        first = 0
        for polled in polls:
            last = time.perf_counter()
            self.polls += 1
            self.records += polled.records
            self.bytes += polled.bytes
            if self.polls == 1:
                begun, first = last, polled.records
            if self._with_latencies:
                self.latencies += [time.time() - stamp / 1000 for stamp in polled.stamps_ms]
            if self.records >= self._count:
                break
        # The records of the first poll are not timed.
        self.seconds = (last - begun) * self.records / max(1, self.records - first)


# -------------------------------------------------------------------------------------------------------------- telling


def figures(records: int, size: int, seconds: float) -> dict[str, Any]:
    """The throughput of a run; rates are None if it took no time."""
    rate = records / seconds if seconds else None
    return {
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_second": None if rate is None else round(rate),
        "mb_per_second": None if rate is None else round(size / seconds / 1e6, 2),
    }


def latencies_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    """Average, percentiles and maximum."""
    ordered = sorted(seconds)
    found: dict[str, float | None] = {"latency_avg_ms": sum(ordered) / len(ordered) * 1000 if ordered else None}
    for percent in PERCENTILES:
        found[f"latency_p{percent}_ms"] = percentile(ordered, percent) * 1000 if ordered else None
    found["latency_max_ms"] = ordered[-1] * 1000 if ordered else None
    return {name: None if value is None else round(value, 2) for name, value in found.items()}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value such that at least `percent` of the values are not above it."""
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]
