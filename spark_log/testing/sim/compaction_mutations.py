"""The rules of compaction, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from collections.abc import Sequence

from spark_log.journal.proposal import Context
from spark_log.journal.store_operations import Steps
from spark_log.metadata import replay
from spark_log.metadata.cleaner_point import moved_point
from spark_log.metadata.state import CleanedPart, State
from spark_log.node import cleaning_policy
from spark_log.node.segment_swaps import Replacement, SwapBatch, swap_segments
from spark_log.testing.sim import compaction
from spark_log.testing.sim.constants import Mutation, Patch


def _swapped_blindly(
    state: State, context: Context, batch: SwapBatch, *, thinned: bool = False
) -> Steps[tuple[State, Sequence[Replacement]]]:
    state, _ = yield from swap_segments(state, context, batch, thinned=thinned)
    return state, batch.done


def _all_cleaned(cleaned: CleanedPart | None, now_ms: int, kept_ms: int) -> int:
    return cleaned.upto if cleaned else 0


def _moved_with_earlier_time(known: CleanedPart | None, upto: int, now_ms: int, kept_ms: int) -> CleanedPart:
    if known is None or now_ms - known.horizons[-1][1] >= kept_ms:
        return moved_point(known, upto, now_ms, kept_ms)
    *before, (_, time) = known.horizons
    return CleanedPart(upto, (*before, (upto, time)))


COMPACTION_MUTATIONS = {
    "cleaned_blindly": Mutation(
        "the cleaner point moves when all segments of a pass are swapped in",
        (Patch(compaction, "swap_segments", _swapped_blindly),),
    ),
    "tombstones_immediately": Mutation(
        "a tombstone is kept for some time from the end of the first pass over it",
        (Patch(cleaning_policy, "tombstones_from", _all_cleaned),),
    ),
    "horizon_too_early": Mutation(
        "of passes that share a time, the last one's counts",
        (Patch(replay, "moved_point", _moved_with_earlier_time),),
    ),
}
