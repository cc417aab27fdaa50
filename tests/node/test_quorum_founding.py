"""A quorum continues a log: one whose metadata is on storage, or that has lost its nodes."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

import spark_log
from spark_log.client.log import Log
from spark_log.errors import (
    AccessDenied,
    CorruptObject,
    InconsistentClusterId,
    InvalidRequest,
    LogMoved,
    NoLog,
    NoSpace,
)
from spark_log.journal.journal import Journal
from spark_log.journal.log_format import parse_format
from spark_log.journal.object_names import DATA, FORMAT_KEY, SNAPSHOTS
from spark_log.metadata.restores import common_end
from spark_log.metadata.state import State
from spark_log.node.log_move import cancel_move, move_log
from spark_log.node.maintain import maintain_once
from spark_log.node.quorum_founding import (
    Founded,
    adopt_log,
    end_adoption,
    former_addresses,
    restore_log,
    stored_content,
)
from spark_log.node.quorum_root import Claimant, QuorumRoot
from spark_log.node.quorum_state import Content
from spark_log.node.root_snapshots import SETTLE_MS, RootSnapshots, newest_snapshot, put_snapshot
from spark_log.node.serve_config import ServeConfig
from spark_log.node.serve_quorum import RunningNode, start_quorum
from spark_log.quorum.messages import ReplicaKey
from spark_log.quorum.voters import key_text
from spark_log.quorum_node.directory import DataDirectory, format_directory, open_directory
from spark_log.quorum_node.file_operations import LocalFiles
from spark_log.quorum_node.node_config import NodeConfig
from spark_log.quorum_node.quorum_admin import QuorumAdmin
from spark_log.quorum_node.vote_and_identity import Meta
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.open import open_store
from spark_log.testing.clocks import ManualClock
from tests.node.quorum_nodes import SECRET, TIMES, until
from tests.node.test_mirror import Died, Dying
from tests.node.test_move import opened, values
from tests.processes import free_port
from tests.spark.driver import Stream

URL = "pylog://127.0.0.1:9550,127.0.0.1:9551"


class Nodes:
    """Three directories that are formatted, and empty, for a log in a folder."""

    def __init__(self, folder: Path, cluster_id: str, count: int = 3, name: str = "a") -> None:
        self.folder, self._cluster_id, self._name = folder, cluster_id, name
        self.voters = tuple(ReplicaKey(node, f"{name}{node}") for node in range(1, count + 1))
        self._ports = {key.id: free_port() for key in self.voters}
        for key in self.voters:
            meta = Meta(cluster_id=cluster_id, node_id=key.id, directory_id=key.directory)
            format_directory(str(self.path(key.id)), meta, ())

    def path(self, node: int) -> Path:
        return self.folder / f"{self._name}{node}"

    @property
    def addresses(self) -> list[str]:
        """For tools."""
        return [f"127.0.0.1:{port}" for port in self._ports.values()]

    def replace_disk(self, node: int) -> ReplicaKey:
        """Another directory in place of a lost one."""
        shutil.rmtree(self.path(node))
        key = ReplicaKey(node, f"new-{node}")
        format_directory(
            str(self.path(node)), Meta(cluster_id=self._cluster_id, node_id=node, directory_id=key.directory), ()
        )
        return key

    def open(self, node: int = 1, open_files: Callable[[str], LocalFiles] = LocalFiles) -> DataDirectory:
        path = str(self.path(node))
        return open_directory(path, cluster_id=self._cluster_id, node_id=node, open_files=open_files)

    def config(self, node: int) -> ServeConfig:
        quorum = NodeConfig(
            directory=str(self.path(node)),
            cluster_id=self._cluster_id,
            node_id=node,
            listen=f"127.0.0.1:{self._ports[node]}",
            peers={other: f"127.0.0.1:{port}" for other, port in self._ports.items() if other != node},
            secret=SECRET,
            times=TIMES,
        )
        return ServeConfig(url=str(self.folder / "log"), listen="127.0.0.1:0", maintain_ms=None, quorum=quorum)

    @asynccontextmanager
    async def running(self, *nodes: int) -> AsyncIterator[list[RunningNode]]:
        """These nodes, when one of them leads."""
        found = [await start_quorum(self.config(node)) for node in nodes or range(1, len(self.voters) + 1)]
        try:
            await until(lambda: any(one.coordinator.leading for one in found), "a node leads")
            yield found
        finally:
            for one in found:
                await one.stop()


def address(nodes: Sequence[RunningNode]) -> str:
    return "pylog://" + ",".join(one.coordinator.address for one in nodes)


def levels(node: RunningNode) -> dict[int, int] | None:
    status = node.coordinator.node.status()
    return None if status is None else status.levels


def leader_of(content: Content) -> Claimant:
    return Claimant(state=content.state, founding=content.founding, address="127.0.0.1:1")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """Of a log with three records in the topic t."""
    with spark_log.connect(tmp_path / "log", create=True) as log:
        for number in range(3):
            log.append("t", [{"value": str(number)}])
    return open_store(str(tmp_path / "log"))


def cluster_id(store: ObjectStore) -> str:
    return parse_format(store.get(FORMAT_KEY), store.url).cluster_id


def adopt(store: ObjectStore, nodes: Nodes, node: int = 1) -> Founded:
    with nodes.open(node) as directory:
        return adopt_log(Journal.open(store, create=False), directory, nodes.voters, URL)


def restore(store: ObjectStore, nodes: Nodes, source: DataDirectory | None = None) -> Founded:
    with nodes.open() as directory:
        return restore_log(store, directory, nodes.voters, f"id-{nodes.voters[0].directory}", source)


def append_and_read(url: str, *new: str) -> list[str]:
    with spark_log.connect(url) as log:
        for value in new:
            log.append("t", [{"value": value}])
        return values(log)


def batch_at(stream: Stream, url: str) -> object:
    """The next batch of a streaming query, which is started again from its checkpoint with another URL."""
    return stream.restart(path=url).batch()


def test_a_quorum_continues_a_log(store: ObjectStore, tmp_path: Path) -> None:
    """Adopted on one node: the others fetch the state.  Processes of the former place neither write nor read there."""
    old, standby = spark_log.connect(tmp_path / "log"), Journal.open(store, create=False)
    nodes, stream = Nodes(tmp_path, cluster_id(store)), Stream(str(tmp_path / "log"))
    assert stream.batch() == [("t-0", 0), ("t-0", 1), ("t-0", 2)]
    adopt(store, nodes)
    with pytest.raises(LogMoved, match="start the nodes, or run `pylog quorum adopt` again"):
        old.append("t", [{"value": "x"}])
    assert values(old) == ["0", "1", "2"]

    async def scenario() -> None:
        async with nodes.running() as running:
            expected = ["0", "1", "2", "3"]
            assert await asyncio.to_thread(append_and_read, address(running), "3") == expected
            assert await asyncio.to_thread(batch_at, stream, address(running)) == [("t-0", 3)]
            version = max(one.coordinator.state.version for one in running)
            await until(lambda: {one.coordinator.state.version for one in running} == {version}, "all have it")
            await until(lambda: levels(running[0]) == dict.fromkeys((1, 2, 3), 4), "each says what it understands")
        async with nodes.running(2, 3) as running:
            assert await asyncio.to_thread(append_and_read, address(running), "4") == [*expected, "4"]

    asyncio.run(scenario())
    with pytest.raises(LogMoved, match="open it again, by `spark_log.connect"):
        values(old)
    with pytest.raises(LogMoved):
        standby.take_over(standby.refresh().coordinator.epoch, "localhost:9550", "here")
    with pytest.raises(InvalidRequest, match=f"open the log with the addresses of its nodes, {URL}"):
        spark_log.connect(tmp_path / "log")
    with pytest.raises(InvalidRequest, match="records of a log whose metadata is in a quorum"):
        adopt(store, Nodes(tmp_path, cluster_id(store), name="b"))


def test_a_dead_disk_is_replaced(store: ObjectStore, tmp_path: Path) -> None:
    """The drill of docs/quorum.md, while clients write: the new disk counts afterwards, so another node may be lost."""
    nodes = Nodes(tmp_path, cluster_id(store))
    adopt(store, nodes)
    admin = QuorumAdmin(nodes.addresses, SECRET)

    async def scenario() -> None:
        async with nodes.running(1, 2) as running:
            await asyncio.to_thread(append_and_read, address(running), "3")
            new = nodes.replace_disk(3)
            third = await start_quorum(nodes.config(3))
            try:
                await asyncio.to_thread(admin.remove_voter, nodes.voters[2], 60)
                await asyncio.to_thread(admin.add_voter, key_text(new), 60)
                second = next(one for one in running if one.coordinator.node.config.node_id == 2)
                running.remove(second)
                await second.stop()
                alive = [*running, third]
                await until(lambda: any(one.coordinator.leading for one in alive), "one of the others leads")
                assert await asyncio.to_thread(append_and_read, address(alive), "4") == [*map(str, range(5))]
            finally:
                await third.stop()

    asyncio.run(scenario())


class DyingFiles(LocalFiles):
    """Dies before an operation that changes something."""

    left = 0

    def _count(self) -> None:
        if DyingFiles.left == 0:
            raise Died
        DyingFiles.left -= 1

    def append(self, name: str, data: bytes) -> None:
        self._count()
        super().append(name, data)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)


def killed_adoptions(store: ObjectStore, nodes: Nodes) -> Iterator[str]:
    """Runs the command, which is killed at each of its writes in turn, on the storage and then in the directory."""
    for after in (False, True):
        journal = Journal.open(Dying(store, 1, after=after), create=False)
        with nodes.open() as directory, pytest.raises(Died):
            adopt_log(journal, directory, nodes.voters, URL)
        yield "on the storage"
    for DyingFiles.left in range(20):
        try:
            with nodes.open(open_files=DyingFiles) as directory:
                adopt_log(Journal.open(store, create=False), directory, nodes.voters, URL)
            return
        except Died:
            yield "in the directory"


def test_an_adoption_that_is_killed_is_run_again(store: ObjectStore, tmp_path: Path) -> None:
    """At each write of the command, and then of the leader that ends it."""
    nodes, local = Nodes(tmp_path, cluster_id(store), count=1), LocalStore(str(tmp_path / "log"))
    died = list(killed_adoptions(local, nodes))
    assert died.count("on the storage") == 2 and died.count("in the directory") >= 4
    assert adopt(store, nodes) == adopt(store, nodes)

    with nodes.open() as directory:
        restored = directory.disk.load()
        content = stored_content(directory, restored)
    state, form = content.state, parse_format(store.get(FORMAT_KEY), store.url)
    assert state.coordinator.address == f"moving to {URL}" and restored.voters == nodes.voters
    for after in (False, True, False):
        with pytest.raises(Died):
            end_adoption(Journal.open(Dying(local, 1, after=after), create=False), state, form, content.founding)
    ended = end_adoption(Journal.open(store, create=False), state, form, content.founding)
    assert parse_format(store.get(FORMAT_KEY), store.url) == replace(ended, crc=ended.checksum())
    assert ended.quorum == URL and ended.founding == content.founding != ""

    async def scenario() -> None:
        async with nodes.running() as running:
            assert await asyncio.to_thread(append_and_read, address(running), "3") == ["0", "1", "2", "3"]

    asyncio.run(scenario())


def test_an_adoption_that_is_cancelled_while_it_runs_says_so(store: ObjectStore, tmp_path: Path) -> None:
    """Another operator cancels while the state is written: the command must not say that the nodes can be started."""

    class Cancelled(LocalFiles):
        def rename(self, old: str, new: str) -> None:
            with suppress(InvalidRequest):
                cancel_move(opened(tmp_path / "log"))
            super().rename(old, new)

    nodes = Nodes(tmp_path, cluster_id(store), 1)
    with (
        nodes.open(open_files=Cancelled) as directory,
        pytest.raises(InvalidRequest, match="format the directory 1@a1"),
    ):
        adopt_log(Journal.open(store, create=False), directory, nodes.voters, URL)
    append_and_read(str(tmp_path / "log"), "3")


async def cannot_lead(nodes: Nodes, why: str) -> None:
    """Start the first one, which says why it does not lead."""
    node = await start_quorum(nodes.config(1))
    try:
        await until(lambda: why in node.coordinator.health().reason, why)
        assert not node.coordinator.leading
    finally:
        await node.stop()


def test_one_of_two_adoptions_and_a_cancellation_happens(store: ObjectStore, tmp_path: Path) -> None:
    """Another directory cannot adopt the log as well, and a quorum whose adoption was cancelled does not lead."""
    first, second = (Nodes(tmp_path, cluster_id(store), 1, name) for name in "ab")
    adopt(store, first)
    with pytest.raises(InvalidRequest, match=r"the directory 1@a1 adopts .* already: run the command there again"):
        adopt(store, second)
    cancel_move(opened(tmp_path / "log"))
    append_and_read(str(tmp_path / "log"), "3")

    with pytest.raises(InvalidRequest, match="`pylog quorum adopt` moves that into a quorum"):
        asyncio.run(cannot_lead(first, ""))  # the log is open on the storage
    with pytest.raises(InvalidRequest, match="the directory 1@a1 is used by a quorum already: format an empty one"):
        adopt(store, first)
    adopt(store, second)
    asyncio.run(cannot_lead(first, "this quorum does not continue it: was its adoption cancelled?"))

    async def scenario() -> None:
        async with second.running() as running:
            assert await asyncio.to_thread(append_and_read, address(running), "4") == [*map(str, range(5))]

    asyncio.run(scenario())
    asyncio.run(cannot_lead(first, "belongs to a quorum that has replaced this one"))
    with pytest.raises(InvalidRequest, match="there is no way back"):
        cancel_move(opened_by_force(store), force=True)


def opened_by_force(store: ObjectStore) -> Log:
    """As a process that opened the log before `meta/format` named the quorum."""
    form = parse_format(store.get(FORMAT_KEY), store.url)
    store.put(FORMAT_KEY, (replace(form, pylog=1, quorum="", founding="").encode(),))
    return Log(Journal.open(store, create=False))


class SleepsAtTheEnd(Dying):
    """Something happens before the write that ends a move, as while its process is stopped."""

    def __init__(self, inner: ObjectStore, happens: Callable[[], None]) -> None:
        super().__init__(inner, 1 << 30, after=False)
        self.probed, self._happens = inner.fingerprint(), happens

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        data = b"".join(chunks)
        if key == FORMAT_KEY and not parse_format(data, self.url).mirrors:
            self._happens()
        super().put(key, (data,))


def test_a_move_that_sleeps_while_a_quorum_adopts_the_place_changes_nothing(store: ObjectStore, tmp_path: Path) -> None:
    """Its last write makes a log on storage of it, as if no quorum had it.  The leader writes its name again."""
    moved, log = LocalStore(str(tmp_path / "new"), "os"), tmp_path / "log"
    nodes, contents = Nodes(tmp_path, cluster_id(store), 1), list[Content]()

    def adopted() -> None:
        move_log(opened(log), moved)
        adopt(moved, nodes)
        with nodes.open() as directory:
            content = stored_content(directory, directory.disk.load())
        QuorumRoot(moved, cluster_id(moved)).claim(leader_of(content), "n")
        put_snapshot(moved, content, "u")
        contents.append(content)

    move_log(opened(log), SleepsAtTheEnd(moved, adopted))
    (content,), root = contents, QuorumRoot(moved, cluster_id(moved))
    assert not parse_format(moved.get(FORMAT_KEY), moved.url).quorum
    with pytest.raises(LogMoved):
        opened(tmp_path / "new").append("t", [{"value": "x"}])
    with pytest.raises(InvalidRequest, match="this quorum does not continue it"):
        root.keep(leader_of(content._replace(founding="another")))  # it belongs to the quorum with the newest copy
    root.keep(leader_of(content))
    form = parse_format(moved.get(FORMAT_KEY), moved.url)
    assert (form.quorum, form.founding) == (URL, content.founding)
    root.claim(leader_of(content), "n")


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
        await cannot_lead(lost, "belongs to a quorum that has replaced this one")

    asyncio.run(scenario())


def test_upkeep_deletes_nothing_that_a_copy_names(store: ObjectStore, tmp_path: Path) -> None:
    """However short `gc.fence.age.ms` is: a log that has lost all nodes is restored with all records of the newest copy
    that can be read, which may be the older one.
    """
    lost, new = (Nodes(tmp_path, cluster_id(store), 1, name) for name in "ab")
    adopt(store, lost)

    def shorten_fence(url: str) -> None:
        with spark_log.connect(url) as log:
            log.admin.incremental_alter_configs({None: {"gc.fence.age.ms": "1"}})

    def merge_and_collect(url: str) -> set[str]:
        """The objects that are left."""
        with spark_log.connect(url) as log:
            for _ in range(4):
                maintain_once(log)
                time.sleep(0.01)  # the fence has a later time than its version
                log.append("other", [{"value": "x"}])
        return set(store.list(DATA))

    async def scenario() -> None:
        async with lost.running() as (node,):
            url, copies = address([node]), node.coordinator.root_snapshots
            await asyncio.to_thread(append_and_read, url, "3")
            await asyncio.to_thread(copies.write)
            copied, named = copies.copied, set(node.coordinator.state.objects)
            await asyncio.to_thread(shorten_fence, url)
            assert await asyncio.to_thread(merge_and_collect, url) >= named
            assert named & set(node.coordinator.state.dropped) and node.coordinator.state.fence <= copied
            await asyncio.to_thread(copies.write)
            assert await asyncio.to_thread(merge_and_collect, url) >= named, "the older copy names them"
            await asyncio.to_thread(copies.write)
            assert named - await asyncio.to_thread(merge_and_collect, url), "newer copies let the fence advance"
            assert copies.copied >= node.coordinator.state.fence > copied
        newest = store.list(SNAPSHOTS)[-1]
        store.put(newest, (store.get(newest)[:-1],))
        assert restore(store, new).missing == 0
        async with new.running() as (node,):
            assert await asyncio.to_thread(append_and_read, address([node]), "4") == [*map(str, range(5))]

    asyncio.run(scenario())


def test_a_quorum_is_not_restored_from_a_disk_that_is_older_than_the_copy(store: ObjectStore, tmp_path: Path) -> None:
    """A node was away for long: upkeep has deleted objects that it names."""
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


def test_a_restoration_that_is_killed_is_run_again(store: ObjectStore, tmp_path: Path) -> None:
    """Before its first write the former quorum has the log; then nobody has it, until the directory has the state."""
    nodes, local = Nodes(tmp_path, cluster_id(store), 1), LocalStore(str(tmp_path / "log"))
    put_snapshot(store, Content(spark_log.connect(tmp_path / "log").journal.state), "u")
    form = parse_format(store.get(FORMAT_KEY), store.url)
    store.put(FORMAT_KEY, (form.of_quorum(URL, "former").encode(),))
    former = QuorumRoot(store, cluster_id(store))
    for after in (False, True):
        with nodes.open() as directory, pytest.raises(Died):
            restore_log(Dying(local, 1, after=after), directory, nodes.voters, "id", None)
        with pytest.raises(LogMoved) if after else nullcontext():
            former.keep(leader_of(Content(State(), founding="former")))
    deaths = 0
    for DyingFiles.left in range(20):
        try:
            with nodes.open(open_files=DyingFiles) as directory:
                done = restore_log(store, directory, nodes.voters, f"id-{deaths}", None)
            break
        except Died:
            deaths += 1
    assert deaths >= 4 and restore(store, nodes) == done
    with nodes.open() as directory:
        content = stored_content(directory, directory.disk.load())
    former.keep(leader_of(content))
    assert content.state.version == done.version
    assert {one.version for one in content.state.restores} == {done.version}, "killed runs have begun others"
    assert content.state.restores[-1].history == content.founding


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
    """Upkeep would delete all records that its metadata does not name."""
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


def test_copies_that_are_damaged_are_not_used(store: ObjectStore, tmp_path: Path) -> None:
    """An older one is; two are kept."""
    state = spark_log.connect(tmp_path / "log").journal.state
    assert newest_snapshot(store) is None
    contents = [Content(dataclasses.replace(state, version=version), b"head", "id") for version in (5, 6, 7)]
    names = [put_snapshot(store, content, "u") for content in contents]
    assert store.list(SNAPSHOTS) == names[1:]
    store.put(names[2], (store.get(names[2])[:-1],))
    found = newest_snapshot(store)
    assert found is not None and (found.state.version, *found[1:]) == (6, b"head", "id")
    store.put(names[1], (b"x",))
    with pytest.raises(CorruptObject, match="000007-u.checkpoint is damaged"):
        newest_snapshot(store)


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


def test_copies_are_made_now_and_then(store: ObjectStore, tmp_path: Path) -> None:
    """At an interval, if something has changed, and only as long as the folder belongs to the quorum."""
    clock, state = ManualClock(), spark_log.connect(tmp_path / "log").journal.state
    content, ours = [Content(dataclasses.replace(state, version=5))], [True]
    uniques = list[str]()

    def unique() -> str:
        uniques.append(f"u{9 - len(uniques)}")  # later ones sort before
        return uniques[-1]

    copies = RootSnapshots(store, clock, unique, lambda: content[0], lambda: ours[0])

    def copied() -> list[str]:
        copies.look()
        return [name.split("-")[1].lstrip("0") for name in store.list(SNAPSHOTS)]

    assert copied() == ["5"]
    content[0] = Content(dataclasses.replace(state, version=6))
    assert copied() == ["5"] and "pylog_quorum_copy_age_seconds 0.0" in copies.metric()
    clock.sleep_ms(300_000)
    assert "pylog_quorum_copy_age_seconds 300.0" in copies.metric() and copied() == ["5", "6"]
    assert copies.copied == 5 and copied() == ["5", "6"]
    clock.sleep_ms(300_000)
    assert copied() == ["6", "6"] and "pylog_quorum_copy_age_seconds 0.0" in copies.metric()
    clock.sleep_ms(300_000)
    assert copies.copied == 6 and copied() == ["6", "6"] and len(uniques) == 3, "both have the newest version"
    content[0], ours[0] = Content(dataclasses.replace(state, version=7)), False
    assert copied() == ["6", "6"]


def test_a_copy_that_is_late_is_a_problem_with_a_reason(store: ObjectStore, tmp_path: Path) -> None:
    """A leader that was a follower for long has a while to write its first one."""
    clock, state, refuses = ManualClock(), spark_log.connect(tmp_path / "log").journal.state, [True]

    class Refusing(LocalStore):
        def put(self, key: str, chunks: Iterable[Bytes]) -> None:
            if refuses[0]:
                raise AccessDenied(f"{key}: not allowed")
            super().put(key, chunks)

    copies = RootSnapshots(Refusing(str(tmp_path / "log")), clock, lambda: "u", lambda: Content(state), lambda: True)
    clock.sleep_ms(10_000_000)
    stop = threading.Event()
    copies.begin(stop)
    stop.set()
    clock.sleep_ms(SETTLE_MS + 3 * 300_000)
    assert copies.problem() == "" and copies.copied == 0
    clock.sleep_ms(1)
    with pytest.raises(AccessDenied):
        copies.look()
    assert "meta/quorum/ has lacked changes for 930 s (meta/quorum/" in copies.problem()
    assert "not allowed): if all nodes are lost, these changes are lost, and until" in copies.problem()
    refuses[0] = False
    copies.write()
    assert copies.problem() == "" and copies.copied == state.version


def test_a_full_disk_gets_a_new_copy_in_place_of_an_old_one(store: ObjectStore, tmp_path: Path) -> None:
    """Upkeep frees no space before there is one."""
    state = spark_log.connect(tmp_path / "log").journal.state

    class Full(LocalStore):
        def put(self, key: str, chunks: Iterable[Bytes]) -> None:
            if len(self.list(SNAPSHOTS)) > 1:
                raise NoSpace(f"{key}: no space left")
            super().put(key, chunks)

    full = Full(str(tmp_path / "log"))
    names = [put_snapshot(full, Content(dataclasses.replace(state, version=version)), "u") for version in (5, 6, 7)]
    assert store.list(SNAPSHOTS) == names[1:]


def test_a_leader_whose_copy_is_gone_meanwhile_continues(store: ObjectStore, tmp_path: Path) -> None:
    """A later leader has deleted it as an older one."""
    state = spark_log.connect(tmp_path / "log").journal.state

    class Gone(LocalStore):
        def list(self, prefix: str) -> list[str]:
            return []

    put_snapshot(Gone(str(tmp_path / "log")), Content(state), "u")
