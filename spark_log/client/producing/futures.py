"""Futures of records on their way: one light object a record, resolved a batch at a time.

A record waits in the rows of the batch that is open for its topic, one flat list of all its records.  The producer's thread
makes columns of the list; a future holds its batch and where its row begins, and no record.
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
"""Items of a row: future, key, value and stamp (see `stamp_of`).  In place of the key is (key, headers, partition) where a record
has more than a key."""
NONE: Ints = np.empty(0, dtype=np.int64)


class Columns(NamedTuple):
    """Single records, column by column."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    times: Ints
    """Milliseconds."""
    headers: Sequence[Headers | None] | None
    """None: none of the records has any."""
    partitions: Sequence[int | None] | None
    """None: none of the records names one."""


class SentBatch:
    """Records of one topic that are delivered together, and what became of them."""

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
        """Of the records, `WIDTH` items each, one after the other; None once there are columns."""
        self.idle = True
        """The thread does not know of records here, or looks at no more of them: who appends one has to see to it."""
        self.end: int | None = None
        """How many items of the rows belong to it; None while it is open."""
        self.bytes = 0
        self.rare = False
        """Some of the records may have more than a key."""
        self.columns: Columns | None = None
        """What is to be delivered; None before it is taken, and when the outcome is known."""
        self.done = threads.event()
        """The outcome is known."""
        self.called_back = threads.event()
        """And the callbacks have run."""
        self._urge = urge
        self._lock = threads.lock()
        self._callbacks: list[tuple[RecordFuture, Callable[[RecordFuture], object]]] = []
        self._error: BaseException | None = None
        self._errors: Mapping[int, BaseException] = {}
        self._times: Ints = NONE
        self._places: tuple[Sequence[int], ...] | tuple[Ints, Ints, Ints] = ((), (), ())

    def close(self, now_ms: int, size: int) -> None:
        """Let in no more records than are here.  Called with the lock held."""
        assert self.rows is not None and self.end is None, "it is closed once, before it is taken"
        if self.idle:
            self.opened_ms = now_ms
        self.idle = True  # first of all: see `accumulator.py`
        self.end, self.bytes = len(self.rows), size

    def take(self) -> None:
        """Make columns of the rows, which are forgotten: they hold the futures, and those the batch."""
        rows, self.rows, end = self.rows, None, self.end
        assert rows is not None and end is not None, "it is closed and was not taken"
        keys, values, stamps = (rows[item:end:WIDTH] for item in range(1, WIDTH))
        headers = partitions = None
        if self.rare:
            wide = [key if type(key) is tuple else (key, None, None) for key in keys]
            keys, headers, partitions = ([one[item] for one in wide] for item in range(3))
        self.columns = Columns(keys, values, _times_of(np.array(stamps, dtype=np.int64)), headers, partitions)

    @property
    def count(self) -> int:
        """Of the records that are to be delivered."""
        return 0 if self.columns is None else len(self.columns.keys)

    def resolve(self, partitions: Ints, offsets: Ints, times: Ints, errors: Mapping[int, BaseException]) -> None:
        """The records are in, at these places, but for those that have an error."""
        self.columns = None
        if not self.done.is_set():
            self._places, self._errors = (partitions, offsets, times), errors
            self._finish()

    def acknowledge(self) -> None:
        """Nobody waits for the records (acks=0): they are done, at places that are not known, and yet to be written."""
        if self.columns is not None:
            unknown = np.full(self.count, -1, dtype=np.int64)
            self._places = (unknown, unknown, self.columns.times)
        self._finish()

    def fail(self, error: BaseException) -> None:
        """None of the records is known to be in."""
        self.rows = self.columns = None
        if not self.done.is_set():
            self._error = error
            self._finish()

    def abandon(self, error: BaseException) -> None:
        """In a forked child: its parent's threads are not there, and their locks may be held for ever."""
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
        """Wait for the outcome and ask for haste.  Raises TimeoutError."""
        if self.done.is_set():
            return
        self._urge()
        if not self.done.wait(timeout):
            raise TimeoutError(f"not acknowledged within {timeout} s; the record is still on its way")

    def error(self, index: int) -> BaseException | None:
        return self._error or (self._errors.get(index) if self._errors else None)

    def metadata(self, index: int) -> RecordMetadata:
        places = self._places
        if isinstance(places[0], np.ndarray):  # most are never asked for
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
    """What becomes of one record: its place in the log, or why it has none.

    A struct that the garbage collector does not follow: made in 30 ns, where an object with slots takes 110, and 360 when many
    are kept, as the collector then walks through them all.  It is part of no cycle from the moment its batch is taken.
    """

    batch: SentBatch
    start: int
    """Where its row begins in the batch."""

    def __repr__(self) -> str:
        return f"<RecordFuture of topic {self.batch.topic!r}, {'done' if self.done() else 'on its way'}>"

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, waiting for it at most `timeout` seconds; waiting ends the linger.

        Raises TimeoutError while the record is on its way, or the reason for which it is not in the log.
        """
        if (error := self.exception(timeout)) is not None:
            raise error
        return self.batch.metadata(self.start // WIDTH)

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """The same, as kafka-python calls it."""
        return self.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the record is not in the log; None if it is.  Raises TimeoutError."""
        self.batch.wait(timeout)
        return self.batch.error(self.start // WIDTH)

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.batch.done.is_set()

    def succeeded(self) -> bool:
        """Whether the record is known to be in."""
        return self.done() and self.exception() is None

    def failed(self) -> bool:
        """Whether the record is known to have failed."""
        return self.done() and self.exception() is not None

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Have `callback(future)` called when the outcome is known, at once if it is; in the producer's thread."""
        self.batch.call_when_done(self, callback)

    def add_callback(self, callback: Callable[..., object], *args: Any, **kwargs: Any) -> RecordFuture:
        """Have `callback(*args, metadata, **kwargs)` called if the record gets in."""
        self.add_done_callback(lambda future: future.succeeded() and callback(*args, future.result(), **kwargs))
        return self

    def add_errback(self, callback: Callable[..., object], *args: Any, **kwargs: Any) -> RecordFuture:
        """Have `callback(*args, error, **kwargs)` called if it does not."""
        self.add_done_callback(lambda future: future.failed() and callback(*args, future.exception(), **kwargs))
        return self


def stamp_of(timestamp_ms: int) -> int:
    """A given timestamp beside those of the clock, which are nanoseconds: below zero, since not all fit as nanoseconds."""
    return -1 - timestamp_ms


def _times_of(stamps: Ints) -> Ints:
    if stamps.min(initial=0) < 0:
        return np.where(stamps < 0, -1 - stamps, stamps // 1_000_000)
    return stamps // 1_000_000


def _call(callback: Callable[[RecordFuture], object], future: RecordFuture) -> None:
    try:
        callback(future)
    except Exception:
        # A callback is the user's: what it does must not stop the records of others.
        logger.exception("a callback of a record failed")
