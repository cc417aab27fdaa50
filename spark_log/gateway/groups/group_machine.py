"""The state machine of groups that a gateway asks: the coordinator's, or its own if the log has no coordinator.

With a coordinator, the gateway keeps nothing: each request goes there.  Without one, the machine runs in this process,
and generations are written to the log as a coordinator writes them.  A process that starts continues with the members
in the log as soon as one of them asks.  The log accepts positions of members of its last generation only, whichever
process wrote that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from spark_log.client.admin.group_listing import shared_now
from spark_log.errors import IllegalGeneration, NotCoordinator, SparkLogError
from spark_log.gateway.followed_state import FollowedState
from spark_log.groups.group import GroupConfig, Roster
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    Request,
    Response,
    SyncGroupRequest,
)
from spark_log.journal.context import is_led_elsewhere
from spark_log.journal.journal import Journal
from spark_log.journal.store_operations import Answered
from spark_log.metadata.command_base import check_types_of
from spark_log.metadata.commands import AnyCommand
from spark_log.metadata.decision import Decision
from spark_log.metadata.groups.group_commands import UNFENCED, CommitOffsets, DeleteOffsets, RenewSession, SetGeneration
from spark_log.metadata.groups.shared_groups import is_expiring
from spark_log.metadata.state import GroupState, State
from spark_log.rpc.client import HttpLink
from spark_log.rpc.messages import GroupView
from spark_log.runtime.daemon_threads import DaemonThreads
from spark_log.server.group_coordinator import Groups

JOIN_WAIT_MS_MAX = 3_600_000
"""A join is answered when the members have come back, at the latest after the longest `max.poll.interval.ms`."""
THREADS = 8
"""For requests that wait for the log or for a coordinator, but not for other members."""


class GroupMachine:
    """Belongs to one event loop."""

    def __init__(self, journal: Journal, followed: FollowedState, config: GroupConfig) -> None:
        self._journal = journal
        self._followed = followed
        self._threads = DaemonThreads(THREADS, "pylog-gateway-groups")
        self._waits = DaemonThreads(0, "pylog-gateway-rebalances")
        self._waiting = 0
        """Requests that wait for other members at the coordinator."""
        self._generations = DaemonThreads(1, "pylog-gateway-generations")
        context = journal.context
        own = OwnGroupJournal(journal, self._generations)
        self._own = Groups(own, context.clock, context.unique, config, restores_all=False)

    @property
    def _is_led(self) -> bool:
        return is_led_elsewhere(self._journal.state, self._journal.context)

    async def ask(self, request: Request, host: str) -> Response:
        """The answer to a member's request, which may wait for other members.

        host:  the client's address.
        Raises CoordinatorNotAvailable, NotCoordinator, GroupInUse, InvalidRequest, AuthorizationFailed.
        """
        await self._followed.recent()  # another process may have taken the group over
        if not self._is_led:
            check_types_of(request)  # as a coordinator does: the log must be able to read what becomes of it
            answer = await self._own.ask(request, 0, host)
            if isinstance(answer, HeartbeatResponse) and answer.error is Code.NONE:
                await self._keep_in_use(request)
            return answer
        link, holder = self._journal.link, self._journal.state.coordinator
        assert isinstance(link, HttpLink), "a log with a coordinator is reached through a link"
        if not isinstance(request, JoinGroupRequest | SyncGroupRequest):
            return await self._threads.submit(link.ask_group, holder, request, 0)
        self._waiting += 1
        self._waits.grow(self._waiting)
        try:
            return await self._waits.submit(link.ask_group, holder, request, JOIN_WAIT_MS_MAX)
        finally:
            self._waiting -= 1

    async def _keep_in_use(self, request: Request) -> None:
        """After a heartbeat: without a coordinator, the log does not count members, and its positions would expire."""
        assert isinstance(request, HeartbeatRequest)
        if is_expiring(self._journal.state, request.group_id, self._journal.context.clock.now_ms()):
            renewal = RenewSession(group=request.group_id, generation=request.generation_id)
            with suppress(SparkLogError):  # the next heartbeat tries again
                await self._threads.submit(self._journal.propose, partial(renewed_in_time, renewal))

    async def change(self, command: CommitOffsets | DeleteOffsets) -> None:
        """Commit or delete positions: they are durable then.  Raises SparkLogError."""
        if self._is_led:
            await self._threads.submit(self._journal.propose, command)
            return
        command.check_types()
        if (refusal := self._own.refusal(command)) is not None:
            raise refusal
        decide = partial(commit_of_member, command) if isinstance(command, CommitOffsets) else command
        await self._threads.submit(self._journal.propose, decide)

    async def views(self) -> Mapping[str, GroupView]:
        """The groups that have members now."""
        if self._is_led:
            return await self._threads.submit(shared_now, self._journal)
        return {view.group_id: view for view in self._own.views()}

    def close(self) -> None:
        for threads in (self._threads, self._waits, self._generations):
            threads.close()


class OwnGroupJournal:
    """The log, as a machine in this process uses it (`GroupJournal`)."""

    def __init__(self, journal: Journal, threads: DaemonThreads) -> None:
        self._journal = journal
        self._threads = threads

    @property
    def state(self) -> State:
        return self._journal.state

    @property
    def epoch(self) -> int:
        """0 once a coordinator leads: then its machine has the groups."""
        return 0 if is_led_elsewhere(self._journal.state, self._journal.context) else 1

    def submit(self, commands: Sequence[AnyCommand | SetGeneration]) -> Future[Answered]:
        written: Future[Answered] = Future()
        self._threads.submit(self._write, commands, written)
        return written

    def _write(self, commands: Sequence[AnyCommand | SetGeneration], written: Future[Answered]) -> None:
        written.set_result(Answered([self._outcome(command) for command in commands]))

    def _outcome(self, command: AnyCommand | SetGeneration) -> object:
        assert isinstance(command, SetGeneration), "groups write generations"
        try:
            command.check_types()
            return self._journal.propose(partial(set_generation, command))
        except IllegalGeneration as error:  # its members find their place in the newer generation
            return NotCoordinator(str(error), address="", epoch=0)
        except SparkLogError as error:
            return error

    def not_leading(self) -> NotCoordinator:
        holder = self._journal.state.coordinator
        return NotCoordinator("a coordinator leads the groups", address=holder.address, epoch=holder.epoch)


def set_generation(command: SetGeneration, state: State, now_ms: int) -> Decision[None]:
    """Write a generation, if no other process wrote one of this number: two gateways may have the same members.

    Raises IllegalGeneration.
    """
    stored = state.groups.get(command.group, GroupState()).roster
    roster = command.roster
    if stored is not None and stored.generation == roster.generation and _places(stored) != _places(roster):
        raise IllegalGeneration(
            f"group {command.group!r}: another gateway has written generation {roster.generation}; use one gateway for "
            "a group, or start a coordinator",
            current=stored.generation,
        )
    return command(state, now_ms)


def renewed_in_time(command: RenewSession, state: State, now_ms: int) -> Decision[None]:
    """Mark a group as in use, unless another member has done it.  Raises IllegalGeneration."""
    return command(state, now_ms) if is_expiring(state, command.group, now_ms) else Decision((), None)


def commit_of_member(command: CommitOffsets, state: State, now_ms: int) -> Decision[None]:
    """Commit positions, of a member if the log has it in this generation.  Raises IllegalGeneration."""
    group, by = state.groups.get(command.commit.group, GroupState()), command.by
    members = () if group.roster is None else group.roster.members
    if command.commit.generation != UNFENCED and by is not None and by.member_id not in {m.member_id for m in members}:
        raise IllegalGeneration(
            f"group {command.commit.group!r}: {by.member_id} is not a member in generation {group.generation}",
            current=group.generation,
        )
    return command(state, now_ms)


def _places(roster: Roster) -> set[str]:
    """A static member keeps its place when it gets another id."""
    return {one.group_instance_id or one.member_id for one in roster.members}
