"""Claims under `meta/pin/`: values of which the first one under a name stays.

Pins of the Spark data source are claims: the version that a query reads, kept while the query may run.  A claim is JSON
with its version; it is deleted once the fence has passed that, or by age if nothing advances the fence.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from spark_log.errors import StorageUnavailable
from spark_log.journal.object_names import PINS
from spark_log.journal.store_operations import Delete, Get, List, Op, PutAnswer, PutNew, Steps

CLAIM_TRIES = 5
READ_OPS = 256


class _Claim(msgspec.Struct, frozen=True):
    """The part of a claim that contains its age."""

    version: int
    made_ms: int = 0
    """When it was written; 0: by a version of pylog without this field."""


def claim(name: str, make: Callable[[], bytes]) -> Steps[bytes]:
    """The value under a name.  `make` is called if there is none; if several callers make one, the first one stays."""
    key = PINS + name
    for _ in range(CLAIM_TRIES):
        found: bytes | None = yield Get(key)
        if found is not None:
            return found
        value = make()
        if (yield PutNew(key, value)) is PutAnswer.CREATED:
            return value
    found = yield Get(key)
    if found is None:
        raise StorageUnavailable(f"the storage did not keep {key} in {CLAIM_TRIES} attempts")
    return found


def drop_claims(fence: int, before_ms: int) -> Steps[int]:
    """Delete claims of versions at or below the fence, and those made before a time; returns their number.  Ignores
    other files."""
    names: list[str] = yield List(PINS)
    dropped = 0
    for at in range(0, len(names), READ_OPS):
        chunk = names[at : at + READ_OPS]
        reads: list[Op] = [Get(name) for name in chunk]
        old = [name for name, blob in zip(chunk, (yield reads), strict=True) if _is_old(blob, fence, before_ms)]
        if old:
            yield Delete(old)
        dropped += len(old)
    return dropped


def _is_old(blob: bytes | None, fence: int, before_ms: int) -> bool:
    if blob is None:
        return False
    try:
        found = msgspec.json.decode(blob, type=_Claim)
    except msgspec.DecodeError:
        return False
    return found.version <= fence or 0 < found.made_ms < before_ms
