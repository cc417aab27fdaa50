"""A coordinator: the one process that writes a log's metadata while it leads, and stands by while another one does.

It runs the journal that embedded clients run.  One thread carries out commands; those that arrive while a record is on its
way to the storage share the next one.  What it serves over the network is in `net/server.py`; nothing here knows of it.

Who leads is decided by the log alone: a take-over names the epoch that it follows, and of two that take over from the same
one the second is refused.  A coordinator takes over when nobody has the log, when it had the log itself before (the same
address on the same machine), or when the one that has it neither answered nor wrote for `takeover_ms`.  If that one was alive
all the same, its next commit is void and it stands by.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

from spark_log.client.log import Log
from spark_log.clock import Clock, SystemClock
from spark_log.errors import CoordinatorNotAvailable, NotCoordinator, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.journal.ops import Answered, Changes
from spark_log.journal.protocol import Command
from spark_log.metadata.commands import AnyCommand, Expire, SetGeneration
from spark_log.metadata.state import Coordinator as Holder
from spark_log.metadata.state import State
from spark_log.node.maintain import maintain_once
from spark_log.node.metrics import Metrics
from spark_log.node.news import News
from spark_log.node.tail import Tail
from spark_log.store.base import ObjectStore

LOOK_S = 1.0
"""So often a coordinator that has nothing to do looks whether the log is still its own, and one that stands by whether it is
free."""
QUEUE_MAX = 20_000
BATCH_MAX = 500
"""Commands that share one record at most."""

logger = logging.getLogger("spark_log")

Held = tuple[str, str, int]
"""(group, topic id, partition)."""
IsAlive = Callable[[Holder], bool]
"""Whether a coordinator answers, has the same log, and leads."""


class _Asked(NamedTuple):
    commands: list[Command]
    answer: Future[Answered]

    def settle(self) -> None:
        """Answer, now that all commands are done."""
        deposed = next((c.error for c in self.commands if isinstance(c.error, NotCoordinator)), None)
        if deposed is not None:
            self.answer.set_exception(deposed)
        else:
            self.answer.set_result(Answered([c.reply if c.error is None else c.error for c in self.commands]))


class Coordinator:
    """Leads a log, or stands by.  `run` is a thread's work; everything else may be called from others."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        host: str,
        is_alive: IsAlive,
        takeover_ms: int = 10_000,
        maintain_ms: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """
        host:         the machine's name.
        maintain_ms:  how often it does what `pylog maintain` does; None: never.
        Raises what opening a log raises.
        """
        self.address = ""
        """Where clients reach it; set before it runs."""
        self.epoch = 0
        """Under which it leads; 0: it does not."""
        self.tail = Tail(store)
        self.journal = Journal.open(self.tail, create=True, clock=clock or SystemClock())
        self.metrics = Metrics()
        self.news = News()
        self.on_change: Callable[[], None] = lambda: None
        """Called when there is a new version, or another one leads."""
        self.held: Callable[[], tuple[Held, ...]] = tuple
        """Positions that must not expire now."""
        self._host = host
        self._is_alive = is_alive
        self._takeover_ms = takeover_ms
        self._maintain_ms = maintain_ms
        self._queue: queue.Queue[_Asked | None] = queue.Queue(QUEUE_MAX)
        self._stopping = threading.Event()
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        return self.journal.state

    @property
    def leading(self) -> bool:
        return self.epoch > 0

    # ----------------------------------------------------------------------------------------------------------- commands

    def submit(self, commands: Sequence[AnyCommand | SetGeneration]) -> Future[Answered]:
        """Have commands carried out, together with others that come at the time.

        The future fails with NotCoordinator if this one does not lead, CoordinatorNotAvailable if there is too much to do.
        """
        asked = _Asked([Command(self._holding(command), check=True) for command in commands], Future())
        error: SparkLogError | None = None
        with self._lock:
            if not self.leading or self._stopping.is_set():
                error = self.not_leading()
            else:
                try:
                    self._queue.put_nowait(asked)
                except queue.Full:
                    error = CoordinatorNotAvailable(f"{QUEUE_MAX} requests wait already")
        if error is not None:
            asked.answer.set_exception(error)
        return asked.answer

    def _holding(self, command: AnyCommand | SetGeneration) -> AnyCommand | SetGeneration:
        return Expire(held=command.held + self.held()) if isinstance(command, Expire) else command

    def not_leading(self) -> NotCoordinator:
        """What is answered to who asks the wrong one."""
        held = self.state.coordinator
        return NotCoordinator(
            f"this coordinator stands by, {held.address or 'nobody'} leads", address=held.address, epoch=held.epoch
        )

    # ------------------------------------------------------------------------------------------------------ what is served

    @property
    def cluster_id(self) -> str:
        return self.journal.cluster_id

    @property
    def storage(self) -> str:
        return self.journal.store.url

    def after(self, since: int, upto: int, limit: int) -> Sequence[bytes]:
        return self.tail.after(since, upto, limit)

    def metrics_text(self, *, polls: int, connections: int) -> str:
        return self.metrics.text(self.state, epoch=self.epoch, polls=polls, connections=connections)

    # --------------------------------------------------------------------------------------------------------- the thread

    def run(self) -> None:
        """Stand by and lead, until `stop`; then give the log back."""
        while not self._stopping.is_set():
            try:
                self._stand_by()
                self._lead()
            except SparkLogError as error:
                logger.error("the coordinator cannot go on at once: %s", error)
                self._stopping.wait(LOOK_S)
            except Exception:
                # Whatever it is: a process that listens and has nobody who leads would be worse than another try.
                logger.exception("the coordinator broke off, and begins again")
                self._stopping.wait(LOOK_S)
            finally:
                self._step_down()
        self._release()

    def stop(self) -> None:
        """Have `run` end in order."""
        self._stopping.set()
        with suppress(queue.Full):  # then the thread is awake anyway
            self._queue.put_nowait(None)

    def _stand_by(self) -> None:
        """Until the log is this one's."""
        watch = _Watch(self.journal.context.clock, self._takeover_ms)
        said = ""
        while not self._stopping.is_set():
            state = self.journal.refresh()
            held = state.coordinator
            if held.in_force and held.in_force == self.journal.context.epoch:
                self.epoch = held.epoch  # it broke off, and nobody has noticed
                self.news.note(state.version, None)
                logger.info("leading %s again, with epoch %d", self.journal.store.url, self.epoch)
                self.on_change()
                return
            if not held.address or self._was_here(held) or watch.is_gone(state, self._is_alive):
                try:
                    self.epoch = self.journal.take_over(held.epoch, self.address, self._host)
                except NotCoordinator:
                    continue  # another one that stood by was faster
                self.news.note(self.state.version, None)
                logger.info("leading %s with epoch %d, at %s", self.journal.store.url, self.epoch, self.address)
                self.on_change()
                return
            if said != held.address:
                logger.info("standing by: %s leads %s", held.address, self.journal.store.url)
                said = held.address
            self.on_change()
            self._stopping.wait(LOOK_S)

    def _was_here(self, held: Holder) -> bool:
        """Whether it was this address that had the log before this process: then it is this one's now, since its port is.

        Who had it and lost it has lost it to somebody who says to have the same address, and waits like anybody else.
        """
        return held.address == self.address and held.host == self._host and not self.journal.context.epoch

    def _lead(self) -> None:
        """Until another one leads, or it is to stop."""
        stop = threading.Event()
        threading.Thread(target=self._keep, args=(stop,), name="pylog-upkeep", daemon=True).start()
        try:
            while self.leading and not self._stopping.is_set():
                self._round()
                if self.state.coordinator.in_force != self.epoch:
                    logger.warning("the log was taken over by %s", self.state.coordinator.address or "nobody")
                    return
        finally:
            stop.set()  # what upkeep has under way ends at its next command, which is refused

    def _round(self) -> None:
        """Carry out what waits, or look at the log if nothing does."""
        asked = self._waiting()
        before = self.state
        if asked:
            commands = [command for one in asked for command in one.commands]
            began = time.perf_counter()
            try:
                self.journal.carry_out(commands)
            except Exception:
                # Each command has an error that says so.  One that cannot be decided must not end this for everybody.
                logger.exception("commands were broken off")
            self.metrics.commands += len(commands)
            if self.state is not before:
                self.metrics.commits.note(time.perf_counter() - began)
            self.news.note(self.state.version, (command.decide for command in commands))
            for one in asked:
                one.settle()
        elif self.journal.poll() is not before:
            self.news.note(self.state.version, None)
        if self.state is not before:
            self.on_change()

    def _waiting(self) -> list[_Asked]:
        try:
            first = self._queue.get(timeout=LOOK_S)
        except queue.Empty:
            return []
        asked = [] if first is None else [first]
        while sum(len(one.commands) for one in asked) < BATCH_MAX:
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                break
            if one is not None:
                asked.append(one)
        return asked

    def _step_down(self) -> None:
        with self._lock:
            self.epoch = 0
            left = []
            while not self._queue.empty():
                left.append(self._queue.get_nowait())
        for one in left:
            if one is not None:
                one.answer.set_exception(self.not_leading())
        self.on_change()

    def _release(self) -> None:
        epoch = self.journal.context.epoch
        if not epoch:
            return
        try:
            if self.journal.release(epoch):
                logger.info("released %s: embedded writers have it again", self.journal.store.url)
        except SparkLogError as error:
            logger.warning("%s was not released, the next start takes it over: %s", self.journal.store.url, error)

    # ------------------------------------------------------------------------------------------------------------- upkeep

    def _keep(self, stop: threading.Event) -> None:
        """What keeps the log small, beside the commits, as any client does it: through this coordinator."""
        store, clock = self.tail.real, self.journal.context.clock
        due = None if self._maintain_ms is None else clock.monotonic_ms() + self._maintain_ms
        journal: Journal | None = None
        while not stop.wait(LOOK_S):
            try:
                if journal is None:
                    journal = Journal.open(store, create=False, link=_Here(self), served=True)
                journal.keep_house()
                if due is not None and clock.monotonic_ms() >= due:
                    due = clock.monotonic_ms() + (self._maintain_ms or 0)
                    report = maintain_once(Log(journal))
                    logger.info("maintained: %s", report)
            except SparkLogError as error:
                logger.warning("upkeep of %s was put off: %s", store.url, error)
            except Exception:
                logger.exception("upkeep of %s broke off, and begins again", store.url)
                journal = None


class _Here:
    """The link of upkeep: to the coordinator of the same process."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def ask(self, holder: Holder, commands: Sequence[Any], since: int) -> Answered:
        answered = self._coordinator.submit(commands).result()
        return answered._replace(state=self._coordinator.state)

    def changes(
        self, holder: Holder, since: int, wait_ms: int, group: str = "", topics: Sequence[str] | None = None
    ) -> Changes:
        state = self._coordinator.state
        return Changes(state.version, state=state)

    def close(self) -> None:
        """Nothing is held open."""


class _Watch:
    """Whether the coordinator that has the log is gone: it neither answers nor writes, for long enough."""

    def __init__(self, clock: Clock, takeover_ms: int) -> None:
        self._clock = clock
        self._takeover_ms = takeover_ms
        self._seen = (-1, -1)
        self._since = 0

    def is_gone(self, state: State, is_alive: IsAlive) -> bool:
        seen = (state.coordinator.epoch, state.version)
        now = self._clock.monotonic_ms()
        if seen != self._seen or is_alive(state.coordinator):
            self._seen, self._since = seen, now
            return False
        return now - self._since >= self._takeover_ms
