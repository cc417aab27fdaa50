"""The sides of the comparison: where their topics are, and how Spark writes and reads them."""

from __future__ import annotations

import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

import spark_log
from benchmarks import _nulls
from benchmarks.beside_kafka.machine import bytes_on_disk
from simulation.harness.broker_roots import register_broker
from simulation.harness.kafka import Broker, min_insync

PARTITIONS = 4
PAIRS = "key binary, value binary"


class Side(ABC):
    """One way to store a topic."""

    name: str
    roots: tuple[int, ...] = ()
    """Processes to measure besides this one and its children."""

    @abstractmethod
    def create(self, topic: str) -> None:
        """Create an empty topic of PARTITIONS partitions."""

    @abstractmethod
    def drop(self, topic: str) -> None:
        """Delete the topic's data, so that rounds do not fill the disk."""

    @abstractmethod
    def write(self, frame: DataFrame, topic: str) -> None:
        """Write all rows of a frame with key and value."""

    @abstractmethod
    def read(self, topic: str) -> DataFrame:
        """Read all columns."""

    @abstractmethod
    def values(self, topic: str) -> DataFrame:
        """Read only the value, as cheaply as the side can."""

    @abstractmethod
    def stream(self, topic: str) -> DataFrame:
        """Stream all columns, from the first record on."""

    @abstractmethod
    def pairs(self, topic: str) -> DataFrame:
        """Stream only keys and values, as cheaply as the side can."""

    @abstractmethod
    def into(self, frame: DataFrame, topic: str) -> DataStreamWriter:
        """Write a stream of keys and values into a topic."""

    def bytes_on_disk(self, topic: str) -> int:
        """Bytes of the topic."""
        raise NotImplementedError(self.name)


class Pylog(Side):
    """Each topic in a separate log, with a root for each replica."""

    name = "pylog"
    options: Mapping[str, str] = {}
    """Options of all reads and writes."""

    def __init__(self, spark: SparkSession, folder: Path, compression: str | None = None, replicas: int = 1) -> None:
        """compression: of topics; None for the default."""
        self.spark, self.folder, self.replicas = spark, folder / "pylog", replicas
        self.configs = min_insync(replicas) | ({} if compression is None else {"compression.type": compression})

    def url(self, topic: str) -> str:
        return str(self.folder / topic)

    def create(self, topic: str) -> None:
        log = spark_log.connect(self.url(topic))
        for broker in range(1, self.replicas):
            register_broker(log, broker, self._root(topic, broker))
        factor = self.replicas if self.replicas > 1 else None
        log.create_topic(spark_log.NewTopic(topic, PARTITIONS, configs=self.configs, replication_factor=factor))

    def _root(self, topic: str, broker: int) -> str:
        return str(self.folder / (topic if broker == 0 else f"{topic}-{broker}"))

    def drop(self, topic: str) -> None:
        for broker in range(self.replicas):
            shutil.rmtree(self._root(topic, broker))

    def write(self, frame: DataFrame, topic: str) -> None:
        frame.write.format("pylog").mode("append").options(**self.options, topic=topic).save(self.url(topic))

    def read(self, topic: str) -> DataFrame:
        return self._loaded(self.spark.read, topic)

    def values(self, topic: str) -> DataFrame:
        return self._loaded(self.spark.read.schema("value binary"), topic)

    def stream(self, topic: str) -> DataFrame:
        return self._loaded(self.spark.readStream, topic, startingOffsets="earliest")

    def pairs(self, topic: str) -> DataFrame:
        return self._loaded(self.spark.readStream.schema(PAIRS), topic, startingOffsets="earliest")

    def _loaded(self, reader: DataFrameReader | DataStreamReader, topic: str, **options: str) -> DataFrame:
        return reader.format("pylog").options(**self.options, **options, subscribe=topic).load(self.url(topic))

    def into(self, frame: DataFrame, topic: str) -> DataStreamWriter:
        return frame.writeStream.format("pylog").options(**self.options, path=self.url(topic), topic=topic)

    def bytes_on_disk(self, topic: str) -> int:
        return bytes_on_disk([Path(self._root(topic, broker)) for broker in range(self.replicas)])


class InPython(Pylog):
    """pylog without its classes in the JVM: the logs of a `Pylog` in the same folder, read and written by Python."""

    name = "python"
    options = MappingProxyType({"nativeRead": "false"})


class Kafka(Side):
    """A broker for each replica, and Spark's connector."""

    name = "kafka"

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, recommended: bool, replicas: int = 1) -> None:
        """folder: where the broker runs.  recommended: also the settings that Kafka's users choose for throughput."""
        self.spark, self.broker, self.folder, self.replicas = spark, broker, folder / "run", replicas
        self.roots = broker.pids
        self.to_read: Mapping[str, str] = RECOMMENDED_READ if recommended else {}
        self.to_write: Mapping[str, str] = RECOMMENDED_WRITE if recommended else {}

    def create(self, topic: str) -> None:
        new = NewTopic(topic, PARTITIONS, self.replicas, config=min_insync(self.replicas))
        self._wait(lambda admin: admin.create_topics([new]))
        self._await_leaders(topic)

    def _await_leaders(self, topic: str) -> None:
        """Wait until the broker serves all partitions, which is shortly after it has confirmed their creation.

        A producer's first batch before that is retried behind its second, which the broker has accepted by then.  From
        there on the broker rejects the first batch as out of order, and the write fails when the batch expires, after
        two minutes.
        """
        earliest = {TopicPartition(topic, number): OffsetSpec.earliest() for number in range(PARTITIONS)}
        until = time.monotonic() + LEADERS_S
        while True:
            try:
                return self._wait(lambda admin: admin.list_offsets(earliest))
            except KafkaException:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def drop(self, topic: str) -> None:
        self._wait(lambda admin: admin.delete_topics([topic]))

    def _wait(self, ask: Callable[[AdminClient], Mapping[str, Any]]) -> None:
        """One client per question: a long-lived client would log errors when the broker stops."""
        admin = AdminClient({"bootstrap.servers": self.broker.address, "log_level": SILENT})
        for future in ask(admin).values():
            future.result(60)

    def write(self, frame: DataFrame, topic: str) -> None:
        self._to(frame.write, topic).mode("append").save()

    def read(self, topic: str, **options: str) -> DataFrame:
        return self._from(self.spark.read, topic).options(**options).load()

    def values(self, topic: str) -> DataFrame:
        return self.read(topic).select("value")

    def stream(self, topic: str, **options: str) -> DataFrame:
        return self._from(self.spark.readStream, topic).options(**{"startingOffsets": "earliest", **options}).load()

    def pairs(self, topic: str) -> DataFrame:
        return self.stream(topic).select("key", "value")

    def into(self, frame: DataFrame, topic: str) -> DataStreamWriter:
        return self._to(frame.writeStream, topic)

    def _from(self, reader: Any, topic: str) -> Any:
        options = {"kafka.bootstrap.servers": self.broker.address, "subscribe": topic, **self.to_read}
        return reader.format("kafka").options(**options)

    def _to(self, writer: DataFrameWriter | DataStreamWriter, topic: str) -> Any:
        options = {"kafka.bootstrap.servers": self.broker.address, "topic": topic, **self.to_write}
        return writer.format("kafka").options(**options)

    def bytes_on_disk(self, topic: str) -> int:
        return bytes_on_disk(list(self.folder.glob(f"data-*/{topic}-*")))


LEADERS_S = 30
SILENT = 0
"""A syslog level: a client that outlives the broker would log it, and failures are raised anyway."""
RECOMMENDED_WRITE = {"kafka.compression.type": "lz4", "kafka.batch.size": "262144"}
RECOMMENDED_READ = {"kafka.max.poll.records": "5000", "kafka.max.partition.fetch.bytes": str(8 << 20)}


class Null(Side):
    """Stores nothing: the upper bound for Spark's Python data sources."""

    name = "null"

    def __init__(self, spark: SparkSession, rows: int, tasks: int) -> None:
        self.spark = spark
        _nulls.register(spark, rows, tasks)

    def create(self, topic: str) -> None:
        pass

    def drop(self, topic: str) -> None:
        pass

    def write(self, frame: DataFrame, topic: str) -> None:
        frame.write.format(_nulls.SINK).mode("append").save()

    def read(self, topic: str) -> DataFrame:
        return self.spark.read.format(_nulls.SOURCE).load()

    def values(self, topic: str) -> DataFrame:
        return self.spark.read.format(_nulls.SOURCE).schema("value binary").load()

    def stream(self, topic: str) -> DataFrame:
        return self.spark.readStream.format(_nulls.SOURCE).load()

    def pairs(self, topic: str) -> DataFrame:
        return self.spark.readStream.format(_nulls.SOURCE).schema(PAIRS).load()

    def into(self, frame: DataFrame, topic: str) -> DataStreamWriter:
        return frame.writeStream.format(_nulls.SINK)


class Parquet(Side):
    """A table of files, whose format is `name`: no offsets, and keys do not determine partitions."""

    name = "parquet"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder / self.name

    def create(self, topic: str) -> None:
        pass

    def drop(self, topic: str) -> None:
        shutil.rmtree(self.folder / topic, ignore_errors=True)

    def write(self, frame: DataFrame, topic: str) -> None:
        frame.write.format(self.name).mode("append").save(str(self.folder / topic))

    def read(self, topic: str) -> DataFrame:
        return self.spark.read.format(self.name).load(str(self.folder / topic))

    def values(self, topic: str) -> DataFrame:
        return self.read(topic).select("value")

    def stream(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format(self.name).schema("key string, value string")
        return reader.load(str(self.folder / topic))

    def pairs(self, topic: str) -> DataFrame:
        return self.stream(topic)

    def into(self, frame: DataFrame, topic: str) -> DataStreamWriter:
        return frame.writeStream.format(self.name).option("path", str(self.folder / topic))

    def bytes_on_disk(self, topic: str) -> int:
        return bytes_on_disk([self.folder / topic])


def free_ports(count: int = 2) -> int:
    """The first of so many free ports side by side: one for each broker, and one for the controller."""
    for port in range(29292, 29492, count):
        with suppress(OSError), ExitStack() as stack:
            for number in range(port, port + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            return port
    raise RuntimeError(f"no {count} ports side by side are free")
