"""A fenced broker returns with what its root has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.client.admin.brokers import (
    fence_broker,
    held_objects,
    return_broker,
)
from spark_log.client.log import Log
from spark_log.errors import WrongRoot
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import Report
from spark_log.metadata.records import Copy, HeldRecord
from spark_log.store.base import ObjectStore
from tests.client.replicated import commit_copies, with_copies

pytestmark = pytest.mark.filterwarnings("ignore:.*on the same disk.*:UserWarning")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return spark_log.connect(tmp_path / "log", create=True)


# Promise: replicas.md#when-a-disk-fails
def test_a_return_leaves_out_what_the_root_lacks(log: Log, tmp_path: Path) -> None:
    """A disk that was restored from a backup lacks newer objects; the state does not count them any more."""
    roots = [tmp_path / "disk1", tmp_path / "disk2"]
    journal = with_copies(log, roots)
    old = commit_copies(log, "t", [b"a"])
    shutil.copytree(roots[0], tmp_path / "backup")
    new = commit_copies(log, "t", [b"b"])
    fence_broker(journal, 1, "test")
    shutil.rmtree(roots[0])
    (tmp_path / "backup").rename(roots[0])
    assert return_broker(journal, 1)
    assert not return_broker(journal, 1), "it was not fenced"
    assert {name for name, _ in held_objects(journal.state, 1)} == {old}
    assert {name for name, _ in held_objects(journal.state, 2)} == {old, new}
    assert journal.state.placement_groups[1].isr == (0, 2)


def test_a_disk_that_goes_while_it_is_listed_does_not_return(log: Log, tmp_path: Path) -> None:
    """Otherwise all of its copies would be recorded as missing."""
    root = tmp_path / "disk1"
    journal = with_copies(log, [root, tmp_path / "disk2"])
    names = {commit_copies(log, "t", [value]) for value in (b"a", b"b")}
    fence_broker(journal, 1, "test")
    store = journal.roots[1]
    inner = store.inner  # type: ignore[attr-defined]
    store.inner = GoesWhenListed(inner, root)  # type: ignore[attr-defined]
    with pytest.raises(WrongRoot, match="is its disk mounted"):
        return_broker(journal, 1)
    assert journal.refresh().brokers[1].fenced
    (tmp_path / "away").rename(root)
    store.inner = inner  # type: ignore[attr-defined]
    assert return_broker(journal, 1)
    assert {name for name, _ in held_objects(journal.refresh(), 1)} == names


class GoesWhenListed(Wrapper):
    """The disk of a broker, which is unmounted when somebody lists it."""

    def __init__(self, inner: ObjectStore, root: Path) -> None:
        super().__init__(inner)
        self._root = root

    def list(self, prefix: str) -> list[str]:
        self._root.rename(self._root.with_name("away"))
        return self.inner.list(prefix)


def test_a_disk_that_goes_after_its_return_is_for_the_next_check(log: Log, tmp_path: Path) -> None:
    """The return is done by then, and writers may have used the root since: it returns True."""
    root = tmp_path / "disk1"
    journal = with_copies(log, [root, tmp_path / "disk2"])
    other = spark_log.connect(tmp_path / "log")
    commit_copies(log, "t", [b"a"])
    fence_broker(journal, 1, "test")

    def goes() -> None:
        commit_copies(other, "t", [b"b"])
        root.rename(tmp_path / "away")

    store = journal.metadata
    store.inner = ThenHappens(store.inner, goes)  # type: ignore[attr-defined]
    assert return_broker(journal, 1)
    assert not journal.refresh().brokers[1].fenced and len([*held_objects(journal.state, 1)]) == 2


class ThenHappens(Wrapper):
    """A store with which something happens after the next record is put."""

    def __init__(self, inner: ObjectStore, happens: Callable[[], object]) -> None:
        super().__init__(inner)
        self._happens: Callable[[], object] | None = happens

    def put_new(self, key: str, data: bytes) -> bool:
        is_new, happens = self.inner.put_new(key, data), self._happens
        if happens is not None:
            self._happens = None
            happens()
        return is_new


def test_a_commit_names_no_copy_on_a_broker_that_is_fenced(log: Log, tmp_path: Path) -> None:
    """A return looks for the copies that were there before: none may be added while it does."""
    journal = with_copies(log, [tmp_path / "disk1", tmp_path / "disk2"])
    old = commit_copies(log, "t", [b"a"])
    epoch = journal.state.brokers[1].epoch
    fence_broker(journal, 1, "test")
    new = commit_copies(log, "t", [b"b"])
    journal.propose(Report(record=HeldRecord(copies=(Copy(new, 1, epoch),))))
    assert {name for name, _ in held_objects(journal.refresh(), 1)} == {old}
    assert return_broker(journal, 1) and {name for name, _ in held_objects(journal.state, 1)} == {old}


def test_a_return_of_another_disk_is_refused(log: Log, tmp_path: Path) -> None:
    roots = [tmp_path / "disk1", tmp_path / "disk2"]
    journal = with_copies(log, roots)
    commit_copies(log, "t", [b"a"])
    fence_broker(journal, 1)
    roots[0].rename(tmp_path / "away")
    with pytest.raises(WrongRoot, match="is its disk mounted"):
        return_broker(journal, 1)
    shutil.copytree(roots[1], roots[0])
    with pytest.raises(WrongRoot, match="another disk is in its place"):
        return_broker(journal, 1)
    assert journal.refresh().brokers[1].fenced


def test_a_deep_return_finds_truncated_objects(log: Log, tmp_path: Path) -> None:
    roots = [tmp_path / "disk1", tmp_path / "disk2"]
    journal = with_copies(log, roots)
    name = commit_copies(log, "t", [b"a"])
    fence_broker(journal, 1)
    path = roots[0] / journal.state.brokers[1].directory / name
    os.truncate(path, path.stat().st_size - 1)
    assert return_broker(journal, 1, deep=True)
    assert not list(held_objects(journal.state, 1))


def test_a_commit_during_a_return_is_looked_for(log: Log, tmp_path: Path) -> None:
    """A copy under the old epoch, which is not there, is recorded between the listing and the return."""
    roots = [tmp_path / "disk1", tmp_path / "disk2"]
    journal = with_copies(log, roots)
    name = commit_copies(log, "t", [b"a"], held=(0, 2))
    fence_broker(journal, 1)
    epoch = journal.state.brokers[1].epoch
    other = spark_log.connect(log.url)

    class Late:
        """The roots of a journal; a process that lists one is late."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, what: str) -> Any:
            return getattr(self.inner, what)

        def list(self, prefix: str) -> list[str]:
            found: list[str] = self.inner.list(prefix)
            other.journal.propose(Report(record=HeldRecord(copies=(Copy(name, 1, epoch),))))
            return found

    class LateRoots(Journal):
        @property
        def roots(self) -> Any:
            inner = super().roots

            class Proxy:
                def __getitem__(self, broker: int) -> Any:
                    return Late(inner[broker])

                def __getattr__(self, what: str) -> Any:
                    return getattr(inner, what)

            return Proxy()

    late = LateRoots(journal.metadata_log, journal.stores)
    assert return_broker(late, 1)
    assert not list(held_objects(journal.refresh(), 1))
