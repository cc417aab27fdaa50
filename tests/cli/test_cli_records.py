"""`pylog produce` and `pylog consume`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from spark_log import Log, connect
from spark_log.client.consumer.consumer import REFRESH_MS
from tests.cli.commands import Pylog
from tests.processes import eventually


# Promise: cli.md#pylog-produce
def test_lines_become_records(tmp_path: Path) -> None:
    """A topic that is not there is created; a last line without an end counts; line ends of Windows are ends."""
    pylog = Pylog(tmp_path)
    assert pylog.ok("produce", "a", stdin="one\r\ntwo\n\nthree") == "4 records appended to a\n"
    assert pylog.ok("consume", "a") == "one\ntwo\n\nthree\n"


def test_no_lines_no_records(tmp_path: Path) -> None:
    """An empty input succeeds."""
    assert Pylog(tmp_path).json("produce", "a", stdin="") == {"topic": "a", "records": 0}


def test_keys_headers_and_partition(pylog: Pylog) -> None:
    """The values of the options are in the records."""
    (line,) = pylog.ok("consume", "orders", "-n", "1", "-f", "%t %p %o %k %v %h").splitlines()
    assert line == "orders 1 0 k0 v0 h=x"
    pylog.ok("produce", "orders", "-k", "all", "-p", "0", stdin="x\ny\n")
    assert pylog.ok("consume", "orders", "-p", "0", "-f", "%k=%v") == "all=x\nall=y\n"


def test_headers_of_one_name(tmp_path: Path) -> None:
    """All of them are written, in order."""
    pylog = Pylog(tmp_path)
    pylog.ok("produce", "orders", "-H", "a=1", "-H", "b=2", "-H", "a=3", stdin="v\n")
    (found,) = connect(tmp_path).read("orders")["headers"].to_pylist()
    assert [(one["key"], one["value"]) for one in found] == [("a", b"1"), ("b", b"2"), ("a", b"3")]


def test_a_line_without_its_delimiter(pylog: Pylog) -> None:
    """The line is named."""
    assert "line 2 has no ':'" in pylog.refused("produce", "orders", "--key-delimiter", ":", stdin="a:1\nb\n")
    assert "either" in pylog.wrong("produce", "orders", "--key-delimiter", ":", "-k", "x")


def test_a_partition_that_is_not_there(pylog: Pylog) -> None:
    """Nothing is appended; the message names the line, and a command that gives the topic the partition."""
    said = pylog.refused("produce", "orders", "-p", "3", stdin="a\n")
    assert "line 1: a record names partition 3" in said and "`pylog topic alter orders --partitions 4`" in said
    assert "is not a number of 64 bits" in pylog.wrong("produce", "orders", "-p", str(2**63), stdin="a\n")


def test_bytes_that_are_not_text_in_options(pylog: Pylog) -> None:
    """Keys and values of headers are bytes; names of headers are text.  Python has odd bytes as surrogates."""
    odd = os.fsdecode(b"\xff")
    assert "is not UTF-8" in pylog.wrong("produce", "orders", "-H", f"{odd}=1", stdin="a\n")
    pylog.ok("produce", "odd", "-k", odd, "-H", f"a={odd}", "--null-marker", odd, stdin=b"v\n\xff\n")
    found = connect(pylog.url).read("odd")
    assert found["value"].to_pylist() == [b"v", None] and found["key"].to_pylist() == [None, None]
    pylog.ok("produce", "odd", "-k", odd, stdin=b"v\n")
    assert connect(pylog.url).read("odd")["key"].to_pylist()[2] == b"\xff"


def test_the_command_of_a_message_about_a_large_record_works(pylog: Pylog) -> None:
    pylog.ok("topic", "create", "small", "-c", "max.message.bytes=20")
    said = pylog.refused("produce", "small", stdin=f"a\n{'b' * 100}\n")
    found = re.search(r"line 2: a record of 116 bytes .*`pylog (topic alter small -c max.message.bytes=116)`", said)
    assert found is not None, said
    pylog.ok(*found[1].split())
    pylog.ok("produce", "small", stdin=f"a\n{'b' * 100}\n")


def test_consume_json(pylog: Pylog) -> None:
    """An object on each line; bytes that are no text are base64."""
    pylog.ok("produce", "orders", "-p", "0", stdin=b"\xff\xfe\n")
    found = [json.loads(line) for line in pylog.ok("consume", "orders", "--output", "json").splitlines()]
    assert found[0]["value"] == {"base64": "//4="}
    assert found[1] | {"timestamp": 0} == {
        "topic": "orders",
        "partition": 1,
        "offset": 0,
        "timestamp": 0,
        "key": "k0",
        "value": "v0",
        "headers": [["h", "x"]],
    }
    assert pylog.ok("consume", "orders", "-f", "json", "-n", "1", "-p", "1") == json.dumps(found[1]) + "\n"


def test_consume_from_a_position(pylog: Pylog) -> None:
    """An offset, relative to the end, a time."""
    assert pylog.ok("consume", "orders", "-o", "latest-2") == "v8\nv9\n"
    assert pylog.ok("consume", "orders", "-o", "8", "-p", "1") == "v8\nv9\n"
    assert len(pylog.ok("consume", "orders", "-o", "now-1h").splitlines()) == 10
    assert "it has 0 to 10" in pylog.refused("consume", "orders", "-o", "11", "-p", "1")


def test_formats(pylog: Pylog) -> None:
    """Escapes and percent signs; an unknown token shows what there is."""
    assert pylog.ok("consume", "orders", "-n", "1", "-f", "%%\\t%s\\n") == "%\tv0\n"
    assert "%k key" in pylog.wrong("consume", "orders", "-f", "%x")


def test_a_group_goes_on_where_it_was(pylog: Pylog) -> None:
    """Printed records are committed, and no others."""
    assert pylog.ok("consume", "orders", "-g", "g", "-n", "3") == "v0\nv1\nv2\n"
    assert pylog.ok("consume", "orders", "-g", "g", "-n", "2") == "v3\nv4\n"
    assert sum(row["lag"] for row in pylog.json("group", "lag", "g")) == 5
    assert len(pylog.ok("consume", "orders", "-g", "g").splitlines()) == 5
    assert pylog.ok("consume", "orders", "-g", "g") == ""
    assert pylog.ok("consume", "orders", "-g", "g", "-o", "latest-1") == "v9\n"


def test_follow_ends_with_its_count(pylog: Pylog) -> None:
    """With --follow and a count, it ends when there were so many."""
    assert len(pylog.ok("consume", "orders", "--follow", "-n", "10").splitlines()) == 10


@contextmanager
def following(log: Log, *arguments: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """The standard output and error of `pylog consume --follow`."""
    command = [sys.executable, "-m", "spark_log.cli", "-u", log.url, "consume", "--follow", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            yield process.stdout, process.stderr
        finally:
            process.terminate()


# Promise: cli.md#pylog-consume
@pytest.mark.parametrize(
    ("wanted", "away"),
    [("t", False), ("t", True), ("--include=t.*", True), ("-p0 t", True)],
    ids=["at once", "topic", "pattern", "partition"],
)
def test_follow_reads_a_topic_that_is_created_again_from_its_start(tmp_path: Path, wanted: str, away: bool) -> None:
    """It may see the log while the topic is away, and waits for it."""
    log = connect(tmp_path / "log")
    log.append("t", [{"value": f"old {n}"} for n in range(4)])
    with following(log, *wanted.split(), "-f", "%o %v\\n") as (printed, said):
        assert [printed.readline() for _ in range(4)][-1] == "3 old 3\n"
        log.admin.delete_topics(["t"])
        if away:
            assert re.search("does not exist|no topic matches", said.readline())
        log.append("t", [{"value": f"new {n}"} for n in range(9)])
        assert [printed.readline() for _ in range(9)] == [f"{n} new {n}\n" for n in range(9)]
        while "topic 't' was deleted and created again: reading continues at its first record" not in said.readline():
            pass


# Promise: cli.md#pylog-consume
def test_follow_from_the_latest_record_reads_a_topic_that_is_added_from_its_start(tmp_path: Path) -> None:
    """The position is for the partitions that are there when the command begins."""
    log = connect(tmp_path / "log")
    log.append("t1", [{"value": "old"}])
    with following(log, "--include", "t.*", "-o", "latest", "-g", "g") as (printed, _):
        eventually(lambda: bool(log.admin.describe_consumer_groups(["g"])["g"].members))
        log.append("t2", [{"value": "first"}, {"value": "second"}])
        assert [printed.readline() for _ in range(2)] == ["first\n", "second\n"]


# Promise: cli.md#pylog-consume
@pytest.mark.parametrize("written", [0, 9])
def test_a_log_that_is_set_back_meanwhile_has_an_end(tmp_path: Path, written: int) -> None:
    """Without --follow, the command does not wait for records that the log has lost."""
    log = connect(tmp_path / "log", durability="os")
    log.append("t", [{"value": "first"}])
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    for _ in range(6):
        log.append("t", [{"value": "x" * 1_000_000}] * 10)  # one poll has at most 50 MiB
    command = [sys.executable, "-m", "spark_log.cli", "-u", log.url, "consume", "t"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "first\n"
            shutil.rmtree(tmp_path / "log")  # the pipe is full
            shutil.copytree(tmp_path / "older", tmp_path / "log")
            log = connect(tmp_path / "log", durability="os")
            for number in range(written):
                log.append("t", [{"value": f"new {number}"}])
            time.sleep(2 * REFRESH_MS / 1000)
            printed, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "an older copy of the log was restored" in said
    assert process.returncode == (0 if written else 1)
    assert printed.endswith("new 8\n") == bool(written)


def test_produce_that_fails_says_how_many_lines_are_in(pylog: Pylog) -> None:
    """Lines before, of earlier appends, are in the log."""
    lines = (b"x" * 900_000 + b"\n") * 24 + b"y" * 2_000_000 + b"\n"
    shown = pylog.run("produce", "orders", "-p", "0", stdin=lines).stderr
    found = re.search(r"; ([1-9][0-9]*) lines were appended\n", shown)
    assert found is not None, shown
    assert next(row["end"] for row in pylog.json("topic", "offsets", "orders")) == int(found[1])
    assert "; 0 lines were appended" in pylog.refused("produce", "orders", "--key-delimiter", "=", stdin="no\n")


def test_lines_without_a_key_for_a_compacted_topic(pylog: Pylog) -> None:
    """They are refused with what to do; with a key they are appended."""
    pylog.ok("topic", "create", "latest", "-c", "cleanup.policy=compact")
    said = pylog.refused("produce", "latest", stdin="a\nb\n")
    assert "line 1: a record of topic 'latest' has no key" in said and "0 lines were appended" in said
    assert pylog.ok("produce", "latest", "--key-delimiter", ":", stdin="k:a\nk:b\n") == "2 records appended to latest\n"


def test_a_tombstone_is_a_key_with_the_null_marker(pylog: Pylog) -> None:
    """As in Kafka's console producer; keys can be null as well, and without a marker nothing is."""
    pylog.ok("topic", "create", "n", "-c", "cleanup.policy=compact")
    pylog.ok("produce", "n", "--key-delimiter", ":", stdin="a:1\nb:2\nc:NULL\n")
    pylog.ok("produce", "n", "--key-delimiter", ":", "--null-marker", "NULL", stdin="a:NULL\nb:\n")
    with connect(pylog.url) as log:
        assert log.read("n").column("value").to_pylist() == [b"1", b"2", b"NULL", None, b""]
        assert log.table("n").column("key").to_pylist() == [b"c", b"b"]
    assert "has no key" in pylog.refused("produce", "n", "-k", "NULL", "--null-marker", "NULL", stdin="x\n")
    pylog.ok("produce", "n", "-k", "c", "--null-marker", "", stdin="\n")
    with connect(pylog.url) as log:
        assert log.table("n").column("key").to_pylist() == [b"b"]


# Promise: tasks/keep-the-latest.md#compact-a-topic-that-exists
def test_altering_a_topic_to_compact_warns_of_records_without_a_key(pylog: Pylog) -> None:
    """They are removed by compaction."""
    pylog.ok("produce", "orders", "-p", "2", stdin="no key\n")
    result = pylog.run("topic", "alter", "orders", "-c", "cleanup.policy=compact")
    assert result.exit_code == 0
    assert "warning: topic 'orders' has records without a key, such as offset 0 of orders-2" in result.stderr


# Promise: clients.md#tables
def test_consume_prints_the_latest_of_each_key(pylog: Pylog) -> None:
    """Of all partitions or one, up to a number of records; deleted keys and records without a key are left out."""
    pylog.ok("produce", "orders", "--key-delimiter", ":", "-p", "1", stdin="k3:new\nk0:\n")
    with connect(pylog.url) as log:
        log.append("orders", [{"key": b"k1", "value": None, "partition": 1}, {"value": b"x", "partition": 2}])
        log.append("orders", [{"key": b"k2", "value": b"other", "partition": 2}])
    kept = [f"k{number} v{number}\n" for number in (2, 4, 5, 6, 7, 8, 9)]
    of_one = "".join([*kept, "k3 new\n", "k0 \n"])
    assert pylog.ok("consume", "orders", "--latest", "-f", "%k %v") == of_one + "k2 other\n"
    assert pylog.ok("consume", "orders", "--latest", "-p", "1", "-f", "%k %v") == of_one
    assert pylog.ok("consume", "orders", "--latest", "-n", "2", "-f", "%k %v") == "".join(kept[:2])
    assert pylog.ok("consume", "orders", "--latest", "-n", "0") == ""
    assert pylog.json("consume", "orders", "--latest", "-p", "2")["offset"] == 1


# Promise: clients.md#tables
@pytest.mark.parametrize(
    "more", [("-g", "g"), ("--follow",), ("-o", "3"), ("--include", "x")], ids=["group", "follow", "offset", "include"]
)
def test_what_excludes_the_latest_of_each_key_is_refused(pylog: Pylog, more: tuple[str, ...]) -> None:
    """All of it has another meaning for records that are read in order."""
    topic = () if more[0] == "--include" else ("orders",)
    assert "--latest needs TOPIC, and excludes" in pylog.wrong("consume", *topic, "--latest", *more)
