"""Claims: values under a name, of which the first one wins.

Processes that must agree on a value, and do not know each other, claim it under the same name: all of them get the
value that was claimed first.  Pins of Spark queries are claims, `PINS` in `object_names.py` is their folder, and
`node/pin_cleanup.py` deletes them.
"""

from __future__ import annotations

from spark_log.errors import StorageUnavailable
from spark_log.journal.store_operations import Get, PutAnswer, PutNew, Steps

TRIES = 5


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
