"""Reads of the storage for requests.  Those that hang do not stop others.

A read runs in a thread, and a hung one keeps its thread for as long as the storage does.  So a partition, and a topic,
have only some threads at the same time, and a request does not wait for what hangs already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from spark_log.errors import StorageUnavailable
from spark_log.metadata.state import TopicKey
from spark_log.runtime.daemon_threads import DaemonThreads

PARTITION_READS, TOPIC_READS, READS = 2, 8, 64
"""At the same time: of a partition, of a topic, and in all."""
LEAST_S = 1.0
"""A request gives each read this time, although its own time is over."""
HUNG_S = 2.0
"""After this time a read counts as hung: requests wait for it no more."""

Result = TypeVar("Result")
_Running = dict["asyncio.Future[Any]", float]
"""Reads, and when they began."""


class StillReading(StorageUnavailable):
    """The storage has not answered in time.  The read continues, and what it finds is kept for a retry."""


class KnownToHang(StillReading):
    """Others wait for the storage already."""


class StorageReads:
    """Belongs to one event loop."""

    def __init__(self, name: str) -> None:
        self._threads = DaemonThreads(0, name)
        self._loop = asyncio.get_running_loop()
        self._running: dict[TopicKey | str, _Running] = {}
        """By partition, by topic, and under an empty name all of them."""

    async def read(self, key: TopicKey, until_s: float, function: Callable[..., Result], *values: Any) -> Result:
        """The result of a function that reads a partition.

        until_s:  on the clock of the event loop.
        Raises StillReading if there is none by then; KnownToHang, without a wait, if those before it hang.
        """
        until_s = max(until_s, self._loop.time() + LEAST_S)
        while (others := self._in_the_way(key)) is not None:
            now = self._loop.time()
            if now >= until_s or all(now - began >= HUNG_S for began in others.values()):
                raise KnownToHang(f"{len(others)} reads of the storage have not ended")
            await asyncio.wait(list(others), timeout=until_s - now, return_when=asyncio.FIRST_COMPLETED)
        begun = self._begin(key, function, values)
        await asyncio.wait([begun], timeout=until_s - self._loop.time())
        if not begun.done():
            raise StillReading(f"the storage has not answered within {until_s - self._running[key][begun]:.1f} s")
        return begun.result()

    def _in_the_way(self, key: TopicKey) -> _Running | None:
        """The reads of which one has to end before another one of a partition begins."""
        for group, limit in ((key, PARTITION_READS), (key[0], TOPIC_READS), ("", READS)):
            if len(running := self._running.get(group, {})) >= limit:
                return running
        return None

    def _begin(self, key: TopicKey, function: Callable[..., Result], values: tuple[Any, ...]) -> asyncio.Future[Result]:
        self._threads.grow(len(self._running.get("", {})) + 1)
        begun = self._threads.submit(function, *values)
        for group in (key, key[0], ""):
            self._running.setdefault(group, {})[begun] = self._loop.time()
        begun.add_done_callback(lambda ended: self._end(key, ended))
        return begun

    def _end(self, key: TopicKey, ended: asyncio.Future[Any]) -> None:
        for group in (key, key[0], ""):
            del self._running[group][ended]
            if not self._running[group]:
                del self._running[group]
        if not ended.cancelled():
            ended.exception()  # nobody may have waited for it

    def close(self) -> None:
        self._threads.close()
