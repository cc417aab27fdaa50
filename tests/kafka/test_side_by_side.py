"""The same options on the same records through Kafka's connector and through pylog, in one session.

`DIFFERENCES` has the deliberate differences, with a sentence that is also in docs/from-kafka.md.  Everything else must
be the same, and the listed cases must differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_log
from simulation.harness.kafka import Broker
from spark_log import NewTopic, TopicPartition
from tests.kafka.clients import Client, Rec

PAGE = Path(__file__).parents[2] / "docs" / "from-kafka.md"
T0 = 1_790_000_000_000
"""The first record's time; the others follow by a second each."""
REFUSED = "refused"

Outcome = Any
"""The outcome of a case: a value to compare, or REFUSED."""
Options = Mapping[str, Any]


def seconds(number: int) -> int:
    return T0 + 1000 * number


def offsets(**parts: Any) -> str:
    """JSON of offsets or times: `orders=[5, 0]` for partitions 0 and 1."""
    by_partition = {
        topic.replace("_", "-"): {str(n): at for n, at in enumerate(given)} if isinstance(given, list) else given
        for topic, given in parts.items()
    }
    return json.dumps(by_partition)


READS: dict[str, Options] = {
    "all of a topic": {"subscribe": "orders"},
    "two topics": {"subscribe": " orders , payments,"},
    "a pattern is searched": {"subscribePattern": "rder"},
    "a pattern with anchors": {"subscribePattern": "^pay.*s$"},
    "a pattern that finds nothing": {"subscribePattern": "nothing-like-this"},
    "assigned partitions": {"assign": '{"orders":[0,1]}'},
    "an assigned partition that is not there": {"assign": '{"orders":[1,7]}'},
    "option names in any case": {"SUBSCRIBE": "orders", "ENDINGoffsets": "LATEST"},
    "headers": {"subscribe": "orders", "includeHeaders": "true"},
    "no topic named": {"startingOffsets": "earliest"},
    "two ways to name topics": {"subscribe": "orders", "subscribePattern": "orders"},
    "an empty list of topics": {"subscribe": " , "},
    "an empty pattern": {"subscribePattern": " "},
    "assign that is not JSON": {"assign": "orders"},
    "a topic that is not there": {"subscribe": "nowhere"},
    "from offsets": {"subscribe": "orders", "startingOffsets": offsets(orders=[5, -2])},
    "to offsets": {"subscribe": "orders", "endingOffsets": offsets(orders=[5, -1])},
    "from offsets to offsets": {
        "subscribe": "orders",
        "startingOffsets": offsets(orders=[5, 2]),
        "endingOffsets": offsets(orders=[7, 2]),
    },
    "a topic as a word": {"subscribe": "orders", "startingOffsets": offsets(orders="earliest")},
    "some partitions left out": {"subscribe": "orders", "startingOffsets": offsets(orders=[5])},
    "a partition that is not read": {"subscribe": "orders", "startingOffsets": offsets(orders=[5, 0, 0])},
    "a topic that is not read": {"subscribe": "payments", "startingOffsets": offsets(orders=[5, 0])},
    "a batch from latest": {"subscribe": "orders", "startingOffsets": "latest"},
    "a batch from -1": {"subscribe": "orders", "startingOffsets": offsets(orders=[-1, 0])},
    "a batch to earliest": {"subscribe": "orders", "endingOffsets": "earliest"},
    "a batch to -2": {"subscribe": "orders", "endingOffsets": offsets(orders=[-2, 0])},
    "another negative offset": {"subscribe": "orders", "startingOffsets": offsets(orders=[-3, 0])},
    "offsets that are not JSON": {"subscribe": "orders", "startingOffsets": '{"orders":'},
    "a start beyond its end": {
        "subscribe": "orders",
        "startingOffsets": offsets(orders=[7, 0]),
        "endingOffsets": offsets(orders=[5, 1]),
    },
    "a start beyond the last record": {"subscribe": "orders", "startingOffsets": offsets(orders=[100, 0])},
    "an end beyond the last record": {"subscribe": "orders", "endingOffsets": offsets(orders=[100, 1])},
    "from a time": {"subscribe": "orders", "startingTimestamp": seconds(7)},
    "to a time": {"subscribe": "orders", "endingTimestamp": seconds(7)},
    "to a time after all": {"subscribe": "orders", "endingTimestamp": seconds(1000)},
    "from a time to a time": {
        "subscribe": "orders",
        "startingTimestamp": seconds(3),
        "endingTimestamp": seconds(7),
    },
    "from a time after all": {"subscribe": "orders", "startingTimestamp": seconds(1000)},
    "from a time after all, else latest": {
        "subscribe": "orders",
        "startingTimestamp": seconds(1000),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "from times by partition": {
        "subscribe": "orders",
        "startingOffsetsByTimestamp": offsets(orders=[seconds(3), seconds(5)]),
        "endingOffsetsByTimestamp": offsets(orders=[seconds(9), seconds(1000)]),
    },
    "times of some partitions": {
        "subscribe": "orders",
        "startingOffsetsByTimestamp": offsets(orders=[seconds(3)]),
    },
    "a time beats times by partition and offsets": {
        "subscribe": "orders",
        "startingTimestamp": seconds(3),
        "startingOffsetsByTimestamp": offsets(orders=[seconds(5), seconds(5)]),
        "startingOffsets": offsets(orders=[7, 7]),
    },
    "a time that is no number": {"subscribe": "orders", "startingTimestamp": "noon"},
    "an unknown strategy": {
        "subscribe": "orders",
        "startingTimestamp": seconds(3),
        "startingOffsetsByTimestampStrategy": "nearest",
    },
    "trimmed records, from earliest": {"subscribe": "trimmed"},
    "trimmed records, from an offset": {"subscribe": "trimmed", "startingOffsets": offsets(trimmed=[2])},
    "trimmed records, and loss allowed": {
        "subscribe": "trimmed",
        "startingOffsets": offsets(trimmed=[2]),
        "failOnDataLoss": "false",
    },
    "minPartitions of no number": {"subscribe": "orders", "minPartitions": "many"},
    "minPartitions of zero": {"subscribe": "orders", "minPartitions": "0"},
    "maxRecordsPerPartition of zero": {"subscribe": "orders", "maxRecordsPerPartition": "0"},
    "read_committed": {"subscribe": "orders", "kafka.isolation.level": "read_committed"},
    "another isolation level": {"subscribe": "orders", "kafka.isolation.level": "dirty"},
    "kafka.auto.offset.reset": {"subscribe": "orders", "kafka.auto.offset.reset": "earliest"},
    "kafka.key.deserializer": {"subscribe": "orders", "kafka.key.deserializer": "x"},
    "kafka.value.deserializer": {"subscribe": "orders", "kafka.value.deserializer": "x"},
    "kafka.enable.auto.commit": {"subscribe": "orders", "kafka.enable.auto.commit": "false"},
    "kafka.interceptor.classes": {"subscribe": "orders", "kafka.interceptor.classes": "x"},
    "an option that nobody knows": {"subscribe": "orders", "startingOfsets": "earliest"},
}
BOUNDED = {"startingOffsets": offsets(orders=[0, 0]), "endingOffsets": offsets(orders=[20, 10])}
SPLITS: dict[str, Options] = {
    "one task a partition": {},
    "minPartitions": {**BOUNDED, "minPartitions": 5},
    "minPartitions below the partitions": {**BOUNDED, "minPartitions": 1},
    "maxRecordsPerPartition": {**BOUNDED, "maxRecordsPerPartition": 6},
    "minPartitions and maxRecordsPerPartition": {**BOUNDED, "minPartitions": 6, "maxRecordsPerPartition": 10},
    "maxRecordsPerPartition with open ends": {"maxRecordsPerPartition": 6},
}
STREAMS: dict[str, Options] = {
    "a stream of one partition": {"assign": '{"orders":[0]}', "maxOffsetsPerTrigger": 7},
    "a stream of two partitions": {"subscribe": "orders", "maxOffsetsPerTrigger": 7},
    "a stream with an end": {"subscribe": "orders", "endingOffsets": "latest"},
    "a stream with an ending time": {"subscribe": "orders", "endingTimestamp": seconds(3)},
    "a stream with ending times": {"subscribe": "orders", "endingOffsetsByTimestamp": offsets(orders=[1, 1])},
    "a minimum above the maximum": {"subscribe": "orders", "minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 5},
}
ROWS: dict[str, tuple[Sequence[Any], str, Options]] = {
    "strings": ([("k", "v")], "key string, value string", {"topic": "T"}),
    "bytes": ([(b"k", b"v")], "key binary, value binary", {"topic": "T"}),
    "nulls": ([(None, None), ("k", None)], "key string, value string", {"topic": "T"}),
    "a value alone": ([("v",)], "value string", {"topic": "T"}),
    "a topic by column": ([("T", "v")], "topic string, value string", {}),
    "the option wins over the column": ([("other", "v")], "topic string, value string", {"topic": "T"}),
    "the option wins over a column of another type": ([(7, "v")], "topic int, value string", {"topic": " T "}),
    "a partition by column": ([("v", 1), ("w", 0)], "value string, partition int", {"topic": "T"}),
    "a partition that is null": ([("k", "v", None)], "key string, value string, partition int", {"topic": "T"}),
    "headers": (
        [("v", [("a", b"1"), ("a", None)]), ("w", None), ("x", [])],
        "value string, headers array<struct<key: string, value: binary>>",
        {"topic": "T"},
    ),
    "other columns": ([("v", 1.5, 7)], "value string, price double, offset bigint", {"topic": "T"}),
    "no value": ([("k",)], "key string", {"topic": "T"}),
    "a value of another type": ([(7,)], "value int", {"topic": "T"}),
    "a key of another type": ([(7, "v")], "key int, value string", {"topic": "T"}),
    "no topic": ([("v",)], "value string", {}),
    "a topic that is null": ([(None, "v")], "topic string, value string", {}),
    "a partition of another type": ([("v", 1)], "value string, partition bigint", {"topic": "T"}),
    "headers of another type": ([("v", "h")], "value string, headers string", {"topic": "T"}),
    "names in capitals": ([("v",)], "VALUE string", {"topic": "T"}),
    "a serializer": ([("v",)], "value string", {"topic": "T", "kafka.value.serializer": "x"}),
}
MODES = {"append": "append", "the default mode": None, "overwrite": "overwrite", "ignore": "ignore"}
OUTPUT_MODES = ("append", "update", "complete")

DIFFERENCES: dict[str, str] = {
    "a topic as a word": "A topic may be given as a word or any position; Kafka's connector takes words from 4.3 on.",
    "some partitions left out": "Partitions and topics that are left out of the JSON have the default; Kafka's connector refuses this.",
    "times of some partitions": "Partitions and topics that are left out of the JSON have the default; Kafka's connector refuses this.",
    "an option that nobody knows": "An unknown option is an error that suggests the nearest; Kafka's connector ignores it.",
    "an end beyond the last record": "An end beyond the last record means the end; Kafka's connector waits for the rest until it times out.",
    "a stream of two partitions": "`maxOffsetsPerTrigger` is exact; Kafka's connector rounds each partition's share.",
    "one task a partition": "Without splitting options, tasks are split by bytes; Kafka's connector has one task per partition.",
    "maxRecordsPerPartition with open ends": "`maxRecordsPerPartition` also applies to open ends; Kafka's connector ignores it there.",
    "a stream with an ending time": "`endingTimestamp` on a stream is an error, as the other `ending…` options are; Kafka's connector ignores it.",
    "the default mode": '`.mode("append")` must be written: Spark refuses its default mode for Python sources.',
    "complete": '`outputMode("complete")` is refused, since a log is not overwritten; Kafka\'s sink appends the whole result again.',
}


def records() -> dict[str, list[Rec]]:
    """By topic; partition 1 of `orders` is half as long as partition 0."""
    headers = (("a", b"1"), ("a", b"2"), ("b", None))
    orders = [Rec(b"%d" % n, b"k%d" % n, 0, seconds(n), headers if n % 4 == 0 else ()) for n in range(20)]
    orders += [Rec(None if n == 3 else b"%d" % n, None, 1, seconds(2 * n)) for n in range(10)]
    return {
        "orders": orders,
        "orders-old": [Rec(b"old", b"k", 0, seconds(0))],
        "payments": [Rec(b"%d" % n, b"k", 0, seconds(n)) for n in range(5)],
        "trimmed": [Rec(b"%d" % n, b"k", 0, seconds(n)) for n in range(8)],
    }


class Sides:
    """The two formats, each with its address."""

    def __init__(self, spark: SparkSession, kafka: Broker, url: str) -> None:
        self.spark = spark
        # Two minutes by default: for so long it waits for records that an end beyond the last one promises.
        patience = {"kafkaConsumer.pollTimeoutMs": "10000"}
        self.places = {"kafka": {"kafka.bootstrap.servers": kafka.address, **patience}, "pylog": {"path": url}}

    def assert_agree(self, case: str, outcome: Callable[[str], Outcome]) -> None:
        """Assert the same outcome on both sides, or a difference that docs/from-kafka.md lists."""
        kafka, pylog = outcome("kafka"), outcome("pylog")
        if case in DIFFERENCES:
            assert kafka != pylog, f"{case}: no longer a difference; both give {kafka}"
        else:
            assert pylog == kafka

    def load(self, side: str, options: Options) -> DataFrame:
        return self.spark.read.format(side).options(**self.places[side], **options).load()


@pytest.fixture(scope="module")
def sides(spark: SparkSession, kafka: Broker, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    """Both sides with the same records."""
    url = str(tmp_path_factory.mktemp("side-by-side") / "log")
    log = spark_log.connect(url, durability="os")
    for topic, found in records().items():
        count = 1 + max(rec.partition for rec in found)
        client.create(topic, count)
        client.send(topic, found)
        log.admin.create_topics([NewTopic(topic, count)])
        log.append(topic, [as_row(rec) for rec in found])
    client.trim("trimmed", 0, 3)
    log.admin.delete_records({TopicPartition("trimmed", 0): 3})
    return Sides(spark, kafka, url)


def as_row(rec: Rec) -> dict[str, Any]:
    headers = [{"key": name, "value": value} for name, value in rec.headers] or None
    return {**rec._asdict(), "headers": headers}


def refused(run: Callable[[], Outcome]) -> Outcome:
    """Its result, or REFUSED if it is an error."""
    try:
        return run()
    except Exception:  # noqa: BLE001  which exception it is differs by nature: Java's on one side, Python's on the other
        return REFUSED


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows in the order of the log, headers as pairs."""
    found = frame.orderBy("topic", "partition", "offset").collect()
    return [tuple([tuple(pair) for pair in cell] if isinstance(cell, list) else cell for cell in row) for row in found]


# Promise: from-kafka.md#coming-from-kafka, testing.md#what-was-tested
@pytest.mark.parametrize("case", READS)
def test_a_batch_read_gives_the_same_rows(sides: Sides, case: str) -> None:
    """Or is refused on both sides."""
    sides.assert_agree(case, lambda side: refused(lambda: rows(sides.load(side, READS[case]))))


# Promise: spark.md#columns
@pytest.mark.parametrize("headers", ["false", "true"])
def test_columns_and_types_are_the_same(sides: Sides, headers: str) -> None:
    """Names, order, types and nullability."""
    frames = [sides.load(side, {"subscribe": "orders", "includeHeaders": headers}) for side in ("kafka", "pylog")]
    assert frames[0].schema == frames[1].schema


# Promise: spark-read.md#options-of-a-read
@pytest.mark.parametrize("case", SPLITS)
def test_a_read_is_split_into_the_same_tasks(sides: Sides, case: str) -> None:
    """As many, with as many records each."""

    def sizes(side: str) -> list[int]:
        frame = sides.load(side, {"subscribe": "orders", **SPLITS[case]})
        return sorted(frame.rdd.glom().map(len).collect())

    sides.assert_agree(case, sizes)


# Promise: from-kafka.md#coming-from-kafka
@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_gives_the_same_batches(sides: Sides, tmp_path: Path, case: str) -> None:
    """An available-now run from the first record: how many rows each micro-batch has."""

    def batches(side: str) -> list[int]:
        options = {"startingOffsets": "earliest", **STREAMS[case], **sides.places[side]}
        writer = sides.spark.readStream.format(side).options(**options).load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / side)).trigger(availableNow=True).start()
        query.awaitTermination(120)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    sides.assert_agree(case, lambda side: refused(lambda: batches(side)))


def test_progress_shows_the_same_offsets(sides: Sides, tmp_path: Path) -> None:
    """Next offset by topic and partition; pylog's own notes begin with an @."""
    found = {}
    for side in ("kafka", "pylog"):
        options = {"subscribe": "orders", "startingOffsets": "earliest", **sides.places[side]}
        writer = sides.spark.readStream.format(side).options(**options).load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / side)).trigger(availableNow=True).start()
        query.awaitTermination(120)
        (source,) = query.lastProgress["sources"]
        found[side] = json.loads(source["endOffset"])
    assert {name: at for name, at in found["pylog"].items() if not name.startswith("@")} == found["kafka"]


# Promise: from-kafka.md#coming-from-kafka
@pytest.mark.parametrize("case", ROWS)
def test_a_write_gives_the_same_records(sides: Sides, client: Client, case: str) -> None:
    """Keys, values, headers and partitions; or it is refused on both sides."""
    name = "written-" + re.sub(r"\W+", "-", case)
    client.create(name, 2)
    data, schema, options = ROWS[case]
    frame = sides.spark.createDataFrame([_named(row, name) for row in data], schema).coalesce(1)
    options = {key: value.replace("T", name) for key, value in options.items()}
    chosen = "partition int" in schema

    def written(side: str) -> list[tuple[Any, ...]]:
        frame.write.format(side).mode("append").options(**sides.places[side], **options).save()
        found = sides.load(side, {"subscribe": name, "includeHeaders": "true"})
        # Which partition a record without a key goes to is chance, on both sides.
        cells = [
            (repr(row.value), repr(row.key), repr(row.headers), row.partition if chosen or row.key is not None else "")
            for row in found.collect()
        ]
        return sorted(cells)

    spark_log.connect(sides.places["pylog"]["path"]).admin.create_topics([NewTopic(name, 2)])
    sides.assert_agree(case, lambda side: refused(lambda: written(side)))


def _named(row: Sequence[Any], topic: str) -> tuple[Any, ...]:
    return tuple(topic if cell == "T" else cell for cell in row)


# Promise: ../README.md#why
@pytest.mark.parametrize("case", MODES)
def test_a_save_mode_does_the_same(sides: Sides, client: Client, case: str) -> None:
    """Both only append."""
    name = "mode-" + case.replace(" ", "-")
    client.create(name)

    def written(side: str) -> int:
        writer = sides.spark.createDataFrame([("v",)], "value string").write.format(side)
        writer = writer if MODES[case] is None else writer.mode(MODES[case])
        writer.options(**sides.places[side], topic=name).save()
        return sides.load(side, {"subscribe": name}).count()

    sides.assert_agree(case, lambda side: refused(lambda: written(side)))


# Promise: from-kafka.md#what-differs
@pytest.mark.parametrize("mode", OUTPUT_MODES)
def test_an_output_mode_does_the_same(sides: Sides, client: Client, tmp_path: Path, mode: str) -> None:
    """Of a count by key, or, with append, of the rows as they are."""
    name = f"output-{mode}"
    client.create(name)

    def written(side: str) -> int:
        stream = sides.spark.readStream.format(side).options(**sides.places[side]).option("subscribe", "orders")
        frame = stream.option("startingOffsets", "earliest").load()
        if mode != "append":
            frame = frame.groupBy("key").count().selectExpr("key", "string(count) as value")
        writer = frame.select("key", "value").writeStream.format(side).outputMode(mode)
        writer = writer.options(**sides.places[side], topic=name, checkpointLocation=str(tmp_path / side))
        writer.trigger(availableNow=True).start().awaitTermination(120)
        return sides.load(side, {"subscribe": name}).count()

    sides.assert_agree(mode, lambda side: refused(lambda: written(side)))


# Promise: from-kafka.md#what-differs
def test_the_timestamp_column_is_written_by_pylog_alone(sides: Sides, client: Client) -> None:
    """Kafka's sink drops it."""
    client.create("times")
    (first,) = sides.load("kafka", {"assign": '{"orders":[0]}', "endingOffsets": '{"orders":{"0":1}}'}).collect()
    found = {}
    for side in ("kafka", "pylog"):
        frame = sides.spark.createDataFrame([("v", first.timestamp)], "value string, timestamp timestamp")
        frame.write.format(side).mode("append").options(**sides.places[side], topic="times").save()
        found[side] = [row.timestamp for row in sides.load(side, {"subscribe": "times"}).collect()]
    assert found["pylog"] == [first.timestamp] and found["kafka"] != [first.timestamp]


# Promise: from-kafka.md#what-differs
def test_a_schema_of_the_user_is_a_projection(sides: Sides) -> None:
    """Kafka's connector refuses it."""
    results = {}
    for side in ("kafka", "pylog"):
        reader = sides.spark.read.format(side).schema("value binary").options(**sides.places[side], subscribe="orders")
        results[side] = refused(lambda reader=reader: reader.load().columns)
    assert results == {"kafka": REFUSED, "pylog": ["value"]}


def test_a_frame_that_is_used_again_sees_what_came_meanwhile(sides: Sides, client: Client) -> None:
    """With an open end, on both sides."""
    client.create("growing")
    log = spark_log.connect(sides.places["pylog"]["path"])
    client.send("growing", [Rec(b"1")])
    log.append("growing", [{"value": "1"}])
    frames = [sides.load(side, {"subscribe": "growing"}) for side in ("kafka", "pylog")]
    assert [frame.count() for frame in frames] == [1, 1]
    client.send("growing", [Rec(b"2")])
    log.append("growing", [{"value": "2"}])
    assert [frame.count() for frame in frames] == [2, 2]


@pytest.mark.parametrize("case", DIFFERENCES)
def test_a_difference_is_told(case: str) -> None:
    """In docs/from-kafka.md, in the same words; and it is one of the cases here."""
    assert case in {*READS, *SPLITS, *STREAMS, *ROWS, *MODES, *OUTPUT_MODES}
    assert DIFFERENCES[case] in re.sub(r"\s+", " ", PAGE.read_text())
