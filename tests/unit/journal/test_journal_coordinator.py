"""A journal whose log has a coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any

import pytest

from simulation.harness.stores import Wrapper
from spark_log.errors import (
    AuthenticationFailed,
    CommitUnknown,
    CoordinatorNotAvailable,
    NotCoordinator,
    SparkLogError,
)
from spark_log.journal.journal import Journal
from spark_log.journal.storage.opening import View, follow
from spark_log.journal.store_operations import (
    Answered,
    Ask,
    Changes,
)
from spark_log.metadata.topics.decide_topics import decide_create_topic
from spark_log.store.base import ObjectStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import CHECKPOINTS, LOG
from tests.unit.journal.sample_journals import (
    CountingStore,
    TickingClock,
    commit,
    create,
    numbers,
    open_log,
)


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

    def ask(self, asked: Ask) -> Answered:
        self.asked.set()
        assert self.go_on.wait(30)
        return Answered([self._leader.propose(decide) for decide in asked.commands], state=self._leader.state)

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
            while not journal._proposals.waiting:
                time.sleep(0.001)

        # The late change puts itself into the queue, and takes itself out when its time is over.
        journal._proposals._lock = QueueLock(another_joins)
        late = journal.context.clock.monotonic_ms()
        with pytest.raises(CoordinatorNotAvailable, match="other changes of this process wait") as caught:
            journal.propose(lambda state, now: decide_create_topic(state, "late", 1, {}, "id-late"), late)
        link.go_on.set()
        assert not caught.value.maybe_applied
        assert (first.result(30), [one.result(30) for one in joined]) == ("id-first", ["id-another"])
    assert {topic.name for topic in leader.state.topics.values()} == {"first", "another"}


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

    def ask(self, asked: Ask) -> Answered:
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
    """It was put, and is behind a checkpoint when the process continues; then the coordinator rejects it."""
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
