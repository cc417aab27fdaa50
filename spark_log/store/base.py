"""What pylog asks of storage: whole objects under names, read by range, created exclusively."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias

from spark_log.errors import InvalidRequest

Bytes: TypeAlias = bytes | bytearray | memoryview


class Chunks:
    """The bytes of an object, made anew for each attempt to put it."""

    def __init__(self, make: Callable[[], Iterable[Bytes]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Bytes]:
        return iter(self._make())


class ObjectStore(Protocol):
    """A folder or bucket prefix.  Keys are relative to it, parts separated by '/'.  Picklable, safe for threads and forks.

    Every method raises StorageUnavailable when the outcome is not known or the call may be tried again, and StorageError
    when the storage refuses.  A store makes one attempt; `retry.py` repeats it.
    """

    @property
    def url(self) -> str:
        """The root."""

    @property
    def local(self) -> bool:
        """Operations take microseconds: there is no use in running them in parallel."""

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end), less where the object ends before.  Raises ObjectNotFound."""

    def size(self, key: str) -> int | None:
        """Bytes of an object; None if it is not there."""

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        """Write an object under a name that nobody else uses: durable on return, never visible in part."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Put-if-absent of at least one byte.  False: the name is taken."""

    def list(self, prefix: str) -> list[str]:
        """All keys under a prefix that ends in '/', sorted; not from a cache."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are no error."""

    def written_ms(self, key: str) -> int | None:
        """When an object was written, in ms by the storage's own clock; None if it is not there, or the storage does not say."""

    def sweep(self, prefix: str, before_ms: int) -> int:
        """Delete what writers that died left unfinished under a prefix before then, where that can be seen; how many."""

    def fingerprint(self) -> str:
        """Kind of store and versions of the libraries that implement it: when it changes, the probe runs again."""


def check_key(key: str) -> str:
    """The key.  Raises InvalidRequest for one that could leave the root."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in key or "\0" in key:
        raise InvalidRequest(f"key {key!r} is not a relative path of plain names")
    return key


def check_prefix(prefix: str) -> str:
    """The prefix of a listing.  Raises InvalidRequest for one that could leave the root, or stops within a name."""
    if not prefix.endswith("/"):
        raise InvalidRequest(f"prefix {prefix!r} does not end in '/'")
    check_key(prefix[:-1])
    return prefix
