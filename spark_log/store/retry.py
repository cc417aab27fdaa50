"""The one place that retries requests to the storage.

The client libraries of object stores are configured not to retry where they allow it, so that waits do not multiply.
A put-if-absent is not retried here: its caller reads back and decides.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

from spark_log.errors import StorageUnavailable
from spark_log.log_lines import logger
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.bounded_waits import Slot, Unfinished
from spark_log.store.store_wrapper import StoreWrapper

Result = TypeVar("Result")

RETRY_MS = (50, 100, 200, 500, 1000, 2000, 4000, 8000, 8000)
"""Backoff between attempts, each varied by half: about 24 s in all."""
RETRY_TOTAL_MS = 30_000
"""No attempt begins later than this after the first, except the second: a lost answer takes a minute to fail."""


class RetryingStore(StoreWrapper):
    """Retries reads, listings, deletes, and puts of unique names while the storage is unavailable.

    Raises the last StorageUnavailable.  Any other error is raised immediately.
    """

    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock | None = None,
        total_ms: float = RETRY_TOTAL_MS,
        rng: random.Random | None = None,
        until_ms: float = math.inf,
    ) -> None:
        """
        until_ms:  deadline on the monotonic clock: a request in progress fails then, and its thread is abandoned.
        """
        super().__init__(inner)
        self._until_ms = until_ms
        self._clock = clock or SystemClock()
        self._total_ms = total_ms
        self.rng = rng or random.Random()

    def __reduce__(self) -> tuple[type[RetryingStore], tuple[ObjectStore]]:
        return RetryingStore, (self.inner,)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        """Chunks that can be iterated only once get one attempt."""
        if iter(chunks) is chunks:
            self.inner.put(key, chunks)
        else:
            super().put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        return self._once(lambda store: store.put_new(key, data))

    def _ask(self, request: Callable[[ObjectStore], Result]) -> Result:
        """Repeat a request while the storage is unavailable."""
        began = self._clock.monotonic_ms()
        for number, wait in enumerate(RETRY_MS):
            try:
                return self._once(request)
            except StorageUnavailable as error:
                wait_ms = wait * self.rng.uniform(0.5, 1.5)
                now = self._clock.monotonic_ms() + wait_ms
                if (number and now - began > self._total_ms) or now >= self._until_ms:
                    raise
                logger.debug("attempt %d: %s", number + 1, error)
                self._clock.sleep_ms(wait_ms)
        return self._once(request)

    def _once(self, request: Callable[[ObjectStore], Result]) -> Result:
        if self._until_ms == math.inf:
            return request(self.inner)
        return answer_until(self._until_ms, self._clock, self.url, lambda: request(self.inner))


def answer_until(until_ms: float, clock: Clock, url: str, ask: Callable[[], Result]) -> Result:
    """The answer of the storage.

    Raises StorageUnavailable at the deadline: a running request is abandoned in its thread, and no new one begins.
    """
    try:
        return Slot[Result]().answer(ask, (until_ms - clock.monotonic_ms()) / 1000)
    except Unfinished:
        raise StorageUnavailable(f"{url} did not answer before the caller's deadline") from None


def with_retries(store: ObjectStore, clock: Clock | None = None, rng: random.Random | None = None) -> ObjectStore:
    """The store behind one retry layer."""
    return store if isinstance(store, RetryingStore) else RetryingStore(store, clock, rng=rng)


def with_retries_for(store: ObjectStore, clock: Clock, total_ms: float) -> ObjectStore:
    """The store with the caller's deadline for its requests; operations on a local disk are always waited for."""
    inner, rng = (store.inner, store.rng) if isinstance(store, RetryingStore) else (store, None)
    until_ms = math.inf if store.local else clock.monotonic_ms() + total_ms
    return RetryingStore(inner, clock, min(total_ms, RETRY_TOTAL_MS), rng, until_ms)
