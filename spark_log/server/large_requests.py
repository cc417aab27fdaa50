"""Large requests: they keep the event loop busy for a while, so they take turns, and the loop rests in between.

Small requests are answered between two large ones: they wait for one at most, however many are sent.  Of each token,
few large bodies are in memory, and few wait before those of other tokens.  Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web

from spark_log.errors import InvalidRequest
from spark_log.metadata.commands import AnyCommand

LARGE_BYTES = 512 << 10
"""A body above this size is large."""
OF_TOKEN = 2
"""Large requests of one token that are read or answered at the same time."""
REST_S_MAX = 1.0
"""The rest after a large request is as long as its turn, but not longer: it may have waited for storage."""
COMMANDS_MAX = 10_000
"""Commands of one request."""


class LargeRequests:
    """The turns of large requests."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._of_token: dict[str, asyncio.Semaphore] = {}
        self._turn = asyncio.Lock()
        self._rested_s = now_s()
        """When the next turn may begin."""

    @asynccontextmanager
    async def body(
        self, request: web.BaseRequest, principal: str, read: Callable[[], Awaitable[bytes]]
    ) -> AsyncIterator[bytes]:
        """The body of a request, when it is its turn; within the block, the request is decoded and answered.

        principal:  the name of its token.
        """
        async with AsyncExitStack() as held:
            if (request.content_length or 0) > LARGE_BYTES:
                await held.enter_async_context(self._of_token.setdefault(principal, asyncio.Semaphore(OF_TOKEN)))
            body = await read()
            if len(body) > LARGE_BYTES:
                await held.enter_async_context(self._in_turn())
            yield body

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        async with self._turn:
            await asyncio.sleep(self._rested_s - self._now_s())
            began_s = self._now_s()
            try:
                yield
            finally:
                ended_s = self._now_s()
                self._rested_s = ended_s + min(ended_s - began_s, REST_S_MAX)


def check_count(commands: tuple[AnyCommand, ...]) -> None:
    """Raises InvalidRequest for more commands than may be in a request."""
    count = sum(len(command.parts()) for command in commands)
    if count > COMMANDS_MAX:
        raise InvalidRequest(f"commands: {count:,} in one request, more than {COMMANDS_MAX:,}: send them in several")
