"""asyncio: loops over a consumer that are cancelled at random moments, on storage and through a coordinator."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import spark_log
from spark_log.aio import AsyncConsumer
from spark_log.model import TopicPartition
from tests.client.logs import log_url, new_log

P0 = TopicPartition("orders", 0)
RECORDS = 100


class Loops:
    """Handles records, and is cancelled in a poll, in the body or in a commit."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.handled: set[int] = set()

    async def run(self, url: str) -> None:
        """Until all records are handled; consumers come one after the other."""
        async with spark_log.aio.connect(url) as log:
            while len(self.handled) < RECORDS:
                async with log.consumer(
                    "orders",
                    group_id="billing",
                    auto_offset_reset="earliest",
                    max_poll_records=20,
                    auto_commit_interval_ms=10,
                ) as consumer:
                    for _ in range(self._draw.randint(1, 5)):
                        await self._cancelled(consumer)
                        await self._check(consumer)
                    await self._one(consumer)

    async def _cancelled(self, consumer: AsyncConsumer) -> None:
        task = asyncio.create_task(self._consume(consumer))
        await asyncio.sleep(self._draw.random() / 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _consume(self, consumer: AsyncConsumer) -> None:
        async for record in consumer:
            await asyncio.sleep(self._draw.choice([0, 0, 0.001]))
            self.handled.add(record.offset)
            if self._draw.random() < 0.1:
                await consumer.commit()

    async def _one(self, consumer: AsyncConsumer) -> None:
        """One more record, so that a slow machine makes progress, too."""
        if len(self.handled) < RECORDS:
            async for record in consumer:
                self.handled.add(record.offset)
                await consumer.commit()
                return

    async def _check(self, consumer: AsyncConsumer) -> None:
        assert set(range(await consumer.committed(P0) or 0)) <= self.handled


# Promise: clients.md#asyncio
@pytest.mark.parametrize("seed", range(3))
def test_cancelled_loops_lose_no_record_and_commit_none_that_was_not_handled(tmp_path: Path, seed: int) -> None:
    """With the same consumer, and with the next one."""
    new_log(tmp_path, orders=1).append("orders", [{"value": "x"}] * RECORDS)
    loops = Loops(seed)
    asyncio.run(asyncio.wait_for(loops.run(log_url(tmp_path)), 240))
    assert loops.handled == set(range(RECORDS))
