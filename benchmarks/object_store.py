"""How much does a log on an object store cost: round trips, milliseconds, requests, dollars?

A store in memory with S3's latencies: 15 ms for a get or a listing, 30 ms for a put, with jitter from a seed; unlimited
bandwidth, so that round trips are visible.  By hand: a small commit is a put, then a put, then a get in parallel with a
listing: 30 + 30 + 15 ms and some jitter.  A poll without news is one get.  Writers of one log take turns, so 8 of them
reach the rate of the chain of records: a put, then a get in parallel with a listing, 45 ms each, and less with retries:
10 to 20 commits a second.

    --quick       fewer of everything
    --json FILE   the table, for the page
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import common
import pyarrow as pa

import spark_log
from simulation.harness.slow_store import SlowStore, TimedRequest, counts, round_trips
from spark_log.journal.journal import Journal
from spark_log.recovery.verify import verify
from spark_log.store.base import ObjectStore
from spark_log.store.memory import MemoryStore

PRICES_OF = "S3 Standard, us-east-1, list prices as of January 2025"
DOLLARS_PUT_OR_LIST = 0.005 / 1000
DOLLARS_GET = 0.0004 / 1000
"""A get, or a request for a size; deletes are free."""
MONTH_S = 30 * 24 * 3600
LARGE_ROWS = 60_000
WIDE, WIDE_COMMITS = 50, 30
SLICES = 16
HOUSE_COMMITS = 300
"""In this many commits, maintenance runs three times."""
EVERY_S = {"commit": 1.0, "idle": 0.5, "found": 1.0}
"""How often the table has the operation, for the price of a month."""


class Line(NamedTuple):
    """The cost of one operation, the median of its tries."""

    what: str
    round_trips: int
    ms: float
    requests: dict[str, int]
    dollars_a_month: float | None
    """Once in `every_s`; None for an operation that is not periodic."""
    every_s: float | None


def dollars(requests: Counter[str]) -> float:
    dear = requests["put"] + requests["put_new"] + requests["list"]
    return dear * DOLLARS_PUT_OR_LIST + (requests["get"] + requests["size"]) * DOLLARS_GET


def line(
    store: SlowStore,
    what: str,
    do: Callable[[], object],
    tries: int,
    every_s: float | None = None,
    before: Callable[[], object] = lambda: None,
) -> Line:
    """The try with the fewest round trips, with the median time: on a busy machine, parallel requests start late."""
    runs: list[tuple[int, list[TimedRequest]]] = []
    times = []
    for _ in range(tries):
        before()
        begun = time.perf_counter()
        with store.watched() as requests:
            do()
        times.append((time.perf_counter() - begun) * 1000)
        runs.append((round_trips(requests), requests))
    fewest, requests = min(runs, key=lambda run: run[0])
    month = None if every_s is None else dollars(counts(requests)) * MONTH_S / every_s
    return Line(what, fewest, statistics.median(times), dict(counts(requests)), month, every_s)


def open_log(store: ObjectStore) -> spark_log.Log:
    return spark_log.Log(Journal.open(store, create=True))


def measure(tries: int, rows: int, scale: float = 1.0) -> list[Line]:
    inner = MemoryStore(uuid.uuid4().hex)
    store = SlowStore(inner, get_ms=15 * scale, put_ms=30 * scale)
    near = open_log(inner)
    for topic in ("t", "other", "big"):
        near.create_topic(spark_log.NewTopic(topic, 1))
    big = pa.table({"value": [uuid.uuid4().bytes * 2 for _ in range(LARGE_ROWS)]})
    near.append("big", big)
    for number in range(20):
        near.append("t", [{"value": b"%d" % number}])
    log = open_log(store)
    wide = pa.table({"value": [b"%0100d" % number for number in range(rows)]})
    opened = line(store, f"open a log of {near.journal.state.version} versions", lambda: open_log(store), tries)
    lines = [
        line(store, "a small commit", lambda: log.append("t", [{"value": b"x"}]), tries, EVERY_S["commit"]),
        line(store, f"an append of {rows:,} records of 100 bytes", lambda: log.append("other", wide), min(tries, 3)),
        opened,
    ]
    lines += cold_reads(store, tries)
    lines += tail(store, near, tries)
    return [*lines, large_slices(2 * rows, min(tries, 3), scale), *wide_topic(tries, scale)]


def large_slices(rows: int, tries: int, scale: float) -> Line:
    """One append of a task to many partitions, read whole in a log that is open.

    By hand: the log and its checkpoints, the index of the object, and the slices four at a time.
    """
    inner = MemoryStore(uuid.uuid4().hex)
    near = open_log(inner)
    near.create_topic(spark_log.NewTopic("slices", SLICES))
    numbers = pa.array([number % SLICES for number in range(rows)], pa.int32())
    values = pa.array([uuid.uuid4().bytes * 2 for _ in range(rows)])
    near.append("slices", pa.table({"value": values, "partition": numbers}))
    store = SlowStore(inner, get_ms=15 * scale, put_ms=30 * scale)
    log = open_log(store)

    def read() -> None:
        assert log.read("slices", columns=["offset"]).num_rows == rows

    size = sum(each.slice.length for each in log.plan("slices")) / SLICES / 2**20
    return line(store, f"read {SLICES} slices of {size:.1f} MiB in one object", read, tries)


def wide_topic(tries: int, scale: float) -> list[Line]:
    """A topic of 50 partitions, of which each commit has all, in a log that is open."""
    inner = MemoryStore(uuid.uuid4().hex)
    near = open_log(inner)
    near.create_topic(spark_log.NewTopic("wide", WIDE))
    rows = [{"value": b"x", "partition": number} for number in range(WIDE)]
    times = []
    for _ in range(WIDE_COMMITS):
        near.append("wide", rows)
        times.append(near.journal.state.time)
    store = SlowStore(inner, get_ms=15 * scale, put_ms=30 * scale)
    log = open_log(store)
    middle = {spark_log.TopicPartition("wide", number): times[WIDE_COMMITS // 2] for number in range(WIDE)}
    with log.consumer("wide", auto_offset_reset="latest", max_poll_records=WIDE) as consumer:
        consumer.poll(0)

        def poll() -> None:
            assert sum(map(len, consumer.poll(60_000).values())) == WIDE

        return [
            line(
                store,
                f"a poll that finds a commit of {WIDE} partitions",
                poll,
                tries,
                before=lambda: near.append("wide", rows),
            ),
            line(
                store,
                f"offsets for times of {WIDE} partitions",
                lambda: consumer.offsets_for_times(middle),
                tries,
            ),
            line(store, f"verify {len(near.journal.refresh().objects)} objects", lambda: verify(log), tries),
        ]


def cold_reads(store: SlowStore, tries: int) -> list[Line]:
    """Reads of logs that were just opened: neither the object nor its indexes are in memory."""
    fresh: list[spark_log.Log] = []

    def renew() -> None:
        fresh[:] = [open_log(store)]

    def read(topic: str, start: int, end: int) -> None:
        assert fresh[0].read(topic, partition=0, start=start, end=end).num_rows == end - start

    return [
        line(store, "cold read of a small commit", lambda: read("t", 7, 8), tries, before=renew),
        line(store, "cold read over 16 small commits", lambda: read("t", 2, 18), tries, before=renew),
        line(
            store, "cold read of 10 records in a large object", lambda: read("big", 30_000, 30_010), tries, before=renew
        ),
    ]


def tail(store: SlowStore, writer: spark_log.Log, tries: int) -> list[Line]:
    log = open_log(store)
    with log.consumer("t", auto_offset_reset="latest") as consumer:
        consumer.poll(0)
        idle = line(store, "a poll that finds nothing", lambda: consumer.poll(0), tries, EVERY_S["idle"])
        found = line(
            store,
            "a poll that finds a commit",
            lambda: poll_one(consumer),
            tries,
            EVERY_S["found"],
            before=lambda: writer.append("t", [{"value": b"x"}]),
        )
    return [idle, found]


def poll_one(consumer: spark_log.client.consumer.consumer.Consumer) -> None:
    assert sum(map(len, consumer.poll(60_000).values())) == 1


def commits_per_second(writers: int, seconds: float) -> float:
    """Writers that each commit one record after the other, each with its own view of the log, as separate processes
    have.
    """
    inner = MemoryStore(uuid.uuid4().hex)
    open_log(inner).create_topic(spark_log.NewTopic("t", 1))
    logs = [open_log(SlowStore(inner, get_ms=15, put_ms=30)) for _ in range(writers)]
    begun = time.perf_counter()

    def write(log: spark_log.Log) -> int:
        count = 0
        while time.perf_counter() - begun < seconds:
            log.append("t", [{"value": b"x"}])
            count += 1
        return count

    with ThreadPoolExecutor(writers) as pool:
        return sum(pool.map(write, logs)) / (time.perf_counter() - begun)


def with_maintenance(commits: int) -> Line:
    """A commit's share of sealing, checkpoints and the objects that they replace, without waiting for any of it."""
    store = SlowStore(MemoryStore(uuid.uuid4().hex), get_ms=0, put_ms=0)
    log = open_log(store)
    log.append("t", [{"value": b"x"}])
    with store.watched() as requests:
        for _ in range(commits):
            log.append("t", [{"value": b"x"}])
    found = counts(requests)
    month = dollars(found) / commits * MONTH_S / EVERY_S["commit"]
    each = {kind: round(count / commits, 2) for kind, count in found.items()}
    return Line("a small commit with its share of maintenance", 3, 0.0, each, month, EVERY_S["commit"])  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    parser.add_argument("--json", type=Path, help="a file of results, in which what else it holds stays")
    given = parser.parse_args()
    lines = measure(3 if given.quick else 15, 1000 if given.quick else 500_000)
    busy = {n: commits_per_second(n, 1 if given.quick else 30) for n in (1, 8)}
    share = with_maintenance(110 if given.quick else HOUSE_COMMITS)
    for one in (*lines, share):
        month = "" if one.dollars_a_month is None else f"; ${one.dollars_a_month:.2f} a month, every {one.every_s} s"
        asked = ", ".join(f"{count} {kind}" for kind, count in sorted(one.requests.items()))
        print(f"{one.what}: {one.round_trips} round trips, {one.ms:.0f} ms; {asked}{month}")
    print(", ".join(f"{count:.1f} commits a second of {n} writers" for n, count in busy.items()))
    if given.json:
        common.keep(
            given.json, {"object_store": {"prices": PRICES_OF, "lines": [one._asdict() for one in (*lines, share)]}}
        )
    common.report(
        "object_store",
        **{one.what: one.round_trips for one in lines},
        commit_ms=lines[0].ms,
        found_ms=next(one.ms for one in lines if one.what == "a poll that finds a commit"),
        commits_per_second=busy,
    )


if __name__ == "__main__":
    main()
