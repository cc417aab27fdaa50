"""Futures of sent records: one small object per record, resolved batch by batch.

A record waits in the rows of its topic's open batch, one flat list for all records.  The producer's thread converts the
list to columns.  A future refers to its batch and the index of its row; it does not hold the record.

If some partitions of a batch cannot be written to, the batch is split: each part has a separate outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from spark_log.log_lines import logger
from spark_log.model import RecordMetadata
from spark_log.runtime.threads import Threads

Headers = Sequence[tuple[str, bytes | None]]
Value = TypeVar("Value")
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

    def without(self, rows: Collection[int]) -> Columns:
        """The records; those at these indexes have only a time."""
        headers = None if self.headers is None else _without(self.headers, rows)
        return self._replace(keys=_without(self.keys, rows), values=_without(self.values, rows), headers=headers)

    def take(self, at: Ints, assigned: Ints) -> Columns:
        """The records at these indexes.

        at:        the indexes.
        assigned:  by index of every record, its partition; -1: the partition that the record names, if any.
        """
        rows = at.tolist()
        wanted = self.partitions or [None] * len(self.keys)
        return Columns(
            [self.keys[row] for row in rows],
            [self.values[row] for row in rows],
            self.times[at],
            None if self.headers is None else [self.headers[row] for row in rows],
            [wanted[row] if assigned[row] < 0 else int(assigned[row]) for row in rows],
        )


def _without(some: Sequence[Value | None], rows: Collection[int]) -> list[Value | None]:
    return [None if row in rows else one for row, one in enumerate(some)]


class AssignedOffsets(NamedTuple):
    """Where the records of a batch go; -1 for records with an error."""

    topic_id: str
    partitions: Ints
    groups: Ints
    """Placement groups."""


class _Parts(NamedTuple):
    """The parts of a split batch."""

    batches: tuple[SentBatch, ...]
    numbers: Ints
    """The part of each record."""
    indexes: Ints
    """The index of each record in its part."""


class SentBatch:
    """Records of one topic that are delivered together, and their outcome."""

    __slots__ = (
        "_callbacks",
        "_error",
        "_errors",
        "_lock",
        "_parts",
        "_places",
        "_threads",
        "_times",
        "_urge",
        "assignment",
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
        self.assignment: AssignedOffsets | None = None
        """The offsets by which the batch was last encoded; None: it was not encoded, or its topic does not exist."""
        self.done = threads.event()
        """Set once the outcome is known, or the batch is split."""
        self.called_back = threads.event()
        """Set once the callbacks have run, except those of parts."""
        self._parts: _Parts | None = None
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

    def split(self, parts: Sequence[Ints]) -> list[SentBatch]:
        """Divide an encoded batch.  Each part gets a separate outcome.

        parts:  for each part, the ascending indexes of its records.  Each record is in one part.
        """
        assert self.columns is not None and self.assignment is not None, "it is encoded and not resolved"
        count, columns = self.count, self.columns
        numbers, indexes, batches = np.zeros(count, np.int64), np.zeros(count, np.int64), list[SentBatch]()
        for number, at in enumerate(parts):
            numbers[at], indexes[at] = number, np.arange(len(at))
            batches.append(self._part(columns.take(at, self.assignment.partitions), len(at) / count))
        self.columns = None
        if self.done.is_set():
            for batch in batches:
                batch.acknowledge()
        else:
            self._replace(_Parts(tuple(batches), numbers, indexes))
        return batches

    def _part(self, columns: Columns, share: float) -> SentBatch:
        part = SentBatch(self.topic, self._urge, self._threads)
        part.opened_ms, part.rows, part.columns = self.opened_ms, None, columns
        part.bytes = int(self.bytes * share)
        return part

    def _replace(self, parts: _Parts) -> None:
        """Let the futures refer to parts."""
        with self._lock:
            self._parts = parts
            callbacks, self._callbacks = self._callbacks, []
            for future, callback in callbacks:
                part, _ = future.place()
                part._callbacks.append((future, callback))  # nobody else has the part yet
            self.done.set()
        self.called_back.set()

    def place(self, index: int) -> tuple[SentBatch, int]:
        """The batch that gets the outcome of a record, and the index of the record in it."""
        batch = self
        while batch._parts is not None:
            parts = batch._parts
            batch, index = parts.batches[parts.numbers[index]], int(parts.indexes[index])
        return batch, index

    @property
    def is_split(self) -> bool:
        return self._parts is not None

    def wait_for_callbacks(self, left: Callable[[], float | None]) -> bool:
        """Wait for the callbacks of all parts.  Returns whether they have run in time.

        left:  returns how many seconds are left.
        """
        parts = () if not self.called_back.wait(left()) or self._parts is None else self._parts.batches
        return self.called_back.is_set() and all(part.wait_for_callbacks(left) for part in parts)

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

    def wait(self, index: int, timeout: float | None) -> tuple[SentBatch, int]:
        """Wait for the outcome of a record, and end the linger.  As `place`.  Raises TimeoutError."""
        batch, index = self.place(index)
        end = None if timeout is None or batch.done.is_set() else time.monotonic() + timeout
        while not batch.done.is_set():
            self._urge()
            if not batch.done.wait(timeout if end is None else max(0.0, end - time.monotonic())):
                raise TimeoutError(f"not acknowledged within {timeout} s; the record is still in flight")
            batch, index = batch.place(index)
        return batch, index

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
        if self._parts is None:
            _call(callback, future)
        else:
            future.place()[0].call_when_done(future, callback)


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
        """The position of the record in the log.

        Waits up to `timeout` seconds for it.  Calling this sends the record's batch without waiting for `linger_ms`.

        Raises TimeoutError if the record is still in flight, or the error that kept it out of the log.
        """
        batch, index = self.batch.wait(self.start // WIDTH, timeout)
        if (error := batch.error(index)) is not None:
            raise error
        return batch.metadata(index)

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Does what `result` does, under kafka-python's name."""
        return self.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome: the error that kept the record out of the log, or None.  Raises TimeoutError."""
        batch, index = self.batch.wait(self.start // WIDTH, timeout)
        return batch.error(index)

    def done(self) -> bool:
        """Whether the outcome is known."""
        batch, _ = self.place()
        return batch.done.is_set() and not batch.is_split

    def place(self) -> tuple[SentBatch, int]:
        """The batch and the number of the record in it, as `SentBatch.place` takes them."""
        return self.batch.place(self.start // WIDTH)

    def succeeded(self) -> bool:
        """Whether the record is known to be committed."""
        return self.done() and self.exception() is None

    def failed(self) -> bool:
        """Whether the record is known to have failed."""
        return self.done() and self.exception() is not None

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call `callback(future)` in the producer's thread once the outcome is known; immediately if it already is."""
        self.place()[0].call_when_done(self, callback)

    def add_callback(self, callback: Callable[..., object], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `callback(*args, metadata, **kwargs)` if the record is committed."""
        self.add_done_callback(lambda future: future.succeeded() and callback(*args, future.result(), **kwargs))
        return self

    def add_errback(self, callback: Callable[..., object], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `callback(*args, error, **kwargs)` if the record fails."""
        self.add_done_callback(lambda future: future.failed() and callback(*args, future.exception(), **kwargs))
        return self


_GIVEN = 1 << 62


def stamp_of(timestamp_ms: int) -> int:
    """Encode a timestamp from the caller, which may be before 1970, as a negative number.

    Clock times are positive nanoseconds, which cannot hold all timestamps that a caller may give.
    """
    return timestamp_ms - _GIVEN


def _times_of(stamps: Ints) -> Ints:
    if stamps.min(initial=0) < 0:
        return np.where(stamps < 0, stamps + _GIVEN, stamps // 1_000_000)
    return stamps // 1_000_000


def _call(callback: Callable[[RecordFuture], object], future: RecordFuture) -> None:
    try:
        callback(future)
    except Exception:
        # An error in a user's callback must not affect other records.
        logger.exception("the callback of a record failed")
