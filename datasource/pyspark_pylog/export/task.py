"""A task of an export: reads its records and writes their files."""

from __future__ import annotations

from functools import partial

from pyspark_pylog.export.manifest import Part, Result, Settings
from pyspark_pylog.export.parquet_files import Files
from pyspark_pylog.planned_log import PlannedLog
from pyspark_pylog.task_metadata import newest_journal
from spark_log.client.reading.plan import OffsetRange, plan_reads
from spark_log.client.reading.scan_batches import SCAN_SCHEMA, scan_batches
from spark_log.metadata.state import State
from spark_log.store.base import ObjectStore


def write_files(
    planned: PlannedLog,
    store: ObjectStore,
    settings: Settings,
    number: int,
    skip_lost: bool,
    task: tuple[int, list[Part]],
) -> Result:
    """Write the files of a task, one for each folder that has some of its records; a repetition replaces them."""
    index, parts = task
    journal = newest_journal(planned)
    journal.require([settings.topic])
    ranges = [OffsetRange(settings.topic, settings.topic_id, *part) for part in parts]
    kept = list(map(partial(_still_there, journal.state), ranges)) if skip_lost else ranges
    lost = sum(after.start - before.start for before, after in zip(ranges, kept, strict=True))

    files = Files(settings)
    for batch in scan_batches(journal, plan_reads(journal, kept), SCAN_SCHEMA):
        files.add(batch)
    records, size, names = 0, 0, []
    for folder, rows, content in files.finish():
        names.append(f"{folder}{settings.name}-{number:08}-{index:05}.parquet")
        store.put(names[-1], [memoryview(content)])
        records, size = records + rows, size + len(content)
    return Result(records, size, lost, names)


def _still_there(state: State, part: OffsetRange) -> OffsetRange:
    """The records that still exist."""
    first = state.partitions[part.topic_id, part.partition].start
    return part._replace(start=min(max(part.start, first), part.end))
