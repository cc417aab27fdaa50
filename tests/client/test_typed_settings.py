"""Settings of clients as editors, type checkers and `help()` see them."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from pyspark_pylog import registration, tune
from pyspark_pylog.options import where_condition
from pyspark_pylog.sink import foreach_batch

import spark_log
from spark_log.client.client_settings import CONSUMER, PRODUCER, TRANSACTION, ClientSetting
from spark_log.client.typed_settings import (
    ConsumerSettings,
    Deserializer,
    ProducerSettings,
    Serializer,
    TransactionSettings,
)

PAIRS = [(PRODUCER, ProducerSettings), (CONSUMER, ConsumerSettings), (TRANSACTION, TransactionSettings)]
WORDS = (
    "x",
    "default",
    "range",
    "zstd",
    "lz4",
    "none",
    "all",
    "0",
    "1",
    "-1",
    "latest",
    "earliest",
    "columns",
    "struct",
)
SAMPLES = (True, False, None, -1, 0, 1, 5, 1000, 1.5, b"x", len, ["range"], ("range",), *WORDS, "json", "classic")
PROMPT = """
import spark_log
log = spark_log.connect("/tmp/log")
log.consumer("orders", grp="billing")
log.consumer("orders", group_id="billing", auto_offset_reset="earliest", enable_auto_commit=False)
log.producer(linger_ms="5")
log.producer(linger_ms=5, acks="all", value_serializer=str.encode)
log.transaction("etl-1", group_id="billing")
log.transaction("etl-1", transaction_timeout_ms=600_000)


async def main() -> None:
    async with spark_log.aio.connect("/tmp/log") as other:
        other.consumer("orders", grp="billing")
        reveal_type(await other.append("orders", [], acks=1))
        await other.append("orders", [], akcs=1)
"""


def words(hint: Any) -> Iterator[object]:
    """The values that a hint names."""
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint) if get_origin(hint) in (Union, UnionType) else ():
            yield from words(part)


def fits(value: object, hint: Any) -> bool:
    """Whether a type checker takes a value for this hint."""
    if get_origin(hint) is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(hint))
    if isinstance(hint, type) and hint in (Serializer, Deserializer):
        return False
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return any(fits(value, one) for one in get_args(hint))
    return isinstance(value, kind)


# Promise: clients.md#consumer
@pytest.mark.parametrize(("table", "types"), PAIRS, ids=["producer", "consumer", "transaction"])
def test_types_have_the_settings_of_the_table(table: Mapping[str, ClientSetting], types: type) -> None:
    """A value that the table accepts has the type, and it accepts the values that the type names."""
    hints = get_type_hints(types)
    assert set(hints) == set(table)
    for name, hint in hints.items():
        assert all(table[name].accepts(word) for word in words(hint)), name
        taken = [value for value in (*SAMPLES, table[name].default) if table[name].accepts(value)]
        assert [value for value in taken if not fits(value, hint)] == [], name
        assert not fits(b"x", hint), name


# Promise: clients.md#consumer
def test_a_checker_refuses_settings_that_do_not_exist(tmp_path: Path) -> None:
    """`grp=` and a text for a number; mypy sees them as a user of the installed package does."""
    program = tmp_path / "prompt.py"
    program.write_text(PROMPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path)
    found = [line.partition(": error: ")[0:3:2] for line in done.stdout.splitlines() if ": error: " in line]
    assert [place for place, _ in found] == [
        "prompt.py:4",
        "prompt.py:6",
        "prompt.py:8",
        "prompt.py:14",
        "prompt.py:16",
    ], done.stdout + done.stderr
    assert '"grp"' in found[0][1] and '"linger_ms"' in found[1][1] and '"group_id"' in found[2][1]
    assert "dict[tuple[str, int, fallback=" in done.stdout and '"akcs"' in found[4][1]


# Promise: clients.md#consumer
@pytest.mark.parametrize(
    ("name", "table"), [("producer", PRODUCER), ("consumer", CONSUMER), ("transaction", TRANSACTION)]
)
def test_help_has_all_settings(name: str, table: Mapping[str, ClientSetting]) -> None:
    """With their defaults, so that completion at a prompt finds them too."""
    parameters = inspect.signature(getattr(spark_log.Log, name)).parameters
    assert {one: parameters[one].default for one in table} == {one: setting.default for one, setting in table.items()}
    assert all(f"{one}: " in pydoc.render_doc(getattr(spark_log.Log, name)) for one in table)


# Promise: api.md#python-api
@pytest.mark.parametrize(
    ("shown", "done"),
    [
        (spark_log.register, registration.register),
        (spark_log.sink, foreach_batch.sink),
        (spark_log.tune, tune.tune),
        (spark_log.where, where_condition.where),
    ],
    ids=["register", "sink", "tune", "where"],
)
def test_help_shows_the_signature_of_the_function_that_does_it(
    shown: Callable[..., object], done: Callable[..., object]
) -> None:
    """The page is made from these, too."""
    assert inspect.signature(shown) == inspect.signature(done)
