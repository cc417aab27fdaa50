"""Merging, compaction and erasure of large topics as a Spark job: the tasks share the work.

    spark-submit jobs/upkeep.py merge s3://bucket/log
    spark-submit jobs/upkeep.py compact s3://bucket/log
    spark-submit jobs/upkeep.py erase s3://bucket/log orders --keys customers.txt

`merge` rewrites small slices as segments, as `pylog merge` does.  A task merges about 256 MiB, or 10,000 small slices.
`compact` cleans the partitions that are due, those with the highest dirty ratio first.  A large partition is one task,
and small ones share tasks.  `erase` removes all records of some keys, as `pylog topic erase` does.  A task searches and
rewrites about 1 GiB of objects.

A task that fails, or that Spark starts twice, does no harm: each change replaces slices only if they are still there.
If the job is killed, run it again.  It may run beside `pylog maintain`, writers and readers.  Exit status 1 if a part
of the work could not be done.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark_pylog.job_support import in_tasks, key_value
from pyspark_pylog.open_log import journal_of, planned_log
from pyspark_pylog.options.parse import Location
from pyspark_pylog.planned_log import PlannedLog
from pyspark_pylog.task_metadata import newest_journal

from spark_log import Log
from spark_log.cli.erase import DECODERS, read_keys, report_text
from spark_log.cli.units import size_text
from spark_log.cli.upkeep import compacted_text
from spark_log.client.administering.erasure import ErasedShare, erase_records, erase_share
from spark_log.client.open_journal import TOKEN_VARIABLE
from spark_log.errors import SparkLogError
from spark_log.metadata.state import TopicKey
from spark_log.net.address import is_coordinator
from spark_log.node.compaction_rounds import CompactionTally
from spark_log.node.erasing import Erasing
from spark_log.node.failure_isolation import Failures
from spark_log.node.maintain import compact, merge_share, plan_compaction, plan_merge_shares
from spark_log.node.merge import Tally
from spark_log.node.merge_shares import MergeShare
from spark_log.segment.key_set import KeySet
from spark_log.text import counted


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("url", help="the log, file:///…, s3://… or pylog://…")
    common.add_argument("--storage-option", action="append", default=[], type=key_value, metavar="KEY=VALUE")
    verbs.add_parser("merge", parents=[common], help="rewrite the small slices of all topics as segments")
    verbs.add_parser("compact", parents=[common], help="compact the partitions of compacted topics that are due")
    erase = verbs.add_parser("erase", parents=[common], help="remove all records of some keys from a topic")
    erase.add_argument("topic")
    keys = erase.add_mutually_exclusive_group(required=True)
    keys.add_argument("--key", action="append", default=[], help="a key to erase; may be repeated")
    keys.add_argument("--keys", metavar="FILE", help="a file on the driver with a key in each line")
    erase.add_argument("--key-format", choices=tuple(DECODERS), default="text", help="how keys are written")
    erase.add_argument("--before", default="latest", metavar="POSITION", help="keep the records after this position")
    erase.add_argument("--dry-run", action="store_true", help="count the records, and write nothing")
    return parser.parse_args(args)


# -------------------------------------------------------------------------------------------------------------- merging


def merge_log(spark: SparkSession, location: Location) -> bool:
    """Merge what is small now; whether all partitions could be merged."""
    with Log(journal_of(location)) as log:
        total, failures = Tally(), Failures(log.url)
        shares = plan_merge_shares(log, failures)
        planned = planned_log(location, log.journal)
        problems = dict.fromkeys(failures.problems)
        for tally, said in in_tasks(spark, shares, partial(merge_in_task, planned)):
            total.add(tally)
            problems |= dict.fromkeys(said)
    slices, segments = counted(total.slices, "slice"), counted(total.segments, "segment")
    print("\n".join([f"{slices} merged into {segments} ({size_text(total.bytes)})", *problems]), flush=True)
    return not problems


def merge_in_task(planned: PlannedLog, share: MergeShare) -> tuple[Tally, list[str]]:
    """Merge the partitions of a share that still have small slices.  Returns the result and the problems."""
    journal = newest_journal(planned)
    failures = Failures(journal.metadata.url)
    tally = merge_share(Log(journal), share, failures)
    journal.finish_upkeep()
    return tally, failures.problems


# ---------------------------------------------------------------------------------------------------------- compaction


def compact_log(spark: SparkSession, location: Location) -> bool:
    """Clean partitions until none is due; whether all could be cleaned."""
    total, problems = CompactionTally(), dict[str, None]()
    with Log(journal_of(location)) as log:
        while True:
            done, failures, total.left = total.partitions, Failures(log.url), 0
            groups = plan_compaction(log, failures)
            planned = planned_log(location, log.journal)
            problems |= dict.fromkeys(failures.problems)
            for tally, said in in_tasks(spark, groups, partial(compact_group, planned)):
                total.add(tally)
                problems |= dict.fromkeys(said)
            if problems or not total.left or total.partitions == done:
                break
    text = compacted_text(total.partitions, total.records, total.bytes)
    if total.left:
        text += f"; {counted(total.left, 'partition')} left to compact"
    print("\n".join([text, *problems]), flush=True)
    return not problems


def compact_group(planned: PlannedLog, group: Sequence[TopicKey]) -> tuple[CompactionTally, list[str]]:
    """In a task: compact those partitions of a group that are still due.  Returns the result and the problems."""
    journal = newest_journal(planned)
    log, failures = Log(journal), Failures(journal.metadata.url)
    tally = compact(log, frozenset(group), failures=failures)
    journal.finish_upkeep()
    return tally, failures.problems


# ------------------------------------------------------------------------------------------------------------- erasure


def erase_keys(spark: SparkSession, location: Location, args: argparse.Namespace) -> bool:
    """Erase the records of the keys; whether all were erased."""
    keys = read_keys(tuple(args.key), args.keys, args.key_format)
    with Log(journal_of(location)) as log:
        planned = planned_log(location, log.journal)

        def spread(erasing: Erasing, shares: Sequence[frozenset[str]]) -> list[ErasedShare]:
            work = partial(
                erase_in_task, planned, erasing.topic, erasing.topic_id, erasing.ends, erasing.keys, args.dry_run
            )
            return in_tasks(spark, shares, work)

        report = erase_records(log.journal, args.topic, keys, args.before, dry_run=args.dry_run, spread=spread)
    print(report_text(report), flush=True)
    return not report.problems


def erase_in_task(
    planned: PlannedLog,
    topic: str,
    topic_id: str,
    ends: dict[int, int],
    keys: KeySet,
    dry_run: bool,
    share: frozenset[str],
) -> ErasedShare:
    journal = newest_journal(planned)
    failures = Failures(journal.metadata.url)
    erasing = Erasing(topic=topic, topic_id=topic_id, ends=ends, keys=keys, failures=failures)
    done = erase_share(journal, erasing, share, dry_run=dry_run)
    journal.finish_upkeep()
    return done


# ------------------------------------------------------------------------------------------------------------- running


def run(spark: SparkSession, args: argparse.Namespace) -> int | str:
    """The status for `sys.exit`: 0, 1 if something is left to do, or the message of an error."""
    token = os.environ.get(TOKEN_VARIABLE) if is_coordinator(args.url) else None
    location = Location(url=args.url, storage=dict(args.storage_option), token=token)
    try:
        match args.verb:
            case "merge":
                done = merge_log(spark, location)
            case "compact":
                done = compact_log(spark, location)
            case _:
                done = erase_keys(spark, location, args)
    except (SparkLogError, PySparkException) as error:
        return str(error)
    return 0 if done else 1


def main() -> None:
    args = parse_args()
    spark = SparkSession.builder.appName(f"pylog {args.verb}").getOrCreate()
    try:
        status = run(spark, args)
    finally:
        spark.stop()
    sys.exit(status)


if __name__ == "__main__":
    main()
