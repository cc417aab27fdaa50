"""A store whose process is gone at a write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from simulation.harness.stores import Wrapper
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.probe import PROBES


class Died(Exception):
    """The process that copies is gone."""


class Dying(Wrapper):
    """Dies at a write, before it or after it."""

    def __init__(self, inner: ObjectStore, writes: int, *, after: bool) -> None:
        super().__init__(inner)
        self._left, self._after = writes, after

    probed = ""
    """A fingerprint in place of the real one."""

    def fingerprint(self) -> str:
        return self.probed or super().fingerprint()

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        with self._dies():
            super().put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        if key.startswith(PROBES):
            return super().put_new(key, data)
        with self._dies():
            return super().put_new(key, data)

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        if keys and keys[0].startswith(PROBES):
            super().delete(keys)
            return
        with self._dies():
            super().delete(keys)

    @contextmanager
    def _dies(self) -> Iterator[None]:
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._after):
            raise Died
        yield
        if self._left == 0:
            raise Died
