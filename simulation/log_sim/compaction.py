"""Actors that compact partitions, and one that reads on while they do."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence

from simulation.log_sim.content import PlacedRows, Row, SegmentCodec, is_compacted
from simulation.log_sim.promises.compacted import latest
from simulation.log_sim.readers_and_maintenance import grace_start, read_entries, written
from simulation.log_sim.setting import Simulation
from simulation.verdict import Violation
from spark_log.configs.settings import topic_config
from spark_log.errors import CorruptObject
from spark_log.journal import index_reads
from spark_log.journal.context import Proposal
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import Decide, Sleep, Steps
from spark_log.metadata.commands import MarkCleaned
from spark_log.metadata.maintenance.swaps import resolve
from spark_log.metadata.records import Cleaned
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice
from spark_log.rewriting import compaction_rounds
from spark_log.rewriting.dirty_part import dirty_part
from spark_log.rewriting.segment_swaps import SwapBatch, swap_segments


def _compacted_keys(state: State) -> list[TopicKey]:
    return sorted(key for key in state.partitions if is_compacted(key) and not state.topics[key[0]].deleted)


# -------------------------------------------------------------------------------------------------------------- a pass


def cleaner(sim: Simulation) -> Steps[None]:
    """A maintainer that only compacts."""
    while True:
        view = yield from sim.load()
        try:
            yield from _clean(sim, view)
        except CorruptObject:  # a checkpoint that was damaged before it was read back
            sim.oracle.seen["put off"] += 1
        yield Sleep(sim.rng.choice((1, 30, 300)))


def _clean(sim: Simulation, view: View) -> Steps[None]:
    """Passes over partitions that are due, as the product makes them, or one pass over any partition."""
    keys = _compacted_keys(view.state)
    if isinstance(sim.codec, SegmentCodec) and sim.rng.random() < 0.7:
        _, tally = yield from sim.decided(view, compaction_rounds.compact(view.state, sim.context, io.BytesIO))
        sim.oracle.seen["cleaned by the product"] += tally.partitions
    elif keys:
        yield from sim.decided(view, _pass(sim, view.state, sim.rng.choice(keys)))


def _pass(sim: Simulation, state: State, key: TopicKey) -> Steps[None]:
    """Record by record, as the decision record says."""
    part, rng = state.partitions[key], sim.rng
    resolved = yield from index_reads.read_pieces(part.entries)
    if resolved is None:
        return
    slices = [piece for piece in resolve(part.entries, resolved) if piece.end > part.start]
    configs, now_ms = state.topics[key[0]].configs, sim.context.clock.now_ms()
    dirty = dirty_part(slices, part.start, state.cleaned.get(key), configs, now_ms, state.time)
    if dirty.start == dirty.end or (dirty.due is None and rng.random() < 0.5):
        return
    slices = [piece for piece in slices if piece.start < dirty.end]
    rows = yield from sim.read_slices(key, slices)
    if rows is None:
        return
    upto = dirty.end if rng.random() < 0.7 else rng.randint(dirty.start + 1, dirty.end)  # the map was full
    newest = {row.key: offset for offset, row in rows if dirty.start <= offset < upto}

    def stays(offset: int, row: Row) -> bool:
        if offset >= upto:
            return True
        if row.key is None or offset < newest.get(row.key, 0):
            return False
        return not row.is_tombstone or offset >= dirty.tombstones_from

    if (yield from _rewrite(sim, state, key, slices, rows, stays)):
        yield Decide([Proposal(MarkCleaned(partitions=(Cleaned(*key, upto),), history=history_of(state)))])


def _rewrite(
    sim: Simulation,
    state: State,
    key: TopicKey,
    slices: Sequence[Slice],
    rows: PlacedRows,
    stays: Callable[[int, Row], bool],
) -> Steps[bool]:
    """Replace slices that lose records, in any order.  False: others have changed one of them."""
    groups, at, history = list[list[Slice]](), 0, history_of(state)
    while at < len(slices):
        size = sim.rng.randint(1, 3)
        groups.append(list(slices[at : at + size]))
        at += size
    for some in sim.rng.sample(groups, len(groups)):
        old = [(offset, row) for offset, row in rows if some[0].start <= offset < some[-1].end]
        new = [(offset, row) for offset, row in old if stays(offset, row)]
        if len(new) < len(old):
            epoch = state.version
            made = yield from written(sim, epoch, key, some, new)
            state, done = yield from swap_segments(state, sim.context, SwapBatch(epoch, history, [made]))
            if not done:
                return False
            sim.oracle.seen["thinned"] += 1
    return True


# ------------------------------------------------------------------------------------------------------------- a stream


def tailer(sim: Simulation) -> Steps[None]:
    """Streams that read a partition from its start, a part at a time, and keep the latest record of each key."""
    while True:
        yield Sleep(sim.rng.choice((1, 100)))
        view = yield from sim.load()
        keys = _compacted_keys(view.state)
        if keys:
            yield from _stream(sim, view, sim.rng.choice(keys))


class _Table:
    """The contents of a partition as a stream has read them."""

    def __init__(self, first: int) -> None:
        self.first = self.position = first
        self._rows: dict[str, tuple[Row, int]] = {}
        """By key, the last record, and the log's time when it was read."""

    def read(self, found: PlacedRows, end: int, state: State) -> None:
        self._rows |= {row.key: (row, state.time) for _, row in found if row.key is not None}
        self.position = end

    def check(self, key: TopicKey, state: State, rows: Sequence[Row], erased: Collection[int]) -> None:
        """At the end of the partition, the stream has the latest record of each key, if that was not erased.  Of
        deleted keys it may have an older one, if it has not read on for as long as tombstones are kept."""
        kept_ms = topic_config(state.topics[key[0]].configs, "delete.retention.ms")
        for name, offset in latest(rows, self.first, self.position).items():
            row, read_ms = self._rows.get(name, (None, state.time))
            if offset in erased:
                continue
            if row == rows[offset] or (rows[offset].is_tombstone and (row is None or state.time - read_ms >= kept_ms)):
                continue
            raise Violation(f"compacted: a stream of {key} has {row} for {name}, which is at offset {offset}")


def _stream(sim: Simulation, view: View, key: TopicKey) -> Steps[None]:
    table = _Table(view.state.partitions[key].start)
    for _ in range(sim.rng.randint(2, 12)):
        start = grace_start(sim)
        view = yield from sim.load()
        part = view.state.partitions.get(key)
        if part is None or part.start > table.position:
            return
        end = min(part.end, table.position + sim.rng.choice((3, 10, 1000)))
        found = yield from read_entries(sim, key, part)
        if found is None:
            if sim.now - start < sim.grace:
                raise Violation(f"grace: an object of {key} at version {view.state.version} is gone")
            continue
        sim.oracle.check_partition(key, view.state, found)
        table.read([(offset, row) for offset, row in found if table.position <= offset < end], end, view.state)
        if end == part.end:
            rows = sim.oracle.rows.get(key, [])
            table.check(key, view.state, rows, sim.oracle.erased.removable(key, rows))
            sim.oracle.seen["streamed"] += 1
        yield from sim.pause()
