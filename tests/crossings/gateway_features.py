"""A feature of the gateway: Kafka's clients."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
from confluent_kafka import KafkaError

from spark_log import Log
from tests.crossings.feature import After, Feature, assert_each_is_seen, assert_no_double, rows
from tests.gateway.running import DEADLINE_S, Running, librdkafka


class KafkaClients(Feature):
    """A Kafka producer, and a Kafka consumer that starts again in its group, through gateways of the log."""

    head = "Kafka client"
    topics = ("kafka",)

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.seen: list[str] = []

    def write(self, log: Log, phase: str) -> None:
        gateway = Running(log)
        try:
            producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "log_level": 0})
            for row in rows("kafka", phase):
                producer.produce("kafka", row["value"], row["key"])
            assert producer.flush(DEADLINE_S) == 0
        finally:
            gateway.close()

    def read(self, log: Log, phase: str) -> None:
        gateway = Running(log)
        consumer = librdkafka(
            gateway.address, group_id="kafka-group", auto_offset_reset="earliest", enable_partition_eof=True
        )
        try:
            consumer.subscribe(["kafka"])
            while True:
                message = consumer.poll(DEADLINE_S)
                assert message is not None, "nothing comes"
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    break
                self.seen.append(message.value().decode())
                consumer.commit(message, asynchronous=False)
        finally:
            consumer.close()
            gateway.close()

    def check(self, after: After) -> None:
        for phase in ("after", "more"):
            self.write(after.log, phase)
        self.read(after.log, "after")
        assert_each_is_seen(self.seen, after.log, "kafka")
        if not after.is_older:
            assert_no_double(self.seen)
