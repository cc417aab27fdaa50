"""The roots from which objects are copied to other roots.

A root may hang.  A copy runs in a thread of its target, which must not wait for long for the source: so the source is
read in other threads, of limited number, and each read has a time limit.
"""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError

from spark_log.errors import StorageError, StorageUnavailable
from spark_log.roots.broker_roots import Roots
from spark_log.store.base import ObjectStore

READ_MS = 5_000
"""If a root needs longer for a part of an object, the copy fails, and others are made from other roots first."""


class CopySource:
    """The root of a broker, for a copy to another one."""

    def __init__(self, roots: Roots, broker: int, target: int) -> None:
        """Raises KeyError for a broker that is not registered."""
        self._store: ObjectStore = roots[broker]
        self._roots, self._broker, self._target = roots, broker, target

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def local(self) -> bool:
        return self._store.local

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Raises no StorageUnavailable, because the target's store would retry its put then."""
        try:
            data = self._read(key, start, end)
        except StorageUnavailable as error:
            self._roots.note_late(self._broker)
            raise StorageError(f"broker {self._broker} cannot be copied from: {error}") from error
        self._roots.moved(self._target)
        return data

    def _read(self, key: str, start: int, end: int | None) -> bytes:
        answer = Future[bytes]()

        def read() -> None:
            try:
                answer.set_result(self._store.get(key, start, end))
            except Exception as error:  # noqa: BLE001  raised where it is waited for
                answer.set_exception(error)

        self._roots.start_read(self._broker, read)
        try:
            return answer.result(READ_MS / 1000)
        except LateError:
            raise StorageUnavailable(f"{self.url} did not answer for {READ_MS // 1000} s") from None
