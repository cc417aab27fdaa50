"""Copying records from another system into a topic with a schema: their JSON is parsed.  Others are kept or named.

A task's rows are the typed records, the dead letters and the entries of the map of offsets, for one commit of a sink
with rows for other topics (`sink/other_topics.py`).  The map has the offsets of typed records only: a dead letter is a
gap, as a record that compaction has removed.  Each partition's entry ends where its records end, so no dead letter is
copied twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, StructType

from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import newest_journal
from pyspark_pylog.sink.bad_records import with_headers
from pyspark_pylog.sink.other_topics import TOPIC, VALUE
from spark_log.client.mirror_map import MirroredTopic, OffsetRun, entry_rows, extend, runs_of
from spark_log.errors import ConcurrentChange, InvalidRecord
from spark_log.metadata.topics.schemas import schemas_of
from spark_log.schema.arrow_types import all_nullable
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import TopicSchema
from spark_log.segment.json_values import json_or_errors
from spark_log.segment.schema import HEADERS, TIMESTAMP
from spark_log.segment.typed_rows import sifted


class TypedCopy(NamedTuple):
    """A topic with a schema that is copied.  Sent to tasks."""

    copy: MirroredTopic
    schema: TopicSchema
    dead_letters: str = ""
    """The topic for records that do not fit; empty: they stop the job."""
    drop_fields: bool = False
    """Fields that the schema lacks are left out; otherwise, a record with one does not fit."""
    where: str = "Kafka"
    """The source, in messages."""
    check: Callable[[], None] | None = None
    """Raises an error if the records may have been written by a newer schema."""


def columns_of(schema: TopicSchema) -> pa.Schema:
    """The columns of `with_typed_map`."""
    value = all_nullable(pa.struct(list(schema.columns)))
    return pa.schema(
        [
            ("partition", pa.int32()),
            ("key", pa.binary()),
            ("value", value),
            ("timestamp", TIMESTAMP),
            ("headers", HEADERS),
            (TOPIC, pa.string()),
            (VALUE, pa.binary()),
        ]
    )


def spark_columns_of(schema: TopicSchema) -> StructType:
    """The columns of a schema for Spark."""
    value = pa.schema(list(columns_of(schema).field("value").type))
    header = StructType().add("key", "string").add("value", "binary")
    return (
        StructType()
        .add("partition", "integer")
        .add("key", "binary")
        .add("value", StructType.fromJson(json.loads(to_json(value))))
        .add("timestamp", "timestamp")
        .add("headers", ArrayType(header))
        .add(TOPIC, "string")
        .add(VALUE, "binary")
    )


def with_typed_map(typed: TypedCopy, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's records as typed rows, followed by their map entries; as `with_map`.

    Without a dead-letter topic, raises InvalidRecord for a record that does not fit; the message has its offset in the
    source.  Raises what the check raises, after the records were read: then nothing of them is written.
    """
    found: dict[int, list[OffsetRun]] = defaultdict(list)
    for batch in batches:
        if typed.copy.compacted:
            batch = batch.filter(batch.column("key").is_valid())
        if not batch.num_rows:
            continue
        values, reasons = parsed(batch.column("value"), typed)
        if reasons and not typed.dead_letters:
            if typed.check is not None:
                typed.check()
            raise _refused(batch, reasons, typed.where)
        fits = np.ones(batch.num_rows, np.bool_)
        fits[list(reasons)] = False
        _note(found, batch, fits)
        yield _rows(typed, batch.filter(pa.array(fits)), value=values.filter(pa.array(fits)))
        if reasons:
            yield _letters(typed, batch.take(pa.array(sorted(reasons))), [reasons[row] for row in sorted(reasons)])
    if found:
        if typed.check is not None:
            typed.check()
        yield _entries(typed, found)


def check_schema(planned: PlannedLog, topic: str, topic_id: str, version: int) -> None:
    """In a task: raise ConcurrentChange if a topic of the source has a newer schema than this version by now.

    Its records could have fields that the copy does not have yet.
    """
    journal = newest_journal(planned)
    journal.require([topic])
    if len(schemas_of(journal.state, topic_id)) > version:
        raise ConcurrentChange(
            f"topic {topic!r} got a newer schema in {planned.url} while it was copied, so nothing of this batch was "
            "written: run the mirror again"
        )


def parsed(texts: pa.Array, typed: TypedCopy) -> tuple[pa.Array, dict[int, str]]:
    """The structs of JSON texts, and why some do not fit, by row."""
    kind = columns_of(typed.schema).field("value").type
    values, errors = json_or_errors(texts, kind, strict=not typed.drop_fields)
    reasons = {row: f"the value {error}" for row, error in errors.items()}
    rows = pa.record_batch({"value": values})
    for fault in sifted(rows, typed.schema, now_us=0, topic=typed.copy.topic)[1]:
        reasons |= {row: fault.reason for row in np.flatnonzero(fault.rows).tolist() if row not in reasons}
    return values, reasons


def _note(
    found: dict[int, list[OffsetRun]], batch: pa.RecordBatch, fits: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> None:
    """Add the offsets of records that fit, and the end of each partition."""
    partitions, offsets = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
    for number in np.unique(partitions).tolist():
        mine = partitions == number
        extend(found[number], runs_of(offsets[mine & fits]))
        extend(found[number], [OffsetRun(int(offsets[mine][-1]) + 1, 0)])


def _refused(batch: pa.RecordBatch, reasons: Mapping[int, str], where: str) -> InvalidRecord:
    row = min(reasons)
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return InvalidRecord(
        f"the record of {topic}-{partition} at offset {offset} in {where}: {reasons[row]}. Nothing of this batch was "
        "written. Give --bad-records TOPIC for such records, --drop-fields for fields that the schema lacks, or, for a "
        "mirror of Kafka, another --schema"
    )


def _rows(typed: TypedCopy, batch: pa.RecordBatch, **more: pa.Array) -> pa.RecordBatch:
    """Rows with columns of the records, and others; columns that are left out are null."""
    schema, names = columns_of(typed.schema), batch.schema.names
    columns = {
        name: batch.column(name) for name in ("partition", "key", "timestamp", "headers") if name in names
    } | more
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _letters(typed: TypedCopy, batch: pa.RecordBatch, reasons: list[str]) -> pa.RecordBatch:
    """Dead letters, with the record's bytes, and its place in the source in headers."""
    count = batch.num_rows
    added = {
        "pylog.error": pa.array(reasons),
        "pylog.error.class": pa.array(["InvalidRecord"] * count),
        "pylog.topic": pa.array([typed.copy.topic] * count),
        "pylog.partition": batch.column("partition").cast(pa.string()),
        "pylog.offset": batch.column("offset").cast(pa.string()),
    }
    headers = with_headers(batch.column("headers").cast(HEADERS), added)
    topic = pa.array([typed.dead_letters] * count)
    rows = batch.drop_columns(["partition"])
    return _rows(typed, rows, headers=headers, **{TOPIC: topic, VALUE: batch.column("value")})


def _entries(typed: TypedCopy, found: Mapping[int, list[OffsetRun]]) -> pa.RecordBatch:
    values = [row["value"] for row in entry_rows(typed.copy, found)]
    base = pa.record_batch({"partition": pa.array([0] * len(values), pa.int32())})
    return _rows(typed, base, **{TOPIC: pa.array([typed.copy.map] * len(values)), VALUE: pa.array(values, pa.binary())})
