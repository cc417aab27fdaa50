"""Every option of the data source: its name, where it is used, its default and its meaning, as data.

`docs/options.md` is `reference_markdown()`; `options.py` gives the texts their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


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
        "a Python regular expression that is searched in names; topics that come later are picked up",
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
    Option("maxBytesPerPartition", "BS", "`32m`", "otherwise tasks are cut by bytes; small partitions share one"),
    Option("includeHeaders", "BSWT", "`false`", "adds the column; a write always takes it"),
    Option(
        "failOnDataLoss",
        "BS",
        "`true`",
        "`false`: what is gone (trimmed, expired, topic deleted or created again) is a warning for each range instead of an error",
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
        "`lz4`",
        "`lz4`, `zstd`, `none`, where the topic's `compression.type` leaves it to the producer",
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
        "with `txnVersion`: the write happens once per (application, version, topics)",
    ),
    Option("txnVersion", "W", "", "with `txnAppId`; a whole number that grows"),
    Option("producerId", "T", "", "a name for the stream's identity that outlives the checkpoint"),
)
SHARED = (
    Option("path", "BSWT", "", "the log's URL; `.load(URL)`, `.save(URL)` and `.start(URL)` set it"),
    Option(
        "kafka.bootstrap.servers",
        "BSWT",
        "",
        "the log's URL, or the address of a coordinator, for pipelines that come from Kafka",
    ),
    Option("token", "BSWT", "", "for a coordinator that wants one; without it, what `PYLOG_TOKEN` holds"),
    Option("storage.*", "BSWT", "", "handed to fsspec: `storage.key`, `storage.secret`, `storage.endpoint_url`, …"),
    Option("kafka.isolation.level", "BS", "", "accepted: there is nothing uncommitted to read"),
)
ALL = (*READING, *WRITING, *SHARED)

SPARKS = ("paths", "checkpointLocation", "queryName")
"""What Spark itself puts among the options."""
INTERNAL = ("pylog.txnFromQuery", "pylog.queryId")
"""Set by `spark_log.sink`: the application is the streaming query that the tasks run in, or that is named."""

SPELLING = {name.lower(): name for name in (*(option.name for option in ALL), *SPARKS, *INTERNAL)}


def names(uses: str) -> set[str]:
    """Lower-case names of the options for any of `uses`."""
    return {option.name.lower() for option in ALL if set(option.used) & set(uses)}


def spelt(name: str) -> str:
    """The name as users read it."""
    return SPELLING.get(name, name)


REFUSED = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are bytes, cast them in the query",
    "kafka.value.deserializer": "values are bytes, cast them in the query",
    "kafka.key.serializer": "cast the column in the query",
    "kafka.value.serializer": "cast the column in the query",
    "kafka.enable.auto.commit": "a query's progress is in its checkpoint",
    "kafka.interceptor.classes": "there are no interceptors",
    "kafka.group.id": "use group.id, which also keeps the progress",
}
"""Options of Kafka's connector that have no place here: what to do instead."""


def reference_markdown() -> str:
    """The page `docs/options.md`."""
    return "\n".join(
        [
            '# Options of `format("pylog")`',
            "",
            "Generated from `datasource/pyspark_pylog/option_table.py` by `make docs`. Names are case-insensitive; an unknown one is an",
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
            "## Kafka's that are refused",
            "",
            "| option | instead |",
            "|---|---|",
            *(f"| `{name}` | {instead} |" for name, instead in REFUSED.items()),
            "",
        ]
    )


def _table(options: Iterable[Option]) -> Iterator[str]:
    yield "| option | | default | meaning |"
    yield "|---|---|---|---|"
    for option in options:
        yield f"| `{option.name}` | {' '.join(option.used)} | {option.default} | {option.meaning} |"
