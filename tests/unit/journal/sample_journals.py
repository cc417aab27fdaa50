"""Journals over stores in memory and on a local disk, and changes to them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest

from simulation.harness.stores import ClockedStore, Wrapper
from spark_log.journal.journal import Journal
from spark_log.metadata.commits.decide_commits import Committed, decide_commit
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.topics.decide_topics import decide_create_topic
from spark_log.model import DataObject, Run
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore

numbers = count()


class TickingClock:
    """Time moves by a step with each look at it; nobody waits."""

    def __init__(self, step_ms: int = 1) -> None:
        self._now = 1_700_000_000_000
        self.step_ms = step_ms

    def now_ms(self) -> int:
        self._now += self.step_ms
        return self._now

    def monotonic_ms(self) -> int:
        return self.now_ms()

    def sleep_ms(self, milliseconds: float) -> None:
        self._now += int(milliseconds)


class CountingStore(Wrapper):
    """Counts operations by kind."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.operations = Counter[str]()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.operations["get"] += 1
        return super().get(key, start, end)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self.operations["put"] += 1
        super().put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        self.operations["put_new"] += 1
        return super().put_new(key, data)

    def list(self, prefix: str) -> list[str]:
        self.operations["list"] += 1
        return super().list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self.operations["delete"] += 1
        super().delete(keys)


def memory(folder: Path) -> ObjectStore:
    return MemoryStore(f"journal-{next(numbers)}")


def local(folder: Path) -> ObjectStore:
    return LocalStore(str(folder / "log"), durability="os")


stores = pytest.mark.parametrize("make", [memory, local])


def open_log(store: ObjectStore, *, step_ms: int = 1) -> Journal:
    timeless = ClockedStore(store)
    return Journal.open(timeless, create=True, clock=TickingClock(step_ms), rng=random.Random(next(numbers)))


def create(journal: Journal, name: str = "t") -> str:
    return journal.propose(lambda state, now: decide_create_topic(state, name, 1, {}, f"id-{name}"))


def commit(journal: Journal, producer: str, sequence: int, topic: str = "id-t", *, finish: bool = True) -> Committed:
    """One record, and the maintenance that it starts; no object is put, since nobody reads it."""
    name = f"data/{0:016x}/{producer}-{sequence}.seg"
    record = CommitRecord(
        producer=producer,
        sequence=sequence,
        upload_epoch=journal.state.version,
        objects=(DataObject(name, 100, 90),),
        slices=((0, Run(topic, 0, 0, 90, 1, 1, 1, 5, 5)),),
    )
    committed = journal.propose(lambda state, now: decide_commit(state, record))
    if finish:
        journal.finish_maintenance()
    return committed
