"""Requests that wait for news, thousands of them, and how they are woken without a pause for everybody else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

AT_ONCE = 20
"""So many are woken in one round of the event loop; requests that came meanwhile are next."""

Topics: TypeAlias = "tuple[str, ...] | None"
"""Ids of the topics whose records somebody waits for; None: for whatever happens."""


class Waiters:
    """All of it runs on the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[Topics, int], set[asyncio.Future[None]]] = {}
        self._roused: deque[asyncio.Future[None]] = deque()
        self._rousing = False

    def join(self, topics: Topics, since: int) -> asyncio.Future[None]:
        """Is done when there is news of them, after a version."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((topics, since), set()).add(waiter)
        return waiter

    def leave(self, topics: Topics, since: int, waiter: asyncio.Future[None]) -> None:
        """Nobody waits with it any more."""
        waiter.cancel()
        others = self._waiting.get((topics, since), set())
        others.discard(waiter)
        if not others:
            self._waiting.pop((topics, since), None)

    def wake(self, is_news: Callable[[Topics, int], bool]) -> None:
        """Those for whom there is some, one after the other."""
        for waited_for in tuple(self._waiting):
            if is_news(*waited_for):
                self._roused.extend(self._waiting.pop(waited_for))
        if not self._rousing:
            self._rouse()

    def _rouse(self) -> None:
        for _ in range(min(AT_ONCE, len(self._roused))):
            waiter = self._roused.popleft()
            if not waiter.done():
                waiter.set_result(None)
        self._rousing = bool(self._roused)
        if self._rousing:
            asyncio.get_running_loop().call_soon(self._rouse)
