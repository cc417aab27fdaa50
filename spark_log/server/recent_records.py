"""The newest batches of the metadata log, for clients that follow it, and for longer their first lines, by which the
histories of clients are compared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from spark_log.errors import ObjectNotFound, StorageError
from spark_log.metadata.formats.batch_format import first_line
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.object_names import LOG, log_version
from spark_log.store.store_wrapper import StoreWrapper

RECORDS_BYTES = 32 << 20
HEADS_MAX = 10_000
"""A client that is further behind gets all of its topics, or reads the log."""


class RecentRecords:
    """By version.  Safe for threads."""

    def __init__(self, limit: int = RECORDS_BYTES) -> None:
        self._limit = limit
        self._kept: dict[int, bytes] = {}
        self._bytes = 0
        self._heads: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def remember(self, version: int, data: bytes) -> None:
        with self._lock:
            self._bytes += len(data) - len(self._kept.pop(version, b""))
            self._kept[version] = data
            self._heads.pop(version, None)
            self._heads[version] = first_line(data)
            if len(self._heads) > HEADS_MAX:
                del self._heads[next(iter(self._heads))]
            while self._bytes > self._limit:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))

    def after(self, since: int, upto: int, limit: int) -> Sequence[bytes]:
        """The batches of versions (since, upto]; empty if some are not here, or they exceed `limit` bytes."""
        found = []
        size = 0
        with self._lock:
            for version in range(since + 1, upto + 1):
                data = self._kept.get(version)
                if data is None or (size := size + len(data)) > limit:
                    return []
                found.append(data)
        return found

    def head(self, version: int) -> bytes:
        """First line of the batch of a version; empty if it is not known."""
        with self._lock:
            return self._heads.get(version, b"")

    def forget(self, but: int = 0, head: bytes = b"") -> None:
        """Forget all records, and all first lines except `head`, of the record of the version `but`."""
        with self._lock:
            self._kept, self._bytes, self._heads = {}, 0, {but: head} if head else {}


class RecordCache(StoreWrapper):
    """An ObjectStore that remembers the last records that were read through it.

    A coordinator's journal reads back every record before it continues.
    """

    def __init__(self, store: ObjectStore, limit: int = RECORDS_BYTES) -> None:
        super().__init__(store)
        self.records = RecentRecords(limit)
        self.on_error: Callable[[StorageError], None] = lambda error: None
        """Called for each error of the store, including errors that are retried."""

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound:
            raise
        except StorageError as error:
            self.on_error(error)
            raise

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with self._reported():
            data = self.inner.get(key, start, end)
        if key.startswith(LOG) and not start and end is None:
            self.records.remember(log_version(key), data)
        return data

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        with self._reported():
            self.inner.put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        with self._reported():
            return self.inner.put_new(key, data)

    def list(self, prefix: str) -> list[str]:
        with self._reported():
            return self.inner.list(prefix)
