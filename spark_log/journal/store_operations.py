"""The storage operations of the protocol, as values.

The protocol (`commit_protocol.py`, `maintenance.py`) is written as generators that yield an operation, or a list of
operations that may run in parallel, and are resumed with the answer.  `run` executes them on real stores; the
simulation executes the same generators on a simulated store, in an order drawn from a seed.

A log has two kinds of stores: one for its metadata, and the roots of its objects.  An operation names its root.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from spark_log.errors import NotCoordinator, StorageUnavailable, WrongRoot
from spark_log.log_lines import logger
from spark_log.metadata.decide_coordinators import check_is_here
from spark_log.metadata.projection import Delta, Holdings
from spark_log.metadata.replicas.replicas import Targets
from spark_log.metadata.state import Leadership, State
from spark_log.model import Placed
from spark_log.roots.broker_roots import ANY_ROOT, ReplicatedStore
from spark_log.roots.read_failover import NOT_READ
from spark_log.roots.replica_puts import copy_missing, put_replicas
from spark_log.runtime.clock import Clock
from spark_log.store.base import Chunks, ObjectStore
from spark_log.store.object_names import listed

Result = TypeVar("Result")
Other = TypeVar("Other")

PARALLEL = 48
"""Parallel requests of one process; the store's client may have a lower limit."""


METADATA = -1
"""The root of operations on `meta/…`."""
OWN_ROOT = 0
"""The root of objects, `data/…`, of the log itself.  Roots of objects are broker ids, or `ANY_ROOT`."""


class PutAnswer(Enum):
    """Outcome of a put-if-absent."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


class Get(NamedTuple):
    """Answer: the bytes, None if the object does not exist."""

    key: str
    start: int = 0
    end: int | None = None
    root: int = METADATA
    check: Callable[[bytes], object] | None = None
    """Raises CorruptObject for damaged bytes: then they are read from another root that has the object, if there is
    one.  A log without brokers does not check them here."""


class PutNew(NamedTuple):
    """Put-if-absent, tried once.  Answer: a `PutAnswer`."""

    key: str
    data: bytes
    root: int = METADATA


class Put(NamedTuple):
    """Put under a unique name, retried until it is done."""

    key: str
    chunks: Sequence[bytes] | Callable[[], Iterable[bytes]]
    """Or a function that generates them for each attempt."""
    root: int = METADATA


class PutReplicas(NamedTuple):
    """Put under a unique name to all replicas of a placement group.  Answer: a `Placed`."""

    key: str
    chunks: Sequence[bytes] | Callable[[], Iterable[bytes]]
    """The bytes, as in `Put`."""
    targets: Targets
    root: int = OWN_ROOT


class CopyReplicas(NamedTuple):
    """Copy an object to replicas that lack it.  Answer: a `Placed`, with those that have it now."""

    key: str
    size: int
    placed: Placed
    """Where it is."""
    lacking: Sequence[tuple[int, int]]
    """(broker, epoch)."""
    root: int = OWN_ROOT


class List(NamedTuple):
    """Answer: all keys that begin with a prefix, sorted; puts that were answered are included."""

    prefix: str
    root: int = METADATA


class Delete(NamedTuple):
    keys: Sequence[str]
    root: int = METADATA


class Sweep(NamedTuple):
    """Answer: `Swept`."""

    prefix: str
    before_ms: int
    root: int = METADATA


class StoreTime(NamedTuple):
    """Answer: the storage's time in ms, None if it returns none.  An object is written for it, and deleted."""

    key: str
    data: bytes
    root: int = METADATA


class WrittenTime(NamedTuple):
    """Answer: the time of an object's last write in ms, by the storage's clock; None if it is not known."""

    key: str
    root: int = METADATA


class Sleep(NamedTuple):
    milliseconds: float


class Ask(NamedTuple):
    """Commands for the log's coordinator.  Answer: an `Answered`."""

    holder: Leadership
    commands: Sequence[Any]
    since: int
    """The version that this process has."""
    limit_ms: float = math.inf
    """Maximum wait for the answer; a link may have a lower limit."""
    head: bytes = b""
    """First line of the record of that version; empty if not known."""
    held: Holdings | None = None
    """The contents of this process's state, if that has only some topics."""


class AskTopics(NamedTuple):
    """A request of a process that holds some topics, for their changes.  Answer: a `Delta`."""

    holder: Leadership
    held: Holdings
    confirmed: bool = False
    """The coordinator reads the log first: the answer has every change that was acknowledged before."""
    wait_ms: int = 0
    """How long to wait for changes.  The wait also ends when a rebalance of `group` begins."""
    group: str = ""
    topics: Sequence[str] | None = None
    """Ids; records of others, and positions of groups, end no wait.  None: all of them do."""


class AskChanges(NamedTuple):
    """A request of a process that holds the whole state, for the versions after its own.  Answer: a `Changes`."""

    holder: Leadership
    since: int
    """The version that this process has."""
    head: bytes = b""
    """The first line of the record of that version, as in `Ask`."""
    confirmed: bool = False
    """The answer has every change that was acknowledged before; for a request without a wait."""
    wait_ms: int = 0
    """How long to wait for changes; this and the fields that follow are those of `AskTopics`."""
    group: str = ""
    topics: Sequence[str] | None = None


class AskObjects(NamedTuple):
    """Answer: by object, its size, index position and key of its copies; those that are gone are left out."""

    holder: Leadership
    names: Sequence[str]


class AskSnapshot(NamedTuple):
    """A request for the whole state.  Answer: a `Snapshot`; None if the version cannot be rebuilt any more."""

    holder: Leadership
    version: int | None = None
    """None: a recent one, to which the coordinator has the changes."""
    at_least: int = 0
    """A recent one has this version or a newer one, unless the log of the leader is shorter."""


class AskClaim(NamedTuple):
    """A claim that the coordinator makes.  Answer: the value that was claimed first; None if there is none yet."""

    holder: Leadership
    name: str
    value: bytes | None
    """None: look for a claim.  A process that gets the answer None makes it; others that look wait for that."""
    wait_ms: int = 0
    """How long to wait for another process that is making the claim."""


class AskStatus(NamedTuple):
    """Answer: the version of the newest checkpoint."""

    holder: Leadership


class Decide(NamedTuple):
    """Commands for the metadata log, which sets their replies.  Answer: the state after them, or the first error.

    `decided` carries it out, whatever the log is.
    """

    commands: Sequence[Any]
    """`Proposal`s."""


class Refresh(NamedTuple):
    """Answer: the newest state of the metadata log.  `decided` carries it out."""


class Answered(NamedTuple):
    """The coordinator's answer to commands: those that were not rejected are durable in the log."""

    outcomes: Sequence[Any]
    """The reply of each command, or the error with which it was rejected."""
    batches: Sequence[bytes] = ()
    """The objects of the log after version `since`; empty: read them from the storage."""
    state: State | None = None
    """The state after them, if the coordinator is in this process."""
    delta: Delta | None = None
    """The changes after them, for a process that holds only some topics."""


class Changes(NamedTuple):
    """The coordinator's answer to a request for changes."""

    version: int
    """The newest version."""
    batches: Sequence[bytes] = ()
    """The objects of the log up to it; empty: read them from the storage."""
    state: State | None = None
    """The state at it, if the coordinator is in this process."""
    lacks_head: bool = False
    """The coordinator does not have the client's last record: the storage shows whether its log was restored."""


class Snapshot(NamedTuple):
    """The whole state, as a coordinator sends it."""

    state: State
    head: bytes = b""
    """First line of the record of its version; empty if not known."""


class Link(Protocol):
    """Connects to coordinators.  All requests raise CoordinatorNotAvailable; `maybe_applied` if commands may have
    arrived.
    """

    def ask(self, asked: Ask) -> Answered: ...

    def changes(self, asked: AskChanges) -> Changes: ...

    def topics(self, asked: AskTopics) -> Delta: ...

    def objects(self, asked: AskObjects) -> Mapping[str, tuple[int, int, int]]: ...

    def snapshot(self, asked: AskSnapshot) -> Snapshot | None: ...

    def claim(self, asked: AskClaim) -> bytes | None: ...

    def status(self, asked: AskStatus) -> int: ...

    def close(self) -> None:
        """Close unused connections."""


StoreOp: TypeAlias = Get | PutNew | Put | PutReplicas | CopyReplicas | List | Delete | Sweep | StoreTime | WrittenTime
LinkOp: TypeAlias = Ask | AskTopics | AskChanges | AskSnapshot | AskClaim | AskStatus
Op: TypeAlias = StoreOp | LinkOp | Sleep | Decide | Refresh
Steps: TypeAlias = Generator[Op | list[Op], Any, Result]


def beside(steps: Steps[Result], others: Steps[Other]) -> Steps[tuple[Result, Other]]:
    """Run both in the same rounds until both end; neither may change anything or wait."""
    first, second = yield from together([steps, others])
    return first, second


def together(under_way: Sequence[Steps[Any]]) -> Steps[list[Any]]:
    """Run steps in the same rounds of requests until all end; returns their results.

    If a request fails, only the steps that made it get the error: requests of a round that failed are made again, for
    each of the steps.  So they may only be reads, and puts under unique names.  StorageUnavailable ends all of them.
    """
    results: list[Any] = [None] * len(under_way)
    answers: dict[int, Any] = dict.fromkeys(range(len(under_way)))
    try:
        while answers:
            asked: dict[int, Op | list[Op]] = {}
            for number, answer in answers.items():
                try:
                    asked[number] = _resumed(under_way[number], answer)
                except StopIteration as stop:
                    results[number] = stop.value
            answers = yield from _answered(asked)
    finally:
        for steps in under_way:
            steps.close()
    return results


class _Failed(NamedTuple):
    """The answer to a request that failed."""

    error: Exception


def _resumed(steps: Steps[Any], answer: Any) -> Op | list[Op]:
    return steps.throw(answer.error) if isinstance(answer, _Failed) else steps.send(answer)


def _answered(asked: Mapping[int, Op | list[Op]]) -> Steps[dict[int, Any]]:
    """The answer to each request; all are made together."""
    ops = {number: request if isinstance(request, list) else [request] for number, request in asked.items()}
    if not ops:
        return {}
    try:
        answers = iter((yield [op for some in ops.values() for op in some]))
    except StorageUnavailable:
        raise
    except Exception:  # noqa: BLE001  thrown into the steps whose request fails again
        return (yield from _answered_alone(asked))
    found = {number: list(islice(answers, len(some))) for number, some in ops.items()}
    return {number: some if isinstance(asked[number], list) else some[0] for number, some in found.items()}


def _answered_alone(asked: Mapping[int, Op | list[Op]]) -> Steps[dict[int, Any]]:
    found: dict[int, Any] = {}
    for number, request in asked.items():
        try:
            found[number] = yield request
        except StorageUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  thrown into the steps that made the request
            found[number] = _Failed(error)
    return found


class Stores(NamedTuple):
    """The stores of one log."""

    metadata: ObjectStore
    objects: Mapping[int, ObjectStore]
    """By root."""

    @classmethod
    def of(cls, metadata: ObjectStore, objects: ObjectStore | None = None) -> Stores:
        """The stores of a log with one root of objects; None: its metadata and its objects are in one store."""
        return cls(metadata, {OWN_ROOT: metadata if objects is None else objects})

    @property
    def local(self) -> bool:
        """Whether running operations in parallel has no benefit."""
        return self.metadata.local and self.objects[OWN_ROOT].local

    def at(self, root: int) -> ObjectStore:
        """The store of a root.  Raises WrongRoot for a broker that is not registered any more."""
        if root == METADATA:
            return self.metadata
        if root == ANY_ROOT and root not in self.objects:
            return self.objects[OWN_ROOT]
        try:
            return self.objects[root]
        except KeyError:
            raise WrongRoot(f"broker {root} is not registered") from None


def run(steps: Steps[Result], stores: Stores, clock: Clock, link: Link | None = None) -> Result:
    """Execute `steps` on the stores of a log, with a link for logs that have a coordinator.

    The stores retry; its last error is thrown into the steps.  A put-if-absent gets one attempt, and the steps read
    back.
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
            answer = _answer(request, stores, clock, link)
        except Exception as raised:  # noqa: BLE001  thrown into the steps, which raise it
            error = raised


def _answer(request: Op | list[Op], stores: Stores, clock: Clock, link: Link | None) -> Any:
    if isinstance(request, LinkOp):
        return _ask(request, link) if isinstance(request, Ask) else _asked(request, link)
    if not isinstance(request, list):
        return _one(request, stores, clock)
    if any(isinstance(op, LinkOp) for op in request):
        return [_answer(op, stores, clock, link) for op in request]
    return _parallel(request, stores, clock)


def _asked(request: AskTopics | AskChanges | AskSnapshot | AskClaim | AskStatus, link: Link | None) -> Any:
    assert link is not None, "what is read through a coordinator has a link"
    match request:
        case AskTopics():
            return link.topics(request)
        case AskChanges():
            return link.changes(request)
        case AskSnapshot():
            return link.snapshot(request)
        case AskClaim():
            return link.claim(request)
        case AskStatus():
            return link.status(request)


def _ask(request: Ask, link: Link | None) -> Answered:
    check_is_here(request.holder)
    if link is None:
        held = request.holder
        raise NotCoordinator(
            f"the log is written by the coordinator at {held.address or '(none)'}, epoch {held.epoch}, and by nobody else",
            address=held.address,
            epoch=held.epoch,
        )
    return link.ask(request)


def _parallel(ops: list[Op], stores: Stores, clock: Clock) -> list[Any]:
    if len(ops) < 2 or stores.local:
        return [_one(op, stores, clock) for op in ops]
    return list(_pool(os.getpid()).map(lambda op: _one(op, stores, clock), ops))


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """One pool per process: Spark forks its workers, and threads do not survive that."""
    return ThreadPoolExecutor(PARALLEL, thread_name_prefix=f"pylog-{pid}")


def _one(op: Op, stores: Stores, clock: Clock) -> Any:
    if isinstance(op, Sleep):
        return clock.sleep_ms(op.milliseconds)
    assert not isinstance(op, LinkOp | Decide | Refresh), f"{type(op).__name__} is not for a store"
    if isinstance(op, PutReplicas):
        return put_replicas(stores.objects, op.targets, op.key, op.chunks, clock)
    if isinstance(op, CopyReplicas):
        return copy_missing(stores.objects, op.key, op.size, op.placed, op.lacking, clock)
    store = stores.at(op.root)
    if isinstance(op, PutNew):
        try:
            return PutAnswer.CREATED if store.put_new(op.key, op.data) else PutAnswer.EXISTS
        except StorageUnavailable as error:
            logger.info("the outcome of the put of %s is unknown, reading back: %s", op.key, error)
            return PutAnswer.UNKNOWN
    match op:
        case Get():
            try:
                if op.check is not None and isinstance(store, ReplicatedStore):
                    return store.get_intact(op.key, op.start, op.end, op.check)
                return store.get(op.key, op.start, op.end)
            except NOT_READ:
                return None  # maintenance skips what it cannot read, and nothing of it is lost
        case Put():
            store.put(op.key, Chunks(op.chunks) if callable(op.chunks) else op.chunks)
        case List():
            return listed(store, op.prefix)
        case Delete():
            store.delete(op.keys)
        case Sweep():
            return store.sweep(op.prefix, op.before_ms)
        case StoreTime():
            store.put(op.key, (op.data,))
            written = store.written_ms(op.key)
            store.delete((op.key,))
            return written
        case WrittenTime():
            return store.written_ms(op.key)
    return None
