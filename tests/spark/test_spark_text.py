"""Keys and values as text: `key.format=string`, `value.format=string`, and schemas with STRING."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.source.stream_columns import StreamColumns

import spark_log
from spark_log.errors import InvalidRequest
from tests.spark.builders import DEADLINE_S, asked, copy, load, load_stream
from tests.spark.native_paths import IS_OFF, counter, is_native
from tests.thinning import thin

TEXT = {"key.format": "string", "value.format": "string"}
BAD = b"caf\xe9 \xff"
"""Not UTF-8."""
ROWS = [(b"a", b"3 apples"), (b"b", "1 Birne für Jörg 🍐".encode()), (None, b""), (b"\xc3", BAD), (b"a", None)]


@pytest.fixture
def filled(log: spark_log.Log) -> str:
    """The URL of a log with the topic t, of two commits."""
    for rows in (ROWS[:3], ROWS[3:]):
        log.append("t", [{"key": key, "value": value} for key, value in rows])
    return log.url


def hexes(frame: DataFrame) -> list[Row]:
    """All rows, with the bytes of their texts."""
    return frame.select("offset", "partition", F.hex("key"), F.hex("value")).orderBy("offset").collect()


def cast(frame: DataFrame) -> DataFrame:
    return frame.withColumns({name: F.col(name).cast("string") for name in ("key", "value")})


# Promise: spark.md#keys-and-values-as-text
def test_texts_are_those_of_a_cast(spark: SparkSession, filled: str) -> None:
    """Text has the bytes, nulls and types of a cast; `is_valid_utf8` finds what is not UTF-8."""
    as_text, as_bytes = load(spark, filled, **TEXT), load(spark, filled)
    assert as_text.schema == cast(as_bytes).schema
    assert as_text.columns == as_bytes.columns
    assert hexes(as_text) == hexes(cast(as_bytes)) == hexes(as_bytes)
    bad = as_text.where("not is_valid_utf8(value)").selectExpr("offset", "make_valid_utf8(value) as value")
    assert bad.collect() == [Row(offset=3, value="caf� �")]


def test_one_of_them_can_be_text(spark: SparkSession, filled: str) -> None:
    """The other one stays bytes."""
    key, value = (load(spark, filled, **{f"{name}.format": "string"}) for name in ("key", "value"))
    assert (key.schema["key"].dataType.simpleString(), key.schema["value"].dataType.simpleString()) == (
        "string",
        "binary",
    )
    assert key.where("offset = 0").select("key", "value").head() == Row(key="a", value=b"3 apples")
    assert value.where("offset = 0").select("key", "value").head() == Row(key=b"a", value="3 apples")


# Promise: spark.md#keys-and-values-as-text
def test_a_schema_with_string_is_enough(spark: SparkSession, filled: str) -> None:
    """Fewer columns, in the schema's order; types that contradict an option are refused."""
    reader = spark.read.format("pylog").option("subscribe", "t")
    found = reader.schema("offset bigint, value string").load(filled)
    assert found.orderBy("offset").head(2) == [
        Row(offset=0, value="3 apples"),
        Row(offset=1, value=ROWS[1][1].decode()),
    ]  # type: ignore[union-attr]
    with pytest.raises(PySparkException, match=r"'value' is BINARY, and value\.format=string gives STRING"):
        reader.schema("value binary").options(**TEXT).load(filled).collect()


# Promise: spark.md#keys-and-values-as-text
@pytest.mark.parametrize("push_down", ["true", "false"])
def test_queries_filter_and_prune_texts(spark: SparkSession, filled: str, push_down: str) -> None:
    """With and without pushdown: counts, filters on texts and offsets, the option `where`, the latest of each key."""
    frame = load(spark, filled, pushDown=push_down, **TEXT)
    assert frame.count() == len(ROWS)
    assert frame.where("key = 'a' and offset < 3").select("value").collect() == [Row(value="3 apples")]
    assert frame.where("value like '%Birne%'").select("key").collect() == [Row(key="b")]
    assert [row.offset for row in frame.where("key is null or value is null").orderBy("offset").collect()] == [2, 4]
    some = load(spark, filled, where="offset = 0", pushDown=push_down, **TEXT)
    assert some.select("key", "value").collect() == [Row(key="a", value="3 apples")]
    latest = load(spark, filled, view="latest", pushDown=push_down, **TEXT)
    assert sorted(row.key for row in latest.where("is_valid_utf8(key)").collect()) == ["b"]


# Promise: spark-read.md#read-in-the-jvm
@pytest.mark.skipif(IS_OFF, reason="it is turned off")
@pytest.mark.tasks
def test_texts_are_read_in_the_jvm(classic: SparkSession, log: spark_log.Log, tmp_path: Path) -> None:
    """Random bytes, nulls, holes and typed topics, in batches and streams; none of it is left to Python."""
    rng = random.Random(5)
    drawn = [[rng.choice([None, rng.randbytes(rng.randrange(9))]) for _ in range(2)] for _ in range(400)]
    rows = [*ROWS, *((key, value) for key, value in drawn)]
    log.create_topic(spark_log.NewTopic("t", 1))
    log.create_topic(spark_log.NewTopic("typed", 1, schema="id BIGINT, text STRING"))
    for part in (rows[:5], rows[5:]):
        log.append("t", [{"key": key, "value": value} for key, value in part])
        log.append("typed", [{"key": key, "id": 1, "text": "é"} for key, _ in part])
    thin(log, "t", lambda offset: offset % 3 != 1, first=-1)
    left = counter(classic)
    for topic, options in (("t", TEXT), ("t", {"value.format": "string"}), ("typed", {"key.format": "string"})):
        native, python = (load(classic, log.url, topic, nativeRead=path, **options) for path in ("true", "false"))
        assert is_native(native) and not is_native(python)
        hexed = [F.hex(name) if name in ("key", "value", "text") else F.col(name) for name in native.columns]
        texts = native.select(*hexed).orderBy("offset").collect()
        assert texts == python.select(*hexed).orderBy("offset").collect()
        assert native.schema == python.schema and len(texts) > 200
    assert copy(load_stream(classic, log.url, **TEXT).select("key", "value"), log.url, "copy", tmp_path / "ck")
    assert log.read("copy", columns=["key", "value"]) == log.read("t", columns=["key", "value"])
    assert left() == 0


def test_text_is_the_same_with_native_reads_off_and_on(spark: SparkSession, filled: str) -> None:
    """A frame sees what was added to its topic."""
    frames = [load(spark, filled, nativeRead=native, **TEXT) for native in ("true", "false")]
    assert hexes(frames[0]) == hexes(frames[1])
    spark_log.connect(filled).append("t", [{"key": "z", "value": "new"}])
    assert [frame.where("key = 'z'").select("value").collect() for frame in frames] == [[Row(value="new")]] * 2


# Promise: spark.md#keys-and-values-as-text
def test_a_stream_of_texts_copies_all_bytes(spark: SparkSession, filled: str, tmp_path: Path) -> None:
    """Also those that are not UTF-8: a sink takes texts as they are."""
    stream = load_stream(spark, filled, startingOffsets="earliest", **TEXT)
    assert stream.schema["value"].dataType.simpleString() == "string"
    assert copy(stream.select("key", "value"), filled, "copy", tmp_path / "ck").awaitTermination(DEADLINE_S)
    table = spark_log.connect(filled).read("copy", columns=["key", "value"])
    assert list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == ROWS


# Promise: spark.md#keys-and-values-as-text
def test_sql_reads_texts_without_casts(spark: SparkSession, filled: str) -> None:
    """A view with the options, and one table for reads and inserts, whose schema has STRING."""
    options = f"path '{filled}', subscribe 't', key.format 'string', value.format 'string'"
    one = [Row(key="a", value="3 apples")]
    try:
        spark.sql(f"CREATE TEMPORARY VIEW text_view USING pylog OPTIONS ({options})")
        assert spark.sql("SELECT key, value FROM text_view WHERE offset = 0").collect() == one
        spark.sql("CREATE TABLE text_table (key STRING, value STRING, offset BIGINT) USING pylog")
        with_options = f"text_table WITH (path '{filled}', subscribe 't')"
        assert spark.sql(f"SELECT key, value FROM {with_options} WHERE offset = 0").collect() == one
    finally:
        spark.sql("DROP VIEW IF EXISTS text_view")
        spark.sql("DROP TABLE IF EXISTS text_table")


def test_progress_of_groups_is_text_as_asked(spark: SparkSession, filled: str) -> None:
    """The topic `__consumer_offsets` has JSON, as a batch."""
    log = spark_log.connect(filled)
    log.admin.alter_consumer_group_offsets("billing", {spark_log.TopicPartition("t", 0): 2})
    frame = load(spark, filled, "__consumer_offsets", **TEXT)
    (row,) = frame.selectExpr("get_json_object(key, '$.group') as g").collect()
    assert row.g == "billing"


# Promise: spark.md#keys-and-values-as-text
def test_a_topic_with_a_schema_has_keys_as_text_and_no_values(spark: SparkSession, log: spark_log.Log) -> None:
    """The error of `value.format=string` says what to set; JSON as text is a schema with STRING."""
    log.create_topic(spark_log.NewTopic("typed", 1, schema="id BIGINT"))
    log.append("typed", [{"key": "k", "id": 7}])
    assert load(spark, log.url, "typed", **{"key.format": "string"}).select("key", "id").collect() == [
        Row(key="k", id=7)
    ]
    for read in (load, load_stream):
        with pytest.raises(PySparkException, match="topic 'typed' has a schema, so its values are columns, not text"):
            read(spark, log.url, "typed", **{"value.format": "string"}).columns  # noqa: B018  Connect asks the server here
    json = spark.read.format("pylog").options(**{"subscribe": "typed", "value.format": "json"})
    assert json.schema("value STRING").load(log.url).collect() == [Row(value='{"id":7}')]


def test_a_running_query_of_texts_reads_json_once_its_topic_has_a_schema(log: spark_log.Log) -> None:
    """A query of bytes continues, too.  When this one starts again, it is refused."""
    log.create_topic(spark_log.NewTopic("t", 1))
    options = read_options(asked(log.url, **TEXT), streaming=True)
    schema = pa.schema([("value", pa.string())])
    columns = StreamColumns(schema, options)
    columns.start(log.journal.refresh())
    log.admin.alter_schema("t", "id BIGINT")
    columns.start(log.journal.refresh())
    with pytest.raises(InvalidRequest, match="topic 't' has a schema, so its values are columns, not text"):
        StreamColumns(schema, options).start(log.journal.refresh())
