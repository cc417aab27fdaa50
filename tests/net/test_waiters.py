"""Requests that wait for news."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from spark_log.net.waiters import AT_ONCE, Waiters


def test_thousands_are_woken_a_few_at_a_time() -> None:
    """Whatever else came to the event loop meanwhile is done in between."""

    async def scenario() -> list[int]:
        waiters = Waiters()
        waiting = [waiters.join(("a",), 1) for _ in range(10 * AT_ONCE)]
        waiters.wake(lambda topics, since: True)
        seen = []
        while sum(waiter.done() for waiter in waiting) < len(waiting):
            seen.append(sum(waiter.done() for waiter in waiting))
            await asyncio.sleep(0)
        return seen

    seen = asyncio.run(scenario())
    assert seen[0] == AT_ONCE
    assert all(later - earlier <= AT_ONCE for earlier, later in pairwise(seen))


def test_only_those_are_woken_for_whom_there_is_news() -> None:
    """The others wait on."""

    async def scenario() -> tuple[bool, bool]:
        waiters = Waiters()
        one, other = waiters.join(("a",), 1), waiters.join(("b",), 1)
        waiters.wake(lambda topics, since: topics == ("a",))
        return one.done(), other.done()

    assert asyncio.run(scenario()) == (True, False)


def test_who_has_left_is_not_woken() -> None:
    """Also between being due and being woken."""

    async def scenario() -> None:
        waiters = Waiters()
        waiting = [waiters.join(None, 1) for _ in range(AT_ONCE + 1)]
        waiters.wake(lambda topics, since: True)
        last = next(waiter for waiter in waiting if not waiter.done())
        waiters.leave(None, 1, last)
        await asyncio.sleep(0)
        assert last.cancelled()
        waiters.wake(lambda topics, since: True)

    asyncio.run(scenario())
