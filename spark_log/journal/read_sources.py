"""Reading an object from one of several roots: what happens when a root fails, or does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from spark_log.clock import Clock
from spark_log.errors import CorruptObject, ObjectNotFound, StorageError, StorageUnavailable
from spark_log.store.base import Bytes, ObjectStore
from spark_log.store.retry import RETRY_TOTAL_MS, RetryingStore

PATIENT_MS = 60_000
"""How long a read waits for a root if no other one has the object, or all of them are slow."""
WARNED_MAX = 100
"""Objects of a root that a process names in warnings."""

Result = TypeVar("Result")
logger = logging.getLogger("spark_log")
_warned: dict[str, set[str]] = {}
"""By URL of the root."""


class Failure(NamedTuple):
    """A root from which an object could not be read."""

    url: str
    error: StorageError | CorruptObject


def from_sources(name: str, sources: Sequence[ObjectStore], read: Callable[[ObjectStore], Result]) -> Result:
    """The result of the first read that does not fail.  Raises the error of `none_left`."""
    failures: list[Failure] = []
    for source in _attempts(sources, failures):
        try:
            return read(source)
        except (StorageError, CorruptObject) as error:
            _failed(name, source, error, sources, failures)
    raise none_left(name, failures)


def read_on(
    name: str,
    sources: Sequence[ObjectStore],
    read: Callable[[ObjectStore, int], Iterator[tuple[int, Result]]],
    start: int,
) -> Iterator[Result]:
    """The results of a read that continues from another root where one has failed.

    read:   of a root, from an offset on: pairs of a result, and of the offset to continue at after it.
    Raises the error of `none_left`.
    """
    at, failures = start, list[Failure]()
    for source in _attempts(sources, failures):
        try:
            for end, result in read(source, at):
                yield result
                at = end
        except (StorageError, CorruptObject) as error:
            _failed(name, source, error, sources, failures)
        else:
            return
    raise none_left(name, failures)


def _attempts(sources: Sequence[ObjectStore], failures: Sequence[Failure]) -> Iterator[ObjectStore]:
    """Each source; then again those that did not answer in time, with more of it.

    failures:  of the sources before, one of each.
    """
    yield from sources
    for source, failure in zip(sources, tuple(failures), strict=True):
        if isinstance(source, BoundedStore) and isinstance(failure.error, StorageUnavailable):
            yield source.patient()


def _failed(
    name: str,
    source: ObjectStore,
    error: StorageError | CorruptObject,
    sources: Sequence[ObjectStore],
    failures: list[Failure],
) -> None:
    failures.append(Failure(source.url, error))
    if len(failures) < len(sources):
        _warn_of(name, failures[-1])


def _warn_of(name: str, failure: Failure) -> None:
    """Say, once in a process for each root and object, that another copy is read; of the first objects of a root."""
    named = _warned.setdefault(failure.url, set())
    if name in named or len(named) > WARNED_MAX:
        return
    named.add(name)
    if len(named) > WARNED_MAX:
        logger.warning("other copies are read for many objects in %s, and further ones are not named", failure.url)
        return
    logger.warning("another copy of %s is read, because %s has no good one: %s", name, failure.url, failure.error)


def none_left(name: str, failures: Sequence[Failure]) -> StorageError | CorruptObject:
    """The error for an object that cannot be read from any root.

    ObjectNotFound if a root does not have the object, and none has a damaged copy: the caller's plan may be old.
    Otherwise an error after which a retry may succeed, if there is one.
    """
    first = _most_telling([failure.error for failure in failures])
    if len({failure.url for failure in failures}) == 1:
        return first
    by_root = {failure.url: failure.error for failure in failures}
    text = "; ".join(f"{url}: {error}" for url, error in by_root.items())
    message = f"{first}.  {name} cannot be read from any of the {len(by_root)} roots that may have it: {text}"
    found: StorageError | CorruptObject
    if isinstance(first, ObjectNotFound):
        found = ObjectNotFound(message, key=first.key)
    elif isinstance(first, CorruptObject):
        found = CorruptObject(message, start=first.start, end=first.end)
    else:
        found = StorageUnavailable(message) if first.retriable else StorageError(message)
    found.__cause__ = first
    return found


def _most_telling(errors: Sequence[StorageError | CorruptObject]) -> StorageError | CorruptObject:
    is_there = any(isinstance(error, CorruptObject) for error in errors)
    kinds = (StorageUnavailable, CorruptObject) if is_there else (ObjectNotFound, StorageUnavailable)
    return next((error for kind in kinds for error in errors if isinstance(error, kind)), errors[0])


class BoundedStore:
    """A root of which each read gets a limited time, because there are others to read from: also one on a disk."""

    def __init__(self, inner: ObjectStore, clock: Clock, limit_ms: int, on_late: Callable[[], None]) -> None:
        """
        on_late:  called when a read was given up, or the storage was unavailable.
        """
        self._inner = inner.inner if isinstance(inner, RetryingStore) else inner
        self._clock, self._limit_ms, self._on_late = clock, limit_ms, on_late

    def patient(self) -> BoundedStore:
        """The same root with as much time as one request to a storage may take."""
        return BoundedStore(self._inner, self._clock, PATIENT_MS, self._on_late)

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def local(self) -> bool:
        return self._inner.local

    def _answer(self, ask: Callable[[ObjectStore], Result]) -> Result:
        until_ms = self._clock.monotonic_ms() + self._limit_ms
        try:
            return ask(RetryingStore(self._inner, self._clock, min(self._limit_ms, RETRY_TOTAL_MS), until_ms=until_ms))
        except StorageUnavailable:
            self._on_late()
            raise

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self._answer(lambda store: store.get(key, start, end))

    def size(self, key: str) -> int | None:
        return self._answer(lambda store: store.size(key))

    def list(self, prefix: str) -> list[str]:
        return self._answer(lambda store: store.list(prefix))

    def written_ms(self, key: str) -> int | None:
        return self._answer(lambda store: store.written_ms(key))

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        raise NotImplementedError("a source is only read")

    def put_new(self, key: str, data: bytes) -> bool:
        raise NotImplementedError("a source is only read")

    def delete(self, keys: Iterable[str]) -> None:
        raise NotImplementedError("a source is only read")

    def sweep(self, prefix: str, before_ms: int) -> int:
        raise NotImplementedError("a source is only read")

    def fingerprint(self) -> str:
        return self._inner.fingerprint()
