"""What do many groups, and a group of many members, cost a coordinator?

*Idle*: groups of one member each whose heartbeats wait for a change, in simulated time, at a hundredth of the groups
and at all of them: CPU of the event loop for a heartbeat.  By hand: no heartbeat and no timer depends on other groups,
so the two are equal. *Joins*: all members of one group join and sync: CPU for half of the members and for all.  By
hand: twice as much. *Service*: a real coordinator of a log with all these groups, and ten partitions for each: the
longest pause of its event loop while it takes over, and while `/metrics` is read, for the first time and again after
ten commits; CPU for such a scrape, by hand some milliseconds, because a hundred lines changed; and CPU for a heartbeat
over HTTP, beside that of a server of aiohttp's that only waits as long and answers.  Pauses are those of a busy
machine, and the shortest of the rounds.
"""

from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import common
import msgspec
from aiohttp import web

import spark_log
from simulation.harness.simulated_loop import LoopClock, run_simulated
from spark_log.errors import NotCoordinator
from spark_log.groups.group import GroupConfig, Roster, RosterMember
from spark_log.groups.messages import HeartbeatRequest, JoinGroupRequest, MemberProtocol, SyncGroupRequest
from spark_log.groups.subscription import ProtocolAssignment, Subscription, encode
from spark_log.journal.storage.commit_protocol import Proposal
from spark_log.journal.store_operations import Answered
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.groups.group_commands import CommitOffsets, SetGeneration
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.replay import replay_records
from spark_log.metadata.state import Leadership, State
from spark_log.model import TopicPartition
from spark_log.serve.serve import GARBAGE, SWITCH_S, start
from spark_log.serve.serve_config import ServeConfig
from spark_log.server.group_coordinator import Groups

SESSION_MS, HEARTBEAT_MS = 45_000, 15_000
ROUNDS = 6
"""Heartbeats of each member."""
MEMBERS = 3_000
PARTITIONS = 4
"""Positions of each group."""
WIDE = 100
"""Partitions of each other topic; there is one for each ten groups."""
CALLERS, CALLS, WAIT_MS = 200, 20, 100
"""Members that send heartbeats over HTTP, how many each, and how long each of them waits."""
SUBSCRIPTION = encode(Subscription(topics=("t",)))


class Instant:
    """A journal that commits immediately."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.epoch = 1

    def submit(self, commands: Any) -> Future[Answered]:
        done: Future[Answered] = Future()
        for command in commands:
            records = command(self.state, self.state.time).records
            self.state = replay_records(replace(self.state, version=self.state.version + 1), records)
        done.set_result(Answered([None] * len(commands)))
        return done

    def not_leading(self) -> NotCoordinator:
        return NotCoordinator("another one leads", address="", epoch=0)


def roster(group: str) -> Roster:
    assignment = encode(
        ProtocolAssignment(partitions=tuple(TopicPartition("t", number) for number in range(PARTITIONS)))
    )
    member = RosterMember(f"{group}-0", None, "client", "host", SESSION_MS, 300_000, SUBSCRIPTION, assignment)
    return Roster(1, "consumer", "range", member.member_id, (member,), 0)


def stored(groups: int) -> State:
    journal = Instant(State(version=5, coordinator=Leadership(epoch=1, address="here:1")))
    for number in range(groups):
        journal.submit([SetGeneration(group=f"g{number}", roster=roster(f"g{number}"))])
    return journal.state


def heartbeat_us(count_of_groups: int) -> float:
    """CPU for one heartbeat that waits."""
    clock = LoopClock()
    groups = Groups(Instant(stored(count_of_groups)), clock, lambda: "id", GroupConfig())

    async def member(number: int) -> None:
        await asyncio.sleep(HEARTBEAT_MS / 1000 * number / count_of_groups)
        request = HeartbeatRequest(group_id=f"g{number}", member_id=f"g{number}-0", generation_id=1)
        for _ in range(ROUNDS):
            assert (await groups.ask(request, HEARTBEAT_MS, "host")).error == "NONE"

    async def all_members() -> float:
        groups.notice()
        begun = time.process_time()
        await asyncio.gather(*(member(number) for number in range(count_of_groups)))
        return time.process_time() - begun

    return run_simulated(all_members(), clock) / count_of_groups / ROUNDS * 1e6


def joins_s(members: int) -> float:
    """CPU until all members of a new group have their assignment."""
    clock, ids = LoopClock(), count()
    groups = Groups(Instant(stored(0)), clock, lambda: f"{next(ids)}", GroupConfig())

    async def member() -> None:
        request = JoinGroupRequest(
            group_id="g",
            protocols=(MemberProtocol("range", SUBSCRIPTION),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=300_000,
        )
        named: Any = await groups.ask(request, 0, "host")
        joined: Any = await groups.ask(msgspec.structs.replace(request, member_id=named.member_id), 0, "host")
        mine = {"group_id": "g", "member_id": joined.member_id, "generation_id": joined.generation_id}
        assignments = {one.member_id: b"x" for one in joined.members}
        await groups.ask(SyncGroupRequest(**mine, assignments=assignments), 0, "host")

    async def all_members() -> float:
        groups.notice()
        begun = time.process_time()
        await asyncio.gather(*(member() for _ in range(members)))
        return time.process_time() - begun

    return run_simulated(all_members(), clock)


# ------------------------------------------------------------------------------------------------------------ the service


def fill(folder: str, groups: int) -> None:
    """A log with groups of one member each."""
    journal = spark_log.connect(folder, durability="os").journal
    epoch = journal.take_over(0, "127.0.0.1:1", "bench")
    journal.propose(CreateTopic(name="t", partitions=PARTITIONS, topic_id="id"))
    for number in range(groups // 10):
        journal.propose(CreateTopic(name=f"wide{number}", partitions=WIDE, topic_id=f"wide{number}"))
    for first in range(0, groups, 500):
        names = [f"g{number}" for number in range(first, min(first + 500, groups))]
        entries = tuple(OffsetEntry("id", number, 0) for number in range(PARTITIONS))
        proposals = [Proposal(CommitOffsets(commit=GroupCommit(name, -1, entries))) for name in names]
        journal.carry_out(proposals)
        proposals = [Proposal(SetGeneration(group=name, roster=roster(name))) for name in names]
        journal.carry_out(proposals)
        assert not any(one.error for one in proposals), proposals[0].error
    journal.release(epoch)


class Pauses:
    """How long the event loop does not come back to a task that is always ready."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last - 0.001), now

    def stop(self) -> float:
        self._task.cancel()
        return self.longest


async def longest_pause(steps: Callable[[], Awaitable[Any]]) -> float:
    await asyncio.sleep(0.3)
    pauses = Pauses()
    await asyncio.sleep(0.01)
    await steps()
    await asyncio.sleep(0.05)
    return pauses.stop()


async def service(folder: str, groups: int, rounds: int) -> dict[str, float]:
    config = ServeConfig(url=folder, listen="127.0.0.1:0", maintain_ms=None, durability="os")
    taken, first, scraped, cpu, called, waited, text = [], [], [], [], [], [], b""
    for _ in range(rounds):
        running: Any = None

        async def begin() -> None:
            nonlocal running
            running = await start(config)
            while not running.coordinator.leading:
                await asyncio.sleep(0.001)
            await asyncio.sleep(1)

        taken.append(await longest_pause(begin))

        async def scrape(running: Any = running) -> None:
            nonlocal text
            url = f"http://{running.coordinator.address}/metrics"
            begun = time.process_time()
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read())
            cpu.append(time.process_time() - begun)

        first.append(await longest_pause(scrape))
        for _ in range(3):
            await asyncio.to_thread(commit, running)
            scraped.append(await longest_pause(scrape))
        assert f'pylog_groups{{state="Stable"}} {groups}'.encode() in text
        callers = min(CALLERS, groups)
        called.append(await heartbeats(running.coordinator.address, running.coordinator.cluster_id, callers))
        waited.append(await heartbeats_of_nothing(callers))
        await running.stop()
    return {
        "take_over_pause_ms": min(taken) * 1e3,
        "first_metrics_pause_ms": min(first) * 1e3,
        "metrics_pause_ms": min(scraped) * 1e3,
        "metrics_cpu_ms": min(cpu) * 1e3,
        "http_heartbeat_us": min(called) * 1e6,
        "http_wait_us": min(waited) * 1e6,
    }


def commit(running: Any) -> None:
    """Ten commits of positions."""
    for number in range(10):
        position = CommitOffsets(commit=GroupCommit(f"other{number}", -1, (OffsetEntry("id", 0, 0),)))
        assert running.coordinator.submit([position]).result(60).outcomes == [None]


async def heartbeats(address: str, cluster_id: str, callers: int) -> float:
    """CPU seconds of this process, which serves, for one heartbeat that waits."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=call, args=(there, address, cluster_id, callers))
    process.start()
    await asyncio.to_thread(here.recv)
    begun = time.process_time()
    await asyncio.to_thread(here.recv)
    seconds = time.process_time() - begun
    process.join()
    return seconds / callers / CALLS


async def heartbeats_of_nothing(callers: int) -> float:
    """CPU seconds for one heartbeat of a server that only waits."""

    async def answer(request: web.BaseRequest) -> web.Response:
        await request.read()
        await asyncio.sleep(WAIT_MS / 1000)
        return web.Response(body=b'{"response":{}}', content_type="application/json")

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    seconds = await heartbeats(f"{host}:{port}", "", callers)
    await runner.cleanup()
    return seconds


def call(parent: Connection, address: str, cluster_id: str, callers: int) -> None:
    """Send heartbeats from another process, which says when they begin and when they end."""

    async def member(session: aiohttp.ClientSession, number: int, times: int) -> None:
        request = HeartbeatRequest(group_id=f"g{number}", member_id=f"g{number}-0", generation_id=1)
        body = msgspec.json.encode({"cluster_id": cluster_id, "request": request, "wait_ms": WAIT_MS})
        for _ in range(times):
            async with session.post(f"http://{address}/v1/group/heartbeat", data=body) as answer:
                found = msgspec.json.decode(await answer.read())["response"]
                assert found.get("error", "NONE") == "NONE", found

    async def all_members() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), raise_for_status=True) as session:
            for times in (1, CALLS):
                await asyncio.gather(*(member(session, number, times) for number in range(callers)))
                parent.send(None)

    asyncio.run(all_members())


def main() -> None:
    given = common.arguments(
        __doc__, rows=10_000, of="groups; fewer than 3,000 also limit the members", rounds=3, warm=None
    )
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*GARBAGE)
    few, members = max(10, given.rows // 100), min(MEMBERS, given.rows)
    idle = [(heartbeat_us(few), heartbeat_us(given.rows)) for _ in range(given.rounds)]
    joined = [(joins_s(members // 2), joins_s(members)) for _ in range(given.rounds)]
    with common.folder() as folder:
        fill(folder, given.rows)
        served = asyncio.run(service(folder, given.rows, given.rounds))
    common.report(
        "groups",
        groups=given.rows,
        heartbeat_us=min(many for _, many in idle),
        heartbeat_ratio_to_a_hundredth=statistics.median(many / few for few, many in idle),
        members=members,
        joins_s=min(whole for _, whole in joined),
        joins_exponent=math.log2(statistics.median(whole / half for half, whole in joined)),
        **served,
        http_heartbeat_target_us=100,
    )


if __name__ == "__main__":
    main()
