"""Each number of a command, record or request has bounds, so none is too large for the state's columns; so have strings
and bytes that are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from spark_log.bounds import LONG_MAX, OPAQUE_BYTES_MAX
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.groups import messages as g
from spark_log.metadata import commands as c
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.maps.column_blocks import ObjectBlock, PartitionBlock
from spark_log.metadata.maps.column_map import fold
from spark_log.metadata.records import AnyRecord, CommitRecord, Piece
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State
from spark_log.model import DataObject, Run
from spark_log.rpc import messages as m

RECEIVED = (
    *(m.CommandsRequest, m.ChangesRequest, m.TopicsRequest, m.ObjectsRequest, m.SnapshotRequest),
    *(m.ClaimRequest, m.GroupAsked, m.Holdings),
)
BIG = 2**63


def values(kind: inspect.Type, path: str, seen: set[type]) -> Iterator[tuple[str, inspect.Type]]:
    """All numbers, strings and bytes in a type, with the field that has them."""
    if isinstance(kind, inspect.IntType | inspect.FloatType | inspect.StrType | inspect.BytesType):
        yield path, kind
    elif isinstance(kind, inspect.StructType | inspect.NamedTupleType):
        if kind.cls not in seen:
            seen.add(kind.cls)
            for field in kind.fields:
                yield from values(field.type, f"{kind.cls.__name__}.{field.name}", seen)
    else:
        for inner in inner_types(kind):
            yield from values(inner, path, seen)


def inner_types(kind: inspect.Type) -> list[inspect.Type]:
    match kind:
        case inspect.UnionType():
            return list(kind.types)
        case inspect.TupleType():
            return list(kind.item_types)
        case inspect.DictType():
            return [kind.key_type, kind.value_type]
        case inspect.VarTupleType() | inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
            return [kind.item_type]
        case _:
            return []


# Promise: security.md#what-a-token-protects
@pytest.mark.parametrize("kind", [c.AnyCommand, AnyRecord, *RECEIVED], ids=lambda kind: str(kind)[-40:])
def test_every_number_has_bounds(kind: Any) -> None:
    """Numbers have 64 bits at most, as in the columns of a checkpoint.  Strings and bytes have bounds, too, but for
    strings of requests that are not stored."""
    seen = set[type]()
    found = dict(values(inspect.type_info(kind), "", seen))
    assert found
    for path, number in found.items():
        if isinstance(number, inspect.BytesType):
            assert number.max_length is not None, f"{path}: use a type of bounds.py"
            continue
        if isinstance(number, inspect.StrType):
            assert kind in RECEIVED or number.max_length is not None, f"{path}: use a type of bounds.py"
            continue
        assert isinstance(number, inspect.IntType), f"{path}: a number of a command is whole"
        assert number.ge is not None and number.le is not None, f"{path}: use a type of bounds.py"
        assert -LONG_MAX - 1 <= number.ge <= number.le <= LONG_MAX, path


def test_metadata_of_a_member_has_a_bound() -> None:
    """The coordinator keeps it, and the log stores it."""
    asked = g.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        protocols=(g.MemberProtocol("range", bytes(OPAQUE_BYTES_MAX)),),
    )
    received = m.decode(m.encode(m.GroupAsked(cluster_id="c", request=asked)), m.GroupAsked, "the request")
    assert received.request == asked
    more = msgspec.structs.replace(asked, protocols=(g.MemberProtocol("range", bytes(OPAQUE_BYTES_MAX + 1)),))
    with pytest.raises(InvalidRequest, match="1048576"):
        m.decode(m.encode(m.GroupAsked(cluster_id="c", request=more)), m.GroupAsked, "the request")


def commit(**more: Any) -> c.Append:
    """A commit of one slice, or one piece."""
    objects = (DataObject("data/0000000000000000/a.seg", 100, 90), DataObject("data/0000000000000000/b.idx", 10, 0))
    return c.Append(commit=CommitRecord(producer="p", sequence=0, upload_epoch=0, **{"objects": objects, **more}))


RUN = Run("id", 0, 10, 20, 1, 7, 1, 0, 0)
PIECE = Piece(0, 7, "data/0000000000000000/b.idx", 0, 10, 1, 1, 20, 0, 0)
OTHER_NAMES = ("topic_id", "object", "more", "start")


@pytest.fixture
def state() -> State:
    created = c.CreateTopic(name="t", partitions=1, topic_id="id")
    first = next_version(State(), 1_000_000)
    return replay_records(first, created(first, 0).records)


# Promise: security.md#what-a-token-protects
@pytest.mark.parametrize("value", [BIG, -BIG - 1, BIG - 1, 2**43, 2**31, 2**31 - 1, -1])
@pytest.mark.parametrize(
    "field", [name for name in (*Run._fields, *Piece.__struct_fields__) if name not in OTHER_NAMES]
)
def test_a_commit_with_a_large_number_is_refused_or_stored(state: State, field: str, value: int) -> None:
    """The checkpoint after a commit that was not refused can be written and read."""
    commits = []
    if field in Run._fields:
        commits.append(commit(slices=((0, RUN._replace(**{field: value})),)))
    if field in Piece.__struct_fields__:
        piece = msgspec.structs.replace(PIECE, **{field: value})
        commits.append(commit(pieces=(("id", 0, piece),), counts=(1, 1)))
    commits.append(commit(objects=(DataObject("data/0000000000000000/a.seg", value, value),)))
    found = [stored(state, one) for one in commits]
    assert not any(found) or abs(value) < BIG


def stored(state: State, command: c.Append) -> bool:
    """Whether a command, as it was sent, is stored: in rows and in columns.  False if it is refused."""
    try:
        received: c.AnyCommand = msgspec.json.decode(msgspec.json.encode(command), type=c.AnyCommand)
        records = received(state, 0).records
    except (msgspec.ValidationError, SparkLogError):
        return False
    after = replay_records(state, records)
    columns = replace(
        after, partitions=fold(after.partitions, PartitionBlock), objects=fold(after.objects, ObjectBlock)
    )
    for one in (after, columns):
        assert decode_checkpoint(encode_checkpoint(one), "x") == after
    return True


def test_a_partition_does_not_get_more_records_than_it_has_offsets(state: State) -> None:
    """However many commits there were before."""
    piece = msgspec.structs.replace(PIECE, end=LONG_MAX - 5)
    assert stored(state, commit(pieces=(("id", 0, piece),), counts=(1, 1)))
    state = replay_records(state, [commit(pieces=(("id", 0, piece),), counts=(1, 1)).commit])
    with pytest.raises(InvalidRequest, match="has no offsets for 7 more records"):
        c.Append(
            commit=CommitRecord(
                producer="q",
                sequence=0,
                upload_epoch=0,
                objects=(DataObject("data/0000000000000000/c.seg", 100, 90),),
                slices=((0, RUN),),
            )
        )(state, 0)


def test_a_slice_lies_in_its_object(state: State) -> None:
    with pytest.raises(InvalidRequest, match="invalid slice"):
        commit(slices=((0, RUN._replace(position=90)),))(state, 0)


def test_an_embedded_writer_refuses_it_as_well() -> None:
    """It decodes nothing, so it checks what it is about to write."""
    with pytest.raises(InvalidRequest, match=r"append: commit\.objects\[0\]\[1\]"):
        commit(objects=(DataObject("data/0000000000000000/a.seg", BIG, 10),)).check_types()


@pytest.mark.parametrize("piece", [{"start": 3}, {"object": "data/0000000000000000/of-another-tenant.idx"}])
def test_a_piece_is_in_an_index_of_its_commit_and_has_no_gap(state: State, piece: dict[str, Any]) -> None:
    """A piece of another writer's index would be counted there, and that writer's objects dropped with it."""
    with pytest.raises(InvalidRequest, match="piece"):
        commit(pieces=(("id", 0, msgspec.structs.replace(PIECE, **piece)),), counts=(1, 1))(state, 0)
