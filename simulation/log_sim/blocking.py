"""Actors whose code blocks: the product's own `Log` with its journal, on a store where each operation is a simulated
step.

Such an actor has a thread.  The world waits while the thread runs.  When the thread calls the store or sleeps, the
world runs and the thread waits for the answer.  One thread runs at a time, so the seed decides everything here as well.
More threads of the same process are more actors (`threads.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from simulation.log_sim.threads import SimulatedThread
from simulation.log_sim.world import World
from spark_log.errors import ObjectNotFound, StorageUnavailable
from spark_log.journal.storage.log_format import FORMAT_VERSION, Format
from spark_log.journal.store_operations import Delete, Get, List, Op, Put, PutAnswer, PutNew, Sleep, Steps, StoreTime
from spark_log.store.base import NOTHING, Bytes, Swept

LIBRARY = "simulated 1"
SIMULATED = "pylog-simulated"
"""The name of all threads of actors."""


class _Killed(BaseException):
    """Raised in every waiting thread of a process that has died."""


@dataclass(slots=True, eq=False)
class _Handover:
    """Passes control between two threads, of which one runs and the other waits: the world's and the actor's."""

    to_actor: threading.Semaphore
    to_world: threading.Semaphore
    request: Op | None = None
    """The operation that the actor waits for; None: the actor has ended."""
    answer: Any = None
    failed: BaseException | None = None
    """The error of the request, for the actor; or the error that ended the actor, for the world."""
    dead: bool = False

    def ask(self, op: Op) -> Any:
        """Have the world carry an operation out.  Called by the actor."""
        if self.dead:
            raise _Killed
        self.request = op
        self.to_world.release()
        self.to_actor.acquire()
        if self.dead:
            raise _Killed
        if self.failed is not None:
            failed, self.failed = self.failed, None
            raise failed
        return self.answer

    def resume(self) -> None:
        """Let the actor run until its next operation or its end.  Called by the world."""
        self.request = None
        self.to_actor.release()
        self.to_world.acquire()


class SimulatedProcess:
    """State shared by the threads of one process: the handover of each thread, and how they end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._here = threading.local()
        self._started: list[SimulatedThread] = []

    def ask(self, op: Op) -> Any:
        """Have the world carry an operation out.  Called by one of the threads."""
        handover: _Handover = self._here.handover
        return handover.ask(op)

    def here(self) -> object:
        """The calling thread."""
        return getattr(self._here, "handover", None)

    def now_ms(self) -> int:
        return self.world.now_ms()

    def monotonic_ms(self) -> int:
        return self.world.monotonic_ms()

    def sleep_ms(self, milliseconds: float) -> None:
        self.ask(Sleep(milliseconds))

    def steps(self, work: Callable[[], None]) -> Steps[None]:
        """The steps of one thread."""
        handover = _Handover(threading.Semaphore(0), threading.Semaphore(0))

        def body() -> None:
            self._here.handover = handover
            handover.to_actor.acquire()
            try:
                if not handover.dead:
                    work()
            except _Killed:
                pass
            except BaseException as error:  # noqa: BLE001  raised in the world's thread
                handover.failed = error
            handover.request = None
            handover.to_world.release()

        thread = threading.Thread(target=body, name=SIMULATED, daemon=True)
        thread.start()
        try:
            while True:
                handover.resume()
                if handover.request is None:
                    break
                try:
                    handover.answer = yield handover.request
                except StorageUnavailable as error:
                    handover.failed = error
        finally:
            handover.dead = True
            handover.to_actor.release()
            thread.join()
        if handover.failed is not None:
            raise handover.failed

    def start(self, work: Callable[[], None]) -> SimulatedThread:
        """Start one more thread.  Called by an existing thread."""
        thread = SimulatedThread(self, work)
        self._started.append(thread)
        return thread

    def end(self) -> None:
        """Stop every thread that was started."""
        for thread in self._started:
            thread.kill()


def blocking(world: World, use: Callable[[SimulatedProcess], None]) -> Steps[None]:
    """The steps of a function that blocks in its store, on its clock, or on its threads: a process of one actor."""
    process = SimulatedProcess(world)
    try:
        yield from process.steps(lambda: use(process))
    finally:
        process.end()


class SimulatedStore:
    """An `ObjectStore` backed by the world.  It counts as local: requests of one process run one after the other."""

    url = "simulated://log"
    local = True

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def fingerprint(self) -> str:
        return LIBRARY

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        data: bytes | None = self._process.ask(Get(key, start, end))
        if data is None:
            raise ObjectNotFound(f"{key} is not there", key=key)
        return data

    def size(self, key: str) -> int | None:
        data: bytes | None = self._process.ask(Get(key))
        return None if data is None else len(data)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._process.ask(Put(key, (b"".join(chunks),)))

    def put_new(self, key: str, data: bytes) -> bool:
        answer = self._process.ask(PutNew(key, data))
        if answer is PutAnswer.UNKNOWN:
            raise StorageUnavailable(f"{key}: no answer")
        return bool(answer is PutAnswer.CREATED)

    def written_ms(self, key: str) -> int | None:
        written: int | None = self._process.ask(StoreTime(key, b""))
        return written

    def list(self, prefix: str) -> list[str]:
        names: list[str] = self._process.ask(List(prefix))
        return names

    def sizes(self, prefix: str) -> dict[str, int]:
        return {key: size for key in self.list(prefix) if (size := self.size(key)) is not None}

    def delete(self, keys: Iterable[str]) -> None:
        self._process.ask(Delete(tuple(keys)))

    def sweep(self, prefix: str, before_ms: int) -> Swept:
        return NOTHING


def format_file() -> bytes:
    """The content of `meta/format`."""
    form = Format(pylog=FORMAT_VERSION, cluster_id="simulated", created_ms=0, probed=LIBRARY)
    return msgspec.json.encode(form) + b"\n"
