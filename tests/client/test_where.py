"""Conditions on data columns: never a row too few or too many, and nothing read that cannot match."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spark_log
from spark_log import NewTopic
from spark_log.client.log import Log
from spark_log.client.reader.fetch import touched
from spark_log.client.reader.typed import bound_to_topic
from spark_log.client.topic_creation import set_schema
from spark_log.conditions import as_condition
from spark_log.errors import InvalidRequest
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.sealing import seal
from spark_log.maintenance.maintain import compact, merge
from spark_log.schema.topic_schema import as_schema
from tests.maintenance.logs import maintenance

V1 = "i INT, d DECIMAL(6,2), f FLOAT, s STRING, day DATE, t TIMESTAMP, n TIMESTAMP_NTZ, x BINARY, b BOOLEAN, offset BIGINT"
V2 = (
    "extra INT, i BIGINT, d DECIMAL(10,3), f DOUBLE, s STRING, day DATE, t TIMESTAMP, n TIMESTAMP_NTZ, x BINARY, b BOOLEAN, "
    "offset BIGINT"
)
STATS = "i,d,f,s,day,t,x"
NOON = datetime(2026, 1, 31, 12)
COMMITS, ROWS = 14, 4
DAY_MS = 86_400_000


class Column(NamedTuple):
    """Values that occur, and how they are written in a condition; some are in a condition only."""

    values: tuple[Any, ...]
    write: Callable[[Any], str]
    others: tuple[Any, ...] = ()
    key: Callable[[Any], Any] = lambda value: value


def float_key(value: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(value) else (False, value)


def quoted(word: str, pattern: str) -> Callable[[Any], str]:
    return lambda value: f"{word} '{value:{pattern}}'"


COLUMNS = {
    "i": Column((-3, 0, 1, 2, 3, 2**31 - 1), str, (2**31, 2**40, Decimal("1.5"))),
    "d": Column(tuple(map(Decimal, ["-1.25", "0.00", "1.10", "1.25", "9999.99"])), str, (1, Decimal("1.1001"), 10**12)),
    "f": Column(
        (math.nan, -0.0, 0.0, 0.10000000149011612, 1.5, math.inf, -math.inf),
        lambda value: f"{Decimal(value):f}",
        (0.1, 1.25, 2),
        lambda value: float_key(float(value)),
    ),
    "s": Column(
        ("", "a", "a" * 16, "a" * 17, "a" * 15 + "é", "é" * 9, "\ud7ff" * 6, "\U0010ffff" * 5, "z\U0010ffff" * 4),
        lambda value: f"'{value}'",
        ("b", "a" * 15 + "b", "\ue000", "\U0010ffff" * 4),
    ),
    "day": Column(tuple(date(2026, 1, day) for day in (1, 2, 30)), quoted("DATE", "%Y-%m-%d"), (date(1969, 1, 1),)),
    "t": Column(
        tuple(NOON.replace(tzinfo=timezone.utc) + timedelta(hours=hours) for hours in (-30, 0, 1, 2)),
        lambda value: f"TIMESTAMP '{value.astimezone(timezone(timedelta(hours=2))):%Y-%m-%d %H:%M:%S}+02:00'",
    ),
    "n": Column(tuple(NOON + timedelta(hours=n) for n in (-1, 0, 5)), quoted("TIMESTAMP_NTZ", "%Y-%m-%d %H:%M:%S")),
    "x": Column((b"", b"\x00", b"\xff" * 20, b"a" * 20), lambda value: f"X'{value.hex()}'", (b"\xff" * 16, b"b")),
    "b": Column((True, False), str),
    "offset": Column((-1, 5, 7), str),
    "extra": Column((1, 2, 3), str, (4,)),
}
SHOWN = {name: "value.offset" if name == "offset" else name for name in COLUMNS}
Check = Callable[[dict[str, Any]], bool | None]


def fill(log: Log, topic: str, seed: int) -> None:
    """Commits of few rows with neighbouring values, by two versions of the schema; some rows are deletions."""
    rng = random.Random(seed)
    configs = {"stats.columns": STATS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"}
    log.create_topic(NewTopic(topic, 2, configs, schema=V1))
    old = datetime.now(timezone.utc) - timedelta(days=1)
    for number in range(COMMITS):
        if number == COMMITS // 2:
            set_schema(log.journal, topic, as_schema(V2))
            log.admin.incremental_alter_configs({topic: {"stats.columns": f"{STATS},extra"}})
        near = {name: rng.randrange(len(column.values)) for name, column in COLUMNS.items()}

        def value(name: str, near: dict[str, int] = near, number: int = number) -> Any:
            if rng.random() < (0.9 if number % 5 == 4 else 0.15) or (name == "extra" and number < COMMITS // 2):
                return None
            values = COLUMNS[name].values
            return values[near[name]] if number % 2 else values[min(near[name] + rng.randrange(2), len(values) - 1)]

        rows = [
            {
                "key": f"{seed}-{number % 6}-{row}",
                "value": None if rng.random() < 0.1 else {n: value(n) for n in COLUMNS},
            }
            for row in range(ROWS)
        ]
        if number < COMMITS // 2:
            for row in rows:
                if isinstance(row["value"], dict):
                    row["value"].pop("extra")
        log.append(topic, [{**row, "timestamp": old, "partition": number % 2} for row in rows])


def run_seal(log: Log) -> None:
    """All but the newest slices are in an index."""
    maintenance(log.journal, seal, StepLimits(inline_slices=0, inline_per_partition=1))


MAINTENANCE: dict[str, Callable[[Log], object]] = {
    "written": lambda log: None,
    "merged": merge,
    "compacted": compact,
    "sealed": run_seal,
}


@pytest.fixture(scope="module")
def logs() -> Iterator[dict[str, Log]]:
    """Records of one topic, before and after some maintenance."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(spark_log.connect(f"memory://where-{name}")) for name in MAINTENANCE}
        for name, change in MAINTENANCE.items():
            fill(found[name], "t", 7)
            change(found[name])
        yield found


@st.composite
def column_tests(draw: st.DrawFn) -> tuple[str, Check]:
    """A test of one column."""
    name = draw(st.sampled_from(sorted(COLUMNS)))
    column, shown = COLUMNS[name], f"`{SHOWN[name]}`"
    constants = [value for value in column.values if value == value and value not in (math.inf, -math.inf)]
    picked = st.sampled_from([*constants, *column.others])
    sign = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "in", "not in", "between", "is null", "is not null"]))
    if sign.startswith("is"):
        return f"{shown} {sign}", lambda row: (row[name] is None) == (sign == "is null")
    several = draw(st.lists(picked, min_size=2, max_size=3))
    if sign == "between":
        text = f"{shown} between {column.write(several[0])} and {column.write(several[1])}"
    elif sign.endswith("in"):
        text = f"{shown} {sign} ({', '.join(map(column.write, several))})"
    else:
        text = f"{shown} {sign} {column.write(several[0])}"
    keys = [column.key(value) for value in several]

    def check(row: dict[str, Any]) -> bool | None:
        if row[name] is None:
            return None
        value = column.key(row[name])
        match sign:
            case "=":
                return bool(value == keys[0])
            case "<>":
                return bool(value != keys[0])
            case "<":
                return bool(value < keys[0])
            case "<=":
                return bool(value <= keys[0])
            case ">":
                return bool(value > keys[0])
            case ">=":
                return bool(value >= keys[0])
            case "between":
                return bool(keys[0] <= value <= keys[1])
            case _:
                return (value in keys) == (sign == "in")

    return text, check


def negated(one: tuple[str, Check]) -> tuple[str, Check]:
    text, check = one
    return f"not ({text})", lambda row: None if (found := check(row)) is None else not found


def joined(word: str, several: list[tuple[str, Check]]) -> tuple[str, Check]:
    """By SQL's logic with three values."""
    stop = word == "or"

    def check(row: dict[str, Any]) -> bool | None:
        found = [one(row) for _, one in several]
        return stop if stop in found else None if None in found else not stop

    return f" {word} ".join(f"({text})" for text, _ in several), check


CONDITIONS = st.recursive(
    column_tests(),
    lambda inner: (
        inner.map(negated) | st.builds(joined, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3))
    ),
    max_leaves=4,
)


# Promise: tasks/typed.md#skip-what-cannot-match
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CONDITIONS, st.sampled_from(sorted(MAINTENANCE)))
def test_rows_are_those_for_which_the_condition_is_true(
    logs: dict[str, Log], condition: tuple[str, Check], after: str
) -> None:
    """Nulls, NaN, zeros, texts that are cut, times with zones, deletions, two versions of a schema, and holes."""
    text, check = condition
    log, topic = logs[after], "t"
    columns = ["partition", "offset", *SHOWN.values()]
    everything = log.read(topic, columns=columns).to_pylist()
    expected = [row for row in everything if check({name: row[shown] for name, shown in SHOWN.items()})]
    found = log.read(topic, columns=["partition", "offset"], where=text).to_pylist()
    assert found == [{"partition": row["partition"], "offset": row["offset"]} for row in expected]


@pytest.fixture(scope="module")
def orders() -> Iterator[Log]:
    """Three small commits, then a large one with three batches; `id` ascends."""
    with spark_log.connect("memory://where-orders") as log:
        log.create_topic(NewTopic("orders", 1, schema="id BIGINT NOT NULL, country STRING, note STRING"))
        for first in (0, 10, 20):
            log.append("orders", [{"id": first + n, "country": "DE" if first else "FR"} for n in range(10)])
        ids = range(1000, 26_000)
        notes = [random.Random(number).randbytes(40).hex() for number in ids]
        log.append("orders", pa.table({"id": ids, "country": ["SE"] * len(ids), "note": notes}))
        yield log


# Promise: tasks/typed.md#skip-what-cannot-match
@pytest.mark.parametrize(
    ("where", "slices", "batches"),
    [
        ("id >= 0", 4, 6),
        ("id < 10", 1, 1),
        ("country = 'DE'", 2, 2),
        ("id = 15 or country = 'FR'", 2, 2),
        ("not (id >= 10)", 1, 1),
        ("id = 999", 0, 0),
        ("id = 1500", 1, 1),
        ("id between 10990 and 11010", 1, 2),
        ("note is null", 3, 3),
        ("country in ('DE', 'NO') and id > 20", 1, 1),
        ("partition = 1 or id < 10", 4, 6),
    ],
)
def test_what_cannot_match_is_not_read(orders: Log, where: str, slices: int, batches: int) -> None:
    """Small commits by the state, batches of large ones by their index; `pylog plan` counts the same."""
    window = bound_to_topic(orders.journal.state, "orders", as_condition(where)).window
    found = [touched(orders.journal.objects, read, window) for read in orders.plan("orders", where=where)]
    assert (len(found), sum(one.batches for one in found)) == (slices, batches)


# Promise: tasks/typed.md#skip-what-cannot-match
def test_a_condition_narrows_other_forms_of_a_read(orders: Log) -> None:
    """JSON, structs, and the latest records, with and without the column."""
    where = "id in (5, 15) and offset < 15"
    assert [row["id"] for row in orders.read("orders", where=where).to_pylist()] == [5]
    text = orders.read("orders", columns=["value"], where=where, value_format="json").to_pylist()
    assert text == [{"value": b'{"id":5,"country":"FR"}'}]
    (row,) = orders.read("orders", columns=["value"], where=where, value_format="struct").to_pylist()
    assert row["value"]["id"] == 5
    assert orders.table("orders", columns=["offset"], where=where).num_rows == 0  # without keys


# Promise: tasks/typed.md#skip-what-cannot-match
def test_the_latest_record_of_a_key_decides() -> None:
    """An older one that would match is not shown because the newer one was skipped."""
    with spark_log.connect("memory://where-latest") as log:
        log.create_topic(NewTopic("t", 1, schema="id INT"))
        for number in (1, 2):
            log.append("t", [{"key": "k", "id": number}])
        assert log.table("t", columns=["id"], where="id = 1").num_rows == 0
        assert log.table("t", columns=["id"], where="id = 2").to_pydict() == {"id": [2]}


# Promise: tasks/typed.md#skip-what-cannot-match
@pytest.mark.parametrize(
    ("where", "words"),
    [
        (
            "x = 1",
            "topic 'orders' has no column 'x'; expected timestamp, offset, partition, id, country or note (at character 1)",
        ),
        (
            "id > 0 and id = '5'",
            "column 'id' is BIGINT: it is compared with a number, and '5' is not one (at character 12)",
        ),
        ("id > 1e3", "column 'id' is BIGINT: Spark would compare rounded numbers: write 1e3 without an exponent"),
        ("country = 5", "column 'country' is STRING: it is compared with a text in quotes, and 5 is not one"),
        ("country = '\ud800'", r"column 'country' is STRING: '\ud800' has half of a pair of surrogates"),
    ],
)
def test_a_column_or_constant_that_is_wrong_is_named(orders: Log, where: str, words: str) -> None:
    """With its place."""
    with pytest.raises(InvalidRequest) as refused:
        orders.read("orders", where=where)
    assert words in str(refused.value)


def test_bytes_have_no_columns(orders: Log) -> None:
    """Of a topic without a schema, and from before it had one; OR works for offsets."""
    orders.create_topic(NewTopic("bytes", 1))
    orders.append("bytes", [{"value": b'{"id":%d}' % number} for number in range(3)])
    found = orders.read("bytes", columns=["value"], where="offset = 0 or offset = 2")
    assert found["value"].to_pylist() == [b'{"id":0}', b'{"id":2}']
    with pytest.raises(
        InvalidRequest, match="topic 'bytes' has no schema, so there is no column 'id'; expected timestamp, offset"
    ):
        orders.read("bytes", where="id = 1")
    set_schema(orders.journal, "bytes", as_schema("id INT"))
    with pytest.raises(InvalidRequest, match="before offset 3 are bytes from before the topic had a schema"):
        orders.read("bytes", columns=["offset"], where="id = 1")
    parsed = orders.read("bytes", columns=["offset"], where="id = 1", value_parse="json")
    assert parsed["offset"].to_pylist() == [1]
    struct = orders.read("bytes", columns=["value"], value_format="struct", value_parse="json", where="offset <> 1")
    assert struct["value"].to_pylist() == [{"id": 0}, {"id": 2}]
    text = orders.read("bytes", columns=["value"], value_format="json", value_parse="json", where="id = 1")
    assert text["value"].to_pylist() == [b'{"id":1}']


# Promise: tasks/typed.md#skip-what-cannot-match
def test_statistics_are_of_the_columns_that_the_topic_names(orders: Log) -> None:
    """An empty list turns them off: nothing is skipped, and the rows are the same."""
    orders.create_topic(NewTopic("none", 1, {"stats.columns": ""}, schema="id INT"))
    orders.append("none", [{"id": 1}])
    assert len(orders.plan("none", where="id = 2")) == 1 and orders.read("none", where="id = 2").num_rows == 0
