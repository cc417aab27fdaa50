"""Options of Kafka's tools are answered with pylog's."""

from __future__ import annotations

import re

import click
import pytest

from docs.cli_reference import verbs
from spark_log.cli.common.kafka_flags import COMMANDS, EVERYWHERE, OF_COMMAND
from spark_log.cli.main import pylog as root
from tests.cli.commands import Pylog


# Promise: command-line.md#coming-from-kafkas-tools
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("consume --topic orders", "the topic is an argument: pylog consume TOPIC."),
        (
            "consume orders --from-beginning",
            "leave it out: pylog consume starts at the earliest record, also for a new group.",
        ),
        ("consume orders --max-messages 5", "give -n N."),
        ("consume orders --bootstrap-server x:9092", "with -u URL or in PYLOG_URL."),
        ("consume --whitelist x", "give --include REGEX."),
        ("consume orders --property print.key=true", "give -f FORMAT"),
        ("produce orders --property parse.key=true", "give --key-delimiter TEXT"),
        ("produce orders --request-required-acks 1", "give --acks 0, 1 or all."),
        ("produce orders --producer-property acks=1", "give --acks for acks; leave others out."),
        ("topic --create --topic orders", "as in `pylog topic create TOPIC`."),
        ("topic describe orders --under-replicated-partitions", "give --under-replicated to `pylog topic describe`"),
        ("topic create orders --config retention.ms=1", None),
        ("topic alter orders --delete-config retention.ms", "give --unset KEY."),
        ("group --reset-offsets --group g", "`pylog group seek` resets offsets."),
        ("group describe --group g", "the group is an argument: pylog group describe GROUP."),
        ("group seek g --to-earliest", "give --to earliest."),
        ("group seek g --by-duration PT1H", "as in --to now-1h."),
        ("group seek g --to latest --execute", "give --yes."),
        ("--bootstrap-server x:9092 topic list", "with -u URL or in PYLOG_URL."),
        ("topic create orders --if-not-exists", "a topic that exists is an error"),
        ("group list --all-groups", "`pylog group list` shows all groups"),
        ("config alter --entity-type topics", "give --topic TOPIC"),
        ("reassign --execute --reassignment-json-file f", "`pylog reassign execute`"),
        ("reassign verify --reassignment-json-file f", "the file is an argument: pylog reassign verify FILE."),
        ("reassign generate -t orders --broker-list 1,2", "give --brokers 1,2,3."),
        ("reassign generate --topics-to-move-json-file f", "give --topics-to-move FILE."),
    ],
)
def test_an_option_of_kafkas_is_answered_with_pylogs(pylog: Pylog, line: str, hint: str | None) -> None:
    """It is wrong usage, and the message names what to say; an option that both have works."""
    if hint is None:
        assert pylog.run(*line.split(), "--help").exit_code == 0
        return
    shown = pylog.wrong(*line.split())
    assert hint in shown and "is an option of Kafka's tools" in shown


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("storage format", "pylog quorum init"),
        ("metadata-quorum describe --status", "pylog quorum describe"),
        ("kafka-topics.sh --list", "pylog topic"),
    ],
)
def test_a_tool_of_kafkas_is_answered_with_pylogs(pylog: Pylog, line: str, command: str) -> None:
    shown = pylog.wrong(*line.split())
    assert "is a command of Kafka's tools" in shown and f"`{command}`" in shown


def test_a_tool_of_kafkas_has_a_name_that_pylog_has_not(pylog: Pylog) -> None:
    """And leads to a command that exists."""
    paths = {path for path, _ in verbs()}
    known = {" ".join(path.split()[:length]) for path in paths for length in (2, 3)}
    assert not {f"pylog {name}" for name in COMMANDS} & known
    assert set(COMMANDS.values()) <= known


def test_acks_of_a_producer_may_be_kafkas_number(pylog: Pylog) -> None:
    pylog.ok("topic", "create", "acks")
    pylog.ok("produce", "acks", "--acks", "-1", stdin="a\n")
    assert "a" in pylog.ok("consume", "acks", "-n", "1")


# Promise: command-line.md#coming-from-kafkas-tools
def test_a_hint_names_options_that_exist(pylog: Pylog) -> None:
    """And commands that exist; no command has an option of which a hint says that it is Kafka's alone."""
    options = {name for _, command in verbs() for param in command.params for name in param.opts}
    paths = {path for path, _ in verbs()}
    for hints in (EVERYWHERE, *OF_COMMAND.values()):
        for hint in hints.values():
            assert set(re.findall(r"--[a-z-]+", hint)) <= options, hint
            for path in re.findall(r"`(pylog [a-z]+ [a-z-]+)", hint):
                assert path in paths, hint
    for path, command in verbs():
        name = path.split()[-1]
        own = {name for param in command.params for name in param.opts}
        assert not own & set(OF_COMMAND.get(name, {})), path


def test_a_slip_of_the_finger_gets_clicks_own_hint(pylog: Pylog) -> None:
    """Kafka is not mentioned."""
    assert isinstance(root, click.Group)
    shown = pylog.wrong("topic", "list", "--intrenal")
    assert "No such option" in shown and "Kafka" not in shown
