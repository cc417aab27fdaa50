"""The promises about records that compaction removes, computed from the records one by one.

The record at an offset may be missing if it has no key, if a newer one has its key, if it is a tombstone that has been
kept for `delete.retention.ms` since the end of a pass over it, or if an erasure of its key has begun.  A pass leaves
out records that are younger than `min.compaction.lag.ms`, and those of a window that is not over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from simulation.log_sim.content import Row
from simulation.verdict import Violation
from spark_log.configs.settings import topic_config
from spark_log.metadata import records as r
from spark_log.metadata.state import State, TopicKey
from spark_log.rewriting.merge_policy import window_ms


class Compacted:
    """The passes over each partition."""

    def __init__(self, ahead_ms: int) -> None:
        """
        ahead_ms:  how far the clock of a process may be ahead.
        """
        self._ahead_ms = ahead_ms
        self._passes: dict[TopicKey, list[tuple[int, int]]] = {}
        """(end, the log's time) of each pass."""

    def place(self, record: r.CleanedRecord, after: State) -> None:
        """Passes have ended."""
        for topic_id, number, upto in record.partitions:
            self._passes.setdefault((topic_id, number), []).append((upto, after.time))

    def check_pass(self, one: r.Cleaned, before: State, rows: Sequence[Row], erased: Collection[int], now: int) -> None:
        """A pass ends after this state; erased: offsets that may be missing because of erasures."""
        key = one[:2]
        configs, known = before.topics[key[0]].configs, before.cleaned.get(key)
        lag, window = topic_config(configs, "min.compaction.lag.ms"), window_ms(configs)
        newest = max(row.time_ms for row in rows) // window
        for offset in range(max(known.upto if known else 0, before.partitions[key].start), one.upto):
            time, latest_ms = rows[offset].time_ms, now + self._ahead_ms
            is_active = time // window == newest and latest_ms < (newest + 1) * window
            if offset not in erased and (is_active or latest_ms < time + lag):
                raise Violation(f"young: a pass over {key} to {one.upto} at {now} has offset {offset} of {time}")

    def check(
        self, key: TopicKey, state: State, rows: Sequence[Row], found: Sequence[int], erased: Collection[int]
    ) -> None:
        """A reader got the rows at these offsets of a whole partition at a version.

        rows:    all that were appended.
        erased:  offsets that may be missing because of erasures.
        """
        part = state.partitions[key]
        if any(later <= offset for offset, later in zip([part.start - 1, *found], [*found, part.end], strict=True)):
            raise Violation(f"offsets: a read of {key} in [{part.start}, {part.end}) has {list(found)}")
        there = frozenset(found)
        for name, newest in latest(rows, part.start, part.end).items():
            if newest in there or newest in erased:
                continue
            if not rows[newest].is_tombstone or not self._is_over(key, state, newest):
                raise Violation(f"compacted: offset {newest} of {key} is missing, the latest with key {name}")
            if older := [offset for offset in found if rows[offset].key == name]:
                raise Violation(f"compacted: tombstone {newest} of {key} is gone, and {older} are there")
        self._check_clean(key, state, rows, found)

    def _is_over(self, key: TopicKey, state: State, offset: int) -> bool:
        """Whether the time of a tombstone is over."""
        kept_ms = topic_config(state.topics[key[0]].configs, "delete.retention.ms")
        return any(offset < upto and time + kept_ms <= state.time for upto, time in self._passes.get(key, ()))

    def _check_clean(self, key: TopicKey, state: State, rows: Sequence[Row], found: Sequence[int]) -> None:
        """Before the cleaner point, keys are unique."""
        cleaned = state.cleaned.get(key)
        names = [rows[offset].key for offset in found if cleaned and offset < cleaned.upto]
        if None in names or len(set(names)) != len(names):
            raise Violation(f"compacted: {key} has {names} before {cleaned}, where all records have been in a pass")


def latest(rows: Sequence[Row], start: int, end: int) -> dict[str, int]:
    """The newest offset of each key in [start, end)."""
    return {name: offset for offset in range(start, end) if (name := rows[offset].key) is not None}
