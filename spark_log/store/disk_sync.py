"""Syncs of files and folders to a disk, which this process does not trust again once one has failed.

After a failed fsync, the operating system marks what it could not write as written: the next fsync says that all is
well, and reads still find the data, until the machine restarts.  So a repeated sync proves nothing, and neither does
what another process reads.  Docs: docs/decisions/0106-failed-syncs.md.
"""

from __future__ import annotations

import errno
import os
from typing import Protocol

from spark_log.errors import SyncFailed

FULL = (errno.ENOSPC, errno.EDQUOT)
NO_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""A file system that cannot sync folders, such as some in user space, makes names durable itself."""


class Syncs(Protocol):
    """How files and folders are synced."""

    def file(self, fd: int, path: str) -> None:
        """Make the content of a file durable.  Raises OSError.

        path:  for messages.
        """

    def folder(self, fd: int, path: str) -> None:
        """Make the names in a folder durable.  Raises OSError."""


class DiskSyncs:
    """Syncs of files and folders by the operating system."""

    def file(self, fd: int, path: str) -> None:
        os.fsync(fd)

    def folder(self, fd: int, path: str) -> None:
        os.fsync(fd)


class TrustedDisks:
    """Syncs that remember the disks on which one has failed, by their device, for as long as the process lives."""

    def __init__(self, syncs: Syncs) -> None:
        self._syncs = syncs
        self._failed: dict[int, str] = {}
        """The error by device."""

    def file(self, fd: int, path: str) -> None:
        """Raises SyncFailed; OSError if the disk is full: what the file lacks has no name yet, and is written again."""
        try:
            self._syncs.file(fd, path)
        except OSError as error:
            if error.errno in FULL:
                raise
            raise self._distrusted(fd, path, error) from error

    def folder(self, fd: int, path: str) -> None:
        """Raises SyncFailed: nobody knows which names the disk has."""
        try:
            self._syncs.folder(fd, path)
        except OSError as error:
            if error.errno not in NO_FOLDERS:
                failed = self._distrusted(fd, path, error)
                failed.maybe_applied = True
                raise failed from error

    def check(self, path: str) -> None:
        """Raises SyncFailed if a sync has failed on the disk of an existing folder, or of the folder above it."""
        if not self._failed:
            return
        while path != (parent := os.path.dirname(path)) and not os.path.exists(path):
            path = parent
        if (why := self._failed.get(os.stat(path).st_dev)) is not None:
            raise SyncFailed(
                f"{path}: this process writes nothing to this disk any more: {why}. What it reported as written since the "
                "last good sync may be lost when the machine restarts. Check the disk and the kernel's log, then start "
                "the process again"
            )

    def _distrusted(self, fd: int, path: str, error: OSError) -> SyncFailed:
        why = f"fsync of {path} failed: {error.strerror or error}"
        self._failed.setdefault(os.fstat(fd).st_dev, why)
        return SyncFailed(
            f"{why}. Nobody knows what the disk has, and this process writes nothing more to it: check the disk and the "
            "kernel's log, then start the process again"
        )


DISKS = TrustedDisks(DiskSyncs())
"""Those of this process."""
