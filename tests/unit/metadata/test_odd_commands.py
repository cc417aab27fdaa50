"""A command with an odd value in any field is refused, or its state can be stored, so that maintenance continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from spark_log.errors import SparkLogError
from spark_log.metadata import commands as c
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.groups import group_commands as gc
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State
from tests.unit.metadata.test_commands import EXAMPLES, NOW, carried_out

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


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The place of each value in JSON, at any depth."""
    if path not in ((), ("type",)):
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def with_odd(value: Any, path: Path, odd: Any) -> Any:
    """JSON with another value in one place."""
    if not path:
        return odd
    changed = with_odd(value[path[0]], path[1:], odd)
    if isinstance(value, dict):
        return {**value, path[0]: changed}
    return [changed if number == path[0] else one for number, one in enumerate(value)]


def carry_out(state: State, data: bytes) -> None:
    """A command as a coordinator does.  Raises SparkLogError, or msgspec's error for a wrong type."""
    received: c.AnyCommand = msgspec.json.decode(data, type=c.AnyCommand)
    decision = received(state, NOW)
    msgspec.json.encode(received.pack(decision.reply))
    if decision.records:
        decode_checkpoint(encode_checkpoint(replay_records(state, decision.records)), "checkpoint")


def test_odd_values_are_refused_or_stored() -> None:
    """In each field of each command; any other error would end a coordinator's loop, or all checkpoints."""
    state, refused = next_version(State(), NOW), 0
    for command in EXAMPLES:
        if isinstance(command, gc.RenewSession):
            command = msgspec.structs.replace(command, generation=state.groups["h"].generation)
        whole = json.loads(msgspec.json.encode(command))
        for path in places(whole):
            for odd in ODD:
                try:
                    carry_out(state, json.dumps(with_odd(whole, path, odd)).encode())
                except (SparkLogError, msgspec.MsgspecError):
                    refused += 1
        state, _ = carried_out(state, command)
    assert refused > 1000
