"""An odd argument of a call with asyncio is accepted, or refused alone, as that of the call that blocks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_log.aio
from spark_log import TopicPartition
from spark_log.aio import AsyncConsumer, AsyncLog, AsyncProducer
from spark_log.errors import SparkLogError
from spark_log.recovery.verify import verify
from tests.client.logs import log_url, new_log
from tests.client.test_odd_arguments import given

ENDS, OF_PYTHON = "close", "call"
"""`call` runs any function, whose errors are its own."""
Caller = AsyncLog | AsyncProducer | AsyncConsumer


def public(owner: Caller) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Each public call, with arguments of which one is odd."""
    for name, call in inspect.getmembers(owner, inspect.ismethod):
        if name[0] != "_" and name not in (ENDS, OF_PYTHON):
            yield from ((name, arguments, named) for arguments, named in given(call))


async def outcome(owner: Caller, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    """The error of a call, if it is not one of pylog's."""
    try:
        found = getattr(owner, name)(*arguments, **named)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, AsyncConsumer | AsyncProducer):
            await found.close()
    except SparkLogError:
        return None
    except Exception as error:  # noqa: BLE001  what a user would get
        return f"{name}: {error!r:.200} for {[type(one).__name__ for one in (*arguments, *named.values())]}"
    return None


async def consumer_of(log: AsyncLog, *, assigned: bool) -> AsyncConsumer:
    found = log.consumer(group_id="g", enable_auto_commit=False)
    if assigned:
        await found.assign([TopicPartition("t", 0)])
    return found


async def errors(log: AsyncLog) -> list[str | None]:
    found = [await outcome(log, *call) for call in public(log)]
    async with log.producer() as producer:
        found += [await outcome(producer, *call) for call in public(producer)]
    for assigned in (True, False):
        async with await consumer_of(log, assigned=assigned) as example:
            calls = list(public(example))
        for call in calls:
            async with await consumer_of(log, assigned=assigned) as consumer:
                found.append(await outcome(consumer, *call))
    return found


@pytest.mark.filterwarnings("ignore")
def test_calls_of_logs_producers_and_consumers(tmp_path: Path) -> None:
    """All calls are found by their names, so a new one is called, too.  Beside them, a producer continues to send."""

    async def main() -> list[str | None]:
        async with spark_log.aio.connect(log_url(tmp_path)) as log, log.producer() as neighbour:
            found = await errors(log)
            assert (await neighbour.send("t", b"x")).topic == "t"
            return found

    with new_log(tmp_path, t=1) as log:
        found = asyncio.run(main())
        assert len(found) > 300 and [error for error in found if error] == []
        assert verify(log) == []
