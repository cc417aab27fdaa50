"""Idempotent producers of a gateway: a batch that is sent again is not written again.

A producer numbers its records in each partition.  The gateway remembers the last batches that it has written, in
memory.  So the ids that it gives out name the process: after a restart, or after a commit whose outcome is not known, a
batch may be in the log already, and its producer is fenced.  Its application sees the error, and makes a new producer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import NamedTuple

from spark_log.errors import SparkLogError
from spark_log.gateway.error_codes import (
    DUPLICATE_SEQUENCE_NUMBER,
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    PRODUCER_FENCED,
)

BATCHES_KEPT = 5
"""A producer has as many under way in a partition."""
PRODUCERS_KEPT = 100_000
SEQUENCES = 1 << 31
COUNTER_BITS = 31
EPOCHS_MAX = (1 << 15) - 1


class WrongSequence(SparkLogError):
    """A batch that must not be written, and Kafka's error code for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SequencePlace(NamedTuple):
    """A partition.  A producer continues with its numbers if the topic is deleted and created again."""

    topic: str
    partition: int
    topic_id: str

    @property
    def name(self) -> tuple[str, int]:
        return self.topic, self.partition


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

    numbers: Numbered
    offset: int
    time_ms: int
    """The log's time of its records; -1: they have their own."""


class _Written(NamedTuple):
    """The last batches of a producer in a partition, all of one epoch."""

    topic_id: str
    batches: deque[WrittenBatch]


class _Producer:
    def __init__(self) -> None:
        self.written: dict[tuple[str, int], _Written] = {}
        """By the name of a partition: a producer raises its epoch in one after the other."""
        self.fenced = False


class Sequences:
    """The producers of one process.

    Ids are made on the event loop, and batches are checked in threads: those of a partition in one of them.
    """

    def __init__(self, process: int) -> None:
        """process:  a random number of 31 bits."""
        self._process = process
        self._made = 0
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        """By id; the producer that was used last is at the end."""
        self._lock = threading.Lock()

    def new_id(self) -> int:
        with self._lock:
            self._made += 1
            producer = self._process << COUNTER_BITS | self._made
            self._keep(producer, _Producer())
        return producer

    def may_raise(self, producer: int) -> bool:
        """Whether a producer may begin another epoch."""
        known = self._producers.get(producer)
        return known is not None and not known.fenced

    def written(self, place: SequencePlace, batch: Numbered) -> WrittenBatch | None:
        """The batch in the log that this one repeats."""
        known = self._producers.get(batch.producer)
        written = known.written.get(place.name) if known else None
        if written is None or written.topic_id != place.topic_id:
            return None
        return next((one for one in written.batches if one.numbers == batch), None)

    def check(self, place: SequencePlace, batch: Numbered, before: Numbered | None = None) -> None:
        """Raises WrongSequence, unless a batch that is not written is the next one of its producer.

        before:  the batch of the producer and the partition that is about to be written.
        """
        known = self._producers.get(batch.producer)
        if known is None or known.fenced:
            raise WrongSequence(
                PRODUCER_FENCED,
                "the gateway cannot tell whether it has written this batch before: it was started again, or a commit "
                "has failed; make a new producer, and read the topic if records must not be written twice",
            )
        written = known.written.get(place.name)
        last = before or (written.batches[-1].numbers if written else None)
        if last is not None and batch.epoch < last.epoch:
            raise WrongSequence(INVALID_PRODUCER_EPOCH, f"epoch {batch.epoch}, and the last one was {last.epoch}")
        expected = last.next if last is not None and batch.epoch == last.epoch else 0
        is_first = before is None and written is not None and written.topic_id != place.topic_id
        if batch.first == expected or (is_first and batch.first == 0):
            return
        # Clients take a duplicate for written: all of its records must be.
        is_written = before is None and expected and (expected - batch.next) % SEQUENCES < SEQUENCES // 2
        code = DUPLICATE_SEQUENCE_NUMBER if is_written else OUT_OF_ORDER_SEQUENCE_NUMBER
        raise WrongSequence(code, f"sequence {batch.first}, expected {expected}")

    def add(self, place: SequencePlace, written: WrittenBatch) -> None:
        """A batch was written that `check` has let through."""
        numbers = written.numbers
        with self._lock:
            known = self._producers.get(numbers.producer) or _Producer()
            before = known.written.get(place.name)
            if before is None or before.topic_id != place.topic_id or before.batches[-1].numbers.epoch != numbers.epoch:
                before = known.written[place.name] = _Written(place.topic_id, deque(maxlen=BATCHES_KEPT))
            before.batches.append(written)
            self._keep(numbers.producer, known)

    def _keep(self, producer: int, known: _Producer) -> None:
        """The one that was used first may be forgotten for it, and is fenced then."""
        self._producers[producer] = known
        self._producers.move_to_end(producer)
        if len(self._producers) > PRODUCERS_KEPT:
            self._producers.popitem(last=False)

    def fence(self, producer: int) -> None:
        """It is not known whether a batch of this producer was written."""
        with self._lock:
            self._producers.setdefault(producer, _Producer()).fenced = True
