"""Journals that hold some topics, whose coordinator is a journal of the whole log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from simulation.harness.clocks import ManualClock
from spark_log.errors import (
    AuthenticationFailed,
    CoordinatorNotAvailable,
    InvalidTopic,
    LogRestored,
    SparkLogError,
    WrongRoot,
)
from spark_log.journal.journal import Journal
from spark_log.journal.store_operations import (
    Answered,
    Ask,
    AskObjects,
    AskTopics,
    Changes,
)
from spark_log.journal.topic_feed import UNANSWERED_MS
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.projection import Delta, Holdings, delta, object_rows
from spark_log.metadata.state import Leadership, State
from spark_log.store.base import ObjectStore
from spark_log.store.memory import MemoryStore
from tests.unit.journal.sample_journals import CountingStore, numbers


class Leader:
    """A coordinator, as a link to it."""

    def __init__(self, store: ObjectStore) -> None:
        self.open(store)
        self.error: SparkLogError | None = None
        """Of all requests."""
        self.address = ""
        """If set, requests to other addresses are not answered."""
        self.confirming: Leader | None = None
        """Gives the answers that must be confirmed, if it is another one."""
        self.asked, self.may_answer = threading.Event(), threading.Event()
        """A change arrived; changes are answered from now on."""
        self.may_answer.set()
        self.requests = 0

    def open(self, store: ObjectStore) -> None:
        """Lead the log in a store."""
        self.journal = Journal.open(store, create=True, clock=ManualClock())
        self._heads: dict[int, str] = {}
        self._note_head()

    def write(self, *names: str, partitions: int = 1) -> None:
        """Create topics, a version each."""
        for name in names:
            self.journal.propose(CreateTopic(name=name, partitions=partitions, topic_id=f"id-{name}"))
            self._note_head()

    def ask(self, asked: Ask) -> Answered:
        self._check(asked.holder)
        self.asked.set()
        assert self.may_answer.wait(30)
        found = [self.journal.propose(command) for command in asked.commands]
        self._note_head()
        assert asked.held is not None
        return Answered(found, delta=self._delta(asked.held))

    def changes(self, *_: Any, **__: Any) -> Changes:
        return Changes(self.journal.state.version)

    def topics(self, asked: AskTopics) -> Delta:
        if asked.confirmed and self.confirming is not None:
            return self.confirming.topics(AskTopics(asked.holder, asked.held))
        self.requests += 1
        self._check(asked.holder)
        return self._delta(asked.held)

    def _check(self, holder: Leadership) -> None:
        if self.error is not None:
            raise self.error
        if self.address not in ("", holder.address):
            raise CoordinatorNotAvailable(f"{holder.address} does not answer")

    def _delta(self, held: Holdings) -> Delta:
        view = self.journal.view
        return delta(view.state, view.head.decode(), held, self._heads.get(held.version, ""))

    def _note_head(self) -> None:
        self._heads[self.journal.state.version] = self.journal.view.head.decode()

    def objects(self, asked: AskObjects) -> Mapping[str, tuple[int, int]]:
        return object_rows(self.journal.state, asked.names)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def leader() -> Leader:
    found = Leader(new_store())
    found.write("a", "b")
    return found


def new_store() -> ObjectStore:
    return MemoryStore(f"feed-{next(numbers)}")


def client_of(leader: Leader) -> Journal:
    store = leader.journal.metadata
    return Journal.open(store, create=False, clock=ManualClock(), link=leader, served=True, partial=True)


def holds_all(journal: Journal) -> bool:
    return journal.view.held is None


# Promise: service.md#what-a-client-keeps-in-memory
def test_a_topic_is_asked_for_once(leader: Leader) -> None:
    """Whether it exists or not; then its changes come with those of the others."""
    journal = client_of(leader)
    state = journal.require(["a", "missing"])
    assert "a" in state.names and "missing" not in state.names and len(state.partitions) == 1
    before = leader.requests
    assert journal.require(["missing", "a"]) is state and leader.requests == before
    assert journal.refresh() is journal.poll() is state
    leader.write("missing")
    assert "missing" in journal.refresh().names
    assert list(journal.require(["b"]).topics) and len(journal.state.partitions) == 3
    assert not holds_all(journal)


def test_a_change_returns_the_state_after_it(leader: Leader) -> None:
    """The client sees what it wrote, with one request."""
    journal = client_of(leader)
    journal.require(["mine"])
    journal.propose(CreateTopic(name="mine", partitions=2, topic_id="new"))
    assert journal.state.names["mine"] == "new" and journal.state.version == leader.journal.state.version


# Promise: service.md#what-a-client-keeps-in-memory
def test_a_client_that_needs_everything_opens_the_log(leader: Leader) -> None:
    """And follows it from then on."""
    journal = client_of(leader)
    journal.require(["a"])
    state = journal.require(None)
    assert holds_all(journal) and state == leader.journal.state
    assert journal.require(["b"]) is journal.state


# Promise: service.md#what-a-client-keeps-in-memory
def test_a_log_whose_coordinator_is_away_is_read_from_the_storage(leader: Leader) -> None:
    """After a time in which a standby takes over: until then, readers keep what they have."""
    journal = client_of(leader)
    state = journal.require(["a"])
    leader.error = CoordinatorNotAvailable("nobody answers")
    assert journal.poll() is state and not holds_all(journal)
    began = journal.context.clock.monotonic_ms()
    leader.write("c")
    assert "c" in journal.refresh().names
    assert holds_all(journal) and journal.context.clock.monotonic_ms() - began >= UNANSWERED_MS


def test_a_reader_that_polls_reads_from_the_storage_too(leader: Leader) -> None:
    """Not only if it needs the newest state."""
    journal = client_of(leader)
    journal.require(["a"])
    leader.error = CoordinatorNotAvailable("nobody answers")
    leader.write("c")
    for _ in range(UNANSWERED_MS // 100 + 1):
        journal.wait(100, 100)
    assert holds_all(journal) and journal.state.version == leader.journal.state.version


def test_an_answer_in_between_starts_the_time_anew(leader: Leader) -> None:
    """Two short failures are not a long one."""
    journal = client_of(leader)
    journal.require(["a"])
    for _ in range(3):
        leader.error = CoordinatorNotAvailable("nobody answers")
        journal.poll()
        journal.context.clock.sleep_ms(UNANSWERED_MS - 1)
        leader.error = None
        journal.poll()
    assert not holds_all(journal)


# Promise: service.md#what-a-client-keeps-in-memory
def test_a_coordinator_that_refuses_is_not_waited_for(leader: Leader) -> None:
    """A client that may read the storage may read the log."""
    journal = client_of(leader)
    leader.error = AuthenticationFailed("no such token")
    began = journal.context.clock.monotonic_ms()
    assert "a" in journal.require(["a"]).names
    assert holds_all(journal) and journal.context.clock.monotonic_ms() - began < UNANSWERED_MS


def test_a_client_whose_first_request_is_refused_opens_the_log(leader: Leader) -> None:
    """For example by an older coordinator."""
    leader.error = AuthenticationFailed("no such token")
    assert holds_all(client_of(leader))


def test_a_restored_log_that_has_not_reached_the_client_is_an_error(leader: Leader) -> None:
    """Its commits are not in it."""
    journal = client_of(leader)
    journal.require(["a"])
    leader.open(new_store())
    leader.write("a")
    with pytest.raises(LogRestored, match="an older copy of the log was restored"):
        journal.refresh()


def test_a_restored_log_that_has_overtaken_the_client_is_followed(
    leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of the other history remains, whatever its partitions have in common with this one's."""
    journal = client_of(leader)
    journal.require(["a", "b"])
    leader.open(new_store())
    leader.write("b", "other", "another")
    with caplog.at_level(logging.WARNING, "spark_log"):
        state = journal.refresh()
    assert "an older copy of the log was restored" in caplog.text
    assert "a" not in state.names and "b" in state.names and list(state.partitions) == [("id-b", 0)]


def test_a_client_that_only_writes_learns_that_the_log_was_restored(leader: Leader) -> None:
    """With its next change, which is in the restored log."""
    journal = client_of(leader)
    journal.require(["mine"])
    leader.open(new_store())
    with pytest.raises(LogRestored) as failed:
        journal.propose(CreateTopic(name="mine", partitions=1, topic_id="new"))
    assert failed.value.maybe_applied and "mine" in leader.journal.state.names


@pytest.mark.parametrize("read", [Journal.poll, lambda journal: journal.wait(100, 100)], ids=["poll", "wait"])
def test_a_reader_that_polls_learns_that_the_log_was_restored(leader: Leader, read: Callable[[Journal], State]) -> None:
    """Otherwise it would wait until the restored log has reached its version."""
    journal = client_of(leader)
    journal.require(["a"])
    leader.open(new_store())
    leader.write("a")
    with pytest.raises(LogRestored, match="an older copy of the log was restored"):
        read(journal)


def test_a_coordinator_that_is_behind_does_not_lead_back(leader: Leader) -> None:
    """For example a standby: it reads the log before it confirms its answer."""
    journal = client_of(leader)
    state = journal.require(["a"])
    behind = Leader(new_store())
    behind.confirming = leader
    journal.link = behind
    assert journal.poll() is journal.wait(100, 100) is state
    leader.write("c", "missing")
    assert journal.poll().version == state.version + 2


def test_a_change_finds_a_leader_whose_address_is_in_the_log_alone(leader: Leader) -> None:
    """The coordinators that the client knows are gone; its topics stay those that it holds."""
    journal = client_of(leader)
    journal.require(["mine"])
    leader.address = "there:2"
    leader.journal.take_over(0, leader.address, "there")
    journal.propose(CreateTopic(name="mine", partitions=1, topic_id="new"))
    assert journal.state.names["mine"] == "new" and not holds_all(journal)


def test_a_change_reads_the_log_for_its_leader_once_in_a_while(leader: Leader) -> None:
    """Thousands of clients may wait for the same coordinator."""
    store = CountingStore(leader.journal.metadata)
    journal = Journal.open(store, create=False, clock=ManualClock(), link=leader, served=True, partial=True)
    journal.require(["mine"])
    leader.error = CoordinatorNotAvailable("nobody answers")
    before = store.operations["list"]
    with pytest.raises(CoordinatorNotAvailable):
        journal.propose(CreateTopic(name="mine", partitions=1, topic_id="new"))
    opened = 2  # listings of checkpoints when a log is opened
    assert 0 < store.operations["list"] - before <= opened * (journal.context.coordinator_wait_ms // UNANSWERED_MS)


def test_reads_do_not_wait_for_a_change_that_waits(leader: Leader) -> None:
    """They read the log; the change is in their state afterwards."""
    journal = client_of(leader)
    journal.require(["a"])
    leader.may_answer.clear()
    create = CreateTopic(name="mine", partitions=1, topic_id="new")
    change = threading.Thread(target=journal.propose, args=(create,))
    change.start()
    assert leader.asked.wait(30)
    leader.write("c")
    assert "c" in journal.require(None).names and change.is_alive()
    leader.may_answer.set()
    change.join(30)
    assert "mine" in journal.state.names and holds_all(journal)


def test_a_name_that_no_topic_can_have_is_refused(leader: Leader) -> None:
    """Before it is sent."""
    journal = client_of(leader)
    with pytest.raises(InvalidTopic, match="expected a-z"):
        journal.require(["\ud800"])


def test_a_first_read_of_the_whole_log_long_after_the_connection_is_of_the_same_log(leader: Leader) -> None:
    """Another log may be in its place by then: its disk is not mounted, or it was begun again."""
    journal, asking = client_of(leader), client_of(leader)
    asking.require(["a"])
    store = leader.journal.metadata
    disk = {name: store.get(name) for name in store.list("meta/")}
    store.delete(disk)
    other = Leader(store)
    other.write("of-another-log")
    other.journal.take_over(0, "other:1", "there")
    with pytest.raises(WrongRoot, match="is the root of log .* not of log"):
        journal.require(None)
    leader.error = CoordinatorNotAvailable("nobody answers")
    with pytest.raises(CoordinatorNotAvailable):
        asking.propose(CreateTopic(name="mine", partitions=1, topic_id="new"))
    assert asking.state.coordinator.address != "other:1" and not holds_all(journal)
    store.delete(store.list("meta/"))
    for name, data in disk.items():
        store.put(name, [data])
    assert {"a", "b"} == {*journal.require(None).names} and holds_all(journal)
