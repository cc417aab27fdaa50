"""Rewriting of slices as segments, with all of their records or only some of them, as steps of the protocol.

Segments are written first, under the upload epoch of a version that was read before.  Then one swap record for many
partitions replaces their slices.  Slices that cannot be read are reported and set aside, and those on both sides of
them are rewritten.

Several objects are written in the same rounds of requests.  Together they hold as much in memory as a single one may.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.errors import CorruptObject, NoSpace, ObjectNotFound, StorageUnavailable
from spark_log.journal.context import Context
from spark_log.journal.failure_isolation import OnFailure, partition_name, raise_failure
from spark_log.journal.set_aside import AsideSlice, SetAside, Unreadable, is_of_slice
from spark_log.journal.store_operations import OWN_ROOT, Put, PutReplicas, Refresh, Steps, together
from spark_log.log_lines import logger
from spark_log.metadata.lines import is_of_plan, plan_of
from spark_log.metadata.replicas.decide_replicas import fenced_for_swap, moves_to, swap_targets
from spark_log.metadata.replicas.replica_state import OWN_GROUP
from spark_log.metadata.replicas.replicas import Targets, group_number
from spark_log.metadata.state import State, TopicKey
from spark_log.model import (
    APPEND_TIME,
    APPEND_TIME_IN_ROWS,
    CREATE_TIME,
    DataObject,
    Placed,
    Run,
    Slice,
    kind_and_stats,
)
from spark_log.rewriting.merge_policy import SEGMENT_BYTES
from spark_log.rewriting.rewrite_packs import (
    Stretch,
    apart,
    compression_of,
    packs,
    segment_limit,
    stats_columns_of,
    take_packs,
)
from spark_log.rewriting.run_cache import HeldRuns
from spark_log.rewriting.segment_swaps import Replacement, SwapBatch, old_objects, swap_segments, waiting_for
from spark_log.rewriting.slice_reads import Blobs, chunks, decode_into, read_chunk, verified
from spark_log.segment.offsets import as_array, shifted
from spark_log.segment.reader import Decoded
from spark_log.segment.schema import TIMESTAMP
from spark_log.segment.writer import SegmentWriter, WrittenSegment
from spark_log.store.object_names import data_key
from spark_log.text import counted

BUFFER_BYTES = 64 << 20
"""Memory of the writers of objects that are written together; more is in temporary files."""

OpenSpool = Callable[[], BinaryIO]
Progress = Callable[[str, int, int], None]
"""(name of the work, progress, total)."""
Keep = Callable[[TopicKey, Slice, Decoded], "npt.NDArray[np.bool_] | None"]
"""Which records of a batch of a slice stay; None: all."""
Span = tuple[int, int]
"""Offsets from the first to before the second."""
Rest = Callable[[TopicKey, Slice], tuple[Iterable[Decoded], Sequence[Span]]]
"""The batches of a slice that can still be read, and the offsets that are given up."""


def open_spool() -> BinaryIO:
    """A temporary file for encoded batches that do not fit in memory; closing deletes it."""
    return cast(BinaryIO, tempfile.TemporaryFile(prefix="pylog-"))


def _always(slices: Sequence[Slice]) -> bool:
    return True


def _freely(size: int) -> None:
    """Without a limit."""


def _log_waiting(what: str, error: Exception) -> None:
    logger.warning("%s: %s", what, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """How slices are rewritten."""

    name: str
    """For progress: "merge"."""
    activity: str
    """For messages: "merging"."""
    open_spool: OpenSpool
    on_failure: OnFailure = raise_failure
    """Called for slices that cannot be read, and for stretches that cannot be written; if it returns, the others are
    rewritten."""
    aside: SetAside = field(default_factory=SetAside)
    """Slices that are left as they are.  Those that cannot be read are added."""
    on_waiting: OnFailure = _log_waiting
    """Called if partitions are left for later, because a broker that must have their new objects is fenced or away."""
    progress: Progress | None = None
    keep: Keep | None = None
    """Removes records; None: all records stay."""
    rest: Rest | None = None
    """Reads slices of which records are lost; None: slices are read whole, or set aside."""
    pace: Callable[[int], None] = _freely
    """Called with the number of bytes before they are put; may wait."""
    is_worth: Callable[[Sequence[Slice]], bool] = _always
    """Whether to rewrite what is left of a stretch, as others have changed it, or as it did not fit into a segment."""


class _Unread(NamedTuple):
    """A stretch that was not rewritten, the first of its slices that cannot be read, and why."""

    stretch: Stretch
    piece: Slice
    why: Exception


@dataclass(frozen=True, slots=True)
class _Work:
    """Values that all packs are written with."""

    state: State
    """When the rewriting began: it has the topics of all stretches."""
    newest: State
    """It says where new objects are put."""
    context: Context
    how: Rewriting
    held: HeldRuns
    unread: dict[tuple[TopicKey, int], _Unread] = field(default_factory=dict)
    """By partition and start: stretches with a slice that could not be read."""


@dataclass(slots=True)
class _NewRun:
    """The run that slices of a partition become."""

    writer: SegmentWriter
    key: TopicKey
    keep: Keep | None
    stats_columns: str
    """The topic's config."""
    slices: list[Slice] = field(default_factory=list)
    """Those whose records it has."""
    holes: int = 0
    """Offsets of these slices without a record."""
    lost: list[Span] = field(default_factory=list)
    """Offsets without a record that are given up."""

    def append(self, piece: Slice, batches: Iterable[Decoded]) -> None:
        """The records of the slice after `slices` that stay; batches of it may come in several parts."""
        base = self.slices[0].start if self.slices else piece.start
        for batch in batches:
            offsets, records = self._kept(piece, batch)
            offsets = shifted(offsets, piece.start - base)
            rows = _stamped(records, piece)
            self.writer.append(*self.key, rows, offsets=offsets, stats_columns=self.stats_columns)
            self.holes -= len(offsets)

    def _kept(self, piece: Slice, batch: Decoded) -> Decoded:
        stays = None if self.keep is None else self.keep(self.key, piece, batch)
        if stays is None:
            return batch
        return Decoded(as_array(batch.offsets)[stays], batch.records.filter(pa.array(stays)))

    def end_slice(self, piece: Slice) -> None:
        """All records of a slice have been appended."""
        self.slices.append(piece)
        self.holes += piece.end - piece.start
        self.writer.extend(*self.key, piece.end - self.slices[0].start)


def rewrite(
    state: State, context: Context, stretches: Sequence[Stretch], how: Rewriting
) -> Steps[tuple[State, list[Replacement]]]:
    """Rewrite stretches, each as one segment or more.  Returns the state afterwards, and the segments that are in.

    Stretches that others have changed meanwhile, and those that cannot be written, are skipped.
    """
    swapped, total, at = list[Replacement](), sum(stretch.bytes for stretch in stretches), 0
    wanted = [part for stretch in stretches for part in _between(stretch, how.aside)]
    there = [stretch for stretch in apart(state, wanted) if _is_there(state, stretch)]
    _report_waiting(state, there, how)
    waiting, plan = deque(packs(state, there, context.limits)), plan_of(state)
    batch = SwapBatch(state.version, plan)
    held = HeldRuns(_slices(pack) for pack in waiting if len(pack) > 1 and how.rest is None)
    work = _Work(state, state, context, how, held)
    while waiting and is_of_plan(state, plan):  # what stays was decided by the records of that log
        if not batch.done:
            batch = SwapBatch(state.version, plan)
        some = [_still_to_do(state, pack, how) for pack in take_packs(waiting)]
        work = replace(work, newest=state)
        yield from work.held.fetch(piece for pack in some for piece in _slices(pack))
        for pack, written in zip(some, (yield from _write_packs(work, batch.epoch, some)), strict=True):
            if batch.done and batch.is_full(context.limits, written):
                state, placed = yield from _swap(state, context, batch, how)
                swapped += placed
                batch = SwapBatch(batch.epoch, plan)
            batch.done += written
            at += sum(piece.length for one in written for piece in one.old)
            if written and how.progress is not None:
                how.progress(how.name, at, total)
            if rest := _still_to_do(state, _remaining(pack, written), how):
                waiting.appendleft(rest)
        parts = yield from _set_aside(work)
        waiting.extendleft(reversed(list(packs(state, parts, context.limits))))
    state, placed = yield from _swap(state, context, batch, how)
    return state, [*swapped, *placed]


def _swap(
    state: State, context: Context, batch: SwapBatch, how: Rewriting
) -> Steps[tuple[State, Sequence[Replacement]]]:
    state, placed = yield from swap_segments(state, context, batch)
    if batch.lacking:
        what = counted(len({one.key for one in batch.done} - {one.key for one in placed}), "partition")
        how.on_waiting(f"{how.activity} {what}", waiting_for(state, batch.lacking))
    return state, placed


def _between(stretch: Stretch, aside: SetAside) -> list[Stretch]:
    return [Stretch(stretch.key, some) for some in aside.between(stretch.key, stretch.slices)]


def _set_aside(work: _Work) -> Steps[list[Stretch]]:
    """Set the slices aside that could not be read, and report them.  Returns what is left of their stretches.

    If the newest state does not name an object that is missing, others have replaced it, and its stretch is left out.
    """
    unread, found = list(work.unread.values()), list[Stretch]()
    work.unread.clear()
    newest: State = (yield Refresh()) if any(isinstance(one.why, ObjectNotFound) for one in unread) else work.newest
    for stretch, piece, why in unread:
        if isinstance(why, ObjectNotFound) and why.key not in newest.objects:
            continue
        if work.how.aside.add(stretch.key, AsideSlice(piece, work.context.clock.now_ms())):
            work.how.on_failure(f"{work.how.activity} {partition_name(work.state, stretch.key)}", why)
        found += _between(stretch, work.how.aside)
    return found


def _still_to_do(state: State, pack: Sequence[Stretch], how: Rewriting) -> list[Stretch]:
    return [
        one
        for one in pack
        if one.slices and how.is_worth(one.slices) and _is_there(state, one) and _targets(state, [one]) is not None
    ]


def _targets(state: State, pack: Sequence[Stretch]) -> Targets | None:
    """Where the object of a pack is put; None if a replica that must have it is fenced."""
    group = group_number(state, pack[0].key)
    old = old_objects(state, (piece for one in pack for piece in one.slices)) if group != OWN_GROUP else ()
    return swap_targets(state, group, old, moves_to(state, [one.key for one in pack]))


def _report_waiting(state: State, stretches: Sequence[Stretch], how: Rewriting) -> None:
    waiting = [one for one in stretches if _targets(state, [one]) is None]
    if waiting:
        brokers = {broker for one in waiting for broker in _fenced(state, one)}
        partitions = counted(len({one.key for one in waiting}), "partition")
        how.on_waiting(f"{how.activity} {partitions}", waiting_for(state, brokers))


def _fenced(state: State, stretch: Stretch) -> Sequence[int]:
    return fenced_for_swap(
        state, group_number(state, stretch.key), old_objects(state, stretch.slices), moves_to(state, [stretch.key])
    )


def _slices(pack: Sequence[Stretch]) -> list[Slice]:
    return [piece for stretch in pack for piece in stretch.slices]


def _is_there(state: State, stretch: Stretch) -> bool:
    """Whether the topic and the first of the slices still exist."""
    part = state.partitions.get(stretch.key)
    return part is not None and not state.topics[stretch.key[0]].deleted and part.start < stretch.slices[0].end


def _remaining(pack: Sequence[Stretch], written: Sequence[Replacement]) -> list[Stretch]:
    """The slices that did not fit into a segment; those that failed are left out."""
    taken = {one.key: len(one.old) for one in written}
    return [Stretch(one.key, one.slices[taken[one.key] :]) for one in pack if one.key in taken]


def _write_packs(work: _Work, epoch: int, some: Sequence[Sequence[Stretch]]) -> Steps[list[list[Replacement]]]:
    """Segments of several packs, written in the same rounds of requests."""
    buffer_bytes = BUFFER_BYTES // len(some)
    return (yield from together([_try_pack(work, epoch, pack, buffer_bytes) for pack in some]))


def _try_pack(work: _Work, epoch: int, pack: Sequence[Stretch], buffer_bytes: int) -> Steps[list[Replacement]]:
    """Segments of the stretches, in one object; none of those that cannot be written because of their inputs."""
    try:
        return (yield from _write_pack(work, epoch, pack, buffer_bytes))
    except StorageUnavailable:
        raise
    except Exception as error:  # noqa: BLE001  continue with the other partitions
        if len(pack) > 1 and not isinstance(error, NoSpace):
            return (yield from _try_each(work, epoch, pack, buffer_bytes))
        work.how.on_failure(f"{work.how.activity} {_names(work.state, pack)}", error)
        return []


def _try_each(work: _Work, epoch: int, pack: Sequence[Stretch], buffer_bytes: int) -> Steps[list[Replacement]]:
    """Does what `_try_pack` does, with an object for each stretch: one of them made the others fail."""
    written: list[Replacement] = []
    for stretch in pack:
        written += yield from _try_pack(work, epoch, [stretch], buffer_bytes)
    return written


def _names(state: State, pack: Sequence[Stretch]) -> str:
    first = partition_name(state, pack[0].key)
    return first if len(pack) == 1 else f"{first} and {counted(len(pack) - 1, 'other partition')}"


def _write_pack(work: _Work, epoch: int, pack: Sequence[Stretch], buffer_bytes: int) -> Steps[list[Replacement]]:
    """One object: with all slices of several stretches, or with those from the front of one, as many as fit."""
    if not pack:
        return []
    compression = compression_of(work.state, pack[0].key)
    writer = SegmentWriter(compression=compression, buffer_bytes=buffer_bytes, open_spool=work.how.open_spool)
    try:
        if work.how.rest is not None:
            taken = _fill_rest(work, writer, pack, work.how.rest)
        else:
            taken = yield from (_fill_shared if len(pack) > 1 else _fill_alone)(work, writer, pack)
        if not taken:
            return []
        written = writer.finish()
        name = data_key(epoch, _object_name(taken, work.context.unique()))
        targets = _targets(work.newest, pack)
        work.how.pace(written.size * max(1, len(targets.all if targets is not None else ())))
        placed = yield from _put(targets, name, written)
    finally:
        writer.close()
    made = DataObject(name, written.size, written.index_position)
    runs = {(run.topic_id, run.partition): (run, stats) for run, stats in zip(written.runs, written.stats, strict=True)}
    return [
        Replacement(one.key, tuple(one.slices), _slice_of(*runs[one.key], one, name), made, placed, tuple(one.lost))
        for one in taken
    ]


def _put(targets: Targets | None, name: str, written: WrittenSegment) -> Steps[Placed]:
    assert targets is not None, "packs are not written if the replicas that must have them are fenced"
    if targets.group == OWN_GROUP:
        yield Put(name, written.chunks, OWN_ROOT)
        return Placed(OWN_GROUP)
    placed: Placed = yield PutReplicas(name, written.chunks, targets)
    return placed


def _slice_of(run: Run, stats: bytes, new: _NewRun, name: str) -> Slice:
    """The slice that replaces those of a run."""
    old = new.slices
    kind = CREATE_TIME if old[0].time_kind == CREATE_TIME else APPEND_TIME_IN_ROWS
    start, end = old[0].start, old[-1].end
    if run.rows + new.holes != end - start:
        found = f"were read as {run.rows} records and {new.holes} holes, expected {end - start} in all"
        raise CorruptObject(f"offsets {start} to {end - 1} {found}: they stay as they are", start=start, end=end)
    newest_us = max(piece.max_us for piece in old)
    min_us, max_us = (run.min_us, run.max_us) if run.rows else (newest_us, newest_us)
    more = kind_and_stats(kind, stats)
    return Slice(start, end, name, run.position, run.length, run.crc, run.batches, min_us, max_us, more)


def _object_name(taken: Sequence[_NewRun], unique: str) -> str:
    """With the partition and the offset, for people, if they are those of all records."""
    if len(taken) > 1:
        return f"{unique}.seg"
    topic_id, number = taken[0].key
    return f"{topic_id}-{number}-{taken[0].slices[0].start:020}-{unique}.seg"


def _fill_rest(work: _Work, writer: SegmentWriter, pack: Sequence[Stretch], rest: Rest) -> list[_NewRun]:
    """Runs of the records that are left of the slices, with holes for the others."""
    taken = [_NewRun(writer, one.key, None, stats_columns_of(work.state, one.key)) for one in pack]
    for new, stretch in zip(taken, pack, strict=True):
        for piece in stretch.slices:
            batches, lost = rest(stretch.key, piece)
            new.append(piece, batches)
            new.end_slice(piece)
            for start, end in lost:
                first = new.lost.pop()[0] if new.lost and new.lost[-1][1] == start else start
                new.lost.append((first, end))
    return taken


def _fill_alone(work: _Work, writer: SegmentWriter, pack: Sequence[Stretch]) -> Steps[list[_NewRun]]:
    """The run of the slices of a single stretch that fill a segment; none if one of them cannot be read."""
    (stretch,) = pack
    new = _NewRun(writer, stretch.key, work.how.keep, stats_columns_of(work.state, stretch.key))
    try:
        yield from _fill(work.state, new, stretch)
    except Unreadable as error:
        _note(work, stretch, error.piece, error.why)
        return []
    return [new]


def _note(work: _Work, stretch: Stretch, piece: Slice, why: Exception) -> None:
    work.unread[stretch.key, stretch.slices[0].start] = _Unread(stretch, piece, why)


def _fill(state: State, new: _NewRun, stretch: Stretch) -> Steps[None]:
    """Append slices until the segment is full.  Raises Unreadable."""
    limit = segment_limit(state, stretch.key)
    for chunk in chunks(stretch.slices):
        if new.slices and _is_full(new.writer, chunk[0], limit):
            break
        blobs = yield from read_chunk(state, chunk)
        for piece, blob in zip(chunk, blobs, strict=True):
            if new.slices and _is_full(new.writer, piece, limit):
                return
            try:
                yield from decode_into(state, stretch.key, piece, blob, partial(new.append, piece))
            except Exception as error:
                if is_of_slice(error):
                    raise Unreadable(piece, error) from error
                raise
            new.end_slice(piece)


def can_rewrite(state: State, key: TopicKey, piece: Slice) -> Steps[bool]:
    """Whether a slice can be read and encoded again now.  Writes nothing."""
    compression = compression_of(state, key)
    writer = SegmentWriter(compression=compression, buffer_bytes=BUFFER_BYTES, open_spool=open_spool)
    try:
        yield from _fill(state, _NewRun(writer, key, None, stats_columns_of(state, key)), Stretch(key, [piece]))
    except Exception:  # noqa: BLE001  it was reported when it was set aside
        return False
    finally:
        writer.close()
    return True


def _is_full(writer: SegmentWriter, following: Slice, limit: int) -> bool:
    """Measured by written bytes, not by bytes read: a slice of one record is ten times as large."""
    return writer.total_bytes >= min(SEGMENT_BYTES, limit) or writer.total_bytes + following.length > limit


def _fill_shared(work: _Work, writer: SegmentWriter, pack: Sequence[Stretch]) -> Steps[list[_NewRun]]:
    """Append whole stretches; those with slices that cannot be read are left out.  Returns the runs of the others.

    All slices of a stretch are verified before the first one is decoded, and decoded batch by batch: records may take
    100 times as much memory as their compressed slices.
    """
    state = work.state
    blobs = yield from work.held.read(_slices(pack))
    taken: list[_NewRun] = []
    for stretch in pack:
        try:
            runs = [_verified(state, stretch.key, piece, blobs) for piece in stretch.slices]
        except Unreadable as error:
            _note(work, stretch, error.piece, error.why)
            continue
        new = _NewRun(writer, stretch.key, work.how.keep, stats_columns_of(work.state, stretch.key))
        for piece, batches in zip(stretch.slices, runs, strict=True):
            new.append(piece, batches)
            new.end_slice(piece)
        taken.append(new)
    return taken


def _verified(state: State, key: TopicKey, piece: Slice, blobs: Blobs) -> Iterator[Decoded]:
    try:
        return verified(state, key, piece, blobs)
    except Exception as error:
        if is_of_slice(error):
            raise Unreadable(piece, error) from error
        raise


def _stamped(records: pa.RecordBatch, piece: Slice) -> pa.RecordBatch:
    """The records; if their slice has a log append time, with that time."""
    if piece.time_kind != APPEND_TIME:
        return records
    at = records.schema.get_field_index("timestamp")
    stamp = pa.repeat(pa.scalar(piece.min_us, TIMESTAMP), records.num_rows)
    return records.set_column(at, records.schema.field(at), stamp)
