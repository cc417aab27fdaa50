"""Shared by the jobs that mirror topics: their arguments, and their runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_pylog.jobs.job_support import location_of, names, progress, repeat, topic_name, topic_names
from pyspark_pylog.jobs.topic_mirror import MirrorSettings, MirrorSource, TopicMirror, check_dead_letters, plan
from pyspark_pylog.log.open_log import journal_of
from spark_log.client.log import Log
from spark_log.client.mirror_map import MirrorMap
from spark_log.errors import InvalidRequest, NoLog, SequenceConflict, SparkLogError


def add_mirror_arguments(parser: argparse.ArgumentParser, map_topic: str) -> argparse._MutuallyExclusiveGroup:
    """Add the arguments that all mirrors have to those of `job_parser` and `parse_rounds`.

    Returns the arguments that name the groups to copy, for a job with another way to name them.
    """
    topics = parser.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topics", type=topic_names, help="separated by commas")
    topics.add_argument(
        "--pattern", type=pattern, help="a regular expression that is searched in names; looked up in every run"
    )
    parser.add_argument("--checkpoint", required=True, help="a folder for Spark's checkpoints, kept from run to run")
    parser.add_argument(
        "--map", type=topic_name, default=map_topic, help="the topic for the map of offsets (%(default)s)"
    )
    groups = parser.add_mutually_exclusive_group()
    groups.add_argument("--groups", type=names, default=(), help="groups to copy, separated by commas; '*' for all")
    parser.add_argument(
        "--max-offsets", type=int, default=1_000_000, help="of a micro-batch of one topic (%(default)s)"
    )
    parser.add_argument(
        "--create",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="create the log if the URL has none (the default), or fail",
    )
    parser.add_argument("--parallel", type=int, default=4, help="topics that are copied at a time (%(default)s)")
    parser.add_argument(
        "--bad-records",
        type=lambda text: text and topic_name(text),
        default="",
        metavar="TOPIC",
        help="for records that do not fit the schema of their topic (default: they stop the job)",
    )
    parser.add_argument("--drop-fields", action="store_true", help="leave out fields of JSON that the schema lacks")
    return groups


def pattern(text: str) -> re.Pattern[str]:
    """The type of an argument with a regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a Python regular expression: {error}") from error


def topics_of(args: argparse.Namespace, known: Iterable[str], where: str) -> list[str]:
    """The topics that the arguments name, or that the pattern finds.  Raises InvalidRequest for a missing one."""
    there = sorted(known)
    if args.topics is None:
        return [name for name in there if args.pattern.search(name)]
    if missing := sorted(set(args.topics) - set(there)):
        raise InvalidRequest(f"{where} has no topic {missing[0]!r}; it has {', '.join(there) or 'none'}")
    return list(args.topics)


def settings_of(args: argparse.Namespace) -> MirrorSettings:
    return MirrorSettings(
        args.url,
        dict(args.storage_option),
        args.checkpoint,
        args.map,
        args.parallel,
        args.bad_records,
        args.drop_fields,
        location_of(args).token,
    )


def check_mirror(args: argparse.Namespace, check: Callable[[Log], None] = lambda log: None) -> None:
    """Raises for a log that cannot be copied to; one that does not exist yet can be.

    check:  as of `run_mirror`.
    """
    with suppress(NoLog), Log(journal_of(location_of(args))) as log:
        check(log)
        check_dead_letters(log, args.bad_records)


def run_mirror(
    spark: SparkSession,
    args: argparse.Namespace,
    source: MirrorSource,
    settings: MirrorSettings,
    check: Callable[[Log], None] = lambda log: None,
) -> tuple[dict[str, Any], int]:
    """All runs; the summary and exit status of the last one.

    check:  raises an error for a log to which the source must not be copied.
    """
    if args.dry_run:
        return {"dry_run": True, "offsets": _planned(args, source, check)}, 0
    with Log(journal_of(location_of(args), create=args.create)) as log:
        check(log)
        mirror = TopicMirror(spark, log, source, settings, progress)
        try:
            records, done = repeat(spark, log, args.every, mirror.run, f"the mirror of {source.name}")
        except StreamingQueryException as error:
            raise SparkLogError(explained(str(error), args.checkpoint)) from error
    return {"records": records, "groups_set": done}, int(not done)


def _planned(args: argparse.Namespace, source: MirrorSource, check: Callable[[Log], None]) -> dict[str, int]:
    try:
        with Log(journal_of(location_of(args))) as log:
            check(log)
            check_dead_letters(log, args.bad_records)
            copied = MirrorMap(log, args.map).copied()
    except NoLog:
        copied = {}
    return plan(source, copied, progress)


def explained(error: str, checkpoint: str) -> str:
    """The error, with instructions if a checkpoint is behind the log."""
    if SequenceConflict.__name__ not in error:
        return error
    return (
        f"{error}\nThe map of offsets says how far the topic was copied: delete the topic's folder in {checkpoint} and "
        "run this again; it continues there, and nothing is lost or copied twice"
    )
