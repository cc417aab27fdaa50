"""Consumers: records or Arrow tables of partitions, from a group's committed position onwards.

Names and behaviour are those of Kafka's Python clients.  Consumers that subscribe with a `group_id` share the
partitions of their topics through a coordinator.  Embedded there is no coordinator: one consumer owns all partitions,
and a newer one takes them over. A poll reads up to the end of one committed state of the log, so it never sees a part
of a commit.  Not thread-safe, as in Kafka.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from spark_log.client.client_settings import CONSUMER, coder, resolve_settings
from spark_log.client.consuming.backoff import PollBackoff
from spark_log.client.consuming.cursor import readable
from spark_log.client.consuming.fetch_positions import (
    NOWHERE,
    FetchPosition,
    FetchPositions,
    Reading,
    anything_buffered,
    anything_ready,
    discard_buffered,
)
from spark_log.client.consuming.group_member import open_membership
from spark_log.client.consuming.membership import Callback, Membership, Offsets, as_offsets
from spark_log.client.consuming.subscribed_topics import SubscribedTopics, Wanted
from spark_log.client.reading.fetch import Fetched
from spark_log.client.reading.plan import OffsetRange, plan_reads
from spark_log.client.reading.resolve import offsets_for_times, partition_of
from spark_log.client.reading.scan_batches import SCAN_SCHEMA, fetch_ranges, to_batch
from spark_log.client.validate import times_ms
from spark_log.errors import (
    IllegalGeneration,
    InvalidRequest,
    SparkLogError,
    UnknownTopicOrPartition,
)
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import Committer
from spark_log.metadata.records import GroupCommit
from spark_log.metadata.state import State, TopicKey
from spark_log.model import EARLIEST, LATEST, ConsumerRecord, OffsetAndMetadata, TopicPartition
from spark_log.store.bounded_waits import Slot, Unfinished, Waiter

logger = logging.getLogger("spark_log")

REMOVED = "this consumer was removed from the group; poll() rejoins, and records may be read twice"
MEMBERSHIP_WAIT_MS = 250.0
"""Longest wait for news of the group."""
READ_GRACE_MS = 1000
"""How much longer than its timeout a poll waits for a storage request in flight, even with a timeout of 0."""
REFRESH_MS = 100
"""Interval of checks for new topics, partitions and owners while there is enough to read."""


class OffsetAndTimestamp(NamedTuple):
    """Result of `offsets_for_times`: the first record at or after a time."""

    offset: int
    timestamp: int
    """In milliseconds."""


class Consumer:
    """A consumer of subscribed topics or assigned partitions."""

    def __init__(self, journal: Journal, *topics: str, **settings: Any) -> None:
        self._settings = resolve_settings("consumer", CONSUMER, settings)
        self._journal = journal
        self._clock = journal.context.clock
        self._decode_key = coder(self._settings["key_deserializer"], "deserialize")
        self._decode_value = coder(self._settings["value_deserializer"], "deserialize")
        group = self._settings["group_id"]
        self._membership = None if group is None else open_membership(journal, self._settings)
        self._waiter = Waiter()
        self._hearing = Slot[State](direct=journal.store.local and journal.link is None)
        self._reading = Reading(journal, self._membership, self._settings, self._refresh_state, self._waiter)
        self._fetch_positions: FetchPositions = {}
        self._subscribed: SubscribedTopics | None = None
        self._assigned_once = False
        self._rebalance = 0
        """The group's rebalance that the listener was last called for."""
        self._closed = False
        self._state: State = journal.state
        self._stale = True
        """The assignment has not been reconciled with the state yet."""
        self._reconciled: Wanted | None = None
        """The partitions that the assignment was last reconciled with."""
        self._looked_ms = -REFRESH_MS
        self._committed_ms = self._fetched_ms = self._clock.monotonic_ms()
        self._buffered_parts: deque[list[ConsumerRecord]] = deque()
        """Records for iteration, one list a partition, not begun."""
        self._buffered: Iterator[ConsumerRecord] = iter(())
        """The rest of the list in progress,"""
        self._buffered_from = NOWHERE
        """and its partition."""
        self._looks = PollBackoff(self._clock, local=journal.store.local, most_ms=self._settings["fetch_max_wait_ms"])
        if topics:
            self.subscribe(topics)

    # ----------------------------------------------------------------------------------------------- which partitions

    def subscribe(self, topics: Iterable[str] | str = (), pattern: str | None = None, listener: object = None) -> None:
        """Read topics by name, or all topics whose whole name matches a pattern; new topics and partitions are
        included.

        listener:  an object with any of on_partitions_assigned, on_partitions_revoked, on_partitions_lost.
        """
        subscribed = SubscribedTopics(topics, pattern, listener)
        self._check_open()
        if self._fetch_positions and self._subscribed is None:
            raise InvalidRequest("subscribe: partitions were assigned by hand; unsubscribe() first")
        self._subscribed, self._assigned_once = subscribed, False
        self._hearing.discard()
        self._discard_buffered()
        if self._membership is not None and self._membership.lost(self._journal.state):
            self._membership.forget()

    def unsubscribe(self) -> None:
        """Stop reading, and leave the group."""
        self._check_open()
        self._end_subscription()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group membership.  Raises UnknownTopicOrPartition."""
        self._check_open()
        if self._subscribed:
            raise InvalidRequest("assign: topics were subscribed to; unsubscribe() first")
        state = self._state = self._journal.refresh()
        wanted = {TopicPartition(*tp): partition_of(state, TopicPartition(*tp))[0] for tp in partitions}
        self._auto_commit(force=True)
        known = {
            tp: fetch_position
            for tp, fetch_position in self._fetch_positions.items()
            if wanted.get(tp) == fetch_position.key
        }
        self._fetch_positions = {tp: known.get(tp) or FetchPosition(key) for tp, key in wanted.items()}
        self._discard_buffered()

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions; empty before the first poll of a subscription."""
        return set(self._fetch_positions)

    def subscription(self) -> set[str] | None:
        """The subscribed topics; None without a subscription."""
        return None if self._subscribed is None else set(self._subscribed.names(self._fetch_positions))

    def topics(self) -> set[str]:
        """All topics of the log."""
        return set(self._journal.refresh().names)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The numbers of a topic's partitions; None if the topic does not exist."""
        state = self._journal.refresh()
        topic_id = state.names.get(topic)
        return None if topic_id is None else set(range(state.topics[topic_id].partitions))

    # -------------------------------------------------------------------------------------------------------- records

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; waits for it, up to `consumer_timeout_ms` if set.  Advances the record's position."""
        while True:
            for record in self._buffered:
                self._buffered_from.position = record.offset + 1
                return record
            if not self._buffered_parts:
                self._buffered_parts.extend(self._next_parts())
                if not self._buffered_parts:
                    raise StopIteration
            part = self._buffered_parts.popleft()
            self._buffered, self._buffered_from = (
                iter(part),
                self._fetch_positions[TopicPartition(part[0].topic, part[0].partition)],
            )

    def _next_parts(self) -> list[list[ConsumerRecord]]:
        self._discard_buffered()
        return self._readable(
            self._wait(self._settings["consumer_timeout_ms"], self._settings["max_poll_records"], None)
        )

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Available records, at most `max_records` (default `max_poll_records`); waits for the first of them.

        Raises IllegalGeneration if a newer consumer has taken over the group; NoOffsetForPartition and
        OffsetOutOfRange with auto_offset_reset="none"; RecordDeserialization if the first record cannot be
        deserialized.
        """
        self._discard_buffered()
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        parts = self._wait(timeout_ms, _limit(max_records, self._settings["max_poll_records"]), None)
        for records in self._readable(parts):
            tp = TopicPartition(records[0].topic, records[0].partition)
            found.setdefault(tp, []).extend(records)
            self._fetch_positions[tp].position = records[-1].offset + 1
        return found

    def _readable(self, parts: Sequence[Fetched]) -> list[list[ConsumerRecord]]:
        return readable(parts, self._decode_key, self._decode_value)

    def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> pa.Table:
        """As `poll`, as a table with topic, partition, offset, key, value, timestamp, headers; nothing is deserialized.

        Without `max_records`, the table has at most about `fetch_max_bytes`.
        """
        self._discard_buffered()
        parts = self._wait(timeout_ms, _limit(max_records, 2**63 - 1), self._settings["fetch_max_bytes"])
        for part in parts:
            tp = TopicPartition(part.read.topic, part.read.partition)
            self._fetch_positions[tp].position = part.end
        return pa.Table.from_batches([to_batch(part, SCAN_SCHEMA) for part in parts], schema=SCAN_SCHEMA)

    def _wait(self, timeout_ms: float, rows: int, size: int | None) -> list[Fetched]:
        """Available records; nothing only after `timeout_ms`."""
        self._check_open()
        if self._subscribed is None and not self._fetch_positions:
            raise InvalidRequest("the consumer has no partitions: call subscribe() or assign() first")
        with self._waiter.within(max(timeout_ms, 0) + READ_GRACE_MS):
            try:
                return self._await_records(timeout_ms, rows, size)
            except Unfinished:
                # Records that were read before may still be in memory; after seek or subscribe, the state is too old.
                settled = self._assigned_once and not self._stale
                return self._reading.take(self._fetch_positions, self._state, rows, size) if settled else []

    def _await_records(self, timeout_ms: float, rows: int, size: int | None) -> list[Fetched]:
        start = self._clock.monotonic_ms()
        heard = False
        while True:
            if self._membership is not None:
                self._membership.call_back()
            self._pick_up_changes(heard)
            heard = False
            self._auto_commit()
            if self._is_enough():
                self._fetched_ms = self._clock.monotonic_ms()
                if parts := self._reading.take(self._fetch_positions, self._state, rows, size):
                    self._looks.found()
                    return parts
            left = timeout_ms - (self._clock.monotonic_ms() - start)
            if left <= 0:
                return []
            if self._membership is not None and self._membership.await_news(min(left, MEMBERSHIP_WAIT_MS)):
                continue
            group = "" if self._membership is None else self._membership.group
            topics = sorted({fetch_position.key[0] for fetch_position in self._fetch_positions.values()})
            most = min(left, self._until_commit_ms(), self._until_fetch_ms())
            refresh_ms = min(self._looks.wait_ms(), left)
            self._await_state(partial(self._journal.wait, refresh_ms, most, group=group, topics=topics))
            heard = True

    def _await_state(self, ask: Callable[[], State]) -> None:
        """Update the journal's state, from storage or a coordinator.  Raises Unfinished.

        An earlier poll may have made the call, so its answer may be older than the journal's state.
        """
        self._waiter.answer(self._hearing, ask)

    def _is_enough(self) -> bool:
        """Whether `fetch_min_bytes` are available, or the consumer has waited `fetch_max_wait_ms` for them."""
        wanted = self._settings["fetch_min_bytes"]
        if wanted <= 1 or self._until_fetch_ms() == 0 or anything_buffered(self._fetch_positions.values()):
            return True
        return self._reading.has_bytes(self._fetch_positions, self._state, wanted)

    def _until_fetch_ms(self) -> float:
        """How long to wait for `fetch_min_bytes`; infinite if that is one byte."""
        if self._settings["fetch_min_bytes"] <= 1:
            return math.inf
        due = self._fetched_ms + self._settings["fetch_max_wait_ms"]
        return float(max(0, due - self._clock.monotonic_ms()))

    def _refresh_state(self) -> State:
        self._hearing.discard()
        self._await_state(self._journal.refresh)
        self._state, self._stale = self._journal.state, True
        return self._state

    def _discard_buffered(self) -> None:
        """Discard records that were read and not returned, by iteration or after an error; they are read again."""
        self._discard_parts()
        discard_buffered(self._fetch_positions.values())

    def _discard_parts(self) -> None:
        self._buffered_parts.clear()
        self._buffered, self._buffered_from = iter(()), NOWHERE

    # ------------------------------------------------------------------------------------------------------ the group

    def _pick_up_changes(self, heard: bool = False) -> None:
        """Pick up new records, topics, partitions and owners.

        heard:  a wait has just updated the journal's state, which saves a request.
        """
        now, membership = self._clock.monotonic_ms(), self._membership
        self._stale |= membership is not None and membership.report_alive()
        recent = now - self._looked_ms < REFRESH_MS and not self._stale
        if not (recent and anything_ready(self._fetch_positions.values(), self._state)):
            self._looked_ms = now
            if not self._assigned_once:
                self._await_state(self._journal.refresh)
            elif not heard:
                self._await_state(self._journal.poll)
            self._keep_group_in_use(self._journal.state)
        fresh = self._journal.state
        if fresh is self._state and self._assigned_once and not self._stale:
            return
        self._state, self._stale = fresh, False
        if self._subscribed:
            self._join()
            self._reconcile(self._subscribed)
            if membership is not None and not membership.is_assigned:
                return
        elif gone := [
            tp for tp, fetch_position in self._fetch_positions.items() if not _is_live(fresh, tp, fetch_position.key)
        ]:
            tp = gone[0]
            raise UnknownTopicOrPartition(f"{tp.topic}-{tp.partition} is assigned, but was deleted; assign() others")
        self._assigned_once = True

    def _keep_group_in_use(self, state: State) -> None:
        if self._membership is None:
            return
        try:
            self._membership.keep(state)
        except SparkLogError as error:
            logger.warning("group %s could not be marked as in use: %s", self._membership.group, error)

    def _join(self) -> None:
        membership = self._membership
        if membership is None:
            return
        if not membership.joined:
            membership.join()
            self._state = self._journal.state
        if membership.lost(self._state):
            self._lose_partitions(membership.replaced(self._state))

    def _lose_partitions(self, error: SparkLogError | None) -> None:
        """Call the listener once about lost partitions.  With an error, later calls raise it."""
        gone = tuple(self._fetch_positions)
        self._fetch_positions, self._assigned_once = {}, False
        self._discard_parts()
        if gone:
            self._notify("on_partitions_lost", gone)
        if error is not None:
            raise error

    def _reconcile(self, subscribed: SubscribedTopics) -> None:
        """Reconcile the assignment with the topics that exist, and with this member's assignment in the group."""
        membership, wanted = self._membership, subscribed.wanted(self._state)
        if membership is not None:
            wanted = subscribed.owned(self._state, membership.share(self._state, subscribed.names(wanted)))
        changed = wanted is not self._reconciled or not self._assigned_once
        gone = (
            [tp for tp, fetch_position in self._fetch_positions.items() if wanted.get(tp) != fetch_position.key]
            if changed
            else []
        )
        if gone:
            self._auto_commit(force=True)
            self._notify("on_partitions_revoked", gone)
            self._fetch_positions = {
                tp: fetch_position for tp, fetch_position in self._fetch_positions.items() if tp not in gone
            }
            self._discard_parts()
            for fetch_position in self._fetch_positions.values():
                fetch_position.cursor = None
        new = sorted(tp for tp in wanted if tp not in self._fetch_positions) if changed else []
        for tp in new:
            self._fetch_positions[tp] = FetchPosition(wanted[tp], new=subscribed.is_new(tp))
        if membership is None or membership.is_assigned:
            self._notify_assigned(new, 0 if membership is None else membership.round)
        if membership is not None:
            membership.hold(wanted)
        self._reconciled = wanted

    def _notify_assigned(self, new: Sequence[TopicPartition], number: int) -> None:
        """number:  of the group's rebalance."""
        if new or not self._assigned_once or number != self._rebalance:
            self._rebalance, self._assigned_once = number, True  # the listener may seek
            self._notify("on_partitions_assigned", new)

    def _notify(self, what: str, partitions: Collection[TopicPartition]) -> None:
        if self._subscribed is not None:
            with self._waiter.within(math.inf):  # Unfinished must not pass through the listener
                self._subscribed.tell(what, partitions)

    def _end_subscription(self) -> None:
        """End a subscription or an assignment: commit, call the listener, leave the group."""
        membership = self._membership
        try:
            self._auto_commit(force=True)
        except IllegalGeneration as error:
            logger.warning("positions were not committed: %s", error)
        if self._fetch_positions:
            self._notify("on_partitions_revoked", tuple(self._fetch_positions))
        if membership is not None and membership.joined:
            self._leave(membership)
        self._fetch_positions, self._subscribed, self._assigned_once = {}, None, False
        self._discard_parts()

    def _leave(self, membership: Membership) -> None:
        try:
            membership.leave()
        except SparkLogError as error:
            logger.warning("group %s still lists this consumer, which has left: %s", membership.group, error)

    def _until_commit_ms(self) -> float:
        """Time until the next automatic commit; infinite without automatic commits."""
        if self._membership is None or not self._settings["enable_auto_commit"]:
            return math.inf
        due = self._committed_ms + self._settings["auto_commit_interval_ms"]
        return float(max(1, due - self._clock.monotonic_ms()))

    def _auto_commit(self, force: bool = False) -> None:
        """Commit the positions of returned records, if the interval has passed."""
        membership = self._membership
        if membership is None or not self._settings["enable_auto_commit"]:
            return
        now = self._clock.monotonic_ms()
        if not force and now - self._committed_ms < self._settings["auto_commit_interval_ms"]:
            return
        self._committed_ms = now
        try:
            membership.commit(self._positions())
        except SparkLogError as error:
            if membership.alone and isinstance(error, IllegalGeneration):
                self._lose_partitions(error)
            why = REMOVED if isinstance(error, IllegalGeneration) and not membership.alone else error
            logger.warning("auto-commit of group %s failed: %s", membership.group, why)

    # ------------------------------------------------------------------------------------------------------ positions

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit the given positions, or those of all returned records.  They are durable when it returns.

        Raises IllegalGeneration if a newer consumer has taken over the group.
        """
        self._group("commit").commit(self._positions() if offsets is None else as_offsets(offsets))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: Callback | None = None,
    ) -> None:
        """As `commit`, in the background and in order; a later poll or commit calls `callback(offsets, error or
        None)`."""
        membership = self._group("commit_async")
        unlimited = None if callback is None else partial(self._call_back, callback)
        membership.commit_async(self._positions() if offsets is None else as_offsets(offsets), unlimited)

    def _call_back(self, callback: Callback, offsets: Offsets, error: Exception | None) -> None:
        with self._waiter.within(math.inf):
            callback(offsets, error)

    def committed(self, partition: TopicPartition, metadata: bool = False) -> int | OffsetAndMetadata | None:
        """The committed offset of a partition, or None; with `metadata=True` as an OffsetAndMetadata."""
        membership = self._group("committed", join=False)
        membership.flush_commits()
        state = self._journal.refresh()
        found = membership.position(state, partition_of(state, partition)[0])
        if found is None:
            return None
        return OffsetAndMetadata(found.offset, found.metadata) if metadata else found.offset

    def group_commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> GroupCommit:
        """Positions, given ones or those of returned records, for a transaction to commit with its records."""
        positions = self._positions() if offsets is None else as_offsets(offsets)
        return self._group("commit_offsets").group_commit(self._journal.state, positions)

    def committer(self) -> Committer | None:
        """The member that commits, if a coordinator requires one."""
        return self._group("commit_offsets").committer()

    def _group(self, what: str, join: bool = True) -> Membership:
        self._check_open()
        if self._membership is None:
            raise InvalidRequest(f"{what}: the consumer has no group; set group_id")
        if join and self._subscribed and not self._membership.joined:
            self._membership.join()
        return self._membership

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions in topics that still exist; not in a recreated topic of the same name."""
        state = self._journal.state
        return {
            tp: OffsetAndMetadata(fetch_position.position)
            for tp, fetch_position in self._fetch_positions.items()
            if fetch_position.position is not None and _is_live(state, tp, fetch_position.key)
        }

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be returned."""
        fetch_position = self._fetch_position(partition)
        if fetch_position.position is None:
            self._reading.position(self._refresh_state(), partition, fetch_position)
        assert fetch_position.position is not None, "it has just been resolved"
        return fetch_position.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset."""
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise InvalidRequest(f"seek: {offset!r} is not an offset; for the ends, use seek_to_beginning, seek_to_end")
        self._discard_buffered()
        fetch_position = self._fetch_position(partition)
        fetch_position.position, fetch_position.cursor = offset, None
        self._stale = True  # the offset may be that of a record that is newer than the state,
        self._hearing.discard()  # or than the answer of a call in progress

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the first record, of all partitions if none is given."""
        self._seek_all(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue after the last record that exists now, of all partitions if none is given."""
        self._seek_all(partitions, LATEST)

    def _seek_all(self, partitions: Sequence[TopicPartition], to: int) -> None:
        if not partitions:
            self._ensure_assigned()
        for tp, offset in self._bounds(partitions or tuple(self._fetch_positions), to).items():
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
        return {tp for tp, fetch_position in self._fetch_positions.items() if fetch_position.paused}

    def lag(self) -> dict[TopicPartition, int]:
        """How many records of each assigned partition have not been returned yet."""
        self._ensure_assigned()
        ends = self.end_offsets(tuple(self._fetch_positions))
        return {tp: max(0, end - self.position(tp)) for tp, end in ends.items()}

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Offsets of the first records that exist."""
        return self._bounds(partitions, EARLIEST)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """End offsets: the offsets that the next records will get."""
        return self._bounds(partitions, LATEST)

    def _bounds(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._check_open()
        state = self._journal.refresh()
        found = {tp: partition_of(state, tp)[1] for tp in partitions}
        return {tp: part.start if which == EARLIEST else part.readable_end for tp, part in found.items()}

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """By partition, the first record with a timestamp at or after a time in milliseconds; None without such a
        record."""
        self._check_open()
        times_ms("offsets_for_times", timestamps)
        self._journal.refresh()
        found = offsets_for_times(self._journal, timestamps)
        return {tp: None if at is None else OffsetAndTimestamp(at, self._timestamp(tp, at)) for tp, at in found.items()}

    def _timestamp(self, tp: TopicPartition, offset: int) -> int:
        key, _ = partition_of(self._journal.state, tp)
        reads = plan_reads(self._journal, [OffsetRange(tp.topic, key[0], tp.partition, offset, offset + 1)])
        records = next(fetch_ranges(self._journal, reads, ["timestamp"])).records
        return int(records.column("timestamp").view(pa.int64())[0].as_py()) // 1000

    def _fetch_position(self, partition: TopicPartition) -> FetchPosition:
        self._ensure_assigned()
        fetch_position = self._fetch_positions.get(partition)
        if fetch_position is None:
            raise InvalidRequest(
                f"{partition} is not assigned to this consumer; it has {sorted(self._fetch_positions) or 'none'}"
            )
        return fetch_position

    def _ensure_assigned(self) -> None:
        """Assign a subscription's partitions now, without waiting for the first poll."""
        self._check_open()
        deadline = self._clock.monotonic_ms() + self._settings["default_api_timeout_ms"]
        while self._subscribed and not self._assigned_once and self._clock.monotonic_ms() < deadline:
            self._pick_up_changes()
            if self._membership is not None:
                self._membership.await_news(MEMBERSHIP_WAIT_MS)

    # -------------------------------------------------------------------------------------------------------- the end

    def close(self, autocommit: bool = True) -> None:
        """Commit the positions of returned records, if `enable_auto_commit`, and leave the group."""
        if self._closed:
            return
        if not autocommit:
            self._settings["enable_auto_commit"] = False
        try:
            self._end_subscription()
        finally:
            self._closed = True
            if self._membership is not None:
                self._membership.close()

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


def _limit(given: int | None, default: int) -> int:
    if given is None:
        return default
    if given < 1:
        raise InvalidRequest(f"invalid value {given} for max_records: expected a number from 1")
    return given


def _is_live(state: State, tp: TopicPartition, key: TopicKey) -> bool:
    return state.names.get(tp.topic) == key[0]
