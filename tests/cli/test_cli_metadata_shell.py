"""`pylog metadata shell`: the state of a log as a tree of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import spark_log
from spark_log.journal.journal import Journal
from spark_log.quorum.node.directory import format_directory, open_directory
from spark_log.quorum.node.vote_and_identity import Meta
from spark_log.server.quorum.founding import adopt_log
from spark_log.server.quorum.root_snapshots import put_snapshot
from spark_log.server.quorum.state import Content
from spark_log.store.open import open_store
from tests.cli.commands import Pylog


@pytest.fixture
def pylog(tmp_path: Path) -> Pylog:
    with spark_log.connect(tmp_path / "log", create=True) as log:
        log.admin.create_topics([spark_log.NewTopic("orders", 2, configs={"retention.ms": "1000000"})])
        log.append("orders", [{"value": "x", "partition": 1}])
        log.admin.alter_consumer_group_offsets("a/b", {spark_log.TopicPartition("orders", 1): 1})
    return Pylog(tmp_path / "log")


def shell(pylog: Pylog, *command: str) -> list[str]:
    return pylog.ok("metadata", "shell", *command).splitlines()


# Promise: cli.md#pylog-metadata-shell
def test_the_state_is_shown_as_a_tree(pylog: Pylog) -> None:
    """Topics by name and by id, partitions, groups, producers and all other fields."""
    assert {"topics", "groups", "producers", "brokers", "configs", "features", "fence"} <= set(shell(pylog, "ls"))
    assert shell(pylog, "ls", "/") == sorted(shell(pylog, "ls"))
    assert shell(pylog, "ls", "/topics/byName") == ["orders"]
    (topic_id,) = shell(pylog, "ls", "topics/byId")
    described = json.loads("\n".join(shell(pylog, "cat", "/topics/byName/orders")))
    assert described["id"] == topic_id and described["configs"] == {"retention.ms": "1000000"}
    assert described["partitions"]["1"]["end"] == 1
    assert shell(pylog, "ls", "/groups") == ["a%2Fb"] and 'retention.ms: "1000000"' in "\n".join(shell(pylog, "tree"))
    assert shell(pylog, "find", "/topics/byName", "[01]") == [f"/topics/byName/orders/partitions/{n}" for n in (0, 1)]
    assert shell(pylog, "find", "/", "fence") == ["/fence"]
    group = json.loads("".join(shell(pylog, "cat", "/groups/a%2Fb")))
    assert {key: position["offset"] for key, position in group["offsets"].items()} == {f"{topic_id}-1": 1}


@pytest.mark.filterwarnings("ignore:.* is on the same disk as:UserWarning")
def test_a_partition_has_the_names_of_kafkas_partition_record(tmp_path: Path) -> None:
    """While it moves from brokers 0 and 1 to 2 and 0; then the fields of the state follow."""
    with spark_log.connect(tmp_path / "log", create=True) as log:
        for number in (1, 2):
            log.admin.add_broker(number, str(tmp_path / f"disk{number}"))
        log.admin.create_topics([spark_log.NewTopic("orders", replica_assignment={0: (0, 1)})])
        log.append("orders", [{"value": "x"}])
        log.admin.alter_partition_reassignments({spark_log.TopicPartition("orders", 0): (2, 0)})
        topic_id = log.admin.describe_topics(["orders"])["orders"].topic_id
    found = json.loads("".join(shell(Pylog(tmp_path / "log"), "cat", "/topics/byName/orders/partitions/0")))
    record = {
        "partitionId": 0,
        "topicId": topic_id,
        "replicas": [2, 0, 1],
        "isr": [2, 0],
        "removingReplicas": [1],
        "addingReplicas": [2],
        "leader": 2,
        "leaderEpoch": found["leaderEpoch"],
    }
    assert dict(list(found.items())[: len(record)]) == record
    assert list(found)[len(record) :] == ["start", "end", "edition", "entries"]


def test_commands_come_from_standard_input(pylog: Pylog) -> None:
    """With a folder in which paths begin; a command that does not exist ends it."""
    said = pylog.ok("metadata", "shell", stdin="cd /topics/byName\npwd\nls\n\ncd orders\ncat partitions/0\nexit\nls\n")
    assert said.startswith("/topics/byName\norders\n{") and said.rstrip().endswith("}")
    assert "tree [PATH]" in pylog.ok("metadata", "shell", stdin="help")
    for command, says in (
        (("rm", "x"), "'rm x' is not a command: expected ls, cat, tree"),
        (("ls", "/x"), "/x does not exist: `ls` shows what there is"),
        (("cd", "/fence"), "/fence is a value, not a folder"),
    ):
        assert says in pylog.refused("metadata", "shell", *command)
    assert "No closing quotation" in pylog.refused("metadata", "shell", stdin="ls '")


# Promise: cli.md#pylog-metadata-shell
def test_versions_directories_and_copies_are_shown(pylog: Pylog, tmp_path: Path) -> None:
    """Of a node of a quorum, also while it runs."""
    pylog.ok("topic", "create", "late")
    assert shell(pylog, "ls", "/topics/byName") == ["late", "orders"]
    assert shell(pylog, "--version", "1", "ls", "/topics/byName") == ["orders"]
    assert "the log has no version 99 any more" in pylog.refused("metadata", "shell", "--version", "99", "ls")
    store = open_store(str(tmp_path / "log"))
    journal, directory = Journal.open(store, create=False), str(tmp_path / "node")
    meta = Meta(cluster_id=journal.cluster_id, node_id=1, directory_id="d1")
    format_directory(directory, meta, ())
    with open_directory(directory, cluster_id=journal.cluster_id, node_id=1) as found:
        adopt_log(journal, found, (meta.key,), "pylog://127.0.0.1:1")
        at = ("--snapshot", directory)
        assert shell(pylog, *at, "ls", "/topics/byName") == ["late", "orders"]
    version = journal.state.version
    assert shell(pylog, *at, "--version", str(version), "cat", "/version") == [str(version)]
    assert f"has no version 1: it has {version}" in pylog.refused("metadata", "shell", *at, "--version", "1", "ls")
    copy = put_snapshot(store, Content(journal.state), "u")
    assert shell(pylog, "--snapshot", str(tmp_path / "log" / copy), "ls", "/topics/byName") == ["late", "orders"]
    assert "is not a snapshot" in pylog.refused(
        "metadata", "shell", "--snapshot", str(tmp_path / "log/meta/format"), "ls"
    )
