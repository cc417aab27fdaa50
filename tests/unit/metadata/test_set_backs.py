"""The records that a log has in common with an older copy in its place, by the states of both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from immutables import Map

from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.set_backs import (
    BEGINNING,
    CommonEnd,
    Lineage,
    beyond,
    end_since,
    following,
    lineage_of,
    replaced,
)
from spark_log.metadata.state import ObjectRow, Partition, Restore, State
from spark_log.model import PROGRESS_TOPIC, Slice

KEY = ("id-t", 0)
YOUNG = ((0, 0), (3, 300))
"""Versions that both states have, above their fences."""


def state(*entries: tuple[str, int, int], start: int = 0, dropped: tuple[str, ...] = (), **fields: object) -> State:
    """A state with one partition; entries:  (object, first offset, end)."""
    slices = tuple(Slice(first, end, name, 0, 1, 0, 1, 0, 0) for name, first, end in entries)
    part = Partition(start, slices[-1].end if slices else start, 0, slices)
    return replace(
        State(version=10, times=YOUNG),
        partitions=LayeredMap({KEY: part}),
        objects=LayeredMap({name: ObjectRow(1, 0, 1) for name, _, _ in entries}),
        dropped=Map(dict.fromkeys(dropped, 9)),
        **fields,  # type: ignore[arg-type]
    )


COPY = ("a", 0, 3), ("b", 3, 5)
OLD = state(*COPY, ("lost", 5, 11))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (OLD, state(*COPY, ("new", 5, 30)), CommonEnd(5, set_back=True)),
        (OLD, state(*COPY), CommonEnd(5, set_back=True)),
        (
            state(("ab", 0, 5), ("lost", 5, 9), dropped=("a", "b")),
            state(*COPY, ("new", 5, 9)),
            CommonEnd(5, set_back=True),
        ),
        (OLD, state(("ab", 0, 5), ("new", 5, 9), dropped=("a", "b")), CommonEnd(5, set_back=True)),
        (OLD, state(("a", 0, 3), ("bnew", 3, 9), dropped=("b", "new")), CommonEnd(5, set_back=True)),
        (state(("lost", 0, 9)), state(("new", 0, 9)), CommonEnd(0, set_back=True)),
        (state(("lost", 4, 9), start=4), state(("new", 7, 9), start=7), CommonEnd(7, set_back=True)),
        (OLD, state(), CommonEnd(0, set_back=True)),
    ],
    ids=[
        "appended",
        "shorter",
        "merged before",
        "merged after",
        "merged with new",
        "empty copy",
        "trimmed",
        "now empty",
    ],
)
def test_objects_that_both_know_tell_where_the_copy_ended(old: State, new: State, expected: CommonEnd) -> None:
    """Records are read again rather than skipped: with merged objects, the end is at or before that of the copy."""
    assert end_since(replaced(new, old, "r"), lineage_of(old), KEY) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (state(("ablost", 0, 11), fence=5), state(("abnew", 0, 20))),
        (state(("ablost", 0, 11), dropped=("a", "b", "lost")), state(("abnew", 0, 20), dropped=("a", "b", "new"))),
        (state(("ablost", 0, 11), times=((0, 0), (4, 400))), state(("abnew", 0, 20), times=((1, 100),))),
    ],
    ids=["forgotten", "both merged", "old copy"],
)
def test_a_partition_of_which_all_objects_were_merged_since_cannot_be_told(old: State, new: State) -> None:
    found = end_since(replaced(new, old, "r"), lineage_of(old), KEY)
    assert found is not None and not found.told and found.offset == 0
    assert "cannot be told; poll() continues at 0, or seek() elsewhere" in str(found.error("t-0", 9))


def test_only_what_was_read_before_is_compared() -> None:
    new = replaced(state(*COPY, ("new", 5, 30)), OLD, "r")
    for reader in (lineage_of(new), Lineage("", None)):
        assert end_since(new, reader, KEY) is None
    assert end_since(new, Lineage("unknown", None), KEY) == CommonEnd(0), "a restore that this log does not have"
    assert beyond(new, BEGINNING, {"behind": (KEY, 4), "at": (KEY, 5), "past": (KEY, 6)}) == {
        "past": (6, CommonEnd(5, set_back=True))
    }


def test_several_changes_of_the_log_add_up() -> None:
    """The earliest end counts; a log that was opened again for another reason keeps what this process has found."""
    once = replaced(state(*COPY, ("new", 5, 30)), OLD, "r")
    twice = replaced(state(("a", 0, 3), ("again", 3, 9)), once, "s")
    later = following(state(("a", 0, 3), ("again", 3, 9), ("more", 9, 12)), twice)
    assert end_since(later, lineage_of(OLD), KEY) == CommonEnd(3, set_back=True)
    assert end_since(later, lineage_of(once), KEY) == CommonEnd(3, set_back=True)
    assert end_since(later, lineage_of(twice), KEY) is None
    restored = replace(later, restores=(Restore("h", 4, 2, (("id-t", (2,)),)),))
    assert end_since(restored, lineage_of(once), KEY) == CommonEnd(2)
    assert end_since(restored, lineage_of(later), KEY) == CommonEnd(2)


def test_a_log_of_another_history_is_told_by_its_restores() -> None:
    new = state(*COPY, restores=(Restore("h", 4, 2, (("id-t", (5,)),)),))
    assert replaced(new, OLD, "r").set_backs == ()


def test_progress_continues_after_a_version_that_both_have() -> None:
    new = replaced(state(*COPY), OLD, "r")
    assert end_since(new, lineage_of(OLD), (PROGRESS_TOPIC, 7)) == CommonEnd(4, set_back=True)
