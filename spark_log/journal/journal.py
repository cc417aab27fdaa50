"""A log's metadata as one process sees it: opened, refreshed, and changed by proposals.

`meta/format` says what the folder is: one line of JSON with the format's version, the log's id, and under which store
library put-if-absent was probed.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from spark_log.clock import Clock, SystemClock
from spark_log.errors import CommitUnknown, NoLog, SparkLogError, StorageUnavailable, UnsupportedVersion
from spark_log.journal.forks import renew_after_fork
from spark_log.journal.ops import Answer, Get, List, Put, PutNew, Steps, run
from spark_log.journal.protocol import LOG, Command, Context, View, open_view, poll, propose, refresh
from spark_log.journal.upkeep import housekeeping, is_due
from spark_log.metadata.decide import Decision
from spark_log.metadata.state import State
from spark_log.store.base import ObjectStore
from spark_log.store.probe import probe

FORMAT_KEY = "meta/format"
FORMAT_VERSION = 1
RELIST_MS = 60_000

Result = TypeVar("Result")
logger = logging.getLogger("spark_log")


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """What `meta/format` holds."""

    pylog: int
    """Version of the log's format."""
    cluster_id: str
    created_ms: int
    probed: str
    """Fingerprint of the store library with which the probe succeeded."""


class Journal:
    """One log's metadata.  Safe for threads; proposals that arrive together share one put."""

    def __init__(self, store: ObjectStore, context: Context, form: Format) -> None:
        self.store = store
        self.context = context
        self.cluster_id = form.cluster_id
        self._format = form
        self.after_fork()
        renew_after_fork(self)
        self._view: View = self.run(open_view())
        self._listed_ms = context.clock.monotonic_ms()
        self._probed = False

    def after_fork(self) -> None:
        """New locks; what other threads of the parent had queued is theirs."""
        self._lock = threading.RLock()
        self._queue: list[Command] = []
        self._queue_lock = threading.Lock()

    @classmethod
    def open(
        cls, store: ObjectStore, *, create: bool, clock: Clock | None = None, rng: random.Random | None = None
    ) -> Journal:
        """Open the log in `store`, or begin one there if `create`.

        Raises NoLog if there is none and none may be created, UnsupportedVersion for a newer format or another kind of
        file, StoreNotExclusive if the storage cannot carry a log.
        """
        context = Context(clock or SystemClock(), rng or random.SystemRandom())
        data = run(_get(FORMAT_KEY), store, context.clock)
        if data is None:
            if not create:
                raise NoLog(f"there is no log at {store.url}; create one with `pylog -u {store.url} topic create NAME`")
            data = _begin(store, context)
        return cls(store, context, _parse_format(data, store.url))

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out steps of the protocol on this log's store."""
        return run(steps, self.store, self.context.clock)

    @property
    def state(self) -> State:
        """The newest state that is known here."""
        return self._view.state

    def refresh(self) -> State:
        """The state at the end of the log."""
        with self._lock:
            self._view = self.run(refresh(self._view))
            self._listed_ms = self.context.clock.monotonic_ms()
        return self._view.state

    def poll(self) -> State:
        """Like `refresh`, for waiting: one get while nothing happens."""
        with self._lock:
            now = self.context.clock.monotonic_ms()
            relist = now - self._listed_ms > RELIST_MS
            view = self.run(poll(self._view, relist))
            if view is not self._view:
                self._view, self._listed_ms = view, now
        return self._view.state

    def propose(self, decide: Callable[[State, int], Decision[Result]]) -> Result:
        """Carry out a decision: it is in the log, durably, when this returns, with its reply.

        Raises what the decision raises, CommitUnknown if the storage failed so that it may or may not be in.
        """
        command = Command(decide)
        with self._queue_lock:
            self._queue.append(command)
        with self._lock:
            if not command.done:
                self._propose_queued()
        if command.error is not None:
            raise command.error
        return command.reply

    def advance(self, steps: Callable[[View, Context], Steps[tuple[View, Result]]]) -> Result:
        """Carry out steps that go on from the newest view and give the next one, and a result."""
        with self._lock:
            self._view, result = self.run(steps(self._view, self.context))
        return result

    def _propose_queued(self) -> None:
        with self._queue_lock:
            commands, self._queue = self._queue, []
        try:
            self.check_store()
            self._view = self.run(propose(self._view, commands, self.context))
        except SparkLogError as error:
            failed: SparkLogError = error
            if isinstance(error, StorageUnavailable):
                failed = CommitUnknown(
                    f"the storage did not answer while a change was under way, it may be in: {error}"
                )
                failed.__cause__ = error
            _fail(commands, failed)
            return
        except BaseException as error:
            # An interrupt, or a bug: whoever waits for the others' commands must not take them for done.
            _fail(commands, CommitUnknown(f"a change was broken off by {error!r}, it may be in"))
            raise
        if is_due(self._view):
            self._housekeep()

    def _housekeep(self) -> None:
        """After the acknowledgement: what fails here is done by whoever commits next."""
        try:
            self._view = self.run(housekeeping(self._view, self.context))
        except SparkLogError as error:
            logger.warning("housekeeping of %s was put off: %s", self.store.url, error)

    def check_store(self) -> None:
        """Before a change: probe put-if-absent again where the store's library is another than the one that was probed."""
        if self._probed:
            return
        fingerprint = self.store.fingerprint()
        if fingerprint != self._format.probed:
            probe(self.store, nonce=self.context.unique())
            self._format = msgspec.structs.replace(self._format, probed=fingerprint)
            self.run(_put(FORMAT_KEY, msgspec.json.encode(self._format) + b"\n"))
        self._probed = True


def _fail(commands: list[Command], error: SparkLogError) -> None:
    for command in commands:
        if not command.done:
            command.error, command.done = error, True


def _begin(store: ObjectStore, context: Context) -> bytes:
    """Probe the store and write `meta/format`; the bytes that are there afterwards, ours or another's."""
    probe(store, nonce=context.unique())
    form = Format(
        pylog=FORMAT_VERSION,
        cluster_id=context.unique() + context.unique(),
        created_ms=context.clock.now_ms(),
        probed=store.fingerprint(),
    )
    return run(_begin_steps(msgspec.json.encode(form) + b"\n", store.url), store, context.clock)


def _begin_steps(data: bytes, url: str) -> Steps[bytes]:
    if (yield List(LOG)):
        raise UnsupportedVersion(f"{url} has records of a log but no {FORMAT_KEY}: it is damaged, restore that file")
    for _ in range(5):
        answer: Answer = yield PutNew(FORMAT_KEY, data)
        found: bytes | None = yield Get(FORMAT_KEY)
        if found is not None:
            return found
        logger.debug("put of %s answered %s and is not there, trying again", FORMAT_KEY, answer)
    raise StorageUnavailable(f"cannot create a log at {url}: the storage does not keep {FORMAT_KEY}")


def _get(key: str) -> Steps[bytes | None]:
    data: bytes | None = yield Get(key)
    return data


def _put(key: str, data: bytes) -> Steps[None]:
    yield Put(key, (data,))


def _parse_format(data: bytes, url: str) -> Format:
    try:
        fields: Any = msgspec.json.decode(data)
        version = fields["pylog"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise UnsupportedVersion(f"{url}/{FORMAT_KEY} is not pylog's: it starts with {data[:32]!r}") from error
    if version != FORMAT_VERSION:
        raise UnsupportedVersion(
            f"the log at {url} has format {version}, this pylog reads {FORMAT_VERSION}: update pylog"
        )
    return msgspec.convert(fields, Format)
