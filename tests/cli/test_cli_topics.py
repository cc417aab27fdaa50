"""`pylog topic …`."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_log.configs.settings import TOPIC_CONFIGS
from tests.cli.commands import Pylog


# Promise: cli.md#pylog-topic-create
def test_create_begins_a_log(tmp_path: Path) -> None:
    """The first topic of a new URL creates the log there."""
    pylog = Pylog(tmp_path / "new")
    assert pylog.ok("topic", "create", "a") == "topic a created with 1 partition\n"
    assert pylog.json("topic", "list") == [{"topic": "a", "partitions": 1, "records": 0, "bytes": 0}]


def test_create_warns_of_what_has_no_effect(pylog: Pylog) -> None:
    """Kafka's configs are accepted, and a warning says which ones do nothing, and why."""
    args = ["-c", "segment.jitter.ms=1000", "-c", "unclean.leader.election.enable=true", "--output", "json"]
    result = pylog.run("topic", "create", "b", *args)
    assert result.exit_code == 0
    assert "segment.jitter.ms is kept, and has no effect in pylog: Maintenance merges" in result.stderr
    assert "unclean.leader.election.enable is kept, and has no effect in pylog: Only `pylog elect" in result.stderr


def test_create_refuses(pylog: Pylog) -> None:
    """A name that is taken, a name that cannot be, an unknown config, no partitions."""
    assert "exists already" in pylog.refused("topic", "create", "orders")
    assert "../x" in pylog.refused("topic", "create", "../x")
    assert "did you mean retention.ms?" in pylog.refused("topic", "create", "b", "-c", "retention.msec=1")
    assert "no write would succeed" in pylog.refused("topic", "create", "b", "-c", "min.insync.replicas=2")
    assert "0 partitions" in pylog.refused("topic", "create", "b", "-p", "0")
    assert "KEY=VALUE" in pylog.wrong("topic", "create", "b", "-c", "retention")


# Promise: cli.md#pylog-topic-list
def test_list_as_a_table(pylog: Pylog) -> None:
    """A line for each topic under a header."""
    header, line = pylog.ok("topic", "list").splitlines()
    assert header.split() == ["TOPIC", "PARTITIONS", "RECORDS", "BYTES"]
    assert line.split()[:3] == ["orders", "3", "10"]


# Promise: cli.md#pylog-topic-describe
def test_describe(pylog: Pylog) -> None:
    """Each config with its source, and partitions; configs without effect only if they are set, or with --all."""
    found = pylog.json("topic", "describe", "orders")
    configs = {row["config"]: row for row in found["configs"]}
    assert configs["retention.ms"] == {
        "config": "retention.ms",
        "value": "3600000",
        "source": "topic",
        "in_force": True,
    }
    assert (configs["segment.ms"]["value"], configs["segment.ms"]["source"]) == ("604800000", "default")
    assert "flush.ms" not in configs
    assert [part["records"] for part in found["partitions"]] == [0, 10, 0]
    lines = [line.split() for line in pylog.ok("topic", "describe", "orders").splitlines()]
    assert ["CONFIG", "VALUE", "SOURCE", "IN_FORCE"] in lines
    assert ["retention.ms", "3600000", "topic", "true"] in lines
    assert ["segment.ms", "604800000", "default", "true"] in lines
    pylog.ok("topic", "alter", "orders", "-c", "flush.ms=5")
    configs = {row["config"]: row for row in pylog.json("topic", "describe", "orders")["configs"]}
    assert (configs["flush.ms"]["source"], configs["flush.ms"]["in_force"]) == ("topic", False)
    every = {row["config"] for row in pylog.json("topic", "describe", "orders", "--all")["configs"]}
    assert every == set(TOPIC_CONFIGS)


def test_describe_shows_configs_of_compaction(pylog: Pylog) -> None:
    """All of them are in force, with their source; those that contradict each other are refused together."""
    pylog.ok("topic", "alter", "orders", "-c", "cleanup.policy=compact,delete", "-c", "max.compaction.lag.ms=60000")
    configs = {row["config"]: row for row in pylog.json("topic", "describe", "orders")["configs"]}
    assert (configs["cleanup.policy"]["value"], configs["cleanup.policy"]["in_force"]) == ("delete,compact", True)
    assert configs["max.compaction.lag.ms"]["source"] == "topic"
    shown = {name: configs[name]["value"] for name in ("delete.retention.ms", "min.cleanable.dirty.ratio")}
    assert shown == {"delete.retention.ms": "86400000", "min.cleanable.dirty.ratio": "0.5"}
    said = pylog.refused("topic", "alter", "orders", "-c", "min.compaction.lag.ms=60001")
    assert "min.compaction.lag.ms=60001 is greater than max.compaction.lag.ms=60000" in said
    said = pylog.refused("topic", "create", "b", "-c", "min.compaction.lag.ms=2", "-c", "max.compaction.lag.ms=1")
    assert "is greater than" in said


def test_unknown_topics_get_the_nearest_name(pylog: Pylog) -> None:
    """Wherever a topic is named."""
    for args in (
        ["topic", "describe", "order"],
        ["topic", "delete", "order", "--yes"],
        ["topic", "offsets", "order"],
        ["topic", "trim", "order", "--to", "latest", "--yes"],
        ["topic", "alter", "order", "--partitions", "9"],
        ["consume", "order"],
        ["plan", "order"],
        ["config", "describe", "--topic", "order"],
    ):
        assert "did you mean orders?" in pylog.refused(*args)


def test_alter(pylog: Pylog) -> None:
    """Partitions are added, configs set and unset."""
    pylog.ok("topic", "alter", "orders", "-p", "5", "-c", "retention.bytes=9", "--unset", "retention.ms")
    found = pylog.json("topic", "describe", "orders")
    assert len(found["partitions"]) == 5
    set_here = {row["config"]: row["value"] for row in found["configs"] if row["source"] == "topic"}
    assert set_here == {"retention.bytes": "9"}
    assert "expected a larger new total" in pylog.refused("topic", "alter", "orders", "--partitions", "2")
    assert "nothing to alter" in pylog.wrong("topic", "alter", "orders")


# Promise: cli.md#pylog-topic-delete
def test_delete_asks(pylog: Pylog) -> None:
    """Not on a terminal and without --yes it is refused; a dry run does nothing."""
    assert "--yes" in pylog.refused("topic", "delete", "orders")
    result = pylog.run("topic", "delete", "orders", "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "would delete topic orders with 10 records\n")
    assert len(pylog.json("topic", "list")) == 1
    pylog.ok("topic", "delete", "orders", "--yes")
    assert pylog.json("topic", "list") == []


# Promise: cli.md#pylog-topic-trim, retention.md#remove-records-now
def test_trim(pylog: Pylog) -> None:
    """Records before a position go, in all partitions or in one."""
    assert "--yes" in pylog.refused("topic", "trim", "orders", "--to", "latest-4")
    assert pylog.json("topic", "trim", "orders", "--to", "latest-4", "--dry-run")[1]["records"] == 6
    assert pylog.json("topic", "offsets", "orders")[1] == {"partition": 1, "start": 0, "end": 10}
    pylog.ok("topic", "trim", "orders", "--to", "latest-4", "-p", "1", "--yes")
    assert pylog.json("topic", "offsets", "orders")[1] == {"partition": 1, "start": 6, "end": 10}
    assert "no partition 7" in pylog.refused("topic", "trim", "orders", "--to", "latest", "-p", "7", "--yes")
    assert "-p N" not in (said := pylog.refused("topic", "trim", "orders", "--to", "11", "-p", "1", "--yes"))
    assert "6 to 10" in said
    assert "-p N" in pylog.refused("topic", "trim", "orders", "--to", "7", "--yes")  # partition 0 is empty


# Promise: cli.md#pylog-topic-offsets
@pytest.mark.parametrize(("position", "offset"), [("latest-3", 7), ("earliest", 0), ("now-1h", 0), ("now-0s", 10)])
def test_offsets_at_a_position(pylog: Pylog, position: str, offset: int) -> None:
    """Positions are shown as offsets."""
    assert pylog.json("topic", "offsets", "orders", "--at", position)[1] == {"partition": 1, "offset": offset}


def test_partitions_come_before_configs(pylog: Pylog) -> None:
    """Twenty lines of configs hid the partitions behind them.  CSV has the partitions only."""
    lines = pylog.ok("topic", "describe", "orders", "--all").splitlines()
    (partitions,) = (number for number, line in enumerate(lines) if line.startswith("PARTITION"))
    (configs,) = (number for number, line in enumerate(lines) if line.startswith("CONFIG"))
    assert partitions < configs
    assert pylog.ok("topic", "describe", "orders", "--output", "csv").startswith("partition,")


def test_configs_have_units(pylog: Pylog) -> None:
    """They are stored as Kafka's numbers."""
    pylog.ok("topic", "create", "kept", "-c", "retention.ms=7d", "-c", "segment.bytes=64mb")
    found = {row["config"]: row["value"] for row in pylog.json("topic", "describe", "kept")["configs"]}
    assert (found["retention.ms"], found["segment.bytes"]) == ("604800000", "67108864")
