"""Reading an object from one of several roots: what happens when a root fails, or does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

from spark_log.errors import CorruptObject, ObjectNotFound, StorageError, StorageUnavailable
from spark_log.log_lines import logger
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.runtime.clock import Clock
from spark_log.store.base import ObjectStore
from spark_log.store.retry import RETRY_TOTAL_MS, RetryingStore
from spark_log.store.store_wrapper import StoreWrapper
from spark_log.text import counted

PATIENT_MS = 60_000
"""How long a read waits for a root if no other one has the object, or all of them are slow."""
WARN_EVERY_S = 600
"""After the warning of the first object of a root, others of that root are counted, and named so seldom."""
COUNTED_MAX = 10_000
"""Objects of a root of which a process keeps the names; further ones are not counted."""
REPAIR = "`pylog verify --deep --repair` replaces bad copies"

Result = TypeVar("Result")


class CopiesAway(StorageUnavailable):
    """No root that can be read has an object, and one that may have it cannot be reached: not mounted, fenced, or
    failing.

    The object may also have been replaced meanwhile, so a reader plans again before it fails with this error.
    """

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


NOT_READ = (ObjectNotFound, CopiesAway)
"""Errors after which a reader plans again: the object may have been replaced by another one."""


@dataclass(slots=True)
class _PassedOver:
    """The objects of a root of which other copies were read."""

    names: set[str] = field(default_factory=set)
    said: int = 0
    """How many of them the warnings have counted."""
    at_s: float = 0.0


_passed_over: dict[str, _PassedOver] = {}
"""By URL of the root."""


class RootFailure(NamedTuple):
    """A root from which an object could not be read."""

    source: ObjectStore
    error: StorageError | CorruptObject

    @property
    def url(self) -> str:
        return self.source.url

    @property
    def broker(self) -> int:
        return self.source.broker if isinstance(self.source, BoundedStore) else OWN_BROKER

    def why_away(self) -> str:
        """Why the root may still have a good copy; empty: it was looked at, and has none."""
        if isinstance(self.source, BoundedStore) and (away := self.source.why_away(self.error)):
            return away
        lacks = isinstance(self.error, ObjectNotFound | CorruptObject)
        return "" if lacks else f"{self.url}: {self.error}"


def from_sources(name: str, sources: Sequence[ObjectStore], read: Callable[[ObjectStore], Result]) -> Result:
    """The result of the first read that does not fail.  Raises the error of `none_left`."""
    failures: list[RootFailure] = []
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
    at, failures = start, list[RootFailure]()
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


def _attempts(sources: Sequence[ObjectStore], failures: Sequence[RootFailure]) -> Iterator[ObjectStore]:
    """Each source; then again those that did not answer in time, with more of it.

    failures:  of the sources before, one of each.
    """
    yield from sources
    for source, failure in zip(sources, tuple(failures), strict=True):
        is_slow = isinstance(failure.error, StorageUnavailable) and not isinstance(failure.error, CopiesAway)
        if isinstance(source, BoundedStore) and not source.is_patient and is_slow:
            yield source.patient()


def _failed(
    name: str,
    source: ObjectStore,
    error: StorageError | CorruptObject,
    sources: Sequence[ObjectStore],
    failures: list[RootFailure],
) -> None:
    failures.append(RootFailure(source, error))
    if len(failures) < len(sources) and not isinstance(error, CopiesAway):
        _warn_of(name, failures[-1])


def _warn_of(name: str, failure: RootFailure) -> None:
    """Say that another copy is read: once for a root, and later how many objects these were."""
    known = _passed_over.setdefault(failure.url, _PassedOver())
    if name in known.names or len(known.names) >= COUNTED_MAX:
        return
    known.names.add(name)
    more, now_s = len(known.names) - known.said, time.monotonic()
    if known.said and now_s - known.at_s < WARN_EVERY_S:
        return
    is_first, known.said, known.at_s = not known.said, len(known.names), now_s
    if is_first:
        logger.warning("another copy of %s is read, because %s", name, _why_passed_over(failure))
    else:
        logger.warning("other copies of %s in %s were read", counted(more, "more object"), failure.url)


def _why_passed_over(failure: RootFailure) -> str:
    """The reason and the remedy; the error of a copy would also name remedies for records that cannot be read."""
    if isinstance(failure.error, ObjectNotFound | CorruptObject):
        if away := failure.why_away():
            return f"{_sentence(away)} Bring this root back"
        return f"{failure.url} has no good one: {failure.error}. {REPAIR}"
    return f"{failure.url} has no good one that can be read: {failure.error}"


def none_left(name: str, failures: Sequence[RootFailure]) -> StorageError | CorruptObject:
    """The error for an object that cannot be read from any root.

    It is ObjectNotFound, which counts as lost records, only if every root that may have the object was read, belongs
    to an active broker, and lacks the object.  If one of these roots cannot be reached, it is CopiesAway.
    """
    last = {failure.url: failure for failure in failures}
    first = _most_telling([failure.error for failure in failures])
    if isinstance(first, CopiesAway):
        return first
    if any(isinstance(failure.error, ObjectNotFound | CorruptObject) for failure in last.values()):
        away = {failure.broker: why for failure in last.values() if (why := failure.why_away())}
        if away:
            return copies_away(name, away)
    if len(last) == 1:
        return first
    message = f"{name} cannot be read from any of the {len(last)} roots that may have it: {_by_reason(last.values())}"
    found: StorageError | CorruptObject
    if isinstance(first, ObjectNotFound):
        found = ObjectNotFound(message, key=first.key)
    elif isinstance(first, CorruptObject):
        found = CorruptObject(message, start=first.start, end=first.end)
    else:
        found = StorageUnavailable(message) if first.retriable else StorageError(message)
    found.__cause__ = first
    return found


def copies_away(name: str, away: Mapping[int, str]) -> CopiesAway:
    """The error for an object that may be on roots that are away.

    away:  by broker, why its root cannot be read.
    """
    which = "this root is" if len(away) == 1 else "these roots are"
    lost = "it is" if len(away) == 1 else "all are"
    return CopiesAway(
        f"{name} cannot be read now: {_sentence('; '.join(away.values()))} Its records can be read again when {which} "
        f"back. If {lost} lost for good, {_if_lost(list(away))}",
        key=name,
    )


def _if_lost(brokers: Sequence[int]) -> str:
    """The remedy if the roots of these brokers are lost: the log's own root cannot be replaced by an empty one."""
    if OWN_BROKER in brokers:
        return "`pylog recover` makes a log of its mirror"
    which = brokers[0] if len(brokers) == 1 else "ID"
    return f"`pylog broker replace {which} --lose-data` gives these records up"


def _sentence(text: str) -> str:
    return text if text.endswith(("?", ".")) else f"{text}."


def _by_reason(failures: Iterable[RootFailure]) -> str:
    """The roots with the same error together."""
    roots: dict[str, list[str]] = {}
    for failure in failures:
        reason = "not there" if isinstance(failure.error, ObjectNotFound) else str(failure.error)
        roots.setdefault(reason, []).append(failure.url)
    return "; ".join(f"{', '.join(urls)}: {reason}" for reason, urls in roots.items())


def _most_telling(errors: Sequence[StorageError | CorruptObject]) -> StorageError | CorruptObject:
    is_there = any(isinstance(error, CorruptObject) for error in errors)
    kinds = (StorageUnavailable, CorruptObject) if is_there else (ObjectNotFound, StorageUnavailable)
    return next((error for kind in kinds for error in errors if isinstance(error, kind)), errors[0])


class BoundedStore(StoreWrapper):
    """A root that may have an object, of which each read gets a limited time: also one on a disk."""

    def __init__(
        self,
        broker: int,
        inner: ObjectStore,
        clock: Clock,
        limit_ms: int,
        on_late: Callable[[], None],
        why_away: Callable[[StorageError | CorruptObject], str],
    ) -> None:
        """
        on_late:   called when a read was given up, or the storage was unavailable.
        why_away:  of the error of a read: why the root may still have a good copy; empty: it has none.
        """
        self.broker = broker
        super().__init__(inner.inner if isinstance(inner, RetryingStore) else inner)
        self._clock, self._limit_ms, self._on_late = clock, limit_ms, on_late
        self.why_away = why_away

    @property
    def is_patient(self) -> bool:
        return self._limit_ms >= PATIENT_MS

    def patient(self) -> BoundedStore:
        """This root with as much time as one request to a storage may take."""
        return BoundedStore(self.broker, self.inner, self._clock, PATIENT_MS, self._on_late, self.why_away)

    def _ask(self, request: Callable[[ObjectStore], Result]) -> Result:
        until_ms = self._clock.monotonic_ms() + self._limit_ms
        try:
            return request(
                RetryingStore(self.inner, self._clock, min(self._limit_ms, RETRY_TOTAL_MS), until_ms=until_ms)
            )
        except StorageUnavailable:
            self._on_late()
            raise

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        raise NotImplementedError("a source is only read")

    put = put_new = delete = sweep = _refuse
