"""A decision: the records of a command, and its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_log.metadata import records as r
from spark_log.metadata.replay import replay_records
from spark_log.metadata.state import State

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Reply]):
    """The records to write, and the reply after they are durable."""

    records: tuple[r.AnyRecord, ...]
    reply: Reply


def decide_if_changed(state: State, record: r.AnyRecord) -> Decision[bool]:
    """Write a record unless it is void.  The reply is whether it was written."""
    return Decision((record,), True) if replay_records(state, [record]) is not state else Decision((), False)
