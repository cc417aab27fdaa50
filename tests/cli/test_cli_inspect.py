"""`pylog cluster info`, `pylog config …`, `pylog producer list`."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log.positions import format_timestamp_ms
from tests.cli.commands import Pylog


# Promise: cli.md#pylog-cluster-info
def test_cluster_info(pylog: Pylog, way: str) -> None:
    """The identity and content of the log, and its writer."""
    found = pylog.json("cluster", "info")
    assert (found["topics"], found["records"]) == (1, 10)
    address = pylog.url.removeprefix("pylog://") if way == "service" else ""
    assert (found["coordinator"], found["coordinator_epoch"]) == (address, int(way == "service"))
    assert found["cluster_id"] in pylog.ok("cluster", "info")


# Promise: cli.md#pylog-config-alter, cli.md#pylog-config-describe
def test_config(pylog: Pylog) -> None:
    """Configs of the log and of topics, set and unset."""
    pylog.ok("config", "alter", "-c", "num.partitions=4")
    found = {row["config"]: row for row in pylog.json("config", "describe")}
    assert (found["num.partitions"]["value"], found["num.partitions"]["source"]) == ("4", "log")
    pylog.ok("config", "alter", "--unset", "num.partitions")
    found = {row["config"]: row for row in pylog.json("config", "describe", "--topic", "orders", "--all")}
    assert found["retention.ms"]["value"] == "3600000"
    assert not found["segment.jitter.ms"]["in_force"]
    pylog.ok("config", "alter", "--topic", "orders", "-c", "retention.ms=5")
    assert "nothing to alter" in pylog.wrong("config", "alter")
    assert "num.partitions" in pylog.refused("config", "alter", "-c", "num.partition=4")


# Promise: cli.md#pylog-producer-list
def test_producer_list(pylog: Pylog) -> None:
    """The producers of the log."""
    (row,) = pylog.json("producer", "list")
    assert (row["kind"], row["epoch"], row["sequence"]) == ("plain", 0, 0)


def test_a_damaged_metadata_record_does_not_hide_the_others(tmp_path: Path) -> None:
    """It is named, and the exit status is 1.  A checkpoint includes the record, so the log opens."""
    pylog = Pylog(tmp_path / "log")
    for topic in ("a", "b"):
        pylog.ok("topic", "create", topic)
    pylog.ok("checkpoint")
    record = f"meta/log/{1:020}.rec"
    (tmp_path / "log" / record).write_bytes(b"garbage")
    result = pylog.run("metadata", "dump")
    assert (result.exit_code, result.stdout.count("create_topic")) == (1, 1)
    assert f"1 record cannot be read: {record}" in result.stderr and "pylog repair --dry-run" in result.stderr


@pytest.mark.parametrize("ms", [-62_135_596_800_001, 253_402_300_800_000, 1])
def test_records_beyond_the_calendar_are_dumped(tmp_path: Path, ms: int) -> None:
    """Their times are numbers: Python's years are 1 to 9999."""
    log = spark_log.connect(tmp_path)
    log.admin.create_topics([spark_log.NewTopic("t", 1, {"message.timestamp.after.max.ms": str(2**62)})])
    log.append("t", [{"value": b"x", "timestamp": ms}])
    (object_,) = log.journal.state.objects
    (row,) = Pylog(tmp_path).json("segment", "dump", object_, "--records")
    assert row["timestamp"] == format_timestamp_ms(ms)
