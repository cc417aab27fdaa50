"""Configs of a topic that name data columns.

`sort.columns`: the rows of a frame are sorted by them when they are written.  `stats.columns`: their least and greatest
values are kept; `auto` leaves the choice to pylog.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from spark_log.configs.settings import topic_config
from spark_log.errors import InvalidConfig
from spark_log.schema.names import column_named, shown_name, stored_name
from spark_log.schema.topic_schema import TopicSchema

AUTO = "auto"
"""In `stats.columns`, in place of names."""


def stored_sort_columns(config: str, schema: TopicSchema | None) -> tuple[str, ...]:
    """The columns of a run to sort by; none without a schema."""
    if not config or schema is None:
        return ()
    names = (column_named(name, schema.columns.names) for name in config.split(","))
    return tuple(stored_name(name) for name in names if name is not None)


def check_column_configs(topic: str, configs: Mapping[str, str], schema: pa.Schema) -> None:
    """Raises InvalidConfig for a column that the schema does not have, or that has no order."""
    for config in ("sort.columns", "stats.columns"):
        names = str(topic_config(configs, config))
        for name in names.split(",") if names not in ("", AUTO) else ():
            _check_column(topic, config, name, schema)


def _check_column(topic: str, config: str, name: str, schema: pa.Schema) -> None:
    column = column_named(name, schema.names)
    if column is None:
        there = ", ".join(map(shown_name, schema.names))
        raise InvalidConfig(f"topic {topic!r}: {config} names {name!r}; its columns are {there}")
    if pa.types.is_nested(schema.field(column).type):
        raise InvalidConfig(
            f"topic {topic!r}: {config} names {name!r}, a {schema.field(column).type}, which has no order: name "
            "columns of numbers, texts, times or booleans"
        )
