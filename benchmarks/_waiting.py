"""Load on a coordinator in its benchmark: thousands of waiting long polls, and the members of one group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec

from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberProtocol,
    SyncGroupRequest,
)
from spark_log.groups.subscription import Subscription, encode

GROUP = "crowd"


async def wake(
    address: str,
    cluster_id: str,
    topic_id: str,
    since: int,
    count: int,
    before: Callable[[], object],
    append: Callable[[], object],
    after: Callable[[], object],
) -> float:
    """Seconds from an append until all `count` clients that wait for records of a topic have got the news.

    before: called when all wait and have waited for some seconds.
    after: called when all have got the news and wait again.
    """
    heard: list[float] = []
    all_heard = asyncio.Event()
    async with _session() as session:

        async def ask(version: int) -> int:
            asked = {"cluster_id": cluster_id, "since": version, "topics": [topic_id], "wait_ms": 60_000}
            async with session.post(f"http://{address}/v1/changes", json=asked) as answer:
                found: int = msgspec.json.decode(await answer.read())["version"]
            return found

        async def wait() -> None:
            version = await ask(since)
            assert version > since, "nothing had come, and it waited no longer"
            heard.append(time.perf_counter())
            if len(heard) == count:
                all_heard.set()
            await ask(version)

        waits = []
        for number in range(count):
            waits.append(asyncio.create_task(wait()))
            if number % 100 == 99:
                await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        assert not heard, "somebody did not wait"
        await asyncio.to_thread(before)
        assert not heard, "somebody heard of what was not for them"
        begun = time.perf_counter()
        await asyncio.to_thread(append)
        await all_heard.wait()
        await asyncio.to_thread(after)
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return max(heard) - begun


async def rebalance(address: str, cluster_id: str, count: int, cpu_s: Callable[[], float]) -> tuple[float, float]:
    """Seconds that a group of `count` members needs to become stable after one more has joined, and the coordinator's
    CPU seconds.
    """
    async with _session() as session:

        async def ask(path: str, request: Any, wait_ms: int = 0) -> Any:
            body = msgspec.json.encode({"cluster_id": cluster_id, "request": request, "wait_ms": wait_ms})
            async with session.post(f"http://{address}/v1/group/{path}", data=body) as answer:
                answer.raise_for_status()
                return msgspec.json.decode(await answer.read())["response"]

        generations: list[int] = []
        settled = asyncio.Event()
        members = [asyncio.create_task(_member(ask, generations, settled, count)) for _ in range(count)]
        await settled.wait()
        await asyncio.sleep(1)
        settled.clear()
        generations.clear()
        begun, before = time.perf_counter(), cpu_s()
        members.append(asyncio.create_task(_member(ask, generations, settled, count + 1)))
        await settled.wait()
        took = time.perf_counter() - begun, cpu_s() - before
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    return took


async def _member(
    ask: Callable[..., Awaitable[Any]], generations: list[int], settled: asyncio.Event, expected: int
) -> None:
    """Rejoins whenever it has to.

    generations: those in which members have their assignments; `settled` is set once `expected` or more are in the last
    one.
    """
    member_id = ""
    metadata = encode(Subscription(topics=("t",)))
    while True:
        request = JoinGroupRequest(
            group_id=GROUP,
            member_id=member_id,
            protocols=(MemberProtocol("range", metadata),),
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            require_known_member_id=False,
        )
        joined = msgspec.convert(await ask("join", request), JoinGroupResponse)
        member_id, generation = joined.member_id, joined.generation_id
        given = {member.member_id: b"x" for member in joined.members}
        mine = {"group_id": GROUP, "member_id": member_id, "generation_id": generation}
        synced = await ask("sync", SyncGroupRequest(**mine, assignments=given))
        if "error" not in synced or synced["error"] == Code.NONE.value:
            generations.append(generation)
            if generations.count(max(generations)) >= expected:
                settled.set()
            while (await ask("heartbeat", HeartbeatRequest(**mine), 10_000)).get("error") in (None, Code.NONE.value):
                pass


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(None), raise_for_status=True
    )
