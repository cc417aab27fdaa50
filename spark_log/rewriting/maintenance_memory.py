"""The memory of maintenance between rounds: a round costs by what has changed since the last one.

A partition is planned again after an append, a trim, a swap, a pass of compaction or a change of its topic, when its
oldest slice expires, and when compaction may be due.  A new memory knows nothing: every partition is planned, all
objects are listed, checkpoints are checked.  That is done once in `gc.fence.age.ms`, because damage and late puts are
no changes of the log.  A process that runs one round leaves its memory to the next one (memory_file.py).
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from spark_log.journal.garbage_collection import Collected
from spark_log.journal.set_aside import NEVER, SetAside
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Partition, State, Topic, TopicKey
from spark_log.model import Slice
from spark_log.rewriting.compaction_rules import Pass


class Seen(NamedTuple):
    """The values on which a plan of a partition depends.  While they stay the same, its slices are the same.

    The edition is not one of them, because sealing changes it: a slice index has the same slices as the entries that it
    replaces.  Other swaps change the number of slices or their bytes, or remove objects (`MaintenanceMemory.unmerged`).
    """

    start: int
    end: int
    slices: int
    """Also those below the start."""
    bytes: int
    """Bytes of these slices."""
    cleaned: int
    """The cleaner point; 0: there was no pass."""
    topic: Topic

    @classmethod
    def of(cls, state: State, key: TopicKey, part: Partition) -> Seen:
        """The values on which a plan of the partition depends."""
        cleaned = state.cleaned.get(key)
        slices = size = 0
        for entry in part.entries:
            if isinstance(entry, Piece):
                slices += entry.slices
                size += entry.bytes
            else:
                slices += 1
                size += entry.length
        return cls(part.start, part.end, slices, size, cleaned.upto if cleaned else 0, state.topics[key[0]])


class NotDue(NamedTuple):
    """A partition of a compacted topic in which no pass is due."""

    until_ms: int
    """None is due before, unless the partition changes; in the past: a pass is due."""
    ratio: float
    """Its dirty ratio."""


class Known(NamedTuple):
    """The facts that rounds have found about a partition."""

    key: TopicKey
    seen: Seen
    merged: bool
    """Nothing can be merged."""
    kept_ms: int | None
    """Nothing expires before; None: not known."""
    not_due: NotDue | None
    """None: not known, or the topic is not compacted."""
    objects: Sequence[str]
    """The objects of its live slices, as far as they are known."""
    lengths: array[int]
    """The lengths of these slices."""


class LiveSlices:
    """Objects and lengths of the live slices of each partition, in 16 bytes a slice."""

    def __init__(self) -> None:
        self.bytes = Counter[str]()
        """By object."""
        self._held: dict[TopicKey, tuple[tuple[str, ...], array[int]]] = {}

    @property
    def count(self) -> int:
        """Number of the slices."""
        return sum(len(lengths) for _, lengths in self._held.values())

    def hold(self, key: TopicKey, slices: Sequence[Slice]) -> None:
        """Replace what a partition holds."""
        self.put(key, [piece.object for piece in slices], array("q", [piece.length for piece in slices]))

    def put(self, key: TopicKey, objects: Sequence[str], lengths: array[int]) -> None:
        """Remembers what `hold` does, with the object and the length of each slice."""
        self.release(key)
        # Interned, because the slices of one object share its name.
        names = tuple(map(sys.intern, objects))
        self._held[key] = names, lengths
        for name, length in zip(names, lengths, strict=True):
            self.bytes[name] += length

    def held(self, key: TopicKey) -> tuple[tuple[str, ...], array[int]]:
        """Objects and lengths of the slices of a partition."""
        return self._held.get(key, ((), array("q")))

    def release(self, key: TopicKey) -> None:
        """Forget a partition."""
        names, lengths = self.held(key)
        self._held.pop(key, None)
        for name, length in zip(names, lengths, strict=True):
            self.bytes[name] -= length
            if not self.bytes[name]:
                del self.bytes[name]

    def keep(self, keys: Container[TopicKey]) -> None:
        """Forget all other partitions."""
        for key in [key for key in self._held if key not in keys]:
            self.release(key)

    def holders(self, objects: frozenset[str]) -> list[TopicKey]:
        """Partitions with slices in any of the objects."""
        return [key for key, (names, _) in self._held.items() if not objects.isdisjoint(names)] if objects else []


@dataclass(slots=True)
class MaintenanceMemory:
    """The memory of one maintainer, or of successive ones."""

    began_ms: int = 0
    """When its first round began."""
    log: str = ""
    """The log at the end of its last round, as `plan_of` says: it has not the offsets, versions and objects of another
    one."""
    live: LiveSlices = field(default_factory=LiveSlices)
    collected: Collected | None = None
    """The last garbage collection; None: unknown."""
    swept_ms: int | None = None
    """When unfinished files were last deleted."""
    truncated: int | None = None
    """The log's version when it had a checkpoint, and nothing was left to truncate."""
    finished: int | None = None
    """The log's last change, if a round has left nothing to do."""
    expires_ms: int = NEVER
    """When the first slice expires that has not, or compaction may be due, or a slice is read again, as of that
    round."""
    aside: SetAside = field(default_factory=SetAside)
    """Slices that could not be read."""
    compaction_pass: Pass | None = None
    """The pass of compaction that the next round continues."""
    _merged: dict[TopicKey, Seen] = field(default_factory=dict)
    """Partitions in which nothing can be merged."""
    _kept: dict[TopicKey, tuple[Seen, int]] = field(default_factory=dict)
    """Partitions in which nothing expires before a time."""
    _not_due: dict[TopicKey, tuple[Seen, NotDue]] = field(default_factory=dict)
    _uncleanable: dict[TopicKey, int] = field(default_factory=dict)
    """Partitions whose pass has failed, and the start that they had."""

    def is_idle(self, state: State, now_ms: int) -> bool:
        """Whether a round has left nothing to do, and nothing has changed or expired since."""
        return self.finished == state.changed and now_ms < self.expires_ms

    def finish(self, state: State) -> None:
        """A round has planned this state, and found nothing to do."""
        self.finished = state.changed
        # The others have been deleted, or have no records or no limits any more: nothing in them expires.
        self._kept = {key: kept for key, kept in self._kept.items() if self._is_current(state, key, kept[0])}
        self._not_due = {key: found for key, found in self._not_due.items() if self._is_current(state, key, found[0])}
        times = (until for _, until in self._kept.values()), (found.until_ms for _, found in self._not_due.values())
        self.expires_ms = min(chain([self.aside.again_ms], *times))

    @staticmethod
    def _is_current(state: State, key: TopicKey, seen: Seen) -> bool:
        part = state.partitions.get(key)
        return part is not None and seen == Seen.of(state, key, part)

    def unmerged(self, state: State) -> list[TopicKey]:
        """Partitions in which something may be merged, in order."""
        self._merged = {key: seen for key, seen in self._merged.items() if key in state.partitions}
        self.live.keep(state.partitions)
        # Another maintainer may have rewritten a slice to the same length.
        for key in self.live.holders(frozenset(name for name in self.live.bytes if name not in state.objects)):
            self._merged.pop(key, None)
        return sorted(
            key
            for key, part in state.partitions.items()
            if not state.topics[key[0]].deleted and self._merged.get(key) != Seen.of(state, key, part)
        )

    def set_merged(self, state: State, planned: Mapping[TopicKey, object], unmerged: Iterable[TopicKey]) -> None:
        """Nothing can be merged in the planned partitions that are not in `unmerged`."""
        waiting = frozenset(unmerged)
        for key in planned:
            if key in waiting:
                self._merged.pop(key, None)
            else:
                self._merged[key] = Seen.of(state, key, state.partitions[key])

    def may_expire(self, state: State, key: TopicKey, part: Partition, now_ms: int) -> bool:
        """Whether something in the partition may have expired."""
        known = self._kept.get(key)
        return known is None or now_ms >= known[1] or known[0] != Seen.of(state, key, part)

    def set_kept(self, state: State, key: TopicKey, until_ms: int) -> None:
        """Nothing in the partition expires before a time, unless it changes."""
        self._kept[key] = Seen.of(state, key, state.partitions[key]), until_ms

    def may_be_due(self, state: State, key: TopicKey, part: Partition, now_ms: int) -> bool:
        """Whether a pass of compaction may be due in the partition, and none has failed."""
        if self._uncleanable.get(key) == part.start:
            return False
        known = self._not_due.get(key)
        return known is None or now_ms >= known[1].until_ms or known[0] != Seen.of(state, key, part)

    def set_not_due(self, state: State, key: TopicKey, found: NotDue) -> None:
        """No pass is due in the partition before a time, unless it changes."""
        self._not_due[key] = Seen.of(state, key, state.partitions[key]), found

    def set_uncleanable(self, state: State, key: TopicKey) -> None:
        """A pass has failed, and was reported.  The next one waits until the partition's start moves."""
        self._not_due.pop(key, None)
        self._uncleanable[key] = state.partitions[key].start

    def uncleanable(self, state: State) -> list[TopicKey]:
        """Partitions whose pass has failed, or has left out slices that cannot be read."""
        failed = {key for key, start in self._uncleanable.items() if self._starts_at(state, key, start)}
        return sorted(failed | {key for key in self.aside.passed if key in state.partitions})

    @staticmethod
    def _starts_at(state: State, key: TopicKey, start: int) -> bool:
        part = state.partitions.get(key)
        return part is not None and part.start == start

    def plan_again(self, keys: Iterable[TopicKey]) -> None:
        """Slices of these partitions can be read again."""
        for key in keys:
            self._merged.pop(key, None)
            self._kept.pop(key, None)
            self._not_due.pop(key, None)

    def dirty_ratios(self, state: State) -> dict[str, float]:
        """The highest dirty ratio of the partitions of each compacted topic, by topic id, as far as it is known."""
        found: dict[str, float] = {}
        for key, (seen, known) in self._not_due.items():
            if self._is_current(state, key, seen):
                found[key[0]] = max(known.ratio, found.get(key[0], 0.0))
        return found

    def known(self, state: State) -> Iterator[Known]:
        """The facts about the partitions of a state, in order."""
        for key, part in sorted(state.partitions.items()):
            seen = Seen.of(state, key, part)
            kept, merged, (objects, lengths) = self._kept.get(key), self._merged.get(key) == seen, self.live.held(key)
            kept_ms = kept[1] if kept is not None and kept[0] == seen else None
            not_due = found[1] if (found := self._not_due.get(key)) is not None and found[0] == seen else None
            if merged or kept_ms is not None or not_due is not None or objects:
                yield Known(key, seen, merged, kept_ms, not_due, objects, lengths)

    def learn(self, known: Known) -> None:
        """Take over a fact of another memory."""
        if known.merged:
            self._merged[known.key] = known.seen
        if known.kept_ms is not None:
            self._kept[known.key] = known.seen, known.kept_ms
        if known.not_due is not None:
            self._not_due[known.key] = known.seen, known.not_due
        self.live.put(known.key, known.objects, known.lengths)
