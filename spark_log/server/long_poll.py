"""Long polls: requests that wait for changes, and their connections."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from spark_log.rpc.messages import ChangesRequest, TopicsRequest

WOKEN_MAX = 20
"""Requests woken per round of the event loop; new requests are handled in between."""

TOPICS_MAX = 1000
"""Topics for which a request waits.  Each takes 300 bytes and some work at each change, and a token may have thousands
of requests."""

Topics: TypeAlias = "tuple[str, ...] | None"
"""Topic ids whose records a request waits for, or the group of a heartbeat; None: any change."""
Waiter: TypeAlias = "asyncio.Future[None]"
Asked = TypeVar("Asked", ChangesRequest, TopicsRequest)

RESUMED_MAX = 20
"""Connections resumed per round of the event loop."""


def of_few(asked: Asked) -> Asked:
    """Drops the topics of a request that names too many: then any change ends its wait."""
    return asked if asked.topics is None or len(asked.topics) <= TOPICS_MAX else replace(asked, topics=None)


class LongPolls:
    """Waiting requests.  Thousands are woken without blocking others.  Runs on the event loop."""

    def __init__(self) -> None:
        self.waiting = 0
        """Number of waiters."""
        self._all: set[Waiter] = set()
        self._of_topics: dict[str, set[Waiter]] = {}
        self._of_anything: set[Waiter] = set()
        self._roused: deque[Waiter] = deque()
        self._rousing = False

    def join(self, topics: Topics) -> Waiter:
        """A waiter that is done when these topics may have changed."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self.waiting += 1
        self._all.add(waiter)
        if topics is None:
            self._of_anything.add(waiter)
        for topic_id in topics or ():
            self._of_topics.setdefault(topic_id, set()).add(waiter)
        return waiter

    async def until(
        self, is_over: Callable[[], bool], topics: Topics, seconds: float, signal: asyncio.Future[Any] | None = None
    ) -> None:
        """Wait until `is_over`, which is called whenever these topics may have changed, but only so many seconds, and
        not after the signal.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not is_over() and not (signal and signal.done()) and loop.time() < deadline:
            waiter = self.join(topics)
            end = partial(_end, waiter)
            timer = loop.call_at(deadline, end)
            if signal:
                signal.add_done_callback(end)
            try:
                await waiter
            finally:
                timer.cancel()
                if signal:
                    signal.remove_done_callback(end)
                self.leave(topics, waiter)

    def leave(self, topics: Topics, waiter: Waiter) -> None:
        """Remove a waiter."""
        self.waiting -= 1
        waiter.cancel()
        self._all.discard(waiter)
        self._of_anything.discard(waiter)
        for topic_id in topics or ():
            if (others := self._of_topics.get(topic_id)) is not None:
                others.discard(waiter)
                if not others:
                    del self._of_topics[topic_id]

    def wake(self, touched: Collection[str] | None) -> None:
        """Wake the waiters for these topics and for any change, one after the other; None: all waiters.

        Takes constant time, however many there are: `_rouse` does the work.
        """
        due, self._of_anything = self._of_anything, set()
        if touched is None:
            due, self._all, self._of_topics = self._all, set(), {}
        self._roused.extend(due)
        for topic_id in touched or ():
            self._roused.extend(self._of_topics.pop(topic_id, ()))
        if not self._rousing:
            self._rouse()

    @property
    def is_waking(self) -> bool:
        """Whether some that are due have not been woken yet."""
        return self._rousing

    def _rouse(self) -> None:
        left = WOKEN_MAX
        while left and self._roused:
            waiter = self._roused.popleft()
            if not waiter.done():  # it may be in several topics, or have left
                waiter.set_result(None)
                left -= 1
        self._rousing = bool(self._roused)
        if self._rousing:
            asyncio.get_running_loop().call_soon(self._rouse)


def _end(waiter: Waiter, _: object = None) -> None:
    if not waiter.done():
        waiter.set_result(None)


class PausedConnections:
    """Connections whose request waits.  If thousands send their next request at the same time, a few at a time are
    read.

    Each connection is paused while its request waits.  A separate epoll watches the paused sockets, and the event loop
    watches the epoll as one descriptor.  So the loop handles requests on other connections, such as commits, in the
    same round. Nothing is paused without epoll (macOS), and under TLS, whose buffer may hold data that a socket would
    not report. Runs on the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched = select.epoll() if hasattr(select, "epoll") else None
        self._parked: dict[int, asyncio.ReadTransport] = {}
        """By file descriptor; a closed one stays until its number is reused."""
        if self._watched is not None:
            loop.add_reader(self._watched.fileno(), self._go_on)

    def park(self, transport: asyncio.BaseTransport | None) -> None:
        """Pause reading until the socket is readable or closed."""
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
        except FileNotFoundError:  # a new descriptor, or a reused number
            self._watched.register(number, mask)

    def _go_on(self) -> None:
        assert self._watched is not None, "the loop watches it"
        for number, _ in self._watched.poll(0, RESUMED_MAX):
            transport = self._parked.pop(number)
            if not transport.is_closing():
                transport.resume_reading()

    def close(self) -> None:
        """Stop watching."""
        if self._watched is not None:
            self._loop.remove_reader(self._watched.fileno())
            self._watched.close()
