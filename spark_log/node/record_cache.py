"""A cache of the newest objects of the metadata log, for clients that follow it.

A coordinator's journal reads back every record before it continues.  This store wraps the real one and remembers the
records that were read, and for longer their first lines, by which the histories of clients are compared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from spark_log.errors import ObjectNotFound, StorageError
from spark_log.journal.object_names import LOG, log_key
from spark_log.metadata.records import first_line
from spark_log.store.base import Bytes, ObjectStore

TAIL_BYTES_MAX = 32 << 20
HEADS_MAX = 10_000
"""A client that is further behind gets all of its topics, or reads the log."""


class RecordCache:
    """An ObjectStore that remembers the last records that were read through it."""

    def __init__(self, store: ObjectStore, limit: int = TAIL_BYTES_MAX) -> None:
        self.real = store
        self.on_error: Callable[[StorageError], None] = lambda error: None
        """Called for each error of the store, including errors that are retried."""
        self._limit = limit
        self._kept: dict[str, bytes] = {}
        self._bytes = 0
        self._heads: dict[str, bytes] = {}
        """First lines of the last records, by name."""
        self._lock = threading.Lock()

    def after(self, since: int, upto: int, limit: int) -> Sequence[bytes]:
        """The objects of versions (since, upto]; empty if some are not cached, or they exceed `limit` bytes."""
        found = []
        size = 0
        with self._lock:
            for version in range(since + 1, upto + 1):
                data = self._kept.get(log_key(version))
                if data is None or (size := size + len(data)) > limit:
                    return []
                found.append(data)
        return found

    def head(self, version: int) -> bytes:
        """First line of the record of a version; empty if it is not known."""
        with self._lock:
            return self._heads.get(log_key(version), b"")

    def forget(self, but: int = 0, head: bytes = b"") -> None:
        """Forget all records, and all first lines except `head`, of the record of the version `but`."""
        with self._lock:
            self._kept, self._bytes, self._heads = {}, 0, {log_key(but): head} if head else {}

    def _remember(self, key: str, data: bytes) -> None:
        with self._lock:
            self._bytes += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
            self._heads.pop(key, None)
            self._heads[key] = first_line(data)
            if len(self._heads) > HEADS_MAX:
                del self._heads[next(iter(self._heads))]
            while self._bytes > self._limit:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound:
            raise
        except StorageError as error:
            self.on_error(error)
            raise

    # --------------------------------------------------------------------------------------------------- an ObjectStore

    @property
    def url(self) -> str:
        return self.real.url

    @property
    def local(self) -> bool:
        return self.real.local

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with self._reported():
            data = self.real.get(key, start, end)
        if key.startswith(LOG) and not start and end is None:
            self._remember(key, data)
        return data

    def size(self, key: str) -> int | None:
        return self.real.size(key)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        with self._reported():
            self.real.put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        with self._reported():
            return self.real.put_new(key, data)

    def list(self, prefix: str) -> list[str]:
        with self._reported():
            return self.real.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self.real.delete(keys)

    def written_ms(self, key: str) -> int | None:
        return self.real.written_ms(key)

    def sweep(self, prefix: str, before_ms: int) -> int:
        return self.real.sweep(prefix, before_ms)

    def fingerprint(self) -> str:
        return self.real.fingerprint()
