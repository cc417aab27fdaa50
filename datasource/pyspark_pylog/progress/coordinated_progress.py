"""The progress of a stream that shares its group with others through a coordinator: `group.members=auto`.

The query is a member of the group as a consumer is, and takes up a new assignment between two batches, when all records
before its offset are processed.  Partitions that it has to give up are published before the coordinator may assign them
to another query, so that query continues exactly there.  The others keep their partitions meanwhile: the assignor is
cooperative.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark_pylog.driver_log import notice
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.progress.group_publisher import SESSION_MS, GroupProgress, entries_at, is_ahead, within
from pyspark_pylog.progress.offset_format import Offset, offset_at
from spark_log.client.consumer.group_member import SharedMembership
from spark_log.client.consumer.member_settings import MemberSettings
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.groups.assignors import make_assignor
from spark_log.journal.journal import Journal
from spark_log.metadata.records import OffsetEntry
from spark_log.metadata.state import GroupState, State
from spark_log.model import TopicPartition
from spark_log.rpc.client import HttpLink

BATCH_MS_MAX = 1_800_000
"""Kafka's max.poll.interval.ms: a query in a batch that takes longer loses its partitions."""


class CoordinatedProgress(GroupProgress):
    """A stream's membership in its group.  Used by one thread."""

    def __init__(self, group: str, session_ms: int = SESSION_MS) -> None:
        super().__init__(group, session_ms=session_ms)
        self._name = group
        self._membership: SharedMembership | None = None
        self._owned: frozenset[TopicPartition] | None = None
        """The partitions that it reads; None: before the first assignment."""
        self._assigned = False
        """Whether that is an assignment in force."""
        self._begun: Offset | None = None
        self._last: tuple[Journal, Offset] | None = None
        """The last offset before which all records are processed."""
        self._committed: Offset | None = None
        """The last offset whose positions are committed, or about to be."""

    def __reduce__(self) -> tuple[Any, ...]:
        return CoordinatedProgress, (self._name, self._session_ms)

    def owns(self, tp: TopicPartition) -> bool:
        return self._owned is None or tp in self._owned

    def positions(self, state: State, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group stands, and where it has no position, where this query starts."""
        tps = list(tps)
        begun = {tp: end for tp in tps if (end := self._start_of(state, tp)) is not None}
        return begun | within(state, state.groups.get(self._name, GroupState()).offsets, tps)

    def _start_of(self, state: State, tp: TopicPartition) -> int | None:
        begun, topic_id = self._begun, state.names[tp.topic]
        known = begun.ends.get(tp) if begun is not None and begun.same_topic(tp.topic, topic_id) else None
        return None if known is None else min(known, state.partitions[topic_id, tp.partition].readable_end)

    @property
    def has_begun(self) -> bool:
        return self._begun is not None

    def begin(self, state: State, starts: Offset) -> None:
        """Set where a query without a checkpoint starts, in topics in which the group has no positions.

        If it has some, a partition without one was added later: it is read from its first record.
        """
        topic_ids = {topic_id for topic_id, _ in state.groups.get(self._name, GroupState()).offsets}
        ends = {tp: end for tp, end in starts.ends.items() if state.names[tp.topic] not in topic_ids}
        self._begun = replace(starts, ends=ends)

    def join(self, journal: Journal, at: Offset) -> None:
        """Nothing: `is_assigned` joins, once the topics are known."""

    def moved(self, state: State, tps: Iterable[TopicPartition], fail: bool) -> dict[TopicPartition, int]:
        """Nothing: `positions` has them whenever a partition is assigned."""
        return {}

    # ------------------------------------------------------------------------------------------------- the assignment

    def is_assigned(self, journal: Journal, topics: Iterable[str], at: Offset, wait_ms: float) -> bool:
        """Take part in rebalances, after the records before `at` are processed; False if none has ended yet.

        wait_ms:  how long to wait for the first assignment.
        """
        if at == self._left_at:
            return True
        if self._membership is None:
            self._membership = self._open(journal)
        membership, wanted = self._membership, frozenset(topics)
        self._take_part(membership, journal, wanted, at)
        if not self._assigned and membership.await_change(wait_ms):
            self._take_part(membership, journal, wanted, at)
        return self._assigned

    def _open(self, journal: Journal) -> SharedMembership:
        if not journal.context.served or not isinstance(journal.link, HttpLink):
            raise InvalidRequest("option group.members: auto needs the URL of a coordinator, as in pylog://host:9550")
        settings = MemberSettings(
            assignors=[make_assignor("cooperative-sticky")],
            session_ms=self._session_ms,
            heartbeat_ms=self._session_ms // 3,
            poll_ms=BATCH_MS_MAX,
            client_id="stream",
        )
        membership = SharedMembership(journal, journal.link, self._name, settings)
        membership.join()
        self._heed_sigterm()
        return membership

    def _take_part(self, membership: SharedMembership, journal: Journal, topics: frozenset[str], at: Offset) -> None:
        membership.report_alive()
        if membership.lost(journal.state):
            self._acknowledge_loss(membership, journal.state)
        before = membership.rebalances
        assigned = membership.assigned_partitions(journal.state, topics) or frozenset()
        if membership.rebalances != before:
            self._publish_rebalance(membership, journal.state, assigned, at)
            self._owned, self._assigned = assigned, True
        membership.confirm_owned(assigned)

    def _publish_rebalance(
        self, membership: SharedMembership, state: State, assigned: frozenset[TopicPartition], at: Offset
    ) -> None:
        """Commit the positions of partitions that are given up, and of those that nobody has read yet, before others
        can own them."""
        membership.history = at.history
        given_up = self._ahead(state, at)
        stands = self.positions(state, (tp for tp in assigned if tp.topic in state.names))
        begun = offset_at(state, {tp: end for tp, end in stands.items() if tp not in at.ends})
        try:
            membership.commit((*self._new(state, begun), *given_up))
        except SparkLogError as error:
            notice(logging.WARNING, f"group {self._name}: records may be read twice, as positions are late: {error}")

    def _acknowledge_loss(self, membership: SharedMembership, state: State) -> None:
        """The coordinator has given the partitions to others.  Raises the error that ended the membership."""
        error = membership.acknowledge_loss(state)
        if error is not None:
            raise error
        notice(
            logging.WARNING,
            f"group {self._name}: this query was silent for {self._session_ms} ms, or Spark did not trigger it "
            f"for {BATCH_MS_MAX} ms, and it lost its partitions: others may have read the records of its last batch, too",
        )
        self._owned, self._assigned, self._committed = frozenset(), False, None

    # ----------------------------------------------------------------------------------------------------- publishing

    def reached(self, journal: Journal, at: Offset) -> None:
        """Commit the positions of its partitions.  Returns before this is done; what fails is committed with the next
        offset."""
        membership, self._last = self._membership, (journal, at)
        if membership is None or at == self._left_at:
            return
        membership.call_back()
        if at == self._committed:
            return
        membership.history = at.history
        if positions := self._ahead(journal.state, at):
            try:
                membership.commit_async(positions, self._note)
            except SparkLogError as error:
                self._note(error)
                return
        self._committed = at

    def _note(self, error: Exception | None) -> None:
        if error is not None:
            self._committed = None
            notice(logging.WARNING, f"progress of group {self._name} is late: {error}")

    def _ahead(self, state: State, at: Offset) -> list[OffsetEntry]:
        """The positions of its partitions that are new to the group."""
        owned = self._owned or frozenset()
        return self._new(state, replace(at, ends={tp: end for tp, end in at.ends.items() if tp in owned}))

    def _new(self, state: State, at: Offset) -> list[OffsetEntry]:
        known = state.groups.get(self._name, GroupState()).offsets
        return [entry for entry in entries_at(state, at) if is_ahead(entry, known)]

    def flush(self) -> None:
        """Wait until the last positions are committed, or have failed twice."""
        if self._membership is not None:
            self._membership.flush_commits()
            if self._committed is None and self._last is not None:
                self.reached(*self._last)
                self._membership.flush_commits()

    def leave(self, at: Offset | None = None) -> None:
        """Publish the last offset and leave the group; a later call with an offset other than `at` joins again."""
        self._leaving = True
        self.flush()
        membership, self._membership, self._left_at = self._membership, None, at
        if membership is not None:
            try:
                membership.leave()
            except SparkLogError as error:
                notice(logging.WARNING, f"group {self._name}: its partitions wait until its session runs out: {error}")
            membership.close()
        self._leaving = False


def progress_of(options: ReadOptions) -> GroupProgress:
    """The progress of a stream, by its options."""
    if options.group is not None and options.coordinated:
        return CoordinatedProgress(options.group)
    return GroupProgress(options.group, options.share)
