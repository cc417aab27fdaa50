"""When the list says that an erasure is done, no node of a quorum has statistics of the records on its disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import spark_log
from spark_log.client.admin.erasure_status import ErasureListing
from spark_log.maintenance.maintain import maintain_once
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.node.admin import QuorumAdmin
from spark_log.quorum.node.directory import format_directory
from spark_log.quorum.node.inspection import damage_of
from spark_log.quorum.node.vote_and_identity import Meta
from spark_log.serve.serve_quorum import RunningNode, start_quorum
from spark_log.store.local import TEMPORARY
from spark_log.store.object_names import CHECKPOINTS, LOG
from spark_log.store.open import open_store
from tests.hidden_bytes import files_with
from tests.maintenance.test_erased_bytes import KEY, SECRETS, fill, rows
from tests.processes import free_port
from tests.quorum.node.quorum_nodes import LIMIT_S, TIMES, one_node, run, three_nodes
from tests.server.quorum.founding import Nodes, address, adopt, cluster_id

ALL = [text[:14].decode() for text in SECRETS]


def found_in(folder: Path) -> list[str]:
    return [text for text in ALL if files_with(folder, text.encode())]


async def until_found(folder: Path, texts: list[str]) -> None:
    """Wait until a folder has just these.  In a thread: the nodes' event loop is that of the test."""
    ends_s = asyncio.get_running_loop().time() + 2 * LIMIT_S
    while (found := await asyncio.to_thread(found_in, folder)) != texts:
        assert asyncio.get_running_loop().time() < ends_s, found
        await asyncio.sleep(0.5)


class Quorum:
    """Three nodes on real disks, and a log with records of a person."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._configs = folder, dict(enumerate(three_nodes(folder), 1))
        self.running: dict[int, RunningNode] = {}

    def add_spare(self) -> None:
        """Node 4, which does not vote, and introduces itself to the others."""
        key, peers = ReplicaKey(4, "directory-4"), {}
        for node, config in self._configs.items():
            assert config.quorum is not None
            peers[node] = config.quorum.listen
        format_directory(
            str(self.directory(4)), Meta(cluster_id="a-cluster", node_id=4, directory_id=key.directory), ()
        )
        self._configs[4] = one_node(
            self.folder,
            directory=str(self.directory(4)),
            node_id=4,
            listen=f"127.0.0.1:{free_port()}",
            peers=peers,
            times=TIMES,
        )

    def replace_disk(self, node: int) -> None:
        """The node has another, empty directory from its next start on.  Its former one is kept."""
        directory = self.folder / f"node-{node}-new"
        format_directory(str(directory), Meta(cluster_id="a-cluster", node_id=node, directory_id=f"other-{node}"), ())
        quorum = self._configs[node].quorum
        assert quorum is not None
        self._configs[node] = replace(self._configs[node], quorum=replace(quorum, directory=str(directory)))

    def make_spare_a_peer(self) -> None:
        """The spare is a peer of all others from their next start on."""
        spare = self._configs[4].quorum
        assert spare is not None
        for node, config in self._configs.items():
            if node != 4 and (own := config.quorum) is not None:
                peers = {**own.peers, 4: spare.listen}
                self._configs[node] = replace(config, quorum=replace(own, peers=peers))

    def directory(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    async def start(self, *nodes: int) -> None:
        for node in nodes or (1, 2, 3):
            self.running[node] = await start_quorum(self._configs[node])
        while not any(one.coordinator.leading for one in self.running.values()):
            await asyncio.sleep(0.01)

    async def stop(self, *nodes: int) -> None:
        for node in nodes or tuple(self.running):
            await self.running.pop(node).stop()

    async def spare_has_all(self) -> None:
        """Wait until it has the statistics that the leader has."""
        there = found_in(self.directory(self.leader))
        assert there
        await until_found(self.directory(4), there)

    @property
    def leader(self) -> int:
        return next(node for node, one in self.running.items() if one.coordinator.leading)

    @property
    def url(self) -> str:
        return address([*self.running.values()])

    @property
    def access(self) -> tuple[list[str], str]:
        """The addresses of the nodes, and their secret."""
        found = [quorum for config in self._configs.values() if (quorum := config.quorum) is not None]
        return [one.listen for one in found], found[0].secret

    def maintain(self) -> list[ErasureListing]:
        return maintain(self.running[self.leader], self.url)

    def erase(self) -> None:
        with spark_log.connect(self.url) as log:
            log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
            assert log.admin.erase_records("people", [KEY]).records == 5

    async def maintained_until_unreached(self, rounds: int = 30) -> ErasureListing:
        """Maintenance, until the erasure waits only for what somebody has to do."""
        for _ in range(rounds):
            (listing,) = await asyncio.to_thread(self.maintain)
            if listing.waits_for == listing.unreached != ():
                return listing
            await asyncio.sleep(0.5)
        raise AssertionError(listing)

    async def maintained_until_done(self, rounds: int = 30) -> None:
        for _ in range(rounds):
            left = await asyncio.to_thread(self.maintain)
            if not left:
                return
            await asyncio.sleep(0.5)
        raise AssertionError(left)


def maintain(leader: RunningNode, url: str) -> list[ErasureListing]:
    """A change, a copy of the metadata and a round of maintenance of the leader; the erasures that are not done."""
    with spark_log.connect(url) as log:
        log.append("more", [{"key": b"other", "value": b"more"}])
        leader.coordinator.root_snapshots.write()
        with leader.coordinator.open_log() as maintenance:
            maintain_once(maintenance)
        return log.admin.list_erasures()


@asynccontextmanager
async def filled(folder: Path, *, spare: bool = False) -> AsyncIterator[Quorum]:
    """Every node, and the copy of the metadata, has statistics of the person's records."""
    quorum = Quorum(folder)
    if spare:
        quorum.add_spare()
    await quorum.start()
    if spare:
        await quorum.start(4)

    def put_records() -> None:
        with spark_log.connect(quorum.url) as log:
            fill(log, typed=True, compression="zstd")
            log.append("people", rows(True, 0))  # in a small slice, whose statistics are in the state

    try:
        await asyncio.to_thread(put_records)
        await asyncio.to_thread(quorum.running[quorum.leader].coordinator.root_snapshots.write)
        yield quorum
    finally:
        await quorum.stop()


# Promise: quorum.md#when-records-are-erased
def test_a_node_that_is_down_keeps_an_erasure_open_and_finishes_it_when_it_is_back(tmp_path: Path) -> None:
    """No file of the others, of the copy and of the records has the person's bytes by then, and none of that node when
    it is done.  The nodes start from what is left."""

    async def scenario() -> None:
        async with filled(tmp_path) as quorum:
            assert all(found_in(quorum.directory(node)) for node in quorum.running)
            assert found_in(tmp_path / "records" / "meta" / "quorum")
            down = next(node for node in quorum.running if node != quorum.leader)
            await quorum.stop(down)
            await asyncio.to_thread(quorum.erase)
            listing = await quorum.maintained_until_unreached()
            (sentence,) = listing.unreached
            assert sentence.startswith(f"node {down}@directory-{down} of the quorum may have statistics")
            assert f"`pylog quorum remove-voter {down}@directory-{down}`" in sentence
            assert [*listing.problems(0)] == [sentence]
            for node in quorum.running:
                assert found_in(quorum.directory(node)) == []
            assert found_in(tmp_path / "records") == [] and found_in(quorum.directory(down))
            await quorum.start(down)
            await quorum.maintained_until_done()
            assert found_in(tmp_path) == []
            await quorum.stop()
            for node in (1, 2, 3):
                files = [
                    str(path) for path in quorum.directory(node).iterdir() if path.suffix in (".log", ".checkpoint")
                ]
                assert [*damage_of(files)] == []
            await quorum.start()
            assert await asyncio.to_thread(records_left, quorum.url) == 60
            assert found_in(tmp_path) == []

    run(scenario)


# Promise: quorum.md#when-records-are-erased
def test_a_node_that_does_not_vote_and_is_down_keeps_an_erasure_open(tmp_path: Path) -> None:
    """It has connected to the nodes before; none of those that lead later has seen it fetch.  A leader that began
    since knows it as one of its peers."""

    async def scenario() -> None:
        async with filled(tmp_path, spare=True) as quorum:
            await quorum.spare_has_all()
            await quorum.stop(4)
            quorum.make_spare_a_peer()
            await quorum.stop(quorum.leader)
            await quorum.start(*{1, 2, 3} - set(quorum.running))
            await asyncio.to_thread(quorum.erase)
            listing = await quorum.maintained_until_unreached()
            assert [one.partition(", which")[0] for one in listing.unreached] == ["node 4"]
            await quorum.stop(1, 2, 3)
            await quorum.start()
            listing = await quorum.maintained_until_unreached()
            assert "node 4, which does not vote" in listing.unreached[0] and found_in(quorum.directory(4))
            await quorum.start(4)
            await quorum.maintained_until_done()
            assert found_in(tmp_path) == []

    run(scenario)


# Promise: quorum.md#when-records-are-erased
def test_what_another_directory_of_a_node_has_deleted_is_no_evidence_for_the_one_before(tmp_path: Path) -> None:
    """A node comes back with another disk.  The former one keeps the erasure open, also as no voter."""

    async def scenario() -> None:
        async with filled(tmp_path) as quorum:
            node = next(one for one in quorum.running if one != quorum.leader)
            await quorum.stop(node)
            quorum.replace_disk(node)
            await quorum.start(node)
            await asyncio.to_thread(quorum.erase)
            listing = await quorum.maintained_until_unreached()
            (sentence,) = listing.unreached
            assert sentence.startswith(f"node {node}@directory-{node} of the quorum may have statistics")
            assert found_in(quorum.directory(node)) and found_in(tmp_path / f"node-{node}-new") == []
            admin = QuorumAdmin(*quorum.access)
            await asyncio.to_thread(admin.remove_voter, ReplicaKey(node, f"directory-{node}"), LIMIT_S)
            listing = await quorum.maintained_until_unreached()
            (sentence,) = listing.unreached
            assert "if it was removed, destroy its disk" in sentence

    run(scenario)


# Promise: quorum.md#when-records-are-erased
def test_a_node_that_no_leader_knows_deletes_what_it_has_when_it_starts(tmp_path: Path) -> None:
    """The erasure is done without it: the nodes were restarted, and it is none of their peers."""

    async def scenario() -> None:
        async with filled(tmp_path, spare=True) as quorum:
            await quorum.spare_has_all()
            await quorum.stop()
            await quorum.start(1, 2, 3)
            await asyncio.to_thread(quorum.erase)
            await quorum.maintained_until_done()
            assert found_in(quorum.directory(4)) == found_in(tmp_path) != []
            await quorum.start(4)
            await until_found(quorum.directory(4), [])
            assert found_in(tmp_path) == []

    run(scenario)


def test_a_copy_whose_writer_died_keeps_an_erasure_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filled(tmp_path) as quorum:
            left = tmp_path / "records" / "meta" / "quorum" / f"{TEMPORARY}1"
            left.write_bytes(b"statistics: aaa-secret-person")
            await asyncio.to_thread(quorum.erase)
            for _ in range(8):
                (listing,) = await asyncio.to_thread(quorum.maintain)
                await asyncio.sleep(0.5)
            assert [one for one in listing.waits_for if "the metadata" in one] and left.exists()
            os.utime(left, (0, 0))
            await quorum.maintained_until_done()
            assert found_in(tmp_path) == []

    run(scenario)


# Promise: quorum.md#when-records-are-erased
def test_the_former_metadata_of_a_log_that_moved_into_a_quorum_keeps_an_erasure_open(tmp_path: Path) -> None:
    """Processes may have the log open there, so somebody has to delete it."""
    with spark_log.connect(tmp_path / "log", create=True, durability="os") as log:
        fill(log, typed=True, compression="zstd")
    found = open_store(str(tmp_path / "log"))
    nodes = Nodes(tmp_path, cluster_id(found), 1)
    adopt(found, nodes)

    def erase(url: str) -> None:
        with spark_log.connect(url) as log:
            log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
            assert log.admin.erase_records("people", [KEY]).records == 4

    async def scenario() -> None:
        async with nodes.running() as (node,):
            url = address([node])
            await asyncio.to_thread(erase, url)
            for _ in range(30):
                (listing,) = await asyncio.to_thread(maintain, node, url)
                if listing.waits_for == listing.unreached != ():
                    break
                await asyncio.sleep(0.5)
            assert "delete meta/log/ and meta/ckpt/ there" in listing.unreached[0]
            found.delete([*found.list(CHECKPOINTS), *found.list(LOG)])
            while await asyncio.to_thread(maintain, node, url):
                await asyncio.sleep(0.5)
            assert found_in(tmp_path) == []

    run(scenario)


def records_left(url: str) -> int:
    with spark_log.connect(url) as log:
        return sum(batch.num_rows for batch in log.scan("people"))
