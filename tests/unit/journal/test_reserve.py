"""The room that a log on a disk keeps for records that make room."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import spark_log
from spark_log.errors import NoSpace, StorageError
from spark_log.journal.disk_reserve import RESERVE
from spark_log.journal.journal import Journal
from spark_log.store.base import Bytes
from spark_log.store.local import LocalStore
from spark_log.testing.stores import Wrapper


class FullDisk(Wrapper):
    """It takes a record when the reserve is gone, and the reserve never again."""

    def put_new(self, key: str, data: bytes) -> bool:
        if self.inner.size(RESERVE):
            raise NoSpace("no space left")
        return self.inner.put_new(key, data)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key == RESERVE:
            raise StorageError(f"{RESERVE}: permission denied")
        self.inner.put(key, chunks)


def test_a_change_that_is_in_does_not_fail_for_the_reserve(tmp_path: Path) -> None:
    """The next upkeep makes the reserve again."""
    store = LocalStore(str(tmp_path / "log"), durability="os")
    spark_log.Log(Journal.open(store, create=True)).append("t", [{"value": b"x"}])
    full = spark_log.Log(Journal.open(FullDisk(store), create=False))
    full.admin.delete_topics(["t"])
    assert "t" not in Journal.open(store, create=False).state.names
