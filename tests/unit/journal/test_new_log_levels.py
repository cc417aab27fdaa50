"""The levels of a new log: its first batch raises them to the newest, here to that of the next pylog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulation.levels import TODAY, TOMORROW, supporting
from spark_log.errors import UnknownTopicOrPartition
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import DeleteTopic
from spark_log.metadata.features import METADATA_VERSION, SUPPORTED
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.records import CreateTopicRecord, FeatureLevelRecord, TakeOverRecord
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import LOG, log_key
from tests.unit.journal.sample_journals import create, open_log, stores


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    with supporting(TOMORROW):
        yield


def kinds(store: ObjectStore) -> list[list[type]]:
    """Of the records of each version."""
    return [[type(record) for record in decode_batch(store.get(key), key).records] for key in store.list(LOG)]


# Promise: format/metadata.md#levels
@stores
def test_the_first_batch_raises_a_new_log_to_the_newest_level(
    make: Callable[[Path], ObjectStore], tmp_path: Path
) -> None:
    """Without another request: the level is in the batch of the first change."""
    store = make(tmp_path)
    journal = open_log(store)
    create(journal)
    create(journal, "u")
    assert kinds(store) == [[FeatureLevelRecord, CreateTopicRecord], [CreateTopicRecord]]
    assert journal.state.levels == SUPPORTED == dict(journal.state.features)
    assert Journal.open(store, create=False).state == journal.state


@stores
def test_a_change_that_is_refused_leaves_a_new_log_without_records(
    make: Callable[[Path], ObjectStore], tmp_path: Path
) -> None:
    store = make(tmp_path)
    journal = open_log(store)
    with pytest.raises(UnknownTopicOrPartition):
        journal.propose(DeleteTopic(name="t"))
    assert not store.list(LOG)


# Promise: format/metadata.md#levels
@stores
def test_a_coordinator_that_creates_the_log_raises_it(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """Its take-over is the first record but one, and what it writes next counts."""
    store = make(tmp_path)
    journal = open_log(store)
    journal.take_over(0, "localhost:1", "host")
    create(journal)
    assert kinds(store) == [[FeatureLevelRecord, TakeOverRecord], [CreateTopicRecord]]
    state = Journal.open(store, create=False).state
    assert state == journal.state
    assert (state.levels, state.coordinator.in_force, set(state.names)) == (SUPPORTED, 1, {"t"})


# Promise: format/metadata.md#levels
@stores
def test_of_two_processes_that_create_a_log_one_raises_it(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """The second one finds version 1 taken, and decides again on what is there."""
    store = make(tmp_path)
    journals = [open_log(store), open_log(store)]
    for name, journal in zip("tu", journals, strict=True):
        create(journal, name)
    assert kinds(store) == [[FeatureLevelRecord, CreateTopicRecord], [CreateTopicRecord]]
    assert journals[0].refresh() == journals[1].state


@stores
def test_a_log_that_an_older_pylog_creates_meanwhile_stays_at_level_1(
    make: Callable[[Path], ObjectStore], tmp_path: Path
) -> None:
    store = make(tmp_path)
    journal = open_log(store)
    with supporting(TODAY):
        create(open_log(store))
    create(journal, "u")
    assert store.list(LOG) == [log_key(1), log_key(2)]
    assert journal.state.levels == {METADATA_VERSION: 1}
