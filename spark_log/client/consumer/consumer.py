"""Consumers: records or Arrow tables of partitions, from a group's committed position onwards.

Names and behaviour are those of Kafka's Python clients.  Consumers that subscribe with a `group_id` share the
partitions of their topics through a coordinator.  Without a coordinator, one consumer owns all partitions, and a newer
one takes them over.  A poll reads up to the end of one committed state of the log, so it never sees a part of a commit.
Not thread-safe, as in Kafka.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from spark_log.client.arguments import refuses_odd_arguments
from spark_log.client.client_settings import CONSUMER, coder, resolve_settings
from spark_log.client.consumer.assignment import Assignment
from spark_log.client.consumer.auto_commit import AutoCommit
from spark_log.client.consumer.cursor import Readable, readable
from spark_log.client.consumer.fetch_positions import FetchPosition, Reading
from spark_log.client.consumer.fetch_wait import FetchWait
from spark_log.client.consumer.group_member import open_membership
from spark_log.client.consumer.membership import Membership, SessionRequest, as_offsets
from spark_log.client.consumer.record_buffer import RecordBuffer
from spark_log.client.consumer.state_updates import StateUpdates
from spark_log.client.consumer.subscribed_topics import SubscribedTopics
from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.positions_to_offsets import bounds, offsets_for_times, partition_of, timestamps_ms
from spark_log.client.reader.scan_batches import record_columns, scan_schema, to_batch
from spark_log.client.reader.typed import common_read, in_form
from spark_log.client.representations import HtmlDict, log_facts, one_line
from spark_log.client.validate import timeout, times_ms
from spark_log.errors import InvalidRequest, LogRestored
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.groups.group_commands import Committer
from spark_log.metadata.records import GroupCommit, OffsetEntry
from spark_log.metadata.set_backs import Lineage, lineage_of
from spark_log.metadata.state import State
from spark_log.model import EARLIEST, LATEST, ConsumerRecord, OffsetAndMetadata, TopicPartition
from spark_log.runtime.threads import Event
from spark_log.store.bounded_waits import Unfinished, Waiter
from spark_log.text import counted

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Callback = Callable[[Offsets, Exception | None], object]

MEMBERSHIP_WAIT_MS = 250.0
"""Longest wait for a change of the group."""
READ_GRACE_MS = 1000
"""How much longer than its timeout a poll waits for a storage request in flight, even with a timeout of 0."""
REFRESH_MS = 100
"""Interval of checks for new topics, partitions and owners while there is enough to read."""


class OffsetAndTimestamp(NamedTuple):
    """Result of `offsets_for_times`: the first record at or after a time."""

    offset: int
    timestamp: int
    """In milliseconds."""


@refuses_odd_arguments()
class Consumer:
    """Reads the records of subscribed topics or assigned partitions.

    Not thread-safe.  A context manager: its exit closes the consumer, and an exception prevents the last auto-commit.
    """

    def __init__(
        self,
        journal: Journal,
        *topics: str,
        session: SessionRequest | None = None,
        stop: Event | None = None,
        **settings: Any,
    ) -> None:
        """
        session:  as for `open_membership`.
        stop:     ends a poll that waits for records.
        """
        self._settings = resolve_settings("consumer", CONSUMER, settings)
        self._settings["client_rack"] = self._settings["client_rack"] or journal.roots.rack
        self._journal = journal
        self._clock = journal.context.clock
        self._decode_key = coder(self._settings["key_deserializer"], "deserialize")
        self._decode_value = coder(self._settings["value_deserializer"], "deserialize")
        group = self._settings["group_id"]
        self._groups = () if group is None else (group,)
        self._membership = None if group is None else open_membership(journal, self._settings, session)
        self._stop = stop
        self._waiter = Waiter(None if stop is None else stop.is_set)
        self._updates = StateUpdates(journal, self._waiter)
        self._reading = Reading(journal, self._membership, self._settings, self._refresh_state, self._waiter)
        self._fetch_wait = FetchWait(self._clock, self._settings, self._reading, local=journal.metadata.local)
        self._auto_commit = AutoCommit(self._membership, self._settings, self._clock)
        self._buffer = RecordBuffer(journal)
        self._assignment = Assignment(journal, self._membership, self._auto_commit, self._waiter, self._buffer.discard)
        self._closed, self._pid = False, os.getpid()
        self._state: State = journal.state
        self.lineage: Lineage | None = None
        """The log that this consumer has read; None before its first look."""
        self._stale = True
        """The assignment has not been reconciled with the state yet."""
        self._updated_ms = -REFRESH_MS
        if topics:
            self.subscribe(topics)

    # ----------------------------------------------------------------------------------------------- which partitions

    def subscribe(self, topics: Iterable[str] | str = (), pattern: str | None = None, listener: object = None) -> None:
        """Subscribe to topics by name, or to all topics whose whole name matches a pattern.

        New partitions, and new topics that match, are read as well.

        pattern:   a regular expression.
        listener:  an object with any of the methods on_partitions_assigned, on_partitions_revoked, on_partitions_lost.
        """
        subscribed = SubscribedTopics(topics, pattern, listener)
        self._check_open()
        if self._assignment.positions and self._assignment.subscribed is None:
            raise InvalidRequest("subscribe: partitions were assigned by hand; unsubscribe() first")
        self._assignment.subscribe(subscribed)
        self._updates.discard()
        self._discard_buffered()
        if self._membership is not None and self._membership.lost(self._journal.state):
            self._membership.forget()

    def unsubscribe(self) -> None:
        """Stop reading, and leave the group."""
        self._check_open()
        self._assignment.end()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group membership.

        Raises UnknownTopicOrPartition, as polls do after one of the topics was deleted, until its partitions are
        assigned again.
        """
        self._check_open()
        if self._assignment.subscribed:
            raise InvalidRequest("assign: topics were subscribed to; unsubscribe() first")
        tps = [TopicPartition(*one) for one in partitions]
        state = self._state = self._refreshed(tp.topic for tp in tps)
        self._follow_restore(state)
        self._assignment.assign({tp: partition_of(state, tp)[0] for tp in tps})
        self._discard_buffered()

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions; empty before the first poll of a subscription."""
        return set(self._assignment.positions)

    def subscription(self) -> set[str] | None:
        """The subscribed topics; None without a subscription."""
        subscribed = self._assignment.subscribed
        return None if subscribed is None else set(subscribed.names(self._assignment.positions))

    def topics(self) -> set[str]:
        """All topics of the log."""
        return set(self._refreshed(None).names)

    def _refreshed(self, topics: Iterable[str] | None) -> State:
        """The newest state, which has these topics, or all of them."""
        self._journal.require(topics, self._groups)
        return self._journal.refresh()

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The numbers of a topic's partitions; None if the topic does not exist."""
        state = self._refreshed([topic])
        topic_id = state.names.get(topic)
        return None if topic_id is None else set(range(state.topics[topic_id].partitions))

    # -------------------------------------------------------------------------------------------------------- records

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; waits for it, up to `consumer_timeout_ms` if set.  Advances the record's position."""
        while (record := self._buffer.take(self._assignment.positions)) is None:
            self._discard_buffered()
            self._buffer.note_request()
            parts = self._wait(self._settings["consumer_timeout_ms"], self._settings["max_poll_records"], None)
            if not parts:
                raise StopIteration
            self._buffer.add(self._readable(parts))
        return record

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Available records by partition, at most `max_records` in all (default: `max_poll_records`).

        Waits up to `timeout_ms` for a record, and returns {} if there is nothing to return by then.  If fewer than
        `fetch_min_bytes` are available, they are returned only after a wait of `fetch_max_wait_ms`.  This wait may span
        several polls.

        The call may take longer than `timeout_ms`: up to a second longer if a bucket or a coordinator does not answer,
        and longer still while it joins the group or commits.  No timeout ends a read from a local disk or a network
        mount.

        If an older copy of the log was restored, it returns nothing until that has as many versions as were read, and
        warns once.

        Raises IllegalGeneration if a newer consumer has taken over the group: without a coordinator, a group has one
        member at a time.  Raises NoOffsetForPartition and OffsetOutOfRange with auto_offset_reset="none".  Raises
        RecordDeserialization if the next record cannot be deserialized, after earlier polls have returned the records
        before it.
        """
        self._discard_buffered()
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        parts = self._wait(timeout_ms, _limit(max_records, self._settings["max_poll_records"]), None)
        for part in self._readable(parts):
            found.setdefault(part.tp, []).extend(part.records)
            self._assignment.positions[part.tp].position = part.end
        return found

    def _readable(self, parts: Sequence[Fetched]) -> list[Readable]:
        return readable(parts, self._decode_key, self._decode_value)

    def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> pa.Table:
        """Like `poll`, but returns a table of topic, partition, offset, key, value, timestamp and headers.

        Nothing is deserialized.  Without `max_records`, the table has at most about `fetch_max_bytes`.  For a topic
        with a schema, the schema's columns take the place of value, unless the setting `value_format` says otherwise.
        """
        self._discard_buffered()
        parts = self._wait(timeout_ms, _limit(max_records, 2**63 - 1), self._settings["fetch_max_bytes"])
        formats = self._settings["value_format"], self._settings["value_parse"]
        names = [self._state.topics[topic_id].name for topic_id in self._assignment.positions.topics()]
        value = common_read(self._state, names, *formats)
        schema = scan_schema(None, value)
        columns = record_columns(schema, value)
        batches = [to_batch(in_form(part, columns, value), schema) for part in parts]
        for part in parts:
            tp = TopicPartition(part.read.topic, part.read.partition)
            self._assignment.positions[tp].position = part.end
        return pa.Table.from_batches(batches, schema=schema)

    def _wait(self, timeout_ms: float, rows: int, size: int | None) -> list[Fetched]:
        """Available records; nothing only after `timeout_ms`."""
        self._check_open()
        timeout_ms = timeout(timeout_ms)
        if self._assignment.subscribed is None and not self._assignment.positions:
            raise InvalidRequest("the consumer has no partitions: call subscribe() or assign() first")
        with self._waiter.within(max(timeout_ms, 0) + READ_GRACE_MS):
            try:
                return self._await_records(timeout_ms, rows, size)
            except Unfinished:
                # Records that were read before may still be in memory; after seek or subscribe, the state is too old.
                settled = self._assignment.is_known and not self._stale
                return (settled and self._take(rows, size)) or []

    def _await_records(self, timeout_ms: float, rows: int, size: int | None) -> list[Fetched]:
        start = self._clock.monotonic_ms()
        updated = False
        while True:
            if self._membership is not None:
                self._membership.call_back()
            try:
                self._pick_up_changes(updated)
                self._assignment.auto_commit()
                enough = self._fetch_wait.is_enough(self._assignment.positions, self._state)
                parts = self._take(rows, size) if enough else []
            except LogRestored:
                self._updates.wait_for_versions()
                self._discard_buffered()  # it may be lost
                parts = []
            if parts is None:
                continue
            if parts:
                self._fetch_wait.found()
                return parts
            left = timeout_ms - (self._clock.monotonic_ms() - start)
            if left <= 0 or (self._stop is not None and self._stop.is_set()):
                return []
            updated = self._wait_for_changes(left)

    def _take(self, rows: int, size: int | None) -> list[Fetched] | None:
        """Available records; None if the log was restored while they were read, and planned again in it."""
        parts = self._reading.take(self._assignment.positions, self._state, rows, size)
        if self.lineage in (None, lineage_of(self._journal.state)):
            return parts
        self._discard_buffered()
        return None

    def _wait_for_changes(self, left_ms: float) -> bool:
        """Wait for the group or for the log; whether the journal's state was updated."""
        if self._membership is not None and self._membership.await_change(min(left_ms, MEMBERSHIP_WAIT_MS)):
            return False
        return self._updates.wait(
            min(self._fetch_wait.refresh_ms(), left_ms),
            min(left_ms, self._auto_commit.until_due_ms(), self._fetch_wait.until_due_ms()),
            group="" if self._membership is None else self._membership.group,
            topics=self._assignment.positions.topics(),
        )

    def _refresh_state(self) -> State:
        self._updates.discard()
        self._updates.refresh((), ())
        self._state, self._stale = self._journal.state, True
        return self._state

    def _discard_buffered(self) -> None:
        """Discard records that were read and not returned, by iteration or after an error; they are read again."""
        self._buffer.discard()
        self._assignment.positions.discard_buffered()

    # ------------------------------------------------------------------------------------------------------ the group

    def _pick_up_changes(self, updated: bool = False) -> None:
        """Pick up new records, topics, partitions and owners.

        updated:  a wait has just updated the journal's state, which saves a request.
        """
        assignment = self._assignment
        self._stale |= self._membership is not None and self._membership.report_alive()
        self._update_state(updated)
        fresh = self._journal.state
        if fresh is self._state and assignment.is_known and not self._stale:
            return
        self._state, self._stale = fresh, False
        self._follow_restore(fresh)
        if assignment.subscribed:
            assignment.join()
            self._state = self._journal.state
            self._follow_restore(self._state)  # the log may have been restored during the join
            assignment.reconcile(self._state, assignment.subscribed)
        else:
            assignment.check_live(fresh)

    def _follow_restore(self, state: State) -> None:
        """Continue where the records end that this log has in common with the one before it was restored or set back.

        Raises OffsetOutOfRange without a reset policy, and if that end cannot be told."""
        before, self.lineage = self.lineage, lineage_of(state)
        if self._membership is not None:
            self._membership.history, self._membership.set_back = self.lineage
        if before is None or before == self.lineage:
            return
        for tp, (at, end) in self._assignment.follow_restore(state, before).items():
            if self._settings["auto_offset_reset"] == "none" or not end.told:
                self._stale = True
                raise end.error(f"{tp.topic}-{tp.partition}", at)
            logger.warning("%s-%d: %s: reading continues at %d", *tp, end.text(at), end.offset)

    def _update_state(self, updated: bool) -> None:
        """Update the journal's state, unless there is enough to read and it is recent."""
        now, assignment = self._clock.monotonic_ms(), self._assignment
        recent = now - self._updated_ms < REFRESH_MS and not self._stale
        if recent and not self._updates.is_ahead and assignment.positions.anything_ready(self._state):
            return
        self._updated_ms = now
        if not assignment.is_known:
            subscribed = assignment.subscribed
            self._updates.refresh(() if subscribed is None else subscribed.required, self._groups)
        elif not updated:
            self._updates.poll()
        assignment.keep_group_in_use(self._journal.state)

    # ------------------------------------------------------------------------------------------------------ positions

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit the given positions; by default, the positions after all returned records.

        They are durable when the call returns, unless the log, or its coordinator, was opened with
        `durability="os"`.

        Without a coordinator, a group has one member at a time, and the call does not access the storage if this
        consumer knows that the positions are already committed.  Such a call succeeds even if a newer consumer has
        since taken over the group, or an older copy of the log was restored.

        Raises IllegalGeneration if the consumer is no longer a member of its group, or a newer consumer has taken over
        the group; RebalanceInProgress while the group rebalances; CommitUnknown if the commit may have been applied;
        OffsetOutOfRange or ConcurrentChange if an older copy of the log lacks what was read: poll() again.
        """
        self._group("commit").commit(self._entries(self._given(offsets)))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: Callback | None = None,
    ) -> None:
        """Like `commit`, but in the background, in the order of the calls.

        If a commit is not answered, the commits that wait behind it fail, too.  A later poll or commit calls
        `callback(offsets, error or None)`.
        """
        membership, given = self._group("commit_async"), self._given(offsets)
        unlimited = None if callback is None else partial(self._call_back, callback, given)
        membership.commit_async(self._entries(given), unlimited)

    def _given(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None) -> Offsets:
        return self._assignment.returned() if offsets is None else as_offsets(offsets)

    def returned(self) -> Offsets:
        """Positions after all returned records, by partition: those that `commit` commits."""
        return self._assignment.returned()

    def _entries(self, offsets: Offsets) -> tuple[OffsetEntry, ...]:
        state = self._journal.require((tp.topic for tp in offsets), self._groups)
        return self._assignment.entries(state, offsets)

    def _call_back(self, callback: Callback, offsets: Offsets, error: Exception | None) -> None:
        with self._waiter.within(math.inf):
            callback(offsets, error)

    def committed(self, partition: TopicPartition, metadata: bool = False) -> int | OffsetAndMetadata | None:
        """The committed offset of a partition, or None; an OffsetAndMetadata with `metadata=True`."""
        membership = self._group("committed", join=False)
        membership.flush_commits()
        state = self._refreshed([partition.topic])
        found = membership.position(state, partition_of(state, partition)[0])
        if found is None:
            return None
        return OffsetAndMetadata(found.offset, found.metadata) if metadata else found.offset

    def group_commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> GroupCommit:
        """Positions, given ones or those of returned records, for a transaction to commit with its records."""
        positions = self._entries(self._given(offsets))
        return self._group("commit_offsets").checked_commit(positions)

    @property
    def history(self) -> str | None:
        """The history of the log in which the positions were reached; None: this consumer has read nothing."""
        return None if self.lineage is None else self.lineage.history

    def committer(self) -> Committer | None:
        """The member that commits, if a coordinator requires one."""
        return self._group("commit_offsets").committer()

    def _group(self, what: str, join: bool = True) -> Membership:
        self._check_open()
        if self._membership is None:
            raise InvalidRequest(f"{what}: the consumer has no group; set group_id")
        if join and self._assignment.subscribed and not self._membership.joined:
            self._membership.join()
        return self._membership

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be returned."""
        fetch_position = self._fetch_position(partition)
        if fetch_position.position is None:
            self._reading.position(self._refresh_state(), partition, fetch_position)
        assert fetch_position.position is not None, "it has just been resolved"
        return fetch_position.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading a partition at an offset."""
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise InvalidRequest(f"seek: {offset!r} is not an offset; for the ends, use seek_to_beginning, seek_to_end")
        self._discard_buffered()
        fetch_position = self._fetch_position(partition)
        fetch_position.position, fetch_position.cursor = offset, None
        self._assignment.positions.set_active(partition)
        self._stale = True  # the offset may be that of a record that is newer than the state,
        self._updates.discard()  # or than the answer of a call in progress

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the first record of these partitions; of all assigned ones if none is given."""
        self._seek_all(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue after the last record that these partitions have now; all assigned ones if none is given."""
        self._seek_all(partitions, LATEST)

    def _seek_all(self, partitions: Sequence[TopicPartition], to: int) -> None:
        if not partitions:
            self._ensure_assigned()
        for tp, offset in self._bounds(partitions or tuple(self._assignment.positions), to).items():
            self.seek(tp, offset)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`."""
        self._discard_buffered()
        for tp in partitions:
            self._fetch_position(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        for tp in partitions:
            self._fetch_position(tp).paused = False

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return {tp for tp, fetch_position in self._assignment.positions.items() if fetch_position.paused}

    def lag(self) -> dict[TopicPartition, int]:
        """How many records of each assigned partition have not been returned yet.  Offsets that have no record are
        included, as in Kafka."""
        self._ensure_assigned()
        ends = self.end_offsets(tuple(self._assignment.positions))
        return HtmlDict({tp: max(0, end - self.position(tp)) for tp, end in ends.items()})

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of each partition's first record."""
        return self._bounds(partitions, EARLIEST)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition: the offset after the last record that readers see."""
        return self._bounds(partitions, LATEST)

    def _bounds(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._check_open()
        tps = list(partitions)
        return bounds(self._refreshed(tp.topic for tp in tps), tps, which)

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition, the first record with a timestamp at or after the given one, in milliseconds or a
        datetime (UTC if it has no zone); None if the partition has no such record."""
        self._check_open()
        times = times_ms("offsets_for_times", timestamps)
        self._refreshed(tp.topic for tp in times)
        found = offsets_for_times(self._journal, times)
        at_ms = timestamps_ms(self._journal, {tp: at for tp, at in found.items() if at is not None})
        if any(at is not None and tp not in at_ms for tp, at in found.items()):
            return self.offsets_for_times(timestamps)  # compaction has removed a record since it was found
        return {tp: None if at is None else OffsetAndTimestamp(at, at_ms[tp]) for tp, at in found.items()}

    def _fetch_position(self, partition: TopicPartition) -> FetchPosition:
        self._ensure_assigned()
        fetch_position = self._assignment.positions.get(partition)
        if fetch_position is None:
            raise InvalidRequest(
                f"{partition} is not assigned to this consumer; it has {sorted(self._assignment.positions) or 'none'}"
            )
        return fetch_position

    def _ensure_assigned(self) -> None:
        """Assign a subscription's partitions now, without waiting for the first poll."""
        self._check_open()
        deadline = self._clock.monotonic_ms() + self._settings["default_api_timeout_ms"]
        while self._assignment.subscribed and not self._assignment.is_known and self._clock.monotonic_ms() < deadline:
            self._pick_up_changes()
            if self._membership is not None:
                self._membership.await_change(MEMBERSHIP_WAIT_MS)

    # -------------------------------------------------------------------------------------------------------- the end

    def close(self, autocommit: bool = True) -> None:
        """Commit the positions of returned records, if `enable_auto_commit`, and leave the group.

        Nothing happens in a forked child, since the consumer is its parent's.
        """
        if self._closed or self._pid != os.getpid():
            return
        if not autocommit:
            self._auto_commit.enabled = False
        try:
            self._assignment.end()
        finally:
            self._closed = True
            if self._membership is not None:
                self._membership.close()

    def __repr__(self) -> str:
        return one_line(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield from log_facts(self._journal)
        yield f"group {self._settings['group_id']!r}" if self._groups else "no group"
        subscribed, assigned = self._assignment.subscribed, self._assignment.positions
        yield "assigned by hand" if subscribed is None else f"subscribed to {subscribed}"
        yield counted(len(assigned), "partition")
        yield "closed" if self._closed else "open"

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The body may have raised before it processed the returned records: the next run reads them again.
        self.close(autocommit=kind is None)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the consumer is closed")
        if self._pid != os.getpid():
            raise InvalidRequest(
                "this consumer was created before the process was forked and belongs to the parent: create one in the "
                "child"
            )


def _limit(given: int | None, default: int) -> int:
    if given is None:
        return default
    if given < 1:
        raise InvalidRequest(f"invalid value {given} for max_records: expected a number from 1")
    return given
