"""A log that was set back to an older copy while a process had it open: by a snapshot of its disk, or by `cp`.  Pure.

No record says so.  But the process has the state of before, and object names are given once: an object that both
states know was committed before the copy was made.  So the records up to its end are the same.  A process keeps this
with its states, and other processes do not know it (docs/decisions/0134-set-back-under-a-reader.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from spark_log.errors import OffsetOutOfRange
from spark_log.metadata.projection import is_projected
from spark_log.metadata.restores import common_end, history_of
from spark_log.metadata.state import Partition, SetBack, State, TopicKey
from spark_log.model import PROGRESS_TOPIC

Reader = TypeVar("Reader")

KEPT = 16
UNTOLD = -1
"""In place of an end: it cannot be told what a partition has in common with what it had."""


class Lineage(NamedTuple):
    """Which log a reader of this process has read, to be compared later."""

    history: str
    set_back: str | None = ""
    """The last one that this process has found; empty: none.  None: another process has read it."""


BEGINNING = Lineage("")


class CommonEnd(NamedTuple):
    """The offset before which a partition has the records that it had.  It has other records from there on."""

    offset: int
    told: bool = True
    """Whether that is known; otherwise, the offset is where the partition begins."""
    set_back: bool = False
    """Whether no record of the log tells it: the common records end there, or later."""

    def text(self, at: int) -> str:
        """The reason for a reader at an offset beyond."""
        if not self.set_back:
            return f"the log was restored from a copy that ended at {self.offset}, before offset {at}"
        if not self.told:
            return f"the log was set back to an older copy, and which records before offset {at} it has cannot be told"
        return f"the log was set back to an older copy, and may have other records from {self.offset} on, before offset {at}"

    def error(self, partition: str, at: int) -> OffsetOutOfRange:
        """The error of a consumer at an offset beyond, which has to decide where it continues."""
        text = f"{partition}: {self.text(at)}; poll() continues at {self.offset}, or seek() elsewhere"
        return OffsetOutOfRange(text, start=0, end=self.offset)


def lineage_of(state: State) -> Lineage:
    return Lineage(history_of(state), state.set_backs[-1].id if state.set_backs else "")


def end_since(state: State, lineage: Lineage, key: TopicKey) -> CommonEnd | None:
    """Where the records of a partition end that a reader may have read; None: it has read no others.

    key:  as for `common_end`.
    """
    restored = common_end(state, lineage.history, key)
    since = () if lineage.set_back is None else _since(state, lineage.set_back)
    if key[0] == PROGRESS_TOPIC:
        key = PROGRESS_TOPIC, 0
    ends = [set_back.ends.get(key, UNTOLD) for set_back in since]
    if not ends:
        return None if restored is None else CommonEnd(restored)
    if UNTOLD in ends:
        return CommonEnd(_start(state, key), told=False, set_back=True)
    end = max(min(ends), _start(state, key))
    return CommonEnd(end, set_back=True) if restored is None or end < restored else CommonEnd(restored)


def _since(state: State, known: str) -> tuple[SetBack, ...]:
    places = [number for number, one in enumerate(state.set_backs, 1) if one.id == known]
    return state.set_backs[places[-1] :] if places else state.set_backs


def _start(state: State, key: TopicKey) -> int:
    return 0 if key[0] == PROGRESS_TOPIC or (part := state.partitions.get(key)) is None else part.start


def beyond(
    state: State, lineage: Lineage, positions: Mapping[Reader, tuple[TopicKey, int]]
) -> dict[Reader, tuple[int, CommonEnd]]:
    """The positions beyond what a log has in common with what was read, each with the end of that."""
    ends = {reader: (at, end_since(state, lineage, key)) for reader, (key, at) in positions.items()}
    return {reader: (at, end) for reader, (at, end) in ends.items() if end is not None and end.offset < at}


def replaced(new: State, old: State, record: str) -> State:
    """The state of a log that is not the one of before: it was restored, of which a record tells, or set back.

    old:     the last state of before that this process has.
    record:  identifies its record (`record_id`).
    """
    if history_of(new) != history_of(old):
        return following(new, old)
    found = SetBack(f"{old.version}-{record}", _common_ends(old, new))
    return replace(new, set_backs=(*old.set_backs, found)[-KEPT:])


def following(new: State, old: State) -> State:
    """The state of a log that was opened again, and continues `old`."""
    return replace(new, set_backs=old.set_backs) if old.set_backs else new


def _common_ends(old: State, new: State) -> Mapping[TopicKey, int]:
    in_old, in_new = _names(old), _names(new)
    complete = _remembers_the_copy(old, new)
    ends = {key: _common_end(old.partitions[key], part, in_old, in_new, complete) for key, part in _both(old, new)}
    return {**ends, (PROGRESS_TOPIC, 0): max(_shared_versions(old, new), default=UNTOLD - 1) + 1}


def _both(old: State, new: State) -> Iterator[tuple[TopicKey, Partition]]:
    return ((key, part) for key, part in new.partitions.items() if key in old.partitions)


def _names(state: State) -> frozenset[str]:
    """The objects that a state knows; those that were dropped above the fence, too."""
    return frozenset(state.objects if is_projected(state) else (*state.objects, *state.dropped))


def _remembers_the_copy(old: State, new: State) -> bool:
    """Whether each state knows all objects that the copy had, and not both have replaced some of them.

    Then a partition that has no object in common has no records in common.
    """
    if is_projected(old) or is_projected(new) or old.dropped_lists or new.dropped_lists:
        return False
    both_dropped = any(name in old.dropped for name in new.dropped)
    shared = _shared_versions(old, new)
    return bool(shared) and max(shared) >= max(old.fence, new.fence) and not both_dropped


def _shared_versions(old: State, new: State) -> set[int]:
    """Versions that had the same time: the copy was made after them."""
    return {version for version, _ in {*old.times} & {*new.times}}


def _common_end(old: Partition, new: Partition, in_old: frozenset[str], in_new: frozenset[str], complete: bool) -> int:
    end = max(_last_known(new, in_old, old), _last_known(old, in_new, new))
    return new.start if end == UNTOLD and (complete or not new.entries) else end


def _last_known(part: Partition, names: frozenset[str], other: Partition) -> int:
    """Where the last records end whose object the other state knows."""
    known = {one.object for one in other.entries}
    return next((one.end for one in reversed(part.entries) if one.object in names or one.object in known), UNTOLD)
