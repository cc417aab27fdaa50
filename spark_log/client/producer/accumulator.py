"""Queues of sent records, one per topic, until they are written, and how long they linger for others.

`send` appends to the rows of a queue's open batch without a lock, which would double its cost.  Two rules make that
safe. First, appending a row to a list is atomic.  Second, the thread that closes a batch marks it as idle before it
counts the rows, and `send` reads the mark after it has appended.  So either the record was counted, or `send` sees the
mark and calls `keep`.

Bytes are subtracted from a credit that the queue was granted.  Only a thread that has used up the credit takes the
lock and asks for more.  Threads that send at the same instant may be counted as one, so `batch_size` and
`buffer_memory` can be exceeded by as many records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from spark_log.client.producer.futures import WIDTH, RecordFuture, SentBatch
from spark_log.client.producer.topic_rules import TopicSpec
from spark_log.runtime.threads import Threads


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
        "typed",
    )

    def __init__(self, topic: str, urge: Callable[[], None], threads: Threads) -> None:
        self.topic = topic
        self._urge = urge
        self._threads = threads
        self.partitions = 0
        self.typed = False
        """The topic has a schema: values are dicts."""
        self.limit = 0
        """Size limit of a record, in bytes."""
        self.full = 0
        """Bytes at which records are taken without waiting for the linger."""
        self.granted = self.left = 0
        """Bytes of the credit, and the rest of it, at most `limit`."""
        self.rare = False
        """Some records have headers or an explicit partition."""
        self.open = self._opened()
        """The batch that accepts records, and its rows: one attribute, so that both are read atomically."""
        self.closed: deque[SentBatch] = deque()
        """Full batches before the open one that have not been taken."""

    def _opened(self) -> tuple[SentBatch, list[Any]]:
        batch = SentBatch(self.topic, self._urge, self._threads)
        assert batch.rows is not None, "it is open"
        return batch, batch.rows

    def follow(self, spec: TopicSpec, record_bytes_max: int, batch_bytes: int) -> None:
        """Update the limits from the topic's current spec."""
        self.partitions, self.typed = spec.partitions, spec.schema is not None
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
        """All batches here, in order."""
        return *self.closed, self.open[0]

    def close_batch(self, now_ms: int) -> SentBatch:
        """Close the open batch, return it, and open another.  Called with the lock held."""
        batch, _ = self.open
        self.open = self._opened()
        batch.close(now_ms, self.used)
        batch.rare = self.rare
        self.granted = self.left = 0
        return batch

    def keep(self, future: RecordFuture, rows: list[Any]) -> None:
        """Make sure that a record appended to `rows` is in a batch, and that its future has the right index.

        Call it with the lock held.  Threads that send at the same instant may have computed the same index, or the
        batch may have been closed before it had the record.
        """
        future.start = rows.index(future, future.start)
        end = future.batch.end
        if end is not None and future.start >= end:
            row = rows[future.start : future.start + WIDTH]
            future.batch, rows = self.open
            start = len(rows)
            rows += row
            future.start = rows.index(future, start)


def linger_left_ms(queues: Iterable[TopicQueue], linger_ms: float, now_ms: int) -> float:
    """How long the oldest of the waiting records still waits for others, which are written with it."""
    return min(queue.opened_ms for queue in queues) + linger_ms - now_ms
