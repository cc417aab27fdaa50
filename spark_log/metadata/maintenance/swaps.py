"""Prepares swaps: other entries for the same records, and how many entries each object gains and loses.

Pure.  The caller has read the indexes of the pieces to replace, and has uploaded nothing yet: `build_swap` also returns
the bytes of the index object that the swap names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from types import MappingProxyType

from spark_log.metadata.formats.slice_index import IndexPart, encode_index
from spark_log.metadata.records import Change, LostOffsets, Piece, SwapRecord
from spark_log.metadata.replicas.replica_state import OWN_GROUP
from spark_log.metadata.state import Partition, TopicKey
from spark_log.model import DataObject, Placed, Slice

FOLD = 2
"""A piece is folded into the next one if it has at most this many times its slices, so that few remain (log n)."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One partition's part of a swap."""

    key: TopicKey
    edition: int
    old: tuple[Slice | Piece, ...]
    """Adjacent entries of the partition."""
    old_slices: Sequence[Slice]
    """The slices of `old`, with those of its pieces."""
    new_slices: Sequence[Slice]
    sealed: bool
    """Write the new slices to an index object."""
    unread: tuple[Piece, ...] = ()
    """Pieces of `old` that cannot be read.  In `old_slices`, each one is an `unread_slice`.  If `new_slices` has that,
    the piece stays as it is."""

    @property
    def kept(self) -> tuple[Piece, ...]:
        """The pieces that stay as they are."""
        new = frozenset(self.new_slices) if self.unread else ()
        return tuple(piece for piece in self.unread if unread_slice(piece) in new)

    def known(self, slices: Sequence[Slice]) -> list[list[Slice]]:
        """Old or new slices, cut at those that stand for pieces which cannot be read, and without them."""
        unread = frozenset(map(unread_slice, self.unread))
        return [list(some) for is_unread, some in groupby(slices, unread.__contains__) if not is_unread]


def build_swap(
    upload_epoch: int,
    rewrites: Sequence[Rewrite],
    index_name: str,
    objects: Sequence[DataObject] = (),
    uncounted: Mapping[str, int] = MappingProxyType({}),
    placed: Sequence[Placed] = (),
    lost: Sequence[LostOffsets] = (),
) -> tuple[SwapRecord, bytes]:
    """The swap for `rewrites`, and the bytes of its index object (empty if it needs none).

    uncounted:  slices of each object that are removed with the old entries but not in `old_slices`: their index is
                lost.
    placed:     where each of `objects` is; empty: in the log's own root, as the index.
    lost:       offsets whose records are given up.
    """
    parts = [IndexPart(*rw.key, some) for rw in rewrites if rw.sealed for some in rw.known(rw.new_slices)]
    data, made = encode_index(index_name, parts) if parts else (b"", [])
    pieces = {rw.key: list(rw.kept) for rw in rewrites}
    for part, piece in zip(parts, made, strict=True):
        pieces[part.topic_id, part.partition].append(piece)
    before = _count(some for rw in rewrites for some in rw.known(rw.old_slices))
    before.update(entry.object for rw in rewrites for entry in rw.old if isinstance(entry, Piece))
    before.update(uncounted)
    after = _count(some for rw in rewrites for some in rw.known(rw.new_slices))
    after.update(piece.object for some in pieces.values() for piece in some)
    index = (DataObject(index_name, len(data), 0),) if data else ()
    swap = SwapRecord(
        upload_epoch=upload_epoch,
        changes=tuple(_change(rw, pieces[rw.key]) for rw in rewrites),
        objects=(*objects, *index),
        added=dict(sorted((after - before).items())),
        removed=dict(sorted((before - after).items())),
        placed=(*placed, *(Placed(OWN_GROUP) for _ in index)) if placed else (),
        lost=tuple(lost),
    )
    return swap, data


def _count(groups: Iterable[Sequence[Slice]]) -> Counter[str]:
    return Counter(piece.object for group in groups for piece in group)


def _change(rw: Rewrite, pieces: Iterable[Piece]) -> Change:
    topic_id, number = rw.key
    return Change(
        topic_id,
        number,
        rw.edition,
        rw.old[0].start,
        rw.old[-1].end,
        () if rw.sealed else tuple(chain.from_iterable(rw.known(rw.new_slices))),
        tuple(sorted(pieces, key=lambda piece: piece.start)),
    )


def unread_slice(piece: Piece) -> Slice:
    """A slice that stands for those of a piece whose index cannot be read: it has their offsets, bytes and times.

    Its object is the index, so it cannot be read as records.
    """
    return Slice(
        piece.start,
        piece.end,
        piece.object,
        piece.position,
        piece.bytes,
        piece.crc,
        0,
        piece.min_us,
        piece.max_us,
        piece.time_kind,
    )


def resolve(entries: Iterable[Slice | Piece], resolved: Mapping[Piece, Sequence[Slice]]) -> list[Slice]:
    """Entries as slices, pieces looked up in `resolved`."""
    slices: list[Slice] = []
    for entry in entries:
        if isinstance(entry, Piece):
            slices += resolved[entry]
        else:
            slices.append(entry)
    return slices


def seal_range(part: Partition) -> tuple[int, int]:
    """Entries of a partition to seal into one piece: the slices at its end, and the pieces before that fold into it."""
    entries, low, slices = part.entries, len(part.entries), 0
    while low and (size := _slices(entries[low - 1])) <= (FOLD * slices if isinstance(entries[low - 1], Piece) else 1):
        low, slices = low - 1, slices + size
    return low, len(entries)


def _slices(entry: Slice | Piece) -> int:
    return entry.slices if isinstance(entry, Piece) else 1


def prune_range(part: Partition, deleted: bool) -> tuple[int, int]:
    """Entries at the front of a partition that are below its start; all of them if its topic is deleted."""
    if deleted:
        return 0, len(part.entries)
    high = next((i for i, entry in enumerate(part.entries) if entry.end > part.start), len(part.entries))
    return 0, high
