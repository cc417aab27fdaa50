"""Frames of checkpoints: their limits, what damage says, and what a reader may leave out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.groups.group import Roster, RosterMember
from spark_log.metadata import state as s
from spark_log.metadata.checkpoint_format import (
    KINDS,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    state_json,
)
from spark_log.metadata.frames import FRAME_BYTES, encode_end, encode_frames, read_frames
from spark_log.metadata.records import Piece
from spark_log.metadata.state import State
from spark_log.model import Slice
from tests.unit.metadata.checkpoints import FIRST_LINE, checkpoint_of, checkpoint_of_frames, frames_of

GOLDEN = Path(__file__).parent / "checkpoint-2"
"""The checkpoint of `full_state()`, as it was first written in this format."""

text = st.text(max_size=8)
number = st.integers(-1, 2**53)
key = st.tuples(text, number)
names = st.dictionaries(text, text, max_size=2).map(Map)
a_slice = st.builds(Slice, number, number, text, *[number] * 7)
a_piece = st.builds(Piece, number, number, text, *[number] * 8)
entries = st.lists(a_slice | a_piece, max_size=3, unique_by=lambda entry: entry.start).map(
    lambda found: tuple(sorted(found, key=lambda entry: entry.start))
)
topic = st.builds(s.Topic, text, number, names, number, st.booleans())
kept = st.lists(st.builds(s.Kept, number, number, st.just((("t", 1, 2, 3),)), text), max_size=2).map(tuple)
producer = st.builds(s.ProducerState, number, text, st.just(("a",)), st.booleans(), number, number, kept, number)
session = st.none() | st.builds(s.MemberSession, text, text, number, number)
member = st.builds(RosterMember, text, st.none() | text, text, text, number, number, st.binary(), st.binary())
roster = st.none() | st.builds(Roster, number, members=st.lists(member, max_size=2).map(tuple))
offsets = st.dictionaries(key, st.builds(s.Position, number, text, number, number), max_size=3).map(Map)
group = st.builds(s.GroupState, number, text, offsets, number, session, roster)


def map_of(keys: st.SearchStrategy[object], of: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.dictionaries(keys, of, max_size=3).map(Map)


def with_names(state: State) -> State:
    """The names follow from the topics."""
    found = {row.name: topic_id for topic_id, row in state.topics.items() if not row.deleted}
    return State(**{field: getattr(state, field) for field in State.__dataclass_fields__} | {"names": Map(found)})


states = st.builds(
    State,
    version=number,
    time=number,
    changed=number,
    fence=number,
    times=st.lists(st.tuples(number, number), max_size=3).map(tuple),
    configs=names,
    topics=st.dictionaries(text, topic, max_size=1).map(Map),
    partitions=map_of(key, st.builds(s.Partition, number, number, number, entries)),
    objects=map_of(text, st.builds(s.ObjectRow, number, number, number)),
    dropped=map_of(text, number),
    producers=map_of(text, producer),
    groups=map_of(text, group),
    coordinator=st.just(s.Leadership()) | st.builds(s.Leadership, st.integers(1, 9), text, text, number),
    forgotten=map_of(st.tuples(text, text, number), st.builds(s.Forgotten, number, number)),
    progressed=number,
    generations=number,
    features=st.sampled_from([Map(), Map({"metadata.version": 1})]),
).map(with_names)


@given(states)
def test_a_state_survives_its_bytes(state: State) -> None:
    """Names may hold any text: line ends and other scripts are escaped."""
    data = encode_checkpoint(state)
    assert decode_checkpoint(data, "x") == state
    check_checkpoint(data, "x")
    assert decode_checkpoint(checkpoint_of(msgspec.json.decode(state_json(state))), "x") == state


def full_state() -> State:
    """Rows of every kind."""
    a_run = (100, 7, 1, 10, 20)
    return State(
        version=9,
        time=1_700_000_000_000,
        changed=8,
        fence=3,
        times=((3, 1_699_999_999_000), (9, 1_700_000_000_000)),
        configs=Map({"num.partitions": "2"}),
        names=Map({"orders": "id-1"}),
        topics=Map(
            {
                "id-1": s.Topic("orders", 1, Map({"retention.ms": "1000"}), 1_699_999_999_000),
                "id-0": s.Topic("orders", 1, Map(), 1_699_999_000_000, True),
            }
        ),
        partitions=Map(
            {
                ("id-0", 0): s.Partition(),
                ("id-1", 0): s.Partition(
                    2,
                    8,
                    1,
                    (
                        Piece(0, 4, "data/0000000000000002/b.idx", 0, 600, 9, 2, 200, 10, 20),
                        Slice(4, 8, "data/0000000000000001/a.seg", 300, *a_run),
                    ),
                ),
            }
        ),
        objects=Map(
            {
                "data/0000000000000001/a.seg": s.ObjectRow(1000, 900, 3),
                "data/0000000000000002/b.idx": s.ObjectRow(600, 0, 1),
            }
        ),
        dropped=Map({"data/0000000000000001/c.seg": 5}),
        producers=Map({"p": s.ProducerState(1, "h", ("g",), False, 7, 1, (s.Kept(4, 7, (("id-1", 0, 4, 8),), "f"),))}),
        groups=Map(
            {
                "g": s.GroupState(2, "m", Map({("id-1", 0): s.Position(5, "note", 1, 8)}), 1),
                "h": s.GroupState(
                    1,
                    session=s.MemberSession("t", "o", 10, 1),
                    roster=Roster(1, members=(RosterMember("m", None, "c", "host", 1, 1, b"\x00\xff", b""),)),
                ),
            }
        ),
        coordinator=s.Leadership(1, "host:9550", "host", 1),
        forgotten=Map({("g", "old", 0): s.Forgotten(6, 1)}),
        progressed=8,
        generations=1,
        features=Map({"metadata.version": 1}),
    )


def test_a_checkpoint_that_was_written_when_the_format_was_new_is_read() -> None:
    data = GOLDEN.read_bytes()
    assert decode_checkpoint(data, "x") == full_state()
    assert {kind for kind, _, _ in frames_of(data)} == {"header", *KINDS}


def test_rows_are_written_byte_for_byte_as_when_the_format_was_new() -> None:
    """Before compression, whose bytes depend on the library's version."""
    assert frames_of(encode_checkpoint(full_state())) == frames_of(GOLDEN.read_bytes())


def test_a_damaged_byte_anywhere_is_an_error_that_names_file_and_frame() -> None:
    data = encode_checkpoint(full_state())
    for at in range(len(FIRST_LINE), len(data)):
        for mask in (0x01, 0x20, 0x80, 0xFF):
            damaged = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
            for read in (decode_checkpoint, check_checkpoint):
                with pytest.raises(CorruptObject, match=r"^meta/ckpt/9 is damaged: .*frame \d+"):
                    read(damaged, "meta/ckpt/9")


def test_a_file_that_is_cut_anywhere_or_goes_on_is_an_error_that_names_it() -> None:
    data = encode_checkpoint(full_state())
    for length in range(len(data)):
        with pytest.raises(CorruptObject, match="^meta/ckpt/9 "):
            decode_checkpoint(data[:length], "meta/ckpt/9")
    with pytest.raises(CorruptObject, match=r"frame \d+ \(end\) is cut off"):
        decode_checkpoint(data[:-1], "meta/ckpt/9")
    with pytest.raises(CorruptObject, match=r" 1 bytes follow frame \d+ \(end\)"):
        decode_checkpoint(data + b"\n", "meta/ckpt/9")


def test_damage_names_the_kind_of_the_frame() -> None:
    data = encode_checkpoint(full_state())
    at = data.index(b"objects 2 ")
    with pytest.raises(CorruptObject, match=r"the checksum of frame 3 \(objects\) differs"):
        decode_checkpoint(data[: at + 40] + bytes([data[at + 40] ^ 1]) + data[at + 41 :], "x")
    with pytest.raises(CorruptObject, match=r"frame 3 \(objects\) is cut off, \d+ of its \d+ bytes are there"):
        decode_checkpoint(data[: at + 40], "x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_frame_and_one_too_many_are_found(kind: str) -> None:
    """The end frame counts the rows."""
    data = encode_checkpoint(full_state())
    frames, at = {}, len(FIRST_LINE)
    for frame in read_frames(data, at, "x"):
        frames[frame.kind], at = data[at : frame.end], frame.end
    for other in (data.replace(frames[kind], b""), data.replace(frames[kind], 2 * frames[kind])):
        with pytest.raises(CorruptObject, match=r"its frames have \d+ rows, by frame \d+ \(end\) they had"):
            decode_checkpoint(other, "x")


def test_frames_are_not_above_the_limit_except_for_a_single_row() -> None:
    """Long rows and short ones, of one kind; rows are whole and in order."""
    rows = [["x" * (size * 1000), at] for at, size in enumerate([1, 900, 200, 1500, 1, 1, 3000, 40] * 3)]
    rows += [["y" * 50, at] for at in range(50_000)]
    made = [frame for _, frame in encode_frames("rows", rows, msgspec.json.Encoder())]
    data = b"".join(made) + encode_end(len(rows))
    frames = list(read_frames(data, 0, "x"))
    assert [row for frame in frames for row in map(msgspec.json.decode, frame.lines("x").splitlines())] == rows
    assert all(frame.plain_bytes <= FRAME_BYTES or frame.rows == 1 for frame in frames)
    assert sum(frame.plain_bytes > FRAME_BYTES for frame in frames) == 6
    assert all(frame.plain_bytes > FRAME_BYTES * 0.9 for frame in frames[-4:-1])


def test_a_large_state_is_in_frames_below_the_limit() -> None:
    """Also the positions of one group."""
    state = State(
        objects=Map({f"data/{n:016x}/x.seg": s.ObjectRow(n, n, 1) for n in range(50_000)}),
        groups=Map({"g": s.GroupState(offsets=Map({("t", n): s.Position(n, "", 1, 1) for n in range(50_000)}))}),
    )
    data = encode_checkpoint(state)
    assert decode_checkpoint(data, "x") == state
    frames = list(read_frames(data, len(FIRST_LINE), "x"))
    assert all(frame.plain_bytes <= FRAME_BYTES for frame in frames)
    assert min(sum(frame.kind == kind for frame in frames) for kind in ("objects", "positions")) > 1


def test_a_kind_of_rows_that_is_not_known_asks_for_a_newer_pylog() -> None:
    """Nothing is passed over, since the state would lack it."""
    header = msgspec.json.decode(frames_of(encode_checkpoint(State()))[0][2])
    data = checkpoint_of_frames(("header", [header]), ("wishes", [["a", 1]]))
    check_checkpoint(data, "meta/ckpt/7")
    with pytest.raises(UnsupportedVersion, match="meta/ckpt/7 has .*wishes: update pylog"):
        decode_checkpoint(data, "meta/ckpt/7")


@pytest.mark.parametrize("row", [["a", [1, 2, 3, "more"]], ["a", "b"], ["a"], {"a": 1}])
def test_a_row_that_is_not_known_asks_for_a_newer_pylog(row: object) -> None:
    header = msgspec.json.decode(frames_of(encode_checkpoint(State()))[0][2])
    with pytest.raises(UnsupportedVersion, match=r"frame 1 \(objects\).*update pylog"):
        decode_checkpoint(checkpoint_of_frames(("header", [header]), ("objects", [row])), "x")


def test_an_unknown_field_of_the_header_asks_for_a_newer_pylog() -> None:
    document = msgspec.json.decode(state_json(full_state())) | {"invented": 1}
    with pytest.raises(UnsupportedVersion, match=r"frame 0 \(header\).*invented.*update pylog"):
        decode_checkpoint(checkpoint_of(document), "x")


def test_a_level_is_read_from_the_header_alone() -> None:
    """Whatever follows, which may be damaged or of a newer kind."""
    state = State(features=Map({"of.tomorrow": 1}))
    data = encode_checkpoint(state)
    (frame,) = read_frames(data, len(FIRST_LINE), "x")
    with pytest.raises(UnsupportedVersion, match="at level 1 of of.tomorrow"):
        decode_checkpoint(data[: frame.end] + b"nonsense", "x")


def test_a_checkpoint_without_a_header_is_damaged() -> None:
    for frames in ((), (("objects", [["a", [1, 2, 3]]]),)):
        with pytest.raises(CorruptObject, match="not a header"):
            decode_checkpoint(checkpoint_of_frames(*frames), "x")
