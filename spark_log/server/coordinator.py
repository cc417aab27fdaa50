"""A coordinator: the single process that writes a log's metadata while it leads, or a standby.

It runs the same journal as embedded clients.  One thread applies commands; commands that arrive while a record is
being written share the next record.  `server.py` has the network service; this module does not depend on it.

The log alone decides who leads: a take-over names the epoch that it follows, and if two coordinators take over from
the same epoch, the second one is rejected.  A coordinator takes over if no other one has the log, if it had the log
before its restart (same address, same machine), if the leader says that it stepped down, or if the leader neither
answered nor wrote for `takeover_ms`. If that leader was alive, its next commit fails and it becomes a standby.

A leader steps down if no write was completed for `storage_timeout_ms`: the storage failed, or records are rejected
because of a wrong clock.  Its thread may hang in a storage request then, so another thread calls `check_storage`,
which does no I/O.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

from spark_log.client.log import Log
from spark_log.errors import ClockSkewed, CoordinatorNotAvailable, NotCoordinator, SparkLogError, StorageError
from spark_log.http.connection_limits import Connections
from spark_log.journal.journal import Journal
from spark_log.journal.metadata_log import MetadataLog
from spark_log.journal.storage.storage_health import StorageHealth, mark_key
from spark_log.journal.store_operations import Answered, Steps
from spark_log.log_lines import logger
from spark_log.metadata.command_base import HeldPosition
from spark_log.metadata.commands import AnyCommand
from spark_log.metadata.decide_coordinators import moved_error, moved_to, moving_to
from spark_log.metadata.groups.group_commands import SetGeneration
from spark_log.metadata.projection import Delta, Holdings, delta
from spark_log.metadata.state import Leadership as Holder
from spark_log.metadata.state import State
from spark_log.monitoring.coordinator_metrics import Metrics
from spark_log.monitoring.quota_usage import Usage
from spark_log.roots.broker_roots import Roots
from spark_log.roots.root_options import DEFAULT_OPTIONS, RootOptions
from spark_log.rpc.messages import Health
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.server.change_feed import ChangeFeed
from spark_log.server.coordinator_duties import Duties
from spark_log.server.local_link import LocalLink
from spark_log.server.pending_commands import PendingCommands, commands_of, pending_commands
from spark_log.server.recent_records import RecordCache
from spark_log.server.service import Rule
from spark_log.store.base import ObjectStore

LOOK_S = 1.0
"""How often an idle coordinator checks that it still leads, and how often a standby checks whether the log is free."""
QUEUE_MAX = 20_000
BATCH_MAX = 500
"""Maximum number of commands in one record."""

Result = TypeVar("Result")


class LeaderStatus(Enum):
    """The state of a leader, as it reports itself."""

    LEADS = "leads"
    SILENT = "silent"
    REFUSES = "refuses connections"
    """Its machine answers, and no process listens at its address: it was killed, or starts again."""
    STEPPED_DOWN = "stepped down"
    """It stopped leading under this epoch, because no write to its storage was completed."""


AskLeader = Callable[[Holder], LeaderStatus]


class Coordinator:
    """A leader or standby.  `run` runs in its thread; the other methods may be called from any thread."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        host: str,
        ask_leader: AskLeader,
        takeover_ms: int = 10_000,
        maintain_ms: int | None = None,
        storage_timeout_ms: int = 15_000,
        clock: Clock | None = None,
        root_options: RootOptions = DEFAULT_OPTIONS,
        create: bool = True,
    ) -> None:
        """
        host:                the name of this machine.
        ask_leader:          asks the current leader for its status.
        takeover_ms:         a standby takes over from a leader that has neither answered nor written for this long.
        maintain_ms:         interval of maintenance (`pylog maintain`); None: never.
        storage_timeout_ms:  step down if no write to the storage was completed for this long.
        root_options:        how to open the roots of brokers.
        create:              create the log if there is none.
        Raises the errors of opening a log.
        """
        self.address = ""
        """Address for clients; set before it runs."""
        self.epoch = 0
        """The epoch under which it leads; 0: it does not lead."""
        self.stepped_down = 0
        """The last epoch in which it stepped down because no write to its storage was completed."""
        self.confirmed_s = 0.0
        """When, on the monotonic clock, it last began a check that found it leading."""
        self.followed_s = -math.inf
        """When, on the monotonic clock, it last began to read the log up to its end, as a standby."""
        self.tail = RecordCache(store)
        self.journal = Journal.open(self.tail, create=create, clock=clock or SystemClock(), root_options=root_options)
        self._root_options = root_options
        self.metrics = Metrics()
        self.change_feed = ChangeFeed()
        self.change_feed.note(self.state.version, None)  # all versions up to it may be new to a client
        self._published = self.journal.view
        """The newest view that clients get."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after a new version or a change of the leader."""
        self.held: Callable[[], tuple[HeldPosition, ...]] = tuple
        """Positions that must not expire now."""
        self._host = host
        self._ask_leader = ask_leader
        self._takeover_ms = takeover_ms
        clock = self.journal.context.clock
        self.duties = Duties(self, self.open_log, self.metrics, clock, maintain_ms)
        self.storage_health = StorageHealth(self.tail, clock, storage_timeout_ms)
        self.tail.on_error = self.storage_health.note_failure
        self._queue: queue.Queue[PendingCommands | None] = queue.Queue(QUEUE_MAX)
        self._under_way: list[PendingCommands] = []
        self._tried = 0
        """The last epoch under which it tried to take over; the outcome may be unknown."""
        self._namesake = ""
        """The problem if another process has the log under the address and host name of this one; empty if none has."""
        self._stopping = threading.Event()
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        return self.journal.state

    @property
    def leading(self) -> bool:
        return self.epoch > 0

    # --------------------------------------------------------------------------------------------------------- commands

    @property
    def roots(self) -> Roots:
        return self.journal.roots

    def submit(self, commands: Sequence[AnyCommand | SetGeneration], allow: Rule | None = None) -> Future[Answered]:
        """Apply commands, possibly in one record with other commands.  Without commands, read the log up to its end.

        allow:  as in `Service.submit`.
        The returned future fails with NotCoordinator if this coordinator does not lead, and with
        CoordinatorNotAvailable if its queue is full.
        """
        asked = pending_commands([command.keeping(self.held) for command in commands], allow)
        error: SparkLogError | None = None
        with self._lock:
            if not self.leading or self._stopping.is_set():
                error = self.not_leading()
            else:
                try:
                    self._queue.put_nowait(asked)
                except queue.Full:
                    error = CoordinatorNotAvailable(f"the queue is full: {QUEUE_MAX} requests")
        if error is not None:
            asked.answer.set_exception(error)
        return asked.answer

    def not_leading(self) -> NotCoordinator:
        """The error for requests to a coordinator that does not lead."""
        held, problem = self.state.coordinator, self.problem
        if problem and not self.leading:
            text = f"this coordinator does not lead: {problem}"
        else:
            leader = "its predecessor at the same address" if held.address == self.address else held.address or "none"
            text = f"this coordinator is a standby, {leader} leads"
        return NotCoordinator(text, address=held.address, epoch=held.epoch)

    @property
    def problem(self) -> str:
        """Why this coordinator can neither lead nor stand by; empty if it can."""
        return self._namesake or self.storage_health.problem

    def check_storage(self) -> None:
        """Step down if no write was completed for too long.  Does no I/O; runs in another thread than `run`."""
        problem = self.storage_health.problem
        if not problem:
            return
        if self.leading:
            logger.error("stepping down from %s: %s", self.journal.metadata.url, problem)
            self.stepped_down = self.epoch
            self._step_down()
        unknown = CoordinatorNotAvailable(f"the coordinator stepped down while a change was in progress: {problem}")
        unknown.maybe_applied = True
        for asked in self._under_way:
            asked.give_up(unknown)

    # --------------------------------------------------------------------------------------------------- what is served

    @property
    def cluster_id(self) -> str:
        return self.journal.cluster_id

    @property
    def storage(self) -> str:
        return self.journal.metadata.url

    def has_followed_since(self, asked_s: float) -> bool:
        return self.followed_s >= asked_s

    async def leader_known(self) -> None:
        """A take-over takes longer than a client should wait for."""

    @property
    def answers_final(self) -> bool:
        """This process may have been suspended when another one had the log already."""
        return False

    def health(self) -> Health:
        state, problem = self.state, self.problem
        return Health(
            cluster_id=self.cluster_id,
            leading=self.leading and not problem,
            epoch=state.coordinator.epoch,
            version=state.version,
            healthy=not problem,
            reason=problem,
            storage_age_ms=self.storage_health.age_ms,
            stepped_down=self.stepped_down,
            set_aside=self.metrics.compaction.set_aside,
        )

    def after(self, since: int, upto: int, limit: int) -> Sequence[bytes]:
        return self.tail.records.after(since, upto, limit)

    def head(self, version: int) -> str:
        return self.tail.records.head(version).decode()

    @property
    def published(self) -> State:
        return self._published.state

    def published_with_head(self) -> tuple[State, str]:
        view = self._published
        return view.state, view.head.decode()

    def ask_log(self, steps: Callable[[MetadataLog[Any]], Steps[Result]]) -> Result:
        return self.journal.run(steps(self.journal.metadata_log))

    def delta(self, held: Holdings) -> Delta:
        view = self._published
        head = view.head.decode()
        known = head if held.version == view.state.version else self.head(held.version)
        return delta(view.state, head, held, known)

    def metrics_text(self, *, polls: int, connections: Connections, usage: Sequence[Usage]) -> str:
        return self.metrics.text(
            self.state,
            epoch=self.epoch,
            polls=polls,
            connections=connections,
            usage=usage,
            storage_age_s=self.storage_health.age_ms / 1000,
        )

    # ------------------------------------------------------------------------------------------------------- the thread

    def run(self) -> None:
        """Stand by and lead, until `stop`; then release the log."""
        while not self._stopping.is_set():
            try:
                self._stand_by()
                self._lead()
            except SparkLogError as error:
                logger.error("the coordinator failed, retrying: %s", error)
                self._stopping.wait(LOOK_S)
            except Exception:
                # Retry after any error: a process that listens but cannot lead would be worse.
                logger.exception("the coordinator failed, restarting it")
                self._stopping.wait(LOOK_S)
            finally:
                self._step_down()
        self._release()

    def stop(self) -> None:
        """Make `run` end in order."""
        self._stopping.set()
        with suppress(queue.Full):  # then the thread is awake anyway
            self._queue.put_nowait(None)

    def _stand_by(self) -> None:
        """Wait until this coordinator has the log."""
        watch = TakeoverWatch(self.journal.context.clock, self._takeover_ms)
        reported = ""
        while not self._stopping.is_set():
            began = time.monotonic()
            before = self.state
            state = self.journal.refresh()
            self._publish(before)
            self.followed_s = began
            held = state.coordinator
            if moved := moved_to(held):
                raise moved_error(moved)
            if moving_to(held):
                self._stopping.wait(LOOK_S)
                continue
            self._note_namesake(held)
            if held.in_force and held.in_force == self.journal.context.epoch:
                if self._probe():  # after an error, before others have noticed
                    self._begin(held.epoch, began)
                    return
            elif self._namesake:
                self._stopping.wait(LOOK_S)
                continue  # without a probe: its object is that of the leader
            elif not held.address or self._has_name_of(held) or watch.is_gone(state, self._ask_leader):
                self._tried = held.epoch + 1
                try:
                    epoch = self.journal.take_over(held.epoch, self.address, self._host)
                except NotCoordinator:
                    continue  # another standby was faster
                self._publish(state)
                self.storage_health.note_write()
                self.storage_health.remove_marks(but=self._mark)
                self._begin(epoch, began)
                return
            elif reported != held.address:
                logger.info("this coordinator stands by: %s leads %s", held.address, self.journal.metadata.url)
                reported = held.address
            self._probe_if_due()
            self._stopping.wait(LOOK_S)

    def _begin(self, epoch: int, began_s: float) -> None:
        """Lead, under an epoch that the log has had since `began_s` at the latest."""
        self.epoch, self.stepped_down, self.confirmed_s = epoch, 0, began_s
        self.change_feed.note(self.state.version, None)
        logger.info("%s leads %s now, with epoch %d", self.address, self.journal.metadata.url, self.epoch)
        self.on_change()

    @property
    def _mark(self) -> str:
        return mark_key(self._host, self.address)

    def _probe_if_due(self) -> None:
        if self.storage_health.is_probe_due:
            self._probe()

    def _probe(self) -> bool:
        """Whether the storage accepts writes, and records are accepted at this clock's time."""
        try:
            self.journal.run(self.journal.metadata_log.check_clock(self.state))
        except (ClockSkewed, StorageError) as error:
            self.storage_health.note_failure(error)
            return False
        return self.storage_health.probe(self._mark, self.journal.context.unique())

    def _has_name_of(self, held: Holder) -> bool:
        """Whether the log names this process, the previous one at its port, which is gone, or a namesake."""
        return held.address == self.address and held.host == self._host

    def _has_namesake(self, held: Holder) -> bool:
        """Whether this process lost the log to another one with its address and its machine's name.

        The two would take the log from each other for ever: neither can ask the other whether it leads.
        """
        is_ours = self.journal.context.epoch == 0 or held.epoch == self._tried
        return self._has_name_of(held) and not is_ours

    def _note_namesake(self, held: Holder) -> None:
        problem = ""
        if self._has_namesake(held):
            problem = (
                f"another process took over as {held.address} on the machine {held.host!r}, which are the address and "
                "the host name of this one: this one does not lead until the other one releases the log, or this one "
                "is restarted; give each coordinator its own --advertise address or host name"
            )
        if problem and not self._namesake:
            logger.error("%s: %s", self.journal.metadata.url, problem)
        self._namesake = problem

    def _lead(self) -> None:
        """Serve until another coordinator leads, or `stop`."""
        stop = self.duties.begin()
        try:
            while self.leading and not self._stopping.is_set():
                began = time.monotonic()
                self._round()
                if self.leading and self.state.coordinator.in_force != self.epoch:
                    logger.warning("the log was taken over by %s", self.state.coordinator.address or "embedded writers")
                    return
                self.confirmed_s = began
                self._probe_if_due()
        finally:
            stop.set()  # maintenance ends at its next command, which is rejected

    def _round(self) -> None:
        """Apply waiting commands.  Read the log up to its end if there are none, or for requests without commands.

        Raises the error of that read: whether this coordinator still leads is not known then.
        """
        asked = self._under_way = self._waiting()
        before, confirmations = self.state, [one for one in asked if not one.commands]
        commands = commands_of(asked)
        if commands:
            began = time.perf_counter()
            try:
                self.journal.carry_out(commands)
            except Exception:
                # Each command has an error.  A command that cannot be decided must not affect later ones.
                logger.exception("commands failed")
            self.metrics.commands += len(commands)
            if self.state is not before:
                self.metrics.commits.note(time.perf_counter() - began)
                self.storage_health.note_write()
        try:
            if confirmations or not asked:
                self.journal.poll()
        except Exception as error:
            for one in confirmations:
                one.give_up(CoordinatorNotAvailable(f"the log cannot be read: {error}"))
            raise
        finally:
            self._publish(before)
            for one in asked:
                one.complete()

    def _publish(self, before: State) -> None:
        """Pass a new state on to requests that wait for one, and to the metrics."""
        if self.state is before:
            return
        changes = self.state.changes_since(before)
        leads, view = self.leading and self.state.coordinator.in_force == self.epoch, self.journal.view
        if changes is None and not leads:
            # The log may have been opened again from a checkpoint, and leftovers before it read.
            self.tail.records.forget(view.state.version, view.head)
        self._published = view
        self.change_feed.note(self.state.version, None if changes is None or changes.concerns_all else changes.appended)
        self.metrics.topics.note(self.state)
        self.metrics.replicas.note(self.state)
        self.on_change()

    def _waiting(self) -> list[PendingCommands]:
        try:
            first = self._queue.get(timeout=LOOK_S)
        except queue.Empty:
            return []
        asked = [] if first is None else [first]
        count = sum(len(one.commands) for one in asked)
        while count < BATCH_MAX:
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                break
            if one is not None:
                asked.append(one)
                count += len(one.commands)
        return asked

    def _step_down(self) -> None:
        with self._lock:
            self.epoch = 0
            left = []
            with suppress(queue.Empty):  # the other thread that steps down or applies commands also takes them
                while True:
                    left.append(self._queue.get_nowait())
        for one in left:
            if one is not None:
                one.give_up(self.not_leading())
        self.on_change()

    def _release(self) -> None:
        with suppress(StorageError):
            self.tail.delete([self._mark])
        epoch = self.journal.context.epoch
        if not epoch:
            return
        try:
            if self.journal.release(epoch):
                logger.info("this coordinator released %s: clients write there themselves", self.journal.metadata.url)
        except SparkLogError as error:
            logger.warning(
                "%s was not released, its next coordinator takes it over: %s", self.journal.metadata.url, error
            )

    def open_log(self) -> Log:
        """The log for duties, like any other client: through this coordinator."""
        link, store = LocalLink(self), self.tail.inner
        return Log(Journal.open(store, create=False, link=link, served=True, root_options=self._root_options))


REFUSED_PART = 5
"""A standby waits for this part of the time if the leader's machine refuses connections: no process leads there."""


class TakeoverWatch:
    """Detects that the leader is gone: it has neither answered nor written for long enough."""

    def __init__(self, clock: Clock, takeover_ms: int) -> None:
        self._clock = clock
        self._takeover_ms = takeover_ms
        self._seen = (-1, -1)
        self._since = 0

    def is_gone(self, state: State, ask_leader: AskLeader) -> bool:
        seen = (state.coordinator.epoch, state.version)
        now = self._clock.monotonic_ms()
        status = ask_leader(state.coordinator)
        if status is LeaderStatus.STEPPED_DOWN:
            return True
        if seen != self._seen or status is LeaderStatus.LEADS:
            self._seen, self._since = seen, now
            return False
        refuses = status is LeaderStatus.REFUSES
        return now - self._since >= (self._takeover_ms // REFUSED_PART if refuses else self._takeover_ms)
