"""Queues: what was sent to one topic and is not on its way yet.

`send` appends to the rows of a queue's open batch without a lock, which would cost as much as all else it does.  Two things make
that safe.  Appending a row to a list is one step.  And who closes the batch marks it as idle before counting what is in it, while
`send` looks at the mark after it has appended: either the record was counted, or `send` finds the mark and sees to it.

Bytes are counted against a credit that the queue was granted, and only who has used it up asks for more, under the lock.  Threads
that send at the same instant may be counted as one: the limits of `batch_size` and `buffer_memory` are off by so many records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from spark_log.client.producing.futures import WIDTH, RecordFuture, SentBatch
from spark_log.client.producing.topic_rules import TopicSpec
from spark_log.threads import Threads


class TopicQueue:
    """Records of one topic, in the order of the sends."""

    __slots__ = (
        "_threads",
        "_urge",
        "closed",
        "full",
        "granted",
        "left",
        "limit",
        "open",
        "partitions",
        "rare",
        "topic",
    )

    def __init__(self, topic: str, urge: Callable[[], None], threads: Threads) -> None:
        self.topic = topic
        self._urge = urge
        self._threads = threads
        self.partitions = 0
        self.limit = 0
        """Bytes of a record at most."""
        self.full = 0
        """Bytes at which records are taken without waiting for more."""
        self.granted = self.left = 0
        """Bytes of the credit, and what is left of it, at most `limit`."""
        self.rare = False
        """There were records that have headers, or a partition that was chosen for them."""
        self.open = self._opened()
        """The batch that records are let into, and its rows: to be read in one step."""
        self.closed: deque[SentBatch] = deque()
        """Those before it that are full and not taken."""

    def _opened(self) -> tuple[SentBatch, list[Any]]:
        batch = SentBatch(self.topic, self._urge, self._threads)
        assert batch.rows is not None, "it is open"
        return batch, batch.rows

    def follow(self, spec: TopicSpec, record_bytes_max: int, batch_bytes: int) -> None:
        """Take up what the topic is like now."""
        self.partitions = spec.partitions
        self.limit = min(record_bytes_max, spec.max_message_bytes)
        self.full = batch_bytes * spec.partitions

    @property
    def used(self) -> int:
        """Bytes that were sent and not taken."""
        return self.granted - self.left

    @property
    def waiting(self) -> bool:
        """Whether the thread knows of records here."""
        return bool(self.closed) or not self.open[0].idle

    @property
    def opened_ms(self) -> int:
        """When the first record here was sent."""
        return (self.closed[0] if self.closed else self.open[0]).opened_ms

    @property
    def batches(self) -> tuple[SentBatch, ...]:
        """All that records here are in, in their order."""
        return *self.closed, self.open[0]

    def close_batch(self, now_ms: int) -> SentBatch:
        """The open batch, closed; another takes its place.  Called with the lock held."""
        batch, _ = self.open
        self.open = self._opened()
        batch.close(now_ms, self.used)
        batch.rare = self.rare
        self.granted = self.left = 0
        return batch

    def keep(self, future: RecordFuture, rows: list[Any]) -> None:
        """See to it that a record that was appended to `rows` is in a batch, and is found there.  Called with the lock held.

        Threads that send at the same instant may have taken the same start for theirs, and the batch may have been closed
        before the record was in it.
        """
        future.start = rows.index(future, future.start)
        end = future.batch.end
        if end is not None and future.start >= end:
            row = rows[future.start : future.start + WIDTH]
            future.batch, rows = self.open
            start = len(rows)
            rows += row
            future.start = rows.index(future, start)
