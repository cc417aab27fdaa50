"""`pylog topic erase`."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import spark_log
from spark_log.metadata.commands import Report
from spark_log.metadata.records import ErasedRecord
from spark_log.server.tokens import parse_tokens
from tests.cli.commands import Pylog
from tests.services import Services


@pytest.fixture
def pylog(tmp_path: Path) -> Pylog:
    """A log with a topic of five records."""
    pylog = Pylog(tmp_path / "log")
    pylog.ok("produce", "orders", "--key-delimiter", ":", stdin="a:1\nb:2\na:3\nä:4\n")
    with spark_log.connect(pylog.url) as log:
        log.append("orders", [{"key": b"\x00\xff", "value": b"5"}])
    return pylog


def values(pylog: Pylog) -> list[str]:
    return pylog.ok("consume", "orders").split()


# Promise: cli.md#pylog-topic-erase
def test_it_asks(pylog: Pylog) -> None:
    """Not on a terminal and without --yes it is refused; a dry run counts."""
    assert "erase the records of 1 key from topic orders" in pylog.refused("topic", "erase", "orders", "--key", "a")
    assert "would erase 2 records of 1 key in 1 object" in pylog.ok(
        "topic", "erase", "orders", "--key", "a", "--dry-run"
    )
    assert values(pylog) == ["1", "2", "3", "4", "5"]


# Promise: cli.md#pylog-topic-erase
def test_keys_of_the_command_line(pylog: Pylog) -> None:
    """Several; the report says the offsets, the time, and who has read the topic."""
    pylog.ok("consume", "orders", "-g", "billing")
    text = pylog.ok("topic", "erase", "orders", "--key", "a", "--key", "ä", "--yes")
    assert "erased 3 records of 2 keys" in text
    assert "the last copy in this log is gone by 20" in text
    assert "(partition: offset): 0: 5" in text
    assert "groups that have read the topic: billing" in text
    assert values(pylog) == ["2", "5"]
    found = pylog.json("topic", "erase", "orders", "--key", "a", "--yes")
    assert (found["records"], found["before"], found["problems"]) == (0, {"0": 5}, [])
    nothing = pylog.ok("topic", "erase", "orders", "--key", "typo", "--yes")
    assert nothing.startswith("no record has these keys: check them, and --key-format")


# Promise: tasks/erase.md#keys
@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("text", b"a\r\nb\n"),
        ("text", b"\xef\xbb\xbfa\nb\n"),
        ("hex", b"\xef\xbb\xbf61\r\n62\r\n"),
        ("hex", b"61\n62"),
        ("base64", base64.b64encode(b"a") + b"\n" + base64.b64encode(b"b") + b"\n"),
    ],
)
def test_keys_of_a_file(pylog: Pylog, tmp_path: Path, form: str, lines: bytes) -> None:
    """A key in each line, in each form, and from standard input."""
    file = tmp_path / "keys"
    file.write_bytes(lines)
    pylog.ok("topic", "erase", "orders", "--keys", str(file), "--key-format", form, "--before", "2", "--yes")
    assert values(pylog) == ["3", "4", "5"]
    pylog.ok("topic", "erase", "orders", "--keys", "-", "--key-format", form, "--yes", stdin=lines)
    assert values(pylog) == ["4", "5"]


def test_a_key_that_is_not_text(pylog: Pylog) -> None:
    """In hexadecimal."""
    pylog.ok("topic", "erase", "orders", "--key", "00ff", "--key-format", "hex", "--yes")
    assert values(pylog) == ["1", "2", "3", "4"]


# Promise: tasks/erase.md#keys
@pytest.mark.parametrize(
    ("lines", "form", "said"),
    [
        (b"", "text", "is empty: give a key in each line"),
        (b"a\n\nb\n", "text", "line 2 of"),
        (b"61\n6x\n", "hex", "line 2 of"),
        (b"?\n", "base64", "is not base64"),
        (b"b\n\xe4\n", "text", "line 2 of"),
        ("a\n".encode("utf-16"), "text", "is not UTF-8"),
        ("a\n".encode("utf-16-le"), "text", "line 1 of standard input has a zero byte, as text in UTF-16 has"),
        (b"\xef\xbb\xbf", "text", "is empty"),
    ],
)
def test_files_that_are_refused(pylog: Pylog, lines: bytes, form: str, said: str) -> None:
    """With the line."""
    command = ("topic", "erase", "orders", "--keys", "-", "--key-format", form, "--yes")
    assert said in pylog.refused(*command, stdin=lines)
    assert values(pylog) == ["1", "2", "3", "4", "5"]


def test_wrong_usage(pylog: Pylog) -> None:
    """No keys, both kinds, a position, a topic, bytes that are not text."""
    assert "--key KEY or --keys FILE" in pylog.wrong("topic", "erase", "orders", "--yes")
    assert "--key KEY or --keys FILE" in pylog.wrong("topic", "erase", "orders", "--key", "a", "--keys", "-", "--yes")
    assert "position" in pylog.wrong("topic", "erase", "orders", "--key", "a", "--before", "yesterday")
    assert "--key-format base64 or hex" in pylog.refused("topic", "erase", "orders", "--key", "\udcff", "--yes")
    assert "did you mean orders?" in pylog.refused("topic", "erase", "order", "--key", "a", "--yes")


# Promise: cli.md#pylog-broker-forget-root, cli.md#pylog-topic-erasures
def test_erasures_that_are_not_done_are_listed(pylog: Pylog, tmp_path: Path) -> None:
    """With the roots that they wait for; a former root until somebody says that its files are gone."""
    pylog.ok("broker", "add", "1", "--root", str(tmp_path / "disk1"))
    with spark_log.connect(pylog.url) as log:
        directory = log.journal.refresh().brokers[1].directory
    assert "all erasures are done" in pylog.ok("topic", "erasures")
    pylog.ok("topic", "erase", "orders", "--key", "none", "--yes")
    assert "the root of broker 1" in pylog.ok("topic", "erasures")
    pylog.ok("broker", "remove", "1", "--yes")
    listed = pylog.run("topic", "erasures")
    assert listed.exit_code == 1
    assert directory in listed.stdout
    assert directory in pylog.ok("topic", "erase", "orders", "--key", "none", "--yes")
    pylog.ok("broker", "forget-root", directory, "--yes")
    assert directory not in pylog.ok("topic", "erasures")


# Promise: tasks/erase.md#interrupted
def test_an_erasure_whose_process_was_killed_is_named(pylog: Pylog) -> None:
    """By the list, `verify` and `cluster health`, each with the way to end it."""
    with spark_log.connect(pylog.url) as log:
        topic_id = log.journal.refresh().names["orders"]
        begins = ErasedRecord(topic_id=topic_id, incomplete=True, begins="killed")
        log.journal.propose(Report.of(log.journal.state, begins), maintenance=False)
    for command in (("topic", "erasures"), ("verify",), ("cluster", "health")):
        found = pylog.run(*command)
        assert found.exit_code == 1 and "it has begun and not ended: if no process runs it any more" in found.stdout
    pylog.ok("topic", "erase", "orders", "--key", "a", "--yes")
    assert "not ended" not in pylog.ok("topic", "erasures") + pylog.ok("verify") + pylog.ok("cluster", "health")


def test_an_erasure_whose_process_was_killed_ends_after_its_topic_was_deleted(pylog: Pylog) -> None:
    """The list has the command with the id of the topic."""
    with spark_log.connect(pylog.url) as log:
        topic_id = log.journal.refresh().names["orders"]
        begins = ErasedRecord(topic_id=topic_id, incomplete=True, begins="killed")
        log.journal.propose(Report.of(log.journal.state, begins), maintenance=False)
    pylog.ok("topic", "delete", "orders", "--yes")
    for command in (("topic", "erasures"), ("verify",), ("cluster", "health")):
        found = pylog.run(*command)
        assert found.exit_code == 1 and f"`pylog topic erase {topic_id}`" in found.stdout
    said = pylog.ok("topic", "erase", topic_id, "--key", "a", "--yes")
    assert "searched what the deleted topic has left" in said and "no record" not in said
    assert "not ended" not in pylog.ok("topic", "erasures") + pylog.ok("verify") + pylog.ok("cluster", "health")


def test_a_fenced_root_is_named_before_and_after(pylog: Pylog, tmp_path: Path) -> None:
    """By a dry run, and by the command that fences it."""
    pylog.ok("broker", "add", "1", "--root", str(tmp_path / "disk1"))
    assert "erased" not in pylog.ok("broker", "fence", "1")
    for flag, ends in (("--dry-run", "would not be done"), ("--yes", "not done")):
        found = pylog.run("topic", "erase", "orders", "--key", "a", flag)
        assert f"{ends}: the root of broker 1" in found.stdout and "`pylog broker unfence 1`" in found.stdout
        assert found.exit_code == 1 and ends in found.stderr
    assert values(pylog) == ["2", "4", "5"]
    assert "erased from orders: `pylog broker unfence 1` deletes them" in pylog.ok("broker", "fence", "1")
    assert pylog.json("broker", "fence", "1")["erased_topics"] == ["orders"]


def test_a_token_that_may_not_erase(services: Services, tmp_path: Path) -> None:
    """The error names the command that was typed: nobody knows the coordinator's names of its steps."""
    token = "application-token-1"
    running = services.start(tmp_path / "log", tokens=parse_tokens({"app": f"write {token}"}))
    pylog = Pylog(f"pylog://{running.coordinator.address}")
    for typed in (("topic", "erase", "t", "--key", "a", "--yes"), ("topic", "delete", "t", "--yes")):
        with spark_log.connect(pylog.url, token=token) as log:
            log.append("t", [{"key": b"a", "value": b"1"}])
        said = pylog.run(*typed, PYLOG_TOKEN=token).stderr
        verb = " ".join(typed[:2])
        assert said == f"pylog: {verb}: the token 'app' has the role write, and this needs the role admin\n"
    services.stop_all()
