"""Removes all records of some keys from a large topic, with the tasks of a Spark job.

    spark-submit jobs/erase.py --url s3://bucket/log --topic orders --keys customers.txt --dry-run
    spark-submit jobs/erase.py --url s3://bucket/log --topic orders --keys customers.txt

It does what `pylog topic erase` does, without asking.  A task searches and rewrites about 1 GiB of objects.  Then the
driver searches the objects that others have merged meanwhile.

A task that fails, or that Spark starts twice, does no harm: each change replaces slices only if they are still there.
If the job is killed, run it again.  It may run beside maintenance, writers and readers.

The last line of standard output is a summary in JSON.  Exit status: 0 done, 1 some objects could not be searched, or
the job failed, 2 wrong usage.  See docs/tasks/erase.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_pylog.jobs.job_support import (
    TimedProgress,
    in_tasks,
    job_parser,
    location_of,
    progress,
    run_job,
    topic_name,
    waves,
)
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.log.task_metadata import newest_journal
from spark_log.cli.commands.erase import DECODERS, read_keys, report_text
from spark_log.client.admin.erasure import ErasedShare, erase_records, erase_share
from spark_log.client.log import Log
from spark_log.journal.failure_isolation import Failures
from spark_log.positions import parse_position
from spark_log.rewriting.erasing import Erasing


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("--topic", type=topic_name, required=True)
    keys = parser.add_mutually_exclusive_group(required=True)
    keys.add_argument("--key", action="append", default=[], help="a key to erase; may be repeated")
    keys.add_argument("--keys", type=_file, metavar="FILE", help="a file on the driver with a key in each line")
    parser.add_argument("--key-format", choices=tuple(DECODERS), default="text", help="how keys are written")
    parser.add_argument("--before", default="latest", metavar="POSITION", help="keep the records after this position")
    parser.add_argument("--dry-run", action="store_true", help="count the records, and write nothing")
    return parser.parse_args(args)


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file")
    return text


def erase(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Erase the records of the keys; the summary and the exit status."""
    keys, location, shown = read_keys(tuple(args.key), args.keys, args.key_format), location_of(args), TimedProgress()
    with Log(journal_of(location)) as log:
        planned = planned_log(location, log.journal)

        def spread(erasing: Erasing, shares: Sequence[frozenset[str]]) -> Iterator[ErasedShare]:
            sent = replace(erasing, failures=Failures(args.url), progress=None)
            work = partial(erase_in_task, planned, sent, args.dry_run)
            done = 0
            for some in waves(spark, shares):
                yield from in_tasks(spark, some, work)
                done += len(some)
                shown("erasure, shares", done, len(shares))

        report = erase_records(log.journal, args.topic, keys, args.before, dry_run=args.dry_run, spread=spread)
    progress(report_text(report))
    return {"dry_run": args.dry_run, **asdict(report)}, int(bool(report.problems))


def check_args(args: argparse.Namespace) -> None:
    """Raises for an unknown topic, a position or a key that is none, and the error of opening the log."""
    read_keys(tuple(args.key), args.keys, args.key_format)
    parse_position(args.before, "before")
    with Log(journal_of(location_of(args))) as log:
        log.admin.describe_topics([args.topic])


def erase_in_task(planned: PlannedLog, erasing: Erasing, dry_run: bool, share: frozenset[str]) -> ErasedShare:
    journal = newest_journal(planned)
    # A task has one copy of `erasing` for all its shares, but each share reports its own failures.
    own = replace(erasing, failures=Failures(journal.metadata.url))
    done = erase_share(journal, own, share, dry_run=dry_run)
    journal.finish_maintenance()
    return done


def main() -> None:
    args = parse_args()
    run_job("erase", partial(erase, args=args), partial(check_args, args))
