"""Writing frames to a topic, typed or not: which schema they are converted by, and the first schema of a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa

from spark_log.client.producer.topic_rules import TopicSpec, topic_spec
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.schema.arrow_types import nullable
from spark_log.schema.column_configs import check_column_configs
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import TopicSchema, as_schema
from spark_log.segment.frame_columns import DEFAULT_NAMES, ColumnNames, data_columns
from spark_log.segment.record_columns import Rows, arrow_stream, conform
from spark_log.segment.typed_rows import conform_typed, frame_schema


def spec_for(
    journal: Journal, topic: str, data: object, names: ColumnNames = DEFAULT_NAMES, first: TopicSchema | None = None
) -> tuple[TopicSpec, object]:
    """The spec of the topic to which `data` is written, and the data, which was read if it can be read once only.

    With `schema.auto`, the commit of the first typed write sets the topic's schema.

    first:  the schema that an earlier write of the same commit gives to the topic.
    Raises InvalidRequest for names of columns if the topic's values are bytes, IncompatibleSchema and others for a
    first schema that the topic cannot have.
    """
    spec = topic_spec(journal.state, topic, first)
    if spec.schema is None and spec.auto_schema:
        data = _kept(data)
        given = frame_schema(data)
        if given is not None and ("value" not in given.names or names.value is not None):
            columns = nullable(as_schema(data_columns(given, names)))
            state = journal.refresh()  # another process may have set it long ago
            check_column_configs(topic, topic_named(state, topic)[1].configs, columns)
            spec = topic_spec(state, topic, TopicSchema(1, to_json(columns)))
    if spec.schema is None and names != DEFAULT_NAMES:
        raise InvalidRequest(
            f"topic {topic!r} has no schema, so value_columns, key_column and timestamp_column have no meaning: leave "
            f"them out, or give it a schema with `pylog topic alter {topic} --schema …`"
        )
    return spec, data


def has_other_schema(journal: Journal, spec: TopicSpec) -> bool:
    """Whether the newest state has another schema of the topic than the one by which rows were refused.

    Another process may have set or changed it: a refusal is not final before this process has looked at the log.
    A schema that only the commit of the rows will set is not in the log.
    """
    known = None if spec.sets_schema else spec.schema
    return topic_spec(journal.refresh(), spec.name).schema != known


def _kept(data: object) -> object:
    """Data that can be read twice."""
    frames = getattr(sys.modules.get("pandas"), "DataFrame", ())
    if isinstance(data, (pa.Table, pa.RecordBatch, frames)) or not hasattr(data, "__arrow_c_stream__"):
        return data
    return arrow_stream(data).read_all()


def rows_of(spec: TopicSpec, data: object, now_us: int, names: ColumnNames = DEFAULT_NAMES) -> Iterator[Rows]:
    """`data` as records of a topic."""
    if spec.schema is None:
        return conform(data, now_us=now_us)
    return conform_typed(data, spec.schema, now_us=now_us, names=names, topic=spec.name)
