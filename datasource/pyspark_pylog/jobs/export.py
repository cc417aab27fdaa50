"""Exports a range of a topic to a table of Parquet files, of Delta or of Iceberg, partitioned by the records' time.

    spark-submit jobs/export.py --url s3://bucket/log --topic orders --to s3://lake/orders --partition-by day

Each run continues where the last one ended, and each record is exported once, also if the job is killed and run again,
or if two run at the same time.  --continuous repeats this for ever.  The table has the columns key, value, topic,
partition, offset, timestamp and headers, and its folders are named for Spark, DuckDB and others: date=2026-01-31.  If
the topic has a schema, its data columns take the place of value.

The last line of standard output is a summary in JSON.  Exit status: 0 done, 1 refused or failed, 2 wrong usage.
See docs/tasks/export.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from pyspark_pylog.export.manifest import ExportRun, ExportSettings, Found, Manifest, Result, check_same
from pyspark_pylog.export.open_table import FORMATS, open_table
from pyspark_pylog.export.planning import Planner
from pyspark_pylog.export.task import Written, result_of, write_files
from pyspark_pylog.jobs.job_support import (
    add_key_values,
    add_storage_option,
    duration_ms,
    in_tasks,
    job_parser,
    location_of,
    progress,
    repeat,
    run_job,
    size_bytes,
    storage_beside,
    topic_name,
)
from pyspark_pylog.log.open_log import journal_of, planned_log
from spark_log.client.log import Log
from spark_log.errors import GroupIdNotFound, InvalidRequest
from spark_log.model import OffsetAndMetadata, TopicPartition
from spark_log.positions import parse_position
from spark_log.text import counted

EVERY_MS = 60_000
"""How often --continuous runs the export."""
MANY_FILES, SMALL_FILE_BYTES = 100, 1 << 20
"""A run that writes at least so many files, with fewer bytes on average, is worth a warning."""


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("--topic", type=topic_name, required=True)
    parser.add_argument("--to", required=True, metavar="PATH", help="the folder of the table: a path, s3://…, gs://…")
    add_storage_option(parser, "--to-option", "for the table's storage")
    parser.add_argument(
        "--start",
        default="earliest",
        metavar="POSITION",
        help="where the first run begins (%(default)s); later runs continue",
    )
    parser.add_argument("--end", default="latest", metavar="POSITION", help="where this job ends (%(default)s)")
    parser.add_argument("--name", help="of the export, and of the group that shows its progress (export-TOPIC)")
    add_file_arguments(parser)
    parser.add_argument(
        "--skip-lost", action="store_true", help="continue after records that were removed before they were exported"
    )
    parser.add_argument("--continuous", action="store_true", help="repeat for ever")
    parser.add_argument(
        "--every",
        type=duration_ms,
        metavar="DURATION",
        help="with --continuous: repeat this often (1m)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be exported, and write nothing")
    found = parser.parse_args(args)
    if found.format == "iceberg" and not (found.catalog and found.table):
        parser.error("--format iceberg needs --catalog NAME and --table NAMESPACE.NAME")
    if found.format != "iceberg" and (found.catalog or found.table or found.catalog_option):
        parser.error("--catalog, --table and --catalog-option are for --format iceberg")
    if found.table and "." not in found.table:
        parser.error(f"--table: {found.table!r} has no namespace: give NAMESPACE.NAME, such as sales.{found.table}")
    if found.continuous and (found.end != "latest" or found.dry_run):
        parser.error("--continuous has no end: leave out --end and --dry-run")
    if found.every is not None and not found.continuous:
        parser.error("--every is for --continuous, which repeats the export for ever")
    return found


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that describe the files of the table."""
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="default: %(default)s")
    parser.add_argument("--catalog", default="", metavar="NAME", help="for iceberg: the catalog, as PyIceberg names it")
    parser.add_argument("--table", default="", metavar="NAMESPACE.NAME", help="for iceberg: the table in the catalog")
    add_key_values(
        parser,
        "--catalog-option",
        "a property of the catalog, such as uri=https://…, beside those of ~/.pyiceberg.yaml",
    )
    parser.add_argument(
        "--partition-by",
        choices=("day", "hour", "none"),
        default="day",
        help="folders by the records' timestamps in UTC (%(default)s)",
    )
    parser.add_argument(
        "--value-as",
        choices=("binary", "text", "columns"),
        help="columns: the data columns of a topic with a schema (its default; otherwise binary)",
    )
    parser.add_argument(
        "--value-parse",
        choices=("json",),
        default="",
        help="with columns, parse the values from before the topic had a schema (default: refuse them)",
    )
    parser.add_argument("--key-as", choices=("binary", "text"), default="binary", help="default: %(default)s")
    parser.add_argument(
        "--keep-offsets",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the columns topic, partition and offset",
    )
    parser.add_argument(
        "--task-bytes",
        type=size_bytes,
        default=64 << 20,
        metavar="SIZE",
        help="stored bytes that one task reads at most; it writes one file for each folder (64m)",
    )


def export(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """The runs of a job; its summary and exit status."""
    with Log(journal_of(location_of(args))) as log:
        job = Export(spark, args, log, manifest_of(args))
        job.check()
        if args.dry_run:
            return job.dry_run(), 0
        job.begin()
        return repeat(spark, log, every_ms(args), job.export_to_end, f"the export {job.settings.name!r}"), 0


def check_args(args: argparse.Namespace) -> None:
    """Raises what `export` would raise before it writes anything."""
    with Log(journal_of(location_of(args))) as log:
        Export(None, args, log, manifest_of(args)).check()


def manifest_of(args: argparse.Namespace) -> Manifest:
    return Manifest(args.to, storage_beside(args.to_option, args.to, args))


def every_ms(args: argparse.Namespace) -> int | None:
    """None: the job runs once."""
    if not args.continuous:
        return None
    return EVERY_MS if args.every is None else int(args.every)


class Export:
    """An export in the driver.

    spark:  None: Spark has not started, so nothing can be exported.
    """

    def __init__(self, spark: SparkSession | None, args: argparse.Namespace, log: Log, manifest: Manifest) -> None:
        self._spark, self._args, self._log, self._manifest = spark, args, log, manifest
        topic = log.admin.describe_topics([args.topic])[args.topic]
        self._known = manifest.settings()
        settings = ExportSettings(
            id=self._known.id if self._known else uuid4().hex,
            name=args.name or f"export-{args.topic}",
            log=log.cluster_id,
            topic=args.topic,
            topic_id=topic.topic_id,
            format=args.format,
            catalog=args.catalog,
            table=args.table,
            partition_by=args.partition_by,
            key_as=args.key_as,
            value_as=self._value_as(),
            value_parse=args.value_parse,
            keep_offsets=args.keep_offsets,
            start=args.start,
        )
        if self._known is not None:
            check_same(self._known, settings, manifest.store.url)
        self._use(settings)

    @property
    def _session(self) -> SparkSession:
        assert self._spark is not None, "an export without Spark only checks"
        return self._spark

    def _use(self, settings: ExportSettings) -> None:
        args, url = self._args, self._manifest.store.url
        self.settings = settings
        options = storage_beside(args.to_option, args.to, args)
        self._table = open_table(settings, url, options, dict(args.catalog_option))
        end = parse_position(args.end, "--end")
        self._planner = Planner(self._log.journal, self._manifest, self._table, settings, end)

    def _value_as(self) -> str:
        """By default that of the first run, for which the topic decides."""
        if self._args.value_as is not None:
            return str(self._args.value_as)
        if self._known is not None:
            return self._known.value_as
        return "columns" if self._log.admin.describe_schema(self._args.topic) else "binary"

    def check(self) -> None:
        """Refuse everything that is wrong before anything is written."""
        self._check_group()
        try:
            self._planner.check_values(self._manifest.last())
        except InvalidRequest:
            begun = None if self._known else self._manifest.settings()
            if begun is None:
                raise
            # Another job has begun the same export since this one has looked, and the table is that job's.
            self._use(check_same(begun, self.settings, self._manifest.store.url))
            self._planner.check_values(self._manifest.last())

    def begin(self) -> None:
        """Write the settings.  If another job has written them meanwhile, its export is this one."""
        self._use(self._manifest.begin(self.settings))

    def _check_group(self) -> None:
        """Raises InvalidRequest if anybody else uses the group that shows the progress."""
        group = self.settings.name
        try:
            found = self._log.admin.list_consumer_group_offsets(group)
        except GroupIdNotFound:
            return
        if others := sorted({at.metadata for at in found.values()} - {self._manifest.store.url}):
            user = f"the export to {others[0]}" if others[0] else "consumers"
            raise InvalidRequest(f"the group {group!r} is used by {user}: give this export another --name")

    def export_to_end(self) -> dict[str, Any]:
        """Finish the run that a killed job has left, and run until the end is reached.  Returns the summary."""
        last = self._manifest.last()
        results = list[Result | Found]()
        if last and not self._manifest.is_done(last):
            progress(f"an earlier job left run {last} unfinished: finishing it now")
            results.append(self._carry_out(last))
        ends, parallel = self._planner.ends(), self._session.sparkContext.defaultParallelism
        while run := self._planner.plan(last, ends, self._args.task_bytes, parallel, skip_lost=self._args.skip_lost):
            last += 1
            self._tell_newer(last, run.schema)
            self._manifest.plan(last, run)
            if not self._manifest.is_done(last):  # unless another job has done it
                results.append(self._carry_out(last))
        done = [result for result in results if isinstance(result, Result)]
        return {
            **self._names(),
            "runs": len(results),
            "runs_committed_before": len(results) - len(done),
            "records": sum(result.records for result in done),
            "files": sum(len(result.files) for result in done),
            "bytes": sum(result.bytes for result in done),
            "lost": sum(result.lost for result in results),
            "ends": by_partition(self._planner.next_starts(last)),
        }

    def _tell_newer(self, number: int, schema: int) -> None:
        """Say that the files of a run have other columns than earlier ones.  Tables of commits read both."""
        before = self._manifest.run(number - 1) if number > 1 else None
        if self.settings.format == "parquet" and before is not None and before.schema != schema:
            progress(
                f"run {number}: the schema of topic {self._args.topic!r} has version {schema} now, and earlier files have "
                f"the columns of version {before.schema}: see docs/tasks/export.md for reading both"
            )

    def _carry_out(self, number: int) -> Result | Found:
        """Write the files of a run, which any job may have planned, and record that it is done."""
        began, run = time.monotonic(), self._manifest.run(number)
        assert run is not None, f"run {number} was planned"
        result = self._exported(number, run)
        self._manifest.finish(number, result)
        self._publish(run.ends)
        if isinstance(result, Found):
            progress(
                f"run {number} was committed before, by another job or by one that was killed: nothing is left to do"
            )
        else:
            what = f"{counted(result.records, 'record')} in {counted(len(result.files), 'file')}"
            progress(f"run {number}: {what}, {result.bytes / 1e6:,.1f} MB, {time.monotonic() - began:.1f} s")
            if warning := small_files(result, self.settings.partition_by):
                progress(f"warning: run {number}: {warning}")
        return result

    def _exported(self, number: int, run: ExportRun) -> Result | Found:
        """Write and commit the files of a run, unless it is committed already."""
        tasks = [] if self._table.has(number) else self._written(number, run)
        files = [file for task in tasks for file in task.files]
        if self._table.commit(number, self._planner.rows(run.schema), files):
            return result_of(tasks, run.lost)
        # The files stay: if the answer to a commit was lost, they can be those of the table.
        return Found(lost=run.lost)

    def _written(self, number: int, run: ExportRun) -> list[Written]:
        planned = planned_log(location_of(self._args), self._log.journal)
        store = self._manifest.store
        work = partial(write_files, planned, store, self.settings, number, run.schema, self._args.skip_lost)
        return in_tasks(self._session, list(enumerate(run.tasks)), work)

    def _publish(self, ends: Mapping[int, int]) -> None:
        """Show the progress as the positions of a group.  Its metadata names the table."""
        topic, note = self._args.topic, self._manifest.store.url
        offsets = {TopicPartition(topic, number): OffsetAndMetadata(end, note) for number, end in ends.items()}
        self._log.admin.alter_consumer_group_offsets(self.settings.name, offsets)

    def dry_run(self) -> dict[str, Any]:
        """The records that the job would export."""
        last, ends = self._manifest.last(), self._planner.ends()
        parts = self._planner.parts(self._planner.next_starts(last), ends)
        chunks = [chunk for _, chunk in self._planner.chunks(parts)]
        return {
            **self._names(),
            "dry_run": True,
            "unfinished_run": bool(last) and not self._manifest.is_done(last),
            "records": sum(chunk.end - chunk.start for chunk in chunks),
            "stored_bytes": sum(chunk.bytes for chunk in chunks),
            "starts": by_partition({part.partition: part.start for part in parts}),
            "ends": by_partition({part.partition: part.end for part in parts}),
        }

    def _names(self) -> dict[str, Any]:
        return {"name": self.settings.name, "topic": self._args.topic, "to": self._manifest.store.url}


def small_files(result: Result, partition_by: str) -> str:
    """A warning of a run that wrote many small files; empty: it did not."""
    files = len(result.files)
    folders = len({name.rpartition("/")[0] for name in result.files})
    if files < MANY_FILES or result.bytes >= files * SMALL_FILE_BYTES:
        return ""
    each = "" if partition_by == "none" else f" for each {partition_by} of its records"
    return (
        f"its {files:,} files in {counted(folders, 'folder')} have {result.bytes // files:,} bytes on average, which is slow "
        f"to read: each task writes a file{each}. Give a larger --task-bytes, or compact the table"
    )


def by_partition(offsets: Mapping[int, int]) -> dict[str, int]:
    """For JSON."""
    return {str(number): offset for number, offset in sorted(offsets.items())}


def main() -> None:
    args = parse_args()
    run_job("export", partial(export, args=args), partial(check_args, args))
