"""Maintenance of a log: retention, merging, compaction, checkpoints and garbage collection, for logs of any size.

    spark-submit jobs/maintain.py --url s3://bucket/log
    spark-submit jobs/maintain.py --url s3://bucket/log --every 10m

It does what `pylog maintain` does, and may run beside it, beside a coordinator, writers and readers, and several times.
The driver plans, applies retention, writes checkpoints and deletes garbage.  The tasks merge and compact: one task
merges about 256 MiB, or 10,000 small slices; a large partition is compacted by one task, and small ones share tasks.
The partitions with the highest dirty ratio are compacted first.

A task that fails, or that Spark starts twice, does no harm: each change replaces slices only if they are still there.
If the job is killed, run it again.

The last line of standard output is a summary in JSON.  Exit status: 0 done, 1 a part of the work could not be done, or
the job failed, 2 wrong usage.  See docs/performance.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_pylog.jobs.job_support import (
    TimedProgress,
    check_log,
    in_tasks,
    job_parser,
    location_of,
    parse_rounds,
    progress,
    run_job,
    sentence,
    waves,
)
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import newest_journal
from pyspark_pylog.options.parse import Location
from spark_log.cli.commands.maintenance import next_step, plan_text, report_text
from spark_log.client.log import Log
from spark_log.errors import NoSpace, SparkLogError
from spark_log.journal.failure_isolation import Failures, ReportedFailures
from spark_log.maintenance.maintain import compact, maintain_every, maintain_round, merge_share, plan_round
from spark_log.maintenance.workers import CompactionShare
from spark_log.rewriting.compaction_rounds import CompactionTally
from spark_log.rewriting.merge import Tally
from spark_log.rewriting.merge_shares import MergeShare

Share = TypeVar("Share")
Result = TypeVar("Result")


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    return parse_rounds(job_parser(__doc__), "show the changes of one run, and write nothing", args)


def maintain(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """The rounds of a job; its summary and exit status."""
    location = location_of(args)
    with Log(journal_of(location)) as log:
        if args.dry_run:
            plan = plan_round(log)
            progress(plan_text(plan))
            return {"dry_run": True, **asdict(plan)}, 0
        workers = TaskWorkers(spark, location, log)
        if args.every is None:
            reports = iter([maintain_round(log, progress=workers.progress, workers=workers)])
        else:
            reports = maintain_every(log, args.every, progress=workers.progress, workers=workers)
        for report in reports:
            progress("\n".join([report_text(report), *report.problems]))
            if report.no_space:
                progress(next_step(report))
            if spark.sparkContext._jsc.sc().isStopped():
                raise SparkLogError("the Spark application has ended")
    return asdict(report), int(bool(report.problems))


class TaskWorkers:
    """The tasks of Spark jobs merge and compact."""

    def __init__(self, spark: SparkSession, location: Location, log: Log) -> None:
        self._spark, self._location, self._log = spark, location, log
        self.progress = TimedProgress()

    def merge(self, shares: Sequence[MergeShare]) -> Iterator[tuple[Tally, ReportedFailures]]:
        return self._run("merging, shares", shares, merge_in_task)

    def compact(self, shares: Sequence[CompactionShare]) -> Iterator[tuple[CompactionTally, ReportedFailures]]:
        return self._run("compaction, groups", shares, compact_in_task)

    def _run(self, what: str, shares: Sequence[Share], work: Callable[[PlannedLog, Share], Result]) -> Iterator[Result]:
        in_task, done = partial(work, planned_log(self._location, self._log.journal)), 0
        try:
            for some in waves(self._spark, shares):
                yield from in_tasks(self._spark, some, in_task)
                done += len(some)
                self.progress(what, done, len(shares))
        except PySparkException as error:
            raise tasks_failed(error) from error


def tasks_failed(error: PySparkException) -> SparkLogError:
    """The error of a round whose tasks have ended with this one: NoSpace, if that is what they met."""
    kind = NoSpace if f".{NoSpace.__name__}: " in str(error) else SparkLogError
    return kind(f"the tasks failed: {sentence(error)}")


def merge_in_task(planned: PlannedLog, share: MergeShare) -> tuple[Tally, ReportedFailures]:
    """Merge the partitions of a share that still have small slices.  Returns the result and the failures."""
    journal = newest_journal(planned)
    failures = Failures(journal.metadata.url)
    tally = merge_share(Log(journal), share, failures)
    journal.finish_maintenance()
    return tally, failures.reported(share.aside)


def compact_in_task(planned: PlannedLog, share: CompactionShare) -> tuple[CompactionTally, ReportedFailures]:
    """Compact those partitions of a share that are still due.  Returns the result and the failures."""
    journal = newest_journal(planned)
    failures = Failures(journal.metadata.url)
    tally = compact(Log(journal), share, failures=failures)
    journal.finish_maintenance()
    return tally, failures.reported(share.aside)


def main() -> None:
    args = parse_args()
    run_job("maintain", partial(maintain, args=args), partial(check_log, args))
