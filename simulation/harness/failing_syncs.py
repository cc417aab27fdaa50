"""Syncs of a disk that fail, as a test says."""

from __future__ import annotations

import errno
import os
from fnmatch import fnmatchcase

from spark_log.store.disk_sync import DiskSyncs


class FailingSyncs(DiskSyncs):
    """Syncs by the operating system, until a sync of a path that matches `fails_at` fails with an error, once.

    As on Linux, the next sync of the same file or folder succeeds.
    """

    def __init__(self) -> None:
        self.fails_at = ""
        """A pattern with `*`; paths of folders end with a slash.  Empty: no sync fails."""
        self.number = errno.EIO
        """The number of the error."""
        self.failures = 0

    def file(self, fd: int, path: str) -> None:
        self._maybe_fail(path)
        super().file(fd, path)

    def folder(self, fd: int, path: str) -> None:
        self._maybe_fail(f"{path}/")
        super().folder(fd, path)

    def _maybe_fail(self, path: str) -> None:
        if fnmatchcase(path, self.fails_at):
            self.fails_at, self.failures = "", self.failures + 1
            raise OSError(self.number, os.strerror(self.number))
