"""Opening and reading logs: lost, damaged, replaced and deleted records and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event

import pytest

from simulation.harness.stores import ClockedStore, Wrapper
from spark_log.errors import (
    CorruptObject,
    NoLog,
    UnsupportedVersion,
)
from spark_log.journal.journal import Journal
from spark_log.journal.storage.beyond_the_end import check_chain
from spark_log.journal.storage.checkpointing import checkpoint, truncate
from spark_log.journal.storage.opening import open_view
from spark_log.metadata.topics.decide_topics import decide_set_configs
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import CHECKPOINTS, FORMAT_KEY, LOG, META, log_key
from tests.unit.journal.sample_journals import (
    TickingClock,
    commit,
    create,
    numbers,
    open_log,
    stores,
)


class OvertakenStore(Wrapper):
    """Another process creates the log, and writes to it, just before its files are listed for the first time."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.other: Journal | None = None

    def list(self, prefix: str) -> list[str]:
        if prefix == META and self.other is None:
            self.other = open_log(self.inner)
            create(self.other)
        return super().list(prefix)


@stores
def test_there_is_no_log_where_nobody_made_one(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """Opening to read creates nothing; a foreign or newer format file is refused."""
    store = make(tmp_path)
    with pytest.raises(NoLog, match="create a log with"):
        Journal.open(store, create=False)
    assert store.list("meta/") == []
    for content, words in ((b"hello", "is not pylog's"), (b'{"pylog": 4}', "has format 4, this pylog reads 1, 2, 3")):
        store.put(FORMAT_KEY, [content])
        with pytest.raises(UnsupportedVersion, match=words):
            Journal.open(store, create=True)


@stores
def test_a_log_that_another_creates_meanwhile_is_opened(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """Several writers begin one log: who comes late finds records, and then the format that was put before them."""
    store = OvertakenStore(make(tmp_path))
    journal = open_log(store)
    assert store.other is not None and journal.cluster_id == store.other.cluster_id
    assert "id-t" in journal.state.topics


@stores
def test_records_without_a_format_are_refused(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """The file is lost: a new one would make another log of the records."""
    store = make(tmp_path)
    create(open_log(store))
    store.delete([FORMAT_KEY])
    with pytest.raises(UnsupportedVersion, match="meta/format is missing"):
        open_log(store)


@stores
def test_a_log_opens_after_its_old_records_are_gone(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """And a journal that was left behind finds its way to the new checkpoint."""
    store = make(tmp_path)
    journal, left_behind = open_log(store, step_ms=1_000_000), open_log(store)
    create(journal)
    for sequence in range(450):
        commit(journal, "p", sequence)
    journal.run(truncate(journal.run(open_view()), journal.context))
    names = store.list(LOG)
    assert log_key(1) not in names and len(names) < 300
    assert left_behind.poll() == journal.state or left_behind.refresh() == journal.state
    assert open_log(store).state == journal.state
    view = journal.run(open_view())
    check_chain(view.state, view.checkpoint, names)


@stores
def test_a_reader_that_was_stopped_sees_what_follows_with_its_next_look(
    make: Callable[[Path], ObjectStore], tmp_path: Path
) -> None:
    """Also where the record that follows was deleted meanwhile, however short records are kept."""
    store, clock = make(tmp_path), TickingClock()
    writer, reader = (Journal.open(ClockedStore(store), create=True, clock=clock) for _ in range(2))
    writer.propose(lambda state, now: decide_set_configs(state, None, {"gc.fence.age.ms": "4000"}))
    create(writer)
    known = reader.poll().version
    clock.sleep_ms(2000)
    for sequence in range(450):
        commit(writer, "p", sequence)
        clock.sleep_ms(10)
    writer.run(truncate(writer.run(open_view()), writer.context))
    assert log_key(known + 1) not in store.list(LOG)
    assert reader.poll() == writer.state


class StaleStore(Wrapper):
    """Lists the first checkpoint that was put through it for ever; others have replaced it before it is read back."""

    def __init__(self, inner: ObjectStore, replace_it: Callable[[], None]) -> None:
        super().__init__(inner)
        self._first, self._replace = "", replace_it

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        super().put(key, chunks)
        if key.startswith(CHECKPOINTS) and not self._first:
            self._first = key
            self._replace()

    def list(self, prefix: str) -> list[str]:
        names = super().list(prefix)
        return sorted({*names, self._first} - {""}) if prefix == CHECKPOINTS else names


def test_a_checkpoint_that_others_replaced_is_not_missed() -> None:
    """Although a listing shows its name: two newer ones are there, with which it was deleted."""
    inner = MemoryStore(f"journal-{next(numbers)}")
    writer = open_log(inner)
    create(writer)

    def replace_it() -> None:
        for sequence in range(3):
            commit(writer, "p", sequence)
            writer.run(checkpoint(writer.run(open_view()), writer.context))
        writer.run(truncate(writer.run(open_view()), writer.context))

    late = open_log(StaleStore(inner, replace_it))
    view = late.run(open_view())
    written, intact = late.run(checkpoint(view, late.context))
    assert written.state == view.state and not intact
    assert len(inner.list(CHECKPOINTS)) == 2


class HangingStore(Wrapper):
    """Remote.  A get hangs after the listing of its round was answered, until `meanwhile` is over."""

    local = False

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._key, self._meanwhile, self._listed = "", lambda: None, Event()

    def hang_at(self, key: str, meanwhile: Callable[[], None]) -> None:
        self._key, self._meanwhile = key, meanwhile
        self._listed.clear()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == self._key:
            self._key = ""
            assert self._listed.wait(60)
            self._meanwhile()
        return super().get(key, start, end)

    def list(self, prefix: str) -> list[str]:
        names = super().list(prefix)
        self._listed.set()
        return names


def test_a_refresh_that_hangs_in_a_round_ends_at_the_newest_version() -> None:
    """A record of before it began went into a checkpoint after the listing, and was deleted before the get."""
    inner, clock = MemoryStore(f"journal-{next(numbers)}"), TickingClock()
    hanging = HangingStore(inner)
    writer, reader = (Journal.open(ClockedStore(one), create=True, clock=clock) for one in (inner, hanging))
    writer.propose(lambda state, now: decide_set_configs(state, None, {"gc.fence.age.ms": "4000"}))
    create(writer)
    known = reader.refresh().version
    commit(writer, "p", 0)

    def meanwhile() -> None:
        for sequence in range(1, 450):
            commit(writer, "p", sequence)
            clock.sleep_ms(20)
        writer.run(truncate(writer.run(open_view()), writer.context))

    hanging.hang_at(log_key(known + 1), meanwhile)
    assert reader.refresh() == writer.state
    assert log_key(known + 1) not in inner.list(LOG)


# Promise: format/metadata.md#what-a-reader-refuses
@stores
def test_a_hole_in_the_log_is_found(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """A record that is gone while others follow: the log is not opened, and the record is named."""
    store = make(tmp_path)
    journal = open_log(store)
    create(journal)
    for sequence in range(5):
        commit(journal, "p", sequence)
    view = journal.run(open_view())
    for sequence in range(5, 9):
        commit(journal, "p", sequence)
    # The log has moved on between the view and the listing.
    check_chain(view.state, view.checkpoint, store.list(LOG))
    store.delete([log_key(3)])
    with pytest.raises(CorruptObject, match=r"no records of version 3 are there, but version 10 is later"):
        check_chain(view.state, view.checkpoint, store.list(LOG))
    with pytest.raises(CorruptObject, match=rf"{log_key(3)} is missing, but .* exists; .*pylog repair"):
        open_log(store)


@stores
def test_a_damaged_record_stops_the_log_from_opening(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """Nothing is skipped; the record is named."""
    store = make(tmp_path)
    journal = open_log(store)
    create(journal)
    data = bytearray(store.get(log_key(1)))
    data[-5] ^= 1
    store.put(log_key(1), [bytes(data)])
    with pytest.raises(CorruptObject, match=rf"{log_key(1)} .*pylog repair"):
        open_log(store)


def test_a_damaged_leftover_below_a_checkpoint_is_in_nobody_s_way() -> None:
    """Only records on the chain count: a journal that stalled opens again from the checkpoint."""
    store = MemoryStore(f"journal-{next(numbers)}")
    stalled, journal = open_log(store), open_log(store)
    create(journal)
    for sequence in range(150):
        commit(journal, "p", sequence)
    store.put(log_key(stalled.state.version + 1), [b"not a record"])
    assert stalled.refresh() == journal.state
