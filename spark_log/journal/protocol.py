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

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
from spark_log.journal.limits import LIMITS, Limits
from spark_log.journal.ops import Answer, Answered, Ask, Changes, Delete, Get, List, Op, PutNew, Sleep, Steps
from spark_log.journal.reserve import makes_room, with_reserve
from spark_log.metadata.checkpoint import decode_checkpoint
from spark_log.metadata.decide import Decision
from spark_log.metadata.records import AnyRecord, Batch, decode_batch, encode_batch, first_line
from spark_log.metadata.replay import end_version, next_version, replay, replay_records
from spark_log.metadata.state import State
from spark_log.threads import SYSTEM_THREADS, Threads

META = "meta/"
LOG = "meta/log/"
CHECKPOINTS = "meta/ckpt/"
DATA = "data/"
PINS = "meta/pin/"
"""Of Spark queries (`pyspark_pylog/pins.py`), and of clock checks."""
KEPT_CHECKPOINTS = 2
HOLE_PROBES = (1, 2, 4, 8, 16, 32, 64)
"""Distances after the first absent version at which a log that is opened is probed for records: none may be there."""
REPAIR = "stop all writers and run `pylog repair --dry-run`"
WAVE_MAX = 64
"""Versions that are read ahead in parallel."""
WAVE_FAR = 32
"""From waves of so many on it is looked whether a checkpoint lies ahead: what is behind it need not be read."""
ATTEMPTS_MAX = 200
JITTER_MS = 20
STALLED_TRIES = 14
"""Puts in a row that are not in, though nothing else took their version: waits double from the fourth on, to about 20 s in all."""
ASK_MS_MIN = 1000
"""An answer is waited for so long at least: without it, the outcome is not known."""
ASK_AGAIN_MS = 50
ASK_AGAIN_MS_MAX = 1000
"""Waits between two tries to reach a coordinator, at first and at last; up to twice as long, by chance."""

logger = logging.getLogger("spark_log")

Decide = Callable[[State, int], Decision[Any]]
"""A decision bound to its command: (state, now in ms)."""


def log_key(version: int) -> str:
    return f"{LOG}{version:020}.rec"


def log_version(key: str) -> int:
    return int(key.removeprefix(LOG)[:20])


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
    """A state that is on the chain, and the newest checkpoint, damaged ones aside, when that was confirmed."""

    checkpoint: str
    state: State
    damaged: frozenset[str] = frozenset()
    """Checkpoints that could not be read here."""
    head: bytes = b""
    """First line of the record of its version, by which the log is known again; empty: not known here."""

    def moved(self, state: State, names: Sequence[str], head: bytes) -> View:
        """The view with another state, confirmed by a listing of checkpoints."""
        return View(_newest([name for name in names if name not in self.damaged]), state, self.damaged, head)


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
    limits: Limits = LIMITS
    threads: Threads = SYSTEM_THREADS

    def random(self) -> random.Random:
        """A generator of its own for somebody who draws many numbers, and none that others must not guess."""
        return random.Random(self.rng.getrandbits(64))

    def unique(self) -> str:
        """A random name, 64 bits."""
        return f"{self.rng.getrandbits(64):016x}"


def open_view(names: Sequence[str] | None = None, ahead: int = 0) -> Steps[View]:
    """The state at the end of the log: newest checkpoint by listing, what follows, the listing again.

    names:  a listing of the checkpoints, if there is one already; only where to begin is taken from it.
    ahead:  versions that are read in the round of the checkpoint, whose own version is in its name: for storage where
            rounds are dear and requests are cheap.
    """
    absent: set[str] = set()
    while True:
        listed = (yield List(CHECKPOINTS)) if names is None else names
        names = None
        base = yield from _load(listed, ahead, absent)
        if base is None:
            continue
        view = yield from catch_up(base.view, found=base.found, wave=8, base=base)
        if view is not None and (listed or view.state.version or (yield from _is_new())):
            return view


class Base(NamedTuple):
    """The checkpoint from which a log is opened, or the empty state."""

    view: View
    newest: tuple[str, ...] = ()
    """The newest two checkpoints, as they were listed before it was read."""
    found: Sequence[bytes | None] = ()
    """Objects of the versions after it."""


def _load(names: Sequence[str], ahead: int, absent: set[str]) -> Steps[Base | None]:
    """The newest checkpoint that can be read, out of the newest two; None if there are others by now.

    absent:  collects checkpoints that were gone: one that is listed again is damaged.
    Raises CorruptObject if both are damaged, UnsupportedVersion for a newer format.
    """
    newest = tuple(names[-KEPT_CHECKPOINTS:])
    damaged: dict[str, CorruptObject] = {}
    for name in (*reversed(newest), *([""] if len(newest) < KEPT_CHECKPOINTS else [])):
        first = 0 if damaged else ahead
        reads: list[Op] = [Get(name)] if name else []
        reads += [Get(key) for key in _log_keys(checkpoint_version(name) + 1, first)]
        found = yield reads
        data = found.pop(0) if name else None
        if name and data is None and name not in absent:
            absent.add(name)
            return None
        try:
            state = state_in(data, name)
        except CorruptObject as error:
            damaged[name] = error
            continue
        for why in damaged.values():
            logger.warning(
                "a checkpoint cannot be read, the log is opened from %s: %s", name or "its first record", why
            )
        return Base(View(name, state, frozenset(damaged)), newest, found)
    if tuple((yield List(CHECKPOINTS))[-KEPT_CHECKPOINTS:]) != newest:
        return None
    raise CorruptObject(f"{'; '.join(str(error) for error in damaged.values())}; {REPAIR}")


def state_in(data: bytes | None, name: str) -> State:
    """The state in a checkpoint.  Raises CorruptObject for bytes that are not the checkpoint of this name."""
    if not name:
        return State()
    if data is None:
        raise CorruptObject(f"{name} is listed, and cannot be read")
    state = decode_checkpoint(data, name)
    if state.version != checkpoint_version(name):
        raise CorruptObject(f"{name} is damaged: it holds the state of version {state.version}")
    return state


def _is_new() -> Steps[bool]:
    """Whether a log in which neither a checkpoint nor version 1 was found has no records; False: there are some by now.

    Raises CorruptObject for a log that has lost its beginning and all checkpoints.
    """
    records: list[str] = yield List(LOG)
    if records and records[0] != log_key(1) and not (yield List(CHECKPOINTS)):
        raise CorruptObject(f"{CHECKPOINTS} is empty, and the metadata log begins with {records[0]}; {REPAIR}")
    return not records


def state_at(version: int) -> Steps[State | None]:
    """The state at a version of a moment ago; None if that is not known any more, for a checkpoint lies beyond it."""
    names = yield List(CHECKPOINTS)
    absent: set[str] = set()
    while checkpoint_version(_newest(names)) <= version:
        base = yield from _load(names, 0, absent)
        if base is None:
            names = yield List(CHECKPOINTS)
            continue
        state = base.view.state
        keys = _log_keys(state.version + 1, version - state.version)
        batches = yield [Get(key) for key in keys]
        names = yield List(CHECKPOINTS)
        if tuple(names[-KEPT_CHECKPOINTS:]) == base.newest:  # so what was read is on the chain, as in `catch_up`
            if None in batches:
                return None
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
    base: Base | None = None,
) -> Steps[View | None]:
    """The view at the end of the log; None if a newer checkpoint lies beyond it, so that what was read may be leftovers.

    seen:      collects the versions of the batches that were read, by batch id.
    found:     objects of the versions after the view that were read already.
    together:  list the checkpoints in the round of the reads, not after them, as long as these find nothing.  What is
               carried on is on the chain either way.  But it may end before a version that was there when this began, if
               that was put into a checkpoint and deleted within the round: only for a view that is younger than the fence.
    wave:      versions that are read at a time, at first.
    base:      from which the log is being opened: records beyond the end are looked for as well.
    Raises CorruptObject for a record that is damaged or missing.
    """
    state, head, wave, names = view.state, view.head, len(found) or wave, None
    last: Sequence[bytes | None] = ()
    failed: SparkLogError | None = None
    while names is None:
        keys = _log_keys(state.version + 1, wave)
        if found:
            answers, found = found, ()
        else:
            far = wave >= WAVE_FAR
            reads: list[Op] = [*map(Get, keys), *(_confirming(view) if together or far else [])]
            answers = yield reads
            if far and not _is_confirmed(view, answers[-1], base):
                return None
            if together and answers[0] is None:
                *last, names = answers[wave:]
                break
        before = state.version
        state, head, failed = _replayed(state, head, zip(keys, answers, strict=False), seen)
        ended = failed is not None or state.version < before + wave
        if ended and failed is None and base is not None:
            names = yield from _list_beyond(state.version, view, base)
        elif ended:
            *last, names = yield _confirming(view)
        wave = min(2 * wave, WAVE_MAX)
    if not _is_confirmed(view, names, base):
        return None
    if failed is not None:
        raise _unreadable(failed)
    if base is not None:
        _check_reached(state.version, base)
    elif not (yield from _is_same_log(view, names, last)):
        return None
    return view.moved(state, names, head)


def _confirming(view: View) -> list[Op]:
    """Reads the start of the record of the view's version, by which the log is known again, and lists the checkpoints."""
    first = [Get(log_key(view.state.version), 0, len(view.head))] if view.head else []
    return [*first, List(CHECKPOINTS)]


def _is_same_log(view: View, names: Sequence[str], last: Sequence[bytes | None]) -> Steps[bool]:
    """Whether the log is still the one that the view is of.

    False: it is to be opened anew. An older copy was restored, and has come as far as the view by now, or that is not known.
    Raises CorruptObject if the restored copy has not come as far: what this process wrote is not in it.

    last:  the start of the record of the view's version, as it is now; none if it was not asked for.
    """
    version = view.state.version
    if last and last[0] != view.head:
        newest = yield from _newest_from(view)
        if newest is not None:
            return newest == view.checkpoint
        if last[0] is None:
            raise _restored(f"version {version} was")
        logger.warning(
            "version %d is not what it was: an older copy of the log was restored, which is opened anew", version
        )
        return False
    if not _went_back(view, names):
        return True
    reads: list[Op] = [Get(log_key(version)), Get(view.checkpoint, 0, 1)]
    record, known = yield reads
    if record is None and known is None:
        raise _restored(f"version {version} and {view.checkpoint} were")
    if known is None:
        logger.warning("%s is gone: an older copy of the log was restored, which is opened anew", view.checkpoint)
    return known is not None


def _newest_from(view: View) -> Steps[str | None]:
    """The newest checkpoint, if it is at or beyond the view's version.

    If none is, nobody has deleted the record of that version: whoever does has seen two such checkpoints, and they stay.
    """
    newest = _newest((yield List(CHECKPOINTS)))
    return newest if checkpoint_version(newest) >= view.state.version else None


def _restored(what: str) -> CorruptObject:
    return CorruptObject(
        f"{what} in the log, and not any more: an older copy of the log was restored; end this process, and compare what it "
        "wrote with what the log has"
    )


def _list_beyond(version: int, view: View, base: Base) -> Steps[Sequence[str] | None]:
    """The checkpoints, listed after version + 1 was found absent; None if there is such a version by now.

    Raises CorruptObject if there is none although records follow: each was put when the one before it was there.
    """
    probes = [log_key(version + 1 + distance) for distance in HOLE_PROBES]
    reads: list[Op] = [List(CHECKPOINTS), *map(Get, probes)]
    names, *found = yield reads
    beyond = next((key for key, data in zip(probes, found, strict=True) if data is not None), None)
    if beyond is None:
        return names
    if (yield Get(log_key(version + 1))) is not None:
        return None
    names = yield List(CHECKPOINTS)
    if _is_confirmed(view, names, base):
        raise CorruptObject(f"{log_key(version + 1)} is missing, and {beyond} is there; {REPAIR}")
    return names


def _is_confirmed(view: View, names: Sequence[str], base: Base | None) -> bool:
    """Whether records that were read after `view`, before this listing, are on the chain."""
    if _follows(view, _newest(names)):
        return True
    return base is not None and bool(view.damaged) and tuple(names[-KEPT_CHECKPOINTS:]) == base.newest


def _went_back(view: View, names: Sequence[str]) -> bool:
    """Whether a checkpoint that was known is not in a listing, though two newer ones are neither: it is stale, or the log was restored.

    By name, as a restored log may have come to other checkpoints at the same versions.
    """
    known = view.checkpoint
    return bool(known) and known not in names and sum(name > known for name in names) < KEPT_CHECKPOINTS


def _check_reached(version: int, base: Base) -> None:
    """Raises CorruptObject if the log ends before its newest checkpoint, which is damaged."""
    newest = base.newest[-1] if base.newest else ""
    if version < checkpoint_version(newest):
        raise CorruptObject(f"{newest} cannot be read, and {log_key(version + 1)}, before it, is missing; {REPAIR}")


def _unreadable(error: SparkLogError) -> SparkLogError:
    return CorruptObject(f"{error}; {REPAIR}") if isinstance(error, CorruptObject) else error


def _replayed(
    state: State, head: bytes, objects: Iterable[tuple[str, bytes | None]], seen: dict[str, int] | None
) -> tuple[State, bytes, SparkLogError | None]:
    """The state after objects of the log up to the first that is absent or cannot be read, the first line of the last one,
    and what is wrong with the one that cannot be read."""
    for key, data in objects:
        if data is None:
            break
        try:
            batch = decode_batch(data, key)
        except SparkLogError as error:  # it may be a leftover below a newer checkpoint: a listing tells
            return state, head, error
        state, head = replay(state, batch), first_line(data)
        if seen is not None:
            seen[batch.id] = state.version
    return state, head, None


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
    ever: it has to list once a minute, and whenever it did not list for as long as records are kept (`relist`).
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
    decisions: list[tuple[Command, Decision[Any]]] = field(default_factory=list)


def propose(view: View, commands: Sequence[Command], context: Context) -> Steps[View]:
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
            _settle(attempt)
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
            _settle(attempts[placed])
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


def _has_time(command: Command, pause_ms: float, deadline_ms: float, clock: Clock) -> bool:
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


def follow(view: View, told: Answered | Changes) -> Steps[View]:
    """The view with what the coordinator told of the log, or read from the storage if that was nothing."""
    if told.state is not None:
        return view._replace(state=told.state, head=b"")
    if not told.batches:
        return (yield from _skip_on(view))
    state = view.state
    for data in told.batches:
        state = replay(state, decode_batch(data, log_key(state.version + 1)))
    return view._replace(state=state, head=first_line(told.batches[-1]))


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
    put = PutNew(key, data)
    answer = (yield from with_reserve(put)) if makes_room(batch.records) else (yield put)
    try:
        if answer is Answer.CREATED:
            reads: list[Op] = [Get(key), *_confirming(view)]
            found, *last, names = yield reads
            counts = batch.epoch == view.state.coordinator.in_force
            state = end_version(view.state, batch, decided) if counts else replay(view.state, batch)
            known = not last or last == [view.head]
            if found == data and known and _follows(view, _newest(names)) and not _went_back(view, names):
                return view.moved(state, names, first_line(data)), {batch.id: view.state.version + 1}
            if None in last and (yield from _newest_from(view)) is None:
                yield Delete([key])  # it would be taken for the restored log's when that has come as far
                raise _restored(f"version {view.state.version} was")
        seen: dict[str, int] = {}
        view = yield from refresh(view, seen)
    except (StorageError, CorruptObject) as error:
        error.maybe_applied = True
        raise
    return view, seen


def check_chain(view: View, names: Sequence[str]) -> None:
    """Raises CorruptObject if a version is missing after the newest checkpoint, among the records that there are.

    names: a listing of `meta/log/` that began after the view was read; what was committed in between is no hole.
    """
    versions = {log_version(name) for name in names}
    end = max(versions | {view.state.version})
    missing = [v for v in range(checkpoint_version(view.checkpoint) + 1, end + 1) if v not in versions]
    if missing:
        raise CorruptObject(
            f"the metadata log has a hole: versions {missing[:5]} are missing between the newest checkpoint "
            f"{view.checkpoint or '(none)'} and version {end}"
        )
