"""Actors whose code blocks: the product's own `Log` with its journal, on a store of which each operation is a step.

Such an actor has a thread.  It runs while the world waits for it, until it asks the store for something or sleeps; then the
world runs, and the thread waits for the answer.  One thread runs at a time, so a seed decides everything here as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from spark_log.errors import ObjectNotFound, StorageUnavailable
from spark_log.journal.journal import FORMAT_VERSION, Format
from spark_log.journal.ops import Answer, Delete, Get, List, Op, Put, PutNew, Sleep, Steps, StoreTime
from spark_log.store.base import Bytes
from spark_log.testing.sim.world import World

LIBRARY = "simulated 1"


class _Killed(BaseException):
    """Raised in the thread of a process that has died, wherever it waits."""


@dataclass(slots=True, eq=False)
class _Handover:
    """One thread runs, the other waits: the world's, or the actor's."""

    to_actor: threading.Semaphore
    to_world: threading.Semaphore
    request: Op | None = None
    """What the actor waits for; None: it has ended."""
    answer: Any = None
    failed: BaseException | None = None
    """Of the request, for the actor; and of the actor, for the world, at its end."""
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
        """Let the actor run until it asks again, or ends.  Called by the world."""
        self.request = None
        self.to_actor.release()
        self.to_world.acquire()


def blocking(world: World, use: Callable[[SimulatedStore, SimulatedClock], None]) -> Steps[None]:
    """The steps of a function that blocks in its store, or on its clock."""
    handover = _Handover(threading.Semaphore(0), threading.Semaphore(0))

    def body() -> None:
        handover.to_actor.acquire()
        try:
            if not handover.dead:
                use(SimulatedStore(handover), SimulatedClock(handover, world))
        except _Killed:
            pass
        except BaseException as error:  # noqa: BLE001  raised in the world's thread
            handover.failed = error
        handover.request = None
        handover.to_world.release()

    thread = threading.Thread(target=body, daemon=True)
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


class SimulatedClock:
    """The clock of the process."""

    def __init__(self, handover: _Handover, world: World) -> None:
        self._handover, self._world = handover, world

    def now_ms(self) -> int:
        return self._world.now_ms()

    def monotonic_ms(self) -> int:
        return self._world.monotonic_ms()

    def sleep_ms(self, milliseconds: float) -> None:
        self._handover.ask(Sleep(milliseconds))


class SimulatedStore:
    """An `ObjectStore` that is the world's.  It counts as local: requests of one process follow each other."""

    url = "simulated://log"
    local = True

    def __init__(self, handover: _Handover) -> None:
        self._handover = handover

    def fingerprint(self) -> str:
        return LIBRARY

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        data: bytes | None = self._handover.ask(Get(key, start, end))
        if data is None:
            raise ObjectNotFound(f"{key} is not there", key=key)
        return data

    def size(self, key: str) -> int | None:
        data: bytes | None = self._handover.ask(Get(key))
        return None if data is None else len(data)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._handover.ask(Put(key, (b"".join(chunks),)))

    def put_new(self, key: str, data: bytes) -> bool:
        answer = self._handover.ask(PutNew(key, data))
        if answer is Answer.UNKNOWN:
            raise StorageUnavailable(f"{key}: no answer")
        return bool(answer is Answer.CREATED)

    def written_ms(self, key: str) -> int | None:
        written: int | None = self._handover.ask(StoreTime(key, b""))
        return written

    def list(self, prefix: str) -> list[str]:
        names: list[str] = self._handover.ask(List(prefix))
        return names

    def delete(self, keys: Iterable[str]) -> None:
        self._handover.ask(Delete(tuple(keys)))

    def sweep(self, prefix: str, before_ms: int) -> int:
        return 0


def format_file() -> bytes:
    """What `meta/format` holds."""
    form = Format(pylog=FORMAT_VERSION, cluster_id="simulated", created_ms=0, probed=LIBRARY)
    return msgspec.json.encode(form) + b"\n"
