"""Isolation of failures in upkeep: an unreadable partition, or a failed duty, does not stop the others.

If the coordinator is gone or refuses the maintainer, the run ends: every other change would fail too, after the same
wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from spark_log.errors import (
    AuthenticationFailed,
    CoordinatorNotAvailable,
    CorruptObject,
    NoSpace,
    NotCoordinator,
    SparkLogError,
    StorageUnavailable,
)
from spark_log.journal.index_reads import read_pieces
from spark_log.journal.store_operations import Refresh, Steps
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Partition, State, TopicKey
from spark_log.metadata.swaps import resolve
from spark_log.model import Slice
from spark_log.node.set_aside import SetAside

Result = TypeVar("Result")
Entries = Mapping[TopicKey, Sequence[Slice | Piece]]
OnFailure = Callable[[str, Exception], None]
"""Called with the failed action and its error.  Returns to continue with the rest, or raises."""
logger = logging.getLogger("spark_log")


def raise_failure(what: str, error: Exception) -> None:
    """Raise the first failure."""
    raise error


class ReportedFailures(NamedTuple):
    """The failures of another process, which has logged them.  Sent from tasks."""

    problems: tuple[str, ...] = ()
    no_space: bool = False
    """One of them is that the log's disk is full."""
    aside: SetAside | None = None
    """The slices that the process has set aside, and those that it knew before."""


class Failures:
    """Failures of one run.  Each is logged: an error of the log or its storage as a sentence, a bug with its
    traceback.  Errors of reaching the coordinator are raised."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.errors: list[Exception] = []
        self.problems: list[str] = []
        """One sentence per failure."""
        self.no_space = False
        """One of them is that the log's disk is full."""

    def __call__(self, what: str, error: Exception) -> None:
        if isinstance(error, CoordinatorNotAvailable | NotCoordinator | AuthenticationFailed):
            raise error
        self.errors.append(error)
        self.no_space |= isinstance(error, NoSpace)
        self.problems.append(f"{what} failed: {error if isinstance(error, SparkLogError) else repr(error)}")
        log_failure(f"upkeep of {self._url}: {what} failed", error)

    def reported(self, aside: SetAside | None = None) -> ReportedFailures:
        """For another process, which adds them to its own."""
        return ReportedFailures(tuple(self.problems), self.no_space, aside)

    def add(self, reported: ReportedFailures) -> None:
        self.problems = list(dict.fromkeys([*self.problems, *reported.problems]))
        self.no_space |= reported.no_space

    def raise_first(self) -> None:
        """Raise the first failure, if there was one."""
        if self.errors:
            raise self.errors[0]

    def attempt(self, what: str, steps: Steps[Result], otherwise: Result) -> Steps[Result]:
        """The result of `steps`, or `otherwise` if they fail.  Raises if the coordinator cannot be reached."""
        try:
            return (yield from steps)
        except Exception as error:  # noqa: BLE001  after any error, the other duties run
            self(what, error)
            return otherwise


def log_failure(message: str, error: Exception) -> None:
    """Warn of an error of the log or its storage; log a bug with its traceback."""
    if isinstance(error, SparkLogError):
        logger.warning("%s: %s", message, error)
    else:
        logger.error("%s", message, exc_info=error)


def log_retry(message: str, error: Exception, has_ended: Callable[[], bool]) -> None:
    """Log a failure of a duty that tries again, unless it has ended: a failure of its end is expected.  A bug is logged
    anyway.
    """
    if not (isinstance(error, SparkLogError) and has_ended()):
        log_failure(message, error)


def partition_name(state: State, key: TopicKey) -> str:
    """The name in messages: orders-0."""
    topic_id, number = key
    return f"{state.topics[topic_id].name}-{number}"


def resolve_each(state: State, parts: Entries, on_failure: OnFailure) -> Steps[dict[TopicKey, list[Slice]]]:
    """The slices of each partition, from its entries.

    A partition with a damaged or missing slice index is left out, and reported to `on_failure`.  If its index is
    missing only because the state is outdated, it is left out and not reported.
    """
    try:
        resolved = yield from read_pieces(entry for entries in parts.values() for entry in entries)
    except StorageUnavailable:
        raise
    except Exception:  # noqa: BLE001  found again below, with its partition
        resolved = None
    if resolved is not None:
        return {key: resolve(entries, resolved) for key, entries in parts.items()}
    found = {}
    for key, entries in parts.items():
        slices = yield from _resolve_one(state, key, entries, on_failure)
        if slices is not None:
            found[key] = slices
    return found


def _resolve_one(
    state: State, key: TopicKey, entries: Sequence[Slice | Piece], on_failure: OnFailure
) -> Steps[list[Slice] | None]:
    what = f"reading the slice index of {partition_name(state, key)}"
    try:
        resolved = yield from read_pieces(entries)
        if resolved is not None:
            return resolve(entries, resolved)
        yield from _check_missing(state, key, entries)
    except StorageUnavailable:
        raise
    except Exception as error:  # noqa: BLE001  continue with the other partitions
        on_failure(what, error)
    return None


def _check_missing(state: State, key: TopicKey, entries: Sequence[Slice | Piece]) -> Steps[None]:
    """Raise CorruptObject if the log still refers to a piece whose index is missing."""
    missing = []
    for piece in entries:
        if isinstance(piece, Piece) and (yield from read_pieces([piece])) is None:
            missing.append(piece)
    newest: State = yield Refresh()
    current = newest.partitions.get(key, Partition()).entries
    names = sorted({piece.object for piece in missing if piece in current})
    if names:
        raise CorruptObject(f"{', '.join(names)} is missing: offsets of {partition_name(state, key)} cannot be read")
