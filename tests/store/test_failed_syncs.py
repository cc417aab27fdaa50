"""A sync to a disk fails: nothing that depends on it is acknowledged, and the process does not trust the disk again."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulation.harness.failing_syncs import FailingSyncs
from spark_log.client.log import Log
from spark_log.errors import NoSpace, SparkLogError, SyncFailed
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from spark_log.store.disk_sync import DISKS, DiskSyncs, Syncs, TrustedDisks
from spark_log.store.local import LocalStore

FOLDER, FILE = "*/meta/log/", "*/meta/log/.tmp-*"


@pytest.fixture
def syncs() -> FailingSyncs:
    return FailingSyncs()


@pytest.fixture
def store(tmp_path: Path, syncs: FailingSyncs) -> LocalStore:
    return LocalStore(str(tmp_path / "log"), disks=TrustedDisks(syncs))


@pytest.mark.parametrize("make", [DiskSyncs, FailingSyncs])
def test_files_and_folders_are_synced(make: Callable[[], Syncs], tmp_path: Path) -> None:
    """The contract of `Syncs`: an open file or folder is synced, and one that is not open is an error."""
    (tmp_path / "file").write_bytes(b"x")
    for sync, path in ((make().file, tmp_path / "file"), (make().folder, tmp_path)):
        descriptor = os.open(path, os.O_RDONLY)
        sync(descriptor, str(path))
        os.close(descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            sync(descriptor, str(path))


# Promise: storage-failures.md#when-a-sync-to-the-disk-fails
@pytest.mark.parametrize(("at", "maybe"), [(FOLDER, True), (FILE, False)])
def test_a_commit_whose_sync_fails_is_not_acknowledged(
    store: LocalStore, syncs: FailingSyncs, at: str, maybe: bool
) -> None:
    """Nor any later one, though its syncs would succeed: not a repeat of it either, which the log has by now."""
    log = Log(Journal.open(store, create=True))
    log.append("t", [{"value": "0"}])
    syncs.fails_at = at
    with pytest.raises(
        SyncFailed, match=f"fsync of .*{'/log' if maybe else '.tmp-'}.* failed: Input/output error"
    ) as failed:
        log.append("t", [{"value": "1"}])
    assert failed.value.maybe_applied == maybe and not failed.value.retriable and syncs.failures == 1
    for change in (lambda: log.append("t", [{"value": "2"}]), lambda: maintain_once(log)):
        with pytest.raises(SparkLogError, match="this process writes nothing to this disk any more"):
            change()
    assert log.read("t").num_rows == 1 + maybe


def test_a_commit_whose_object_is_not_synced_is_not_made(store: LocalStore, syncs: FailingSyncs) -> None:
    """Whether its content or its name is not: nothing names it."""
    log = Log(Journal.open(store, create=True))
    log.append("t", [{"value": "0"}])
    syncs.fails_at = "*/data/*"
    with pytest.raises(SyncFailed) as failed:
        log.append("t", [{"value": "1"}])
    assert not failed.value.maybe_applied and log.read("t").num_rows == 1


# Promise: storage-failures.md#when-a-sync-to-the-disk-fails
@pytest.mark.parametrize("change", ["put", "put_new", "delete", "fingerprint"])
def test_a_disk_is_not_trusted_after_a_failed_sync(store: LocalStore, syncs: FailingSyncs, change: str) -> None:
    """By any store of the process; objects can still be read, and a new process is not concerned."""
    store.put("data/1/a", (b"a",))
    syncs.fails_at = "*/data/1/*"
    with pytest.raises(SyncFailed):
        store.put("data/1/b", (b"b",))
    other: Any = LocalStore(os.path.dirname(store.root), disks=store._disks)
    arguments = {"put": ("x/y", (b"c",)), "put_new": ("x/y", b"c"), "delete": (["x"],)}
    with pytest.raises(SyncFailed, match="start the process again") as failed:
        getattr(other, change)(*arguments.get(change, ()))
    assert not failed.value.maybe_applied
    assert store.get("data/1/a") == b"a" and store.list("data/")
    LocalStore(store.root).put("data/1/c", (b"c",))


def test_the_name_of_a_new_folder_is_synced_too(store: LocalStore, syncs: FailingSyncs) -> None:
    """In a thread, beside the file."""
    syncs.fails_at = f"{store.root}/"
    with pytest.raises(SyncFailed) as failed:
        store.put_new("meta/log/1", b"x")
    assert failed.value.maybe_applied


def test_a_full_disk_is_trusted(store: LocalStore, syncs: FailingSyncs) -> None:
    """If a file does not fit: it has no name, and is written again.  A folder must have its names."""
    syncs.number = errno.ENOSPC
    syncs.fails_at = FILE
    with pytest.raises(NoSpace):
        store.put_new("meta/log/1", b"x")
    assert store.put_new("meta/log/1", b"x")
    syncs.fails_at = FOLDER
    with pytest.raises(SyncFailed):
        store.put_new("meta/log/2", b"x")


def test_a_file_system_that_cannot_sync_folders_is_trusted(store: LocalStore, syncs: FailingSyncs) -> None:
    """It makes names durable itself."""
    syncs.number, syncs.fails_at = errno.EINVAL, FOLDER
    assert store.put_new("meta/log/1", b"x") and syncs.failures == 1 and store.put_new("meta/log/2", b"x")


def test_a_store_that_is_sent_to_another_process_trusts_the_disks_there(store: LocalStore) -> None:
    """Another machine has other disks."""
    assert pickle.loads(pickle.dumps(LocalStore(store.root)))._disks is DISKS
