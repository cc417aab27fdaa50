"""A log in memory, for tests: shared by name within a process."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from spark_log.errors import ObjectNotFound
from spark_log.store.base import Bytes, check_key, check_prefix

_lock = threading.Lock()
_stores: dict[str, dict[str, bytes]] = {}


class MemoryStore:
    """Objects in a dict; stores of one name share it."""

    local = True

    def __init__(self, name: str) -> None:
        self.name = name
        with _lock:
            self._objects = _stores.setdefault(name, {})

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[str]]:
        return MemoryStore, (self.name,)

    @property
    def url(self) -> str:
        return f"memory://{self.name}"

    def fingerprint(self) -> str:
        return "memory 1"

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        try:
            return self._objects[check_key(key)][start:end]
        except KeyError:
            raise ObjectNotFound(f"{self.url}/{key} is not there", key=key) from None

    def size(self, key: str) -> int | None:
        data = self._objects.get(check_key(key))
        return None if data is None else len(data)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._objects[check_key(key)] = b"".join(chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        assert data, f"an empty object {key} cannot be put exclusively on every store"
        with _lock:
            if check_key(key) in self._objects:
                return False
            self._objects[key] = bytes(data)
            return True

    def list(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        return sorted(key for key in list(self._objects) if key.startswith(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._objects.pop(check_key(key), None)

    def written_ms(self, key: str) -> int | None:
        """None: the store has no clock."""
        return None

    def sweep(self, prefix: str, before_ms: int) -> int:
        return 0
