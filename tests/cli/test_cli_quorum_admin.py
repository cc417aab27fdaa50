"""`pylog quorum describe | add-voter | remove-voter | transfer` with nodes that run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_log.net.quorum_request import ask_node
from spark_log.quorum.ready import Config
from spark_log.quorum_node.tool_requests import METRICS
from tests.cli.commands import Pylog
from tests.node.quorum_nodes import SECRET, Cluster


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
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

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


def test_the_quorum_is_shown_and_changed(running: Running, tmp_path: Path) -> None:
    """Under the names of kafka-metadata-quorum; a voter leaves and comes back, another node leads."""
    pylog, options = Pylog(""), running.options
    leader = running.do(running.cluster.leader())
    running.do(running.cluster.append(b"x"))
    assert roles(pylog, options) == {leader: "Leader", **dict.fromkeys({1, 2, 3} - {leader}, "Follower")}
    status = pylog.json("quorum", "describe", *options)
    assert (status["cluster_id"], status["leader_id"], status["max_follower_lag_time_ms"]) == ("c", leader, 0)
    assert [(one["id"], one["directory_id"]) for one in status["current_voters"]] == [(1, "d1"), (2, "d2"), (3, "d3")]
    assert status["current_voters"][0]["endpoint"] == running.cluster.addresses[1]

    other = leader % 3 + 1
    let_lead(pylog, options, other)
    assert "let another node lead first" in pylog.refused("quorum", "remove-voter", str(other), "--yes", *options)
    assert "is not a replica that the leader knows" in pylog.refused("quorum", "add-voter", "9", *options)
    pylog.ok("quorum", "remove-voter", str(leader), "--yes", *options)
    assert roles(pylog, options) == {other: "Leader", 6 - leader - other: "Follower", leader: "Observer"}
    assert "the voters are" in pylog.refused("quorum", "remove-voter", f"{leader}@d{leader}", "--yes", *options)
    pylog.ok("quorum", "add-voter", f"{leader}@d{leader}", *options)
    assert roles(pylog, options)[leader] == "Follower"
    health = Pylog("").run("cluster", "health", *options, url=False)
    assert health.exit_code == 0 and "3 of 3 voters are well, 1 more may fail" in health.stdout
    table = pylog.ok("quorum", "describe", "--conf", str(running.conf(tmp_path)))
    assert "1@d1, 2@d2, 3@d3" in table and "current_observers         -" in table


def let_lead(pylog: Pylog, options: tuple[str, ...], node: int) -> None:
    """On a busy machine it may not be ready in time: then another one leads, and the command says so."""
    deadline_s = time.monotonic() + 20
    while pylog.run("quorum", "transfer", str(node), *options).stdout != f"node {node} leads\n":
        assert time.monotonic() < deadline_s


def roles(pylog: Pylog, options: tuple[str, ...]) -> dict[int, str]:
    """As soon as all replicas have everything."""
    deadline_s = time.monotonic() + 20
    rows = pylog.json("quorum", "describe", "--replication", *options)
    while any(row["lag"] or row["last_caught_up_timestamp"] < 0 for row in rows):
        assert time.monotonic() < deadline_s
        rows = pylog.json("quorum", "describe", "--replication", *options)
    now_ms = time.time() * 1000
    assert all(0 <= now_ms - row["last_fetch_timestamp"] < 60_000 for row in rows)
    assert all(0 <= now_ms - row["last_caught_up_timestamp"] < 60_000 for row in rows)
    return {row["node_id"]: row["status"] for row in rows}


def test_a_command_without_an_answer_says_why(running: Running, tmp_path: Path) -> None:
    """The options that are missing, another secret, nodes that are away, and a majority that is lost."""
    pylog, options = Pylog(""), running.options
    assert "or their addresses with --nodes" in pylog.wrong("quorum", "describe")
    assert "give the file with the secret" in pylog.wrong("quorum", "describe", *options[:2])
    (tmp_path / "other").write_text("another-secret-of-nodes")
    refused = pylog.refused("quorum", "describe", *options[:3], str(tmp_path / "other"))
    assert "the secret differs from that of this node" in refused
    leader = running.do(running.cluster.leader())
    metrics = ask_node(running.cluster.addresses[leader], "GET", METRICS, None, secret=SECRET, ca=None).decode()
    assert f"pylog_quorum_leader {leader}\n" in metrics and 'pylog_quorum_lag{node="' in metrics

    for node in {1, 2, 3} - {leader}:
        running.do(running.cluster.stop(node))
    away = next(one for node, one in running.cluster.addresses.items() if node != leader)
    assert f"no node leads: the node at {away} does not answer: Connection refused" in pylog.refused(
        "quorum", "describe", "--nodes", away, *options[2:]
    )
    deadline = time.monotonic() + 20
    while "leader_id" in (shown := pylog.run("quorum", "describe", *options).output):
        assert time.monotonic() < deadline
    assert f"node {leader} is " in shown and "no node leads" in shown
