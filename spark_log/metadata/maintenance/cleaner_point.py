"""The cleaner point of a partition, and the horizon before which its tombstones go.  Pure.

Compaction keeps a tombstone for `delete.retention.ms` from the end of the first pass over it.  So each pass adds its
end and its time to a few pairs, instead of a time to each batch, as Kafka does.
"""

from __future__ import annotations

from spark_log.metadata.state import CleanedPart

HORIZON_PARTS = 8
"""A tombstone stays at most this fraction of `delete.retention.ms` longer, so that there are few pairs."""


def moved_point(known: CleanedPart | None, upto: int, now_ms: int, kept_ms: int) -> CleanedPart:
    """The point after a pass that ended at an offset.

    kept_ms:  `delete.retention.ms`.  Of the pairs that are older, one stays.
    """
    horizons = known.horizons if known else ()
    old = sum(time + kept_ms <= now_ms for _, time in horizons)
    horizons = horizons[max(0, old - 1) :]
    # The later of two neighbours stands for both: tombstones stay longer, never shorter.
    if len(horizons) > 1 and now_ms - horizons[-2][1] < kept_ms // HORIZON_PARTS:
        horizons = horizons[:-1]
    return CleanedPart(upto, (*horizons, (upto, now_ms)))


def tombstones_from(cleaned: CleanedPart | None, now_ms: int, kept_ms: int) -> int:
    """The horizon: tombstones before this offset have been kept for `kept_ms`.  0: there are none."""
    horizons = cleaned.horizons if cleaned else ()
    return max((offset for offset, time in horizons if time + kept_ms <= now_ms), default=0)
