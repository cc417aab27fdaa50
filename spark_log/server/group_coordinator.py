"""Shared groups in the coordinator: the state machines, their timers, and waiting requests.

Runs on the event loop of the server.  Records of a group are committed through the coordinator like any other change,
in the order of their tickets; replies that depend on a record are sent once it is committed.  A group without members
is not kept here: the log has all of its state, and others may have changed it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Protocol

import msgspec
from immutables import Map

from spark_log.errors import (
    FencedInstanceId,
    IllegalGeneration,
    InvalidRequest,
    LogMoved,
    NotCoordinator,
    RebalanceInProgress,
    SparkLogError,
)
from spark_log.groups.group import ConsumerGroupState, Group, GroupConfig, JournalRecord, Roster, StepOutcome, restore
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    Journaled,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    Request,
    Response,
)
from spark_log.groups.offset_deletion import check_delete_group, check_delete_offsets, may_expire
from spark_log.groups.rebalance import Step, remove_member
from spark_log.groups.state_machine import heartbeat_error, next_deadline, step, tick
from spark_log.journal.store_operations import Answered
from spark_log.log_lines import logger
from spark_log.metadata.commands import AnyCommand, Append, SeveralCommands
from spark_log.metadata.groups.decide_groups import check_group_free
from spark_log.metadata.groups.group_commands import UNFENCED, CommitOffsets, Committer, DeleteOffsets, SetGeneration
from spark_log.metadata.groups.shared_groups import group_in_use
from spark_log.metadata.new_names import check_new_names
from spark_log.metadata.records import GroupCommit
from spark_log.metadata.state import GroupState as Stored
from spark_log.metadata.state import State
from spark_log.model import TopicPartition
from spark_log.monitoring.log_metrics import GroupMetrics
from spark_log.rpc.messages import GroupView
from spark_log.runtime.clock import Clock
from spark_log.server.group_deadlines import Deadlines
from spark_log.server.long_poll import LongPolls

TIMEOUT_MS_MAX = 2**31 - 1
WAKE_DELAY_S = 0.03
"""Delay until the heartbeat threads know about a rebalance; then consumers that wait for records are woken."""
TIMER_SLACK_MS = 1
"""Timers of the event loop may fire slightly early."""
GROUPS_MAX = 50
"""Groups whose timers are handled, or that are restored, per round of the event loop; requests are handled in
between."""


class GroupJournal(Protocol):
    """The interface of the coordinator that groups need."""

    @property
    def state(self) -> State: ...

    @property
    def epoch(self) -> int:
        """The epoch under which it leads; 0: it does not lead."""

    def submit(self, commands: Sequence[AnyCommand | SetGeneration]) -> Future[Answered]: ...

    def not_leading(self) -> NotCoordinator | LogMoved: ...


class Groups:
    """The groups of one coordinator."""

    def __init__(
        self, journal: GroupJournal, clock: Clock, unique: _Unique, config: GroupConfig, *, restores_all: bool = True
    ) -> None:
        """
        unique:        returns a unique id.
        restores_all:  restore all groups of the log immediately; else each one when a member asks for it, because
                       another process may have its members.
        """
        self._journal = journal
        self._clock = clock
        self._unique = unique
        self._config = config
        self._restores_all = restores_all
        self._epoch = 0
        self._groups: dict[str, Group] = {}
        self._unrestored: dict[str, None] = {}
        """Groups with members in the log that are not kept here yet."""
        self._bases: dict[str, int] = {}
        """Generations in the log when groups were first kept here."""
        self._generations: dict[str, int] = {}
        """Generations of groups that were dropped here; they are not in the log."""
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._heartbeats = LongPolls()
        """Heartbeats that wait for a change, by group."""
        self._rebalance_signals: dict[str, asyncio.Future[None]] = {}
        self._writing: dict[str, asyncio.Future[Answered]] = {}
        """The pending write of each group."""
        self._correlation_id = 0
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        """When the timer fires."""
        self._began_ms = clock.now_ms() - clock.monotonic_ms()
        self._rebalances = 0
        self._metrics = GroupMetrics()

    # --------------------------------------------------------------------------------------------------------- requests

    async def ask(self, request: Request, wait_ms: int, client_host: str) -> Response:
        """The reply to a member's request.

        wait_ms:  how long a heartbeat may wait for a change.
        Raises NotCoordinator if another coordinator leads, also while the request waits; GroupInUse for a join while a
        stream owns the group.
        """
        self.notice()
        if not self._epoch:
            raise self._journal.not_leading()
        if isinstance(request, JoinGroupRequest):
            if not 0 <= request.rebalance_timeout_ms <= TIMEOUT_MS_MAX:
                raise InvalidRequest(
                    f"max_poll_interval_ms: {request.rebalance_timeout_ms} is out of range; give 1 to {TIMEOUT_MS_MAX}"
                )
            check_new_names(self._journal.state, (request,))
            check_group_free(self._journal.state, request.group_id, self._clock.now_ms())
            new_id = f"{request.group_instance_id or request.client_id or 'consumer'}-{self._unique()}"
            request = msgspec.structs.replace(request, new_member_id=new_id, client_host=client_host)
        answer = await self._step(request)
        if isinstance(request, HeartbeatRequest) and wait_ms > 0:
            return await self._await_rebalance(request, wait_ms)
        if isinstance(request, LeaveGroupRequest) and request.group_id in self._writing:
            await asyncio.wait([self._writing[request.group_id]])  # so that the log no longer lists a member that left
        return answer

    async def _await_rebalance(self, request: HeartbeatRequest, wait_ms: int) -> Response:
        """The reply to a heartbeat, as soon as it is an error, or after `wait_ms`."""
        group_id, epoch = request.group_id, self._epoch

        def error() -> Code:
            if epoch != self._epoch:
                raise self._journal.not_leading()
            return heartbeat_error(self._kept(group_id), request)

        if (group := self._kept(group_id)) is not None and error() is Code.NONE:
            # Not so long that the member's session could expire.
            longest_ms = min(wait_ms, group.members[request.member_id].session_timeout_ms // 3)
            await self._heartbeats.until(lambda: error() is not Code.NONE, (group_id,), longest_ms / 1000)
        return HeartbeatResponse(error=error())

    def rebalance_begun(self, group_id: str) -> asyncio.Future[None] | None:
        """A future that is done shortly after a rebalance begins and members were notified; None if the group is not
        shared."""
        if self._kept(group_id) is None:
            return None
        return self._rebalance_signals.setdefault(group_id, asyncio.get_running_loop().create_future())

    def _signal_later(self, group_id: str) -> None:
        asyncio.get_running_loop().call_later(WAKE_DELAY_S, self._signal_when_woken, group_id)

    def _signal_when_woken(self, group_id: str) -> None:
        """Wait for the heartbeats of a large group: they are answered a few per round of the event loop."""
        if self._heartbeats.is_waking:
            self._signal_later(group_id)
        else:
            self._signal_rebalance(group_id)

    def _signal_rebalance(self, group_id: str) -> None:
        rebalance_begun = self._rebalance_signals.pop(group_id, None)
        if rebalance_begun is not None:
            rebalance_begun.set_result(None)

    def refusal(self, command: AnyCommand) -> SparkLogError | None:
        """The error for a client that may not commit or delete positions of a group; None if it may.

        None also for commands without positions of groups.  A retried command that was applied before changes nothing,
        and is accepted no matter who owns the group.

        When the command is decided, it is checked again against the log.  The log knows the members of the last
        generation, but not members that have joined since.
        """
        if isinstance(command, SeveralCommands):
            return next((error for one in command.commands if (error := self.refusal(one)) is not None), None)
        if not isinstance(command, CommitOffsets | Append | DeleteOffsets) or not command.groups():
            return None
        self.notice()
        if not self._epoch:
            return self._journal.not_leading()
        error = self._needed(command) if isinstance(command, DeleteOffsets) else self._unfit(command)
        return None if error is None or self._is_repeat(command) else error

    def _is_repeat(self, command: CommitOffsets | Append | DeleteOffsets) -> bool:
        """Whether the log already has the result of the command.  A commit without positions never changes anything."""
        if isinstance(command, CommitOffsets) and not command.commit.offsets:
            return False
        try:
            return not command(self._journal.state, self._clock.now_ms()).records
        except Exception:  # noqa: BLE001  an invalid command is rejected when it is decided
            return False

    def _unfit(self, command: CommitOffsets | Append) -> SparkLogError | None:
        """The error for positions that a client may not commit."""
        transactional = isinstance(command, Append)
        found = [self._commit_error(group, by, transactional) for group, by in _committers(command)]
        found += [self._used(group_id) for group_id in _changed_from_outside(command)]
        return next((error for error in found if error is not None), None)

    def _used(self, group_id: str) -> SparkLogError | None:
        """The error for a client that is not a member, if there are members."""
        group = self._kept(group_id)
        return group_in_use(group_id, list(group.members)) if group is not None and group.members else None

    def _needed(self, deletion: DeleteOffsets) -> SparkLogError | None:
        """The error for deleting positions that members need."""
        group_id, state = deletion.group, self._journal.state
        group = self._kept(group_id)
        named = [
            TopicPartition(state.topics[topic_id].name, number)
            for topic_id, number in deletion.partitions
            if topic_id in state.topics
        ]
        if deletion.partitions:
            error, each = check_delete_offsets(group, named, stored=group_id in state.groups)
            codes = {error, *each.values()}
        else:
            codes = {check_delete_group(group, stored=group_id in state.groups)}
        return self._used(group_id) if codes & {Code.NON_EMPTY_GROUP, Code.GROUP_SUBSCRIBED_TO_TOPIC} else None

    def _commit_error(self, commit: GroupCommit, by: Committer, transactional: bool) -> SparkLogError | None:
        group_id = commit.group
        answered = self._step(
            OffsetCommitRequest(
                group_id=group_id,
                member_id=by.member_id,
                group_instance_id=by.group_instance_id,
                generation_id=commit.generation,
                transactional=transactional,
            )
        )
        found = answered.result()
        assert isinstance(found, OffsetCommitResponse), "commits are answered immediately"
        group = self._kept(group_id)
        return _refused(found.error, group_id, -1 if group is None else group.generation)

    # ------------------------------------------------------------------------------------------------------ the machine

    def _step(self, request: Request) -> asyncio.Future[Response]:
        """The reply, as a future."""
        self._correlation_id += 1
        number = self._correlation_id
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        group = self._known(request.group_id)
        outcome = step(
            group,
            request,
            self._now_ms(),
            correlation_id=number,
            config=self._config,
            generation=self._last_generation(request.group_id),
        )
        self._take(request.group_id, group, outcome)
        return answer

    def _last_generation(self, group_id: str) -> int:
        return max(self._generations.get(group_id, 0), self._journal.state.last_generation(group_id))

    def _known(self, group_id: str) -> Group | None:
        """The group as kept here, or else as in the log."""
        stored = self._journal.state.groups.get(group_id)
        group = self._kept(group_id)
        if group is not None and stored is not None and self._is_taken(group, stored):
            self._drop(group)
            group = None
        if group is not None:
            return group
        self._bases[group_id] = 0 if stored is None else stored.generation
        return None if stored is None else self._restored(group_id, stored)

    def _kept(self, group_id: str) -> Group | None:
        """The group as kept here; None if it has no members."""
        if group_id in self._unrestored:
            self._restore(group_id)
        return self._groups.get(group_id)

    def _is_taken(self, group: Group, stored: Stored) -> bool:
        """Whether another client has taken over the group in the log (possible before its first assignment)."""
        alone = stored.roster is None and stored.generation > self._bases.get(group.group_id, 0)
        return alone or stored.generation > group.generation

    def _restored(self, group_id: str, stored: Stored) -> Group:
        generation = self._last_generation(group_id)
        roster = stored.roster or Roster(stored.generation)
        return restore(group_id, roster if roster.members else roster._replace(generation=generation), self._now_ms())

    def _drop(self, group: Group) -> None:
        """Drop a group that another client has owned meanwhile: its joining or waiting members are not members any
        more."""
        at = Step(group.copy(), self._now_ms(), self._config)
        for member in tuple(at.group.members.values()):
            remove_member(at, member)
        at.group.state, at.group.pending, at.group.writes = ConsumerGroupState.EMPTY, Map(), {}
        self._take(group.group_id, group, at.outcome())

    def _take(self, group_id: str, before: Group | None, outcome: StepOutcome) -> None:
        """Keep the group that results from a step, send replies, and write records."""
        group = outcome.group
        self._keep(group_id, group)
        for number, response in outcome.replies:
            answer = self._waiting.pop(number, None)
            if answer is not None and not answer.done():
                answer.set_result(response)
        for record in outcome.records:
            self._write(group_id, record)
        if group is not None and _begins_to_rebalance(before, group):
            self._rebalances += 1
        if group is not None and before is not None and _heartbeat_key(before) != _heartbeat_key(group):
            self._heartbeats.wake((group_id,))
            self._signal_later(group_id)

    def _keep(self, group_id: str, group: Group | None) -> None:
        if group is not None and not _is_idle(group):
            self._groups[group_id] = group
            self._deadlines.set(group_id, next_deadline(group))
            self._plan_tick()
            return
        self._forget(group_id)
        if group is not None and group.generation > self._last_generation(group_id):
            self._generations[group_id] = group.generation

    def _forget(self, group_id: str) -> None:
        self._groups.pop(group_id, None)
        self._bases.pop(group_id, None)
        self._deadlines.set(group_id, None)

    def _write(self, group_id: str, record: JournalRecord) -> None:
        """Write a generation; the machine continues once it is committed."""
        epoch, command = self._epoch, SetGeneration(group=group_id, roster=record.roster)
        writing = self._writing[group_id] = asyncio.wrap_future(self._journal.submit([command]))
        writing.add_done_callback(lambda done: self._written(epoch, group_id, record.ticket, done))

    def _written(self, epoch: int, group_id: str, ticket: int, done: asyncio.Future[Answered]) -> None:
        if self._writing.get(group_id) is done:
            del self._writing[group_id]
        error = _error_of(done)
        group = self._groups.get(group_id)
        if epoch != self._epoch or group is None:
            return
        if error is not None:
            logger.warning("a generation of group %s could not be written: %s", group_id, error)
        journaled = Journaled(group_id=group_id, ticket=ticket, error=_code_of(error))
        self._take(group_id, group, step(group, journaled, self._now_ms(), config=self._config))

    # -------------------------------------------------------------------------------------------------------- operators

    def views(self) -> tuple[GroupView, ...]:
        """The groups that members share now."""
        self.notice()
        return tuple(
            GroupView(group_id=group_id, state=group.state.value, roster=group.roster())
            for group_id, group in sorted(self._groups.items())
        )

    def metrics_text(self) -> str:
        """Metrics of all groups, including groups in the log that are not shared.  May be called from any thread."""
        return self._metrics.text(self._journal.state, self._groups.copy(), self._rebalances)

    # ----------------------------------------------------------------------------------------------------------- timers

    def _now_ms(self) -> int:
        """Monotonic, independent of the wall clock."""
        return int(self._began_ms + self._clock.monotonic_ms())

    def _plan_tick(self) -> None:
        """Set one timer for all groups, at the first of their deadlines.  It may be too early."""
        due_ms = self._deadlines.first_ms
        if due_ms is None or (self._timer is not None and self._due_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        left_ms = max(due_ms - self._now_ms(), 0) + TIMER_SLACK_MS
        self._due_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(left_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.notice()
        now_ms = self._now_ms()
        for group_id in self._deadlines.pop_due(now_ms, GROUPS_MAX):
            self._tick_one(group_id, self._groups[group_id], now_ms)
        self._plan_tick()

    def _tick_one(self, group_id: str, group: Group, now_ms: int) -> None:
        try:
            self._take(group_id, group, tick(group, now_ms, config=self._config))
        except Exception:
            # Other groups depend on this timer.  The members find the group as it is in the log.
            logger.exception("group %s failed; continuing from its state in the log", group_id)
            self._forget(group_id)

    # -------------------------------------------------------------------------------------------------------- who leads

    def notice(self) -> None:
        """Called when the leader or the state may have changed.  A new leader reads the groups and their members from
        the log."""
        self._metrics.note(self._journal.state)
        epoch = self._journal.epoch
        if epoch == self._epoch:
            return
        self._epoch, self._groups, self._bases, self._generations = epoch, {}, {}, {}
        self._deadlines = Deadlines()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(self._journal.not_leading())
        self._heartbeats.wake(None)
        for group_id in tuple(self._rebalance_signals):
            self._signal_rebalance(group_id)
        stored = self._journal.state.groups.items() if epoch else ()
        self._unrestored = {group_id: None for group_id, group in stored if _has_members(group)}
        if self._unrestored and self._restores_all:
            self._restore_some(epoch)

    def _restore_some(self, epoch: int) -> None:
        """Restore the groups of the log, some per round of the event loop; a group with a request is restored before
        that.  From then on, the sessions of its members run."""
        if epoch != self._epoch:
            return
        for group_id in tuple(islice(self._unrestored, GROUPS_MAX)):
            self._restore(group_id)
        if self._unrestored:
            asyncio.get_running_loop().call_soon(self._restore_some, epoch)

    def _restore(self, group_id: str) -> None:
        del self._unrestored[group_id]
        stored = self._journal.state.groups.get(group_id)
        if stored is not None and _has_members(stored):
            self._bases[group_id] = stored.generation
            self._keep(group_id, self._restored(group_id, stored))

    def held_positions(self) -> tuple[tuple[str, str, int], ...]:
        """Positions that must not expire now: of groups with a rebalance in progress.  May be called from any
        thread."""
        stored = self._journal.state.groups
        return tuple(
            (group_id, *key)
            for group_id, group in tuple(self._groups.items())
            if not may_expire(group) and group_id in stored
            for key in stored[group_id].offsets
        )


class _Unique(Protocol):
    def __call__(self) -> str: ...


def _has_members(stored: Stored) -> bool:
    return stored.roster is not None and bool(stored.roster.members)


def _is_idle(group: Group) -> bool:
    return group.state is ConsumerGroupState.EMPTY and not group.pending and not group.writes


def _begins_to_rebalance(before: Group | None, group: Group) -> bool:
    was = None if before is None else before.state
    return group.state is ConsumerGroupState.PREPARING_REBALANCE and was is not ConsumerGroupState.PREPARING_REBALANCE


def _heartbeat_key(group: Group) -> tuple[object, ...]:
    """Changes whenever the reply to a heartbeat of the group may change."""
    return group.state, group.generation, group.members.changes


def _error_of(done: asyncio.Future[Answered]) -> SparkLogError | None:
    error = done.exception()
    if error is None:
        outcome = done.result().outcomes[0]
        return outcome if isinstance(outcome, SparkLogError) else None
    assert isinstance(error, SparkLogError), error
    return error


def _committers(command: CommitOffsets | Append) -> list[tuple[GroupCommit, Committer]]:
    """Positions in a command that members commit, with those members."""
    if isinstance(command, CommitOffsets):
        return [] if command.by is None else [(command.commit, command.by)]
    by = dict(command.by)
    return [(commit, by[commit.group]) for commit in command.commit.groups if commit.group in by]


def _changed_from_outside(command: CommitOffsets | Append) -> list[str]:
    """Groups whose positions a client commits without being a member."""
    if isinstance(command, CommitOffsets):
        commits: tuple[GroupCommit, ...] = (command.commit,) if command.by is None else ()
    else:
        members = {group_id for group_id, _ in command.by}
        commits = tuple(commit for commit in command.commit.groups if commit.group not in members)
    return [commit.group for commit in commits if commit.generation == UNFENCED]


def _code_of(error: SparkLogError | None) -> Code:
    if error is None:
        return Code.NONE
    if isinstance(error, NotCoordinator):
        return Code.NOT_COORDINATOR
    return Code.COORDINATOR_NOT_AVAILABLE if error.retriable or error.maybe_applied else Code.UNKNOWN_SERVER_ERROR


def _refused(error: Code, group_id: str, current: int) -> SparkLogError | None:
    """The error for a rejected commit."""
    match error:
        case Code.NONE:
            return None
        case Code.REBALANCE_IN_PROGRESS:
            return RebalanceInProgress(f"group {group_id!r} is rebalancing: poll(), and commit what was polled since")
        case Code.FENCED_INSTANCE_ID:
            return FencedInstanceId(
                f"group {group_id!r}: a consumer with the same group_instance_id has started and replaced this one"
            )
        case _:
            return IllegalGeneration(
                f"group {group_id!r}: the consumer is not a member (any more) in generation {current} ({error.value}); "
                "poll() joins the group again, but its partitions may be owned by others by now",
                current=current,
            )
