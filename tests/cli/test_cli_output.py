"""The output of commands: units, tables, colours, and forms for programs."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import spark_log
from spark_log.cli.common.output import table_lines
from spark_log.cli.common.yaml import flow_text, yaml_lines
from spark_log.display.units import count_text, size_text
from spark_log.maintenance.maintain import checkpoint
from spark_log.metadata.records import Piece
from spark_log.text import duration_text
from tests.cli.commands import ROOT, Pylog, on_terminal

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(["no", "on", "1e3", "0x1f", "~", "a: b", "- x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_258_291, "1.2 MiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**3, "5.0 GiB"),
        (3 * 1024**4, "3.0 TiB"),
        (5000 * 1024**5, "5000.0 PiB"),
    ],
)
def test_a_size_has_a_binary_unit(size: int, text: str) -> None:
    """One digit after the point, and no 1024.0 of a smaller unit."""
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 s"),
        (350, "350 ms"),
        (12_999, "12 s"),
        (61_000, "1 min 1 s"),
        (11_100_000, "3 h 5 min"),
        (86_400_000, "1 d"),
        (86_461_000, "1 d"),
        (9 * 86_400_000 + 3_600_000, "9 d 1 h"),
    ],
)
def test_a_time_has_its_two_largest_units(ms: int, text: str) -> None:
    """The second one is left out where it is 0."""
    assert duration_text(ms) == text


def test_a_count_has_separators() -> None:
    assert (count_text(1_234_567), count_text(1234.5)) == ("1,234,567", "1,234.5")


# Promise: command-line.md#choose-the-output
def test_people_get_units_and_programs_numbers(pylog: Pylog) -> None:
    """--bytes prints plain numbers in a table; JSON has nothing else."""
    pylog.ok("produce", "orders", stdin="x" * 50 + "\n" * 5000)
    (row,) = pylog.json("topic", "list")
    assert row["records"] == 5010 and isinstance(row["bytes"], int)
    assert pylog.ok("topic", "list").splitlines()[1].split() == [
        "orders",
        "3",
        "5,010",
        *size_text(row["bytes"]).split(),
    ]
    exact = ["orders", "3", "5010", str(row["bytes"])]
    assert pylog.ok("topic", "list", "--bytes").splitlines()[1].split() == exact
    assert pylog.ok("--bytes", "topic", "list").splitlines()[1].split() == exact
    info = dict(line.split(maxsplit=1) for line in pylog.ok("cluster", "info").splitlines() if " " in line.strip())
    assert info["records"] == "5,010" and info["bytes"].endswith("KiB")
    assert " of 5,010 " in pylog.ok("plan", "orders").splitlines()[-1]


# ------------------------------------------------------------------------------------------------------------------ tables


def test_a_table_fits_its_width() -> None:
    """Text is wrapped within its column, the widest first; numbers stay whole."""
    lines = [
        ["NAME", "COUNT", "MEANING"],
        ["retention.ms", "1,234,567", "how long records are kept before they are removed"],
    ]
    found = list(table_lines(lines, [False, True, False], 45))
    assert found == [
        "NAME              COUNT  MEANING",
        "retention.ms  1,234,567  how long records are",
        "                         kept before they are",
        "                         removed",
    ]
    assert list(table_lines(lines, [False, True, False], 200)) == list(table_lines(lines, [False, True, False]))


def test_names_are_broken_last() -> None:
    """A name that was broken cannot be copied in one go."""
    lines = [["NAME", "MEANING"], ["a" * 30, " ".join(["b" * 10] * 5)]]
    assert list(table_lines(lines, [False, False], 50))[1].split() == ["a" * 30, "b" * 10]
    assert list(table_lines(lines, [False, False], 40))[1].split() == ["a" * 22, "b" * 10]


def test_a_table_that_cannot_fit_is_wider() -> None:
    """No column is made so narrow that nobody can read it."""
    assert max(map(len, table_lines([["A" * 40, "B" * 40]], [False, False], 10))) == 34


# Promise: command-line.md#choose-the-output
def test_on_a_terminal_a_table_fits_and_has_colours(pylog: Pylog) -> None:
    """Not with NO_COLOR, and as wide as it takes with -o wide."""

    def shown(*args: str, **env: str) -> list[str]:
        with on_terminal(*args, "-u", pylog.url, columns=80, **env) as (_, lines):
            return list(lines)

    coloured = shown("config", "describe")
    assert "\x1b[1m" in coloured[0]
    plain = shown("config", "describe", NO_COLOR="1")
    assert "\x1b" not in "".join(plain)
    assert max(map(len, plain)) <= 80 < max(map(len, pylog.ok("config", "describe").splitlines()))
    wide = shown("config", "describe", "-o", "wide", NO_COLOR="1")
    assert wide == pylog.ok("config", "describe", "-o", "wide").splitlines()


# Promise: command-line.md#choose-the-output
def test_a_table_that_is_piped_has_neither_colours_nor_a_width(pylog: Pylog) -> None:
    """So `pylog … | grep` finds whole lines."""
    found = pylog.ok("config", "describe")
    assert "\x1b" not in found
    assert len(found.splitlines()) == len(pylog.json("config", "describe")) + 1


# ------------------------------------------------------------------------------------------------------------ for programs


@given(VALUES)
def test_yaml_reads_back(value: Any) -> None:
    """As another reader of YAML has it, in both styles."""
    assert yaml.safe_load("\n".join(yaml_lines(value))) == value
    assert yaml.safe_load(flow_text(value)) == value


def test_a_tuple_is_a_list_in_yaml() -> None:
    """As in JSON."""
    value = {"a": (1, "x"), "b": ()}
    assert yaml.safe_load("\n".join(yaml_lines(value))) == yaml.safe_load(flow_text(value)) == {"a": [1, "x"], "b": []}


# Promise: command-line.md#choose-the-output
@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["topic", "describe", "orders"],
        ["group", "list"],
        ["group", "describe", "g"],
        ["cluster", "info"],
        ["cluster", "health"],
        ["plan", "orders"],
        ["config", "describe", "--topic", "orders"],
        ["consume", "orders"],
    ],
)
def test_yaml_says_what_json_says(pylog: Pylog, command: list[str]) -> None:
    """For one thing, for lists, and for records."""
    pylog.ok("consume", "orders", "-g", "g", "-n", "3")
    text = pylog.ok(*command, "-o" if command[0] != "consume" else "--output", "yaml")
    lines = pylog.ok(*command, "--output", "json")
    value = [json.loads(line) for line in lines.splitlines()] if command[0] == "consume" else json.loads(lines)
    for row in _rows(value) + _rows(yaml.safe_load(text)):
        row.pop("lag_ms", None)  # passes meanwhile
    assert yaml.safe_load(text).__class__ is value.__class__
    assert _without_ages(yaml.safe_load(text)) == _without_ages(value)


def _rows(value: Any) -> list[dict[str, Any]]:
    return [value] if isinstance(value, dict) else list(value)


def _without_ages(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_ages(item) for name, item in value.items() if name != "lag_ms"}
    if isinstance(value, str):  # what `cluster health` says of the clock
        return re.sub(r"(the last commit was ).*( ago)", r"\1\2", value)
    return [_without_ages(item) for item in value] if isinstance(value, list) else value


# Promise: command-line.md#choose-the-output
def test_csv_has_every_column(pylog: Pylog) -> None:
    """A header with JSON's names, then exact numbers; values that are lists are JSON."""
    assert pylog.ok("topic", "list", "-o", "csv").splitlines()[0] == "topic,partitions,records,bytes"
    (row,) = csv.DictReader(pylog.ok("topic", "list", "-o", "csv").splitlines())
    assert row == {name: str(value) for name, value in pylog.json("topic", "list")[0].items()}
    found = list(csv.DictReader(pylog.ok("topic", "describe", "orders", "-o", "csv").splitlines()))
    assert [part["records"] for part in found] == ["0", "10", "0"]
    records = list(csv.DictReader(pylog.ok("consume", "orders", "--output", "csv", "-n", "2").splitlines()))
    assert [record["value"] for record in records] == ["v0", "v1"]
    assert json.loads(records[0]["headers"]) == [["h", "x"]]


def test_wide_adds_columns(pylog: Pylog) -> None:
    pylog.ok("consume", "orders", "-g", "g", "-n", "3")
    assert "GENERATION" not in pylog.ok("group", "list")
    assert "GENERATION" in pylog.ok("group", "list", "-o", "wide")


# Promise: command-line.md#choose-the-output
def test_the_environment_holds_the_form(pylog: Pylog) -> None:
    """PYLOG_OUTPUT, unless an option says otherwise; one that is not possible is an error that names the variable."""
    assert json.loads(pylog.ok("topic", "list", PYLOG_OUTPUT="json")) == pylog.json("topic", "list")
    assert pylog.ok("topic", "list", "-o", "table", PYLOG_OUTPUT="json") == pylog.ok("topic", "list")
    result = pylog.run("topic", "list", PYLOG_OUTPUT="xml")
    assert result.exit_code == 2
    assert "PYLOG_OUTPUT: invalid output 'xml'; expected table, wide, json, yaml, csv\n" in result.stderr
    assert pylog.run("topic", "create", "b", PYLOG_OUTPUT="xml").exit_code == 2
    assert [row["topic"] for row in pylog.json("topic", "list")] == ["orders"]


# Promise: command-line.md#choose-the-output
@pytest.mark.parametrize(
    "command",
    [
        "topic list",
        "topic list -o json",
        "group lag g",
        "metadata dump",
        "consume orders -g g -o earliest",
    ],
)
def test_a_reader_that_closes_the_pipe_gets_no_complaint(pylog: Pylog, command: str) -> None:
    """Before the first line, which is worse than `head`."""
    pylog.ok("consume", "orders", "-g", "g", "-n", "3")
    done = _into_closed_pipe(command.split(), pylog.url)
    assert done.stderr == b""
    assert done.returncode == (0 if command.startswith("consume") else 141)


def _into_closed_pipe(args: list[str], url: str) -> subprocess.CompletedProcess[bytes]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", "spark_log.cli", *args],
            env=os.environ | {"PYLOG_URL": url},
            cwd=ROOT,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=300,
            check=False,
        )
    finally:
        os.close(writer)


# Promise: cli.md#pylog-topic-list
def test_the_list_of_topics_reads_no_objects(tmp_path: Path) -> None:
    """Neither data nor slice indexes: it comes from the metadata, whatever the topics hold."""
    pylog, sealed = Pylog(tmp_path / "log"), 260
    with spark_log.connect(pylog.url, durability="os") as log:
        for _ in range(sealed):
            log.append("orders", pa.table({"value": ["x"]}))
        checkpoint(log)
        state = log.journal.refresh()
        assert any(isinstance(entry, Piece) for part in state.partitions.values() for entry in part.entries)
        described = log.admin.describe_topics()["orders"]
    shutil.rmtree(tmp_path / "log" / "data")
    (row,) = pylog.json("topic", "list")
    assert row == {"topic": "orders", "partitions": 1, "records": sealed, "bytes": described.bytes}
