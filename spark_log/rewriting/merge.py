"""Merging: rewriting small slices as segments, with all of their records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from spark_log.journal.context import Context
from spark_log.journal.failure_isolation import OnFailure, raise_failure
from spark_log.journal.set_aside import SetAside
from spark_log.journal.store_operations import Steps
from spark_log.metadata.state import State
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.rewriting.merge_candidates import plan_merge
from spark_log.rewriting.merge_policy import is_worth
from spark_log.rewriting.rewrite import OpenSpool, Progress, Rewriting, rewrite
from spark_log.rewriting.rewrite_packs import Stretch
from spark_log.rewriting.segment_swaps import objects_of


@dataclass(slots=True)
class Tally:
    """The result of a merge."""

    slices: int = 0
    """Replaced slices."""
    segments: int = 0
    """New segments."""
    bytes: int = 0
    """Size of the new segments."""
    planned: int = 0
    """Slices that were to be replaced: more, if some were not, for a reason that the next merge may not find."""

    def add(self, other: Tally) -> None:
        """Add the result of another merge."""
        self.slices += other.slices
        self.segments += other.segments
        self.bytes += other.bytes
        self.planned += other.planned


def merge(
    state: State,
    context: Context,
    open_spool: OpenSpool,
    progress: Progress | None = None,
    on_failure: OnFailure = raise_failure,
    memory: MaintenanceMemory | None = None,
) -> Steps[Tally]:
    """Rewrite the small slices of all topics, according to the merge policy.

    on_failure:  called for an object that cannot be read, and for a partition whose slice index cannot be read; if it
                 returns, the others are merged.
    memory:      the results of earlier rounds of this process.
    """
    memory = memory or MaintenanceMemory()
    stretches, thin = yield from plan_merge(state, on_failure, memory)
    return (yield from merge_stretches(state, context, stretches, thin, memory.aside, open_spool, progress, on_failure))


def merge_stretches(
    state: State,
    context: Context,
    stretches: Sequence[Stretch],
    thin: Collection[str],
    aside: SetAside,
    open_spool: OpenSpool,
    progress: Progress | None = None,
    on_failure: OnFailure = raise_failure,
) -> Steps[Tally]:
    """Rewrite planned slices.

    thin:   objects that are mostly dead; even a single slice of one is rewritten.
    aside:  slices that cannot be read; others are added.
    """
    how = Rewriting(
        name="merge",
        activity="merging",
        open_spool=open_spool,
        on_failure=on_failure,
        aside=aside,
        progress=progress,
        is_worth=partial(is_worth, thin=thin),
    )
    _, done = yield from rewrite(state, context, stretches, how)
    return Tally(
        slices=sum(len(one.old) for one in done),
        segments=len(done),
        bytes=sum(made.size for made in objects_of(done)),
        planned=sum(len(stretch.slices) for stretch in stretches),
    )
