"""Producers: single records, collected for a few milliseconds and written together.

`send` appends to the queue of a topic.  A background thread converts the queues to columns and commits all partitions
of all topics together, so one round costs one upload and one commit, however many records it has.  At high rates a
second thread takes turns with the first, so that one round is encoded while the one before is written.  Records of a
placement group without enough replicas leave their round (`placement_pipelines.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from weakref import WeakSet

from spark_log.client.arguments import refuses_odd_arguments
from spark_log.client.client_settings import PRODUCER, coder, resolve_settings
from spark_log.client.producer.accumulator import TopicQueue, linger_left_ms
from spark_log.client.producer.append import acks_of
from spark_log.client.producer.delivery import DeliveryAttempt
from spark_log.client.producer.futures import NONE, RecordFuture, SentBatch, stamp_of
from spark_log.client.producer.placement_pipelines import Owner, Pipelines
from spark_log.client.producer.sent_values import not_typed, packed, to_bytes
from spark_log.client.producer.topic_rules import topic_spec
from spark_log.client.representations import brief, log_facts, one_line
from spark_log.client.topic_creation import ensure_topic
from spark_log.configs.topic_names import not_text
from spark_log.errors import (
    CommitUnknown,
    CoordinatorNotAvailable,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    RequestTimedOut,
    SparkLogError,
    StorageUnavailable,
    UnknownTopicOrPartition,
)
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.model import ACKS_ALL
from spark_log.positions import TIME_MS_MAX
from spark_log.runtime.clock import stamps_of
from spark_log.runtime.fork_safety import renew_after_fork
from spark_log.runtime.threads import Thread, at_exit
from spark_log.text import is_unicode, shown, type_of

ROW_OVERHEAD = 16
"""Bytes per record in addition to key, value and headers, as segments count them."""
ROUNDS = 3
"""Rounds that share the memory: one is collected, one encoded, one written."""


@refuses_odd_arguments(unguarded="send")
class Producer:
    """Takes records one at a time, and writes them in batches in the background.

    Thread-safe; a context manager, whose exit waits until all sent records are in the log or have failed.
    """

    def __init__(self, journal: Journal, **settings: Any) -> None:
        self._settings = resolve_settings("producer", PRODUCER, settings)
        if settings.get("enable_idempotence") and acks_of(self._settings["acks"]) != ACKS_ALL:
            raise InvalidRequest(
                f"acks={self._settings['acks']} with enable_idempotence=True: expected acks='all', as in Kafka; without "
                "enable_idempotence any acks is accepted"
            )
        self._journal = journal
        self._clock = journal.context.clock
        self._machine = journal.context.threads
        self._now = stamps_of(self._clock)
        self._encode_key = coder(self._settings["key_serializer"], "serialize")
        self._encode_value = coder(self._settings["value_serializer"], "serialize")
        self._encodes = self._encode_key is not None or self._encode_value is not None
        chosen = self._settings["partitioner"]
        self._choose = chosen if callable(chosen) else None
        self._memory = self._settings["buffer_memory"]
        self._round = self._memory // ROUNDS
        """Bytes of a topic in a round, unless it is a single record."""
        self._no_acks = str(self._settings["acks"]) == "0"
        self._pipelines = Pipelines(journal, self._settings, Owner(self._keep, self._release, self._break))
        self._refusal: Exception | None = None
        self._begin()
        renew_after_fork(self)
        _open_producers.add(self)

    def _begin(self) -> None:
        threads = self._machine
        self._lock = threads.lock()
        self._work = threads.condition(self._lock)
        """Signals work for a thread."""
        self._room = threads.condition(self._lock)
        """Signals free memory."""
        self._queues: dict[str, TopicQueue] = {}
        """By topic."""
        self._admitting: dict[str, TopicQueue] = {}
        """The queues that `send` uses; empty once the producer accepts no more records."""
        self._next = threads.lock()
        """Held by the thread that prepares the next round, until the round is encoded and may be written."""
        self._turn = threads.lock()
        """Held by the thread that writes.  It is acquired while holding `_next`, so rounds stay in order."""
        self._under_way: list[SentBatch] = []
        self._buffered = 0
        """Bytes granted to the queues, and bytes in flight."""
        self._urgent = self._closing = self._ended = False
        self._threads: tuple[Thread, ...] = ()

    def after_fork(self) -> None:
        """In a child: threads and records belong to the parent."""
        waiting = (*self._under_way, *(batch for queue in self._queues.values() for batch in queue.batches))
        batches = (*waiting, *self._pipelines.after_fork())
        self._begin()
        self._refusal = InvalidRequest(
            "this producer was created before the process was forked and belongs to the parent: create one in the child"
        )
        for batch in batches:
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
        """Send one record.  Returns a future for its `RecordMetadata`: topic, partition, offset, timestamp (in
        milliseconds since 1970).

        A topic that does not exist is created, if `auto.create.topics.enable` allows it.

        value, key:    bytes, str (encoded as UTF-8) or None; with a serializer, the values that it accepts.  For a
                       topic with a schema, the value is a dict of its columns, or None.
        headers:       pairs of a name and a value; the value is bytes or None.
        partition:     the number of the partition; None: the `partitioner` chooses it.
        timestamp_ms:  milliseconds since 1970, below 0 for a time before; None: the current time.
        Raises MessageTooLarge; UnknownTopicOrPartition; InvalidTopic if the topic would be created and its name is
        invalid; InvalidRecord if another argument has the wrong type or an invalid value; InvalidRequest after `close`;
        RequestTimedOut if `max_block_ms` elapses while the buffer is full, or before the topic is found or created.
        Errors that are found later, such as a timestamp that the topic refuses as too old (InvalidTimestamp), are set
        on the future.
        """
        if self._encodes:
            key, value = self._encoded(key, value)
        size = ROW_OVERHEAD
        if value is not None:
            value = value if type(value) is bytes else self._sent(topic, value)
            size += len(value)
        if key is not None:
            key = key if type(key) is bytes else to_bytes("key", key)
            size += len(key)
        if headers:
            headers = checked_headers(headers)
            size += sum(len(name) + len(item or b"") + ROW_OVERHEAD for name, item in headers)
        if timestamp_ms is None:
            now = self._now  # `self._now()` would first be looked up as a method
            stamp = now()
        elif type(timestamp_ms) is int and -TIME_MS_MAX <= timestamp_ms <= TIME_MS_MAX:
            stamp = stamp_of(timestamp_ms)
        else:
            raise InvalidTimestamp(f"timestamp_ms: {shown(timestamp_ms)} is not a time in milliseconds since 1970")
        try:
            queue = self._admitting[topic]
        except (KeyError, TypeError):
            queue = self._admit(topic, size)
        if queue.left < size:
            queue = self._admit(topic, size)
        if headers or partition is not None or self._choose is not None:
            key, queue.rare = (key, headers, self._partition(queue, key, partition)), True
        queue.left -= size
        batch, rows = queue.open
        start = len(rows)
        future = RecordFuture(batch, start)
        rows += (future, key, value, stamp)  # atomic
        if batch.idle or rows[start] is not future:
            self._see_to(queue, future, rows)
        return future

    def _sent(self, topic: str, value: object) -> bytes:
        """A value that is not bytes, as it waits to be written."""
        if not isinstance(value, Mapping):
            return to_bytes("value", value)
        try:
            queue = self._admitting[topic]
        except (KeyError, TypeError):
            queue = self._admit(topic, 0)
        if not queue.typed:
            spec = topic_spec(self._journal.refresh(), topic)
            if spec.schema is None:
                raise not_typed(spec)
            queue.typed = True
        return packed(value)

    def _encoded(self, key: Any, value: Any) -> tuple[Any, Any]:
        if self._encode_value is not None and value is not None:
            value = self._encode_value(value)
        if self._encode_key is not None and key is not None:
            key = self._encode_key(key)
        return key, value

    def _partition(self, queue: TopicQueue, key: bytes | None, partition: int | None) -> int | None:
        if partition is None and self._choose is not None:
            numbers = list(range(queue.partitions))
            partition = self._choose(key, numbers, numbers)
        if partition is not None and not (type(partition) is int and 0 <= partition < queue.partitions):
            raise no_partition(queue.topic, partition, queue.partitions)
        return partition

    def _admit(self, topic: str, size: int) -> TopicQueue:
        """Wait for room, and return the topic's queue with credit for a record."""
        if not isinstance(topic, str):
            raise not_text(topic)
        end = self._clock.monotonic_ms() + self._settings["max_block_ms"]
        with self._lock:
            while True:
                if self._refusal is not None:
                    raise self._refusal
                queue = self._queues.get(topic)
                if queue is None or not queue.waiting:
                    queue = self._current_queue(topic, end)
                if size > queue.limit:
                    raise too_large(topic, size, queue.limit)
                if self._grant(queue, size):
                    return queue
                self._wait_for_room(size, end)

    def _current_queue(self, topic: str, end: int) -> TopicQueue:
        """The topic's queue, updated from its current spec."""
        # Looking up the topic may take a round trip: do not hold the lock.
        self._lock.release()
        try:
            ensure_topic(self._journal, topic, deadline_ms=end)
            spec = topic_spec(self._journal.state, topic)
        except (CoordinatorNotAvailable, StorageUnavailable, CommitUnknown) as error:
            # The topic may have been created, but the record is not sent.
            raise RequestTimedOut(
                f"topic {topic!r} was not found or created within max_block_ms={self._settings['max_block_ms']}: "
                f"{error}"
            ) from error
        finally:
            self._lock.acquire()
        if self._refusal is not None:
            raise self._refusal
        queue = self._queues.get(topic) or TopicQueue(topic, self._urge, self._machine)
        queue.follow(spec, self._settings["max_request_size"], self._settings["batch_size"])
        self._queues[topic] = self._admitting[topic] = queue
        self._start(1)
        return queue

    def _grant(self, queue: TopicQueue, size: int) -> bool:
        """Give a queue credit for a record, and for more up to a full batch.  False: there is no room."""
        used = queue.used
        self._buffered += used - queue.granted  # the queue returns the rest of its credit
        queue.granted, queue.left = used, 0
        if used and used + size > self._round:
            queue.closed.append(queue.close_batch(self._clock.monotonic_ms()))
            used, self._urgent = 0, True
            self._start(2)
            self._work.notify()
        room = self._memory - self._buffered
        # A record larger than the whole buffer is sent alone.  Callbacks in the producer's threads cannot wait.
        if room < size and self._buffered and not self._is_own_thread():
            return False
        full = used + size >= queue.full
        credit = max(size, min(room, queue.limit, self._round - used, queue.full if full else queue.full - used))
        queue.granted, queue.left = used + credit, credit
        self._buffered += credit
        if full and not self._urgent:
            self._urgent = True
            self._work.notify()
        return True

    def _wait_for_room(self, size: int, end: int) -> None:
        """Wait until enough was written.  Raises RequestTimedOut after `end`."""
        while self._refusal is None and self._buffered and self._buffered + size > self._memory:
            self._urgent = True
            self._work.notify()
            rest = end - self._clock.monotonic_ms()
            if rest <= 0:
                raise RequestTimedOut(
                    f"no room for {size} bytes within max_block_ms={self._settings['max_block_ms']}: {self._buffered} "
                    f"bytes of buffer_memory={self._memory} have not been written yet"
                )
            self._room.wait(rest / 1000)

    def _see_to(self, queue: TopicQueue, future: RecordFuture, rows: list[Any]) -> None:
        """Notify the thread of a record in a batch that it takes for empty, or no longer reads."""
        with self._lock:
            queue.keep(future, rows)
            batch, now = queue.open[0], self._clock.monotonic_ms()
            if not self._ended:
                if batch.idle and future.batch is batch:
                    batch.idle, batch.opened_ms = False, now
                    self._work.notify()
                return
            late = queue.close_batch(now)
        assert self._refusal is not None, "a thread ends only when no more records are accepted"
        late.fail(self._refusal)

    def partitions_for(self, topic: str) -> set[int]:
        """Numbers of a topic's partitions.  A missing topic is created, if `auto.create.topics.enable` allows it."""
        ensure_topic(self._journal, topic)
        return set(range(topic_spec(self._journal.state, topic).partitions))

    # ----------------------------------------------------------------------------------------------------- the threads

    def _start(self, count: int) -> None:
        """Start threads until there are at least `count`.  Called with the lock held."""
        while len(self._threads) < count:
            self._threads += (self._machine.start(self._run, "pylog-producer"),)

    def _is_own_thread(self) -> bool:
        return any(map(self._machine.is_current, (*self._threads, *self._pipelines.threads)))

    def _run(self) -> None:
        batches: tuple[SentBatch, ...] = ()
        try:
            while True:
                with self._next:
                    batches = self._next_round()
                    if not batches:
                        return
                    for batch in batches:
                        batch.take()
                    filled = [batch for batch in batches if batch.count]
                    begun = self._pipelines.begin(filled) if filled else None
                    self._turn.acquire()
                try:
                    self._write(batches, begun)
                finally:
                    self._turn.release()
                batches = ()
        except BaseException as error:
            # Fail all waiting and future calls with the error.
            logger.exception("the producer's thread failed")
            self._break(error, batches)

    def _next_round(self) -> tuple[SentBatch, ...]:
        """The batches of a round, after the linger; nothing when the producer is closed."""
        linger = self._settings["linger_ms"]
        with self._lock:
            while not (waiting := self._waiting()) and not self._closing:
                self._work.wait()
            while not self._urgent and not self._closing:
                rest = linger_left_ms(waiting, linger, self._clock.monotonic_ms())
                if rest <= 0:
                    break
                self._work.wait(rest / 1000)
            # Records that arrive while a round is written join the next one; encoding ahead pays for large rounds only.
            while self._under_way and not any(queue.closed for queue in self._queues.values()):
                self._work.wait()
            batches = self._take()
            self._urgent = self._urgent and bool(self._waiting())
            self._under_way += batches
            self._ended = not batches
            return batches

    def _waiting(self) -> list[TopicQueue]:
        return [queue for queue in self._queues.values() if queue.waiting]

    def _take(self) -> tuple[SentBatch, ...]:
        """Take the first batch of each queue.  Called with the lock held."""
        batches, now = [], self._clock.monotonic_ms()
        for queue in self._queues.values():
            if queue.closed:
                batches.append(queue.closed.popleft())
            elif queue.waiting or queue.open[1]:
                granted, batch = queue.granted, queue.close_batch(now)
                self._buffered -= granted - batch.bytes
                batches.append(batch)
        return tuple(batches)

    def _write(self, batches: tuple[SentBatch, ...], begun: DeliveryAttempt | None) -> None:
        if self._no_acks:
            for batch in batches:
                batch.acknowledge()
        filled = [batch for batch in batches if batch.count]
        if filled:
            self._pipelines.deliver(filled, begun)
        for batch in batches:
            batch.resolve(NONE, NONE, NONE, {})
        with self._lock:
            self._forget(batches)

    def _forget(self, batches: Sequence[SentBatch]) -> None:
        """Release the memory of batches.  Called with the lock held."""
        self._under_way = [batch for batch in self._under_way if batch not in batches]
        self._buffered -= sum(batch.bytes for batch in batches)
        self._room.notify_all()
        self._work.notify()

    def _keep(self, batches: Sequence[SentBatch]) -> None:
        """Batches leave their round, and its memory is not free after it."""
        with self._lock:
            self._buffered += sum(batch.bytes for batch in batches)

    def _release(self, batches: Sequence[SentBatch]) -> None:
        """The outcome of batches that left their round is known."""
        with self._lock:
            self._forget(batches)

    def _break(self, error: BaseException, batches: Sequence[SentBatch]) -> None:
        refusal = RuntimeError(f"the producer's thread failed, no more records can be sent: {error!r}")
        refusal.__cause__ = error
        with self._lock:
            self._refuse(refusal)
            left = tuple(batches)
            while more := self._take():
                left += more
            self._forget(left)
            self._closing = self._ended = True
        for batch in left:
            batch.fail(refusal)

    def _refuse(self, refusal: Exception) -> None:
        """Accept no more records.  Called with the lock held."""
        self._refusal = refusal
        self._admitting.clear()

    def _urge(self) -> None:
        """End the linger, because a caller waits."""
        if self._is_own_thread():
            raise InvalidRequest("a callback cannot wait for records in flight: its own thread has to write them")
        with self._lock:
            self._urgent = bool(self._waiting())
            self._work.notify()

    # -------------------------------------------------------------------------------------------------------- the end

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records sent so far are in the log or have failed, and their callbacks have run.

        timeout: in seconds; TimeoutError is raised when it expires.  Failures are reported by the futures.
        """
        with self._lock:
            waiting = (*self._under_way, *(batch for queue in self._waiting() for batch in queue.batches))
        if waiting:
            self._urge()
        end = None if timeout is None else self._clock.monotonic_ms() + timeout * 1000

        def left() -> float | None:
            return None if end is None else max(0.0, end - self._clock.monotonic_ms()) / 1000

        for batch in (*waiting, *self._pipelines.batches):
            if not batch.wait_for_callbacks(left):
                raise TimeoutError(f"not all records were acknowledged within {timeout} s; they are still in flight")

    def close(self, timeout: float | None = None) -> None:
        """Flush, and stop the producer's threads.  Raises TimeoutError if that takes longer than `timeout` seconds."""
        end = None if timeout is None else self._clock.monotonic_ms() + timeout * 1000
        with self._lock:
            if self._refusal is None:
                self._refuse(InvalidRequest("the producer is closed"))
            self._closing = True
            threads: list[Thread] = list(self._threads)
            self._work.notify()
        if self._is_own_thread():
            return
        while threads:
            thread = threads.pop(0)
            thread.join(None if end is None else max(0.0, end - self._clock.monotonic_ms()) / 1000)
            if thread.is_alive():
                raise TimeoutError(f"not all records were acknowledged within {timeout} s; they are still in flight")
            threads = threads or self._pipelines.threads

    def __repr__(self) -> str:
        return one_line(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield from log_facts(self._journal)
        yield f"topics {brief(self._queues)}"
        yield "open" if self._refusal is None else f"takes no more records: {self._refusal}"

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_open_producers: WeakSet[Producer] = WeakSet()


def _close_all() -> None:
    """Write the records of producers that a program has not closed before it exits."""
    for producer in tuple(_open_producers):
        producer.close()


at_exit(_close_all)


def checked_headers(headers: object) -> list[tuple[str, bytes | None]]:
    """Headers as a list of pairs.  Raises InvalidRecord."""
    try:
        pairs = [(name, item) for name, item in headers]  # type: ignore[attr-defined]
    except Exception as error:
        raise InvalidRecord(f'headers: {shown(headers)} is not a list of pairs, as [("name", b"value")]') from error
    for name, _ in pairs:
        if not isinstance(name, str):
            raise InvalidRecord(f"headers: the name {shown(name)} is not a str")
        if not is_unicode(name):
            raise InvalidRecord(f"headers: the name {name!r} cannot be encoded as UTF-8")
    return [(name, None if item is None else _header_bytes(name, item)) for name, item in pairs]


def _header_bytes(name: str, item: object) -> bytes:
    if not isinstance(item, str | bytes | bytearray | memoryview):
        raise InvalidRecord(f"headers: the value of {name!r} is {type_of(item)}: expected bytes or str")
    return to_bytes(f"headers: the value of {name!r}", item)


def too_large(topic: str, size: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"a record of {size} bytes is larger than {limit}, the lesser of max.message.bytes of topic {topic!r} and the "
        "producer's max_request_size; raise them"
    )


def no_partition(topic: str, partition: object, count: int) -> SparkLogError:
    if not isinstance(partition, int) or isinstance(partition, bool):
        return InvalidRecord(f"partition {shown(partition)} of topic {topic!r} is not a number")
    return UnknownTopicOrPartition(
        f"topic {topic!r} has no partition {shown(partition)}, it has {count} (0 to {count - 1})"
    )
