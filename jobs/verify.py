"""Checks that the storage of a log has what its metadata refers to, with the tasks of a Spark job.

    spark-submit jobs/verify.py --url s3://bucket/log
    spark-submit jobs/verify.py --url s3://bucket/log --deep
    spark-submit jobs/verify.py --url s3://bucket/log --deep --repair

It finds what `pylog verify` finds.  The driver checks the metadata.  The tasks ask for the size of every object, and of
every copy on the roots of brokers; with --deep, they read all bytes and check their checksums.  With --repair, the
driver replaces bad copies by good ones of other brokers, and the log is checked again.  For --repair-from and
--lose-data, use `pylog verify`.

A check writes nothing.  A job that is killed leaves nothing; run it again.

The last line of standard output is a summary in JSON.  Exit status: 0 no problems, 1 problems found, or the job failed,
2 wrong usage.  See docs/storage.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark_pylog.job_support import TimedProgress, in_tasks, job_parser, location_of, progress, run_job, waves
from pyspark_pylog.open_log import journal_of, planned_log
from pyspark_pylog.options.parse import Location
from pyspark_pylog.planned_log import PlannedLog

from spark_log import Log
from spark_log.journal.broker_roots import Roots
from spark_log.metadata.state import State
from spark_log.node.verify import verify
from spark_log.node.verify_copies import CopyRepair, count_copies, repair_copies, unchecked_brokers
from spark_log.node.verify_objects import Result, Share, Spread


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("--deep", action="store_true", help="read all records and check their checksums")
    parser.add_argument(
        "--repair", action="store_true", help="replace missing and damaged copies by good ones of other brokers"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be checked, and look at no object")
    return parser.parse_args(args)


def check(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Repair and verify; the summary and the exit status."""
    location = location_of(args)
    with Log(journal_of(location)) as log:
        if args.dry_run:
            return {"dry_run": True, **planned(log.journal.state, deep=args.deep)}, 0
        shown, spread = TimedProgress(), by_tasks(spark, location, log)
        mended = repair_copies(log, args.deep, progress=shown, spread=spread) if args.repair else CopyRepair()
        problems = verify(log, args.deep, progress=shown, spread=spread)
        unchecked = unchecked_brokers(log.journal.state)
    for text in (*unchecked, *(f"{one.what}: {one.message}" for one in problems)):
        progress(text)
    summary = {
        "version": log.journal.state.version,
        "checked": shown.totals,
        "repaired": mended.repaired,
        "recorded_as_missing": mended.removed,
        "unchecked": unchecked,
        "problems": [asdict(one) for one in problems],
    }
    return summary, int(bool(problems))


def planned(state: State, *, deep: bool) -> dict[str, int]:
    """The number of objects and copies that would be checked, and their bytes at most."""
    copies = sum(some.bytes * len(some.brokers) for some in state.copies.values())
    size = copies + sum(row.size for row in state.objects.values()) if deep else 0
    return {"objects": len(state.objects), "copies": count_copies(state), "bytes": size}


def by_tasks(spark: SparkSession, location: Location, log: Log) -> Spread:
    """Tasks check the objects of a log."""

    def spread(work: Callable[[Roots, Share], Result], shares: Iterable[Share]) -> Iterator[Result]:
        in_task = partial(check_in_task, planned_log(location, log.journal), work)
        for some in waves(spark, shares):
            yield from in_tasks(spark, some, in_task)

    return spread


def check_in_task(planned: PlannedLog, work: Callable[[Roots, Share], Result], share: Share) -> Result:
    """In a task: check the objects of a share.  Reads no metadata."""
    return work(planned.broker_roots(), share)


def main() -> None:
    args = parse_args()
    run_job("verify", partial(check, args=args))


if __name__ == "__main__":
    main()
