"""Reads slice indexes: pieces that the state names, as slices or as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa

from spark_log.errors import CorruptObject
from spark_log.journal.store_operations import OWN_ROOT, Get, Op, Steps
from spark_log.metadata.records import Piece
from spark_log.metadata.slice_index import decode_piece, slices_of
from spark_log.model import Slice

INDEX_BYTES_MAX = 4 << 20
"""Bytes of an index object that one request reads at most."""


def read_pieces(entries: Iterable[Slice | Piece]) -> Steps[dict[Piece, list[Slice]] | None]:
    """The slices of each piece among `entries`; None if an index object is gone, because the view is old."""
    pieces = [entry for entry in entries if isinstance(entry, Piece)]
    found = yield from read_found(pieces)
    return found if all(piece in found for piece in pieces) else None


def read_found(entries: Iterable[Slice | Piece]) -> Steps[dict[Piece, list[Slice]]]:
    """The slices of each piece among `entries`, without pieces whose index object is gone."""
    tables = yield from read_tables(entry for entry in entries if isinstance(entry, Piece))
    return {piece: slices_of(table) for piece, table in tables.items()}


def read_tables(pieces: Iterable[Piece]) -> Steps[dict[Piece, pa.Table]]:
    """The rows of each piece.  Pieces whose index object is gone are left out: the view is old, or the object is lost.

    Adjacent pieces are read together: a seal puts those of all partitions into one object.
    """
    groups = neighbours(pieces)
    if not groups:
        return {}
    reads: list[Op] = [
        Get(one[0].object, one[0].position, one[-1].position + one[-1].length, OWN_ROOT) for one in groups
    ]
    tables: dict[Piece, pa.Table] = {}
    for group, data in zip(groups, (yield reads), strict=True):
        if data is None:
            continue
        for piece in group:
            at = piece.position - group[0].position
            tables[piece] = decode_piece(piece, memoryview(data)[at : at + piece.length])
    return tables


def read_sound(pieces: Iterable[Piece]) -> Steps[dict[Piece, pa.Table]]:
    """The rows of each piece, without pieces that are damaged or whose index object is gone."""
    pieces = frozenset(pieces)
    try:
        return (yield from read_tables(pieces))
    except CorruptObject:
        pass
    tables: dict[Piece, pa.Table] = {}
    for piece in pieces:
        with suppress(CorruptObject):
            tables |= yield from read_tables([piece])
    return tables


def neighbours(pieces: Iterable[Piece], bytes_max: int = INDEX_BYTES_MAX) -> list[list[Piece]]:
    """Pieces without duplicates, grouped if they are adjacent in an index object, up to `bytes_max` per group."""
    groups: list[list[Piece]] = []
    for piece in sorted(set(pieces), key=lambda piece: (piece.object, piece.position)):
        last = groups[-1] if groups else [piece]
        side_by_side = (last[-1].object, last[-1].position + last[-1].length) == (piece.object, piece.position)
        if side_by_side and piece.position + piece.length - last[0].position <= bytes_max:
            last.append(piece)
        else:
            groups.append([piece])
    return groups
