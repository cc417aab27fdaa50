"""The columns of a `load()` for which the user gives no schema."""

from __future__ import annotations

from pyspark.sql.types import StructType

from pyspark_pylog.log.open_log import journal_to_read, patiently
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.source.data_columns import Versions, columns_of_load, versions_of
from pyspark_pylog.source.ranges import topics_asked_for
from pyspark_pylog.source.read_columns import spark_schema
from spark_log.errors import NoLog
from spark_log.runtime.clock import SystemClock


def schema_of_load(options: ReadOptions) -> StructType:
    """The columns of a frame, from the schemas that the topics have now.

    A log or a topic that does not exist yet counts as one without a schema; the read itself reports that it is missing.
    Raises as `columns_of_load`.
    """
    return spark_schema(columns_of_load(_versions(options), options))


def _versions(options: ReadOptions) -> Versions:
    if options.of_progress:
        return {}
    try:
        state = patiently(lambda: journal_to_read(options.location, peek=True).newest, options, SystemClock())
    except NoLog:
        return {}
    return versions_of(state, topics_asked_for(options, state.names))
