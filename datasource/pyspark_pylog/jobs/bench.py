"""Measures a log under the load of Spark: rates of writes and reads, and the latency of a stream.

    spark-submit jobs/bench.py --url s3://bucket/log --rows 10000000 --record-size 200 --partitions 8
    spark-submit jobs/bench.py --url s3://bucket/log --parts stream --rate 1000 --duration 60s

The parts are `write`, `read` and `stream`.  A round of `write` commits --rows rows; `read` then reads all of them in
each round.  `stream` sends records from the driver to a topic, from which a query copies them to another one.  A
latency is the time from before a record is sent until a consumer on the driver has it from the second topic.  The first
round, and the records before the query's first batch has ended, are not counted.

The job creates topics that begin with `pylog-bench-`, and deletes them at its end.  A job that is killed leaves them:
the next one names them.  It may run beside other users of the log, who notice it.

The last line of standard output is a summary in JSON.  Exit status: 0 done, 1 refused or failed, or records of the
stream did not arrive, 2 wrong usage.  See docs/performance.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_pylog.jobs.job_support import check_log, duration_ms, job_parser, location_of, progress, run_job
from pyspark_pylog.log.open_log import journal_of
from pyspark_pylog.registration import register
from spark_log.cli.commands.bench import figures, latencies_ms, percentile
from spark_log.client.log import Log
from spark_log.errors import SparkLogError
from spark_log.model import NewTopic

PARTS = ("write", "read", "stream")
PREFIX = "pylog-bench-"
FIRST_S = 180
"""For the first batch of a query, which starts its workers."""
LAST_S = 60
"""For the last records of a stream."""


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="separated by commas (%(default)s); read needs write")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a round of write (%(default)s)")
    parser.add_argument("--record-size", type=int, default=100, metavar="BYTES", help="random letters (%(default)s)")
    parser.add_argument("--partitions", type=int, default=4, help="of the topics (%(default)s)")
    parser.add_argument("--replication-factor", type=int, help="of the topics (default: that of the log)")
    parser.add_argument("--rounds", type=int, default=3, help="of write and of read, after one for warming up (3)")
    parser.add_argument("--rate", type=int, default=100, help="records a second of stream (%(default)s)")
    parser.add_argument("--duration", type=duration_ms, default="30s", help="of stream (%(default)s)")
    parser.add_argument("--trigger", metavar="INTERVAL", help="of the query, such as '1 second' (default: none)")
    parser.add_argument("--checkpoint", metavar="URL", help="of the query (default: a new folder of the driver)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    found = parser.parse_args(args)
    found.parts = found.parts.split(",")
    if unknown := [part for part in found.parts if part not in PARTS]:
        parser.error(f"--parts: {unknown[0]!r} is not one of {', '.join(PARTS)}")
    if "read" in found.parts and "write" not in found.parts:
        parser.error("--parts: read needs write, whose rows it reads")
    for name in ("rows", "record_size", "partitions", "rounds", "rate"):
        if getattr(found, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: give 1 or more")
    return found


# --------------------------------------------------------------------------------------------------------------- batches


def rows(spark: SparkSession, args: argparse.Namespace) -> DataFrame:
    """Records with keys of 8 bytes and values of random letters."""
    frame = spark.range(args.rows)
    key, value = F.lpad(F.conv(F.col("id"), 10, 36), 8, "0"), F.randstr(args.record_size)
    return frame.select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))


def measured(name: str, rounds: int, size: int, count: Callable[[], int]) -> dict[str, Any]:
    """Figures of the median round; the first one is not counted."""
    seconds = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        records = count()
        seconds.append(time.perf_counter() - began)
        progress(f"{name}, round {number} of {rounds}: {seconds[-1]:.2f} s")
    ordered = sorted(seconds[1:])
    found = figures(records, records * size, statistics.median(ordered))
    shown = {f"seconds_p{percent}": round(percentile(ordered, percent), 3) for percent in (50, 95, 99)}
    return found | shown | {"seconds_max": round(ordered[-1], 3)}


def write_rounds(spark: SparkSession, args: argparse.Namespace, topic: str) -> dict[str, Any]:
    """`make_seconds`: what making the rows takes of a round, without writing them."""
    frame = rows(spark, args)

    def write() -> int:
        frame.write.format("pylog").mode("append").option("topic", topic).options(**access(args)).save(args.url)
        return int(args.rows)

    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    made = time.perf_counter() - began
    return measured("write", args.rounds, args.record_size + 8, write) | {"make_seconds": round(made, 3)}


def read_rounds(spark: SparkSession, args: argparse.Namespace, topic: str) -> dict[str, Any]:
    """Keys and values of all records, which Spark counts with their bytes."""
    frame = spark.read.format("pylog").option("subscribe", topic).options(**access(args)).load(args.url)
    sums = frame.select(F.count("*"), F.sum(F.length("key") + F.length("value")))
    return measured("read", args.rounds, args.record_size + 8, lambda: int(sums.collect()[0][0]))


def access(args: argparse.Namespace) -> dict[str, str]:
    """The options of a read or write that open the log."""
    location = location_of(args)
    token = {} if location.token is None else {"token": location.token}
    return token | {f"storage.{key}": value for key, value in location.storage.items()}


# ---------------------------------------------------------------------------------------------------------------- stream


def copying(spark: SparkSession, args: argparse.Namespace, source: str, target: str) -> StreamingQuery:
    """A started query from a topic to another one."""
    stream = spark.readStream.format("pylog").option("subscribe", source).option("startingOffsets", "earliest")
    frame = stream.options(**access(args)).load(args.url).select("key", "value")
    writer = frame.writeStream.format("pylog").option("topic", target).options(**access(args))
    checkpoint = args.checkpoint or f"file://{tempfile.mkdtemp(prefix=PREFIX)}"
    writer = writer.option("checkpointLocation", f"{checkpoint}/{target}")
    if args.trigger:
        writer = writer.trigger(processingTime=args.trigger)
    return writer.start(args.url)


class Arrivals:
    """Reads what the query writes, on a thread.  Each value begins with its number and the time it was sent."""

    def __init__(self, log: Log, topic: str) -> None:
        self.latencies: dict[int, float] = {}
        """In seconds, by number."""
        self._log, self._topic = log, topic
        self._error: SparkLogError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._receive()
        except SparkLogError as error:
            self._error = error

    def _receive(self) -> None:
        with self._log.consumer(self._topic, auto_offset_reset="earliest") as consumer:
            while not self._stopped.is_set():
                found = consumer.poll(timeout_ms=500)
                now = time.perf_counter()
                for number, sent in (parsed(one.value) for records in found.values() for one in records):
                    self.latencies.setdefault(number, now - sent)

    def wait(self, count: int, query: StreamingQuery, seconds: float) -> None:
        """Until so many records are there.  Raises the error of the query or of the consumer."""
        until = time.monotonic() + seconds
        while len(self.latencies) < count and time.monotonic() < until:
            if (error := query.exception() or self._error) is not None:
                raise error
            time.sleep(0.05)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def value_of(number: int, size: int) -> bytes:
    return f"{number} {time.perf_counter()} ".encode().ljust(size, b".")


def parsed(value: bytes | None) -> tuple[int, float]:
    number, sent, *_ = (value or b"").split()
    return int(number), float(sent)


def send(log: Log, topic: str, args: argparse.Namespace, first: int) -> int:
    """Send at the rate for the duration, and wait for the acknowledgements; how many were sent."""
    count = max(1, args.rate * args.duration // 1000)
    with log.producer(linger_ms=5) as producer:
        began = time.perf_counter()
        for number in range(count):
            if (early := began + number / args.rate - time.perf_counter()) > 0:
                time.sleep(early)
            producer.send(topic, value_of(first + number, args.record_size), key=b"%d" % number)
    return count


def stream_latency(spark: SparkSession, log: Log, args: argparse.Namespace, source: str, target: str) -> dict[str, Any]:
    """Latencies of the records that were sent after the first one had arrived."""
    query, arrivals = copying(spark, args, source, target), Arrivals(log, target)
    try:
        log.append(source, [{"value": value_of(0, args.record_size)}])
        arrivals.wait(1, query, FIRST_S)
        if not arrivals.latencies:
            raise SparkLogError(f"the query's first batch did not end within {FIRST_S} s")
        progress(f"stream: {args.rate} records a second for {args.duration / 1000:g} s")
        sent = send(log, source, args, first=1)
        arrivals.wait(1 + sent, query, LAST_S)
    finally:
        arrivals.stop()
        query.stop()
    found = [late for number, late in arrivals.latencies.items() if number]
    return {"records": sent, "records_per_second": args.rate, "missing": sent - len(found), **latencies_ms(found)}


# --------------------------------------------------------------------------------------------------------------- running


@contextmanager
def topics(log: Log, args: argparse.Namespace) -> Iterator[Callable[[str], str]]:
    """Makes topics, which are deleted at the end."""
    if left := sorted(name for name in log.admin.list_topics() if name.startswith(PREFIX)):
        progress(f"topics of other runs: {', '.join(left)}; if none is running, delete them with `pylog topic delete`")
    run, made = f"{PREFIX}{time.time_ns():x}", list[str]()

    def make(name: str) -> str:
        topic = f"{run}-{name}"
        new = NewTopic(topic, args.partitions, {"retention.ms": "-1"}, replication_factor=args.replication_factor)
        log.admin.create_topics([new])
        made.append(topic)
        return topic

    try:
        yield make
    finally:
        if made:
            log.admin.delete_topics(made)


def bench(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Run the parts; the summary and the exit status."""
    register(spark)
    writes = args.rows * (args.rounds + 1) if "write" in args.parts else 0
    sends = 1 + args.rate * args.duration // 1000 if "stream" in args.parts else 0
    size = (writes + 2 * sends) * (args.record_size + 8)
    found: dict[str, Any] = {"url": args.url, "spark": spark.version, "dry_run": args.dry_run, "bytes": size}
    if args.dry_run:
        return found | {"records": writes + 2 * sends}, 0
    with Log(journal_of(location_of(args))) as log, topics(log, args) as make:
        if writes:
            topic = make("batch")
            found["write"] = write_rounds(spark, args, topic)
            if "read" in args.parts:
                found["read"] = read_rounds(spark, args, topic)
        if sends:
            found["stream"] = stream_latency(spark, log, args, make("from"), make("to"))
    return found, int(found.get("stream", {}).get("missing", 0) > 0)


def main() -> None:
    args = parse_args()
    run_job("bench", partial(bench, args=args), partial(check_log, args))
