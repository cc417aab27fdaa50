"""Writes, batch and streaming.

Tasks write objects under an upload epoch that the driver drew, and say exactly what they wrote; the driver commits all of
it in one record.  What a failed attempt, a speculative twin or a killed job wrote is named by nobody.

A stream's identity is (query id, batch id), from the task's local properties.  Only the streaming sink takes it: inside
`foreachBatch` all batch writes see the same ids, and the second would vanish.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_pylog.batch import journal_of, quiet_gc, store_of
from pyspark_pylog.errors import plain_errors
from pyspark_pylog.options import Location, Options, WriteOptions, write_options
from spark_log.client.commit import Identity, PlainProducer, commit_uploads
from spark_log.client.log import Log, txn_identity
from spark_log.client.upload import TopicSpec, Uploaded, Uploader, specs_of, topic_spec
from spark_log.clock import SystemClock
from spark_log.errors import InvalidRecord, InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.metadata.decide import epoch_of_holder
from spark_log.segment.schema import Rows, conform

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
BYTES_TYPES = ("string", "binary")
COLUMN_TYPES = {
    "topic": ("string",),
    "key": BYTES_TYPES,
    "value": BYTES_TYPES,
    "partition": ("int",),
}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task wrote, and for which streaming batch."""

    uploaded: Uploaded
    topics: tuple[str, ...]
    query_id: str | None
    batch_id: int | None


@dataclass(frozen=True)
class Begun:
    """What the driver settled before the tasks: travels to them."""

    options: WriteOptions
    columns: tuple[str, ...]
    """Those of the frame that are written."""
    epoch: int
    specs: Mapping[str, TopicSpec]


def batch_writer(options: Options, schema: StructType, overwrite: bool) -> LogWriter:
    """Check options and columns, create the topic if it is missing, and draw the upload epoch."""
    _refuse_overwrite(overwrite)
    return LogWriter(_begin(write_options(options, streaming=False), schema))


def stream_writer(options: Options, schema: StructType, overwrite: bool) -> LogStreamWriter:
    """The same for each micro-batch of a stream."""
    _refuse_overwrite(overwrite)
    return LogStreamWriter(_begin(write_options(options, streaming=True), schema))


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest(
            "a log is appended to, not overwritten: use .mode('append') for a batch, and outputMode('append') or "
            "foreachBatch(spark_log.sink(URL, topic=…)) for a stream"
        )


def _begin(options: WriteOptions, schema: StructType) -> Begun:
    columns = _check_columns(schema, options.topic)
    log = Log(journal_of(options.location, create=True))
    if options.topic is None:
        return Begun(options, columns, log.journal.state.version, specs_of(log.journal.state))
    log.ensure_topic(options.topic)
    state = log.journal.state
    return Begun(options, columns, state.version, {options.topic: topic_spec(state, options.topic)})


def _check_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns to write, by exact name.  Raises InvalidRecord that names a column and its type."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in found:
        raise InvalidRecord(f"there is no column 'value' to write; the frame has {', '.join(found)}")
    if topic is None and "topic" not in found:
        raise InvalidRecord("which topic? set the option 'topic', or give the frame a column 'topic'")
    used = []
    for name, type_ in found.items():
        if name == "topic" and topic is not None:
            continue
        if name in COLUMN_TYPES and type_ not in COLUMN_TYPES[name]:
            raise InvalidRecord(f"column {name!r} is {type_}, expected {' or '.join(COLUMN_TYPES[name])}")
        if name == "headers" and not _is_headers(type_):
            raise InvalidRecord(f"column 'headers' is {type_}, expected array<struct<key:string,value:binary>>")
        if (
            name in COLUMN_TYPES
            or name == "headers"
            or (name == "timestamp" and type_ in ("timestamp", "timestamp_ntz"))
        ):
            used.append(name)
    return tuple(used)


def _is_headers(type_: str) -> bool:
    return type_ == "array<struct<key:string,value:binary>>"


def _write(begun: Begun, batches: Iterator[pa.RecordBatch]) -> Written:
    """A task: all rows into objects, put durably."""
    with plain_errors():
        quiet_gc()
        specs, now_ms = dict(begun.specs), SystemClock().now_ms
        uploader = Uploader(
            store_of(begun.options.location),
            begun.epoch,
            random.Random(),
            partitioner=begun.options.partitioner,
            compression=begun.options.compression,
        )
        used: set[str] = set()
        try:
            for batch in batches:
                for topic, rows in _by_topic(begun, batch):
                    used.add(topic)
                    if topic not in specs:
                        specs[topic] = _late_spec(begun.options.location, topic)
                    for part in conform(rows, now_us=now_ms() * 1000):
                        uploader.append(specs[topic], Rows(part.records, part.partitions), now_ms())
            uploaded = uploader.finish()
        finally:
            uploader.close()
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    number = context.getLocalProperty(BATCH_ID) if context is not None else None
    return Written(uploaded, tuple(sorted(used)), query, None if number is None else int(number))


def _by_topic(begun: Begun, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    rows = batch.select([name for name in begun.columns if name != "topic"])
    if begun.options.topic is not None:
        yield begun.options.topic, rows
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise InvalidRecord("a row has a null topic; set the option 'topic' or fill the column")
    for topic in pc.unique(topics).to_pylist():
        yield topic, rows.filter(pc.equal(topics, topic))


def _late_spec(location: Location, topic: str) -> TopicSpec:
    """A topic that the column names and the driver did not know: it is created now, as an append does."""
    log = Log(journal_of(location))
    log.ensure_topic(topic)
    return topic_spec(log.journal.state, topic)


class LogWriter(DataSourceArrowWriter):
    """A batch write: all of it, or nothing."""

    def __init__(self, begun: Begun) -> None:
        self.begun = begun

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self.begun, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with plain_errors():
            done = _done(messages)
            if not any(message.uploaded.slices for message in done):
                return
            journal = journal_of(self.begun.options.location)
            uploads = [message.uploaded for message in done]
            identity = _batch_identity(self.begun.options, done)
            if identity is None:
                PlainProducer(journal).commit(self.begun.epoch, uploads)
            else:
                commit_uploads(journal, identity, self.begun.epoch, uploads)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing to undo: what no commit names is invisible.  Also called after a commit that raised, and may be in."""


class LogStreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """One micro-batch of a stream: once, however often Spark runs it."""

    def __init__(self, begun: Begun) -> None:
        self.begun = begun

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self.begun, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803  Spark's names
        with plain_errors():
            done = [message for message in _done(messages) if message.uploaded.slices]
            if not done:
                return
            journal = journal_of(self.begun.options.location)
            identity = _stream_identity(journal, self.begun.options, done[0].query_id, batchId)
            commit_uploads(journal, identity, self.begun_epoch(done), [message.uploaded for message in done])

    def begun_epoch(self, done: Sequence[Written]) -> int:
        """The upload epoch of the tasks: the sink's commit runs in another process, with a writer of its own."""
        return min(epoch_of_upload(message.uploaded) for message in done)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803  Spark's names
        """Nothing to undo, as for a batch."""


def epoch_of_upload(uploaded: Uploaded) -> int:
    from spark_log.journal.protocol import upload_epoch

    return min(upload_epoch(o.name) for o in uploaded.objects)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _batch_identity(options: WriteOptions, done: Sequence[Written]) -> Identity | None:
    if options.txn_version is None:
        return None
    application = options.txn_app_id or ""
    if options.txn_from_query:
        query = options.query_id or next((message.query_id for message in done if message.query_id), None)
        if query is None:
            raise InvalidRequest("spark_log.sink() is for foreachBatch; in a batch job use txnAppId and txnVersion")
        application = f"{query}/{application}"
    topics = [options.topic] if options.topic else [topic for message in done for topic in message.topics]
    return txn_identity(application, options.txn_version, topics)


def _stream_identity(journal: Journal, options: WriteOptions, query_id: str | None, batch_id: int) -> Identity:
    """(query id, batch id); with a producerId, that is the name, and a new query id under it is a new epoch."""
    if not query_id:
        raise InvalidRequest(
            "this Spark does not tell its tasks the query id: writing a stream exactly once needs 4.0 or later"
        )
    if options.producer_id is None:
        return Identity(producer=f"query:{query_id}", sequence=batch_id, dense=False)
    name = f"sink:{options.producer_id}"
    epoch = epoch_of_holder(journal.state, name, query_id)
    return Identity(producer=name, sequence=batch_id, epoch=epoch, holder=query_id, dense=False)
