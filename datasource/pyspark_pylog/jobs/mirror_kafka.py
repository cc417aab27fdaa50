"""Copies topics from Kafka into a log, with keys, headers, timestamps and the positions of consumer groups.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION jobs/mirror_kafka.py \\
        --bootstrap-servers host:9092 --topics orders,payments \\
        --url s3://bucket/log --checkpoint s3://bucket/mirror --groups '*'

Every record is copied once, in its partition and in order, even if the job is killed.  Each run continues where the
last one ended.  The topic --map maps offsets in Kafka to offsets here, and committed positions of groups are set to the
same records here.  To cut over, stop the producers, run this once more, and start producers and consumers on the log.
With --schema orders=FILE, the JSON of a topic's values becomes the columns of a schema.

The last line of standard output is a summary in JSON.  Exit status: 0 done, 1 refused or failed, or a group could not
be set, 2 wrong usage.  See docs/from-kafka.md for the steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from pyspark_pylog.jobs.job_support import PassingFailure, add_key_values, job_parser, of_network, parse_rounds, run_job
from pyspark_pylog.jobs.mirror_job import add_mirror_arguments, check_mirror, run_mirror, settings_of, topics_of
from pyspark_pylog.jobs.topic_mirror import Positions, SourceTopic
from pyspark_pylog.registration import register
from pyspark_pylog.tune import tune
from spark_log.cli.commands.topics import read_schema
from spark_log.configs.settings import TOPIC_CONFIGS
from spark_log.errors import InvalidRequest
from spark_log.model import TopicPartition

TIMEOUT_MS = 60_000
NOTE = "kafka:"
"""Metadata of positions set by this job, which it may change; positions committed by consumers here are left alone."""


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("--bootstrap-servers", required=True, help="Kafka's")
    add_key_values(
        parser,
        "--kafka-option",
        "for Spark's Kafka source; kafka.* options also for this job's client, e.g. kafka.security.protocol=SSL",
    )
    groups = add_mirror_arguments(parser, "kafka-mirror-map")
    groups.add_argument(
        "--group-offsets", type=Path, metavar="FILE", help='instead of Kafka: {"group":{"topic":{"0":42}}}'
    )
    add_key_values(parser, "--schema", "parse the JSON of this topic's values into these columns", "TOPIC=DDL|FILE")
    return parse_rounds(parser, "show what would be done", args)


# ----------------------------------------------------------------------------------------------------- what is in Kafka


class Kafka:
    """Queries Kafka, with the client of Spark's connector."""

    def __init__(self, spark: SparkSession, servers: str, options: Mapping[str, str]) -> None:
        self._jvm = cast(Any, spark._jvm)
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

    def topics(self) -> list[str]:
        """Names of all topics."""
        return sorted(self._get(self._admin.listTopics().names()))

    def describe(self, wanted: Sequence[str]) -> dict[str, SourceTopic]:
        """Topics by name, as they are now."""
        described = self._get(self._admin.describeTopics(wanted).allTopicNames())
        partitions = {name: described[name].partitions().size() for name in wanted}
        configs = self._configs(wanted)
        starts, ends = self._offsets(partitions, "earliest"), self._offsets(partitions, "latest")
        return {
            name: SourceTopic(
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
            kind = PassingFailure if of_network(cause.toString()) else InvalidRequest
            raise kind(f"the request to Kafka failed: {cause.toString()}") from error


def _is_set(config: Any) -> bool:
    source, known = config.source().name(), TOPIC_CONFIGS.get(config.name())
    of_brokers = source != "DEFAULT_CONFIG" and known is not None and known.in_force
    return source == "DYNAMIC_TOPIC_CONFIG" or of_brokers


# ----------------------------------------------------------------------------------------------------- what is copied


class KafkaSource:
    """Kafka, as the arguments of a job name it."""

    name, note = "Kafka", NOTE

    def __init__(self, spark: SparkSession, args: argparse.Namespace, kafka: Kafka) -> None:
        self._spark, self._args, self._kafka = spark, args, kafka
        self._schemas = dict(args.schema)

    def topics(self) -> dict[str, SourceTopic]:
        found = self._kafka.describe(topics_of(self._args, self._kafka.topics(), self.name))
        for topic in self._schemas:
            if topic not in found:
                raise InvalidRequest(f"--schema {topic}=…: {topic!r} is not one of the topics to copy")
        return {name: one._replace(schema=read_schema(self._schemas.get(name))) for name, one in found.items()}

    def positions(self) -> Positions:
        if self._args.group_offsets is not None:
            return read_positions(self._args.group_offsets)
        wanted = self._kafka.groups() if self._args.groups == ("*",) else self._args.groups
        return {group: self._kafka.committed(group) for group in wanted}

    def records(self, topic: str, starts: Mapping[str, int]) -> DataFrame:
        options = {
            "kafka.isolation.level": "read_committed",
            "maxOffsetsPerTrigger": self._args.max_offsets,
            **dict(self._args.kafka_option),
        }
        return (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._args.bootstrap_servers)
            .option("subscribe", topic)
            .option("startingOffsets", json.dumps({topic: starts}))
            .options(**options)
            .option("includeHeaders", True)
            .load()
        )


def read_positions(path: Path) -> Positions:
    """Positions from a file.  Raises InvalidRequest with the expected form."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
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


# -------------------------------------------------------------------------------------------------------------- running


def check_args(args: argparse.Namespace) -> None:
    """Raises for an unreadable file of positions or columns, and for a log that cannot be copied to."""
    if args.group_offsets is not None:
        read_positions(args.group_offsets)
    check_mirror(args)


def run(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """All runs; the summary and exit status of the last one."""
    register(spark)
    tune(spark)
    kafka = Kafka(spark, args.bootstrap_servers, dict(args.kafka_option))
    try:
        return run_mirror(spark, args, KafkaSource(spark, args, kafka), settings_of(args))
    finally:
        kafka.close()


def main() -> None:
    args = parse_args()
    run_job("mirror_kafka", partial(run, args=args), partial(check_args, args))
