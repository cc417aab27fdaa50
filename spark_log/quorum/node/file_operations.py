"""The operations on the files of one directory, so that a test can stop after each of them.

Nothing is durable before `sync`, and no name before `sync_names`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EISDIR, ENOSPC
from typing import Protocol

from spark_log.errors import NoSpace, StorageError

FULL = (ENOSPC, EDQUOT)


class Files(Protocol):
    """One directory.  Operations raise StorageError; a file that is missing, FileNotFoundError."""

    @property
    def path(self) -> str:
        """The path of the directory, for messages."""

    def names(self) -> list[str]:
        """The names of the files, sorted: what else is in the directory is passed over."""

    def size(self, name: str) -> int: ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Fewer bytes if the file ends earlier."""

    def append(self, name: str, data: bytes) -> None:
        """Creates the file if it is missing.  Raises NoSpace if the disk is full; a part may have been written."""

    def truncate(self, name: str, size: int) -> None: ...

    def sync(self, name: str) -> None:
        """Make the content and the length durable.  An error is final: nobody knows what the disk has."""

    def rename(self, old: str, new: str) -> None:
        """Replaces `new`."""

    def delete(self, name: str) -> None: ...

    def sync_names(self) -> None:
        """Make creations, renames and deletions durable."""


class LocalFiles:
    """The files of a directory of the operating system.  Each method may be called from any thread, but the same file
    is not changed by two threads.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._appending: dict[str, int] = {}
        """File descriptors of files that were appended to."""

    def names(self) -> list[str]:
        with self._errors("."), os.scandir(self.path) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())

    def size(self, name: str) -> int:
        with self._errors(name):
            return os.stat(self._at(name)).st_size

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with self._errors(name), open(self._at(name), "rb") as file:
            file.seek(start)
            return file.read() if length is None else file.read(length)

    def append(self, name: str, data: bytes) -> None:
        view = memoryview(data)
        with self._errors(name):
            descriptor = self._open(name)
            while view:
                view = view[os.write(descriptor, view) :]

    def truncate(self, name: str, size: int) -> None:
        with self._errors(name):
            os.ftruncate(self._open(name), size)

    def sync(self, name: str) -> None:
        descriptor = self._open(name)
        with self._errors(name, is_sync=True):
            _sync(descriptor)
        if os.fstat(descriptor).st_nlink == 0:
            raise StorageError(f"{self._at(name)} was deleted while it was used")

    def rename(self, old: str, new: str) -> None:
        self._close(old)
        self._close(new)
        with self._errors(new):
            os.replace(self._at(old), self._at(new))

    def delete(self, name: str) -> None:
        self._close(name)
        with self._errors(name):
            os.unlink(self._at(name))

    def sync_names(self) -> None:
        with self._errors(".", is_sync=True):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _sync(descriptor)
            finally:
                os.close(descriptor)

    def forget_cached(self) -> None:
        """Let reads come from the disk.

        After a failed fsync of an earlier process, the operating system has what the disk lacks, and calls it written.
        """
        if not hasattr(os, "posix_fadvise"):  # macOS
            return
        for name in self.names():
            with self._errors(name):
                descriptor = os.open(self._at(name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)

    def close(self) -> None:
        for name in list(self._appending):
            self._close(name)

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _open(self, name: str) -> int:
        if name not in self._appending:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._appending[name] = os.open(self._at(name), flags, 0o600)
        return self._appending[name]

    def _close(self, name: str) -> None:
        descriptor = self._appending.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    @contextmanager
    def _errors(self, name: str, is_sync: bool = False) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            kind = NoSpace if error.errno in FULL and not is_sync else StorageError
            what = "fsync of " if is_sync else ""
            cure = "; a file of the node has this name: move the directory elsewhere" if error.errno == EISDIR else ""
            raise kind(error.errno, f"{what}{self._at(name)} failed: {error.strerror or error}{cure}") from error


def _sync(descriptor: int) -> None:
    """To the disk itself: on macOS `fsync` ends at the disk's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        fcntl.fcntl(descriptor, full)
    else:
        os.fsync(descriptor) if not hasattr(os, "fdatasync") else os.fdatasync(descriptor)
