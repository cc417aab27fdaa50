"""Frames with data columns, for topics with schemas: checked in the driver, converted by tasks.

A frame has data columns if the option `topic` names its topic, and it has no column `value` of bytes or text.  Its
other columns are data, except those of a record; the options `value.columns`, `key.column` and `timestamp.column` can
say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_pylog.options.parse import WriteOptions
from pyspark_pylog.sink.write_columns import BYTES, BatchPiece, check_type, with_keys, written_columns
from spark_log.client.producer.topic_rules import TopicSpec
from spark_log.configs.settings import topic_config
from spark_log.errors import InvalidRecord, InvalidRequest, SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.metadata.topics.schemas import schema_of
from spark_log.schema.arrow_types import all_nullable
from spark_log.schema.column_configs import check_column_configs
from spark_log.schema.ddl import to_ddl
from spark_log.schema.struct_json import from_json, to_json
from spark_log.schema.topic_schema import TopicSchema, as_schema
from spark_log.segment.frame_columns import ColumnNames, data_columns, layout_of
from spark_log.segment.record_columns import wrong_keys
from spark_log.segment.typed_rows import sifted

FIRST = 1
"""The version of a topic's first schema."""
DDL_MAX = 500
"""Characters of a schema in a message, at most."""


class TypedFrame(NamedTuple):
    """How the columns of a frame become typed records."""

    topic: str
    schema: TopicSchema
    """The version to which rows are converted."""
    names: ColumnNames
    is_first: bool
    """With `schema.auto`: the topic has no schema yet, and gets this one with the commit."""


def names_of(options: WriteOptions) -> ColumnNames:
    """The columns that the options name."""
    return ColumnNames(options.value_columns, options.key_column, options.timestamp_column)


def has_data_columns(frame: StructType, options: WriteOptions) -> bool:
    """Whether a frame has data columns rather than a value of bytes."""
    if options.topic is None:
        return False
    value = [field for field in frame.fields if field.name == "value"]
    return options.value_columns is not None or not any(isinstance(field.dataType, BYTES) for field in value)


def typed_frame(journal: Journal, frame: StructType, options: WriteOptions) -> TypedFrame:
    """How a frame is written to its topic.  Changes nothing: the first schema of a topic comes with the commit.

    Raises InvalidRecord for a topic without a schema; for columns that do not fit its schema (the error has both
    types); and for a key, timestamp or other column of a record that has the wrong type.  Raises InvalidSchema for a
    type that no topic can have.
    """
    assert options.topic is not None
    topic, names = options.topic, names_of(options)
    columns = from_json(frame.json())
    schema, is_first = _schema(journal, frame, columns, topic, names)
    for role, name in layout_of(columns.names, schema, names, topic).roles.items():
        check_type(role, frame[name])
    no_rows = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in columns], schema=columns)
    sifted(no_rows, schema, now_us=0, names=names, topic=topic)
    return TypedFrame(topic, schema, names, is_first)


def _schema(
    journal: Journal, frame: StructType, columns: pa.Schema, topic: str, names: ColumnNames
) -> tuple[TopicSchema, bool]:
    """The topic's schema; with `schema.auto`, the one that the frame sets, and True."""
    state = journal.newest if topic in journal.newest.names else journal.refresh()
    if topic not in state.names:
        raise _no_schema(frame, topic, columns, names, "create")
    topic_id, found = topic_named(state, topic)
    schema = schema_of(state, topic_id)
    if schema is not None:
        return schema, False
    if not topic_config(found.configs, "schema.auto"):
        raise _no_schema(frame, topic, columns, names, "alter")
    data = data_columns(columns, names)
    first = as_schema(pa.schema([pa.field(one.name, all_nullable(one.type)) for one in data]))
    check_column_configs(topic, found.configs, first)
    return TopicSchema(FIRST, to_json(first)), True


def _no_schema(frame: StructType, topic: str, columns: pa.Schema, names: ColumnNames, command: str) -> SparkLogError:
    """The error for data columns and a topic without a schema.

    command:  that gives it one.
    """
    if "value" in frame.names and names.value is None:
        written_columns(frame, topic)  # raises for its type
    ddl = shown_ddl(data_columns(columns, names))
    instead = f"pylog topic {command} {topic} --schema {ddl!r}"
    written_columns(frame, topic, f"; to write its columns, give topic {topic!r} a schema: {instead}")
    return InvalidRequest(f"option value.columns: topic {topic!r} has no schema; give it one: {instead}")


def shown_ddl(schema: pa.Schema) -> str:
    """The DDL of a schema, cut off if it is long."""
    ddl = to_ddl(schema)
    return ddl if len(ddl) <= DDL_MAX else f"{ddl[:DDL_MAX]}…"


def check_dead_letters(spec: TopicSpec) -> None:
    """Raises InvalidRequest for a dead-letter topic with a schema."""
    if spec.schema is not None:
        raise InvalidRequest(
            f"option badRecords: topic {spec.name!r} has a schema, and bad records are bytes: name a topic without one"
        )


def check_bytes(spec: TopicSpec) -> None:
    """Raises InvalidRecord for a value of bytes in a topic with a schema, with the expression that parses it."""
    if spec.schema is not None:
        raise InvalidRecord(
            f"topic {spec.name!r} has a schema, and the frame's column 'value' is not parsed: write "
            f"frame.withColumn('value', from_json(col('value').cast('string'), {shown_ddl(spec.schema.columns)!r}))"
        )


def check_no_names(options: WriteOptions) -> None:
    """Raises InvalidRequest for options that say which columns are data: a frame with a value of bytes has none."""
    for option, given in (
        ("value.columns", options.value_columns),
        ("key.column", options.key_column),
        ("timestamp.column", options.timestamp_column),
    ):
        if given:
            raise InvalidRequest(f"option {option} is for topics with a schema, and the frame has a value of bytes")


def typed_pieces(frame: TypedFrame, batch: pa.RecordBatch, now_ms: int) -> Iterator[BatchPiece]:
    """A batch of the frame as typed records."""
    if not batch.num_rows:
        return
    wrong = []
    if "headers" in batch.schema.names and "headers" not in (frame.names.value or ()):
        at = batch.schema.get_field_index("headers")
        if wrong := wrong_keys(batch.column(at)):
            batch = batch.set_column(at, "headers", with_keys(batch.column(at)))
    rows, faults = sifted(batch, frame.schema, now_us=now_ms * 1000, names=frame.names, topic=frame.topic)
    yield BatchPiece(rows, None, [*wrong, *faults], _given(frame, batch))


def _given(frame: TypedFrame, batch: pa.RecordBatch) -> pa.StructArray:
    """The values as the frame has them."""
    layout = layout_of(batch.schema.names, frame.schema, frame.names, frame.topic)
    if layout.whole is not None:
        return batch.column(layout.whole)
    columns = [batch.column(name) for name in layout.data.values()]
    return pa.StructArray.from_arrays(columns, list(layout.data))
