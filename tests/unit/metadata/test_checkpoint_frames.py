"""Frames of checkpoints: their limits, what damage says, and what a reader may leave out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from spark_log.errors import CorruptObject, UnsupportedVersion
from spark_log.groups.group import Roster, RosterMember
from spark_log.metadata import state as s
from spark_log.metadata.commits.last_commit import LastCommit, last_commit
from spark_log.metadata.formats.checkpoint_format import (
    CHANGES_MIN,
    COLUMNS,
    KINDS,
    REMOVED_KINDS,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    folded,
    reads_back,
    state_json,
)
from spark_log.metadata.maps.column_blocks import ObjectBlock, PartitionBlock
from spark_log.metadata.maps.column_map import ColumnMap, fold
from spark_log.metadata.maps.frames import FRAME_BYTES, encode_columns, encode_end, encode_frames, read_frames
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.records import Piece
from spark_log.metadata.replicas.replica_state import Broker, Copies, PlacementGroup, Reassignment, ReplicaMember
from spark_log.metadata.state import State
from spark_log.model import Slice
from tests.unit.metadata.checkpoints import FIRST_LINE, checkpoint_of, checkpoint_of_frames, frames_of

GOLDEN = Path(__file__).parent / "checkpoint-4"
"""The checkpoint of `full_state()`, as it was first written in this format."""
GOLDEN_PLAIN = Path(__file__).parent / "checkpoint-4-without-brokers"
"""The checkpoint of `state_without_brokers()`."""
OF_BROKERS = {
    "brokers",
    "placement_groups",
    "assignments",
    "reassignments",
    "copies",
    "schemas",
    "erasures",
    "former_roots",
}
"""Kinds of rows of level 4."""

text = st.text(max_size=8)
number = st.integers(0, 2**31 - 1)
kind = st.integers(0, 2)
key = st.tuples(text, number)
names = st.dictionaries(text, text, max_size=2).map(Map)
a_slice = st.builds(Slice, number, number, text, *[number] * 6, kind)
a_piece = st.builds(Piece, number, number, text, *[number] * 7, kind)
entries = st.lists(a_slice | a_piece, max_size=3, unique_by=lambda entry: entry.start).map(
    lambda found: tuple(sorted(found, key=lambda entry: entry.start))
)
topic = st.builds(s.Topic, text, number, names, number, st.booleans())
commit = st.none() | st.builds(LastCommit, number, number, number, st.just(("t", "u")), text, st.binary())
producer = st.builds(s.ProducerState, number, text, st.just(("a",)), st.booleans(), number, number, commit, number)
session = st.none() | st.builds(s.MemberSession, text, text, number, number)
member = st.builds(RosterMember, text, st.none() | text, text, text, number, number, st.binary(), st.binary())
roster = st.none() | st.builds(Roster, number, members=st.lists(member, max_size=2).map(tuple), state_ms=number)
offsets = st.dictionaries(key, st.builds(s.GroupPosition, number, text, number, number), max_size=3).map(Map)
group = st.builds(s.GroupState, number, text, offsets, number, session, roster, st.just(()))
ids = st.lists(number, max_size=3).map(tuple)
options = st.lists(st.tuples(text, text), max_size=2).map(tuple)
broker = st.builds(Broker, text, text, text, options, st.booleans(), number, st.booleans(), text, number)
replica = st.builds(ReplicaMember, number, st.sampled_from(["isr", "joining", "out"]), number, number, number)
placement_group = st.builds(PlacementGroup, st.lists(replica, max_size=3).map(tuple), number, number)


def map_of(
    keys: st.SearchStrategy[object], of: st.SearchStrategy[object], kind: type = Map
) -> st.SearchStrategy[object]:
    return st.dictionaries(keys, of, max_size=3).map(kind)


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
    partitions=map_of(key, st.builds(s.Partition, number, number, number, entries), LayeredMap),
    objects=map_of(text, st.builds(s.ObjectRow, number, number, number, st.just(0) | number), LayeredMap),
    dropped=map_of(text, number),
    dropped_lists=map_of(text, st.builds(s.DroppedList, number, number)),
    cleaned=map_of(key, st.builds(s.CleanedPart, number, st.lists(st.tuples(number, number), max_size=2).map(tuple))),
    producers=map_of(text, producer),
    kafka_producers=map_of(
        st.tuples(number, text, number), st.builds(s.KafkaProducer, text, *[number] * 3, st.binary())
    ),
    kafka_expired=st.just(-1) | number,
    groups=map_of(text, group),
    coordinator=st.just(s.Leadership()) | st.builds(s.Leadership, st.integers(1, 9), text, text, number),
    forgotten=map_of(st.tuples(text, text, number), st.builds(s.Forgotten, number, number)),
    progressed=number,
    generations=number,
    brokers=map_of(number, broker),
    placement_groups=map_of(number, placement_group),
    assignments=map_of(text, ids),
    groups_made=number,
    reassignments=map_of(key, st.builds(Reassignment, number, ids, ids, number, number, number, number)),
    copies=map_of(number, st.builds(Copies, number, ids, number, number)),
    copies_made=number,
    features=st.sampled_from([Map(), Map({"metadata.version": 1})]),
).map(with_names)


@given(states)
def test_a_state_survives_its_bytes(state: State) -> None:
    """Names may hold any text: line ends and other scripts are escaped."""
    columns = replace(
        state, partitions=fold(state.partitions, PartitionBlock), objects=fold(state.objects, ObjectBlock)
    )
    for rows in state, columns:
        data = encode_checkpoint(rows)
        assert decode_checkpoint(data, "x") == state
        check_checkpoint(data, "x")
    assert state_json(columns) == state_json(state)
    assert decode_checkpoint(checkpoint_of(msgspec.json.decode(state_json(state))), "x") == state


def full_state() -> State:
    """Rows of every kind: those of `state_without_brokers`, with brokers."""
    a_slice = Slice(8, 9, "data/0000000000000008/f.seg", 0, 100, 7, 1, 10, 20)
    a_piece = Piece(9, 12, "data/0000000000000008/g.idx", 0, 600, 9, 2, 200, 10, 20)
    return replace(
        in_columns(plain_state(copies=3)),
        brokers=Map(
            {
                0: Broker("", "", "a"),
                1: Broker("/disks/1", "5f2c9a1b3d4e6f70", "b", (("endpoint", "e"),), epoch=4, since=1_699_999_999_000),
                2: Broker(
                    "s3://bucket/log",
                    "6e1f9a1b3d4e6f71",
                    is_async=True,
                    epoch=5,
                    keep_ms=60_000,
                    dropped=2,
                    deletable=1,
                    marks=((4, 7),),
                    dropped_at=(5, 9),
                ),
                3: Broker(
                    "/disks/3",
                    "7d0e9a1b3d4e6f72",
                    epoch=6,
                    fenced=True,
                    reason="it failed",
                    since=9,
                    drained=True,
                    former=(("8c0e9a1b3d4e6f73", 3),),
                    mount_point="/disks/3",
                ),
            }
        ),
        placement_groups=Map(
            {
                1: PlacementGroup(
                    (ReplicaMember(1, "isr", 4), ReplicaMember(0, "isr", 4), ReplicaMember(3, "out", 8, 1_700, 2)), 1, 3
                ),
                2: PlacementGroup((ReplicaMember(3, "joining", 8), ReplicaMember(2, "out", 5))),
            }
        ),
        assignments=Map({"id-0": (2,), "id-1": (1,)}),
        groups_made=4,
        reassignments=Map({("id-1", 0): Reassignment(0, (0,), (0, 2), 8, 5, 1, late=9)}),
        copies=Map({3: Copies(1, (0, 1), 1, 1000), 5: Copies(2, (), 1, 700, True)}),
        copies_made=7,
        erasures=Map({"id-1": s.ErasedTopic("t", 8, (s.OpenErasure(8, 9, ((0, ""), (1, "d")), True, "e"),), 9)}),
        former_roots=Map({"8c0e9a1b3d4e6f73": s.FormerRoot(3, "/disks/3", 3, True)}),
        restores=(s.Restore("0a1b2c3d4e5f6071", 3, 2, (("id-1", (4, 0)),)),),
        schemas=Map({"id-1": s.TopicSchemas(('{"type":"struct","fields":[]}',), (0, 7))}),
        lost=Map({("id-1", 0): (s.LostRange(2, 4, 7), s.LostRange(6, 8, 8))}),
        pending=(
            s.PendingCommit("p", 3, 9, ("data/0000000000000008/f.seg",), (("id-1", 0, a_slice),)),
            s.PendingCommit("q", 0, 9, (), (), (("id-1", 0, a_piece),), -1),
        ),
        line=("b8", "b9"),
        strays=(7,),
        features=Map({"metadata.version": 1}),
    )


def state_without_brokers() -> State:
    return in_columns(plain_state())


def in_columns(state: State) -> State:
    """The rows of a state in columns, before one of each large map was added and one removed."""
    partitions = state.partitions.delete(("id-0", 0)).set(("id-2", 0), s.Partition(end=3, edition=1))
    objects = state.objects.delete("data/0000000000000002/b.idx")
    objects = objects.set("data/0000000000000001/d.seg", s.ObjectRow(700, 600, 1))
    before = replace(state, partitions=fold(partitions, PartitionBlock), objects=fold(objects, ObjectBlock))
    return replace(
        before,
        partitions=before.partitions.delete(("id-2", 0)).set(("id-0", 0), s.Partition()),
        objects=before.objects.delete("data/0000000000000001/d.seg").set(
            "data/0000000000000002/b.idx", s.ObjectRow(600, 0, 1)
        ),
    )


def plain_state(copies: int = 0) -> State:
    """copies: key of the copies of one object."""
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
        partitions=LayeredMap(
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
        objects=LayeredMap(
            {
                "data/0000000000000001/a.seg": s.ObjectRow(1000, 900, 3, copies),
                "data/0000000000000002/b.idx": s.ObjectRow(600, 0, 1),
            }
        ),
        dropped=Map({"data/0000000000000001/c.seg": 5}),
        dropped_lists=Map({"data/0000000000000004/e.dropped": s.DroppedList(4, 3)}),
        cleaned=Map({("id-1", 0): s.CleanedPart(4, ((2, 1_699_999_999_000), (4, 1_700_000_000_000)))}),
        producers=Map(
            {"p": s.ProducerState(1, "h", ("g",), False, 7, 1, last_commit(4, 7, {("id-1", 0): (4, 8)}, "f"))}
        ),
        kafka_producers=Map({(1 << 62, "orders", 0): s.KafkaProducer("id-1", 3, 7, 1, b"\x91\x94\x05\x02\x04\xff")}),
        kafka_expired=8,
        groups=Map(
            {
                "g": s.GroupState(2, "m", Map({("id-1", 0): s.GroupPosition(5, "note", 1, 8)}), 1),
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
    )


# Promise: format/metadata.md#checkpoints
def test_a_checkpoint_that_was_written_when_the_format_was_new_is_read() -> None:
    data = GOLDEN.read_bytes()
    assert decode_checkpoint(data, "x") == full_state()
    assert {kind for kind, _, _ in frames_of(data)} == {"header", *COLUMNS, *KINDS, *REMOVED_KINDS}
    assert decode_checkpoint(GOLDEN_PLAIN.read_bytes(), "x") == state_without_brokers()


# Promise: format/metadata.md#checkpoints
def test_rows_are_written_byte_for_byte_as_when_the_format_was_new() -> None:
    """Before compression, whose bytes depend on the library's version."""
    assert frames_of(encode_checkpoint(full_state())) == frames_of(GOLDEN.read_bytes())
    assert frames_of(encode_checkpoint(state_without_brokers())) == frames_of(GOLDEN_PLAIN.read_bytes())


# Promise: format/metadata.md#levels
def test_a_log_that_never_has_a_broker_pays_nothing_for_them() -> None:
    header, *rest = frames_of(encode_checkpoint(state_without_brokers()))
    assert not OF_BROKERS & {kind for kind, _, _ in rest} and b"copies" not in header[2]


def test_reading_a_checkpoint_of_a_log_without_brokers_imports_no_pandas() -> None:
    """20 MB and half a second for each process that opens a log."""
    script = (
        "import sys; from spark_log.metadata.formats.checkpoint_format import decode_checkpoint as read;"
        "state = read(open(sys.argv[1], 'rb').read(), 'x'); list(state.objects.items()); print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(GOLDEN_PLAIN)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_objects_with_copies_are_read_beside_blocks_without() -> None:
    """Whether a block has the column is decided for it alone."""
    plain = {f"data/{n:016x}/x.seg": s.ObjectRow(n, n, 1) for n in range(20_000)}
    copied = {f"data/{n:016x}/x.seg": s.ObjectRow(n, n, 1, 5) for n in range(20_000, 40_000)}
    state = folded(State(objects=LayeredMap({**plain, **copied})))
    frames = [
        frame.columns("x").schema.names
        for frame in read_frames(encode_checkpoint(state), len(FIRST_LINE), "x")
        if frame.kind == "object_columns"
    ]
    assert "copies" not in frames[0] and "copies" in frames[-1]
    assert decode_checkpoint(encode_checkpoint(state), "x") == state


# Promise: format/metadata.md#what-a-reader-refuses
def test_a_damaged_byte_anywhere_is_an_error_that_names_file_and_frame() -> None:
    data = encode_checkpoint(full_state())
    for at in range(len(FIRST_LINE), len(data)):
        mask = (0x01, 0x20, 0x80, 0xFF)[at % 4]
        damaged = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
        for read in (decode_checkpoint, check_checkpoint):
            with pytest.raises(CorruptObject, match=r"^meta/ckpt/9 is damaged: .*frame \d+"):
                read(damaged, "meta/ckpt/9")


# Promise: format/metadata.md#what-a-reader-refuses
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
    at = data.index(b"object_columns 2 ")
    with pytest.raises(CorruptObject, match=r"the checksum of frame 2 \(object_columns\) differs"):
        decode_checkpoint(data[: at + 60] + bytes([data[at + 60] ^ 1]) + data[at + 61 :], "x")
    with pytest.raises(CorruptObject, match=r"frame 2 \(object_columns\) is cut off, \d+ of its \d+ bytes are there"):
        decode_checkpoint(data[: at + 60], "x")


@pytest.mark.parametrize("kind", [*COLUMNS, *KINDS, *REMOVED_KINDS])
def test_a_missing_frame_and_one_too_many_are_found(kind: str) -> None:
    """The end frame counts the rows."""
    data = encode_checkpoint(full_state())
    frames, at = {}, len(FIRST_LINE)
    for frame in read_frames(data, at, "x"):
        frames[frame.kind], at = data[at : frame.end], frame.end
    for other in (data.replace(frames[kind], b""), data.replace(frames[kind], 2 * frames[kind])):
        with pytest.raises(CorruptObject, match=r"its frames have \d+ rows, by frame \d+ \(end\) they had"):
            decode_checkpoint(other, "x")


# Promise: format/metadata.md#checkpoints
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
    """Also the positions of one group.  Frames of columns may be twice as long."""
    entries = tuple(Slice(n, n + 1, f"data/{n:016x}/x.seg", n, n, n, n, n, n) for n in range(2))
    state = State(
        partitions=LayeredMap({("t", n): s.Partition(n, n, n, entries) for n in range(12_000)}),
        objects=LayeredMap({f"data/{n:016x}/x.seg": s.ObjectRow(n, n, 1) for n in range(50_000)}),
        groups=Map({"g": s.GroupState(offsets=Map({("t", n): s.GroupPosition(n, "", 1, 1) for n in range(50_000)}))}),
    )
    for made, large in (
        (state, {"partitions", "objects", "positions"}),
        (folded(state), {"partition_columns", "object_columns", "positions"}),
    ):
        data = encode_checkpoint(made)
        assert decode_checkpoint(data, "x") == state
        frames = list(read_frames(data, len(FIRST_LINE), "x"))
        assert all(frame.plain_bytes <= FRAME_BYTES * (1 + frame.kind.endswith("columns")) for frame in frames)
        assert {frame.kind for frame in frames if sum(frame.kind == other.kind for other in frames) > 1} == large


def test_rows_move_to_columns_when_many_have_changed() -> None:
    """A few do not: as long as they are few, a checkpoint has only them as rows."""
    rows = LayeredMap({f"data/{n:016x}/x.seg": s.ObjectRow(n, n, 1) for n in range(CHANGES_MIN)})
    assert folded(State(objects=rows)).objects is rows
    more = rows.set("data/0000000000000000/y.seg", s.ObjectRow(1, 1, 1))
    moved = folded(State(objects=more)).objects
    assert moved == more and not moved.changes
    again = moved.update({f"data/{n:016x}/z.seg": s.ObjectRow(n, n, 1) for n in range(CHANGES_MIN)})
    assert folded(State(objects=again)).objects is again


def test_blocks_without_changes_are_neither_encoded_nor_decoded_again() -> None:
    """So a checkpoint costs what changed: the bytes of a block are those of the checkpoint before it."""
    rows = LayeredMap({f"data/{n:016x}/x.seg": s.ObjectRow(n, n, 1) for n in range(100_000)})
    state = decode_checkpoint(encode_checkpoint(folded(State(version=1, objects=rows))), "x")
    changed = replace(state, objects=state.objects.delete("data/0000000000000007/x.seg"))
    again = decode_checkpoint(encode_checkpoint(changed), "x", changed)
    assert again == changed and again.objects.base == changed.objects.base
    assert isinstance(again.objects.base, ColumnMap) and isinstance(changed.objects.base, ColumnMap)
    pairs = list(zip(again.objects.base.blocks, changed.objects.base.blocks, strict=True))
    assert len(pairs) > 2 and all(block is known and block.frame is known.frame for block, known in pairs)
    other = decode_checkpoint(encode_checkpoint(changed), "x", full_state())
    assert other == changed


class Miswritten(ObjectBlock):
    """A block whose bytes have the rows of another one, as if its memory was damaged before it was encoded."""

    @property
    def frame(self) -> memoryview:
        rows = [("data/0000000000000001/x.seg", s.ObjectRow(2, 2, 2))]
        return ObjectBlock(pa.record_batch(self.columns(rows), schema=self.SCHEMA)).frame


def test_columns_are_decoded_once_before_a_checkpoint_counts_as_read_back() -> None:
    """Older checkpoints are deleted then, so the bytes of a block that was just made are not believed."""
    rows = [("data/0000000000000001/x.seg", s.ObjectRow(1, 1, 1))]
    batch = pa.record_batch(ObjectBlock.columns(rows), schema=ObjectBlock.SCHEMA)
    for made, is_good in ((ObjectBlock(batch), True), (Miswritten(batch), False)):
        state = State(version=1, objects=LayeredMap.over(ColumnMap([made])))
        data = encode_checkpoint(state)
        assert reads_back(data, "x", state) is is_good
        assert made.was_read is is_good
        shared = decode_checkpoint(data, "x", state).objects.base
        assert isinstance(shared, ColumnMap) and (shared.blocks[0] is made) is is_good


def test_columns_that_are_not_known_ask_for_a_newer_pylog() -> None:
    header = msgspec.json.decode(frames_of(encode_checkpoint(State()))[0][2])
    _, head = next(encode_frames("header", [header], msgspec.json.Encoder()))
    for columns in ({"name": ["a"], "rows": [1]}, {"epoch": [1], "id": ["a"], "size": [1]}):
        frame = encode_columns("object_columns", pa.record_batch(columns))
        with pytest.raises(UnsupportedVersion, match=r"frame 1 \(object_columns\).*update pylog"):
            decode_checkpoint(FIRST_LINE + head + frame + encode_end(2), "x")


def test_columns_that_are_no_columns_are_damaged() -> None:
    header = msgspec.json.decode(frames_of(encode_checkpoint(State()))[0][2])
    with pytest.raises(CorruptObject, match=r"frame 1 \(object_columns\) has no Arrow columns"):
        decode_checkpoint(checkpoint_of_frames(("header", [header]), ("object_columns", [[1]])), "x")


# Promise: format/metadata.md#what-a-reader-refuses
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
