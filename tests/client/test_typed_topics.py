"""Topics with a schema, end to end in Python: frames and dicts in, columns, structs and JSON out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import spark_log
from spark_log.client.log import Log
from spark_log.client.topic_creation import set_first_schema
from spark_log.errors import (
    IncompatibleSchema,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    ProducerFenced,
)
from spark_log.maintenance.maintain import compact, maintain_once
from spark_log.model import NewTopic, TopicPartition
from spark_log.recovery.verify import verify
from spark_log.schema.topic_schema import as_schema
from tests.blocks import program

PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "typed.md"
SCHEMA = "id BIGINT NOT NULL, amount DOUBLE, tags ARRAY<STRING>"
V2 = "id BIGINT NOT NULL, amount DOUBLE, tags ARRAY<STRING>, country STRING"
ROWS = [{"key": "a", "id": 1, "amount": 2.5, "tags": ["x"]}, {"key": "b", "id": 2}]


@pytest.fixture
def log() -> Iterator[Log]:
    with spark_log.connect("memory://typed") as found:
        yield found


def typed(log: Log, name: str, schema: object = SCHEMA, **configs: str) -> str:
    log.create_topic(NewTopic(name, 1, {key.replace("_", "."): value for key, value in configs.items()}, schema=schema))
    return name


# Promise: tasks/typed.md#typed-topics-columns-instead-of-bytes
@pytest.mark.parametrize("form", [list, pa.Table.from_pylist, pd.DataFrame, pl.DataFrame])
def test_frames_are_read_as_their_columns(log: Log, form: object) -> None:
    topic = typed(log, f"orders-{getattr(form, '__module__', 'list')}-{getattr(form, '__name__', '')}")
    assert log.append(topic, form(ROWS)) == {TopicPartition(topic, 0): range(2)}  # type: ignore[operator]
    table = log.read(topic)
    assert table.schema.names == ["topic", "partition", "offset", "key", "id", "amount", "tags", "timestamp", "headers"]
    assert table.select(["key", "id", "amount", "tags"]).to_pylist() == [
        {"key": b"a", "id": 1, "amount": 2.5, "tags": ["x"]},
        {"key": b"b", "id": 2, "amount": None, "tags": None},
    ]
    assert log.read(topic, columns=["amount", "offset"]).to_pydict() == {"amount": [2.5, None], "offset": [0, 1]}
    assert log.read(topic, columns=["offset", "topic"]).to_pydict() == {"offset": [0, 1], "topic": [topic] * 2}
    reader = log.scan(topic, columns=["id", "amount"])  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("SELECT sum(id), max(amount) FROM reader").fetchall() == [(3, 2.5)]


# Promise: tasks/typed.md#read
def test_a_value_is_a_struct_or_json(log: Log) -> None:
    topic = typed(log, "forms")
    log.append(topic, [*ROWS, {"key": "a", "value": None}][:2])
    log.append(topic, [{"key": "a", "value": None}])
    struct = log.read(topic, columns=["value"], value_format="struct")["value"].to_pylist()
    assert struct == [{"id": 1, "amount": 2.5, "tags": ["x"]}, {"id": 2, "amount": None, "tags": None}, None]
    text = log.read(topic, columns=["value"], value_format="json")["value"].to_pylist()
    assert text == [b'{"id":1,"amount":2.5,"tags":["x"]}', b'{"id":2}', None]
    log.append(topic, log.read(topic, columns=["key", "value"], value_format="struct"))
    assert log.read(topic, columns=["value"], value_format="json")["value"].to_pylist() == text * 2
    with pytest.raises(InvalidRequest, match="unknown columns \\['value'\\].*set value_format to struct or json"):
        log.read(topic, columns=["value"])
    with pytest.raises(InvalidRequest, match="invalid value 'avro' for value_format"):
        log.read(topic, value_format="avro")


# Promise: tasks/typed.md#write
def test_single_records_are_dicts_and_are_consumed_as_json(log: Log) -> None:
    topic = typed(log, "singles")
    with log.producer() as producer:
        row = {"id": 1, "amount": 0.5}
        good = producer.send(topic, row, key=b"k", headers=[("h", b"1")])
        row["id"] = 9
        gone = producer.send(topic, None, key=b"k")
        bad = [producer.send(topic, value) for value in ({"amount": 1.0}, {"id": "x"}, {"id": 1, "z": 1}, b"{}")]
    assert (good.result(10).offset, gone.result(10).offset) == (0, 1)
    for future, words in zip(bad, ["'id'", "'x' is a str", "no field 'z'", "send a dict of its columns"], strict=True):
        with pytest.raises(InvalidRecord, match=words):
            future.result(10)
    with log.consumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=100) as consumer:
        records = [record for some in consumer.poll(timeout_ms=5000).values() for record in some]
    assert [(record.key, record.value) for record in records] == [(b"k", b'{"id":1,"amount":0.5}'), (b"k", None)]
    assert records[0].headers == [("h", b"1")]


def test_a_dict_for_a_topic_without_a_schema_is_refused(log: Log) -> None:
    log.create_topic(NewTopic("bytes"))
    with log.producer() as producer, pytest.raises(InvalidRecord, match="'bytes' has no schema: send bytes"):
        producer.send("bytes", {"id": 1})
    with log.transaction("t") as txn, pytest.raises(InvalidRecord, match="has no schema"):
        txn.send("bytes", {"id": 1})
    with pytest.raises(InvalidRequest, match="value_columns, key_column and timestamp_column have no meaning"):
        log.append("bytes", [{"value": b"x"}], key_column="value")


# Promise: tasks/typed.md#write
def test_a_transaction_writes_typed_and_other_topics(log: Log) -> None:
    topic = typed(log, "txn-typed")
    with log.transaction("both") as txn:
        txn.append(topic, ROWS)
        txn.send("txn-audit", b"two orders")
        txn.send(topic, {"id": 3})
    assert log.read(topic)["id"].to_pylist() == [1, 2, 3]
    assert log.read("txn-audit")["value"].to_pylist() == [b"two orders"]


# Promise: tasks/typed.md#change-a-schema
def test_older_runs_have_nulls_in_newer_columns_and_wider_numbers(log: Log) -> None:
    topic = typed(log, "evolving", "n INT, s STRUCT<a: INT>")
    log.append(topic, [{"n": 1, "s": {"a": 1}}])
    assert log.admin.alter_schema(topic, "n BIGINT, s STRUCT<a: INT, b: STRING>, d DATE") == 2
    log.append(topic, [{"n": 2**40, "s": {"a": 2, "b": "x"}}])
    found = log.read(topic, columns=["n", "s", "d"])
    assert found.schema.field("n").type == pa.int64()
    assert found.to_pydict() == {"n": [1, 2**40], "s": [{"a": 1, "b": None}, {"a": 2, "b": "x"}], "d": [None, None]}
    with pytest.raises(IncompatibleSchema, match="column 'd' \\(DATE\\) is missing"):
        log.admin.alter_schema(topic, "n BIGINT, s STRUCT<a: INT, b: STRING>")
    assert [schema.version for schema in log.admin.describe_schema(topic)] == [1, 2]


# Promise: tasks/typed.md#change-a-schema
def test_a_merge_after_numbers_were_widened_changes_the_digits_of_json(log: Log) -> None:
    topic = typed(log, "widened", "f FLOAT, n INT, i INT", segment_ms="60000", retention_ms="-1")
    for _ in range(2):
        log.append(topic, [{"f": 0.1, "n": 5, "i": 5, "timestamp": 1000}])
    log.admin.alter_schema(topic, "f DOUBLE, n DECIMAL(12,2), i DOUBLE")
    log.append(topic, [{"f": 0.1, "n": 5, "i": 5, "timestamp": 1000}])
    text, numbers = _json(log, topic), log.read(topic, columns=["f", "n", "i"])
    assert text == [b'{"f":0.1,"n":5,"i":5}'] * 2 + [b'{"f":0.1,"n":5.00,"i":5.0}']
    maintain_once(log)
    assert _json(log, topic) == [b'{"f":0.10000000149011612,"n":5.00,"i":5.0}'] * 2 + text[2:]
    assert log.read(topic, columns=["f", "n", "i"]) == numbers


def _json(log: Log, topic: str) -> list[bytes]:
    return log.read(topic, columns=["value"], value_format="json")["value"].to_pylist()


# Promise: tasks/typed.md#change-a-schema
@pytest.mark.parametrize("by", ["append", "send", "transaction", "transaction-send"])
def test_writers_that_are_open_write_the_columns_that_another_process_has_added(tmp_path: Path, by: str) -> None:
    """The first write with the new column is refused only after a look at the log."""
    with spark_log.connect(tmp_path / "log") as log, spark_log.connect(tmp_path / "log") as other:
        topic, producer = typed(log, "o", "id BIGINT"), log.producer()
        producer.send(topic, {"id": 1}).result(10)
        log.append(topic, [{"id": 2}])
        other.admin.alter_schema(topic, "id BIGINT, b STRING")
        if by == "append":
            log.append(topic, [{"id": 3, "b": "new"}])
        elif by == "send":
            producer.send(topic, {"id": 3, "b": "new"}).result(10)
        else:
            with log.transaction("writer") as txn:
                if by == "transaction":
                    txn.append(topic, [{"id": 3, "b": "new"}])
                else:
                    txn.send(topic, {"id": 3, "b": "new"})
        assert other.read(topic).column("b").to_pylist() == [None, None, "new"]
        with pytest.raises(InvalidRecord, match="column 'c' is not in the schema"):
            log.append(topic, [{"id": 4, "c": "unknown"}])
        producer.close()


def test_a_record_in_a_topic_that_was_created_again_has_its_offset_there(tmp_path: Path) -> None:
    """The producer learns of the new topic when it looks for the schema by which the record fits."""
    with spark_log.connect(tmp_path / "log") as log, spark_log.connect(tmp_path / "log") as other:
        topic, producer = typed(log, "o", "id BIGINT"), log.producer()
        producer.send(topic, {"id": 1}).result(10)
        other.admin.delete_topics([topic])
        typed(other, topic, "id BIGINT, b STRING")
        assert producer.send(topic, {"id": 2, "b": "new"}).result(10).offset == 0
        producer.close()


def test_a_second_write_that_does_not_fit_the_first_schema_of_its_transaction_is_refused(tmp_path: Path) -> None:
    with spark_log.connect(tmp_path / "log") as log:
        log.admin.create_topics([NewTopic("o", 1, {"schema.auto": "true"})])

        def write(*values: Any) -> None:
            with log.transaction("writer") as txn:
                for value in values:
                    txn.append("o", [{"id": value}])

        with pytest.raises(InvalidRecord, match="'id'"):
            write(1, "abc")
        assert log.read("o").num_rows == 0


# Promise: tasks/typed.md#give-a-topic-with-bytes-a-schema
def test_bytes_from_before_the_schema_are_refused_or_parsed(log: Log) -> None:
    log.append("later", [{"value": '{"id": 1, "amount": 2, "other": 3}'}, {"value": None}])
    with pytest.raises(InvalidRequest, match="'later' has no schema, so its values are bytes"):
        log.read("later", value_format="columns")
    log.admin.alter_schema("later", SCHEMA)
    log.append("later", [{"id": 2}])
    with pytest.raises(InvalidRequest, match="later-0 before offset 2 are bytes .* or start at offset 2"):
        log.read("later")
    assert log.read("later", start=2)["id"].to_pylist() == [2]
    assert log.read("later", columns=["offset"]).num_rows == 3
    assert log.read("later", value_parse="json")["id"].to_pylist() == [1, None, 2]
    assert log.read("later", value_format="json")["value"].to_pylist()[2] == b'{"id":2}'
    struct = log.read("later", value_format="struct", value_parse="json")["value"].to_pylist()
    assert struct == [{"id": 1, "amount": 2.0, "tags": None}, None, {"id": 2, "amount": None, "tags": None}]
    with pytest.raises(InvalidRecord, match="column 'value' has type binary|value"):
        log.append("later", [{"value": b"{}"}])


# Promise: tasks/typed.md#give-a-topic-with-bytes-a-schema
def test_bytes_that_are_not_json_of_the_schema_are_an_error(log: Log) -> None:
    log.append("not-json", [{"value": '{"id": 1}'}, {"value": "no"}])
    log.admin.alter_schema("not-json", SCHEMA)
    with pytest.raises(InvalidRecord, match="the value of row 1 of .*not-json.* is not JSON"):
        log.read("not-json", value_parse="json")


# Promise: tasks/typed.md#schemas
def test_the_first_typed_write_sets_the_schema(log: Log) -> None:
    log.create_topic(NewTopic("auto", 1, {"schema.auto": "true"}))
    with log.producer() as producer, pytest.raises(InvalidRecord, match=r"begin with log.append\('auto', rows\)"):
        producer.send("auto", {"id": 1})
    log.append("auto", pl.DataFrame({"key": ["a"], "id": [1], "value.timestamp": ["noon"]}))
    assert log.read("auto").select(["id", "value.timestamp"]).to_pylist() == [{"id": 1, "value.timestamp": "noon"}]
    (schema,) = log.admin.describe_schema("auto")
    assert [(field.name, field.nullable) for field in schema.columns] == [("id", True), ("timestamp", True)]
    with pytest.raises(InvalidRecord, match="column 'more' is not in the schema of topic 'auto'"):
        log.append("auto", [{"id": 1, "more": 2}])


# Promise: tasks/typed.md#schemas
def test_the_faster_of_two_first_writes_sets_the_schema(log: Log) -> None:
    """The other one neither adds columns to it nor fails because it lacks some."""
    log.create_topic(NewTopic("race", 1, {"schema.auto": "true"}))
    for ddl in ("id BIGINT, name STRING", "id INT", "id BIGINT, more INT"):
        set_first_schema(log.journal, "race", as_schema(ddl))
    assert [schema.columns.names for schema in log.admin.describe_schema("race")] == [["id", "name"]]


# Promise: tasks/typed.md#schemas
def test_a_write_that_is_refused_at_last_leaves_no_schema(log: Log) -> None:
    """The commit sets the schema, and there is none: the next write may set another one."""
    log.create_topic(NewTopic("refused", 1, {"schema.auto": "true"}))
    frame = pa.table({"id": [1, 2]})
    for error, write in ((ZeroDivisionError, _aborted), (ProducerFenced, _overtaken)):
        with pytest.raises(error):
            write(log, frame)
    assert log.admin.describe_schema("refused") == []
    log.append("refused", pa.table({"id": ["one"]}))
    assert log.read("refused", columns=["id"]).to_pylist() == [{"id": "one"}]


def _aborted(log: Log, frame: pa.Table) -> None:
    with log.transaction("etl") as transaction:
        transaction.append("refused", frame)
        transaction.append("refused", [{"id": 3}])
        transaction.send("refused", {"id": 4})
        raise ZeroDivisionError


def _overtaken(log: Log, frame: pa.Table) -> None:
    with log.transaction("etl") as transaction:
        transaction.append("refused", frame)
        with log.transaction("etl") as newer:
            newer.append("other", [{"value": b"y"}])


def test_the_frames_of_a_transaction_have_the_schema_of_the_first(log: Log) -> None:
    """It is set with the commit, also if other rows follow."""
    log.create_topic(NewTopic("several", 1, {"schema.auto": "true"}))
    with log.transaction("etl") as transaction:
        transaction.append("several", pa.table({"id": [1], "name": ["a"]}))
        transaction.append("several", pa.table({"id": pa.array([2], pa.int32())}))
        transaction.send("several", {"id": 3, "name": "c"})
        assert log.admin.describe_schema("several") == []
    assert log.read("several", columns=["id", "name"]).to_pylist() == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
        {"id": 3, "name": "c"},
    ]
    (schema,) = log.admin.describe_schema("several")
    assert schema.columns.names == ["id", "name"]


class Late(list[dict[str, object]]):
    """Rows, while whose conversion another process makes the first typed write."""

    def __init__(self, rows: list[dict[str, object]], other: Log) -> None:
        super().__init__(rows)
        self._other, self._read = other, 0

    def __getitem__(self, at: Any) -> Any:
        self._read += 1
        if self._read == 2:  # the first time, their types are looked up
            self._other.append("late", pa.table({"id": [1], "name": ["a"]}))
        return super().__getitem__(at)


# Promise: tasks/typed.md#schemas
@pytest.mark.parametrize(("row", "fits"), [({"id": 2}, True), ({"more": 1}, False)])
def test_the_slower_of_two_first_writes_fits_or_is_refused(tmp_path: Path, row: dict[str, object], fits: bool) -> None:
    with spark_log.connect(tmp_path) as log, spark_log.connect(tmp_path) as other:
        log.create_topic(NewTopic("late", 1, {"schema.auto": "true"}))
        rows = Late([row], other)
        if fits:
            log.append("late", rows)
        else:
            with pytest.raises(InvalidRecord, match="'more' is not in the schema"):
                log.append("late", rows)
        assert log.read("late", columns=["id"]).to_pylist() == [{"id": 1}, {"id": 2}][: 1 + fits]


def test_an_empty_frame_sets_the_schema(log: Log) -> None:
    log.create_topic(NewTopic("empty-frame", 1, {"schema.auto": "true"}))
    assert log.append("empty-frame", pa.table({"id": pa.array([], pa.int64())})) == {}
    (schema,) = log.admin.describe_schema("empty-frame")
    assert schema.columns.names == ["id"]


# Promise: tasks/typed.md#write
def test_options_say_which_column_is_what(log: Log) -> None:
    topic = typed(log, "named", "timestamp TIMESTAMP, id STRING")
    at = datetime(2026, 1, 31, tzinfo=timezone.utc)
    with pytest.raises(InvalidRecord, match="call that one 'value.timestamp'"):
        log.append(topic, [{"timestamp": at, "id": "x"}])
    log.append(
        topic,
        [{"timestamp": at, "id": "x"}],
        value_columns=["timestamp", "id"],
        key_column="id",
        timestamp_column="timestamp",
    )
    row = log.read(topic).to_pylist()[0]
    assert (row["key"], row["timestamp"], row["value.timestamp"], row["id"]) == (b"x", at, at, "x")


def test_the_latest_records_of_keys_are_columns_too(log: Log) -> None:
    topic = typed(log, "compacted", cleanup_policy="compact")
    log.append(topic, [{"key": "a", "id": 1}, {"key": "b", "id": 2}, {"key": "a", "id": 3}])
    log.append(topic, [{"key": "b", "value": None}])
    assert log.table(topic, columns=["key", "id"]).to_pylist() == [{"key": b"a", "id": 3}]


# Promise: tasks/typed.md#read
def test_a_batch_of_a_consumer_has_the_columns(log: Log) -> None:
    topic = typed(log, "arrow")
    log.append(topic, ROWS)
    with log.consumer(topic, auto_offset_reset="earliest") as consumer:
        assert consumer.poll_arrow(timeout_ms=5000)["id"].to_pylist() == [1, 2]
    with log.consumer(topic, auto_offset_reset="earliest", value_format="json") as consumer:
        values = consumer.poll_arrow(timeout_ms=5000)["value"].to_pylist()
    assert [json.loads(value)["id"] for value in values] == [1, 2]


# Promise: tasks/typed.md#read
def test_topics_of_different_schemas_are_one_table_only_as_json(log: Log) -> None:
    one, two = typed(log, "mixed-1"), typed(log, "mixed-2", "id STRING")
    log.append(one, [{"id": 1}])
    log.append(two, [{"id": "x"}])
    with (
        log.consumer(one, two, auto_offset_reset="earliest") as consumer,
        pytest.raises(InvalidRequest, match="'mixed-1' and 'mixed-2' have different schemas"),
    ):
        consumer.poll_arrow(timeout_ms=5000)


# Promise: tasks/typed.md#change-a-schema
def test_maintenance_keeps_types(log: Log) -> None:
    """Merging, compaction and erasure widen older runs, and keep bytes and columns apart."""
    old = {"timestamp": 1000}
    configs = {"cleanup.policy": "compact", "segment.ms": "60000", "min.cleanable.dirty.ratio": "0"}
    log.create_topic(NewTopic("kept", 1, configs))
    log.append("kept", [{"key": "a", "value": '{"n": 1}', **old}])
    log.append("kept", [{"key": "b", "value": '{"n": 2}', **old}])
    log.admin.alter_schema("kept", "n INT")
    for number in (3, 4, 5):
        log.append("kept", [{"key": f"k{number}", "n": number, **old}])
    log.admin.alter_schema("kept", "n BIGINT, s STRING")
    log.append("kept", [{"key": "k3", "n": 2**40, "s": "x", **old}])
    log.append("kept", [{"key": "k4", "value": None, **old}])
    log.admin.erase_records("kept", [b"k5"])
    assert compact(log).records == 2
    maintain_once(log)
    found = log.read("kept", value_parse="json", columns=["key", "n", "s"]).to_pylist()
    assert found == [
        {"key": b"a", "n": 1, "s": None},
        {"key": b"b", "n": 2, "s": None},
        {"key": b"k3", "n": 2**40, "s": "x"},
        {"key": b"k4", "n": None, "s": None},
    ]
    assert len(log.plan("kept")) == 2
    assert verify(log, deep=True) == []


# Promise: tasks/typed.md#typed-topics-columns-instead-of-bytes
def test_the_page_of_the_task_runs(tmp_path: Path) -> None:
    """docs/tasks/typed.md as it is pasted, in a folder of the test."""
    found: dict[str, Any] = {}
    exec(compile(program(PAGE).replace("/tmp/pylog-typed", str(tmp_path)), str(PAGE), "exec"), found)
    rows = sorted(found["table"].to_pylist(), key=lambda row: row["key"])
    assert [(row["key"], row["country"]) for row in rows] == [(b"alice", "DE"), (b"bob", "FR")]
    assert found["german"].to_pydict() == {"id": [1]}


# Promise: tasks/typed.md#order
def test_the_rows_of_a_frame_are_sorted_and_those_of_a_producer_keep_their_order(log: Log) -> None:
    topic = typed(log, "sorted", V2, sort_columns="Country,amount")
    rows = [{"id": n, "country": "FDI"[n % 3], "amount": float(n % 2)} for n in range(6)]
    assert log.append(topic, rows) == {TopicPartition(topic, 0): range(6)}
    assert log.read(topic)["id"].to_pylist() == [4, 1, 0, 3, 2, 5]
    with log.producer() as producer:
        sent = [producer.send(topic, {"id": n, "country": "FD"[n]}) for n in (0, 1)]
    assert [one.result().offset for one in sent] == [6, 7]
    assert log.read(topic)["id"].to_pylist()[6:] == [0, 1]
    assert maintain_once(log) is not None and log.read(topic)["id"].to_pylist()[:6] == [4, 1, 0, 3, 2, 5]


# Promise: tasks/typed.md#order
def test_columns_to_sort_by_are_checked(log: Log) -> None:
    with pytest.raises(InvalidConfig, match="names 'city'; its columns are id, amount"):
        typed(log, "sort-unknown", sort_columns="city")
    with pytest.raises(InvalidConfig, match="no order"):
        typed(log, "sort-list", sort_columns="tags")
    with pytest.raises(InvalidConfig, match="stats.columns names 'city'; its columns are id, amount"):
        typed(log, "stats-unknown", stats_columns="id,city")
    with pytest.raises(InvalidConfig, match="exclude each other"):
        typed(log, "sort-latest", sort_columns="id", cleanup_policy="compact")
    log.create_topic(NewTopic("sort-later", 1, {"sort.columns": "city"}))
    with pytest.raises(InvalidConfig, match="names 'city'"):
        log.admin.alter_schema("sort-later", SCHEMA)
    with pytest.raises(InvalidConfig, match="exclude each other"):
        log.admin.incremental_alter_configs({"sort-later": {"cleanup.policy": "compact"}})


def test_a_commit_has_bytes_or_columns_of_a_topic(log: Log) -> None:
    """Bytes in one partition, and the first typed rows in another one: nobody could read the bytes."""
    log.create_topic(NewTopic("both", 2, {"schema.auto": "true"}))
    typed_rows = pa.table({"id": [1], "partition": pa.array([1], pa.int32())})
    with pytest.raises(InvalidRecord, match="'both' got a schema while bytes for it were uploaded"):
        _mixed(log, typed_rows)
    assert log.admin.describe_schema("both") == []
    log.append("both", typed_rows)
    assert log.read("both", columns=["id"]).to_pylist() == [{"id": 1}]


def _mixed(log: Log, typed_rows: pa.Table) -> None:
    with log.transaction("etl") as transaction:
        transaction.send("both", b"bytes", partition=0)
        transaction.append("both", typed_rows)
