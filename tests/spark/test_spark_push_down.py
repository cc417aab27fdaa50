"""Queries of a registered session: which columns and rows they read, and that their rows are those of all records."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import stat
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark_pylog.native import compiled

import spark_log
from spark_log import NewTopic, TopicPartition
from tests.spark.builders import DEADLINE_S, append, load, load_stream, texts

pytestmark = [
    pytest.mark.tasks,
    pytest.mark.skipif(os.environ.get("PYLOG_PUSH_DOWN") == "false", reason="PYLOG_PUSH_DOWN=false turns it off"),
]
START = datetime(2026, 1, 31, tzinfo=timezone.utc)
SCHEMA = (
    "id INT, size BIGINT, price DECIMAL(10,2), weight DOUBLE, ratio FLOAT, name STRING, ok BOOLEAN, day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY, place STRUCT<city: STRING, at: STRUCT<x: INT, y: INT>>, "
    "tags ARRAY<STRUCT<k: STRING, v: INT>>"
)


def scan_of(frame: DataFrame) -> str:
    """How a frame's plan describes its only scan, without its reader."""
    plan = str(frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]
    (line,) = (line for line in plan.splitlines() if "BatchScan" in line)
    return line.partition("] ")[2].partition(" RuntimeFilters")[0].removesuffix(" natively")


def row(rng: random.Random, number: int) -> dict[str, Any]:
    """A value, with a null here and there."""
    value = {
        "id": rng.randrange(-20, 20),
        "size": rng.choice([-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1]),
        "price": f"{rng.randrange(-500, 500) / 100:.2f}",
        "weight": rng.choice([0.0, -0.0, 0.1, 1e9, float("nan"), float("inf"), -2.5]),
        "ratio": rng.choice([0.0, 0.1, float("nan"), 16777216.0, -2.5]),
        "name": rng.choice(["", "a", "A", "it's", "b\\n", "ä", "😀", "a b"]),
        "ok": rng.random() < 0.5,
        "day": (START + timedelta(days=rng.randrange(-3, 3))).date(),
        "at": START + timedelta(microseconds=rng.randrange(-5_000_000, 5_000_000)),
        "local": (START + timedelta(seconds=rng.randrange(-5, 5))).replace(tzinfo=None),
        "raw": bytes([rng.randrange(3)]),
        "place": {"city": f"c{number % 3}", "at": {"x": number % 5, "y": number}},
        "tags": [{"k": "k", "v": number}],
    }
    return {name: None if rng.random() < 0.1 else kept for name, kept in value.items()}


@pytest.fixture(scope="module")
def typed(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with the topic t, of 300 rows with a schema in several commits, and u, of bytes."""
    url = str(tmp_path_factory.mktemp("typed") / "log")
    log, rng = spark_log.connect(url, durability="os"), random.Random(7)
    log.admin.create_topics([NewTopic("t", 3, schema=SCHEMA), NewTopic("u", 2)])
    for commit in range(5):
        times = [START + timedelta(seconds=rng.randrange(-3000, 3000)) for _ in range(60)]
        rows = [row(rng, number) for number in range(60)]
        frame = classic.createDataFrame(
            [
                (*(None if value is None else typed_value(name, value) for name, value in one.items()), time)
                for one, time in zip(rows, times, strict=True)
            ],
            f"{SCHEMA}, timestamp TIMESTAMP",
        )
        append(frame, url, "t")
        values = [b"%d" % number for number in range(60 * commit, 60 * commit + 60)]
        pairs = zip(values, times, strict=True)
        log.append("u", [{"value": value, "timestamp": time, "partition": commit % 2} for value, time in pairs])
    return url


def typed_value(name: str, value: Any) -> Any:
    from decimal import Decimal

    return Decimal(value) if name == "price" else value


LITERALS = {
    "id": ["-3", "0", "7", "2147483647", "3000000000", "1.5"],
    "size": ["0", "9007199254740993", "-9223372036854775808", "1.0"],
    "price": ["0", "1.23", "-4.99", "1.234", "100000000000"],
    "weight": ["0.1D", "0", "double('NaN')", "-2.5", "1e9"],
    "ratio": ["float(0.1)", "0.1D", "16777217", "0"],
    "name": ["''", "'a'", "'it''s'", "'ä'", "'😀'", "'b\\\\n'"],
    "ok": ["true", "false"],
    "day": ["date'2026-01-31'", "'2026-02-01'", "timestamp'2026-01-31 00:00:01'"],
    "at": ["timestamp'2026-01-31 00:00:00.000001'", "'2026-01-31'", "date'2026-01-31'"],
    "local": ["timestamp_ntz'2026-01-31 00:00:01'", "timestamp'2026-01-31 00:00:01'"],
    "raw": ["X'01'", "X''"],
    "place.city": ["'c1'"],
    "place.at.x": ["2"],
    "offset": ["10", "50", "-1", "10.5"],
    "partition": ["0", "1", "5"],
    "timestamp": ["timestamp'2026-01-31 00:10:00'", "'2026-01-30T23:50:00Z'"],
    "topic": ["'t'"],
    "timestampType": ["0"],
}


def condition(rng: random.Random, prefix: str, depth: int = 2) -> str:
    if depth and rng.random() < 0.5:
        one, other = (condition(rng, prefix, depth - 1) for _ in range(2))
        return f"({one} {rng.choice(['AND', 'OR'])} {other})"
    if depth and rng.random() < 0.2:
        return f"NOT ({condition(rng, prefix, depth - 1)})"
    name = rng.choice(list(LITERALS))
    column = name if name in ("offset", "partition", "timestamp", "topic", "timestampType") else prefix + name
    literals = LITERALS[name]
    match rng.randrange(8):
        case 0:
            return f"{column} IN ({', '.join(rng.choices(literals, k=2))})"
        case 1:
            return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
        case 2:
            return f"{column} <=> {rng.choice(literals)}"
        case _:
            return f"{column} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {rng.choice(literals)}"


def selections(prefix: str) -> list[list[str]]:
    names = ["id", "price", "place.city", "place.at", "tags.v", "name", "raw"]
    own = [[prefix + one for one in names[at : at + 3]] for at in range(5)]
    return [*own, ["offset"], ["partition", "timestamp"], ["topic", prefix + "weight"], ["count(*)"]]


# Promise: spark-read.md#reading-less
@pytest.mark.parametrize("layout", ["columns", "struct"])
def test_random_queries_have_the_rows_of_all_records(classic: SparkSession, typed: str, layout: str) -> None:
    """With and without; of a frame that is used for many queries."""
    rng, prefix = random.Random(layout), "value." if layout == "struct" else ""
    options = {"value.format": layout}
    with_it, without = load(classic, typed, **options), load(classic, typed, **options, pushDown="false")
    skipping = 0
    for _ in range(20):
        text, chosen = condition(rng, prefix), rng.choice(selections(prefix))
        found, all_rows = (
            sorted(map(str, frame.where(text).selectExpr(*chosen).collect())) for frame in (with_it, without)
        )
        assert found == all_rows, f"{chosen} where {text}"
        skipping += " where " in scan_of(with_it.where(text))
    assert skipping > 4


def test_a_query_of_named_columns_may_use_fewer(classic: SparkSession, typed: str) -> None:
    frame = load(classic, typed, columns="id,name,offset")
    assert frame.select("ID").count() == frame.count() == 300
    assert sorted(map(str, frame.where("id > 3").select("name").collect())) == sorted(
        map(str, load(classic, typed).where("id > 3").select("name").collect())
    )


def test_a_deep_filter_is_left_to_spark(classic: SparkSession, typed: str) -> None:
    """`where` refuses what is nested even more deeply."""
    condition = F.col("offset") == -1
    for number in range(60):
        condition = (condition | (F.col("offset") == number)) & (F.col("partition") >= 0)
    found = load(classic, typed, "u").where(condition).select("offset")
    assert scan_of(found) == "pylog (partition, offset) where (`partition` >= 0)"
    assert found.count() == 120


@pytest.mark.parametrize(
    "text",
    [
        "value.offset > 100",
        "value.partition = 5",
        "value.Timestamp IS NOT NULL",
        "value.key = 'k1'",
        "value.value.x = 1",
    ],
)
def test_fields_named_as_the_columns_of_a_record_are_not_taken_for_them(
    classic: SparkSession, url: str, log: spark_log.Log, text: str
) -> None:
    """The struct has the names of the topic's schema, which `where` would take for those of the record."""
    schema = "offset BIGINT, partition INT, Timestamp TIMESTAMP, key STRING, value STRUCT<x: INT, y: INT>"
    log.admin.create_topics([NewTopic("own", 1, schema=schema)])
    named = [f"value.{field}" for field in ("offset", "partition", "Timestamp", "key", "value")]
    frame = classic.createDataFrame([(99 + n, 5, START, f"k{n}", (n, n)) for n in range(4)], schema).toDF(*named)
    append(frame, url, "own")
    found, all_rows = (
        load(classic, url, "own", pushDown=push_down, **{"value.format": "struct"}).where(text).collect()
        for push_down in ("true", "false")
    )
    assert found == all_rows != []


# Promise: spark-read.md#reading-less
def test_a_plan_names_the_columns_and_the_condition(classic: SparkSession, typed: str) -> None:
    frame = load(classic, typed)
    assert scan_of(frame.where("id > 3 AND price < 2").select("name")) == (
        "pylog (id, price, name) where (`id` > 3) AND (`price` < 2.00)"
    )
    assert scan_of(frame.where("name = 'it''s'").select("id")) == "pylog (id, name)"
    struct = load(classic, typed, **{"value.format": "struct"})
    assert scan_of(struct.where("offset = 3").select("value.id", "value.place.city")) == (
        "pylog (value: id, place, offset) where (`offset` = 3)"
    )


# Promise: spark-read.md#reading-less
def test_a_count_decodes_no_value(classic: SparkSession, typed: str) -> None:
    """Not even with an own schema that has none of the small columns."""
    frame = load(classic, typed, "u")
    assert scan_of(frame.groupBy().count()) == "pylog (partition)"
    assert frame.count() == 300
    assert frame.select(F.lit(1)).count() == len(frame.select(F.lit(1)).collect()) == 300
    small = classic.read.format("pylog").schema("value binary").option("subscribe", "u").load(typed)
    assert small.count() == 300


# Promise: spark-read.md#reading-less
def test_queries_of_one_frame_keep_their_filters_apart(classic: SparkSession, typed: str) -> None:
    """Spark keeps what a Python source made of a filter for all later queries of its frame."""
    frame = load(classic, typed, "u")
    frame.createOrReplaceTempView("pushed")
    for _ in range(2):
        assert frame.where("offset < 3").count() == 6
        assert frame.count() == 300
        assert classic.sql("SELECT count(*) FROM pushed WHERE offset >= 3").first() == (294,)
        assert frame.where("offset < 3").join(frame.where("offset < 2"), "value").count() == 4
    classic.catalog.dropTempView("pushed")


# Promise: spark-read.md#reading-less
def test_the_option_where_and_a_filter_both_apply(classic: SparkSession, typed: str) -> None:
    frame = load(classic, typed, "u", WHERE="offset < 3 or offset > 147", endingOffsets="latest")
    assert sorted(r[0] for r in frame.where("offset < 5").select("offset").collect()) == [0, 0, 1, 1, 2, 2]


# Promise: spark-read.md#reading-less
def test_a_frame_sees_records_added_after_its_first_query(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    log.append("t", texts(3))
    frame = load(classic, url)
    assert (frame.count(), frame.where("offset > 1").count()) == (3, 1)
    log.append("t", texts(3))
    assert (frame.count(), frame.where("offset > 1").count()) == (6, 4)


@pytest.mark.parametrize(
    ("positions", "fixed"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, True),
        ({"STARTINGOFFSETS": '{"t":{"0":1}}'}, True),
        ({"startingOffsets": '{"t": {"0": -2}}'}, True),
        ({"endingOffsets": '{"t":{"0":12}}'}, False),
        ({"startingOffsets": "latest-2"}, False),
        ({"startingOffsets": '{"t":"latest-2"}'}, False),
        ({"endingOffsets": "latest-1"}, False),
        ({"startingTimestamp": "2020-01-01T00:00:00Z"}, False),
    ],
)
def test_positions_that_move_are_looked_up_once(
    classic: SparkSession, url: str, log: spark_log.Log, positions: dict[str, str], fixed: bool
) -> None:
    """For all scans of a frame: two of them could start at different records otherwise."""
    log.append("t", texts(3))
    frame = load(classic, url, **positions)
    assert (scan_of(frame.select("offset")) == "pylog (offset)") == fixed
    first = frame.count()
    log.append("t", texts(2))
    one, other = frame.select("offset"), frame.select("offset", "value")
    assert one.join(other, "offset", "full_outer").count() == one.count() >= first


# Promise: spark-read.md#reading-less
@pytest.mark.parametrize("view", ["latest", ""])
def test_a_view_of_the_latest_records_is_filtered_afterwards(
    classic: SparkSession, url: str, log: spark_log.Log, view: str
) -> None:
    """A record that does not match is newer than one that does, and still replaces it."""
    log.append("t", [{"key": b"k", "value": b"old"}, {"key": b"l", "value": b"l"}, {"key": b"k", "value": b"new"}])
    frame = load(classic, url, **({"view": view} if view else {}))
    assert frame.where("offset < 2").count() == (1 if view else 2)


def test_the_progress_of_groups_is_read_with_any_filter(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    log.append("t", texts(3))
    log.admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 2})
    frame = load(classic, url, "__consumer_offsets")
    everything = frame.count()
    assert everything > 0
    assert frame.where("offset >= 0 OR partition < 0").count() == everything
    assert frame.where("offset < 0").count() == 0
    assigned = load(classic, url, None, assign=json.dumps({"__consumer_offsets": list(range(50))}))
    assert assigned.where("offset >= 0 OR partition < 0").count() == everything


# Promise: spark-read.md#reading-less
def test_the_option_and_the_setting_turn_it_off(classic: SparkSession, typed: str) -> None:
    off = load(classic, typed, "u", pushDown="false").where("offset < 3").select("offset")
    assert "(Python)" in scan_of(off)
    classic.conf.set("spark.pylog.pushDown", "false")
    try:
        frame = load(classic, typed, "u").where("offset < 3").select("offset")
        assert "(Python)" in scan_of(frame)
        assert (off.count(), frame.count()) == (6, 6)
        assert scan_of(load(classic, typed, "u", pushDown="true").select("offset")) == "pylog (offset)"
    finally:
        classic.conf.set("spark.pylog.pushDown", "true")


def test_an_invalid_option_is_named(classic: SparkSession, typed: str) -> None:
    with pytest.raises(PySparkException, match="option pushDown: 'maybe'"):
        load(classic, typed, "u", pushDown="maybe").count()


def test_an_invalid_setting_is_named(classic: SparkSession, typed: str) -> None:
    """It would turn the feature off without notice."""
    frame = load(classic, typed, "u")
    classic.conf.set("spark.pylog.pushDown", "maybe")
    try:
        with pytest.raises(PySparkException, match="setting spark.pylog.pushDown: 'maybe' is not true or false"):
            frame.count()
    finally:
        classic.conf.set("spark.pylog.pushDown", "true")


# Promise: spark-read.md#reading-less
def test_update_mode_appends_each_change(classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path) -> None:
    """A log of changes: each micro-batch appends the rows that it changed."""
    counts = load_stream(classic, url, maxOffsetsPerTrigger="2").groupBy("key").count()
    counts = counts.select("key", F.col("count").cast("string").alias("value"))
    for _ in range(2):
        log.append("t", [{"key": b"a", "value": b"x"}, {"key": b"b", "value": b"x"}])
    writer = counts.writeStream.format("pylog").option("topic", "totals").outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    assert writer.start(url).awaitTermination(DEADLINE_S)
    rows = [(r.key, r.value) for r in load(classic, url, "totals").collect()]
    assert sorted(rows) == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"b", b"2")]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pylog"


# Promise: spark-read.md#reading-less
def test_the_classes_are_kept_where_only_the_user_can_write(classic: SparkSession, cache: Path) -> None:
    jvm: Any = classic._jvm
    made = compiled.jar(jvm, compiled.loader(jvm), classic.version, compiled.sources())
    assert made.parent == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    changed = made.stat().st_mtime_ns
    assert compiled.jar(jvm, compiled.loader(jvm), classic.version, compiled.sources()) == made
    assert made.stat().st_mtime_ns == changed
    cache.chmod(0o777)
    assert compiled.jar(jvm, compiled.loader(jvm), classic.version, compiled.sources()).parent != cache


def test_a_damaged_file_of_classes_is_compiled_again(classic: SparkSession, cache: Path) -> None:
    """It would turn the feature off for ever."""
    jvm: Any = classic._jvm
    loader = compiled.loader(jvm)
    made = compiled.jar(jvm, loader, classic.version, compiled.sources())
    whole = made.stat().st_size
    for size in (0, whole // 2):
        os.truncate(made, size)
        assert compiled.jar(jvm, loader, classic.version, compiled.sources()) == made
        assert made.stat().st_size == whole
    assert list(cache.iterdir()) == [made]


# Promise: spark-read.md#reading-less
def test_a_spark_that_cannot_compile_the_source_says_so(
    classic: SparkSession, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, *others = compiled.sources()
    source = source.replace("PythonDataSourceV2", "RenamedInALaterSpark")
    with caplog.at_level(logging.INFO, "spark_log"):
        assert "RenamedInALaterSpark" in compiled.load(classic._jvm, classic.version, (source, *others))
    (record,) = caplog.records
    assert f"as Spark {classic.version} cannot compile its planner: org.codehaus" in record.getMessage()
    assert "RenamedInALaterSpark" in record.getMessage().splitlines()[0]
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("part", "used", "left", "what"),
    [
        ("reader", "ConstantColumnVector", compiled.PLANS, "reads"),
        ("writer", "PythonBatchWriterFactory", compiled.READS, "writes"),
    ],
)
def test_a_spark_that_cannot_compile_a_part_uses_python_for_it(
    classic: SparkSession, cache: Path, caplog: pytest.LogCaptureFixture, part: str, used: str, left: str, what: str
) -> None:
    sources = dict(zip(("source", "reader", "writer"), compiled.sources(), strict=True))
    sources[part] = sources[part].replace(used, "RenamedInALaterSpark")
    with caplog.at_level(logging.INFO, "spark_log"):
        assert compiled.load(classic._jvm, classic.version, tuple(sources.values())) == left
    (record,) = caplog.records
    assert f"{what} with Python here, as Spark {classic.version} cannot compile its {part}" in record.getMessage()


@pytest.mark.skipif(shutil.which("javac") is None, reason="a Java without a compiler is enough to run Spark")
def test_the_java_sources_have_no_lint(tmp_path: Path) -> None:
    """Casts that only Janino needs, and the schema of a table, which Spark 4.0 still calls, are no faults."""
    jars = ":".join(map(str, Path(pyspark.__path__[0]).glob("jars/*.jar")))
    lint = "-Xlint:all,-cast,-deprecation,-classfile,-path,-processing"
    command = ["javac", lint, "-Werror", "-proc:none", "-cp", jars, "-d", str(tmp_path)]
    sources = [str(Path(compiled.__file__).with_name(name)) for name in compiled.SOURCES]
    done = subprocess.run([*command, *sources], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
