"""Copies to brokers what they lack, with the tasks of a Spark job: for large backlogs, such as a new or replaced disk.

    spark-submit jobs/replicate.py --url s3://bucket/log
    spark-submit jobs/replicate.py --url s3://bucket/log --broker 2 --throttle 500MB
    spark-submit jobs/replicate.py --url s3://bucket/log --every 10s

It does what `pylog replicate` does, but moves no partitions.  It may run beside it, beside a coordinator, and several
times.  The driver checks the roots, plans, and records the copies.  The tasks copy whole objects, with all bytes
checked on the way.  A job or task that is killed leaves nothing that counts; run the job again.

The last line of standard output is a summary in JSON.  Exit status: 0 done, 1 something could not be copied, 2 wrong
usage.  See docs/replicas.md.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_pylog.jobs.job_support import (
    in_tasks,
    job_parser,
    location_of,
    parse_rounds,
    progress,
    rate_bytes,
    run_job,
    sentence,
)
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from pyspark_pylog.options.parse import Location
from spark_log.cli.commands.replicate import report_text
from spark_log.client.log import Log
from spark_log.maintenance.replicate import check_known, replicate_every, replicate_once
from spark_log.metadata.replicas.replicas import is_active
from spark_log.metadata.state import State
from spark_log.replication.copy_threads import log_problems
from spark_log.replication.copy_throttle import Pace, rate_of
from spark_log.replication.copy_to_broker import CopiedObjects, ObjectCopying, WantedCopy
from spark_log.replication.missing_copies import (
    BYTES_AT_ONCE,
    CopyTally,
    backlog_bytes,
    copies_wanted,
    next_share,
    record_copies,
)

SHARES_PER_SLOT = 4
"""Tasks of one round for each one that runs at a time: after a round, the copies are recorded."""
THROTTLED_S = 10
"""A task of a throttled job copies for about so long."""


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument(
        "--broker",
        dest="brokers",
        type=int,
        action="append",
        metavar="ID",
        help="check and copy to this broker only; repeatable",
    )
    parser.add_argument(
        "--throttle", type=rate_bytes, metavar="RATE", help="copy at most this many bytes per second, such as 50MB"
    )
    return parse_rounds(parser, "say what each broker lacks, and check no root", args)


def replicate(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """The rounds of a job; its summary and exit status."""
    location = location_of(args)
    with Log(journal_of(location)) as log:
        if args.dry_run:
            return {"dry_run": True, "lag": planned(log.journal.state, args.brokers)}, 0
        copier = TaskCopier(spark, location, log, args.throttle)
        if args.every is None:
            report = replicate_once(log, bytes_per_s=args.throttle, brokers=args.brokers, copier=copier)
            progress(report_text(report))
            return asdict(report), int(bool(report.problems or report.unrecoverable))
        every = replicate_every(log, args.every, bytes_per_s=args.throttle, brokers=args.brokers, copier=copier)
        for report in every:
            if report.objects or report.joined or report.removed or report.found:
                progress(report_text(report))
        return asdict(report), 0


def check_args(args: argparse.Namespace) -> None:
    """Raises BrokerNotAvailable for an unknown broker, and the error of opening the log."""
    with Log(journal_of(location_of(args))) as log:
        check_known(log, args.brokers)


def planned(state: State, brokers: Sequence[int] | None) -> dict[int, dict[str, int]]:
    """By broker, the number and size of the objects that would be copied to it."""
    lag = dict[int, dict[str, int]]()
    for broker in sorted(state.brokers if brokers is None else brokers):
        sizes = [one.row.size for one in copies_wanted(state, broker)] if is_active(state, broker) else []
        lag[broker] = {"objects": len(sizes), "bytes": sum(sizes)}
    return lag


class CopyShare(NamedTuple):
    """The objects that a task copies to a broker."""

    broker: int
    wanted: list[WantedCopy]


class TaskCopier:
    """Copies with the tasks of Spark jobs."""

    def __init__(self, spark: SparkSession, location: Location, log: Log, bytes_per_s: int | None = None) -> None:
        self._spark, self._location, self._log, self._rate = spark, location, log, bytes_per_s

    def copy(self, state: State, read_ms: int, brokers: Sequence[int], limit_ms: int) -> dict[int, CopyTally]:
        """A round ends with its last task.  So it is limited by the bytes that it copies, and not by `limit_ms`."""
        slots, rate = self._spark.sparkContext.defaultParallelism, rate_of(self._log, self._rate)
        left = {broker: copies_wanted(state, broker) for broker in brokers}
        backlog = sum(backlog_bytes(state, broker) for broker in brokers)
        shares = plan_shares(left, share_bytes(backlog, slots, rate), slots * SHARES_PER_SLOT)
        done = {broker: CopyTally(left=next(left[broker], None) is not None) for broker in brokers}
        try:
            results = self._run(shares, slots, rate)
        except PySparkException as error:
            if self._spark.sparkContext._jsc.sc().isStopped():
                raise
            for copied in done.values():
                copied.left = True
                copied.problems.append(f"the tasks failed: {sentence(error)}")
        else:
            for broker, copied in done.items():
                its = [result for share, result in zip(shares, results, strict=True) if share.broker == broker]
                record_copies(self._log.journal, state, broker, its, copied)
        log_problems(self._log.journal, done)
        return done

    def _run(self, shares: Sequence[CopyShare], slots: int, rate: int | None) -> list[CopiedObjects]:
        planned = planned_log(self._location, self._log.journal)
        of_task = None if rate is None else max(1, rate // max(1, min(slots, len(shares))))
        return in_tasks(self._spark, shares, partial(copy_in_task, planned, of_task))


def share_bytes(backlog: int, slots: int, rate: int | None) -> int:
    """The size of a task: no slot is without work, and a throttled task does not take long."""
    size = min(BYTES_AT_ONCE, max(1, backlog // slots))
    return size if rate is None else min(size, max(1, rate // slots * THROTTLED_S))


def plan_shares(left: dict[int, Iterator[WantedCopy]], size: int, most: int) -> list[CopyShare]:
    """At most so many shares of about this size, the brokers in turn.  The iterators keep the rest."""
    shares, brokers = list[CopyShare](), deque(left)
    while brokers and len(shares) < most:
        broker = brokers.popleft()
        if wanted := next_share(left[broker], size):
            shares.append(CopyShare(broker, wanted))
            brokers.append(broker)
    return shares


def copy_in_task(planned: PlannedLog, bytes_per_s: int | None, share: CopyShare) -> CopiedObjects:
    """In a task: copy the objects of a share.  Reads no metadata."""
    roots = planned.broker_roots()
    return ObjectCopying(roots, share.broker, Pace(roots.clock, bytes_per_s)).run(share.wanted)


def main() -> None:
    args = parse_args()
    run_job("replicate", partial(replicate, args=args), partial(check_args, args))
