"""`pylog quorum describe | add-voter | remove-voter | transfer` with nodes that run."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.request import ask_node
from spark_log.quorum.node.tool_requests import METRICS
from spark_log.quorum.ready import Config
from tests.cli.commands import Pylog
from tests.quorum.node.quorum_nodes import LIMIT_S, SECRET, Cluster


class Running:
    """Three nodes on the event loop of another thread, and the options with which a command finds them."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder, times=Config(fetch_timeout_ms=2000, election_timeout_ms=1000))
        self.secret_file = folder / "secret"
        self.secret_file.write_text(f"{SECRET}\n")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.do(self.cluster.start())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    @property
    def options(self) -> tuple[str, ...]:
        return "--nodes", ",".join(self.cluster.addresses.values()), "--secret-file", str(self.secret_file)

    def conf(self, folder: Path) -> Path:
        """As `pylog serve` has it on the first node."""
        (own, *peers) = self.cluster.addresses.items()
        listed = ",".join(f"{node}@{address}" for node, address in peers)
        file = folder / "coordinator.ini"
        file.write_text(f"[quorum]\nlisten = {own[1]}\npeers = {listed}\nsecret = {SECRET}\n")
        return file

    def stop(self) -> None:
        for node in list(self.cluster.nodes):
            self.do(self.cluster.stop(node))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.stop()


# Promise: cli.md#pylog-cluster-health, cli.md#pylog-quorum-add-voter, cli.md#pylog-quorum-describe,
# Promise: cli.md#pylog-quorum-remove-voter, cli.md#pylog-quorum-transfer, quorum.md#stop-restart-and-update-nodes,
# Promise: quorum.md#watch-it, raft.md#tools-of-operators
def test_the_quorum_is_shown_and_changed(running: Running, tmp_path: Path) -> None:
    """Under the names of kafka-metadata-quorum; a voter leaves and comes back, another node leads."""
    pylog, options = Pylog(""), running.options
    leader = running.do(running.cluster.leader())
    running.do(running.cluster.append(b"x"))
    until_roles(pylog, options, {leader: "Leader", **dict.fromkeys({1, 2, 3} - {leader}, "Follower")})
    until_led(pylog, options, leader, ("describe",), "max_follower_lag_time_ms  0\n")
    status = pylog.json("quorum", "describe", *options)
    assert status["cluster_id"] == "c"
    assert [(one["id"], one["directory_id"]) for one in status["current_voters"]] == [(1, "d1"), (2, "d2"), (3, "d3")]
    assert status["current_voters"][0]["endpoint"] == running.cluster.addresses[1]

    other = leader % 3 + 1
    until_said(lambda: removed_leader(pylog, options, other), "let another node lead first")
    until_led(pylog, options, other, ("add-voter", "9"), "is not a replica that the leader knows")
    until_led(pylog, options, other, ("remove-voter", f"{leader}@d{leader}", "--yes"), "the voters are")
    until_roles(pylog, options, {other: "Leader", 6 - leader - other: "Follower", leader: "Observer"})
    until_led(pylog, options, other, ("add-voter", f"{leader}@d{leader}"), "is a voter already")
    until_roles(pylog, options, {other: "Leader", 6 - leader - other: "Follower", leader: "Follower"})
    until_said(lambda: pylog.run("cluster", "health", *options, url=False).stdout, "3 of 3 voters are well, 1 more may")
    conf = str(running.conf(tmp_path))
    until_said(lambda: pylog.run("quorum", "describe", "--conf", conf).stdout, "1@d1, 2@d2, 3@d3")
    until_said(lambda: pylog.run("quorum", "describe", "--conf", conf).stdout, "current_observers         -")


def test_a_node_with_a_new_disk_is_added_while_it_starts(running: Running) -> None:
    """The leader still knows the removed directory alone when the command begins."""
    pylog, options, cluster = Pylog(""), running.options, running.cluster
    lost = running.do(cluster.leader()) % 3 + 1
    running.do(cluster.stop(lost))
    until_said(lambda: pylog.run("cluster", "health", *options, url=False).stdout, "the leader cannot reach it")
    until_said(lambda: pylog.run("quorum", "remove-voter", f"{lost}@d{lost}", "--yes", *options).output, "not a voter")
    said = pylog.refused("quorum", "add-voter", str(lost), "--timeout", "1ms", *options)
    assert f"{lost}@d{lost} has not fetched from the leader for" in said or "the leader knows" in said
    shutil.rmtree(cluster.path(lost))
    cluster.format(ReplicaKey(lost, "new"), ())
    with ThreadPoolExecutor(1) as threads:
        adding = threads.submit(pylog.run, "quorum", "add-voter", str(lost), "--timeout", "60s", *options)
        running.do(cluster.start(lost))
        adding.result()
    until_said(lambda: pylog.run("quorum", "add-voter", str(lost), *options).output, f"as {lost}@new: there is nothing")


def until_said(say: Callable[[], str], expected: str) -> None:
    """On a busy machine the nodes may elect at any moment, and until they have, commands are refused."""
    deadline_s = time.monotonic() + LIMIT_S
    while expected not in (said := say()):
        assert time.monotonic() < deadline_s, f"not within {LIMIT_S:.0f} s: {expected!r}; at last: {said}"


def until_led(pylog: Pylog, options: tuple[str, ...], node: int, command: tuple[str, ...], expected: str) -> None:
    """A command, while this node leads."""

    def say() -> str:
        let_lead(pylog, options, node)
        return pylog.run("quorum", *command, *options).output

    until_said(say, expected)


def removed_leader(pylog: Pylog, options: tuple[str, ...], node: int) -> str:
    """The refusal; if another node leads already, the node is added again."""
    let_lead(pylog, options, node)
    said = pylog.run("quorum", "remove-voter", str(node), "--yes", *options).output
    if "votes no longer" in said:
        until_said(lambda: pylog.run("quorum", "add-voter", f"{node}@d{node}", *options).output, "is a voter already")
    return said


def let_lead(pylog: Pylog, options: tuple[str, ...], node: int) -> None:
    """It may not be ready in time: then another one leads, and the command says so."""
    until_said(lambda: pylog.run("quorum", "transfer", str(node), *options).stdout, f"node {node} leads\n")


def until_roles(pylog: Pylog, options: tuple[str, ...], expected: dict[int, str]) -> None:
    """While the node leads that is to lead, and when all replicas have everything."""
    (leader,) = (node for node, role in expected.items() if role == "Leader")
    deadline_s = time.monotonic() + LIMIT_S
    while (found := roles(pylog, options)) != expected:
        assert time.monotonic() < deadline_s, f"not within {LIMIT_S:.0f} s: {expected}; at last: {found}"
        let_lead(pylog, options, leader)


def roles(pylog: Pylog, options: tuple[str, ...]) -> dict[int, str] | None:
    """None while no node leads, or replicas lack something."""
    found = pylog.run("quorum", "describe", "--replication", *options, "-o", "json")
    rows = json.loads(found.stdout) if found.exit_code == 0 else []
    if not rows or any(row["lag"] or row["last_caught_up_timestamp"] < 0 for row in rows):
        return None
    now_ms = time.time() * 1000
    assert all(0 <= now_ms - row["last_fetch_timestamp"] < 1000 * LIMIT_S for row in rows)
    assert all(0 <= now_ms - row["last_caught_up_timestamp"] < 1000 * LIMIT_S for row in rows)
    return {row["node_id"]: row["status"] for row in rows}


# Promise: cli.md#pylog-quorum-describe, quorum.md#when-a-majority-is-lost, raft.md#tools-of-operators
def test_a_command_without_an_answer_says_why(running: Running, tmp_path: Path) -> None:
    """The options that are missing, another secret, nodes that are away, and a majority that is lost."""
    pylog, options = Pylog(""), running.options
    assert "or their addresses with --nodes" in pylog.wrong("quorum", "describe")
    assert "give the file with the secret" in pylog.wrong("quorum", "describe", *options[:2])
    (tmp_path / "other").write_text("another-secret-of-nodes")
    refused = pylog.refused("quorum", "describe", *options[:3], str(tmp_path / "other"))
    assert "the secret differs from that of this node" in refused
    (tmp_path / "broken").write_text("two words and a secret")
    refused = pylog.refused("quorum", "describe", *options[:3], str(tmp_path / "broken"))
    assert f"{tmp_path / 'broken'} has no secret of nodes: " in refused
    leader = running.do(running.cluster.leader())

    def metrics() -> str:
        running.do(running.cluster.hand_over_to(leader))
        return ask_node(running.cluster.addresses[leader], "GET", METRICS, None, secret=SECRET, ca=None).decode()

    until_said(metrics, f"pylog_quorum_leader {leader}\n")
    until_said(metrics, 'pylog_quorum_lag{node="')

    for node in {1, 2, 3} - {leader}:
        running.do(running.cluster.stop(node))
    away = next(one for node, one in running.cluster.addresses.items() if node != leader)
    assert f"no node leads: the node at {away} does not answer: Connection refused" in pylog.refused(
        "quorum", "describe", "--nodes", away, *options[2:]
    )
    until_said(lambda: pylog.run("quorum", "describe", *options).output, "no node leads: ")
    until_said(lambda: pylog.run("quorum", "describe", *options).output, f"node {leader} is ")
