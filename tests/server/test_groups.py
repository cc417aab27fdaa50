"""The runner of groups, with a journal that the test holds in its hand: what is answered when, and what is written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import pytest

from spark_log.errors import (
    CommitUnknown,
    FencedInstanceId,
    GroupInUse,
    IllegalGeneration,
    NotCoordinator,
    RebalanceInProgress,
)
from spark_log.groups.group import ConsumerGroupState, Group, GroupConfig
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberProtocol,
    Response,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_log.journal.store_operations import Answered
from spark_log.metadata.commands import AnyCommand, Append, CreateTopic, SeveralCommands
from spark_log.metadata.groups.group_commands import CommitOffsets, Committer, DeleteOffsets, JoinGroup, SetGeneration
from spark_log.metadata.records import CommitRecord, GroupCommit, OffsetEntry
from spark_log.metadata.replay import replay_records
from spark_log.metadata.state import Leadership, State
from spark_log.runtime.clock import SystemClock
from spark_log.server.group_coordinator import Groups

CONFIG = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=10)


class Hand:
    """A journal that writes immediately, unless a test makes it hold on or fail."""

    def __init__(self) -> None:
        self.state = State(version=5, coordinator=Leadership(epoch=1, address="here:1"))
        self.epoch = 1
        self.failure: Exception | None = None
        self.holds: list[Callable[[], None]] | None = None

    def submit(self, commands: Sequence[AnyCommand | SetGeneration]) -> Future[Answered]:
        done: Future[Answered] = Future()
        failure, self.failure = self.failure, None

        def write() -> None:
            if failure is not None:
                done.set_exception(failure)
                return
            for command in commands:
                self.decide(command)
            done.set_result(Answered([None] * len(commands)))

        if self.holds is None:
            write()
        else:
            self.holds.append(write)
        return done

    def decide(self, command: Any) -> None:
        decision = command(self.state, SystemClock().now_ms())
        at = replace(self.state, version=self.state.version + 1, time=SystemClock().now_ms())
        self.state = replay_records(at, decision.records)

    def not_leading(self) -> NotCoordinator:
        return NotCoordinator("another one leads", address="there:1", epoch=self.epoch)


class Room:
    """A runner, and members that talk to it."""

    def __init__(self) -> None:
        self.hand = Hand()
        self.start()

    def start(self) -> None:
        """A coordinator that begins."""
        ids = count(1)
        self.groups = Groups(self.hand, SystemClock(), lambda: f"{next(ids)}", CONFIG)
        self.groups.notice()

    def ask(self, request: Any, wait_ms: int = 0) -> asyncio.Task[Response]:
        return asyncio.ensure_future(self.groups.ask(request, wait_ms, "host"))

    def join(
        self, member_id: str = "", instance: str | None = None, session_ms: int = 10_000
    ) -> asyncio.Task[Response]:
        return self.ask(
            JoinGroupRequest(
                group_id="g",
                member_id=member_id,
                group_instance_id=instance,
                protocols=(MemberProtocol("range"),),
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=5_000,
                require_known_member_id=False,
            )
        )

    def sync(self, joined: Response, **assignments: bytes) -> asyncio.Task[Response]:
        assert isinstance(joined, JoinGroupResponse)
        request = SyncGroupRequest(
            group_id="g", member_id=joined.member_id, generation_id=joined.generation_id, assignments=assignments
        )
        return self.ask(request)

    def beat(self, joined: Response, wait_ms: int = 0) -> asyncio.Task[Response]:
        assert isinstance(joined, JoinGroupResponse)
        request = HeartbeatRequest(group_id="g", member_id=joined.member_id, generation_id=joined.generation_id)
        return self.ask(request, wait_ms)

    async def alone(self, **settings: Any) -> JoinGroupResponse:
        """A group of one, that has its assignment."""
        joined = await self.join(**settings)
        assert isinstance(joined, JoinGroupResponse) and joined.error is Code.NONE
        assert (await self.sync(joined)).error is Code.NONE
        return joined

    def refusal(self, member_id: str, generation: int, instance: str | None = None) -> Exception | None:
        commit = GroupCommit("g", generation, ())
        return self.groups.refusal(CommitOffsets(commit=commit, by=Committer(member_id, instance)))


def test(steps: Callable[[Room], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on a separate event loop."""

    def run() -> None:
        async def main() -> None:
            await asyncio.wait_for(steps(Room()), 20)

        asyncio.run(main())

    run.__doc__, run.__name__ = steps.__doc__, steps.__name__
    return run


test.__test__ = False  # type: ignore[attr-defined]


@test
async def test_an_assignment_is_told_when_it_is_in_the_log_and_not_before(room: Room) -> None:
    """Requests that wait for it continue to wait while it is written."""
    room.hand.holds = []
    joined = await room.join()
    synced = room.sync(joined, **{joined.member_id: b"mine"})  # type: ignore[union-attr]
    await asyncio.sleep(0.05)
    assert not synced.done() and "g" not in room.hand.state.groups
    room.hand.holds.pop()()
    answer = await synced
    assert isinstance(answer, SyncGroupResponse) and answer.assignment == b"mine"
    assert room.hand.state.groups["g"].generation == joined.generation_id  # type: ignore[union-attr]


@test
async def test_an_assignment_that_may_not_be_in_the_log_is_made_again(room: Room) -> None:
    """The members get CoordinatorNotAvailable, and the next rebalance has a higher generation."""
    joined = await room.join()
    room.hand.failure = CommitUnknown("the storage did not answer")
    assert (await room.sync(joined)).error is Code.COORDINATOR_NOT_AVAILABLE  # type: ignore[union-attr]
    again = await room.join(joined.member_id)  # type: ignore[union-attr]
    assert again.generation_id > joined.generation_id  # type: ignore[union-attr]
    assert (await room.sync(again)).error is Code.NONE  # type: ignore[union-attr]


@test
async def test_who_waits_is_told_when_another_one_leads(room: Room) -> None:
    """Joins, syncs, heartbeats, commits, and all later requests."""
    alone = await room.alone()
    waiting = [room.beat(alone, wait_ms=5_000), room.join()]
    await asyncio.sleep(0.02)
    waiting.append(room.beat(alone, wait_ms=5_000))
    room.hand.epoch = 0
    room.groups.notice()
    found = await asyncio.gather(*waiting, room.join(), return_exceptions=True)
    refused = [one for one in found if isinstance(one, NotCoordinator)]
    assert len(refused) >= 2 and isinstance(found[1], NotCoordinator)
    assert isinstance(room.refusal(alone.member_id, alone.generation_id), NotCoordinator)


@test
async def test_a_coordinator_that_begins_has_the_members_and_their_generation(room: Room) -> None:
    """Their heartbeats and commits count, and who does not come back is removed when its session is over."""
    alone = await room.alone(session_ms=300)
    room.start()
    assert (await room.beat(alone)).error is Code.NONE  # type: ignore[union-attr]
    assert room.refusal(alone.member_id, alone.generation_id) is None
    await asyncio.sleep(0.6)
    assert not room.hand.state.groups["g"].roster.members  # type: ignore[union-attr]
    assert (await room.beat(alone)).error is Code.UNKNOWN_MEMBER_ID  # type: ignore[union-attr]


@test
async def test_a_heartbeat_waits_for_news_and_brings_them_at_once(room: Room) -> None:
    """Without any it is answered when it has waited long enough."""
    alone = await room.alone()
    began = asyncio.get_running_loop().time()
    assert (await room.beat(alone, wait_ms=100)).error is Code.NONE  # type: ignore[union-attr]
    assert 0.09 < asyncio.get_running_loop().time() - began < 2
    beat, rebalance_begun = room.beat(alone, wait_ms=3_000), room.groups.rebalance_begun("g")
    await asyncio.sleep(0.05)
    assert not beat.done() and rebalance_begun is not None
    room.join()
    assert (await asyncio.wait_for(beat, 1)).error is Code.REBALANCE_IN_PROGRESS  # type: ignore[union-attr]
    await asyncio.wait_for(rebalance_begun, 1)


@test
async def test_a_heartbeat_does_not_wait_so_long_that_its_member_seems_dead(room: Room) -> None:
    """A third of the session at most."""
    alone = await room.alone(session_ms=300)
    for _ in range(5):
        assert (await room.beat(alone, wait_ms=10_000)).error is Code.NONE  # type: ignore[union-attr]


@test
async def test_a_group_that_a_stream_has_takes_no_members(room: Room) -> None:
    """The error comes with the join, before anything is disturbed."""
    room.hand.decide(JoinGroup(group="g", member="stream", token="query", owner="a stream", timeout_ms=60_000))
    with pytest.raises(GroupInUse, match="a stream"):
        await room.join()


@test
async def test_a_group_whose_members_join_is_not_changed_from_outside(room: Room) -> None:
    """The log does not know them before their first assignment; a deletion and unfenced positions are still refused."""
    room.hand.decide(CreateTopic(name="t", partitions=1, topic_id="id"))
    joined = await room.join()
    assert "g" not in room.hand.state.groups
    unfenced = GroupCommit("g", -1, (OffsetEntry("id", 0, 5),))
    append = Append(commit=CommitRecord(producer="p", sequence=0, upload_epoch=0, groups=(unfenced,)))
    changes = (DeleteOffsets(group="g"), DeleteOffsets(group="g", partitions=(("id", 0),)), append)
    for change in (
        *changes,
        CommitOffsets(commit=unfenced),
        SeveralCommands(commands=(CommitOffsets(commit=unfenced),)),
    ):
        error = room.groups.refusal(change)
        assert isinstance(error, GroupInUse), change
        assert error.owner == joined.member_id  # type: ignore[union-attr]


@test
async def test_members_of_a_group_that_others_took_meanwhile_are_none(room: Room) -> None:
    """Without a generation in the log, nothing excluded others: the waiting members join again, above."""
    joined = await room.join()
    for holder in ("one", "another"):
        room.hand.decide(JoinGroup(group="g", member=holder))
    taken = room.hand.state.groups["g"].generation
    assert (await room.sync(joined)).error is Code.UNKNOWN_MEMBER_ID  # type: ignore[union-attr]
    again = await room.alone()
    assert again.generation_id > taken and room.hand.state.groups["g"].member == ""


@test
async def test_who_left_is_not_in_the_log_when_it_is_told_so(room: Room) -> None:
    """A request at that moment sees the group as it is."""
    alone = await room.alone()
    room.hand.holds = []
    left = room.ask(LeaveGroupRequest(group_id="g", members=(LeavingMember(alone.member_id),)))
    await asyncio.sleep(0.02)
    assert not left.done()
    room.hand.holds.pop()()
    await left
    assert not room.hand.state.groups["g"].roster.members  # type: ignore[union-attr]


@test
async def test_commits_are_judged_by_member_and_generation(room: Room) -> None:
    """And refused with what to do."""
    old = await room.alone(instance="static")
    assert room.refusal(old.member_id, old.generation_id, "static") is None
    assert isinstance(room.refusal(old.member_id, old.generation_id - 1), IllegalGeneration)
    assert isinstance(room.refusal("somebody", old.generation_id), IllegalGeneration)
    assert isinstance(room.refusal("", -1), IllegalGeneration)
    new = await room.join(instance="static")
    assert isinstance(room.refusal(old.member_id, old.generation_id, "static"), FencedInstanceId)
    other = room.join()
    await room.join(new.member_id, "static")  # type: ignore[union-attr]
    joined = await other
    assert isinstance(room.refusal(joined.member_id, joined.generation_id), RebalanceInProgress)  # type: ignore[union-attr]


# Promise: service.md#leadership
@test
async def test_a_change_that_is_in_is_not_refused_when_it_is_sent_again(room: Room) -> None:
    """Its answer was lost, and others have the group by now: it is answered as the repeat that it is."""
    room.hand.decide(CreateTopic(name="t", partitions=1, topic_id="id"))
    alone = await room.alone()
    entry, by = OffsetEntry("id", 0, 5), Committer(alone.member_id)
    append = Append(
        commit=CommitRecord(
            producer="p", sequence=0, upload_epoch=6, groups=(GroupCommit("g", alone.generation_id, (entry,)),)
        ),
        by=(("g", by),),
    )
    commit = CommitOffsets(commit=GroupCommit("g", alone.generation_id, (entry,)), by=by)
    assert room.groups.refusal(append) is None and room.groups.refusal(commit) is None
    room.hand.decide(append)
    room.join()  # the group rebalances
    await asyncio.sleep(0)
    moved = msgspec.structs.replace(
        commit, commit=GroupCommit("g", alone.generation_id - 1, (entry._replace(offset=6),))
    )
    assert isinstance(room.groups.refusal(moved), IllegalGeneration)
    assert room.groups.refusal(append) is None
    assert room.groups.refusal(SeveralCommands(commands=(append,))) is None


# Promise: service.md#leadership
@test
async def test_a_deletion_that_is_in_is_not_refused_when_it_is_sent_again(room: Room) -> None:
    """Members have joined a new group of that name meanwhile: it stays."""
    await room.join()
    assert room.groups.refusal(DeleteOffsets(group="g", known=True)) is None
    assert isinstance(room.groups.refusal(DeleteOffsets(group="g")), GroupInUse)


@test
async def test_positions_stay_while_members_join(room: Room) -> None:
    """Nobody knows yet what they will read."""
    alone = await room.alone()
    stored = room.hand.state.groups["g"]
    kept = stored._replace(offsets=stored.offsets.set(("topic", 0), None))  # type: ignore[arg-type]
    room.hand.state = replace(room.hand.state, groups=room.hand.state.groups.set("g", kept))
    assert room.groups.held_positions() == ()
    room.join()
    await asyncio.sleep(0.02)
    assert room.groups.held_positions() == (("g", "topic", 0),)
    assert (await room.beat(alone)).error is Code.REBALANCE_IN_PROGRESS  # type: ignore[union-attr]


@test
async def test_what_operators_see_is_what_the_groups_do_now(room: Room) -> None:
    """Members that wait for a round, and how many rounds there were; a group that the log has not heard of as well."""
    room.hand.holds = []
    joined = await room.join()
    syncing = room.sync(joined)
    await asyncio.sleep(0)
    (view,) = room.groups.views()
    assert (view.group_id, view.state, len(view.roster.members)) == ("g", "CompletingRebalance", 1)
    text = room.groups.metrics_text()
    assert 'pylog_groups{state="CompletingRebalance"} 1' in text and 'pylog_groups{state="Stable"} 0' in text
    assert 'pylog_group_members{group="g"} 1' in text and "pylog_group_rebalances_total 1" in text
    for write in room.hand.holds:
        write()
    assert (await syncing).error is Code.NONE
    assert 'pylog_groups{state="Stable"} 1' in room.groups.metrics_text()


@test
async def test_a_group_that_breaks_off_does_not_stop_the_timers_of_others(room: Room) -> None:
    """It continues from the log's state; members of other coordinators that fall silent are removed in time."""
    broken: Any = {"m": None}
    room.groups._keep("broken", Group("broken", ConsumerGroupState.PREPARING_REBALANCE, members=broken, wake_ms=0))
    joined = await room.alone(session_ms=50)
    logging.getLogger("spark_log").setLevel(logging.CRITICAL + 1)
    try:
        await asyncio.sleep(0.3)
    finally:
        logging.getLogger("spark_log").setLevel(logging.NOTSET)
    assert (await room.beat(joined)).error is Code.UNKNOWN_MEMBER_ID
    assert room.groups.views() == ()
