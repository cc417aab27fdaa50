"""The metadata log on shared storage keeps the contract of every metadata log."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_log.clock import SystemClock
from spark_log.errors import NoLog
from spark_log.journal.proposal import Context
from spark_log.journal.storage_log import open_storage_log
from spark_log.journal.store_operations import Stores, run
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.testing.metadata_log_contract import MetadataLogContract, OpenLog


def opened(store: ObjectStore, *, create: bool = True) -> OpenLog:
    clock, stores = SystemClock(), Stores.of(store)
    log = open_storage_log(stores, Context(clock, random.SystemRandom()), create=create)
    return OpenLog(log, lambda steps: run(steps, stores, clock))


class TestInMemory(MetadataLogContract):
    @pytest.fixture
    def new(self) -> Callable[[], OpenLog]:
        store = MemoryStore(uuid.uuid4().hex)
        return lambda: opened(store)


class TestOnALocalDisk(MetadataLogContract):
    @pytest.fixture
    def new(self, tmp_path: Path) -> Callable[[], OpenLog]:
        return lambda: opened(LocalStore(str(tmp_path / "log"), "os"))


def test_a_log_is_created_only_if_asked(tmp_path: Path) -> None:
    """The error says how; a folder that lost its log is told from it."""
    store = LocalStore(str(tmp_path / "log"), "os")
    with pytest.raises(NoLog, match="create one with"):
        opened(store, create=False)
    one = opened(store)
    store.delete(["meta/format"])
    assert not one.run(one.log.is_still_there())
