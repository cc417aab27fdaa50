"""The promise of `durability`: when a write is reported as done, and the system calls before that."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from spark_log.runtime.threads import ReusedThreads
from spark_log.store import local
from spark_log.store.local import LocalStore
from tests.client.logs import in_child

NAMED = {os.fsync: "fsync", os.fdatasync: "fsync", os.link: "name", os.rename: "name", os.replace: "name"}


def calls_of(write: Callable[[], object]) -> list[str]:
    """The system calls of a write, in order.  A sync has the kind of its target: `fsync file`.

    Threads that sync folders begin meanwhile, so that they are watched.
    """
    calls: list[str] = []

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called in NAMED:
            name = NAMED[called]
            kind = "" if name == "name" else f" {'folder' if os.path.isdir(opened(frame.f_locals['fd'])) else 'file'}"
            calls.append(name + kind)

    before, threads = sys.getprofile(), LocalStore.syncs
    LocalStore.syncs = ReusedThreads("pylog-sync")
    sys.setprofile(watch)
    threading.setprofile(watch)
    try:
        write()
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
        LocalStore.syncs = threads
    return calls


def watched(root: Path) -> LocalStore:
    """Its threads begin in the test, so that they are watched."""

    class Watched(LocalStore):
        syncs = ReusedThreads("pylog-sync")

    return Watched(str(root))


def opened(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


WRITES: dict[str, Callable[[LocalStore], object]] = {
    "put": lambda store: store.put("data/a", [b"bytes"]),
    "put_new": lambda store: store.put_new("data/a", b"bytes"),
}


# Promise: storage.md#durability
@pytest.mark.parametrize("kind", WRITES)
def test_durability_disk_syncs_a_file_before_its_name_and_the_folder_after(tmp_path: Path, kind: str) -> None:
    """A name that survives a power cut has all of its bytes, and a write that was reported has its name."""
    store = LocalStore(str(tmp_path))
    store.put("data/b", [b"bytes"])
    assert calls_of(lambda: WRITES[kind](store)) == ["fsync file", "name", "fsync folder"]


# Promise: storage.md#durability
@pytest.mark.parametrize("kind", WRITES)
def test_durability_disk_syncs_new_folders(tmp_path: Path, kind: str) -> None:
    """Each in its parent, before the write is reported, and the file as in a folder that exists."""
    calls = calls_of(lambda: WRITES[kind](watched(tmp_path / "log")))
    assert sorted(calls) == ["fsync file", "fsync folder", "fsync folder", "fsync folder", "name"]
    assert calls.index("fsync file") < calls.index("name") < len(calls) - 1
    assert calls[calls.index("name") + 1 :].count("fsync folder") >= 1


# Promise: storage.md#durability
@pytest.mark.parametrize("kind", WRITES)
def test_durability_disk_syncs_folders_that_another_process_made(tmp_path: Path, kind: str) -> None:
    """It may have been killed between making them and syncing their names, which a power cut then takes with all that
    is in them.  A folder that was removed and made again is another one.
    """
    (tmp_path / "log" / "data").mkdir(parents=True)
    calls = calls_of(lambda: WRITES[kind](watched(tmp_path / "log")))
    assert sorted(calls) == ["fsync file", "fsync folder", "fsync folder", "fsync folder", "name"]
    (tmp_path / "log" / "data").rename(tmp_path / "before")
    (tmp_path / "log" / "data").mkdir()
    calls = calls_of(lambda: WRITES[kind](watched(tmp_path / "log")))
    assert sorted(calls) == ["fsync file", "fsync folder", "fsync folder", "name"]


def test_durability_disk_syncs_a_folder_with_the_inode_of_one_that_was_removed(tmp_path: Path) -> None:
    """Another process has made it: `mkdir` often takes the inode of the last folder that was removed."""
    store, folder = LocalStore(str(tmp_path / "log")), tmp_path / "log" / "data"
    store.put("data/a", [b"bytes"])
    before = os.stat(folder).st_ino
    store.delete(["data/a"])
    folder.mkdir(parents=True)
    if os.stat(folder).st_ino == before and not generation(folder):
        pytest.skip("this file system does not tell how often an inode was used")
    assert calls_of(lambda: store.put("data/a", [b"bytes"])).count("fsync folder") > 1


def generation(folder: Path) -> int:
    handle = os.open(folder, os.O_RDONLY)
    try:
        return local._generation(handle)
    finally:
        os.close(handle)


def test_the_folder_above_a_root_may_be_closed(tmp_path: Path) -> None:
    """An administrator made the root, and lets pylog only pass through the folder above it."""
    (tmp_path / "log").mkdir()
    os.chmod(tmp_path, 0o311)
    try:
        watched(tmp_path / "log").put("data/a", [b"bytes"])
    finally:
        os.chmod(tmp_path, 0o755)


def test_a_disk_that_hangs_does_not_delay_the_end_of_the_process(tmp_path: Path) -> None:
    """Names are synced in a daemon thread."""
    seen = list[bool]()

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called is os.fsync:
            seen.append(threading.current_thread().daemon)

    threading.setprofile(watch)
    try:
        watched(tmp_path / "log").put("data/a", [b"bytes"])
    finally:
        threading.setprofile(None)
    assert seen == [True, True]


def test_a_forked_child_syncs_new_folders(tmp_path: Path) -> None:
    """The threads that did so before belong to the parent."""
    store = LocalStore(str(tmp_path))
    store.put("data/1/a", [b"bytes"])
    assert in_child(lambda: store.put("data/2/a", [b"bytes"])) == 0


# Promise: storage.md#durability
@pytest.mark.parametrize("kind", WRITES)
def test_durability_os_syncs_nothing(tmp_path: Path, kind: str) -> None:
    """The operating system writes when it likes, as with Kafka."""
    assert calls_of(lambda: WRITES[kind](LocalStore(str(tmp_path), durability="os"))) == ["name"]
