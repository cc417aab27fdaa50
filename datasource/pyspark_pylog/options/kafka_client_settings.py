"""Settings of Kafka's clients (`kafka.*`), as data: which have no effect, and which are rejected, with the alternative.

`option_table.py` has the supported ones.  Every setting without effect gives a warning.  A setting that is rejected or
supported on one side has no effect on the other, as with Kafka's clients: jobs share one set of options.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from spark_log.errors import InvalidRequest

READS, WRITES = "BS", "WT"


@dataclass(frozen=True, slots=True)
class RefusedSetting:
    """A rejected setting; a name that ends in * stands for all names with that prefix."""

    name: str
    used: str
    """Where it is rejected, as in the table of options."""
    instead: str

    def is_about(self, name: str) -> bool:
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


REFUSED = (
    RefusedSetting("kafka.auto.offset.reset", READS, "use startingOffsets"),
    RefusedSetting("kafka.key.deserializer", READS, "keys are bytes; cast them in the query"),
    RefusedSetting("kafka.value.deserializer", READS, "values are bytes; cast them in the query"),
    RefusedSetting("kafka.enable.auto.commit", READS, "a query's progress is in its checkpoint"),
    RefusedSetting("kafka.interceptor.classes", READS + WRITES, "there are no interceptors; do it in the query"),
    RefusedSetting("kafka.key.serializer", WRITES, "cast the column in the query"),
    RefusedSetting("kafka.value.serializer", WRITES, "cast the column in the query"),
    RefusedSetting(
        "kafka.transactional.id",
        WRITES,
        "every write is all or nothing; producerId identifies a stream, txnAppId and txnVersion a batch",
    ),
    RefusedSetting(
        "kafka.max.request.size", WRITES, "the topic's config max.message.bytes limits the size of a record"
    ),
    RefusedSetting("kafka.security.*", READS + WRITES, "the storage controls access; use the options storage.*"),
    RefusedSetting("kafka.sasl.*", READS + WRITES, "the storage controls access; use the options storage.*"),
    RefusedSetting("kafka.ssl.*", READS + WRITES, "the storage controls access; use the options storage.*"),
)
"""In the order of the checks of Kafka's connector."""

WITHOUT_EFFECT = {
    why: names.split()
    for why, names in {
        "there are no connections to brokers": """
            client.dns.lookup client.id client.rack config.providers connections.max.idle.ms default.api.timeout.ms
            metadata.max.age.ms metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms
            metadata.recovery.strategy receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
            request.timeout.ms retry.backoff.max.ms retry.backoff.ms send.buffer.bytes
            socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
        """,
        "there are no fetches from brokers": """
            check.crcs fetch.max.bytes fetch.max.wait.ms fetch.min.bytes max.partition.fetch.bytes
            max.poll.interval.ms max.poll.records
        """,
        "tasks join no consumer group, and a read creates no topic": """
            allow.auto.create.topics auto.commit.interval.ms exclude.internal.topics group.instance.id
            group.protocol group.remote.assignor heartbeat.interval.ms partition.assignment.strategy
            session.timeout.ms share.acknowledgement.mode
        """,
        "a query's progress is in its checkpoint, and with the option group.id also in a consumer group": "group.id",
        "tasks write objects to the storage, and send no requests to brokers": """
            batch.size buffer.memory delivery.timeout.ms linger.ms max.block.ms
            max.in.flight.requests.per.connection partitioner.adaptive.partitioning.enable
            partitioner.availability.timeout.ms retries transaction.timeout.ms transaction.two.phase.commit.enable
        """,
        "configs of the topic set the levels of zstd and lz4": """
            compression.gzip.level compression.lz4.level compression.zstd.level
        """,
        "no Kafka client runs that could report metrics": """
            auto.include.jmx.reporter enable.metrics.push metric.reporters metrics.num.samples
            metrics.recording.level metrics.sample.window.ms
        """,
    }.items()
}
"""Reason -> settings without effect: they are accepted, and named in one warning."""

TUNING = {f"kafka.{name}": why for why, settings in WITHOUT_EFFECT.items() for name in settings}

PARTITIONERS = {
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "default",
    "org.apache.kafka.clients.producer.internals.BuiltInPartitioner": "default",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round-robin",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": "sticky",
}
"""Kafka's classes, and the equivalent partitioners of pylog."""


def refuse_kafkas(options: Iterable[str], uses: str) -> None:
    """Raises InvalidRequest, with the alternative, for the first of these options that is rejected for `uses`."""
    for setting in REFUSED:
        for name in options:
            if setting.is_about(name) and set(setting.used) & set(uses):
                raise InvalidRequest(f"option {name} is not supported: {setting.instead}")


def why_without_effect(name: str, others: set[str]) -> str:
    """The reason why one of Kafka's settings, neither supported nor rejected here, has no effect.

    others:  the settings of Kafka that pylog supports for reads or for writes.
    Raises InvalidRequest if Kafka does not have the setting either.
    """
    if name in TUNING:
        return TUNING[name]
    if name in others or any(setting.is_about(name) for setting in REFUSED):
        return "it is a setting of the other side"
    near = get_close_matches(name, {*TUNING, *others, *(setting.name for setting in REFUSED)}, n=1, cutoff=0.8)
    hint = f"did you mean {near[0]}?" if near else "leave it out"
    raise InvalidRequest(f"option {name} is not a setting of Kafka's that pylog knows: {hint}")
