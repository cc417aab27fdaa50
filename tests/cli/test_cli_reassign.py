"""`pylog reassign`: partitions move to other brokers."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log.cli.commands.reassignment_file import encode_reassignment, read_reassignment, read_topics
from spark_log.errors import InvalidRequest
from spark_log.maintenance.replicate import replicate_once
from spark_log.model import NewTopic, TopicPartition
from tests.cli.commands import Pylog

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk")


@pytest.fixture
def pylog(tmp_path: Path) -> Pylog:
    """A log with brokers 1 and 2, which are on one disk, and a topic on 0 and 1."""
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


# Promise: cli.md#pylog-reassign-generate, from-kafka.md#replicas-and-reassignments, replicas.md#move-partitions
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


# Promise: cli.md#pylog-reassign-generate
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


# ------------------------------------------------------------------------------------- execute, verify, cancel and list


# Promise: cli.md#pylog-reassign-execute, cli.md#pylog-reassign-verify
def test_a_partition_without_records_is_reassigned_immediately(pylog: Pylog, tmp_path: Path) -> None:
    """Standard output has the replicas before, as a file that undoes it."""
    file = saved(tmp_path, plan({"partition": 0, "replicas": [2, 1]}, {"partition": 1, "replicas": [1, 0]}))
    before = pylog.ok("reassign", "execute", file)
    assert replicas(json.loads(before)) == [[0, 1], [1, 0]]
    rows = pylog.json("reassign", "verify", file)
    assert [(row["status"], row["replicas"]) for row in rows] == [("complete", "2,1"), ("complete", "1,0")]
    assert pylog.json("reassign", "list") == []
    assert "nothing to cancel" in pylog.ok("reassign", "cancel", file)
    undone = pylog.json("reassign", "execute", saved(tmp_path, before))
    assert (replicas(undone["current"]), replicas(undone["proposed"])) == ([[2, 1], [1, 0]], [[0, 1], [1, 0]])
    said = pylog.run("reassign", "verify", "-", stdin=json.dumps(plan({"partition": 0, "replicas": [2, 1]})))
    assert (
        said.exit_code == 1 and "other replicas" in said.stdout and "not complete yet: 1 of 1 partition" in said.stderr
    )


# Promise: cli.md#pylog-reassign-cancel, cli.md#pylog-reassign-list, cli.md#pylog-reassign-verify,
# Promise: replicas.md#move-partitions
def test_a_move_is_listed_until_it_is_cancelled(pylog: Pylog, tmp_path: Path) -> None:
    """The replicas are those of the plan from the beginning, and the former ones until the records are gone there."""
    pylog.ok("produce", "orders", "-p", "0", stdin="a\n")
    file = saved(tmp_path, plan({"partition": 0, "replicas": [2, 1]}))
    pylog.ok("reassign", "execute", file)
    (row,) = pylog.json("reassign", "list")
    assert row == {"topic": "orders", "partition": 0, "replicas": "2,1,0", "adding": "2", "removing": "0"}
    verified = pylog.run("reassign", "verify", file)
    assert verified.exit_code == 1 and "in progress" in verified.stdout
    more = tmp_path / "more.json"
    more.write_text(json.dumps(plan({"partition": 1, "replicas": [2, 1]})))
    assert "1 partition is being moved (orders-0)" in pylog.refused("reassign", "execute", str(more))
    assert replicas(json.loads(pylog.ok("reassign", "execute", str(more), "--additional"))) == [[1, 0]]
    assert pylog.ok("reassign", "cancel", file) == "the move of 1 partition is cancelled: orders-0\n"
    assert pylog.json("reassign", "list") == [], "nothing was written to the new replicas"
    assert [row["replicas"] for row in pylog.json("topic", "describe", "orders")["partitions"]] == ["0,1", "2,1"]


# Promise: replicas.md#move-partitions
def test_a_throttle_lasts_until_everything_is_moved(pylog: Pylog, tmp_path: Path) -> None:
    """It is a config of the log, so that every process keeps to it."""
    pylog.ok("produce", "orders", "-p", "0", stdin="a\n")
    file = saved(tmp_path, plan({"partition": 0, "replicas": [2, 1]}))
    pylog.ok("reassign", "execute", file, "--throttle", "50MB")

    def throttle() -> str:
        rows = pylog.json("config", "describe", "--all")
        return next(row["value"] for row in rows if row["config"] == "follower.replication.throttled.rate")

    assert pylog.run("reassign", "verify", file).exit_code == 1 and throttle() == "50000000"
    pylog.ok("replicate")
    pylog.ok("reassign", "verify", file, "--preserve-throttles")
    assert throttle() == "50000000"
    pylog.ok("reassign", "verify", file)
    assert throttle() == str(2**63 - 1)
    assert "not a number of bytes per second" in pylog.wrong("reassign", "execute", file, "--throttle", "fast")


# Promise: replicas.md#move-partitions
def test_a_rollback_during_a_move_returns_to_the_first_replicas(pylog: Pylog, tmp_path: Path) -> None:
    """It prints the assignment before the first move, not the one that is given up."""
    pylog.ok("produce", "orders", "-p", "0", stdin="a\n")
    pylog.ok("reassign", "execute", saved(tmp_path, plan({"partition": 0, "replicas": [2, 1]})))
    again = saved(tmp_path, plan({"partition": 0, "replicas": [2]}))
    assert [sorted(one) for one in replicas(json.loads(pylog.ok("reassign", "execute", again, "--additional")))] == [
        [0, 1]
    ]


WRONG = (
    ({"partition": 0, "replicas": [2, 1]}, "partitions[1]: partition orders-0 is in the file twice"),
    ({"topic": "order", "partition": 0, "replicas": [1]}, "partitions[1]: topic 'order' does not exist"),
    ({"partition": 2, "replicas": [1]}, "partitions[1]: topic 'orders' has no partition 2"),
    ({"partition": 1, "replicas": [1, 7, 8]}, "partitions[1]: unknown brokers 7, 8"),
)


# Promise: cli.md#pylog-reassign-execute, replicas.md#change-brokers
def test_a_wrong_file_changes_nothing(pylog: Pylog, tmp_path: Path) -> None:
    """The entry is named, and the other entries are not carried out."""
    for entry, said in WRONG:
        file = saved(tmp_path, plan({"partition": 0, "replicas": [2, 1]}, entry))
        assert said in pylog.refused("reassign", "execute", file)
    assert [part["replicas"] for part in pylog.json("topic", "describe", "orders")["partitions"]] == ["0,1", "1,0"]


# --------------------------------------------------------------------------------------------- factors, and whole brokers


# Promise: cli.md#pylog-topic-alter, replicas.md#move-partitions
def test_a_replication_factor_is_changed(pylog: Pylog) -> None:
    """With `min.insync.replicas`, in the order that works."""
    pylog.ok("topic", "alter", "orders", "--replication-factor", "3", "-c", "min.insync.replicas=3")
    described = pylog.json("topic", "describe", "orders")["partitions"]
    assert all(sorted(row["replicas"].split(",")) == ["0", "1", "2"] for row in described)
    assert "min.insync.replicas=3" in pylog.refused("topic", "alter", "orders", "-r", "2")
    pylog.ok("topic", "alter", "orders", "-r", "1", "-c", "min.insync.replicas=1")
    assert {row["replicas"] for row in pylog.json("topic", "describe", "orders")["partitions"]} == {"0"}
    assert "factor 4, and 3 brokers can hold replicas" in pylog.refused("topic", "alter", "orders", "-r", "4")


# Promise: replicas.md#move-partitions
def test_a_replication_factor_does_not_replace_a_move_without_a_word(pylog: Pylog) -> None:
    pylog.ok("produce", "orders", stdin="a\nb\n")
    pylog.ok("topic", "alter", "orders", "-r", "3")
    refused = pylog.refused("topic", "alter", "orders", "-r", "2", "-c", "retention.ms=1000")
    assert "being moved (orders-" in refused and "--additional" in refused
    with spark_log.connect(pylog.url) as log:
        assert log.admin.describe_configs(["orders"])["orders"]["retention.ms"].is_default, "nothing was changed"
    pylog.ok("topic", "create", "other", "-r", "2")
    pylog.ok("topic", "alter", "other", "-r", "3")
    pylog.ok("topic", "alter", "orders", "-r", "2", "--additional")


# Promise: cli.md#pylog-broker-drain, replicas.md#move-partitions
def test_a_broker_is_drained(pylog: Pylog) -> None:
    """A dry run changes nothing; afterwards the broker has no replicas and can be removed."""
    shown = pylog.json("broker", "drain", "1", "--dry-run")
    assert (replicas(shown["current"]), replicas(shown["proposed"])) == ([[0, 1], [1, 0]], [[0, 2], [2, 0]])
    assert "has replicas of 1 topic" in pylog.refused("broker", "remove", "1", "--yes")
    assert replicas(json.loads(pylog.ok("broker", "drain", "1"))) == [[0, 1], [1, 0]]
    assert pylog.ok("broker", "drain", "1") == "broker 1 has no replicas, and gets none\n"
    assert "active, drained" in pylog.ok("broker", "list")
    assert "and 2 brokers can hold replicas (0, 2)" in pylog.refused("topic", "create", "new", "-r", "3")
    assert "broker 1 was drained" in pylog.refused("reassign", "generate", "-t", "orders", "--brokers", "1,2")
    pylog.ok("broker", "alter", "1", "--not-drained")
    pylog.ok("topic", "create", "new", "-r", "3")
    assert "no other broker is left" in pylog.refused("broker", "drain", "2")
    assert ", drained" not in pylog.ok("broker", "list"), "a drain that is refused changes nothing"
    pylog.ok("topic", "delete", "new", "--yes")
    assert pylog.ok("broker", "remove", "1", "--yes", "--force") == "broker 1 removed\n"
    assert "no other broker is left" in pylog.refused("broker", "drain", "2")


# Promise: replicas.md#move-partitions
def test_a_broker_is_taken_out_under_load(pylog: Pylog, tmp_path: Path) -> None:
    """Its disk is thrown away at last; each record is there once, and none is on it."""
    stop, written = threading.Event(), list[int]()

    def write() -> None:
        with spark_log.connect(pylog.url) as log:
            while not stop.is_set():
                number = len(written)
                log.append("orders", [{"value": str(number), "partition": number % 2}])
                written.append(number)

    def replicate() -> None:
        with spark_log.connect(pylog.url) as log:
            while not stop.wait(0.1):
                replicate_once(log)

    threads = [threading.Thread(target=run, daemon=True) for run in (write, replicate)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(written) > 20)
        proposed = json.dumps(pylog.json("broker", "drain", "1", "--dry-run")["proposed"])
        pylog.ok("broker", "drain", "1")
        wait_until(lambda: pylog.run("reassign", "verify", "-", stdin=proposed).exit_code == 0)
        reached = len(written)
        wait_until(lambda: len(written) > reached + 5)
        pylog.ok("broker", "remove", "1", "--yes", "--force")
        shutil.rmtree(tmp_path / "disk1")
        reached = len(written)
        wait_until(lambda: len(written) > reached + 5)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    found = [int(line) for line in pylog.ok("consume", "orders").split()]
    assert sorted(found) == written


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ------------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "plan.json is not JSON: Expecting property name"),
        (" \n", "plan.json is empty: did the command that should write it fail?"),
        (b"\xff{}", "plan.json is not UTF-8"),
        ("[]", "plan.json has []; expected an object"),
        ({"topics": [{"topic": "orders"}], "version": 2}, "plan.json: version 2 is not supported; expected 1"),
        ({"version": 1}, 'plan.json: it has no list "topics", as in {"version":1,"topics":[…]}'),
        ({"topics": []}, 'the list "topics" is empty'),
        ({"topics": ["orders"]}, 'topics[0] is "orders"; expected an object with topic'),
        ({"topics": [{"topic": "orders", "x": 1}]}, "topics[0] has the unknown field 'x'"),
        ({"topics": [{"topic": 1}]}, 'topics[0]: "topic" is 1; expected the name'),
        ({"topics": [{"topic": "orders"}] * 2}, "topics[1]: topic 'orders' is in the file twice"),
        ("[" * 100_000, "plan.json has too many levels of brackets"),
        ({"topics": [{"topic": "\ud800"}]}, "plan.json has a character that is not valid Unicode"),
        ('{"topics": [], "topics": []}', "plan.json is not JSON: an object has the field 'topics' twice"),
    ],
)
def test_a_file_of_topics_that_is_wrong(tmp_path: Path, content: object, said: str) -> None:
    """The error names the file and the entry."""
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        read_topics(saved(tmp_path, content))


# Promise: cli.md#pylog-reassign-execute
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


def test_several_wrong_entries_are_named_together(tmp_path: Path, pylog: Pylog) -> None:
    """Those of the file, or those of the log."""
    pylog.ok("topic", "create", "mine")
    wrong = plan({"topic": "mine", "partition": -1, "replicas": [1]}, {"partition": 0, "replicas": []})
    said = pylog.refused("reassign", "execute", saved(tmp_path, wrong))
    assert re.search(r'plan\.json has 2 errors: partitions\[0\]: "partition" is -1.*; partitions\[1\]: "rep', said)
    wrong = plan(*({"topic": "mine", "partition": number, "replicas": [0]} for number in (8, 9)))
    said = pylog.refused("reassign", "execute", saved(tmp_path, wrong))
    assert re.search(r"2 errors: partitions\[0\]: topic 'mine' has no partition 8.*; partitions\[1\]: ", said)


# Promise: from-kafka.md#replicas-and-reassignments
def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Also with a byte order mark, as editors on Windows write it, and without fields that have defaults."""
    lists = {TopicPartition("orders", 1): (2, 1), TopicPartition("é", 0): (3,)}
    for file in (saved(tmp_path, encode_reassignment(lists)), saved(tmp_path, "\ufeff" + encode_reassignment(lists))):
        assert {tp: one.replicas for tp, one in read_reassignment(file).items()} == lists
    short = {"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}
    assert list(read_reassignment(saved(tmp_path, short))) == [TopicPartition("orders", 0)]
