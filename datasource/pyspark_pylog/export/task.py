"""A task of an export: reads its records and writes their files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_pylog.export.manifest import ExportSettings, Part, Result
from pyspark_pylog.export.parquet_files import ParquetFiles, WrittenFile, as_rows
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import newest_journal
from spark_log.client.reader.plan import OffsetRange, plan_reads
from spark_log.client.reader.scan_batches import scan_batches, scan_schema
from spark_log.metadata.state import State
from spark_log.metadata.topics.schemas import schemas_of
from spark_log.segment.value_read import ValueRead
from spark_log.store.base import ObjectStore

UNSAFE = re.compile(r"[^\w.-]", re.ASCII)
"""In names of files: Delta takes folders for partitions, and PyIceberg `#` for an end."""
STEM_MAX = 128
"""Characters of an export's name in the names of its files."""


class Written(NamedTuple):
    """The work of a task."""

    files: list[WrittenFile]
    lost: int
    """Records that were removed before they could be exported."""


def result_of(tasks: Sequence[Written], lost: int) -> Result:
    """The result of a run.

    lost:  records that were removed before the run was planned.
    """
    files = [file for task in tasks for file in task.files]
    return Result(
        records=sum(file.footer.num_rows for file in files),
        bytes=sum(file.bytes for file in files),
        lost=lost + sum(task.lost for task in tasks),
        files=sorted(file.name for file in files),
    )


def write_files(
    planned: PlannedLog,
    store: ObjectStore,
    settings: ExportSettings,
    number: int,
    schema: int,
    skip_lost: bool,
    task: tuple[int, list[Part]],
) -> Written:
    """Write the files of a task: one for each folder that gets some of its records.

    number, schema:  the run's number, and the version of the topic's schema that it uses.
    """
    index, parts = task
    journal = newest_journal(planned)
    journal.require([settings.topic])
    ranges = [OffsetRange(settings.topic, settings.topic_id, *part) for part in parts]
    kept = list(map(partial(_still_there, journal.state), ranges)) if skip_lost else ranges
    lost = sum(after.start - before.start for before, after in zip(ranges, kept, strict=True))

    files = ParquetFiles(settings)
    value = value_read(journal.state, settings, schema)
    for batch in scan_batches(journal, plan_reads(journal, kept), scan_schema(None, value), value=value):
        files.add(batch)
    return Written(put_files(store, files, settings, f"{number:08}-{index:05}"), lost)


def put_files(store: ObjectStore, files: ParquetFiles, settings: ExportSettings, number: str) -> list[WrittenFile]:
    """Put the files of a task under their names.

    In a folder of Parquet files, those of another attempt are replaced.  In a table of commits they must not be: it has
    the sizes of the files, and the rows of another attempt can be fewer.  So each attempt has other names.
    """
    stem = f"{file_stem(settings.name)}-{number}"
    if settings.format != "parquet":
        stem = f"{stem}-{uuid4().hex[:12]}"
    written = []
    for folder, content in files.finish():
        name = f"{folder}{stem}.parquet"
        store.put(name, [memoryview(content)])
        written.append(WrittenFile(name, len(content), pq.read_metadata(pa.BufferReader(content))))
    return written


def file_stem(name: str) -> str:
    """The beginning of the names of an export's files.  It has no `/`, and fits into the name of a file.

    Readers pass over files that begin with `_` or `.`.
    """
    stem = UNSAFE.sub("_", name)[:STEM_MAX]
    return f"export-{stem}" if stem[:1] in ("_", ".", "") else stem


def row_schema(state: State, settings: ExportSettings, version: int) -> pa.Schema:
    """The columns of the files of a run, without those of folders.

    version:  of the topic's schema; 0: values are bytes or text.
    """
    schema = scan_schema(None, value_read(state, settings, version))
    return as_rows(pa.RecordBatch.from_pylist([], schema), settings).schema


def value_read(state: State, settings: ExportSettings, version: int) -> ValueRead | None:
    """How values are read; None: as bytes."""
    if not version:
        return None
    return ValueRead(schemas_of(state, settings.topic_id)[version - 1], parse_json=settings.value_parse == "json")


def _still_there(state: State, part: OffsetRange) -> OffsetRange:
    """The records that still exist."""
    first = state.partitions[part.topic_id, part.partition].start
    return part._replace(start=min(max(part.start, first), part.end))
