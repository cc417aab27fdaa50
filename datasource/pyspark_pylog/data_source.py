"""`DefaultSource`: Spark's entry point for readers and writers.  It checks options before any task runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key: string, value: binary>>"


class DefaultSource(DataSource):
    """The data source `pylog`: creates the readers and writers of batches and streams, from the options."""

    @classmethod
    def name(cls) -> str:
        return "pylog"

    def schema(self) -> StructType | str:
        """The columns of Kafka's connector, or those of the topics' schemas.

        If the user gives a schema with fewer columns, only these are decoded.
        """
        from pyspark_pylog.options.parse import load_options
        from pyspark_pylog.options.values import flag
        from pyspark_pylog.plain_errors import plain_errors
        from pyspark_pylog.source.load_schema import schema_of_load

        with plain_errors():
            options = load_options(self.options)
            if options is not None:
                return schema_of_load(options)
            return f"{SCHEMA}, {HEADERS}" if flag(self.options, "includeheaders", False) else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_pylog.options.parse import read_options
        from pyspark_pylog.plain_errors import plain_errors
        from pyspark_pylog.source.batch import LogReader
        from pyspark_pylog.source.read_columns import frame_schema

        with plain_errors():
            options = read_options(self.options, streaming=False)
            columns = frame_schema(schema, options)
            if options.of_progress:
                from pyspark_pylog.source.consumer_offsets_topic import ProgressReader

                return ProgressReader(options, columns)
            if options.latest:
                from pyspark_pylog.source.latest_view import LatestReader

                return LatestReader(options, columns)
            return LogReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_pylog.plain_errors import plain_errors
        from pyspark_pylog.sink.writer import batch_writer

        with plain_errors():
            return batch_writer(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        from pyspark_pylog.options.parse import read_options
        from pyspark_pylog.source.read_columns import frame_schema
        from pyspark_pylog.source.stream import LogStreamReader, Refused
        from spark_log.errors import SparkLogError

        try:
            options = read_options(self.options, streaming=True)
            columns = frame_schema(schema, options)
            if options.of_progress:
                from pyspark_pylog.source.consumer_offsets_topic import ProgressStreamReader

                return ProgressStreamReader(options, columns)
            return LogStreamReader(options, columns)
        except SparkLogError as error:
            return Refused(error)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        from pyspark_pylog.plain_errors import plain_errors
        from pyspark_pylog.sink.writer import stream_writer

        with plain_errors():
            return stream_writer(self.options, schema, overwrite)
