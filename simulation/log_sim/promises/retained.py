"""The promises about records that are removed: by a trim, or by retention.

Retention is computed here a second time, from the records one by one: nothing may go too early, and nothing too late.
Where compaction and erasures remove single records, it goes by the times of slices, which each swap has to keep right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from simulation.log_sim.content import Row, has_keys
from simulation.verdict import Violation
from spark_log.configs.settings import has_cleanup_policy, topic_config
from spark_log.metadata import records as r
from spark_log.metadata.maintenance.swaps import resolve
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Partition, State, TopicKey
from spark_log.model import Slice


class Retained:
    """The start of each partition, according to the trims that actors requested."""

    def __init__(self, slices_of: Callable[[Piece], Sequence[Slice]]) -> None:
        self._slices_of = slices_of
        self._times: dict[TopicKey, list[int]] = {}
        """Times of each record in ms: the record's, or the log's if the topic is configured so."""
        self._starts: dict[TopicKey, int] = {}
        self._asked: set[tuple[TopicKey, int]] = set()
        self._limits: dict[str, set[tuple[int, int]]] = {}
        """(ms, bytes): every pair of limits that each topic has had."""

    def append(self, key: TopicKey, rows: Iterable[Row], after: State) -> None:
        """Add the records of a commit."""
        stamped = topic_config(after.topics[key[0]].configs, "message.timestamp.type") == "LogAppendTime"
        self._times.setdefault(key, []).extend(after.time if stamped else row.time_ms for row in rows)

    def ask(self, starts: Mapping[TopicKey, int]) -> None:
        """An actor is about to trim partitions to these starts."""
        self._asked.update(starts.items())

    def place(self, trim: r.TrimRecord, before: State) -> None:
        """A trim took effect: by request, or by the retention of `pylog maintain`."""
        key = (trim.topic_id, trim.partition)
        if (key, trim.start) not in self._asked and not self._is_old(key, trim.start, before):
            raise Violation(f"trimmed: {key} to {trim.start}, which nobody asked for")
        self._starts[key] = trim.start

    def _is_old(self, key: TopicKey, start: int, before: State) -> bool:
        """Whether retention may have removed all records before `start`, under any limits that the topic had.

        The size limit cannot be checked afterwards: merging has made segments smaller since.
        """
        newest = self._newest(key, start, before)
        return any(size >= 0 or 0 <= age < before.time - newest for age, size in self._limits[key[0]])

    def _newest(self, key: TopicKey, start: int, before: State) -> int:
        """Others may have merged slices since the decision: then those that a trim splits do not count."""
        if not has_keys(key):
            return max(self._times[key][self._starts.get(key, 0) : start])
        gone = [piece.max_us for piece in self._live(before.partitions[key]) if piece.end <= start]
        return max(gone, default=0) // 1000

    def check(self, state: State) -> None:
        """A partition starts where its last trim put it."""
        for topic_id, topic in state.topics.items():
            self._limits.setdefault(topic_id, set()).add(_limits_of(topic.configs))
        for key, part in state.partitions.items():
            if part.start != self._starts.get(key, 0):
                raise Violation(f"trimmed: {key} starts at {part.start}, not at {self._starts.get(key, 0)}")

    def expired(self, state: State, now: int) -> dict[TopicKey, int]:
        """The new starts, by retention, of partitions that lose records."""
        found = {}
        for key, part in sorted(state.partitions.items()):
            topic = state.topics[key[0]]
            if not topic.deleted and (start := self._expired(key, part, topic.configs, now)) > part.start:
                found[key] = start
        return found

    def _expired(self, key: TopicKey, part: Partition, configs: Mapping[str, str], now: int) -> int:
        """Remove slices from the front while they are too old or the partition is too large."""
        age, size = _limits_of(configs)
        left = self._live(part)
        while left:
            old = age >= 0 and all(time < now - age for time in self._times_of(key, left[0]))
            much = size >= 0 and sum(piece.length for piece in left[1:]) >= size
            if not (old or much):
                break
            left.pop(0)
        return left[0].start if left else part.end

    def check_time(self, key: TopicKey, piece: Slice, rows: Iterable[Row]) -> None:
        """A new slice is as old as the newest of its records, and not younger than all that it replaces."""
        times, replaced = [row.time_ms for row in rows], self._times[key][piece.start : piece.end]
        if not max(times, default=0) <= piece.max_us // 1000 <= max(replaced):
            raise Violation(f"retained: {piece} of {key} has records of {times}, it replaces {replaced}")

    def _times_of(self, key: TopicKey, piece: Slice) -> Sequence[int]:
        """The times of the records of a slice; the newest one where records may be missing."""
        return [piece.max_us // 1000] if has_keys(key) else self._times.get(key, [])[piece.start : piece.end]

    def _live(self, part: Partition) -> list[Slice]:
        inside = {entry: self._slices_of(entry) for entry in part.entries if isinstance(entry, Piece)}
        return [piece for piece in resolve(part.entries, inside) if piece.end > part.start]

    def check_expired(
        self, wanted: Mapping[TopicKey, int], state: State, starts: Mapping[TopicKey, int], *, whole: bool
    ) -> None:
        """Check the decision of a round of retention on a state.

        whole: the state has no indexes.  Retention stops before an index that is missing or was replaced.
        """
        found = {key: start for key, start in starts.items() if start > state.partitions[key].start}
        unread = {key: start for key, start in found.items() if start != wanted.get(key)}
        stopped = all(
            start < wanted.get(key, 0)
            and any(isinstance(entry, Piece) and entry.start == start for entry in state.partitions[key].entries)
            for key, start in unread.items()
        )
        if not stopped or (whole and found != wanted):
            raise Violation(f"retained: retention of version {state.version} trims to {found}, not to {dict(wanted)}")


def _limits_of(configs: Mapping[str, str]) -> tuple[int, int]:
    if not has_cleanup_policy(configs, "delete"):
        return -1, -1
    return topic_config(configs, "retention.ms"), topic_config(configs, "retention.bytes")
