"""Batches and checkpoints as bytes: what is damaged or from elsewhere is refused, never misread."""

from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import CorruptObject, SequenceConflict, UnsupportedVersion
from spark_log.groups.group import Roster, RosterMember
from spark_log.metadata import records as r
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint, state_json
from spark_log.metadata.groups.consumer_offsets import progress_of
from spark_log.metadata.records import Batch
from spark_log.metadata.state import GroupPosition, GroupState
from spark_log.model import DataObject, Run, Slice
from tests.unit.metadata.checkpoints import checkpoint_of
from tests.unit.metadata.history import History, positions

text = st.text(max_size=8)
number = st.integers(0, 2**31 - 1)
piece = st.builds(r.Piece, *[number] * 2, text, *[number] * 7)
a_slice = st.builds(Slice, *[number] * 2, text, *[number] * 6)
change = st.builds(
    r.Change, text, number, number, number, number, st.lists(a_slice, max_size=2).map(tuple), st.just(())
)
group = st.builds(
    r.GroupCommit, text, number, st.lists(st.builds(r.OffsetEntry, text, number, number), max_size=2).map(tuple)
)
record = st.one_of(
    st.builds(
        r.CreateTopicRecord,
        topic_id=text,
        name=text,
        partitions=number,
        configs=st.dictionaries(text, text, max_size=2),
    ),
    st.builds(r.AddPartitionsRecord, topic_id=text, total=number),
    st.builds(r.SetConfigsRecord, configs=st.dictionaries(text, text | st.none(), max_size=2)),
    st.builds(r.TrimRecord, topic_id=text, partition=number, start=number),
    st.builds(
        r.CommitRecord,
        producer=text,
        sequence=number,
        upload_epoch=number,
        objects=st.tuples(st.builds(DataObject, text, number, number)),
        slices=st.tuples(st.tuples(number, st.builds(Run, text, *[number] * 8))),
        pieces=st.tuples(st.tuples(text, number, piece)),
        groups=st.tuples(group),
    ),
    st.builds(r.CommitOffsetsRecord, commits=st.tuples(group)),
    st.builds(r.JoinGroupRecord, group=text, member=text, token=text, owner=text, timeout_ms=number),
    st.builds(
        r.GroupGenerationRecord,
        group=text,
        roster=st.builds(
            Roster,
            number,
            members=st.tuples(
                st.builds(RosterMember, text, st.none() | text, text, text, number, number, st.binary(), st.binary())
            ),
            state_ms=number,
        ),
    ),
    st.builds(
        r.SwapRecord, upload_epoch=number, changes=st.tuples(change), added=st.dictionaries(text, number, max_size=2)
    ),
    st.builds(r.ListDroppedRecord, upload_epoch=number, object=text),
    st.builds(r.CleanedRecord, partitions=st.tuples(st.builds(r.Cleaned, text, number, number))),
    st.builds(r.FenceRecord, upto=number),
    st.builds(r.ErasedRecord, topic_id=text, incomplete=st.booleans(), begins=text, ends=text),
    st.builds(r.WipedRecord, broker=number, directory=text, upto=number),
    st.builds(r.FormerRootRecord, url=text, directory=text),
    st.builds(r.ExpireProducersRecord, producers=st.tuples(text)),
)
batches = st.builds(Batch, id=text, time=number, records=st.lists(record, max_size=3).map(tuple))


@given(batches)
def test_a_batch_survives_its_bytes(batch: Batch) -> None:
    """Names may hold any text: line ends and other scripts are escaped."""
    assert decode_batch(encode_batch(batch), "x") == batch


def small_batch() -> bytes:
    return encode_batch(Batch(id="b", time=5, records=(r.JoinGroupRecord(group="g", member="m"),)))


def small_checkpoint() -> bytes:
    log = History()
    topic = log.create()
    log.commit((topic, 0, 2), groups=(positions("g", topic, 1),))
    return encode_checkpoint(log.state)


# Promise: format/metadata.md#what-a-reader-refuses
@pytest.mark.parametrize(("data", "decode"), [(small_batch(), decode_batch), (small_checkpoint(), decode_checkpoint)])
def test_a_damaged_byte_is_noticed_wherever_it_is(data: bytes, decode: object) -> None:
    """Every position, turned in one bit and in all; and every length that is too short or too long."""
    assert callable(decode)
    for at in range(len(data)):
        for mask in (0x01, 0xFF):
            damaged = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
            with pytest.raises((CorruptObject, UnsupportedVersion)):
                decode(damaged, "x")
        with pytest.raises((CorruptObject, UnsupportedVersion)):
            decode(data[:at], "x")
    with pytest.raises((CorruptObject, UnsupportedVersion)):
        decode(data + b"x", "x")


def sealed_batch(*lines: dict[str, object]) -> bytes:
    """A batch whose checksum is right, whatever its lines say."""
    body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    return b"pylog-batch 1 %d %08x\n" % (len(body), crc32c(body)) + body


# Promise: format/metadata.md#records
@pytest.mark.parametrize(
    "line",
    [
        {"type": "levitate", "height": 3},
        {"type": "fence", "upto": 3, "colour": "red"},
        {"type": "fence"},
        {"upto": 3},
    ],
)
def test_a_record_that_is_not_known_asks_for_a_newer_pylog(line: dict[str, object]) -> None:
    """Its type, or a field of it: nothing is skipped, since replay would be wrong from there on."""
    with pytest.raises(UnsupportedVersion, match="update pylog"):
        decode_batch(sealed_batch({"id": "b", "time": 1}, line), "meta/log/1.rec")


# Promise: format/metadata.md#what-a-reader-refuses
def test_another_kind_of_file_and_a_newer_format_are_named_as_such() -> None:
    """The message has the value found."""
    with pytest.raises(CorruptObject, match="is not a record of a pylog metadata log"):
        decode_batch(b'{"commitInfo":{}}\n', "x")
    with pytest.raises(UnsupportedVersion, match="has format 2, this pylog reads 1"):
        decode_batch(small_batch().replace(b"pylog-batch 1", b"pylog-batch 2"), "x")
    with pytest.raises(CorruptObject, match="is not a checkpoint"):
        decode_checkpoint(small_batch(), "x")
    with pytest.raises(UnsupportedVersion, match="update pylog"):
        decode_checkpoint(small_checkpoint().replace(b"pylog-checkpoint 4", b"pylog-checkpoint 5"), "x")
    with pytest.raises(UnsupportedVersion, match="has format 3, which no release has written, this pylog reads 4"):
        decode_checkpoint(small_checkpoint().replace(b"pylog-checkpoint 4", b"pylog-checkpoint 3"), "x")


def test_a_group_of_before_sessions_is_read() -> None:
    """A record and a checkpoint that were written without what was added later."""
    log = History()
    batch = decode_batch(sealed_batch({"id": "b", "time": 1}, {"type": "join_group", "group": "g", "member": "m"}), "x")
    log.write(*batch.records)
    document = msgspec.json.decode(state_json(log.state))
    document["groups"] = [[name, row[:2]] for name, row in document["groups"]]
    assert decode_checkpoint(checkpoint_of(document), "x").groups["g"] == GroupState(generation=1, member="m")


def test_positions_of_before_their_versions_are_read() -> None:
    """They have version 0: a stream of progress from the earliest on gets them."""
    log = History()
    topic = log.create()
    log.commit((topic, 0, 2), groups=(positions("g", topic, 1),))
    document = msgspec.json.decode(state_json(log.state))
    del document["progressed"]
    ((_, _, position),) = document["positions"]
    assert position.pop() == log.state.version
    old = decode_checkpoint(checkpoint_of(document), "x")
    assert old.groups["g"].offsets[topic, 0] == GroupPosition(1, "", log.state.time, 0)
    progress = progress_of(old)
    assert progress.end == 1 and [record.offset for record in progress.records] == [0]


def test_producers_of_before_source_offsets_are_read() -> None:
    """Their last batches are compared by their rows."""
    log = History()
    topic = log.create()
    log.commit((topic, 0, 2), producer="q", sequence=4, birth=-1, dense=False, source="s")
    document = msgspec.json.decode(state_json(log.state))
    ((_, producer),) = document["producers"]
    assert producer[6][4] == "s"
    producer[6][4] = ""
    log.states.append(decode_checkpoint(checkpoint_of(document), "x"))
    assert log.commit((topic, 0, 2), producer="q", sequence=4, birth=-1, dense=False, source="t").repeated
    with pytest.raises(SequenceConflict, match="commit 4 has 3 rows, and in the log it has 2 rows"):
        log.commit((topic, 0, 3), producer="q", sequence=4, birth=-1, dense=False)


def test_a_state_can_be_read_by_people() -> None:
    """The rows of a checkpoint are plain JSON."""
    log = History()
    log.create("orders")
    assert msgspec.json.decode(state_json(log.state))["topics"][0][1][0] == "orders"
