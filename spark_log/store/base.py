"""The storage interface: whole objects under names, read by range, created exclusively."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from spark_log.errors import InvalidRequest

Bytes: TypeAlias = bytes | bytearray | memoryview


class Chunks:
    """The bytes of an object, generated again for each attempt to put it."""

    def __init__(self, make: Callable[[], Iterable[Bytes]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Bytes]:
        return iter(self._make())


class Swept(NamedTuple):
    """The result of a search for unfinished files."""

    deleted: int = 0
    oldest_ms: float | None = None
    """When the oldest one that was left was last written; None: none is left."""


NOTHING = Swept()
"""In a store without such files."""


class ObjectStore(Protocol):
    """A folder or bucket prefix.  Keys are relative to it, parts separated by '/'.  Picklable, thread-safe, fork-safe.

    Every method raises StorageUnavailable if the outcome is unknown or a retry may succeed, and StorageError if the
    storage rejects the request.  A store makes one attempt; `retry.py` retries.
    """

    @property
    def url(self) -> str:
        """URL of the root."""

    @property
    def local(self) -> bool:
        """Whether operations take microseconds, so that running them in parallel has no benefit."""

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end), fewer if the object ends earlier.  Raises ObjectNotFound."""

    def size(self, key: str) -> int | None:
        """Bytes of an object; None if it does not exist."""

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        """Write an object under a unique name: durable on return, never visible in part."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Put-if-absent of at least one byte.  False: the name exists."""

    def list(self, prefix: str) -> list[str]:
        """All keys that begin with a prefix, sorted; never from a cache.

        The prefix is a folder, `data/`, or continues with the beginning of names in it, `data/00`.
        """

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each object that `list` returns, by as many requests."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing object is not an error."""

    def written_ms(self, key: str) -> int | None:
        """Time of an object's last write, in ms by the storage's clock; None if the object or its time is unknown."""

    def sweep(self, prefix: str, before_ms: int) -> Swept:
        """Delete unfinished files of dead writers under a prefix, older than `before_ms`."""

    def fingerprint(self) -> str:
        """Kind of store and versions of its libraries: if it changes, the probe runs again.

        Asked before each change.  Raises SyncFailed if what was written there may be lost.
        """


def check_key(key: str) -> str:
    """The key.  Raises InvalidRequest if it could leave the root."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in key or "\0" in key:
        raise InvalidRequest(f"key {key!r} is not a relative path of plain names")
    return key


def check_not_empty(key: str, data: bytes) -> None:
    """Raises InvalidRequest for an object without bytes: not every store puts one only if it is new."""
    if not data:
        raise InvalidRequest(f"object {key!r} is empty, and cannot be put exclusively on every store: give it a byte")


def check_prefix(prefix: str) -> str:
    """The prefix of a listing.  Raises InvalidRequest if it could leave the root, or names no folder."""
    if "/" not in prefix:
        raise InvalidRequest(f"prefix {prefix!r} has no '/'")
    check_key(prefix.removesuffix("/"))
    return prefix


def split_prefix(prefix: str) -> tuple[str, str]:
    """The folder of a prefix, without a '/' at its end, and the beginning of the names in it."""
    folder, _, names = check_prefix(prefix).rpartition("/")
    return folder, names
