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
        "topics, separated by commas. Exactly one of the first three options is required. A topic that does not "
        "exist is an error. `__consumer_offsets` alone is [all progress of groups](spark.md#named-progress)",
    ),
    Option(
        "subscribePattern",
        "BS",
        "",
        "a Python regular expression that is searched in names, `^…$` for whole ones; topics created later are "
        "included, names that begin with `__` never. Syntax that only Java supports is rejected, with Python's "
        "equivalent",
    ),
    Option("assign", "BS", "", '`{"orders":[0,1]}`; a partition that does not exist is ignored'),
    Option(
        "startingOffsets",
        "BS",
        "batch `earliest`, stream `latest`",
        'a position, or JSON of positions: `{"orders":{"0":23,"1":-2},"other":"latest-100"}`; topics and partitions left '
        "out have the default. A stream uses it only without a checkpoint",
    ),
    Option("endingOffsets", "B", "`latest`", "the same; exclusive. A number beyond the end means the end"),
    Option(
        "startingTimestamp",
        "BS",
        "",
        "milliseconds since 1970 or ISO-8601: the first record with a timestamp at or after it",
    ),
    Option("endingTimestamp", "B", "", "the same; exclusive"),
    Option(
        "startingOffsetsByTimestamp",
        "BS",
        "",
        'the same by partition: `{"orders":{"0":1769853600000}}`; topics and partitions left out have the default',
    ),
    Option("endingOffsetsByTimestamp", "B", "", "the same; exclusive"),
    Option(
        "startingOffsetsByTimestampStrategy",
        "BS",
        "`error`",
        "if no record is at or after the starting time: `error`, or start at `latest`",
    ),
    Option(
        "where",
        "BS",
        "",
        "a condition on `timestamp`, `offset` and `partition` as in SQL: only matching records are returned, and data "
        "without any is not read; `spark_log.where(…)` sets it with the session's time zone",
    ),
    Option("timeZone", "BS", "", "the zone of times in `where` that have none: `Europe/Berlin`, `+01:00`, …"),
    Option(
        "group.id",
        "S",
        "",
        "start at the group's committed offsets if there is no checkpoint, and publish progress to it: "
        "[named progress](spark.md#named-progress)",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "S",
        "",
        "maximum records of a micro-batch, exactly, shared in proportion to the backlog of each partition",
    ),
    Option(
        "maxBytesPerTrigger", "S", "`1g`", "approximate maximum of stored bytes of a micro-batch; `none` for no limit"
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
        "with the previous option: `5s`, `15m`, `1 minute`; a bare number is milliseconds",
    ),
    Option("minPartitions", "BS", "", "desired number of tasks, split as Kafka's connector does"),
    Option("maxRecordsPerPartition", "BS", "", "maximum records of a task; also applies to open ends"),
    Option(
        "maxBytesPerPartition",
        "BS",
        "`32m`",
        "without the previous two options, tasks are split by bytes "
        "and read at most this; small partitions share a task",
    ),
    Option(
        "parallelism",
        "BS",
        "cores of the driver",
        "with the previous option: how many tasks the cluster runs in parallel. A read is split into as many, "
        "of 2 MiB at least",
    ),
    Option("includeHeaders", "BSWT", "`false`", "adds the column to a read; a write always uses it"),
    Option(
        "fetchOffset.numRetries",
        "BS",
        "`3`",
        "how often the driver asks a storage that does not answer; each time, requests are retried for about 25 s",
    ),
    Option("fetchOffset.retryIntervalMs", "BS", "`1000`", "with the previous option: the pause between attempts"),
    Option("kafkaConsumer.pollTimeoutMs", "BS", "", "no effect: tasks read from the storage, with its own timeouts"),
    Option("groupIdPrefix", "BS", "", "no effect: tasks join no consumer group"),
    Option(
        "failOnDataLoss",
        "BS",
        "`true`",
        "`false`: lost records (trimmed, expired, topic deleted or created again, a segment missing from the storage) "
        "give a warning for each range instead of an error",
    ),
)
WRITING = (
    Option("topic", "WT", "", "the topic of all rows; it takes precedence over the column"),
    Option(
        "partitioner",
        "WT",
        "`default`",
        "`default` or `murmur2` (Kafka's), `round-robin`, `sticky`, or a class of yours as `module:Class`",
    ),
    Option(
        "compression",
        "WT",
        "`zstd`",
        "`zstd`, `lz4`, `none`, if the topic's `compression.type` is `producer`",
    ),
    Option("acks", "WT", "`all`", "`0`, `1` and `all` are equal: success is reported when the data is durable"),
    Option("durability", "WT", "`disk`", "on a local disk, `os` does not wait for the disk"),
    Option(
        "badRecords",
        "WT",
        "`fail`",
        "`topic:NAME`: rows that cannot be written go to that topic, in the same "
        "commit and with the reason in their headers. `fail`: they fail the write",
    ),
    Option(
        "txnAppId",
        "W",
        "",
        "with `txnVersion`: the write happens once per application, version and the option `topic`",
    ),
    Option(
        "txnVersion",
        "W",
        "",
        "with `txnAppId`; an integer that grows. One at or below the last is skipped, "
        "with a warning in the log; the last one with other rows is an error",
    ),
    Option("producerId", "T", "", "a name of the stream's identity that outlives the checkpoint"),
    Option(
        "onOlderBatch",
        "WT",
        "`fail`",
        "for streams and `spark_log.sink`: the handling of a micro-batch older than the "
        "log's last one, after the checkpoint lost files or was replaced by an older copy. "
        "`skip`: it is not written, and its rows that are not in the log are lost",
    ),
    Option("kafka.acks", "WT", "", "as `acks`, which takes precedence"),
    Option(
        "kafka.compression.type", "WT", "", "as `compression`, which takes precedence; `gzip` and `snappy` are rejected"
    ),
    Option(
        "kafka.partitioner.class",
        "WT",
        "",
        "as `partitioner`, which takes precedence: "
        + ", ".join(f"`{name}` is `{ours}`" for name, ours in PARTITIONERS.items()),
    ),
    Option("kafka.partitioner.ignore.keys", "WT", "`false`", "`true` is `partitioner=sticky`"),
    Option("kafka.enable.idempotence", "WT", "`true`", "`false` has no effect: a retry never writes twice"),
)
SHARED = (
    Option("path", "BSWT", "", "the log's URL; `.load(URL)`, `.save(URL)` and `.start(URL)` set it"),
    Option(
        "kafka.bootstrap.servers",
        "BSWT",
        "",
        "the log's URL, or the address of a coordinator, for pipelines from Kafka; `path` takes precedence",
    ),
    Option("token", "BSWT", "", "for a coordinator that requires one; the default is the value of `PYLOG_TOKEN`"),
    Option("storage.*", "BSWT", "", "passed to fsspec: `storage.key`, `storage.secret`, `storage.endpoint_url`, …"),
    Option(
        "kafka.isolation.level",
        "BS",
        "",
        "`read_committed` or `read_uncommitted`, which are equal: there is nothing uncommitted to read",
    ),
)
ALL = (*READING, *WRITING, *SHARED)

SPARKS = ("paths", "checkpointLocation", "queryName")
"""Options that Spark sets."""
INTERNAL = ("pylog.txnFromQuery", "pylog.queryId", "pylog.checkpoint")
"""Set by `spark_log.sink`: the application is the streaming query, running or named; and its checkpoint."""

SPELLING = {name.lower(): name for name in (*(option.name for option in ALL), *SPARKS, *INTERNAL)}


def names(uses: str) -> set[str]:
    """Lower-case names of the options for any of `uses`."""
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
            "unknown one is an error that suggests the nearest. B batch "
            "read, S streaming read, W batch write, T streaming",
            "write.",
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
            "Any other `kafka.*` option is one of these, or an error. A "
            "setting that is rejected or supported only for reads has no",
            "effect on writes, and the other way round.",
            "",
            "### Refused",
            "",
            "| option | | instead |",
            "|---|---|---|",
            *(f"| `{setting.name}` | {' '.join(setting.used)} | {setting.instead} |" for setting in REFUSED),
            "",
            "### Accepted, without effect",
            "",
            "Named in one warning in the log.",
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
