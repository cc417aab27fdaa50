"""A merge in shares, for processes that work at the same time: tasks of a Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from spark_log.journal.context import Context
from spark_log.journal.failure_isolation import OnFailure, raise_failure
from spark_log.journal.set_aside import SetAside
from spark_log.journal.store_operations import Steps
from spark_log.metadata.state import State, TopicKey
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.rewriting.merge import Tally, merge_stretches
from spark_log.rewriting.merge_candidates import plan_merge, plan_partitions
from spark_log.rewriting.rewrite import OpenSpool
from spark_log.rewriting.rewrite_packs import Stretch
from spark_log.runtime.size_groups import size_groups

SHARE_WORK = 256 << 20
"""The work of a share, in bytes of large slices: some seconds."""
SLICE_WORK = 25 << 10
"""A slice takes as long as this many bytes, besides its own: 250 µs."""


class MergeShare(NamedTuple):
    """Partitions that one process merges."""

    keys: tuple[TopicKey, ...]
    thin: frozenset[str]
    """Mostly dead objects with slices of these partitions."""
    aside: SetAside
    """Slices of these partitions that cannot be read; the process adds others."""


class _PartitionWork(NamedTuple):
    """The slices of a partition that are rewritten."""

    key: TopicKey
    work: int
    objects: frozenset[str]


def plan_shares(
    state: State,
    on_failure: OnFailure = raise_failure,
    *,
    memory: MaintenanceMemory | None = None,
    share_work: int = SHARE_WORK,
) -> Steps[list[MergeShare]]:
    """The partitions of all topics that have slices to rewrite.  Each is in one share; the largest share comes first.

    on_failure:  called for a partition whose slice index cannot be read; if it returns, the others are planned.
    memory:      the results of earlier rounds of this process.
    """
    memory = memory or MaintenanceMemory()
    stretches, thin = yield from plan_merge(state, on_failure, memory)
    works = [_work(key, list(some)) for key, some in groupby(stretches, lambda stretch: stretch.key)]
    # Neighbours, because the partitions of a topic share objects.
    groups = sorted(
        size_groups(works, lambda one: one.work, share_work), key=lambda group: -sum(one.work for one in group)
    )
    return [
        MergeShare(
            tuple(one.key for one in group),
            thin & {name for one in group for name in one.objects},
            memory.aside.of(one.key for one in group),
        )
        for group in groups
    ]


def _work(key: TopicKey, stretches: Sequence[Stretch]) -> _PartitionWork:
    slices = [piece for stretch in stretches for piece in stretch.slices]
    work = sum(piece.length + SLICE_WORK for piece in slices)
    return _PartitionWork(key, work, frozenset(piece.object for piece in slices))


def merge_share(
    state: State, context: Context, share: MergeShare, open_spool: OpenSpool, on_failure: OnFailure = raise_failure
) -> Steps[Tally]:
    """Rewrite the small slices that a share has now: none, if it was merged before."""
    thin, aside = share.thin, share.aside
    stretches = yield from plan_partitions(state, share.keys, thin, aside, on_failure)
    return (yield from merge_stretches(state, context, stretches, thin, aside, open_spool, on_failure=on_failure))
