"""asyncio: appends, sends and consumers whose waits are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log.aio import AsyncConsumer, AsyncLog
from spark_log.errors import InvalidRequest, UnknownTopicOrPartition
from spark_log.model import TopicPartition
from tests.client.logs import log_url, new_log, values

P0 = TopicPartition("orders", 0)


def on_a_log(folder: Path, body: Callable[[AsyncLog], Awaitable[Any]], records: int = 0) -> Any:
    """Run a coroutine on a log with the topic "orders" of one partition, which has records 0, 1, …."""
    log = new_log(folder, orders=1)
    if records:
        log.append("orders", [{"value": b"%d" % number} for number in range(records)])

    async def main() -> Any:
        async with spark_log.aio.connect(log_url(folder)) as opened:
            return await body(opened)

    return asyncio.run(main())


def reader(log: AsyncLog, **settings: Any) -> AsyncConsumer:
    """A member of the group "billing", which reads from the beginning until there is nothing more."""
    given = {"group_id": "billing", "auto_offset_reset": "earliest", "consumer_timeout_ms": 1000, **settings}
    return log.consumer("orders", **given)


async def read(consumer: AsyncConsumer, count: int | None = None) -> list[int]:
    """The numbers of records, up to `count`."""
    found: list[int] = []
    async for record in consumer:
        found.append(int(record.value or b""))
        if len(found) == count:
            break
    return found


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task that is under way."""
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def wait_for(result: Awaitable[Any]) -> Any:
    return await result


# ----------------------------------------------------------------------------------------------------------- the log


# Promise: clients.md#asyncio
def test_a_log_is_written_and_read(tmp_path: Path) -> None:
    """Results are those of the blocking calls."""

    async def body(log: AsyncLog) -> None:
        written = await asyncio.gather(*(log.append("orders", [{"value": "x"}] * 2) for _ in range(20)))
        assert sorted(offset for one in written for offset in one[P0]) == list(range(40))
        assert (await log.read("orders", start=30)).num_rows == 10
        assert (await log.topics())["orders"].records == 40
        assert await log.call(log.sync.admin.list_topics) == ["orders"]
        with pytest.raises(UnknownTopicOrPartition):
            await log.read("nothing")

    on_a_log(tmp_path, body)


# Promise: clients.md#asyncio
def test_a_cancelled_append_can_be_awaited_again(tmp_path: Path) -> None:
    """It is done once, and its offsets are known."""

    async def body(log: AsyncLog) -> None:
        for number in range(10):
            written = log.append("orders", [{"value": "x"}])
            await cancelled(asyncio.create_task(wait_for(written)))
            assert await written == {P0: range(number, number + 1)} and written.done()
        refused = log.append("orders", [{"valu": "x"}])
        await cancelled(asyncio.create_task(wait_for(refused)))
        with pytest.raises(spark_log.errors.InvalidRecord):
            await refused

    on_a_log(tmp_path, body)
    assert len(values(new_log(tmp_path), "orders")) == 10


# Promise: clients.md#asyncio
def test_leaving_the_block_waits_for_appends(tmp_path: Path) -> None:
    """Nobody awaits them, and an error ends the block."""

    async def body(log: AsyncLog) -> None:
        for _ in range(5):
            log.append("orders", [{"value": "x"}])
        raise KeyError("orders")

    with pytest.raises(KeyError):
        on_a_log(tmp_path, body)
    assert len(values(new_log(tmp_path), "orders")) == 5


def test_a_log_that_is_closed_says_so(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.close()
        with pytest.raises(InvalidRequest, match=r"the log is closed"):
            await log.read("orders")
        assert "AsyncLog" in repr(log)

    on_a_log(tmp_path, body)


# ------------------------------------------------------------------------------------------------------ the producer


# Promise: clients.md#asyncio
def test_a_producer_keeps_the_order_of_sends(tmp_path: Path) -> None:
    """Positions and errors come with the results."""

    async def body(log: AsyncLog) -> None:
        async with log.producer() as producer:
            sent = [producer.send("orders", b"%d" % number) for number in range(100)]
            assert [done.offset for done in await asyncio.gather(*sent)] == list(range(100))
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("orders", b"x", partition=7)
            await producer.flush()
        with pytest.raises(InvalidRequest, match=r"the producer is closed"):
            producer.send("orders", b"x")

    on_a_log(tmp_path, body)
    assert values(new_log(tmp_path), "orders") == [b"%d" % number for number in range(100)]


# Promise: clients.md#asyncio
def test_a_cancelled_send_is_in_the_log_when_the_block_ends(tmp_path: Path) -> None:
    """The cancellation passes through the block, which waits."""

    async def body(log: AsyncLog) -> None:
        begun = asyncio.Event()

        async def send() -> None:
            async with log.producer(linger_ms=1000) as producer:
                sent = producer.send("orders", b"x")
                begun.set()
                await sent

        task = asyncio.create_task(send())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await log.read("orders")).num_rows == 1

    on_a_log(tmp_path, body)


# ------------------------------------------------------------------------------------------------------ the consumer


# Promise: clients.md#asyncio
def test_a_consumer_is_an_async_iterator(tmp_path: Path) -> None:
    """It ends after `consumer_timeout_ms`; on leaving the block, the handled records are committed."""

    async def body(log: AsyncLog) -> None:
        async with reader(log) as consumer:
            assert await read(consumer) == list(range(10))
        async with reader(log) as consumer:
            assert await consumer.committed(P0) == 10 and await read(consumer) == []
        assert "AsyncConsumer" in repr(consumer)
        with pytest.raises(InvalidRequest, match=r"the consumer is closed"):
            await anext(consumer)

    on_a_log(tmp_path, body, records=10)


# Promise: clients.md#asyncio
def test_the_record_of_a_loop_that_ended_early_is_read_again(tmp_path: Path) -> None:
    """By the next loop, and by the next consumer; `commit` counts it as handled."""

    async def body(log: AsyncLog) -> None:
        async with reader(log) as consumer:
            assert await read(consumer, 3) == [0, 1, 2]
            assert await read(consumer, 2) == [2, 3]
        async with reader(log) as consumer:
            assert await consumer.committed(P0) == 3
            assert await read(consumer, 3) == [3, 4, 5]
            await consumer.commit()
            assert await consumer.committed(P0) == 6
            assert await read(consumer, 1) == [6]
        async with reader(log) as consumer:
            assert await read(consumer) == [6, 7, 8, 9]

    on_a_log(tmp_path, body, records=10)


# Promise: clients.md#asyncio
def test_nothing_is_committed_after_an_error(tmp_path: Path) -> None:
    """The next consumer reads all records again."""

    async def body(log: AsyncLog) -> None:
        with suppress(KeyError):
            async with reader(log) as consumer:
                await read(consumer, 5)
                raise KeyError("orders")
        async with reader(log) as consumer:
            assert await consumer.committed(P0) is None and await read(consumer) == list(range(10))

    on_a_log(tmp_path, body, records=10)


# Promise: clients.md#asyncio
def test_a_record_that_was_fetched_for_a_cancelled_loop_is_given_to_the_next(tmp_path: Path) -> None:
    """The poll ends after the cancellation."""

    async def body(log: AsyncLog) -> None:
        async with reader(log, consumer_timeout_ms=60_000) as consumer:
            waiting = asyncio.create_task(read(consumer))
            await asyncio.sleep(0.05)
            await cancelled(waiting)
            await log.append("orders", [{"value": "7"}])
            await consumer.commit()
            assert await consumer.committed(P0) in (None, 0)
            assert await read(consumer, 1) == [7]

    on_a_log(tmp_path, body)


# Promise: clients.md#asyncio
def test_a_timeout_around_a_loop_loses_nothing(tmp_path: Path) -> None:
    """The loop is cancelled in its body, and the task leaves the block without an error."""

    async def body(log: AsyncLog) -> None:
        async def times_out() -> None:
            async with reader(log) as consumer:
                with suppress(asyncio.CancelledError):
                    async for record in consumer:
                        if record.offset == 4 and (task := asyncio.current_task()):
                            task.cancel()
                            await asyncio.sleep(0)

        await asyncio.create_task(times_out())
        async with reader(log) as consumer:
            assert await read(consumer) == [4, 5, 6, 7, 8, 9]

    on_a_log(tmp_path, body, records=10)


# Promise: clients.md#asyncio
def test_a_consumer_seeks_and_is_assigned(tmp_path: Path) -> None:
    """Records that it had fetched are left out."""

    async def body(log: AsyncLog) -> None:
        async with log.consumer(consumer_timeout_ms=1000) as consumer:
            await consumer.assign([P0])
            await consumer.seek(P0, 2)
            assert await read(consumer, 2) == [2, 3]
            await consumer.seek(P0, 8)
            assert await read(consumer) == [8, 9]
            await consumer.seek(P0, 0)
            assert await read(consumer, 1) == [0]

    on_a_log(tmp_path, body, records=10)


# Promise: clients.md#asyncio
def test_two_tasks_cannot_wait_for_one_consumer(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        async with reader(log, consumer_timeout_ms=60_000) as consumer:
            first = asyncio.create_task(wait_for(anext(consumer)))
            await asyncio.sleep(0.01)
            with pytest.raises(InvalidRequest, match=r"give each task a consumer"):
                await anext(consumer)
            await cancelled(first)

    on_a_log(tmp_path, body)


# Promise: clients.md#asyncio
def test_the_event_loop_continues_while_a_consumer_waits(tmp_path: Path) -> None:
    """Other tasks run."""

    async def body(log: AsyncLog) -> None:
        async with reader(log) as consumer:
            turns, waiting = 0, asyncio.create_task(read(consumer))
            while not waiting.done():
                turns += 1
                await asyncio.sleep(0.001)
            assert turns > 5

    on_a_log(tmp_path, body)
