"""`pylog group seek`: everything that Kafka's reset of offsets does; and the removal of members."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_log
from spark_log import TopicPartition
from tests.cli.commands import Pylog


@pytest.fixture
def grouped(pylog: Pylog) -> Pylog:
    """Group "billing" has read four of ten records of "orders", and all two of "audit"."""
    pylog.ok("consume", "orders", "-g", "billing", "-n", "4")
    pylog.ok("produce", "audit", stdin="a\nb\n")
    pylog.ok("consume", "audit", "-g", "billing")
    return pylog


def where(pylog: Pylog, group: str = "billing") -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in pylog.json("group", "describe", group)["offsets"]:
        found.setdefault(row["topic"], []).append(row["offset"])
    return found


# Promise: command-line.md#move-a-group
@pytest.mark.parametrize(("by", "offset"), [("3", 7), ("-3", 1), ("100", 10), ("-100", 0)])
def test_shift_by_stops_at_the_ends(grouped: Pylog, by: str, offset: int) -> None:
    """Forward and back, within what the partition holds."""
    grouped.ok("group", "seek", "billing", "--shift-by", by, "--topic", "orders", "--yes")
    assert where(grouped) == {"audit": [2], "orders": [0, offset, 0]}


# Promise: command-line.md#move-a-group
def test_a_shift_starts_from_a_committed_offset(grouped: Pylog) -> None:
    """As Kafka's: without one it is refused."""
    grouped.ok("topic", "create", "new")
    assert "no committed offset in new-0" in grouped.refused(
        "group", "seek", "billing", "--shift-by", "1", "--topic", "new", "--yes"
    )


def test_a_seek_says_how_to_go_back(grouped: Pylog) -> None:
    """It can be undone, unlike other changes that ask."""
    said = grouped.refused("group", "seek", "billing", "--to", "earliest")
    assert "--export saves its offsets" in said and "--yes" in said and "cannot be undone" not in said


# Promise: command-line.md#move-a-group
def test_several_topics_and_partitions(grouped: Pylog) -> None:
    """--topic may be repeated, and names several partitions as Kafka's does."""
    places = ["--topic", "orders:1,2", "--topic", "audit"]
    moves = grouped.json("group", "seek", "billing", "--to", "earliest", *places, "--dry-run")
    assert [(row["topic"], row["partition"], row["to"]) for row in moves] == [
        ("orders", 1, 0),
        ("orders", 2, 0),
        ("audit", 0, 0),
    ]
    assert "TOPIC:PARTITION" in grouped.wrong("group", "seek", "billing", "--to", "latest", "--topic", "orders:1,x")


# Promise: command-line.md#move-a-group
def test_an_export_is_read_back(grouped: Pylog, tmp_path: Path) -> None:
    """In the form of Kafka's tool, from a file or standard input."""
    text = grouped.ok("group", "describe", "billing", "--export")
    assert text == "audit,0,2\norders,0,0\norders,1,4\norders,2,0\n"
    file = tmp_path / "offsets.csv"
    file.write_text(text)
    grouped.ok("group", "seek", "copy", "--from-file", str(file), "--yes")
    grouped.ok("group", "seek", "piped", "--from-file", "-", "--yes", stdin=text)
    assert where(grouped, "copy") == where(grouped, "piped") == where(grouped)


# Promise: command-line.md#move-a-group
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orders,1,4\norders,x,4\n", "line 2 is 'orders,x,4', not of the form topic,partition,offset"),
        ("billing,orders,1,4\n", "line 1 is"),
        ("orders,1,-4\n", "line 1 is"),
        ("", "the file is empty"),
        ("orders,1,4\norders,1,11\n", "line 2: offset 11 of orders-1 is out of range, it has 0 to 10"),
        ("order,1,4\n", "did you mean orders?"),
        ("orders,7,4\n", "line 1: topic 'orders' has no partition 7"),
    ],
)
def test_a_file_is_checked_as_a_whole(grouped: Pylog, text: str, message: str) -> None:
    """Nothing is moved if a line is wrong."""
    assert message in grouped.refused("group", "seek", "billing", "--from-file", "-", "--yes", stdin=text)
    assert where(grouped) == {"audit": [2], "orders": [0, 4, 0]}


def test_a_file_of_windows_is_read(grouped: Pylog, tmp_path: Path) -> None:
    """It begins with a byte order mark.  Another encoding is refused."""
    file = tmp_path / "offsets.csv"
    file.write_bytes(b"\xef\xbb\xbforders,1,3\r\n")
    grouped.ok("group", "seek", "billing", "--from-file", str(file), "--yes")
    assert where(grouped)["orders"] == [0, 3, 0]
    file.write_bytes(b"orders,1,3\xff\r\n")
    assert "the file cannot be read" in grouped.refused("group", "seek", "billing", "--from-file", str(file), "--yes")


def test_a_file_names_its_partitions_itself(grouped: Pylog) -> None:
    assert "leave it out" in grouped.wrong("group", "seek", "billing", "--from-file", "-", "--topic", "orders")


# Promise: cli.md#pylog-group-remove-members, command-line.md#move-a-group
def test_members_are_removed(pylog: Pylog) -> None:
    """The next commit of one that hangs is refused; --dry-run and --yes are as everywhere."""
    tp = TopicPartition("orders", 1)
    with spark_log.connect(pylog.url) as log:
        consumer = log.consumer("orders", group_id="billing", auto_offset_reset="earliest", enable_auto_commit=False)
        while not consumer.poll(100):
            pass
        consumer.commit({tp: 3})
        assert "--yes" in pylog.refused("group", "remove-members", "billing")
        dry = pylog.run("group", "remove-members", "billing", "--dry-run")
        assert dry.stderr == "would remove 1 member from group billing\n"
        assert pylog.ok("group", "remove-members", "billing", "--yes") == "1 member removed from group billing\n"
        with pytest.raises(spark_log.errors.IllegalGeneration):
            consumer.commit({tp: 5})
        consumer.close(autocommit=False)
    assert pylog.ok("group", "remove-members", "billing", "--yes") == "group billing has no members\n"
    assert "did you mean billing?" in pylog.refused("group", "remove-members", "biling", "--yes")


# Promise: cli.md#pylog-consume
def test_topics_are_consumed_by_pattern(grouped: Pylog) -> None:
    """The whole name matches; with a group and without."""
    for more in ([], ["-g", "new"]):
        found = grouped.ok("consume", "--include", "aud.*|ord.*", "-f", "%t %v", *more).splitlines()
        assert sorted(found) == ["audit a", "audit b", *(f"orders v{n}" for n in range(10))]
    none = grouped.run("consume", "--include", "aud")
    assert none.stdout == "" and none.exit_code == 0 and "no topic matches 'aud': the whole name" in none.stderr
    assert "as soon as it is created" not in none.stderr, "the command has ended"
    assert "either TOPIC or --include" in grouped.wrong("consume")
    assert "either TOPIC or --include" in grouped.wrong("consume", "orders", "--include", "x")
    assert "not a regular expression" in grouped.wrong("consume", "--include", "(")
