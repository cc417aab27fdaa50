"""The journal over real stores: many writers, lost answers, upkeep, and what a commit costs."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest

from spark_log.errors import (
    AuthenticationFailed,
    CommitUnknown,
    CoordinatorNotAvailable,
    CorruptObject,
    NoLog,
    NotCoordinator,
    SparkLogError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from spark_log.journal.checkpointing import checkpoint, truncate
from spark_log.journal.garbage_collection import collect
from spark_log.journal.journal import Journal
from spark_log.journal.log_format import FORMAT_KEY
from spark_log.journal.object_names import CHECKPOINTS, DATA, LOG, log_key
from spark_log.journal.opening import View, check_chain, follow, open_view
from spark_log.journal.store_operations import Answered, Changes
from spark_log.metadata.decide.commits import Committed, decide_commit
from spark_log.metadata.decide.topics import decide_create_topic, decide_set_configs
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.state import Leadership
from spark_log.model import DataObject, Run
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.testing.stores import ClockedStore, Faults, FaultyStore, Wrapper

numbers = count()


class TickingClock:
    """Time moves by a step with each look at it; nobody waits."""

    def __init__(self, step_ms: int = 1) -> None:
        self._now = 1_700_000_000_000
        self._step = step_ms

    def now_ms(self) -> int:
        self._now += self._step
        return self._now

    def monotonic_ms(self) -> int:
        return self.now_ms()

    def sleep_ms(self, milliseconds: float) -> None:
        self._now += int(milliseconds)


class CountingStore(Wrapper):
    """Counts operations by kind."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.operations = Counter[str]()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.operations["get"] += 1
        return super().get(key, start, end)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self.operations["put"] += 1
        super().put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        self.operations["put_new"] += 1
        return super().put_new(key, data)

    def list(self, prefix: str) -> list[str]:
        self.operations["list"] += 1
        return super().list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self.operations["delete"] += 1
        super().delete(keys)


class OvertakenStore(Wrapper):
    """Another process creates the log, and writes to it, just before the records are listed for the first time."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.other: Journal | None = None

    def list(self, prefix: str) -> list[str]:
        if prefix == LOG and self.other is None:
            self.other = open_log(self.inner)
            create(self.other)
        return super().list(prefix)


def memory(folder: Path) -> ObjectStore:
    return MemoryStore(f"journal-{next(numbers)}")


def local(folder: Path) -> ObjectStore:
    return LocalStore(str(folder / "log"), durability="os")


stores = pytest.mark.parametrize("make", [memory, local])


def open_log(store: ObjectStore, *, step_ms: int = 1) -> Journal:
    timeless = ClockedStore(store)
    return Journal.open(timeless, create=True, clock=TickingClock(step_ms), rng=random.Random(next(numbers)))


def create(journal: Journal, name: str = "t") -> str:
    return journal.propose(lambda state, now: decide_create_topic(state, name, 1, {}, f"id-{name}"))


def commit(journal: Journal, producer: str, sequence: int, topic: str = "id-t") -> Committed:
    """One record; no object is put, since nobody reads it."""
    name = f"data/{0:016x}/{producer}-{sequence}.seg"
    record = CommitRecord(
        producer=producer,
        sequence=sequence,
        upload_epoch=journal.state.version,
        objects=(DataObject(name, 100, 90),),
        slices=((0, Run(topic, 0, 0, 90, 1, 1, 1, 5, 5)),),
    )
    return journal.propose(lambda state, now: decide_commit(state, record))


def offsets(results: Iterable[Committed]) -> list[int]:
    return sorted(result.ranges["id-t", 0].start for result in results)


@stores
def test_journals_of_several_processes_and_threads_share_one_log(
    make: Callable[[Path], ObjectStore], tmp_path: Path
) -> None:
    """Every commit gets separate offsets, gap-free, and all journals end with the same state."""
    store = make(tmp_path)
    journals = [open_log(store) for _ in range(2)]
    create(journals[0])
    journals[1].refresh()

    def write(writer: int) -> list[Committed]:
        return [commit(journals[writer % 2], f"w{writer}", sequence) for sequence in range(20)]

    with ThreadPoolExecutor(6) as pool:
        results = [result for done in pool.map(write, range(6)) for result in done]
    assert offsets(results) == list(range(120))
    assert journals[0].refresh() == journals[1].refresh() == open_log(store).state


@stores
def test_proposals_that_wait_share_a_batch(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """One that is refused does not take the others along."""
    journal = open_log(make(tmp_path))
    create(journal)
    before = journal.state.version
    with ThreadPoolExecutor(5) as pool:
        with journal._lock:
            good = [pool.submit(commit, journal, f"w{n}", 0) for n in range(4)]
            bad = pool.submit(commit, journal, "bad", 0, "id-nothing")
            while len(journal._queue) < 5:
                time.sleep(0.001)
        assert offsets(future.result() for future in good) == [0, 1, 2, 3]
        with pytest.raises(UnknownTopicOrPartition):
            bad.result()
    assert journal.state.version == before + 1


@stores
@pytest.mark.parametrize("seed", range(3))
def test_lost_requests_and_answers_neither_lose_nor_double_a_commit(
    make: Callable[[Path], ObjectStore], tmp_path: Path, seed: int
) -> None:
    """A commit whose outcome is not known is made again with the same identity, and lands once."""
    inner = make(tmp_path)
    create(open_log(inner))
    store = FaultyStore(inner, random.Random(seed), Faults(lost_request=0.15, lost_answer=0.15))
    journal = open_log(store)
    results = []
    for sequence in range(40):
        while True:
            try:
                results.append(commit(journal, "p", sequence))
                break
            except CommitUnknown:
                continue
    assert offsets(results) == list(range(40))
    state = open_log(inner).state
    assert state.partitions["id-t", 0].end == 40
    assert all(row.live == 1 for row in state.objects.values())


@stores
def test_whoever_goes_past_the_interval_keeps_house(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """A checkpoint at every interval, the newest two are kept; sealed slices leave the state small."""
    store = make(tmp_path)
    journal = open_log(store)
    create(journal)
    for sequence in range(700):
        commit(journal, "p", sequence)
    _, newest = store.list(CHECKPOINTS)
    assert journal.state.version - int(newest.removeprefix(CHECKPOINTS)[:20]) < 110
    assert len(journal.state.partitions["id-t", 0].entries) < 300
    assert open_log(store).state == journal.state


class HeldCheckpoints(Wrapper):
    """A thread that writes a checkpoint waits for `go_on`."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.begun, self.go_on = Event(), Event()

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key.startswith(CHECKPOINTS):
            self.begun.set()
            assert self.go_on.wait(30)
        super().put(key, chunks)


@stores
def test_nobody_waits_for_a_checkpoint(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """Other threads commit while one writes it, and none begins a second."""
    store = HeldCheckpoints(make(tmp_path))
    journal = open_log(store)
    create(journal)

    def write() -> None:
        for sequence in range(110):
            commit(journal, "p", sequence)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(write)
        assert store.begun.wait(30)
        for sequence in range(110):
            commit(journal, "q", sequence)
        store.go_on.set()
        done.result(30)
    assert len(store.list(CHECKPOINTS)) == 2  # at the first interval and, after `go_on`, at the second
    assert open_log(store).state == journal.state
    assert journal.state.partitions["id-t", 0].end == 220


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
    check_chain(journal.run(open_view()), names)


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
    check_chain(view, store.list(LOG))
    store.delete([log_key(3)])
    with pytest.raises(CorruptObject, match=r"versions \[3\] are missing .* and version 10"):
        check_chain(view, store.list(LOG))
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


@stores
def test_there_is_no_log_where_nobody_made_one(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """Opening to read creates nothing; a foreign or newer format file is refused."""
    store = make(tmp_path)
    with pytest.raises(NoLog, match="create one"):
        Journal.open(store, create=False)
    assert store.list("meta/") == []
    for content, words in ((b"hello", "is not pylog's"), (b'{"pylog": 2}', "has format 2, this pylog reads 1")):
        store.put(FORMAT_KEY, [content])
        with pytest.raises(UnsupportedVersion, match=words):
            Journal.open(store, create=True)


@stores
def test_garbage_goes_when_the_fence_has_passed_it(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """An upload that nobody committed goes, and what is referred to stays."""
    store = make(tmp_path)
    journal = open_log(store, step_ms=1_000_000)
    create(journal)
    kept = f"{DATA}{0:016x}/p-0.seg"
    for name in (kept, orphan := f"{DATA}{1:016x}/orphan.seg"):
        store.put(name, [b"data"])
    for sequence in range(250):
        commit(journal, "p", sequence)
    assert journal.run(collect(journal.refresh(), journal.context)) == [orphan]
    assert kept in store.list(DATA) and orphan not in store.list(DATA)


def test_what_a_commit_and_an_open_cost_does_not_grow() -> None:
    """Store operations of the 100th commit and of the 10,000th, and of opening the log after each.

    Four for a commit: put, read back, look at the record before it, list.  Opening reads the checkpoint and what
    follows it.
    """
    store = CountingStore(MemoryStore(f"journal-{next(numbers)}"))
    journal = open_log(store, step_ms=100_000)
    create(journal)
    early = _cost(journal, store, 100)
    late = _cost(journal, store, 10_000)
    assert early["commit"] == late["commit"] == {"put_new": 1, "get": 2, "list": 1}
    assert late["open"]["list"] == early["open"]["list"] == 2
    assert late["open"]["get"] <= 150
    assert len(store.list(LOG)) < 2_500 and len(store.list(CHECKPOINTS)) == 2
    assert len(journal.state.times) < 200
    assert len(journal.state.partitions["id-t", 0].entries) < 400


def _cost(journal: Journal, store: CountingStore, commits: int) -> dict[str, Any]:
    """Operations of one commit that is not followed by upkeep, and of opening, once the log has so many commits."""
    state = journal.state
    for sequence in range(state.producers["p"].last + 1 if "p" in state.producers else 0, commits):
        commit(journal, "p", sequence)
    while journal.state.version % 100 < 20 or journal.state.version % 100 > 80:
        commit(journal, "p", journal.state.producers["p"].last + 1)
    store.operations.clear()
    commit(journal, "p", journal.state.producers["p"].last + 1)
    one = dict(store.operations)
    store.operations.clear()
    journal.run(open_view())
    return {"commit": one, "open": dict(store.operations)}


def test_who_is_told_of_much_goes_on_from_a_checkpoint() -> None:
    """It skips the records of that checkpoint; a client with few missing records reads just those."""
    store = CountingStore(MemoryStore(f"journal-{next(numbers)}"))
    journal = open_log(store)
    create(journal)
    behind = View("", journal.state)
    for sequence in range(205):
        commit(journal, "p", sequence)
    end = journal.state
    store.operations.clear()
    assert journal.run(follow(behind, Changes(end.version))).state == end
    assert store.operations["get"] < 40
    near = View(max(store.list(CHECKPOINTS)), end)
    commit(journal, "p", 205)
    store.operations.clear()
    assert journal.run(follow(near, Changes(end.version + 1))).state == journal.state
    assert store.operations["get"] <= 3


class HeldLink:
    """A coordinator that answers when a test sets `go_on`: with the outcome of the changes in a separate journal."""

    def __init__(self, leader: Journal) -> None:
        self._leader = leader
        self.asked, self.go_on = Event(), Event()

    def ask(self, holder: Leadership, commands: Sequence[Any], since: int, limit_ms: float = math.inf) -> Answered:
        self.asked.set()
        assert self.go_on.wait(30)
        return Answered([self._leader.propose(decide) for decide in commands], state=self._leader.state)

    def changes(self, *_: Any) -> Changes:
        return Changes(self._leader.state.version, state=self._leader.state)

    def close(self) -> None:
        """Nothing is open."""


class QueueLock:
    """A queue's lock.  When it is released for the second time, something happens before its holder continues."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._lock, self._happens, self._released = Lock(), happens, 0

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._released += 1
        second = self._released == 2
        self._lock.release()
        if second:
            self._happens()


def test_a_late_change_is_known_to_be_unsent_although_another_joins() -> None:
    """It has left the queue when another takes its place: its error says that nothing was done; it is never sent."""
    store = MemoryStore(f"journal-{next(numbers)}")
    leader = open_log(store)
    link = HeldLink(leader)
    journal = Journal.open(store, create=False, clock=TickingClock(), link=link, served=True)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(create, journal, "first")
        assert link.asked.wait(30)
        joined = []

        def another_joins() -> None:
            joined.append(pool.submit(create, journal, "another"))
            while not journal._queue:
                time.sleep(0.001)

        # The late change puts itself into the queue, and takes itself out when its time is over.
        journal._queue_lock = QueueLock(another_joins)
        late = journal.context.clock.monotonic_ms()
        with pytest.raises(CoordinatorNotAvailable, match="other changes of this process wait") as caught:
            journal.propose(lambda state, now: decide_create_topic(state, "late", 1, {}, "id-late"), late)
        link.go_on.set()
        assert not caught.value.maybe_applied
        assert (first.result(30), [one.result(30) for one in joined]) == ("id-first", ["id-another"])
    assert {topic.name for topic in leader.state.topics.values()} == {"first", "another"}


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


class SuspendedStore(Wrapper):
    """A process is suspended between its first put of a record and the read-back; others write meanwhile."""

    def __init__(self, inner: ObjectStore, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner)
        self.meanwhile: Callable[[], None] | None = meanwhile

    def put_new(self, key: str, data: bytes) -> bool:
        created = super().put_new(key, data)
        if key.startswith(LOG) and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return created


class RefusingLink:
    """A link to a coordinator that gives no answer to commands."""

    def __init__(self, error: SparkLogError) -> None:
        self.error = error

    def ask(self, holder: Leadership, commands: Sequence[Any], since: int, limit_ms: float = math.inf) -> Answered:
        raise self.error

    def changes(self, *_: Any) -> Changes:
        raise self.error

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("refusal", "raised"),
    [
        (NotCoordinator("another one", address="127.0.0.1:1", epoch=1), CommitUnknown),
        (CoordinatorNotAvailable("it is gone"), CommitUnknown),
        (AuthenticationFailed("no token"), AuthenticationFailed),
    ],
)
def test_a_change_that_a_coordinator_found_in_the_log_is_not_called_unapplied(
    refusal: SparkLogError, raised: type[SparkLogError]
) -> None:
    """It lies behind a checkpoint when the process continues; then it asks the coordinator, which refuses."""
    store = MemoryStore(f"journal-{next(numbers)}")

    def take_over() -> None:
        leader = open_log(store)
        leader.take_over(0, "127.0.0.1:1", "here")
        leader.run(leader.metadata_log.checkpoint(leader.run(leader.metadata_log.open())))

    open_log(store)
    slow = SuspendedStore(store, take_over)
    journal = Journal.open(slow, create=False, clock=TickingClock(1000), link=RefusingLink(refusal))
    with pytest.raises(raised) as caught:
        create(journal)
    assert caught.value.maybe_applied
    assert {topic.name for topic in open_log(store).state.topics.values()} == {"t"}
