"""Slices that maintenance has set aside, because they cannot be read: it rewrites those on both sides of them.

They stay in the log as they are.  A slice index that cannot be read is one slice here.  Maintenance reads them again
from time to time, because somebody may have restored the object.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_log.errors import CorruptObject, ObjectNotFound, SparkLogError, UnsupportedVersion
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice

WAIT_MS, WAIT_MS_MAX = 60_000, 3_600_000
"""A slice is read again in the next round, then after a minute, and then after twice as long each time, up to this."""
NEVER = sys.maxsize


def is_of_slice(error: Exception) -> bool:
    """Whether an error lies in the slice that was read or rewritten, and not in the storage or the log."""
    if isinstance(error, SparkLogError):
        return isinstance(error, CorruptObject | ObjectNotFound | UnsupportedVersion)
    return not isinstance(error, OSError)


class Unreadable(Exception):
    """A slice cannot be read or rewritten; its cause says why."""

    def __init__(self, piece: Slice, why: Exception, *, is_index: bool = False) -> None:
        super().__init__(str(why))
        self.piece, self.why, self.is_index = piece, why, is_index


class AsideSlice(NamedTuple):
    """A slice that could not be read."""

    piece: Slice
    again_ms: int
    """When it is read again."""
    wait_ms: int = WAIT_MS
    """How long it waits if that fails, too."""
    is_index: bool = False
    """It stands for all slices of an index that cannot be read (`unread_slice`)."""


@dataclass(slots=True)
class SetAside:
    """The slices that one maintainer has set aside, or successive ones.  Sent to tasks, and back."""

    passed: dict[TopicKey, int] = field(default_factory=dict)
    """By partition: the end of the last pass of compaction that left out such slices.  It moves no cleaner point,
    because records before it may be superseded by those that could not be read, or the other way round."""
    _slices: dict[TopicKey, dict[int, AsideSlice]] = field(default_factory=dict)
    """By partition and start."""
    _objects: Counter[str] = field(default_factory=Counter)
    """How many of the slices each object has."""

    def add(self, key: TopicKey, one: AsideSlice) -> bool:
        """Set a slice aside.  Returns whether it is the first one of its object."""
        self.drop(key, one.piece.start)
        self._slices.setdefault(key, {})[one.piece.start] = one
        self._objects[one.piece.object] += 1
        return self._objects[one.piece.object] == 1

    def drop(self, key: TopicKey, start: int) -> None:
        """Forget a slice."""
        one = self._slices.get(key, {}).pop(start, None)
        if one is None:
            return
        self._objects[one.piece.object] -= 1
        if not self._objects[one.piece.object]:
            del self._objects[one.piece.object]
        if not self._slices[key]:
            del self._slices[key]
            self.passed.pop(key, None)

    def add_all(self, other: SetAside) -> None:
        """Add what another process has set aside."""
        for key, one in other:
            self.add(key, one)
        self.passed |= {key: end for key, end in other.passed.items() if key in self._slices}

    def of(self, keys: Iterable[TopicKey]) -> SetAside:
        """The part for some partitions."""
        found = SetAside()
        for key in keys:
            for one in self._slices.get(key, {}).values():
                found.add(key, one)
            if key in self.passed:
                found.passed[key] = self.passed[key]
        return found

    def __iter__(self) -> Iterator[tuple[TopicKey, AsideSlice]]:
        """All slices, by partition and start."""
        for key, slices in sorted(self._slices.items()):
            for _, one in sorted(slices.items()):
                yield key, one

    @property
    def objects(self) -> tuple[str, ...]:
        """The names of their objects."""
        return tuple(sorted(self._objects))

    @property
    def again_ms(self) -> int:
        """When the next one is read again."""
        return min((one.again_ms for _, one in self), default=NEVER)

    def has(self, key: TopicKey, piece: Slice) -> bool:
        """Whether a slice was set aside."""
        known = self._slices.get(key)
        return known is not None and (one := known.get(piece.start)) is not None and one.piece == piece

    def has_index(self, key: TopicKey) -> bool:
        """Whether a slice index of the partition was set aside: its slices and their objects are unknown."""
        return any(one.is_index for one in self._slices.get(key, {}).values())

    def starts(self, key: TopicKey, slices: Sequence[Slice]) -> frozenset[int]:
        """The starts of those of some slices that were set aside."""
        return (
            frozenset(piece.start for piece in slices if self.has(key, piece)) if key in self._slices else frozenset()
        )

    def between(self, key: TopicKey, slices: Sequence[Slice]) -> list[list[Slice]]:
        """Adjacent slices, cut at those that were set aside, and without them."""
        starts, found = self.starts(key, slices), list[list[Slice]]([[]])
        for piece in slices:
            if piece.start in starts:
                found.append([])
            else:
                found[-1].append(piece)
        return [some for some in found if some]

    def keep(self, state: State) -> None:
        """Forget slices that the log does not have any more, as far as this can be told without slice indexes."""
        for key, one in list(self):
            part = state.partitions.get(key)
            gone = part is None or state.topics[key[0]].deleted or one.piece.end <= part.start
            if gone or one.piece.object not in state.objects:
                self.drop(key, one.piece.start)
        self.passed = {key: end for key, end in self.passed.items() if key in self._slices}
