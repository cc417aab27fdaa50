"""Lanes: what was sent to one topic and is not on its way yet.

`send` appends to a lane without a lock, which would cost as much as all else it does.  Two things make that safe.  Appending to
a list is one step.  And the thread that takes the records marks the lane as idle before it takes them, while `send` looks at
the mark after it has appended: either the thread finds the record, or `send` finds the mark and wakes the thread.

Bytes are counted against a credit that the lane was granted, and only who has used it up asks for more, under the lock.  Threads
that send at the same instant may be counted as one: the limits of `batch_size` and `buffer_memory` are off by so many records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from spark_log.client.futures import Batch, RecordFuture
from spark_log.client.upload import TopicSpec


class Lane:
    """Records of one topic, in the order of the sends."""

    __slots__ = (
        "_urge",
        "batch",
        "full",
        "granted",
        "idle",
        "left",
        "limit",
        "lock",
        "opened_ms",
        "partitions",
        "rows",
        "topic",
    )

    def __init__(self, topic: str, lock: threading.Lock, urge: Callable[[], None]) -> None:
        self.topic = topic
        self.lock = lock
        """The producer's."""
        self._urge = urge
        self.partitions = 0
        self.limit = 0
        """Bytes of a record at most."""
        self.full = 0
        """Bytes at which records are taken without waiting for more."""
        self.rows: list[RecordFuture] = []
        self.granted = self.left = 0
        """Bytes of the credit, and what is left of it."""
        self.idle = True
        """The thread does not know of records here: who appends one has to wake it."""
        self.opened_ms = 0
        """When the first record was sent, on the monotonic clock."""
        self.batch = Batch(topic, urge)
        """What the records that are here will be in."""

    def follow(self, spec: TopicSpec, record_bytes_max: int, batch_bytes: int) -> None:
        """Take up what the topic is like now."""
        self.partitions = spec.partitions
        self.limit = min(record_bytes_max, spec.max_message_bytes)
        self.full = batch_bytes * spec.partitions

    @property
    def used(self) -> int:
        """Bytes that were sent and not taken."""
        return self.granted - self.left

    def take(self, now_ms: int) -> Batch:
        """What is here, as a batch.  Called with the lock held."""
        opened_ms = now_ms if self.idle else self.opened_ms
        self.idle = True  # first of all: see above
        batch, self.batch = self.batch, Batch(self.topic, self._urge)
        count = len(self.rows)
        taken = self.rows[:count]
        del self.rows[:count]
        batch.fill(taken, opened_ms, self.used)
        self.granted = self.left = 0
        return batch

    def batch_of(self, future: RecordFuture) -> Batch:
        """The batch that a record is in, or will be in."""
        with self.lock:
            return future.batch or self.batch

    def abandon(self, error: BaseException) -> None:
        """In a forked child: the records are the parent's."""
        self.lock = threading.Lock()
        self.rows.clear()
        self.batch.abandon(error)
