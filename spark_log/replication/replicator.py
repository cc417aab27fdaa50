"""The replicator: copies to each broker what it lacks, and lets replicas that have caught up join their ISR.

Any number of processes may run it, and each may be killed or stopped at any time: a copy counts when a record says so,
and that record is void if the broker has another epoch than when the copy was put, or if the object is gone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from spark_log.client.admin.answering_roots import RootAnswers
from spark_log.client.log import Log
from spark_log.client.producer.pending_copies import from_answering
from spark_log.configs.settings import cluster_config
from spark_log.errors import SparkLogError
from spark_log.log_lines import logger
from spark_log.metadata.commits.pending_commits import is_given_up, is_gone, is_lost, lacking_objects, lost_entries
from spark_log.metadata.lines import plan_of
from spark_log.metadata.maps.column_map import rows_with_copies
from spark_log.metadata.replicas.copy_retention import next_dropped, other_holders
from spark_log.metadata.replicas.replica_commands import AddPendingCopies, DropCopies, JoinIsr
from spark_log.metadata.replicas.replica_state import ReplicaMember
from spark_log.metadata.replicas.replicas import (
    Deficit,
    can_lead,
    deficit,
    has_active,
    is_active,
    lacked,
    lacked_objects,
)
from spark_log.metadata.state import PendingCommit, State
from spark_log.replication.copy_threads import LATE_MS, Copier, CopyThreads
from spark_log.replication.copy_throttle import Pace, pace_of
from spark_log.replication.fenced_copies import ATTEMPTS, FencedCopies
from spark_log.replication.lost_commits import lose, lost_text
from spark_log.replication.missing_copies import CopyTally, is_behind
from spark_log.replication.object_search import ObjectSearch
from spark_log.store.object_names import upload_epoch

ROUND_MS = 10_000
"""How long a round copies; what is left is for the next one."""
WAIT_MS_MAX = 3_600_000
"""The longest wait of a replica that has missed a write."""
LAST_LOOK_MS = 10_000
"""When it is time to give a commit up, this process waits so long once more: it may have been stopped until then."""
FENCED_WAIT_S = 60.0
"""How long a process waits before its end for copies from fenced brokers."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The objects that a broker lacks, although another one has them."""

    objects: int
    bytes: int
    seconds: float
    """Since when it has lacked something, as far as this process knows; 0 if it lacks nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationReport:
    """The result of a round."""

    version: int
    """Version of the log at the end."""
    objects: int = 0
    """Copies that were made."""
    bytes: int = 0
    joined: tuple[tuple[int, int], ...] = ()
    """(placement group, broker) of the replicas that began to join their ISR."""
    removed: tuple[str, ...] = ()
    """Damaged and missing copies that were found, as `broker 2: data/…`."""
    found: int = 0
    """Copies that were found of objects without any known one."""
    unrecoverable: tuple[str, ...] = ()
    """Objects without a good copy on any active root."""
    lag: Mapping[int, Lag] = field(default_factory=dict)
    """By broker."""
    moved_partitions: int = 0
    """Partitions of which nothing is left in objects of other brokers than their replicas."""
    moved_bytes: int = 0
    """Size of the new objects with records of partitions that move."""
    problems: tuple[str, ...] = ()
    busy: bool = False
    """There is more that could be copied now."""


@dataclass(frozen=True, slots=True)
class _Miss:
    """The last missed write of a replica, as this process knows it."""

    missed: int
    misses: int
    seen_ms: int
    """When this process first saw it, on the monotonic clock."""
    before: bool
    """It may have been long before that: this process has just begun."""


class Replicator:
    """Rounds of copying for one log.  Not thread-safe."""

    def __init__(
        self,
        log: Log,
        *,
        pace: Pace | None = None,
        brokers: Iterable[int] | None = None,
        copier: Copier | None = None,
    ) -> None:
        """
        pace:     limit of all copying; None: the limit of the log.
        brokers:  copy only to these; None: to all brokers.
        copier:   copies the objects that active brokers have; None: threads of this process.
        """
        self._journal = log.journal
        self._clock = log.journal.context.clock
        pace = pace or pace_of(log)
        self._copier = copier or CopyThreads(log.journal, pace)
        self._only = None if brokers is None else frozenset(brokers)
        self._fenced, self._answers = FencedCopies(log.journal, pace, self._only), RootAnswers(log.journal)
        self._whole_ms: dict[tuple[int, int], int] = {}
        """By group and broker: when the state was read of which the replica lacks nothing, on the monotonic clock."""
        self._misses: dict[tuple[int, int], _Miss] = {}
        """By group and broker."""
        self._pending_ms: dict[tuple[str, int], int] = {}
        """By object of a pending commit and in-sync replica that lacks it: since when, on the monotonic clock."""
        self._lost_ms: dict[tuple[str, ...], int] = {}
        """By pending commit: since when no active broker has all of its objects."""
        self._over_ms: dict[tuple[str, ...], int] = {}
        """By such a commit: when this process saw that `replica.lost.after.ms` is over."""
        self._search = ObjectSearch(log.journal)

    def round(self, limit_ms: int = ROUND_MS) -> ReplicationReport:
        """Copy for about `limit_ms`, and let replicas join the ISR.

        Failures of roots are logged and listed in the report.  Raises the errors of reading the log, and of a
        coordinator that cannot be reached.
        """
        journal = self._journal
        began_ms = self._clock.monotonic_ms()
        journal.require(None)
        state = journal.refresh()
        if not state.placement_groups:
            return ReplicationReport(version=state.version)
        state = self._drop_old(state)
        rescued, rescued_bytes = self._fenced.round(state)
        state = journal.state if rescued else state
        done = self._copier.copy(state, began_ms, self._behind(state), limit_ms)
        removed = [f"broker {bad.broker}: {bad.object}" for one in done.values() for bad in one.bad]
        found = self._search.round(journal.state)
        for broker, copied in done.items():
            self._note_whole(state, broker, copied, began_ms)
        state = journal.refresh()
        self._drop_late(state)
        self._lose(state)
        joined = self._join(state)
        state = journal.state
        return ReplicationReport(
            version=state.version,
            objects=rescued + sum(one.objects for one in done.values()),
            bytes=rescued_bytes + sum(one.bytes for one in done.values()),
            joined=joined,
            removed=tuple(removed),
            found=found,
            unrecoverable=tuple(self._lost(state)),
            lag=self._lags(state),
            problems=(*(one for copied in done.values() for one in copied.problems), *self._fenced.problems(state)),
            busy=bool(removed or rescued)
            or any(one.is_under_way or (one.objects and (one.left or is_behind(state, b))) for b, one in done.items()),
        )

    def is_done(self, report: ReplicationReport) -> bool:
        """Whether nothing is left to do after the round of this report, which may be the last round of this process.

        First waits for copies from fenced brokers that are under way.  False if any were made: another round follows.
        """
        return not report.busy and not self._fenced.wait(FENCED_WAIT_S)

    def _drop_old(self, state: State) -> State:
        """Brokers that keep only the newest objects drop their copies of others, if it is time.

        The root with another copy has to answer now: it may be dead, and not fenced yet.  Broker 0 is never fenced.
        """
        now_ms = self._clock.now_ms()
        due = [
            broker for broker, known in state.brokers.items() if next_dropped(known, state.version, now_ms) is not None
        ]
        others = {broker: other_holders(state, broker) for broker in sorted(due)}
        answering = self._answers.among({one for some in others.values() for one in some}, LATE_MS / 1000)
        for broker, some in others.items():
            drop = DropCopies(broker=broker, answering=tuple(sorted(some & answering)), history=plan_of(state))
            self._journal.propose(drop)
        return self._journal.state if due else state

    def _behind(self, state: State) -> list[int]:
        """Active brokers that lack something."""
        return [
            broker
            for broker in sorted({one for group in state.placement_groups.values() for one in group.replicas})
            if is_active(state, broker) and (self._only is None or broker in self._only) and is_behind(state, broker)
        ]

    # -------------------------------------------------------------------------------------------------- pending commits

    def _drop_late(self, state: State) -> None:
        """In-sync replicas that lack an object of a pending commit for `replica.lag.time.max.ms` leave the ISR, as in
        Kafka: readers would never see the commit.  Time in which no root with the object answers does not count."""
        now_ms, lag_ms = self._clock.monotonic_ms(), cluster_config(state.configs, "replica.lag.time.max.ms")
        objects = {one.name: one for one in lacking_objects(state, state.pending)}
        lacking = {(one.name, broker) for one in objects.values() for broker, _ in one.lacking}
        self._pending_ms = {one: self._pending_ms.get(one, now_ms) for one in lacking}
        late = sorted(one for one, since_ms in self._pending_ms.items() if now_ms - since_ms >= lag_ms)
        readable = from_answering(self._journal, [objects[name] for name in dict.fromkeys(name for name, _ in late)])
        known = {one.name for one in readable}
        self._pending_ms.update({one: now_ms for one in late if one[0] not in known})
        if named := tuple(one for one in late if one[0] in known):
            self._journal.propose(AddPendingCopies(copies=(), late=named, history=plan_of(state)))

    def _lose(self, state: State) -> None:
        """Give up pending commits whose last copies were on a disk that somebody has replaced, are missing for long, or
        have been on fenced brokers for long and cannot be read there.

        A process for some brokers may see no other roots, so it does not judge these.
        """
        now_ms, after_ms = self._clock.monotonic_ms(), cluster_config(state.configs, "replica.lost.after.ms")
        lost = {one.objects: one for one in state.pending if is_lost(state, one)}
        self._lost_ms = {objects: self._lost_ms.get(objects, now_ms) for objects in lost}
        over = [objects for objects, since_ms in self._lost_ms.items() if now_ms >= since_ms + after_ms]
        self._over_ms = {objects: self._over_ms.get(objects, now_ms) for objects in over}
        for commit in lost.values():
            if self._is_over(state, commit, now_ms, after_ms) or is_given_up(state, commit):
                try:
                    given_up = lose(self._journal, state, commit)
                except SparkLogError as error:
                    logger.warning("a lost commit still holds up the readers of its partitions: %s", error)
                else:
                    if given_up:
                        logger.error(
                            "%s: %s", self._journal.metadata.url, lost_text(state, lost_entries(state, commit))
                        )

    def _is_over(self, state: State, commit: PendingCommit, now_ms: int, after_ms: int) -> bool:
        """Whether a lost commit has waited for long enough, some of it while this process was running for certain."""
        over_ms = self._over_ms.get(commit.objects)
        if over_ms is None or now_ms - over_ms < min(LAST_LOOK_MS, after_ms / ATTEMPTS):
            return False
        return is_gone(state, commit) or (self._only is None and self._fenced.have_failed(state, commit, over_ms))

    # ---------------------------------------------------------------------------------------------------------- joining

    def _note_whole(self, state: State, broker: int, copied: CopyTally, read_ms: int) -> None:
        if copied.left:
            return
        state, read_ms = copied.planned or (state, read_ms)
        for number, group in state.placement_groups.items():
            if broker not in group.replicas or number in copied.failed:
                continue
            if all(has_active(state, state.copies[one]) for one in lacked(state, number, broker)):
                self._whole_ms[number, broker] = read_ms

    def _join(self, state: State) -> tuple[tuple[int, int], ...]:
        """Let replicas join whose backlog is younger than `replica.lag.time.max.ms`, and that long after a miss.

        All that a replica lacks is younger than the last state that this process has read and copied for it completely.
        So the age of no object has to be known.
        """
        lag_ms, now_ms = cluster_config(state.configs, "replica.lag.time.max.ms"), self._clock.monotonic_ms()
        ready = []
        for number, group in sorted(state.placement_groups.items()):
            for member in group.members:
                has_waited = self._has_waited(number, member, lag_ms)
                if member.role != "out" or not can_lead(state, member.broker):
                    continue
                is_near = now_ms - self._whole_ms.get((number, member.broker), -lag_ms - 1) <= lag_ms
                if (is_near or not deficit(state, number, member.broker).objects) and has_waited:
                    ready.append((number, member.broker))
        if ready:
            self._journal.propose(JoinIsr(members=tuple(ready)))
        return tuple(ready)

    def _has_waited(self, number: int, member: ReplicaMember, lag_ms: int) -> bool:
        """Whether its last miss is long enough ago: twice as long for each further one within an hour.

        The time of the miss is that of a writer's clock, which may be some minutes wrong, and so may this one.  It
        counts only for what this process has not seen happen.
        """
        key, now_ms = (number, member.broker), self._clock.monotonic_ms()
        known = self._misses.get(key)
        if known is None or (known.missed, known.misses) != (member.missed, member.misses):
            known = self._misses[key] = _Miss(member.missed, member.misses, now_ms, before=known is None)
        wait_ms = min(WAIT_MS_MAX, lag_ms << min(max(member.misses - 1, 0), 24))
        is_old = known.before and self._clock.now_ms() - member.missed >= wait_ms
        return not member.misses or is_old or now_ms - known.seen_ms >= wait_ms

    # -------------------------------------------------------------------------------------- objects without any known copy

    @staticmethod
    def _lost(state: State) -> Iterator[str]:
        """Names of objects without any known copy."""
        keys = {number for number, copies in state.copies.items() if not copies.brokers}
        for name, _ in rows_with_copies(state.objects, keys) if keys else ():
            yield name

    # --------------------------------------------------------------------------------------------------------------- lag

    def _lags(self, state: State) -> dict[int, Lag]:
        brokers = sorted({one for group in state.placement_groups.values() for one in group.replicas})
        return {broker: self._lag(state, broker) for broker in brokers}

    def _lag(self, state: State, broker: int) -> Lag:
        lacking = lag_of(state, broker)
        if not lacking.objects:
            return Lag(0, 0, 0.0)
        groups = [number for number, group in state.placement_groups.items() if broker in group.replicas]
        name, _ = next(lacked_objects(state, broker))
        seconds = max(0, self._clock.now_ms() - time_of(state, upload_epoch(name))) / 1000
        now_ms = self._clock.monotonic_ms()
        for number in groups:
            if (number, broker) in self._whole_ms:
                seconds = min(seconds, (now_ms - self._whole_ms[number, broker]) / 1000)
        return Lag(lacking.objects, lacking.bytes, seconds)


def lag_of(state: State, broker: int) -> Deficit:
    """The deficit of a broker in all of its groups."""
    found = [deficit(state, n, broker) for n, group in state.placement_groups.items() if broker in group.replicas]
    return Deficit(sum(one.objects for one in found), sum(one.bytes for one in found))


def time_of(state: State, version: int) -> int:
    """The log's time at a version, or somewhat before it, in ms."""
    at = bisect_right(state.times, (version, 1 << 62))
    return state.times[max(0, at - 1)][1]
