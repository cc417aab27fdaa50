"""Topics with a schema on the command line."""

from __future__ import annotations

from pathlib import Path

import spark_log
from tests.cli.commands import Pylog


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


def test_records_are_consumed_as_lines_of_json(pylog: Pylog) -> None:
    pylog.ok("topic", "create", "clicks", "--schema", "id BIGINT NOT NULL, at TIMESTAMP, sum DECIMAL(10,2)")
    with spark_log.connect(pylog.url) as log:
        log.append("clicks", [{"id": 1}, {"id": 2}])
    assert pylog.ok("consume", "clicks") == '{"id":1}\n{"id":2}\n'


def test_a_plan_shows_what_a_condition_skips(pylog: Pylog) -> None:
    pylog.ok("topic", "create", "clicks", "--schema", "id BIGINT NOT NULL, url STRING")
    with spark_log.connect(pylog.url) as log:
        for number in range(3):
            log.append("clicks", [{"id": number, "url": "a"}])
    total = pylog.json("plan", "clicks", "--where", "id > 1 and url = 'a'")["total"]
    assert (total["records"], total["total_records"]) == (1, 3) and 0 < total["bytes"] < total["total_bytes"]
    assert "no column 'ids'" in pylog.refused("plan", "clicks", "--where", "ids > 1")
