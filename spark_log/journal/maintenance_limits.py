"""Bounds of one step of a log's maintenance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Bounds of sealing, swaps and deletes.  Correctness does not depend on them: a simulation draws small ones."""

    inline_slices: int = 256
    inline_per_partition: int = 8
    """A topic is sealed if its slices in the state exceed both `inline_slices` and this times its partitions."""
    changes_max: int = 250
    """Maximum number of partitions that one swap changes: commits wait for it, 3 ms."""
    swap_bytes: int = 1 << 30
    swap_slices: int = 50_000
    """A merge proposes its swap after rewriting this many: it bounds the lost work if a maintainer dies."""
    clean_bytes: int = 2 << 30
    """Compaction reads about this much of large partitions in a round, and as much of small ones: at 15 MB/s, the rate
    of records of 13 bytes, two minutes each."""
    clean_keys: int = 5_000_000
    """Keys in the maps of compaction, 120 MB, and twice as much for a moment while they are sorted.  A pass ends where
    its map is full."""
    remembered_slices: int = 1000
    """The memory of maintenance is saved if the log has this many.  A smaller one is planned in 20 ms, and shall have
    no puts if it is abandoned."""
    dropped_inline: int = 10_000
    """With more names of dropped objects in the state, they are moved to a list object."""
    deletes_max: int = 20_000
    """Maximum number of names that one round of truncation or garbage collection deletes."""


LIMITS = StepLimits()
