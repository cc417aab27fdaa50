"""Odd values are written, or refused alone: the other records of a producer are not harmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_log import Log, NewTopic
from spark_log.client.producer.producer import Producer
from spark_log.errors import InvalidRecord, InvalidRequest, InvalidTimestamp
from spark_log.positions import TIME_MS_MAX
from tests.client.logs import new_log
from tests.literals import LITERALS
from tests.logged import logged

DAY_MS = 86_400_000


class Unshown:
    """Its repr raises."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("no repr")


class Unread:
    """It is packed, and cannot be unpacked."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _fails, ()


class Odd(list[int]):
    """Its content cannot be read."""

    def __iter__(self) -> NoReturn:
        raise RuntimeError("no content")


def _fails() -> NoReturn:
    raise RuntimeError("it cannot be unpacked")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = new_log(tmp_path)
    log.admin.create_topics([NewTopic("typed", 1, schema="n INT, s STRING, l ARRAY<INT>"), NewTopic("t", 1)])
    return log


@pytest.fixture
def producer(log: Log) -> Iterator[Producer]:
    """Its records wait for each other."""
    with log.producer(linger_ms=100) as producer:
        yield producer


def values(log: Log, topic: str) -> list[Any]:
    found: list[Any] = log.read(topic).select([0]).to_pydict()
    return found


BAD = {
    "no repr": {"n": Unshown()},
    "no repr inside": {"l": [Unshown()]},
    "no content": {"l": Odd([1])},
    "unpacked": {"n": Unread()},
    "digits": {"n": 10**5000},
    "digits in a list": {"l": [10**5000]},
    "surrogate": {"s": "\udcff"},
    "surrogate in a name": {"\udcff": 1},
    "too large": {"n": 2**40},
    "keys": {1: 2},
}


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_cannot_be_written_fails_alone(log: Log, producer: Producer, name: str) -> None:
    """Records of the same topic and of others, before and after it, are written."""
    good = [producer.send("typed", {"n": 1}), producer.send("t", b"1")]
    with pytest.raises(InvalidRecord):
        producer.send("typed", BAD[name]).result(30)
    good += [producer.send("typed", {"n": 2}), producer.send("t", b"2")]
    assert [future.result(30).offset for future in good] == [0, 0, 1, 1]
    with pytest.raises(InvalidRecord):
        log.append("typed", [BAD[name]])
    with pytest.raises(InvalidRecord), log.transaction("etl") as transaction:
        transaction.send("typed", BAD[name])
    assert log.read("typed").num_rows == 2


@pytest.mark.parametrize(
    "headers", [[("\udcff", b"x")], [(1, b"x")], 5, Odd([1]), [("a", Unshown())], [("a", "\ud800")]]
)
def test_headers_that_cannot_be_written_fail_alone(log: Log, producer: Producer, headers: Any) -> None:
    """In `send`, of a producer and of a transaction."""
    good = producer.send("t", b"1")
    with pytest.raises(InvalidRecord):
        producer.send("t", b"bad", headers=headers)
    with pytest.raises(InvalidRecord), log.transaction("etl") as transaction:
        transaction.send("t", b"bad", headers=headers)
    assert good.result(30).offset == 0 and producer.send("t", b"2").result(30).offset == 1


@pytest.mark.parametrize(
    ("ddl", "rows"),
    [
        ("c STRUCT<>", [{"c": {}}, {"c": None}]),
        ("c STRUCT<> NOT NULL", [{"c": {}}]),
        ("n INT, c STRUCT<>", [{"n": 1, "c": {}}, {"n": 2, "c": None}]),
        ("c STRUCT<a: STRUCT<>>", [{"c": {"a": {}}}, {"c": {"a": None}}, {"c": None}]),
        ("c ARRAY<STRUCT<>>", [{"c": [{}, None]}, {"c": []}, {"c": None}]),
        ("c MAP<STRING, STRUCT<>>", [{"c": [("x", {}), ("y", None)]}]),
    ],
)
def test_structs_without_fields(log: Log, producer: Producer, ddl: str, rows: list[dict[str, Any]]) -> None:
    """They are written, merged and read, at any depth."""
    log.admin.create_topics([NewTopic("empty", 1, schema=ddl)])
    frame = [
        {
            name: dict(value) if isinstance(value, list) and ddl.startswith("c MAP") else value
            for name, value in row.items()
        }
        for row in rows
    ]
    log.append("empty", frame)
    for row in frame:
        producer.send("empty", row)
    producer.flush()
    found = log.read("empty", columns=list(rows[0])).to_pylist()
    assert found == [*rows, *rows]


# Promise: tasks/typed.md#schemas
def test_a_refused_append_leaves_no_schema(log: Log) -> None:
    """Whatever the form of its data, and however late in it the row is."""
    log.admin.create_topics([NewTopic("auto", 1, configs={"schema.auto": "true"})])
    wrong = [{"id": 1, "timestamp": 0}, {"id": 1, "timestamp": 10**14}]
    batches = pa.table({"id": [1], "timestamp": [10**14]}).to_batches()
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, [*batches, *batches])
    for data in (wrong, pa.Table.from_pylist(wrong), pl.DataFrame(wrong), reader):
        with pytest.raises(InvalidTimestamp):
            log.append("auto", data)
        with pytest.raises(InvalidTimestamp), log.transaction("etl") as transaction:
            transaction.append("auto", pa.Table.from_pylist(wrong))
        assert log.admin.describe_schema("auto") == []
    right = pa.table({"id": ["one"]}).to_batches()
    log.append("auto", pa.RecordBatchReader.from_batches(right[0].schema, right))
    assert log.read("auto", columns=["id"]).to_pylist() == [{"id": "one"}]


def test_polars_texts_of_few_values(log: Log) -> None:
    """Categorical and Enum are texts, also within lists; what Arrow does not have is refused with its name."""
    for kind in (pl.Categorical, pl.Enum(["x", "y"])):
        log.append("t", pl.DataFrame({"value": ["x", None, "y"]}, schema={"value": kind}))
        log.append("typed", pl.DataFrame({"s": ["x", None, "y"]}, schema={"s": kind}))
    assert log.read("t")["value"].to_pylist() == [b"x", None, b"y"] * 2
    assert log.read("typed")["s"].to_pylist() == ["x", None, "y"] * 2
    with pytest.raises(InvalidRecord, match="cast columns of types that Arrow does not have, such as Int128 of Polars"):
        log.append("t", pl.DataFrame({"value": ["x"], "n": [1]}, schema={"value": pl.String, "n": pl.Int128}))
    with pytest.raises(InvalidRecord, match="records cannot be taken from a Series"):
        log.append("t", pl.Series("value", ["x"]))


@pytest.mark.parametrize("ms", [-1, -62_135_596_800_001, TIME_MS_MAX, -TIME_MS_MAX, 0, 1])
def test_sends_and_appends_agree_on_times(log: Log, producer: Producer, ms: int) -> None:
    """Also on those before 1970, and beyond Python's calendar."""
    log.admin.create_topics(
        [NewTopic("old", 1, {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"})]
    )
    log.append("old", [{"value": b"v", "timestamp": ms}])
    assert producer.send("old", b"v", timestamp_ms=ms).result(30).timestamp == ms
    with log.transaction("etl") as transaction:
        transaction.send("old", b"v", timestamp_ms=ms)
    assert log.read("old")["timestamp"].cast(pa.int64()).to_pylist() == [ms * 1000] * 3
    for wrong in (TIME_MS_MAX + 1, -TIME_MS_MAX - 1, 10**5000):
        with pytest.raises(InvalidTimestamp):
            producer.send("old", b"v", timestamp_ms=wrong)


def test_records_of_the_future_are_a_warning(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """Retention waits for them.  A topic without retention by time, and times of today, are none."""
    now_ms, allowed = log.journal.context.clock.now_ms(), {"message.timestamp.after.max.ms": str(2**62)}
    log.admin.create_topics([NewTopic("a", 1, allowed), NewTopic("b", 1, {**allowed, "retention.ms": "-1"})])
    for topic in ("a", "b"):
        log.append(topic, [{"value": b"v", "timestamp": now_ms + DAY_MS // 2}])
    assert not logged(caplog, "timestamps")
    for topic in ("a", "b"):
        log.append(topic, [{"value": b"v", "timestamp": ms} for ms in (now_ms, 253_402_300_799_000)])
    (text,) = logged(caplog, "timestamps")
    assert text.startswith(
        "topic a: records with timestamps up to 9999-12-31T23:59:59.000Z were written, which is in the"
    )


def test_a_group_and_a_pattern_have_a_name(log: Log) -> None:
    """An empty one is refused."""
    with pytest.raises(InvalidRequest, match="invalid value '' for group_id"):
        log.consumer("t", group_id="")
    with log.consumer(group_id=None) as consumer:
        for pattern in ("", "(", "a{99999999999}", 5):
            with pytest.raises(InvalidRequest, match="pattern"):
                consumer.subscribe(pattern=pattern)  # type: ignore[arg-type]


# Promise: tasks/typed.md#skip-what-cannot-match
@pytest.mark.parametrize(("literal", "value"), LITERALS)
def test_texts_of_a_condition_are_written_as_in_spark(log: Log, literal: str, value: str) -> None:
    """A doubled quote is one, and a backslash escapes what follows."""
    log.append("typed", [{"s": value}, {"s": "other"}])
    assert log.read("typed", where=f"s = {literal}").num_rows == 1
    assert log.read("typed", where=f"s IN ({literal}, 'none') AND n IS NULL").num_rows == 1


@pytest.mark.parametrize("where", [r"s = 'a\'", "s = 'a''", r"s = '\ud83d'", "s = '\udcff'", "s = 'a", "\udcff = 1"])
def test_texts_that_are_none_are_refused(log: Log, where: str) -> None:
    """The whole condition is refused."""
    with pytest.raises(InvalidRequest, match="where"):
        log.read("typed", where=where)


def test_nanoseconds_are_rounded_down_before_1970_too(log: Log) -> None:
    """As Spark does: -1 ns is in the microsecond before 1970."""
    log.admin.create_topics([NewTopic("old", 1, {"retention.ms": "-1"})])
    times = [-1, -1500, -1000, 1999, None]
    for zone in (None, "Europe/Berlin"):
        table = pa.table({"value": [b"v"] * 5, "timestamp": pa.array(times, pa.timestamp("ns", tz=zone))})
        log.append("old", table)
    found = log.read("old")["timestamp"].cast("int64").to_pylist()
    assert found[:4] == found[5:9] == [-1, -2, -1, 1]
    assert found[4] > 0 and found[9] > 0


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": pd.arrays.SparseArray([1, 0])}, "column 'x' cannot be written"),
        ({"x": [1, "a"]}, "column 'x' cannot be written: Could not convert 'a'"),
        ({"x": [1j]}, "column 'x' cannot be written"),
        ({"x": ["\ud800"]}, "column 'x' cannot be written: .* surrogates not allowed"),
        ({"x": [Unshown()]}, "column 'x' cannot be written"),
        ({0: [1]}, "the name of a column is 0, an int: rename it, names are text"),
        ({("a", "b"): [1]}, r"the name of a column is \('a', 'b'\), a tuple"),
    ],
    ids=lambda given: str(list(given)) if isinstance(given, dict) else "",
)
def test_a_pandas_frame_that_arrow_does_not_take_is_refused(log: Log, columns: dict[Any, Any], said: str) -> None:
    """With its column, and no schema is left on a topic that would get the first one."""
    log.admin.create_topics([NewTopic("auto", 1, configs={"schema.auto": "true"})])
    with pytest.raises(InvalidRecord, match=said):
        log.append("auto", pd.DataFrame(columns))
    assert log.admin.describe_schema("auto") == []


def test_python_objects_of_polars_are_refused(log: Log) -> None:
    """Arrow gets their addresses, which were written as bytes."""
    log.admin.create_topics([NewTopic("auto", 1, configs={"schema.auto": "true"})])
    for topic, name in (("t", "value"), ("typed", "s"), ("auto", "x")):
        with pytest.raises(InvalidRecord, match=f"column '{name}' has Python objects"):
            log.append(topic, pl.DataFrame({name: pl.Series([object()], dtype=pl.Object)}))


TIME, NUMBER = np.datetime64("2020-01-01", "us"), np.int32(1)


@pytest.mark.parametrize("values", [[TIME, NUMBER], [[TIME, np.bool_(True)]], [{"a": [TIME]}, {"a": [NUMBER]}]])
@pytest.mark.parametrize("is_frame", [False, True])
def test_times_of_numpy_beside_its_numbers_are_refused(log: Log, values: list[Any], is_frame: bool) -> None:
    """Arrow looks for the type of such values, and ends the process."""
    rows = [{"timestamp": value, "value": b"x"} for value in values]
    with pytest.raises(
        InvalidRecord, match=r"'timestamp' cannot be written: np\.datetime64 is mixed with np\.(int|bool)"
    ):
        log.append("t", pd.DataFrame(rows) if is_frame else rows)
