"""A directory in memory that records each operation, to look at every state that a crash may leave."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Crash(Enum):
    """The fate of operations that were not synced."""

    LOST = "lost"
    """The files after a power cut: contents and names are as they were at their last sync."""
    KEPT = "kept"
    """The files after SIGKILL: the operating system has everything, and the disk only what was synced."""
    TORN = "torn"
    """The names are there, and a half of what was appended to each file."""
    ZEROS = "zeros"
    """The names and the lengths are there, and zeros for what was appended."""


class _File:
    def __init__(self, data: bytes = b"") -> None:
        self.data = self.durable = data


class CrashFiles:
    """`Files` in memory."""

    path = "/memory"

    def __init__(self) -> None:
        self.operations: list[Callable[[CrashFiles], None]] = []
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}

    def after(self, count: int, crash: Crash) -> CrashFiles:
        """A directory as it is found after the first operations and a crash."""
        found = CrashFiles()
        for operation in self.operations[:count]:
            operation(found)
        found.operations.clear()
        found._crash(crash)
        return found

    def after_power_cut(self) -> CrashFiles:
        """This directory without anything that was not synced."""
        found = CrashFiles()
        found._durable_names = {name: _File(file.durable) for name, file in self._durable_names.items()}
        found._names = dict(found._durable_names)
        return found

    def _crash(self, crash: Crash) -> None:
        if crash is Crash.LOST:
            self._names = dict(self._durable_names)
        for file in {*self._names.values(), *self._durable_names.values()}:
            if crash is Crash.KEPT:
                continue
            if crash is Crash.LOST or not file.data.startswith(file.durable):
                file.data = file.durable
            more = len(file.data) - len(file.durable)
            if crash is Crash.TORN:
                file.data = file.data[: len(file.durable) + more // 2]
            elif crash is Crash.ZEROS:
                file.data = file.durable + bytes(more)
            file.durable = file.data
        if crash is not Crash.KEPT:
            self._durable_names = dict(self._names)

    # ---------------------------------------------------------------------------------------------------------- reading

    def names(self) -> list[str]:
        return sorted(self._names)

    def size(self, name: str) -> int:
        return len(self._file(name).data)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        data = self._file(name).data
        return data[start:] if length is None else data[start : start + length]

    def _file(self, name: str) -> _File:
        if name not in self._names:
            raise FileNotFoundError(name)
        return self._names[name]

    # --------------------------------------------------------------------------------------------------------- changing

    def append(self, name: str, data: bytes) -> None:
        self.operations.append(lambda files: files.append(name, data))
        file = self._names.setdefault(name, _File())
        file.data += data

    def truncate(self, name: str, size: int) -> None:
        self.operations.append(lambda files: files.truncate(name, size))
        file = self._names.setdefault(name, _File())
        file.data = file.data[:size]

    def sync(self, name: str) -> None:
        self.operations.append(lambda files: files.sync(name))
        file = self._file(name)
        file.durable = file.data

    def rename(self, old: str, new: str) -> None:
        self.operations.append(lambda files: files.rename(old, new))
        self._names[new] = self._file(old)
        del self._names[old]

    def delete(self, name: str) -> None:
        self.operations.append(lambda files: files.delete(name))
        self._file(name)
        del self._names[name]

    def sync_names(self) -> None:
        self.operations.append(CrashFiles.sync_names)
        self._durable_names = dict(self._names)
