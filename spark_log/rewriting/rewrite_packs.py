"""Which of the slices that are rewritten share an object, and which objects are written together."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spark_log.configs.settings import topic_config
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.metadata.replicas.replicas import group_number
from spark_log.metadata.state import State, TopicKey
from spark_log.metadata.topics.schemas import typed_from
from spark_log.model import Slice
from spark_log.rewriting.merge_policy import window_ms
from spark_log.rewriting.slice_reads import READ_BYTES
from spark_log.segment.compression import DEFAULT_COMPRESSION, Compression, topic_compression

SHARED_BYTES = 8 << 20
"""A stretch up to this size shares an object with stretches of other partitions."""
PACK_BYTES = 64 << 20
"""The stretches of a shared object have at most about this size: all of them are in memory."""
PARALLEL_PACKS = 4
"""Maximum number of objects that are written together."""


class Stretch(NamedTuple):
    """Adjacent slices of a partition, to be rewritten."""

    key: TopicKey
    slices: Sequence[Slice]

    @property
    def bytes(self) -> int:
        """Size of the slices."""
        return sum(piece.length for piece in self.slices)


def apart(state: State, stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """The stretches, cut where a topic got its schema: a segment has either bytes or data columns."""
    for stretch in stretches:
        first = typed_from(state, *stretch.key)
        cut = 0 if first is None else bisect_left(stretch.slices, first, key=lambda piece: piece.start)
        yield from (Stretch(stretch.key, some) for some in (stretch.slices[:cut], stretch.slices[cut:]) if some)


def segment_limit(state: State, key: TopicKey) -> int:
    """`segment.bytes` of the topic."""
    return int(topic_config(state.topics[key[0]].configs, "segment.bytes"))


def compression_of(state: State, key: TopicKey) -> Compression:
    """The compression of rewritten segments of a topic."""
    # `producer` leaves the choice to the writer: maintenance uses the writers' default.
    return topic_compression(state.topics[key[0]].configs).of_writer(DEFAULT_COMPRESSION)


def stats_columns_of(state: State, key: TopicKey) -> str:
    """Which data columns of a topic get statistics."""
    return str(topic_config(state.topics[key[0]].configs, "stats.columns"))


def packs(state: State, stretches: Iterable[Stretch], limits: StepLimits) -> Iterator[list[Stretch]]:
    """Groups of stretches to write together: small ones of several partitions go to one object, each other one alone.

    The first stretches of all partitions come first, so that each partition is rewritten from its front.
    """
    turns: list[list[Stretch]] = []
    numbers = Counter[TopicKey]()
    for stretch in stretches:
        if numbers[stretch.key] == len(turns):
            turns.append([])
        turns[numbers[stretch.key]].append(stretch)
        numbers[stretch.key] += 1
    for turn in turns:
        small: list[Stretch] = []
        for stretch in turn:
            if stretch.bytes > min(SHARED_BYTES, segment_limit(state, stretch.key)):
                yield [stretch]
            else:
                small.append(stretch)
        yield from _shared(state, small, limits)


def _shared(state: State, stretches: Iterable[Stretch], limits: StepLimits) -> Iterator[list[Stretch]]:
    """Stretches of different partitions that share an object.

    It has one placement group, one codec and level, and one window length, so that its slices expire at about the same
    time.
    """

    def kind(stretch: Stretch) -> tuple[int, Compression, int]:
        window = window_ms(state.topics[stretch.key[0]].configs)
        return group_number(state, stretch.key), compression_of(state, stretch.key), window

    pack: list[Stretch] = []
    size = 0
    for found, stretch in sorted(((kind(one), one) for one in stretches), key=lambda each: (each[0], each[1].key)):
        if pack and (found != kind(pack[0]) or size + stretch.bytes > PACK_BYTES or len(pack) >= limits.changes_max):
            yield pack
            pack, size = [], 0
        pack.append(stretch)
        size += stretch.bytes
    if pack:
        yield pack


def take_packs(waiting: deque[list[Stretch]]) -> list[list[Stretch]]:
    """Take from the front what is written together: at least one pack, and others as far as memory allows."""
    some = [waiting.popleft()]
    size = _held_bytes(some[0])
    while waiting and len(some) < PARALLEL_PACKS and size + _held_bytes(waiting[0]) <= PACK_BYTES:
        size += _held_bytes(waiting[0])
        some.append(waiting.popleft())
    return some


def _held_bytes(pack: Sequence[Stretch]) -> int:
    """Bytes of slices that are in memory at a time while a pack is written."""
    return sum(stretch.bytes for stretch in pack) if len(pack) > 1 else min(pack[0].bytes, READ_BYTES)
