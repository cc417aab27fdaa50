"""A log in a directory: local disks and network mounts.

Put-if-absent is: write a temporary file, fsync, `os.link` it to the name (which fails if the name exists), fsync the
directory.  fsspec's own exclusive create is not exclusive here, so this goes to the operating system itself.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_log.errors import InvalidRequest, ObjectNotFound, StorageError
from spark_log.store.base import Bytes, check_key

TEMPORARY = ".tmp-"
"""Files that begin so are being written, or were when their writer died."""
CURES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "check the permissions of the directory",
    errno.EPERM: "check the permissions of the directory",
    errno.ENOTDIR: "a file is in the way of a directory",
    errno.EEXIST: "a file is in the way of a directory",
}


class LocalStore:
    """Objects are files under `root`.

    durability:  "disk" syncs file and directory before a put returns; "os" leaves that to the operating system.
    """

    local = True

    def __init__(self, root: str, durability: str = "disk") -> None:
        if durability not in ("disk", "os"):
            raise InvalidRequest(f"durability: {durability!r} is not 'disk' or 'os'")
        self.root = os.path.abspath(os.path.expanduser(root))
        self._sync = durability == "disk"

    @property
    def url(self) -> str:
        return Path(self.root).as_uri()

    def fingerprint(self) -> str:
        return "local link 1"

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with self._said(key):
            try:
                fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise ObjectNotFound(f"{self.root}/{key} is not there", key=key) from None
            try:
                size = os.fstat(fd).st_size
                end = size if end is None else min(end, size)
                return _read(fd, start, end)
            finally:
                os.close(fd)

    def size(self, key: str) -> int | None:
        with self._said(key):
            try:
                return os.stat(self._path(key)).st_size
            except FileNotFoundError:
                return None

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._write(key, chunks, self._rename)

    def put_new(self, key: str, data: bytes) -> bool:
        assert data, f"an empty object {key} cannot be put exclusively on every store"
        return self._write(key, (data,), self._link)

    def list(self, prefix: str) -> list[str]:
        with self._said(prefix):
            return sorted(self._walk(prefix.rstrip("/")))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._said(key):
                try:
                    os.unlink(self._path(key))
                except FileNotFoundError:
                    continue

    def _path(self, key: str) -> str:
        return f"{self.root}/{check_key(key)}"

    def _walk(self, folder: str) -> Iterator[str]:
        try:
            entries = os.scandir(f"{self.root}/{folder}")
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(f"{folder}/{entry.name}")
                elif not entry.name.startswith(TEMPORARY):
                    yield f"{folder}/{entry.name}"

    def _write(self, key: str, chunks: Iterable[Bytes], place: Callable[[str, str], bool]) -> bool:
        """Write a temporary file, then give it its name by `place`.  Nothing is left behind if that fails."""
        target = self._path(key)
        folder = os.path.dirname(target)
        temporary = f"{folder}/{TEMPORARY}{uuid.uuid4().hex}"
        with self._said(key):
            fd = self._create(temporary, folder)
            try:
                try:
                    for chunk in chunks:
                        _write_all(fd, memoryview(chunk))
                    if self._sync:
                        os.fsync(fd)
                finally:
                    os.close(fd)
                placed = place(temporary, target)
            except BaseException:
                _unlink(temporary)
                raise
            if self._sync:
                _sync_folder(folder)
        return placed

    def _create(self, path: str, folder: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            self._make_folders(folder)
            return os.open(path, flags, 0o666)

    def _make_folders(self, folder: str) -> None:
        """Make a directory and its parents, each durably in its own parent."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self._make_folders(parent)
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        if self._sync:
            _sync_folder(parent)

    def _rename(self, temporary: str, target: str) -> bool:
        os.rename(temporary, target)
        return True

    def _link(self, temporary: str, target: str) -> bool:
        """Over NFS a link may report an error though it was made: then the file has two names."""
        try:
            os.link(temporary, target)
            created = True
        except OSError as error:
            created = os.stat(temporary).st_nlink == 2
            if not created and not isinstance(error, FileExistsError):
                raise
        os.unlink(temporary)
        return created

    @contextmanager
    def _said(self, key: str) -> Iterator[None]:
        """Errors of the operating system as a sentence."""
        try:
            yield
        except ObjectNotFound:
            raise
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            cure = CURES.get(error.errno or 0)
            hint = f"; {cure}" if cure else ""
            raise StorageError(f"{self.root}/{key}: {error.strerror or error}{hint}") from error


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


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
