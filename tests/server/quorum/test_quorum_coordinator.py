"""Coordinators on the nodes of a quorum, in this process."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import spark_log
from simulation.harness.clocks import SkewedClock
from spark_log.console.of_coordinator import pages_of
from spark_log.display.health import log_checks
from spark_log.errors import (
    ClockSkewed,
    CoordinatorNotAvailable,
    InconsistentClusterId,
    InvalidRequest,
    NotCoordinator,
    TopicAlreadyExists,
)
from spark_log.http.connection_limits import ConnectionLimits, Connections
from spark_log.journal.context import Context
from spark_log.journal.store_operations import Stores, run
from spark_log.maintenance.maintain import Maintainer, maintain_once
from spark_log.metadata.commands import AnyCommand, CreateTopic, UpdateFeature
from spark_log.metadata.state import State
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.admin import QuorumAdmin
from spark_log.quorum.node.directory import format_directory
from spark_log.quorum.node.vote_and_identity import Meta
from spark_log.recovery.repair import repair
from spark_log.runtime.clock import SystemClock
from spark_log.serve.serve_config import ServeConfig, check_config, read_config
from spark_log.serve.serve_quorum import RunningNode, start_quorum
from spark_log.server.quorum.forgetting import Forgetting
from spark_log.server.quorum.log import QuorumLog
from spark_log.server.quorum.state import QuorumState
from spark_log.store.open import open_store
from tests.cli.commands import Pylog
from tests.processes import eventually, free_port
from tests.quorum.node.quorum_nodes import TIMES, one_node, three_nodes, until


@asynccontextmanager
async def running(config: ServeConfig) -> AsyncIterator[RunningNode]:
    """A node that leads."""
    found = await start_quorum(config)
    try:
        await asyncio.wait_for(_until_it_leads(found), 120)
        yield found
    finally:
        await found.stop()


async def _until_it_leads(node: RunningNode) -> None:
    while not node.coordinator.leading:
        await asyncio.sleep(0.01)


async def carry_out(node: RunningNode, *commands: AnyCommand) -> Sequence[object]:
    answered = await asyncio.wait_for(asyncio.wrap_future(node.coordinator.submit(commands)), 120)
    return answered.outcomes


def create(name: str, topic_id: str = "") -> CreateTopic:
    return CreateTopic(name=name, partitions=1, topic_id=topic_id or f"id-of-{name}")


# Promise: service.md#keep-the-metadata-in-a-quorum
def test_a_log_survives_a_restart(tmp_path: Path) -> None:
    """With each command in a batch, and with one batch for both; the versions continue."""

    async def scenario() -> None:
        async with running(one_node(tmp_path)) as node:
            assert await carry_out(node, create("a")) == ["id-of-a"]
            found = await carry_out(node, create("a", "another"), create("b"))
            assert isinstance(found[0], TopicAlreadyExists) and found[1] == "id-of-b"
            before = node.coordinator.state
        async with running(one_node(tmp_path)) as node:
            after = node.coordinator.state
            assert set(after.names) == {"a", "b"} and after.version == before.version + 1
            assert after.coordinator.epoch > before.coordinator.epoch == 1
            assert after.levels == before.levels

    asyncio.run(scenario())


# Promise: quorum.md#watch-it
def test_metrics_have_the_quorum(tmp_path: Path) -> None:
    """Beside those of the coordinator."""

    async def scenario() -> None:
        async with running(one_node(tmp_path)) as node:
            text = node.coordinator.metrics_text(polls=0, connections=Connections(ConnectionLimits()), usage=())
            assert {"pylog_quorum_leader 1", "pylog_leading 1"} <= set(text.splitlines())

    asyncio.run(scenario())


# Promise: service.md#keep-the-metadata-in-a-quorum
def test_a_log_survives_in_snapshots(tmp_path: Path) -> None:
    """Its state, and the line by which clients recognise its last version."""

    async def scenario() -> None:
        config = one_node(tmp_path, snapshot_bytes=1)
        async with running(config) as node:
            for number in range(20):
                await carry_out(node, create(f"topic-{number}"))
            before, head = node.coordinator.state, node.coordinator.head(node.coordinator.state.version)
        async with running(config) as node:
            status, after = node.coordinator.node.status(), node.coordinator.state
            assert status is not None and status.snapshot.offset > 0
            assert after.topics == before.topics and node.coordinator.head(before.version) in (head, "")

    asyncio.run(scenario())


def test_clients_see_what_commands_changed(tmp_path: Path) -> None:
    """When a command is answered, the state that is served has it."""

    async def scenario() -> None:
        async with running(one_node(tmp_path)) as node:
            since = node.coordinator.state.version
            many = [node.coordinator.submit([create(f"topic-{number}")]) for number in range(50)]
            await asyncio.gather(*map(asyncio.wrap_future, many))
            state = node.coordinator.state
            assert len(state.names) == 50 and node.coordinator.change_feed.has_changes(None, since)
            assert len(node.coordinator.after(since, state.version, 1 << 20)) == state.version - since
            await carry_out(node)  # a confirmation
            assert await carry_out(node, UpdateFeature(name="metadata.version", level=1)) == [1]
            found = await carry_out(node, UpdateFeature(name="metadata.version", level=99), create("beside"))
            assert isinstance(found[0], InvalidRequest) and found[1] == "id-of-beside"

    asyncio.run(scenario())


# Promise: quorum.md#commands-for-the-log, quorum.md#restore-a-quorum, quorum.md#watch-it,
# Promise: service.md#keep-the-metadata-in-a-quorum
def test_clients_use_the_log_as_any_other(tmp_path: Path) -> None:
    """Records, a transaction, a group and maintenance: nothing of the metadata is on the storage but the file that
    names the quorum, and claims."""

    def use(url: str) -> None:
        with spark_log.connect(url) as log:
            log.append("orders", [{"value": f"order {number}"} for number in range(3)])
            with log.transaction("etl") as txn:
                txn.append("orders", [{"value": "last"}])
            with log.consumer("orders", group_id="billing", auto_offset_reset="earliest") as consumer:
                found: list[bytes] = []
                eventually(lambda: found.extend(_polled(consumer)) or len(found) >= 4)
                consumer.commit()
            assert found == [b"order 0", b"order 1", b"order 2", b"last"]
            assert log.journal.state.groups["billing"].offsets
            maintain_once(log)
            quorum = log.admin.describe_metadata_quorum()
            assert (quorum.leader_id, quorum.leader_epoch, quorum.observers) == (1, 1, ())
            assert quorum.copy_problem == ""
            assert [(one.replica_directory_id, one.lag) for one in quorum.voters] == [("directory-1", 0)]
            value = b'{"version":1,"made_ms":1}'
            assert log.journal.run(log.journal.metadata_log.claim("meta/pin/a", value)) == value

    async def scenario() -> None:
        async with running(one_node(tmp_path)) as node:
            await asyncio.to_thread(use, f"pylog://{node.coordinator.address}")
            with await asyncio.to_thread(node.coordinator.open_log) as log:
                report = await asyncio.to_thread(Maintainer(log).round_or_raise)
            assert report.unfinished == 0
            await asyncio.to_thread(_use_commands, f"pylog://{node.coordinator.address}", tmp_path)
        async with running(one_node(tmp_path)) as node:
            assert await asyncio.to_thread(_values, f"pylog://{node.coordinator.address}") == 4

    asyncio.run(scenario())
    names = {str(file.relative_to(tmp_path / "records")) for file in (tmp_path / "records" / "meta").rglob("*.*")}
    assert not any(name.startswith(("meta/log", "meta/ckpt")) for name in names), names


def _use_commands(url: str, folder: Path) -> None:
    """Commands that need the files of the metadata say that this is not possible."""
    command, storage = Pylog(url), Pylog(folder / "records")
    assert "no problems found" in command.ok("verify", "--deep")
    checks = {one["check"]: one["says"] for one in command.json("cluster", "health")["checks"]}
    assert checks["quorum copy"] == "not late"
    quorum = command.json("quorum", "describe")
    assert (quorum["leader_id"], quorum["max_follower_lag"], quorum["cluster_id"]) == (1, 0, "a-cluster")
    (replica,) = command.json("quorum", "describe", "--replication")
    assert (replica["node_id"], replica["lag"], replica["status"]) == (1, 0, "Leader")
    command.ok("maintain", "--dry-run")
    command.ok("maintain")
    assert "nothing was written: the coordinator keeps the metadata" in command.ok("checkpoint")
    target = str(folder / "elsewhere")
    assert "see docs/quorum.md" in command.wrong("move", target)
    for one in (("mirror", "set", target), ("repair", "--dry-run"), ("metadata", "dump")):
        assert "see docs/quorum.md" in command.refused(*one)
        assert "see docs/quorum.md" in storage.refused(*one)
    new = str(folder / "new")
    storage.ok("quorum", "init", new, "--cluster-id", "a-cluster", "--node", "1")
    assert "leads: the quorum is not lost" in storage.refused("quorum", "restore", new, "--yes")
    segment = next(file for file in (folder / "records" / "data").rglob("*") if file.is_file())
    kept = segment.read_bytes()
    segment.write_bytes(kept[:-1])
    try:
        assert "1 problem found" in command.run("verify").stderr
    finally:
        segment.write_bytes(kept)


def _polled(consumer: Any) -> list[bytes]:
    return [record.value for records in consumer.poll(timeout_ms=500).values() for record in records]


def _values(url: str) -> int:
    with spark_log.connect(url) as log:
        return len(log.read("orders", columns=["value"]))


# Promise: console.md#the-console
def test_pages_of_a_follower_show_what_it_has(tmp_path: Path) -> None:
    """All answers of the console but those for a record or a group, without waiting for a leader; also alone."""
    names = ("me", "cluster", "health", "maintenance", "brokers", "topics", "groups", "queries", "transactions")

    def ask(address: str, name: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{address}/console/api/{name}", timeout=60) as found:
            answer: dict[str, Any] = json.loads(found.read())
            return answer

    async def scenario() -> None:
        configs = three_nodes(tmp_path)
        nodes = [await start_quorum(config, pages=pages_of) for config in configs]
        try:
            await until(lambda: any(node.coordinator.leading for node in nodes), "one of the nodes leads")
            for node in nodes:
                with suppress(NotCoordinator):
                    await carry_out(node, create("orders"))
            await until(lambda: all("orders" in node.coordinator.state.names for node in nodes), "all have the topic")
            follower = next(node for node in nodes if not node.coordinator.leading)
            addresses = [node.coordinator.address for node in nodes]
            for other in [node for node in nodes if node is not follower]:
                nodes.remove(other)
                await other.stop()
            address = follower.coordinator.address
            found = {name: await asyncio.to_thread(ask, address, name) for name in names}
            assert [row["topic"] for row in found["topics"]["topics"]] == ["orders"]
            assert found["me"]["coordinator"] in addresses
        finally:
            for node in nodes:
                await node.stop()

    asyncio.run(scenario())


# Promise: quorum.md#watch-it
def test_a_node_that_has_known_no_leader_for_long_says_so(tmp_path: Path) -> None:
    """To clients and tools, with the nodes that it does not reach: two of three do not run."""

    async def scenario() -> None:
        node = await start_quorum(three_nodes(tmp_path)[0])
        try:
            await until(lambda: "has led for" in node.coordinator.health().reason, "it says for how long")
            refused, status = node.coordinator.not_leading(), node.coordinator.node.status()
            assert isinstance(refused, NotCoordinator) and "node 2: " in str(refused)
            assert status is not None and "node 3: " in status.application_problem
        finally:
            await node.stop()

    asyncio.run(scenario())


async def answered(nodes: Sequence[RunningNode], command: AnyCommand) -> tuple[RunningNode, Sequence[object]]:
    """The node that leads, and its answer.  Nodes may elect at any moment."""
    while True:
        for node in nodes:
            with suppress(NotCoordinator, CoordinatorNotAvailable):
                return node, await carry_out(node, command)
        await asyncio.sleep(0.01)


def test_a_leader_without_a_majority_refuses_nothing(tmp_path: Path) -> None:
    """Another node may lead and have the opposite: the refusal would not be true of the log."""

    async def scenario() -> None:
        keys, ports = tuple(ReplicaKey(number, f"directory-{number}") for number in (1, 2)), (free_port(), free_port())
        found = []
        for key, port, other in zip(keys, ports, reversed(ports), strict=True):
            folder = tmp_path / key.directory
            meta = Meta(cluster_id="a-cluster", node_id=key.id, directory_id=key.directory)
            format_directory(str(folder / "a-cluster"), meta, keys)
            peers = {3 - key.id: f"127.0.0.1:{other}"}
            config = one_node(folder, node_id=key.id, listen=f"127.0.0.1:{port}", peers=peers, times=TIMES)
            found.append(await start_quorum(replace(config, url=str(tmp_path / "records"))))
        try:
            await answered(found, create("a"))
            leader, (refused,) = await answered(found, create("a", "another"))
            assert isinstance(refused, TopicAlreadyExists)
            for other_node in [node for node in found if node is not leader]:
                found.remove(other_node)
                await other_node.stop()
            with pytest.raises(NotCoordinator):
                await carry_out(leader, create("a", "another"))
        finally:
            for node in found:
                await node.stop()

    asyncio.run(scenario())


def test_a_node_that_stops_rejects_commands(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(one_node(tmp_path)) as node:
            coordinator = node.coordinator
        with pytest.raises(NotCoordinator):
            await carry_out(node, create("a"))
        assert not coordinator.leading
        with pytest.raises(StopIteration):  # it does not wait to hear of the next leader
            coordinator.leader_known().send(None)

    asyncio.run(scenario())


# Promise: service.md#keep-the-metadata-in-a-quorum
def test_the_records_belong_to_one_log(tmp_path: Path) -> None:
    """Another quorum, an embedded client and a coordinator without a quorum are refused, and told what to do."""

    async def scenario() -> None:
        async with running(one_node(tmp_path)):
            pass

    asyncio.run(scenario())
    with pytest.raises(InconsistentClusterId, match="the log a-cluster, and this quorum has the log another"):
        asyncio.run(start_quorum(one_node(tmp_path, cluster="another")))
    with pytest.raises(InvalidRequest, match="open the log with the addresses of its nodes, pylog://127"):
        spark_log.connect(tmp_path / "records")
    with pytest.raises(InvalidRequest, match="whose metadata is in a quorum"):
        repair(open_store(str(tmp_path / "records"), None), is_alive=lambda holder: False, dry_run=True)


def test_nodes_that_were_formatted_again_begin_no_log_beside_the_records(tmp_path: Path) -> None:
    """Maintenance of the new log would take the records of the old one for garbage."""

    async def scenario() -> None:
        config = one_node(tmp_path)
        async with running(config) as node:
            await asyncio.to_thread(_append_one, f"pylog://{node.coordinator.address}")
        async with running(config) as node:  # the same directory
            assert node.coordinator.state.names
        (tmp_path / "a-cluster").rename(tmp_path / "lost")
        node = await start_quorum(one_node(tmp_path))
        while "were its nodes formatted again" not in node.coordinator.health().reason:
            await asyncio.sleep(0.01)
        assert not node.coordinator.leading
        await node.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_the_ports_for_nodes_and_for_clients_are_told_apart(tmp_path: Path) -> None:
    """Each says so when the other's address is given."""

    async def scenario() -> None:
        async with running(one_node(tmp_path, listen=f"127.0.0.1:{free_port()}")) as node:
            config = node.coordinator.node.config
            with pytest.raises(InvalidRequest, match="is the port for clients: give the port for the other nodes"):
                await asyncio.to_thread(QuorumAdmin([node.coordinator.address], config.secret).leader)
            with pytest.raises(InvalidRequest, match="this is the port for the other nodes of a quorum: clients use"):
                await asyncio.to_thread(_append_one, f"pylog://{config.listen}")

    asyncio.run(scenario())


def test_a_node_whose_quorum_was_replaced_says_so(tmp_path: Path) -> None:
    """One that is left of a quorum that was restored on other disks: it cannot be elected, and its clients ask why."""

    async def scenario() -> None:
        ports = free_port(), free_port()
        voters = (ReplicaKey(1, "lost-1"), ReplicaKey(2, "lost-2"))
        found = []
        for node, key, formatted in ((1, voters[0], voters), (2, ReplicaKey(2, "new"), (ReplicaKey(2, "new"),))):
            folder = tmp_path / key.directory
            meta = Meta(cluster_id="a-cluster", node_id=node, directory_id=key.directory)
            format_directory(str(folder / "a-cluster"), meta, formatted)
            peers = {3 - node: f"127.0.0.1:{ports[2 - node]}"}
            found.append(
                await start_quorum(
                    one_node(folder, node_id=node, listen=f"127.0.0.1:{ports[node - 1]}", peers=peers, times=TIMES)
                )
            )
        try:
            expected = "leads at the moment (node 2: another quorum has the same cluster id: its voters are 2@new"
            await until(lambda: expected in str(found[0].coordinator.not_leading()), expected)
        finally:
            for one in found:
                await one.stop()

    asyncio.run(scenario())


def test_a_checkpoint_is_not_ahead_of_the_log(tmp_path: Path) -> None:
    """The leader has a newer version than the client that checks the log."""

    def check(url: str) -> None:
        with spark_log.connect(url) as log:
            log.journal.refresh()
            _append_one(url)
            (says,) = (one.says for one in log_checks(log, url, [], writes=False) if one.check == "checkpoint")
            assert says == "the newest one is 0 versions old"

    async def scenario() -> None:
        async with running(one_node(tmp_path)) as node:
            await asyncio.to_thread(check, f"pylog://{node.coordinator.address}")

    asyncio.run(scenario())


def _append_one(url: str) -> None:
    with spark_log.connect(url) as log:
        log.append("orders", [{"value": "first"}])


def test_a_leader_with_a_wrong_clock_expires_nothing(tmp_path: Path) -> None:
    """Retention deletes by this clock.  Without other voters, the storage's clock says that it is wrong."""
    clock = SkewedClock(SystemClock(), 365 * 86_400_000)
    state = QuorumState(lambda offer: None, lambda: None, lambda call: None)
    log = QuorumLog(
        Context(clock, Random(1), served=True), "a-cluster", state, Forgetting(lambda: None, lambda version: None)
    )
    with pytest.raises(ClockSkewed, match="ahead of the storage's"):
        run(log.check_clock(State()), Stores.of(open_store(str(tmp_path), None)), clock)


# Promise: service.md#keep-the-metadata-in-a-quorum
def test_a_log_with_its_metadata_is_not_taken_over(tmp_path: Path) -> None:
    spark_log.connect(tmp_path / "records").close()
    with pytest.raises(InvalidRequest, match="`pylog quorum adopt` moves that into a quorum"):
        asyncio.run(start_quorum(one_node(tmp_path)))


# Promise: service.md#keep-the-metadata-in-a-quorum
@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("peers = 2@b:1", "give the secret of the nodes"),
        ("peers = b:1\nsecret = a-secret-of-the-nodes", "'b:1' is not of the form NODE@HOST:PORT"),
        ("peers = 2@b:1,2@c:1\nsecret = a-secret-of-the-nodes", "node 2 is there twice"),
        ("listen = 10.0.0.1:9551", "can be reached from other machines; give certificate, key and ca"),
        ("voters = 1", "has no 'voters'"),
    ],
)
def test_settings_that_do_not_fit_are_named(tmp_path: Path, section: str, says: str) -> None:
    node = one_node(tmp_path).quorum
    assert node is not None
    file = tmp_path / "node.ini"
    file.write_text(f"[coordinator]\nurl = /records\n[quorum]\ndirectory = {node.directory}\n{section}\n")
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        check_config(read_config(str(file), {}, {}))
    file.write_text(f"[coordinator]\nurl = /records\n[quorum]\ndirectory = {node.directory}\npeers = 1@a:1\n")
    found = read_config(str(file), {}, {}).quorum
    assert found is not None and found.peers == {} and found.cluster_id == "a-cluster"
    with pytest.raises(InvalidRequest, match="a quorum elects its leader"):
        read_config(str(file), {"takeover.after": "5s"}, {})
    with pytest.raises(InvalidRequest, match="'storage' for metadata: the nodes of a quorum have the metadata"):
        read_config(str(file), {"metadata": "storage"}, {})
    assert read_config(str(file), {"metadata": "served"}, {}).quorum is not None


def test_the_file_that_is_shipped_is_for_a_node_too(tmp_path: Path) -> None:
    node = one_node(tmp_path).quorum
    assert node is not None
    shipped = str(Path(__file__).parents[3] / "conf" / "coordinator.ini")
    found = read_config(shipped, {"url": "/records", "quorum.directory": node.directory}, {}).quorum
    assert found is not None and found.node_id == 1
