"""A log in memory, for tests: shared by name within a process."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from spark_log.errors import ObjectNotFound
from spark_log.store.base import NOTHING, Bytes, Swept, check_key, check_not_empty, check_prefix

_lock = threading.Lock()
_stores: dict[str, dict[str, dict[str, bytes]]] = {}
"""By name, folder and key: a listing of a small folder does not walk through a large one beside it."""


class MemoryStore:
    """Objects in dicts; stores of one name share them."""

    local = True

    def __init__(self, name: str) -> None:
        self.name = name
        with _lock:
            self._folders = _stores.setdefault(name, {})

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[str]]:
        return MemoryStore, (self.name,)

    @property
    def url(self) -> str:
        return f"memory://{self.name}"

    def fingerprint(self) -> str:
        return "memory 1"

    def _found(self, key: str) -> bytes | None:
        return self._folders.get(_folder(check_key(key)), {}).get(key)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        data = self._found(key)
        if data is None:
            raise ObjectNotFound(f"{self.url}/{key} is not there", key=key)
        return data[start:end]

    def size(self, key: str) -> int | None:
        data = self._found(key)
        return None if data is None else len(data)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        data = b"".join(chunks)
        with _lock:
            self._folders.setdefault(_folder(check_key(key)), {})[key] = data

    def put_new(self, key: str, data: bytes) -> bool:
        check_not_empty(key, data)
        with _lock:
            objects = self._folders.setdefault(_folder(check_key(key)), {})
            if key in objects:
                return False
            objects[key] = bytes(data)
            return True

    def list(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        with _lock:
            near = [keys for at, keys in self._folders.items() if at.startswith(prefix) or prefix.startswith(at)]
            return sorted(key for keys in near for key in keys if key.startswith(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        return {key: size for key in self.list(prefix) if (size := self.size(key)) is not None}

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            folder = _folder(check_key(key))
            with _lock:
                objects = self._folders.get(folder, {})
                objects.pop(key, None)
                if not objects:
                    self._folders.pop(folder, None)

    def written_ms(self, key: str) -> int | None:
        """None: the store has no clock."""
        return None

    def sweep(self, prefix: str, before_ms: int) -> Swept:
        return NOTHING


def _folder(key: str) -> str:
    """The part of a key up to its last '/'; empty without one."""
    return key[: key.rfind("/") + 1]
