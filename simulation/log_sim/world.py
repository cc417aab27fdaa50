"""A store, a clock and actors in one process: one seed decides everything that happens.

The store is linearizable: an operation takes effect at one point between its request and its answer.  A request may be
lost, an answer may be lost, and a request may outlive its caller's timeout and take effect thousands of steps later.
As in `journal.store_operations.run`, reads, listings, deletes and puts of unique names are retried until they are
answered or given up with StorageUnavailable; a put-if-absent is sent once.  One step is one millisecond.  Each process
has a clock, which is set now and then, and which is off by at most `skew_ms`, or by ten years.  The store's clock is
right.

A listing has every put that was answered before the listing began, as the protocol requires.  Deleted names may appear
in it for a while.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

from simulation.verdict import Violation
from spark_log.errors import CoordinatorNotAvailable, StorageUnavailable
from spark_log.journal.store_operations import (
    Answered,
    Ask,
    CopyReplicas,
    Delete,
    Get,
    List,
    Op,
    Put,
    PutAnswer,
    PutNew,
    PutReplicas,
    Sleep,
    Steps,
    StoreOp,
    StoreTime,
)
from spark_log.metadata.replicas.replica_state import OWN_GROUP
from spark_log.metadata.state import State
from spark_log.model import Placed
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG, META

START_MS = 1_700_000_000_000
WRONG_CLOCK_MS = 10 * 365 * 86_400_000
"""The offset of a wrong clock."""
SET_RIGHT = 0.1
"""How often a process corrects a wrong clock when it resumes."""
STALLS = (60, 400, 2000, 6000)
OVERDUE_MS = 1500
"""How long a client waits for a coordinator's answer."""
LATE = (20, 200, 700, 2000, 5000)
CALL = "call"
"""The kind of an event that is a function.  It takes no time."""
GIVE_UP = 0.05
"""How often a lost operation is not retried."""


class Watcher(Protocol):
    """Sees every change of the store at the moment it takes effect."""

    def written(self, key: str, content: Any, decided: State | None, now: int) -> None: ...

    def deleted(self, key: str, now: int) -> None: ...


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Probability of each kind of fault."""

    lost: float
    """A request is lost; an answer is lost."""
    late: float
    """A request outlives its timeout."""
    stall: float
    crash: float
    skew_ms: int
    """The largest clock skew, ahead or behind."""
    step: float
    """A clock is set."""
    astray: float
    """A clock is set wrong."""
    listed_ms: int
    """How long a listing may have a deleted name."""

    @property
    def ahead_ms(self) -> int:
        """How far a clock may be ahead."""
        return WRONG_CLOCK_MS if self.astray else self.skew_ms

    @classmethod
    def draw(cls, rng: random.Random, age: int) -> FaultRates:
        return cls(
            lost=rng.choice((0.0, 0.01, 0.04)),
            late=rng.choice((0.0, 0.01, 0.15)),
            stall=rng.choice((0.002, 0.01, 0.04)),
            crash=rng.choice((0.0, 0.0005, 0.002)),
            skew_ms=rng.choice((0, 0, age // 10)),
            step=rng.choice((0.0, 0.002)),
            astray=rng.choice((0.0, 0.0, 0.1)),
            listed_ms=rng.choice((0, 0, 300)),
        )


class Store:
    """Objects by key; `watcher` sees every change."""

    def __init__(self, watcher: Watcher, rng: random.Random, listed_ms: int) -> None:
        self._rng, self._listed_ms = rng, listed_ms
        self._gone: dict[str, int] = {}
        """When names were deleted."""
        self.files: dict[str, dict[str, Any]] = {LOG: {}, CHECKPOINTS: {}, DATA: {}, META: {}}
        self.writes = 0
        """Number of objects that were put."""
        self._watcher = watcher

    def watch(self, watcher: Watcher) -> None:
        """Another one sees the changes from here on."""
        self._watcher = watcher

    def folder(self, key: str) -> dict[str, Any]:
        for prefix, files in self.files.items():
            if key.startswith(prefix):
                return files
        raise KeyError(key)

    def apply(self, op: Op, now: int, decided: State | None = None) -> Any:
        """Carry an operation out and return its answer."""
        match op:
            case Get():
                content = self.folder(op.key).get(op.key)
                return content if content is None else content[op.start : op.end]
            case List():
                return self._listing(op.prefix, now)
            case Delete():
                for key in op.keys:
                    if self.folder(key).pop(key, None) is not None:
                        self._gone[key] = now
                        self._watcher.deleted(key, now)
            case PutNew():
                if op.key in self.folder(op.key):
                    return PutAnswer.EXISTS
                self.writes += 1
                self.folder(op.key)[op.key] = op.data
                self._watcher.written(op.key, op.data, decided, now)
                return PutAnswer.CREATED
            case StoreTime():
                return now
            case CopyReplicas():
                return Placed(op.placed.group, tuple(sorted({*op.placed.held, *op.lacking})))
            case Put() | PutReplicas():
                self.writes += 1
                content = _content(op)
                self.folder(op.key)[op.key] = content
                self._watcher.written(op.key, content, None, now)
                if isinstance(op, PutReplicas):
                    return Placed(op.targets.group, op.targets.all if op.targets.group != OWN_GROUP else ())
        return None

    def _listing(self, prefix: str, now: int) -> list[str]:
        names = {key for key in self.folder(prefix) if key.startswith(prefix)}
        if self._listed_ms:
            self._gone = {key: at for key, at in self._gone.items() if now < at + self._listed_ms}
            names |= {key for key in self._gone if key.startswith(prefix) and self._rng.random() < 0.5}
        return sorted(names)


def _content(op: Put | PutReplicas) -> Any:
    """The bytes of a put; unencoded rows are one chunk, a tuple."""
    chunks = list(op.chunks() if callable(op.chunks) else op.chunks)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@dataclass(slots=True, eq=False)
class Actor:
    """A process: a sequence of steps."""

    name: str
    make: Callable[[], Steps[None]]
    counts: bool
    """The run ends when all actors that count have finished."""
    zombie: bool = False
    """A newer incarnation has replaced this one, which is still alive."""
    leaves_zombies: bool = False
    task: Steps[None] = field(init=False)
    answers: list[Any] = field(default_factory=list)
    waiting: int = 0
    skew_ms: int = 0
    """How far its clock is ahead of the world's."""
    many: bool = False
    decided: State | None = None
    """The state on which its next batch was decided."""
    main: Actor | None = None
    """The main thread of a thread's process, which has the clock and dies first.  None: this is the main thread."""
    dead: bool = False
    """It was killed, or has finished.  Its requests may still be answered."""

    def __post_init__(self) -> None:
        self.task = self.make()


def _nothing() -> Steps[None]:
    yield from ()


_NOBODY = Actor("nobody", _nothing, counts=False)


@dataclass(slots=True, eq=False)
class Request:
    """A request to a coordinator."""

    actor: Actor
    place: int
    ask: Ask
    done: bool = False


class RequestQueue:
    """Requests to one coordinator, in the order of arrival."""

    def __init__(self) -> None:
        self.open = False
        """The coordinator leads; otherwise it rejects every request."""
        self._requests: list[Request] = []

    def arrive(self, request: Request) -> None:
        self._requests.append(request)

    def take(self) -> list[Request]:
        """All waiting requests, including those whose clients have given up."""
        requests, self._requests = self._requests, []
        return requests


class World:
    """The scheduler, and the clock that actors get."""

    def __init__(self, rng: random.Random, rates: FaultRates, watcher: Watcher, *, transcript: bool = False) -> None:
        self.rng, self.rates = rng, rates
        self.store = Store(watcher, rng, rates.listed_ms)
        self.now = START_MS
        self.events = 0
        self.faults = True
        self.unfinished = 0
        self._actors: list[Actor] = []
        self.queues: dict[str, RequestQueue] = {}
        """Queues by address."""
        self.current: Actor | None = None
        self._ready: list[tuple[str, Actor, Any]] = []
        self._later: list[tuple[int, int, tuple[str, Actor, Any]]] = []
        self._order = 0
        self._away: tuple[str, ...] = ()
        """Beginnings of the names of files whose storage does not answer."""
        self._transcript = blake2b(digest_size=16) if transcript else None

    def now_ms(self) -> int:
        """The time on the clock of the running actor."""
        return self.now + ((self.current.main or self.current).skew_ms if self.current and self.faults else 0)

    def monotonic_ms(self) -> int:
        return self.now

    def sleep_ms(self, milliseconds: float) -> None:
        raise NotImplementedError("steps sleep by yielding Sleep")

    def transcript(self) -> str:
        """A digest of everything that took effect, in order."""
        return self._transcript.hexdigest() if self._transcript else ""

    def start(self, name: str, make: Callable[[], Steps[None]], *, counts: bool, leaves_zombies: bool = False) -> None:
        """Add an actor."""
        self.unfinished += counts
        self._at(0, ("resume", self._begin(Actor(name, make, counts, leaves_zombies=leaves_zombies)), None))

    def start_thread(self, make: Callable[[], Steps[None]]) -> Actor:
        """Add a thread to the running process."""
        assert self.current is not None
        main = self.current.main or self.current
        actor = Actor(f"{main.name} thread", make, counts=False, main=main)
        self._at(0, ("resume", actor, None))
        return actor

    def end(self, actor: Actor) -> None:
        actor.dead = True
        actor.task.close()

    def end_all(self, *, but: tuple[str, ...]) -> None:
        """End the actors whose names do not begin with one of these texts."""
        for actor in self._actors:
            if not actor.dead and not actor.name.startswith(but):
                self.end(actor)

    def end_named(self, name: str) -> None:
        for actor in self._actors:
            if not actor.dead and actor.name == name:
                self.end(actor)

    def take_away(self, *prefixes: str) -> None:
        """Files whose names begin so do not answer, and get no change that is under way, until this is called again."""
        self._away = prefixes
        self.stop(*prefixes)

    def stop(self, *prefixes: str) -> None:
        """Requests about files whose names begin so, and that are under way, have no effect and no answer."""
        going = [event for event in [*self._ready, *(one for _, _, one in self._later)] if _is_about(event, prefixes)]
        for _, actor, (place, op, *_) in going:
            if place is not None:
                self._at(1, ("answer", actor, (place, _no_answer(op))))
        self._ready = [event for event in self._ready if not _is_about(event, prefixes)]
        self._later = [one for one in self._later if not _is_about(one[2], prefixes)]
        heapq.heapify(self._later)

    def end_faults(self) -> None:
        """From here on nothing fails.  Of each kind of actors that do not count, one continues.

        A request takes three steps, each of them drawn from all that is ready.  Where twenty actors are always ready,
        a change that lost against another takes longer to try again than the fence's age, and begins with a checkpoint.
        """
        self.faults = False
        kinds = set[str]()
        for actor in self._actors:
            if actor.counts or actor.main is not None or actor.dead:
                continue
            kind = actor.name.rstrip("0123456789")
            if kind in kinds:
                self.end(actor)
            elif not actor.zombie:
                kinds.add(kind)

    def _begin(self, actor: Actor) -> Actor:
        self._actors.append(actor)
        self._turn_clock(actor)
        return actor

    def _turn_clock(self, actor: Actor) -> None:
        """Draw how far a clock is ahead or behind."""
        limit = self.rates.skew_ms
        if self._chance(self.rates.astray):
            actor.skew_ms = self.rng.choice((-WRONG_CLOCK_MS, WRONG_CLOCK_MS))
        else:
            actor.skew_ms = self.rng.randint(-limit, limit) if limit else 0

    def close(self) -> None:
        """End all actors, some of which have threads."""
        for actor in self._actors:
            actor.task.close()

    def open_queue(self, address: str) -> RequestQueue:
        queue = self.queues[address] = RequestQueue()
        return queue

    def reply(self, request: Request, answer: Answered | CoordinatorNotAvailable) -> None:
        """Answer a request to a coordinator; the answer may be lost or late."""
        if not request.done and not self._chance(self.rates.lost):
            request.done = True
            self._at(self._stall(), ("answer", request.actor, (request.place, answer)))

    def run(self, steps: int) -> bool:
        """Run until all actors that count have finished.  False: this many milliseconds were not enough."""
        stop = self.now + steps
        while self.unfinished and self.now < stop:
            while self._later and self._later[0][0] <= self.now:
                self._ready.append(heapq.heappop(self._later)[2])
            if not self._ready:
                self.now = self._later[0][0]
                continue
            at = int(self.rng.random() * len(self._ready))
            self._ready[at], self._ready[-1] = self._ready[-1], self._ready[at]
            event = self._ready.pop()
            self.now += event[0] != CALL
            self.events += 1
            self._happen(*event)
        return not self.unfinished

    def alone(self, steps: Steps[Any]) -> Any:
        """Carry out steps with no other actor moving and no faults."""
        answer: Any = None
        for _ in range(100_000):
            self.now += 1
            try:
                request = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            ops = request if isinstance(request, list) else [request]
            self.now += sum(round(op.milliseconds) for op in ops if isinstance(op, Sleep))
            answers = [self.store.apply(op, self.now) for op in ops]
            answer = answers if isinstance(request, list) else answers[0]
        raise Violation("progress: the log cannot be opened")

    def _chance(self, probability: float) -> bool:
        return self.faults and self.rng.random() < probability

    def _stall(self, more: int = 1) -> int:
        return self.rng.choice(STALLS) if self._chance(self.rates.stall * more) else 0

    def call(self, delay: int, function: Callable[[], None]) -> None:
        """Call a function after so many milliseconds."""
        self._at(delay, (CALL, _NOBODY, function))

    def _at(self, delay: int, event: tuple[str, Actor, Any]) -> None:
        if delay <= 0:
            self._ready.append(event)
        else:
            self._order += 1
            heapq.heappush(self._later, (self.now + delay, self._order, event))

    def _happen(self, kind: str, actor: Actor, detail: Any) -> None:
        if kind == CALL:
            detail()
        elif kind == "effect":
            self._effect(actor, *detail)
        elif kind == "send":
            self._send(actor, *detail)
        elif kind == "answer":
            self._answer(actor, *detail)
        elif kind == "overdue":
            self._overdue(detail)
        elif actor.main is None and self._chance(self.rates.crash) and not (actor.zombie or actor.dead):
            self._crash(actor, detail)
        else:
            self._resume(actor, detail)

    def _effect(self, actor: Actor, place: int | None, op: StoreOp, lost: bool, decided: State | None) -> None:
        answer = self.store.apply(op, self.now, decided)
        if self._transcript:
            self._transcript.update(f"{self.now} {actor.name} {type(op).__name__} {op[0]} {answer!r:.60}\n".encode())
        if place is None:
            return
        if lost:
            self._lost(actor, place, op)
        else:
            self._at(self._stall(), ("answer", actor, (place, answer)))

    def _answer(self, actor: Actor, place: int, answer: Any) -> None:
        if not isinstance(actor.answers[place], BaseException):
            actor.answers[place] = answer
        actor.waiting -= 1
        if not actor.waiting:
            self._at(self._stall(), ("resume", actor, actor.answers))

    def _crash(self, actor: Actor, answers: Sequence[Any]) -> None:
        """Start a new incarnation; the old one sometimes survives as a zombie."""
        new = Actor(actor.name, actor.make, actor.counts, leaves_zombies=actor.leaves_zombies)
        self._at(self.rng.choice((10, 500)), ("resume", self._begin(new), None))
        if actor.leaves_zombies and self.rng.random() < 0.5:
            actor.zombie = True
            self._at(self.rng.choice(STALLS), ("resume", actor, answers))
        else:
            self.end(actor)

    def _resume(self, actor: Actor, answers: list[Any] | None) -> None:
        if actor.dead:
            return
        self.current = actor
        astray = abs(actor.skew_ms) == WRONG_CLOCK_MS
        if actor.main is None and self._chance(SET_RIGHT if astray else self.rates.step):
            self._turn_clock(actor)
        try:
            request = _step(actor, answers)
        except StopIteration:
            actor.dead = True
            self.unfinished -= actor.counts and not actor.zombie
            return
        actor.many = isinstance(request, list)
        ops: list[Op] = request if isinstance(request, list) else [request]
        parts = [(place, part) for place, op in enumerate(ops) for part in _parts(op)]
        actor.answers, actor.waiting = [None] * len(ops), len(parts)
        if not parts:
            self._at(1, ("resume", actor, actor.answers))
        for place, part in parts:
            self._send(actor, place, part)

    def _send(self, actor: Actor, place: int, op: Op) -> None:
        decided = None
        if isinstance(op, PutNew):
            decided, actor.decided = actor.decided, None
        if isinstance(op, Sleep):
            self._at(max(1, round(op.milliseconds)), ("answer", actor, (place, None)))
        elif isinstance(op, Ask):
            self._ask(Request(actor, place, op))
        elif _name(op).startswith(self._away):
            self._at(20, ("answer", actor, (place, _no_answer(op))))
        elif self._chance(self.rates.lost):
            self._lost(actor, place, op)
        elif self._chance(self.rates.late):
            self._at(self.rng.choice(LATE), ("effect", actor, (None, op, True, decided)))
            self._lost(actor, place, op)
        else:
            # Stalls are most frequent where they do most harm.
            more = 8 if actor.many and isinstance(op, Get) else 12 if isinstance(op, PutNew) else 1
            lost = self._chance(self.rates.lost)
            self._at(self._stall(more), ("effect", actor, (place, op, lost, decided)))

    def _ask(self, request: Request) -> None:
        queue = self.queues.get(request.ask.holder.address)
        if queue is None or not queue.open:
            self._at(1, ("answer", request.actor, (request.place, CoordinatorNotAvailable("nobody leads there"))))
            return
        if not self._chance(self.rates.lost):
            queue.arrive(request)
        self._at(OVERDUE_MS, ("overdue", request.actor, request))

    def _overdue(self, request: Request) -> None:
        if not request.done:
            request.done = True
            error = CoordinatorNotAvailable("no answer")
            error.maybe_applied = True
            self._answer(request.actor, request.place, error)

    def _lost(self, actor: Actor, place: int, op: Op) -> None:
        if isinstance(op, PutNew):
            self._at(self._stall(), ("answer", actor, (place, PutAnswer.UNKNOWN)))
        elif self._chance(GIVE_UP):
            self._at(self._stall(), ("answer", actor, (place, StorageUnavailable("simulated"))))
        else:
            self._at(self.rng.choice((1, 50)), ("send", actor, (place, op)))


class Simulated(Protocol):
    """A simulation, for actors that only need its draws and its world."""

    @property
    def rng(self) -> random.Random: ...

    @property
    def world(self) -> World: ...


def _name(op: Op) -> str:
    """The name of a file that an operation is about, or how the names begin that it lists; empty if there is none."""
    found: str = op.keys[0] if isinstance(op, Delete) else getattr(op, "key", getattr(op, "prefix", ""))
    return found


def _is_about(event: tuple[str, Actor, Any], prefixes: tuple[str, ...]) -> bool:
    """Whether it is a request about a file whose name begins so."""
    return event[0] in ("send", "effect") and _name(event[2][1]).startswith(prefixes)


def _no_answer(op: Op) -> PutAnswer | StorageUnavailable:
    return PutAnswer.UNKNOWN if isinstance(op, PutNew) else StorageUnavailable("the storage is away")


def _parts(op: Op) -> Sequence[Op]:
    """A delete of many names is many operations."""
    return [op._replace(keys=[key]) for key in op.keys] if isinstance(op, Delete) else [op]


def _step(actor: Actor, answers: list[Any] | None) -> Op | list[Op]:
    if answers is None:
        return actor.task.send(None)
    for answer in answers:
        if isinstance(answer, BaseException):
            return actor.task.throw(answer)
    return actor.task.send(answers if actor.many else answers[0])
