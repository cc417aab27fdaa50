"""Every option of the data source, as data: its name, its uses, its default and its meaning.

`docs/option_reference.py` makes the page `docs/options.md` of it; `parse.py` converts the values.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_pylog.options.kafka_client_settings import PARTITIONERS
from spark_log.text import texts_by_heading


@dataclass(frozen=True, slots=True)
class Option:
    """One option, spelt as in the documentation; Spark passes names in lower case."""

    name: str
    used: str
    """B batch read, S streaming read, W batch write, T streaming write."""
    default: str
    """The default as shown; empty if there is none."""
    meaning: str


def _options(table: str) -> tuple[Option, ...]:
    """Read a table of options: `name | used | default` in a line, and the meaning in indented lines below it."""
    found = []
    for heading, meaning in texts_by_heading(table).items():
        name, used, default = (*heading.split(" | "), "")[:3]
        found.append(Option(name, used, default, meaning))
    return tuple(found)


READING = _options("""
subscribe | BS
    topics, separated by commas. Exactly one of the first three options is required. A topic that does not exist is
    an error. Subscribing to `__consumer_offsets` alone reads [the progress of all
    groups](spark-streams.md#named-progress)
subscribePattern | BS
    a Python regular expression, matched anywhere in the name; use `^…$` to match all of it. Topics that are created
    later are included; topics whose names begin with `__` are not. Syntax that only Java supports is rejected; the
    error shows the Python equivalent
assign | BS
    partitions to read, as JSON: `{"orders":[0,1]}`. A partition that does not exist is ignored
startingOffsets | BS | batch `earliest`, stream `latest`
    a position, or JSON of positions: `{"orders":{"0":23,"1":-2},"other":"latest-100"}`. Topics and partitions that
    the JSON leaves out have the default. A stream uses this option only if it has no checkpoint, and can have
    `latest-per-key` for all of its topics: [the latest record of each
    key](spark-read.md#the-latest-record-of-each-key), then all records that follow
endingOffsets | B | `latest`
    where to stop: a position, or JSON of positions. The record at the position is not read. A number beyond the end
    means the end
client.rack | BS
    the rack, zone or region in which the tasks run: of the brokers that have a copy of an object, tasks read from
    one in this rack first
startingTimestamp | BS
    start at the first record with a timestamp at or after this time, in milliseconds since 1970 or ISO-8601
endingTimestamp | B
    stop before the first record with a timestamp at or after this time
startingOffsetsByTimestamp | BS
    as `startingTimestamp`, by partition: `{"orders":{"0":1769853600000}}`. Those left out start at `earliest`
    (batch) or `latest` (stream)
endingOffsetsByTimestamp | B
    as `endingTimestamp`, by partition, in the same form. Those left out end at `latest`
startingOffsetsByTimestampStrategy | BS | `error`
    if no record has a timestamp at or after the starting time: `error` fails the read, `latest` starts at the end
    of the partition
view | B
    `latest`: only [the latest record of each key](spark-read.md#the-latest-record-of-each-key). Without this
    option, all records
columns | BS
    the columns of the frame, separated by commas, as in `columns=id,amount,offset`. The others are not decoded.
    Without this option, all columns; a schema does the same for a read, and can name columns that have a comma
key.format | BS | `binary`
    the type of the column `key`: `binary`, or `string` for [text](spark.md#keys-and-values-as-text)
value.format | BS | `columns`
    `string` gives a column `value` of [text](spark.md#keys-and-values-as-text) instead of bytes. The others are for
    [topics with a schema](spark-typed.md#topics-with-a-schema): `columns` gives each column of the value its own
    column, `struct` gives one column `value` with all of them, `json` gives a column `value` of bytes
value.parse | BS
    `json`: parses records that were written before their topic got its schema. Without this option, a read of such
    records is an error
where | BS
    a condition on `timestamp`, `offset`, `partition` and data columns, as in SQL. Only matching records are
    returned, and data that cannot match is not read. `spark_log.where(…)` sets this option, and `timeZone` to the
    session's time zone
timeZone | BS
    time zone for times in `where` that do not give one, such as `Europe/Berlin` or `+01:00`. Without this option,
    such times are an error
pushDown | BS | the setting `spark.pylog.pushDown`, by default `true`
    whether a batch query decodes only its columns, and skips records by its filters, in [a registered
    session](spark-read.md#reading-less). Without effect on a stream
nativeRead | BSW | the setting `spark.pylog.nativeRead`, by default `true`
    whether a query is read in the JVM where that is possible, in [a registered
    session](spark-read.md#read-in-the-jvm); and whether the rows of a batch [are encoded
    there](spark-write.md#encoded-in-the-jvm)
group.id | S
    publish the stream's progress to this consumer group, and start at the group's committed offsets if the stream
    has no checkpoint: [named progress](spark-streams.md#named-progress)
group.members | S
    how many queries [share the partitions](tasks/share-a-topic.md) of the group: 1 to 1000. `auto`: the coordinator
    divides them among those that run
group.member | S
    the number of this query among `group.members`, from 0. It reads the partitions whose number modulo
    `group.members` is this number
maxOffsetsPerTrigger | S
    exact limit on records per micro-batch, split in proportion to each partition's backlog
maxBytesPerTrigger | S | `1g`
    approximate limit on stored bytes per micro-batch; `none` removes the limit
minOffsetsPerTrigger | S
    wait until this many records are available, or `maxTriggerDelay` has passed since the last micro-batch
maxTriggerDelay | S | `15m`
    longest wait for `minOffsetsPerTrigger`: `5s`, `15m`, `1 minute`; a bare number is in milliseconds
minPartitions | BS
    desired number of tasks; ranges are split as in Kafka's connector
maxRecordsPerPartition | BS
    maximum records per task, also when the end is `latest` or relative to it
maxBytesPerPartition | BS | `32m`
    maximum bytes per task if neither of the previous two options is set; small partitions share a task
parallelism | BS | cores of the driver
    how many tasks the cluster runs in parallel, if tasks are split by bytes. A read is split into that many tasks,
    or a multiple of it, unless they would be smaller than 2 MiB
includeHeaders | BSWT | `false`
    adds the `headers` column to a read. A write needs no option: it always uses the column
fetchOffset.numRetries | BS | `3`
    total attempts of the driver, including the first, while the storage does not answer. In each attempt, requests
    are retried for about 25 s
fetchOffset.retryIntervalMs | BS | `1000`
    milliseconds between these attempts
kafkaConsumer.pollTimeoutMs | BS
    no effect: tasks read from the storage, which has its own timeouts
groupIdPrefix | BS
    no effect: tasks join no consumer group
failOnDataLoss | BS | `true`
    `true`: a read of lost records fails. `false`: each lost range gives a warning instead. Records are lost if they
    were trimmed or have expired, if their topic was deleted or created again, or if their segment is missing from
    the storage: [all cases](spark-streams.md#when-the-log-changes)
""")
WRITING = _options(
    """
topic | WT
    the topic of all rows; takes precedence over the `topic` column
value.columns | WT
    for [topics with a schema](spark-typed.md#topics-with-a-schema): the columns of the frame that are data,
    separated by commas. Without this option, all but `key`, `headers`, `partition`, `timestamp` and the other
    columns of a record
key.column | WT | `key`
    for topics with a schema: the column with the key, which may also be data
timestamp.column | WT | `timestamp`
    for topics with a schema: the column with the record's timestamp, which may also be data
partitioner | WT | `default`
    `default` (Kafka's default, also called `murmur2`), `round-robin`, `sticky`, or your own class as `module:Class`
compression | WT | `zstd`
    `zstd`, `lz4` or `none`; used only for topics whose `compression.type` is `producer`, the default
acks | WT | `all`
    `all`: the write waits for all in-sync replicas, and succeeds if at least `min.insync.replicas` of them have the
    data durably; `1`: it waits for the leader's copy, and readers see the records when all in-sync replicas have
    them; `0`: treated as `1`, because the job ends with the commit. `0` and `1` are for batch writes without
    `txnVersion`; exactly-once writes need `all`
durability | WT | `disk`
    for a log on a local disk: `disk` syncs files before success is reported, `os` leaves that to the operating
    system
create | WT | `true`
    create the log if the URL has none, with a warning. `false`: the write fails, so that a folder that was lost, or
    of which the disk is not mounted, gets no new log
badRecords | WT | `fail`
    `fail`: a row that cannot be written fails the write. `topic:NAME`: such rows go to that topic, in the same
    commit, with the reason in their headers
txnAppId | W
    name of the application that writes. With `txnVersion`, a write happens only once for each application, version
    and value of the option `topic`; a topic that was deleted and created again is another one
txnVersion | W
    with `txnAppId`: a whole number that grows with each write. A version at or below the last one is skipped, with
    a warning in the driver's log; repeating the last one with a different number of rows is an error
producerId | T
    name for the stream's identity. A query with a new checkpoint and the same name takes over from the old query,
    which can no longer write
onOlderBatch | WT | `fail`
    for streams and `spark_log.sink`: what happens to a micro-batch that is older than the last one in the log,
    because the checkpoint lost files or was replaced by an older copy. `fail`: the query stops. `skip`: the batch
    is not written, and those of its rows that are not in the log are lost
kafka.acks | WT
    the same as `acks`, which takes precedence
kafka.compression.type | WT
    the same as `compression`, which takes precedence; `gzip` and `snappy` are rejected
kafka.partitioner.class | WT
    the same as `partitioner`, which takes precedence, with the names of Kafka's classes: {classes}
kafka.partitioner.ignore.keys | WT | `false`
    `true` is the same as `partitioner=sticky`
kafka.enable.idempotence | WT | `true`
    `false` has no effect: a retry never writes twice
""".replace("{classes}", ", ".join(f"`{name}` is `{ours}`" for name, ours in PARTITIONERS.items()))
)
SHARED = _options("""
path | BSWT
    the log's URL; `.load(URL)`, `.save(URL)` and `.start(URL)` set it
kafka.bootstrap.servers | BSWT
    the log's URL, or the address of a coordinator, for pipelines that were written for Kafka; `path` takes
    precedence
token | BSWT | value of `PYLOG_TOKEN`
    the token for a coordinator that requires one
storage.* | BSWT
    passed to fsspec: `storage.key`, `storage.secret`, `storage.endpoint_url`, …; `storage.1.key` is for the root of
    broker 1
kafka.isolation.level | BS
    `read_committed` and `read_uncommitted` have the same effect: nothing uncommitted is ever in the log
""")
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
