"""Chooses the partition of each record of a batch.

As in Kafka, a partition set in the record takes precedence over the partitioner.  The default partitioner is murmur2
of the key; records without a key use the sticky rule.  Each topic that is written to has a partitioner.
"""

from __future__ import annotations

import importlib
import random
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.errors import InvalidRecord, InvalidRequest
from spark_log.segment.arrays.numpy_arrays import mask_of, numbers_or
from spark_log.segment.keys.murmur2 import partition_for_key
from spark_log.segment.row_batches import binary_lengths
from spark_log.text import counted

Partitions = npt.NDArray[np.integer[Any]]
STICKY_BATCH_BYTES = 16_384
"""Kafka's `batch.size`."""


class Partitioner(Protocol):
    """The result of `make_partitioner`, and the interface of a user's class."""

    def partition(self, keys: pa.Array, values: pa.Array, count: int) -> Partitions:
        """The partition, in [0, count), of each record of one batch.

        keys, values:  binary, of the same length.  In a topic with a schema the values are null.
        """


class RoundRobinPartitioner:
    """Each record to the next partition, starting at 0, whatever its key (RoundRobinPartitioner)."""

    def __init__(self) -> None:
        self._next = 0

    def partition(self, keys: pa.Array, values: pa.Array, count: int) -> Partitions:
        partitions = (np.arange(len(keys)) + self._next) % count
        self._next = (self._next + len(keys)) % count
        return partitions


class StickyPartitioner:
    """At least `batch_bytes` of keys and values to one partition, then a random one (KIP-794), whatever the key."""

    def __init__(self, rng: random.Random, batch_bytes: int = STICKY_BATCH_BYTES) -> None:
        if batch_bytes < 1:
            raise InvalidRequest(f"batch.size is {batch_bytes}: the sticky partitioner requires at least 1")
        self._rng = rng
        self._batch_bytes = batch_bytes
        self._current: int | None = None
        self._produced = 0

    def partition(self, keys: pa.Array, values: pa.Array, count: int) -> Partitions:
        if count == 1:
            return np.zeros(len(keys), dtype=np.int32)
        partitions = np.empty(len(keys), dtype=np.int32)
        ends = np.cumsum(sticky_bytes(keys, values))
        start = done = 0
        while start < len(keys):
            current = self._draw(count)
            # The record that reaches the limit is the last one for the current partition.
            full = int(np.searchsorted(ends, done + self._batch_bytes - self._produced))
            stop = min(full + 1, len(keys))
            partitions[start:stop] = current
            self._produced += int(ends[stop - 1]) - done
            if full < len(keys):
                self._current = None
            start, done = stop, int(ends[stop - 1])
        return partitions

    def stay(self, size: int, count: int) -> int | None:
        """The partition of records of that many bytes, if they do not fill its batch; None: call `partition`."""
        if self._current is None or self._current >= count or self._produced + size >= self._batch_bytes:
            return None
        self._produced += size
        return self._current

    def _draw(self, count: int) -> int:
        if self._current is None or self._current >= count:
            self._current = self._rng.randrange(count)
            self._produced = 0
        return self._current


class Murmur2Partitioner(StickyPartitioner):
    """Kafka's default: records of one key go to one partition; records without a key stick to one for a while."""

    def partition(self, keys: pa.Array, values: pa.Array, count: int) -> Partitions:
        if keys.null_count == len(keys) or count == 1:
            return super().partition(keys, values, count)
        partitions = partition_for_key(keys, count)
        if keys.null_count:
            without = keys.is_null()
            rows = mask_of(without)
            partitions[rows] = super().partition(keys.filter(without), values.filter(without), count)
        return partitions


def make_partitioner(name: str, rng: random.Random) -> Partitioner:
    """The partitioner called `name`: default or murmur2, round-robin, sticky, or a user's class as `module:Class`.

    Raises InvalidRequest if the name is unknown, or if the class cannot be loaded.
    """
    if name in ("default", "murmur2"):
        return Murmur2Partitioner(rng)
    if name == "round-robin":
        return RoundRobinPartitioner()
    if name == "sticky":
        return StickyPartitioner(rng)
    if isinstance(name, str) and ":" in name:
        return _load(name)
    raise InvalidRequest(
        f"there is no partitioner {name!r}: expected default, murmur2, round-robin, sticky, or your own class as "
        "'module:Class'"
    )


def _load(name: str) -> Partitioner:
    module, _, attribute = name.partition(":")
    try:
        partitioner = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # A user's module may raise anything.
        raise InvalidRequest(f"the partitioner {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(getattr(partitioner, "partition", None)):
        raise InvalidRequest(f"the partitioner {name!r} has no method partition(keys, values, count)")
    loaded: Partitioner = partitioner
    return loaded


def assign_partitions(
    records: pa.RecordBatch, wanted: pa.Array | None, count: int, partitioner: Partitioner, *, topic: str
) -> Partitions:
    """The partition of each record, each in [0, count).

    wanted: int64, the partitions set in the records; null, or None for all of them: the partitioner chooses.
    topic:  for messages.
    Raises InvalidRecord if a record or the partitioner names a partition that does not exist.
    """
    if wanted is None or wanted.null_count == len(wanted):
        return _ask(partitioner, records, count, topic)
    partitions: Partitions = numbers_or(0, wanted)
    _check_range(partitions, count, topic, "a record names")
    if wanted.null_count:
        open_ = wanted.is_null()
        partitions = partitions.copy()
        rows = mask_of(open_)
        partitions[rows] = _ask(partitioner, records.filter(open_), count, topic)
    return partitions


def _ask(partitioner: Partitioner, records: pa.RecordBatch, count: int, topic: str) -> Partitions:
    partitions = np.asarray(partitioner.partition(records.column("key"), values_of(records), count))
    who = f"the partitioner {type(partitioner).__name__}"
    if partitions.shape != (records.num_rows,) or not np.issubdtype(partitions.dtype, np.integer):
        raise InvalidRecord(
            f"{who} gave {partitions.dtype} of shape {partitions.shape} for {records.num_rows} records of topic "
            f"{topic!r}: expected one integer for each record"
        )
    _check_range(partitions, count, topic, f"{who} gave")
    return partitions


def _check_range(partitions: Partitions, count: int, topic: str, who: str) -> None:
    wrong = outside(partitions, count)
    if wrong.any():
        raise InvalidRecord(no_such_partition(who, int(partitions[wrong.argmax()]), count, topic))


def outside(partitions: Partitions, count: int | Partitions) -> npt.NDArray[np.bool_]:
    """A mask of partitions that are not in [0, count).  count: of all, or for each."""
    wrong: npt.NDArray[np.bool_] = (partitions < 0) | (partitions >= count)
    return wrong


def no_such_partition(who: str, partition: int, count: int, topic: str) -> str:
    """The error text; `who` includes a verb, as in "a record names"."""
    return f"{who} partition {partition} of topic {topic!r}, which has {counted(count, 'partition')} (0 to {count - 1})"


def values_of(records: pa.RecordBatch) -> pa.Array:
    """The values of records; of typed records, which have columns instead, nulls."""
    return records.column("value") if "value" in records.schema.names else pa.nulls(records.num_rows, pa.binary())


def sticky_bytes(keys: pa.Array, values: pa.Array) -> npt.NDArray[np.int64]:
    """The bytes of each record that count towards a sticky batch."""
    return np.maximum(binary_lengths(keys) + binary_lengths(values), 1)
