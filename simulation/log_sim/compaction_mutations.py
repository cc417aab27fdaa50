"""The rules of compaction, each removed in turn: the simulation has to notice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from simulation.log_sim import compaction
from simulation.mutation import Mutation, Patch
from spark_log.journal.context import Context
from spark_log.journal.store_operations import Steps
from spark_log.metadata import replay
from spark_log.metadata.maintenance.cleaner_point import moved_point
from spark_log.metadata.state import CleanedPart, State
from spark_log.model import Slice
from spark_log.rewriting import dirty_part
from spark_log.rewriting.compaction_rules import Pass
from spark_log.rewriting.segment_swaps import Replacement, SwapBatch, swap_segments
from spark_log.segment.keys.newest_offsets import NewestOffsets
from spark_log.segment.offsets import Offsets


def _swapped_blindly(state: State, context: Context, batch: SwapBatch) -> Steps[tuple[State, Sequence[Replacement]]]:
    state, _ = yield from swap_segments(state, context, batch)
    return state, batch.done


def _all_cleaned(cleaned: CleanedPart | None, now_ms: int, kept_ms: int) -> int:
    return cleaned.upto if cleaned else 0


def _moved_with_earlier_time(known: CleanedPart | None, upto: int, now_ms: int, kept_ms: int) -> CleanedPart:
    if known is None or now_ms - known.horizons[-1][1] >= kept_ms:
        return moved_point(known, upto, now_ms, kept_ms)
    *before, (_, time) = known.horizons
    return CleanedPart(upto, (*before, (upto, time)))


_keep, _offsets, _end_map = NewestOffsets.keep, NewestOffsets.offsets, Pass.end_map
_uncleanable_from = dirty_part._uncleanable_from


def _keep_older(
    newest: NewestOffsets, keys: pa.Array, values: pa.Array | None, offsets: Offsets, tombstones_from: int
) -> npt.NDArray[np.bool_]:
    return np.ones(len(keys), bool)


def _keep_no_tombstone(
    newest: NewestOffsets, keys: pa.Array, values: pa.Array | None, offsets: Offsets, tombstones_from: int
) -> npt.NDArray[np.bool_]:
    return _keep(newest, keys, values, offsets, 2**60)


def _offsets_but_last(newest: NewestOffsets) -> npt.NDArray[np.int64]:
    return _offsets(newest)[:-1]


def _end_map_late(one: Pass, start: int, end: int) -> None:
    _end_map(one, start, one.dirty[1])


def _no_active_segment(slices: Sequence[Slice], target: int, window_us: int) -> tuple[int, int]:
    return len(slices), 0


def _uncleanable_without_lag(
    slices: Sequence[Slice], point: int, configs: Mapping[str, str], now_ms: int
) -> tuple[int, list[int]]:
    return _uncleanable_from(slices, point, {**configs, "min.compaction.lag.ms": "0"}, now_ms)


COMPACTION_MUTATIONS = {
    "cleaned_blindly": Mutation(
        "the cleaner point moves when all segments of a pass are swapped in",
        (Patch(compaction, "swap_segments", _swapped_blindly),),
    ),
    "tombstones_immediately": Mutation(
        "a tombstone is kept for some time from the end of the first pass over it",
        (Patch(dirty_part, "tombstones_from", _all_cleaned),),
    ),
    "horizon_too_early": Mutation(
        "of passes that share a time, the last one's counts",
        (Patch(replay, "moved_point", _moved_with_earlier_time),),
    ),
    "keeps_older": Mutation(
        "a pass removes the records before the dirty part that newer ones follow",
        (Patch(NewestOffsets, "keep", _keep_older),),
    ),
    "keeps_no_tombstone": Mutation(
        "a pass leaves the tombstones after the horizon",
        (Patch(NewestOffsets, "keep", _keep_no_tombstone),),
    ),
    "newest_lost": Mutation(
        "the newest record of each key of the dirty part stays",
        (Patch(NewestOffsets, "offsets", _offsets_but_last),),
    ),
    "full_map_ignored": Mutation(
        "a pass ends where its map was full",
        (Patch(Pass, "end_map", _end_map_late),),
    ),
    "active_segment_cleaned": Mutation(
        "a pass leaves out the active segment",
        (Patch(dirty_part, "active_segment", _no_active_segment),),
    ),
    "young_cleaned": Mutation(
        "a pass leaves out records that are younger than min.compaction.lag.ms",
        (Patch(dirty_part, "_uncleanable_from", _uncleanable_without_lag),),
    ),
}
