"""Steps that run in the same rounds of requests."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from simulation.harness.clocks import ManualClock
from simulation.harness.stores import Wrapper
from spark_log.errors import StorageError, StorageUnavailable
from spark_log.journal.store_operations import Get, Put, Steps, Stores, run, together
from spark_log.store.memory import MemoryStore


class Broken(Wrapper):
    """Refuses to read some objects."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        super().__init__(MemoryStore(uuid.uuid4().hex))
        self.errors = errors
        self.asked: list[str] = []

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.asked.append(key)
        if key in self.errors:
            raise self.errors[key]
        return self.inner.get(key, start, end)


class Copying:
    """Steps that read objects and write one with their bytes; they are closed in any case."""

    def __init__(self, keys: list[str], to: str) -> None:
        self.keys, self.to, self.closed = keys, to, False

    def steps(self) -> Steps[str]:
        try:
            found = [(yield Get(self.keys[0])), *(yield [Get(key) for key in self.keys[1:]])]
            yield Put(self.to, found)
        except StorageUnavailable:
            raise
        except StorageError as error:
            return str(error)
        finally:
            self.closed = True
        return self.to


def rounds_of(steps: Steps[list[str]], rounds: list[int]) -> Steps[list[str]]:
    """The same steps; the number of operations of each request."""
    answer: Any = None
    failed: Exception | None = None
    while True:
        try:
            request = steps.throw(failed) if failed else steps.send(answer)
        except StopIteration as stop:
            return list(stop.value)
        rounds.append(len(request) if isinstance(request, list) else 1)
        answer = failed = None
        try:
            answer = yield request
        except StorageError as error:
            failed = error


def copied(errors: dict[str, Exception], *some: Copying) -> tuple[list[str], Broken, list[int]]:
    store, rounds = Broken(errors), list[int]()
    for name in "abcd":
        store.put(name, [name.encode()])
    results = run(rounds_of(together([one.steps() for one in some]), rounds), Stores.of(store), ManualClock())
    return results, store, rounds


def test_steps_share_their_rounds() -> None:
    """As many rounds as the longest of them has; each gets the answers to its own requests."""
    results, store, rounds = copied({}, Copying(["a", "b", "c"], "x"), Copying(["d"], "y"))
    assert results == ["x", "y"]
    assert (store.get("x"), store.get("y")) == (b"abc", b"d")
    assert rounds == [2, 2, 2]


def test_an_error_reaches_only_the_steps_that_asked() -> None:
    """The requests of the others in that round are made again."""
    errors: dict[str, Exception] = {"c": StorageError("c: access denied")}
    results, store, _ = copied(errors, Copying(["a", "b"], "x"), Copying(["c"], "y"), Copying(["d", "a", "b"], "z"))
    assert results == ["x", "c: access denied", "z"]
    assert (store.get("x"), store.get("z")) == (b"ab", b"dab")


def test_an_unavailable_storage_ends_all_of_them() -> None:
    """Each would wait as long as the first.  All are closed: they may hold files."""
    some = [Copying(["a", "b"], "x"), Copying(["c"], "y"), Copying(["d"], "z")]
    with pytest.raises(StorageUnavailable, match="no answer"):
        copied({"c": StorageUnavailable("no answer")}, *some)
    assert all(one.closed for one in some[:2])


def test_no_steps_have_no_results() -> None:
    """And make no request."""
    assert copied({})[0] == []
