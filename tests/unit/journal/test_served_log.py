"""A process that has its metadata from a coordinator alone, and the faults of that coordinator."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from simulation.harness.clocks import ManualClock
from simulation.harness.metadata_log_contract import ClientLogContract, OpenLog
from spark_log.errors import (
    AuthenticationFailed,
    CoordinatorNotAvailable,
    LogRestored,
    SparkLogError,
    TopicAlreadyExists,
)
from spark_log.journal.context import Context, Proposal
from spark_log.journal.journal import Journal
from spark_log.journal.served_log import ServedLog, ServedView
from spark_log.journal.store_operations import (
    Answered,
    Ask,
    AskChanges,
    AskClaim,
    AskSnapshot,
    AskStatus,
    Changes,
    Snapshot,
    Steps,
    Stores,
    run,
)
from spark_log.metadata.commands import CreateTopic
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import log_key
from tests.unit.journal.sample_journals import numbers


class Leader:
    """A coordinator, as a link to it."""

    def __init__(self, *topics: str) -> None:
        self.store = MemoryStore(f"served-{next(numbers)}")
        self.journal = Journal.open(self.store, create=True, clock=ManualClock())
        self.error: SparkLogError | None = None
        """Of all requests."""
        self.answers_changes = True
        """False: it is lost after it has applied a command."""
        self.remembers_from = 0
        """The first version whose record it has in memory."""
        self.snapshots = 0
        for topic in topics:
            self.journal.propose(create(topic))

    def ask(self, asked: Ask) -> Answered:
        self._check()
        proposals = [Proposal(command) for command in asked.commands]
        self.journal.carry_out(proposals)
        if not self.answers_changes:
            self.error = CoordinatorNotAvailable("killed")
            return Answered([one.reply for one in proposals])
        found = [one.reply if one.error is None else one.error for one in proposals]
        return Answered(found, self._records(asked.since))

    def changes(self, asked: AskChanges) -> Changes:
        self._check()
        since, head = asked.since, asked.head
        version = self.journal.state.version
        known = self._head(since)
        if version < since or (head and known and head != known):
            return Changes(version, lacks_head=True)
        return Changes(version, self._records(since))

    def claim(self, asked: AskClaim) -> bytes | None:
        name, value = asked.name, asked.value
        log = self.journal.metadata_log
        return self.journal.run(log.claimed(name) if value is None else log.claim(name, value))

    def status(self, asked: AskStatus) -> int:
        return self.journal.run(self.journal.metadata_log.status()).checkpoint

    def snapshot(self, asked: AskSnapshot) -> Snapshot | None:
        self._check()
        if asked.version is not None:
            found = self.journal.state_at(asked.version)
            return None if found is None else Snapshot(found)
        self.snapshots += 1
        return Snapshot(self.journal.state, self._head(self.journal.state.version))

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _records(self, since: int) -> list[bytes]:
        versions = range(since + 1, self.journal.state.version + 1)
        return [self.store.get(log_key(one)) for one in versions] if since >= self.remembers_from else []

    def _head(self, version: int) -> bytes:
        names = self.store.list("meta/log/")
        return self.store.get(log_key(version)).partition(b"\n")[0] if log_key(version) in names else b""


class Two(Leader):
    """A coordinator, and a standby that answers requests for snapshots first."""

    def __init__(self, *topics: str, refuses: bool) -> None:
        """
        refuses:  the standby refuses requests for versions that it lacks.
        """
        super().__init__(*topics)
        self._refuses = refuses
        self._old = Snapshot(self.journal.state, self._head(self.journal.state.version))

    def snapshot(self, asked: AskSnapshot) -> Snapshot | None:
        self.snapshots += 1
        if self._refuses and asked.at_least > self._old.state.version:
            return super().snapshot(asked)
        return self._old


def create(topic: str) -> CreateTopic:
    return CreateTopic(name=topic, partitions=1, topic_id=f"{topic}-{next(numbers)}")


class Client:
    """A process with a served log."""

    def __init__(self, leader: Leader) -> None:
        self.leader, self.clock = leader, ManualClock()
        self.log = ServedLog(Context(self.clock, random.Random(1), served=True), leader.journal.cluster_id)
        self.view: ServedView = self.run(self.log.open())

    def run(self, steps: Steps[Any]) -> Any:
        return run(steps, Stores.of(MemoryStore("unused")), self.clock, self.leader)  # type: ignore[arg-type]

    def refresh(self) -> ServedView:
        self.view = self.run(self.log.refresh(self.view))
        return self.view

    def look(self) -> ServedView:
        self.view = self.run(self.log.look(self.view))
        return self.view

    def propose(self, topic: str) -> Proposal:
        command = Proposal(create(topic))
        self.view = self.run(self.log.propose(self.view, [command]))
        return command


@pytest.fixture
def leader() -> Leader:
    return Leader("a", "b")


class TestServedLog(ClientLogContract):
    """Of a coordinator that keeps its log on storage."""

    @pytest.fixture
    def new(self) -> Callable[[], OpenLog]:
        leader = Leader()

        def process() -> OpenLog:
            client = Client(leader)
            return OpenLog(client.log, client.run)

        return process


def test_changes_are_followed_by_their_records(leader: Leader) -> None:
    """One snapshot is enough, until the coordinator does not know the records any more."""
    client = Client(leader)
    leader.journal.propose(create("c"))
    assert client.refresh().state == leader.journal.state
    leader.journal.propose(create("d"))
    assert client.look().state == leader.journal.state and leader.snapshots == 1
    leader.journal.propose(create("e"))
    leader.remembers_from = leader.journal.state.version
    assert client.look().state == leader.journal.state and leader.snapshots == 2


def test_a_command_is_in_the_view_afterwards(leader: Leader) -> None:
    """A refused one has its error."""
    client = Client(leader)
    leader.journal.propose(create("c"))
    assert client.propose("d").error is None and set(client.view.state.names) == set("abcd")
    assert isinstance(client.propose("d").error, TopicAlreadyExists)


# Promise: service.md#clients-without-rights-on-meta
def test_a_standby_that_is_behind_changes_nothing(leader: Leader) -> None:
    """A view never goes back."""
    client = Client(leader)
    leader.journal.propose(create("c"))
    view = client.refresh()
    behind = Changes(view.state.version - 1)
    assert client.run(client.log.follow(view, behind)) is view
    assert client.log.newer(view, view._replace(state=Leader().journal.state)) is view


# Promise: service.md#clients-without-rights-on-meta
def test_reads_wait_for_a_coordinator(leader: Leader) -> None:
    """As long as a change; a waiting reader keeps its view in the meantime."""
    client, wait_ms = Client(leader), 30_000
    leader.error = CoordinatorNotAvailable("away")
    began, view = client.clock.ms, client.view
    with pytest.raises(CoordinatorNotAvailable, match="away"):
        client.refresh()
    assert wait_ms - 200 <= client.clock.ms - began <= wait_ms
    assert client.look() is view
    client.clock.ms += wait_ms - 1
    assert client.look() is view
    client.clock.ms += 1
    with pytest.raises(CoordinatorNotAvailable, match="away"):
        client.look()
    leader.error = None
    assert client.look() is view
    leader.error = CoordinatorNotAvailable("away again")
    assert client.look() is view


def test_a_refusal_is_not_waited_for(leader: Leader) -> None:
    """There is nothing else to read."""
    client = Client(leader)
    leader.error, began = AuthenticationFailed("no"), client.clock.ms
    for read in (client.refresh, client.look):
        with pytest.raises(AuthenticationFailed):
            read()
    assert client.clock.ms == began


def test_a_coordinator_that_is_lost_after_a_change_does_not_fail_it(leader: Leader) -> None:
    """The change is applied, and later reads see it."""
    client, view = Client(leader), leader.journal.view
    leader.answers_changes = False
    command = client.propose("c")
    assert command.done and command.error is None and client.view.state.version == view.state.version
    leader.error = None
    assert "c" in client.refresh().state.names


def test_a_restored_log_that_is_shorter_is_noticed(leader: Leader) -> None:
    """Commits of this process may be lost."""
    client = Client(leader)
    client.leader = Leader("a")
    with pytest.raises(LogRestored, match="version 2"):
        client.refresh()


def test_a_restored_log_with_another_history_is_opened_anew(leader: Leader, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning, and nothing of the former history remains."""
    client = Client(leader)
    client.leader = Leader("a", "x", "y")
    with caplog.at_level(logging.WARNING, "spark_log"):
        assert client.refresh().state == client.leader.journal.state
    assert "an older copy of the log was restored" in caplog.text


def lagging(*, refuses: bool) -> Two:
    """A standby that has two topics, and a leader that has three and not the records between."""
    nodes = Two("a", "b", refuses=refuses)
    nodes.journal.propose(create("c"))
    nodes.remembers_from = nodes.journal.state.version
    return nodes


def test_a_snapshot_reaches_the_version_that_the_leader_has_named() -> None:
    """A standby that is behind has an older one, from which no records of the leader continue."""
    nodes = lagging(refuses=True)
    assert Client(nodes).view.state == nodes.journal.state and nodes.snapshots == 3


def test_coordinators_whose_answers_do_not_fit_together_are_an_error() -> None:
    """After the wait for a change: not an endless loop."""
    client = Client(Leader("a", "b"))
    client.leader, began, wait_ms = lagging(refuses=False), client.clock.ms, client.log.context.coordinator_wait_ms
    client.view = ServedView(client.view.state)
    with pytest.raises(CoordinatorNotAvailable, match="at version 3, .* of version 2, does not lead there"):
        client.refresh()
    assert wait_ms <= client.clock.ms - began <= wait_ms + 200
