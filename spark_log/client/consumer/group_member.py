"""A consumer's membership in a group that several share through a coordinator: the member's side of the classic
protocol.

The consumer's own thread takes up an assignment (`assigned_partitions`), calls its listener, and confirms what it
owns (`confirm_owned`).  Joining and syncing wait for other members, so each join has its own thread.  Another thread
sends heartbeats.  It leaves the group if the consumer stops polling, and passes errors on to the next poll.  The
coordinator holds a heartbeat until something changes, so members learn of a rebalance immediately.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from immutables import Map

from spark_log.client.consumer.member_settings import MemberSettings, member_settings
from spark_log.client.consumer.membership import Membership, SessionRequest
from spark_log.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    IllegalGeneration,
    InvalidRequest,
    LogRestored,
    NotCoordinator,
    SparkLogError,
)
from spark_log.groups.assignors import assign_members, topics_of, what_members_read
from spark_log.groups.messages import (
    Code,
    HeartbeatRequest,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberProtocol,
    Request,
    SyncGroupRequest,
    SyncGroupResponse,
)
from spark_log.groups.subscription import CONSUMER, ProtocolAssignment, Subscription, decode_assignment, encode
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.groups.group_commands import UNFENCED, Committer
from spark_log.metadata.projection import holds
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.state import GroupState, State, Topic
from spark_log.model import TopicPartition
from spark_log.rpc.client import ANSWER_S, HttpLink
from spark_log.runtime.fork_safety import renew_after_fork

RETRY_PAUSE_S = 0.25
"""Pause between two attempts to reach a coordinator."""
_NO_COORDINATOR = (Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR)
_NO_MEMBER = (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION)
_WITH_MEMBER_ID = (Code.NONE, Code.MEMBER_ID_REQUIRED)
"""Replies to a join that contain the member's id."""
_REASONS = {
    Code.INCONSISTENT_GROUP_PROTOCOL: "partition_assignment_strategy: the other members support none of {strategies}",
    Code.INVALID_SESSION_TIMEOUT: "session_timeout_ms: the coordinator's [groups] settings do not allow {session}",
    Code.GROUP_MAX_SIZE_REACHED: "the group has as many members as the coordinator allows (max.size), or the names of "
    "their topics together have more than 8 MiB: use fewer members, or subscribe to fewer topics",
    Code.INVALID_GROUP_ID: "group_id: the name of a group must have characters, and only such as can be printed",
}


class MemberAssignment(NamedTuple):
    """An assignment of a member."""

    generation: int
    assignment: ProtocolAssignment
    members: tuple[JoinedMember, ...]
    """Members of the generation; only the leader receives them."""


def open_membership(journal: Journal, settings: Mapping[str, Any], session: SessionRequest | None = None) -> Membership:
    """The membership for a consumer's settings: shared with a coordinator, otherwise of a single member.

    session:  of a member without a coordinator, which may own a share of the partitions.
    Raises InvalidRequest for an assignor that cannot be used.
    """
    link, group = journal.link, settings["group_id"]
    if not journal.context.served or not isinstance(link, HttpLink):
        return Membership(journal, group, session, settings["client_id"] or "")
    return SharedMembership(journal, link, group, member_settings(settings))


class SharedMembership(Membership):
    """One member of a group.  `_changed` guards the state that is shared with the threads."""

    alone = False

    def __init__(self, journal: Journal, link: HttpLink, group: str, settings: MemberSettings) -> None:
        super().__init__(journal, group)
        self._link = link
        self._settings = settings
        self._cooperative = all(assignor.cooperative for assignor in settings.assignors)
        self._clock = journal.context.clock
        self._closed = False
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """A forked child is not a member, and has none of its parent's threads."""
        self._changed = threading.Condition()
        self._epoch = 0
        """Incremented when the work of running threads becomes obsolete."""
        self._member, self.generation = "", UNFENCED
        self._subscribed = False
        """It commits only as a member."""
        self._joining = False
        self._rejoin = False
        """Rejoin as soon as the consumer has revoked the partitions it must give up."""
        self._new: MemberAssignment | None = None
        """The assignment that the consumer has not taken up yet."""
        self._announced: MemberAssignment | None = None
        """The last such assignment of which `report_alive` has told the consumer."""
        self._current: MemberAssignment | None = None
        """The assignment in use."""
        self._taken: tuple[MemberAssignment, frozenset[str], frozenset[TopicPartition]] | None = None
        """The last result of `assigned_partitions`, with the assignment and the topics that it is of."""
        self._checked: tuple[Map[str, str], Map[str, Topic], MemberAssignment] | None = None
        """The names, topics and assignment that were last found to agree."""
        self._owned: frozenset[TopicPartition] = frozenset()
        """The owned partitions, or those it owned until it revoked them to join."""
        self._confirmed: Collection[TopicPartition] | None = None
        """The partitions that were last confirmed, if `_owned` has them."""
        self._topics: frozenset[str] | None = None
        """The topics of its last join; None: it has not joined."""
        self._lost = False
        self._unreachable = False
        """The last request was not answered; logged once."""
        self._failed: SparkLogError | None = None
        self._rebalances = 0
        self._polled_ms = self._clock.monotonic_ms()
        self._heartbeats: threading.Thread | None = None

    # ----------------------------------------------------------------------------------------- in the consumer's thread

    @property
    def joined(self) -> bool:
        return self._subscribed

    @property
    def is_assigned(self) -> bool:
        return self._current is not None and not self._joining and self._new is None

    @property
    def rebalances(self) -> int:
        return self._rebalances

    def join(self) -> None:
        """`confirm_owned` joins, once the consumer's topics are known.  From here on, commits require membership."""
        self._subscribed = True

    def keep_in_use(self, state: State) -> None:
        """Nothing to do: heartbeats keep the group in use."""

    def report_alive(self) -> bool:
        with self._changed:
            self._polled_ms, self._announced = self._clock.monotonic_ms(), self._new
            return self._rejoin or self._lost or self._new is not None

    def await_change(self, timeout_ms: float) -> bool:
        with self._changed:
            if self._joining:
                self._changed.wait_for(lambda: not self._joining, timeout_ms / 1000)
                return True
            return self._new is not None

    def lost(self, state: State) -> bool:
        return self._lost

    def check_owner(self) -> None:
        """Nothing to do: a commit without membership is rejected, and the next poll joins again."""

    def acknowledge_loss(self, state: State) -> SparkLogError | None:
        """The error of a background thread that has ended the membership; None if there is none.

        The consumer rejoins with the next poll.  But if another consumer has its instance id, the membership has ended
        for good.
        """
        with self._changed:
            failed = self._failed
            self._current = self._new = None
            self._owned, self._confirmed, self._lost = frozenset(), None, isinstance(failed, FencedInstanceId)
            self._failed = failed if self._lost else None
            return failed

    def forget(self) -> None:
        with self._changed:
            self._end_membership()
            self._failed, self._lost = None, False

    def assigned_partitions(self, state: State, topics: frozenset[str]) -> frozenset[TopicPartition] | None:
        """The current assignment.  Before a rebalance it is empty, or unchanged if all assignors are cooperative.

        It is not newer than the last `report_alive`.  A caller that takes the state after that call has the positions
        that the previous owners committed.
        """
        with self._changed:
            if self._new is not None and self._new is self._announced:
                self._take_up(self._new)
            if not self._joining and (self._topics != topics or self._is_outdated(state)):
                self._rejoin, self._topics = True, topics
            changing = self._rejoin or self._joining or self._new is not None
            if self._current is None or (changing and not self._cooperative):
                return frozenset()
            current = self._current
            if self._taken is None or self._taken[0] is not current or self._taken[1] != topics:
                taken = frozenset(tp for tp in current.assignment.partitions if tp.topic in topics)
                self._taken = current, topics, taken
            return self._taken[2]

    def _take_up(self, new: MemberAssignment) -> None:
        """Use a new assignment.  A member that had to revoke partitions for others rejoins, so that they are
        assigned."""
        self._current, self._new = new, None
        self._rebalances += 1
        gives_up = self._owned - frozenset(new.assignment.partitions)
        if self._cooperative and (gives_up or new.assignment.unsettled):
            self._rejoin = True
        if not self._cooperative:
            self._owned = frozenset(new.assignment.partitions)

    def _is_outdated(self, state: State) -> bool:
        """Whether this member leads, and the partitions differ from those of the last assignment."""
        current = self._current
        if current is None or not current.members:
            return False
        checked = self._checked
        if checked is not None and checked[0] is state.names and checked[1] is state.topics and checked[2] is current:
            return False
        topics = topics_of(current.members)
        if not holds(state, topics):
            return False  # it is older than the assignment
        counts = _partitions(state, topics)
        outdated = dict(what_members_read(counts, current.members).partitions) != current.assignment.counts
        self._checked = None if outdated else (state.names, state.topics, current)
        return outdated

    def confirm_owned(self, partitions: Collection[TopicPartition]) -> None:
        """The consumer owns exactly these partitions now.  Join if necessary."""
        with self._changed:
            if self._cooperative and partitions is not self._confirmed:
                self._confirmed, self._owned = partitions, frozenset(partitions)
            if self._lost or self._new is not None:
                return  # it gives up what it has lost, or takes up what it has got, before it joins again
            if self._joining or self._topics is None or (self._member and not self._rejoin):
                return
            self._joining, self._rejoin = True, False
            self._polled_ms = self._clock.monotonic_ms()
            epoch, subscription = self._epoch, self._subscription(self._topics)
            if self._heartbeats is None:
                self._heartbeats = self._start(self._send_heartbeats)
        self._start(lambda: self._rebalance(epoch, subscription))

    def _subscription(self, topics: frozenset[str]) -> bytes:
        return encode(
            Subscription(
                topics=tuple(sorted(topics)),
                owned=tuple(sorted(self._owned)),
                generation=UNFENCED if self._current is None else self._current.generation,
                rack=self._settings.rack,
            )
        )

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        """Start a thread.  The next poll raises any exception of the thread."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the consumer has to see every error
                failed = error if isinstance(error, SparkLogError) else _broken(self.group, error)
                with self._changed:
                    member = self._member
                    self._heartbeats = None if self._heartbeats is thread else self._heartbeats
                    self._fail(failed)
                with suppress(SparkLogError):
                    self._leave_as(member)

        thread = threading.Thread(target=run, name=f"pylog-group-{self.group}", daemon=True)
        thread.start()
        return thread

    def leave(self) -> None:
        """End the membership after pending commits; a static member's assignment is kept until its session ends."""
        self.flush_commits()
        with self._changed:
            member = self._member
            self._end_membership()
            self._current, self._owned, self._confirmed = None, frozenset(), None
            self._lost = self._subscribed = False
        self._leave_as(member)

    def close(self) -> None:
        super().close()
        with self._changed:
            self._closed = True
            self._end_membership()

    def group_commit(self, positions: Sequence[OffsetEntry]) -> GroupCommit:
        commit = super().group_commit(positions)
        if isinstance(self._failed, FencedInstanceId):
            raise self._failed
        if positions and self._subscribed and commit.generation == UNFENCED:
            raise IllegalGeneration(
                f"group {self.group!r}: the consumer is not a member (any more), so its positions are not committed; "
                "poll() joins the group, but its partitions may be owned by others by now",
                current=self._journal.state.groups.get(self.group, GroupState()).generation,
            )
        return commit

    def committer(self) -> Committer:
        return Committer(self._member, self._settings.instance)

    # ------------------------------------------------------------------------------------------------- in a rebalance's thread

    def _rebalance(self, epoch: int, subscription: bytes) -> None:
        """Join and sync until a generation is complete."""
        while self._is_current(epoch):
            joined = self._join_group(subscription)
            if joined is None or not self._enter(epoch, joined):
                if joined is not None and joined.error in _WITH_MEMBER_ID and not self._is_current(epoch):
                    self._leave_as(joined.member_id)  # the consumer left before it knew its id
                continue
            synced = self._sync_group(epoch, joined)
            if synced is None or not self._is_current(epoch):
                continue
            assignment = decode_assignment(synced.assignment)
            self._to_the_end(epoch)  # to see the positions that previous owners committed
            with self._changed:
                if epoch == self._epoch:
                    self._new = MemberAssignment(joined.generation_id, assignment, joined.members)
                    self._joining = False
                    self._polled_ms = self._clock.monotonic_ms()
                    self._changed.notify_all()
            return

    def _is_current(self, epoch: int) -> bool:
        with self._changed:
            return epoch == self._epoch and self._joining

    def _join_group(self, subscription: bytes) -> JoinGroupResponse | None:
        """None: no reply."""
        settings = self._settings
        request = JoinGroupRequest(
            group_id=self.group,
            member_id=self._member,
            group_instance_id=settings.instance,
            protocol_type=CONSUMER,
            protocols=tuple(MemberProtocol(assignor.name, subscription) for assignor in settings.assignors),
            session_timeout_ms=settings.session_ms,
            rebalance_timeout_ms=settings.poll_ms,
            client_id=settings.client_id,
        )
        answer = self._ask(request, settings.poll_ms)
        assert answer is None or isinstance(answer, JoinGroupResponse)
        return answer

    def _enter(self, epoch: int, joined: JoinGroupResponse) -> bool:
        """Whether it is a member of a new generation."""
        with self._changed:
            if epoch != self._epoch:
                return False
            if joined.error is Code.NONE:
                self._member, self.generation = joined.member_id, joined.generation_id
                return True
            if joined.error is Code.MEMBER_ID_REQUIRED:
                self._member = joined.member_id
            else:
                self._refused(joined.error)
        return False

    def _sync_group(self, epoch: int, joined: JoinGroupResponse) -> SyncGroupResponse | None:
        """Request the assignment, and retry if there is no reply.  None: it has to rejoin, or is not a member any
        more."""
        request = SyncGroupRequest(
            group_id=self.group,
            member_id=joined.member_id,
            generation_id=joined.generation_id,
            group_instance_id=self._settings.instance,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=self._assign(epoch, joined) if joined.members and not joined.skip_assignment else {},
        )
        while self._is_current(epoch):
            answer = self._ask(request, self._settings.poll_ms)
            if answer is None:
                continue
            assert isinstance(answer, SyncGroupResponse)
            if answer.error is Code.NONE:
                return answer
            with self._changed:
                if epoch == self._epoch:
                    self._refused(answer.error)
            return None
        return None

    def _to_the_end(self, epoch: int) -> State:
        """The state at the end of the log, once that has as many versions as this process knows: it may be restored."""
        while self._is_current(epoch):
            with suppress(LogRestored):
                return self._journal.refresh()
            time.sleep(RETRY_PAUSE_S)
        return self._journal.state

    def _assign(self, epoch: int, joined: JoinGroupResponse) -> dict[str, bytes]:
        """Compute the assignment, as leader."""
        assignor = next(one for one in self._settings.assignors if one.name == joined.protocol_name)
        topics = topics_of(joined.members)
        self._to_the_end(epoch)
        self._journal.require(topics)
        cluster = what_members_read(_partitions(self._to_the_end(epoch), topics), joined.members)
        return assign_members(assignor, cluster, joined.members, leader=joined.member_id)

    def _refused(self, error: Code) -> None:
        """Handle an error reply: retry, give up the partitions, or fail.  Locked."""
        match error:
            case Code.REBALANCE_IN_PROGRESS:
                self._rejoin = not self._joining  # a join in progress continues
            case _ if error in _NO_COORDINATOR:
                self._changed.wait(RETRY_PAUSE_S)
            case _ if error in _NO_MEMBER:
                member = self._member if error is Code.ILLEGAL_GENERATION else ""
                self._end_membership()
                self._member, self._lost = member, True
            case Code.FENCED_INSTANCE_ID:
                self._fail(
                    FencedInstanceId(
                        f"group {self.group!r}: another consumer has started with group_instance_id "
                        f"{self._settings.instance!r} and replaced this one; give each consumer a different id"
                    )
                )
            case _:
                why = _REASONS.get(error, f"the coordinator replied {error.value}").format(
                    strategies=", ".join(one.name for one in self._settings.assignors),
                    session=self._settings.session_ms,
                )
                self._fail(InvalidRequest(f"group {self.group!r}: {why}"))

    def _fail(self, error: SparkLogError) -> None:
        """The partitions are lost, and the next poll raises the error.  Locked."""
        self._end_membership()
        self._failed, self._lost = error, True

    def _end_membership(self) -> None:
        """End the membership, but keep the list of owned partitions: the caller decides if they are lost.  Locked."""
        self._epoch += 1
        self._member, self.generation, self._topics = "", UNFENCED, None
        self._joining = self._rejoin = False
        self._new = None
        self._changed.notify_all()

    # ---------------------------------------------------------------------------------------- in the heartbeats' thread

    def _send_heartbeats(self) -> None:
        """Send heartbeats while the consumer is open and polls."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self.generation != UNFENCED and not self._joining))
                if self._closed:
                    return
                epoch, left_ms = self._epoch, self._settings.poll_ms - (self._clock.monotonic_ms() - self._polled_ms)
                request = HeartbeatRequest(
                    group_id=self.group,
                    member_id=self._member,
                    generation_id=self.generation,
                    group_instance_id=self._settings.instance,
                )
            if left_ms <= 0:
                self._leave_idle(epoch)
                continue
            wait_ms = int(min(self._settings.heartbeat_ms, left_ms))
            answer = self._ask(request, wait_ms, self._settings.answer_s)
            with self._changed:
                late = epoch != self._epoch or self._joining or self.generation != request.generation_id
                if answer is None or late or answer.error is Code.NONE:
                    continue
                self._refused(answer.error)
                if answer.error is Code.REBALANCE_IN_PROGRESS:
                    self._changed.wait(wait_ms / 1000)  # until the consumer polls

    def _leave_idle(self, epoch: int) -> None:
        """Leave the group, because the consumer has not polled within max_poll_interval_ms."""
        with self._changed:
            if epoch != self._epoch:
                return
            member = self._member
            self._end_membership()
            self._lost = True
        logger.warning(
            "group %s: the consumer has not polled within max_poll_interval_ms=%d and gives its partitions up: "
            "poll more often, reduce max_poll_records, or increase max_poll_interval_ms",
            self.group,
            self._settings.poll_ms,
        )
        if self._settings.instance is None:
            self._ask(self._leaving(member))

    # --------------------------------------------------------------------------------------------------------- requests

    def _ask(self, request: Request, wait_ms: int = 0, limit_s: float = ANSWER_S) -> Any:
        """The reply, for which the coordinator may wait `wait_ms`; None, after a pause, without a reply `limit_s`
        later."""
        try:
            answer = self._link.ask_group(self._journal.state.coordinator, request, wait_ms, limit_s)
        except (CoordinatorNotAvailable, NotCoordinator) as error:
            if not self._unreachable:
                logger.warning("group %s: no coordinator is available; retrying: %s", self.group, error)
            self._unreachable = True
            time.sleep(RETRY_PAUSE_S)
            return None
        if self._unreachable:
            logger.warning("group %s: a coordinator answers again", self.group)
        self._unreachable = False
        return answer

    def _leaving(self, member: str) -> LeaveGroupRequest:
        return LeaveGroupRequest(group_id=self.group, members=(LeavingMember(member),))

    def _leave_as(self, member: str) -> None:
        """A static member does not leave: its assignment is kept for its session.  Raises CoordinatorNotAvailable."""
        if member and self._settings.instance is None:
            self._link.ask_group(self._journal.state.coordinator, self._leaving(member), 0)


def _partitions(state: State, topics: Iterable[str]) -> dict[str, int]:
    """The partition counts of those topics that exist."""
    return {name: state.topics[state.names[name]].partitions for name in topics if name in state.names}


def _broken(group: str, error: BaseException) -> SparkLogError:
    logger.error("group %s: the consumer's group thread failed", group, exc_info=error)
    failed = InvalidRequest(f"group {group!r}: the consumer's group thread failed: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
