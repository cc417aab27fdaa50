"""Arrays of a few Python values are those that Arrow makes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_log
from spark_log.schema.topic_schema import as_schema
from spark_log.segment.arrays.few_values import FEW, array_from
from spark_log.segment.schema import HEADERS

ROOT = Path(__file__).parents[3]
PARIS = timezone(timedelta(hours=1))
Values = st.SearchStrategy[Any]

LEAVES: dict[str, Values] = {
    "TINYINT": st.integers(-130, 130),
    "INT": st.integers(-(2**31) - 1, 2**31),
    "BIGINT": st.integers(-(2**63) - 1, 2**63) | st.booleans(),
    "FLOAT": st.floats(),
    "DOUBLE": st.floats() | st.integers(-5, 5),
    "BOOLEAN": st.booleans(),
    "STRING": st.text() | st.just("\udcff"),
    "BINARY": st.binary() | st.text(max_size=3) | st.just(bytearray(b"x")),
    "DATE": st.dates() | st.datetimes(),
    "TIMESTAMP": st.datetimes(timezones=st.sampled_from([timezone.utc, PARIS])),
    "TIMESTAMP_NTZ": st.datetimes(),
    "DECIMAL(5,2)": st.decimals(-1001, 1001, places=2) | st.sampled_from(["1.234", "1E+2", "NaN", "-0"]).map(Decimal),
    "DECIMAL(38,0)": st.integers(-(10**38), 10**38).map(Decimal),
}


def columns() -> st.SearchStrategy[tuple[str, Values]]:
    leaves = st.sampled_from(sorted(LEAVES.items()))

    def wider(inner: st.SearchStrategy[tuple[str, Values]]) -> st.SearchStrategy[tuple[str, Values]]:
        return inner.map(_list) | inner.map(_map) | st.tuples(inner, inner).map(_struct)

    return st.recursive(leaves, wider, max_leaves=3)


def _list(inner: tuple[str, Values]) -> tuple[str, Values]:
    return f"ARRAY<{inner[0]}>", st.lists(st.none() | inner[1], max_size=3)


def _map(inner: tuple[str, Values]) -> tuple[str, Values]:
    return f"MAP<STRING, {inner[0]}>", st.dictionaries(
        st.none() | st.text(max_size=2), st.none() | inner[1], max_size=2
    )


def _struct(inner: tuple[tuple[str, Values], tuple[str, Values]]) -> tuple[str, Values]:
    (first, some), (second, others) = inner
    wanted = {"a": st.none() | some, "b": st.none() | others}
    return f"STRUCT<a: {first}, b: {second}>", st.fixed_dictionaries({}, optional=wanted)


def outcome(make: Callable[..., pa.Array], values: list[Any], kind: pa.DataType | None) -> object:
    """The type and the values, with NaN as equal to itself; or the type of the error."""
    try:
        found = make(values, kind)
    except Exception as error:  # noqa: BLE001
        return type(error)
    found.validate(full=True)
    return found.type, found.null_count, repr(found.to_pylist())


@given(st.data(), columns())
def test_an_array_is_the_one_that_arrow_makes(data: st.DataObject, column: tuple[str, Values]) -> None:
    ddl, values = column
    kind = as_schema(f"c {ddl}").field("c").type
    rows = data.draw(st.lists(st.none() | values, max_size=5))
    assert outcome(array_from, rows, kind) == outcome(pa.array, rows, kind)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        *[
            ([Decimal(text)], pa.decimal128(38, 0))
            for text in (f"0.{'9' * 101}", f"1.{'0' * 101}", "1e99990", "0e99990")
        ],
        ([], pa.int64()),
        ([], None),
        ([None, None], None),
        ([1, None, 2**63 - 1], None),
        ([2**63], None),
        ([True, None], None),
        ([datetime(2026, 1, 1, tzinfo=timezone.utc), None], None),
        ([2**32 - 1, 0], pa.uint32()),
        ([-1], pa.uint32()),
        ([{"a": 1}, {"b": 2, "c": 3}, {}], as_schema("c STRUCT<a: INT, b: INT>").field("c").type),
        ([[{"key": "k", "value": b"v"}, {"key": "l", "value": None}], None, []], HEADERS),
        ([[("k", b"v")]], HEADERS),
        ([[{"key": None, "value": b"v"}]], HEADERS),
        ([{None: 1}], as_schema("c MAP<STRING, INT>").field("c").type),
        ([datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=PARIS)], pa.timestamp("us")),
        ([date(1, 1, 1), date(9999, 12, 31)], pa.date32()),
        ([b"x"] * (FEW + 1), pa.binary()),
    ],
)
def test_edges(values: list[Any], kind: pa.DataType | None) -> None:
    assert outcome(array_from, values, kind) == outcome(pa.array, values, kind)


WRITES = """
import sys, pyarrow as pa, spark_log
from datetime import datetime, timezone
from decimal import Decimal
from spark_log.segment.arrays.few_values import array_from
from spark_log.segment.schema import HEADERS
from tests.spark.driver import Write
log = spark_log.connect(sys.argv[1], create=False)
row = {"key": "k", "value": b"v", "partition": 0, "timestamp": 1, "headers": [{"key": "a", "value": b"b"}]}
log.append("t", [row, {"value": None}])
log.append("t", pa.table({"value": pa.nulls(1, pa.string())}))
typed = {"id": 1, "at": datetime.now(timezone.utc), "sum": Decimal("1.50"), "tags": ["a"], "more": {"x": 1.5}}
log.append("typed", [typed, {"id": 2}])
with log.producer() as producer:
    sent = [producer.send("t", b"v", key="k", headers=[("a", None)], partition=0), producer.send("typed", typed)]
    assert [one.result(60).partition for one in sent] == [0, 0]
with log.transaction("etl") as txn:
    txn.send("t", b"v")
    txn.append("typed", [typed])
at = array_from([datetime.now(timezone.utc)], pa.timestamp("us", "UTC"))
texts, headers = array_from(["v"], pa.string()), array_from([row["headers"]], HEADERS)
plain = {"key": texts, "value": texts, "timestamp": at, "headers": headers}
for topic, columns in (("t", plain), ("typed", {"id": array_from([3], pa.int64()), "at": at})):
    Write(sys.argv[1], pa.record_batch(columns), topic=topic).run()
Write(sys.argv[1], pa.record_batch({"topic": array_from(["t"], pa.string()), "value": texts})).run()
sys.exit("pandas" in sys.modules)
"""


def test_a_process_that_writes_a_few_records_imports_no_pandas(tmp_path: Path) -> None:
    """It would take a third of the CPU time of a new process that writes a few records."""
    with spark_log.connect(tmp_path, durability="os") as log:
        schema = "id BIGINT NOT NULL, at TIMESTAMP, sum DECIMAL(10,2), tags ARRAY<STRING>, more STRUCT<x: DOUBLE>"
        log.create_topic(spark_log.NewTopic("t", 1))
        log.create_topic(spark_log.NewTopic("typed", 1, schema=schema))
    done = subprocess.run([sys.executable, "-c", WRITES, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with spark_log.connect(tmp_path, create=False) as log:
        assert (log.read("t").num_rows, log.read("typed").num_rows) == (7, 5)
