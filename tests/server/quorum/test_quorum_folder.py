"""The folder of a quorum's records: `meta/format` is lost, other logs are begun there, its disk is away."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import InvalidRequest, LogMoved, NotCoordinator, UnsupportedVersion, WrongRoot
from spark_log.journal.storage.log_format import parse_format
from spark_log.metadata.state import State
from spark_log.quorum.node.health import quorum_findings
from spark_log.serve.serve_config import ServeConfig
from spark_log.serve.serve_quorum import RunningNode, start_quorum
from spark_log.server.quorum.root import Claimant, QuorumRoot
from spark_log.server.quorum.root_snapshots import put_snapshot
from spark_log.server.quorum.state import Content
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import CHECKPOINTS, DATA, FORMAT_KEY, LOG, SNAPSHOTS
from tests.quorum.node.quorum_nodes import one_node, until
from tests.server.quorum.founding import Nodes, adopt, append_and_read, cluster_id, restore, store

__all__ = ["store"]
OBJECT = f"{DATA}{3:016x}/0123456789abcdef.seg"
NEW = State()


@asynccontextmanager
async def leading(config: ServeConfig) -> AsyncIterator[RunningNode]:
    node = await start_quorum(config)
    try:
        await until(lambda: node.coordinator.leading, "the node leads")
        yield node
    finally:
        await node.stop()


def url_of(node: RunningNode) -> str:
    return f"pylog://{node.coordinator.address}"


def leader(state: State = NEW, founding: str = "") -> Claimant:
    return Claimant(state=state, founding=founding, address="127.0.0.1:9550")


def log_health(node: RunningNode) -> dict[str, bool]:
    """The result of `pylog cluster health --conf`."""
    status = node.coordinator.node.status()
    assert status is not None
    return {check: healthy for check, healthy, _ in quorum_findings({"a": status})}


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_a_leader_writes_a_lost_file_again(tmp_path: Path) -> None:
    """While it leads, and when it begins to.  Meanwhile no other log begins there."""
    records, config = LocalStore(str(tmp_path / "records"), "os"), one_node(tmp_path)

    async def scenario() -> None:
        async with leading(config) as node:
            await asyncio.to_thread(append_and_read, url_of(node), "1")
            before = parse_format(records.get(FORMAT_KEY), records.url)
            records.delete([FORMAT_KEY])
            with pytest.raises(UnsupportedVersion, match="whose leader writes the file again"):
                await asyncio.to_thread(spark_log.connect, tmp_path / "records")
            await asyncio.to_thread(node.coordinator.root_snapshots.look)
            await until(lambda: records.size(FORMAT_KEY), "the file is written again")
            after = parse_format(records.get(FORMAT_KEY), records.url)
            assert (after.cluster_id, after.quorum, after.founding) == (before.cluster_id, url_of(node), "")
            assert await asyncio.to_thread(append_and_read, url_of(node), "2") == ["1", "2"]
        records.delete([FORMAT_KEY])
        async with leading(config) as node:
            assert parse_format(records.get(FORMAT_KEY), records.url).cluster_id == before.cluster_id
            assert await asyncio.to_thread(append_and_read, url_of(node), "3") == ["1", "2", "3"]

    asyncio.run(scenario())


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_a_quorum_that_has_taken_a_log_over_writes_a_lost_file_again(store: ObjectStore, tmp_path: Path) -> None:
    """With its own id; the files of the closed log are still there."""
    adopt(store, nodes := Nodes(tmp_path, cluster_id(store), 1))

    async def scenario() -> None:
        async with nodes.running() as (node,):
            before = parse_format(store.get(FORMAT_KEY), store.url)
            assert before.founding
        store.delete([FORMAT_KEY])
        async with nodes.running() as (node,):
            after = parse_format(store.get(FORMAT_KEY), store.url)
            assert (after.founding, after.quorum) == (before.founding, before.quorum)
            store.delete([FORMAT_KEY])
            await asyncio.to_thread(node.coordinator.root_snapshots.write)
            assert parse_format(store.get(FORMAT_KEY), store.url).founding == before.founding
            assert await asyncio.to_thread(append_and_read, url_of(node), "3") == [*map(str, range(4))]

    asyncio.run(scenario())


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_a_quorum_that_was_replaced_does_not_write_a_lost_file(store: ObjectStore, tmp_path: Path) -> None:
    """The copy of the quorum that was restored shows that, from the restoration on, which needs no such file either."""
    lost, new = (Nodes(tmp_path, cluster_id(store), 1, name) for name in "ab")
    adopt(store, lost)

    async def scenario() -> None:
        async with lost.running() as (node,):
            await asyncio.to_thread(node.coordinator.root_snapshots.write)
            state, founding = node.coordinator.state, node.coordinator.founding
        store.delete([FORMAT_KEY])
        assert restore(store, new).missing == 0
        again = Nodes(tmp_path, cluster_id_of_nodes, 1, "c")
        assert restore(store, again).missing == 0
        store.delete([FORMAT_KEY])
        for use in (lambda root, one: root.keep(one), lambda root, one: root.claim(one, "n")):
            with pytest.raises(LogMoved, match="a quorum that has replaced this one"):
                use(QuorumRoot(store, cluster_id_of_nodes), leader(state, founding))
        async with again.running() as (node,):
            assert await asyncio.to_thread(append_and_read, url_of(node), "3") == [*map(str, range(4))]

    cluster_id_of_nodes = cluster_id(store)
    asyncio.run(scenario())


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_another_log_in_the_folder_is_named_and_is_no_other_quorum(tmp_path: Path) -> None:
    """The node does not lead, its health says why, and it leads again when the other log is gone."""
    records, config = LocalStore(str(tmp_path / "records"), "os"), one_node(tmp_path)

    async def scenario() -> None:
        async with leading(config) as node:
            await asyncio.to_thread(append_and_read, url_of(node), "1")
            assert "log" not in log_health(node)
            with spark_log.connect(tmp_path / "other") as other:
                other.append("t", [{"value": "x"}])
            shutil.copytree(tmp_path / "other" / "meta", tmp_path / "records" / "meta", dirs_exist_ok=True)
            assert not await asyncio.to_thread(node.coordinator._is_still_ours)
            await until(lambda: not node.coordinator.leading, "it ends to lead")
            assert log_health(node)["log"] is False
            assert "begun by mistake in the folder of this quorum" in node.coordinator.health().reason
            with pytest.raises(NotCoordinator, match="begun by mistake"):
                raise node.coordinator.not_leading()
            shutil.rmtree(tmp_path / "records" / "meta")
            await until(lambda: node.coordinator.leading, "it leads again")
            assert await asyncio.to_thread(append_and_read, url_of(node), "2") == ["1", "2"]
            assert records.size(FORMAT_KEY) and "log" not in log_health(node)

    asyncio.run(scenario())


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_a_folder_that_is_set_back_to_before_the_adoption(store: ObjectStore, tmp_path: Path) -> None:
    """The advice of the nodes loses nothing that only they have: of a leader, and of a node that starts."""
    shutil.copytree(tmp_path / "log" / "meta", tmp_path / "copy")
    adopt(store, nodes := Nodes(tmp_path, cluster_id(store), 1))

    def set_back() -> None:
        shutil.rmtree(tmp_path / "log" / "meta")
        shutil.copytree(tmp_path / "copy", tmp_path / "log" / "meta")

    def follow_the_advice(reason: str) -> None:
        assert "delete meta/format, meta/log/ and meta/ckpt/ there: then a node leads again" in reason
        assert "Do not format the directories of the nodes" in reason
        store.delete([FORMAT_KEY, *store.list(LOG), *store.list(CHECKPOINTS)])

    async def scenario() -> None:
        async with nodes.running() as (node,):
            await asyncio.to_thread(append_and_read, url_of(node), "3")
            set_back()
            assert not await asyncio.to_thread(node.coordinator._is_still_ours)
            follow_the_advice(node.coordinator.health().reason)
            await until(lambda: node.coordinator.leading, "it leads again")
            assert await asyncio.to_thread(append_and_read, url_of(node), "4") == [*map(str, range(5))]
        set_back()
        with pytest.raises(InvalidRequest) as refused:
            await start_quorum(nodes.config(1))
        follow_the_advice(str(refused.value))
        async with nodes.running() as (node,):
            assert await asyncio.to_thread(append_and_read, url_of(node), "5") == [*map(str, range(6))]

    asyncio.run(scenario())


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_a_leader_writes_nothing_where_its_disk_is_away(tmp_path: Path) -> None:
    """An empty folder may be a mount point; with a file that would make it the log's own root, records would be put."""
    config = one_node(tmp_path)

    async def scenario() -> None:
        async with leading(config) as node:
            await asyncio.to_thread(append_and_read, url_of(node), "1")
            (tmp_path / "records").rename(tmp_path / "disk")
            (tmp_path / "records").mkdir()
            with pytest.raises(WrongRoot, match=r"has no meta/format .* is its disk mounted\?"):
                await asyncio.to_thread(node.coordinator.root_snapshots.write)
            assert list((tmp_path / "records").iterdir()) == [] and node.coordinator.leading
            (tmp_path / "records").rmdir()
            (tmp_path / "disk").rename(tmp_path / "records")
            assert await asyncio.to_thread(append_and_read, url_of(node), "2") == ["1", "2"]

    asyncio.run(scenario())


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_a_node_does_not_begin_to_lead_in_an_empty_folder(tmp_path: Path) -> None:
    """Its disk may be away.  For an empty disk in place of a lost one, the error has the file."""
    config, records = one_node(tmp_path), tmp_path / "records"

    async def scenario() -> None:
        async with leading(config) as node:
            await asyncio.to_thread(append_and_read, url_of(node), "1")
        records.rename(tmp_path / "disk")
        records.mkdir()
        node = await start_quorum(config)
        try:
            await until(lambda: "is its disk mounted?" in node.coordinator.health().reason, "the node says why")
            assert list(records.iterdir()) == [] and not node.coordinator.leading
            said = node.coordinator.health().reason
            (records / "meta").mkdir()
            (records / "meta" / "format").write_text(said[said.index("{") : said.rindex("}") + 1])
            await until(lambda: node.coordinator.leading, "it leads with an empty disk")
            shutil.rmtree(records)
            (tmp_path / "disk").rename(records)
            assert await asyncio.to_thread(append_and_read, url_of(node), "2") == ["1", "2"]
        finally:
            await node.stop()

    asyncio.run(scenario())


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_a_quorum_begins_in_no_folder_of_another_log() -> None:
    """Objects, copies of metadata, a log on storage and a broker's mark are each enough; a README is not."""
    for name, said in (
        (OBJECT, "has records"),
        (f"{SNAPSHOTS}{3:016}-{4:020}-u.checkpoint", "has records"),
        ("meta/broker.json", "is the root of a broker"),
    ):
        folder = MemoryStore(f"begins-{len(said)}-{len(name)}")
        folder.put(name, [b"{}"])
        with pytest.raises((InvalidRequest, UnsupportedVersion), match=said):
            QuorumRoot(folder, "c").claim(leader(), "n")
        assert folder.size(FORMAT_KEY) is None
    folder = MemoryStore("begins")
    folder.put("README", [b"x"])
    QuorumRoot(folder, "c").claim(leader(), "n")
    assert parse_format(folder.get(FORMAT_KEY), "").quorum


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
def test_a_quorum_takes_no_records_that_it_does_not_know(store: ObjectStore, tmp_path: Path) -> None:
    """Its nodes got the folder of another log, which has lost its metadata; a log on storage has lost the file only."""
    state = spark_log.connect(tmp_path / "log").journal.state
    folder = MemoryStore("unknown")
    folder.put(OBJECT, [b"x"])
    with pytest.raises(InvalidRequest, match="which this quorum does not know"):
        QuorumRoot(folder, "c").claim(leader(state), "n")
    put_snapshot(folder, Content(state), "u")
    QuorumRoot(folder, "c").claim(leader(state), "n")
    store.delete([FORMAT_KEY])
    for use in (QuorumRoot(store, "c").check, lambda: QuorumRoot(store, "c").claim(leader(state), "n")):
        with pytest.raises((InvalidRequest, UnsupportedVersion), match="pylog (quorum adopt|repair)"):
            use()
    assert store.size(FORMAT_KEY) is None
