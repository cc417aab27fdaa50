"""A cache of the newest objects of the metadata log, for clients that follow it.

A coordinator's journal reads back every record before it continues.  This store wraps the real one and remembers the
records that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from spark_log.errors import ObjectNotFound, StorageError
from spark_log.server.recent_records import RECORDS_BYTES, RecentRecords
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.object_names import LOG, log_version
from spark_log.store.store_wrapper import StoreWrapper


class RecordCache(StoreWrapper):
    """An ObjectStore that remembers the last records that were read through it."""

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
