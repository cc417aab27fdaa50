"""Many groups, and a group of many members, on an event loop in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from simulation.harness.simulated_loop import LoopClock, run_simulated
from spark_log.groups.group import GroupConfig, Roster, RosterMember
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberProtocol,
    Response,
    SyncGroupRequest,
)
from spark_log.metadata.groups.group_commands import SetGeneration
from spark_log.server.group_coordinator import GROUPS_MAX, Groups
from tests.server.test_groups import Hand

MANY = 3 * GROUPS_MAX
SESSION_MS = 30_000
CONFIG = GroupConfig(initial_rebalance_delay_ms=100)


class Crowd:
    """A coordinator of groups g0, g1, … with one member each, m0, m1, …, in the log."""

    def __init__(self, groups: int = 0) -> None:
        self.clock, self.hand, ids = LoopClock(), Hand(), count(1)
        for number in range(groups):
            self.hand.decide(SetGeneration(group=f"g{number}", roster=alone(f"m{number}")))
        self.groups = Groups(self.hand, self.clock, lambda: f"{next(ids)}", CONFIG)

    async def ask(self, request: Any, wait_ms: int = 0) -> Response:
        return await self.groups.ask(request, wait_ms, "host")

    async def beat(self, number: int, wait_ms: int = 0) -> Code:
        request = HeartbeatRequest(group_id=f"g{number}", member_id=f"m{number}", generation_id=1)
        return (await self.ask(request, wait_ms)).error

    async def join(self, group_id: str) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=group_id,
            protocols=(MemberProtocol("range"),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
            require_known_member_id=False,
        )
        joined = await self.ask(request)
        assert isinstance(joined, JoinGroupResponse)
        return joined

    async def sync(self, group_id: str, joined: JoinGroupResponse) -> Code:
        assignments = {member.member_id: b"x" for member in joined.members}
        member_id, generation = joined.member_id, joined.generation_id
        request = SyncGroupRequest(
            group_id=group_id, member_id=member_id, generation_id=generation, assignments=assignments
        )
        return (await self.ask(request)).error

    def in_log(self) -> int:
        """Groups that have members in the log."""
        return sum(bool(group.roster.members) for group in self.hand.state.groups.values() if group.roster is not None)


def alone(member_id: str) -> Roster:
    member = RosterMember(member_id, None, "", "host", SESSION_MS, 60_000, b"", b"x")
    return Roster(1, "consumer", "range", member_id, (member,), 0)


def simulated(groups: int) -> Callable[[Callable[[Crowd], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test in simulated time."""

    def decorated(steps: Callable[[Crowd], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            crowd = Crowd(groups)
            run_simulated(steps(crowd), crowd.clock)

        run.__doc__, run.__name__ = steps.__doc__, steps.__name__
        return run

    return decorated


# Promise: service.md#groups
@simulated(MANY)
async def test_a_take_over_restores_some_groups_per_round_of_the_event_loop(crowd: Crowd) -> None:
    """Requests are handled in between, also for a group that is not restored yet; in the end all groups are."""
    crowd.groups.notice()
    counts = []
    while len(crowd.groups.views()) < MANY:
        counts.append(len(crowd.groups.views()))
        if len(counts) == 1:
            assert await crowd.beat(MANY - 1) is Code.NONE
        await asyncio.sleep(0)
    assert counts[0] == GROUPS_MAX and len(counts) >= MANY // GROUPS_MAX - 1
    assert crowd.groups.metrics_text().count("pylog_group_members{") == MANY


# Promise: service.md#groups
@simulated(MANY)
async def test_members_that_do_not_come_back_after_a_take_over_are_removed(crowd: Crowd) -> None:
    """When their session ends, all of them; a member that sends heartbeats stays."""
    crowd.groups.notice()
    for _ in range(4):
        assert [await crowd.beat(number) for number in (0, MANY - 1)] == [Code.NONE, Code.NONE]
        assert crowd.in_log() in (MANY, 2)
        await asyncio.sleep(SESSION_MS / 1000 * 0.7)
    assert crowd.in_log() == len(crowd.groups.views()) == 2
    assert await crowd.beat(1) is Code.UNKNOWN_MEMBER_ID


@simulated(MANY)
async def test_another_leader_ends_a_restore(crowd: Crowd) -> None:
    """The coordinator keeps no group that it does not lead."""
    crowd.groups.notice()
    crowd.hand.epoch = 0
    crowd.groups.notice()
    await asyncio.sleep(1)
    assert crowd.groups.views() == ()


@simulated(1)
async def test_a_heartbeat_waits_for_a_third_of_the_session_at_most(crowd: Crowd) -> None:
    """And as long as it asks to, if that is less."""
    waited = []
    for wait_ms in (4_000, SESSION_MS):
        begun = crowd.clock.now_ms()
        assert await crowd.beat(0, wait_ms) is Code.NONE
        waited.append(crowd.clock.now_ms() - begun)
    assert waited == [4_000, SESSION_MS // 3]


# Promise: service.md#groups
@simulated(0)
async def test_many_members_join_sync_and_hear_of_the_next_one(crowd: Crowd) -> None:
    """No member is lost on the way, and all are in one generation."""
    joined = await asyncio.gather(*(crowd.join("g") for _ in range(MANY)))
    assert {one.generation_id for one in joined} == {1}
    assert await asyncio.gather(*(crowd.sync("g", one) for one in joined)) == [Code.NONE] * MANY
    assert len(crowd.hand.state.groups["g"].roster.members) == MANY  # type: ignore[union-attr]
    beats = [HeartbeatRequest(group_id="g", member_id=one.member_id, generation_id=1) for one in joined]
    waiting = [asyncio.ensure_future(crowd.ask(beat, 10_000)) for beat in beats]
    await asyncio.sleep(1)
    assert not any(beat.done() for beat in waiting)
    begun, newcomer = crowd.clock.now_ms(), asyncio.ensure_future(crowd.join("g"))
    answers = await asyncio.gather(*waiting)
    assert {answer.error for answer in answers} == {Code.REBALANCE_IN_PROGRESS}
    assert crowd.clock.now_ms() == begun, "heartbeats are answered when the rebalance begins"
    newcomer.cancel()
