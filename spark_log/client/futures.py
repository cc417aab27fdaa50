"""Futures of records on their way: one light object a record, resolved a batch at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_log.client.upload import TopicSpec
from spark_log.model import RecordMetadata

logger = logging.getLogger("spark_log")

Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None, int | None]
"""Key, value, timestamp in ms, headers, partition."""


class Batch:
    """Records of one topic that are delivered together, and what became of them."""

    __slots__ = (
        "_callbacks",
        "_error",
        "_errors",
        "_lock",
        "_offsets",
        "_partitions",
        "_times",
        "_urge",
        "bytes",
        "done",
        "full",
        "limit",
        "opened_ms",
        "partitions",
        "rows",
        "settled",
        "topic",
    )

    def __init__(self, spec: TopicSpec, limit: int, full: int, opened_ms: int, urge: Callable[[], None]) -> None:
        self.topic = spec.name
        self.partitions = spec.partitions
        self.limit = min(limit, spec.max_message_bytes)
        """Bytes of a record at most."""
        self.full = full * spec.partitions
        """Bytes at which it is sent without waiting for more."""
        self.opened_ms = opened_ms
        """On the monotonic clock."""
        self.rows: list[Row] = []
        self.bytes = 0
        self.done = threading.Event()
        """The outcome is known."""
        self.settled = threading.Event()
        """And the callbacks have run."""
        self._urge = urge
        self._lock = threading.Lock()
        self._callbacks: list[tuple[RecordFuture, Callable[[RecordFuture], object]]] = []
        self._error: BaseException | None = None
        self._errors: Mapping[int, BaseException] = {}
        self._partitions: Sequence[int] = ()
        self._offsets: Sequence[int] = ()
        self._times: Sequence[int] = ()

    def resolve(
        self,
        partitions: Sequence[int],
        offsets: Sequence[int],
        times: Sequence[int],
        errors: Mapping[int, BaseException],
    ) -> None:
        """The records are in, at these places, but for those that have an error."""
        self.rows = []
        if not self.done.is_set():
            self._partitions, self._offsets, self._times, self._errors = partitions, offsets, times, errors
            self._finish()

    def acknowledge(self) -> None:
        """Nobody waits for the records (acks=0): they are done, at places that are not known, and yet to be written."""
        unknown = [-1] * len(self.rows)
        self._partitions, self._offsets, self._times = unknown, unknown, [row[2] for row in self.rows]
        self._finish()

    def fail(self, error: BaseException) -> None:
        """None of the records is known to be in."""
        self.rows = []
        if not self.done.is_set():
            self._error = error
            self._finish()

    def abandon(self, error: BaseException) -> None:
        """In a forked child: its parent's threads are not there, and their locks may be held for ever."""
        self._lock, self._callbacks = threading.Lock(), []
        self.done, self.settled = threading.Event(), threading.Event()
        self.fail(error)

    def _finish(self) -> None:
        with self._lock:
            self.done.set()
            callbacks, self._callbacks = self._callbacks, []
        for future, callback in callbacks:
            _call(callback, future)
        self.settled.set()

    def wait(self, timeout: float | None) -> None:
        """Wait for the outcome and ask for haste.  Raises TimeoutError."""
        if self.done.is_set():
            return
        self._urge()
        if not self.done.wait(timeout):
            raise TimeoutError(f"not acknowledged within {timeout} s; the record is still on its way")

    def error(self, index: int) -> BaseException | None:
        return self._error or self._errors.get(index)

    def metadata(self, index: int) -> RecordMetadata:
        return RecordMetadata(self.topic, self._partitions[index], self._offsets[index], self._times[index])

    def call_when_done(self, future: RecordFuture, callback: Callable[[RecordFuture], object]) -> None:
        with self._lock:
            if not self.done.is_set():
                self._callbacks.append((future, callback))
                return
        _call(callback, future)


class RecordFuture:
    """What becomes of one record: its place in the log, or why it has none."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, waiting for it at most `timeout` seconds; waiting ends the linger.

        Raises TimeoutError while the record is on its way, or the reason for which it is not in the log.
        """
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._batch.metadata(self._index)

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """The same, as kafka-python calls it."""
        return self.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the record is not in the log; None if it is.  Raises TimeoutError."""
        self._batch.wait(timeout)
        return self._batch.error(self._index)

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.done.is_set()

    def succeeded(self) -> bool:
        """Whether the record is known to be in."""
        return self.done() and self._batch.error(self._index) is None

    def failed(self) -> bool:
        """Whether the record is known to have failed."""
        return self.done() and self._batch.error(self._index) is not None

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Have `callback(future)` called when the outcome is known, at once if it is; in the producer's thread."""
        self._batch.call_when_done(self, callback)

    def add_callback(self, callback: Callable[..., object], *args: Any, **kwargs: Any) -> RecordFuture:
        """Have `callback(*args, metadata, **kwargs)` called if the record gets in."""
        self.add_done_callback(lambda future: future.succeeded() and callback(*args, future.result(), **kwargs))
        return self

    def add_errback(self, callback: Callable[..., object], *args: Any, **kwargs: Any) -> RecordFuture:
        """Have `callback(*args, error, **kwargs)` called if it does not."""
        self.add_done_callback(lambda future: future.failed() and callback(*args, future.exception(), **kwargs))
        return self


def _call(callback: Callable[[RecordFuture], object], future: RecordFuture) -> None:
    try:
        callback(future)
    except Exception:
        # A callback is the user's: what it does must not stop the records of others.
        logger.exception("a callback of a record failed")
