"""A decision: the records of a command, and its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_log.metadata import records as r

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Reply]):
    """The records to write, and the reply after they are durable."""

    records: tuple[r.AnyRecord, ...]
    reply: Reply
