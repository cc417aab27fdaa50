"""The commit protocol of a log on shared storage: open, catch up, append with read-back.

    meta/format                        what the log is (`journal.py`)
    meta/log/<version:020>.rec         one batch of records a version, written by put-if-absent
    meta/ckpt/<version:020>-<id>       the state at a version, each file whole; the newest one counts
    data/<upload epoch:016x>/…         objects

The chain is what follows the newest checkpoint: version by version until one is absent.  A deleted version's name can be
taken again by a put that was late, so records that were read are known to be on the chain only if a listing that began
after the last read shows no checkpoint beyond the version that they follow.  Until then nothing is decided, reported or
checkpointed from them; if there is one, the log is opened anew from it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_log.clock import Clock
from spark_log.errors import (
    CommitUnknown,
    ConcurrentChange,
    CoordinatorNotAvailable,
    CorruptObject,
    InvalidRequest,
    SparkLogError,
    StorageUnavailable,
)
from spark_log.journal.ops import Answer, Answered, Ask, Changes, Get, List, Op, PutNew, Sleep, Steps
from spark_log.metadata.checkpoint import decode_checkpoint
from spark_log.metadata.decide import Decision
from spark_log.metadata.records import AnyRecord, Batch, decode_batch, encode_batch
from spark_log.metadata.replay import end_version, next_version, replay, replay_records
from spark_log.metadata.state import State

META = "meta/"
LOG = "meta/log/"
CHECKPOINTS = "meta/ckpt/"
DATA = "data/"
WAVE_MAX = 64
"""Versions that are read ahead in parallel."""
WAVE_FAR = 32
"""From waves of so many on it is looked whether a checkpoint lies ahead: what is behind it need not be read."""
ATTEMPTS_MAX = 200
JITTER_MS = 20
ASK_AGAIN_MS = 50
ASK_AGAIN_MS_MAX = 1000
"""Waits between two tries to reach a coordinator, at first and at last; up to twice as long, by chance."""

Decide = Callable[[State, int], Decision[Any]]
"""A decision bound to its command: (state, now in ms)."""


def log_key(version: int) -> str:
    return f"{LOG}{version:020}.rec"


def checkpoint_key(version: int, unique: str) -> str:
    return f"{CHECKPOINTS}{version:020}-{unique}"


def checkpoint_version(key: str) -> int:
    """Version of a checkpoint's key; 0 for the empty key of a log that has none yet."""
    return int(key.removeprefix(CHECKPOINTS)[:20]) if key else 0


def data_key(epoch: int, name: str) -> str:
    return f"{DATA}{epoch:016x}/{name}"


def upload_epoch(key: str) -> int:
    """Epoch in the name of a data object."""
    return int(key.removeprefix(DATA)[:16], 16)


class View(NamedTuple):
    """A state that is on the chain, and the checkpoint that was the newest when that was confirmed."""

    checkpoint: str
    state: State


@dataclass(frozen=True, slots=True)
class Context:
    """What the protocol needs from outside."""

    clock: Clock
    rng: random.Random
    epoch: int = 0
    """Of the coordinator that this process is; 0: it is none."""
    served: bool = False
    """Changes go through a coordinator, also while there is none."""
    patience_ms: int = 30_000
    """How long a change waits for a coordinator."""

    def unique(self) -> str:
        """A random name, 64 bits."""
        return f"{self.rng.getrandbits(64):016x}"


def open_view(names: Sequence[str] | None = None, ahead: int = 0) -> Steps[View]:
    """The state at the end of the log: newest checkpoint by listing, what follows, the listing again.

    names:  a listing of the checkpoints, if there is one already; only where to begin is taken from it.
    ahead:  versions that are read in the round of the checkpoint, whose own version is in its name: for storage where
            rounds are dear and requests are cheap.
    """
    while True:
        newest = _newest((yield List(CHECKPOINTS)) if names is None else names)
        names, state, data, found = None, State(), None, list[bytes | None]()
        if ahead:
            reads: list[Op] = [Get(key) for key in ([newest] if newest else [])]
            reads += [Get(key) for key in _log_keys(checkpoint_version(newest) + 1, ahead)]
            found = yield reads
            data = found.pop(0) if newest else None
        elif newest:
            data = yield Get(newest)
        if newest:
            if data is None:
                continue
            state = decode_checkpoint(data, newest)
        view = yield from catch_up(View(newest, state), found=found, wave=8)
        if view is not None:
            return view


def state_at(version: int) -> Steps[State | None]:
    """The state at a version of a moment ago; None if that is not known any more, for a checkpoint lies beyond it."""
    newest = _newest((yield List(CHECKPOINTS)))
    while checkpoint_version(newest) <= version:
        keys = _log_keys(checkpoint_version(newest) + 1, version - checkpoint_version(newest))
        data: bytes | None = (yield Get(newest)) if newest else None
        batches = yield [Get(key) for key in keys]
        before, newest = newest, _newest((yield List(CHECKPOINTS)))
        if newest == before:  # so what was read is on the chain, as in `catch_up`
            if None in batches or (newest and data is None):
                return None
            state = State() if data is None else decode_checkpoint(data, newest)
            for key, batch in zip(keys, batches, strict=True):
                state = replay(state, decode_batch(batch, key))
            return state
    return None


def _log_keys(first: int, count: int) -> list[str]:
    return [log_key(version) for version in range(first, first + count)]


def _newest(names: Sequence[str]) -> str:
    return max(names, default="")


def catch_up(
    view: View,
    seen: dict[str, int] | None = None,
    found: Sequence[bytes | None] = (),
    together: bool = False,
    wave: int = 1,
) -> Steps[View | None]:
    """The view at the end of the log; None if a newer checkpoint lies beyond it, so that what was read may be leftovers.

    seen:      collects the versions of the batches that were read, by batch id.
    found:     objects of the versions after the view that were read already.
    together:  list the checkpoints in the round of the reads, not after them, as long as these find nothing.  What is
               carried on is on the chain either way.  But it may end before a version that was there when this began, if
               that was put into a checkpoint and deleted within the round: only for a view that is younger than the fence.
    wave:      versions that are read at a time, at first.
    """
    state, wave, names = view.state, len(found) or wave, None
    failed: SparkLogError | None = None
    while names is None:
        keys = _log_keys(state.version + 1, wave)
        if found:
            answers, found = found, ()
        else:
            far = wave >= WAVE_FAR
            reads: list[Op] = [*map(Get, keys), *([List(CHECKPOINTS)] if together or far else [])]
            answers = yield reads
            if far and not _follows(view, _newest(answers[-1])):
                return None
            if together and answers[0] is None:
                names = answers[-1]
                break
        before = state.version
        state, failed = _replayed(state, zip(keys, answers, strict=False), seen)
        if failed is not None or state.version < before + wave:
            names = yield List(CHECKPOINTS)
        wave = min(2 * wave, WAVE_MAX)
    if not _follows(view, newest := _newest(names)):
        return None
    if failed is not None:
        raise failed
    return View(newest, state)


def _replayed(
    state: State, objects: Iterable[tuple[str, bytes | None]], seen: dict[str, int] | None
) -> tuple[State, SparkLogError | None]:
    """The state after objects of the log up to the first that is absent or cannot be read, with what is wrong with that."""
    for key, data in objects:
        if data is None:
            break
        try:
            batch = decode_batch(data, key)
        except SparkLogError as error:  # it may be a leftover below a newer checkpoint: a listing tells
            return state, error
        state = replay(state, batch)
        if seen is not None:
            seen[batch.id] = state.version
    return state, None


def _follows(view: View, newest: str) -> bool:
    """Whether records read after `view` are on the chain, `newest` being the checkpoint in a listing after the reads.

    Only records at or below a checkpoint are ever deleted.  So if the newest checkpoint is not beyond the version that was
    confirmed before the reads, none of the names that were read had been free again.
    """
    return checkpoint_version(newest) <= view.state.version


def refresh(
    view: View, seen: dict[str, int] | None = None, found: Sequence[bytes | None] = (), together: bool = False
) -> Steps[View]:
    """The view at the end of the log, from this one if no checkpoint lies beyond it; arguments as of `catch_up`."""
    new = yield from catch_up(view, seen, found, together)
    if new is not None:
        return new
    if seen is not None:
        seen.clear()  # they may be leftovers: a batch of ours among them is not in
    return (yield from open_view())


def poll(view: View, relist: bool, together: bool = False) -> Steps[View]:
    """Like `refresh`, for a reader that waits: one get where nothing is new and no listing is due.

    Log records below a checkpoint are deleted some day, so a reader that only asked for the next version could wait for
    ever; it has to list once a minute (`relist`).
    """
    if relist:
        return (yield from refresh(view, together=together))
    following = yield Get(log_key(view.state.version + 1))
    if following is None:
        return view
    return (yield from refresh(view, found=[following] if together else (), together=together))


@dataclass(slots=True)
class Command:
    """A decision on its way into the log, and what became of it."""

    decide: Decide
    check: bool = False
    """It came from outside: that its records can be replayed is tried before it is believed."""
    takes_over: bool = False
    """It is about who writes the log, and counts whoever does."""
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
    decisions: list[tuple[Command, Decision[Any]]] = field(default_factory=list)


def propose(view: View, commands: Sequence[Command], context: Context) -> Steps[View]:
    """Carry out commands in one batch of records: decide, put, read back, until it is in or there is nothing to write.

    All attempts share a batch id.  A batch that is found under it, from whichever attempt, was decided on the very
    state that precedes it, so that attempt's replies hold.

    A command that is refused although it was put before, at a version that a checkpoint has swallowed since, may be in: its
    error says so (`maybe_applied`), unless it is one that invites to try again, which is raised of what is certainly not in.
    """
    unique, attempts = context.unique(), dict[int, _Attempt]()
    for _ in range(ATTEMPTS_MAX):
        if is_led_elsewhere(view.state, context) and not all(command.takes_over for command in commands):
            view = yield from _hand_over(view, commands, context, attempts.values())
        now = context.clock.now_ms()
        attempt, records = _decide_all(view.state, commands, now, attempts.values())
        if not records:
            _settle(attempt)
            return view
        attempts[view.state.version + 1] = attempt
        batch = Batch(id=unique, time=now, epoch=context.epoch, records=tuple(records))
        view, seen = yield from append(view, batch, attempt.state)
        if placed := seen.get(unique):
            _settle(attempts[placed])
            return view
        for version in seen.values():
            attempts.pop(version, None)
        yield Sleep(context.rng.random() * JITTER_MS)
    error = ConcurrentChange(
        f"no place in the metadata log after {ATTEMPTS_MAX} tries: too many busy writers for this storage"
    )
    error.maybe_applied = bool(attempts)
    raise error


def _decide_all(
    state: State, commands: Sequence[Command], now: int, unseen: Iterable[_Attempt]
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


def _refuse(command: Command, error: SparkLogError, unseen: Iterable[_Attempt]) -> None:
    if not error.retriable:
        error.maybe_applied |= command.sent
        error.maybe_applied |= any(command is put for attempt in unseen for put, _ in attempt.decisions)
    command.error, command.done = error, True


def is_led_elsewhere(state: State, context: Context) -> bool:
    """Whether changes are another process's to write."""
    return state.coordinator.in_force != context.epoch or (context.served and not context.epoch)


def _hand_over(view: View, commands: Sequence[Command], context: Context, unseen: Iterable[_Attempt]) -> Steps[View]:
    """Have the coordinator carry out what is not done; the view with it.

    While nobody answers the log is looked at for another coordinator, or for a release, after which it is the caller's.
    A command whose answer was lost is sent again: it knows itself again, or its refusal says that it may be in.
    """
    clock, wait = context.clock, ASK_AGAIN_MS
    deadline = clock.monotonic_ms() + context.patience_ms
    while is_led_elsewhere(view.state, context):
        waiting = [command for command in commands if not command.done]
        asked = Ask(view.state.coordinator, [command.decide for command in waiting], view.state.version)
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
            view = yield from refresh(view)
            continue
        for command, outcome in zip(waiting, answered.outcomes, strict=True):
            if isinstance(outcome, SparkLogError):
                _refuse(command, outcome, unseen)
            else:
                command.reply, command.done = outcome, True
        try:
            return (yield from follow(view, answered))
        except StorageUnavailable:
            # It is done.  Who goes on from this view asks the coordinator again, or reads the log first: from one of before the
            # coordinator led, the next change would be decided here, without what was just done.
            return view
    return view


def unanswered(error: SparkLogError, sent: bool) -> SparkLogError:
    """What a change is refused with that no coordinator has answered."""
    if not sent:
        return CoordinatorNotAvailable(str(error))
    unknown = CommitUnknown(f"no answer from a coordinator to a change, it may be in: {error}")
    unknown.__cause__ = error
    return unknown


def follow(view: View, told: Answered | Changes) -> Steps[View]:
    """The view with what the coordinator told of the log, or read from the storage if that was nothing."""
    if told.state is not None:
        return View(view.checkpoint, told.state)
    if not told.batches:
        return (yield from _skip_on(view))
    state = view.state
    for data in told.batches:
        state = replay(state, decode_batch(data, log_key(state.version + 1)))
    return View(view.checkpoint, state)


def _skip_on(view: View) -> Steps[View]:
    """Like `refresh`, for a view that is far behind: what a newer checkpoint has is not read record by record."""
    names = yield List(CHECKPOINTS)
    if _follows(view, _newest(names)):
        return (yield from refresh(view))
    return (yield from open_view(names))


def _settle(attempt: _Attempt) -> None:
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
    answer = yield PutNew(key, data)
    if answer is Answer.CREATED:
        reads: list[Op] = [Get(key), List(CHECKPOINTS)]
        found, names = yield reads
        if found == data and _follows(view, newest := _newest(names)):
            counts = batch.epoch == view.state.coordinator.in_force
            state = end_version(view.state, batch, decided) if counts else replay(view.state, batch)
            return View(newest, state), {batch.id: view.state.version + 1}
    seen: dict[str, int] = {}
    view = yield from refresh(view, seen)
    return view, seen


def check_chain(view: View, names: Sequence[str]) -> None:
    """Raises CorruptObject if a version is missing after the newest checkpoint, among the records that there are.

    names: a listing of `meta/log/` that began after the view was read; what was committed in between is no hole.
    """
    versions = {int(name.removeprefix(LOG)[:20]) for name in names}
    end = max(versions | {view.state.version})
    missing = [v for v in range(checkpoint_version(view.checkpoint) + 1, end + 1) if v not in versions]
    if missing:
        raise CorruptObject(
            f"the metadata log has a hole: versions {missing[:5]} are missing between the newest checkpoint "
            f"{view.checkpoint or '(none)'} and version {end}"
        )
