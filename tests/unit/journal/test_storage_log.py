"""The metadata log on shared storage keeps the contract of every metadata log."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from simulation.harness.metadata_log_contract import MetadataLogContract, OpenLog
from simulation.harness.stores import Wrapper
from spark_log.errors import NoLog
from spark_log.journal.context import Context, Proposal
from spark_log.journal.storage.log_format import Format, parse_format
from spark_log.journal.storage.storage_log import open_storage_log
from spark_log.journal.store_operations import Stores, run
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.formats.checkpoint_format import CHANGES_MIN, folded
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import FORMAT_KEY


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
    """The error says how; a folder that lost its log gets another error."""
    store = LocalStore(str(tmp_path / "log"), "os")
    with pytest.raises(NoLog, match="check the URL, and whether its disk is mounted, or create a log with"):
        opened(store, create=False)
    one = opened(store)
    store.delete([FORMAT_KEY])
    assert not one.run(one.log.is_still_there())


def probed_with_another_library(store: ObjectStore) -> Format:
    """The log's format, as it was before."""
    form = parse_format(store.get(FORMAT_KEY), store.url)
    store.put(FORMAT_KEY, [structs.replace(form, probed="another").encode()])
    return form


def test_a_storage_that_was_probed_with_another_library_is_probed_again(tmp_path: Path) -> None:
    """Before the first change: then the file names the library."""
    store = LocalStore(str(tmp_path / "log"), "os")
    opened(store)
    form = probed_with_another_library(store)
    one = opened(store)
    one.create(one.open(), "a")
    assert parse_format(store.get(FORMAT_KEY), store.url) == form


def test_a_log_in_the_place_of_another_keeps_its_id(tmp_path: Path) -> None:
    """Also if a process that has the other one open probes the storage again."""
    store = LocalStore(str(tmp_path / "log"), "os")
    opened(store)
    probed_with_another_library(store)
    old = opened(store)
    view = old.open()
    store.delete([FORMAT_KEY])
    new = opened(store)
    old.create(view, "a")
    assert parse_format(store.get(FORMAT_KEY), store.url).cluster_id == new.log.cluster_id != old.log.cluster_id


class Remote(Wrapper):
    """A store on which round trips take long."""

    local = False


def test_records_that_are_not_confirmed_get_the_columns_of_a_checkpoint_too() -> None:
    """The next change is decided on them: its state would keep the old columns in memory."""
    store = Remote(MemoryStore(uuid.uuid4().hex))
    writer, reader = opened(store), opened(store)
    wide = Proposal(CreateTopic(name="wide", partitions=CHANGES_MIN + 1, topic_id="wide"))
    view = writer.run(writer.log.propose(writer.open(), [wide]))
    before = reader.open()
    writer.create(view, "late")
    peeked = reader.run(reader.log.peek(before))
    assert peeked.unconfirmed is not None
    kept = before._replace(state=folded(before.state))  # type: ignore[attr-defined]
    rebased = reader.log.rebased(peeked, before, kept)
    assert rebased.newest == peeked.newest != rebased.state == peeked.state
    assert rebased.newest.partitions.base is kept.state.partitions.base is not before.state.partitions.base
