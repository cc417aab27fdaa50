"""Batches of many producers are written together: in rounds, each of which is one upload and one commit.

The batches of a round are read together, and each is checked by the rules of its topic; one that is refused does not
stop the others.  `round_queues.py` says which batches are a round.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_log.client.producer.append import replica_puts
from spark_log.client.producer.commit import PlainProducer, RetryPolicy
from spark_log.client.producer.delivery import BlockedPlace, place_of
from spark_log.client.producer.topic_rules import Fault, Numbers, TopicRows, TopicTable, faults_of, topic_spec
from spark_log.client.producer.upload import Uploaded, Uploader
from spark_log.errors import (
    AuthorizationFailed,
    InvalidRecord,
    InvalidRequest,
    OutOfOrderSequence,
    SparkLogError,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.gateway.error_codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NONE,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    write_code_of,
)
from spark_log.gateway.leader_epochs import leader_epoch
from spark_log.gateway.produced_batches import (
    NO_TIME,
    Produced,
    ReadRecords,
    RefusedBatch,
    TooManyHeaders,
    records_of,
    uncompressed,
)
from spark_log.gateway.produced_columns import CELL_BYTES, CELLS_MAX, cells_of, typed_rows
from spark_log.gateway.record_batch import HEADER_BYTES, US_PER_MS, sealed
from spark_log.gateway.stored_batches import Encoded, StoredBatches
from spark_log.journal.journal import Journal
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.commits.kafka_batches import KafkaBatch, KafkaBatches
from spark_log.metadata.commits.kafka_producers import Numbered, is_lost, written, wrong
from spark_log.metadata.set_backs import lineage_of
from spark_log.metadata.state import ProducerKey, State, TopicKey
from spark_log.metadata.topics.schemas import schema_of
from spark_log.model import ACKS_ALL, ACKS_LEADER
from spark_log.segment.record_columns import Rows

BODY_BYTES = 32 << 20
"""Bytes of their records in a round, when they are not compressed any more."""
RECORD_BYTES = 32
"""A record counts as so many of them at least: also one without bytes takes memory."""
TRIES = 3
"""How often a round is written that did not fit the log any more."""
WRONG_MAX = 100
"""Records that a response names as wrong."""
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 1_000, 30_000
"""Limits of the time for a commit that too few replicas have, whatever clients say."""
CHANGED = (UploadFenced, UnknownTopicOrPartition, InvalidRecord, OutOfOrderSequence)
"""The topics, their rules, or the batches of idempotent producers in the log are not those by which a round was
checked: it is checked and uploaded again."""
OF_A_TOPIC = (InvalidRequest, AuthorizationFailed)
"""One of the topics of a round is refused, without a wait: each is written alone."""
logger = logging.getLogger("spark_log")


class WriteOutcome(NamedTuple):
    """Whether a batch was written, and where."""

    code: int = NONE
    message: str | None = None
    offset: int = -1
    time_ms: int = -1
    """The log's time of its records; -1: they have their own."""
    wrong: Sequence[tuple[int, str]] = ()
    """Records that violate the rules of the topic, by number."""


NO_OUTCOME = WriteOutcome(UNKNOWN_SERVER_ERROR)


@dataclass(eq=False)
class Waiting:
    """A batch that is to be written."""

    topic: str
    topic_id: str
    partition: int
    batch: Produced
    acks: int
    timeout_ms: int
    done: asyncio.Future[WriteOutcome]
    outcome: WriteOutcome | None = None
    repeated: Waiting | None = None
    """The batch of the same round that this one repeats."""

    @property
    def key(self) -> TopicKey:
        return self.topic_id, self.partition

    @property
    def numbers(self) -> Numbered | None:
        one = self.batch
        if one.producer_id < 0:
            return None
        return Numbered(one.producer_id, one.producer_epoch, one.sequence, one.records)

    @property
    def row(self) -> ProducerKey:
        """The key of its producer in the state."""
        return self.batch.producer_id, self.topic, self.partition

    def refuse(self, error: RefusedBatch) -> None:
        self.outcome = WriteOutcome(error.code, str(error))

    def is_of(self, state: State, place: BlockedPlace) -> bool:
        if place.partition is not None:
            return place.partition == self.key
        groups = state.assignments.get(self.topic_id, ())
        return self.partition < len(groups) and groups[self.partition] == place.group


class WrittenRound(NamedTuple):
    """How a round went."""

    cpu_s: float
    """Seconds of CPU."""
    blocked: tuple[BlockedPlace, ...]
    """The places whose batches were not written because of their brokers."""


class RoundWriter:
    """Writes rounds in a thread."""

    def __init__(self, journal: Journal, batches: StoredBatches | None = None) -> None:
        """batches:  get what was written, for clients that read at the end."""
        self._batches = batches
        self._journal = journal
        self._producer = PlainProducer(journal)
        self._blocked: dict[BlockedPlace, WriteOutcome] = {}
        """Found in this round: the batches of these places are not written, and those of others are."""

    def write(self, round_: Sequence[Waiting]) -> WrittenRound:
        """Each batch has an outcome then, or repeats one of them."""
        began_s, left, self._blocked = time.thread_time(), list(round_), {}
        try:
            while left:
                part = self._part(left)
                left = left[len(part) :]
                self._write(part)
        except Exception as error:
            logger.exception("a round of writes has failed")
            _fail([_Body(one, b"") for one in round_ if one.outcome is None], error)
        return WrittenRound(time.thread_time() - began_s, tuple(self._blocked))

    def _part(self, left: Sequence[Waiting]) -> list[_Body]:
        """The next batches whose records have `BODY_BYTES` together: compressed ones may grow a thousandfold."""
        part, size = list[_Body](), 0
        for one in left:
            if size >= BODY_BYTES:
                break
            data: bytes | memoryview = b""
            try:
                data = uncompressed(one.batch)
                size += max(len(data), one.batch.records * RECORD_BYTES, self._cells(one, data) * CELL_BYTES)
            except RefusedBatch as error:
                one.refuse(error)
            part.append(_Body(one, data))
        return part

    def _cells(self, one: Waiting, data: bytes | memoryview) -> int:
        """The values in the columns of a batch; 0: its topic has no schema.  Raises RefusedBatch."""
        schema = schema_of(self._journal.state, one.topic_id)
        cells = 0 if schema is None else cells_of(schema, one.batch.records, data)
        if cells > CELLS_MAX:
            raise RefusedBatch(
                MESSAGE_TOO_LARGE,
                f"{one.batch.records} records may have {cells} values in the columns of topic {one.topic!r}, and a "
                f"batch may have {CELLS_MAX}: send smaller batches",
            )
        return cells

    def _write(self, part: Sequence[_Body]) -> None:
        """Write what is not refused, again if the log has changed meanwhile."""
        for number in range(TRIES):
            accepted: Sequence[_Body] = [body for body in part if body.of.outcome is None]
            undecided, state = accepted, self._journal.state
            try:
                state = self._journal.refresh() if number else self._journal.recent()
                accepted, rows = accept(
                    state, self._not_blocked(state, part), self._journal.context.clock.now_ms(), is_newest=number > 0
                )
                if not number and self._has_newer_schema(state, undecided):
                    raise OldState
                if not rows:
                    return
                uploaded = self._uploaded(state, rows, accepted)
            except OldState:
                for body in undecided:
                    body.of.outcome = None
                continue
            except TooManyHeaders:
                left = [body for body in part if body.of.outcome is None]
                for half in (left[: len(left) // 2], left[len(left) // 2 :]):
                    self._write(half)
                return
            except SparkLogError as error:
                if not number and self._has_other_brokers(state, error):
                    continue
                if self._block(state, accepted, error):
                    self._write(part)
                    return
                logger.warning("batches of Kafka's clients were not written: %s", error)
                _fail(accepted, error)
                return
            if self._commit(state, uploaded, accepted, is_last=number == TRIES - 1):
                return

    def _has_newer_schema(self, state: State, bodies: Sequence[_Body]) -> bool:
        """Whether records were refused by a schema that the log has replaced since."""
        refused = {
            body.of.topic_id
            for body in bodies
            if body.typed and body.of.outcome is not None and body.of.outcome.code == INVALID_RECORD
        }
        newest = self._journal.refresh() if refused else state
        return any(schema_of(newest, topic_id) != schema_of(state, topic_id) for topic_id in refused)

    def _has_other_brokers(self, state: State, error: SparkLogError) -> bool:
        """Whether the upload may succeed with the brokers and replicas that the log has by now."""
        if place_of(error) is None:
            return False
        with suppress(SparkLogError):
            self._journal.refresh()
        now = self._journal.state
        return (now.brokers, now.placement_groups) != (state.brokers, state.placement_groups)

    def _block(self, state: State, accepted: Sequence[_Body], error: SparkLogError) -> bool:
        """Whether batches were refused, without which the others may be written."""
        place = place_of(error)
        if place is None or not any(body.of.is_of(state, place) for body in accepted):
            return False
        logger.warning("batches for placement group %d were not written: %s", place.group, error)
        self._blocked[place] = WriteOutcome(write_code_of(error), str(error))
        return True

    def _not_blocked(self, state: State, part: Sequence[_Body]) -> list[_Body]:
        for body in part:
            for place, outcome in self._blocked.items():
                if body.of.outcome is None and body.of.is_of(state, place):
                    body.of.outcome = outcome
        return [body for body in part if body.of.outcome is None]

    def _uploaded(self, state: State, rows: Sequence[TopicRows], accepted: Sequence[_Body]) -> Uploaded:
        uploader = Uploader(
            self._journal.roots.own,
            state.version,
            self._journal.context.random(),
            replicas=replica_puts(self._journal, self._until_ms(accepted), patient=False, acks=_acks(accepted)),
            lineage=lineage_of(state),
            tag=self._journal.context.tag,
        )
        try:
            for part in rows:
                uploader.add(part)
            return uploader.finish()
        finally:
            uploader.close()

    def _commit(self, state: State, uploaded: Uploaded, accepted: Sequence[_Body], *, is_last: bool) -> bool:
        """Whether the batches have their outcomes; otherwise, they have to be uploaded again."""
        retry = RetryPolicy(deadline_ms=self._until_ms(accepted), backoff_ms=50, backoff_ms_max=1000, patient=False)
        try:
            committed = self._producer.commit(
                state.version, [uploaded], retry=retry, acks=_acks(accepted), kafka_batches=_kafka_batches(accepted)
            )
        except SparkLogError as error:
            if isinstance(error, CHANGED) and not error.maybe_applied and not is_last:
                return False
            if not error.maybe_applied and len(alone := self._alone(state, accepted, error)) > 1:
                for part in alone:
                    self._write(part)
                return True
            if self._block(state, accepted, error):
                self._write(accepted)
                return True
            logger.warning("batches of Kafka's clients were not committed: %s", error)
            _fail(accepted, error)
            return True
        self._note_written(state, committed, accepted)
        return True

    def _alone(self, state: State, accepted: Sequence[_Body], error: SparkLogError) -> list[list[_Body]]:
        """Parts of a refused round that are written one after the other, so that each is refused for its own fault."""
        if isinstance(error, OF_A_TOPIC):
            return _by_topic(accepted)
        if not isinstance(error, OutOfOrderSequence):
            return []
        with suppress(SparkLogError):
            self._journal.refresh()
        return _by_race(state, self._journal.state, accepted)

    def _note_written(self, state: State, committed: Committed, accepted: Sequence[_Body]) -> None:
        """Set the outcomes of committed batches, and keep in memory those that became records as they were.

        A commit that is pending may be given up: then readers skip its records.
        """
        at, kept = {key: span.start for key, span in committed.ranges.items()}, dict[TopicKey, dict[int, Encoded]]()
        for body in accepted:
            one, offset = body.of, at[body.of.key]
            append_time = _has_append_time(self._journal.state, body)
            if not (committed.pending or body.last_ms == NO_TIME or append_time or body.append_time or body.typed):
                kept.setdefault(one.key, {})[offset] = body.as_stored(offset, leader_epoch(state, one.topic_id))
            at[one.key] += one.batch.records
            one.outcome = WriteOutcome(offset=offset, time_ms=committed.time_ms if append_time else -1)
        if self._batches is not None:
            for key, batches in kept.items():
                self._batches.keep(state, key, batches)

    def _until_ms(self, bodies: Sequence[_Body]) -> int:
        wait_ms = patience_ms([body.of.timeout_ms for body in bodies])
        return round(self._journal.context.clock.monotonic_ms() + wait_ms)


def _has_append_time(state: State, body: _Body) -> bool:
    """Whether records have the time of the log, in the state after their commit: the config may have changed."""
    topic = state.live_topic(body.of.topic_id)
    return body.append_time if topic is None else topic_spec(state, topic.name).append_time


def _fail(bodies: Sequence[_Body], error: Exception) -> None:
    for body in bodies:
        body.of.outcome = WriteOutcome(write_code_of(error), str(error))


def _kafka_batches(bodies: Sequence[_Body]) -> tuple[KafkaBatches, ...]:
    """The batches of idempotent producers, for the commit."""
    found, at = dict[TopicKey, list[KafkaBatch]](), dict[TopicKey, int]()
    for body in bodies:
        key, start = body.of.key, at.get(body.of.key, 0)
        if (numbers := body.of.numbers) is not None:
            found.setdefault(key, []).append(KafkaBatch(*numbers, start))
        at[key] = start + body.of.batch.records
    return tuple(KafkaBatches(*key, tuple(batches)) for key, batches in found.items())


def _by_topic(bodies: Sequence[_Body]) -> list[list[_Body]]:
    found = dict[str, list[_Body]]()
    for body in bodies:
        found.setdefault(body.of.topic_id, []).append(body)
    return list(found.values())


def _by_race(before: State, now: State, bodies: Sequence[_Body]) -> list[list[_Body]]:
    """The batches of producers that have written by another way since a state, at the end, and those of all others."""
    rows = {body.of.row for body in bodies}
    raced = {row[0] for row in rows if before.kafka_producers.get(row) != now.kafka_producers.get(row)}
    found: tuple[list[_Body], list[_Body]] = [], []
    for body in bodies:
        found[body.of.batch.producer_id in raced].append(body)
    return [part for part in found if part]


def patience_ms(timeouts_ms: Sequence[int]) -> int:
    """How long a round is tried: that of the most patient client, since a round that fails does so for all of them."""
    return min(max(TIMEOUT_MS_MIN, *timeouts_ms), TIMEOUT_MS_MAX)


def _acks(bodies: Sequence[_Body]) -> int:
    return ACKS_ALL if any(body.of.acks == ACKS_ALL for body in bodies) else ACKS_LEADER


# ------------------------------------------------------------------------------------------- what a round writes


@dataclass(eq=False)
class _Body:
    """A batch, and its records as bytes."""

    of: Waiting
    data: bytes | memoryview
    append_time: bool = False
    typed: bool = False
    """Its values are JSON for a topic with a schema."""
    last_ms: int = NO_TIME
    """The latest time of its records; `NO_TIME`: some may have come without one."""

    def as_stored(self, offset: int, epoch: int) -> Encoded:
        """The batch as a client reads it, at its place in the log and under a leader epoch."""
        batch = self.of.batch
        fields = 0, batch.records - 1, batch.first_ms, self.last_ms, -1, -1, -1, batch.records
        return Encoded(offset + batch.records, sealed(offset, epoch, fields, self.data))


class OldState(Exception):
    """Batches would be refused by a state that may not be the newest."""


def accept(
    state: State, bodies: Sequence[_Body], now_ms: int, *, is_newest: bool
) -> tuple[list[_Body], list[TopicRows]]:
    """The batches that are to be written, and their records: those of bytes, and those of each topic with a schema.

    The other batches have outcomes, or repeat one of them.

    is_newest:  the state is the newest one.  Otherwise, raises OldState instead of refusing a batch for its sequence.
    """
    for body in bodies:
        _note_repeat(state, body.of, is_newest=is_newest)
        if body.of.outcome is None:
            _check_topic(state, body)
    left, read = _readable([body for body in bodies if body.of.outcome is None], now_ms)
    if read is None:
        return [], []
    counts = np.array([body.of.batch.records for body in left])
    owner = np.repeat(np.arange(len(left)), counts)
    if read.have_times:
        times = read.records.column("timestamp").view(pa.int64()).to_numpy() // US_PER_MS
        for body, last_ms in zip(left, np.maximum.reduceat(times, np.cumsum(counts) - counts).tolist(), strict=True):
            body.last_ms = last_ms
    parts = list(_parts(state, left, read.records, owner))
    for part in parts:
        _note_faults(left, part, now_ms)
    accepted = _in_order(state, [body for body in left if body.of.outcome is None], is_newest=is_newest)
    chosen = set(accepted)
    is_accepted = np.array([body in chosen for body in left])
    rows = [part.rows.take(np.flatnonzero(is_accepted[part.owner])) for part in parts] if accepted else []
    return accepted, [one for one in rows if one.num_rows]


def _note_repeat(state: State, one: Waiting, *, is_newest: bool) -> None:
    """A batch that is in the log stays written, wherever it is in the round, and whatever the rules are by now."""
    known = None if one.outcome is not None or one.numbers is None else written(state, one.key, one.numbers)
    if known is None:
        return
    part = state.partitions.get(one.key)
    if is_lost(state, one.key, known):
        one.outcome = WriteOutcome(UNKNOWN_SERVER_ERROR, f"{one.topic}-{one.partition}: the records were lost")
    elif part is None or known.offset < part.readable_end:
        one.outcome = WriteOutcome(offset=known.offset, time_ms=known.time_ms)
    elif not is_newest:
        raise OldState
    else:
        text = f"{one.topic}-{one.partition}: the records are not on all in-sync replicas yet"
        one.outcome = WriteOutcome(NOT_ENOUGH_REPLICAS, text)


def _check_topic(state: State, body: _Body) -> None:
    one, topic = body.of, state.live_topic(body.of.topic_id)
    if topic is None or one.partition >= topic.partitions:
        one.outcome = WriteOutcome(UNKNOWN_TOPIC_OR_PARTITION, f"{one.topic}-{one.partition} does not exist")
        return
    spec = topic_spec(state, one.topic)
    body.append_time = spec.append_time
    body.typed = spec.schema is not None
    if (size := HEADER_BYTES + len(one.batch.body)) > spec.max_message_bytes:
        text = f"a batch of {size} bytes, and max.message.bytes of topic {one.topic!r} is {spec.max_message_bytes}"
        one.outcome = WriteOutcome(MESSAGE_TOO_LARGE, text)


def _readable(bodies: Sequence[_Body], now_ms: int) -> tuple[Sequence[_Body], ReadRecords | None]:
    """The batches whose records can be read, and these records; none if no batch can be read."""
    try:
        return bodies, _records(bodies, now_ms) if bodies else None
    except RefusedBatch:
        _refuse_unreadable(bodies, now_ms)
    left = [body for body in bodies if body.of.outcome is None]
    return left, _records(left, now_ms) if left else None


def _refuse_unreadable(bodies: Sequence[_Body], now_ms: int) -> None:
    """Looks for them in halves: most batches can be read, and many are read together in a fraction of the time."""
    try:
        _records(bodies, now_ms)
    except RefusedBatch as error:
        middle = len(bodies) // 2
        if not middle:
            bodies[0].of.refuse(error)
        for half in (bodies[:middle], bodies[middle:]) if middle else ():
            _refuse_unreadable(half, now_ms)


def _records(bodies: Sequence[_Body], now_ms: int) -> ReadRecords:
    return records_of([body.of.batch for body in bodies], [body.data for body in bodies], now_ms)


class _Part(NamedTuple):
    """Records that have the same columns."""

    rows: TopicRows
    owner: Numbers
    """The number of each record's batch, ascending."""
    misfits: Fault | None = None
    """Values that do not fit the schema of their topic."""


def _parts(state: State, bodies: Sequence[_Body], records: pa.RecordBatch, owner: Numbers) -> Iterator[_Part]:
    """The records of bytes, and those of each topic with a schema."""
    groups = dict[str, list[_Body]]()
    for body in bodies:
        groups.setdefault(body.of.topic if body.typed else "", []).append(body)
    number = {topic: at for at, topic in enumerate(groups)}
    of = np.array([number[body.of.topic if body.typed else ""] for body in bodies])[owner]
    order = np.argsort(of, kind="stable")
    ends = np.searchsorted(of[order], np.arange(len(groups)), side="right")
    for (topic, batches), at in zip(groups.items(), np.split(order, ends[:-1]), strict=True):
        mine = owner if len(groups) == 1 else owner[at]
        given = records if len(groups) == 1 else records.take(pa.array(at))
        rows = _rows(state, batches, given)
        if topic:
            counts = [body.of.batch.records for body in batches]
            typed, misfits = typed_rows(rows.rows, rows.topics.specs[0], counts, WRONG_MAX)
            yield _Part(rows._replace(rows=typed), mine, misfits)
        else:
            yield _Part(rows, mine)


def _rows(state: State, bodies: Sequence[_Body], records: pa.RecordBatch) -> TopicRows:
    names = list(dict.fromkeys(body.of.topic for body in bodies))
    number = {name: at for at, name in enumerate(names)}
    counts = [body.of.batch.records for body in bodies]
    partitions = np.repeat(np.array([body.of.partition for body in bodies], np.int64), counts)
    numbers = np.repeat(np.array([number[body.of.topic] for body in bodies], np.int64), counts)
    specs = tuple(topic_spec(state, name) for name in names)
    return TopicRows(TopicTable(specs), numbers, Rows(records, pa.array(partitions)))


def _note_faults(bodies: Sequence[_Body], part: _Part, now_ms: int) -> None:
    """A batch with records that violate the rules of its topic is refused as a whole, and they are named."""
    owner = part.owner
    for fault in (*filter(None, (part.misfits,)), *faults_of(part.rows, now_ms)):
        wrong = np.flatnonzero(fault.rows)
        numbers, at = np.unique(owner[wrong], return_index=True)
        firsts = np.searchsorted(owner, numbers)
        for number, first, rows in zip(numbers.tolist(), firsts.tolist(), np.split(wrong, at[1:]), strict=False):
            if (one := bodies[number].of).outcome is None:
                named = [(row - first, fault.reason(row)) for row in rows[:WRONG_MAX].tolist()]
                one.outcome = WriteOutcome(write_code_of(fault.kind("")), named[0][1], wrong=named)


def _in_order(state: State, bodies: Sequence[_Body], *, is_newest: bool) -> list[_Body]:
    """The batches whose sequence is the next one of their producer.  A repeated batch gets the outcome of the first."""
    accepted, last = list[_Body](), dict[tuple[TopicKey, int], Numbered]()
    firsts = dict[tuple[TopicKey, Numbered], Waiting]()
    for body in bodies:
        one, numbers = body.of, body.of.numbers
        if numbers is not None:
            row = one.key, numbers.producer
            one.repeated = firsts.get((one.key, numbers))
            if one.repeated is not None:
                continue
            if why := wrong(state, one.key, numbers, last.get(row)):
                if not is_newest:
                    raise OldState
                code = INVALID_PRODUCER_EPOCH if why.is_fenced else OUT_OF_ORDER_SEQUENCE_NUMBER
                one.outcome = WriteOutcome(code, why.text)
                continue
            last[row] = numbers
            firsts[one.key, numbers] = one
        accepted.append(body)
    return accepted
