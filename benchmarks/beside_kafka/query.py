"""A typical query: parse JSON, keep one hour of a day, aggregate by key; as a batch and as a stream.

Records arrive hour by hour, as in a live topic.  Each side skips what it can.  pylog uses its option `where`, which
knows the times in every batch.  Kafka uses the offsets of the hour's start and, in a batch, of its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import spark_log
from benchmarks.beside_kafka.figures import Fact
from benchmarks.beside_kafka.machine import bytes_sent
from benchmarks.beside_kafka.sides import Kafka, Pylog, Side
from benchmarks.beside_kafka.work import Bench, Work, checkpoint, drained, noop
from benchmarks.common import numbered_events
from spark_log.client.reader.fetch import touched
from spark_log.conditions import as_condition

TOPIC = "hours"
HOURS = 24
HOUR = 14
"""The hour of the query."""
DAY = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
FIELDS = "id long, path string, ms int, session string"


def fill(bench: Bench, sides: tuple[Side, ...]) -> None:
    """Write a day of records to each side, an hour at a time."""
    for side in sides:
        side.create(TOPIC)
        for hour in range(HOURS):
            first, last = (bench.rows * at // HOURS for at in (hour, hour + 1))
            at_us = f"{_us(DAY)} + id * {HOURS * 3_600_000_000} div {bench.rows}"
            rows = numbered_events(bench.spark, first, last)
            rows = rows.selectExpr("key", "value", f"timestamp_micros({at_us}) as timestamp")
            if isinstance(side, Kafka):
                _send(rows, side.broker.address)
            else:
                side.write(rows, TOPIC)


def _send(rows: DataFrame, address: str) -> None:
    """Write with timestamps, which the connector's sink omits, to the partitions that Java's client chooses."""
    topic = TOPIC

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random", "linger.ms": 20})
        for batch in batches:
            times = batch["timestamp"].cast(pa.int64()).to_pylist()
            for key, value, at in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), times, strict=True):
                while True:
                    try:
                        producer.produce(topic, value, key, timestamp=at // 1000)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.poll(0)
        producer.flush()
        yield pa.record_batch({"n": pa.array([0])})

    rows.mapInArrow(send, "n long").collect()


def result(records: DataFrame) -> DataFrame:
    """Parsed, and counted by key."""
    parsed = records.select(F.col("key").cast("string"), F.from_json(F.col("value").cast("string"), FIELDS).alias("v"))
    return parsed.groupBy("key").agg(F.count("*").alias("count"), F.avg("v.ms").alias("ms"))


def batch_of(side: Side) -> DataFrame:
    """The records of the hour."""
    if isinstance(side, Pylog):
        reader = side.spark.read.format("pylog").schema("key binary, value binary").option("where", _where())
        return reader.option("subscribe", TOPIC).load(side.url(TOPIC))
    assert isinstance(side, Kafka)
    return side.read(TOPIC, startingTimestamp=_ms(_begin()), endingTimestamp=_ms(_end())).where(_where())


def stream_of(side: Side) -> DataFrame:
    """A stream of the records; Kafka's connector has no end offset for a stream."""
    if isinstance(side, Pylog):
        reader = side.spark.readStream.format("pylog").schema("key binary, value binary").option("where", _where())
        return reader.options(subscribe=TOPIC, startingOffsets="earliest").load(side.url(TOPIC))
    assert isinstance(side, Kafka)
    return side.stream(TOPIC, startingTimestamp=_ms(_begin())).where(_where())


def _begin() -> datetime:
    return DAY + timedelta(hours=HOUR)


def _end() -> datetime:
    return _begin() + timedelta(hours=1)


def _where() -> str:
    return f"timestamp >= '{_begin():%Y-%m-%d %H:%M:%S}Z' and timestamp < '{_end():%Y-%m-%d %H:%M:%S}Z'"


def _us(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000


def _ms(at: datetime) -> str:
    return str(int(at.timestamp()) * 1000)


@contextmanager
def batch_round(bench: Bench, side: Side) -> Iterator[Callable[[], None]]:
    yield lambda: noop(result(batch_of(side)))


@contextmanager
def stream_round(bench: Bench, side: Side) -> Iterator[Callable[[], None]]:
    with checkpoint(bench) as folder:
        yield lambda: drained(result(stream_of(side)).writeStream.format("noop").outputMode("complete"), folder)


WORK = (
    Work("query", "one hour of 24: JSON, by key, batch", batch_round, None, None),
    Work("query-stream", "one hour of 24: JSON, by key, stream", stream_round, None, None),
)


def facts(bench: Bench, pylog: Pylog, kafka: Kafka) -> list[Fact]:
    """Check that both sides return the same, and report the rows that each reads for it."""
    expected = result(batch_of(kafka)).agg(F.sum("count"), F.round(F.sum("ms"), 3)).collect()
    assert result(batch_of(pylog)).agg(F.sum("count"), F.round(F.sum("ms"), 3)).collect() == expected
    log = spark_log.connect(pylog.url(TOPIC))
    window = as_condition(_where()).window
    plan = [touched(log.journal.objects, read, window) for read in log.plan(TOPIC, where=_where())]
    ours_records, ours_bytes = sum(one.records for one in plan), sum(one.bytes for one in plan)
    found = [_fact("records in it", bench, expected[0][0], expected[0][0])]
    for kind, until in (("batch", {"endingTimestamp": _ms(_end())}), ("stream", {})):
        before = bytes_sent(kafka.roots[0])
        records = kafka.read(TOPIC, startingTimestamp=_ms(_begin()), **until).count()
        sent = bytes_sent(kafka.roots[0]) - before
        found.append(_fact(f"records touched, {kind}", bench, ours_records, records))
        found.append(_fact(f"bytes touched, {kind}", bench, ours_bytes, sent))
    return found


def _fact(title: str, bench: Bench, pylog: float, kafka: float) -> Fact:
    return Fact(f"one hour of 24: {title}", bench.settings, {"pylog": pylog, "kafka": kafka})
