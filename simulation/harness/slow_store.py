"""A store with the latency of an object store, which records its requests.

Each call counts the requests that S3 would get: a listing one for each 1,000 names, a delete one for each 1,000.  Two
requests are sequential if the second began after the first had ended.  The longest sequential chain is the number of
round trips that the caller waited for, however many requests ran in parallel.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar

from simulation.harness.stores import NAMES_PER_REQUEST, Names, Wrapper
from spark_log.store.base import Bytes, ObjectStore

GET_MS, PUT_MS = 15.0, 30.0
"""Medians of S3 standard within a region, for small objects."""
JITTER = (0.7, 1.8, 0.9)
"""Bounds of a request's time as a multiple of the median; most requests are at the last one."""

Result = TypeVar("Result")


class TimedRequest(NamedTuple):
    """One request, and its start and end in seconds."""

    kind: str
    """get, list, size, put, put_new or delete."""
    key: str
    begun: float
    ended: float


Requests: TypeAlias = list[TimedRequest]


def counts(requests: Iterable[TimedRequest]) -> Counter[str]:
    """Requests by kind."""
    return Counter(request.kind for request in requests)


def round_trips(requests: Iterable[TimedRequest]) -> int:
    """The length of the longest chain of requests in which each began after the previous one had ended."""
    trips, free = 0, float("-inf")
    for request in sorted(requests, key=lambda request: request.ended):
        if request.begun >= free:
            trips, free = trips + 1, request.ended
    return trips


class SlowStore(Wrapper):
    """Waits as long as an object store takes, and records the requests.

    get_ms, put_ms: medians.  A listing and a size take as long as a get, a delete as long as a put.
    jitter: times vary around the median, drawn from the seed.
    """

    def __init__(
        self, inner: ObjectStore, *, get_ms: float = GET_MS, put_ms: float = PUT_MS, jitter: bool = True, seed: int = 0
    ) -> None:
        super().__init__(inner)
        self._get_ms, self._put_ms, self._jitter, self._seed = get_ms, put_ms, jitter, seed
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self.requests: Requests = []

    def __reduce__(self) -> tuple[Callable[..., SlowStore], tuple[Any, ...]]:
        return _slow_store, (self.inner, self._get_ms, self._put_ms, self._jitter, self._seed)

    @property
    def local(self) -> bool:
        return False

    @contextmanager
    def watched(self) -> Iterator[Requests]:
        """Collect the requests that are made in the block."""
        found: Requests = []
        with self._lock:
            since = len(self.requests)
        yield found
        with self._lock:
            found += self.requests[since:]

    def _asked(self, kind: str, key: str, median_ms: float, do: Callable[[], Result]) -> Result:
        begun = time.perf_counter()
        with self._lock:
            times = self._rng.triangular(*JITTER) if self._jitter else 1.0
        time.sleep(median_ms * times / 1000)
        try:
            return do()
        finally:
            with self._lock:
                self.requests.append(TimedRequest(kind, key, begun, time.perf_counter()))

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self._asked("get", key, self._get_ms, lambda: self.inner.get(key, start, end))

    def size(self, key: str) -> int | None:
        return self._asked("size", key, self._get_ms, lambda: self.inner.size(key))

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._asked("put", key, self._put_ms, lambda: self.inner.put(key, chunks))

    def put_new(self, key: str, data: bytes) -> bool:
        return self._asked("put_new", key, self._put_ms, lambda: self.inner.put_new(key, data))

    def written_ms(self, key: str) -> int | None:
        return self._asked("size", key, self._get_ms, lambda: self.inner.written_ms(key))

    def list(self, prefix: str) -> Names:
        names = self._asked("list", prefix, self._get_ms, lambda: self.inner.list(prefix))
        for _ in range(NAMES_PER_REQUEST, len(names), NAMES_PER_REQUEST):
            self._asked("list", prefix, self._get_ms, lambda: None)
        return names

    def delete(self, keys: Iterable[str]) -> None:
        names = tuple(keys)
        for at in range(0, len(names), NAMES_PER_REQUEST):
            some = names[at : at + NAMES_PER_REQUEST]
            self._asked("delete", some[0], self._put_ms, lambda some=some: self.inner.delete(some))  # type: ignore[misc]


def _slow_store(inner: ObjectStore, get_ms: float, put_ms: float, jitter: bool, seed: int) -> SlowStore:
    return SlowStore(inner, get_ms=get_ms, put_ms=put_ms, jitter=jitter, seed=seed)
