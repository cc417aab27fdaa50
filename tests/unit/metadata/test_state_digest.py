"""The digest of a state: the same for equal states, whatever their layers, and another one for any other state."""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
from immutables import Map

from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.formats.state_digest import DIGEST_FORM, state_digest
from spark_log.metadata.maps.column_blocks import ObjectBlock, PartitionBlock
from spark_log.metadata.maps.column_map import ColumnMap, fold
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.state import ErasedTopic, FormerRoot, ObjectRow, OpenErasure, Partition, State
from spark_log.model import Slice
from tests.unit.metadata.test_checkpoint_frames import full_state

MANY = {f"data/{number:016x}/{number % 7:0{1 + number % 20}x}.seg": ObjectRow(number, 1, 2) for number in range(500)}
BLOCK_BYTES = 5_000
"""So there are several blocks."""


def of_objects(objects: LayeredMap[str, ObjectRow]) -> str:
    return state_digest(State(objects=objects))


def folded(state: State, block_bytes: int = BLOCK_BYTES) -> State:
    return replace(
        state,
        objects=fold(state.objects, ObjectBlock, block_bytes),
        partitions=fold(state.partitions, PartitionBlock, block_bytes),
    )


def test_layers_do_not_count() -> None:
    """Rows in columns, in blocks of any size, as changes on top of them, or read from a checkpoint."""
    state = full_state()
    for number in range(40):
        part = Partition(1, number, 3, (Slice(0, number, "o" * number, 5, 6, 7, 8, 9, 10),) * (number % 3))
        state = replace(state, partitions=state.partitions.set((f"topic-{number % 4}", number), part))
    state = replace(state, objects=state.objects.update(MANY))
    for other in (folded(state), folded(state, 1 << 20), decode_checkpoint(encode_checkpoint(folded(state)), "x")):
        assert isinstance(other.objects.base, ColumnMap)
        assert state_digest(other) == state_digest(state)
    first, *_, last = MANY
    changed = (
        folded(state).objects.set(last, ObjectRow(1, 1, 1)).delete(first).set(f"data/{999:016x}/x", ObjectRow(2, 2, 2))
    )
    plain = LayeredMap(dict(changed.items()))
    assert of_objects(changed) == of_objects(plain) == of_objects(fold(changed, ObjectBlock, BLOCK_BYTES))
    assert of_objects(changed.set(last, MANY[last]).set(first, MANY[first]).delete(f"data/{999:016x}/x")) == of_objects(
        folded(state).objects
    )


def test_each_part_of_a_state_counts() -> None:
    """Every field, every column, and the order of entries; names follow from the topics."""
    erasures = Map({"id-1": ErasedTopic("t", 8, (OpenErasure(8, 9, ((0, ""), (1, "d")), True, "e"),), 9)})
    former = Map({"8c0e9a1b3d4e6f73": FormerRoot(3, "/disks/3", 3, True)})
    state = replace(full_state(), erasures=erasures, former_roots=former)
    found = {state_digest(state)}
    others = [one.name for one in fields(State) if one.name not in ("names", "recent", "set_backs")]
    for name in others:
        found.add(state_digest(replace(state, **{name: getattr(State(), name)})))
    assert len(found) == len(others) + 1
    name = "data/0000000000000001/a"
    rows = [ObjectRow(1, 2, 3, 4), ObjectRow(2, 1, 3, 4), ObjectRow(1, 2, 4, 3), ObjectRow(1, 3, 2, 4)]
    assert len({of_objects(LayeredMap({name: row})) for row in rows}) == len(rows)
    names = [name, f"{name}\0", "data/0000000000000001/", "data/000000000000000a/1", "other/a", "other/b"]
    assert len({of_objects(LayeredMap({one: rows[0]})) for one in names}) == len(names)
    one, two = (Slice(start, start + 1, "o", 0, 1, 2, 3, 4, 5) for start in (0, 1))
    renamed = msgspec.structs.replace(two, object="p")
    parts = [Partition(0, 2, 0, entries) for entries in ((one, two), (two, one), (one,), (one, renamed))]
    assert len({state_digest(State(partitions=LayeredMap({("t", 0): part}))) for part in parts}) == len(parts)


# Promise: quorum.md#when-the-states-of-nodes-differ
def test_digests_of_one_form_stay_the_same() -> None:
    """Nodes of two releases compare them: raise `DIGEST_FORM` with each change of what is hashed."""
    assert (DIGEST_FORM, state_digest(State())) == (10, "c0b7e42fd26d23d443de0f032d64fa23")
    assert state_digest(folded(full_state())) == "66add95389612e5cab0dc6a4935c8f24"


def test_nothing_is_hashed_beyond_the_columns() -> None:
    """A new column has to be part of the digest, so its form has to change."""
    assert ObjectBlock.SCHEMA.names == ["epoch", "id", "size", "index_position", "live", "copies"]
    assert PartitionBlock.SCHEMA.names == ["topic_id", "partition", "start", "end", "edition", "entries", "stats"]
