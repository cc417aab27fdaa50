"""Encodes batches of records as Parquet files, one for each folder of a table.  Pure.

A table of data columns has them in place of `value`.  One that is called as a column of the record, or as the folders
(`date`, `hour`), is `value.NAME` there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_pylog.export.manifest import ExportSettings
from spark_log.client.reader.scan_batches import SCAN_SCHEMA
from spark_log.errors import InvalidRecord, InvalidRequest
from spark_log.schema.names import stored_name

ROW_GROUP_BYTES = 64 << 20
"""Decoded bytes of a file that are gathered before they are encoded."""
HOUR_US = 3_600_000_000
FOLDERS = {"day": ("date",), "hour": ("date", "hour"), "none": ()}
"""The columns that readers take from the names of folders."""
OFFSETS = ("topic", "partition", "offset")


class WrittenFile(NamedTuple):
    """A file that a task has written."""

    name: str
    """Relative to the folder of the table."""
    bytes: int
    footer: pq.FileMetaData


class ParquetFiles:
    """Encodes batches as a Parquet file for each folder."""

    def __init__(self, settings: ExportSettings) -> None:
        self._settings = settings
        self._open: dict[str, ParquetFile] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        rows = as_rows(batch, self._settings)
        for folder, some in by_folder(rows, self._settings.partition_by):
            if folder not in self._open:
                self._open[folder] = ParquetFile(rows.schema)
            self._open[folder].add(some)

    def finish(self) -> Iterator[tuple[str, pa.Buffer]]:
        """(folder, content) of each file."""
        for folder, file in sorted(self._open.items()):
            yield folder, file.finish()


class ParquetFile:
    """A Parquet file in memory."""

    def __init__(self, schema: pa.Schema) -> None:
        self._buffer = pa.BufferOutputStream()
        # Small decimals as integers: Iceberg requires it, and Spark does so.
        self._writer = pq.ParquetWriter(self._buffer, schema, compression="zstd", store_decimal_as_integer=True)
        self._waiting: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        if sum(each.nbytes for each in self._waiting) >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting = []

    def finish(self) -> pa.Buffer:
        if self._waiting:
            self._flush()
        self._writer.close()
        return self._buffer.getvalue()


def check_parquet(topic: str, columns: pa.Schema) -> None:
    """Raises InvalidRequest for data columns of a type that Parquet does not have, such as a struct without fields."""
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), columns).close()
    except pa.ArrowException as error:
        raise InvalidRequest(
            f"topic {topic!r} cannot be exported as columns: {error}; export its values as JSON with --value-as text"
        ) from None


def as_rows(batch: pa.RecordBatch, settings: ExportSettings) -> pa.RecordBatch:
    """Records as rows of the table.  Raises InvalidRecord for bytes that are not the text that the settings ask for."""
    data = [name for name in batch.schema.names if name not in SCAN_SCHEMA.names]
    order = ["key", *(data or ["value"]), *(OFFSETS if settings.keep_offsets else ()), "timestamp", "headers"]
    columns = {name: batch.column(name) for name in order}
    for name, kind in (("key", settings.key_as), ("value", settings.value_as)):
        if kind == "text":
            columns[name] = _text(batch, name)
    folders = FOLDERS[settings.partition_by]
    names = [stored_name(name) if name.casefold() in folders else name for name in columns]
    return pa.RecordBatch.from_arrays(list(columns.values()), names)


def _text(batch: pa.RecordBatch, name: str) -> pa.Array:
    try:
        return batch.column(name).cast(pa.string())
    except pa.ArrowInvalid:
        partition, first, last = (batch.column("partition")[0], batch.column("offset")[0], batch.column("offset")[-1])
        raise InvalidRecord(
            f"a record of {batch.column('topic')[0]}-{partition} between offsets {first} and {last} has a {name} that "
            f"is not UTF-8: export it with --{name}-as binary to another folder"
        ) from None


def by_folder(rows: pa.RecordBatch, partition_by: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each folder, in their order; folders are named by day, or by day and hour, in UTC."""
    if partition_by == "none" or not rows.num_rows:
        yield "", rows
        return
    unit = HOUR_US if partition_by == "hour" else 24 * HOUR_US
    times = np.asarray(rows.column("timestamp").cast(pa.timestamp("us")).view(pa.int64())) // unit
    if (times == times[0]).all():
        yield folder_of(int(times[0]), partition_by), rows
        return
    order = np.argsort(times, kind="stable")
    rows, times = rows.take(pa.array(order)), times[order]
    limits = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist(), len(times)]
    for start, end in pairwise(limits):
        yield folder_of(int(times[start]), partition_by), rows.slice(start, end - start)


def folder_of(number: int, partition_by: str) -> str:
    """The folder of a day or an hour, counted since 1970."""
    day, _, hour = str(np.datetime64(number, "h" if partition_by == "hour" else "D")).partition("T")
    return f"date={day}/hour={hour}/" if hour else f"date={day}/"
