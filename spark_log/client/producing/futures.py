"""Futures of sent records: one small object per record, resolved batch by batch.

A record waits in the rows of its topic's open batch, one flat list for all records.  The producer's thread converts the
list to columns.  A future refers to its batch and the index of its row; it does not hold the record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from spark_log.model import RecordMetadata
from spark_log.threads import Threads

logger = logging.getLogger("spark_log")

Headers = Sequence[tuple[str, bytes | None]]
Ints = npt.NDArray[np.int64]
WIDTH = 4
"""Items of a row: future, key, value and stamp (see `stamp_of`).  If a record has headers or a partition, the key is
replaced by (key, headers, partition)."""
NONE: Ints = np.empty(0, dtype=np.int64)


class Columns(NamedTuple):
    """Single records, column by column."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    times: Ints
    """In milliseconds."""
    headers: Sequence[Headers | None] | None
    """None: no record has headers."""
    partitions: Sequence[int | None] | None
    """None: no record has an explicit partition."""


class SentBatch:
    """Records of one topic that are delivered together, and their outcome."""

    __slots__ = (
        "_callbacks",
        "_error",
        "_errors",
        "_lock",
        "_places",
        "_threads",
        "_times",
        "_urge",
        "bytes",
        "called_back",
        "columns",
        "done",
        "end",
        "idle",
        "opened_ms",
        "rare",
        "rows",
        "topic",
    )

    def __init__(self, topic: str, urge: Callable[[], None], threads: Threads) -> None:
        self.topic = topic
        self._threads = threads
        self.opened_ms = 0
        """When the first record was sent, on the monotonic clock."""
        self.rows: list[Any] | None = []
        """`WIDTH` items per record; None once there are columns."""
        self.idle = True
        """The thread does not know of records here, or no longer reads the rows: a thread that appends one must call
        `keep`."""
        self.end: int | None = None
        """How many items of the rows belong to the batch; None while it is open."""
        self.bytes = 0
        self.rare = False
        """Some records may have headers or a partition."""
        self.columns: Columns | None = None
        """The columns to be delivered; None before the batch is taken, and once the outcome is known."""
        self.done = threads.event()
        """Set once the outcome is known."""
        self.called_back = threads.event()
        """Set once the callbacks have run."""
        self._urge = urge
        self._lock = threads.lock()
        self._callbacks: list[tuple[RecordFuture, Callable[[RecordFuture], object]]] = []
        self._error: BaseException | None = None
        self._errors: Mapping[int, BaseException] = {}
        self._times: Ints = NONE
        self._places: tuple[Sequence[int], ...] | tuple[Ints, Ints, Ints] = ((), (), ())

    def close(self, now_ms: int, size: int) -> None:
        """Accept no more records.  Called with the lock held."""
        assert self.rows is not None and self.end is None, "a batch is closed once, before it is taken"
        if self.idle:
            self.opened_ms = now_ms
        self.idle = True  # first: see `accumulator.py`
        self.end, self.bytes = len(self.rows), size

    def take(self) -> None:
        """Convert the rows to columns and drop them: rows refer to futures, and futures to the batch (a cycle)."""
        rows, self.rows, end = self.rows, None, self.end
        assert rows is not None and end is not None, "a batch is taken once, after it is closed"
        keys, values, stamps = (rows[item:end:WIDTH] for item in range(1, WIDTH))
        headers = partitions = None
        if self.rare:
            wide = [key if type(key) is tuple else (key, None, None) for key in keys]
            keys, headers, partitions = ([one[item] for one in wide] for item in range(3))
        self.columns = Columns(keys, values, _times_of(np.array(stamps, dtype=np.int64)), headers, partitions)

    @property
    def count(self) -> int:
        """Number of records to be delivered."""
        return 0 if self.columns is None else len(self.columns.keys)

    def resolve(self, partitions: Ints, offsets: Ints, times: Ints, errors: Mapping[int, BaseException]) -> None:
        """The records were committed at these positions, except those with an error."""
        self.columns = None
        if not self.done.is_set():
            self._places, self._errors = (partitions, offsets, times), errors
            self._finish()

    def acknowledge(self) -> None:
        """Resolve the futures with unknown positions before the records are written (acks=0)."""
        if self.columns is not None:
            unknown = np.full(self.count, -1, dtype=np.int64)
            self._places = (unknown, unknown, self.columns.times)
        self._finish()

    def fail(self, error: BaseException) -> None:
        """None of the records is known to be committed."""
        self.rows = self.columns = None
        if not self.done.is_set():
            self._error = error
            self._finish()

    def abandon(self, error: BaseException) -> None:
        """Fail the batch in a forked child, which has no threads of its parent and whose locks may be held for ever."""
        threads = self._threads
        self._lock, self._callbacks = threads.lock(), []
        self.done, self.called_back = threads.event(), threads.event()
        self.fail(error)

    def _finish(self) -> None:
        with self._lock:
            self.done.set()
            callbacks, self._callbacks = self._callbacks, []
        for future, callback in callbacks:
            _call(callback, future)
        self.called_back.set()

    def wait(self, timeout: float | None) -> None:
        """Wait for the outcome, and end the linger.  Raises TimeoutError."""
        if self.done.is_set():
            return
        self._urge()
        if not self.done.wait(timeout):
            raise TimeoutError(f"not acknowledged within {timeout} s; the record is still in flight")

    def error(self, index: int) -> BaseException | None:
        return self._error or (self._errors.get(index) if self._errors else None)

    def metadata(self, index: int) -> RecordMetadata:
        places = self._places
        if isinstance(places[0], np.ndarray):  # converted late: most are never read
            places = self._places = tuple(column.tolist() for column in places)
        partitions, offsets, times = places
        return RecordMetadata(self.topic, partitions[index], offsets[index], times[index])

    def call_when_done(self, future: RecordFuture, callback: Callable[[RecordFuture], object]) -> None:
        with self._lock:
            if not self.done.is_set():
                self._callbacks.append((future, callback))
                return
        _call(callback, future)


class RecordFuture(Struct, eq=False, gc=False):
    """The outcome of one record: its position in the log, or an error."""

    # A struct without garbage collection is made in 30 ns.  An object with slots takes 110, and 360 when many are kept,
    # because the collector then visits all of them.  A future is not part of a cycle once its batch is taken.

    batch: SentBatch
    start: int
    """Index of its row in the batch."""

    def __repr__(self) -> str:
        return f"<RecordFuture of topic {self.batch.topic!r}, {'done' if self.done() else 'in flight'}>"

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The position of the record.  Waits for it, at most `timeout` seconds; waiting ends the linger.

        Raises TimeoutError if the record is still in flight, or the error that kept it out of the log.
        """
        if (error := self.exception(timeout)) is not None:
            raise error
        return self.batch.metadata(self.start // WIDTH)

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """The same as `result`, under kafka-python's name."""
        return self.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome: the error that kept the record out of the log, or None.  Raises TimeoutError."""
        self.batch.wait(timeout)
        return self.batch.error(self.start // WIDTH)

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.batch.done.is_set()

    def succeeded(self) -> bool:
        """Whether the record is known to be committed."""
        return self.done() and self.exception() is None

    def failed(self) -> bool:
        """Whether the record is known to have failed."""
        return self.done() and self.exception() is not None

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call `callback(future)` in the producer's thread once the outcome is known; immediately if it already is."""
        self.batch.call_when_done(self, callback)

    def add_callback(self, callback: Callable[..., object], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `callback(*args, metadata, **kwargs)` if the record is committed."""
        self.add_done_callback(lambda future: future.succeeded() and callback(*args, future.result(), **kwargs))
        return self

    def add_errback(self, callback: Callable[..., object], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `callback(*args, error, **kwargs)` if the record fails."""
        self.add_done_callback(lambda future: future.failed() and callback(*args, future.exception(), **kwargs))
        return self


def stamp_of(timestamp_ms: int) -> int:
    """Encode a given timestamp as a negative number: clock times are positive nanoseconds, which cannot hold all given
    ones."""
    return -1 - timestamp_ms


def _times_of(stamps: Ints) -> Ints:
    if stamps.min(initial=0) < 0:
        return np.where(stamps < 0, -1 - stamps, stamps // 1_000_000)
    return stamps // 1_000_000


def _call(callback: Callable[[RecordFuture], object], future: RecordFuture) -> None:
    try:
        callback(future)
    except Exception:
        # An error in a user's callback must not affect other records.
        logger.exception("the callback of a record failed")
