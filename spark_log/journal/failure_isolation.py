"""Isolation of failures in maintenance: an unreadable partition, or a failed duty, does not stop the others.

If the coordinator is gone or refuses the maintainer, the run ends: every other change would fail too, after the same
wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from spark_log.errors import (
    AuthenticationFailed,
    CoordinatorNotAvailable,
    NoSpace,
    NotCoordinator,
    SparkLogError,
)
from spark_log.journal.index_reads import read_known
from spark_log.journal.set_aside import AsideSlice, SetAside
from spark_log.journal.storage.missing_indexes import damaged_object, missing_object
from spark_log.journal.store_operations import Refresh, Steps
from spark_log.log_lines import logger
from spark_log.metadata.maintenance.swaps import resolve
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Partition, State, TopicKey
from spark_log.model import Slice
from spark_log.text import counted

Result = TypeVar("Result")
Entries = Mapping[TopicKey, Sequence[Slice | Piece]]
OnFailure = Callable[[str, Exception], None]
"""Called with the failed action and its error.  Returns to continue with the rest, or raises."""


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
        log_failure(f"maintenance of {self._url}: {what} failed", error)

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


def resolve_each(
    state: State, parts: Entries, on_failure: OnFailure, aside: SetAside
) -> Steps[dict[TopicKey, list[Slice]]]:
    """The slices of each partition, from its entries.

    A slice index that is damaged or missing is one slice, which is set aside, and reported to `on_failure` if it was
    not set aside before.  A partition whose index is missing only because the state is outdated is left out.
    """
    resolved, unread = yield from read_known(entry for entries in parts.values() for entry in entries)
    newest: State = (yield Refresh()) if None in unread.values() else state
    failed = defaultdict[str, list[_UnreadIndex]](list)
    found = {}
    for key, entries in parts.items():
        lost = [entry for entry in entries if isinstance(entry, Piece) and entry in unread]
        current = newest.partitions.get(key, Partition()).entries if lost else ()
        if any(unread[piece] is None and piece not in current for piece in lost):
            continue
        found[key] = resolve(entries, resolved)
        for piece in lost:
            (stands_for,) = resolved[piece]
            if not aside.has(key, stands_for):
                aside.add(key, AsideSlice(stands_for, 0, is_index=True))
                failed[piece.object].append(_UnreadIndex(key, piece, unread[piece]))
    for some in failed.values():
        on_failure(_index_names(state, some), index_error(state, *some[0]))
    return found


class _UnreadIndex(NamedTuple):
    key: TopicKey
    piece: Piece
    why: Exception | None
    """None: it is missing."""


def _index_names(state: State, some: Sequence[_UnreadIndex]) -> str:
    """Partitions whose slice indexes are in one object."""
    first, more = partition_name(state, some[0].key), len({one.key for one in some}) - 1
    others = f" and {counted(more, 'other partition')}" if more else ""
    return f"reading the slice index of {first}{others}"


def index_error(state: State, key: TopicKey, piece: Piece, why: Exception | None) -> SparkLogError:
    """Why a slice index cannot be read, with its offsets, and what to do.  why: None if it is missing."""
    where = piece.object, state.topics[key[0]].name, key[1], piece.start, piece.end
    if why is None:
        return missing_object(piece.object, *where)
    return damaged_object(*where, why)
