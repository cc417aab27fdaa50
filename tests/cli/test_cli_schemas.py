"""Topics with a schema on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import spark_log
from tests.cli.commands import Pylog


# Promise: cli.md#pylog-topic-schema
def test_a_schema_is_given_shown_and_altered(pylog: Pylog, tmp_path: Path) -> None:
    """As DDL, or in a file; refused changes say why, and name what to do."""
    pylog.ok("topic", "create", "clicks", "--schema", "id BIGINT NOT NULL, url STRING")
    file = tmp_path / "schema.ddl"
    file.write_text("id BIGINT NOT NULL, url STRING,\n  at TIMESTAMP")
    pylog.ok("topic", "alter", "clicks", "--schema", str(file))
    columns = pylog.json("topic", "schema", "clicks")
    assert columns[0] == {"version": 2, "column": "id", "type": "BIGINT", "nullable": False}
    history = pylog.json("topic", "schema", "clicks", "--history")
    assert [row["schema"] for row in history] == [
        "id BIGINT NOT NULL, url STRING",
        "id BIGINT NOT NULL, url STRING, at TIMESTAMP",
    ]
    assert "column 'url' (STRING) is missing" in pylog.refused(
        "topic", "alter", "clicks", "--schema", "id BIGINT NOT NULL"
    )
    assert "does not parse at character 4" in pylog.refused("topic", "create", "other", "--schema", "id BIGNT")
    pylog.ok("topic", "create", "bytes")
    assert "has no schema, its values are bytes" in pylog.refused("topic", "schema", "bytes")


# Promise: tasks/typed.md#read
def test_records_are_consumed_as_lines_of_json(pylog: Pylog) -> None:
    pylog.ok("topic", "create", "clicks", "--schema", "id BIGINT NOT NULL, at TIMESTAMP, sum DECIMAL(10,2)")
    with spark_log.connect(pylog.url) as log:
        log.append("clicks", [{"id": 1}, {"id": 2}])
    for group in ([], ["-g", "g"]):
        assert pylog.ok("consume", "clicks", *group) == '{"id":1}\n{"id":2}\n'


# Promise: tasks/typed.md#tables, tasks/typed.md#write
def test_lines_of_json_are_produced_and_dumped_as_rows(pylog: Pylog, tmp_path: Path) -> None:
    """A line that does not fit is named, and nothing of its part of the input is appended; tombstones are kept."""
    pylog.ok("topic", "create", "clicks", "-p", "1", "--schema", "id INT NOT NULL, at TIMESTAMP, sum DECIMAL(10,2)")
    lines = 'a={"id":1,"at":"2026-01-31T10:00:00Z","sum":1.50}\nb=NULL\n'
    pylog.ok("produce", "clicks", "--key-delimiter", "=", "--null-marker", "NULL", stdin=lines)
    for wrong, said in (
        ("{", "line 2 is not JSON: "),
        ('{"id":"x"}', "line 2 does not fit the schema: field 'id': 'x' is a str, expected INT"),
        ('{"id":3000000000}', "field 'id': 3000000000 does not fit INT: expected -2147483648 to 2147483647"),
        ('{"id":1.5}', "field 'id': 1.5 does not fit INT"),
        ('{"id":1,"sum":1.234}', "field 'sum': 1.234 does not fit DECIMAL(10,2): expected at most 8 digits before the"),
        ('{"id":1,"at":"noon"}', "field 'at': 'noon' does not fit TIMESTAMP: expected text such as \"2026-01-31T10"),
        ('{"id":1,"at":5}', "field 'at': 5 does not fit TIMESTAMP: expected text such as"),
        ('{"sum":1}', "line 2: column 'id' (INT) is null"),
        ('{"id":2,"summ":1}', "the schema has no field 'summ' there"),
    ):
        assert said in pylog.refused("produce", "clicks", stdin=f'{{"id":2}}\n{wrong}\n'), wrong
    assert pylog.ok("consume", "clicks", "-f", "%k=%v") == 'a={"id":1,"at":"2026-01-31T10:00:00Z","sum":1.50}\nb=\n'
    with spark_log.connect(pylog.url) as log:
        (name,) = [
            piece.object
            for part in log.journal.state.topic_partitions(log.journal.state.names["clicks"])
            for piece in part[1].entries
        ]
    rows = pylog.json("segment", "dump", name, "--records")
    assert [(row["topic"], row["offset"], row["key"], row["value"]) for row in rows] == [
        ("clicks", 0, "a", '{"id":1,"at":"2026-01-31T10:00:00Z","sum":1.50}'),
        ("clicks", 1, "b", None),
    ]
    assert pylog.json("segment", "dump", name)["index"][0]["schema"] == 1
    pylog.ok("verify")


# Promise: tasks/typed.md#skip-what-cannot-match
def test_a_plan_shows_what_a_condition_skips(pylog: Pylog) -> None:
    pylog.ok("topic", "create", "clicks", "--schema", "id BIGINT NOT NULL, url STRING")
    with spark_log.connect(pylog.url) as log:
        for number in range(3):
            log.append("clicks", [{"id": number, "url": "a"}])
    total = pylog.json("plan", "clicks", "--where", "id > 1 and url = 'a'")["total"]
    assert (total["records"], total["total_records"]) == (1, 3) and 0 < total["bytes"] < total["total_bytes"]
    assert "no column 'ids'" in pylog.refused("plan", "clicks", "--where", "ids > 1")


def test_values_of_a_typed_topic_are_objects_in_whole_records(tmp_path: Path) -> None:
    """In JSON and YAML; not those from before the topic had a schema that are no JSON, nor in CSV or by a format."""
    pylog = Pylog(tmp_path / "log")
    pylog.ok("topic", "create", "t", "-p", "1")
    pylog.ok("produce", "t", stdin="not JSON\n")
    pylog.ok("topic", "alter", "t", "--schema", "id BIGINT, tags STRUCT<a: STRING>")
    pylog.ok("produce", "t", stdin='{"id": 1, "tags": {"a": "x"}}\n')
    value = {"id": 1, "tags": {"a": "x"}}
    found = [
        json.loads(line)["value"]
        for line in pylog.ok("consume", "t", "-o", "earliest", "--output", "json").splitlines()
    ]
    assert found == ["not JSON", value]
    by_format = pylog.ok("consume", "t", "-f", "json").splitlines()
    assert json.loads(by_format[1])["value"] == value
    assert "value: {" in pylog.ok("consume", "t", "--output", "yaml")
    assert json.loads(pylog.ok("consume", "t").splitlines()[1]) == value
    pylog.ok("produce", "plain", stdin='{"id": 1}\n')
    assert json.loads(pylog.ok("consume", "plain", "--output", "json"))["value"] == '{"id": 1}'
