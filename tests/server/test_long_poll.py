"""Requests that wait for changes."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec

from simulation.harness.simulated_loop import LoopClock, run_simulated
from spark_log.rpc.messages import ChangesRequest, TopicsRequest
from spark_log.server.long_poll import TOPICS_MAX, WOKEN_MAX, LongPolls, Topics, of_few


# Promise: measurements-alone.md#many-waiting-clients, monitoring.md#watch-a-coordinator
def test_thousands_are_woken_a_few_at_a_time() -> None:
    """Whatever else came to the event loop meanwhile is done in between."""

    async def scenario() -> list[int]:
        waiters = LongPolls()
        waiting = [waiters.join(("a",)) for _ in range(10 * WOKEN_MAX)]
        waiters.wake({"a"})
        seen = []
        while sum(waiter.done() for waiter in waiting) < len(waiting):
            assert waiters.is_waking
            seen.append(sum(waiter.done() for waiter in waiting))
            await asyncio.sleep(0)
        assert not waiters.is_waking
        return seen

    seen = asyncio.run(scenario())
    assert seen[0] == WOKEN_MAX
    assert all(later - earlier <= WOKEN_MAX for earlier, later in pairwise(seen))


def woken(touched: set[str] | None, *waited_for: Topics) -> list[bool]:
    """Those of the clients waiting for these topics that are woken."""

    async def scenario() -> list[bool]:
        waiters = LongPolls()
        waiting = [waiters.join(topics) for topics in waited_for]
        waiters.wake(touched)
        return [waiter.done() for waiter in waiting]

    return asyncio.run(scenario())


# Promise: monitoring.md#watch-a-coordinator
def test_only_those_are_woken_whose_topics_were_touched() -> None:
    """And those who wait for anything; the others wait on."""
    assert woken({"a", "c"}, ("a",), ("b",), ("b", "c"), None, ()) == [True, False, True, True, False]
    assert woken(set(), ("a",), None) == [False, True]


def test_a_request_with_too_many_topics_waits_for_any_change() -> None:
    """The server keeps none of them: a tenant could make it keep millions."""
    few = ChangesRequest(cluster_id="c", since=1, wait_ms=1, topics=tuple(map(str, range(TOPICS_MAX))))
    many = TopicsRequest(cluster_id="c", held=msgspec.Raw(b"{}"), topics=(*few.topics, "one more"))  # type: ignore[misc]
    assert of_few(few) is few
    assert of_few(many) == msgspec.structs.replace(many, topics=None)


def test_everybody_is_woken_if_nobody_knows_what_was_touched() -> None:
    """Those as well who wait for no topic."""
    assert woken(None, ("a",), ("a", "b"), None, ()) == [True, True, True, True]


def test_who_has_left_is_not_woken() -> None:
    """Also between being due and being woken."""

    async def scenario() -> None:
        waiters = LongPolls()
        waiting = [waiters.join(("a", "b")) for _ in range(WOKEN_MAX + 1)]
        waiters.wake({"a"})
        last = next(waiter for waiter in waiting if not waiter.done())
        for waiter in waiting:
            waiters.leave(("a", "b"), waiter)
        waiters.wake({"b"})
        await asyncio.sleep(0)
        assert last.cancelled()

    asyncio.run(scenario())


def test_a_wait_ends_with_its_condition_its_time_or_its_signal() -> None:
    """The condition is asked again whenever the topics were touched."""
    clock = LoopClock()

    async def scenario() -> tuple[list[int], int]:
        waiters, loop, asked, ends = LongPolls(), asyncio.get_running_loop(), list[bool](), list[int]()
        begun, signal = clock.now_ms(), loop.create_future()

        def after_three() -> bool:
            asked.append(len(asked) == 3)
            return asked[-1]

        for second in (1, 5, 7):
            loop.call_later(second, waiters.wake, ("a",))
        loop.call_later(11, signal.set_result, None)
        for condition, seconds in ((after_three, 60), (lambda: False, 2), (lambda: False, 60), (lambda: False, 60)):
            await waiters.until(condition, ("a",), seconds, signal)
            ends.append(clock.now_ms() - begun)
        assert waiters.waiting == 0
        return ends, len(asked)

    assert run_simulated(scenario(), clock) == ([7_000, 9_000, 11_000, 11_000], 4)
