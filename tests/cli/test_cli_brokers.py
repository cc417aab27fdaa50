"""`pylog broker`, `pylog elect`, and topics with replicas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import Pylog


@pytest.fixture
def pylog(tmp_path: Path) -> Pylog:
    """A log with two brokers."""
    pylog = Pylog(tmp_path / "log")
    pylog.ok("topic", "create", "first")
    for number in (1, 2):
        assert f"broker {number} added at" in pylog.ok("broker", "add", str(number), "--root", root(tmp_path, number))
    return pylog


def root(tmp_path: Path, number: int) -> str:
    return str(tmp_path / f"disk{number}")


def partitions(pylog: Pylog, topic: str) -> list[dict[str, object]]:
    found = pylog.json("topic", "describe", topic)["partitions"]
    assert isinstance(found, list)
    return found


# Promise: cli.md#pylog-broker-add, cli.md#pylog-broker-describe, cli.md#pylog-broker-list, replicas.md#replicas
def test_a_topic_has_replicas(pylog: Pylog) -> None:
    """They are listed as Kafka's tools print them, the leader first."""
    pylog.ok("topic", "create", "orders", "-p", "3", "-r", "3", "-c", "min.insync.replicas=2")
    rows = partitions(pylog, "orders")
    assert sorted(str(row["replicas"]).split(",")[0] for row in rows) == ["0", "1", "2"]
    for row in rows:
        assert row["replicas"] == row["isr"] and str(row["leader"]) == str(row["replicas"])[0]
    pylog.ok("produce", "orders", stdin="a\nb\n")
    has = {row["broker"]: row["objects"] for row in pylog.json("broker", "list")}
    assert has == {0: 1, 1: 1, 2: 1}
    described = pylog.json("broker", "describe", "1")["partitions"]
    assert [(row["topic"], row["partition"]) for row in described] == [("orders", number) for number in range(3)]
    assert 0 < sum(row["bytes"] for row in described) <= next(iter(pylog.json("broker", "list")))["bytes"]
    assert pylog.ok("consume", "orders").split() == ["a", "b"]


# Promise: cli.md#pylog-broker-alter, replicas.md#change-brokers
def test_brokers_get_racks(pylog: Pylog) -> None:
    """Also broker 0, and all commands continue to work."""
    assert pylog.ok("broker", "alter", "0", "--rack", "a").strip() == "broker 0 is in rack 'a'"
    pylog.ok("broker", "alter", "2", "--rack", "b")
    assert {row["broker"]: row["rack"] for row in pylog.json("broker", "list")} == {0: "a", 1: "", 2: "b"}
    pylog.ok("topic", "create", "orders", "-r", "3")
    pylog.ok("produce", "orders", stdin="a\n")
    pylog.ok("replicate")
    pylog.ok("maintain")
    pylog.ok("cluster", "health")
    assert pylog.ok("consume", "orders", "--client-rack", "a") == "a\n"


def test_an_assignment_names_the_brokers_of_each_partition(pylog: Pylog) -> None:
    """In Kafka's form."""
    pylog.ok("topic", "create", "orders", "--assign", "1:0,2:1")
    assert [row["replicas"] for row in partitions(pylog, "orders")] == ["1,0", "2,1"]


# Promise: replicas.md#change-brokers
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-r 4", "replication factor 4, and 3 brokers can hold replicas (0, 1, 2)"),
        ("-r 0", "replication factor 0; expected 1 or more"),
        ("--assign 0:7", "unknown broker 7"),
        ("--assign 1:1", "broker 1 is listed twice"),
        ("--assign 0:1,2", "all partitions of a topic have the same number"),
        ("--assign 0:1 -r 2", "a replication factor or an assignment, not both"),
        ("-r 2 -c min.insync.replicas=3", "its partitions have 2 replicas: no write would succeed"),
    ],
)
def test_replicas_that_cannot_be_are_refused(pylog: Pylog, arguments: str, message: str) -> None:
    """With what is wrong, and nothing is created."""
    assert message in pylog.refused("topic", "create", "orders", *arguments.split())
    assert "orders" not in pylog.ok("topic", "list")


def test_an_assignment_that_is_not_one_is_wrong_usage(pylog: Pylog) -> None:
    """The form is shown."""
    done = pylog.run("topic", "create", "orders", "--assign", "0-1")
    assert done.exit_code == 2 and "as in 0:1,1:2" in done.stderr


# Promise: cli.md#pylog-broker-fence, cli.md#pylog-broker-unfence, cli.md#pylog-elect-preferred,
# Promise: replicas.md#change-brokers, replicas.md#check-the-state-of-the-replicas
def test_a_fenced_broker_leaves_the_isr_and_comes_back(pylog: Pylog) -> None:
    """Its partitions are listed, and another broker leads them."""
    pylog.ok("topic", "create", "orders", "--assign", "1:2")
    assert pylog.json("topic", "describe", "--under-replicated") == []
    assert pylog.json("broker", "describe", "1")["needed_for"] == []
    fenced = pylog.ok("broker", "fence", "1", "--reason", "noises")
    assert fenced == "broker 1 fenced. Its disk may be taken away\n"
    again = {"broker": 1, "state": "fenced", "changed": False, "may_be_taken_away": True, "needed_for": []}
    again["erased_topics"] = []
    assert pylog.json("broker", "fence", "1") == again
    (row,) = pylog.json("topic", "describe", "--under-replicated")
    assert (row["topic"], row["leader"], row["replicas"], row["isr"]) == ("orders", 2, "1,2", "2")
    listed = {row["broker"]: row for row in pylog.json("broker", "list")}[1]
    assert listed["state"] == "fenced" and "noises" in listed["reason"]
    pylog.ok("broker", "unfence", "1")
    assert pylog.json("topic", "describe", "--under-replicated") == []
    (elected,) = pylog.json("elect", "preferred", "orders")
    assert elected["leader"] == 1
    assert "nothing to change" in pylog.ok("elect", "preferred", "orders:0")


# Promise: cli.md#pylog-broker-fence, cli.md#pylog-elect-unclean, replicas.md#change-brokers,
# Promise: replicas.md#when-a-disk-fails
def test_a_partition_without_a_leader_is_unavailable(pylog: Pylog) -> None:
    """Until an unclean election, which asks before."""
    pylog.ok("topic", "create", "orders", "--assign", "1:2")
    pylog.ok("broker", "fence", "2")
    pylog.ok("produce", "orders", stdin="a\n")
    needed = pylog.run("broker", "fence", "1")
    assert needed.exit_code == 1
    assert "Its disk is still needed, for writes to 1 partition (orders-0) without another " in needed.stdout
    assert "; for reads of 1 object, of which" in next(
        one for one in pylog.ok("broker", "describe", "1").splitlines() if one.lower().startswith("needed")
    )
    (row,) = pylog.json("topic", "describe", "--unavailable")
    assert row["leader"] == "none" and row["isr"] == "1"
    assert "the copies of broker 1 were not checked, because it is fenced: " in pylog.run("verify").stderr
    (line,) = [one.split() for one in pylog.ok("broker", "list").splitlines() if one.split()[0] == "1"]
    assert line[1] == "fenced" and line.count("?") == 2
    assert "all" in next(one for one in pylog.ok("broker", "describe", "1").splitlines() if "keep" in one.lower())
    assert pylog.ok("consume", "orders") == "a\n"
    pylog.ok("broker", "unfence", "2")
    refused = pylog.refused("elect", "unclean", "orders")
    assert "(1 object of the log on fenced brokers alone)" in refused and "give --yes" in refused
    (elected,) = pylog.json("elect", "unclean", "orders", "--yes")
    assert elected["leader"] == 2


# Promise: cli.md#pylog-broker-fence, replicas.md#change-brokers
def test_a_disk_with_the_only_replica_is_needed_until_that_is_moved(pylog: Pylog) -> None:
    """A script that takes the disk away after exit status 0 loses nothing; time alone does not help."""
    pylog.ok("topic", "create", "alone", "--assign", "2,2,2,2,2")
    pylog.ok("produce", "alone", stdin="a\n")
    needed = pylog.run("broker", "fence", "2", "-o", "json")
    fields = json.loads(needed.stdout)
    assert (needed.exit_code, fields["state"], fields["changed"], fields["may_be_taken_away"]) == (
        1,
        "fenced",
        True,
        False,
    )
    assert fields["needed_for"][0] == (
        "writes to 5 partitions (alone-0, alone-1, alone-2 and 2 others) without another in-sync replica"
    )
    said = pylog.refused("broker", "fence", "2")
    assert "`pylog broker drain 2` moves 5 partitions without" in said and "`pylog broker unfence 2` takes it" in said
    assert "pylog replicate" not in said
    pylog.ok("broker", "drain", "2")
    assert "`pylog replicate` or a coordinator" in pylog.refused("broker", "fence", "2")
    pylog.ok("replicate")
    assert pylog.ok("broker", "fence", "2") == "broker 2 was fenced already. Its disk may be taken away\n"


# Promise: cli.md#pylog-broker-describe, cli.md#pylog-broker-replace, cli.md#pylog-verify, replicas.md#when-a-disk-fails
def test_a_lost_disk_is_replaced(pylog: Pylog, tmp_path: Path) -> None:
    """By an empty folder; refused while it has the only copies."""
    pylog.ok("topic", "create", "orders", "--assign", "1:2")
    pylog.ok("topic", "create", "alone", "--assign", "1")
    pylog.ok("produce", "alone", stdin="a\n")
    new = str(tmp_path / "new")
    assert "last copies of 1 object" in pylog.refused("broker", "replace", "1", "--root", new, "--yes")
    replaced = pylog.ok("broker", "replace", "1", "--root", new, "--yes", "--lose-data")
    assert replaced == "broker 1 has an empty root, and lacks nothing\n"
    assert pylog.json("broker", "describe", "1")["root"].endswith("/new")
    assert pylog.run("verify").exit_code == 1
    assert "--lose-data needs --repair" in pylog.wrong("verify", "--lose-data", "--yes")
    assert "give --yes" in pylog.refused("verify", "--repair", "--lose-data")
    given_up = pylog.ok("verify", "--repair", "--lose-data", "--yes")
    assert "alone-0" in given_up and "offsets 0 to 0 are given up" in given_up
    assert "0-0" in pylog.ok("topic", "describe", "alone") and "no problems found" in pylog.ok("verify")


# Promise: cli.md#pylog-broker-remove
def test_a_broker_with_replicas_is_not_removed(pylog: Pylog) -> None:
    """Its topics are named; without any, it goes."""
    pylog.ok("topic", "create", "orders", "--assign", "1:2")
    assert "has replicas of 1 topic (orders)" in pylog.refused("broker", "remove", "1", "--yes")
    pylog.ok("topic", "delete", "orders", "--yes")
    assert pylog.ok("broker", "remove", "1", "--yes") == "broker 1 removed\n"
    assert [row["broker"] for row in pylog.json("broker", "list")] == [0, 2]


def test_broker_0_and_unknown_ones_are_refused(pylog: Pylog) -> None:
    """With the reason."""
    assert "never fenced" in pylog.refused("broker", "fence", "0")
    assert "is not registered" in pylog.refused("broker", "unfence", "7")
    assert "is not registered" in pylog.refused("broker", "describe", "7")
    for verb in ("remove", "replace"):  # before --yes is asked for
        assert "is not registered" in pylog.refused("broker", verb, "7")
        assert "log's own root" in pylog.refused("broker", verb, "0")
