"""The page that documents the metadata log shows what is really written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from msgspec import inspect, structs

from spark_log.maintenance import memory_file
from spark_log.metadata.formats import slice_index
from spark_log.metadata.formats.batch_format import encode_batch
from spark_log.metadata.formats.checkpoint_format import COLUMNS, KINDS, REMOVED_KINDS, state_json
from spark_log.metadata.records import AnyRecord, Batch, Change, Copy, CreateTopicRecord, GroupCommit, Piece
from spark_log.metadata.replicas.replica_state import ReplicaMember
from spark_log.metadata.state import State
from spark_log.model import DataObject, Placed, Run, Slice

PAGE = (Path(__file__).parents[3] / "docs" / "format" / "metadata.md").read_text(encoding="utf-8")


def row(name: str) -> str:
    """The line of a table that begins so."""
    (found,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
    return found


# Promise: format/metadata.md#the-metadata-log-format-version-1
def test_the_batch_on_the_page_is_what_is_written() -> None:
    """Byte for byte."""
    topic = CreateTopicRecord(topic_id="topic-id", name="orders", partitions=3)
    batch = Batch(id="5f2c9a1b3d4e6f70", time=1_700_000_000_000, records=(topic,))
    assert f"```\n{encode_batch(batch).decode()}```" in PAGE


# Promise: format/metadata.md#records
@pytest.mark.parametrize("kind", get_args(AnyRecord), ids=lambda kind: kind.__name__)
def test_every_record_is_on_the_page_with_its_fields(kind: Any) -> None:
    """A new one would be missed here."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    line = row(f"`{info.tag}`")
    assert [field.name for field in structs.fields(kind) if f"`{field.name}`" not in line] == []


# Promise: format/metadata.md#records
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("data object", DataObject),
        ("run", Run),
        ("slice", Slice),
        ("piece", Piece),
        ("change", Change),
        ("group's commit", GroupCommit),
        ("place", Placed),
        ("copy", Copy),
    ],
)
def test_lists_without_names_are_on_the_page_in_their_order(name: str, kind: Any) -> None:
    """Nothing but their order says what they are."""
    assert ", ".join(f"`{field}`" for field in kind.__match_args__) in row(name)


# Promise: format/metadata.md#checkpoints
@pytest.mark.parametrize(("kind", "row_type"), [(name, kind.row) for name, kind in KINDS.items()])
def test_every_kind_of_rows_is_on_the_page_with_its_fields(kind: str, row_type: Any) -> None:
    """In the order of the lists; `dropped` has a number for a value, `assignments` a list of numbers."""
    value = get_args(row_type)[-1]
    if get_args(value) and value != tuple[int, ...]:
        value = get_args(value)[0]  # a list of these
    fields = getattr(value, "__match_args__", None) or getattr(value, "_fields", ())
    assert ", ".join(f"`{field}`" for field in fields) in row(f"`{kind}`")
    assert value in (int, tuple[int, ...]) or fields


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_kind_of_columns_is_on_the_page(kind: str) -> None:
    """With all columns, and those of a list that it has."""
    names = [field.name for field in COLUMNS[kind].SCHEMA]
    assert [name for name in names if f"`{name}`" not in row(f"`{kind}`")] == []


def test_the_members_of_a_placement_group_are_on_the_page() -> None:
    assert ", ".join(f"`{field}`" for field in ReplicaMember._fields) in row("`placement_groups`")


def test_the_columns_of_entries_are_on_the_page() -> None:
    entries = COLUMNS["partition_columns"].SCHEMA.field("entries").type.value_type
    assert [field.name for field in entries if f"`{field.name}`" not in row("its `entries`")] == []


# Promise: format/metadata.md#the-memory-of-maintenance
@pytest.mark.parametrize(("kind", "schema"), memory_file.COLUMNS.items())
def test_the_memory_of_maintenance_is_on_the_page(kind: str, schema: pa.Schema) -> None:
    """All of its columns, and the fields of its header."""
    assert [name for name in schema.names if f"`{name}`" not in row(f"`{kind}`")] == []
    header = row("`header`")
    assert [field.name for field in structs.fields(memory_file.MemoryHeader) if f"`{field.name}`" not in header] == []


@pytest.mark.parametrize("kind", REMOVED_KINDS)
def test_every_kind_of_removed_rows_is_on_the_page(kind: str) -> None:
    assert row(f"`{kind}`")


# Promise: format/metadata.md#slice-indexes, storage.md#what-is-where
def test_the_fields_of_a_checkpoint_and_the_columns_of_an_index_are_on_the_page() -> None:
    """All of them; those that are left out where they say nothing, too."""
    assert b'"version"' in state_json(State())
    derived = ("names", "recent", "set_backs")  # not stored: made from the topics, and from what this process has read
    fields = [field for field in State.__dataclass_fields__ if field not in derived]
    assert [name for name in [*fields, *slice_index.SCHEMA.names] if f"`{name}`" not in PAGE] == []
