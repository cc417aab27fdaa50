"""Writes, batch and streaming.

Tasks write objects under an upload epoch from the driver, and report exactly what they wrote; the driver commits all of
it in one record.  Objects of failed attempts, speculative duplicates and killed jobs stay unreferenced.

A stream's identity is (query id, batch id), from the task's local properties.  Only the streaming sink uses it: inside
`foreachBatch` all batch writes see the same ids, so the second would be taken for a duplicate.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_pylog.driver_log import tell
from pyspark_pylog.log.open_log import planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import journal_since, newest_journal
from pyspark_pylog.native.write_plan import encoded_topics, write_rules
from pyspark_pylog.options.parse import WriteOptions, write_options
from pyspark_pylog.options.values import Options
from pyspark_pylog.plain_errors import plain_errors
from pyspark_pylog.sink.bad_records import Topics, letters, refusal, sift
from pyspark_pylog.sink.encoded_rows import check_no_encoded, take_encoded
from pyspark_pylog.sink.exactly_once import OnceOnly
from pyspark_pylog.sink.log_of_query import journal_to_write
from pyspark_pylog.sink.other_topics import split, typed_part
from pyspark_pylog.sink.typed_frame import (
    TypedFrame,
    check_bytes,
    check_dead_letters,
    check_no_names,
    has_data_columns,
    typed_frame,
    typed_pieces,
)
from pyspark_pylog.sink.write_columns import BatchPiece, pieces, written_columns
from pyspark_pylog.worker_process import prepare_process
from spark_log.client.producer.commit import PlainProducer
from spark_log.client.producer.pending_copies import wait_for_copies
from spark_log.client.producer.topic_rules import TopicRows, TopicSpec, specs_of, topic_spec
from spark_log.client.producer.upload import Uploaded, Uploader
from spark_log.client.topic_creation import DEAD_LETTER_CONFIGS, ensure_topic, set_first_schema
from spark_log.errors import InvalidRequest, NoLog
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.replicas.replicas import Targets, targets_of
from spark_log.metadata.restores import history_of
from spark_log.metadata.set_backs import Lineage
from spark_log.roots.replica_puts import ReplicaPuts
from spark_log.runtime.clock import SystemClock
from spark_log.store.object_names import upload_epoch
from spark_log.text import counted

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """The result of one task, and its streaming batch."""

    uploaded: Uploaded
    bad: int
    """Rows that went to the dead-letter topic."""
    reason: str
    """The reason for the first of them."""
    query_id: str | None
    batch_id: int | None


@dataclass(frozen=True)
class Begun:
    """The driver's decisions before the tasks, which are sent to them."""

    options: WriteOptions
    columns: tuple[str, ...]
    """The columns of the frame that are written; none if it has data columns."""
    typed: TypedFrame | None
    """For a frame with data columns."""
    log: PlannedLog
    """Its version is the upload epoch."""
    history: str
    """The history of the log at the version of `log` (`metadata/restores.py`)."""
    specs: Mapping[str, TopicSpec]
    targets: Mapping[int, Targets]
    """By placement group, the replicas that get its objects."""
    tag: str
    """In the names of the objects, as in `Context`."""


def batch_writer(options: Options, schema: StructType, overwrite: bool) -> LogWriter:
    """Check options and columns, create a missing topic, and draw the upload epoch."""
    _refuse_overwrite(overwrite)
    parsed = write_options(options, streaming=False)
    tell(parsed.notes)
    return LogWriter(_begin(parsed, schema))


def stream_writer(options: Options, schema: StructType, overwrite: bool) -> LogStreamWriter:
    """The writer for each micro-batch of a stream."""
    _refuse_overwrite(overwrite)
    return LogStreamWriter(_begin(write_options(options, streaming=True), schema))


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest(
            "a log is appended to, not overwritten: use .mode('append') or INSERT INTO for a batch, and "
            "outputMode('append'), or outputMode('update') after spark_log.register(spark), for a stream"
        )


def _begin(options: WriteOptions, schema: StructType) -> Begun:
    prepare_process()
    check_no_encoded(schema.names)
    columns, typed, journal = _checked(options, schema)
    if options.dead_letters is not None:
        ensure_topic(journal, options.dead_letters, DEAD_LETTER_CONFIGS)
    state = journal.newest
    if options.dead_letters is not None:
        check_dead_letters(topic_spec(state, options.dead_letters))
    log = planned_log(options.location, journal, state)
    targets = {group: targets_of(state, group, acks=options.acks) for group in state.placement_groups}
    if options.topic is None:
        return Begun(options, columns, typed, log, history_of(state), specs_of(state), targets, journal.context.tag)
    known = [name for name in (options.topic, options.dead_letters) if name is not None]
    specs = dict(specs_of(state)) if options.beside else {name: topic_spec(state, name) for name in known}
    if typed is not None:
        spec = topic_spec(state, options.topic, typed.schema)
        specs[options.topic] = spec._replace(schema=typed.schema, sets_schema=typed.is_first)
    return Begun(options, columns, typed, log, history_of(state), specs, targets, journal.context.tag)


def _checked(options: WriteOptions, schema: StructType) -> tuple[tuple[str, ...], TypedFrame | None, Journal]:
    """The columns of the frame, checked, and the log with the topic."""
    if has_data_columns(schema, options):
        return _checked_data(options, schema)
    columns = written_columns(schema, options.topic)
    journal = journal_to_write(options)
    if options.topic is not None:
        ensure_topic(journal, options.topic)
        check_bytes(topic_spec(journal.newest, options.topic))
    check_no_names(options)
    return columns, None, journal


def _checked_data(options: WriteOptions, schema: StructType) -> tuple[tuple[str, ...], TypedFrame | None, Journal]:
    """Checks a frame with data columns.  Nothing is created for a frame that cannot be written."""
    try:
        journal = journal_to_write(options, create=False)
    except NoLog:
        written_columns(schema, options.topic)
        raise
    return (), typed_frame(journal, typed_part(schema) if options.beside else schema, options), journal


def _write(begun: Begun, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """A task: upload all rows durably."""
    options = begun.options
    with plain_errors():
        prepare_process()
        roots = begun.log.broker_roots()
        uploader = Uploader(
            roots.own,
            begun.log.version,
            random.Random(),
            partitioner=options.partitioner,
            compression=options.compression,
            replicas=ReplicaPuts(roots, begun.targets.__getitem__, partial(_newest_targets, begun), SystemClock()),
            sort=True,
            lineage=Lineage(begun.history, None),
            tag=begun.tag,
        )
        try:
            bad, reason = _append(begun, batches, uploader)
            uploaded = uploader.finish()
        finally:
            uploader.close()
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    number = context.getLocalProperty(BATCH_ID) if context is not None else None
    return TaskWritten(uploaded, bad, reason, query, None if number is None else int(number))


def _newest_targets(begun: Begun, group: int) -> Targets:
    """Where objects of a group are put now: in the state that the driver planned by, none of its replicas answers."""
    return targets_of(newest_journal(begun.log, peek=True).newest, group)


def _append(begun: Begun, batches: Iterator[pa.RecordBatch], uploader: Uploader) -> tuple[int, str]:
    """Append all rows to the uploader; returns the number of bad rows, and the first reason."""
    options, clock = begun.options, SystemClock()
    topics = Topics(begun.log, begun.specs)
    all_to = begun.specs[options.topic] if options.topic is not None else None
    encoded = encoded_topics(options, begun.specs)
    read, count, reason = 0, 0, ""
    for batch in batches:
        rest = take_encoded(batch, encoded, uploader)
        read += rest.encoded
        for piece in _pieces(begun, rest.rows, clock.now_ms()):
            now_ms = clock.now_ms()
            good, bad = sift(piece, all_to if piece.topics is None else None, topics, now_ms)
            read += piece.rows.records.num_rows
            if bad is not None:
                if options.dead_letters is None:
                    raise refusal(piece, bad, read)
                to = begun.specs[options.dead_letters]
                uploader.add(TopicRows.of(to, letters(piece, bad, options.topic, to, now_ms)))
                count, reason = count + len(bad.rows), reason or bad.reasons[0]
            uploader.add(good)
    return count, reason


def _pieces(begun: Begun, batch: pa.RecordBatch, now_ms: int) -> Iterator[BatchPiece]:
    if begun.typed is None:
        yield from pieces(begun.columns, batch, now_ms)
    elif begun.options.beside:
        typed, others = split(batch)
        yield from typed_pieces(begun.typed, typed, now_ms)
        yield from pieces(others.schema.names, others, now_ms)
    else:
        yield from typed_pieces(begun.typed, batch, now_ms)


class _Writer(DataSourceArrowWriter):
    """A write, as the driver has begun it."""

    def __init__(self, begun: Begun) -> None:
        self.begun = begun
        self.rules = write_rules(begun.options, begun.columns, begun.specs, has_data=begun.typed is not None)
        """For tasks that encode rows in the JVM, which find them in the pickle of this writer."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self.begun, iterator)


class LogWriter(_Writer):
    """A batch write: all rows, or none."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with plain_errors():
            done = _done(messages)
            journal, typed = newest_journal(self.begun.log, peek=True), self.begun.typed
            if not any(message.uploaded.slices for message in done):
                if typed is not None and typed.is_first:
                    set_first_schema(journal, typed.topic, typed.schema.columns)
                return
            uploads = [message.uploaded for message in done]
            options, epoch = self.begun.options, self.begun.log.version
            write = OnceOnly(journal, options, epoch, uploads)
            committed: Committed | None
            if options.txn_version is None:
                committed = PlainProducer(journal).commit(epoch, uploads, acks=options.acks)
                wait_for_copies(journal)  # Spark may end this process, as below
            elif options.txn_from_query:
                query = options.query_id or next((message.query_id for message in done if message.query_id), None)
                committed = write.commit_sink_batch(query)
            else:
                committed = write.commit_version(done[0].batch_id)
            _tell(self.begun, done, committed)
            journal.finish_maintenance()  # Spark may end this process with `os._exit`

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing to undo: uncommitted objects are invisible.  Spark also calls it after a commit that raised."""


class LogStreamWriter(_Writer, DataSourceStreamWriter):
    """One micro-batch of a stream, applied once, however often Spark runs it."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803  Spark's names
        with plain_errors():
            _tell_once(self.begun.options.notes)
            done = [message for message in _done(messages) if message.uploaded.slices]
            if not done:
                return
            # Spark creates a writer in the process that commits, so the log was read just before.
            journal, uploads = journal_since(self.begun.log), [message.uploaded for message in done]
            # The epoch is that of the tasks: they had a writer in another process.
            epoch = min(upload_epoch(one.name) for uploaded in uploads for one in uploaded.objects)
            write = OnceOnly(journal, self.begun.options, epoch, uploads)
            _tell(self.begun, done, write.commit_stream_batch(done[0].query_id, batchId))
            journal.finish_maintenance()  # as for a batch

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803  Spark's names
        """Nothing to undo, as for a batch."""


@cache
def _tell_once(notes: tuple[str, ...]) -> None:
    """Spark creates a writer for each micro-batch in two processes; only one of them commits."""
    tell(notes)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskWritten]:
    return [message for message in messages if isinstance(message, TaskWritten)]


def _tell(begun: Begun, done: Sequence[TaskWritten], committed: Committed | None) -> None:
    """Log a warning in the driver if there were bad rows; for a replayed commit it was logged the first time."""
    bad = [message for message in done if message.bad]
    if bad and committed is not None and not committed.repeated:
        count, to = sum(message.bad for message in bad), begun.options.dead_letters
        rows, first = counted(count, "row"), bad[0].reason
        logger.warning("%s could not be written and went to topic %r; the first: %s", rows, to, first)
        if to is not None and begun.specs[to].compacted:
            logger.warning("topic %r is compacted: only the last of the bad rows with the same key is kept in it", to)
