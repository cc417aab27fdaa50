"""Reads slice indexes: pieces that the state names, as slices or as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_log.errors import CorruptObject
from spark_log.journal.store_operations import OWN_ROOT, Get, Op, Steps
from spark_log.metadata.formats.slice_index import decode_piece, slices_of
from spark_log.metadata.maintenance.swaps import unread_slice
from spark_log.metadata.records import Piece
from spark_log.model import Slice

INDEX_BYTES_MAX = 4 << 20
"""Bytes of an index object that one request reads at most."""
Unread = dict[Piece, Exception | None]
"""Pieces that cannot be read, and why; None: the index object is gone."""


def read_pieces(entries: Iterable[Slice | Piece]) -> Steps[dict[Piece, list[Slice]] | None]:
    """The slices of each piece among `entries`; None if an index object is gone, because the view is old."""
    pieces = [entry for entry in entries if isinstance(entry, Piece)]
    tables = yield from read_tables(pieces)
    return {piece: slices_of(table) for piece, table in tables.items()} if tables.keys() == set(pieces) else None


def read_known(entries: Iterable[Slice | Piece]) -> Steps[tuple[dict[Piece, list[Slice]], Unread]]:
    """The slices of each piece among `entries`, and the pieces that cannot be read.

    A piece that cannot be read has one slice, which stands for all of its slices (`unread_slice`).
    """
    pieces = frozenset(entry for entry in entries if isinstance(entry, Piece))
    tables = yield from read_each(pieces)
    found, unread = dict[Piece, list[Slice]](), Unread()
    for piece in pieces:
        table = tables.get(piece)
        if isinstance(table, pa.Table):
            found[piece] = slices_of(table)
        else:
            found[piece], unread[piece] = [unread_slice(piece)], table
    return found, unread


def read_tables(pieces: Iterable[Piece]) -> Steps[dict[Piece, pa.Table]]:
    """The rows of each piece.  Pieces whose index object is gone are left out: the view is old, or the object is lost.

    Raises CorruptObject if one is damaged.
    """
    tables = yield from read_each(pieces)
    for table in tables.values():
        if isinstance(table, Exception):
            raise table
    return tables


def read_each(pieces: Iterable[Piece]) -> Steps[dict[Piece, pa.Table | Exception]]:
    """The rows of each piece, or why they cannot be decoded.  Pieces whose index object is gone are left out.

    Adjacent pieces are read together: a seal puts those of all partitions into one object.
    """
    groups = neighbours(pieces)
    if not groups:
        return {}
    reads: list[Op] = [
        Get(one[0].object, one[0].position, one[-1].position + one[-1].length, OWN_ROOT) for one in groups
    ]
    tables: dict[Piece, pa.Table | Exception] = {}
    for group, data in zip(groups, (yield reads), strict=True):
        if data is None:
            continue
        for piece in group:
            at = piece.position - group[0].position
            try:
                tables[piece] = decode_piece(piece, memoryview(data)[at : at + piece.length])
            except (CorruptObject, MemoryError) as error:
                tables[piece] = error
    return tables


def read_sound(pieces: Iterable[Piece]) -> Steps[dict[Piece, pa.Table]]:
    """The rows of each piece, without pieces that are damaged or whose index object is gone."""
    tables = yield from read_each(pieces)
    return {piece: table for piece, table in tables.items() if isinstance(table, pa.Table)}


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
