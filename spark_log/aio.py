"""asyncio: `async with spark_log.aio.connect(url) as log:`.

A thin layer over the blocking clients: each call runs in a thread, and the event loop continues meanwhile.  Cancelling
an `await` ends the wait and never breaks off the call:

* An append or a send is either done or not.  Keep what the call returned, and await it again to find out.
* A record that a consumer has fetched for a cancelled loop is given to the next loop.
* A record is handled when the loop asks for the next one, or calls `commit()`.  Only handled records are committed.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from os import PathLike
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from typing_extensions import Unpack

from spark_log.client.client_settings import CONSUMER, PRODUCER
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.log import Log
from spark_log.client.log import connect as open_log
from spark_log.client.producer.futures import RecordFuture
from spark_log.client.producer.producer import Producer
from spark_log.client.typed_settings import ConsumerSettings, ProducerSettings, takes_settings
from spark_log.errors import InvalidRequest
from spark_log.model import ConsumerRecord, OffsetAndMetadata, RecordMetadata, TopicPartition

Given = ParamSpec("Given")
Result = TypeVar("Result")

CALLS_MAX = 32
"""Calls of one log that run at the same time; more wait.  Appends that run at the same time are committed together."""
POLL_MS = 500
"""How long a consumer waits in its thread: closing it, or committing after a cancelled loop, takes no longer."""


class AsyncResult(Generic[Result]):
    """A call that has begun.  Await it for the result, as often as you like.

    Cancelling the `await` does not stop the call: await this again, or ask `done()`.
    """

    def __init__(self, future: Future[Result]) -> None:
        self._future = future

    def __repr__(self) -> str:
        return f"<AsyncResult, {'done' if self.done() else 'in progress'}>"

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def done(self) -> bool:
        """Whether the call has ended, with a result or an error."""
        return self._future.done()


class _Threads:
    """Runs calls of one object.  The last call ends it."""

    def __init__(self, count: int, what: str) -> None:
        self._what = what
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=f"pylog-aio-{what}")

    def call(
        self, function: Callable[Given, Result], /, *given: Given.args, **named: Given.kwargs
    ) -> AsyncResult[Result]:
        return AsyncResult(self.submit(function, *given, **named))

    def submit(self, function: Callable[Given, Result], /, *given: Given.args, **named: Given.kwargs) -> Future[Result]:
        try:
            return self._pool.submit(function, *given, **named)
        except RuntimeError:
            raise InvalidRequest(f"the {self._what} is closed") from None

    async def end(self, last: Callable[[], object]) -> None:
        """Wait for all calls, then for the last one.  If the wait is cancelled, they still run."""

        def finish() -> None:
            self._pool.shutdown()
            last()

        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, finish))


def _in_thread(
    method: Callable[Concatenate[Log, Given], Result],
) -> Callable[Concatenate[AsyncLog, Given], AsyncResult[Result]]:
    """The method of a log, for an AsyncLog.  It begins when it is called, and returns an AsyncResult."""

    @functools.wraps(method)
    def begin(log: AsyncLog, /, *given: Given.args, **named: Given.kwargs) -> AsyncResult[Result]:
        return log.call(method, log.sync, *given, **named)

    return begin


class AsyncLog:
    """An open log, as `spark_log.aio.connect` gives it.

    `append`, `create_topic`, `read`, `table` and `topics` have the arguments, results and errors of `Log`.  They begin
    when they are called, and return an `AsyncResult` to await.  `sync` is the `Log`, for `call`.
    """

    def __init__(self, log: Log) -> None:
        self.sync = log
        """The log with blocking calls."""
        self._threads = _Threads(CALLS_MAX, "log")

    def __repr__(self) -> str:
        return repr(self.sync).replace("<Log", "<AsyncLog", 1)

    def call(
        self, function: Callable[Given, Result], /, *given: Given.args, **named: Given.kwargs
    ) -> AsyncResult[Result]:
        """Begin a blocking call in a thread: `await log.call(log.sync.admin.delete_topics, ["orders"])`."""
        return self._threads.call(function, *given, **named)

    append = _in_thread(Log.append)
    create_topic = _in_thread(Log.create_topic)
    read = _in_thread(Log.read)
    table = _in_thread(Log.table)
    topics = _in_thread(Log.topics)

    @takes_settings(PRODUCER, ProducerSettings.__annotations__)
    def producer(self, **settings: Unpack[ProducerSettings]) -> AsyncProducer:
        """A producer, for an `async with`."""
        return AsyncProducer(self.sync.producer(**settings))

    @takes_settings(CONSUMER, ConsumerSettings.__annotations__)
    def consumer(self, *topics: str, **settings: Unpack[ConsumerSettings]) -> AsyncConsumer:
        """A consumer of these topics, for an `async with` and an `async for`."""
        timeout_ms = settings.get("consumer_timeout_ms", math.inf)
        return AsyncConsumer(self.sync.consumer(*topics, **settings), timeout_ms)

    async def close(self) -> None:
        """Wait for calls in progress, and close the log.  Leaving `async with connect(…)` does it."""
        await self._threads.end(self.sync.close)


@asynccontextmanager
async def connect(
    url: str | PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    token: str | None = None,
    *,
    create: bool = True,
    durability: str = "disk",
    client_rack: str = "",
) -> AsyncIterator[AsyncLog]:
    """Open a log for an `async with`, with the arguments and errors of `spark_log.connect`.

    Leaving the block waits for the appends that have begun in it.  Close producers and consumers before.
    """
    log = AsyncLog(
        await asyncio.to_thread(
            open_log, url, storage_options, token, create=create, durability=durability, client_rack=client_rack
        )
    )
    try:
        yield log
    finally:
        await log.close()


class AsyncProducer:
    """Sends records one at a time, in the order of the calls; see `spark_log.Log.producer`.

    Leaving its `async with` waits until all sent records are in the log or have failed, also after an error.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._threads = _Threads(1, "producer")

    def __repr__(self) -> str:
        return repr(self._producer).replace("<Producer", "<AsyncProducer", 1)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AsyncResult[RecordMetadata]:
        """Send one record, with the arguments and errors of `Producer.send`.  Await the result for its position.

        Sends that are not awaited may fill the memory, whatever `buffer_memory` is: await them in batches.
        """
        sent: Future[RecordMetadata] = Future()
        self._threads.submit(self._send, sent, topic, value, key, headers, partition, timestamp_ms)
        return AsyncResult(sent)

    def _send(self, sent: Future[RecordMetadata], *record: Any) -> None:
        try:
            self._producer.send(*record).add_done_callback(functools.partial(_settle, sent))
        except BaseException as error:  # noqa: BLE001  it is raised where the result is awaited
            sent.set_exception(error)

    def flush(self, timeout: float | None = None) -> AsyncResult[None]:
        """Wait until all records sent so far are in the log or have failed, as `Producer.flush`."""
        return self._threads.call(self._producer.flush, timeout)

    async def close(self) -> None:
        """Flush, and end the producer."""
        await self._threads.end(self._producer.close)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _settle(sent: Future[RecordMetadata], done: RecordFuture) -> None:
    error = done.exception()
    if error is None:
        sent.set_result(done.result())
    else:
        sent.set_exception(error)


class AsyncConsumer:
    """Reads records: `async for record in consumer:`.  For one task at a time; see `spark_log.Log.consumer`.

    A record is handled when the loop asks for the next one, or when `commit()` is called.  A loop that ends before, by
    `break`, an error or a cancellation, leaves its last record unhandled: the next loop begins with it, and if there is
    none, the group's next consumer does.  Call `await consumer.commit()` before a `break`.

    With `enable_auto_commit`, handled records are committed at the interval, and on leaving the `async with`, but not
    after an exception or a cancellation.
    """

    def __init__(self, consumer: Consumer, timeout_ms: float) -> None:
        self._consumer = consumer
        self._timeout_ms = timeout_ms
        self._threads = _Threads(1, "consumer")
        self._records: deque[ConsumerRecord] = deque()
        """Fetched, and not handled."""
        self._given = False
        """The loop has the first of them."""
        self._polling: Future[list[ConsumerRecord]] | None = None
        """A poll whose records are not in `_records` yet: the loop that began it may have been cancelled."""
        self._waiting = False

    def __repr__(self) -> str:
        return repr(self._consumer).replace("<Consumer", "<AsyncConsumer", 1)

    # -------------------------------------------------------------------------------------------------------- records

    def __aiter__(self) -> AsyncConsumer:
        self._given = False
        return self

    async def __anext__(self) -> ConsumerRecord:
        if self._waiting:
            raise InvalidRequest("another task waits for this consumer's next record: give each task a consumer")
        self._finish()
        self._waiting = True
        try:
            if not self._records and not await self._fetch():
                raise StopAsyncIteration
        finally:
            self._waiting = False
        self._given = True
        return self._records[0]

    def _finish(self) -> None:
        """The record that the loop has is handled."""
        if self._given:
            self._given = False
            self._records.popleft()

    async def _fetch(self) -> bool:
        """Wait for records, up to `consumer_timeout_ms`; whether there are any."""
        clock = asyncio.get_running_loop().time
        end = clock() + self._timeout_ms / 1000
        left_ms = math.inf
        while not self._records and left_ms > 0:
            left_ms = max(0.0, 1000 * (end - clock()))
            if self._polling is None:
                self._polling = self._threads.submit(self._poll, min(POLL_MS, left_ms))
            await self._take(self._polling)
        return bool(self._records)

    def _poll(self, timeout_ms: float) -> list[ConsumerRecord]:
        return [record for part in self._consumer.poll(timeout_ms).values() for record in part]

    async def _take(self, polling: Future[list[ConsumerRecord]]) -> None:
        """Wait for the poll in progress.  A cancelled wait leaves the poll, with its records, to the next one."""
        try:
            found = await AsyncResult(polling)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._polling = None
            raise
        if self._polling is polling:  # another task may have closed the consumer
            self._polling = None
            self._records.extend(found)

    # ------------------------------------------------------------------------------------------------------ positions

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit the given positions; by default, the positions after all handled records.

        The record that the loop has is handled then.  Errors are those of `Consumer.commit`.  If the `await` is
        cancelled, the positions may be committed or not.
        """
        self._finish()
        await self._threads.call(self._commit, tuple(self._records), self._polling, offsets)

    def _commit(
        self,
        records: Sequence[ConsumerRecord],
        polling: Future[list[ConsumerRecord]] | None,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None,
    ) -> None:
        if offsets is None:
            unhandled = _first_offsets([*records, *_found(polling)])
            offsets = {tp: unhandled.get(tp, at) for tp, at in self._consumer.returned().items()}
        self._consumer.commit(offsets)

    async def committed(self, partition: TopicPartition) -> int | None:
        """The committed offset of a partition, or None."""
        found = await self._threads.call(self._consumer.committed, partition)
        return found if found is None or isinstance(found, int) else found.offset

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading a partition at an offset."""
        await self._threads.call(self._rewound(), self._consumer.seek, partition, offset)

    async def subscribe(
        self, topics: Iterable[str] | str = (), pattern: str | None = None, listener: object = None
    ) -> None:
        """Subscribe to topics, as `Consumer.subscribe`.  The listener is called in the consumer's thread."""
        await self._threads.call(self._rewound(), self._consumer.subscribe, topics, pattern, listener)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group membership.  Raises UnknownTopicOrPartition."""
        await self._threads.call(self._rewound(), self._consumer.assign, partitions)

    def _rewound(self) -> Callable[..., None]:
        """A call that changes the consumer after it went back to the records that are not handled.  For its thread."""
        records, polling = tuple(self._records), self._polling
        self._records.clear()
        self._given, self._polling = False, None

        def rewind(change: Callable[..., object], *given: object) -> None:
            assigned = self._consumer.assignment()
            for tp, offset in _first_offsets([*records, *_found(polling)]).items():
                if tp in assigned:
                    self._consumer.seek(tp, offset)
            change(*given)

        return rewind

    # -------------------------------------------------------------------------------------------------------- the end

    async def close(self, autocommit: bool = True) -> None:
        """Commit the positions after handled records, if `enable_auto_commit`, and leave the group."""
        await self._threads.end(functools.partial(self._rewound(), self._consumer.close, autocommit))

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(autocommit=kind is None)


def _found(polling: Future[list[ConsumerRecord]] | None) -> list[ConsumerRecord]:
    """The records of a poll that was begun before; in the consumer's thread, it has ended."""
    return [] if polling is None or polling.exception() is not None else polling.result()


def _first_offsets(records: Sequence[ConsumerRecord]) -> dict[TopicPartition, int]:
    return {TopicPartition(one.topic, one.partition): one.offset for one in reversed(records)}
