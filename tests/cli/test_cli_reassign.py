"""`pylog reassign`: partitions move to other brokers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log.cli.reassignment_file import encode_reassignment, read_reassignment, read_topics
from spark_log.errors import InvalidRequest
from spark_log.model import NewTopic, TopicPartition
from tests.cli.commands import Pylog


@pytest.fixture
def pylog(tmp_path: Path) -> Pylog:
    """A log with brokers 1 and 2, and a topic on 0 and 1."""
    with spark_log.connect(tmp_path / "log", create=True) as log:
        log.admin.create_topics([NewTopic("first")])
        for number in (1, 2):
            log.admin.add_broker(number, str(tmp_path / f"disk{number}"))
        log.admin.create_topics([NewTopic("orders", 2, replica_assignment={0: (0, 1), 1: (1, 0)})])
    return Pylog(tmp_path / "log")


def replicas(plan: dict[str, Any]) -> list[list[int]]:
    return [one["replicas"] for one in plan["partitions"]]


def saved(tmp_path: Path, content: object) -> str:
    file = tmp_path / "plan.json"
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(file)


def plan(*partitions: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "partitions": [{"topic": "orders", **one} for one in partitions]}


# --------------------------------------------------------------------------------------------------------------- generate


def test_generate_prints_the_assignment_now_and_the_one_proposed(pylog: Pylog) -> None:
    """In Kafka's JSON, the proposed one in the last line."""
    lines = pylog.ok("reassign", "generate", "-t", "orders", "--brokers", "1,2").splitlines()
    assert (lines[0], lines[3]) == (
        "Current partition replica assignment",
        "Proposed partition reassignment configuration",
    )
    assert json.loads(lines[1]) == plan(
        {"partition": 0, "replicas": [0, 1], "log_dirs": ["any", "any"]},
        {"partition": 1, "replicas": [1, 0], "log_dirs": ["any", "any"]},
    )
    assert sorted(replicas(json.loads(lines[-1]))) == [[1, 2], [2, 1]]


def test_generate_takes_topics_from_a_file_and_another_factor(pylog: Pylog, tmp_path: Path) -> None:
    topics = saved(tmp_path, {"topics": [{"topic": "orders"}, {"topic": "first"}], "version": 1})
    found = pylog.json("reassign", "generate", "--topics-to-move", topics, "--brokers", "0,1,2", "-r", "3")
    assert all(sorted(one) == [0, 1, 2] for one in replicas(found["proposed"]))
    assert [one["topic"] for one in found["current"]["partitions"]] == ["first", "orders", "orders"]
    rows = pylog.ok("reassign", "generate", "-t", "first", "--brokers", "2", "-o", "csv").splitlines()
    assert rows == ["topic,partition,current,proposed", "first,0,0,2"]


def test_wrong_arguments_of_generate(pylog: Pylog, tmp_path: Path) -> None:
    """The entry of a file is named."""
    generate = ("reassign", "generate", "--brokers")
    file = saved(tmp_path, {"topics": [{"topic": "orders"}, {"topic": "frist"}]})
    said = pylog.refused(*generate, "0,1", "--topics-to-move", file)
    assert "plan.json: topics[1]: topic 'frist' does not exist; did you mean first?" in said
    assert "broker 7 is not registered" in pylog.refused(*generate, "0,7", "-t", "orders")
    assert "factor 2, and the assignment is for 1 broker" in pylog.refused(*generate, "0", "-t", "orders")
    assert "give either --topics-to-move FILE or --topic TOPIC" in pylog.wrong(*generate, "0,1")
    assert "as in 1,2,3" in pylog.wrong(*generate, "0:1", "-t", "orders")


# ------------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "plan.json is not JSON: Expecting property name"),
        (b"\xff{}", "plan.json is not UTF-8"),
        ("[]", "plan.json has []; expected an object"),
        ({"topics": [{"topic": "orders"}], "version": 2}, "plan.json: version 2 is not supported; expected 1"),
        ({"version": 1}, 'plan.json: it has no list "topics", as in {"version":1,"topics":[…]}'),
        ({"topics": []}, 'the list "topics" is empty'),
        ({"topics": ["orders"]}, 'topics[0] is "orders"; expected an object with topic'),
        ({"topics": [{"topic": "orders", "x": 1}]}, "topics[0] has the unknown field 'x'"),
        ({"topics": [{"topic": 1}]}, 'topics[0]: "topic" is 1; expected the name'),
        ({"topics": [{"topic": "orders"}] * 2}, "topics[1]: topic 'orders' is in the file twice"),
    ],
)
def test_a_file_of_topics_that_is_wrong(tmp_path: Path, content: object, said: str) -> None:
    """The error names the file and the entry."""
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        read_topics(saved(tmp_path, content))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"partition": 0}, '"replicas" is absent; expected a list of broker ids'),
        ({"partition": 0, "replicas": []}, '"replicas" is []; expected a list'),
        ({"partition": 0, "replicas": ["1"]}, '"replicas" is "1"; expected a number'),
        ({"partition": 0, "replicas": [1, 2, 1]}, '"replicas" has broker 1 twice: [1, 2, 1]'),
        ({"partition": -1, "replicas": [1]}, '"partition" is -1; expected a number from 0 on'),
        ({"partition": True, "replicas": [1]}, '"partition" is true; expected a number'),
        ({"partition": 0, "replicas": [1], "log_dirs": ["/data"]}, '"log_dirs" is ["/data"]; expected "any"'),
        ({"partition": 0, "replicas": [1], "log_dirs": ["any"] * 2}, '"log_dirs" is ["any", "any"]'),
        ({"partition": 7, "replicas": [1]}, "partition orders-7 is in the file twice"),
    ],
)
def test_a_reassignment_that_is_wrong(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    """The entry is named."""
    file = saved(tmp_path, plan({"partition": 7, "replicas": [1]}, entry))
    with pytest.raises(InvalidRequest, match=r"plan\.json: partitions\[1\]: " + re.escape(said)):
        read_reassignment(file)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Also with a byte order mark, as editors on Windows write it, and without fields that have defaults."""
    lists = {TopicPartition("orders", 1): (2, 1), TopicPartition("é", 0): (3,)}
    for file in (saved(tmp_path, encode_reassignment(lists)), saved(tmp_path, "\ufeff" + encode_reassignment(lists))):
        assert {tp: one.replicas for tp, one in read_reassignment(file).items()} == lists
    short = {"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}
    assert list(read_reassignment(saved(tmp_path, short))) == [TopicPartition("orders", 0)]
