"""The commit protocol of a log on shared storage: open, catch up, append with read-back.

    meta/format                        identifies the log (`journal.py`)
    meta/reserve                       space for records that free space (`disk_reserve.py`)
    meta/log/<version:020>.rec         one batch of records a version, written by put-if-absent
    meta/ckpt/<version:020>-<id>       the state at a version, each file whole; the newest two are kept, with all
                                       records after the older one
    data/<upload epoch:016x>/…         objects

The chain is the sequence of versions after the newest checkpoint, up to the first absent one.  A late put can take the
name of a deleted version again.  So records are known to be on the chain only if a listing that began after the last
read shows no checkpoint beyond the version that they follow.  Until then nothing is decided, reported or checkpointed
from them; if there is such a checkpoint, the log is opened again from it.

If the newest checkpoint is damaged, the log is opened from the one before it and the records after that.  Such a view
is on the chain if a listing after the reads still has the same two newest checkpoints: a record is deleted only when
two checkpoints at or beyond it exist, and from then on at least two do (docs/decisions/0024-two-checkpoints.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from spark_log.errors import (
    ClockSkewed,
    ConcurrentChange,
    CoordinatorNotAvailable,
    CorruptObject,
    LogRestored,
    SparkLogError,
    StorageError,
    StorageUnavailable,
    ThrottlingQuotaExceeded,
)
from spark_log.journal.batch_decision import Attempt, decide_batch
from spark_log.journal.context import Context, Proposal, is_led_elsewhere, unanswered
from spark_log.journal.metadata_log import AnyView
from spark_log.journal.storage.clock_check import check_clock, stamp_of
from spark_log.journal.storage.disk_reserve import makes_room, with_reserve
from spark_log.journal.storage.log_identity import check_is_there, restored_error
from spark_log.journal.storage.opening import (
    View,
    confirming_reads,
    follow,
    follows_checkpoint,
    newest_checkpoint,
    newest_checkpoint_from,
    open_view,
    refresh,
    went_back,
)
from spark_log.journal.store_operations import (
    Answered,
    Ask,
    Delete,
    Get,
    Op,
    PutAnswer,
    PutNew,
    Sleep,
    Steps,
)
from spark_log.metadata.decide_coordinators import moving_to
from spark_log.metadata.formats.batch_format import encode_batch, first_line
from spark_log.metadata.lines import last_mark
from spark_log.metadata.records import Batch
from spark_log.metadata.replay import end_version, replay
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State
from spark_log.runtime.clock import Clock
from spark_log.store.object_names import log_key

Result = TypeVar("Result")

ATTEMPTS_MAX = 200
JITTER_MS = 20
STALLED_TRIES = 14
"""Consecutive puts without effect although the version stays free: waits double from the fourth on, to about 20 s."""
ASK_MS_MIN = 1000
"""Minimum wait for an answer: without it, the outcome is unknown."""
ASK_AGAIN_MS = 50
ASK_AGAIN_MS_MAX = 1000
"""First and last pause between attempts to reach a coordinator; each is up to twice as long, at random."""


def propose(view: View, commands: Sequence[Proposal], context: Context) -> Steps[View]:
    """Write commands in one batch of records: decide, put, read back, until it is applied or there is nothing to write.

    All attempts share a batch id.  A batch that is found with it, from any attempt, was decided on exactly the
    preceding state, so that attempt's replies are valid.

    A command may be rejected after it was put at a version that is now behind a checkpoint.  It may have been applied,
    so its error is `maybe_applied`, unless the error is retriable, which is raised only if the command was not applied.
    An error of the storage is `maybe_applied` only after a put whose outcome is unknown.
    """
    unique, attempts, stalled, again = context.unique(), dict[int, Attempt](), 0, False
    for _ in range(ATTEMPTS_MAX):
        view = yield from _until_ours(view, commands, context, attempts.values())
        stamp, releases = stamp_of(context.clock), all(command.releases for command in commands)
        # A coordinator with a wrong clock can stop, and does not move the log's time.
        now = min(stamp.now_ms, view.newest.time) if releases else stamp.now_ms
        attempt, records, refused = decide_batch(view.newest, commands, now, again=again)
        if view.unconfirmed is not None and (refused or not records):
            view = yield from refresh(view)  # nothing that is reported now would be confirmed by a read-back
            continue
        _refuse_all(refused, attempts.values())
        if not records:
            attempt.set_replies()
            return view
        if not releases:
            try:
                yield from check_clock(view.newest, stamp, context.clock, context.watch, context.unique)
            except (ClockSkewed, StorageError) as failed:
                failed.maybe_applied |= bool(attempts)
                raise
        earlier, version = bool(attempts), view.newest.version
        attempts[version + 1] = attempt
        # At version 0 no coordinator leads: in a batch of another epoch, only its take-over would count.
        epoch, history = context.epoch if version else 0, history_of(view.newest)
        after, written = last_mark(view.newest), tuple(records)
        batch = Batch(id=unique, time=now, epoch=epoch, history=history, after=after, records=written)
        try:
            view, seen = yield from append(view, batch, attempt.state, context.rng.random() * JITTER_MS)
        except (StorageError, LogRestored) as failed:
            failed.maybe_applied |= earlier
            raise
        if placed := seen.get(unique):
            attempts[placed].set_replies()
            return view
        for taken in seen.values():
            attempts.pop(taken, None)
        again = True
        stalled = stalled + 1 if view.newest.version == version else 0
        yield from _pause(stalled, context)
    error = ConcurrentChange(
        f"no place in the metadata log after {ATTEMPTS_MAX} attempts: too many busy writers for this storage"
    )
    error.maybe_applied = bool(attempts)
    raise error


def _until_ours(view: View, commands: Sequence[Proposal], context: Context, unseen: Iterable[Attempt]) -> Steps[View]:
    """The view on which this process decides.  While another process leads, the commands are sent to it.

    unseen:  earlier attempts whose versions have not been read.
    """
    if view.unconfirmed is not None and is_led_elsewhere(view.newest, context):
        view = yield from refresh(view)
    if is_led_elsewhere(view.state, context) and not all(command.takes_over for command in commands):
        _mark_sent(unseen)
        if moving_to(view.state.coordinator):  # the move may have been cancelled
            view = yield from refresh(view)
        view = yield from hand_over(view, commands, context, refresh, follow)
    return view


def _pause(stalled: int, context: Context) -> Steps[None]:
    """Before the next attempt; `stalled`: consecutive puts without effect although the version stays free."""
    if stalled == STALLED_TRIES:
        unavailable = StorageUnavailable(f"the storage did not take a metadata record in {stalled} attempts")
        unavailable.maybe_applied = True
        raise unavailable
    if stalled > 3:
        yield Sleep(context.rng.random() * JITTER_MS * 2 ** (stalled - 3))


def _refuse_all(refused: Iterable[tuple[Proposal, SparkLogError]], unseen: Iterable[Attempt]) -> None:
    """unseen: earlier attempts whose versions have not been read."""
    for command, error in refused:
        _refuse(command, error, unseen)


def _refuse(command: Proposal, error: SparkLogError, unseen: Iterable[Attempt] = ()) -> None:
    if not error.retriable:
        error.maybe_applied |= command.sent
        error.maybe_applied |= any(command is put for attempt in unseen for put, _ in attempt.decisions)
    command.error, command.done = error, True


def _mark_sent(unseen: Iterable[Attempt]) -> None:
    """Commands that were put, and whose versions were not read, may be applied whatever a coordinator answers."""
    for attempt in unseen:
        for command, _ in attempt.decisions:
            command.sent = True


def hand_over(
    view: AnyView,
    commands: Sequence[Proposal],
    context: Context,
    refresh: Callable[[AnyView], Steps[AnyView]],
    follow: Callable[[AnyView, Answered], Steps[AnyView]],
) -> Steps[AnyView]:
    """Send the open commands to the coordinator; returns the view after them.

    refresh:  reads the newest view, with the coordinator that leads by now.
    follow:   adds what the coordinator answered to a view.

    While no coordinator answers, check the log for a new coordinator, or for a release, after which the caller writes.
    A command whose answer was lost is sent again: the retry is recognised, or its rejection says that it may be
    applied.
    """
    clock, wait = context.clock, ASK_AGAIN_MS
    deadline = clock.monotonic_ms() + context.coordinator_wait_ms
    while is_led_elsewhere(view.state, context):
        waiting = _planned_here([command for command in commands if not command.done], view.state)
        if not waiting:
            return view
        ends = [deadline, *(command.deadline_ms for command in waiting if command.deadline_ms is not None)]
        limit_ms = max(min(ends) - clock.monotonic_ms(), ASK_MS_MIN)
        decisions, version = [command.decide for command in waiting], view.state.version
        asked = Ask(view.state.coordinator, decisions, version, limit_ms, view.head, view.held)
        try:
            answered: Answered = yield asked
        except CoordinatorNotAvailable as error:
            now = clock.monotonic_ms() + wait
            waiting = _within_deadline(waiting, error, now)
            if not waiting:
                return view
            if now >= deadline:
                error.maybe_applied = any(command.sent for command in waiting)
                raise
            yield Sleep(wait * (1 + context.rng.random()))
            wait = min(2 * wait, ASK_AGAIN_MS_MAX)
            try:
                view = yield from refresh(view)
            except (StorageError, CorruptObject, LogRestored) as failed:
                failed.maybe_applied |= any(command.sent for command in waiting)
                raise
            continue
        except SparkLogError as error:
            error.maybe_applied |= any(command.sent for command in waiting)
            raise
        pause_ms = _set_outcomes(waiting, answered, deadline, clock)
        view = yield from _followed(view, waiting, follow(view, answered))
        if not pause_ms or all(command.done for command in waiting):
            return view
        yield Sleep(pause_ms * (1 + context.rng.random()))  # so that clients of a token do not retry simultaneously
    return view


def _planned_here(commands: Iterable[Proposal], state: State) -> list[Proposal]:
    """The commands that may be decided on the log of a state; the others end with an error."""
    left = []
    for command in commands:
        try:
            command.check_planned(state)
            left.append(command)
        except SparkLogError as error:
            _refuse(command, error)
    return left


def _followed(view: AnyView, commands: Iterable[Proposal], follow: Steps[AnyView]) -> Steps[AnyView]:
    """The view after an answer to commands; `view` if it cannot be read."""
    try:
        # The change is applied.  If this read fails, the next change asks the coordinator or reads the log first: a
        # view from before the coordinator led lacks this change.
        with suppress(StorageUnavailable):
            return (yield from follow)
    except LogRestored as restored:
        # Otherwise a process that only writes would never learn that its earlier changes are lost.
        restored.maybe_applied = True
        for command in commands:
            command.error, command.done = command.error or restored, True
    return view


def _within_deadline(waiting: Iterable[Proposal], error: CoordinatorNotAvailable, now_ms: float) -> list[Proposal]:
    """The commands that can be sent again; the others end with an error, because no coordinator answered."""
    left = []
    for command in waiting:
        command.sent |= error.maybe_applied
        if command.deadline_ms is not None and now_ms >= command.deadline_ms:
            command.error, command.done = unanswered(error, command.sent), True
        else:
            left.append(command)
    return left


def _set_outcomes(waiting: Iterable[Proposal], answered: Answered, deadline_ms: float, clock: Clock) -> float:
    """Set the replies and errors; returns the pause in ms after which throttled commands are sent again, 0: none is."""
    pause_ms = 0.0
    for command, outcome in zip(waiting, answered.outcomes, strict=True):
        if isinstance(outcome, ThrottlingQuotaExceeded) and _has_time(
            command, outcome.retry_after_ms, deadline_ms, clock
        ):
            pause_ms = max(pause_ms, outcome.retry_after_ms)
        elif isinstance(outcome, SparkLogError):
            _refuse(command, outcome)
            if isinstance(outcome, ThrottlingQuotaExceeded):
                outcome.maybe_applied |= command.sent  # by an earlier attempt; the coordinator has not checked
        else:
            command.reply, command.done = outcome, True
    return pause_ms


def _has_time(command: Proposal, pause_ms: float, deadline_ms: float, clock: Clock) -> bool:
    """Whether a command can be retried after a pause, which may last twice as long."""
    if command.deadline_ms is not None:
        deadline_ms = min(deadline_ms, command.deadline_ms)
    return clock.monotonic_ms() + 2 * pause_ms < deadline_ms


def append(
    view: View, batch: Batch, decided: Callable[[], State], pause_ms: float
) -> Steps[tuple[View, dict[str, int]]]:
    """Put a batch after `view` and read back.  Returns the view afterwards, and the batches between, by id.

    The listing may run in parallel with the read-back only if the put answered "created": then the batch was in the log
    before the listing began, and the new view ends at this batch.  After any other answer the put may still be in
    progress, so the reads come first and the listing last.

    The records after the view that were read and not confirmed are confirmed in the same way: by a listing without a
    checkpoint beyond the view.

    decided:   computes the state after the batch's valid records.
    pause_ms:  wait if the put lost.  The reads come after the pause: what is decided on older ones would lose again.
    """
    before, heads = view.newest, view.heads
    key, data = log_key(before.version + 1), encode_batch(batch)
    put = PutNew(key, data)
    answer = (yield from with_reserve(put)) if makes_room(batch.records) else (yield put)
    seen: dict[str, int] = {}
    withdrawn = 0
    try:
        if answer is PutAnswer.CREATED:
            reads: list[Op] = [Get(key), *confirming_reads(view)]
            found, *last, names = yield reads
            counts = batch.epoch == before.coordinator.in_force
            state = end_version(before, batch, decided()) if counts else replay(before, batch)
            if (
                found == data
                and last == [head for _, head in heads]
                and follows_checkpoint(view, newest_checkpoint(names))
                and not went_back(view, names)
            ):
                return view.moved(state, names, (_head_of(view), first_line(data))), {batch.id: state.version}
            gone = max((version for (version, _), start in zip(heads, last, strict=True) if start is None), default=0)
            if gone and (yield from newest_checkpoint_from(gone)) is None:
                if not (yield from _withdraw(key, gone, batch)):
                    yield from check_is_there(view.log)
                    raise restored_error(f"version {gone}")
                withdrawn = gone
        if not withdrawn:
            yield Sleep(pause_ms)
            view = yield from refresh(view, seen)
    except SparkLogError as error:
        if answer is PutAnswer.UNKNOWN and isinstance(error, LogRestored):
            with suppress(StorageError):
                yield from _withdraw(key, before.version, batch)
        error.maybe_applied = True
        raise
    if withdrawn:
        yield from check_is_there(view.log)
        raise restored_error(f"version {withdrawn}")
    return view, seen


def _head_of(view: View) -> bytes:
    return view.head if view.unconfirmed is None else view.unconfirmed.head


def _withdraw(key: str, gone: int, batch: Batch) -> Steps[bool]:
    """Delete a record that was put behind an absent version; whether it is certain that nobody has replayed it.

    When the restored log reaches the record's version, it takes the record for its own, unless it has begun a history:
    then the record is void, and stays, because a deletion that comes late would leave a hole.  If the log has come so
    far by now, the record stays as well.
    """
    if (yield from _has_other_history(batch)):
        return True
    before = log_key(gone)
    if (yield Get(before)) is not None:
        return False
    yield Delete([key])
    return (yield Get(before)) is None  # nobody reads beyond an absent version


def _has_other_history(batch: Batch) -> Steps[bool]:
    try:
        view = yield from open_view()
    except CorruptObject:  # a copy that began no history has a hole before the batch
        return False
    return history_of(view.state) != batch.history
