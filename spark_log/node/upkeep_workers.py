"""Merging and compaction by other processes, such as the tasks of a Spark job, in a round of upkeep.

The round plans by its memory, and gives shares of the work to the workers.  Each worker commits what it has rewritten,
and replaces slices only if they are still there.  So a share that fails, or that two workers have, does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

from spark_log.journal.context import Context
from spark_log.journal.store_operations import Refresh, Steps
from spark_log.metadata.state import State, TopicKey
from spark_log.node.compaction_plan import find_dirty_parts, group_parts
from spark_log.node.compaction_rounds import CompactionTally
from spark_log.node.failure_isolation import Failures, ReportedFailures
from spark_log.node.merge import Tally
from spark_log.node.merge_shares import MergeShare, plan_shares
from spark_log.node.upkeep_memory import UpkeepMemory


class Workers(Protocol):
    """Other processes.  A result comes with the failures of its share."""

    def merge(self, shares: Sequence[MergeShare]) -> Iterable[tuple[Tally, ReportedFailures]]:
        """Merge each share; the largest one comes first."""

    def compact(self, groups: Sequence[Sequence[TopicKey]]) -> Iterable[tuple[CompactionTally, ReportedFailures]]:
        """Compact the partitions of each group together."""


def merge_by(workers: Workers, state: State, failed: Failures, memory: UpkeepMemory) -> Steps[Tally]:
    """`merge` by workers."""
    shares, total = (yield from plan_shares(state, failed, memory=memory)), Tally()
    for tally, reported in workers.merge(shares) if shares else ():
        total.add(tally)
        failed.add(reported)
    yield Refresh()
    return total


def compact_by(
    workers: Workers, state: State, context: Context, failed: Failures, memory: UpkeepMemory
) -> Steps[CompactionTally]:
    """`compact` by workers, until nothing is due, or something fails."""
    total = CompactionTally()
    while groups := (yield from _groups(state, context, failed, memory)):
        ended, total.left, known = total.partitions, 0, len(failed.problems)
        for tally, reported in workers.compact(groups):
            total.add(tally)
            failed.add(reported)
        state = yield Refresh()
        if len(failed.problems) > known or not total.left or total.partitions == ended:
            break
    return total


def _groups(state: State, context: Context, failed: Failures, memory: UpkeepMemory) -> Steps[list[list[TopicKey]]]:
    """The partitions that are due: each large one alone, and then the small ones in groups."""
    due = yield from find_dirty_parts(state, context.clock.now_ms(), failed, memory)
    return [list(group) for group in chain(*group_parts(due, context.limits))]
