"""The rows of objects by both readers of the format, without queries: thousands of objects in one JVM."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from pyspark_pylog.log.planned_log import PlannedLog, PlannedRoots
from pyspark_pylog.native import compiled
from pyspark_pylog.native.plan import planned
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.source.data_columns import DataColumns, data_columns, names_of, value_of
from pyspark_pylog.source.read_columns import arrow_schema, stored_columns, to_batch
from pyspark_pylog.source.read_task import ReadTask

from spark_log.client.reader.fetch import fetch
from spark_log.client.reader.plan import SliceRead
from spark_log.errors import SparkLogError
from spark_log.schema.topic_schema import TopicSchema
from spark_log.store.memory import MemoryStore
from tests.spark.builders import asked

JAVA = Path(__file__).with_name("SegmentProbe.java")
PROBE = "io.pylog.spark.SegmentProbe"
RECORD = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key:string,value:binary>>"


class Reads:
    """Some reads of objects in a folder, with the columns of a frame.

    typed:  the schema of the topic.
    """

    def __init__(
        self, folder: Path, columns: StructType, reads: Sequence[SliceRead], typed: TopicSchema | None = None
    ) -> None:
        roots = PlannedRoots(((0, f"file://{folder}"),))
        self._log = PlannedLog(url=f"file://{folder}", token=None, roots=roots, cluster_id="c", version=0)
        self._options = read_options(asked(str(folder)), streaming=False)
        self.schema, self.reads = columns, reads
        self._data = self._data_columns(typed)

    def _data_columns(self, typed: TopicSchema | None) -> DataColumns | None:
        versions = {"t": [] if typed is None else [typed]}
        return data_columns(versions, arrow_schema(self.schema), self._options)

    @property
    def plan(self) -> bytes:
        """The bytes that a task of Java gets."""
        return planned(self._options, self.schema.json(), "", [ReadTask(0, self._log, self.reads, None, self._data)])[0]

    def with_reads(self, reads: Sequence[SliceRead]) -> Reads:
        """Others of the same frame."""
        found = copy.copy(self)
        found.reads = reads
        return found

    def by_python(self, data: bytes) -> list[str] | None:
        """The rows of an object as `SegmentProbe` writes them; None for an error."""
        try:
            return list(self._rows(data))
        except SparkLogError:
            return None

    def _rows(self, data: bytes) -> Iterator[str]:
        store = MemoryStore("vectors")
        store.put(self.reads[0].slice.object, [data])
        stored, schema = names_of(self._data), arrow_schema(self.schema)
        for read in self.reads:
            columns = stored_columns(schema, stored)
            for part in fetch(store, read, columns, value=value_of(self._data)):
                batch = to_batch(part, schema, stored)
                yield from (f"({' '.join(row)})" for row in zip(*map(texts, batch.columns), strict=True))


class Probe:
    """Java's reader."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        found = compiled.loader(jvm)
        path = compiled.jar(jvm, found, spark.version, [JAVA.read_text()])
        found.addURL(jvm.java.io.File(str(path)).toURI().toURL())
        self._java = getattr(jvm, PROBE)

    def rows(self, reads: Reads) -> list[str] | None:
        """The rows of the JVM; None if it leaves a part to Python."""
        *lines, last = self.lines(reads).split("\n")
        return None if last else lines

    def lines(self, reads: Reads) -> str:
        """The rows, and why Python reads on, if it does."""
        return str(self._java.read(reads.plan, reads.schema.json()))

    def verdicts(self, reads: Reads, path: Path, data: bytes, places: Sequence[int], *, cut: bool) -> str:
        """The verdicts of `SegmentProbe.damaged`."""
        listed = " ".join(map(str, places))
        return str(self._java.damaged(reads.plan, reads.schema.json(), str(path), data, listed, cut))


def texts(array: pa.Array) -> list[str]:
    """Values as `SegmentProbe` writes them."""
    kind = array.type
    if pa.types.is_struct(kind):
        found = [f"({' '.join(row)})" for row in zip(*map(texts, array.flatten()), strict=True)]
    elif pa.types.is_map(kind):
        keys, values = _lists(array, array.keys), _lists(array, array.items)
        found = [one + other for one, other in zip(keys, values, strict=True)]
    elif pa.types.is_list(kind):
        found = _lists(array, array.values)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = [f"x{(value or b'').hex()}" for value in array.view(pa.binary()).to_pylist()]
    elif pa.types.is_temporal(kind):
        number = pa.int32() if pa.types.is_date(kind) else pa.int64()
        found = list(map(str, array.view(number).to_pylist()))
    else:
        found = [json.dumps(value) if isinstance(value, bool) else str(value) for value in array.to_pylist()]
    return [text if is_valid else "-" for text, is_valid in zip(found, array.is_valid().to_pylist(), strict=True)]


def _lists(array: pa.Array, values: pa.Array) -> list[str]:
    inside, ends = texts(values), array.offsets.to_pylist()
    return [f"[{' '.join(inside[at:end])}]" for at, end in pairwise(ends)]
