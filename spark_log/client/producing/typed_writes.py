"""Writing frames to a topic, typed or not: which schema they are converted by, and the first schema of a topic."""

from __future__ import annotations

from collections.abc import Iterator

from spark_log.client.producing.topic_rules import TopicSpec, topic_spec
from spark_log.client.topic_creation import set_first_schema
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.schema.arrow_types import nullable
from spark_log.schema.topic_schema import as_schema
from spark_log.segment.frame_columns import DEFAULT_NAMES, ColumnNames, data_columns
from spark_log.segment.record_columns import Rows, conform
from spark_log.segment.typed_rows import conform_typed, frame_schema


def spec_for(journal: Journal, topic: str, data: object, names: ColumnNames = DEFAULT_NAMES) -> TopicSpec:
    """The spec of the topic to which `data` is written.  With `schema.auto`, the first typed write sets its schema.

    Raises InvalidRequest for names of columns if the topic's values are bytes.
    """
    spec = topic_spec(journal.state, topic)
    if spec.schema is None and spec.auto_schema:
        given = frame_schema(data)
        if given is not None and ("value" not in given.names or names.value is not None):
            set_first_schema(journal, topic, nullable(as_schema(data_columns(given, names))))
            spec = topic_spec(journal.state, topic)
    if spec.schema is None and names != DEFAULT_NAMES:
        raise InvalidRequest(
            f"topic {topic!r} has no schema, so value_columns, key_column and timestamp_column have no meaning: leave "
            f"them out, or give it a schema with `pylog topic alter {topic} --schema …`"
        )
    return spec


def rows_of(spec: TopicSpec, data: object, now_us: int, names: ColumnNames = DEFAULT_NAMES) -> Iterator[Rows]:
    """`data` as records of a topic."""
    if spec.schema is None:
        return conform(data, now_us=now_us)
    return conform_typed(data, spec.schema, now_us=now_us, names=names, topic=spec.name)
