"""pylog compared with Spark's Kafka connector: the same work on the same data in the same session, in turn.

    python -m benchmarks.beside_kafka --rows 4000000 --parts write,read --settings stock

A real broker and the connector are downloaded once.  All sides run each kind of work in turn, first to warm up, then to
count. The result is the median of the ratios pair by pair.  `stock` runs with defaults; pylog without its classes in
the JVM is then one more side, `python`.  `tune` calls `spark_log.tune` in the session and says that no record is larger
than 1 kB; `tune-lz4` also writes pylog's topics with lz4; Kafka keeps its defaults in both.  `recommended` gives both
sides the settings of conf/spark-defaults.conf, conf/spark-python and a checkpoint that renames in place, and gives
Kafka the settings that its users choose for throughput.  With `--replicas 3`, each topic has three replicas and
min.insync.replicas is 2: pylog on three roots, and Kafka on three brokers, all on this machine's disk.  The parts
`orders` and `orders-stream` have a Parquet table beside them, and a Delta table if Delta has a release for the Spark
in use.  Prints a table and writes all figures to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pyspark

import spark_log
from benchmarks import common
from benchmarks.beside_kafka import delta, query, typed_query
from benchmarks.beside_kafka.figures import Fact, Latency, Part, as_json, table
from benchmarks.beside_kafka.latency import through_queries
from benchmarks.beside_kafka.sides import InPython, Kafka, Null, Parquet, Pylog, Side, free_ports
from benchmarks.beside_kafka.work import TOPIC, WORK, Bench, Work, measure
from simulation.harness.kafka import BROKER_JARS, CONNECTOR_JARS, Broker, broker

ROOT = Path(__file__).parents[2]
ALL = STOCK, TUNE, TUNE_LZ4, RECOMMENDED = "stock", "tune", "tune-lz4", "recommended"
LARGEST_RECORD = 1000
TARGETS = {
    (TUNE, "write"): (2.5, 0.55),
    (TUNE_LZ4, "write"): (3, 0.55),
}
"""Times as fast as Kafka with its defaults, and share of the null sink, where they differ from those of `Work`."""
SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": "8388608",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Recommended settings, for both sides."""
PYTHONS = {**dict.fromkeys(ALL, sys.executable), RECOMMENDED: str(ROOT / "conf" / "spark-python")}
"""Settings of Spark's Python processes."""
SHUFFLE = {"spark.sql.shuffle.partitions": str(common.PARTITIONS)}
"""Settings of every run: 200 empty tasks on two cores would hide the difference."""
BROKER = {"log.segment.delete.delay.ms": "1000", "auto.create.topics.enable": "false"}
"""Deleted topics go immediately, or rounds would fill the disk.  A late request does not create them again."""
DELTA_JARS = delta.jars_for(pyspark.__version__)
PARTS = (*(work.name for work in (*WORK, *query.WORK, *typed_query.WORK)), "latency")


def main() -> None:
    given = arguments()
    jars = Path(os.environ.get("PYLOG_KAFKA", ROOT / ".pylog" / "kafka"))
    os.environ["PYLOG_PYTHON"] = sys.executable
    found = Found([], [], [])
    try:
        with broker(jars, free_ports(given.replicas + 1), BROKER, given.replicas) as running:
            for settings in given.settings:
                with bench_of(given, settings, running, jars) as (bench, scratch):
                    recommended, lz4 = settings == RECOMMENDED, "lz4" if settings == TUNE_LZ4 else None
                    kafka = Kafka(bench.spark, running, jars, recommended, given.replicas)
                    pylog = Pylog(bench.spark, scratch, lz4, given.replicas)
                    compare(given, bench, pylog, kafka, found)
    finally:  # write the minutes of measurements before a later failure can lose them
        print(table(*found))
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(
            json.dumps(
                {"machine": machine(), "rows": given.rows, "replicas": given.replicas, **as_json(*found)}, indent=1
            )
        )
        print(f"\nAll figures, round by round: {given.out}")


def compare(given: argparse.Namespace, bench: Bench, pylog: Pylog, kafka: Kafka, found: Found) -> None:
    """Run all parts under one set of settings."""
    moves(given.parts, bench, pylog, kafka, found)
    queries(given.parts, bench, pylog, kafka, found)
    if pylog.replicas == 1:
        typed_queries(given.parts, bench, pylog, kafka, found)
    if "latency" in given.parts:
        tell(f"{bench.settings}: {given.records} records one by one through a query of each side")
        found.latencies.append(Latency(bench.settings, through_queries(bench, (pylog, kafka), given.records)))


class Found(NamedTuple):
    """Write the results so far."""

    parts: list[Part]
    latencies: list[Latency]
    facts: list[Fact]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=common.ROWS, help=f"records ({common.ROWS:,})")
    parser.add_argument("--rounds", type=int, default=3, help="of each side that count (3)")
    parser.add_argument("--warm", type=int, default=3, help="before them (3); one where the settings are the second")
    parser.add_argument("--records", type=int, default=200, help="of the latency, for each side (200)")
    parser.add_argument("--parts", type=common.some_of(PARTS), default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--settings", type=common.some_of(ALL), default=ALL, help=f"some of {','.join(ALL)}")
    parser.add_argument("--replicas", type=int, default=1, help="of each topic, each on a root or broker (1)")
    parser.add_argument("--out", type=Path, default=ROOT / ".pylog" / "bench-kafka.json", help="for all figures")
    return parser.parse_args()


@contextmanager
def bench_of(given: argparse.Namespace, settings: str, running: Broker, jars: Path) -> Iterator[tuple[Bench, Path]]:
    """A separate session, with the data in its memory.

    The JVM stays, with everything that it has compiled.
    """
    os.environ["PYSPARK_PYTHON"] = PYTHONS[settings]
    confs = {"spark.jars": running.jars, **SHUFFLE, **(SETTINGS if settings == RECOMMENDED else {})}
    if DELTA_JARS and not {work.name for work in typed_query.WORK}.isdisjoint(given.parts):
        confs = delta.with_delta(confs, jars, DELTA_JARS)
    spark = common.session(confs)
    if settings in (TUNE, TUNE_LZ4):
        spark_log.tune(spark, largest_record=LARGEST_RECORD)
    warm = given.warm if settings == given.settings[0] else min(given.warm, 1)
    with tempfile.TemporaryDirectory(prefix="pylog-bench-") as name:
        frame = common.events(spark, given.rows)
        checkpoints = Path(name) / "checkpoints"
        try:
            yield Bench(spark, frame, given.rows, checkpoints, settings, given.rounds, warm), Path(name)
        finally:
            spark.stop()


def moves(wanted: Sequence[str], bench: Bench, pylog: Pylog, kafka: Kafka, found: Found) -> None:
    """Writing, reading and copying, compared with the null source and sink and with tables of files."""
    works = [_with_targets(work, bench.settings, pylog.replicas) for work in WORK if work.name in wanted]
    if not works:
        return
    tell(f"{bench.settings}: {bench.rows:,} records to each side")
    stock = bench.settings == STOCK
    files = [Parquet(bench.spark, bench.checkpoints.parent)] if stock else []
    python = [InPython(bench.spark, bench.checkpoints.parent, replicas=pylog.replicas)] if stock else []
    for side in (pylog, kafka, *files):
        side.create(TOPIC)
        side.write(bench.frame, TOPIC)
    half_of_the_default = 2 if stock else None
    sizes = on_disk(bench, [pylog, kafka, *files])
    found.facts.append(Fact("bytes on disk a record", bench.settings, sizes, half_of_the_default))
    null = Null(bench.spark, bench.rows, pylog.read(TOPIC).rdd.getNumPartitions())
    for work in works:
        tell(f"{bench.settings}: {work.title}")
        found.parts.append(measure(bench, work, (pylog, kafka, null, *python, *files)))
    for side in (pylog, kafka, *files):
        side.drop(TOPIC)


def _with_targets(work: Work, settings: str, replicas: int) -> Work:
    if replicas > 1:
        return work._replace(target=None)
    target, of_null = TARGETS.get((settings, work.name), (work.target, work.of_null))
    return work._replace(target=target, of_null=of_null)


def on_disk(bench: Bench, sides: Sequence[Side]) -> dict[str, float]:
    return {side.name: side.bytes_on_disk(TOPIC) / bench.rows for side in sides}


def queries(wanted: Sequence[str], bench: Bench, pylog: Pylog, kafka: Kafka, found: Found) -> None:
    works = [work for work in query.WORK if work.name in wanted]
    if not works:
        return
    tell(f"{bench.settings}: {bench.rows:,} records of a day to each side")
    query.fill(bench, (pylog, kafka))
    found.facts.extend(query.facts(bench, pylog, kafka))
    for work in works:
        tell(f"{bench.settings}: {work.title}")
        found.parts.append(measure(bench, work, (pylog, kafka)))
    for side in (pylog, kafka):
        side.drop(query.TOPIC)


def typed_queries(wanted: Sequence[str], bench: Bench, pylog: Pylog, kafka: Kafka, found: Found) -> None:
    works = [work for work in typed_query.WORK if work.name in wanted]
    if not works:
        return
    if not DELTA_JARS:
        sparks = ", ".join(delta.SPARKS)
        tell(
            f"no Delta table beside it: Delta {delta.VERSION} is for Spark {sparks}, and this is {bench.spark.version}"
        )
    tell(f"{bench.settings}: {bench.rows:,} orders to each side")
    sides = (*typed_query.sides_of(typed_query.WORK[-1], bench, pylog, kafka), pylog)
    found.facts.extend(typed_query.fill(bench, sides))
    tell(f"{bench.settings}: the answers of all sides are compared")
    typed_query.check(sides)
    for work in works:
        tell(f"{bench.settings}: {work.title}")
        found.parts.append(measure(bench, work, typed_query.sides_of(work, bench, pylog, kafka)))
    for side in sides:
        side.drop(typed_query.TOPIC)


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def machine() -> dict[str, object]:
    """The machine and the versions of a measurement."""
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("pyspark", "pyarrow", "numpy", "confluent-kafka")},
        "jars": [*BROKER_JARS, *CONNECTOR_JARS, *DELTA_JARS],
    }


if __name__ == "__main__":
    main()
