"""The bytes of a replica's log: every write comes back, and damage is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import CorruptObject
from spark_log.quorum.messages import Entry, Kind
from spark_log.quorum.unit_format import MAGIC, Unit, decode_log, encode_unit


def write(entries: tuple[Entry, ...], truncate_to: int | None = None, high_watermark: int = 0) -> Unit:
    return Unit(high_watermark, truncate_to, entries)


@st.composite
def writes(draw: st.DrawFn) -> list[Unit]:
    """As a follower makes them: some remove entries of an earlier epoch first."""
    found, end = [], draw(st.integers(0, 3))
    first, high_watermark = end, end
    for epoch in range(1, draw(st.integers(2, 6))):
        high_watermark = draw(st.integers(high_watermark, end))
        truncate_to = draw(st.none() | st.integers(max(first, high_watermark), end))
        end = end if truncate_to is None else truncate_to
        data = draw(st.lists(st.binary(max_size=5) | st.just(MAGIC), min_size=truncate_to is None, max_size=3))
        entries = tuple(Entry(end + index, epoch, Kind.DATA, one) for index, one in enumerate(data))
        found.append(write(entries, truncate_to, high_watermark))
        end += len(data)
    return found


def folded(found: list[Unit]) -> list[Entry]:
    """The log after some writes, by a dict."""
    log: dict[int, Entry] = {}
    for unit in found:
        if unit.truncate_to is not None:
            log = {offset: entry for offset, entry in log.items() if offset < unit.truncate_to}
        log |= {entry.offset: entry for entry in unit.entries}
    return list(log.values())


@given(writes(), st.data())
def test_every_write_comes_back_from_any_files(found: list[Unit], draws: st.DataObject) -> None:
    """Files end between two units."""
    units = [encode_unit(*unit) for unit in found]
    cut = draws.draw(st.integers(0, len(units)), "units in the first file")
    content = decode_log([("0.log", b"".join(units[:cut])), ("1.log", b"".join(units[cut:]))])
    assert list(content.entries) == folded(found)
    assert content.high_watermark == max(unit.high_watermark for unit in found)
    assert content.end == sum(map(len, units[cut:]))


# Promise: raft.md#write-the-disk
@given(writes(), st.data())
def test_a_last_unit_that_is_not_whole_is_cut(found: list[Unit], draws: st.DataObject) -> None:
    """However short it is, and if there are zeros in its place."""
    *units, last = [encode_unit(*unit) for unit in found]
    length = draws.draw(st.integers(0, len(last) - 1), "bytes of the last unit")
    zeros = draws.draw(st.booleans(), "zeros")
    before = b"".join(units)
    content = decode_log([("0.log", before + (bytes(length) if zeros else last[:length]))])
    assert list(content.entries) == folded(found[:-1]) and content.end == len(before)


# Promise: raft.md#write-the-disk
@given(writes(), st.data())
def test_a_changed_byte_is_found(found: list[Unit], draws: st.DataObject) -> None:
    """With its position.  Only a larger length of the last unit looks like a write that was not finished."""
    units = [encode_unit(*unit) for unit in found]
    data = bytearray(b"".join(units))
    position = draws.draw(st.integers(0, len(data) - 1), "position")
    data[position] ^= draws.draw(st.integers(1, 255), "bits")
    last = len(data) - len(units[-1])
    if position >= last + 4 and position < last + 8 and data[position] > units[-1][position - last]:
        assert list(decode_log([("0.log", bytes(data))]).entries) == folded(found[:-1])
        return
    if position >= last:
        with pytest.raises(CorruptObject, match=f"0.log is damaged at position {last}, and its checksum differs"):
            decode_log([("0.log", bytes(data))])
        return
    start = max(sum(map(len, units[:count])) for count in range(len(units)) if sum(map(len, units[:count])) <= position)
    with pytest.raises(CorruptObject, match=f"0.log is damaged at position {start}, and a unit follows"):
        decode_log([("0.log", bytes(data))])


def test_a_sector_that_was_not_written_is_a_write_that_was_not_finished() -> None:
    """The disk writes sectors as a whole, in any order."""
    unit = encode_unit(*write((Entry(0, 1, Kind.DATA, b"x" * 2000),)))
    assert decode_log([("0.log", unit[:512] + bytes(512) + unit[1024:])]).end == 0
    with pytest.raises(CorruptObject, match="its checksum differs"):
        decode_log([("0.log", unit[:512] + bytes(500) + unit[1012:])])


def test_a_file_that_is_not_the_last_is_whole() -> None:
    """Its last unit was durable before the next file was begun."""
    first = encode_unit(*write((Entry(0, 1, Kind.DATA, b"x"),)))
    second = encode_unit(*write((Entry(1, 1, Kind.DATA, b"y"),)))
    with pytest.raises(CorruptObject, match=r"0.log is damaged at position 0, and 1.log follows"):
        decode_log([("0.log", first[:-1]), ("1.log", second)])


def test_a_file_that_is_missing_is_noticed() -> None:
    entries = [encode_unit(*write((Entry(offset, 1, Kind.DATA, b"x"),))) for offset in range(3)]
    with pytest.raises(CorruptObject, match=r"2.log has entry 2 after entry 0, .* a file is missing"):
        decode_log([("0.log", entries[0]), ("2.log", entries[2])])


def test_a_write_of_the_epoch_alone_has_no_unit() -> None:
    """Epoch and vote are in another file."""
    assert encode_unit(*write(())) == b""
    assert decode_log([]).entries == ()
