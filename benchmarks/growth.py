"""How does cost grow with the content of a log and with its users?

Each table varies one quantity and keeps the rest: partitions, commits, the size of a record, writers, slices in the
state.  The fit is the exponent of a power law through the points on log-log axes: 0 is constant, 1 linear.  The disk is
local without fsync, so that Python's and the log's own work is visible.

By hand: a commit is one object and one record, whatever its partitions, so the cost of a row is constant except for
short runs. Commits and writers go one after the other through one log, so the cost of a commit is constant and writers
share one rate.  The cost of a record is per record up to about 1 kB and per byte above.  The cost of a plan is per
slice that it names.  An open reads the columns of all objects, and the next checkpoint encodes what changed.  The first
round of maintenance looks at the whole log, the next ones at what changed.  No heartbeat depends on other groups.  A
row of a Spark write that names its topic costs more when its batches are short.

    --only partitions,writers    some of the tables
    --json FILE                  points and fits, from which `_pictures.py` draws
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import checkpoint
import common
import groups
import maintenance
import pyarrow as pa
import write_task

import spark_log
from spark_log.client.producer.commit import PlainProducer
from spark_log.client.producer.upload import Uploaded
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.state import State
from spark_log.model import DataObject, Run

CONSTANT, LINEAR = 0.25, 1.2
"""Names for exponents up to these."""
TAIL_COMMITS = 50
"""Commits that are timed at each size of a log."""
HOUSE_COMMITS = 200
"""Number of commits in which maintenance runs twice."""
SHARED = "a commit's share of maintenance, ms"
OPENED = "open and read one record, ms"
FORGET_MS = 300
"""How long dropped objects are remembered where the benchmark does not wait for a day."""
BYTES_IN_ALL = 64 << 20
SPAN_S = 1.5
"""How long writers write."""
SLICES_A_COMMIT = 1000
PLANNED_PARTITIONS = 100


class Sizes(NamedTuple):
    """The varied quantity, and the work at each value."""

    partitions: Sequence[int]
    rows: int
    commits: Sequence[int]
    maintained: Sequence[int]
    records: Sequence[int]
    bytes: int
    writers: Sequence[int]
    span_s: float
    slices: Sequence[int]
    objects: Sequence[int]
    merged: Sequence[int]
    new_commits: int
    groups: Sequence[int]
    topics: Sequence[int]
    topic_rows: int
    tries: int


FULL = Sizes(
    (1, 10, 100, 1000),
    400_000,
    (100, 1000, 10_000, 100_000),
    (100, 1000, 10_000),
    (10, 100, 1000, 10_000, 100_000, 1_000_000),
    BYTES_IN_ALL,
    (1, 2, 4, 8),
    SPAN_S,
    (10_000, 100_000, 1_000_000),
    (10_000, 100_000, 1_000_000),
    (10_000, 100_000, 1_000_000),
    60,
    (10, 100, 1000, 10_000),
    (1, 10, 100, 1000),
    1_000_000,
    3,
)
QUICK = Sizes(
    (1, 2),
    1000,
    (20, 100),
    (20, 100),
    (10, 1000),
    1 << 16,
    (1, 2),
    0.2,
    (1000, 3000),
    (1000, 3000),
    (1000, 3000),
    3,
    (10, 30),
    (1, 3),
    1000,
    1,
)


class Table(NamedTuple):
    """Measured points, and their bound."""

    name: str
    varied: str
    """The quantity on the x axis."""
    x: list[float]
    costs: dict[str, list[float]]
    """By name with its unit, the cost at each x."""
    bound: str


def exponent(x: Sequence[float], cost: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms."""
    xs, ys = [math.log(v) for v in x], [math.log(v) for v in cost]
    return statistics.linear_regression(xs, ys).slope


def called(slope: float) -> str:
    if slope < -CONSTANT:
        return "falls"
    return (
        "constant"
        if slope <= CONSTANT
        else "less than linear"
        if slope < 0.8
        else "linear"
        if slope <= LINEAR
        else "worse"
    )


# ----------------------------------------------------------------------------------------------------------- the tables


def by_partitions(sizes: Sizes) -> Table:
    """A batch of Spark, written by key into this many partitions and read back."""
    spark = common.session()
    frame = common.events(spark, sizes.rows)
    costs: dict[str, list[float]] = {"write, µs a record": [], "read, µs a record": []}
    for count in sizes.partitions:
        with common.folder() as url:
            spark_log.connect(url).create_topic(spark_log.NewTopic("t", count))

            def write(url: str = url) -> None:
                options = {"topic": "t", "durability": "os"}
                frame.write.format("pylog").mode("append").options(**options).save(url)

            written = best(write, sizes.tries)
            read = spark.read.format("pylog").option("subscribe", "t").load(url)
            rows = sizes.rows * sizes.tries
            took = best(lambda read=read: read.write.format("noop").mode("overwrite").save(), sizes.tries)
        costs["write, µs a record"].append(written / sizes.rows * 1e6)
        costs["read, µs a record"].append(took / rows * 1e6)
    spark.stop()
    return Table(
        "partitions",
        "partitions",
        list(map(float, sizes.partitions)),
        costs,
        "Each task writes a batch per partition. Each batch has a fixed cost of about 0.1 ms, which dominates "
        "when batches are short",
    )


def by_commits(sizes: Sizes) -> Table:
    """A small commit, opening the log and reading one record, in a log with this many commits.

    The commits in between name objects that do not exist: the metadata log is the same, in half the time.
    """
    costs: dict[str, list[float]] = {"a commit, ms": [], SHARED: [], OPENED: []}
    with common.folder() as url:
        log = spark_log.connect(url, durability="os")
        topic, done = log.create_topic(spark_log.NewTopic("t", 1)), 0
        producer = PlainProducer(log.journal)
        for target in sizes.commits:
            last = min(TAIL_COMMITS, target // 2)
            filling = []
            for made in range(done, target - last):
                commit = named(topic, made, 1, 1, log.journal.state)
                filling.append(common.clock(lambda one=commit: producer.commit(log.journal.state.version, [one])))
            times = [common.clock(lambda: log.append("t", [{"value": b"x"}])) for _ in range(last)]
            done, end = target, log.journal.state.partitions[topic, 0].end
            costs["a commit, ms"].append(statistics.median(times) * 1e3)
            house = statistics.mean(filling[-HOUSE_COMMITS:]) - statistics.median(filling[-HOUSE_COMMITS:])
            costs[SHARED].append(max(house, 1e-6) * 1e3)
            opened = best(lambda end=end: read_one(url, end - 1), sizes.tries)
            costs[OPENED].append(opened * 1e3)
    return Table(
        "commits",
        "commits in the log",
        list(map(float, sizes.commits)),
        costs,
        "A commit writes two files and makes one listing. The state keeps a row for each object until `pylog "
        "maintain` merges them. Each open reads the state, and every 100 commits write it",
    )


def maintained(sizes: Sizes) -> Table:
    """Figures after `pylog maintain` has run and the replaced objects are forgotten."""
    costs: dict[str, list[float]] = {SHARED: [], OPENED: []}
    with common.folder() as url:
        log, done = spark_log.connect(url, durability="os"), 0
        log.create_topic(spark_log.NewTopic("t", 1))
        for target in sizes.maintained:
            for _ in range(done, target):
                log.append("t", [{"value": b"x"}])
            maintain_once(log)
            forget(log)
            timed = min(HOUSE_COMMITS, target)
            times = [common.clock(lambda: log.append("t", [{"value": b"x"}])) for _ in range(timed)]
            costs[SHARED].append(max(statistics.mean(times) - statistics.median(times), 1e-6) * 1e3)
            done = log.journal.state.partitions[log.journal.state.names["t"], 0].end
            costs[OPENED].append(best(lambda end=done: read_one(url, end - 1), sizes.tries) * 1e3)
    return Table(
        "maintained",
        "commits in the log",
        list(map(float, sizes.maintained)),
        costs,
        "Merging leaves a few segments for many commits, so the state has few rows. The rows of replaced "
        "objects are removed after `gc.fence.age.ms` (a day). So an open reads the commits of at most one "
        "day, or of two if `pylog maintain` runs once a day",
    )


def forget(log: spark_log.Log) -> None:
    """Pretend that a day has passed since objects were dropped."""
    age = "gc.fence.age.ms"
    log.admin.incremental_alter_configs({None: {age: str(FORGET_MS)}})
    log.append("t", [{"value": b"x"}])
    time.sleep(2 * FORGET_MS / 1e3)
    log.append("t", [{"value": b"x"}])
    maintain_once(log)
    dropped = len(log.journal.refresh().dropped)
    assert dropped < 20, f"{dropped} objects are remembered, the last maintenance can have dropped a few only"
    log.admin.incremental_alter_configs({None: {age: None}})


def read_one(url: str, offset: int) -> None:
    assert spark_log.connect(url).read("t", partition=0, start=offset, end=offset + 1).num_rows == 1


def by_record_size(sizes: Sizes) -> Table:
    """Equal bytes in records of another size: append and read back, per record."""
    costs: dict[str, list[float]] = {"append, µs a record": [], "read, µs a record": []}
    for size in sizes.records:
        rows = max(8, min(sizes.bytes // size, 1_000_000))
        values = random_values(rows, size)
        with common.folder() as url:
            log = spark_log.connect(url, durability="os")
            log.create_topic(spark_log.NewTopic("t", 1, {"max.message.bytes": str(2 << 20)}))
            table = pa.table({"value": values})
            written = best(lambda log=log, table=table: log.append("t", table), sizes.tries)
            took = best(lambda log=log, rows=rows: drain(log, rows), sizes.tries)
        costs["append, µs a record"].append(written / rows * 1e6)
        costs["read, µs a record"].append(took / rows * 1e6)
    return Table(
        "record_size",
        "bytes of a record",
        list(map(float, sizes.records)),
        costs,
        "Below about 1 kB, pylog processes columns by the batch, and a record costs its share. Above, its "
        "bytes dominate: copy, compression, checksum, disk",
    )


def random_values(rows: int, size: int) -> pa.Array:
    """Distinct values that do not compress."""
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), rows, [None, pa.py_buffer(os.urandom(rows * size))])
    return fixed.cast(pa.binary())


def drain(log: spark_log.Log, rows: int) -> None:
    assert sum(batch.num_rows for batch in log.scan("t", start=0, end=rows)) == rows


def by_writers(sizes: Sizes) -> Table:
    """Processes that commit small batches to one log as fast as they can."""
    parts = "all writers, ms a commit", "one writer, ms a commit", "the longest commit, ms"
    costs: dict[str, list[float]] = {name: [] for name in parts}
    for count in sizes.writers:
        with common.folder() as url:
            spark_log.connect(url, durability="os").create_topic(spark_log.NewTopic("t", count))
            context = multiprocessing.get_context("spawn")
            meeting = context.Barrier(count)
            with context.Pool(count, _meet_at, (meeting,)) as pool:
                done = pool.starmap(_write, [(url, number, sizes.span_s) for number in range(count)], chunksize=1)
        commits = sum(number for number, _ in done)
        all_ms = sizes.span_s / commits * 1e3
        for name, value in zip(parts, (all_ms, all_ms * count, max(longest for _, longest in done)), strict=True):
            costs[name].append(value)
    return Table(
        "writers",
        "writers",
        list(map(float, sizes.writers)),
        costs,
        "A log has one next version, so writers take turns, and a writer that loses the race retries. All "
        "writers share two cores",
    )


_meeting: Barrier


def _meet_at(meeting: Barrier) -> None:
    global _meeting
    _meeting = meeting


def _write(url: str, partition: int, span_s: float) -> tuple[int, float]:
    """Commits of one writer within the time, and the ms of its longest."""
    log = spark_log.connect(url, durability="os")
    log.append("t", [{"value": b"x", "partition": partition}])
    _meeting.wait(60)
    times, until = list[float](), time.perf_counter() + span_s
    while time.perf_counter() < until:
        times.append(common.clock(lambda: log.append("t", [{"value": b"x", "partition": partition}])))
    return len(times), max(times) * 1e3


def by_slices(sizes: Sizes) -> Table:
    """Plan a read of a topic with this many slices of objects that do not exist: only its metadata."""
    parts = "plan all, ms", "plan one partition, ms", "plan one record, ms", "open, ms"
    costs: dict[str, list[float]] = {name: [] for name in parts}
    for count in sizes.slices:
        with common.folder() as url:
            log = spark_log.connect(url, durability="os")
            partitions = min(PLANNED_PARTITIONS, count // 100)
            topic = log.create_topic(spark_log.NewTopic("t", partitions))
            producer, made = PlainProducer(log.journal), 0
            while made < count:
                some = min(SLICES_A_COMMIT, count - made)
                producer.commit(log.journal.state.version, [named(topic, made, some, partitions, log.journal.state)])
                made += some
            log.journal.run_maintenance()
            costs["open, ms"].append(best(lambda url=url: spark_log.connect(url), sizes.tries) * 1e3)
            assert len(log.plan("t")) == count
            costs["plan all, ms"].append(best(lambda log=log: log.plan("t"), sizes.tries) * 1e3)
            costs["plan one partition, ms"].append(best(lambda log=log: log.plan("t", [0]), sizes.tries) * 1e3)
            middle = log.journal.state.partitions[topic, 0].end // 2
            one = best(lambda log=log, at=middle: log.plan("t", [0], at, at + 1), sizes.tries)
            costs["plan one record, ms"].append(one * 1e3)
    return Table(
        "slices",
        "slices of a topic",
        list(map(float, sizes.slices)),
        costs,
        "A plan creates an object for every slice that is read, 1 µs each. Many slices are sealed into "
        "indexes; a plan unpacks the rows of the indexes that overlap, 0.1 µs each. An open reads the "
        "checkpoint, 2 µs for each object of the log. In the smallest log, too few commits exist for a seal, "
        "so it reads the slices too",
    )


def by_objects(sizes: Sizes) -> Table:
    """Opening from a checkpoint with this many live objects, a partition for every ten, and writing the next one."""
    opened, written, size = "open, CPU ms", "the next checkpoint, CPU ms", "its file, MB"
    costs: dict[str, list[float]] = {name: [] for name in (opened, written, size)}
    for count in sizes.objects:
        tries = [checkpoint.measured(count) for _ in range(sizes.tries)]
        costs[opened].append(min(one["decode_ms"] for one in tries))
        costs[written].append(min(one["changed_encode_ms"] for one in tries))
        costs[size].append(tries[0]["file_mb"])
    return Table(
        "objects",
        "live objects",
        list(map(float, sizes.objects)),
        costs,
        "An open decompresses the columns of all objects and partitions. The next checkpoint encodes the blocks that "
        f"contain the {checkpoint.CHANGES:,} changed objects, and copies the rest",
    )


def by_merged_slices(sizes: Sizes) -> Table:
    """Rounds of `pylog maintain` in a log with this many merged slices, ten in each partition."""
    first, idle = "the first round of the log, CPU s", "without changes, CPU s"
    new = f"after {sizes.new_commits} commits of {maintenance.PER_TOPIC} slices, CPU s"
    costs: dict[str, list[float]] = {first: [], new: [], idle: []}
    for count in sizes.merged:
        log = maintenance.Measured(count // 10, count)
        run = maintenance.Maintainer(log.open()).round
        costs[first].append(log.measure(run)["cpu_seconds"])
        log.write(sizes.new_commits)
        costs[new].append(log.measure(run)["cpu_seconds"])
        log.measure(run)
        costs[idle].append(min(log.measure(run)["cpu_seconds"] for _ in range(sizes.tries)))
    return Table(
        "maintenance",
        "merged slices in the log",
        list(map(float, sizes.merged)),
        costs,
        "The first round checks all partitions and seals their slices. Later rounds check partitions that "
        "changed: a commit of 100 slices changes 100. A round without changes reads the end of the log",
    )


def by_groups(sizes: Sizes) -> Table:
    """Heartbeats of this many groups of one member, and joins of as many members of one group, without HTTP.

    Garbage is collected as often as in a coordinator.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*groups.GARBAGE)
    beat, join = "a heartbeat that waits, CPU µs", "a join and a sync, CPU µs a member"
    costs: dict[str, list[float]] = {beat: [], join: []}
    for count in sizes.groups:
        costs[beat].append(min(groups.heartbeat_us(count) for _ in range(sizes.tries)))
        costs[join].append(min(groups.joins_s(count) for _ in range(sizes.tries)) / count * 1e6)
    gc.set_threshold(*thresholds)
    return Table(
        "groups",
        "groups, or members of one group",
        list(map(float, sizes.groups)),
        costs,
        "Timers wait in one heap, and a heartbeat reads only its group. A member joins once, and the leader "
        "receives the list of members",
    )


def by_topics(sizes: Sizes) -> Table:
    """A task of a Spark write whose rows name their topics, this many, rows of 100 bytes with keys."""
    cost: list[float] = []
    for count in sizes.topics:
        batches = write_task.make_batches(sizes.topic_rows, 100, True, count)
        with common.folder() as url:
            admin = spark_log.connect(url).admin
            admin.create_topics([spark_log.NewTopic(write_task.name_of(number), 1) for number in range(count)])
            run = write_task.task(url, batches, {})
            run()
            took = min(common.clock(run, time.process_time) for _ in range(sizes.tries))
        cost.append(took / sizes.topic_rows * 1e6)
    return Table(
        "topics",
        "topics that rows name",
        list(map(float, sizes.topics)),
        {"a row, CPU µs": cost},
        "32 MiB of rows are sorted by topic and partition at a time. With many topics, batches are short, and "
        "compression starts again for each column of a batch",
    )


def named(topic: str, made: int, count: int, partitions: int, state: State) -> Uploaded:
    """A commit of `count` slices, ten per object."""
    epoch = f"data/{state.version:016x}"
    objects = tuple(DataObject(f"{epoch}/{made + at:016x}.seg", 128 << 20, 127 << 20) for at in range(0, count, 10))
    runs = tuple(
        (
            at // 10,
            Run(topic, (made + at) % partitions, (at % 10) << 20, 1 << 20, 0, 10_000, 10, made + at, made + at + 1),
        )
        for at in range(count)
    )
    return Uploaded(objects, runs)


def best(run: Callable[[], object], tries: int) -> float:
    """The shortest of several runs, because other work on the machine can only add time."""
    return min(common.clock(run) for _ in range(tries))


TABLES: dict[str, Callable[[Sizes], Table]] = {
    "partitions": by_partitions,
    "commits": by_commits,
    "maintained": maintained,
    "record_size": by_record_size,
    "writers": by_writers,
    "slices": by_slices,
    "objects": by_objects,
    "maintenance": by_merged_slices,
    "groups": by_groups,
    "topics": by_topics,
}


def to_json(table: Table) -> dict[str, Any]:
    fits = {name: round(exponent(table.x, cost), 2) for name, cost in table.costs.items()}
    return {**table._asdict(), "exponents": fits, "growth": {name: called(fit) for name, fit in fits.items()}}


def show(made: dict[str, Any]) -> None:
    print(f"\n{made['varied']}: {', '.join(f'{x:,.0f}' for x in made['x'])}")
    for name, cost in made["costs"].items():
        points = ", ".join(f"{value:.3g}" for value in cost)
        print(f"  {name}: {points}; exponent {made['exponents'][name]:+.2f}, {made['growth'][name]}")
    print(f"  {made['bound']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument(
        "--only", type=common.some_of(tuple(TABLES)), default=tuple(TABLES), help=f"some of {','.join(TABLES)}"
    )
    parser.add_argument("--json", type=Path, help="a file of results, in which what else it holds stays")
    given = parser.parse_args()
    tables, begun = {}, time.perf_counter()
    for name in given.only:
        tables[name] = to_json(TABLES[name](QUICK if given.quick else FULL))
        show(tables[name])
        if given.json:
            common.keep(given.json, {name: tables[name]})
    common.report(
        "growth",
        seconds=time.perf_counter() - begun,
        **{f"{name}: {cost}": fit for name, made in tables.items() for cost, fit in made["exponents"].items()},
    )


if __name__ == "__main__":
    main()
