"""A store around another store: the base of stores that repeat, bound, remember or redirect requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from spark_log.store.base import Bytes, ObjectStore, Swept

Result = TypeVar("Result")


class StoreWrapper:
    """An `ObjectStore` that passes every request on.  A subclass changes all of them by `_ask`, or single ones."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def _ask(self, request: Callable[[ObjectStore], Result]) -> Result:
        """Carry out a request."""
        return request(self.inner)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def local(self) -> bool:
        return self.inner.local

    def fingerprint(self) -> str:
        return self.inner.fingerprint()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self._ask(lambda store: store.get(key, start, end))

    def size(self, key: str) -> int | None:
        return self._ask(lambda store: store.size(key))

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._ask(lambda store: store.put(key, chunks))

    def put_new(self, key: str, data: bytes) -> bool:
        return self._ask(lambda store: store.put_new(key, data))

    def list(self, prefix: str) -> list[str]:
        return self._ask(lambda store: store.list(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._ask(lambda store: store.sizes(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        names = tuple(keys)  # a request may be repeated
        self._ask(lambda store: store.delete(names))

    def written_ms(self, key: str) -> int | None:
        return self._ask(lambda store: store.written_ms(key))

    def sweep(self, prefix: str, before_ms: int) -> Swept:
        return self._ask(lambda store: store.sweep(prefix, before_ms))
