"""A coordinator and commands that no client of ours gives."""

from __future__ import annotations

import logging
import platform
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulation.harness.clocks import ManualClock, SkewedClock
from spark_log import NewTopic, TopicPartition
from spark_log.client.log import Log
from spark_log.errors import (
    ClockSkewed,
    ConcurrentChange,
    CoordinatorNotAvailable,
    InvalidRequest,
    NotCoordinator,
    StorageError,
)
from spark_log.http.address import this_host
from spark_log.journal.failure_isolation import log_retry
from spark_log.journal.journal import Journal
from spark_log.journal.store_operations import (
    Answered,
    Ask,
    Changes,
)
from spark_log.metadata.commands import Append, Command, CreateTopic, DeleteTopic
from spark_log.metadata.groups.group_commands import JoinGroup, RemoveMember
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.state import Leadership as Holder
from spark_log.metadata.state import State
from spark_log.model import DataObject, Run
from spark_log.rpc.health_check import is_refused
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.serve.serve import leader_status
from spark_log.server.coordinator import Coordinator, LeaderStatus, TakeoverWatch
from spark_log.store.local import LocalStore
from tests.logged import logged
from tests.processes import eventually, free_port


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    """One that leads."""
    with leading(LocalStore(str(tmp_path / "log"), "os")) as found:
        yield found


@contextmanager
def leading(
    store: LocalStore, clock: Clock | None = None, storage_timeout_ms: int = 15_000, takeover_ms: int = 10_000
) -> Iterator[Coordinator]:
    """A coordinator of the log in a store, that leads."""
    made = Coordinator(
        store,
        host="here",
        ask_leader=lambda holder: LeaderStatus.SILENT,
        clock=clock,
        takeover_ms=takeover_ms,
        storage_timeout_ms=storage_timeout_ms,
    )
    made.address = "here:1"
    thread = threading.Thread(target=made.run, name="coordinator")
    thread.start()
    while not made.leading:
        time.sleep(0.01)
    try:
        yield made
    finally:
        made.stop()
        thread.join()


# Promise: service.md#leadership
def test_of_two_coordinators_with_one_address_and_host_name_the_older_one_waits_for_a_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A newcomer is taken for a restart, and takes over.  The older one says what is wrong, until the newcomer releases
    the log.
    """
    store = LocalStore(str(tmp_path / "log"), "os")
    with leading(store, takeover_ms=1) as older:
        with leading(store) as newer:
            while older.health().healthy:
                time.sleep(0.05)
            assert "give each coordinator its own --advertise address or host name" in older.health().reason
            assert (older.leading, newer.leading, newer.epoch) == (False, True, older.state.coordinator.epoch)
            with pytest.raises(NotCoordinator, match="another process took over as here:1 on the machine 'here'"):
                older.submit([CreateTopic(name="t", partitions=1, topic_id="1")]).result(30)
            assert newer.submit([CreateTopic(name="t", partitions=1, topic_id="1")]).result(30).outcomes == ["1"]
        while not older.leading:
            time.sleep(0.05)
        assert (older.health().healthy, older.epoch) == (True, 3)
    assert len(logged(caplog, "another process took over as")) == 1


class Lossy:
    """A link to a coordinator; it loses the first answer to each command in a list."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.loses = False

    def ask(self, asked: Ask) -> Answered:
        answered = self._coordinator.submit(asked.commands).result(60)
        if self.loses:
            self.loses = False
            error = CoordinatorNotAvailable("the answer was lost")
            error.maybe_applied = True
            raise error
        return answered

    def changes(self, *_: Any) -> Changes:
        return Changes(self._coordinator.state.version)

    def close(self) -> None:
        """Nothing is held open."""


def test_a_coordinator_whose_clock_is_set_wrong_steps_down_until_it_is_right(tmp_path: Path) -> None:
    """It can write nothing, so it has no reason to lead; the error names the machine, which is not the client's."""
    clock = SkewedClock(SystemClock())
    with leading(LocalStore(str(tmp_path / "log"), "os"), clock, 2000) as made:
        epoch = made.epoch
        clock.skew_ms = 3_600_000
        (refused,) = made.submit([CreateTopic(name="t", partitions=1, topic_id="id")]).result(60).outcomes
        assert isinstance(refused, ClockSkewed) and platform.node() in str(refused)
        while "1:00:00 ahead of the storage's" not in made.health().reason:
            time.sleep(0.01)
        assert not made.health().healthy
        made.check_storage()
        assert (made.leading, made.stepped_down) == (False, epoch)
        clock.skew_ms = 0
        while not made.leading:
            time.sleep(0.01)
        assert made.submit([CreateTopic(name="t", partitions=1, topic_id="id")]).result(60).outcomes == ["id"]


# Promise: service.md#leadership
def test_a_change_by_the_admin_whose_answer_was_lost_is_its_own(tmp_path: Path, coordinator: Coordinator) -> None:
    """It is sent again, finds what the first try did, and is done; what comes under a name afterwards is left alone."""
    link = Lossy(coordinator)
    log = Log(Journal.open(LocalStore(str(tmp_path / "log"), "os"), create=False, link=link, served=True))
    (old,) = log.admin.create_topics([NewTopic("b", 1)]).values()
    for change in (
        lambda: log.admin.create_topics([NewTopic("a", 1)]),
        lambda: log.admin.create_partitions({"a": 3, "b": 2}),
        lambda: log.admin.incremental_alter_configs({"a": {"retention.ms": "5"}}),
        lambda: log.admin.alter_consumer_group_offsets("g", {TopicPartition("a", 0): 0, TopicPartition("b", 0): 0}),
        lambda: log.admin.delete_consumer_group_offsets("g", [TopicPartition("b", 0)]),
        lambda: log.admin.delete_records({TopicPartition("a", 0): -1}),
        lambda: log.admin.delete_consumer_groups(["g"]),
        lambda: log.admin.delete_topics(["b"]),
    ):
        link.loses = True
        change()
        assert not link.loses
    assert [part.partition for part in log.admin.describe_topics(["a"])["a"].partitions] == [0, 1, 2]
    assert log.admin.list_topics() == ["a"] and log.admin.list_consumer_groups() == []
    log.admin.create_topics([NewTopic("b", 1)])
    coordinator.submit([DeleteTopic(name="b", topic_id=old)]).result(60)
    assert log.admin.list_topics() == ["a", "b"]


# Promise: clients.md#bookmarks, service.md#leadership
def test_a_bookmark_whose_answer_was_lost_is_committed(tmp_path: Path, coordinator: Coordinator) -> None:
    """The run finds its own position and is done; that of another run, as far as it is, is still another's."""
    link = Lossy(coordinator)
    log = Log(Journal.open(LocalStore(str(tmp_path / "log"), "os"), create=False, link=link, served=True))
    log.append("orders", [{"value": b"1"}])
    with log.bookmark("nightly", "orders"):
        link.loses = True
    assert not link.loses
    with log.bookmark("nightly", "orders") as again:
        assert again.starts == again.ends
    log.append("orders", [{"value": b"2"}])
    other = log.bookmark("nightly", "orders").__enter__()
    with log.bookmark("nightly", "orders"):
        pass
    link.loses = True
    with pytest.raises(ConcurrentChange):
        other.__exit__(None, None, None)


def test_who_took_a_group_after_a_member_was_removed_keeps_it(coordinator: Coordinator) -> None:
    """Though the removal is sent again, for its answer was lost."""

    def ask(command: Command) -> object:
        (outcome,) = coordinator.submit([command]).result(60).outcomes
        return outcome

    joined = ask(JoinGroup(group="g", member="one"))
    remove = RemoveMember(group="g", member="one")
    removed = ask(remove)
    assert removed == ask(remove) != joined
    taken = ask(JoinGroup(group="g", member="two"))
    assert ask(remove) == taken != removed and coordinator.state.groups["g"].member == "two"
    ask(RemoveMember(group="g", member="two"))
    assert coordinator.state.groups["g"].member == ""


def test_a_command_that_makes_no_sense_does_not_end_a_coordinator(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client gets an error, and commands of others are carried out."""
    create = CreateTopic(name="t", partitions=1, topic_id="id")
    assert coordinator.submit([create]).result(60).outcomes == ["id"]
    commit = CommitRecord(
        producer="p",
        sequence=0,
        upload_epoch=coordinator.state.version,
        objects=(DataObject("data/0000000000000001/one.seg", 10, 5),),
        slices=((3, Run("id", 0, 1, 0, 5, 0, 1, 0, 0)),),  # of the fourth object, and there is one
    )
    with caplog.at_level(logging.CRITICAL, "spark_log"):
        (outcome,) = coordinator.submit([Append(commit=commit)]).result(60).outcomes
    assert isinstance(outcome, InvalidRequest)
    other = CreateTopic(name="u", partitions=1, topic_id="other")
    assert coordinator.submit([other]).result(60).outcomes == ["other"]


class Breaking(LocalStore):
    """Fails in a thread, as nothing fails that is foreseen."""

    error: Exception = RuntimeError("nobody thought of this")
    lasts = False
    """It fails more than once."""
    broken = ""
    """Name of the thread."""

    def __init__(self, root: str) -> None:
        super().__init__(root, "os")
        self.thread, self.may_fail = threading.current_thread(), threading.Event()
        """Which one failed last, or waits until it may."""
        self.may_fail.set()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if self.broken == threading.current_thread().name:
            self.broken, self.thread = self.broken if self.lasts else "", threading.current_thread()
            self.may_fail.wait(60)
            raise self.error
        return super().get(key, start, end)


@pytest.mark.parametrize(
    ("thread", "said"),
    [
        ("coordinator", "the coordinator failed, restarting it"),
        ("pylog-maintenance", "maintenance of .* failed, restarting it"),
    ],
)
def test_a_thread_that_breaks_off_begins_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, thread: str, said: str
) -> None:
    """And says so: what is asked afterwards is done."""
    store = Breaking(str(tmp_path / "log"))
    with caplog.at_level(logging.ERROR, "spark_log"), leading(store) as coordinator:
        store.broken = thread
        deadline = time.monotonic() + 30
        while not any(re.match(said, message) for message in caplog.messages):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert outcome_of(coordinator, CreateTopic(name="t", partitions=1, topic_id="id"), deadline) == "id"
        assert coordinator.epoch == 1


def test_a_duty_that_fails_after_its_end_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While its coordinator leads, it says that it tries again."""
    store = Breaking(str(tmp_path / "log"))
    store.error = StorageError("cannot be read now")
    with leading(store):
        store.broken = "pylog-maintenance"
        eventually(lambda: logged(caplog, "failed, retrying in its next run: cannot be read now"))
        store.may_fail.clear()
        store.broken = "pylog-maintenance"
        eventually(lambda: not store.broken)
    store.may_fail.set()
    store.thread.join(60)
    assert not store.thread.is_alive()
    assert len(logged(caplog, "cannot be read now")) == 1


@pytest.mark.parametrize(
    ("error", "ended", "said"),
    [
        (StorageError("away"), False, ["copying failed, retrying: away"]),
        (StorageError("away"), True, []),
        (KeyError("a bug"), True, ["copying failed, retrying"]),
    ],
)
def test_a_failure_of_the_end_is_not_said(
    caplog: pytest.LogCaptureFixture, error: Exception, ended: bool, said: list[str]
) -> None:
    """It is expected, other than a bug."""
    log_retry("copying failed, retrying", error, lambda: ended)
    assert logged(caplog, "copying failed") == said


@pytest.mark.parametrize("error", [RuntimeError("nobody thought of this"), StorageError("the storage is unreadable")])
def test_a_coordinator_that_cannot_read_the_log_does_not_lead(tmp_path: Path, error: Exception) -> None:
    """However many requests ask for the end of the log: each of them fails, and none waits for ever."""
    store = Breaking(str(tmp_path / "log"))
    with leading(store) as coordinator:
        store.error, store.lasts, store.broken = error, True, "coordinator"
        deadline = time.monotonic() + 30
        while coordinator.leading:
            assert time.monotonic() < deadline
            with suppress(CoordinatorNotAvailable, NotCoordinator):
                coordinator.submit([]).result(60)
        store.broken = ""
        assert outcome_of(coordinator, CreateTopic(name="t", partitions=1, topic_id="id"), deadline) == "id"


class Uncertain(LocalStore):
    """Does not show what a thread has put."""

    hides = ""
    """Name of the thread; for its next put."""
    error: Exception | None = None
    """Of the next read."""

    def put_new(self, key: str, data: bytes) -> bool:
        found = super().put_new(key, data)
        if self.hides == threading.current_thread().name:
            self.hides, self.error = "", self.hidden
        return found

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().get(key, start, end)

    hidden: Exception


@pytest.mark.parametrize("error", [RuntimeError("nobody thought of this"), StorageError("the storage is unreadable")])
def test_a_coordinator_that_does_not_know_of_its_take_over_leads_at_once(tmp_path: Path, error: Exception) -> None:
    """Also if it has led before: the log names no other process."""
    store = Uncertain(str(tmp_path / "log"), "os")
    coordinator = Coordinator(
        store,
        host="here",
        ask_leader=lambda holder: LeaderStatus.SILENT if holder.host == "here" else LeaderStatus.STEPPED_DOWN,
        takeover_ms=600_000,
    )
    coordinator.address, store.hidden = "here:1", error
    thread = threading.Thread(target=coordinator.run, name="coordinator")
    thread.start()
    try:
        eventually(lambda: coordinator.leading)
        rival = Journal.open(store, create=False)
        store.hides = "coordinator"
        rival.take_over(1, "there:1", "there")
        eventually(lambda: coordinator.leading and coordinator.epoch > 2)
        assert not store.hides and coordinator.epoch == 4
    finally:
        coordinator.stop()
        thread.join(60)


def outcome_of(coordinator: Coordinator, command: CreateTopic, deadline: float) -> object:
    """As soon as it leads again."""
    while True:
        try:
            return coordinator.submit([command]).result(60).outcomes[0]
        except NotCoordinator:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize(("status", "waits_ms"), [(LeaderStatus.SILENT, 10_000), (LeaderStatus.REFUSES, 2000)])
def test_a_standby_waits_less_where_no_process_listens(status: LeaderStatus, waits_ms: int) -> None:
    """A killed process cannot answer.  A leader that writes is alive, though its address refuses the standby."""
    clock, state = ManualClock(0), State()
    watch = TakeoverWatch(clock, 10_000)
    assert not watch.is_gone(state, lambda _: status)
    clock.sleep_ms(waits_ms - 1)
    assert not watch.is_gone(state, lambda _: status)
    clock.sleep_ms(1)
    assert watch.is_gone(state, lambda _: status)
    assert not watch.is_gone(replace(state, version=1), lambda _: status)


def test_a_refused_connection_is_not_silence() -> None:
    """A machine that nobody knows has not refused anything."""
    address = f"127.0.0.1:{free_port()}"
    assert leader_status(Holder(1, address, this_host()), False, None) is LeaderStatus.REFUSES
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not is_refused(f"127.0.0.1:{silent.getsockname()[1]}")
    assert not is_refused("nobody.invalid:1")
