"""Runs a Python function on records as they arrive, in tasks of Spark that stay, each record exactly once.

    spark-submit --py-files app.py jobs/flow.py --url s3://bucket/log --function app:enrich --name enrich \\
        --source orders --target enriched --tasks 4

It does what `pylog flow` does, with the tasks of one Spark job that runs until SIGTERM reaches the Python process.
Each task then finishes its batch.  --py-files sends the module of the function to the executors; without it, only
modules that are installed there can be used, and in local mode those in the current folder.  If the job is killed, run
it again: it continues at the committed offsets.

The last line of standard output is a summary in JSON.  Exit status: 0 stopped, 1 refused or failed, 2 wrong usage.  See
docs/tasks/flow.md.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from pyspark_pylog.jobs.job_support import (
    PROGRESS_S,
    check_log,
    job_parser,
    location_of,
    progress,
    run_job,
    topic_name,
    topic_names,
)
from pyspark_pylog.spark_flow import start_spark_flow
from spark_log.cli.commands.flow import LOOK_S, loaded, signalled
from spark_log.flows.flow import BATCH_BYTES, Flow
from spark_log.flows.flow_options import flow_options
from spark_log.flows.flow_progress import FlowProgress
from spark_log.flows.keyed_state import Keyed
from spark_log.text import counted


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("--function", required=True, metavar="MODULE:FUNCTION", help="what gets a pyarrow Table")
    parser.add_argument("--name", required=True, help="the name of the flow, and of its group")
    sources = parser.add_mutually_exclusive_group(required=True)
    sources.add_argument("--source", type=topic_names, metavar="TOPICS", help="the source topics, as in a,b")
    sources.add_argument("--include", type=_pattern, metavar="REGEX", help="all topics whose whole name matches")
    parser.add_argument("--target", type=topic_name, help="the topic of frames that the function returns")
    parser.add_argument(
        "--lookup", type=topic_names, default=(), metavar="TOPICS", help="compacted topics that it gets, too, as tables"
    )
    parser.add_argument("--state", type=topic_name, metavar="TOPIC", help="a compacted topic for state by key")
    parser.add_argument("--tasks", type=int, default=1, metavar="N", help="tasks, each of which takes a core (1)")
    parser.add_argument("--start", default="earliest", metavar="POSITION", help="where the first start begins")
    parser.add_argument(
        "--bad-records", default="fail", metavar="RULE", help="at which the function fails: fail, skip or topic:NAME"
    )
    return parser.parse_args(args)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from error


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `start_spark_flow`, but for the log and the session.  Raises InvalidRequest."""
    return {
        "name": args.name,
        "source": args.include or args.source,
        "function": loaded(args.function),
        "target": args.target,
        "lookup": args.lookup,
        "state": None if args.state is None else Keyed(args.state),
        "tasks": args.tasks,
        "start": args.start,
        "bad_records": args.bad_records,
        "task_numbers": None,
        "batch_bytes": BATCH_BYTES,
        "linger_ms": 0,
        "value_format": None,
    }


def check_args(args: argparse.Namespace) -> None:
    """Raises the errors of the arguments that are known before Spark starts."""
    flow_options(**options_of(args))
    check_log(args)


def run(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """The flow until it is stopped; its summary and exit status."""
    location = location_of(args)
    with signalled() as stop:
        flow = start_spark_flow(
            spark, location.url, token=location.token, storage_options=location.storage, **options_of(args)
        )
        shown_s = -math.inf
        while not stop.is_set() and not flow.await_termination(LOOK_S):
            if time.monotonic() >= shown_s + PROGRESS_S:
                shown_s = time.monotonic()
                progress(_text(flow))
        flow.stop()
    flow.await_termination()
    return _summary(flow.progress), 0


def _text(flow: Flow) -> str:
    now = flow.progress
    error = f"; {now.error}" if now.error else ""
    return f"flow {flow.name}: {counted(now.records_in, 'record')} processed, {now.lag:,} behind{error}"


def _summary(found: FlowProgress) -> dict[str, Any]:
    """The progress; JSON has no NaN."""
    return {name: None if value != value else value for name, value in asdict(found).items()}


def main() -> None:
    args = parse_args()
    run_job("flow", partial(run, args=args), partial(check_args, args))
