"""Which part of a partition compaction cleans next, and when.  Pure.

The records before the cleaner point have been in a pass.  The *dirty part* begins there, and ends before the records
that Kafka would not compact yet: those of the active segment, and those that are younger than `min.compaction.lag.ms`.
It ends where a slice begins.  Open transactions do not limit it: their records are not in the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_log.configs.settings import topic_config
from spark_log.journal.set_aside import NEVER
from spark_log.metadata.maintenance.cleaner_point import tombstones_from
from spark_log.metadata.state import CleanedPart
from spark_log.model import Slice
from spark_log.rewriting.merge_policy import active_segment, segment_target, window_ms


class Due(Enum):
    """Why a partition is cleaned."""

    DIRTY_RATIO = "min.cleanable.dirty.ratio"
    LAG = "max.compaction.lag.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyPart:
    """The records [start, end) of a partition, which no pass has seen and the next one may see."""

    start: int
    """The cleaner point; or the partition's start, or the end of a pass that has not moved the point, if that is
    greater."""
    end: int
    """The first uncleanable offset, or `start`."""
    bytes: int
    """Size of the dirty part."""
    clean_bytes: int
    """Size of the records before it."""
    due: Due | None
    """Why a pass is due; None: it is not."""
    tombstones_from: int
    """The pass removes tombstones before this offset."""
    until_ms: int
    """Neither the part nor `due` changes by time alone before."""

    @property
    def ratio(self) -> float:
        """Kafka's dirty ratio: the share of the dirty part in the bytes up to its end; 0 if that is empty."""
        return _ratio(self.bytes, self.clean_bytes)


def dirty_part(
    slices: Sequence[Slice],
    start: int,
    cleaned: CleanedPart | None,
    configs: Mapping[str, str],
    now_ms: int,
    log_ms: int,
    passed: int = 0,
) -> DirtyPart:
    """The dirty part of a partition of a compacted topic.

    slices:   all live slices, in offset order.
    start:    the start offset of the partition.
    cleaned:  the partition's cleaner point; None: it has had no pass.
    configs:  the topic's configs.
    now_ms:   the clock of this process, by which an idle partition becomes due.
    log_ms:   the log's time, by which tombstones expire.  A clock that is wrong for a moment would remove them too
              early.
    passed:   the end of the last pass, if that has left out slices and has not moved the point.
    """
    point = max(start, cleaned.upto if cleaned else 0, passed)
    end, changes = _uncleanable_from(slices, point, configs, now_ms)
    dirty_bytes = sum(_bytes_within(piece, point, end) for piece in slices)
    clean_bytes = sum(_bytes_within(piece, start, point) for piece in slices)
    oldest_us = min((piece.min_us for piece in slices if point < piece.end <= end), default=None)
    due = None
    if _ratio(dirty_bytes, clean_bytes) > topic_config(configs, "min.cleanable.dirty.ratio"):
        due = Due.DIRTY_RATIO
    elif oldest_us is not None:
        overdue_ms = oldest_us // 1000 + int(topic_config(configs, "max.compaction.lag.ms")) + 1
        changes.append(overdue_ms)
        due = Due.LAG if overdue_ms <= now_ms else None
    return DirtyPart(
        start=point,
        end=end,
        bytes=dirty_bytes,
        clean_bytes=clean_bytes,
        due=due,
        tombstones_from=tombstones_from(cleaned, log_ms, int(topic_config(configs, "delete.retention.ms"))),
        until_ms=min([NEVER, *(at for at in changes if at > now_ms)]),
    )


def _ratio(dirty_bytes: int, clean_bytes: int) -> float:
    return dirty_bytes / (dirty_bytes + clean_bytes) if dirty_bytes else 0.0


def _uncleanable_from(
    slices: Sequence[Slice], point: int, configs: Mapping[str, str], now_ms: int
) -> tuple[int, list[int]]:
    """The first uncleanable offset at or after the cleaner point; and times in milliseconds when it may change."""
    count, over_us = active_segment(slices, segment_target(configs), 1000 * window_ms(configs))
    over_ms = -(-over_us // 1000)
    if over_ms <= now_ms:
        count = len(slices)
    changes, lag_ms = [over_ms], int(topic_config(configs, "min.compaction.lag.ms"))
    for number, piece in enumerate(slices[:count] if lag_ms else ()):
        old_ms = piece.max_us // 1000 + lag_ms
        if piece.end > point and old_ms > now_ms:
            count = number
            changes.append(old_ms)
            break
    return max(point, slices[count - 1].end if count else point), changes


def _bytes_within(piece: Slice, start: int, end: int) -> int:
    """The bytes of a slice's records in [start, end), by their share in its range."""
    within = min(piece.end, end) - max(piece.start, start)
    return piece.length * max(0, within) // (piece.end - piece.start)
