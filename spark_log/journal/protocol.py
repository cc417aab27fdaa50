"""The commit protocol of a log on shared storage: open, catch up, append with read-back.

    meta/format                        what the log is (`journal.py`)
    meta/reserve                       room for records that make room (`reserve.py`)
    meta/log/<version:020>.rec         one batch of records a version, written by put-if-absent
    meta/ckpt/<version:020>-<id>       the state at a version, each file whole; the newest two are kept, with all records
                                       after the older one
    data/<upload epoch:016x>/…         objects

The chain is what follows the newest checkpoint: version by version until one is absent.  A deleted version's name can be
taken again by a put that was late, so records that were read are known to be on the chain only if a listing that began
after the last read shows no checkpoint beyond the version that they follow.  Until then nothing is decided, reported or
checkpointed from them; if there is one, the log is opened anew from it.

If the newest checkpoint is damaged, the log is opened from the one before it and the records after that.  Such a view is on
the chain if a listing after the reads still has the same two newest checkpoints: a record is deleted only when two
checkpoints at or beyond it exist, and from then on at least two do (docs/decisions/0024-two-checkpoints.md).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from spark_log.clock import Clock
from spark_log.errors import (
    ClockSkewed,
    CommitUnknown,
    ConcurrentChange,
    CoordinatorNotAvailable,
    CorruptObject,
    InvalidRequest,
    SparkLogError,
    StorageError,
    StorageUnavailable,
    ThrottlingQuotaExceeded,
)
from spark_log.journal.clock_check import ClockWatch, check_clock, stamp_of
from spark_log.journal.object_names import log_key
from spark_log.journal.opening import (
    View,
    confirming_reads,
    follow,
    follows_checkpoint,
    newest_checkpoint,
    newest_checkpoint_from,
    refresh,
    restored_error,
    went_back,
)
from spark_log.journal.reserve import makes_room, with_reserve
from spark_log.journal.store_operations import Answered, Ask, Delete, Get, Op, PutAnswer, PutNew, Sleep, Steps
from spark_log.journal.upkeep_limits import LIMITS, StepLimits
from spark_log.metadata.decide import Decision
from spark_log.metadata.records import AnyRecord, Batch, encode_batch, first_line
from spark_log.metadata.replay import end_version, next_version, replay, replay_records
from spark_log.metadata.state import State
from spark_log.threads import SYSTEM_THREADS, Threads

ATTEMPTS_MAX = 200
JITTER_MS = 20
STALLED_TRIES = 14
"""Puts in a row that are not in, though nothing else took their version: waits double from the fourth on, to about 20 s in all."""
ASK_MS_MIN = 1000
"""An answer is waited for so long at least: without it, the outcome is not known."""
ASK_AGAIN_MS = 50
ASK_AGAIN_MS_MAX = 1000
"""Waits between two tries to reach a coordinator, at first and at last; up to twice as long, by chance."""


Decide = Callable[[State, int], Decision[Any]]
"""A decision bound to its command: (state, now in ms)."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the protocol needs from outside."""

    clock: Clock
    rng: random.Random
    epoch: int = 0
    """Of the coordinator that this process is; 0: it is none."""
    served: bool = False
    """Changes go through a coordinator, also while there is none."""
    watch: ClockWatch = field(default_factory=ClockWatch, compare=False)
    patience_ms: int = 30_000
    """How long a change waits for a coordinator."""
    limits: StepLimits = LIMITS
    threads: Threads = SYSTEM_THREADS

    def random(self) -> random.Random:
        """A generator of its own for somebody who draws many numbers, and none that others must not guess."""
        return random.Random(self.rng.getrandbits(64))

    def unique(self) -> str:
        """A random name, 64 bits."""
        return f"{self.rng.getrandbits(64):016x}"


@dataclass(slots=True)
class Proposal:
    """A decision on its way into the log, and what became of it."""

    decide: Decide
    check: bool = False
    """It came from outside: that its records can be replayed is tried before it is believed."""
    takes_over: bool = False
    """It is about who writes the log, and counts whoever does."""
    releases: bool = False
    """It gives the log back."""
    reply: Any = None
    error: SparkLogError | None = None
    done: bool = False
    sent: bool = False
    """It was sent to a coordinator whose answer is not known."""
    deadline_ms: int | None = None
    """On the monotonic clock: it waits no longer for a coordinator; None: as long as changes do."""


@dataclass(slots=True)
class _Attempt:
    """What was put at a version, in case a put that seemed lost turns up."""

    state: State
    """With its records."""
    decisions: list[tuple[Proposal, Decision[Any]]] = field(default_factory=list)


def propose(view: View, commands: Sequence[Proposal], context: Context) -> Steps[View]:
    """Carry out commands in one batch of records: decide, put, read back, until it is in or there is nothing to write.

    All attempts share a batch id.  A batch that is found under it, from whichever attempt, was decided on the very
    state that precedes it, so that attempt's replies hold.

    A command that is refused although it was put before, at a version that a checkpoint has swallowed since, may be in: its
    error says so (`maybe_applied`), unless it is one that invites to try again, which is raised of what is certainly not in.
    An error of the storage is `maybe_applied` only after a put whose outcome is not known.
    """
    unique, attempts, stalled = context.unique(), dict[int, _Attempt](), 0
    for _ in range(ATTEMPTS_MAX):
        if is_led_elsewhere(view.state, context) and not all(command.takes_over for command in commands):
            view = yield from _hand_over(view, commands, context, attempts.values())
        stamp, releases = stamp_of(context.clock), all(command.releases for command in commands)
        # A coordinator whose clock is wrong can stop, and does not move the log's time.
        now = min(stamp.now_ms, view.state.time) if releases else stamp.now_ms
        attempt, records = _decide_all(view.state, commands, now, attempts.values())
        if not records:
            _set_replies(attempt)
            return view
        if not releases:
            try:
                yield from check_clock(view.state, stamp, context.clock, context.watch, context.unique)
            except (ClockSkewed, StorageError) as failed:
                failed.maybe_applied |= bool(attempts)
                raise
        earlier, version = bool(attempts), view.state.version
        attempts[version + 1] = attempt
        batch = Batch(id=unique, time=now, epoch=context.epoch, records=tuple(records))
        try:
            view, seen = yield from append(view, batch, attempt.state)
        except StorageError as failed:
            failed.maybe_applied |= earlier
            raise
        if placed := seen.get(unique):
            _set_replies(attempts[placed])
            return view
        for taken in seen.values():
            attempts.pop(taken, None)
        stalled = stalled + 1 if view.state.version == version else 0
        if stalled == STALLED_TRIES:
            unavailable = StorageUnavailable(f"the storage did not take a metadata record in {stalled} tries")
            unavailable.maybe_applied = True
            raise unavailable
        yield Sleep(context.rng.random() * JITTER_MS * 2 ** max(0, stalled - 3))
    error = ConcurrentChange(
        f"no place in the metadata log after {ATTEMPTS_MAX} tries: too many busy writers for this storage"
    )
    error.maybe_applied = bool(attempts)
    raise error


def _decide_all(
    state: State, commands: Sequence[Proposal], now: int, unseen: Iterable[_Attempt]
) -> tuple[_Attempt, list[AnyRecord]]:
    """Each command is decided on the state that the ones before it leave; one that is refused is left out.

    unseen: earlier attempts, of which it is not known what took their version.
    """
    attempt, records = _Attempt(next_version(state, now)), list[AnyRecord]()
    for command in commands:
        if command.done:
            continue
        try:
            decision = command.decide(attempt.state, now)
            attempt.state = replay_records(attempt.state, decision.records)
        except SparkLogError as error:
            _refuse(command, error, unseen)
            continue
        except Exception as error:
            if not command.check:
                raise
            _refuse(command, InvalidRequest(f"the command makes no sense: {error!r}"), unseen)
            continue
        records += decision.records
        attempt.decisions.append((command, decision))
    return attempt, records


def _refuse(command: Proposal, error: SparkLogError, unseen: Iterable[_Attempt]) -> None:
    if not error.retriable:
        error.maybe_applied |= command.sent
        error.maybe_applied |= any(command is put for attempt in unseen for put, _ in attempt.decisions)
    command.error, command.done = error, True


def is_led_elsewhere(state: State, context: Context) -> bool:
    """Whether changes are another process's to write."""
    return state.coordinator.in_force != context.epoch or (context.served and not context.epoch)


def _hand_over(view: View, commands: Sequence[Proposal], context: Context, unseen: Iterable[_Attempt]) -> Steps[View]:
    """Have the coordinator carry out what is not done; the view with it.

    While nobody answers the log is looked at for another coordinator, or for a release, after which it is the caller's.
    A command whose answer was lost is sent again: it knows itself again, or its refusal says that it may be in.
    """
    clock, wait = context.clock, ASK_AGAIN_MS
    deadline = clock.monotonic_ms() + context.patience_ms
    while is_led_elsewhere(view.state, context):
        waiting = [command for command in commands if not command.done]
        ends = [deadline, *(command.deadline_ms for command in waiting if command.deadline_ms is not None)]
        limit_ms = max(min(ends) - clock.monotonic_ms(), ASK_MS_MIN)
        asked = Ask(view.state.coordinator, [command.decide for command in waiting], view.state.version, limit_ms)
        try:
            answered: Answered = yield asked
        except CoordinatorNotAvailable as error:
            now = clock.monotonic_ms() + wait
            for command in waiting:
                command.sent |= error.maybe_applied
                if command.deadline_ms is not None and now >= command.deadline_ms:
                    command.error, command.done = unanswered(error, command.sent), True
            waiting = [command for command in waiting if not command.done]
            if not waiting:
                return view
            if now >= deadline:
                error.maybe_applied = any(command.sent for command in waiting)
                raise
            yield Sleep(wait * (1 + context.rng.random()))
            wait = min(2 * wait, ASK_AGAIN_MS_MAX)
            try:
                view = yield from refresh(view)
            except StorageError as failed:
                failed.maybe_applied |= any(command.sent for command in waiting)
                raise
            continue
        pause_ms = 0
        for command, outcome in zip(waiting, answered.outcomes, strict=True):
            if isinstance(outcome, ThrottlingQuotaExceeded) and _has_time(
                command, outcome.retry_after_ms, deadline, clock
            ):
                pause_ms = max(pause_ms, outcome.retry_after_ms)
            elif isinstance(outcome, SparkLogError):
                _refuse(command, outcome, unseen)
                if isinstance(outcome, ThrottlingQuotaExceeded):
                    outcome.maybe_applied |= command.sent  # by an earlier try; the coordinator has not looked
            else:
                command.reply, command.done = outcome, True
        with suppress(StorageUnavailable):
            # It is done.  Who goes on from this view asks the coordinator again, or reads the log first: from one of before the
            # coordinator led, the next change would be decided here, without what was just done.
            view = yield from follow(view, answered)
        if not pause_ms:
            return view
        yield Sleep(pause_ms * (1 + context.rng.random()))  # not all clients of a token at the same time
    return view


def _has_time(command: Proposal, pause_ms: float, deadline_ms: float, clock: Clock) -> bool:
    """Whether a command can be sent again after a pause, which may last twice as long."""
    if command.deadline_ms is not None:
        deadline_ms = min(deadline_ms, command.deadline_ms)
    return clock.monotonic_ms() + 2 * pause_ms < deadline_ms


def unanswered(error: SparkLogError, sent: bool) -> SparkLogError:
    """What a change is refused with that no coordinator has answered."""
    if not sent:
        return CoordinatorNotAvailable(str(error))
    unknown = CommitUnknown(f"no answer to a change, it may be in: {error}")
    unknown.__cause__ = error
    return unknown


def _set_replies(attempt: _Attempt) -> None:
    for command, decision in attempt.decisions:
        command.reply, command.done = decision.reply, True


def append(view: View, batch: Batch, decided: State) -> Steps[tuple[View, dict[str, int]]]:
    """Put a batch after `view` and read back.  The view afterwards, and the batches by id that are known to lie between.

    The listing may run in parallel with the read-back only if the put answered "created": then the batch had its place
    before the listing began, and the view that is carried on ends at this very batch.  After any other answer the put may
    still be under way, so the reads come first and the listing last.

    decided:  the state with the batch's records, as far as they count.
    """
    key, data = log_key(view.state.version + 1), encode_batch(batch)
    put = PutNew(key, data)
    answer = (yield from with_reserve(put)) if makes_room(batch.records) else (yield put)
    try:
        if answer is PutAnswer.CREATED:
            reads: list[Op] = [Get(key), *confirming_reads(view)]
            found, *last, names = yield reads
            counts = batch.epoch == view.state.coordinator.in_force
            state = end_version(view.state, batch, decided) if counts else replay(view.state, batch)
            known = not last or last == [view.head]
            if (
                found == data
                and known
                and follows_checkpoint(view, newest_checkpoint(names))
                and not went_back(view, names)
            ):
                return view.moved(state, names, first_line(data)), {batch.id: view.state.version + 1}
            if None in last and (yield from newest_checkpoint_from(view)) is None:
                # When the restored log comes as far, it would take this record for its own.  If it is there by now, it
                # may have taken it: then the record stays.
                if (yield Get(log_key(view.state.version))) is None:
                    yield Delete([key])
                raise restored_error(f"version {view.state.version} was")
        seen: dict[str, int] = {}
        view = yield from refresh(view, seen)
    except (StorageError, CorruptObject) as error:
        error.maybe_applied = True
        raise
    return view, seen
