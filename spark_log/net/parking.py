"""Connections that asked for news, and will ask again: thousands of requests that come at once are read a few at a time.

Each is paused while its request waits, and its socket is watched by a poll of its own, which the event loop watches as one.
So the loop is told of requests on other connections, of commits, in the same round, however many of these have come.
Where there is no epoll, on macOS, and under TLS, which may have read already what a socket would tell of, nothing is parked.
"""

from __future__ import annotations

import asyncio
import select

AT_ONCE = 20
"""So many are read on in one round of the event loop."""


class Parking:
    """All of it runs on the event loop."""

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
        for number, _ in self._watched.poll(0, AT_ONCE):
            transport = self._parked.pop(number)
            if not transport.is_closing():
                transport.resume_reading()

    def close(self) -> None:
        """Watch nothing any more."""
        if self._watched is not None:
            self._loop.remove_reader(self._watched.fileno())
            self._watched.close()
