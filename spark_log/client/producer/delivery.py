"""Delivery of batches of single records: Arrow columns, one upload, one commit.

A record that cannot be written fails alone.  After a storage failure, the commit is retried under the same identity
until the delivery timeout, so it is applied once.  Encoding (`begin`) and writing (`deliver`) are separate steps, so
that one round can be encoded while the one before is written.

A delivery that is not patient raises `place_of` errors, so that its caller can deliver the other records
(`placement_pipelines.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_log.client.producer.append import acks_of, replica_puts
from spark_log.client.producer.commit import PlainProducer, RetryPolicy
from spark_log.client.producer.futures import AssignedOffsets, Columns, Headers, Ints, SentBatch
from spark_log.client.producer.sent_values import SentDict, not_typed, typed_rows
from spark_log.client.producer.topic_rules import TopicRows, TopicSpec, faults_of, topic_spec
from spark_log.client.producer.typed_writes import has_other_schema
from spark_log.client.producer.upload import Uploader
from spark_log.client.topic_creation import ensure_topic
from spark_log.configs.settings import topic_config
from spark_log.errors import (
    CoordinatorNotAvailable,
    InvalidRecord,
    LeaderNotAvailable,
    NotEnoughReplicas,
    RequestTimedOut,
    SparkLogError,
    StorageUnavailable,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.replicas.replica_state import OWN_GROUP
from spark_log.metadata.set_backs import lineage_of
from spark_log.metadata.state import TopicKey
from spark_log.model import ACKS_ALL
from spark_log.roots.replica_puts import NoReplica
from spark_log.segment.arrays.few_values import array_from
from spark_log.segment.arrays.numpy_arrays import array_of
from spark_log.segment.partitioners import Murmur2Partitioner, Partitioner, assign_partitions, make_partitioner
from spark_log.segment.record_columns import Rows
from spark_log.segment.schema import HEADERS, RECORD_SCHEMA, RECORD_SCHEMA_HEADERS, TIMESTAMP
from spark_log.store.retry import with_retries_for
from spark_log.text import shown

SLICE_ROWS = 65_536


class _Staged(NamedTuple):
    """A batch in an upload."""

    batch: SentBatch
    spec: TopicSpec
    times: Ints
    partitions: Ints
    """The partition of each record; -1 for records that have an error."""
    errors: dict[int, BaseException]


class DeliveryAttempt(NamedTuple):
    """Batches in an upload that is not finished."""

    epoch: int
    uploader: Uploader
    staged: list[_Staged]
    refused: list[tuple[SentBatch, SparkLogError]]
    """Batches whose topic does not exist."""


class Held(Exception):
    """Some of the records must not be written now."""


class BlockedPlace(NamedTuple):
    """Records that cannot be written for a while."""

    group: int
    """Their placement group."""
    partition: TopicKey | None = None
    """None: all of the group."""


def place_of(error: SparkLogError) -> BlockedPlace | None:
    """The place without which the other records could be written; None: it is not the reason for the error."""
    if not isinstance(error, LeaderNotAvailable | NotEnoughReplicas | NoReplica) or error.maybe_applied:
        return None
    partition = error.partition if isinstance(error, NotEnoughReplicas) else None
    return None if error.placement_group is None else BlockedPlace(error.placement_group, partition)


class Delivery:
    """Writes batches, one round after the other."""

    def __init__(
        self,
        journal: Journal,
        settings: dict[str, Any],
        is_held: Callable[[Sequence[SentBatch]], bool] | None = None,
    ) -> None:
        """
        is_held:  whether some records of encoded batches must not be written now; None: wait for all groups.
        """
        self._is_held = is_held
        self._journal = journal
        self._clock = journal.context.clock
        self._settings = settings
        self._plain = PlainProducer(journal)
        self._acks = acks_of(settings["acks"])
        self._rng = journal.context.random()
        self._partitioners: dict[str, Partitioner] = {}
        self._assigning = journal.context.threads.lock()
        """Partitioners have state, and a retry runs concurrently with the first attempt of the next round."""
        self._partitioner(settings["partitioner"])

    def begin(self, batches: Sequence[SentBatch]) -> DeliveryAttempt | None:
        """Encode batches of different topics; None after a failure, and `deliver` encodes them again."""
        try:
            return self._begin(batches, self._deadline(batches))
        except SparkLogError:
            return None

    def deliver(self, batches: Sequence[SentBatch], begun: DeliveryAttempt | None) -> None:
        """Write batches and resolve them.  Raises the error of all batches that are not resolved; Held."""
        deadline = self._deadline(batches)
        wait = self._settings["retry_backoff_ms"]
        while True:
            try:
                left = [batch for batch in batches if batch.count]
                self._finish(begun or self._begin(left, deadline), deadline)
                return
            except (
                UploadFenced,
                LeaderNotAvailable,
                UnknownTopicOrPartition,
                InvalidRecord,
                StorageUnavailable,
                CoordinatorNotAvailable,
            ) as error:
                late = self._clock.monotonic_ms() + wait >= deadline
                if error.maybe_applied or (isinstance(error, LeaderNotAvailable) and late):
                    raise
                if self._is_held is not None and place_of(error) is not None:
                    raise
                # Nothing was committed: the upload failed, or the commit was rejected.  InvalidRecord: a topic's
                # configs changed since the records were encoded, and the next attempt refuses those that are invalid.
                if late:
                    raise RequestTimedOut(f"not written within delivery_timeout_ms: {error}") from error
                begun = None
                self._clock.sleep_ms(wait)
                self._look(deadline)
                wait = min(2 * wait, self._settings["retry_backoff_max_ms"])

    def _look(self, deadline: int) -> None:
        """Read the newest state: this process may know an old one, in which other replicas are in sync."""
        if self._journal.newest.brokers:
            with suppress(StorageUnavailable, CoordinatorNotAvailable):
                self._journal.refresh(deadline)

    def left_ms(self, batch: SentBatch) -> int:
        """For how long an attempt to write a batch may still begin."""
        return self._deadline([batch]) - self._clock.monotonic_ms() - int(self._settings["retry_backoff_ms"])

    def _deadline(self, batches: Sequence[SentBatch]) -> int:
        deadline: int = min(batch.opened_ms for batch in batches) + self._settings["delivery_timeout_ms"]
        return deadline

    def _begin(
        self, batches: Sequence[SentBatch], deadline: int, refused: Sequence[tuple[SentBatch, SparkLogError]] = ()
    ) -> DeliveryAttempt:
        """refused:  batches that were to be encoded with these, and are not written."""
        began = self._journal.recent(deadline)
        store = with_retries_for(self._journal.roots.own, self._clock, deadline - self._clock.monotonic_ms())
        compression = self._settings["compression_type"]
        patient = self._is_held is None
        acks = ACKS_ALL if patient else self._acks  # it is for records that a leader has not taken
        replicas = replica_puts(self._journal, deadline, patient=patient, acks=acks)
        uploader = Uploader(
            store,
            began.version,
            self._rng,
            compression=compression,
            replicas=replicas,
            lineage=lineage_of(began),
            tag=self._journal.context.tag,
        )
        attempt = DeliveryAttempt(began.version, uploader, [], [*refused])
        for batch in batches:
            try:
                self._stage(attempt, batch, deadline)
            except BaseException as error:
                uploader.close()
                if isinstance(error, SparkLogError) or not isinstance(error, Exception):
                    raise
                logger.exception("records of topic %s cannot be encoded", batch.topic)
                failed = InvalidRecord(f"the records of topic {batch.topic!r} cannot be encoded: {shown(error)}")
                known = [*attempt.refused, (batch, failed)]
                left = [one for one in batches if not any(one is other for other, _ in known)]
                return self._begin(left, deadline, known)
        return attempt

    def _finish(self, attempt: DeliveryAttempt, deadline: int) -> None:
        for batch, error in attempt.refused:
            batch.fail(error)
        try:
            if self._is_held is not None and self._is_held([one.batch for one in attempt.staged]):
                raise Held
            uploaded = attempt.uploader.finish()
        finally:
            attempt.uploader.close()
        retry = RetryPolicy(
            self._settings["retries"] + 1,
            deadline,
            self._settings["retry_backoff_ms"],
            self._settings["retry_backoff_max_ms"],
            patient=self._is_held is None,
        )
        committed = None
        if uploaded.slices:
            committed = self._plain.commit(attempt.epoch, [uploaded], retry=retry, acks=self._acks)
        earlier = Counter[TopicKey]()
        for one in attempt.staged:
            self._resolve(one, committed, earlier)

    def _stage(self, attempt: DeliveryAttempt, batch: SentBatch, deadline: int) -> None:
        """Add a batch to an upload.  If its topic does not exist and is not created, the batch is refused."""
        try:
            ensure_topic(self._journal, batch.topic, deadline_ms=deadline)
            spec = topic_spec(self._journal.state, batch.topic)
        except (StorageUnavailable, CoordinatorNotAvailable):
            raise
        except SparkLogError as error:
            attempt.refused.append((batch, error))
            return
        columns = batch.columns
        assert columns is not None, "a batch that is taken and not resolved has columns"
        staged = _Staged(batch, spec, columns.times, np.full(batch.count, -1, dtype=np.int64), {})
        for start in range(0, batch.count, SLICE_ROWS):
            rows, errors = rows_for(spec, columns, start, start + SLICE_ROWS)
            if errors and has_other_schema(self._journal, spec):
                if start:
                    raise UploadFenced(f"the schema of topic {batch.topic!r} has changed: encode the records again")
                self._stage(attempt, batch, deadline)
                return
            staged.errors.update({start + row: error for row, error in errors.items()})
            self._add(attempt.uploader, spec, rows, staged, start)
        attempt.staged.append(staged)
        batch.assignment = AssignedOffsets(spec.topic_id, staged.partitions, groups_of(spec, staged.partitions))

    def _add(self, uploader: Uploader, spec: TopicSpec, rows: Rows, staged: _Staged, first: int) -> None:
        """Add the valid rows.  first: index of the first row in the batch."""
        batch = TopicRows.of(spec, rows)
        valid = np.ones(batch.num_rows, bool)
        if staged.errors:
            valid[[row - first for row in staged.errors if row >= first]] = False
        for fault in faults_of(batch, self._clock.now_ms()):
            for row in np.flatnonzero(fault.rows & valid).tolist():
                staged.errors[first + row] = fault.kind(fault.reason(row))
            valid &= ~fault.rows
        at = np.flatnonzero(valid)
        if len(at):
            self._add_valid(uploader, spec, batch.take(at).rows, staged, first + at)

    def _add_valid(self, uploader: Uploader, spec: TopicSpec, rows: Rows, staged: _Staged, at: Ints) -> None:
        """Add rows.  If the partitioner fails, they are split in halves until each record for which it does is alone.

        at:  indexes of the rows in the batch.
        """
        try:
            numbers = self._assign(spec, rows)
        except Exception as error:  # noqa: BLE001  a partitioner may be the user's
            if len(at) == 1:
                failed = InvalidRecord(f"the partitioner of topic {spec.name!r} failed: {shown(error)}")
                staged.errors[int(at[0])] = error if isinstance(error, SparkLogError) else failed
                return
            half = len(at) // 2
            self._add_valid(uploader, spec, _cut(rows, 0, half), staged, at[:half])
            self._add_valid(uploader, spec, _cut(rows, half, len(at) - half), staged, at[half:])
        else:
            uploader.add(TopicRows.of(spec, Rows(rows.records, array_of(numbers, pa.int64()))))
            staged.partitions[at] = numbers

    def _assign(self, spec: TopicSpec, rows: Rows) -> Ints:
        with self._assigning:
            partitioner = self._partitioners.get(spec.topic_id)
            if partitioner is None:
                partitioner = self._partitioners[spec.topic_id] = self._partitioner(self._settings["partitioner"])
            found = assign_partitions(rows.records, rows.partitions, spec.partitions, partitioner, topic=spec.name)
        return np.asarray(found, dtype=np.int64)

    def _partitioner(self, name: Any) -> Partitioner:
        """A callable partitioner runs in send(); records that it leaves open use the default."""
        if callable(name) or name in ("default", "murmur2"):
            return Murmur2Partitioner(self._rng, max(1, self._settings["batch_size"]))
        return make_partitioner(name, self._rng)

    def _resolve(self, one: _Staged, committed: Committed | None, earlier: Counter[TopicKey]) -> None:
        """earlier:  by partition, how many records of the commit were in earlier batches."""
        bases: dict[int, int] = {}
        times, topic_id = one.times, one.spec.topic_id
        if committed is not None:
            bases = {
                number: span.start + earlier[topic, number]
                for (topic, number), span in committed.ranges.items()
                if topic == topic_id
            }
            for number, count in zip(*np.unique(one.partitions, return_counts=True), strict=True):
                earlier[topic_id, int(number)] += int(count)
            if committed.time_ms and self._has_log_times(topic_id):
                times = np.full(len(times), committed.time_ms, dtype=np.int64)
        one.batch.resolve(one.partitions, offsets_of(one.partitions, bases), times, one.errors)

    def _has_log_times(self, topic_id: str) -> bool:
        """Whether records of a topic have the log's time of their commit."""
        topic = self._journal.state.topics.get(topic_id)
        return topic is not None and topic_config(topic.configs, "message.timestamp.type") == "LogAppendTime"


def groups_of(spec: TopicSpec, partitions: Ints) -> Ints:
    """The placement group of each record; -1 for those without a partition."""
    groups = np.array(spec.groups or [OWN_GROUP] * spec.partitions, np.int64)
    return np.where(partitions < 0, -1, groups[partitions])


def rows_for(spec: TopicSpec, columns: Columns, start: int, end: int) -> tuple[Rows, dict[int, SparkLogError]]:
    """Single records `start` to `end` as rows of a topic, and the errors of some, by their index among these.

    If the conversion of all fails, each is converted alone: a record that nobody thought of fails without the others.
    """
    try:
        return _converted(spec, columns, start, end)
    except Exception as error:
        logger.debug("records of topic %s are converted one by one", spec.name, exc_info=error)
    errors: dict[int, SparkLogError] = {}
    for row in range(start, min(end, len(columns.keys))):
        try:
            _converted(spec, columns, row, row + 1)
        except Exception as error:  # noqa: BLE001  it is an error of this record
            errors[row - start] = InvalidRecord(f"the record cannot be written: {shown(error, str)}")
    rows, more = _converted(spec, columns.without([start + row for row in errors]), start, end)
    return rows, more | errors


def _converted(spec: TopicSpec, columns: Columns, start: int, end: int) -> tuple[Rows, dict[int, SparkLogError]]:
    values = columns.values[start:end]
    if spec.schema is not None:
        return typed_rows(to_rows(columns, start, end, with_values=False), values, spec)
    rows = to_rows(columns, start, end)
    if SentDict not in set(map(type, values)):
        return rows, {}
    return rows, {row: not_typed(spec) for row, value in enumerate(values) if type(value) is SentDict}


def to_rows(columns: Columns, start: int, end: int, *, with_values: bool = True) -> Rows:
    """Single records `start` to `end` as Arrow columns."""
    keys, values = columns.keys[start:end], columns.values[start:end]
    if not with_values:
        values = [None] * len(keys)
    stamps = array_of(columns.times[start:end] * 1000, TIMESTAMP)
    arrays, schema = [array_from(keys, pa.binary()), array_from(values, pa.binary()), stamps], RECORD_SCHEMA
    if columns.headers is not None and any(headers := columns.headers[start:end]):
        arrays.append(array_from(list(map(_header_dicts, headers)), HEADERS))
        schema = RECORD_SCHEMA_HEADERS
    wanted = None if columns.partitions is None else array_from(columns.partitions[start:end], pa.int64())
    return Rows(pa.RecordBatch.from_arrays(arrays, schema=schema), wanted)


def _header_dicts(headers: Headers | None) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None


def _cut(rows: Rows, start: int, count: int) -> Rows:
    wanted = None if rows.partitions is None else rows.partitions.slice(start, count)
    return Rows(rows.records.slice(start, count), wanted)


def offsets_of(partitions: Ints, bases: dict[int, int]) -> Ints:
    """The offset of each record: consecutive from the base of its partition; -1 without a partition."""
    offsets = np.full(len(partitions), -1, dtype=np.int64)
    if not bases:
        return offsets
    order = np.argsort(partitions, kind="stable")
    ordered = partitions[order]
    for number, base in bases.items():
        low, high = np.searchsorted(ordered, (number, number + 1))
        offsets[order[low:high]] = np.arange(base, base + high - low)
    return offsets
