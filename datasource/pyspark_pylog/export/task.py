"""A task of an export: reads its records and writes their files."""

from __future__ import annotations

from functools import partial

from pyspark_pylog.export.manifest import ExportSettings, Part, Result
from pyspark_pylog.export.parquet_files import ParquetFiles
from pyspark_pylog.planned_log import PlannedLog
from pyspark_pylog.task_metadata import newest_journal
from spark_log.client.reading.plan import OffsetRange, plan_reads
from spark_log.client.reading.scan_batches import scan_batches, scan_schema
from spark_log.metadata.schemas import schemas_of
from spark_log.metadata.state import State
from spark_log.segment.value_read import ValueRead
from spark_log.store.base import ObjectStore


def write_files(
    planned: PlannedLog,
    store: ObjectStore,
    settings: ExportSettings,
    number: int,
    schema: int,
    skip_lost: bool,
    task: tuple[int, list[Part]],
) -> Result:
    """Write the files of a task: one for each folder that gets some of its records.  Written again, they are replaced.

    number, schema:  the run's number, and the version of the topic's schema that it uses.
    """
    index, parts = task
    journal = newest_journal(planned)
    journal.require([settings.topic])
    ranges = [OffsetRange(settings.topic, settings.topic_id, *part) for part in parts]
    kept = list(map(partial(_still_there, journal.state), ranges)) if skip_lost else ranges
    lost = sum(after.start - before.start for before, after in zip(ranges, kept, strict=True))

    files = ParquetFiles(settings)
    value = _value_read(journal.state, settings, schema)
    for batch in scan_batches(journal, plan_reads(journal, kept), scan_schema(None, value), value=value):
        files.add(batch)
    records, size, names = 0, 0, []
    for folder, rows, content in files.finish():
        names.append(f"{folder}{settings.name}-{number:08}-{index:05}.parquet")
        store.put(names[-1], [memoryview(content)])
        records, size = records + rows, size + len(content)
    return Result(records, size, lost, names)


def _value_read(state: State, settings: ExportSettings, version: int) -> ValueRead | None:
    """How values are read; None: as bytes."""
    if not version:
        return None
    return ValueRead(schemas_of(state, settings.topic_id)[version - 1], parse_json=settings.value_parse == "json")


def _still_there(state: State, part: OffsetRange) -> OffsetRange:
    """The records that still exist."""
    first = state.partitions[part.topic_id, part.partition].start
    return part._replace(start=min(max(part.start, first), part.end))
