"""The config `sort.columns` of a topic: data columns by which the rows of a frame are sorted when they are written."""

from __future__ import annotations

import pyarrow as pa

from spark_log.errors import InvalidConfig
from spark_log.schema.names import column_named, stored_name
from spark_log.schema.topic_schema import TopicSchema


def stored_sort_columns(config: str, schema: TopicSchema | None) -> tuple[str, ...]:
    """The columns of a run to sort by; none without a schema."""
    if not config or schema is None:
        return ()
    names = (column_named(name, schema.columns.names) for name in config.split(","))
    return tuple(stored_name(name) for name in names if name is not None)


def check_sort_columns(topic: str, config: str, schema: pa.Schema) -> None:
    """Raises InvalidConfig for a column that the schema does not have, or that has no order."""
    for name in config.split(",") if config else ():
        column = column_named(name, schema.names)
        if column is None:
            raise InvalidConfig(
                f"topic {topic!r}: sort.columns names {name!r}; its columns are {', '.join(schema.names)}"
            )
        if pa.types.is_nested(schema.field(column).type):
            raise InvalidConfig(
                f"topic {topic!r}: sort.columns names {name!r}, a {schema.field(column).type}, which has no order: name "
                "columns of numbers, texts, times or booleans"
            )
