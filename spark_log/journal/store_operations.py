"""What the protocol asks of a store: operations as values.

The protocol (`protocol.py`, `upkeep.py`) is written as generators that yield an operation, or a list of operations that
may run in parallel, and are resumed with the answer.  `run` carries them out on a real store; the simulation carries the
same generators out on a store of its own, in an order drawn from a seed.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from spark_log.clock import Clock
from spark_log.errors import NotCoordinator, ObjectNotFound, StorageUnavailable
from spark_log.metadata.state import Leadership, State
from spark_log.store.base import Chunks, ObjectStore

logger = logging.getLogger("spark_log")
Result = TypeVar("Result")
Other = TypeVar("Other")

PARALLEL = 48
"""Requests of one process at a time; the store's client may have a limit of its own."""


class PutAnswer(Enum):
    """Of a put-if-absent."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


class Get(NamedTuple):
    """Answer: the bytes, None if there is no such object."""

    key: str
    start: int = 0
    end: int | None = None


class PutNew(NamedTuple):
    """Put-if-absent, tried once.  Answer: an `PutAnswer`."""

    key: str
    data: bytes


class Put(NamedTuple):
    """A name that nobody else uses; repeated until it is done."""

    key: str
    chunks: Sequence[bytes] | Callable[[], Iterable[bytes]]
    """Or a function that gives them anew for each try."""


class List(NamedTuple):
    """Answer: all keys under a prefix, sorted; puts that were answered are in it."""

    prefix: str


class Delete(NamedTuple):
    keys: Sequence[str]


class Sweep(NamedTuple):
    """Answer: how many files of writers that died were deleted."""

    prefix: str
    before_ms: int


class StoreTime(NamedTuple):
    """Answer: the time of the storage's own clock in ms, None if it does not say.  An object is written for it, and deleted."""

    key: str
    data: bytes


class Sleep(NamedTuple):
    milliseconds: float


class Ask(NamedTuple):
    """Commands for the coordinator that has the log.  Answer: an `Answered`."""

    holder: Leadership
    commands: Sequence[Any]
    since: int
    """The version that is known here."""
    limit_ms: float = math.inf
    """How long the answer is waited for at most; a link has a limit of its own."""


class Answered(NamedTuple):
    """What a coordinator made of commands: they are in the log, durably, as far as they were not refused."""

    outcomes: Sequence[Any]
    """Of each command its reply, or the error with which it was refused."""
    batches: Sequence[bytes] = ()
    """The objects of the log that follow the version that was known; none: they are to be read from the storage."""
    state: State | None = None
    """With them, from a coordinator of the same process."""


class Changes(NamedTuple):
    """What a coordinator says when it is asked for news."""

    version: int
    """The newest."""
    batches: Sequence[bytes] = ()
    """The objects of the log up to it; none: they are to be read from the storage."""
    state: State | None = None
    """At it, from a coordinator of the same process."""


class Link(Protocol):
    """The way to coordinators."""

    def ask(self, holder: Leadership, commands: Sequence[Any], since: int, limit_ms: float = math.inf) -> Answered:
        """Have commands carried out.

        Raises CoordinatorNotAvailable if nobody answered, `maybe_applied` if they may have arrived all the same.
        """

    def changes(
        self, holder: Leadership, since: int, wait_ms: int, group: str = "", topics: Sequence[str] | None = None
    ) -> Changes:
        """What follows version `since`, as soon as there is anything, or nothing after `wait_ms`, or when the members of `group`
        begin to share it out anew.

        topics:  ids; records of others, and positions of groups, are not waited for.
        Raises CoordinatorNotAvailable.
        """

    def close(self) -> None:
        """Close what is held open and not in use."""


Op: TypeAlias = Get | PutNew | Put | List | Delete | Sweep | StoreTime | Sleep | Ask
Steps: TypeAlias = Generator[Op | list[Op], Any, Result]


def beside(steps: Steps[Result], others: Steps[Other]) -> Steps[tuple[Result, Other]]:
    """Both, in the same rounds, for as long as they go; neither may put, ask or sleep."""
    made: list[Any] = [None, None]
    rounds: list[Any] = [None, None]
    under_way = [steps, others]
    alive = [0, 1]
    while alive:
        asked: list[Op | list[Op]] = []
        for number in tuple(alive):
            try:
                asked.append(under_way[number].send(rounds[number]))
            except StopIteration as stop:
                made[number] = stop.value
                alive.remove(number)
        ops = [request if isinstance(request, list) else [request] for request in asked]
        answers = (yield [op for each in ops for op in each]) if ops else []
        at = 0
        for number, request, each in zip(alive, asked, ops, strict=True):
            rounds[number] = answers[at : at + len(each)] if isinstance(request, list) else answers[at]
            at += len(each)
    return made[0], made[1]


def run(steps: Steps[Result], store: ObjectStore, clock: Clock, link: Link | None = None) -> Result:
    """Carry `steps` out on a store, with a link for logs that a coordinator has.

    The store repeats what may be repeated; its last error is thrown into the steps.  A put-if-absent is asked once: whoever
    asks reads back.
    """
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = steps.throw(error) if error is not None else steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = error = None
        try:
            if isinstance(request, Ask):
                answer = _ask(request, link)
            else:
                answer = _parallel(request, store, clock) if isinstance(request, list) else _one(request, store, clock)
        except Exception as raised:  # noqa: BLE001  thrown into the steps, which raise it
            error = raised


def _ask(request: Ask, link: Link | None) -> Answered:
    if link is None:
        held = request.holder
        raise NotCoordinator(
            f"the log is written by the coordinator at {held.address or '(none)'}, epoch {held.epoch}, and by nobody else",
            address=held.address,
            epoch=held.epoch,
        )
    return link.ask(*request)


def _parallel(ops: list[Op], store: ObjectStore, clock: Clock) -> list[Any]:
    if len(ops) < 2 or store.local:
        return [_one(op, store, clock) for op in ops]
    return list(_pool(os.getpid()).map(lambda op: _one(op, store, clock), ops))


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """One pool a process: Spark forks its workers, and threads do not survive that."""
    return ThreadPoolExecutor(PARALLEL, thread_name_prefix=f"pylog-{pid}")


def _one(op: Op, store: ObjectStore, clock: Clock) -> Any:
    if isinstance(op, PutNew):
        try:
            return PutAnswer.CREATED if store.put_new(op.key, op.data) else PutAnswer.EXISTS
        except StorageUnavailable as error:
            logger.info("whether %s was put is not known, reading back: %s", op.key, error)
            return PutAnswer.UNKNOWN
    match op:
        case Get():
            try:
                return store.get(op.key, op.start, op.end)
            except ObjectNotFound:
                return None
        case Put():
            store.put(op.key, Chunks(op.chunks) if callable(op.chunks) else op.chunks)
        case List():
            return store.list(op.prefix)
        case Delete():
            store.delete(op.keys)
        case Sweep():
            return store.sweep(op.prefix, op.before_ms)
        case StoreTime():
            store.put(op.key, (op.data,))
            written = store.written_ms(op.key)
            store.delete((op.key,))
            return written
        case Sleep():
            clock.sleep_ms(op.milliseconds)
    return None
