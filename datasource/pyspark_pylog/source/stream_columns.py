"""The data columns of a streaming query, which stay the same while the schemas of its topics evolve."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa

from pyspark_pylog.driver_log import notice
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.source.data_columns import DataColumns, check_text, data_columns, value_of, versions_of
from pyspark_pylog.source.ranges import topics_asked_for
from spark_log.client.reader.plan import SliceRead
from spark_log.client.reader.typed import check_typed
from spark_log.metadata.state import State
from spark_log.metadata.topics.schemas import schema_of


class StreamColumns:
    """Follows the schemas of a query's topics."""

    def __init__(self, schema: pa.Schema, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._seen: dict[str, int] | None = None
        """By topic id, the version of the schema; 0: none."""
        self._data: DataColumns | None = None

    def start(self, state: State) -> None:
        """Find the columns.  Raises InvalidRequest for one that a topic does not have, or has with another type,
        and as `check_text`.
        """
        topics = topics_asked_for(self._options, state.names)
        found = _newest(state, topics)
        if found == self._seen:
            return
        self._warn(state, found)
        versions = versions_of(state, topics)
        if self._seen is None:  # values of a running query become JSON text if a topic gets its first schema
            check_text(versions, self._schema, self._options)
        self._data = data_columns(versions, self._schema, self._options)
        self._seen = found

    def found(self, state: State) -> DataColumns | None:
        """The data columns.  Raises as `start`."""
        self.start(state)
        return self._data

    def of(self, state: State, reads: Sequence[SliceRead]) -> DataColumns | None:
        """The data columns, for the tasks of a micro-batch.  Raises as `start` and `check_typed`."""
        self.found(state)
        check_typed(state, reads, value_of(self._data))
        return self._data

    def _warn(self, state: State, found: dict[str, int]) -> None:
        """Log a warning for each topic that has a newer schema than before."""
        for topic_id, version in found.items():
            before = version if self._seen is None else self._seen.get(topic_id, version)
            if version > before:
                reads = f"version {before}" if before else "bytes, which are JSON from now on"
                notice(
                    logging.WARNING,
                    f"topic {state.topics[topic_id].name!r} has version {version} of its schema now, and this query reads "
                    f"{reads}: restart the query to read the new columns",
                )


def _newest(state: State, topics: Sequence[str]) -> dict[str, int]:
    """By topic id, the newest version of the schema; 0: none."""
    schemas = {state.names[topic]: schema_of(state, state.names[topic]) for topic in topics}
    return {topic_id: schema.version if schema else 0 for topic_id, schema in schemas.items()}
