"""Long polls: requests that wait for news, and the connections that they came on."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Collection
from typing import TypeAlias

WOKEN_MAX = 20
"""Requests that are woken in one round of the event loop; requests that came meanwhile are next."""

Topics: TypeAlias = "tuple[str, ...] | None"
"""Ids of the topics whose records somebody waits for; None: for whatever happens."""
Waiter: TypeAlias = "asyncio.Future[None]"

RESUMED_MAX = 20
"""Connections that are resumed in one round of the event loop."""


class LongPolls:
    """Requests that wait, and how thousands of them are woken without a pause for others.  Runs on the event loop."""

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
        left = WOKEN_MAX
        while left and self._roused:
            waiter = self._roused.popleft()
            if not waiter.done():  # else it was due twice, or has left
                waiter.set_result(None)
                left -= 1
        self._rousing = bool(self._roused)
        if self._rousing:
            asyncio.get_running_loop().call_soon(self._rouse)


class PausedConnections:
    """Connections whose request waits: thousands that send their next request at the same time are read a few at a time.

    Each is paused while its request waits, and its socket is watched by a separate poll, which the event loop watches as
    one. So the loop hears of requests on other connections, such as commits, in the same round, however many of these have
    come. Without epoll, as on macOS, and under TLS, which may have read already what a socket would report, nothing is
    paused. Runs on the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched = select.epoll() if hasattr(select, "epoll") else None
        self._parked: dict[int, asyncio.ReadTransport] = {}
        """By the number of the socket; one that was closed stays until the number is used again."""
        if self._watched is not None:
            loop.add_reader(self._watched.fileno(), self._go_on)

    def park(self, transport: asyncio.BaseTransport | None) -> None:
        """Read no more from a connection until something comes; that may be that it is closed."""
        if self._watched is None or not isinstance(transport, asyncio.ReadTransport):
            return
        if transport.get_extra_info("sslcontext") is not None:
            return
        number = transport.get_extra_info("socket").fileno()
        if number < 0 or transport.is_closing():
            return
        transport.pause_reading()
        self._parked[number] = transport
        mask = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
        try:
            self._watched.modify(number, mask)
        except FileNotFoundError:  # its first time, or a socket of before had the number
            self._watched.register(number, mask)

    def _go_on(self) -> None:
        assert self._watched is not None, "the loop watches it"
        for number, _ in self._watched.poll(0, RESUMED_MAX):
            transport = self._parked.pop(number)
            if not transport.is_closing():
                transport.resume_reading()

    def close(self) -> None:
        """Watch nothing any more."""
        if self._watched is not None:
            self._loop.remove_reader(self._watched.fileno())
            self._watched.close()
