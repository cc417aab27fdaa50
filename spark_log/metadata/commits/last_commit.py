"""The part of a producer's last commit that the state remembers, to recognise and answer its retry.

A producer sends its next commit after the answer to the one before it, so only the last one is ever sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[int, int, int, int]])


class LastCommit(NamedTuple):
    sequence: int
    version: int
    rows: int
    topics: tuple[str, ...]
    """Ids of the topics that it wrote."""
    source: str = ""
    """The source of the commit's record."""
    packed: bytes = b""
    """msgpack of (number in `topics`, partition, first offset, rows) for each partition; empty: forgotten."""

    @property
    def ranges(self) -> dict[tuple[str, int], range]:
        """The offsets of its records, by (topic id, partition)."""
        rows = _decoder.decode(self.packed) if self.packed else []
        return {(self.topics[topic], number): range(start, start + count) for topic, number, start, count in rows}

    def without_ranges(self) -> LastCommit:
        return self._replace(packed=b"")


def last_commit(
    sequence: int, version: int, ranges: Mapping[tuple[str, int], tuple[int, int]], source: str
) -> LastCommit:
    """
    ranges:  first offset and end, by (topic id, partition).
    """
    topics = shared(tuple(sorted({topic_id for topic_id, _ in ranges})))
    numbers = {topic_id: number for number, topic_id in enumerate(topics)}
    rows = [(numbers[topic_id], part, start, end - start) for (topic_id, part), (start, end) in ranges.items()]
    return LastCommit(sequence, version, sum(row[-1] for row in rows), topics, source, _encoder.encode(rows))


def source_offsets(source: str) -> str:
    """The part of a commit's `source` that is the same whenever the batch is planned."""
    return source.partition("@")[0]


@lru_cache(1024)
def shared(topics: tuple[str, ...]) -> tuple[str, ...]:
    """One tuple for all commits with the same topics: there are many producers, and few sets of topics."""
    return topics
