"""Producers: single records, gathered for a few milliseconds and written together.

`send` appends to a list; one thread in the background makes columns of what was gathered and commits all partitions of all
topics at once, so a producer costs one upload and one commit a round, however many records there are.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from spark_log.client.delivery import Delivery
from spark_log.client.futures import Batch, RecordFuture
from spark_log.client.settings import PRODUCER, coder, resolve_settings
from spark_log.client.upload import topic_spec
from spark_log.errors import (
    CoordinatorNotAvailable,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    RequestTimedOut,
    SparkLogError,
    UnknownTopicOrPartition,
)
from spark_log.journal.forks import renew_after_fork
from spark_log.positions import TIME_MS_MAX

if TYPE_CHECKING:
    from spark_log.client.log import Log

logger = logging.getLogger("spark_log")

ROW_OVERHEAD = 16
"""Bytes of a record beside key, value and headers, as segments count them."""


class Producer:
    """Sends single records.  Safe for threads; a context manager, which waits for what was sent."""

    def __init__(self, log: Log, **settings: Any) -> None:
        self._settings = resolve_settings("producer", PRODUCER, settings)
        self._log = log
        self._clock = log.journal.context.clock
        self._now_ms = self._clock.now_ms
        self._encode_key = coder(self._settings["key_serializer"], "serialize")
        self._encode_value = coder(self._settings["value_serializer"], "serialize")
        chosen = self._settings["partitioner"]
        self._choose = chosen if callable(chosen) else None
        self._memory = self._settings["buffer_memory"]
        self._no_acks = str(self._settings["acks"]) == "0"
        self._delivery = Delivery(log, self._settings)
        self._refusal: Exception | None = None
        self._begin()
        renew_after_fork(self)
        _open_producers.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Something to do for the thread."""
        self._room = threading.Condition(self._lock)
        """Something was written."""
        self._open: dict[str, Batch] = {}
        """By topic: what `send` appends to."""
        self._under_way: tuple[Batch, ...] = ()
        self._buffered = 0
        """Bytes that were sent and are not written."""
        self._urgent = self._closing = False
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        """In a child: the thread is the parent's, and so are the records."""
        left = (*self._under_way, *self._open.values())
        self._begin()
        self._refusal = InvalidRequest(
            "this producer was made before the process was forked, and belongs to the parent: make one in the child"
        )
        for batch in left:
            batch.abandon(self._refusal)

    # ----------------------------------------------------------------------------------------------------------- send

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Send one record; a future of its place.

        value, key:  bytes, text (as UTF-8), None, or what the serializers take.
        Raises InvalidRecord, MessageTooLarge, UnknownTopicOrPartition for what can be seen at once; RequestTimedOut if
        there was no room in `buffer_memory` for `max_block_ms`.
        """
        if self._encode_value is not None and value is not None:
            value = self._encode_value(value)
        if self._encode_key is not None and key is not None:
            key = self._encode_key(key)
        size = ROW_OVERHEAD
        if value is not None:
            if type(value) is not bytes:
                value = to_bytes("value", value)
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                key = to_bytes("key", key)
            size += len(key)
        if headers:
            headers = checked_headers(headers)
            size += sum(len(name) + len(item or b"") + ROW_OVERHEAD for name, item in headers)
        if timestamp_ms is None:
            timestamp_ms = self._now_ms()
        elif type(timestamp_ms) is not int or not 0 <= timestamp_ms <= TIME_MS_MAX:
            raise InvalidTimestamp(f"timestamp_ms: {timestamp_ms!r} is not a time in milliseconds since 1970")
        with self._lock:
            batch = self._open.get(topic)
            if batch is None or self._buffered + size > self._memory:
                batch = self._admit(topic, size)
            if size > batch.limit:
                raise too_large(topic, size, batch.limit)
            if partition is None and self._choose is not None:
                numbers = list(range(batch.partitions))
                partition = self._choose(key, numbers, numbers)
            if partition is not None and not (type(partition) is int and 0 <= partition < batch.partitions):
                raise no_partition(topic, partition, batch.partitions)
            rows = batch.rows
            future = RecordFuture(batch, len(rows))
            rows.append((key, value, timestamp_ms, headers, partition))  # type: ignore[arg-type]
            self._buffered += size
            batch.bytes += size
            if batch.bytes >= batch.full and not self._urgent:
                self._urgent = True
                self._work.notify()
        return future

    def _admit(self, topic: str, size: int) -> Batch:
        """The batch that a record of a topic goes to, when there is room.  Called with the lock held."""
        deadline = self._clock.monotonic_ms() + self._settings["max_block_ms"]
        while True:
            self._wait_for_room(size)
            batch = self._open.get(topic)
            if batch is not None:
                return batch
            if self._refusal is not None:
                raise self._refusal
            # Finding the topic out may take a round trip: others go on sending meanwhile.
            self._lock.release()
            try:
                self._log.ensure_topic(topic, deadline_ms=deadline)
                spec = topic_spec(self._log.journal.state, topic)
            except CoordinatorNotAvailable as error:
                raise RequestTimedOut(
                    f"topic {topic!r} was not found or created within max_block_ms={self._settings['max_block_ms']}: {error}"
                ) from error
            finally:
                self._lock.acquire()
            if topic not in self._open and self._refusal is None:
                settings, now = self._settings, self._clock.monotonic_ms()
                self._open[topic] = Batch(spec, settings["max_request_size"], settings["batch_size"], now, self._urge)
                self._start()
                self._work.notify()

    def _wait_for_room(self, size: int) -> None:
        end = self._clock.monotonic_ms() + self._settings["max_block_ms"]
        # A record larger than the whole buffer goes alone; the thread's own callbacks cannot wait for it.
        while (
            self._buffered and self._buffered + size > self._memory and threading.current_thread() is not self._thread
        ):
            if self._refusal is not None:
                raise self._refusal
            self._urgent = True
            self._work.notify()
            rest = end - self._clock.monotonic_ms()
            if rest <= 0:
                raise RequestTimedOut(
                    f"no room for {size} bytes within max_block_ms={self._settings['max_block_ms']}: {self._buffered} "
                    f"bytes of buffer_memory={self._memory} wait to be written"
                )
            self._room.wait(rest / 1000)

    def partitions_for(self, topic: str) -> set[int]:
        """Numbers of a topic's partitions; it is created if that is allowed."""
        self._log.ensure_topic(topic)
        return set(range(topic_spec(self._log.journal.state, topic).partitions))

    # ------------------------------------------------------------------------------------------------------ the thread

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pylog-producer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            batches = self._next_round()
            if not batches:
                return
            try:
                self._write(batches)
            except BaseException as error:
                # Never in silence: who waits is told, and so is who sends from now on.
                logger.exception("the producer's thread failed")
                self._break(error, batches)
                return

    def _next_round(self) -> tuple[Batch, ...]:
        """What was gathered, after the linger; nothing when the producer is closed."""
        linger = self._settings["linger_ms"]
        with self._lock:
            while not self._open and not self._closing:
                self._work.wait()
            while not self._urgent and not self._closing:
                first = min(batch.opened_ms for batch in self._open.values())
                rest = first + linger - self._clock.monotonic_ms()
                if rest <= 0:
                    break
                self._work.wait(rest / 1000)
            self._urgent = False
            self._under_way, self._open = tuple(self._open.values()), {}
            return self._under_way

    def _write(self, batches: tuple[Batch, ...]) -> None:
        size = sum(batch.bytes for batch in batches)
        if self._no_acks:
            for batch in batches:
                batch.acknowledge()
        filled = [batch for batch in batches if batch.rows]
        try:
            if filled:
                self._delivery.deliver(filled)
        except SparkLogError as error:
            logger.warning("records were not acknowledged: %s", error)
            for batch in filled:
                batch.fail(error)
        for batch in batches:
            batch.resolve((), (), (), {})
        with self._lock:
            self._under_way = ()
            self._buffered -= size
            self._room.notify_all()

    def _break(self, error: BaseException, batches: tuple[Batch, ...]) -> None:
        refusal = RuntimeError(f"the producer's thread failed, nothing more can be sent: {error!r}")
        refusal.__cause__ = error
        with self._lock:
            self._refusal = refusal
            left = (*batches, *self._open.values())
            self._under_way, self._open, self._buffered = (), {}, 0
            self._room.notify_all()
        for batch in left:
            batch.fail(refusal)

    def _urge(self) -> None:
        """End the linger: somebody waits."""
        if threading.current_thread() is self._thread:
            raise InvalidRequest(
                "a callback cannot wait for records that are on their way: its thread is to write them"
            )
        with self._lock:
            self._urgent = bool(self._open)
            self._work.notify()

    # -------------------------------------------------------------------------------------------------------- the end

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was sent before is in the log, or has failed, and its callbacks have run.

        timeout: seconds.  Raises TimeoutError when they are over.  Failures are told by the futures.
        """
        with self._lock:
            waiting = (*self._under_way, *self._open.values())
        if waiting:
            self._urge()
        end = None if timeout is None else self._clock.monotonic_ms() + timeout * 1000
        for batch in waiting:
            rest = None if end is None else max(0.0, end - self._clock.monotonic_ms()) / 1000
            if not batch.settled.wait(rest):
                raise TimeoutError(f"not all records were acknowledged within {timeout} s; they are still on their way")

    def close(self, timeout: float | None = None) -> None:
        """Flush, and end the thread.  Raises TimeoutError if that takes longer than `timeout` seconds."""
        with self._lock:
            if self._refusal is None:
                self._refusal = InvalidRequest("the producer is closed")
            self._closing = True
            thread = self._thread
            self._work.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
            if thread.is_alive():
                raise TimeoutError(f"not all records were acknowledged within {timeout} s; they are still on their way")

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_open_producers: WeakSet[Producer] = WeakSet()


def _close_all() -> None:
    """What was sent by a program that ends without closing is written all the same."""
    for producer in tuple(_open_producers):
        producer.close()


# When functions of `atexit` run, the pools of threads that requests to a bucket go through are closed already.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


def to_bytes(what: str, given: object) -> bytes:
    """Bytes of a key or value.  Raises InvalidRecord."""
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise InvalidRecord(f"{what} is a {type(given).__name__}: give bytes or text, or a {what}_serializer")


def checked_headers(headers: object) -> list[tuple[str, bytes | None]]:
    """Headers as they are kept.  Raises InvalidRecord."""
    try:
        pairs = [(name, item) for name, item in headers]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f'headers: {headers!r} is not a list of pairs, as [("name", b"value")]') from error
    for name, _ in pairs:
        if not isinstance(name, str):
            raise InvalidRecord(f"headers: the name {name!r} is not a text")
    return [(name, None if item is None else to_bytes("value", item)) for name, item in pairs]


def too_large(topic: str, size: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"a record of {size} bytes is larger than {limit}, the lesser of max.message.bytes of topic {topic!r} and the "
        "producer's max_request_size; raise them"
    )


def no_partition(topic: str, partition: object, count: int) -> SparkLogError:
    if not isinstance(partition, int) or isinstance(partition, bool):
        return InvalidRecord(f"partition {partition!r} of topic {topic!r} is not a number")
    return UnknownTopicOrPartition(f"topic {topic!r} has no partition {partition}, it has {count} (0 to {count - 1})")
