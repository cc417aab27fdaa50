"""Kafka's producer and admin client, from the jar that Spark's connector brings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from py4j.java_gateway import JavaMember
from py4j.protocol import STATIC_PREFIX
from pyspark.sql import SparkSession


class Rec(NamedTuple):
    """A record to send."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp: int | None = None
    """Milliseconds."""
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Client:
    """Clients of one broker."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self.address = address
        self._jvm: Any = spark._jvm
        self._kafka = self._jvm.org.apache.kafka
        self._admin = self._kafka.clients.admin.AdminClient.create({"bootstrap.servers": address})

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """A topic; underscores of config names stand for dots."""
        optional = self._jvm.java.util.Optional
        new = self._kafka.clients.admin.NewTopic(topic, optional.of(partitions), optional.empty())
        new.configs({name.replace("_", "."): value for name, value in configs.items()})
        self._wait(self._admin.createTopics([new]).all())

    def alter(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set configs of a topic."""
        resource, admin = self._kafka.common.config.ConfigResource, self._kafka.clients.admin
        operations = [
            admin.AlterConfigOp(admin.ConfigEntry(name, value), admin.AlterConfigOp.OpType.SET)
            for name, value in configs.items()
        ]
        changes = {resource(resource.Type.TOPIC, topic): operations}
        self._wait(self._admin.incrementalAlterConfigs(changes).all())

    def delete(self, topic: str) -> None:
        self._wait(self._admin.deleteTopics([topic]).all())

    def grow(self, topic: str, total: int) -> None:
        """More partitions."""
        new = self._kafka.clients.admin.NewPartitions.increaseTo(total)
        self._wait(self._admin.createPartitions({topic: new}).all())

    def send(self, topic: str, records: Iterable[Rec]) -> None:
        """Records in order, all there when this returns."""
        producer = self._producer({"linger.ms": "5"})
        for rec in records:
            producer.send(self._record(topic, rec))
        producer.close()

    def send_each(self, topic: str, records: Iterable[Rec]) -> None:
        """Records one after the other.  Raises the error of one that the broker refuses."""
        producer = self._producer({})
        try:
            for rec in records:
                self._wait(producer.send(self._record(topic, rec)))
        finally:
            producer.close()

    def transaction(self, topic: str, records: Iterable[Rec], *, commit: bool) -> None:
        """Records of one transaction, which leaves a marker behind them."""
        producer = self._producer({"transactional.id": f"test-{topic}"})
        producer.initTransactions()
        producer.beginTransaction()
        for rec in records:
            producer.send(self._record(topic, rec))
        producer.flush()
        if commit:
            producer.commitTransaction()
        else:
            producer.abortTransaction()
        producer.close()

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set a group's offsets."""
        at = self._kafka.clients.consumer.OffsetAndMetadata
        values = {self._tp(*tp): at(offset) for tp, offset in offsets.items()}
        self._wait(self._admin.alterConsumerGroupOffsets(group, values).all())

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Remove records before an offset."""
        # It has a method of the same name that is not static, and py4j looks at either of them to tell what the name
        # is.
        static = f"{STATIC_PREFIX}org.apache.kafka.clients.admin.RecordsToDelete"
        until = JavaMember("beforeOffset", None, static, self._jvm._gateway_client)(before)
        self._wait(self._admin.deleteRecords({self._tp(topic, partition): until}).all())

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset after the last record or marker."""
        latest = self._kafka.clients.admin.OffsetSpec.latest()
        tp = self._tp(topic, partition)
        return int(self._wait(self._admin.listOffsets({tp: latest}).all())[tp].offset())

    def _producer(self, settings: Mapping[str, str]) -> Any:
        serializer = self._kafka.common.serialization.ByteArraySerializer
        all_settings = {"bootstrap.servers": self.address, **settings}
        return self._kafka.clients.producer.KafkaProducer(all_settings, serializer(), serializer())

    def _record(self, topic: str, rec: Rec) -> Any:
        header = self._kafka.common.header.internals.RecordHeader
        headers = [header(name, value) for name, value in rec.headers]
        return self._kafka.clients.producer.ProducerRecord(
            topic, rec.partition, rec.timestamp, rec.key, rec.value, headers
        )

    def _tp(self, topic: str, partition: int) -> Any:
        return self._kafka.common.TopicPartition(topic, partition)

    def _wait(self, future: Any) -> Any:
        return future.get(60, self._jvm.java.util.concurrent.TimeUnit.SECONDS)
