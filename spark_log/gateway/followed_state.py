"""The newest state of a log, for requests that come at any time, and for those that wait for a change of it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial

from spark_log.client.consumer.poll_interval import LAST_REMOTE_MS, PollBackoff
from spark_log.errors import LogMoved, LogRestored, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.state import State
from spark_log.runtime.daemon_threads import DaemonThreads

RECENT_S = 0.5
"""An older state is not used for records without a look at the log."""
WAIT_MS = 1000.0
"""A coordinator answers after this time, if nothing has changed."""
RETRY_S = 1.0
"""Pause after a storage or a coordinator has failed."""
logger = logging.getLogger("spark_log")


class FollowedState:
    """Belongs to one event loop.  Looks at the log for all requests that need it at the same time together."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._threads = DaemonThreads(2, "pylog-gateway-state")
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.Future[State] | None = None
        self._looked_s = float("-inf")
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._watching: asyncio.Task[None] | None = None
        self._waiting = 0
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Gets the error after which this process has to be restarted: the log was moved or restored."""

    @property
    def state(self) -> State:
        return self._journal.state

    async def newest(self) -> State:
        """A state with everything that was committed before the call.  Raises SparkLogError."""
        began = self._looking
        if began is not None and not began.done():
            await asyncio.wait([began])
        if self._looking is began:
            self._looking = self._threads.submit(self._journal.refresh)
            self._looking.add_done_callback(partial(self._note, self._loop.time()))
        assert self._looking is not None, "it was set now, or by another request that had waited"
        return await asyncio.shield(self._looking)

    async def recent(self) -> State:
        """A state that was the newest some moments ago."""
        if self._is_old and self._looking is not None and not self._looking.done():
            await asyncio.wait([self._looking])
        return await self.newest() if self._is_old else self.state

    @property
    def _is_old(self) -> bool:
        return self._loop.time() - self._looked_s > RECENT_S

    async def after(self, known: State, until_s: float) -> State:
        """The first state after `known`; `known` if there is none at that time of the event loop."""
        self._waiting += 1
        try:
            while self.state is known and (left_s := until_s - self._loop.time()) > 0:
                if self._watching is None or self._watching.done():
                    self._watching = self._loop.create_task(self._watch())
                await asyncio.wait([self._changed], timeout=left_s)
            return self.state
        finally:
            self._waiting -= 1

    async def _watch(self) -> None:
        """Follow the log as long as requests wait."""
        backoff = PollBackoff(self._journal.context.clock, local=self._journal.metadata.local, most_ms=LAST_REMOTE_MS)
        while self._waiting:
            known = self.state
            looked = self._threads.submit(self._journal.wait, backoff.wait_ms(), WAIT_MS)
            looked.add_done_callback(partial(self._note, self._loop.time()))
            try:
                await looked
            except SparkLogError as error:
                logger.warning("the log cannot be followed: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            if self.state is not known:
                backoff.found()
                self._changed.set_result(None)
                self._changed = self._loop.create_future()

    def _note(self, began_s: float, looked: asyncio.Future[State]) -> None:
        """Count a look from its begin, once it has succeeded."""
        if looked.cancelled():
            return
        error = looked.exception()
        if error is None:
            self._looked_s = max(self._looked_s, began_s)
        if isinstance(error, LogMoved | LogRestored) and not self.failed.done():
            self.failed.set_exception(error)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        self.failed.cancel()
        self._threads.close()
