"""A quorum continues a log whose metadata is on storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.client.log import Log
from spark_log.errors import (
    InvalidRequest,
    LogMoved,
)
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_format import parse_format
from spark_log.metadata.decide_coordinators import moving_to
from spark_log.quorum.node.admin import QuorumAdmin
from spark_log.quorum.node.file_operations import LocalFiles
from spark_log.quorum.voters import key_text
from spark_log.recovery.log_move import cancel_move, move_log
from spark_log.serve.serve_quorum import start_quorum
from spark_log.server.quorum.founding import (
    adopt_log,
    end_adoption,
    stored_content,
)
from spark_log.server.quorum.root import QuorumRoot
from spark_log.server.quorum.root_snapshots import newest_epoch, put_snapshot
from spark_log.server.quorum.state import Content
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import FORMAT_KEY
from tests.quorum.node.quorum_nodes import SECRET, until
from tests.recovery.dying import Died, Dying
from tests.recovery.test_move import opened, values
from tests.server.quorum.founding import (
    URL,
    Nodes,
    address,
    adopt,
    append_and_read,
    batch_at,
    cannot_lead,
    cluster_id,
    leader_of,
    levels,
    restore,
    run_until_done,
    store,
)
from tests.spark.driver import Stream

__all__ = ["store"]
"""A fixture."""


# Promise: cli.md#pylog-quorum-adopt, quorum.md#move-a-log-into-a-quorum
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
            await until(lambda: levels(running[0]) == dict.fromkeys((1, 2, 3), 1), "each says what it understands")
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


# Promise: quorum.md#replace-a-disk-or-a-machine
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


# Promise: quorum.md#move-a-log-into-a-quorum
def test_an_adoption_that_is_killed_is_run_again(store: ObjectStore, tmp_path: Path) -> None:
    """At each write of the command, and then of the leader that ends it."""
    nodes, local = Nodes(tmp_path, cluster_id(store), count=1), LocalStore(str(tmp_path / "log"))
    for after in (False, True):
        journal = Journal.open(Dying(local, 1, after=after), create=False)
        with nodes.open() as directory, pytest.raises(Died):
            adopt_log(journal, directory, nodes.voters, URL)
    deaths, _ = run_until_done(
        nodes, lambda directory, _: adopt_log(Journal.open(local, create=False), directory, nodes.voters, URL)
    )
    assert deaths >= 4
    assert adopt(store, nodes) == adopt(store, nodes)

    with nodes.open() as directory:
        restored = directory.disk.load()
        content = stored_content(directory, restored)
    state, form = content.state, parse_format(store.get(FORMAT_KEY), store.url)
    assert moving_to(state.coordinator) == URL and restored.voters == nodes.voters
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


# Promise: quorum.md#move-a-log-into-a-quorum
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


class Sleeps(Wrapper):
    """Something happens before the next write of `meta/format`, as while the process of a leader is stopped."""

    def __init__(self, inner: ObjectStore, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self._happens = [happens]

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key == FORMAT_KEY and self._happens:
            self._happens.pop()()
        super().put(key, chunks)


# Promise: quorum.md#when-the-folder-of-the-records-is-not-as-it-was
@pytest.mark.parametrize("restores", [1, 2])
@pytest.mark.parametrize("write", ["end_adoption", "name_again", "written again"])
def test_a_leader_that_sleeps_while_its_quorum_is_replaced_takes_nothing_back(
    store: ObjectStore, tmp_path: Path, write: str, restores: int
) -> None:
    """It wakes up, and writes the former id into `meta/format`.  Neither it nor another one of that quorum leads, and
    the quorum that has replaced it writes the present id again.
    """
    own, nodes = cluster_id(store), Nodes(tmp_path, cluster_id(store), 1)
    adopt(store, nodes)
    content, later = stored(nodes), [Nodes(tmp_path, own, 1, name) for name in "cd"[:restores]]
    if write != "end_adoption":
        QuorumRoot(store, own).claim(leader_of(content), "n")
        put_snapshot(store, content, "u")
    if write == "name_again":
        opened_by_force(store)
    if write == "written again":
        restore(store, replacing := Nodes(tmp_path, own, 1, "b"))
        name_quorum(store, content.founding)
        content = stored(replacing)

    def replace_it() -> None:
        QuorumRoot(store, own).claim(leader_of(content), "n")  # another leader of that quorum is faster
        put_snapshot(store, content, "u", epoch=newest_epoch(store) + 1)
        for new in later:
            restore(store, new)

    root = QuorumRoot(Sleeps(store, replace_it), own)
    with pytest.raises(LogMoved, match="a quorum that has replaced this one"):
        root.claim(leader_of(content), "n") if write == "end_adoption" else root.keep(leader_of(content))
    assert founding_in(store) == content.founding, "it has written it late"
    assert restore(store, later[-1]).version == content.state.version, "the command may be run again"
    *former, newest = (content, *map(stored, later))
    for one in former:
        with pytest.raises(LogMoved):
            QuorumRoot(store, own).claim(leader_of(one), "n")
    for is_leading in (False, True):
        name_quorum(store, content.founding)
        root = QuorumRoot(store, own)
        root.keep(leader_of(newest)) if is_leading else root.claim(leader_of(newest), "n")
        assert founding_in(store) == newest.founding
    for one in former:
        with pytest.raises(LogMoved):
            QuorumRoot(store, own).keep(leader_of(one))


def stored(nodes: Nodes) -> Content:
    """The state in the directory of the first node."""
    with nodes.open() as directory:
        return stored_content(directory, directory.disk.load())


def founding_in(store: ObjectStore) -> str:
    return parse_format(store.get(FORMAT_KEY), store.url).founding


def name_quorum(store: ObjectStore, founding: str) -> None:
    """Write `meta/format` as a leader of that quorum does."""
    store.put(FORMAT_KEY, (parse_format(store.get(FORMAT_KEY), store.url).of_quorum(URL, founding).encode(),))
