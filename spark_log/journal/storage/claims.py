"""Claims under `meta/pin/`: values under a name, of which the first one stays.

Processes that must agree on a value, and do not know each other, claim it under the same name: all of them get the
value that was claimed first.  Pins of Spark queries are claims: the version that a query reads, kept while the query
may run.  A claim is JSON with its version; it is deleted once the fence has passed that, or by age if nothing advances
the fence.  The clock of the client that made it may be wrong, so the storage confirms its age.
"""

from __future__ import annotations

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import StorageUnavailable
from spark_log.journal.store_operations import Delete, Get, List, Op, PutAnswer, PutNew, Steps, WrittenTime
from spark_log.store.object_names import PINS

TRIES = 5
READ_OPS = 256


class _Claim(msgspec.Struct, frozen=True):
    """The part of a claim that contains its age."""

    version: int
    made_ms: int = 0
    """When it was written, by the client's clock; 0: by a version of pylog without this field."""

    def is_before(self, time_ms: int) -> bool:
        return 0 < self.made_ms < time_ms


def claimed(name: str) -> Steps[bytes | None]:
    """The value claimed under `name`; None if there is none."""
    value: bytes | None = yield Get(name)
    return value


def claim(name: str, value: bytes) -> Steps[bytes]:
    """Claim `value` under `name`; returns the value that was claimed first, ours or another.

    Unless the put answers "created", the value is read back, and if it is absent, the put is retried.
    """
    for _ in range(TRIES):
        answer: PutAnswer = yield PutNew(name, value)
        if answer is PutAnswer.CREATED:
            return value
        first = yield from claimed(name)
        if first is not None:
            return first
    raise StorageUnavailable(f"the storage did not take {name} in {TRIES} attempts")


def version_of(value: bytes) -> int | None:
    """The version in a claim; None if it has none."""
    found = _parsed(value)
    return None if found is None else found.version


def drop_claims(fence: int, before_ms: int) -> Steps[int]:
    """Delete claims of versions at or below the fence, and those made before a time; returns their number.  Ignores
    other files."""
    names: list[str] = yield List(PINS)
    dropped = 0
    for at in range(0, len(names), READ_OPS):
        chunk = names[at : at + READ_OPS]
        reads: list[Op] = [Get(name) for name in chunk]
        found = [(name, _parsed(blob)) for name, blob in zip(chunk, (yield reads), strict=True)]
        old = [name for name, one in found if one is not None and one.version <= fence]
        aged = [name for name, one in found if one is not None and one.version > fence and one.is_before(before_ms)]
        old += yield from _confirmed(aged, before_ms)
        if old:
            yield Delete(old)
        dropped += len(old)
    return dropped


def _confirmed(names: list[str], before_ms: int) -> Steps[list[str]]:
    """Those that the storage did not get later: the clock of a client may be behind."""
    if not names:
        return []
    asked: list[Op] = [WrittenTime(name) for name in names]
    times: list[int | None] = yield asked
    return [name for name, written in zip(names, times, strict=True) if written is None or written < before_ms]


def _parsed(blob: bytes | None) -> _Claim | None:
    """None if it is gone, or not a claim."""
    try:
        return None if blob is None else msgspec.json.decode(blob, type=_Claim)
    except UNREADABLE:
        return None
