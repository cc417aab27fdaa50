"""`pylog group …`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

from spark_log import connect
from spark_log.client.consumer.membership import Membership, SessionRequest
from spark_log.errors import IllegalGeneration, NoOffsetForPartition
from spark_log.http.address import this_host
from spark_log.metadata.groups.group_commands import JoinGroup
from tests.cli.commands import Pylog


@pytest.fixture
def grouped(pylog: Pylog) -> Pylog:
    """Group "billing" has read four records."""
    pylog.ok("consume", "orders", "-g", "billing", "-n", "4")
    return pylog


def where(pylog: Pylog, group: str = "billing") -> list[int]:
    return [row["offset"] for row in pylog.json("group", "describe", group)["offsets"]]


# Promise: cli.md#pylog-group-list
def test_list_describe_lag(grouped: Pylog) -> None:
    """A group, its positions, and what it has not read."""
    (row,) = grouped.json("group", "list")
    assert (row["group"], row["lag"]) == ("billing", 6)
    assert where(grouped) == [0, 4, 0]
    assert [row["lag"] for row in grouped.json("group", "lag", "billing")] == [0, 6, 0]
    assert grouped.ok("group", "lag", "billing").splitlines()[-1].split()[:5] == ["total", "-", "-", "-", "6"]


# Promise: command-line.md#choose-the-output
@pytest.mark.parametrize("verb", [["list"], ["describe", "billing"], ["lag", "billing"]])
def test_lag_in_records_bytes_and_time(grouped: Pylog, verb: list[str]) -> None:
    """Numbers for programs and with --bytes; for people a size and an age."""
    found = grouped.json("group", *verb)
    rows = found["offsets"] if verb[0] == "describe" else found
    total = {name: sum(row[name] for row in rows) for name in ("lag", "lag_bytes", "lag_ms")}
    stored = sum(row["bytes"] for row in grouped.json("topic", "list"))
    assert (total["lag"], total["lag_bytes"]) == (6, stored * 6 // 10) and 0 < total["lag_ms"] < 600_000
    header, *lines = grouped.ok("group", *verb).rpartition("\n\n")[2].splitlines()
    assert {"LAG", "BYTES", "AGE"} <= set(header.split())
    assert any(" B " in line and re.search(r" \d+ m?s", line) for line in lines)
    header, *lines = grouped.ok("group", *verb, "--bytes").rpartition("\n\n")[2].splitlines()
    assert {"LAG", "LAG_BYTES", "LAG_MS"} <= set(header.split())
    assert any(f" {total['lag_bytes']} " in line for line in lines)


# Promise: cli.md#pylog-group-describe
def test_trimmed_records_are_shown_and_are_no_lag(grouped: Pylog) -> None:
    """Six were not read, two of them cannot be read any more."""
    grouped.ok("topic", "trim", "orders", "-p", "1", "--to", "6", "--yes")
    row = grouped.json("group", "lag", "billing")[1]
    assert (row["offset"], row["lag"], row["trimmed"]) == (4, 4, 2)


def test_an_unknown_group_gets_the_nearest_name(grouped: Pylog) -> None:
    """For each verb."""
    for verb in (["describe"], ["lag"], ["delete", "--yes"], ["seek", "--to", "latest", "--yes"]):
        assert "did you mean billing?" in grouped.refused("group", verb[0], "biling", *verb[1:])


# Promise: cli.md#pylog-group-seek, command-line.md#move-a-group
def test_seek(grouped: Pylog) -> None:
    """To a position, in all partitions or in one; a dry run shows the moves."""
    assert "--yes" in grouped.refused("group", "seek", "billing", "--to", "earliest")
    moves = grouped.json("group", "seek", "billing", "--to", "latest", "--dry-run")
    assert moves[1] == {"topic": "orders", "partition": 1, "from": 4, "to": 10}
    assert where(grouped) == [0, 4, 0]
    grouped.ok("group", "seek", "billing", "--to", "latest-1", "--yes")
    assert where(grouped) == [0, 9, 0]
    grouped.ok("group", "seek", "billing", "--to", "2", "--topic", "orders:1", "--yes")
    assert where(grouped) == [0, 2, 0]


# Promise: cli.md#pylog-group-seek
def test_seek_to_another_group(grouped: Pylog) -> None:
    """A new group starts where another stands."""
    grouped.ok("group", "seek", "audit", "--to-group", "billing", "--yes")
    assert where(grouped, "audit") == [0, 4, 0]


def test_seek_wants_one_goal(grouped: Pylog) -> None:
    """A position or a group, and a partition that is a number."""
    assert "give one of --to" in grouped.wrong("group", "seek", "billing")
    assert "give one of --to" in grouped.wrong("group", "seek", "billing", "--to", "latest", "--to-group", "x")
    assert "TOPIC:PARTITION" in grouped.wrong("group", "seek", "billing", "--to", "latest", "--topic", "orders:x")


# Promise: cli.md#pylog-group-delete
def test_delete(grouped: Pylog) -> None:
    """It is forgotten, when one is sure."""
    assert "--yes" in grouped.refused("group", "delete", "billing")
    grouped.ok("group", "delete", "billing", "--dry-run")
    assert len(grouped.json("group", "list")) == 1
    grouped.ok("group", "delete", "billing", "--yes")
    assert grouped.json("group", "list") == []


def test_where_all_groups_stand_is_a_topic_to_consume(grouped: Pylog) -> None:
    """From a position on, so many, or one partition of it; in a list of topics only if it is asked for."""
    grouped.ok("consume", "orders", "-g", "audit", "-n", "2")
    lines = grouped.ok("consume", "__consumer_offsets", "-f", "%p %k %v\\n").splitlines()
    assert len(lines) == 6 and '"group":"audit","topic":"orders","partition":1} {"offset":2,' in "".join(lines)
    one = grouped.json("consume", "__consumer_offsets", "-n", "1", "-p", lines[0].split()[0])
    assert one["offset"] > 0
    assert grouped.ok("consume", "__consumer_offsets", "-o", "latest") == ""
    assert [row["topic"] for row in grouped.json("topic", "list")] == ["orders"]
    assert grouped.json("topic", "list", "--internal")[1] == {
        "topic": "__consumer_offsets",
        "partitions": 50,
        "records": 6,
        "bytes": 0,
    }
    assert "no group has a position in" in grouped.wrong("consume", "__consumer_offsets", "-g", "billing")
    assert "is read-only" in grouped.refused("produce", "__consumer_offsets", stdin="x\n")
    assert "is read-only" in grouped.refused("topic", "delete", "__consumer_offsets", "--yes")


def test_a_group_that_stands_nowhere_needs_a_topic(grouped: Pylog) -> None:
    """With a topic the group can start anywhere; an error detects a mistyped name."""
    assert "give its partitions with --topic" in grouped.refused("group", "seek", "new", "--to", "5", "--yes")
    grouped.ok("group", "seek", "new", "--to", "5", "--topic", "orders:1", "--yes")
    assert where(grouped, "new") == [5]
    assert "move group new in 1 partition (pylog group describe --export saves" in grouped.refused(
        "group", "seek", "new", "--to", "6"
    )
    assert grouped.run("group", "delete", "new", "--dry-run").stderr == "would delete group new with 1 position\n"


# Promise: cli.md#pylog-group-delete
def test_a_group_that_a_stream_holds_is_refused_before_anybody_is_asked(grouped: Pylog) -> None:
    """Also in a dry run: it would not be done."""
    wish = SessionRequest("token", "a stream on etl-7 (process 4711)", 45_000)
    Membership(connect(grouped.url).journal, "billing", wish).join()
    for command in (["seek", "billing", "--to", "0"], ["delete", "billing"]):
        for more in ([], ["--dry-run"], ["--yes"]):
            assert "is held by a stream on etl-7 (process 4711)" in grouped.refused("group", *command, *more)
    (row,) = grouped.json("group", "list")
    assert (row["state"], row["member"]) == ("Stable", "a stream on etl-7 (process 4711)")
    (member,) = grouped.json("group", "describe", "billing")["members"]
    assert (member["kind"], member["owner"], member["partitions"]) == ("stream", row["member"], None)
    assert (member["client_id"], member["host"], member["process"]) == ("stream", this_host(), os.getpid())


# Promise: cli.md#pylog-group-describe
def test_a_consumer_is_shown_with_its_client_id_and_its_process(grouped: Pylog) -> None:
    """As far as its id has them: an older pylog's has not."""
    journal = connect(grouped.url).journal
    Membership(journal, "billing", client_id="app@eu-1").join()
    (member,) = grouped.json("group", "describe", "billing")["members"]
    assert (member["client_id"], member["host"], member["process"]) == ("app@eu-1", this_host(), os.getpid())
    header, line, *_ = grouped.ok("group", "describe", "billing").split("MEMBER", 1)[1].splitlines()
    assert header.split()[:4] == ["KIND", "CLIENT_ID", "HOST", "PROCESS"]
    assert line.split()[2:5] == ["app@eu-1", this_host(), str(os.getpid())]
    journal.propose(JoinGroup(group="billing", member="0123456789abcdef"))
    (member,) = grouped.json("group", "describe", "billing")["members"]
    assert (member["client_id"], member["host"], member["process"]) == (None, None, None)


def test_a_change_names_the_consumer_that_may_run(tmp_path: Path) -> None:
    """Without a coordinator.  A consumer of a deleted group learns that it was deleted."""
    pylog = Pylog(tmp_path / "alone")
    with connect(pylog.url) as log:
        log.append("orders", [{"value": "v"}])
        with log.consumer("orders", group_id="billing", auto_offset_reset="earliest") as consumer:
            consumer.poll(timeout_ms=5_000)
            consumer.commit()
            for arguments in (("seek", "billing", "--to", "latest", "--yes"), ("delete", "billing", "--yes")):
                found = pylog.run("group", *arguments)
                assert found.exit_code == 0 and "group billing has 1 member" in found.stderr
            with pytest.raises(IllegalGeneration, match="group 'billing' was deleted"):
                consumer.poll(timeout_ms=5_000)


def test_a_group_that_has_committed_nothing_has_no_lag(pylog: Pylog) -> None:
    """Nobody knows how much it wants to read: 0 would say that it has read everything."""
    with connect(pylog.url) as log, log.consumer("orders", group_id="new", auto_offset_reset="none") as consumer:
        with suppress(NoOffsetForPartition):
            consumer.poll(timeout_ms=0)
        rows = pylog.json("group", "list")
        assert [(row["group"], row["lag"], row["lag_bytes"], row["lag_ms"]) for row in rows] == [
            ("new", None, None, None)
        ]
        (shown,) = (line.split() for line in pylog.ok("group", "list").splitlines() if line.startswith("new"))
    assert shown[0] == "new" and shown[-3:] == ["-", "-", "-"]
