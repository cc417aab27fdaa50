"""Idempotent producers of Kafka: a batch that is in the log is recognised when it is sent again.  Pure.

A producer numbers its records in each partition.  A commit says which batches it has, and the state keeps the last
ones of each producer and partition, as Kafka does.  So a batch is recognised whichever gateway gets it, and after any
of them has been started again.

The rows have the names of topics: a producer continues with its numbers if a topic is deleted and created again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec
from immutables import Map

from spark_log.configs.settings import cluster_config, topic_config
from spark_log.errors import InvalidRequest, OutOfOrderSequence
from spark_log.metadata import records as r
from spark_log.metadata.state import KafkaProducer, ProducerKey, State, TopicKey, without

BATCHES_KEPT = 5
"""A producer has as many under way in a partition."""
SEQUENCES = 1 << 31
RANDOM_BITS = 43
"""Number of random bits in a producer's id.  The bits above are the hour in which it was made."""
HOUR_MS = 3_600_000
NAMED_MAX = 10
"""Batches that an error names."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[int, int, int, int]])


class Numbered(NamedTuple):
    """The numbers of a batch."""

    producer: int
    epoch: int
    first: int
    records: int

    @property
    def next(self) -> int:
        return (self.first + self.records) % SEQUENCES


class WrittenBatch(NamedTuple):
    """A batch that is in the log."""

    first: int
    records: int
    offset: int
    time_ms: int
    """The log's time of its records; -1: they have their own."""


class WrongBatch(NamedTuple):
    """The reason why a batch must not be written."""

    text: str
    is_fenced: bool
    """Its epoch is an older one; otherwise, its sequence is not the next one."""


def producer_id(now_ms: int, random: int) -> int:
    """A new id.

    random:  a number of `RANDOM_BITS`.
    """
    return now_ms // HOUR_MS << RANDOM_BITS | random


def batches_of(known: KafkaProducer) -> list[WrittenBatch]:
    """The batches of a row, the last one at the end."""
    return [WrittenBatch(*one) for one in _decoder.decode(known.packed)]


def written(state: State, key: TopicKey, batch: Numbered) -> WrittenBatch | None:
    """The batch in the log that this one repeats."""
    known = _known(state, key, batch.producer)
    return None if known is None or known.topic_id != key[0] else _kept(known, batch)


def is_lost(state: State, key: TopicKey, batch: WrittenBatch) -> bool:
    """Whether the records of a batch were given up."""
    return any(one.start <= batch.offset < one.end for one in state.lost.get(key, ()))


def wrong(state: State, key: TopicKey, batch: Numbered, before: Numbered | None = None) -> WrongBatch | None:
    """The reason why a batch that is not in the log is not the next one of its producer; None if it is.

    before:  the batch of the producer and the partition that is about to be written.
    """
    known = _known(state, key, batch.producer)
    last = before if before is not None or known is None else _last(known, batch.producer)
    if last is None:
        if batch.first and not _may_have_expired(state, batch.producer):
            return WrongBatch(f"sequence {batch.first}, expected 0", False)
        return None
    if batch.epoch < last.epoch:
        return WrongBatch(f"epoch {batch.epoch}, and the last one was {last.epoch}", True)
    expected = last.next if batch.epoch == last.epoch else 0
    if batch.first == expected or (before is None and known is not None and _begins(known, key, batch)):
        return None
    return WrongBatch(f"sequence {batch.first}, expected {expected}", False)


def _known(state: State, key: TopicKey, producer: int) -> KafkaProducer | None:
    topic = state.topics.get(key[0])
    return None if topic is None else state.kafka_producers.get((producer, topic.name, key[1]))


def _kept(known: KafkaProducer, batch: Numbered) -> WrittenBatch | None:
    """The batch of a row that this one repeats."""
    if known.epoch != batch.epoch:
        return None
    return next((one for one in batches_of(known) if one[:2] == batch[2:]), None)


def _begins(known: KafkaProducer, key: TopicKey, batch: Numbered) -> bool:
    """Whether a batch is the first one in a topic that was created again: sequence 0, or one that the client sends
    again, because it had no answer from the former topic."""
    return known.topic_id != key[0] and (batch.first == 0 or _kept(known, batch) is not None)


def _last(known: KafkaProducer, producer: int) -> Numbered:
    first, records, _, _ = batches_of(known)[-1]
    return Numbered(producer, known.epoch, first, records)


def _may_have_expired(state: State, producer: int) -> bool:
    """Whether the log may have known a producer that it does not know.  Otherwise, a batch is missing before this one:
    it was refused, and its client sends it again.

    Rows may have expired by a shorter time than the present one.
    """
    made_ms = (producer >> RANDOM_BITS) * HOUR_MS
    usual_ms = state.time - cluster_config(state.configs, "producer.id.expiration.ms")
    return made_ms <= max(usual_ms, state.kafka_expired)


# ------------------------------------------------------------------------------------------------------------- decision


def check_batches(state: State, commit: r.CommitRecord, rows: Mapping[TopicKey, int]) -> None:
    """
    rows:  of the commit, by partition.
    Raises OutOfOrderSequence if the log has some of the batches, or they are not the next ones of their producers;
    InvalidRequest if they are not batches of the commit.
    """
    if not commit.kafka_batches:
        return
    found = list(_found(state, commit, rows))
    if found:
        more = f", and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        raise OutOfOrderSequence(f"batches of Kafka's producers: {'; '.join(found[:NAMED_MAX])}{more}")


def _found(state: State, commit: r.CommitRecord, rows: Mapping[TopicKey, int]) -> Iterator[str]:
    last, ends = dict[tuple[int, TopicKey], Numbered](), dict[TopicKey, int]()
    for part in commit.kafka_batches:
        key = part.topic_id, part.partition
        for one in part.batches:
            batch = Numbered(one.producer, one.epoch, one.sequence, one.records)
            if not ends.get(key, 0) <= one.at <= rows.get(key, 0) - one.records or not one.records:
                raise InvalidRequest(f"{one} is not a batch of the {rows.get(key, 0)} records of partition {key}")
            ends[key] = one.at + one.records
            where = f"producer {one.producer} in {state.topics[key[0]].name}-{key[1]}"
            if written(state, key, batch) is not None:
                yield f"{where}: sequence {one.sequence} is in the log"
            elif (why := wrong(state, key, batch, last.get((one.producer, key)))) is not None:
                yield f"{where}: {why.text}"
            last[one.producer, key] = batch


# --------------------------------------------------------------------------------------------------------------- replay


def with_batches(state: State, record: r.CommitRecord) -> Map[ProducerKey, KafkaProducer]:
    """The rows with the batches of a commit, which gets the next offsets of a state."""
    rows = state.kafka_producers.mutate()
    for part in record.kafka_batches:
        key = part.topic_id, part.partition
        topic, known = state.topics.get(key[0]), state.partitions.get(key)
        if topic is None or known is None:
            continue
        stamped = topic_config(topic.configs, "message.timestamp.type") == "LogAppendTime"
        for one in part.batches:
            row = one.producer, topic.name, part.partition
            new = WrittenBatch(one.sequence, one.records, known.end + one.at, state.time if stamped else -1)
            rows[row] = _with_batch(state, rows.get(row), part.topic_id, one.epoch, new)
    return rows.finish()


def _with_batch(
    state: State, known: KafkaProducer | None, topic_id: str, epoch: int, new: WrittenBatch
) -> KafkaProducer:
    same = known is not None and (known.topic_id, known.epoch) == (topic_id, epoch)
    kept = batches_of(known)[1 - BATCHES_KEPT :] if known is not None and same else []
    return KafkaProducer(topic_id, epoch, state.version, state.time, _encoder.encode([*kept, new]))


def without_producers(state: State, keys: Iterable[ProducerKey]) -> State:
    """Remove rows that have expired, if the fence has passed them."""
    known = {key: state.kafka_producers.get(key) for key in keys}
    rows = {key: row for key, row in known.items() if row is not None and row.version <= state.fence}
    return replace(
        state,
        kafka_producers=without(state.kafka_producers, rows),
        kafka_expired=max((state.kafka_expired, *(row.time for row in rows.values()))),
    )
