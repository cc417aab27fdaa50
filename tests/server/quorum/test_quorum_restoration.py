"""A quorum continues a log that has lost its nodes."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import (
    CorruptObject,
    InconsistentClusterId,
    InvalidRequest,
    LogMoved,
    NoLog,
)
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_format import parse_format
from spark_log.metadata.restores import common_end
from spark_log.metadata.state import State
from spark_log.quorum.node.directory import DataDirectory
from spark_log.server.quorum.founding import (
    adopt_log,
    former_addresses,
    restore_log,
    stored_content,
)
from spark_log.server.quorum.root import QuorumRoot
from spark_log.server.quorum.root_snapshots import put_snapshot
from spark_log.server.quorum.state import Content
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import FORMAT_KEY, SNAPSHOTS, snapshot_version
from spark_log.store.open import open_store
from tests.quorum.node.quorum_nodes import until
from tests.recovery.dying import Died, Dying
from tests.server.quorum.founding import (
    URL,
    Nodes,
    address,
    adopt,
    append_and_read,
    cannot_lead,
    cluster_id,
    leader_of,
    restore,
    run_until_done,
    store,
)

__all__ = ["store"]
"""A fixture."""


# Promise: cli.md#pylog-quorum-restore, quorum.md#restore-a-quorum
def test_a_quorum_that_is_lost_is_restored(store: ObjectStore, tmp_path: Path) -> None:
    """From the copy beside the records: what was committed later is lost, and the former nodes do not lead again."""
    lost, new = (Nodes(tmp_path, cluster_id(store), 1, name) for name in "ab")
    adopt(store, lost)

    async def scenario() -> None:
        async with lost.running() as (node,):
            url = address([node])
            await asyncio.to_thread(append_and_read, url, "3")
            await asyncio.to_thread(node.coordinator.root_snapshots.write)
            copied = node.coordinator.state.version
            assert await asyncio.to_thread(append_and_read, url, "4") == [*map(str, range(5))]
        assert restore(store, new) == (done := restore(store, new))
        assert (done.version, done.missing) == (copied, 0)
        async with new.running() as (node,):
            assert await asyncio.to_thread(append_and_read, address([node]), "5") == ["0", "1", "2", "3", "5"]
            state, (topic_id,) = node.coordinator.state, node.coordinator.state.names.values()
            assert common_end(state, "", (topic_id, 0)) == 4, "readers of the former quorum know one record more"
            await asyncio.to_thread(node.coordinator.root_snapshots.write)
            assert snapshot_version(store.list(SNAPSHOTS)[-1]) == node.coordinator.state.version
        await cannot_lead(lost, "belongs to a quorum that has replaced this one")

    asyncio.run(scenario())


# Promise: quorum.md#restore-a-quorum
def test_a_quorum_is_not_restored_from_a_disk_that_is_older_than_the_copy(store: ObjectStore, tmp_path: Path) -> None:
    """A node was away for long: maintenance has deleted objects that it names."""
    lost, new = (Nodes(tmp_path, cluster_id(store), 1, name) for name in "ab")
    adopt(store, lost)
    form = parse_format(store.get(FORMAT_KEY), store.url)
    store.put(FORMAT_KEY, (form.of_quorum(URL, "").encode(),))
    with lost.open() as source:
        state = stored_content(source, source.disk.load()).state
        put_snapshot(store, Content(dataclasses.replace(state, version=state.version + 1)), "u")
        with pytest.raises(InvalidRequest, match=f"is newer: version {state.version + 1}, .* without --from"):
            restore(store, new, source)
        store.delete(store.list(SNAPSHOTS))
        put_snapshot(store, Content(state), "u")
        assert restore(store, new, source).version == state.version


# Promise: quorum.md#restore-a-quorum
def test_a_restoration_that_is_killed_is_run_again(store: ObjectStore, tmp_path: Path) -> None:
    """Before its first write the former quorum has the log; then nobody has it, until the directory has the state."""
    nodes, local = Nodes(tmp_path, cluster_id(store), 1), LocalStore(str(tmp_path / "log"))
    put_snapshot(store, Content(spark_log.connect(tmp_path / "log").journal.state), "u")
    form = parse_format(store.get(FORMAT_KEY), store.url)
    store.put(FORMAT_KEY, (form.of_quorum(URL, "former").encode(),))
    former = QuorumRoot(store, cluster_id(store))
    for after in (False, True):
        with nodes.open() as directory, pytest.raises(Died):
            restore_log(Dying(local, 1, after=after), directory, nodes.voters, "id", now_ms=1)
        with pytest.raises(LogMoved) if after else nullcontext():
            former.keep(leader_of(Content(State(), founding="former")))
    deaths, done = run_until_done(
        nodes, lambda directory, deaths: restore_log(store, directory, nodes.voters, f"id-{deaths}", now_ms=1)
    )
    assert deaths >= 4 and restore(store, nodes) == done
    with nodes.open() as directory:
        content = stored_content(directory, directory.disk.load())
    former.keep(leader_of(content))
    assert content.state.version == done.version
    assert {one.version for one in content.state.restores} == {done.version}, "killed runs have begun others"
    assert content.state.restores[-1].history == content.founding


# Promise: quorum.md#restore-a-quorum
def test_an_older_copy_is_not_used_for_a_damaged_one_without_a_word(store: ObjectStore, tmp_path: Path) -> None:
    """All nodes are lost, and the changes between the two copies are in the damaged one only."""
    nodes = Nodes(tmp_path, cluster_id(store), 1)
    state = spark_log.connect(tmp_path / "log").journal.state
    put_snapshot(store, Content(state), "u")
    newest = put_snapshot(store, Content(dataclasses.replace(state, version=state.version + 1)), "u")
    store.put(newest, (store.get(newest)[:-1],))
    form = parse_format(store.get(FORMAT_KEY), store.url)
    store.put(FORMAT_KEY, (form.of_quorum(URL, "former").encode(),))
    before = {name: store.get(name) for name in store.list("meta/")}
    with pytest.raises(CorruptObject, match=rf"{newest} is damaged.*version {state.version}, of .*delete the damaged"):
        restore(store, nodes)
    assert {name: store.get(name) for name in store.list("meta/")} == before
    store.delete([newest])
    assert restore(store, nodes).version == state.version


@pytest.mark.parametrize("are_all_damaged", [False, True])
def test_a_directory_that_is_older_than_a_damaged_copy_is_not_used_without_a_word(
    store: ObjectStore, tmp_path: Path, are_all_damaged: bool
) -> None:
    """A node that was away: the changes that it lacks were in the damaged copy."""
    adopt(store, left := Nodes(tmp_path, cluster_id(store), 1))
    nodes = Nodes(tmp_path, cluster_id(store), 1, "b")
    with left.open() as source:
        content = stored_content(source, source.disk.load())
    state = content.state
    copies = [put_snapshot(store, content, "u")]
    later = dataclasses.replace(state, version=state.version + 1)
    copies.append(put_snapshot(store, content._replace(state=later), "u"))
    for name in copies[0 if are_all_damaged else 1 :]:
        store.put(name, (store.get(name)[:-1],))
    form = parse_format(store.get(FORMAT_KEY), store.url)
    store.put(FORMAT_KEY, (form.of_quorum(URL, content.founding).encode(),))
    before = {name: store.get(name) for name in store.list("meta/")}
    with left.open() as source:
        with pytest.raises(InvalidRequest, match=rf"damaged, was newer: version {later.version}.*delete the damaged"):
            restore(store, nodes, source)
        assert {name: store.get(name) for name in store.list("meta/")} == before
        store.delete([copies[1]])
        assert restore(store, nodes, source).version == state.version


@pytest.mark.parametrize("has_copies", [False, True])
def test_a_folder_without_its_format_and_a_copy_is_restored_from_the_disk_of_a_node(
    store: ObjectStore, tmp_path: Path, has_copies: bool
) -> None:
    """The errors advise that: a disk of a node has all that is lost."""
    adopt(store, left := Nodes(tmp_path, log_id := cluster_id(store), 1))
    nodes = Nodes(tmp_path, log_id, 1, "b")
    with left.open() as source:
        content = stored_content(source, source.disk.load())
    if has_copies:
        name = put_snapshot(store, content, "u")
        store.put(name, (store.get(name)[:-1],))
    store.delete([FORMAT_KEY])
    with pytest.raises(CorruptObject if has_copies else NoLog):
        restore(store, nodes)
    empty = LocalStore(str(tmp_path / "elsewhere"))
    with left.open() as source:
        with pytest.raises(NoLog, match="is empty.*is its disk mounted"):
            restore(empty, nodes, source)
        assert not empty.list("meta/")
        assert restore(store, nodes, source).version == content.state.version
    found = parse_format(store.get(FORMAT_KEY), store.url)
    assert (found.cluster_id, bool(found.quorum)) == (log_id, True)


# Promise: cli.md#pylog-quorum-restore, quorum.md#restore-a-quorum
def test_a_quorum_is_restored_from_the_disk_of_a_node(store: ObjectStore, tmp_path: Path) -> None:
    """Which has more than the copy; and the leader of the former quorum, which still runs, ends to lead."""
    left, new = (Nodes(tmp_path, cluster_id(store), 1, name) for name in "ab")
    adopt(store, left)

    async def scenario() -> None:
        async with left.running() as (node,):
            await asyncio.to_thread(node.coordinator.root_snapshots.write)
            await asyncio.to_thread(append_and_read, address([node]), "3")
            version = node.coordinator.state.version
            head = node.coordinator.head(version)
        with left.open() as directory:
            assert restore(store, new, directory).version == version
        async with new.running() as (node,):
            assert node.coordinator.head(version) not in ("", head), (
                "a client that knows the version opens the log again"
            )
            assert await asyncio.to_thread(append_and_read, address([node]), "4") == [*map(str, range(5))]
            log = await asyncio.to_thread(spark_log.connect, address([node]))
            restore(store, newest := Nodes(tmp_path, cluster_id(store), 1, "c"), None)
            await asyncio.to_thread(node.coordinator.root_snapshots.write)
            await until(lambda: not node.coordinator.leading, "it ends to lead")
            await until(lambda: "replaced this one" in node.coordinator.health().reason, "it says why")
            for use in (partial(log.append, "t", [{"value": "x"}]), partial(spark_log.connect, address([node]))):
                with pytest.raises(LogMoved, match="open the log by the addresses of that"):
                    await asyncio.to_thread(use)
            async with newest.running() as (last,):
                found = await asyncio.to_thread(append_and_read, address([node, last]), "5")
                assert found[-1] == "5"
            await asyncio.to_thread(log.close)

    asyncio.run(scenario())


def test_a_quorum_is_not_restored_from_the_disk_of_another_log(store: ObjectStore, tmp_path: Path) -> None:
    """Maintenance would delete all records that its metadata does not name."""
    adopt(store, lost := Nodes(tmp_path, cluster_id(store), 1))
    form = parse_format(store.get(FORMAT_KEY), store.url).of_quorum(URL, "id")
    store.put(FORMAT_KEY, (form.encode(),))
    with spark_log.connect(tmp_path / "other" / "log", create=True) as log:
        other = open_store(log.url)
    adopt(other, foreign := Nodes(tmp_path / "other", cluster_id(other), 1))
    with foreign.open() as source, pytest.raises(InconsistentClusterId, match="1@a1 has the metadata of the log"):
        restore(store, new := Nodes(tmp_path, cluster_id(store), 1, "b"), source)
    assert parse_format(store.get(FORMAT_KEY), store.url).founding == "id"
    with lost.open() as source:
        assert restore(store, new, source).version == stored_version(source)


def stored_version(directory: DataDirectory) -> int:
    return stored_content(directory, directory.disk.load()).state.version


def test_nodes_of_a_lost_quorum_are_looked_for_at_their_addresses(store: ObjectStore, tmp_path: Path) -> None:
    """The first leader may be the node that is lost: the one that leads now has written the newest copy."""
    state = spark_log.connect(tmp_path / "log").journal.state
    form = parse_format(store.get(FORMAT_KEY), store.url).of_quorum("pylog://a:9550", "")
    assert former_addresses(store, form) == ["a:9550"]
    held = dataclasses.replace(state, coordinator=state.coordinator._replace(epoch=1, address="b:9550"))
    name = put_snapshot(store, Content(held), "u")
    assert former_addresses(store, form) == ["a:9550", "b:9550"]
    store.put(name, (b"x",))
    assert former_addresses(store, form) == ["a:9550"]


def test_what_cannot_be_adopted_or_restored(store: ObjectStore, tmp_path: Path) -> None:
    """The error names it, and the log is as before."""
    other, nodes = Nodes(tmp_path, "another", name="o"), Nodes(tmp_path, cluster_id(store))
    with pytest.raises(InconsistentClusterId, match="format it with --cluster-id"):
        adopt(store, other)
    with pytest.raises(InvalidRequest, match="no quorum of it was lost"):
        restore(store, nodes)
    with nodes.open() as directory:
        journal = Journal.open(store, create=False)
        with pytest.raises(InvalidRequest, match="is not the URL of the nodes for clients"):
            adopt_log(journal, directory, nodes.voters, "http://127.0.0.1:9550")
        with pytest.raises(InvalidRequest, match="is not one directory for each node, 1@a1 among them"):
            adopt_log(journal, directory, nodes.voters[1:], URL)
        journal.take_over(0, "localhost:9550", "here")
        with pytest.raises(InvalidRequest, match="the coordinator at localhost:9550 has the log: stop it"):
            adopt_log(journal, directory, nodes.voters, URL)
        journal.release(1)
    append_and_read(str(tmp_path / "log"), "3")
    adopt(store, nodes)
    form = parse_format(store.get(FORMAT_KEY), store.url)
    store.put(FORMAT_KEY, (form.of_quorum(URL, "").encode(),))
    with pytest.raises(NoLog, match="has no copy of the metadata"):
        restore(store, Nodes(tmp_path, cluster_id(store), name="b"))
