"""When the list says that an erasure is done, no node of a quorum has statistics of the records on its disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import spark_log
from spark_log.client.administering.erasure_status import ErasureListing
from spark_log.journal.object_names import CHECKPOINTS, LOG
from spark_log.node.maintain import maintain_once
from spark_log.node.serve_quorum import RunningNode, start_quorum
from spark_log.quorum_node.inspection import damage_of
from spark_log.store.open import open_store
from tests.hidden_bytes import files_with
from tests.node.founding import Nodes, address, adopt, cluster_id
from tests.node.quorum_nodes import run, three_nodes
from tests.node.test_erased_bytes import KEY, SECRETS, fill, rows

ALL = [text[:14].decode() for text in SECRETS]


def found_in(folder: Path) -> list[str]:
    return [text for text in ALL if files_with(folder, text.encode())]


class Quorum:
    """Three nodes on real disks, and a log with records of a person."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._configs = folder, dict(enumerate(three_nodes(folder), 1))
        self.running: dict[int, RunningNode] = {}

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

    @property
    def leader(self) -> int:
        return next(node for node, one in self.running.items() if one.coordinator.leading)

    @property
    def url(self) -> str:
        return address([*self.running.values()])

    def maintain(self) -> list[ErasureListing]:
        return maintain(self.running[self.leader], self.url)

    def erase(self) -> None:
        with spark_log.connect(self.url) as log:
            log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})
            assert log.admin.erase_records("people", [KEY]).records == 5

    async def maintained_until_done(self, rounds: int = 30) -> None:
        for _ in range(rounds):
            left = await asyncio.to_thread(self.maintain)
            if not left:
                return
            await asyncio.sleep(0.5)
        raise AssertionError(left)


def maintain(leader: RunningNode, url: str) -> list[ErasureListing]:
    """A change, a copy of the metadata and a round of upkeep of the leader; the erasures that are not done."""
    with spark_log.connect(url) as log:
        log.append("more", [{"key": b"other", "value": b"more"}])
        leader.coordinator.root_snapshots.write()
        with leader.coordinator.open_log() as upkeep:
            maintain_once(upkeep)
        return log.admin.list_erasures()


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[Quorum]:
    """Every node, and the copy of the metadata, has statistics of the person's records."""
    quorum = Quorum(folder)
    await quorum.start()

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
            for _ in range(30):
                (listing,) = await asyncio.to_thread(quorum.maintain)
                if listing.waits_for == listing.unreached != ():
                    break
                await asyncio.sleep(0.5)
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
