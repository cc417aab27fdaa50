"""Requests that wait for news, thousands of them, and how they are woken without a pause for everybody else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from typing import TypeAlias

AT_ONCE = 20
"""So many are woken in one round of the event loop; requests that came meanwhile are next."""

Topics: TypeAlias = "tuple[str, ...] | None"
"""Ids of the topics whose records somebody waits for; None: for whatever happens."""
Waiter: TypeAlias = "asyncio.Future[None]"


class Waiters:
    """All of it runs on the event loop."""

    def __init__(self) -> None:
        self._all: set[Waiter] = set()
        self._of_topics: dict[str, set[Waiter]] = {}
        self._of_anything: set[Waiter] = set()
        self._roused: deque[Waiter] = deque()
        self._rousing = False

    def join(self, topics: Topics) -> Waiter:
        """Is done when there may be news of them."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._all.add(waiter)
        if topics is None:
            self._of_anything.add(waiter)
        for topic_id in topics or ():
            self._of_topics.setdefault(topic_id, set()).add(waiter)
        return waiter

    def leave(self, topics: Topics, waiter: Waiter) -> None:
        """Nobody waits with it any more."""
        waiter.cancel()
        self._all.discard(waiter)
        self._of_anything.discard(waiter)
        for topic_id in topics or ():
            if (others := self._of_topics.get(topic_id)) is not None:
                others.discard(waiter)
                if not others:
                    del self._of_topics[topic_id]

    def wake(self, touched: Collection[str] | None) -> None:
        """Those who wait for these topics or for anything, one after the other; None: everybody.

        It takes no time for the others, however many they are.
        """
        due, self._of_anything = self._of_anything, set()
        if touched is None:
            due, self._all, self._of_topics = self._all, set(), {}
        self._roused.extend(due)
        for topic_id in touched or ():
            self._roused.extend(self._of_topics.pop(topic_id, ()))
        if not self._rousing:
            self._rouse()

    def _rouse(self) -> None:
        left = AT_ONCE
        while left and self._roused:
            waiter = self._roused.popleft()
            if not waiter.done():  # else it was due twice, or has left
                waiter.set_result(None)
                left -= 1
        self._rousing = bool(self._roused)
        if self._rousing:
            asyncio.get_running_loop().call_soon(self._rouse)
