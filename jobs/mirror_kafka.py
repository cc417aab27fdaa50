"""Copies topics from Kafka into a log, with keys, headers, timestamps and the positions of consumer groups.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION jobs/mirror_kafka.py \\
        --bootstrap-servers host:9092 --topics orders,payments \\
        --url s3://bucket/log --checkpoint s3://bucket/mirror --groups '*'

Every record is copied once, in its partition and in order, even if the job is killed.  Each run continues where the
last one ended.  The topic --map maps offsets in Kafka to offsets here, and committed positions of groups are set to the
same records here.  To cut over, stop the producers, run this once more, and start producers and consumers on the log.
With --schema orders=FILE, the JSON of a topic's values becomes the columns of a schema.
See docs/from-kafka.md for the steps.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark_pylog.typed_mirror import TypedCopy, spark_columns_of, with_typed_map

import spark_log
from spark_log import Log, NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.cli.base import parse_duration
from spark_log.cli.topics import read_schema
from spark_log.client.mirror_map import Copied, Copy, MirrorMap, with_map
from spark_log.client.topics import DEAD_LETTER_CONFIGS
from spark_log.errors import GroupIdNotFound, InvalidConfig, InvalidRequest, NoLog, SequenceConflict, SparkLogError
from spark_log.settings import TOPIC_CONFIGS, has_cleanup_policy, validate_topic_configs
from spark_log.text import counted

TIMEOUT_MS = 60_000
NOTE = "kafka:"
"""Metadata of positions set by this job, which it may change; positions committed by consumers here are left alone."""
RECORD = "topic string, partition int, key binary, value binary, timestamp timestamp, headers array<struct<key: string, value: binary>>"
OWN_TIME = "message.timestamp.type"
MIN_INSYNC = "min.insync.replicas"
"""Not copied: the copy keeps the timestamps of the records."""


class KafkaTopic(NamedTuple):
    """A topic in Kafka."""

    id: str
    partitions: int
    configs: Mapping[str, str]
    """The configs that differ from Kafka's defaults."""
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    """At the beginning of the run, which copies up to here."""

    def end(self, tp: TopicPartition) -> int:
        """0 for a new partition: all of it is to be copied."""
        return self.ends[tp.partition] if 0 <= tp.partition < self.partitions else 0


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", required=True, help="Kafka's")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--topics", type=_names, help="separated by commas")
    which.add_argument(
        "--pattern", type=_pattern, help="a regular expression that is searched in names; looked up in every run"
    )
    parser.add_argument("--url", required=True, help="the log, file:///… or s3://…")
    parser.add_argument("--checkpoint", required=True, help="a folder for Spark's checkpoints, kept from run to run")
    parser.add_argument("--map", default="kafka-mirror-map", help="the topic for the map of offsets (%(default)s)")
    groups = parser.add_mutually_exclusive_group()
    groups.add_argument("--groups", type=_names, default=(), help="groups to copy, separated by commas; '*' for all")
    groups.add_argument(
        "--group-offsets", type=Path, metavar="FILE", help='instead of Kafka: {"group":{"topic":{"0":42}}}'
    )
    parser.add_argument(
        "--max-offsets", type=int, default=1_000_000, help="of a micro-batch of one topic (%(default)s)"
    )
    parser.add_argument("--parallel", type=int, default=4, help="topics that are copied at a time (%(default)s)")
    parser.add_argument("--every", type=_duration, metavar="DURATION", help="repeat this often, for ever")
    parser.add_argument(
        "--schema",
        action="append",
        default=[],
        type=_pair,
        metavar="TOPIC=DDL|FILE",
        help="parse the JSON of this topic's values into these columns; may be repeated",
    )
    parser.add_argument(
        "--bad-records",
        default="",
        metavar="TOPIC",
        help="for records that do not fit the schema of their topic (default: they stop the job)",
    )
    parser.add_argument("--drop-fields", action="store_true", help="leave out fields of the JSON that the schema lacks")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done")
    parser.add_argument(
        "--kafka-option",
        action="append",
        default=[],
        type=_pair,
        metavar="NAME=VALUE",
        help="for Spark's Kafka source; kafka.* options also for this job's client, e.g. kafka.security.protocol=SSL",
    )
    parser.add_argument("--storage-option", action="append", default=[], type=_pair, metavar="KEY=VALUE")
    return parser.parse_args(args)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError("no names given")
    return names


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a Python regular expression: {error}") from error


def _duration(text: str) -> int:
    try:
        return parse_duration(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


# ----------------------------------------------------------------------------------------------------- what is in Kafka


class Kafka:
    """Queries Kafka, with the client of Spark's connector."""

    def __init__(self, spark: SparkSession, servers: str, options: Mapping[str, str]) -> None:
        self._jvm: Any = spark._jvm
        client = self._jvm.org.apache.kafka.clients.admin.AdminClient
        if not hasattr(client, "create"):
            raise InvalidRequest(
                "Spark's Kafka connector is not there: spark-submit --packages "
                "org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION"
            )
        own = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
        self._committed = own.pop("isolation.level", "read_committed") == "read_committed"
        self._admin = self._call(lambda: client.create({"bootstrap.servers": servers, **own}))

    def close(self) -> None:
        self._admin.close()

    def topics(self, wanted: Sequence[str] | re.Pattern[str]) -> dict[str, KafkaTopic]:
        """Current topics by name.  Raises InvalidRequest for a missing one."""
        known = set(self._get(self._admin.listTopics().names()))
        if isinstance(wanted, re.Pattern):
            wanted = sorted(name for name in known if wanted.search(name))
        if missing := sorted(set(wanted) - known):
            raise InvalidRequest(f"Kafka has no topic {missing[0]!r}; it has {', '.join(sorted(known)) or 'none'}")
        described = self._get(self._admin.describeTopics(list(wanted)).allTopicNames())
        partitions = {name: described[name].partitions().size() for name in wanted}
        configs = self._configs(wanted)
        starts, ends = self._offsets(partitions, "earliest"), self._offsets(partitions, "latest")
        return {
            name: KafkaTopic(
                described[name].topicId().toString(), partitions[name], configs[name], starts[name], ends[name]
            )
            for name in wanted
        }

    def _configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Configs set on topics, and settings of the brokers that apply to the rest and are supported here."""
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource
        wanted = {name: resource(resource.Type.TOPIC, name) for name in topics}
        found = self._get(self._admin.describeConfigs(list(wanted.values())).all())
        return {
            name: {one.name(): one.value() for one in found[key].entries().toArray() if _is_set(one)}
            for name, key in wanted.items()
        }

    def _offsets(self, partitions: Mapping[str, int], which: str) -> dict[str, tuple[int, ...]]:
        spec = getattr(self._jvm.org.apache.kafka.clients.admin.OffsetSpec, which)()
        level = self._jvm.org.apache.kafka.common.IsolationLevel.valueOf(
            "READ_COMMITTED" if self._committed else "READ_UNCOMMITTED"
        )
        options = self._jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
        keys = {name: [self._tp(name, number) for number in range(count)] for name, count in partitions.items()}
        asked = {key: spec for each in keys.values() for key in each}
        found = self._get(self._admin.listOffsets(asked, options).all())
        return {name: tuple(found[key].offset() for key in each) for name, each in keys.items()}

    def groups(self) -> list[str]:
        """Names of all consumer groups."""
        return sorted(one.groupId() for one in self._get(self._admin.listConsumerGroups().all()).toArray())

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The committed offsets of a group."""
        found = self._get(self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
        return {TopicPartition(tp.topic(), tp.partition()): at.offset() for tp, at in found.items() if at is not None}

    def _tp(self, topic: str, partition: int) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(topic, partition)

    def _get(self, future: Any) -> Any:
        return self._call(lambda: future.get(TIMEOUT_MS, self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS))

    @staticmethod
    def _call(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause.getCause() is not None:
                cause = cause.getCause()
            raise InvalidRequest(f"the request to Kafka failed: {cause.toString()}") from error


def _is_set(config: Any) -> bool:
    source, known = config.source().name(), TOPIC_CONFIGS.get(config.name())
    of_brokers = source != "DEFAULT_CONFIG" and known is not None and known.in_force
    return source == "DYNAMIC_TOPIC_CONFIG" or of_brokers


# ---------------------------------------------------------------------------------------------------------- the copying


def mirror(spark: SparkSession, args: argparse.Namespace, kafka: Kafka, log: Log) -> bool:
    """One run: all records that were in Kafka when it began, and the groups.  Whether every group could be copied."""
    groups = group_offsets(args, kafka)  # before the ends: a group that moves meanwhile would be beyond them
    sources = kafka.topics(args.topics or args.pattern)
    offsets = MirrorMap(log, args.map)
    check_names(args, sources)
    prepare(log, sources, dict(args.schema))
    if args.bad_records:
        prepare_dead_letters(log, args.bad_records)
    offsets.create()
    offsets.check(sources)
    copied = offsets.copied()
    check_sources(sources, copied)
    copy_topics(spark, args, log, {name: one for name, one in sources.items() if left(name, one, copied)}, copied)
    offsets.check(sources)
    after = offsets.copied()
    for name in sources:
        total, before = records_of(name, after), records_of(name, copied)
        print(f"{name}: {counted(total - before, 'record')} copied, {total:,} in all", flush=True)
    return seed_groups(log, offsets, sources, groups)


def left(topic: str, source: KafkaTopic, copied: Mapping[TopicPartition, Copied]) -> int:
    """Offsets between the copied part and the end; not all of them need be records."""
    ends = enumerate(source.ends)
    return sum(max(end - max(reached(copied, topic, n), source.starts[n]), 0) for n, end in ends)


def reached(copied: Mapping[TopicPartition, Copied], topic: str, partition: int) -> int:
    known = copied.get(TopicPartition(topic, partition))
    return known.end if known else 0


def records_of(topic: str, copied: Mapping[TopicPartition, Copied]) -> int:
    return sum(one.records for tp, one in copied.items() if tp.topic == topic)


def check_names(args: argparse.Namespace, sources: Iterable[str]) -> None:
    """Raises InvalidRequest for a topic of the job that is one of those to copy, and for a schema of another topic."""
    for option, topic in (("--map", args.map), ("--bad-records", args.bad_records)):
        if topic in sources:
            raise InvalidRequest(f"{option}: {topic!r} is one of the topics to copy; give another name")
    for topic, _ in args.schema:
        if topic not in sources:
            raise InvalidRequest(f"--schema {topic}=…: {topic!r} is not one of the topics to copy")


def prepare_dead_letters(log: Log, topic: str) -> None:
    """Create the topic for records that do not fit.  Raises InvalidRequest if it has a schema."""
    if topic not in log.admin.list_topics():
        log.admin.create_topics([NewTopic(topic, configs=DEAD_LETTER_CONFIGS)])
    elif log.admin.describe_schema(topic):
        raise InvalidRequest(
            f"--bad-records: topic {topic!r} has a schema, and bad records are bytes: name another one"
        )


def prepare(log: Log, sources: Mapping[str, KafkaTopic], schemas: Mapping[str, str] = MappingProxyType({})) -> None:
    """Create missing topics, and partitions that were added in Kafka, and set schemas."""
    known = log.admin.list_topics()
    for name, source in sources.items():
        if name not in known:
            configs, notes = carried(source.configs)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                log.admin.create_topics([NewTopic(name, source.partitions, configs)])
            for note in (*notes, *(str(one.message) for one in said)):
                print(f"{name}: {note}", flush=True)
        elif len(log.admin.describe_topics([name])[name].partitions) < source.partitions:
            log.admin.create_partitions({name: source.partitions})
        if name in schemas:
            log.admin.alter_schema(name, read_schema(schemas[name]))


def carried(configs: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Kafka's configs that mean the same here, and messages about the others."""
    taken: dict[str, str] = {}
    notes: list[str] = []
    for name, value in sorted(configs.items()):
        if name == OWN_TIME:
            notes.append(
                f"{name}={value} is left out: the copy keeps the records' timestamps; set it after the cut-over"
            )
        elif name == MIN_INSYNC and value != "1":
            notes.append(f"{name}={value} is left out: the copy has other replicas; set it after the cut-over")
        elif name in TOPIC_CONFIGS:
            try:
                validate_topic_configs({name: value})
                taken[name] = value
            except InvalidConfig as error:
                notes.append(f"{name}={value} is left out: {error}")
        else:
            notes.append(f"{name}={value} is left out: unknown config")
    return taken, notes


def check_sources(sources: Mapping[str, KafkaTopic], copied: Mapping[TopicPartition, Copied]) -> None:
    for tp, one in copied.items():
        if tp.topic in sources and sources[tp.topic].id != one.source:
            raise InvalidRequest(
                f"topic {tp.topic!r} was deleted and created again in Kafka since it was copied: delete it here, "
                "so that "
                "the new one is copied from its start, or leave it out"
            )


def copy_topics(
    spark: SparkSession,
    args: argparse.Namespace,
    log: Log,
    sources: Mapping[str, KafkaTopic],
    copied: Mapping[TopicPartition, Copied],
) -> None:
    """Copy topics, some at a time.  If one fails, the others are stopped, and the next run continues them all."""
    running: deque[StreamingQuery] = deque()
    try:
        for name, source in sources.items():
            if len(running) == args.parallel:
                running[0].awaitTermination()
                running.popleft()
            running.append(start_copy(spark, args, log, name, source, copied))
        for query in running:
            query.awaitTermination()
    finally:
        for query in running:
            query.stop()


def start_copy(
    spark: SparkSession,
    args: argparse.Namespace,
    log: Log,
    topic: str,
    source: KafkaTopic,
    copied: Mapping[TopicPartition, Copied],
) -> StreamingQuery:
    """The query that copies a topic up to its current end.

    The sink writes a micro-batch once, records and map in one commit.  If Spark or a new checkpoint repeats it, the
    map shows where to continue.  The producer's name fences other copiers of the topic.
    """
    known = log.admin.describe_topics([topic])[topic]
    topic_id, compacted = known.topic_id, has_cleanup_policy(known.configs, "compact")
    starts = {str(n): reached(copied, topic, n) or -2 for n in range(source.partitions)}
    options = {
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": args.max_offsets,
        **dict(args.kafka_option),
    }
    copy = Copy(topic, topic_id, source.id, args.map, compacted)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps({topic: starts}))
        .options(**options)
        .option("includeHeaders", True)
        .load()
        .select("topic", "partition", "offset", "key", "value", "timestamp", "headers")
    )
    return (
        copied_rows(log, args, copy, records)
        .options(**{f"storage.{name}": value for name, value in args.storage_option})
        .option("producerId", f"{args.map}/{topic}")
        .option("checkpointLocation", f"{args.checkpoint.rstrip('/')}/{topic}-{topic_id}")
        .queryName(f"mirror of {topic}")
        .trigger(availableNow=True)
        .start(args.url)
    )


def copied_rows(log: Log, args: argparse.Namespace, copy: Copy, records: DataFrame) -> DataStreamWriter:
    """The write of records with their map entries: as they are, or parsed if the topic has a schema."""
    schemas = log.admin.describe_schema(copy.topic)
    if not schemas:
        return records.mapInArrow(partial(with_map, copy), RECORD).writeStream.format("pylog")
    typed = TypedCopy(copy, schemas[-1], args.bad_records, args.drop_fields)
    rows = records.mapInArrow(partial(with_typed_map, typed), spark_columns_of(typed.schema))
    return rows.writeStream.format("pylog").option("topic", copy.topic).option("pylog.beside", True)


# ----------------------------------------------------------------------------------------------------------- the groups

Positions = Mapping[str, Mapping[TopicPartition, int]]
"""Committed positions of groups, as Kafka's offsets."""


def group_offsets(args: argparse.Namespace, kafka: Kafka) -> Positions:
    if args.group_offsets is not None:
        return read_positions(args.group_offsets)
    return {group: kafka.committed(group) for group in (kafka.groups() if args.groups == ("*",) else args.groups)}


def read_positions(path: Path) -> Positions:
    """Positions from a file.  Raises InvalidRequest with the expected form."""
    try:
        found = json.loads(path.read_text())
        return {
            group: {
                TopicPartition(topic, int(n)): int(at) for topic, parts in topics.items() for n, at in parts.items()
            }
            for group, topics in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f'--group-offsets {path}: {error}; the shape is {{"group":{{"topic":{{"0":42}}}}}}'
        ) from error


def seed_groups(log: Log, offsets: MirrorMap, sources: Mapping[str, KafkaTopic], groups: Positions) -> bool:
    """Set groups here to the records of their positions in Kafka; whether all could be set."""
    wanted = {(group, tp): at for group, known in groups.items() for tp, at in known.items() if tp.topic in sources}
    beyond = {key: at for key, at in wanted.items() if at > sources[key[1].topic].end(key[1])}
    found = offsets.translate((tp, at) for (group, tp), at in wanted.items() if (group, tp) not in beyond)
    for group in groups:
        mine = positions_here(log, group)
        new = {
            tp: OffsetAndMetadata(found[tp, at], f"{NOTE}{at}")
            for (one, tp), at in wanted.items()
            if one == group and (tp, at) in found
        }
        theirs = sorted(tp for tp in new if tp in mine and not mine[tp].metadata.startswith(NOTE))
        changed = {tp: at for tp, at in new.items() if tp not in theirs and mine.get(tp) != at}
        if changed:
            log.admin.alter_consumer_group_offsets(group, changed)
        print(f"group {group}: {len(new) - len(theirs)} positions, {len(changed)} of them new", flush=True)
        for tp in theirs:
            print(
                f"group {group}: {tp.topic}-{tp.partition} is left at {mine[tp].offset}, which a consumer here "
                "committed"
            )
    for (group, tp), at in beyond.items():
        print(
            f"group {group}: {tp.topic}-{tp.partition} is at {at} in Kafka, beyond what was copied; run this once more"
        )
    return not beyond


def positions_here(log: Log, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
    try:
        return log.admin.list_consumer_group_offsets(group)
    except GroupIdNotFound:
        return {}


# -------------------------------------------------------------------------------------------------------------- running


def plan(args: argparse.Namespace, kafka: Kafka, storage: Mapping[str, str]) -> None:
    """Print what a run would do."""
    sources = kafka.topics(args.topics or args.pattern)
    try:
        copied = MirrorMap(spark_log.connect(args.url, storage, create=False), args.map).copied()
    except NoLog:
        copied = {}
    check_sources(sources, copied)
    for name, source in sources.items():
        offsets = left(name, source, copied)
        print(
            f"{name}: {counted(source.partitions, 'partition')}, {counted(offsets, 'offset')} to copy, "
            f"{counted(records_of(name, copied), 'record')} copied before"
        )
        for note in carried(source.configs)[1]:
            print(f"{name}: {note}")
    for group, known in group_offsets(args, kafka).items():
        print(f"group {group}: {sum(tp.topic in sources for tp in known)} positions")


def run(spark: SparkSession, args: argparse.Namespace) -> bool:
    """All runs; whether the last one was complete."""
    storage = dict(args.storage_option)
    kafka = Kafka(spark, args.bootstrap_servers, dict(args.kafka_option))
    try:
        if args.dry_run:
            plan(args, kafka, storage)
            return True
        with spark_log.connect(args.url, storage) as log:
            while True:
                done = mirror(spark, args, kafka, log)
                if args.every is None:
                    return done
                time.sleep(args.every / 1000)
    finally:
        kafka.close()


def explained(error: str, checkpoint: str) -> str:
    """The error, with instructions if a checkpoint is behind the log."""
    if SequenceConflict.__name__ not in error:
        return error
    return (
        f"{error}\nThe map of offsets says how far the topic was copied: delete the topic's folder in {checkpoint} "
        "and run this "
        "again; it continues there, and nothing is lost or copied twice"
    )


def main() -> None:
    args = parse_args()
    spark = SparkSession.builder.appName("pylog mirror of Kafka").getOrCreate()
    spark_log.register(spark)
    spark_log.tune(spark)
    try:
        done = run(spark, args)
    except (SparkLogError, StreamingQueryException) as error:
        sys.exit(explained(str(error), args.checkpoint))
    finally:
        spark.stop()
    sys.exit(not done)


if __name__ == "__main__":
    main()
