"""Stores for tests and benchmarks: one fails, one gives wrong answers, two count, one follows orders in a file, and one
refuses to touch the metadata.

Each wraps a real store.  `slow_store.py` has one more.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from spark_log.errors import (
    AccessDenied,
    NoCredentials,
    NoSpace,
    ObjectNotFound,
    SparkLogError,
    StorageUnavailable,
)
from spark_log.runtime.clock import Clock
from spark_log.store.base import Bytes, ObjectStore, Swept
from spark_log.store.object_names import META
from spark_log.store.store_wrapper import StoreWrapper

Names: TypeAlias = list[str]
"""Needed because classes below have a method named `list`."""


class Wrapper(StoreWrapper):
    """Passes every operation on, after a look at its key."""

    def _pass(self, key: str, *, writes: bool = False) -> None:
        """Called before a request; raises the error of one that is refused."""

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._pass(key)
        return self.inner.get(key, start, end)

    def size(self, key: str) -> int | None:
        self._pass(key)
        return self.inner.size(key)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._pass(key, writes=True)
        self.inner.put(key, chunks)

    def put_new(self, key: str, data: bytes) -> bool:
        self._pass(key, writes=True)
        return self.inner.put_new(key, data)

    def list(self, prefix: str) -> Names:
        self._pass(prefix)
        return self.inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        names = tuple(keys)
        for key in names:
            self._pass(key)
        self.inner.delete(names)

    def written_ms(self, key: str) -> int | None:
        self._pass(key)
        return self.inner.written_ms(key)

    def sweep(self, prefix: str, before_ms: int) -> Swept:
        self._pass(prefix)
        return self.inner.sweep(prefix, before_ms)


class ClockedStore(Wrapper):
    """Stamps objects with a given clock.  Without a clock it does not know when anything was written."""

    def __init__(self, inner: ObjectStore, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self.clock = clock

    def written_ms(self, key: str) -> int | None:
        return None if self.clock is None or self.inner.size(key) is None else self.clock.now_ms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probability of each fault."""

    lost_request: float = 0.0
    """The request never arrives."""
    lost_answer: float = 0.0
    """The operation takes effect, and the caller gets an error."""
    full_after: int | None = None
    """Bytes that may be put before the store is full."""
    errors: Mapping[str, SparkLogError] = field(default_factory=dict)
    """The error for every request whose key or prefix begins so."""


class FaultyStore(Wrapper):
    """Loses requests and answers, refuses some keys, and runs full."""

    def __init__(self, inner: ObjectStore, rng: random.Random, faults: Faults) -> None:
        super().__init__(inner)
        self._rng = rng
        self._faults = faults
        self._left = faults.full_after

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._request(key)
        data = self.inner.get(key, start, end)
        self._answer(key)
        return data

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._request(key)
        data = b"".join(chunks)
        self._space(key, data)
        self.inner.put(key, [data])
        self._answer(key)

    def put_new(self, key: str, data: bytes) -> bool:
        self._request(key)
        self._space(key, data)
        created = self.inner.put_new(key, data)
        self._answer(key)
        return created

    def list(self, prefix: str) -> Names:
        self._request(prefix)
        names = self.inner.list(prefix)
        self._answer(prefix)
        return names

    def size(self, key: str) -> int | None:
        self._request(key)
        return self.inner.size(key)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._request(key)
            self.inner.delete([key])
            self._answer(key)

    def _request(self, key: str) -> None:
        for start, error in self._faults.errors.items():
            if key.startswith(start):
                raise error
        if self._rng.random() < self._faults.lost_request:
            raise StorageUnavailable(f"{key}: the request was lost")

    def _answer(self, key: str) -> None:
        if self._rng.random() < self._faults.lost_answer:
            raise StorageUnavailable(f"{key}: the answer was lost")

    def _space(self, key: str, data: bytes) -> None:
        if self._left is None:
            return
        if len(data) > self._left:
            raise NoSpace(f"{key}: no space left; free some space")
        self._left -= len(data)


def _concerns(says: str, order: str, key: str) -> bool:
    """Whether a file has this order for a name."""
    verb, _, prefix = says.partition(" ")
    return verb == order and key.startswith(prefix)


class ControlledStore(Wrapper):
    """Disturbs another store, in any process: before each request it obeys the order in a file.

    hang: the request does not return while the file says so, as on a hung disk or mount.
    fail: the request fails with an unknown outcome.
    full: a write finds no space.
    keyless: the process has no credentials.
    denied: it has some, which the storage refuses.
    hang PREFIX, denied PREFIX: the same for the names with this prefix only.
    slow SECONDS: a write takes this much longer.
    Any other text, or no file: the request is passed on.
    """

    def __init__(self, inner: ObjectStore, control: Path) -> None:
        super().__init__(inner)
        self._control = control

    def _says(self) -> str:
        try:
            return self._control.read_text().strip()
        except FileNotFoundError:
            return ""

    def _pass(self, key: str, *, writes: bool = False) -> None:
        while _concerns(says := self._says(), "hang", key):
            time.sleep(0.02)
        if says == "fail":
            raise StorageUnavailable(f"{key}: the storage fails")
        if says == "keyless":
            raise NoCredentials(f"{key}: no credentials")
        if _concerns(says, "denied", key):
            raise AccessDenied(f"{key}: access denied")
        if writes and says == "full":
            raise NoSpace(f"{key}: no space left; free some space")
        if writes and says.startswith("slow "):
            time.sleep(float(says.removeprefix("slow ")))

    def delete(self, keys: Iterable[str]) -> None:
        self._pass("delete")  # whatever the names are
        self.inner.delete(keys)

    def written_ms(self, key: str) -> int | None:
        return self.inner.written_ms(key)  # whatever the order is


class NotExclusiveStore(Wrapper):
    """Checks before it puts, as fsspec's base class does, so two writers may both find the name free."""

    def put_new(self, key: str, data: bytes) -> bool:
        try:
            self.inner.get(key)
        except ObjectNotFound:
            time.sleep(0.001)
            self.inner.put(key, [data])
            return True
        return False


class NoMetadataStore(Wrapper):
    """A store on which its user has no rights for `meta/`."""

    def _pass(self, key: str, *, writes: bool = False) -> None:
        if key.startswith(META):
            raise AccessDenied(f"{key}: permission denied")


class CountingStore(Wrapper):
    """Counts the bytes that are read, by object."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.read: Counter[str] = Counter()
        self._lock = threading.Lock()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        data = self.inner.get(key, start, end)
        with self._lock:
            self.read[key] += len(data)
        return data


NAMES_PER_REQUEST = 1000
"""Names that one listing returns, or one delete takes, on S3."""


class MeteredStore(Wrapper):
    """Counts requests by kind, as an object store bills them, and written bytes by folder.

    It is not local, so that its callers make the requests that they would make to an object store.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.requests = Counter[str]()
        """get, list, size, put, put_new and delete."""
        self.written = Counter[str]()
        """Bytes of both kinds of put, by the folder of the object: its name up to the last '/'."""

    def __reduce__(self) -> tuple[type[MeteredStore], tuple[ObjectStore]]:
        return MeteredStore, (self.inner,)

    @property
    def local(self) -> bool:
        return False

    def _count(self, kind: str, requests: int = 1) -> None:
        with self._lock:
            self.requests[kind] += requests

    def _write(self, key: str, size: int) -> None:
        with self._lock:
            self.written[key[: key.rfind("/") + 1]] += size

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._count("get")
        return self.inner.get(key, start, end)

    def size(self, key: str) -> int | None:
        self._count("size")
        return self.inner.size(key)

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        self._count("put")
        data = b"".join(chunks)
        self.inner.put(key, [data])
        self._write(key, len(data))

    def put_new(self, key: str, data: bytes) -> bool:
        self._count("put_new")
        created = self.inner.put_new(key, data)
        self._write(key, len(data) if created else 0)
        return created

    def list(self, prefix: str) -> Names:
        names = self.inner.list(prefix)
        self._count("list", max(1, -(-len(names) // NAMES_PER_REQUEST)))
        return names

    def sizes(self, prefix: str) -> dict[str, int]:
        found = self.inner.sizes(prefix)
        self._count("list", max(1, -(-len(found) // NAMES_PER_REQUEST)))
        return found

    def delete(self, keys: Iterable[str]) -> None:
        names = tuple(keys)
        self._count("delete", -(-len(names) // NAMES_PER_REQUEST))
        self.inner.delete(names)

    def written_ms(self, key: str) -> int | None:
        self._count("size")
        return self.inner.written_ms(key)
