"""Stores on disks that are mounted and unmounted: each write looks at the guard's file, and stays in that folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_log.errors import StorageError
from spark_log.store.base import ObjectStore
from spark_log.store.local import Guard, LocalStore
from tests.store.test_stores import TestLocalDisk as LocalDiskTests


def expect_mine(data: bytes | None) -> None:
    if data != b"mine":
        raise StorageError(f"the disk has {data!r}")


def store(disk: Path, meanwhile: Callable[[], object] = lambda: None) -> LocalStore:
    """meanwhile:  called after each look at the guard's file."""

    def check(data: bytes | None) -> None:
        expect_mine(data)
        meanwhile()

    return LocalStore(str(disk / "dir"), "disk", Guard("meta/which", check))


class TestGuardedDisk(LocalDiskTests):
    @pytest.fixture
    def store(self, disk: Path) -> ObjectStore:
        return LocalStore(str(disk / "dir"), "disk", Guard("meta/which", expect_mine))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk" / "meta").mkdir(parents=True)
    (tmp_path / "disk" / "meta" / "which").write_bytes(b"mine")
    return tmp_path / "disk"


def test_objects_are_put_listed_and_deleted(disk: Path) -> None:
    guarded = store(disk)
    guarded.put("data/1/x", [b"abc"])
    assert guarded.put_new("data/1/y", b"d") and not guarded.put_new("data/1/y", b"e")
    assert guarded.list("data/") == ["data/1/x", "data/1/y"]
    assert (guarded.get("data/1/x"), guarded.size("data/1/y")) == (b"abc", 1)
    (disk / "dir" / "data" / "1" / ".tmp-1").touch()
    assert guarded.sweep("data/", 10**15) == (1, None)
    guarded.delete(["data/1/x", "data/1/y", "data/1/gone"])
    assert sorted(path.name for path in disk.iterdir()) == ["dir", "meta"]
    assert list((disk / "dir").iterdir()) == []


def test_nothing_is_made_where_the_file_is_not(disk: Path, tmp_path: Path) -> None:
    disk.rename(tmp_path / "unmounted")
    for _ in range(2):
        with pytest.raises(StorageError, match="has None"):
            store(disk).put("data/1/x", [b"abc"])
        with pytest.raises(StorageError, match="has None"):
            store(disk).delete(["data/1/x"])
        assert not disk.exists() or list(disk.iterdir()) == []
        disk.mkdir(exist_ok=True)


def test_a_write_stays_on_the_disk_that_was_looked_at(disk: Path, tmp_path: Path) -> None:
    """It is unmounted, and another one is in its place, between the look and the write."""

    def swapped() -> None:
        disk.rename(tmp_path / "other")
        (disk / "dir" / "data" / "1").mkdir(parents=True)
        (disk / "dir" / "data" / "1" / "x").touch()

    store(disk, swapped).put("data/1/x", [b"abc"])
    assert (tmp_path / "other" / "dir" / "data" / "1" / "x").read_bytes() == b"abc"
    assert (disk / "dir" / "data" / "1" / "x").read_bytes() == b""
    (disk / "meta").mkdir()
    (disk / "meta" / "which").write_bytes(b"mine")
    moved = tmp_path / "moved"
    store(disk, lambda: disk.rename(moved)).delete(["data/1/x"])
    assert not (moved / "dir" / "data").exists()
    assert not disk.exists()


def test_a_failed_put_leaves_nothing(disk: Path) -> None:
    def chunks():  # type: ignore[no-untyped-def]
        yield b"abc"
        raise StorageError("the source failed")

    with pytest.raises(StorageError, match="the source failed"):
        store(disk).put("data/1/x", chunks())
    assert not [path for path in disk.rglob("*") if path.is_file() and path.name != "which"]
