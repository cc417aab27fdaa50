"""The base of batch reads: the driver plans the tasks of a `load()` when its frame is first used."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_pylog.driver_log import tell
from pyspark_pylog.log.open_log import patiently
from pyspark_pylog.options.parse import ReadOptions
from pyspark_pylog.plain_errors import plain_errors
from pyspark_pylog.source.ranges import is_fixed, is_open
from spark_log.client.reader.plan import OffsetRange
from spark_log.model import TopicPartition
from spark_log.runtime.clock import SystemClock


class PlannedReader(DataSourceReader):
    """A batch read with the plan of `_planned`."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self.scan = uuid.uuid4().hex
        """Names this load's plans."""

    def partitions(self) -> Sequence[InputPartition]:
        with plain_errors():
            tell(self.options.notes)
            return patiently(self._planned, self.options, SystemClock())

    def _planned(self) -> Sequence[InputPartition]:
        """The tasks.  Called again if the log cannot be reached."""
        raise NotImplementedError

    def _ends_early(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether records cannot be added: all ends are offsets or times."""
        if not ranges:
            return not is_open(self.options.end.default)
        return is_fixed(self.options, [TopicPartition(rng.topic, rng.partition) for rng in ranges])
