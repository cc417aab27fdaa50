"""Writes the rows of a table into a topic, with their keys and times.

    spark-submit jobs/backfill.py --url s3://bucket/log --topic orders-history --from s3://lake/orders \\
        --format parquet --key customer --value json --timestamp ordered_at

With --value columns, the columns of the table are those of a topic with a schema; --create 3 creates it.

The rows are written in chunks, in the order of their times.  Each chunk is one commit, and the log remembers the time
up to which it has the rows: a job that is killed and run again continues there, and writes no row twice.  Nor do two
that run at the same time: one that planned other chunks than the other has written ends with an error.

The last line of standard output is a summary in JSON.  Exit status: 0 done, 1 refused or failed, 2 wrong usage.
See docs/tasks/backfill.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, IntegralType, MapType, StringType, StructType

from pyspark_pylog.jobs.job_support import add_key_values, job_parser, location_of, progress, run_job, topic_name
from pyspark_pylog.log.open_log import journal_of
from pyspark_pylog.options.parse import write_options
from pyspark_pylog.registration import register
from pyspark_pylog.sink.typed_frame import typed_frame
from spark_log.client.log import Log
from spark_log.client.producer.append import txn_identity
from spark_log.configs.settings import has_cleanup_policy, topic_config
from spark_log.errors import InvalidRequest, SequenceConflict, SparkLogError, UnknownTopicOrPartition
from spark_log.metadata.commits.last_commit import LastCommit
from spark_log.model import NewTopic
from spark_log.positions import format_timestamp_ms
from spark_log.schema.arrow_types import nullable
from spark_log.schema.names import shown_name
from spark_log.schema.struct_json import from_json
from spark_log.schema.topic_schema import as_schema
from spark_log.segment.frame_columns import data_columns
from spark_log.text import counted

TABLE = "table"
"""The format of a table of the catalog."""
JSON = "json"
COLUMNS = "columns"
JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""Times with their microseconds, and in UTC, as in the JSON of a topic with a schema."""
FOREVER = {"retention.ms": "-1"}
LIMIT = "message.timestamp.after.max.ms"
HOUR_MS = 3_600_000
YEAR_1_MS = 62_135_596_800_000
"""From the year 1 to 1970: versions of a commit are 0 or more, also for times before 1970."""


class HourRange(NamedTuple):
    """Rows of the hours [start, end), counted since 1970."""

    start: int
    end: int
    rows: int

    @property
    def version(self) -> int:
        """The `txnVersion` of its commit: the time up to which the log then has the rows."""
        return self.end * HOUR_MS + YEAR_1_MS


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument(
        "--topic",
        type=topic_name,
        required=True,
        help="it must exist, but for --create; create it with retention.ms=-1",
    )
    parser.add_argument("--from", dest="source", required=True, metavar="PATH_OR_TABLE")
    parser.add_argument("--format", default="parquet", help="any format of spark.read, or `table` (%(default)s)")
    add_key_values(parser, "--option", "of spark.read")
    parser.add_argument("--where", metavar="CONDITION", help="SQL: write only these rows")
    parser.add_argument("--key", metavar="COLUMN", help="default: no key")
    parser.add_argument(
        "--value",
        required=True,
        metavar="COLUMN|json|columns",
        help="a column; json: the row as an object; columns: the columns of a topic with a schema",
    )
    parser.add_argument(
        "--create",
        type=int,
        metavar="PARTITIONS",
        help="with --value columns: create a missing topic, with the table's schema and retention.ms=-1",
    )
    parser.add_argument("--timestamp", required=True, metavar="COLUMN", help="a time, or milliseconds since 1970")
    parser.add_argument("--partition", metavar="COLUMN", help="numbers of partitions (default: by the key)")
    parser.add_argument(
        "--order",
        choices=("time", "none"),
        default="time",
        help="of the rows of a chunk within a partition (%(default)s)",
    )
    parser.add_argument(
        "--chunk-rows",
        type=int,
        default=5_000_000,
        metavar="ROWS",
        help="least rows of a commit, if the table has them (%(default)s); a commit has whole hours",
    )
    parser.add_argument("--name", help="under which the log remembers how far it is (backfill-PATH_OR_TABLE)")
    parser.add_argument("--dry-run", action="store_true", help="count the rows and chunks, and write nothing")
    found = parser.parse_args(args)
    if found.chunk_rows < 1:
        parser.error("--chunk-rows: give 1 or more")
    if found.create is not None and found.value != COLUMNS:
        parser.error("--create is for --value columns: create the topic with `pylog topic create`")
    return found


# ------------------------------------------------------------------------------------------------------------ the table


def read_table(spark: SparkSession, args: argparse.Namespace) -> DataFrame:
    """The rows as records: columns of a write, of their types.  Raises InvalidRequest for an unknown column."""
    if args.format == TABLE:
        found = spark.read.options(**dict(args.option)).table(args.source)
    else:
        found = spark.read.format(args.format).options(**dict(args.option)).load(args.source)
    if args.where:
        found = found.where(args.where)
    columns = values_of(found, args.value)
    if args.key:
        columns["key"] = as_bytes(found, "--key", args.key)
    if args.partition:
        columns["partition"] = column_of(found, "--partition", args.partition).cast("int")
    return found.select(as_time(found, args.timestamp).alias("timestamp"), *(c.alias(n) for n, c in columns.items()))


def values_of(frame: DataFrame, value: str) -> dict[str, Column]:
    """The columns of a write that have the values."""
    if value == COLUMNS:
        return {shown_name(name): F.col(f"`{name}`") for name in frame.columns}
    return {"value": row_as_json(frame) if value == JSON else as_bytes(frame, "--value", value)}


def column_of(frame: DataFrame, option: str, name: str) -> Column:
    if name not in frame.columns:
        raise InvalidRequest(f"{option}: there is no column {name!r}; the table has {', '.join(frame.columns)}")
    return F.col(f"`{name}`")


def row_as_json(frame: DataFrame) -> Column:
    return F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns)), JSON_OPTIONS)


def as_bytes(frame: DataFrame, option: str, name: str) -> Column:
    """A key or value: text and bytes as they are, nested columns as JSON, others as text."""
    found = column_of(frame, option, name)
    match frame.schema[name].dataType:
        case StringType() | BinaryType():
            return found
        case StructType() | ArrayType() | MapType():
            return F.to_json(found, JSON_OPTIONS)
        case _:
            return found.cast("string")


def as_time(frame: DataFrame, name: str) -> Column:
    found = column_of(frame, "--timestamp", name)
    if isinstance(frame.schema[name].dataType, IntegralType):
        return F.timestamp_millis(found)
    return found.cast("timestamp")


# ------------------------------------------------------------------------------------------------------------- planning


def rows_by_hour(records: DataFrame) -> list[tuple[int, int]]:
    """(hour, rows), sorted.  Raises InvalidRequest for rows without a time."""
    hour = F.floor(F.unix_micros("timestamp") / (1000 * HOUR_MS))
    found = {
        row.hour: row.rows for row in records.groupBy(hour.alias("hour")).agg(F.count("*").alias("rows")).collect()
    }
    if without := found.pop(None, 0):
        raise InvalidRequest(f"{counted(without, 'row')} without a time: leave them out with --where")
    return sorted(found.items())


def chunks_of(hours: Iterable[tuple[int, int]], rows_min: int) -> Iterator[HourRange]:
    """Chunks of whole hours with at least `rows_min` rows, but for the last one."""
    start, rows = None, 0
    for hour, count in hours:
        start, end, rows = hour if start is None else start, hour + 1, rows + count
        if rows >= rows_min:
            yield HourRange(start, end, rows)
            start, rows = None, 0
    if start is not None:
        yield HourRange(start, end, rows)


def check_same_topic(last: LastCommit, topic_id: str, topic: str, backfill: str) -> None:
    """Raises InvalidRequest if the last commit of a backfill was to another topic of the name, or was lost."""
    if not last.topics:
        raise InvalidRequest(
            f"the last commit of {backfill} was lost with the disks of brokers, and the log does not know where it began: "
            f"give another --name, and with --where only the rows that are later than all of its rows in {topic}"
        )
    if topic_id not in last.topics:
        raise InvalidRequest(
            f"{topic} was deleted and created again since {backfill} wrote to it: give another --name, which writes all "
            "rows"
        )


class TargetTopic:
    """The topic, and what it already has."""

    def __init__(self, log: Log, topic: str, name: str) -> None:
        if topic not in log.admin.list_topics():
            raise UnknownTopicOrPartition(
                f"topic {topic!r} does not exist: create it with `pylog topic create {topic} -p 3 -c retention.ms=-1`, "
                "or, for --value columns, give --create 3"
            )
        self._log, self._name = log, topic
        found = log.admin.describe_topics([topic])[topic]
        self.configs, self._id = found.configs, found.topic_id
        known = log.journal.state.producers.get(txn_identity(name, 0, topic).producer)
        if known is not None and known.last_commit is not None:
            check_same_topic(known.last_commit, self._id, f"topic {topic!r}", f"the backfill {name!r}")
        self.version = -1 if known is None else known.last
        """Version of the last commit of the backfill; -1: it has not begun."""
        self.done_hour = None if known is None else (known.last - YEAR_1_MS) // HOUR_MS
        """The log has all rows before this hour; None: this backfill has not begun."""

    def check_there(self) -> None:
        """Raises InvalidRequest if the topic is another one by now, which would get the rest of the rows only."""
        state = self._log.journal.refresh()
        if state.names.get(self._name) != self._id:
            raise InvalidRequest(f"topic {self._name!r} was deleted while this job wrote to it")

    def expired(self, hours: Iterable[tuple[int, int]], now_ms: int) -> int:
        """Rows that the next maintenance would remove, about."""
        retention_ms = topic_config(self.configs, "retention.ms")
        if retention_ms < 0 or not has_cleanup_policy(self.configs, "delete"):
            return 0
        return sum(rows for hour, rows in hours if (hour + 1) * HOUR_MS <= now_ms - retention_ms)

    def check_not_late(self, hours: Iterable[tuple[int, int]], now_ms: int) -> None:
        """Raises InvalidRequest for rows of hours that begin later than the topic allows.

        Rows of the hour in which the limit lies may still be refused by their write.
        """
        if topic_config(self.configs, "message.timestamp.type") == "LogAppendTime":
            return
        limit_ms = topic_config(self.configs, LIMIT)
        late = [(hour, rows) for hour, rows in hours if hour * HOUR_MS - now_ms > limit_ms]
        if not late:
            return
        last = max(hour for hour, _ in late)
        needed_ms = (last + 2 - now_ms // HOUR_MS) * HOUR_MS  # to the end of that hour, and as much for other clocks
        raise InvalidRequest(
            f"the time of {counted(sum(rows for _, rows in late), 'row')} is more than {LIMIT}={limit_ms} after the "
            f"present, and the latest is in the hour from {time_of(last)}: leave such rows out with --where, or run "
            f"`pylog topic alter {self._name} -c {LIMIT}={needed_ms}` first"
        )


# -------------------------------------------------------------------------------------------------------------- running


def backfill(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Write all rows that the log does not have yet; the summary and the exit status."""
    register(spark)
    name = name_of(args)
    with Log(journal_of(location_of(args))) as log:
        records = read_table(spark, args)
        if args.value == COLUMNS:
            prepare_columns(log, args, records)
        target = TargetTopic(log, args.topic, name)
        hours = rows_by_hour(records)
        left = [(hour, rows) for hour, rows in hours if target.done_hour is None or hour >= target.done_hour]
        chunks = list(chunks_of(left, args.chunk_rows))
        now_ms = int(time.time() * 1000)
        target.check_not_late(left, now_ms)
        expired = target.expired(left, now_ms)
        warn(args.topic, target, expired)
        if not args.dry_run:
            write_chunks(records, args, name, target, chunks)
    summary = {
        "name": name,
        "topic": args.topic,
        "from": args.source,
        "dry_run": args.dry_run,
        "rows": sum(rows for _, rows in left),
        "chunks": len(chunks),
        "written_before": sum(rows for _, rows in hours) - sum(rows for _, rows in left),
        "older_than_retention": expired,
        "up_to": time_of(chunks[-1].end) if chunks else None,
    }
    return summary, 0


def check_args(args: argparse.Namespace) -> None:
    """Raises for an unknown topic that is not created, and the error of opening the log."""
    with Log(journal_of(location_of(args))) as log:
        if args.create is None or args.topic in log.admin.list_topics():
            TargetTopic(log, args.topic, name_of(args))


def name_of(args: argparse.Namespace) -> str:
    """Under which the log remembers how far the backfill is."""
    return str(args.name or f"backfill-{args.source}")


def prepare_columns(log: Log, args: argparse.Namespace, records: DataFrame) -> None:
    """Create a missing topic if asked to, and check that the columns fit its schema.  Raises as a write does."""
    if args.create is not None and args.topic not in log.admin.list_topics():
        if args.dry_run:
            raise InvalidRequest(f"--dry-run: topic {args.topic!r} does not exist, and a dry run does not create it")
        schema = nullable(as_schema(data_columns(from_json(records.schema.json()))))
        log.admin.create_topics([NewTopic(args.topic, args.create, FOREVER, schema=schema)])
    if args.topic in log.admin.list_topics():
        typed_frame(
            log.journal, records.schema, write_options({"path": args.url, "topic": args.topic}, streaming=False)
        )


def warn(topic: str, target: TargetTopic, expired: int) -> None:
    """Say what the topic's configs would do to the records."""
    if expired:
        progress(
            f"warning: {counted(expired, 'row')} are older than the topic's retention.ms: the next `pylog maintain` "
            f"removes them; run `pylog topic alter {topic} -c retention.ms=-1` first"
        )
    if topic_config(target.configs, "message.timestamp.type") == "LogAppendTime":
        progress(f"warning: the times of the rows are lost: topic {topic!r} has message.timestamp.type=LogAppendTime")


def write_chunks(
    records: DataFrame, args: argparse.Namespace, name: str, target: TargetTopic, chunks: Sequence[HourRange]
) -> None:
    """Write the chunks, each after the one before it.

    Raises SparkLogError if another run of this backfill has committed meanwhile: the chunks were planned without it.
    """
    after = target.version
    for number, chunk in enumerate(chunks, 1):
        target.check_there()
        try:
            write_chunk(records, args, name, chunk, after)
        except PySparkException as error:
            if SequenceConflict.__name__ not in str(error):
                raise
            raise SparkLogError(
                f"another run of the backfill {name!r} has written to topic {args.topic!r} since this one began, and this "
                f"one would write rows twice: chunk {number} of {len(chunks)} is not written. When the other run has "
                "ended, run this again: it continues there"
            ) from error
        after = chunk.version
        progress(f"chunk {number} of {len(chunks)}: {counted(chunk.rows, 'row')} before {time_of(chunk.end)}")


def write_chunk(records: DataFrame, args: argparse.Namespace, name: str, chunk: HourRange, after: int) -> None:
    """Write the rows of a chunk in one commit, unless the log has it.

    after:  the version of the commit before it, which no other run may have followed.
    """
    rows = records.where(F.col("timestamp") >= instant(chunk.start)).where(F.col("timestamp") < instant(chunk.end))
    if args.order == "time":
        rows = rows.orderBy("timestamp")
    location = location_of(args)
    token = {} if location.token is None else {"token": location.token}
    (
        rows.write.format("pylog")
        .mode("append")
        .option("topic", args.topic)
        .option("txnAppId", name)
        .option("txnVersion", chunk.version)
        .option("pylog.txnAfter", after)
        .options(**token, **{f"storage.{key}": value for key, value in location.storage.items()})
        .save(args.url)
    )


def instant(hour: int) -> Column:
    """The beginning of an hour, as a constant that Spark can compare with the statistics of files."""
    return F.expr(f"timestamp_millis({hour * HOUR_MS}L)")


def time_of(hour: int) -> str:
    return format_timestamp_ms(hour * HOUR_MS)


def main() -> None:
    args = parse_args()
    run_job("backfill", partial(backfill, args=args), partial(check_args, args))
