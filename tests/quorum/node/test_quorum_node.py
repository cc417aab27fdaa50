"""Nodes of a quorum in one process: real disks, real connections, one event loop."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from spark_log.errors import CorruptObject, InvalidRequest, NoSpace, NotLeaderOrFollower, StorageError
from spark_log.http.tls import node_contexts
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.node import ENTRY_BYTES_MAX, Node
from spark_log.quorum.node.node_config import NodeConfig
from tests.quorum.node.quorum_nodes import SECRET, Cluster, Entries, cluster, run, until
from tests.server.asking import make_certificate


# Promise: raft.md#run-nodes
def test_entries_are_final_on_all_nodes_in_one_order(tmp_path: Path) -> None:
    """An append returns its index; a confirmed read has everything that was acknowledged; a follower names the leader;
    a new leader is reported, and a hand-over takes no timeout.
    """

    async def test() -> None:
        async with cluster(tmp_path) as found:
            indexes = await asyncio.gather(*(found.append(b"%d" % number) for number in range(20)))
            assert len(set(indexes)) == 20
            leader = await found.confirmed()
            data = list(found.states[leader].data)
            assert sorted(data) == sorted(b"%d" % number for number in range(20))
            await found.all_have(data)
            await until_a_follower_names(found, leader)
            with pytest.raises(InvalidRequest, match="an entry of 8,388,609 bytes"):
                await found.nodes[leader].append(bytes(ENTRY_BYTES_MAX + 1))
            await found.hand_over_to(leader % 3 + 1)
            await found.append(b"more")
            await found.all_have([*data, b"more"])

    run(test)


def test_a_leader_adds_nothing_that_it_made_in_an_earlier_epoch(tmp_path: Path) -> None:
    """It was elected again while it prepared the entry."""

    async def test() -> None:
        async with cluster(tmp_path) as found:
            node = found.nodes[await found.leader()]
            status = node.status()
            assert status is not None
            with pytest.raises(NotLeaderOrFollower):
                node.begin_append(b"late", status.epoch - 1)
            _, future = node.begin_append(b"now", status.epoch)
            await future
            await found.all_have([b"now"])

    run(test)


async def until_a_follower_names(found: Cluster, leader: int) -> None:
    """In the error for an append.  Nodes that elect just then name another one, or none."""

    async def says() -> int | None:
        await found.hand_over_to(leader)
        follower = found.nodes[leader % 3 + 1]
        with pytest.raises(NotLeaderOrFollower):
            await follower.confirm()
        with pytest.raises(NotLeaderOrFollower) as refused:
            await follower.append(b"x")
        assert refused.value.leader is None or f"node {refused.value.leader} does" in str(refused.value)
        return refused.value.leader

    while await says() != leader:
        await asyncio.sleep(0.01)


# Promise: quorum.md#when-a-node-is-lost, raft.md#run-nodes
def test_a_follower_that_was_away_gets_a_snapshot(tmp_path: Path) -> None:
    """The others have deleted the entries that it lacks.  All of them start again from their disks."""

    async def test() -> None:
        async with cluster(tmp_path, snapshot_bytes=500) as found:
            leader = await found.leader()
            away = next(node for node in found.nodes if node != leader)
            await found.stop(away)
            data = []
            while (status := found.nodes[leader].status()) is None or status.log_start < 20:
                data.append(b"%03d" % len(data) * 30)
                await found.append(data[-1])
            await found.start(away)
            await found.all_have(data)
            for node in list(found.nodes):
                await found.stop(node)
            await found.start()
            await found.append(b"last")
            await found.all_have([*data, b"last"])

    run(test)


# Promise: raft.md#run-nodes, raft.md#the-data-directory
def test_a_node_joins_and_takes_the_place_of_a_lost_disk(tmp_path: Path) -> None:
    """It learns the voters from the others.  The wiped node, under its old id, is another replica."""

    async def test() -> None:
        async with cluster(tmp_path) as found:
            await found.append(b"a")
            leader = await found.leader()
            lost = next(node for node in found.nodes if node != leader)
            await found.stop(lost)
            shutil.rmtree(found.path(lost))
            found.format(ReplicaKey(lost, "new"))
            await found.start(lost)
            old, new = ReplicaKey(lost, f"d{lost}"), ReplicaKey(lost, "new")

            def replaced() -> bool:
                """By the leader of the moment, each change once."""
                for node in found.nodes.values():
                    status = node.status()
                    if status is not None and status.role == "leader":
                        if old in status.voters:
                            node.remove_voter(old)
                        elif new not in status.voters:
                            node.add_voter(new)
                status = found.nodes[lost].status()
                return status is not None and new in status.voters and old not in status.voters

            await until(replaced, "the new disk is a voter, and knows it")
            await found.append(b"b")
            await found.all_have([b"a", b"b"])

    run(test)


# Promise: raft.md#between-nodes
def test_a_spare_node_of_another_quorum_is_refused(tmp_path: Path) -> None:
    """The only voter lost its disk, and was formatted as the first of a quorum: offsets and epochs begin again, and
    those of the spare node fit, with other entries."""

    async def test() -> None:
        found = Cluster(tmp_path, count=2)
        for node in (1, 2):
            shutil.rmtree(found.path(node))
            found.format(ReplicaKey(node, f"d{node}"), (ReplicaKey(1, "d1"),) if node == 1 else ())
        await found.start()
        await found.append(b"first")
        await found.all_have([b"first"])
        for node in (1, 2):
            await found.stop(node)
        shutil.rmtree(found.path(1))
        found.format(ReplicaKey(1, "new"), (ReplicaKey(1, "new"),))
        await found.start(1)
        for data in (b"second", b"third"):
            await found.append(data)
        await found.start(2)
        expected = "another quorum has the same cluster id: its voters are 1@new, and here they are 1@d1"
        await until(lambda: (s := found.nodes[2].status()) and expected in (s.problems[1] or ""), expected)
        assert found.states[2].data == [b"first"]
        for node in (1, 2):
            await found.stop(node)

    run(test)


# Promise: raft.md#between-nodes
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"secret": "another-secret-of-nodes"}, "the secret differs"),
        ({"peers": {1: "SECOND", 2: "FIRST"}}, "this is node 2, not node 1"),
    ],
)
def test_a_stranger_is_refused_with_the_reason(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    """The others continue, and the reason is in the stranger's status and log."""

    async def test() -> None:
        async with cluster(tmp_path) as found:
            await found.stop(3)
            swapped = {1: found.addresses[2], 2: found.addresses[1]}
            values = {name: swapped if name == "peers" else value for name, value in config.items()}
            stranger = found.node(3, **values)
            await stranger.start()
            await until(
                lambda: any(reason in (problem or "") for problem in stranger._links.problems().values()), reason
            )
            await stranger.stop()
            await found.append(b"x")

    run(test)


# Promise: quorum.md#choose-the-number-of-nodes, quorum.md#stop-restart-and-update-nodes
def test_five_nodes_lose_two_and_are_restarted_one_by_one(tmp_path: Path) -> None:
    """Appends continue; each node that stops hands over first."""

    async def test() -> None:
        async with cluster(tmp_path, count=5) as found:
            data = [b"%d" % number for number in range(7)]
            await found.append(data[0])
            for node in (4, 5):
                await found.stop(node)
            await found.append(data[1])
            await found.start(4, 5)
            for node in found.addresses:
                await found.stop(node)
                await found.append(data[node + 1])
                await found.start(node)
            await found.all_have(data)

    run(test)


# Promise: quorum.md#stop-restart-and-update-nodes
def test_the_secret_is_changed_node_by_node(tmp_path: Path) -> None:
    """Nodes with different secrets refuse each other, and a majority has the same one again soon."""

    async def test() -> None:
        async with cluster(tmp_path) as found:
            await found.append(b"old")
            for node in found.addresses:
                await found.stop(node)
                found.nodes[node] = found.node(node, secret="another-secret-of-nodes")
                await found.nodes[node].start()
                await found.append(b"%d" % node)
            await found.all_have([b"old", b"1", b"2", b"3"])

    run(test)


# Promise: raft.md#between-nodes
def test_two_clusters_under_one_id_do_not_connect(tmp_path: Path) -> None:
    """Each node was formatted as the first of a cluster."""

    async def test() -> None:
        found = Cluster(tmp_path, count=2)
        for node in (1, 2):
            shutil.rmtree(found.path(node))
            found.format(ReplicaKey(node, f"d{node}"), (ReplicaKey(node, f"d{node}"),))
        await found.start()
        expected = "another quorum has the same cluster id: its voters are 1@d1, and here they are 2@d2"
        await until(lambda: (s := found.nodes[2].status()) and expected in (s.problems[1] or ""), expected)
        for node in (1, 2):
            await found.stop(node)

    run(test)


# Promise: quorum.md#place-the-nodes, raft.md#the-data-directory
def test_a_second_process_with_a_copied_directory_is_refused(tmp_path: Path) -> None:
    """Two processes with one identity could vote twice."""

    async def test() -> None:
        async with cluster(tmp_path) as found:
            await found.append(b"x")
            shutil.copytree(found.path(3), tmp_path / "copy")
            copy = found.node(3, directory=str(tmp_path / "copy"), listen="127.0.0.1:0")
            await copy.start()
            expected = "copy of the directory 3@d3"
            await until(lambda: all(expected in (p or "") for p in copy._links.problems().values()), expected)
            await copy.stop()

    run(test)


# Promise: quorum.md#drills, raft.md#faults
def test_a_full_disk_costs_the_lead_and_no_more(tmp_path: Path, mount: Callable[[str], Path]) -> None:
    """The node continues as a follower when it has space again."""

    async def test() -> None:
        async with cluster(tmp_path) as found:
            full = 1
            await found.stop(full)
            small = mount("size=300k")
            shutil.copytree(found.path(full), small / "d")
            shutil.rmtree(found.path(full))
            found.path(full).symlink_to(small / "d")
            await found.start(full)
            (small / "filler").write_bytes(bytes(150_000))
            await until_full(found, full)
            with pytest.raises(NoSpace, match="is full: free some space"):
                await found.nodes[full].append(b"x")
            await append_elsewhere(found, full, b"on the others")
            (small / "filler").unlink()
            await until(lambda: b"on the others" in found.states[full].data, "the node has caught up")

    run(test)


async def until_full(found: Cluster, node: int) -> None:
    """By an entry that does not fit, as the leader."""

    def is_full() -> bool:
        return (status := found.nodes[node].status()) is not None and status.is_full

    while not is_full():
        await found.hand_over_to(node)
        with suppress(NotLeaderOrFollower, NoSpace):
            await found.nodes[node].append(bytes(200_000))


async def append_elsewhere(found: Cluster, full: int, data: bytes) -> None:
    while True:
        with suppress(NotLeaderOrFollower, NoSpace):
            if (leader := await found.leader()) != full:
                await found.nodes[leader].append(data)
                return
        await asyncio.sleep(0.01)


# Promise: raft.md#faults
def test_an_error_of_the_disk_ends_the_node(tmp_path: Path) -> None:
    """`run` raises it with the file, and pending appends get an error that says that they may have been applied."""

    async def test() -> None:
        async with cluster(tmp_path, count=1) as found:
            await found.append(b"a")
            node = found.nodes[1]
            for name in node._directory.disk.files.names():
                if name.endswith(".log"):
                    node._directory.disk.files.close()
                    (found.path(1) / name).unlink()
                    (found.path(1) / name).mkdir()
            with pytest.raises(NotLeaderOrFollower, match="the node has ended") as failed:
                await node.append(b"b")
            assert failed.value.maybe_applied
            with pytest.raises(StorageError, match=r"1/0000000001.log failed: Is a directory"):
                await node.run()

    run(test)


# Promise: quorum.md#when-a-majority-is-lost, raft.md#faults
def test_an_append_without_a_majority_ends_unknown(tmp_path: Path) -> None:
    """The leader gives up.  When the others are back, all have the entry or none."""

    async def test() -> None:
        async with cluster(tmp_path) as found:
            leader = await found.leader()
            await found.append(b"a")
            others = [node for node in found.nodes if node != leader]
            for node in others:
                await found.stop(node)
            with pytest.raises(NotLeaderOrFollower, match="does not lead any more; append it again") as failed:
                await found.nodes[leader].append(b"b")
            assert failed.value.maybe_applied
            await found.start(*others)
            await found.append(b"c")
            await until(
                lambda: b"c" in found.states[leader].data and len({tuple(s.data) for s in found.states.values()}) == 1,
                "all nodes have the same entries",
            )
            assert [data for data in found.states[leader].data if data != b"b"] == [b"a", b"c"]

    run(test)


# Promise: raft.md#faults
def test_an_error_of_the_application_ends_the_node(tmp_path: Path) -> None:
    """Its state would differ from those of the others."""

    async def test() -> None:
        async with cluster(tmp_path, count=1) as found:
            await found.append(b"a")
            found.states[1].data = None  # type: ignore[assignment]
            with pytest.raises(NotLeaderOrFollower, match="the node has ended"):
                await found.nodes[1].append(b"b")
            with pytest.raises(TypeError):
                await found.nodes[1].run()
            with pytest.raises(NotLeaderOrFollower):  # of a read that was confirmed just before
                await asyncio.wait_for(found.nodes[1]._applier.reached(1000), 60)

    run(test)


# Promise: raft.md#between-nodes
def test_nodes_talk_over_tls(tmp_path: Path) -> None:
    """The certificate of each is verified by the others."""
    certificate, key = make_certificate(tmp_path)

    async def test() -> None:
        tls = {"certificate": certificate, "key": key, "ca": certificate}
        async with cluster(tmp_path / "data", **tls) as nodes:
            await nodes.append(b"x")
            await nodes.all_have([b"x"])

    run(test)


# Promise: quorum.md#stop-restart-and-update-nodes
def test_certificates_are_renewed_while_nodes_run(tmp_path: Path) -> None:
    """A node that starts with the new ones alone is verified by the others, and verifies them."""
    old, new = ((tmp_path / name) for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir()
    certificate, key = make_certificate(old)
    new_certificate, new_key = make_certificate(new)
    both = tmp_path / "both.pem"
    both.write_text(Path(certificate).read_text() + Path(new_certificate).read_text())

    async def test() -> None:
        async with cluster(tmp_path / "data", certificate=certificate, key=key, ca=certificate) as found:
            await found.append(b"a")
            for node in found.nodes.values():
                node.use_tls(*node_contexts(new_certificate, new_key, str(both)))
            await found.stop(1)
            found.nodes[1] = found.node(1, certificate=new_certificate, key=new_key, ca=new_certificate)
            await found.nodes[1].start()
            await found.append(b"b")
            await found.all_have([b"a", b"b"])

    run(test)


# Promise: raft.md#the-data-directory
def test_damage_stops_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, count=1) as found:
            await found.append(b"a")
            await found.append(b"b")
            await found.stop(1)
            log = found.path(1) / "0000000001.log"
            log.write_bytes(log.read_bytes().replace(b"PQU1", b"PQU2", 1))
            damaged = found.node(1)
            with pytest.raises(CorruptObject, match="damaged at position 0"):
                await damaged.start()
            assert not damaged._writer.thread.is_alive and not damaged._readers.is_alive

    run(test)


def test_a_port_that_is_used_leaves_the_directory_free(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path / "other", count=1) as other:
            found = Cluster(tmp_path, count=1)
            with pytest.raises(InvalidRequest, match="cannot listen on"):
                await found.node(1, listen=other.addresses[1]).start()
            await found.start()
            await found.append(b"x")
            await found.stop(1)

    run(test)


def test_the_directory_of_a_disk_that_hangs_stays_locked(tmp_path: Path) -> None:
    """The write may still reach the disk after the node has stopped: another process must not use the directory."""

    async def test() -> None:
        async with cluster(tmp_path, count=1) as found:
            await found.append(b"a")
            node = found.nodes.pop(1)
            node._directory.disk.files.close()
            log = found.path(1) / "0000000001.log"
            log.unlink()
            os.mkfifo(log)
            hangs = asyncio.create_task(node.append(b"b"))
            await until(lambda: node._writer.writing_ms, "the node writes")
            await node.stop(close_s=0.05)
            with pytest.raises(InvalidRequest, match="is used by process"):
                await found.node(1).start()
            with pytest.raises(NotLeaderOrFollower, match="the node has ended"):
                await hangs

            def has_ended() -> bool:
                os.close(os.open(log, os.O_RDONLY | os.O_NONBLOCK))  # the write fails, if it has begun
                return not node._writer.thread.is_alive

            await until(has_ended, "the write has failed")
            node._directory.close()

    run(test)


def test_a_large_entry_on_a_slow_network_keeps_its_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It needs about 4 s, longer than a check of an idle connection may take."""

    async def test() -> None:
        found = Cluster(tmp_path, count=2)
        direct = dict(found.addresses)
        slow = [await slow_network(found, node) for node in direct]
        for node, address in direct.items():
            found.nodes[node] = found.node(node, listen=address)
            await found.nodes[node].start()
        await found.append(b"x")
        await until(
            lambda: not any(any(node._links.problems().values()) for node in found.nodes.values()), "both are connected"
        )
        caplog.clear()
        await found.append(bytes(3 << 20))
        assert "the connection was closed" not in caplog.text
        for node in direct:
            await found.stop(node)
        for server in slow:
            server.close()

    run(test)


async def slow_network(found: Cluster, node: int) -> asyncio.Server:
    """Between the others and a node: 800 kB/s."""
    host, port = found.addresses[node].split(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError), closing(writer):
            while data := await reader.read(1 << 15):
                writer.write(data)
                await asyncio.sleep(len(data) / 800_000)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, back), carry(there, writer))

    server = await asyncio.start_server(accept, host, 0, limit=1 << 15)
    found.addresses[node] = f"{host}:{server.sockets[0].getsockname()[1]}"
    return server


def test_an_address_that_cannot_be_used_is_in_the_status(tmp_path: Path) -> None:
    """Whatever the error is, the link reports it, and tries again."""

    async def test() -> None:
        async with cluster(tmp_path, count=1, peers={2: f"{'a' * 70}.x:9551"}) as found:
            await found.append(b"a")
            node = found.nodes[1]
            expected = "UnicodeError: "
            await until(lambda: (s := node.status()) and expected in (s.problems[2] or ""), expected)
            assert not node._links._links[2].close().done()

    run(test)


# Promise: raft.md#between-nodes
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"secret": "short"}, "the secret of the nodes has 5 characters: expected 16 at least"),
        ({"listen": "0.0.0.0:9551"}, "can be reached from other machines"),
        ({"listen": "0.0.0.0:9551", "insecure": True}, "is not an address for other nodes"),
        ({"peers": {1: "localhost:1"}}, "peers: 1 is this node"),
        ({"peers": {2**31: "localhost:1"}}, "node id: 2147483648 is not between 0 and 2147483647"),
        ({"certificate": "x"}, "certificate, key and ca go together"),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    values = {
        "directory": str(tmp_path),
        "cluster_id": "c",
        "node_id": 1,
        "listen": "localhost:1",
        "peers": {},
        "secret": SECRET,
    }
    with pytest.raises(InvalidRequest, match=message):
        Node(NodeConfig(**{**values, **config}), Entries())


def test_the_secret_is_not_shown() -> None:
    config = NodeConfig(directory="d", cluster_id="c", node_id=1, listen="localhost:1", peers={}, secret=SECRET)
    assert SECRET not in repr(config)
