"""Moves partitions: rewrites their slices that are in objects of other brokers than their replicas.

A move continues where the last one ended, whichever process made it.  Each portion is planned on the newest state, and
begins at a random place, so that two processes that move the same partitions seldom write the same portion twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from spark_log.client.log import Log
from spark_log.journal.context import Context, Proposal
from spark_log.journal.failure_isolation import Failures, OnFailure, log_failure, log_retry, raise_failure
from spark_log.journal.metadata_log import decided
from spark_log.journal.set_aside import SetAside
from spark_log.journal.store_operations import Decide, Steps
from spark_log.metadata.commands import Report
from spark_log.metadata.records import Moved, MovedRecord
from spark_log.metadata.replicas.reassignments import is_moving, moving, objects_elsewhere, pending_elsewhere
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice
from spark_log.replication.copy_throttle import Pace
from spark_log.rewriting.merge_candidates import live_slices, stretches_of
from spark_log.rewriting.read_again import read_again
from spark_log.rewriting.rewrite import OpenSpool, Progress, Rewriting, open_spool, rewrite
from spark_log.rewriting.rewrite_packs import Stretch
from spark_log.rewriting.segment_swaps import Replacement, objects_of
from spark_log.runtime.clock import Clock

Result = TypeVar("Result")

PORTION_BYTES = 256 << 20
"""The slices that are planned together; then the newest state is read again."""
CUT_BYTES = 128 << 20
"""A portion has whole stretches, or pieces of about this size of longer ones: that of a segment."""
KEYS_AT_ONCE = 64
"""Partitions whose slice indexes are read together."""
AGAIN_MS, TICK_MS = 10_000, 200
"""How long a mover waits after a round that moved nothing, unless reassignments or brokers change."""


@dataclass(slots=True)
class Moves:
    """The result of moving."""

    slices: int = 0
    """Slices that were moved."""
    bytes: int = 0
    """Size of the new objects."""
    partitions: int = 0
    """Partitions of which nothing is left elsewhere."""

    def add(self, other: Moves) -> None:
        """Add the result of another portion."""
        self.slices += other.slices
        self.bytes += other.bytes
        self.partitions += other.partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """How slices are moved."""

    open_spool: OpenSpool = open_spool
    on_failure: OnFailure = raise_failure
    """Called for partitions that cannot be read or written; if it returns, the others are moved."""
    progress: Progress | None = None
    pace: Callable[[int], None] = lambda size: None
    """Called with the number of bytes before they are put; may wait."""
    aside: SetAside = field(default_factory=SetAside)
    """Slices that cannot be read; others are added."""
    tried: set[tuple[TopicKey, int]] = field(default_factory=set)
    """Partition and first offset of the stretches that were planned: each is tried once."""


def move_all(state: State, context: Context, how: Moving) -> Steps[Moves]:
    """Move what can be moved now, and record which moves are done."""
    total, planned = Moves(), 1
    while planned:
        state, found, planned = yield from move_portion(state, context, how)
        total.add(found)
    return total


def move_portion(state: State, context: Context, how: Moving) -> Steps[tuple[State, Moves, int]]:
    """Move some slices.  Returns the state afterwards, what was moved, and how many stretches were planned."""
    stretches, elsewhere, complete = yield from _portion(state, context, how)
    how.tried.update((stretch.key, stretch.slices[0].start) for stretch in stretches)
    rewriting = Rewriting(
        name="move",
        activity="moving",
        open_spool=how.open_spool,
        on_failure=how.on_failure,
        aside=how.aside,
        progress=how.progress,
        is_worth=lambda slices: _has_any(slices, elsewhere),
        pace=how.pace,
    )
    done = list[Replacement]()
    if stretches:
        state, done = yield from rewrite(state, context, stretches, rewriting)
    moved = sum(piece.object in elsewhere for one in done for piece in one.old)
    complete |= {one.key for one in done}
    state, ended = yield from _end_moves(state, complete, how)
    return state, Moves(moved, sum(made.size for made in objects_of(done)), ended), len(stretches)


def _portion(state: State, context: Context, how: Moving) -> Steps[tuple[list[Stretch], frozenset[str], set[TopicKey]]]:
    """Stretches that have slices to move, and the objects of these; and partitions that have none."""
    keys, random = moving(state), context.random()
    at = random.randrange(len(keys)) if keys else 0
    found, names, complete = list[Stretch](), set[str](), set[TopicKey]()
    for some in _batches([*keys[at:], *keys[:at]]):
        slices = yield from live_slices(state, some, how.on_failure, how.aside)
        for key, pieces in slices.items():
            elsewhere = objects_elsewhere(state, key, (piece.object for piece in pieces))
            names |= elsewhere
            if not elsewhere and not how.aside.has_index(key):
                complete.add(key)
            found += _cut(stretches_of(state, key, pieces, elsewhere, how.aside), elsewhere)
        found = [one for one in found if (one.key, one.slices[0].start) not in how.tried]
        if sum(one.bytes for one in found) >= PORTION_BYTES:
            break
    at = random.randrange(len(found)) if found else 0
    return _first_bytes([*found[at:], *found[:at]]), frozenset(names), complete


def _batches(keys: Sequence[TopicKey]) -> Iterator[list[TopicKey]]:
    rest = iter(keys)
    while some := list(islice(rest, KEYS_AT_ONCE)):
        yield some


def _cut(stretches: Iterator[Stretch], elsewhere: Collection[str]) -> Iterator[Stretch]:
    """Pieces of stretches that have something to move."""
    for key, slices in stretches:
        piece, size = list[Slice](), 0
        for one in slices:
            if piece and size + one.length > CUT_BYTES:
                yield Stretch(key, piece)
                piece, size = [], 0
            if piece or one.object in elsewhere:
                piece.append(one)
                size += one.length
        if _has_any(piece, elsewhere):
            yield Stretch(key, piece)


def _has_any(slices: Sequence[Slice], objects: Collection[str]) -> bool:
    return any(one.object in objects for one in slices)


def _first_bytes(stretches: Sequence[Stretch]) -> list[Stretch]:
    found, size = list[Stretch](), 0
    for one in stretches:
        if found and size + one.bytes > PORTION_BYTES:
            break
        found.append(one)
        size += one.bytes
    return sorted(found, key=lambda one: (one.key, one.slices[0].start))


def _end_moves(state: State, keys: Collection[TopicKey], how: Moving) -> Steps[tuple[State, int]]:
    """Record which of these partitions have no live slice elsewhere; the state afterwards, and how many are done."""
    ended, unseen = list[Moved](), pending_elsewhere(state)
    for some in _batches([key for key in moving(state) if key in keys and key not in unseen]):
        slices = yield from live_slices(state, some, how.on_failure, how.aside)
        for key, pieces in slices.items():
            names = (piece.object for piece in pieces)
            if not how.aside.has_index(key) and not objects_elsewhere(state, key, names):
                ended.append(Moved(*key, state.reassignments[key].version, state.version))
    if ended:
        end = Report.of(state, MovedRecord(partitions=tuple(ended)))
        state = yield Decide([Proposal(end)])
    return state, sum(not is_moving(state, (one.topic_id, one.partition)) for one in ended)


class Mover:
    """Moves partitions of one log, in a process that replicates."""

    def __init__(self, log: Log, pace: Pace) -> None:
        """pace:  limit of the bytes that are put."""
        self._log, self._pace, self._lock, self._done = log, pace, threading.Lock(), Moves()
        self._aside = SetAside()
        self._seen = log.journal.newest
        """The state before the last round."""

    def move_all(self, progress: Progress | None = None) -> tuple[Moves, list[str]]:
        """Move what can be moved now; what was moved, and one sentence for each failure, which is logged.

        The partitions count whose moves have ended meanwhile, also those that another process has moved.
        """
        failed = Failures(self._log.url)
        before = moving(self._log.journal.refresh())
        how = Moving(on_failure=failed, pace=self._pace.take, progress=progress)
        found = self._run(lambda state, context: move_all(state, context, how))
        left = set(moving(self._log.journal.state))
        return replace(found, partitions=sum(key not in left for key in before)), failed.problems

    def round(self) -> Moves:
        """Move a portion, if the newest state of this process has something to move.  Failures are logged."""
        self._log.journal.require(None)
        self._seen = self._log.journal.newest
        if not moving(self._log.journal.state):
            return Moves()
        how = Moving(on_failure=self._report, pace=self._pace.take, aside=self._aside)
        found = self._run(lambda state, context: _moved_portion(state, context, how))
        with self._lock:
            self._done.add(found)
        return found

    def has_news(self) -> bool:
        """Whether reassignments or brokers have changed since the last round began, as far as this process knows."""
        newest, seen = self._log.journal.newest, self._seen
        return (newest.reassignments, newest.brokers) != (seen.reassignments, seen.brokers)

    def take(self) -> Moves:
        """The work of the rounds since this was last called, maybe in another thread."""
        with self._lock:
            done, self._done = self._done, Moves()
        return done

    def _run(self, steps: Callable[[State, Context], Steps[Result]]) -> Result:
        journal = self._log.journal
        known = journal.view
        view, found = journal.run(decided(journal.metadata_log, known, steps(known.state, journal.context)))
        journal.adopt(view, known)
        return found

    def _report(self, what: str, error: Exception) -> None:
        log_failure(f"{self._log.url}: {what} failed", error)


def _moved_portion(state: State, context: Context, how: Moving) -> Steps[Moves]:
    yield from read_again(state, how.aside, context.clock.now_ms(), how.on_failure)
    state, found, _ = yield from move_portion(state, context, how)
    return found


def move_every(mover: Mover, clock: Clock, has_ended: Callable[[], bool]) -> None:
    """Rounds of moving, without a pause while they move something, or after a change."""
    while not has_ended():
        found = Moves()
        try:
            found = mover.round()
        except Exception as error:  # noqa: BLE001  the next round may succeed
            log_retry("moving failed, retrying", error, has_ended)
        until_ms = clock.monotonic_ms() + (0 if found.slices or found.partitions else AGAIN_MS)
        while not has_ended() and clock.monotonic_ms() < until_ms and not mover.has_news():
            clock.sleep_ms(TICK_MS)
