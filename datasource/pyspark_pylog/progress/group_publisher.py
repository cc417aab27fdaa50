"""The named progress of a stream: `group.id`.

A stream with a group joins it on Spark's first request, as its only member or as the owner of a share of its
partitions (`group.members`), and sends heartbeats.  When Spark passes an
offset as a start, the records before it are processed: a thread publishes it as the group's committed offsets, so that
no batch waits.  The ends of batches, and so the checkpoint, contain a token of the query.  A restarted query with the
same token may take the group before the old session expires.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyspark_pylog.progress.loss import TRIMMED, Loss, report
from pyspark_pylog.progress.offset_format import Offset
from spark_log.client.consumer.membership import Membership, SessionRequest
from spark_log.errors import GroupInUse, IllegalGeneration, SparkLogError
from spark_log.groups.member_share import Share
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.groups.group_commands import CommitOffsets
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.state import GroupPosition, GroupState, MemberSession, State, TopicKey
from spark_log.model import TopicPartition
from spark_log.positions import format_timestamp_ms

SESSION_MS = 45_000
"""Kafka's default."""
SIGN_S = 15.0
"""Interval of heartbeats: three in a session, so that one may be late and another may fail."""

QUERY = "@query"
"""Key of the query's token in the stream's offsets."""


class GroupProgress:
    """A stream's membership in its group; without a group, nothing happens.  Used by one thread."""

    def __init__(
        self, group: str | None, share: Share | None = None, session_ms: int = SESSION_MS, sign_s: float = SIGN_S
    ) -> None:
        self.group = group
        self._share = share
        self._session_ms = session_ms
        self._sign_s = sign_s
        self._token = ""
        self._stood: Mapping[TopicKey, GroupPosition] = {}
        self._publisher: Publisher | None = None
        self._leaving = False
        self._left_at: Offset | None = None
        """The offset at which an available-now run ended and left the group."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy for the tasks is not a member."""
        return GroupProgress, (self.group, self._share, self._session_ms, self._sign_s)

    def owns(self, tp: TopicPartition) -> bool:
        """Whether the stream reads a partition of its topics."""
        return self._share is None or self._share.owns(tp.partition)

    def positions(self, state: State, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions of the queries that share the group: they may be beyond a checkpoint of an earlier share."""
        if self.group is None or self._share is None:
            return {}
        offsets = state.groups.get(self.group, GroupState()).offsets
        return within(state, offsets, tps)

    def join(self, journal: Journal, at: Offset) -> None:
        """Join the group as the query with this offset, unless this was done already.

        Raises GroupInUse if another live query owns the group, or this share of it.
        """
        if self.group is None or self._publisher is not None or at == self._left_at:
            return
        self._token = at.carried.get(QUERY) or self._token or journal.context.unique()
        session = SessionRequest(self._token, _owner(self._share), self._session_ms, self._share)
        membership = Membership(journal, self.group, session)
        try:
            membership.join()
        except GroupInUse as error:
            raise GroupInUse(f"{error}. {_advice(self._share)}", owner=error.owner) from None
        self._publisher = Publisher(journal, membership, self._sign_s)
        self._publisher.start()
        self._heed_sigterm()

    def standing(self, state: State, tps: Iterable[TopicPartition], fail: bool) -> dict[TopicPartition, int]:
        """The group's committed offsets in `tps`, for the partitions that have one.

        fail:  if records that the group has not read are gone, raise DataLoss.
        """
        if self.group is None:
            return {}
        offsets = self._stood = state.groups.get(self.group, GroupState()).offsets
        found, losses = within(state, offsets, tps), []
        for tp, offset in found.items():
            start = state.partitions[state.names[tp.topic], tp.partition].start
            losses += [Loss(tp, offset, start, TRIMMED)] if offset < start else []
            found[tp] = max(offset, start)
        report(losses, fail)
        return found

    def moved(self, state: State, tps: Iterable[TopicPartition], fail: bool) -> dict[TopicPartition, int]:
        """The offsets of `standing`, if others changed those of the group since the last call; else empty.  Raises as
        `standing`.
        """
        stands = state.groups.get(self.group or "", GroupState()).offsets
        return {} if dict(stands) == dict(self._stood) else self.standing(state, tps, fail)

    def signed(self, at: Offset) -> Offset:
        """The offset with the token that identifies the query after a restart."""
        return replace(at, carried={**at.carried, QUERY: self._token}) if self._token else at

    def knows(self, at: Offset) -> bool:
        """Whether the offset has a token; a new query, or one that had no group before, has none."""
        return self.signed(at) == at

    def reached(self, journal: Journal, at: Offset) -> None:
        """Publish that all records before the offset are processed.  Returns before this is done.

        Raises IllegalGeneration if another member has taken over the group, GroupInUse if the group could not be
        joined.
        """
        if self.group is None or at == self._left_at:
            return
        self.join(journal, at)
        assert self._publisher is not None, "just joined"
        self._publisher.hand_over(at)

    def flush(self) -> None:
        """Wait until all offsets are published.  Raises as `reached`."""
        if self._publisher is not None:
            self._publisher.flush()

    def leave(self, at: Offset | None = None) -> None:
        """Publish the last offset and leave the group; a later call with an offset other than `at` joins again."""
        self._leaving = True
        publisher, self._publisher, self._left_at = self._publisher, None, at
        if publisher is not None:
            publisher.leave()
        self._leaving = False

    def _heed_sigterm(self) -> None:
        """Make SIGTERM end the process like an exception, so that `stop` runs and the group becomes free.

        When Spark stops a source, it closes the connection and kills the process immediately: mostly before `stop`, and
        sometimes by two signals, of which the second must not interrupt the first.
        """

        def end(number: int, frame: object) -> None:
            if not self._leaving:  # otherwise `stop` is running, and the closed connection ends the process
                self._leaving = True
                sys.exit(128 + number)

        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, end)


class Publisher(threading.Thread):
    """Publishes the newest position, and sends heartbeats while there is nothing to publish."""

    def __init__(self, journal: Journal, membership: Membership, sign_s: float) -> None:
        super().__init__(name=f"pylog-group-{membership.group}", daemon=True)
        self._journal = journal
        self._membership = membership
        self._share = None if membership.session is None else membership.session.share
        self._sign_s = sign_s
        self._changed = threading.Condition()
        self._wanted: Offset | None = None
        self._tried: Offset | None = None
        self._published: Offset | None = None
        self._error: Exception | None = None
        self._closed = False

    def hand_over(self, at: Offset) -> None:
        """Publish this instead of earlier unpublished positions.  Raises IllegalGeneration if the group was taken."""
        if self._membership.lost(state := self._journal.state) and not self._membership.lost_by_restore(state):
            raise self._taken()
        with self._changed:
            self._raise()
            if at != self._wanted:
                self._wanted = at
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait for an attempt to publish the last position.  Raises IllegalGeneration if the group was taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._tried is self._wanted or self._error is not None)
            self._raise()

    def leave(self) -> None:
        """Publish, end the thread, and leave the group if this query still owns it."""
        try:
            self.flush()
            self._close()
            self._membership.leave()
        except IllegalGeneration:
            return  # another member has taken it over
        except SparkLogError as error:
            logger.warning("group %s stays taken until its session runs out: %s", self._membership.group, error)

    def run(self) -> None:
        while self._next():
            at = self._wanted
            try:
                self._step_as_member(at)
            except IllegalGeneration:
                self._error = self._taken()
            except SparkLogError as error:
                logger.warning("progress of group %s is late: %s", self._membership.group, error)
            except Exception as error:  # noqa: BLE001  raised by the next call of the query
                self._error = error
            with self._changed:
                self._tried = at
                self._closed = self._closed or self._error is not None
                self._changed.notify_all()

    def _next(self) -> bool:
        """Wait for a position to publish or the next heartbeat; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted is not self._tried, self._sign_s)
            return not self._closed

    def _step_as_member(self, at: Offset | None) -> None:
        """Join again if the log was restored from a copy of before the join.  Raises IllegalGeneration, GroupInUse."""
        try:
            self._step(at)
        except IllegalGeneration:
            if not self._membership.lost_by_restore(self._journal.state):
                raise
            self._membership.join()
            self._step(at)

    def _step(self, at: Offset | None) -> None:
        if at is None or at is self._published:
            self._membership.renew_session()
        else:
            self._journal.propose(CommitOffsets(commit=self._commit(at), live_only=True, history=at.history))
            self._published = at

    def _commit(self, at: Offset) -> GroupCommit:
        group, entries = self._membership.group, entries_at(self._journal.state, at)
        if self._share is not None:
            offsets = self._journal.state.groups.get(group, GroupState()).offsets
            entries = [one for one in entries if self._share.owns(one.partition) and is_ahead(one, offsets)]
        return GroupCommit(group, self._membership.generation, tuple(entries))

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _taken(self) -> IllegalGeneration:
        name = self._membership.group
        group = self._journal.state.groups.get(name)
        if group is None:
            what = "was deleted"
        elif (taker := self._taker(group)) is not None:
            what = f"was taken by {taker.owner} at {format_timestamp_ms(taker.since)}"
        elif group.member:
            what = f"was taken by a consumer at {format_timestamp_ms(group.seen)}"
        else:
            what = f"was taken away from this query at {format_timestamp_ms(group.seen)}"
        return IllegalGeneration(
            f"group {name!r} {what}, so this query ends; its checkpoint is intact: "
            "restart it when the group is free, or with another group.id",
            current=0 if group is None else group.generation,
        )

    def _taker(self, group: GroupState) -> MemberSession | None:
        """The session of the query that has taken the partitions of this one, or some of them."""
        takers = [one.session for one in group.shares if self._share is None or one.share.overlaps(self._share)]
        return group.session or next(iter(takers), None)


def entries_at(state: State, at: Offset) -> list[OffsetEntry]:
    """The positions of an offset, in topics that still have its ids."""
    return [
        OffsetEntry(topic_id, tp.partition, end)
        for tp, end in sorted(at.ends.items())
        if (topic_id := state.names.get(tp.topic)) is not None and at.same_topic(tp.topic, topic_id)
    ]


def is_ahead(entry: OffsetEntry, offsets: Mapping[TopicKey, GroupPosition]) -> bool:
    """Whether a position is new to a group that queries share: an old checkpoint does not move it back."""
    known = offsets.get((entry.topic_id, entry.partition))
    return known is None or known.offset < entry.offset


def within(
    state: State, offsets: Mapping[TopicKey, GroupPosition], tps: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Positions of existing partitions, at most their ends."""
    keys = {tp: (state.names[tp.topic], tp.partition) for tp in tps}
    return {
        tp: min(offsets[key].offset, state.partitions[key].readable_end) for tp, key in keys.items() if key in offsets
    }


def _advice(share: Share | None) -> str:
    if share is None:
        return "Two loads in one query need a group each"
    return (
        f"Of queries that share a group, each has another group.member and all have the same group.members, here "
        f"{share.of}: before this number changes, stop all of them"
    )


def _owner(share: Share | None) -> str:
    which = "" if share is None else f", {share}"
    return f"a stream on {os.uname().nodename} (process {os.getpid()}{which})"
