"""Slices with holes: removes single records of a real log, as compaction does."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_log import Log
from spark_log.journal.context import Context
from spark_log.journal.index_reads import read_pieces
from spark_log.journal.maintenance_limits import StepLimits
from spark_log.journal.metadata_log import decided
from spark_log.journal.sealing import seal, swap_in
from spark_log.journal.store_operations import OWN_ROOT, Get, Put, Steps
from spark_log.metadata.maintenance.swaps import resolve
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State, TopicKey
from spark_log.model import DataObject, Slice
from spark_log.rewriting.merge import merge
from spark_log.rewriting.segment_swaps import Replacement, prepare
from spark_log.segment.offsets import as_array
from spark_log.segment.reader import Place, decode_run
from spark_log.segment.writer import SegmentWriter
from spark_log.store.object_names import data_key

SMALL_PIECES = StepLimits(inline_slices=0, inline_per_partition=2)
"""Seals all but the newest slices."""
Keep = Callable[[int], bool]
"""Whether the record at an offset stays."""


def thin(
    log: Log, topic: str, keep: Keep, *, partition: int = 0, first: int = 0, last: int | None = None, **settings: Any
) -> bool:
    """Rewrite the slices [first:last] of a partition as one slice of the records that stay.  Whether it was swapped in.

    settings: of the writer.
    """
    key = (log.journal.refresh().names[topic], partition)

    def rewritten(state: State, context: Context) -> Steps[bool]:
        entries = state.partitions[key].entries
        old = resolve(entries, (yield from read_pieces(entries)) or {})[first:last]
        new, made = yield from _written(state, context, key, old, keep, settings)
        prepared = yield from prepare(state, context.limits, [Replacement(key, tuple(old), new, made)])
        assert prepared is not None, "nobody else writes"
        _, fits = yield from swap_in(context, state.version, history_of(state), prepared[0], [made])
        return fits

    return _run(log, rewritten)


def _written(
    state: State, context: Context, key: TopicKey, old: Sequence[Slice], keep: Keep, settings: dict[str, Any]
) -> Steps[tuple[Slice, DataObject]]:
    base, end, name = old[0].start, old[-1].end, data_key(state.version, f"{context.unique()}.seg")
    writer = SegmentWriter(**settings)
    for piece in old:
        assert not piece.time_kind, "tests of holes use the producers' times"
        data = yield Get(piece.object, piece.position, piece.position + piece.length, OWN_ROOT)
        for offsets, records in decode_run(data, piece, place=Place(piece.object, state.topics[key[0]].name, *key)):
            absolute = as_array(offsets) + piece.start
            stays = np.array([keep(offset) for offset in absolute.tolist()], bool)
            writer.append(*key, records.filter(pa.array(stays)), offsets=absolute[stays] - base)
    writer.extend(*key, end - base)
    written = writer.finish()
    yield Put(name, written.chunks, OWN_ROOT)
    run, newest_us = written.runs[0], max(piece.max_us for piece in old)
    times = (run.min_us, run.max_us) if run.rows else (newest_us, newest_us)
    new = Slice(base, end, name, run.position, run.length, run.crc, run.batches, *times)
    return new, DataObject(name, written.size, written.index_position)


def merge_all(log: Log) -> None:
    _run(log, lambda state, context: merge(state, context, io.BytesIO))


def seal_all(log: Log) -> None:
    _run(log, seal)


def _run(log: Log, duty: Callable[[State, Context], Steps[Any]]) -> Any:
    journal = log.journal
    view, context = journal.run(journal.metadata_log.open()), replace(journal.context, limits=SMALL_PIECES)
    found = journal.run(decided(journal.metadata_log, view, duty(view.state, context)))[1]
    journal.refresh()
    return found
