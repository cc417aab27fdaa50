"""The partition of each row of a write, as the partitioner of its topic chooses it.

The built-in partitioners decide for rows of many topics in one pass where no state changes hands: a record names its
partition, its topic has only one, its key is hashed, or its topic's current sticky batch has room.  The remaining rows
go to the partitioner of their topic, topic by topic.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from spark_log.client.producer.topic_rules import Numbers, TopicRows, TopicSpec, TopicTable
from spark_log.segment.arrays.numpy_arrays import numbers_or
from spark_log.segment.keys.murmur2 import partition_for_key
from spark_log.segment.partitioners import (
    Murmur2Partitioner,
    Partitioner,
    StickyPartitioner,
    assign_partitions,
    make_partitioner,
    sticky_bytes,
    values_of,
)

_OPEN = -1
"""Stands for a partition that is not chosen yet."""
_Partitions = npt.NDArray[np.int64]


class TopicPartitioners:
    """A partitioner for each topic, all of one name."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self._name = name
        self._rng = rng
        self._by_topic: dict[str, Partitioner] = {}
        self._topics = TopicTable(())
        self._chosen: list[Partitioner] = []
        """The partitioners of these topics, by number."""

    def assign(self, batch: TopicRows) -> Numbers:
        """The partition of each row.  Raises InvalidRecord as `assign_partitions` does."""
        if batch.numbers is None:
            return self._ask(batch)
        found = _named(batch)
        self._decide_together(batch, found)
        for rows in _by_topic(batch.numbers, found == _OPEN):
            found[rows] = self._ask(TopicRows.of(batch.spec(rows[0]), batch.take(rows).rows._replace(partitions=None)))
        return found

    def _ask(self, batch: TopicRows) -> Numbers:
        (spec,), (records, wanted) = batch.topics.specs, batch.rows
        return assign_partitions(records, wanted, spec.partitions, self._of(spec), topic=spec.name)

    def _of(self, spec: TopicSpec) -> Partitioner:
        if spec.topic_id not in self._by_topic:
            self._by_topic[spec.topic_id] = make_partitioner(self._name, self._rng)
        return self._by_topic[spec.topic_id]

    def _decide_together(self, batch: TopicRows, found: _Partitions) -> None:
        """In place: partitions of rows that are still open, if the partitioners are built-in ones."""
        if self._topics is not batch.topics:
            self._topics, self._chosen = batch.topics, [self._of(spec) for spec in batch.topics.specs]
        if not isinstance(self._chosen[0], StickyPartitioner):
            return
        counts = batch.each(batch.topics.partitions)
        found[(found == _OPEN) & (counts == 1)] = 0
        keys = batch.rows.records.column("key")
        if isinstance(self._chosen[0], Murmur2Partitioner) and keys.null_count < len(keys) and (found == _OPEN).any():
            np.copyto(found, partition_for_key(keys, counts), where=found == _OPEN)
        if (open_ := np.flatnonzero(found == _OPEN)).size:
            found[open_] = _staying(batch, cast(list[StickyPartitioner], self._chosen), open_)


def _named(batch: TopicRows) -> _Partitions:
    """The partitions that records name."""
    wanted = batch.rows.partitions
    if wanted is None:
        return np.full(batch.num_rows, _OPEN, np.int64)
    return numbers_or(_OPEN, wanted).astype(np.int64)


def _staying(batch: TopicRows, sticky: Sequence[StickyPartitioner], open_: Numbers) -> _Partitions:
    """For open rows: the partition of their topic's sticky batch, if there is room in it for all of them."""
    assert batch.numbers is not None
    records, numbers = batch.rows.records, batch.numbers[open_]
    sizes = sticky_bytes(records.column("key"), values_of(records))[open_]
    totals = np.bincount(numbers, sizes, len(sticky))
    staying = np.full(len(sticky), _OPEN)
    for number in np.flatnonzero(totals).tolist():
        partition = sticky[number].stay(int(totals[number]), batch.topics.specs[number].partitions)
        staying[number] = _OPEN if partition is None else partition
    return staying[numbers]


def _by_topic(numbers: Numbers, wanted: npt.NDArray[np.bool_]) -> Iterator[Numbers]:
    """The wanted rows of each topic, in order."""
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    yield from np.split(rows, np.flatnonzero(np.diff(numbers[rows])) + 1) if len(rows) else ()
