"""A plan says what its read will fetch, to the byte; and what a condition leaves out is not fetched."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_log
from simulation.harness.stores import CountingStore
from spark_log import NewTopic
from spark_log.client.reader.fetch import Touched, fetch, touched
from spark_log.client.reader.plan import SliceRead
from spark_log.client.reader.request_ahead import WHOLE_BYTES_MAX
from spark_log.client.reader.scan_batches import scan_batches, scan_schema
from spark_log.conditions import as_condition
from spark_log.journal.store_operations import Stores
from spark_log.maintenance.maintain import checkpoint, merge
from spark_log.metadata.records import Piece
from tests.conftest import Bucket

START = datetime(2026, 1, 31, tzinfo=timezone.utc)
HOUR_US = 3_600_000_000
LARGE, SMALL, SEALED = 30_000, 50, 260
WIDTH = 100


def events(first: int, count: int, rng: np.random.Generator, *, ordered: bool = True) -> pa.Table:
    """Records of one partition each, `WIDTH` bytes that do not compress, 10,000 an hour."""
    at = np.arange(first, first + count)
    if not ordered:
        rng.shuffle(at)
    base = int(START.timestamp()) * 1_000_000
    return pa.table(
        {
            "key": pa.array(at % 7).cast(pa.string()),
            "value": [rng.bytes(WIDTH) for _ in range(count)],
            "timestamp": pa.array(base + at * (HOUR_US // 10_000), pa.timestamp("us", "UTC")),
            "headers": [[{"key": "h", "value": b"1"}]] * count,
        }
    )


def fill(log: spark_log.Log, *, large_commits: int = 1) -> None:
    """Topic t, partition 0: a large commit, or several, in order of time, then small ones; partition 1: a large one in
    no order.
    """
    rng = np.random.default_rng(7)
    log.admin.create_topics([NewTopic("t", 2, {"retention.ms": "-1"})])
    each = LARGE // large_commits
    for first in range(0, LARGE, each):
        log.append("t", in_partition(events(first, each, rng), 0))
    for number in range(4):
        log.append("t", in_partition(events(LARGE + SMALL * number, SMALL, rng), 0))
    log.append("t", in_partition(events(0, LARGE, rng, ordered=False), 1))


def in_partition(table: pa.Table, number: int) -> pa.Table:
    return table.append_column("partition", pa.array([number] * table.num_rows))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, spark_log.Log]:
    """The same records as they were written, with their slices in indexes, and merged."""
    made = {}
    for name in ("written", "sealed", "merged"):
        made[name] = log = spark_log.connect(str(tmp_path_factory.mktemp(name)), durability="os")
        # Merging leaves a large slice alone that small ones follow.
        fill(log, large_commits=2 if name == "merged" else 1)
    for number in range(SEALED):
        rows = events(LARGE + 4 * SMALL + number, 1, np.random.default_rng(number))
        made["sealed"].append("t", in_partition(rows, 0))
    checkpoint(made["sealed"])
    merge(made["merged"])
    return made


def hours(first: float, last: float) -> str:
    low, high = (START + timedelta(hours=number) for number in (first, last))
    return f"timestamp >= '{low:%Y-%m-%d %H:%M:%S.%f}' and timestamp < '{high:%Y-%m-%d %H:%M:%S.%f}'"


READS: dict[str, dict[str, Any]] = {
    "everything": {},
    "nothing": {"start": "latest"},
    "from within a run": {"start": 12_345},
    "to within a run": {"end": 12_345},
    "a window": {"where": hours(1.2, 1.4)},
    "a window that holds all": {"where": hours(-1, 9)},
    "a window before all": {"where": hours(-2, -1)},
    "a window within a range": {"start": 5000, "end": 25_000, "where": hours(0.9, 1.1)},
    "a partition": {"where": "partition = 1"},
    "offsets": {"where": "offset between 11000 and 12000"},
    "listed offsets": {"where": "offset in (3, 29999, 30020)"},
    "small runs alone": {"where": f"offset >= {LARGE + 60}"},
    "all of it": {"where": f"partition = 0 and offset > 9000 and {hours(0.8, 2.1)}"},
}


def fetched(log: spark_log.Log, columns: list[str], **read: Any) -> tuple[int, pa.Table]:
    """Bytes that the reads of a plan fetch, and what they give."""
    where, schema = as_condition(read.get("where")), scan_schema(columns)
    reads, inner, counting = log.plan("t", **read), log.journal.stores, CountingStore(log.journal.objects)
    log.journal.stores = Stores.of(inner.metadata, counting)
    try:
        table = pa.Table.from_batches(scan_batches(log.journal, reads, schema, where), schema)
    finally:
        log.journal.stores = inner
    return counting.read.total(), table


def planned(log: spark_log.Log, **read: Any) -> Touched:
    where = as_condition(read.get("where"))
    found = [touched(log.journal.objects, one, where.window) for one in log.plan("t", **read)]
    return Touched(*(sum(column) for column in zip(*found, strict=True))) if found else Touched(0, 0, 0)


# Promise: cli.md#pylog-plan, spark-read.md#reading-less
@pytest.mark.parametrize("kind", ["written", "sealed", "merged"])
@pytest.mark.parametrize("name", READS)
def test_what_is_planned_is_fetched(logs: dict[str, spark_log.Log], kind: str, name: str) -> None:
    """Bytes are equal, whatever the projection; records are at least those that are given."""
    log, read = logs[kind], READS[name]
    plan = planned(log, **read)
    size, table = fetched(log, ["offset"], **read)
    assert size == plan.bytes and table.num_rows <= plan.records
    assert fetched(log, ["value"], **read)[0] == plan.bytes


def test_the_kinds_of_logs_are_what_they_are_called(logs: dict[str, spark_log.Log]) -> None:
    """Runs too large for one go, pieces, and a merged segment."""
    reads = {kind: [one for one in log.plan("t") if one.partition == 0] for kind, log in logs.items()}
    assert [len(found) for found in reads.values()] == [5, 5 + SEALED, 1]
    assert all(found[0].slice.length > WHOLE_BYTES_MAX for found in reads.values())
    state = logs["sealed"].journal.state
    assert any(isinstance(entry, Piece) for entry in state.partitions[state.names["t"], 0].entries)


# Promise: ../README.md#why
@pytest.mark.parametrize("kind", ["written", "merged"])
def test_a_window_of_ordered_times_fetches_the_batches_in_it(logs: dict[str, spark_log.Log], kind: str) -> None:
    """One or two batches of 10,000 records and the index; without order every batch may hold such a time."""
    everything = planned(logs[kind])
    ordered = planned(logs[kind], where=f"partition = 0 and {hours(1.2, 1.4)}")
    assert ordered.batches <= 2 and ordered.bytes < everything.bytes / 4
    size, table = fetched(logs[kind], ["timestamp"], where=f"partition = 0 and {hours(1.2, 1.4)}")
    assert table.num_rows == 2000 and size == ordered.bytes
    unordered = planned(logs[kind], where=f"partition = 1 and {hours(1.2, 1.4)}")
    assert unordered.batches == planned(logs[kind], where="partition = 1").batches


def test_a_whole_read_needs_no_index_to_be_planned(logs: dict[str, spark_log.Log]) -> None:
    """Nor does a read of a window that holds the run; a part of a large run needs its own."""
    log, counting = logs["merged"], CountingStore(logs["merged"].journal.objects)
    for read, needed in (({}, 0), ({"where": hours(-1, 9)}, 0), ({"where": f"partition = 0 and {hours(1, 2)}"}, 1)):
        counting.read.clear()
        window = as_condition(read.get("where")).window
        for one in log.plan("t", **read):
            touched(counting, one, window)
        assert len(counting.read) == needed


def test_on_an_object_store_it_is_the_same(s3: Callable[[], Bucket]) -> None:
    """With the next bytes fetched ahead."""
    bucket = s3()
    log = spark_log.connect(f"{bucket.url}/log", bucket.options)
    fill(log)
    for read in (READS["everything"], READS["a window"], READS["all of it"]):
        assert fetched(log, ["offset"], **read)[0] == planned(log, **read).bytes


# Bytes a record: four for each offset of a variable length, eight for a time; headers have three such lengths.
WIDTHS = {"key": 4 + 1, "value": 4 + WIDTH, "timestamp": 8, "headers": 3 * 4 + 2}


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("columns", [[], *([name] for name in WIDTHS), ["key", "timestamp"]])
def test_columns_that_are_not_asked_for_are_not_decoded(
    logs: dict[str, spark_log.Log], rows: int, columns: list[str]
) -> None:
    """Arrow has memory only for requested columns, in a run that is read whole and in one read by batches."""
    log = logs["written"]
    read = next(one for one in log.plan("t") if one.end - one.start == rows)
    assert 0 <= decoded(log, read, columns) - rows * sum(WIDTHS[name] for name in columns) < 1024


def decoded(log: spark_log.Log, read: SliceRead, columns: list[str]) -> int:
    """Bytes that Arrow holds for what a read gives, beyond what was fetched."""
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    kept = list(fetch(log.journal.objects, read, columns))
    assert sum(part.records.num_rows for part in kept) == read.end - read.start
    return pool.bytes_allocated() - before


@pytest.mark.parametrize("seed", range(6))
def test_a_scan_gives_what_its_condition_says(logs: dict[str, spark_log.Log], seed: int) -> None:
    """The rows of a full scan that match, in their order, with any columns; timestamps in no order, too."""
    rng = random.Random(seed)
    log = logs[["written", "sealed", "merged"][seed % 3]]
    whole = log.read("t", columns=["partition", "offset", "timestamp"]).to_pylist()
    first, low = rng.uniform(-1, 3), rng.randrange(LARGE)
    last, high = first + rng.uniform(0, 2), low + rng.randrange(LARGE)
    text = " and ".join(
        rng.sample([hours(first, last), f"offset between {low} and {high}", f"partition = {rng.randrange(2)}"], 2)
    )
    where = as_condition(text)
    expected = [
        (row["partition"], row["offset"])
        for row in whole
        if row["partition"] in where.partition
        and row["offset"] in where.offset
        and (row["timestamp"] - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1) in where.time_us
    ]
    found = log.scan("t", columns=["partition", "offset"], where=text).read_all()
    assert list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True)) == expected


def test_times_of_the_log_are_what_a_condition_sees(tmp_path: Path) -> None:
    """With message.timestamp.type=LogAppendTime, the commit's time counts, in any projection, merged as well."""
    log = spark_log.connect(str(tmp_path / "log"))
    log.admin.create_topics([NewTopic("t", 1, {"message.timestamp.type": "LogAppendTime"})])
    old = [{"value": "x", "timestamp": START - timedelta(days=900)}] * 3
    log.append("t", old)
    log.append("t", old)
    stamps = log.read("t").column("timestamp").to_pylist()
    text = f"timestamp >= '{stamps[3]:%Y-%m-%d %H:%M:%S.%f}'"
    for _ in range(2):
        assert log.read("t", columns=["offset"], where=text).column("offset").to_pylist() == [3, 4, 5]
        assert log.read("t", where="timestamp < '2024-01-01'").num_rows == 0
        merge(log)


def test_an_object_that_was_merged_away_is_planned_again(tmp_path: Path) -> None:
    """With the same condition."""
    log = spark_log.connect(str(tmp_path / "log"), durability="os")
    log.admin.create_topics([NewTopic("t", 1, {"retention.ms": "-1"})])
    for number in range(4):
        log.append("t", events(SMALL * number, SMALL, np.random.default_rng(7)))
    where = as_condition(hours(60 / 10_000, 120 / 10_000))
    reads = log.plan("t", where=where)
    merge(log)
    log.journal.objects.delete({read.slice.object for read in reads})
    schema = scan_schema(["offset"])
    found = pa.Table.from_batches(scan_batches(log.journal, reads, schema, where), schema)
    assert found["offset"].to_pylist() == list(range(60, 120))
