"""Slices that lie in index objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_log.errors import CorruptObject
from spark_log.metadata.formats.slice_index import IndexPart, decode_piece, encode_index, slices_of
from spark_log.model import APPEND_TIME, Slice, kind_and_stats


def slices(first: int, rows: list[int]) -> list[Slice]:
    """Neighbouring slices, one of three objects each; those with an odd number of rows have statistics."""
    made, start = [], first
    for number, count in enumerate(rows):
        more = kind_and_stats(number % 3, b"x" * count if count % 2 else b"")
        made.append(Slice(start, start + count, f"o{number % 3}", number, 7, number * 3, 1, number, 2 * number, more))
        start += count
    return made


rows = st.lists(st.integers(1, 5), min_size=1, max_size=30)


# Promise: format/metadata.md#slice-indexes
@given(st.lists(st.tuples(st.integers(0, 2**50), rows), min_size=1, max_size=4))
def test_slices_survive_an_index(given_parts: list[tuple[int, list[int]]]) -> None:
    """Of any number of partitions, each at the offsets that it has; the piece says what it covers."""
    parts = [IndexPart("t", number, slices(first, counts)) for number, (first, counts) in enumerate(given_parts)]
    data, pieces = encode_index("i", parts)
    assert pieces[-1].position + pieces[-1].length == len(data)
    for part, piece in zip(parts, pieces, strict=True):
        found = slices_of(decode_piece(piece, data[piece.position : piece.position + piece.length]))
        assert found == part.slices
        assert (piece.start, piece.end, piece.slices) == (found[0].start, found[-1].end, len(found))
        assert (piece.bytes, piece.min_us) == (7 * len(found), min(one.min_us for one in found))
        assert piece.max_us == max(one.max_us for one in found)


def test_a_piece_is_read_at_the_offsets_where_it_was_put() -> None:
    """A commit's pieces count from 0; where they lie is known only when the commit has its place."""
    data, (piece,) = encode_index("i", [IndexPart("t", 0, slices(0, [2, 3]))])
    moved = replace(piece, start=100, end=105)
    assert [(one.start, one.end) for one in slices_of(decode_piece(moved, data))] == [(100, 102), (102, 105)]


def test_the_log_s_time_is_laid_over_the_slices_of_a_piece() -> None:
    """A commit of very many slices to a LogAppendTime topic."""
    data, (piece,) = encode_index("i", [IndexPart("t", 0, slices(0, [2, 3]))])
    stamped = replace(piece, min_us=9, max_us=9, time_kind=APPEND_TIME)
    assert {(one.min_us, one.max_us, one.time_kind) for one in slices_of(decode_piece(stamped, data))} == {
        (9, 9, APPEND_TIME)
    }


def test_a_damaged_piece_is_refused_at_every_position() -> None:
    """The message names the object, the position and the offsets."""
    data, (piece,) = encode_index("i", [IndexPart("t", 0, slices(5, [2]))])
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        with pytest.raises(CorruptObject, match=r"i is damaged: .* at byte 0 .*offsets 5 to 7"):
            decode_piece(piece, damaged)
    with pytest.raises(CorruptObject):
        decode_piece(piece, data[:-1])
