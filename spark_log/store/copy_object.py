"""Copies of objects between roots, for mirrors and repairs.  Copies to brokers are made by
`replication/checked_copies.py`.

An object never changes, so objects of one log with the same name have the same content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.store.base import Chunks, ObjectStore

RANGE_BYTES = {"local": 1 << 20, "remote": 8 << 20}
"""Bytes of an object that are in memory at a time: on a disk as many as stay in the processor's cache."""


class Source(Protocol):
    """The part of an `ObjectStore` that a copy reads from."""

    @property
    def url(self) -> str: ...

    @property
    def local(self) -> bool: ...

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes: ...


def copy_object(source: Source, target: ObjectStore, name: str, size: int | None) -> int | None:
    """Write an object with the bytes of its copy, whatever is there under its name.

    size:  None if it is unknown.
    Returns the number of its bytes; None if the source does not have it.
    Raises CorruptObject if the source has another size; then nothing is written.
    """
    ranges = _Ranges(source, name, size)
    try:
        target.put(name, Chunks(lambda: ranges))
    except ObjectNotFound:
        return None
    return ranges.sent


@dataclass(slots=True)
class _Ranges:
    """The bytes of an object, a range at a time."""

    source: Source
    name: str
    size: int | None
    sent: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[bytes]:
        self.sent, length = 0, RANGE_BYTES["local" if self.source.local else "remote"]
        while True:
            data = self.source.get(self.name, self.sent, self.sent + length)
            self.sent += len(data)
            yield data
            if len(data) < length:
                break
        if self.size is not None and self.sent != self.size:
            raise CorruptObject(f"{self.source.url}/{self.name} has {self.sent} bytes, not {self.size}")
