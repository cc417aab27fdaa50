"""Maps in two layers: as a dictionary, whatever is in columns and whatever changed since."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.metadata.maintenance.swaps import prune_range
from spark_log.metadata.maps.column_blocks import Block, ObjectBlock, PartitionBlock
from spark_log.metadata.maps.column_map import ColumnMap, fold, inline_slices, maybe_trimmed, stored_bytes
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.records import Piece
from spark_log.metadata.state import ObjectRow, Partition
from spark_log.model import Slice, kind_and_stats

SMALL_BYTES = 200
"""Blocks of a few rows, so that a few changes meet several blocks."""

number = st.integers(0, 2**62)
# few names, so that they meet: in the same epoch, with ids that begin alike, and such as no pylog ever gave
name = st.builds("data/{:016x}/{}".format, st.integers(0, 6), st.sampled_from(["a", "ab", "b.seg", "ü", "x/y"]))
odd_name = st.sampled_from(
    ["", "data/", "data/7/a", "data/000000000000000G/a", "data/0000000000000_01/a", "other", "é"]
)
entry = st.builds(Slice, number, number, name, *[number] * 7) | st.builds(Piece, number, number, name, *[number] * 8)
time_kinds = st.integers(0, 2)
slices = st.builds(
    Slice, number, number, name, *[number] * 6, st.builds(kind_and_stats, time_kinds, st.binary(max_size=3))
)
pieces = st.builds(Piece, number, number, name, *[number] * 7, time_kinds)
partitions = st.builds(Partition, number, number, number, st.lists(slices | pieces, max_size=3).map(tuple))
topic_key = st.tuples(st.sampled_from(["", "a", "b", "ü"]), st.integers(0, 3))
objects = st.builds(ObjectRow, number, number, number)


def steps(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Rows to set, keys to delete, dictionaries to update, sets of keys to leave out, folds, and folds beside which
    changes continue.
    """
    change = st.tuples(keys, values) | st.tuples(keys, st.none()) | st.dictionaries(keys, values, max_size=4)
    change |= st.frozensets(keys, max_size=4)
    return st.lists(change | st.sampled_from(["fold", "begin"]), max_size=30)


def check(rows: LayeredMap[Any, Any], model: Mapping[Any, Any], absent: set[Any]) -> None:
    """The same as a dictionary, by every way to look at it."""
    assert rows == model and model == rows and len(rows) == len(model) and bool(rows) == bool(model)
    assert dict(rows.items()) == {key: rows[key] for key in rows} == model
    assert sorted(map(repr, rows.values())) == sorted(map(repr, model.values()))
    assert rows == LayeredMap(model) and hash(rows) == hash(LayeredMap(model))
    for key in absent - {*model}:
        assert key not in rows and rows.get(key) is None and rows.get(key, 7) == 7
        with pytest.raises(KeyError):
            rows[key]
        with pytest.raises(KeyError):
            rows.delete(key)
        assert rows != {**model, key: 1} and rows.set(key, ObjectRow(1, 1, 1)) != rows


def run(steps: list[Any], kind: type[Block[Any, Any]]) -> None:
    """With the same changes over the base of another fold, in which the rows of before are."""
    rows, model, met = LayeredMap[Any, Any](), dict[Any, Any](), set[Any]()
    begun, moved = rows, rows
    for step in steps:
        before, was = rows, dict(model)
        match step:
            case "fold":
                rows = fold(rows, kind, SMALL_BYTES)
                assert all(not kind.fits(key) for key in rows.changes)
                begun = moved = rows
            case "begin":
                begun, moved = rows, fold(rows, kind, SMALL_BYTES)
            case frozenset():
                met |= step
                rows = rows.without(step)
                model = {key: value for key, value in model.items() if key not in step}
            case (key, None):
                met.add(key)
                rows = rows.delete(key) if key in model else rows
                model.pop(key, None)
            case (key, value):
                met.add(key)
                rows, model[key] = rows.set(key, value), value
            case _:
                rows = rows.update(step)
                model.update(step)
        check(rows, model, met)
        rebased = rows.rebased(begun, moved)
        assert rebased.base is moved.base
        check(rebased, model, met)
        if kind is ObjectBlock:
            assert stored_bytes(rows) == sum(row.size for row in model.values())
        assert before == was
    assert pickle.loads(pickle.dumps(rows)) == model


@given(steps(name | odd_name, objects))
def test_objects_are_as_in_a_dictionary(given_steps: list[Any]) -> None:
    """Names of another form are never in columns."""
    run(given_steps, ObjectBlock)


@given(steps(topic_key, partitions))
def test_partitions_are_as_in_a_dictionary(given_steps: list[Any]) -> None:
    run(given_steps, PartitionBlock)


def partitions_after(given_steps: list[Any]) -> LayeredMap[Any, Any]:
    rows = LayeredMap[Any, Any]()
    for step in given_steps:
        match step:
            case "fold" | "begin":
                rows = fold(rows, PartitionBlock, SMALL_BYTES)
            case frozenset():
                rows = rows.without(step)
            case (key, None):
                rows = rows.delete(key) if key in rows else rows
            case (key, value):
                rows = rows.set(key, value)
            case _:
                rows = rows.update(step)
    return rows


@given(steps(topic_key, partitions))
def test_slices_that_are_not_in_a_piece_are_counted_by_topic(given_steps: list[Any]) -> None:
    rows = partitions_after(given_steps)
    expected: dict[str, int] = {}
    for (topic_id, _), part in rows.items():
        inline = sum(isinstance(entry, Slice) for entry in part.entries)
        expected[topic_id] = expected.get(topic_id, 0) + inline
    counted = inline_slices(rows)
    assert {topic_id: count for topic_id, count in counted.items() if count} == {
        topic_id: count for topic_id, count in expected.items() if count
    }


@given(steps(topic_key, partitions))
def test_trimmed_partitions_are_found_without_making_rows(given_steps: list[Any]) -> None:
    """All of them; once all rows are in columns, no others."""
    rows = partitions_after(given_steps)
    trimmed = {key for key, part in rows.items() if any(prune_range(part, deleted=False))}
    assert trimmed <= set(maybe_trimmed(rows))
    assert trimmed == set(maybe_trimmed(fold(rows, PartitionBlock, SMALL_BYTES)))


def test_blocks_without_changes_are_those_of_before() -> None:
    """So a fold costs what changed, and the memory of the rest is shared with the states of before."""
    names = [f"data/{epoch:016x}/{epoch % 7}.seg" for epoch in range(30_000)]
    first = fold(LayeredMap({name: ObjectRow(1, 1, 1) for name in names}), ObjectBlock, 1 << 16)
    changed = (
        first.set(names[5], ObjectRow(2, 2, 2))
        .delete(names[20_000])
        .set("data/ffffffffffffffff/new", ObjectRow(3, 3, 3))
    )
    second = fold(changed, ObjectBlock, 1 << 16)
    assert isinstance(first.base, ColumnMap) and isinstance(second.base, ColumnMap)
    kept = {id(block) for block in first.base.blocks} & {id(block) for block in second.base.blocks}
    assert len(first.base.blocks) > 10 and len(kept) == len(first.base.blocks) - 3
    assert second == changed != first and not second.changes


def test_blocks_are_of_about_one_size_after_many_changes() -> None:
    """Small ones are joined and large ones cut, so that a search stays short and a frame small."""
    rows = LayeredMap[str, ObjectRow]()
    for turn in range(20):
        added = {f"data/{epoch:016x}/{turn:04}": ObjectRow(epoch, 1, 1) for epoch in range(turn, 3000, 3)}
        rows = fold(rows.update(added), ObjectBlock, 1 << 14)
        for name in [name for name in rows if name.endswith(f"{turn - 2:04}")]:
            rows = rows.delete(name)
    rows = fold(rows, ObjectBlock, 1 << 14)
    assert isinstance(rows.base, ColumnMap)
    sizes = [block.batch.nbytes for block in rows.base.blocks]
    assert max(sizes) < 1 << 15 and min(sizes[:-1]) > 1 << 12
