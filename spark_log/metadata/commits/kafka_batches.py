"""The batches of Kafka's idempotent producers, as a commit names them (kafka_producers.py)."""

from __future__ import annotations

from typing import NamedTuple

from spark_log.bounds import Int, Known, Long


class KafkaBatch(NamedTuple):
    """A batch of an idempotent producer of Kafka."""

    producer: Long
    epoch: Int
    sequence: Int
    """The number of its first record."""
    records: Int
    at: Long
    """Its first record, from 0 for the first one of the commit in the partition."""


class KafkaBatches(NamedTuple):
    """The batches of Kafka's idempotent producers that a commit has in a partition, in the order of `at`."""

    topic_id: Known
    partition: Int
    batches: tuple[KafkaBatch, ...]
