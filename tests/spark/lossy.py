"""Ways in which a log loses records under a stream, and the stream's messages."""

from __future__ import annotations

import pytest

import spark_log
from spark_log import TopicPartition
from tests.logged import logged

GOING_ON = "going on with what is there (failOnDataLoss=false)"


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings of losses so far."""
    return logged(caplog, "failOnDataLoss=false")


def trim(log: spark_log.Log, first: int, partition: int = 0, topic: str = "t") -> None:
    log.admin.delete_records({TopicPartition(topic, partition): first})


def put(log: spark_log.Log, count: int, partition: int = 0, topic: str = "t") -> None:
    log.append(topic, [{"value": "v", "partition": partition}] * count)


def recreate(log: spark_log.Log, count: int, topic: str = "t") -> None:
    log.admin.delete_topics([topic])
    put(log, count, topic=topic)
