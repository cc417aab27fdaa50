"""Every option of the data source: its name, where it is used, its default and its meaning, as data.

`docs/options.md` is `reference_markdown()`; `parse.py` gives the texts their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_pylog.options.kafka_client_settings import PARTITIONERS, REFUSED, WITHOUT_EFFECT


@dataclass(frozen=True, slots=True)
class Option:
    """One option, spelt as users read it; Spark hands over names in lower case."""

    name: str
    used: str
    """B batch read, S streaming read, W batch write, T streaming write."""
    default: str
    """As it is shown; empty if there is none."""
    meaning: str


READING = (
    Option(
        "subscribe",
        "BS",
        "",
        "topics, separated by commas. One of the first three must be there. A topic that does not exist is an error. "
        "`__consumer_offsets` alone is [all progress of groups](spark.md#named-progress)",
    ),
    Option(
        "subscribePattern",
        "BS",
        "",
        "a Python regular expression that is searched in names, `^…$` for whole ones; topics that come later are picked up, "
        "names that begin with `__` never. What only Java's dialect has is refused, with Python's way to write it",
    ),
    Option("assign", "BS", "", '`{"orders":[0,1]}`; a partition that does not exist is left out'),
    Option(
        "startingOffsets",
        "BS",
        "batch `earliest`, stream `latest`",
        'a position, or JSON of positions: `{"orders":{"0":23,"1":-2},"other":"latest-100"}`; what is left out has the '
        "default. In a stream only for the first start: then the checkpoint says where",
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
        'the same by partition: `{"orders":{"0":1769853600000}}`; what is left out has the default',
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
        "a condition on `timestamp`, `offset` and `partition` as in SQL: other records are left out, and what holds none that "
        "match is not read; `spark_log.where(…)` gives it with the session's time zone",
    ),
    Option("timeZone", "BS", "", "of times in `where` that are written without one: `Europe/Berlin`, `+01:00`, …"),
    Option(
        "group.id",
        "S",
        "",
        "start where the group stands if there is no checkpoint, and publish progress to it: "
        "[named progress](spark.md#named-progress)",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "S",
        "",
        "records of a micro-batch, exactly, shared in proportion to what waits in each partition",
    ),
    Option("maxBytesPerTrigger", "S", "`1g`", "about so many stored bytes of a micro-batch; `none` for no limit"),
    Option(
        "minOffsetsPerTrigger",
        "S",
        "",
        "no micro-batch before so many records wait, or `maxTriggerDelay` has passed since the last one",
    ),
    Option(
        "maxTriggerDelay",
        "S",
        "`15m`",
        "with the option before: `5s`, `15m`, `1 minute`; a bare number is milliseconds",
    ),
    Option("minPartitions", "BS", "", "split as Kafka's connector does"),
    Option("maxRecordsPerPartition", "BS", "", "no task reads more records; works with open ends, too"),
    Option(
        "maxBytesPerPartition",
        "BS",
        "`32m`",
        "without the two before, tasks are cut by bytes, and read no more than this; small partitions share one",
    ),
    Option(
        "parallelism",
        "BS",
        "cores of the driver",
        "with the option before: how many tasks the cluster runs at once. A read is cut into as many, of 2 MiB at least",
    ),
    Option("includeHeaders", "BSWT", "`false`", "adds the column; a write always takes it"),
    Option(
        "fetchOffset.numRetries",
        "BS",
        "`3`",
        "how often the driver asks a storage that does not answer; each time, requests are repeated for about 25 s",
    ),
    Option("fetchOffset.retryIntervalMs", "BS", "`1000`", "with the option before: how long it waits in between"),
    Option(
        "kafkaConsumer.pollTimeoutMs", "BS", "", "without effect: tasks read from the storage, with its own timeouts"
    ),
    Option("groupIdPrefix", "BS", "", "without effect: tasks join no consumer group"),
    Option(
        "failOnDataLoss",
        "BS",
        "`true`",
        "`false`: what is gone (trimmed, expired, topic deleted or created again, a segment missing from the storage) is a "
        "warning for each range instead of an error",
    ),
)
WRITING = (
    Option("topic", "WT", "", "where all rows go; it wins over the column"),
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
        "`zstd`, `lz4`, `none`, where the topic's `compression.type` leaves it to the producer",
    ),
    Option("acks", "WT", "`all`", "`0`, `1` and `all` are one: success is reported when the data is durable"),
    Option("durability", "WT", "`disk`", "on a local disk, `os` does not wait for it"),
    Option(
        "badRecords",
        "WT",
        "`fail`",
        "`topic:NAME`: rows that cannot be written go to that topic, in the same commit and with the reason in their headers. "
        "`fail`: they fail the write",
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
        "with `txnAppId`; a whole number that grows. One at or below the last is skipped, with a warning in the log; the last one with other rows is an error",
    ),
    Option("producerId", "T", "", "a name for the stream's identity that outlives the checkpoint"),
    Option(
        "onOlderBatch",
        "WT",
        "`fail`",
        "of streams and `spark_log.sink`: what happens to a micro-batch that the log has passed, because the checkpoint lost files "
        "or is an older copy. `skip`: it is not written, and rows of it that are not in the log are lost",
    ),
    Option("kafka.acks", "WT", "", "as `acks`, which goes before it"),
    Option(
        "kafka.compression.type", "WT", "", "as `compression`, which goes before it; `gzip` and `snappy` are refused"
    ),
    Option(
        "kafka.partitioner.class",
        "WT",
        "",
        "as `partitioner`, which goes before it: "
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
        "the log's URL, or the address of a coordinator, for pipelines that come from Kafka; `path` goes before it",
    ),
    Option("token", "BSWT", "", "for a coordinator that wants one; without it, what `PYLOG_TOKEN` holds"),
    Option("storage.*", "BSWT", "", "handed to fsspec: `storage.key`, `storage.secret`, `storage.endpoint_url`, …"),
    Option(
        "kafka.isolation.level",
        "BS",
        "",
        "`read_committed` or `read_uncommitted`, which are the same: there is nothing uncommitted to read",
    ),
)
ALL = (*READING, *WRITING, *SHARED)

SPARKS = ("paths", "checkpointLocation", "queryName")
"""What Spark itself puts among the options."""
INTERNAL = ("pylog.txnFromQuery", "pylog.queryId", "pylog.checkpoint")
"""Set by `spark_log.sink`: the application is the streaming query that the tasks run in, or that is named; its checkpoint."""

SPELLING = {name.lower(): name for name in (*(option.name for option in ALL), *SPARKS, *INTERNAL)}


def names(uses: str) -> set[str]:
    """Lower-case names of the options for any of `uses`."""
    return {option.name.lower() for option in ALL if set(option.used) & set(uses)}


def spelt(name: str) -> str:
    """The name as users read it."""
    return SPELLING.get(name, name)


def reference_markdown() -> str:
    """The page `docs/options.md`."""
    return "\n".join(
        [
            '# Options of `format("pylog")`',
            "",
            "Generated from `datasource/pyspark_pylog/options/option_table.py` by `make docs`. Names are case-insensitive; an unknown one is an",
            "error that suggests the nearest. B batch read, S streaming read, W batch write, T streaming write.",
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
            "Any other `kafka.*` option is one of these, or an error. What is refused or honoured on one side only has no effect on the",
            "other.",
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
