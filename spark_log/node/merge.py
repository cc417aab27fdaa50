"""Merging: rewriting small slices as segments, as steps of the protocol.

Segments are written first, under the upload epoch of a version that was read before.  Then one swap record for many
partitions replaces their slices.  If others changed the partitions meanwhile, the swap is prepared again on the new
state, provided the slices still exist: no data is written twice.  Partitions that were deleted or trimmed meanwhile,
and partitions with unreadable data, are skipped, and their segments become garbage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from spark_log.errors import CorruptObject, StorageUnavailable
from spark_log.journal.index_reads import read_pieces
from spark_log.journal.missing_indexes import damaged_object
from spark_log.journal.object_names import data_key
from spark_log.journal.proposal import Context
from spark_log.journal.sealing import SWAP_TRIES, swap_in
from spark_log.journal.store_operations import OWN_ROOT, Get, Op, Put, Refresh, Steps
from spark_log.journal.upkeep_limits import StepLimits
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State, TopicKey
from spark_log.metadata.swaps import Rewrite, resolve
from spark_log.model import APPEND_TIME, APPEND_TIME_IN_ROWS, CREATE_TIME, DataObject, Slice
from spark_log.node.failure_isolation import OnFailure, partition_name, raise_failure, resolve_each
from spark_log.node.merge_policy import SEGMENT_BYTES, find_stretches, is_worth, live_bytes, thin_objects, window_ms
from spark_log.segment.batch_index import Index
from spark_log.segment.reader import BatchRef, Place, decode_batch, decode_run, find_batches, parse_index
from spark_log.segment.schema import DEFAULT_COMPRESSION, TIMESTAMP
from spark_log.segment.writer import SegmentWriter
from spark_log.settings import topic_config

WHOLE_BYTES_MAX = 4 << 20
"""A run up to this size is read in one request."""
READ_BYTES = 16 << 20
READ_OPS = 256
"""Size and number of requests that are read together."""

OpenSpool = Callable[[], BinaryIO]
Progress = Callable[[str, int, int], None]
"""(name of the work, progress, total)."""


class Stretch(NamedTuple):
    """Adjacent slices of a partition, to be rewritten."""

    key: TopicKey
    slices: Sequence[Slice]


class Merged(NamedTuple):
    """A new segment, and the slices it replaces."""

    key: TopicKey
    old: tuple[Slice, ...]
    new: Slice
    object: DataObject


@dataclass(slots=True)
class Tally:
    """The result of a merge."""

    slices: int = 0
    """Replaced slices."""
    segments: int = 0
    """New segments."""
    bytes: int = 0
    """Size of the new segments."""


@dataclass(slots=True)
class _Batch:
    """Segments that wait for one swap."""

    epoch: int
    done: list[Merged] = field(default_factory=list)

    def is_full(self, limits: StepLimits) -> bool:
        return (
            sum(merged.object.size for merged in self.done) >= limits.swap_bytes
            or sum(len(merged.old) for merged in self.done) >= limits.swap_slices
            or len({merged.key for merged in self.done}) >= limits.changes_max
        )


def merge(
    state: State,
    context: Context,
    open_spool: OpenSpool,
    progress: Progress | None = None,
    on_failure: OnFailure = raise_failure,
) -> Steps[Tally]:
    """Rewrite the small slices of all topics, according to the merge policy.

    on_failure:  called for a partition with unreadable data or slice index; if it returns, the others are merged.
    """
    planned, tally = state, Tally()
    stretches, thin = yield from plan_merge(state, on_failure)
    total, at = sum(piece.length for stretch in stretches for piece in stretch.slices), 0
    batch = _Batch(planned.version)
    for key, slices in stretches:
        rest = Stretch(key, slices)
        while is_worth(rest.slices, thin) and _is_there(state, rest):
            merged = yield from _try_segment(planned, context, batch.epoch, rest, open_spool, on_failure)
            if merged is None:
                break
            batch.done.append(merged)
            rest = Stretch(key, rest.slices[len(merged.old) :])
            at += sum(piece.length for piece in merged.old)
            if progress is not None:
                progress("merge", at, total)
            if batch.is_full(context.limits):
                state = yield from _swap(state, context, batch, tally)
                batch = _Batch(state.version)
    yield from _swap(state, context, batch, tally)
    return tally


def _is_there(state: State, stretch: Stretch) -> bool:
    """Whether the topic and the first of the slices still exist."""
    part = state.partitions.get(stretch.key)
    return part is not None and not state.topics[stretch.key[0]].deleted and part.start < stretch.slices[0].end


# ---------------------------------------------------------------------------------------------------------------- what


def plan_merge(state: State, on_failure: OnFailure = raise_failure) -> Steps[tuple[list[Stretch], frozenset[str]]]:
    """The slices to rewrite, and the objects to remove by it."""
    parts = {key: part for key, part in sorted(state.partitions.items()) if not state.topics[key[0]].deleted}
    resolved = yield from resolve_each(state, {key: part.entries for key, part in parts.items()}, on_failure)
    slices = {key: [piece for piece in found if piece.end > parts[key].start] for key, found in resolved.items()}
    live = live_bytes(slices.values())
    thin = thin_objects(state.objects, live)
    # Merging leaves some objects less than half alive: they are rewritten in the same pass.
    moved = live_bytes(stretch.slices for stretch in _stretches(state, slices, thin))
    live.subtract(moved)
    thin |= thin_objects(state.objects, live)
    return list(_stretches(state, slices, thin)), thin


def _stretches(state: State, slices: dict[TopicKey, list[Slice]], thin: Collection[str]) -> Iterator[Stretch]:
    for key, pieces in slices.items():
        target = min(SEGMENT_BYTES, segment_limit(state, key))
        window_us = 1000 * window_ms(state.topics[key[0]].configs)
        yield from (Stretch(key, stretch) for stretch in find_stretches(pieces, target, window_us, thin))


def segment_limit(state: State, key: TopicKey) -> int:
    """`segment.bytes` of the topic."""
    return int(topic_config(state.topics[key[0]].configs, "segment.bytes"))


# ------------------------------------------------------------------------------------------------------------ rewriting


def _try_segment(
    state: State, context: Context, epoch: int, stretch: Stretch, open_spool: OpenSpool, on_failure: OnFailure
) -> Steps[Merged | None]:
    """A segment; None if it cannot be written because of its inputs."""
    try:
        return (yield from _write_segment(state, context, epoch, stretch, open_spool))
    except StorageUnavailable:
        raise
    except Exception as error:  # noqa: BLE001  continue with the other partitions
        on_failure(f"merging {partition_name(state, stretch.key)}", error)
        return None


def _write_segment(
    state: State, context: Context, epoch: int, stretch: Stretch, open_spool: OpenSpool
) -> Steps[Merged | None]:
    """One segment of slices from the front of the stretch, as many as fit; None if an input is missing."""
    topic = state.topics[stretch.key[0]]
    codec = topic_config(topic.configs, "compression.type")
    # `producer` leaves the choice to the writer: a merge uses the writers' default.
    writer = SegmentWriter(compression=DEFAULT_COMPRESSION if codec == "producer" else codec, open_spool=open_spool)
    try:
        taken = yield from _fill(state, writer, stretch)
        if not taken:
            return None
        written = writer.finish()
        (run,) = written.runs
        name = data_key(epoch, _segment_name(stretch, context.unique()))
        yield Put(name, written.chunks, OWN_ROOT)
    finally:
        writer.close()
    old = tuple(stretch.slices[:taken])
    kind = CREATE_TIME if old[0].time_kind == CREATE_TIME else APPEND_TIME_IN_ROWS
    new = Slice(
        old[0].start,
        old[-1].end,
        name,
        run.position,
        run.length,
        run.crc,
        run.batches,
        run.min_us,
        run.max_us,
        kind,
    )
    assert run.rows == new.end - new.start, f"merging {old[0].start} to {old[-1].end} gave {run.rows} records"
    return Merged(stretch.key, old, new, DataObject(name, written.size, written.index_position))


def _segment_name(stretch: Stretch, unique: str) -> str:
    topic_id, number = stretch.key
    return f"{topic_id}-{number}-{stretch.slices[0].start:020}-{unique}.seg"


def _fill(state: State, writer: SegmentWriter, stretch: Stretch) -> Steps[int]:
    """Append slices until the segment is full.  Returns their number; 0 if one of them is missing."""
    limit, taken = segment_limit(state, stretch.key), 0
    for chunk in _chunks(stretch.slices):
        if taken and _is_full(writer, chunk[0], limit):
            break
        blobs = yield from _read(state, chunk)
        for piece, blob in zip(chunk, blobs, strict=True):
            if taken and _is_full(writer, piece, limit):
                return taken
            if blob is None or not (yield from _append(state, writer, stretch.key, piece, blob)):
                return 0
            taken += 1
    return taken


def _is_full(writer: SegmentWriter, following: Slice, limit: int) -> bool:
    """Measured by written bytes, not by bytes read: a slice of one record is ten times as large."""
    return writer.total_bytes >= min(SEGMENT_BYTES, limit) or writer.total_bytes + following.length > limit


def _chunks(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """Slices that are read together; a large one is alone."""
    chunk: list[Slice] = []
    size = 0
    for piece in slices:
        if chunk and (size + piece.length > READ_BYTES or len(chunk) >= READ_OPS or _is_large(piece)):
            yield chunk
            chunk, size = [], 0
        chunk.append(piece)
        size += piece.length
        if _is_large(piece):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _is_large(piece: Slice) -> bool:
    return piece.length > WHOLE_BYTES_MAX and piece.batches > 1


def _read(state: State, chunk: Sequence[Slice]) -> Steps[list[bytes | None]]:
    """The run of each slice; for a large one, the index of its object."""
    if len(chunk) == 1 and _is_large(piece := chunk[0]):
        row = state.objects[piece.object]
        return [(yield Get(piece.object, row.index_position, row.size, OWN_ROOT))]
    reads: list[Op] = [Get(piece.object, piece.position, piece.position + piece.length, OWN_ROOT) for piece in chunk]
    blobs: list[bytes | None] = yield reads
    return blobs


def _append(state: State, writer: SegmentWriter, key: TopicKey, piece: Slice, blob: bytes) -> Steps[bool]:
    """Add the records of a slice to a segment.  False: its object is missing.  Raises CorruptObject."""
    topic = state.topics[key[0]].name
    try:
        return (yield from _decoded_into(state, writer, key, piece, blob, Place(piece.object, topic, *key)))
    except CorruptObject as error:
        raise damaged_object(piece.object, topic, key[1], piece.start, piece.end, error) from error


def _decoded_into(
    state: State, writer: SegmentWriter, key: TopicKey, piece: Slice, blob: bytes, place: Place
) -> Steps[bool]:
    if not _is_large(piece):
        for records in decode_run(blob, piece, place=place):
            writer.append(*key, _stamped(records, piece))
        return True
    index = parse_index(blob, name=piece.object, object_size=state.objects[piece.object].size)
    for group in _groups(find_batches(index, piece, place=place)):
        start = group[0].position
        data = yield Get(piece.object, start, group[-1].position + group[-1].length, OWN_ROOT)
        if data is None:
            return False
        for records in _decode(data, start, group, index, place):
            writer.append(*key, _stamped(records, piece))
    return True


def _groups(refs: Sequence[BatchRef]) -> Iterator[list[BatchRef]]:
    """Consecutive batches of one run, in groups that are read together."""
    group: list[BatchRef] = []
    for ref in refs:
        if group and ref.position + ref.length - group[0].position > WHOLE_BYTES_MAX:
            yield group
            group = []
        group.append(ref)
    if group:
        yield group


def _decode(data: bytes, start: int, group: Sequence[BatchRef], index: Index, place: Place) -> Iterator[pa.RecordBatch]:
    view = memoryview(data)
    for ref in group:
        yield decode_batch(view[ref.position - start : ref.position - start + ref.length], ref, index, place=place)


def _stamped(records: pa.RecordBatch, piece: Slice) -> pa.RecordBatch:
    """The records; if their slice has a log append time, with that time."""
    if piece.time_kind != APPEND_TIME:
        return records
    at = records.schema.get_field_index("timestamp")
    stamp = pa.repeat(pa.scalar(piece.min_us, TIMESTAMP), records.num_rows)
    return records.set_column(at, records.schema.field(at), stamp)


# ------------------------------------------------------------------------------------------------------------- swapping


def _swap(state: State, context: Context, batch: _Batch, tally: Tally) -> Steps[State]:
    """Swap segments in; those whose slices have changed are left out."""
    done: Sequence[Merged] = batch.done
    for _ in range(SWAP_TRIES):
        if not done or batch.epoch <= state.fence:
            return state
        prepared = yield from prepare(state, context.limits, done)
        if prepared is None:
            state = yield Refresh()
            continue
        rewrites, done = prepared
        if not done:
            return state
        state, fits = yield from swap_in(context, batch.epoch, rewrites, [merged.object for merged in done])
        if fits:
            _count(tally, done)
            return state
    return state


def _count(tally: Tally, done: Sequence[Merged]) -> None:
    tally.slices += sum(len(merged.old) for merged in done)
    tally.segments += len(done)
    tally.bytes += sum(merged.object.size for merged in done)


def prepare(
    state: State, limits: StepLimits, done: Sequence[Merged]
) -> Steps[tuple[list[Rewrite], list[Merged]] | None]:
    """The rewrites that replace the slices with segments in this state, and the segments whose slices still exist.

    None if the state is outdated.
    """
    by_key: dict[TopicKey, list[Merged]] = defaultdict(list)
    for merged in done:
        by_key[merged.key].append(merged)
    touched = {key: _touched(state, key, found) for key, found in by_key.items()}
    resolved = yield from read_pieces(entry for entries in touched.values() for entry in entries)
    if resolved is None:
        return None
    rewrites: list[Rewrite] = []
    kept: list[Merged] = []
    for key, found in by_key.items():
        old = resolve(touched[key], resolved)
        new, placed = _replaced(old, found)
        if placed:
            sealed = len(new) > limits.inline_per_partition and any(isinstance(entry, Piece) for entry in touched[key])
            rewrites.append(Rewrite(key, state.partitions[key].edition, touched[key], old, new, sealed))
            kept += placed
    return rewrites, kept


def _touched(state: State, key: TopicKey, found: Sequence[Merged]) -> tuple[Slice | Piece, ...]:
    """The entries that segments replace, from the first to the last; none if the topic is deleted."""
    part = state.partitions.get(key)
    if part is None or state.topics[key[0]].deleted:
        return ()
    start, end = found[0].new.start, found[-1].new.end
    return tuple(entry for entry in part.entries if entry.start < end and entry.end > start)


def _replaced(old: Sequence[Slice], found: Sequence[Merged]) -> tuple[list[Slice], list[Merged]]:
    numbers = {piece.start: number for number, piece in enumerate(old)}
    new: list[Slice] = []
    placed: list[Merged] = []
    at = 0
    for merged in found:
        first = numbers.get(merged.new.start)
        if first is None or tuple(old[first : first + len(merged.old)]) != merged.old:
            continue
        new += [*old[at:first], merged.new]
        at = first + len(merged.old)
        placed.append(merged)
    return [*new, *old[at:]], placed
