"""The journal over real stores: many writers, lost answers, maintenance, and what a commit costs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from simulation.harness.stores import Faults, FaultyStore, Wrapper
from spark_log.errors import (
    CommitUnknown,
    UnknownTopicOrPartition,
)
from spark_log.journal.garbage_collection import collect
from spark_log.journal.journal import Journal
from spark_log.journal.storage.opening import open_view
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG
from tests.unit.journal.sample_journals import (
    CountingStore,
    TickingClock,
    commit,
    create,
    numbers,
    open_log,
    stores,
)


def offsets(results: Iterable[Committed]) -> list[int]:
    return sorted(result.ranges["id-t", 0].start for result in results)


# Promise: ../README.md#why
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
        with journal._proposals.turn:
            good = [pool.submit(commit, journal, f"w{n}", 0) for n in range(4)]
            bad = pool.submit(commit, journal, "bad", 0, "id-nothing")
            while len(journal._proposals.waiting) < 5:
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
        self.begun, self.go_on, self.puts = Event(), Event(), 0

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        if key.startswith(CHECKPOINTS):
            self.puts += 1
            self.begun.set()
            assert self.go_on.wait(30)
        super().put(key, chunks)


@stores
def test_nobody_waits_for_a_checkpoint(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    """The process that writes it commits meanwhile, and begins no second one."""
    store = HeldCheckpoints(make(tmp_path))
    journal = open_log(store)
    create(journal)
    for sequence in range(110):
        commit(journal, "p", sequence, finish=False)
    assert store.begun.wait(30)
    for sequence in range(110, 220):
        commit(journal, "p", sequence, finish=False)
    assert store.puts == 1
    store.go_on.set()
    journal.finish_maintenance()
    assert len(store.list(CHECKPOINTS)) == store.puts == 1
    commit(journal, "p", 220)
    assert len(store.list(CHECKPOINTS)) == 2
    assert open_log(store).state == journal.state
    assert journal.state.partitions["id-t", 0].end == 221


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
    names, _ = journal.run(collect(journal.refresh(), journal.context))
    assert names == [orphan]
    assert kept in store.list(DATA) and orphan not in store.list(DATA)


# Promise: measurements.md#a-small-commit-and-opening-the-log-by-commits
def test_what_a_commit_and_an_open_cost_does_not_grow() -> None:
    """Store operations of the 100th commit and of the 10,000th, and of opening the log after each.

    Six for a commit: look for the next record, put, read back, look at the two records before it, list.  Opening reads
    the checkpoint and what follows it.
    """
    store = CountingStore(MemoryStore(f"journal-{next(numbers)}"))
    journal = open_log(store, step_ms=100_000)
    create(journal)
    early = _cost(journal, store, 100)
    late = _cost(journal, store, 10_000)
    assert early["commit"] == late["commit"] == {"put_new": 1, "get": 4, "list": 1}
    assert late["open"]["list"] == early["open"]["list"] == 2
    assert late["open"]["get"] <= 150
    assert len(store.list(LOG)) < 2_500 and len(store.list(CHECKPOINTS)) == 2
    assert len(journal.state.times) < 200
    assert len(journal.state.partitions["id-t", 0].entries) < 400


def _cost(journal: Journal, store: CountingStore, commits: int) -> dict[str, Any]:
    """Operations of a commit without maintenance, and of opening, once the log has so many commits."""
    state = journal.state
    for sequence in range(state.producers["p"].last + 1 if "p" in state.producers else 0, commits):
        commit(journal, "p", sequence)
    while journal.state.version % 100 < 20 or journal.state.version % 100 > 80:
        commit(journal, "p", journal.state.producers["p"].last + 1)
    clock = journal.context.clock
    assert isinstance(clock, TickingClock)
    clock.step_ms, step_ms = 1, clock.step_ms  # after a pause, it looks at the last records
    commit(journal, "p", journal.state.producers["p"].last + 1)
    store.operations.clear()
    commit(journal, "p", journal.state.producers["p"].last + 1)
    one, clock.step_ms = dict(store.operations), step_ms
    store.operations.clear()
    journal.run(open_view())
    return {"commit": one, "open": dict(store.operations)}


class HeldListings(Wrapper):
    """A bucket in which a listing of the checkpoints waits, if it is the first one, until `others` have ended."""

    local = False

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.first, self.go_on = Event(), Event()
        self.others: list[threading.Thread] = []
        self.held = False

    def list(self, prefix: str) -> list[str]:
        if self.held and prefix == CHECKPOINTS:
            if not self.first.is_set():
                self.first.set()
                assert self.go_on.wait(10)
            else:
                self.held = False
                self.go_on.set()
                for other in self.others:
                    other.join(10)
        return self.inner.list(prefix)


def test_a_peek_beside_a_change_of_another_thread_keeps_what_it_has_seen() -> None:
    """The change is confirmed while the peek reads; a topic that a third process created after it is seen."""
    store = HeldListings(MemoryStore("peeks"))
    journal, third = open_log(store), open_log(store.inner)
    change = threading.Thread(target=lambda: create(journal, "ours"))
    store.others.append(change)
    store.held = True
    change.start()
    assert store.first.wait(10)
    third.refresh()
    create(third, "theirs")
    assert journal.refresh_if_there(peek=True)
    assert set(journal.newest.names) == {"ours", "theirs"}
