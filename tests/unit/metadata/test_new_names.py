"""New names have no control characters: each text of a record or a joining member has a rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from immutables import Map
from msgspec import inspect

from spark_log.bounds import TEXT
from spark_log.errors import InvalidRequest
from spark_log.groups.messages import JoinGroupRequest
from spark_log.metadata.new_names import check_new_names
from spark_log.metadata.records import AnyRecord, CommitOffsetsRecord, DeleteOffsetsRecord, GroupCommit, OffsetEntry
from spark_log.metadata.state import GroupState, State

ODD = ("\x1b[2J", "a\x00b", "a\x9b31m", "a\u202eb", "a\u2028b", "a\x7fb", "a\nb", "a\ud800b")
EXCEPTIONS = {
    # names of objects have a form, and ids of topics are looked up
    *("Run.topic_id", "Slice.object", "DataObject.name", "Piece.object", "Copy.object", "OffsetEntry.topic_id"),
    *("CommitRecord.pieces", "Change.topic_id", "LostOffsets.topic_id", "KafkaBatches.topic_id"),
    "ExpireProducersRecord.kafka",
    *("SwapRecord.added", "SwapRecord.removed"),
    # a user's own text
    "OffsetEntry.metadata",
    # checked when the member joined
    *("Roster.protocol_type", "Roster.protocol", "Roster.leader"),
    *("RosterMember.member_id", "RosterMember.group_instance_id", "RosterMember.client_id", "RosterMember.client_host"),
}
KINDS = (*get_args(AnyRecord), JoinGroupRequest)


def texts(kind: inspect.Type, path: str) -> Iterator[tuple[str, bool]]:
    """The texts in a type: (field that has it, whether its type says that it is an exception)."""
    match kind:
        case inspect.StrType():
            yield path, False
        case inspect.Metadata(type=inspect.StrType()):
            yield path, TEXT in (kind.extra or {})
        case inspect.StructType() | inspect.NamedTupleType():
            for field in kind.fields:
                yield from texts(field.type, f"{kind.cls.__name__}.{field.name}")
        case _:
            for inner in inner_types(kind):
                yield from texts(inner, path)


def inner_types(kind: inspect.Type) -> list[inspect.Type]:
    match kind:
        case inspect.UnionType():
            return list(kind.types)
        case inspect.TupleType():
            return list(kind.item_types)
        case inspect.DictType():
            return [kind.key_type, kind.value_type]
        case inspect.VarTupleType() | inspect.ListType():
            return [kind.item_type]
        case inspect.Metadata():
            return [kind.type]
        case _:
            return []


def value_of(kind: inspect.Type, path: str, odd: str, text: str) -> Any:
    """A value with this text in one field, in which nothing is left out."""
    match kind:
        case inspect.StrType():
            return text if path == odd else "x"
        case inspect.Metadata():
            return value_of(kind.type, path, odd, text)
        case inspect.StructType() | inspect.NamedTupleType():
            name = kind.cls.__name__
            fields = {field.name: value_of(field.type, f"{name}.{field.name}", odd, text) for field in kind.fields}
            return kind.cls(**fields)
        case inspect.TupleType():
            return tuple(value_of(item, path, odd, text) for item in kind.item_types)
        case inspect.DictType():
            return {value_of(kind.key_type, path, odd, text): value_of(kind.value_type, path, odd, text)}
        case inspect.VarTupleType() | inspect.ListType():
            return (value_of(kind.item_type, path, odd, text),)
        case inspect.UnionType():
            return value_of(next(one for one in kind.types if not isinstance(one, inspect.NoneType)), path, odd, text)
        case inspect.BytesType():
            return b""
        case inspect.BoolType():
            return False
        case _:
            return 1


def plain_texts() -> list[tuple[type[msgspec.Struct], str]]:
    return [
        (kind, path) for kind in KINDS for path in dict(texts(inspect.type_info(kind), "")) if path not in EXCEPTIONS
    ]


def test_a_text_without_a_rule_is_a_name() -> None:
    """An exception is in the list above, with its reason."""
    found = {path for kind in KINDS for path, is_exception in texts(inspect.type_info(kind), "") if is_exception}
    assert found == EXCEPTIONS


# Promise: command-line.md#choose-the-output
@pytest.mark.parametrize(("kind", "path"), plain_texts(), ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_new_name_with_control_characters_is_refused(kind: type[msgspec.Struct], path: str) -> None:
    """In each field of each record, and of each request to join a group."""
    info = inspect.type_info(kind)
    check_new_names(State(), [value_of(info, "", path, "a name, 数 é")])
    for odd in ODD:
        with pytest.raises(
            InvalidRequest, match=f"^{path.partition('.')[2]}: .* has characters that cannot be printed"
        ):
            check_new_names(State(), [value_of(info, "", path, odd)])


def test_a_name_that_the_log_has_can_be_used_and_deleted() -> None:
    """Of a log that was written when there was no rule; metadata of positions has none."""
    state = State(groups=Map({"a\x1b": GroupState()}))
    check_new_names(state, [DeleteOffsetsRecord(group="a\x1b")])
    entry = OffsetEntry("id", 0, 1, metadata="\x1b")
    check_new_names(state, [CommitOffsetsRecord(commits=(GroupCommit("a\x1b", 0, (entry,)),))])
    with pytest.raises(InvalidRequest, match="group: "):
        check_new_names(State(), [DeleteOffsetsRecord(group="a\x1b")])
