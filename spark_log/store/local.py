"""A log in a directory: local disks and network mounts.

Put-if-absent is: write a temporary file, fsync, `os.link` it to the name (which fails if the name exists), fsync the
directory.  fsspec's exclusive create is not exclusive on local disks, so this module calls the operating system.

A disk may be mounted or unmounted at any time.  So a store with a guard writes and deletes by a handle of the folder in
which it has just read the guard's file.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import platform
import stat
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from spark_log.errors import (
    AccessDenied,
    InvalidRequest,
    NoSpace,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
    SyncFailed,
    WrongRoot,
)
from spark_log.runtime.threads import ReusedThreads
from spark_log.store.base import Bytes, Swept, check_key, check_not_empty, check_prefix, split_prefix
from spark_log.store.disk_sync import DISKS, FULL, TrustedDisks

TEMPORARY = ".tmp-"
"""Prefix of files that are being written, or were when their writer died."""
OF_A_DISK = "lost+found"
"""In the folder at which a disk is mounted: only an administrator may read it."""
CURES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "check the permissions of the directory",
    errno.EPERM: "check the permissions of the directory",
    errno.ENOTDIR: "a file is in the way of a directory",
    errno.EEXIST: "a file is in the way of a directory",
    errno.EISDIR: "a file of the log has this name: see what is there, and remove it or move it elsewhere",
}
GUARD_BYTES_MAX = 1 << 16
GET_GENERATION = 0x80087601
"""`FS_IOC_GETVERSION` of Linux on a 64-bit machine.  Elsewhere it is refused."""
DENIED = (errno.EACCES, errno.EPERM)
TRANSIENT = frozenset(
    (
        *(errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY),
        *(errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENOTCONN),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
    )
)
"""A failing disk, an unreachable file server: a retry, which writes a new file, may succeed."""
CREATE_TRIES = 100
"""Another process may remove an empty directory before a file is created in it."""


class Guard(NamedTuple):
    """How a store knows the folder above its root."""

    key: str
    """A file there."""
    check: Callable[[bytes | None], object]
    """Raises StorageError unless the file has the right content; None: it is not there."""


FolderId = tuple[int, int, int]
"""Device, inode, and its generation: a folder often gets the inode of one that was removed."""
SYNCED_FOLDERS_MAX = 4096


class _Base(NamedTuple):
    """Where paths of writes begin."""

    handle: int | None
    """A directory; None: they are absolute."""
    root: str
    """The path of the store's root."""


class LocalStore:
    """Objects are files under `root`.  A directory or a pipe with the name of an object is not one; a put there fails.

    durability:  "disk" syncs file and directory before a put returns; "os" leaves that to the operating system.
    guard:       None: the root is created when it is needed, wherever its path leads, unless it has begun.
    has_begun:   the root has objects; known, too, once this store has read or put one.  If such a folder is gone, it
                 was removed or its disk is no longer mounted, and no put makes it again.
    disks:       None: those of this process.  After a failed sync, nothing is written to its disk or deleted there, and
                 changes are refused.  Reads continue.
    """

    local = True
    syncs: ClassVar[ReusedThreads] = ReusedThreads("pylog-sync")
    """Sync the names of new directories.  Not a pool of `concurrent.futures`: Python waits for its threads at exit, and
    the disk may hang.
    """
    synced: ClassVar[dict[str, FolderId]] = {}
    """Folders whose names, and those of their parents, this process has made durable.  A folder that another thread or
    process made may not be durable yet, or never become so: its maker may have been killed before its sync.
    """

    def __init__(
        self,
        root: str,
        durability: str = "disk",
        guard: Guard | None = None,
        disks: TrustedDisks | None = None,
        *,
        has_begun: bool = False,
    ) -> None:
        if durability not in ("disk", "os"):
            raise InvalidRequest(f"durability: {durability!r} is not 'disk' or 'os'")
        self.root = os.path.abspath(os.path.expanduser(root))
        self._sync = durability == "disk"
        self._guard = guard
        self._given_disks = disks
        self._has_begun = has_begun

    @property
    def _disks(self) -> TrustedDisks:
        return self._given_disks or DISKS  # of the process in which the store is used, also after it was sent there

    @property
    def url(self) -> str:
        return Path(self.root).as_uri()

    def fingerprint(self) -> str:
        self._check_trusted()
        return "local link 1"

    def _check_trusted(self) -> None:
        with self._storage_errors(""):
            self._disks.check(self.root)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with self._storage_errors(key):
            try:
                fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a reader of a pipe waits
            except FileNotFoundError:
                raise ObjectNotFound(f"{self.root}/{key} is not there", key=key) from None
            try:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise ObjectNotFound(f"{self.root}/{key} is not a file", key=key)
                self._has_begun = True
                end = found.st_size if end is None else min(end, found.st_size)
                return _read(fd, start, end)
            finally:
                os.close(fd)

    def size(self, key: str) -> int | None:
        with self._storage_errors(key):
            try:
                found = os.stat(self._path(key))
            except FileNotFoundError:
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        try:
            self._write(key, chunks, _rename)
        except SyncFailed as error:
            error.maybe_applied = False  # no commit names the object
            raise

    def put_new(self, key: str, data: bytes) -> bool:
        check_not_empty(key, data)
        return self._write(key, (data,), _link)

    def list(self, prefix: str) -> list[str]:
        with self._storage_errors(prefix):
            return sorted(self._walk(*split_prefix(prefix)))

    def sizes(self, prefix: str) -> dict[str, int]:
        return {key: size for key in self.list(prefix) if (size := self.size(key)) is not None}

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        self._check_trusted()  # what takes the place of these objects may be lost
        with self._base() as base:
            for key in keys:
                path = f"{base.root}/{check_key(key)}"
                with self._storage_errors(key), suppress(FileNotFoundError):
                    os.unlink(path, dir_fd=base.handle)
                folders.add(os.path.dirname(path))
            for folder in folders:
                _prune(base, folder)

    def written_ms(self, key: str) -> int | None:
        """By the clock of this machine's kernel, or of the file server on a network mount."""
        with self._storage_errors(key):
            try:
                return os.stat(self._path(key)).st_mtime_ns // 1_000_000
            except FileNotFoundError:
                return None

    def sweep(self, prefix: str, before_ms: int) -> Swept:
        folder = f"{self.root}/{check_prefix(prefix)[:-1]}"
        with self._storage_errors(prefix):
            found = {path: _touched_ms(path) for path in _unfinished(folder)}
        old = [path for path, touched_ms in found.items() if touched_ms < before_ms]
        with self._base() as base:
            for path in old:
                there = base.root + path.removeprefix(self.root)
                _unlink(base, there)
                _prune(base, os.path.dirname(there))
        left = [touched_ms for touched_ms in found.values() if before_ms <= touched_ms < math.inf]
        return Swept(len(old), min(left, default=None))

    def _path(self, key: str) -> str:
        return f"{self.root}/{check_key(key)}"

    @contextmanager
    def _base(self) -> Iterator[_Base]:
        """Where paths of a write begin.  Raises what the guard's check raises."""
        if self._guard is None:
            yield _Base(None, self.root)
            return
        folder, name = os.path.split(self.root)
        handle = self._open_folder(folder)
        try:
            self._guard.check(None if handle is None else self._read_guard(handle))
            assert handle is not None, "the check refuses a folder without the file"
            yield _Base(handle, name)
        finally:
            if handle is not None:
                os.close(handle)

    def _open_folder(self, path: str) -> int | None:
        with self._storage_errors(""):
            try:
                return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _read_guard(self, handle: int) -> bytes | None:
        assert self._guard is not None, "it is read for the check"
        with self._storage_errors(self._guard.key):
            try:
                fd = os.open(self._guard.key, os.O_RDONLY | os.O_CLOEXEC, dir_fd=handle)
            except FileNotFoundError:
                return None
            try:
                return os.pread(fd, GUARD_BYTES_MAX, 0)
            finally:
                os.close(fd)

    def _walk(self, folder: str, names: str = "") -> Iterator[str]:
        """The objects below a folder, in its entries whose names begin so."""
        try:
            entries = os.scandir(f"{self.root}/{folder}")
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                if not entry.name.startswith(names) or entry.name == OF_A_DISK:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(f"{folder}/{entry.name}")
                elif not entry.name.startswith(TEMPORARY) and entry.is_file():  # a reader of a pipe waits
                    yield f"{folder}/{entry.name}"

    def _write(self, key: str, chunks: Iterable[Bytes], place: Callable[[_Base, str, str], bool]) -> bool:
        """Write a temporary file, then rename or link it with `place`.  A failure leaves nothing behind."""
        self._check_trusted()
        with self._base() as base:
            return self._write_at(base, key, chunks, place)

    def _write_at(
        self, base: _Base, key: str, chunks: Iterable[Bytes], place: Callable[[_Base, str, str], bool]
    ) -> bool:
        target = f"{base.root}/{check_key(key)}"
        folder = os.path.dirname(target)
        temporary = f"{folder}/{TEMPORARY}{uuid.uuid4().hex}"
        with self._storage_errors(key):
            fd, parents = _create(base, temporary, folder, self._base_of_folders)
            are_synced: Callable[[], object] = _nothing
            try:
                with _closing(fd):
                    if self._sync:
                        are_synced = self._sync_names(base, folder, parents)
                    self._fill(fd, chunks)
                    if self._sync:
                        self._disks.file(fd, temporary)
                placed = place(base, temporary, target)
            except BaseException:
                _unlink(base, temporary)
                with suppress(OSError):
                    are_synced()  # it uses the handle
                raise
        self._has_begun = True
        if self._sync:
            with self._storage_errors(key, placed=True):
                try:
                    _sync_folders(self._disks, base, (folder,))
                finally:
                    are_synced()
        return placed

    @contextmanager
    def _base_of_folders(self, base: _Base) -> Iterator[_Base]:
        """Where new folders are made: in the root as it is now, if it was there.  Raises WrongRoot if it is gone."""
        if not self._has_begun or self._guard is not None:
            yield base
            return
        handle = self._open_folder(self.root)
        if handle is None:
            raise WrongRoot(
                f"{self.url} is gone on {platform.node()}, and nothing was written: is its disk mounted? All machines "
                "that use the log must have the same folder under this path"
            )
        try:
            yield _Base(handle, ".")
        finally:
            os.close(handle)

    def _sync_names(self, base: _Base, folder: str, made_in: Sequence[str]) -> Callable[[], object]:
        """Make the name of a folder durable, and those of its parents; the result waits for it."""
        new = self._not_synced(base, folder)
        parents = dict.fromkeys((*made_in, *_parents_to_sync(base, new)))
        wait: Callable[[], object] = _nothing
        if parents:
            wait = _sync_meanwhile(self.syncs, partial(_sync_folders, self._disks, base, tuple(parents)))
        if not new:
            return wait

        def wait_and_remember() -> None:
            wait()
            if len(self.synced) + len(new) > SYNCED_FOLDERS_MAX:
                self.synced.clear()
            self.synced.update((self._known_as(base, path), found) for path, found in new.items())

        return wait_and_remember

    def _not_synced(self, base: _Base, folder: str) -> dict[str, FolderId]:
        """A folder and its parents up to the root, if this process does not know that their names are durable."""
        new = dict[str, FolderId]()
        with suppress(FileNotFoundError):  # its objects are deleted on purpose
            for path in _up_to_root(base, folder):
                found = _identify(base, path)
                if self.synced.get(self._known_as(base, path)) == found:
                    break
                new[path] = found
        return new

    def _known_as(self, base: _Base, folder: str) -> str:
        return self.root + folder.removeprefix(base.root)

    def _fill(self, fd: int, chunks: Iterable[Bytes]) -> None:
        for chunk in chunks:
            _write_all(fd, memoryview(chunk))

    @contextmanager
    def _storage_errors(self, key: str, *, placed: bool = False) -> Iterator[None]:
        """Convert errors of the operating system.

        placed:  the object has its name, which is not durable.  A retry would find the name, and take it for durable.
        """
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            cure = CURES.get(error.errno or 0)
            hint = f"; {cure}" if cure else ""
            kind = StorageUnavailable if error.errno in TRANSIENT else StorageError
            if error.errno in FULL:
                kind = NoSpace
            if error.errno in DENIED:
                kind = AccessDenied
            failed = (SyncFailed if placed else kind)(f"{self.root}/{key}: {error.strerror or error}{hint}")
            failed.maybe_applied = placed
            raise failed from error


os.register_at_fork(after_in_child=LocalStore.syncs.after_fork)


def _create(
    base: _Base, path: str, folder: str, base_of_folders: Callable[[_Base], AbstractContextManager[_Base]]
) -> tuple[int, Sequence[str]]:
    """A new file, and the directories in which names of new directories must become durable."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    parents: Sequence[str] = ()
    for _ in range(CREATE_TRIES):
        with suppress(FileNotFoundError):
            return os.open(path, flags, 0o666, dir_fd=base.handle), parents
        with base_of_folders(base) as at, suppress(FileNotFoundError):
            made = _make_folders(at, at.root + folder.removeprefix(base.root))
            parents = (*parents, *(base.root + one.removeprefix(at.root) for one in made))
    return os.open(path, flags, 0o666, dir_fd=base.handle), parents


def _make_folders(base: _Base, folder: str) -> Sequence[str]:
    """Make a directory and its parents; returns the directories that got a new name."""
    parent = os.path.dirname(folder)
    try:
        _make_folder(base, folder)
    except FileNotFoundError:
        parents = _make_folders(base, parent) if parent else ()
        _make_folder(base, folder)
        return (*parents, parent)
    return (parent,)


def _make_folder(base: _Base, folder: str) -> None:
    try:
        os.mkdir(folder, dir_fd=base.handle)
    except FileExistsError:
        # Checked once: if another process removes it again, the caller retries.
        if not stat.S_ISDIR(os.stat(folder, dir_fd=base.handle).st_mode):
            raise


def _up_to_root(base: _Base, folder: str) -> Iterator[str]:
    yield folder
    while folder.strip("/") != base.root.strip("/"):
        folder = os.path.dirname(folder)
        yield folder


def _identify(base: _Base, folder: str) -> FolderId:
    handle = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=base.handle)
    try:
        found = os.fstat(handle)
        return found.st_dev, found.st_ino, _generation(handle)
    finally:
        os.close(handle)


def _generation(handle: int) -> int:
    """A number that is another one when the inode is used again; 0 if the file system does not tell."""
    try:
        return int.from_bytes(fcntl.ioctl(handle, GET_GENERATION, bytes(8)), sys.byteorder)
    except OSError:
        return 0


def _parents_to_sync(base: _Base, folders: dict[str, FolderId]) -> Iterator[str]:
    """Not the one of a root that is a mount point, nor one that only an administrator may read: others made that."""
    for folder, (device, _, _) in folders.items():
        parent = os.path.dirname(folder)
        if folder == base.root:
            is_mounted = os.stat(parent or ".", dir_fd=base.handle).st_dev != device
            if is_mounted or not os.access(parent or ".", os.R_OK, dir_fd=base.handle):
                continue
        yield parent


def _prune(base: _Base, folder: str) -> None:
    """Remove a directory that is empty, and its parents: each upload epoch has a directory."""
    while len(folder) > len(base.root):
        try:
            os.rmdir(folder, dir_fd=base.handle)
        except OSError:  # not empty, already removed, or no permission
            return
        folder = os.path.dirname(folder)


def _rename(base: _Base, temporary: str, target: str) -> bool:
    os.rename(temporary, target, src_dir_fd=base.handle, dst_dir_fd=base.handle)
    return True


def _link(base: _Base, temporary: str, target: str) -> bool:
    """Over NFS a link may report an error although it was made: then the file has two names."""
    try:
        os.link(temporary, target, src_dir_fd=base.handle, dst_dir_fd=base.handle)
        created = True
    except OSError as error:
        created = os.stat(temporary, dir_fd=base.handle).st_nlink == 2
        if not created and not isinstance(error, FileExistsError):
            raise
        if not created and _is_in_the_way(base, target):
            raise IsADirectoryError(errno.EISDIR, "this is not a file") from None
    _unlink(base, temporary)
    return created


def _is_in_the_way(base: _Base, target: str) -> bool:
    """Whether a name is not that of an object: a directory, a pipe or a broken link has it."""
    for follow in (False, True):
        try:
            mode = os.stat(target, dir_fd=base.handle, follow_symlinks=follow).st_mode
        except FileNotFoundError:
            return follow  # otherwise it was deleted meanwhile
    return not stat.S_ISREG(mode)


def _read(fd: int, start: int, end: int) -> bytes:
    data = os.pread(fd, max(end - start, 0), start)
    if len(data) >= end - start:
        return data
    parts = [data]
    while data and (start := start + len(data)) < end:
        data = os.pread(fd, end - start, start)
        parts.append(data)
    return b"".join(parts)


def _write_all(fd: int, data: memoryview) -> None:
    data = data.cast("B")
    while data:
        data = data[os.write(fd, data) :]


def _sync_folders(disks: TrustedDisks, base: _Base, folders: Sequence[str]) -> None:
    """Make names durable.  If a folder is gone, its objects were deleted on purpose."""
    for folder in folders:
        try:
            fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=base.handle)
        except FileNotFoundError:
            continue
        try:
            disks.folder(fd, folder)
        finally:
            os.close(fd)


def _sync_meanwhile(syncs: ReusedThreads, sync_folders: Callable[[], None]) -> Callable[[], object]:
    """Make names durable in a thread, while the file is written; the result waits for it.

    Most file systems then write their journal once for both: a put into a new directory takes two thirds of the time.
    """
    running, errors = threading.Lock(), list[BaseException]()
    running.acquire()

    def sync() -> None:
        try:
            sync_folders()
        except BaseException as error:  # noqa: BLE001  raised by `wait`
            errors.append(error)
        running.release()

    def wait() -> None:
        with running:
            if errors:
                raise errors[0]

    try:
        syncs.start(sync)
    except RuntimeError:  # too many threads
        return sync_folders
    return wait


def _nothing() -> None:
    pass


@contextmanager
def _closing(fd: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(fd)


def _unfinished(folder: str) -> Iterator[str]:
    """Temporary files of puts."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != OF_A_DISK:
                    yield from _unfinished(entry.path)
            elif entry.name.startswith(TEMPORARY):
                yield entry.path


def _touched_ms(path: str) -> float:
    """When a file was last written; infinity if it is gone, because its writer has finished."""
    try:
        return os.stat(path).st_mtime * 1000
    except FileNotFoundError:
        return math.inf


def _unlink(base: _Base, path: str) -> None:
    try:
        os.unlink(path, dir_fd=base.handle)
    except OSError:
        return
