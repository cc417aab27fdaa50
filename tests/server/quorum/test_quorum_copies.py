"""Copies of a quorum's metadata beside the records: when they are made, kept and used."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import ManualClock
from spark_log.errors import (
    AccessDenied,
    ConcurrentChange,
    CorruptObject,
    NoSpace,
)
from spark_log.maintenance.maintain import maintain_once
from spark_log.server.quorum.root_snapshots import SETTLE_MS, RootSnapshots, newest_snapshot, put_snapshot
from spark_log.server.quorum.state import Content
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.object_names import DATA, SNAPSHOTS
from tests.server.quorum.founding import Nodes, address, adopt, append_and_read, cluster_id, restore, store

__all__ = ["store"]
"""A fixture."""


# Promise: quorum.md#restore-a-quorum
def test_maintenance_deletes_nothing_that_a_copy_names(store: ObjectStore, tmp_path: Path) -> None:
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
        with pytest.raises(CorruptObject, match="is damaged, and the copy before it has version"):
            restore(store, new)
        store.delete([newest])
        assert restore(store, new).missing == 0
        async with new.running() as (node,):
            assert await asyncio.to_thread(append_and_read, address([node]), "4") == [*map(str, range(5))]

    asyncio.run(scenario())


# Promise: quorum.md#restore-a-quorum
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


# Promise: quorum.md#restore-a-quorum
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


# Promise: quorum.md#watch-it
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
    """Maintenance frees no space before there is one."""
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


@pytest.mark.parametrize("hangs", [False, True])
def test_a_leader_that_was_replaced_leaves_no_older_copy(store: ObjectStore, tmp_path: Path, *, hangs: bool) -> None:
    """Otherwise it would be used if the only copy of its successor were damaged, and names objects that are deleted."""
    state = spark_log.connect(tmp_path / "log").journal.state
    old, new = (Content(dataclasses.replace(state, version=version)) for version in (7, 8))

    class Hung(LocalStore):
        """Its successor writes a copy before its own is put."""

        def put(self, key: str, chunks: Iterable[Bytes]) -> None:
            put_snapshot(store, new, "u", epoch=2)
            super().put(key, chunks)

    if not hangs:
        put_snapshot(store, new, "u", epoch=2)
    with pytest.raises(ConcurrentChange, match="is of a later leader"):
        put_snapshot(Hung(str(tmp_path / "log")) if hangs else store, old, "v", epoch=1)
    assert [int(name.split("-")[1]) for name in store.list(SNAPSHOTS)] == [8]
