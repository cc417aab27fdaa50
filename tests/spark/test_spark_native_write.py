"""Batch writes that are encoded in the JVM: the same rows, partitions and errors as through Python, and which of them
are left to Python.
"""

from __future__ import annotations

import random
import re
import resource
import struct
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark_pylog.sink.encoded_rows import BATCHES, ENCODED, HEAD, ROW, take_encoded

import spark_log
from spark_log import NewTopic
from spark_log.client.producer.topic_rules import topic_spec
from spark_log.client.producer.upload import Uploader
from spark_log.errors import StorageError
from spark_log.recovery.verify import verify
from spark_log.segment.arrays import ipc
from spark_log.segment.row_sorter import HELD_BYTES
from spark_log.segment.schema import RECORD_SCHEMA
from spark_log.store.memory import MemoryStore
from tests.spark.builders import append, load, run_job, script
from tests.spark.native_paths import MARKS, increase_of, rows

pytestmark = MARKS
LARGE = {"max.message.bytes": str(10 << 20)}
TYPES = {
    "key": ("binary", "string"),
    "value": ("string", "binary"),
    "timestamp": ("timestamp", "bigint"),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
NOW = datetime.now(timezone.utc)


@pytest.fixture
def encoded(classic: SparkSession) -> Callable[[], int]:
    """How many tasks the JVM has encoded to their last row since the last call."""
    writer: Any = classic._jvm.io.pylog.spark.PylogWriter  # type: ignore[union-attr]
    return increase_of(writer.encoded)


@pytest.fixture
def few(classic: SparkSession) -> Iterator[None]:
    """Rows are checked in groups of 50."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    classic.conf.set(name, "50")
    yield
    classic.conf.unset(name)


def both(log: spark_log.Log, url: str, frame: DataFrame, topic: str, **options: Any) -> None:
    """Write a frame through the JVM, and to another topic through Python."""
    append(frame, url, topic, **options)
    append(frame, url, f"{topic}-python", nativeRead="false", **options)


def of_both(log: spark_log.Log, topic: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records of both topics."""
    return log.read(topic).to_pylist(), log.read(f"{topic}-python").to_pylist()


def create(log: spark_log.Log, topic: str, partitions: int = 1, **configs: str) -> None:
    for name in (topic, f"{topic}-python"):
        log.create_topic(
            NewTopic(name, partitions, configs={name.replace("_", "."): configs[name] for name in configs})
        )


def random_frame(spark: SparkSession, rng: random.Random, count: int) -> DataFrame:
    """Columns of random types, with nulls, empty texts and some large ones."""
    chosen = {name: rng.choice(types) for name, types in TYPES.items() if name == "value" or rng.random() < 0.7}
    made: dict[str, Callable[[], Any]] = {
        "key": lambda: rng.choice(
            [None, b"", b"k%d" % rng.randrange(9), rng.randbytes(rng.randrange(1, 20)).hex().encode()]
        ),
        "value": lambda: rng.choice(
            [None, b"", b"v" * rng.randrange(300), rng.randbytes(rng.choice([3, 9, 40_000])).hex().encode()]
        ),
        "timestamp": lambda: rng.choice([None, rng.randrange(-(10**6), 1_700_000_000_000)]),
        "partition": lambda: rng.choice([None, None, rng.randrange(3)]),
        "headers": lambda: rng.choice([None, [], random_headers(rng)]) if rng.random() < often else None,
    }
    often = rng.choice([0, 0.02, 1])

    def cell(name: str) -> Any:
        value = made[name]()
        if chosen[name] == "string":
            return None if value is None else value.decode()
        if chosen[name] == "timestamp":
            return None if value is None else datetime.fromtimestamp(value / 1000, timezone.utc)
        return value

    found = [tuple(cell(name) for name in chosen) for _ in range(count)]
    return spark.createDataFrame(found, ", ".join(f"`{name}` {kind}" for name, kind in chosen.items())).coalesce(1)


def random_headers(rng: random.Random) -> list[tuple[str, bytes | None]]:
    names = ["", "a", "trace-id", "größe", "🍐"]
    return [(rng.choice(names), rng.choice([None, b"", rng.randbytes(30)])) for _ in range(rng.randrange(1, 4))]


def comparable(record: dict[str, Any], columns: list[str]) -> tuple[Any, ...]:
    """The parts that both paths share: not the partitions and times that are drawn."""
    fixed = record["key"] is not None
    return (
        record["key"],
        record["value"],
        record["timestamp"] if "timestamp" in columns and record["timestamp"] < NOW else None,
        record["partition"] if fixed else None,
        record.get("headers") or None,
    )


def summary(records: list[dict[str, Any]], columns: list[str]) -> tuple[dict[int, list[Any]], list[str]]:
    """Records with a key, by partition and in order; and all records."""
    of_keys: dict[int, list[Any]] = {}
    for record in records:
        if record["key"] is not None:
            of_keys.setdefault(record["partition"], []).append(comparable(record, columns))
    return of_keys, sorted(repr(comparable(record, columns)) for record in records)


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.usefixtures("few")
def test_random_frames_have_the_same_rows(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int], codec: str
) -> None:
    """In the same partitions, and in their order; objects are whole."""
    rng, large = random.Random(codec), 0
    for number in range(8):
        topic = f"t{number}"
        create(
            log,
            topic,
            3,
            compression_type=codec,
            message_timestamp_before_max_ms=str(2**62),
            max_message_bytes="10000000",
        )
        count = rng.choice([0, 1, 49, 50, 51, 400])
        frame, large = random_frame(classic, rng, count), large + (count > 1)
        both(log, url, frame, topic)
        native, python = of_both(log, topic)
        assert summary(native, frame.columns) == summary(python, frame.columns)
        of_java, of_python = (
            load(classic, url, topic, nativeRead=way, includeHeaders=True) for way in ("true", "false")
        )
        assert rows(of_java) == rows(of_python)
    assert encoded() == large > 0
    assert verify(log, deep=True) == []


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.usefixtures("few")
def test_rows_that_name_their_topics_are_the_same(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int]
) -> None:
    """Each topic has its own codec, partitions and rules."""
    rng = random.Random(3)
    create(log, "a", 3, compression_type="lz4", message_timestamp_before_max_ms=str(2**62))
    create(log, "b", 1, compression_zstd_level="9", message_timestamp_before_max_ms=str(2**62))
    create(log, "unused", 5)
    create(log, "c", 3, max_message_bytes="10000000", message_timestamp_before_max_ms=str(2**62))
    topic = F.element_at(F.array(*map(F.lit, "abc")), F.pmod(F.hash("value"), F.lit(3)) + 1)
    for partitioner in ("default", "round-robin"):
        frame = random_frame(classic, rng, 300).drop("partition").withColumn("topic", topic)
        append(frame, url, None, partitioner=partitioner)
        named = frame.withColumn("topic", F.concat("topic", F.lit("-python")))
        append(named, url, None, partitioner=partitioner, nativeRead="false")
    for name in "abc":
        native, python = of_both(log, name)
        assert summary(native, []) == summary(python, []) != ({}, [])
    assert encoded() == 2
    assert verify(log, deep=True) == []


NAMED = {"null": "InvalidRecord", "'typed'": "InvalidRecord", "'new'": ""}
"""Topics that a row may name, and the error."""


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.usefixtures("few")
def test_rows_for_topics_that_java_does_not_write(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int], name: str
) -> None:
    """Python writes them with the rows that follow, or finds them bad."""
    create(log, "t", 2)
    log.create_topic(NewTopic("typed", 1, schema="a INT"))
    said = []
    for topic, native in (("t", "true"), ("t-python", "false")):
        frame = classic.range(0, 300, 1, 1).selectExpr(
            "'k' key", "string(id) value", f"if(id = 120, {name}, '{topic}') topic"
        )
        if NAMED[name]:
            with pytest.raises(PySparkException) as error:
                append(frame, url, None, nativeRead=native)
            said.append(re.search(rf"{NAMED[name]}: (.*badRecords[^)]*\))", str(error.value))[1])  # type: ignore[index]
        append(frame, url, None, nativeRead=native, badRecords=f"topic:dead-{native}")
    assert len(set(said)) <= 1
    native_rows, python_rows = of_both(log, "t")
    assert [r["value"] for r in native_rows] == [r["value"] for r in python_rows]
    assert len(native_rows) == 299 and encoded() == 0
    dead = [log.read(f"dead-{native}").to_pylist() for native in ("true", "false")]
    assert [r["value"] for r in dead[0]] == [r["value"] for r in dead[1]]
    assert len(dead[0]) == bool(NAMED[name])
    assert verify(log, deep=True) == []


# Promise: spark-write.md#encoded-in-the-jvm
def test_many_partitions_and_much_memory(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int]
) -> None:
    """Rows of one partition keep their order when the largest partitions are encoded early."""
    create(log, "t", 40)
    frame = classic.range(0, 9_000, 1, 1).select(
        (F.col("id") % 61).cast("string").alias("key"),
        F.concat(F.lpad(F.col("id").cast("string"), 8, "0"), F.repeat(F.lit("x"), F.lit(9_000))).alias("value"),
    )
    assert 2 * HELD_BYTES < 9_000 * 9_000
    both(log, url, frame, "t")
    native, python = (
        {p: [r["value"][:8] for r in rows if r["partition"] == p] for p in range(40)} for rows in of_both(log, "t")
    )
    assert native == python
    assert encoded() == 1
    assert verify(log, deep=True) == []


# Promise: spark-write.md#encoded-in-the-jvm
def test_full_batches_and_a_record_larger_than_one(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int]
) -> None:
    create(log, "t", 2, **LARGE)
    small = classic.range(0, 55_000, 1, 1).selectExpr("string(id) key", "string(id) value")
    large = classic.range(0, 3, 1, 1).selectExpr("string(id) key", "repeat('y', 3000000) value")
    both(log, url, small.union(large).coalesce(1), "t")
    native, python = of_both(log, "t")
    assert [(r["key"], r["partition"], r["offset"]) for r in native] == [
        (r["key"], r["partition"], r["offset"]) for r in python
    ]
    assert [len(r["value"]) for r in native] == [len(r["value"]) for r in python]
    assert encoded() == 1
    assert verify(log, deep=True) == []


def test_what_would_become_too_large_is_not_compressed(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    """A reader refuses 30 MB that a few bytes declare."""
    create(log, "t", 1, **{"max.message.bytes": "40000000"})
    both(log, url, classic.range(0, 1, 1, 1).selectExpr("repeat('z', 30000000) value"), "t")
    native, python = of_both(log, "t")
    assert native[0]["value"] == python[0]["value"]
    assert verify(log, deep=True) == []


@pytest.mark.parametrize("partitioner", ["round-robin", "sticky"])
@pytest.mark.usefixtures("few")
def test_other_partitioners(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int], partitioner: str
) -> None:
    create(log, "t", 3)
    both(
        log,
        url,
        classic.range(0, 400, 1, 1).selectExpr("lpad(id, 3, '0') key", "repeat('v', 200) value"),
        "t",
        partitioner=partitioner,
    )
    native, python = of_both(log, "t")
    assert encoded() == 1
    if partitioner == "round-robin":
        assert [(r["key"], r["partition"]) for r in native] == [(r["key"], r["partition"]) for r in python]
    else:
        runs = [r["partition"] for r in sorted(native, key=lambda r: int(r["key"]))]
        assert all(len(set(runs[at : at + 81])) == 1 for at in range(0, 400, 81))


def rows_with(spark: SparkSession, bad: str, at: int = 120) -> DataFrame:
    """300 rows, of which one is another one."""
    frame = spark.range(0, 300, 1, 1).selectExpr(
        "'k' key",
        "string(id) value",
        "timestamp_millis(1700000000000) timestamp",
        "0 partition",
        "array(struct('h' as key, binary(string(id)) as value)) headers",
    )
    name, other = bad.split("=", 1)
    return frame.withColumn(name, F.expr(f"if(value = '{at}', {other}, {name})"))


BAD = {
    "value=repeat('x', 2000)": "MessageTooLarge",
    "partition=3": "InvalidRecord",
    "partition=-1": "InvalidRecord",
    "key=cast(null as string)": "InvalidRecord",
    "timestamp=timestamp_millis(0)": "InvalidTimestamp",
    "timestamp=now() + interval 3 days": "InvalidTimestamp",
    "headers=array(struct(cast(binary(x'ff') as string) as key, binary('x') as value))": "InvalidRecord",
    "headers=array_repeat(struct('h' as key, binary(repeat('x', 50)) as value), 15)": "MessageTooLarge",
}
RULES = {
    "max.message.bytes": "1000",
    "cleanup.policy": "compact",
    "message.timestamp.before.max.ms": str(10**12),
    "message.timestamp.after.max.ms": str(86_400_000),
}


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.usefixtures("few")
def test_bad_rows_are_the_same_errors(classic: SparkSession, url: str, log: spark_log.Log, bad: str) -> None:
    create(log, "t", 2, **RULES)
    said = []
    for topic, native in (("t", "true"), ("t-python", "false")):
        with pytest.raises(PySparkException) as error:
            append(rows_with(classic, bad), url, topic, nativeRead=native)
        sentence = re.search(r"(\w+): (.*badRecords[^)]*\))", str(error.value))
        assert sentence is not None
        said.append(
            re.sub(r"\d{13} ms", "… ms", sentence[0].replace("'t-python'", "'t'").replace("alter t-python", "alter t"))
        )
    assert said[0] == said[1]
    assert BAD[bad] in said[0] and "(1 of 150 rows read so far" in said[0]
    assert log.read("t").num_rows == 0


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.usefixtures("few")
def test_bad_rows_become_dead_letters(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int], bad: str
) -> None:
    """Python writes the rows from the bad one on, into the same object."""
    create(log, "t", 2, **RULES)
    for topic, native in (("t", "true"), ("t-python", "false")):
        append(rows_with(classic, bad), url, topic, nativeRead=native, badRecords=f"topic:dead-{native}")
    native_rows, python_rows = of_both(log, "t")
    of = ("key", "value", "offset", "headers")
    assert [[r[name] for name in of] for r in native_rows] == [[r[name] for name in of] for r in python_rows]
    assert len(native_rows) == 299 and encoded() == 0
    one, other = (log.read(f"dead-{native}").to_pylist() for native in ("true", "false"))
    assert [(r["key"], r["value"]) for r in one] == [(r["key"], r["value"]) for r in other] != []
    assert verify(log, deep=True) == []


def test_milliseconds_that_are_too_large(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    create(log, "t")
    frame = classic.range(0, 9, 1, 1).selectExpr("string(id) value", f"if(id = 5, {2**62}, id) timestamp")
    for topic, native in (("t", "true"), ("t-python", "false")):
        with pytest.raises(PySparkException, match="values too large for milliseconds"):
            append(frame, url, topic, nativeRead=native)


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.usefixtures("few")
def test_what_is_left_to_python(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int]
) -> None:
    log.create_topic(NewTopic("t", 1))
    log.create_topic(NewTopic("typed", 1, schema="a INT"))
    frame = classic.range(0, 5, 1, 1).selectExpr("string(id) value")
    append(frame, url, nativeRead="false")
    append(frame.limit(4), url)
    append(frame, url, compression="none")
    append(frame.withColumn("topic", F.lit("t")), url, None, compression="none")
    append(frame, url, partitioner="tests.spark.test_spark_native_write:First")
    append(frame.selectExpr("int(value) a"), url, "typed")
    assert encoded() == 0
    classic.conf.set("spark.pylog.nativeRead", "false")
    append(frame, url)
    classic.conf.set("spark.pylog.nativeRead", "true")
    assert encoded() == 0
    append(frame, url)
    assert encoded() == 1
    assert (log.read("t").num_rows, log.read("typed").num_rows) == (34, 5)


class First:
    """A partitioner."""

    def partition(self, keys: pa.Array, values: pa.Array, count: int) -> list[int]:
        return [0] * len(keys)


@pytest.mark.usefixtures("few")
def test_columns_that_are_not_written_and_rows_that_are_not_unsafe(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int]
) -> None:
    create(log, "t")
    data = [(1, "a", "k", [1]), (2, None, None, None)] * 3
    frame = classic.createDataFrame(data, "id INT, value STRING, key STRING, more ARRAY<INT>").coalesce(1)
    both(log, url, frame, "t")
    native, python = of_both(log, "t")
    assert [(r["key"], r["value"]) for r in native] == [(b"k", b"a"), (None, None)] * 3
    assert [(r["key"], r["value"]) for r in python] == [(b"k", b"a"), (None, None)] * 3
    assert encoded() == 1


def test_a_replayed_version_is_written_once(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    create(log, "t")
    frame = classic.range(0, 20, 1, 2).selectExpr("string(id) value")
    for native in ("true", "false", "true"):
        append(frame, url, txnAppId="app", txnVersion="1", nativeRead=native)
    assert log.read("t").num_rows == 20


# Promise: spark-write.md#encoded-in-the-jvm
def test_an_attempt_that_fails_leaves_no_file(
    classic: SparkSession, url: str, log: spark_log.Log, tmp_path: Path
) -> None:
    """A task that fails after it has encoded rows leaves no visible record, and its file is deleted."""
    create(log, "t")
    folder = Path(classic._jvm.org.apache.spark.util.Utils.getLocalDir(classic.sparkContext._jsc.sc().conf()))  # type: ignore[union-attr]
    fails = F.expr("if(id = 29999, raise_error('the last row'), string(id))").alias("value")
    with pytest.raises(PySparkException, match="the last row"):
        append(classic.range(0, 30_000, 1, 1).select(fails), url)
    assert log.read("t").num_rows == 0
    append(classic.range(0, 3, 1, 1).selectExpr("string(id) value"), url)
    assert log.read("t").num_rows == 3
    assert not list(folder.glob("pylog-*.rows"))


# Promise: spark-write.md#encoded-in-the-jvm
def test_only_its_user_can_read_the_file(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    folder = Path(classic._jvm.org.apache.spark.util.Utils.getLocalDir(classic.sparkContext._jsc.sc().conf()))  # type: ignore[union-attr]

    def modes(number: int) -> str:
        return " ".join(oct(path.stat().st_mode & 0o777) for path in folder.glob("pylog-*.rows"))

    append(classic.range(0, 50_000, 1, 1).select(F.udf(modes, useArrow=False)("id").alias("value")), url)
    assert {r["value"] for r in log.read("t").to_pylist()} - {b""} == {b"0o600"}


# Promise: spark-write.md#encoded-in-the-jvm
@pytest.mark.parametrize("room", [0, 300_000, 3_000_000])
def test_python_takes_what_a_full_disk_does_not(
    classic: SparkSession, url: str, log: spark_log.Log, encoded: Callable[[], int], room: int
) -> None:
    """Rows that are encoded stay, and Python gets the others, of all partitions, in their order."""
    create(log, "t", 4)
    append(classic.range(0, 1_000, 1, 1).selectExpr("'first' key", "'first' value"), url)
    assert encoded() == 1
    frame = classic.range(0, 90_000, 1, 1).selectExpr(
        "if(id % 9 = 0, null, string(id % 7)) key", "concat(lpad(id, 8, '0'), sha2(string(id), 512)) value"
    )
    append(frame, url, "t-python", nativeRead="false")
    jvm = classic._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    before = resource.prlimit(jvm, resource.RLIMIT_FSIZE)
    resource.prlimit(jvm, resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        append(frame, url)
    finally:
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, before)
    native, python = of_both(log, "t")
    native = [record for record in native if record["value"] != b"first"]
    assert summary(native, []) == summary(python, [])
    assert encoded() == 0
    assert verify(log, deep=True) == []


FALLS_BACK = """
import spark_log
from pyspark import TaskContext
from pyspark.sql import functions as F
def write(master, rows, **confs):
    spark = session(master, **confs)
    spark_log.register(spark)
    frame = spark.range(0, 5_000, 1, 1).select(rows("id").alias("value"))
    frame.write.format("pylog").mode("append").option("topic", "t").save(sys.argv[1])
    print("encoded", spark._jvm.io.pylog.spark.PylogWriter.encoded())
    spark.stop()
def fails_once(number):
    if number == 4_999 and TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("first attempt")
    return str(number)
def rows(column):
    return F.col(column).cast("string")
write("local[1]", rows)
write("local[1,2]", F.udf(fails_once, useArrow=False))
write("local[1]", rows, spark_executor_cores="1000")
write("local[1]", rows, spark_io_encryption_enabled="true")
"""


# Promise: spark-write.md#encoded-in-the-jvm
def test_when_python_writes_all_rows_of_a_task(tmp_path: Path, url: str, log: spark_log.Log) -> None:
    """In the second attempt of a task, with too little memory for each core, and if Spark encrypts its files."""
    said = run_job(script(tmp_path / "job.py", FALLS_BACK), url)
    assert re.findall(r"encoded (\d+)", said) == ["1"] * 4
    assert sorted(int(r["value"]) for r in log.read("t").to_pylist()) == sorted([*range(5_000)] * 4)


@pytest.mark.parametrize("native", ["true", "false"])
def test_a_column_with_the_name_of_ours_is_refused(
    classic: SparkSession, url: str, log: spark_log.Log, native: str
) -> None:
    frame = classic.range(0, 3, 1, 1).selectExpr("string(id) value", "binary('x') `pylog.encoded`")
    with pytest.raises(PySparkException, match=r"column 'pylog.encoded' has a name that pylog uses itself"):
        append(frame, url, nativeRead=native)


# ------------------------------------------------------------------------------------------------ what Python takes


def handed_over(folder: Path, data: bytes, crc: int) -> pa.RecordBatch:
    """Java gives this to Python: three rows of partition 0 in a file, and one row that is left to Python."""
    path = folder / "rows"
    path.write_bytes(data)
    name = str(path).encode()
    listed = struct.pack("<iiiiqqqqq", 0, 0, 3, 0, 1, 3, 0, len(data), crc)
    assert len(listed) == BATCHES.itemsize
    head = HEAD.pack(3, ROW, len(name)) + name + listed
    return pa.record_batch({"value": pa.array([b"left"]), ENCODED: pa.array([head])})


def message() -> bytes:
    columns = [
        pa.array([b"a", b"b", b"c"]),
        pa.array([b"1", None, b"3"]),
        pa.array([1, 2, 3]).cast(RECORD_SCHEMA.types[2]),
    ]
    return ipc.encode_batch(pa.record_batch(columns, schema=RECORD_SCHEMA), ipc.write_options(None))


def test_python_takes_what_is_encoded(log: spark_log.Log, tmp_path: Path) -> None:
    log.create_topic(NewTopic("t", 1))
    spec, data = topic_spec(log.journal.state, "t"), message()
    uploader = Uploader(MemoryStore("objects"), 1, random.Random(1))
    rest = take_encoded(handed_over(tmp_path, data, crc32c(data)), [spec], uploader)
    assert rest.rows.to_pydict() == {"value": [b"left"]} and rest.encoded == 3
    again = take_encoded(pa.record_batch({"value": [b"x"], ENCODED: pa.nulls(1, pa.binary())}), [spec], uploader)
    assert again.rows.num_rows == 1 and again.encoded == 0


@pytest.mark.parametrize("fault", ["changed", "gone"])
def test_a_file_that_is_not_as_written_is_an_error(log: spark_log.Log, tmp_path: Path, fault: str) -> None:
    log.create_topic(NewTopic("t", 1))
    data = message()
    batch = handed_over(tmp_path, data[:-1] + b"x", crc32c(data))
    if fault == "gone":
        (tmp_path / "rows").unlink()
    with pytest.raises(StorageError, match="other bytes than Spark wrote" if fault == "changed" else "cannot be read"):
        take_encoded(batch, [topic_spec(log.journal.state, "t")], Uploader(MemoryStore("objects"), 1, random.Random(1)))


def test_times_are_checked_by_the_present(classic: SparkSession, url: str, log: spark_log.Log) -> None:
    """A row without a time gets the present one."""
    create(log, "t", 1, **{"message.timestamp.before.max.ms": "3600000"})
    both(log, url, classic.range(0, 5, 1, 1).selectExpr("string(id) value", "cast(null as timestamp) timestamp"), "t")
    native, python = of_both(log, "t")
    for record in (*native, *python):
        assert abs(record["timestamp"] - NOW) < timedelta(hours=1)
