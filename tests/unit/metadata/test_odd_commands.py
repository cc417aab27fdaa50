"""A command with an odd value in any field is refused, or its state can be stored, so that maintenance continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from spark_log.errors import SparkLogError
from spark_log.groups.member_share import Share
from spark_log.metadata import commands as c
from spark_log.metadata import records as r
from spark_log.metadata.commits.kafka_batches import KafkaBatch, KafkaBatches
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.groups import group_commands as gc
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.replicas.replica_commands import NewReplicas
from spark_log.metadata.state import State
from spark_log.model import DataObject, KindAndStats, Placed, Slice
from tests.unit.metadata.test_commands import EXAMPLES, NOW, RUN, carried_out
from tests.unit.metadata.test_numbers_have_bounds import PIECE, values

Path = tuple[Any, ...]
ODD: tuple[Any, ...] = (
    "\ud800",
    "a\x1b]0;x\x07",
    "",
    "NaN",
    "x" * 70_000,
    2**63,
    2**63 - 1,
    -1,
    10**400,
    1e308,
    {},
    [],
    None,
    True,
)
X, INDEX, MERGED = (f"data/{1:016x}/{name}" for name in ("x.seg", "b.idx", "merged.seg"))
POSITIONS = r.GroupCommit("g", -1, (r.OffsetEntry("id", 1, 5, "note"),))


def commit(**more: Any) -> r.CommitRecord:
    return r.CommitRecord(
        **{"producer": "q", "sequence": 0, "upload_epoch": 1, "objects": (DataObject(X, 100, 90),), **more}
    )


def swap(state: State, **more: Any) -> c.Swap:
    """Replaces the first slice of the partition."""
    key = ("id", 1)
    part = state.partitions[key]
    old = part.entries[0]
    assert isinstance(old, Slice)
    new = Slice(old.start, old.end, MERGED, 0, 100, 7, 1, 0, 0, KindAndStats(0, b"s"))
    return c.Swap(
        swap=r.SwapRecord(
            upload_epoch=1,
            changes=(r.Change(*key, part.edition, old.start, old.end, (new,), ()),),
            objects=(DataObject(MERGED, 100, 90),),
            added={MERGED: 1},
            removed={old.object: 1},
            placed=(Placed(0),),
            **more,
        )
    )


WHOLE: tuple[Callable[[State], c.Single], ...] = (
    lambda state: c.Append(
        commit=commit(
            slices=((0, RUN),), groups=(POSITIONS,), source="s", holder="h", placed=(Placed(0),), stats=(b"s",)
        ),
        by=(("g", gc.Committer("m", "i")),),
        keyless=("id",),
    ),
    lambda state: c.Append(
        commit=commit(
            sequence=1,
            objects=(DataObject(f"{X[:-5]}y.seg", 100, 90), DataObject(INDEX, 10, 0)),
            pieces=(("id", 1, msgspec.structs.replace(PIECE, object=INDEX)),),
            counts=(1, 1),
        )
    ),
    lambda state: c.Append(commit=commit(sequence=2, objects=()), spans=(("id", 1, 0, 1),), erased={"id": -1}),
    lambda state: c.Append(commit=commit(producer="p2", objects=()), schemas={"id": 0}, first_schemas={"id": "n INT"}),
    lambda state: c.Append(
        commit=commit(
            producer="p3",
            slices=((0, RUN),),
            kafka_batches=(KafkaBatches("id", 1, (KafkaBatch(1, 0, 0, 1, 0),)),),
        )
    ),
    lambda state: gc.CommitOffsets(commit=POSITIONS, expected=(gc.Stand("id", 1, 5),), by=gc.Committer("m", "i")),
    lambda state: swap(state, lost=(r.LostOffsets("id", 1, 0, 1),)),
    swap,
    lambda state: c.MarkCleaned(partitions=(r.Cleaned("id", 1, 3),)),
    lambda state: c.Report(record=r.ListDroppedRecord(upload_epoch=1, object=f"data/{1:016x}/a.dropped")),
    lambda state: gc.JoinGroup(group="shared", member="m", share=Share(1, 3)),
    lambda state: c.Expire(only_producers=("p",), only_groups=("g",), only_kafka=((1, "t", 1),)),
)
"""Commands with what the others leave out, on the state after the first examples."""
LEFT_OUT = (
    lambda state: c.Report(
        record=r.LostRecord(
            commit=(X,),
            upload_epoch=1,
            objects=(DataObject(X, 1, 1),),
            slices=((0, RUN),),
            placed=(Placed(1, ((1, 1),)),),
        )
    ),
    lambda state: c.AlterReassignments(partitions=(NewReplicas("u", 0, (0, 1)),), keeps_factor=True),
)
"""The state with brokers is tried, too."""


def fields_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of a value, by their places in its JSON, also those that are left out there as defaults."""
    match value:
        case msgspec.Struct():
            names = value.__struct_fields__
            keys = range(len(names)) if value.__struct_config__.array_like else names
            yield from ((key, getattr(value, name)) for key, name in zip(keys, names, strict=True))
        case dict():
            yield from value.items()
        case tuple() | list():
            yield from enumerate(value)


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The place of each part, at any depth."""
    if path:
        yield path
    for key, part in fields_of(value):
        yield from places(part, (*path, key))


def with_odd(value: Any, path: Path, odd: Any) -> Any:
    """JSON with another value in one place."""
    if not path:
        return odd
    if isinstance(value, dict):
        return {**value, path[0]: with_odd(value.get(path[0]), path[1:], odd)}
    return [with_odd(one, path[1:], odd) if number == path[0] else one for number, one in enumerate(value)]


def names_in(value: Any) -> Iterator[str]:
    """`Class.field` of each field with a value."""
    names = getattr(value, "__struct_fields__", getattr(value, "_fields", ()))
    yield from (f"{type(value).__name__}.{name}" for name in names)
    for _, part in fields_of(value):
        yield from names_in(part)


def carry_out(state: State, data: bytes) -> None:
    """A command as a coordinator does.  Raises SparkLogError, or msgspec's error for a wrong type."""
    received: c.AnyCommand = msgspec.json.decode(data, type=c.AnyCommand)
    decision = received(state, NOW)
    msgspec.json.encode(received.pack(decision.reply))
    if decision.records:
        decode_checkpoint(encode_checkpoint(replay_records(state, decision.records)), "checkpoint")


def refusals(state: State, command: c.Single) -> int:
    """How many odd values of a command are refused; the others are stored."""
    whole, refused = json.loads(msgspec.json.encode(command)), 0
    for path in places(command):
        for odd in ODD:
            try:
                carry_out(state, json.dumps(with_odd(whole, path, odd)).encode())
            except (SparkLogError, msgspec.MsgspecError):
                refused += 1
    return refused


def commands() -> Iterator[tuple[State, c.Single]]:
    """Each example, on a state on which it can be decided; the log has carried out those of `EXAMPLES` before."""
    state = next_version(State(), NOW)
    for number, command in enumerate(EXAMPLES):
        if isinstance(command, gc.RenewSession):
            command = msgspec.structs.replace(command, generation=state.groups["h"].generation)
        yield state, command
        state, _ = carried_out(state, command)
        if number == FIRST:
            state = next_version(next_version(state, NOW), NOW)
            yield from ((state, make(state)) for make in WHOLE)
        if isinstance(command, c.AlterReassignments):
            yield from ((state, make(state)) for make in LEFT_OUT)


FIRST = 4
"""The last of the first examples: a topic with records, and a group."""


def test_odd_values_are_refused_or_stored() -> None:
    """In each field of each command; any other error would end a coordinator's loop, or all checkpoints."""
    assert sum(refusals(state, command) for state, command in commands()) > 5000


def test_every_field_of_every_command_is_tried() -> None:
    """A new one, at any depth, is in an example."""
    tried = {name for _, command in commands() for name in names_in(command)}
    known = {name for name, _ in values(msgspec.inspect.type_info(c.AnyCommand), "", set()) if "." in name}
    assert known - tried == set()
