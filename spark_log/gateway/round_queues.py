"""The batches that wait to be written, and when a round of them begins.

All batches share rounds.  If the brokers of some partitions refuse them, or hang, the batches of these partitions get
an error, and the others of the round are written.  Later batches of these partitions have separate rounds, until
one of these succeeds, so they delay no others.

A round costs some milliseconds, however small it is, so a small one does not begin before the process has rested as
long as the last one took.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable

from spark_log.client.producer.delivery import BlockedPlace
from spark_log.gateway.rounds import NO_OUTCOME, RoundWriter, Waiting, WrittenRound
from spark_log.gateway.stored_batches import StoredBatches
from spark_log.journal.journal import Journal
from spark_log.metadata.state import TopicKey
from spark_log.runtime.daemon_threads import DaemonThreads

ROUND_BYTES = 8 << 20
"""Bytes of batches in a round."""
LINGER_REMOTE_S = 0.05
"""Before a small round on remote storage, where each put is a request."""


class RoundQueues:
    """Belongs to one event loop."""

    def __init__(self, journal: Journal, batches: StoredBatches | None = None) -> None:
        """batches:  as for `RoundWriter`."""
        self._journal = journal
        self._batches = batches
        self._shared = self._queue()
        self._apart: dict[BlockedPlace, _RoundQueue] = {}

    def write(self, one: Waiting) -> None:
        """Its future gets the outcome, after the commit.  Nothing is written if it is cancelled before its round."""
        self._queue_of(one).add(one)

    def _queue_of(self, one: Waiting) -> _RoundQueue:
        for queue in self._apart.values():
            if queue.keys[one.key]:
                return queue
        state = self._journal.state
        return next((queue for place, queue in self._apart.items() if one.is_of(state, place)), self._shared)

    def _note(self, queue: _RoundQueue, ended: WrittenRound) -> None:
        """A round has ended: a queue for each place that was at fault, and the one whose place is well goes."""
        for place in ended.blocked:
            if place not in self._apart:
                self._apart[place] = self._queue()
        if ended.blocked and queue is self._shared:
            for one in queue.take_all():
                self.write(one)
        for place, other in list(self._apart.items()):
            if other is queue and not other.keys and place not in ended.blocked:
                self._apart.pop(place).close()

    def _queue(self) -> _RoundQueue:
        return _RoundQueue(self._journal, RoundWriter(self._journal, self._batches), self._note)

    def close(self) -> None:
        for queue in (self._shared, *self._apart.values()):
            queue.close()


class _RoundQueue:
    """One round after the other, so batches of a producer stay in order."""

    def __init__(
        self, journal: Journal, writer: RoundWriter, note: Callable[[_RoundQueue, WrittenRound], None]
    ) -> None:
        """note:  called when a round has ended."""
        self._journal = journal
        self._writer = writer
        self._note = note
        self._threads = DaemonThreads(1, "pylog-gateway-write")
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self.keys: Counter[TopicKey] = Counter()
        """How many batches of each partition wait or are being written."""
        self._running: asyncio.Task[None] | None = None
        self._rested_s = 0.0
        """When a small round may begin."""

    def add(self, one: Waiting) -> None:
        self._waiting.append(one)
        self._bytes += len(one.batch.body)
        self.keys[one.key] += 1
        if self._running is None or self._running.done():
            self._running = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            linger_s = 0.0 if self._journal.metadata.local else LINGER_REMOTE_S
            if self._bytes < ROUND_BYTES and (pause_s := max(linger_s, self._rested_s - self._loop.time())) > 0:
                await asyncio.sleep(pause_s)
            taken = self._take()
            ended = await self._threads.submit(self._writer.write, taken)
            self._rested_s = self._loop.time() + ended.cpu_s
            self._forget(taken)
            for one in taken:
                if not one.done.done():
                    one.done.set_result((one.repeated or one).outcome or NO_OUTCOME)
            self._note(self, ended)

    def _take(self) -> list[Waiting]:
        size, taken, given_up = 0, list[Waiting](), list[Waiting]()
        while self._waiting and (not size or size + len(self._waiting[0].batch.body) <= ROUND_BYTES):
            one = self._waiting.popleft()
            self._bytes -= len(one.batch.body)
            if one.done.cancelled():  # nobody waits for it
                given_up.append(one)
                continue
            size += len(one.batch.body)
            taken.append(one)
        self._forget(given_up)
        return taken

    def take_all(self) -> list[Waiting]:
        """The batches that wait, which this queue forgets."""
        found = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        self._forget(found)
        return found

    def _forget(self, batches: Iterable[Waiting]) -> None:
        self.keys.subtract(one.key for one in batches)
        self.keys += Counter()  # without those of which there are none left

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._threads.close()
