"""How much the upkeep of a log does in one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Bounds of sealing, swaps and deletes.  No promise depends on their values: a simulation draws them small."""

    inline_slices: int = 256
    inline_per_partition: int = 8
    """A topic with more slices in the state than both of these allow is sealed."""
    changes_max: int = 1000
    """Partitions that one swap changes at most."""
    swap_bytes: int = 1 << 30
    swap_slices: int = 50_000
    """A merge proposes its swap when it has rewritten as much: it bounds what a maintainer that dies has done for nothing."""
    deletes_max: int = 20_000
    """Names that one round of truncation or garbage collection deletes at most."""


LIMITS = StepLimits()
