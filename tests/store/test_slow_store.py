"""The store that is far away: a store like others, and what it tells of requests."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simulation.harness.slow_store import SlowStore, TimedRequest, counts, round_trips
from simulation.harness.store_contract import ObjectStoreContract
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore


class TestSlow(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return SlowStore(LocalStore(str(tmp_path), "os"), get_ms=0.1, put_ms=0.2)


def at(begun: float, ended: float) -> TimedRequest:
    return TimedRequest("get", "a", begun, ended)


def test_round_trips_are_the_longest_chain() -> None:
    """Overlapping requests count once, however many they are."""
    assert round_trips([]) == 0
    assert round_trips([at(0, 2), at(1, 3), at(0, 9)]) == 1
    assert round_trips([at(0, 2), at(0, 9), at(2, 3), at(2.5, 4), at(3, 5)]) == 3


def test_requests_are_remembered_with_their_kind_and_their_time() -> None:
    """Each takes its latency; those of threads overlap."""
    store = SlowStore(MemoryStore(uuid.uuid4().hex), get_ms=50, put_ms=5, jitter=False)
    with store.watched() as requests:
        store.put("a", [b"x"])
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(store.get, "aaaa")) == [b"x"] * 4
    assert counts(requests) == {"put": 1, "get": 4}
    assert all(request.ended - request.begun >= 0.05 for request in requests if request.kind == "get")
    assert 2 <= round_trips(requests) < 5
    with store.watched() as nothing:
        pass
    assert nothing == []


def test_a_seed_decides_how_long_requests_take() -> None:
    """Between 0.7 and 1.8 times the median."""
    first, second, other = ([store._rng.random() for _ in range(3)] for store in map(_seeded, (1, 1, 2)))
    assert first == second != other


def _seeded(seed: int) -> SlowStore:
    return SlowStore(MemoryStore("seeded"), seed=seed)


def test_long_listings_and_deletes_are_several_requests() -> None:
    """1,000 names each, as on S3."""
    store = SlowStore(MemoryStore(uuid.uuid4().hex), get_ms=0, put_ms=0)
    for number in range(2001):
        store.inner.put(f"d/{number}", [b"x"])
    with store.watched() as requests:
        store.delete(store.list("d/"))
    assert counts(requests) == {"list": 3, "delete": 3} and store.inner.list("d/") == []
