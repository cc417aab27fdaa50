"""Every option of the data source, as data: its name, its uses, its default and its meaning.

`docs/options.md` is `reference_markdown()`; `parse.py` converts the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_pylog.options.kafka_client_settings import PARTITIONERS, REFUSED, WITHOUT_EFFECT


@dataclass(frozen=True, slots=True)
class Option:
    """One option, spelt as in the documentation; Spark passes names in lower case."""

    name: str
    used: str
    """B batch read, S streaming read, W batch write, T streaming write."""
    default: str
    """The default as shown; empty if there is none."""
    meaning: str


READING = (
    Option(
        "subscribe",
        "BS",
        "",
        "topics, separated by commas. Exactly one of the first three options is required. A topic that does not exist "
        "is an error. Subscribing to `__consumer_offsets` alone reads "
        "[the progress of all groups](spark-streams.md#named-progress)",
    ),
    Option(
        "subscribePattern",
        "BS",
        "",
        "a Python regular expression, matched anywhere in the name; use `^…$` to match all of it. Topics that are "
        "created later are included; topics whose names begin with `__` are not. Syntax that only Java supports is "
        "rejected; the error shows the Python equivalent",
    ),
    Option(
        "assign",
        "BS",
        "",
        'partitions to read, as JSON: `{"orders":[0,1]}`. A partition that does not exist is ignored',
    ),
    Option(
        "startingOffsets",
        "BS",
        "batch `earliest`, stream `latest`",
        'a position, or JSON of positions: `{"orders":{"0":23,"1":-2},"other":"latest-100"}`. Topics and partitions '
        "that the JSON leaves out have the default. A stream uses this option only if it has no checkpoint, and can "
        "have `latest-per-key` for all of its topics: [the latest record of each key](spark-read.md#the-latest-record-of-each-key), then all "
        "records that follow",
    ),
    Option(
        "endingOffsets",
        "B",
        "`latest`",
        "where to stop: a position, or JSON of positions. The record at the position is not read. A number beyond the "
        "end means the end",
    ),
    Option(
        "client.rack",
        "BS",
        "",
        "the rack, zone or region in which the tasks run: of the brokers that have a copy of an object, tasks read from "
        "one in this rack first",
    ),
    Option(
        "startingTimestamp",
        "BS",
        "",
        "start at the first record with a timestamp at or after this time, in milliseconds since 1970 or ISO-8601",
    ),
    Option("endingTimestamp", "B", "", "stop before the first record with a timestamp at or after this time"),
    Option(
        "startingOffsetsByTimestamp",
        "BS",
        "",
        'as `startingTimestamp`, by partition: `{"orders":{"0":1769853600000}}`. Those left out start at `earliest` '
        "(batch) or `latest` (stream)",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "B",
        "",
        "as `endingTimestamp`, by partition, in the same form. Those left out end at `latest`",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "BS",
        "`error`",
        "if no record has a timestamp at or after the starting time: `error` fails the read, `latest` starts at the "
        "end of the partition",
    ),
    Option(
        "view",
        "B",
        "",
        "`latest`: only [the latest record of each key](spark-read.md#the-latest-record-of-each-key). Without this option, "
        "all records",
    ),
    Option(
        "columns",
        "BS",
        "",
        "the columns of the frame, separated by commas, as in `columns=id,amount,offset`. The others are not decoded. "
        "Without this option, all columns; a schema does the same for a read, and can name columns that have a comma",
    ),
    Option(
        "key.format",
        "BS",
        "`binary`",
        "the type of the column `key`: `binary`, or `string` for [text](spark.md#keys-and-values-as-text)",
    ),
    Option(
        "value.format",
        "BS",
        "`columns`",
        "`string` gives a column `value` of [text](spark.md#keys-and-values-as-text) instead of bytes. The others are "
        "for [topics with a schema](spark-typed.md#topics-with-a-schema): `columns` gives each column of the value its own "
        "column, `struct` gives one column `value` with all of them, `json` gives a column `value` of bytes",
    ),
    Option(
        "value.parse",
        "BS",
        "",
        "`json`: parses records that were written before their topic got its schema. Without this option, a read of "
        "such records is an error",
    ),
    Option(
        "where",
        "BS",
        "",
        "a condition on `timestamp`, `offset`, `partition` and data columns, as in SQL. Only matching records are returned, and data "
        "that cannot match is not read. `spark_log.where(…)` sets this option, and `timeZone` to the session's time "
        "zone",
    ),
    Option(
        "timeZone",
        "BS",
        "",
        "time zone for times in `where` that do not give one, such as `Europe/Berlin` or `+01:00`. Without this option, "
        "such times are an error",
    ),
    Option(
        "pushDown",
        "BS",
        "the setting `spark.pylog.pushDown`, by default `true`",
        "whether a batch query decodes only its columns, and skips records by its filters, in [a registered "
        "session](spark-read.md#reading-less). Without effect on a stream",
    ),
    Option(
        "nativeRead",
        "BSW",
        "the setting `spark.pylog.nativeRead`, by default `true`",
        "whether a query is read in the JVM where that is possible, in [a registered "
        "session](spark-read.md#read-in-the-jvm); and whether the rows of a batch [are encoded "
        "there](spark-write.md#encoded-in-the-jvm)",
    ),
    Option(
        "group.id",
        "S",
        "",
        "publish the stream's progress to this consumer group, and start at the group's committed offsets if the "
        "stream has no checkpoint: [named progress](spark-streams.md#named-progress)",
    ),
    Option(
        "group.members",
        "S",
        "",
        "how many queries [share the partitions](tasks/share-a-topic.md) of the group: 1 to 1000. `auto`: the "
        "coordinator divides them among those that run",
    ),
    Option(
        "group.member",
        "S",
        "",
        "the number of this query among `group.members`, from 0. It reads the partitions whose number modulo "
        "`group.members` is this number",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "S",
        "",
        "exact limit on records per micro-batch, split in proportion to each partition's backlog",
    ),
    Option(
        "maxBytesPerTrigger",
        "S",
        "`1g`",
        "approximate limit on stored bytes per micro-batch; `none` removes the limit",
    ),
    Option(
        "minOffsetsPerTrigger",
        "S",
        "",
        "wait until this many records are available, or `maxTriggerDelay` has passed since the last micro-batch",
    ),
    Option(
        "maxTriggerDelay",
        "S",
        "`15m`",
        "longest wait for `minOffsetsPerTrigger`: `5s`, `15m`, `1 minute`; a bare number is in milliseconds",
    ),
    Option("minPartitions", "BS", "", "desired number of tasks; ranges are split as in Kafka's connector"),
    Option(
        "maxRecordsPerPartition",
        "BS",
        "",
        "maximum records per task, also when the end is `latest` or relative to it",
    ),
    Option(
        "maxBytesPerPartition",
        "BS",
        "`32m`",
        "maximum bytes per task if neither of the previous two options is set; small partitions share a task",
    ),
    Option(
        "parallelism",
        "BS",
        "cores of the driver",
        "how many tasks the cluster runs in parallel, if tasks are split by bytes. A read is split into that many "
        "tasks, or a multiple of it, unless they would be smaller than 2 MiB",
    ),
    Option(
        "includeHeaders",
        "BSWT",
        "`false`",
        "adds the `headers` column to a read. A write needs no option: it always uses the column",
    ),
    Option(
        "fetchOffset.numRetries",
        "BS",
        "`3`",
        "total attempts of the driver, including the first, while the storage does not answer. In each attempt, "
        "requests are retried for about 25 s",
    ),
    Option("fetchOffset.retryIntervalMs", "BS", "`1000`", "milliseconds between these attempts"),
    Option(
        "kafkaConsumer.pollTimeoutMs", "BS", "", "no effect: tasks read from the storage, which has its own timeouts"
    ),
    Option("groupIdPrefix", "BS", "", "no effect: tasks join no consumer group"),
    Option(
        "failOnDataLoss",
        "BS",
        "`true`",
        "`true`: a read of lost records fails. `false`: each lost range gives a warning instead. Records are lost if "
        "they were trimmed or have expired, if their topic was deleted or created again, or if their segment is "
        "missing from the storage: [all cases](spark-streams.md#when-the-log-changes)",
    ),
)
WRITING = (
    Option("topic", "WT", "", "the topic of all rows; takes precedence over the `topic` column"),
    Option(
        "value.columns",
        "WT",
        "",
        "for [topics with a schema](spark-typed.md#topics-with-a-schema): the columns of the frame that are data, separated "
        "by commas. Without this option, all but `key`, `headers`, `partition`, `timestamp` and the other columns of a "
        "record",
    ),
    Option(
        "key.column",
        "WT",
        "`key`",
        "for topics with a schema: the column with the key, which may also be data",
    ),
    Option(
        "timestamp.column",
        "WT",
        "`timestamp`",
        "for topics with a schema: the column with the record's timestamp, which may also be data",
    ),
    Option(
        "partitioner",
        "WT",
        "`default`",
        "`default` (Kafka's default, also called `murmur2`), `round-robin`, `sticky`, or your own class as "
        "`module:Class`",
    ),
    Option(
        "compression",
        "WT",
        "`zstd`",
        "`zstd`, `lz4` or `none`; used only for topics whose `compression.type` is `producer`, the default",
    ),
    Option(
        "acks",
        "WT",
        "`all`",
        "`all`: the write waits for all in-sync replicas, and succeeds if at least `min.insync.replicas` of them have the "
        "data durably; `1`: it waits for the leader's copy, and readers see the records when all in-sync replicas have "
        "them; `0`: treated as `1`, because the job ends with the commit. `0` and `1` are for batch writes without "
        "`txnVersion`; exactly-once writes need `all`",
    ),
    Option(
        "durability",
        "WT",
        "`disk`",
        "for a log on a local disk: `disk` syncs files before success is reported, `os` leaves that to the operating "
        "system",
    ),
    Option(
        "badRecords",
        "WT",
        "`fail`",
        "`fail`: a row that cannot be written fails the write. `topic:NAME`: such rows go to that topic, in the same "
        "commit, with the reason in their headers",
    ),
    Option(
        "txnAppId",
        "W",
        "",
        "name of the application that writes. With `txnVersion`, a write happens only once for each application, "
        "version and value of the option `topic`",
    ),
    Option(
        "txnVersion",
        "W",
        "",
        "with `txnAppId`: a whole number that grows with each write. A version at or below the last one is skipped, "
        "with a warning in the driver's log; repeating the last one with a different number of rows is an error",
    ),
    Option(
        "producerId",
        "T",
        "",
        "name for the stream's identity. A query with a new checkpoint and the same name takes over from the old "
        "query, which can no longer write",
    ),
    Option(
        "onOlderBatch",
        "WT",
        "`fail`",
        "for streams and `spark_log.sink`: what happens to a micro-batch that is older than the last one in the log, "
        "because the checkpoint lost files or was replaced by an older copy. `fail`: the query stops. `skip`: the "
        "batch is not written, and those of its rows that are not in the log are lost",
    ),
    Option("kafka.acks", "WT", "", "the same as `acks`, which takes precedence"),
    Option(
        "kafka.compression.type",
        "WT",
        "",
        "the same as `compression`, which takes precedence; `gzip` and `snappy` are rejected",
    ),
    Option(
        "kafka.partitioner.class",
        "WT",
        "",
        "the same as `partitioner`, which takes precedence, with the names of Kafka's classes: "
        + ", ".join(f"`{name}` is `{ours}`" for name, ours in PARTITIONERS.items()),
    ),
    Option("kafka.partitioner.ignore.keys", "WT", "`false`", "`true` is the same as `partitioner=sticky`"),
    Option("kafka.enable.idempotence", "WT", "`true`", "`false` has no effect: a retry never writes twice"),
)
SHARED = (
    Option("path", "BSWT", "", "the log's URL; `.load(URL)`, `.save(URL)` and `.start(URL)` set it"),
    Option(
        "kafka.bootstrap.servers",
        "BSWT",
        "",
        "the log's URL, or the address of a coordinator, for pipelines that were written for Kafka; `path` takes "
        "precedence",
    ),
    Option(
        "token",
        "BSWT",
        "value of `PYLOG_TOKEN`",
        "the token for a coordinator that requires one",
    ),
    Option(
        "storage.*",
        "BSWT",
        "",
        "passed to fsspec: `storage.key`, `storage.secret`, `storage.endpoint_url`, …; `storage.1.key` is for the root of "
        "broker 1",
    ),
    Option(
        "kafka.isolation.level",
        "BS",
        "",
        "`read_committed` and `read_uncommitted` have the same effect: nothing uncommitted is ever in the log",
    ),
)
ALL = (*READING, *WRITING, *SHARED)

SPARKS = ("paths", "checkpointLocation", "queryName")
"""Options that Spark sets."""
INTERNAL = ("pylog.txnFromQuery", "pylog.queryId", "pylog.checkpoint", "pylog.beside", "pylog.txnAfter")
"""The first three are set by `spark_log.sink`: the application is the streaming query, running or named; and its
checkpoint.  The others by jobs, for writes of mirrors and backfills."""

SPELLING = {name.lower(): name for name in (*(option.name for option in ALL), *SPARKS, *INTERNAL)}


def names(uses: str) -> set[str]:
    """Lower-case names of the options that are used by any of the kinds in `uses`, letters as in `Option.used`."""
    return {option.name.lower() for option in ALL if set(option.used) & set(uses)}


def spelt(name: str) -> str:
    """The name as in the documentation."""
    return SPELLING.get(name, name)


def reference_markdown() -> str:
    """The page `docs/options.md`."""
    return "\n".join(
        [
            '# Options of `format("pylog")`',
            "",
            "Generated from `datasource/pyspark_pylog/options/option_table.py` by `make docs`. Names are "
            "case-insensitive; an",
            "unknown one is an error that suggests the nearest. The second column says where an option applies: "
            "B = batch read,",
            "S = streaming read, W = batch write, T = streaming write.",
            "",
            "## Reading",
            "",
            *_table(READING),
            "",
            "## Writing",
            "",
            *_table(WRITING),
            "",
            "## Both",
            "",
            *_table(SHARED),
            "",
            "## Settings of Kafka's clients",
            "",
            "Any other `kafka.*` option is in one of these lists, or is an error. A setting that is rejected or "
            "supported only for",
            "reads has no effect on writes, and vice versa.",
            "",
            "### Refused",
            "",
            "| option | | instead |",
            "|---|---|---|",
            *(f"| `{setting.name}` | {' '.join(setting.used)} | {setting.instead} |" for setting in REFUSED),
            "",
            "### Accepted, without effect",
            "",
            "A warning in the driver's log names the ones that are set.",
            "",
            "| why | options |",
            "|---|---|",
            *(f"| {why} | {', '.join(f'`kafka.{name}`' for name in found)} |" for why, found in WITHOUT_EFFECT.items()),
            "",
        ]
    )


def _table(options: Iterable[Option]) -> Iterator[str]:
    yield "| option | | default | meaning |"
    yield "|---|---|---|---|"
    for option in options:
        yield f"| `{option.name}` | {' '.join(option.used)} | {option.default} | {option.meaning} |"
