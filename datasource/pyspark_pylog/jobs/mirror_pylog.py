"""Copies topics from one log to another, such as one in another region, with their positions of consumer groups.

    spark-submit jobs/mirror_pylog.py --source s3://here/log --topics orders,payments \\
        --url s3://there/log --checkpoint s3://there/mirror --groups '*' --every 10s

Every record is copied once, in its partition and in order, with key, headers and timestamp, even if the job is killed.
Each run continues where the last one ended.  If nothing is missing in a topic, its copy has the same offsets.
Otherwise, the topic --map maps offsets of the source to those of the copy.  Positions of groups are set to the same
records.  Values from before a topic's schema are parsed as JSON; --bad-records takes those that do not fit.

Tokens of coordinators are in PYLOG_TOKEN, and that of the source in PYLOG_SOURCE_TOKEN if it is another one,
or empty if the source has none.

The last line of standard output is a summary in JSON.  Exit status: 0 done, 1 refused or failed, or a group could not
be set, 2 wrong usage.  See docs/tasks/mirror-topics.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_pylog.jobs.job_support import add_storage_option, job_parser, parse_rounds, run_job, storage_beside
from pyspark_pylog.jobs.mirror_job import add_mirror_arguments, check_mirror, run_mirror, settings_of, topics_of
from pyspark_pylog.jobs.topic_mirror import Positions, SourceTopic, positions_here
from pyspark_pylog.jobs.typed_mirror import check_schema
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.options.parse import Location
from pyspark_pylog.registration import register
from pyspark_pylog.tune import tune
from spark_log.client.log import Log
from spark_log.client.open_journal import TOKEN_VARIABLE
from spark_log.errors import InvalidRequest
from spark_log.http.address import is_coordinator
from spark_log.metadata.restores import common_end, history_of
from spark_log.metadata.state import State

SOURCE_TOKEN_VARIABLE = "PYLOG_SOURCE_TOKEN"
NOTE = "mirror:"
"""Metadata of positions set by this job, which it may change; positions committed by consumers here are left alone."""


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("--source", required=True, metavar="URL", help="the log to copy from")
    add_storage_option(parser, "--source-option", "for the source's storage")
    add_mirror_arguments(parser, "mirror-map")
    parser.add_argument(
        "--skip-lost", action="store_true", help="continue after records that were removed before they were copied"
    )
    return parse_rounds(parser, "show what would be done", args)


class LogSource:
    """A log, as the arguments of a job name it."""

    note = NOTE

    def __init__(self, spark: SparkSession, args: argparse.Namespace, log: Log) -> None:
        self._spark, self._args, self._log = spark, args, log

    @property
    def name(self) -> str:
        return self._log.url

    def topics(self) -> dict[str, SourceTopic]:
        admin, found, state = self._log.admin, dict[str, SourceTopic](), self._log.journal.refresh()
        planned = planned_log(source_of(self._args), self._log.journal)
        wanted = topics_of(self._args, admin.list_topics(), self.name)
        for name, topic in admin.describe_topics(wanted).items():
            schemas = admin.describe_schema(name)
            found[name] = SourceTopic(
                id=f"{self._log.cluster_id}/{topic.topic_id}",  # topics of a restored log have their former ids
                partitions=len(topic.partitions),
                configs=topic.configs,
                starts=tuple(part.start for part in topic.partitions),
                ends=tuple(part.high_watermark for part in topic.partitions),
                schema=schemas[-1].columns if schemas else None,
                history=history_of(state),
                same_until=partial(_same_until, state, topic.topic_id),
                check_schema=partial(check_schema, planned, name, topic.topic_id, len(schemas)),
            )
        return found

    def positions(self) -> Positions:
        wanted = self._args.groups
        if wanted == ("*",):
            wanted = [group.group_id for group in self._log.admin.list_consumer_groups()]
        return {group: {tp: at.offset for tp, at in positions_here(self._log, group).items()} for group in wanted}

    def records(self, topic: str, starts: Mapping[str, int]) -> DataFrame:
        location = source_of(self._args)
        reader = self._spark.readStream.format("pylog").options(
            **{f"storage.{name}": value for name, value in location.storage.items()}
        )
        if location.token is not None:
            reader = reader.option("token", location.token)
        return (
            reader.option("subscribe", topic)
            .option("startingOffsets", json.dumps({topic: starts}))
            .option("maxOffsetsPerTrigger", self._args.max_offsets)
            .option("failOnDataLoss", not self._args.skip_lost)
            .option("includeHeaders", True)
            .option("value.format", "json")  # of topics with a schema: parsed as those of Kafka
            .load(location.url)
        )


def _same_until(state: State, topic_id: str, history: str, partition: int) -> int | None:
    return common_end(state, history, (topic_id, partition))


def source_of(args: argparse.Namespace) -> Location:
    """The log to copy from.  An empty variable is none: the token of the copy is not sent to the source."""
    given = os.environ.get(SOURCE_TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE))
    token = given or None if is_coordinator(args.source) else None
    return Location(url=args.source, storage=storage_beside(args.source_option, args.source, args), token=token)


def run(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """All runs; the summary and exit status of the last one."""
    register(spark)
    tune(spark)
    with Log(journal_of(source_of(args))) as log:
        source = LogSource(spark, args, log)
        return run_mirror(spark, args, source, settings_of(args), partial(check_two_logs, log))


def check_args(args: argparse.Namespace) -> None:
    """Raises for topics that the source does not have, and for a log that cannot be copied to."""
    with Log(journal_of(source_of(args))) as log:
        topics_of(args, log.admin.list_topics(), log.url)
        check_mirror(args, partial(check_two_logs, log))


def check_two_logs(source: Log, log: Log) -> None:
    """Raises InvalidRequest for a log that would be copied to itself, or to a former copy of itself."""
    if source.cluster_id == log.cluster_id:
        raise InvalidRequest(
            f"{source.url} and {log.url} have the same id, {log.cluster_id}: they are one log, or one is a copy of the "
            "other. Copy to a new log"
        )


def main() -> None:
    args = parse_args()
    run_job("mirror_pylog", partial(run, args=args), partial(check_args, args))
