"""Merging and compaction by other processes, such as the tasks of a Spark job, in a round of maintenance.

The round plans by its memory, and gives shares of the work to the workers.  Each worker commits what it has rewritten,
and replaces slices only if they are still there.  So a share that fails, or that two workers have, does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from spark_log.journal.context import Context
from spark_log.journal.failure_isolation import Failures, ReportedFailures
from spark_log.journal.set_aside import SetAside
from spark_log.journal.store_operations import Refresh, Steps
from spark_log.metadata.state import State, TopicKey
from spark_log.rewriting.compaction_plan import find_dirty_parts, group_parts
from spark_log.rewriting.compaction_rounds import CompactionTally
from spark_log.rewriting.maintenance_memory import MaintenanceMemory
from spark_log.rewriting.merge import Tally
from spark_log.rewriting.merge_shares import MergeShare, plan_shares


class CompactionShare(NamedTuple):
    """Partitions that one process compacts together."""

    keys: tuple[TopicKey, ...]
    aside: SetAside
    """Slices of these partitions that cannot be read; the process adds others."""


class Workers(Protocol):
    """Other processes.  A result comes with the failures of its share, and with what it has set aside."""

    def merge(self, shares: Sequence[MergeShare]) -> Iterable[tuple[Tally, ReportedFailures]]:
        """Merge each share; the largest one comes first."""

    def compact(self, shares: Sequence[CompactionShare]) -> Iterable[tuple[CompactionTally, ReportedFailures]]:
        """Compact the partitions of each share together."""


def merge_by(workers: Workers, state: State, failed: Failures, memory: MaintenanceMemory) -> Steps[Tally]:
    """`merge` by workers."""
    shares, total = (yield from plan_shares(state, failed, memory=memory)), Tally()
    for tally, reported in workers.merge(shares) if shares else ():
        total.add(tally)
        _add(reported, failed, memory)
    yield Refresh()
    return total


def compact_by(
    workers: Workers, state: State, context: Context, failed: Failures, memory: MaintenanceMemory
) -> Steps[CompactionTally]:
    """`compact` by workers, until nothing is due, or something fails."""
    total = CompactionTally()
    while shares := (yield from _shares(state, context, failed, memory)):
        ended, total.left, known = total.partitions, 0, len(failed.problems)
        for tally, reported in workers.compact(shares):
            total.add(tally)
            _add(reported, failed, memory)
        state = yield Refresh()
        if len(failed.problems) > known or not total.left or total.partitions == ended:
            break
    return total


def _add(reported: ReportedFailures, failed: Failures, memory: MaintenanceMemory) -> None:
    failed.add(reported)
    if reported.aside is not None:
        memory.aside.add_all(reported.aside)


def _shares(
    state: State, context: Context, failed: Failures, memory: MaintenanceMemory
) -> Steps[list[CompactionShare]]:
    """The partitions that are due: each large one alone, and then the small ones in groups."""
    due = yield from find_dirty_parts(state, context.clock.now_ms(), failed, memory)
    groups = chain(*group_parts(due, context.limits))
    return [CompactionShare(tuple(group), memory.aside.of(group)) for group in groups]
