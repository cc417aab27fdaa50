"""The room that a log on a disk keeps for records that make room."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

import spark_log
from simulation.harness.stores import Wrapper
from spark_log.errors import NoSpace, StorageError
from spark_log.journal.journal import Journal
from spark_log.journal.storage.disk_reserve import RESERVE
from spark_log.store.base import Bytes
from spark_log.store.local import LocalStore


class FullDisk(Wrapper):
    """It takes a record when the reserve is gone, and the reserve never again."""

    is_full = True

    def put_new(self, key: str, data: bytes) -> bool:
        if self.is_full and self.inner.size(RESERVE):
            raise NoSpace("no space left")
        return self.inner.put_new(key, data)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key == RESERVE:
            raise StorageError(f"{RESERVE}: permission denied")
        self.inner.put(key, chunks)


def test_a_change_that_is_in_does_not_fail_for_the_reserve(tmp_path: Path) -> None:
    """The next maintenance makes the reserve again."""
    store = LocalStore(str(tmp_path / "log"), durability="os")
    spark_log.Log(Journal.open(store, create=True)).append("t", [{"value": b"x"}])
    full = spark_log.Log(Journal.open(FullDisk(store), create=False))
    full.admin.delete_topics(["t"])
    assert "t" not in Journal.open(store, create=False).state.names


def test_a_consumer_leaves_its_group_although_the_disk_is_full(tmp_path: Path) -> None:
    """Its positions are not committed, which is an error.  The group has no member that is gone."""
    store = LocalStore(str(tmp_path / "log"), durability="os")
    spark_log.Log(Journal.open(store, create=True)).append("t", [{"value": b"x"}])
    filling = FullDisk(store)
    filling.is_full = False
    log = spark_log.Log(Journal.open(filling, create=False))
    consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
    assert consumer.poll(5000)
    assert log.admin.describe_consumer_groups(["g"])["g"].members
    filling.is_full = True
    with pytest.raises(NoSpace):
        consumer.commit()
    with suppress(NoSpace):
        consumer.close()
    other = spark_log.Log(Journal.open(store, create=False))
    assert not other.admin.describe_consumer_groups(["g"])["g"].members
    assert not other.admin.list_consumer_group_offsets("g")
