"""Where does the time of one record through a query go, and which part of it is Spark's own?

One record at a time goes from a topic through a query with the default trigger into another topic.  Three queries take
turns in one session: pylog to pylog, pylog to a sink that does nothing, and a Python source that only counts to that
sink. Spark reports the duration of each step of a trigger; what the last query takes is Spark's own.  The way of a
record is read from the times of the files that each process creates: the source's commit, Spark's offsets, the object
of the task, the sink's commit.  Files have the time of a kernel tick, at most 4 ms old.  By hand: Spark's two logs cost
a few processes or files, the two Python tasks one round trip to a worker each, pylog six fsyncs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import _nulls
import common
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import spark_log
from spark_log.errors import SparkLogError

STOCK: Mapping[str, str] = {}
RECOMMENDED = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
SETTINGS = {"stock": STOCK, "recommended": RECOMMENDED}
STEPS = ("queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""Spark's names.  `latestOffset` contains the wait for a record, so it is left out."""
GAP_S = (0.1, 0.4)
DEADLINE_S = 300
COUNTER = "countersource"


class Way(NamedTuple):
    """When one record had passed each point, in seconds since 1970."""

    sent: float
    appended: float
    planned: float
    """Spark's offsets of the batch are written."""
    written: float
    """The task's object is durable."""
    committed: float
    """The sink's commit is durable."""
    arrived: float
    """A waiting consumer has the record."""
    done: float
    """Spark's commit of the batch is written, and the next one may begin."""


def main() -> None:
    given = arguments()
    spark = common.session(SETTINGS[given.settings])
    _nulls.register(spark, 1, 1)
    spark.dataSource.register(counter_source())
    reports: dict[str, list[Mapping[str, float]]] = {name: [] for name in QUERIES}
    ways: list[Way] = []
    with common.folder() as folder:
        for stretch in range(given.warm + given.rounds):
            for name, run in QUERIES.items():
                steps, of_records = run(spark, Path(folder) / f"{name}-{stretch}", given.first, given.records)
                if stretch >= given.warm:
                    reports[name] += steps
                    ways += of_records
    figures: dict[str, object] = {f"{step}_ms": value for step, value in way_ms(ways).items()}
    for name, steps in reports.items():
        figures |= {f"{name}_{step}_ms": statistics.median(one.get(step, 0.0) for one in steps) for step in STEPS}
    common.report("trigger", settings=given.settings, records=given.records, **figures)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=40, help="through each query in a round (40)")
    parser.add_argument("--first", type=int, default=10, help="records before them, which do not count (10)")
    parser.add_argument("--rounds", type=int, default=2, help="of all queries that count (2)")
    parser.add_argument("--warm", type=int, default=1, help="rounds before them (1)")
    parser.add_argument("--settings", choices=SETTINGS, default="stock", help="of Spark")
    return parser.parse_args()


def way_ms(ways: Sequence[Way]) -> dict[str, float]:
    """Medians of the way's parts and of the whole."""
    parts = {
        later: statistics.median(getattr(way, later) - getattr(way, before) for way in ways) * 1000
        for before, later in zip(Way._fields, Way._fields[1:], strict=False)
    }
    whole = sorted((way.arrived - way.sent) * 1000 for way in ways)
    return {**parts, "p50": statistics.median(whole), "p99": whole[min(len(whole) * 99 // 100, len(whole) - 1)]}


# ------------------------------------------------------------------------------------------------------- the queries


Steps = list[Mapping[str, float]]


def from_pylog_to_pylog(spark: SparkSession, folder: Path, first: int, count: int) -> tuple[Steps, list[Way]]:
    source, target = str(folder / "in"), str(folder / "out")
    log, out = log_of(source), log_of(target)
    writer = stream(spark, source).writeStream.format("pylog").option("path", target).option("topic", "t")
    with running(writer, folder) as query, closing(out.consumer("t", auto_offset_reset="earliest")) as consumer:
        arrivals = Arrivals(consumer)
        ways = []
        for number in range(first + count):
            sent = time.time()
            log.append("t", [{"key": b"k", "value": b"%d" % number}])
            appended = time.time()
            arrived = arrivals.wait(number)
            done = newest(folder / "checkpoint" / "commits", number, appended)
            ways.append(
                Way(
                    sent,
                    appended,
                    newest(folder / "checkpoint" / "offsets", number, appended),
                    latest(folder / "out", "*.seg", appended),
                    latest(folder / "out", "*.rec", appended),
                    arrived,
                    done,
                )
            )
            pause(number)
        return steps_of(query, count), ways[first:]


def from_pylog(spark: SparkSession, folder: Path, first: int, count: int) -> tuple[Steps, list[Way]]:
    log = log_of(str(folder / "in"))
    with running(stream(spark, str(folder / "in")).writeStream.format(_nulls.SINK), folder) as query:
        through(folder, first + count, lambda number: log.append("t", [{"key": b"k", "value": b"%d" % number}]))
        return steps_of(query, count), []


def from_counter(spark: SparkSession, folder: Path, first: int, count: int) -> tuple[Steps, list[Way]]:
    counter = folder / "counter"
    folder.mkdir()
    counter.touch()

    def tick(number: int) -> None:
        with counter.open("ab") as file:
            file.write(b".")

    frame = spark.readStream.format(COUNTER).load(str(counter))
    with running(frame.writeStream.format(_nulls.SINK), folder) as query:
        through(folder, first + count, tick)
        return steps_of(query, count), []


QUERIES: Mapping[str, Callable[[SparkSession, Path, int, int], tuple[Steps, list[Way]]]] = {
    "spark": from_counter,
    "source": from_pylog,
    "pylog": from_pylog_to_pylog,
}


def through(folder: Path, count: int, send: Callable[[int], object]) -> None:
    for number in range(count):
        since = time.time()
        send(number)
        newest(folder / "checkpoint" / "commits", number, since)
        pause(number)


def pause(number: int) -> None:
    time.sleep(random.Random(number).uniform(*GAP_S))


def log_of(url: str) -> spark_log.Log:
    log = spark_log.connect(url)
    log.create_topic(spark_log.NewTopic("t"))
    return log


def stream(spark: SparkSession, url: str) -> DataFrame:
    reader = spark.readStream.format("pylog").schema("key binary, value binary")
    return reader.options(subscribe="t", startingOffsets="earliest").load(url)


@contextmanager
def running(writer: DataStreamWriter, folder: Path) -> Iterator[StreamingQuery]:
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        yield query
    finally:
        query.stop()


def steps_of(query: StreamingQuery, count: int) -> Steps:
    """The durations that Spark reports for the triggers with a record, in ms."""
    return [dict(one.durationMs) for one in query.recentProgress if one.numInputRows][-count:]


# ----------------------------------------------------------------------------------------------------- times of files


def newest(folder: Path, number: int, since: float) -> float:
    """When the newest numbered file of a checkpoint was renamed into place, after `since`.

    With the first batch a query may have planned an empty one, so the number is not always the record's.
    """
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        files = [file for file in folder.glob("*") if file.name.isdigit()] if folder.exists() else []
        if files:
            at = max(files, key=lambda file: int(file.name)).stat().st_ctime
            if at >= since - TICK_S:
                return at
        time.sleep(0.002)
    raise RuntimeError(f"record {number} did not come through the query in {DEADLINE_S} s")


def latest(folder: Path, pattern: str, since: float) -> float:
    """When the newest file was linked to its name."""
    return max((file.stat().st_ctime for file in folder.rglob(pattern)), default=since)


TICK_S = 0.004
"""The age of the kernel's clock of files."""


class Arrivals:
    """Notes when a waiting consumer gets each record."""

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._seen = consumer, dict[int, float]()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        try:
            while True:
                for records in self._consumer.poll(timeout_ms=200).values():
                    for record in records:
                        self._seen[int(record.value)] = time.time()
        except SparkLogError:  # the consumer is closed
            return

    def wait(self, number: int) -> float:
        deadline = time.monotonic() + DEADLINE_S
        while number not in self._seen:
            if time.monotonic() > deadline:
                raise RuntimeError(f"record {number} did not come through the query in {DEADLINE_S} s")
            time.sleep(0.001)
        return self._seen[number]


def counter_source() -> type[DataSource]:
    """A source with one row for each byte of a file."""
    name, pause_s, polls = COUNTER, 0.002, 100

    class CounterReader(DataSourceStreamReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
            return {"at": 0}

        def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802  Spark's name
            import os

            for _ in range(polls):
                size = os.path.getsize(self.path)
                if start is None or size > start["at"]:
                    break
                time.sleep(pause_s)
            return {"at": size}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(end["at"] - start["at"])]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            count = partition.value
            yield pa.record_batch({name: pa.array([b"v"] * count, pa.binary()) for name in ("key", "value")})

    class CounterSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return "key binary, value binary"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  Spark's name
            return CounterReader(self.options["path"])

    return CounterSource


if __name__ == "__main__":
    main()
