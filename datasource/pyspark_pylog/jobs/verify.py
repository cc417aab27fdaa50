"""Checks that the storage of a log has what its metadata refers to, with the tasks of a Spark job.

    spark-submit jobs/verify.py --url s3://bucket/log
    spark-submit jobs/verify.py --url s3://bucket/log --deep
    spark-submit jobs/verify.py --url s3://bucket/log --deep --repair
    spark-submit jobs/verify.py --url s3://bucket/log --deep --repair-from s3://other-bucket/log

It finds what `pylog verify` finds.  The driver checks the metadata.  The tasks ask for the size of every object, and of
every copy on the roots of brokers; with --deep, they read all bytes and check their checksums.

With --repair, the driver replaces bad copies by good ones of other brokers, and the log is checked again.  With
--lose-data in addition, records that are on no root any more are given up: readers pass over their offsets.  With
--repair-from, the driver replaces what is missing or damaged by the good objects of another copy of the log.

A check writes nothing.  If the job is killed, run it again.  If the log's folder is not mounted on the machine of a
task, the job fails, with an error that names the machine, and nothing is repaired.

The last line of standard output is a summary in JSON, unless the job failed.  Exit status: 0 no problems, 1 problems
found or the job failed, 2 wrong usage.  See docs/storage-failures.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from pyspark_pylog.jobs.job_support import (
    TimedProgress,
    add_storage_option,
    check_log,
    in_tasks,
    job_parser,
    location_of,
    progress,
    run_job,
    storage_beside,
    waves,
)
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.options.parse import Location
from spark_log.client.log import Log
from spark_log.errors import NoLog
from spark_log.journal.journal import Journal
from spark_log.metadata.state import State
from spark_log.recovery.lost_records import plan_give_up
from spark_log.recovery.verify_copies import count_copies, unchecked_brokers
from spark_log.recovery.verify_objects import Result, Share, Spread
from spark_log.recovery.verify_repair import invalid_repair, verify_and_repair
from spark_log.roots.broker_roots import Roots


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("--deep", action="store_true", help="read all records and check their checksums")
    parser.add_argument(
        "--repair", action="store_true", help="replace missing and damaged copies by good ones of other brokers"
    )
    parser.add_argument(
        "--repair-from", metavar="URL", help="replace missing and damaged objects by those of another copy of the log"
    )
    add_storage_option(parser, "--repair-option", "for that copy's storage")
    parser.add_argument(
        "--lose-data",
        action="store_true",
        help="with --repair: give up, without asking, records that no root has in a readable form",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be checked, and look at no object; with --lose-data: look, and say what would be given up",
    )
    found = parser.parse_args(args)
    wrong = invalid_repair(
        repair=found.repair,
        repair_from=found.repair_from,
        options=dict(found.repair_option),
        lose_data=found.lose_data,
    )
    if wrong:
        parser.error(wrong)
    return found


def check(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Repair and verify; the summary and the exit status."""
    location = location_of(args)
    with Log(journal_of(location)) as log:
        if args.dry_run and args.lose_data:
            plan = plan_give_up(log, args.deep, spread=by_tasks(spark, location, log))
            return {"dry_run": True, "would_give_up": [one._asdict() for one in plan]}, 0
        if args.dry_run:
            return {"dry_run": True, **planned(log.journal.state, deep=args.deep)}, 0
        shown, spread = TimedProgress(), by_tasks(spark, location, log)
        found = verify_and_repair(
            log,
            args.deep,
            repair=args.repair,
            copy=copy_of(args),
            lose_data=args.lose_data,
            progress=shown,
            spread=spread,
        )
        unchecked = unchecked_brokers(log.journal.state)
    for text in (*unchecked, *(f"{one.what}: {one.message}" for one in found.problems)):
        progress(text)
    summary = {
        "version": log.journal.state.version,
        "checked": shown.totals,
        "repaired": found.repaired,
        "recorded_as_missing": found.removed,
        "given_up": [one._asdict() for one in found.given_up],
        "given_up_versions": found.lost and [found.lost.after + 1, found.lost.upto],
        "unchecked": unchecked,
        "problems": [asdict(one) for one in found.problems],
    }
    return summary, int(bool(found.problems))


def check_args(args: argparse.Namespace) -> None:
    """Raises the error of opening the log, or the copy that --repair-from names."""
    check_log(args)
    copy = copy_of(args)
    if copy is not None:
        Log(copy).close()


def copy_of(args: argparse.Namespace) -> Journal | None:
    """The copy of the log that --repair-from names."""
    if args.repair_from is None:
        return None
    storage = storage_beside(args.repair_option, args.repair_from, args)
    try:
        return journal_of(Location(url=args.repair_from, storage=storage))
    except NoLog as error:
        raise NoLog(f"{args.repair_from} has no copy of the log: is its disk mounted?") from error


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
    run_job("verify", partial(check, args=args), partial(check_args, args))
