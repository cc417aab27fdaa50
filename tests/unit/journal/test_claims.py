"""Claims: of all values under a name, the first one wins."""

from __future__ import annotations

import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simulation.harness.stores import Faults, FaultyStore
from spark_log.errors import StorageError, StorageUnavailable
from spark_log.journal.storage.claims import TRIES, claim, claimed, drop_claims
from spark_log.journal.store_operations import Delete, Get, PutAnswer, PutNew, Stores, WrittenTime, run
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore

NAME = "meta/pin/q"


@pytest.fixture
def store() -> ObjectStore:
    return MemoryStore(uuid.uuid4().hex)


def claim_in(store: ObjectStore, value: bytes) -> bytes:
    return run(claim(NAME, value), Stores.of(store), SystemClock())


def test_the_first_value_wins(store: ObjectStore) -> None:
    """A later claimant and a reader get it.  Before the first claim, a reader gets None."""
    assert run(claimed(NAME), Stores.of(store), SystemClock()) is None
    assert claim_in(store, b"first") == b"first"
    assert claim_in(store, b"second") == b"first"
    assert run(claimed(NAME), Stores.of(store), SystemClock()) == b"first"


def test_all_claimants_of_a_race_get_one_value(store: ObjectStore) -> None:
    """Whichever of them wins, and whatever requests and answers are lost."""
    faulty = FaultyStore(store, random.Random(7), Faults(lost_answer=0.2))

    def race(number: int) -> bytes | None:
        try:
            return claim_in(faulty, b"%d" % number)
        except StorageUnavailable:
            return None

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(race, range(8))) - {None}
    assert found == {store.get(NAME)}


def test_a_put_whose_answer_is_lost_is_read_back() -> None:
    """It may have won, or another may have; if neither, the put is retried."""
    steps = claim(NAME, b"mine")
    assert next(steps) == PutNew(NAME, b"mine")
    assert steps.send(PutAnswer.UNKNOWN) == Get(NAME)
    assert steps.send(None) == PutNew(NAME, b"mine")
    assert steps.send(PutAnswer.UNKNOWN) == Get(NAME)
    with pytest.raises(StopIteration) as found:
        steps.send(b"another")
    assert found.value.value == b"another"


def test_a_claim_gives_up(store: ObjectStore) -> None:
    """If the storage takes no put, the error says so; a storage that rejects puts raises its own error."""
    steps = claim(NAME, b"mine")
    next(steps)
    for _ in range(TRIES - 1):
        assert steps.send(PutAnswer.UNKNOWN) == Get(NAME)
        assert steps.send(None) == PutNew(NAME, b"mine")
    assert steps.send(PutAnswer.UNKNOWN) == Get(NAME)
    with pytest.raises(StorageUnavailable, match=f"did not take {NAME} in {TRIES} attempts"):
        steps.send(None)
    rejecting = FaultyStore(store, random.Random(1), Faults(errors={"meta/": StorageError("not allowed")}))
    with pytest.raises(StorageError, match="not allowed"):
        claim_in(rejecting, b"mine")


def test_a_clock_that_is_behind_makes_no_claim_old(tmp_path: Path) -> None:
    """The storage knows when it got a claim whose client's clock is a day behind.  An old one is deleted."""
    store = LocalStore(str(tmp_path), durability="os")
    now_ms, day_ms = SystemClock().now_ms(), 86_400_000
    claim_in(store, b'{"version":7,"made_ms":%d}' % (now_ms - 2 * day_ms))

    def drop(fence: int, before_ms: int) -> int:
        return run(drop_claims(fence, before_ms), Stores.of(store), SystemClock())

    assert drop(6, now_ms - day_ms) == 0 and store.list(NAME)
    assert drop(6, now_ms + day_ms) == 1 and not store.list(NAME)


def test_a_storage_without_times_has_claims_judged_by_their_clients() -> None:
    steps = drop_claims(6, 1000)
    next(steps)
    steps.send([NAME, "meta/pin/r"])
    assert steps.send([b'{"version":7,"made_ms":999}', b'{"version":7,"made_ms":1000}']) == [WrittenTime(NAME)]
    assert steps.send([None]) == Delete([NAME])
