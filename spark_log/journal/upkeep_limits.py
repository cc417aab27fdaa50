"""Bounds of one step of a log's upkeep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Bounds of sealing, swaps and deletes.  Correctness does not depend on them: a simulation draws small ones."""

    inline_slices: int = 256
    inline_per_partition: int = 8
    """A topic is sealed if its slices in the state exceed both `inline_slices` and this times its partitions."""
    changes_max: int = 1000
    """Maximum number of partitions that one swap changes."""
    swap_bytes: int = 1 << 30
    swap_slices: int = 50_000
    """A merge proposes its swap after rewriting this many: it bounds the lost work if a maintainer dies."""
    deletes_max: int = 20_000
    """Maximum number of names that one round of truncation or garbage collection deletes."""


LIMITS = StepLimits()
