"""Opening and following a log: the newest checkpoint, the records after it, and a listing that confirms them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_log.errors import CorruptObject, SparkLogError
from spark_log.journal.storage.beyond_the_end import is_of_lost_log, listed_beyond
from spark_log.journal.storage.log_identity import LogIdentity, check_is_there, restored_error
from spark_log.journal.store_operations import Answered, Changes, Get, List, Op, Steps
from spark_log.log_lines import logger
from spark_log.metadata.formats.batch_format import decode_batch, first_line
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint
from spark_log.metadata.lines import follows, has_line_of
from spark_log.metadata.records import Batch, FenceRecord
from spark_log.metadata.replay import is_of_other_log, replay
from spark_log.metadata.restores import record_id, seen_in, was_set_back
from spark_log.metadata.set_backs import following, replaced
from spark_log.metadata.state import State
from spark_log.store.object_names import CHECKPOINTS, FORMAT_KEY, LOG, checkpoint_version, log_key

KEPT_CHECKPOINTS = 2
HOLE_PROBES = (1, 2, 4, 8, 16, 32, 64)
"""Distances after the first absent version at which opening a log probes for records: none may exist."""
REPAIR = "stop all writers and run `pylog repair --dry-run`"
WAVE_MAX = 64
"""Maximum number of versions that are read ahead in parallel."""
READ_TOGETHER = 1000
"""Records before a version that are read in parallel."""
PEEK = 8
"""Versions that a peek reads in its first round."""
WAVE_FAR = 32
"""From this wave size on, check for a newer checkpoint: the records before it need not be read."""


class Unconfirmed(NamedTuple):
    """The end of the log as read after a view, before any listing has confirmed the records between.

    None of them moves the fence.  A change may be decided on this state: its read-back confirms both, or neither
    (docs/decisions/0054-unconfirmed-reads.md).
    """

    state: State
    head: bytes
    """First line of the last record."""


class View(NamedTuple):
    """A state that is on the chain, and the newest intact checkpoint when that was confirmed."""

    checkpoint: str
    state: State
    damaged: frozenset[str] = frozenset()
    """Checkpoints that this process could not read."""
    head: bytes = b""
    """First line of the record of its version, which identifies the log; empty if not known."""
    listed_ms: float = -math.inf
    """When a reader last listed the checkpoints, at the latest, on the monotonic clock (`storage_log.py`)."""
    unconfirmed: Unconfirmed | None = None
    """Records that `peek` has found after the state."""
    log: LogIdentity | None = None
    """None: not known; then nobody notices that the storage has another log."""
    before: bytes = b""
    """First line of the record before that: if a folder is deleted while a process writes, its last record may stay."""
    in_line_ms: float = -math.inf
    """When this process last knew that the log has the records of the view's line, on the monotonic clock."""

    @property
    def newest(self) -> State:
        """The state on which the next change is decided."""
        return self.state if self.unconfirmed is None else self.unconfirmed.state

    @property
    def held(self) -> None:
        """The state is the whole one."""
        return None

    @property
    def heads(self) -> list[tuple[int, bytes]]:
        """Versions with the first lines of their records, which identify the log."""
        known = [(self.state.version, self.head)] if self.head else []
        if self.before and self.log is not None and self.log.is_direct:
            known.append((self.state.version - 1, self.before))
        return known if self.unconfirmed is None else [*known, (self.newest.version, self.unconfirmed.head)]

    def moved(self, state: State, names: Sequence[str], heads: tuple[bytes, bytes]) -> View:
        """The view with another state, confirmed by a listing of checkpoints.

        heads:  `before` and `head`.
        """
        newest = newest_checkpoint([name for name in names if name not in self.damaged])
        return self._replace(checkpoint=newest, state=state, before=heads[0], head=heads[1], unconfirmed=None)


def open_view(names: Sequence[str] | None = None, ahead: int = 0) -> Steps[View]:
    """The state at the end of the log: read the newest checkpoint and the records after it, then list checkpoints
    again.

    names:  an earlier listing of the checkpoints; it only determines where to begin.
    ahead:  number of versions to read together with the checkpoint, whose version is in its name: for storage with slow
            and cheap requests.
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
    """The newest two checkpoints, as listed before it was read."""
    found: Sequence[bytes | None] = ()
    """Objects of the versions after it that were read."""


def _load(names: Sequence[str], ahead: int, absent: set[str]) -> Steps[Base | None]:
    """The newest readable checkpoint of the newest two; None if newer ones exist by now.

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
            logger.warning("a checkpoint cannot be read, opening the log from %s: %s", name or "its first record", why)
        return Base(View(name, state, frozenset(damaged)), newest, found)
    if tuple((yield List(CHECKPOINTS))[-KEPT_CHECKPOINTS:]) != newest:
        return None
    raise CorruptObject(f"{'; '.join(map(str, damaged.values()))}; {REPAIR}")


def state_in(data: bytes | None, name: str) -> State:
    """Decode the checkpoint `name`.  Raises CorruptObject for other bytes."""
    if not name:
        return State()
    if data is None:
        raise CorruptObject(f"{name} is listed, but cannot be read")
    if (state := decode_checkpoint(data, name)).version != checkpoint_version(name):
        raise CorruptObject(f"{name} is damaged: it holds the state of version {state.version}")
    return state


def _is_new() -> Steps[bool]:
    """Whether a log without checkpoints and version 1 has no records; False: it has some by now.

    Raises CorruptObject for a log that has lost its beginning and all checkpoints.
    """
    records: list[str] = yield List(LOG)
    if records and records[0] != log_key(1) and not (yield List(CHECKPOINTS)):
        raise CorruptObject(f"{CHECKPOINTS} is empty, and the metadata log begins with {records[0]}; {REPAIR}")
    return not records


def state_at(version: int) -> Steps[State | None]:
    """The state at a recent version; None if it cannot be rebuilt, because it is before the newest two checkpoints."""
    names = yield List(CHECKPOINTS)
    absent: set[str] = set()
    while was_kept(version + 1, names):
        earlier = [name for name in names[-KEPT_CHECKPOINTS:] if checkpoint_version(name) <= version]
        base = yield from _load(earlier, 0, absent)
        batches = [] if base is None else (yield from _records_to(base.view.state.version + 1, version))
        names = yield List(CHECKPOINTS)
        if base is None:
            continue
        state = base.view.state
        if was_kept(state.version + 1, names):  # so these reads are on the chain
            if None in batches:
                return None
            for data in filter(None, batches):
                state = replay(state, decode_batch(data, log_key(state.version + 1)))
            return state
        if base.view.damaged:
            return None
    return None


def _records_to(first: int, last: int) -> Steps[list[bytes | None]]:
    """The records of versions.  They end with those that were read together with a missing one: `last` may be any
    number, behind the end of the log.
    """
    found: list[bytes | None] = []
    while first <= last and None not in found[-READ_TOGETHER:]:
        some: list[bytes | None] = yield [Get(key) for key in _log_keys(first, min(READ_TOGETHER, last + 1 - first))]
        found += some
        first += READ_TOGETHER
    return found


def _log_keys(first: int, count: int) -> list[str]:
    return [log_key(version) for version in range(first, first + count)]


def newest_checkpoint(names: Sequence[str]) -> str:
    return max(names, default="")


def catch_up(
    view: View,
    seen: dict[str, int] | None = None,
    found: Sequence[bytes | None] = (),
    together: bool = False,
    wave: int = 1,
    base: Base | None = None,
    peek: bool = False,
    changed: dict[int, bool] | None = None,
) -> Steps[View | None]:
    """The view at the end of the log; None if a newer checkpoint exists, so that the reads may be leftovers.

    seen:      collects the versions of the batches that were read, by batch id.
    found:     objects of the versions after the view that were read already.
    together:  list the checkpoints in parallel with the reads, not after them, as long as these find nothing.  The
               result is on the chain in both cases.  It may end before a version that a checkpoint replaced within the
               round: only for a view that is younger than the fence.
    wave:      number of versions to read at a time, at first.
    base:      the checkpoint from which the log is being opened: this also looks for records beyond the end.
    peek:      leave the records that are found unconfirmed, unless one of them moves the fence.
    changed:   collects the view's version if another record has it by now, and whether none of its name was deleted:
               then the log was set back, or restored.  It collects -1 if a record does not follow the view.
    Raises CorruptObject for a record that is damaged or missing, LogRestored if an older copy of the log was restored.
    """
    view = view._replace(unconfirmed=None)
    state, heads, wave, names = view.state, (view.before, view.head), len(found) or wave, None
    last: Sequence[bytes | None] = ()
    failed: SparkLogError | None = None
    while names is None:
        keys = _log_keys(state.version + 1, wave)
        if found:
            answers, found = found, ()
        else:
            far = wave >= WAVE_FAR
            reads: list[Op] = [*map(Get, keys), *(confirming_reads(view) if together or far else [])]
            answers = yield reads
            if far and not _is_confirmed(view, answers[-1], base):
                _note_change(changed, view, answers[wave:-1], answers[-1])
                return None
            if together and answers[0] is None:
                *last, names = answers[wave:]
                break
        before = state.version
        state, heads, failed, fenced, in_order = _replayed(state, heads, zip(keys, answers, strict=False), seen)
        if base is None and not in_order:  # the records before the view may be others by now
            if changed is not None:
                changed[-1] = False
            return None
        peek &= not fenced and failed is None
        ended = failed is not None or state.version < before + wave
        if ended and peek and state is not view.state:
            return view._replace(unconfirmed=Unconfirmed(state, heads[1]))
        if ended and failed is None and base is not None:
            names = yield from _list_beyond(state, view, base)
        elif ended:
            *last, names = yield confirming_reads(view)
        wave = min(2 * wave, WAVE_MAX)
    _note_change(changed, view, last, names)
    if not _is_confirmed(view, names, base):
        return None
    if failed is not None:
        raise CorruptObject(f"{failed}; {REPAIR}") if isinstance(failed, CorruptObject) else failed
    is_there = yield from _is_still_there(view, state, names, last, base)
    return view.moved(state, names, heads) if is_there else None


def _is_still_there(
    view: View, state: State, names: Sequence[str], last: Sequence[bytes | None], base: Base | None
) -> Steps[bool]:
    """Whether the log that was read up to a state was not replaced meanwhile."""
    if base is None:
        return (yield from _is_same_log(view, names, last))
    if went_back(view, names):
        return False  # another copy of the log was restored, with other checkpoints
    _check_reached(state.version, base)
    return True


def _note_change(
    changed: dict[int, bool] | None, view: View, last: Sequence[bytes | None], names: Sequence[str]
) -> None:
    """Note whether another record has the version of the view, and whether none with its name could be deleted."""
    is_other = bool(view.head and last) and last[0] not in (None, view.head)
    if changed is not None and is_other:
        changed[view.state.version] = was_kept(view.state.version, names)


def was_kept(version: int, names: Sequence[str]) -> bool:
    """Whether the record of a version was there until now.

    After it has been deleted, a put that comes late may take its name: that file is not a record of the log.
    names:  the checkpoints, listed after the look at the record.
    """
    return len(names) < KEPT_CHECKPOINTS or version > checkpoint_version(names[-KEPT_CHECKPOINTS])


def confirming_reads(view: View) -> list[Op]:
    """Reads the starts of the records that identify the log, and lists the checkpoints."""
    return [*(Get(log_key(version), 0, len(head)) for version, head in view.heads), List(CHECKPOINTS)]


def check_same_log(view: View) -> Steps[list[str]]:
    """The checkpoints.  Raises LogRestored, or WrongRoot, if the storage has another log than that of the view.

    The record of the view's version identifies the log, or the known checkpoint if `head` is not known.  Either is
    deleted only after two later checkpoints, which are kept: another log that has two is not noticed.
    """
    if not view.heads:
        return (yield from _check_has_checkpoint(view))
    *last, names = yield confirming_reads(view)
    gone = _changed(view, last)
    if not gone:
        return [*names]
    names = yield List(CHECKPOINTS)
    if sum(checkpoint_version(name) >= gone for name in names) < KEPT_CHECKPOINTS:
        yield from check_is_there(view.log)
        raise restored_error(f"version {gone}")
    return [*names]


def _check_has_checkpoint(view: View) -> Steps[list[str]]:
    if not view.checkpoint:
        return (yield List(CHECKPOINTS))
    found, names = yield [Get(view.checkpoint, 0, 1), List(CHECKPOINTS)]
    if found is not None:
        return [*names]
    names = yield List(CHECKPOINTS)
    if sum(name > view.checkpoint for name in names) < KEPT_CHECKPOINTS:
        yield from check_is_there(view.log)
        raise restored_error(f"version {view.state.version}")
    return [*names]


def _changed(view: View, last: Sequence[bytes | None]) -> int:
    """The newest version of a view with another record by now, or none; 0: there is no such version.

    last:  what `confirming_reads` has read of the records.
    """
    pairs = zip(view.heads, last, strict=False)
    return max((version for (version, head), start in pairs if start != head), default=0)


def _is_same_log(view: View, names: Sequence[str], last: Sequence[bytes | None]) -> Steps[bool]:
    """Whether the log is still the log of the view.

    False: open it again.  An older copy was restored, and has reached the view's version by now, or that is not known.
    Raises LogRestored if the restored copy has not reached it: commits of this process are not in it.  Raises WrongRoot
    as `check_is_there` does.

    last:  the starts of the records of the view's last versions, read again; empty if they were not read.
    """
    version = view.state.version
    if changed := _changed(view, last):
        yield from check_is_there(view.log)
        newest = yield from newest_checkpoint_from(changed)
        if newest is not None:
            return newest == view.checkpoint
        if last[0] is None or last[-1] is None:
            raise restored_error(f"version {changed}")
        logger.warning("version %d has changed: an older copy of the log was restored, opening it again", version)
        return False
    if not went_back(view, names):
        return True
    yield from check_is_there(view.log)
    record, known = yield [Get(log_key(version)), Get(view.checkpoint, 0, 1)]
    if record is None and known is None:
        raise restored_error(f"version {version} and {view.checkpoint}")
    if known is None:
        logger.warning("%s is gone: an older copy of the log was restored, opening it again", view.checkpoint)
    return known is not None


def newest_checkpoint_from(version: int) -> Steps[str | None]:
    """The newest checkpoint, if it is at or beyond a version.

    Otherwise the record of that version still exists: a writer deletes it only after two such checkpoints, which are
    kept.
    """
    newest = newest_checkpoint((yield List(CHECKPOINTS)))
    return newest if checkpoint_version(newest) >= version else None


def _list_beyond(state: State, view: View, base: Base) -> Steps[Sequence[str] | None]:
    """The checkpoints, listed after the version that follows the state was found absent; None if it exists by now.

    Raises CorruptObject if it does not although later records exist: each was put after the one before it.  A record
    that a client of a lost log has left does not count.
    """
    following = log_key(state.version + 1)
    probes = [log_key(state.version + 1 + distance) for distance in HOLE_PROBES]
    names, *found = yield [List(CHECKPOINTS), *map(Get, probes)]
    there = [(key, data) for key, data in zip(probes, found, strict=True) if data is not None]
    beyond = next((key for key, data in there if not is_of_lost_log(state, data, key)), None)
    if beyond is None:
        return names
    if (yield Get(following)) is not None:
        return None
    later = yield from listed_beyond(state)
    if following in later.chain:
        return None
    if later.chain and _is_confirmed(view, names := (yield List(CHECKPOINTS)), base):
        raise CorruptObject(f"{following} is missing, but {later.chain[0]} exists; {REPAIR}")
    return names


def _is_confirmed(view: View, names: Sequence[str], base: Base | None) -> bool:
    """Whether records that were read after `view`, before this listing, are on the chain."""
    if follows_checkpoint(view, newest_checkpoint(names)):
        return True
    return base is not None and bool(view.damaged) and tuple(names[-KEPT_CHECKPOINTS:]) == base.newest


def went_back(view: View, names: Sequence[str]) -> bool:
    """Whether a listing lacks both a known checkpoint and two newer ones: it is stale, or the log was restored.

    Compares names, because a restored log may reach other checkpoints at the same versions.
    """
    known = view.checkpoint
    return bool(known) and known not in names and sum(name > known for name in names) < KEPT_CHECKPOINTS


def _check_reached(version: int, base: Base) -> None:
    """Raises CorruptObject if the log ends before its newest checkpoint, which is damaged."""
    newest = base.newest[-1] if base.newest else ""
    if version < checkpoint_version(newest):
        raise CorruptObject(f"{newest} cannot be read, and {log_key(version + 1)}, before it, is missing; {REPAIR}")


class _Replayed(NamedTuple):
    """Objects of the log, up to the first that is absent or unreadable."""

    state: State
    """After them."""
    heads: tuple[bytes, bytes]
    """First lines of the last two."""
    failed: SparkLogError | None
    """The error of the unreadable one."""
    fenced: bool
    """Whether a record moves the fence, be it void or not."""
    follows: bool = True
    """Whether each follows the state before it: otherwise it is not of this log, or that state is not."""


def _replayed(
    state: State, heads: tuple[bytes, bytes], objects: Iterable[tuple[str, bytes | None]], seen: dict[str, int] | None
) -> _Replayed:
    fenced, in_order = False, True
    for key, data in objects:
        if data is None:
            break
        try:
            batch = decode_batch(data, key)
        except SparkLogError as error:  # it may be a leftover below a newer checkpoint: a listing decides
            return _Replayed(state, heads, error, fenced, in_order)
        in_order &= follows(state, batch)
        state, heads = replay(state, batch), (heads[1], first_line(data))
        fenced |= moves_fence(batch)
        if seen is not None:
            seen[batch.id] = state.version
    return _Replayed(state, heads, None, fenced, in_order)


def moves_fence(batch: Batch) -> bool:
    """Whether a batch has a fence, without which no record of the log is deleted."""
    return any(isinstance(record, FenceRecord) for record in batch.records)


def follows_checkpoint(view: View, newest: str) -> bool:
    """Whether records read after `view` are on the chain, `newest` being the newest checkpoint of a later listing.

    Only records at or below a checkpoint are ever deleted.  So if the newest checkpoint is not beyond the version that
    was confirmed before the reads, no name that was read had been deleted and taken again.
    """
    return checkpoint_version(newest) <= view.state.version


def refresh(
    view: View, seen: dict[str, int] | None = None, found: Sequence[bytes | None] = (), together: bool = False
) -> Steps[View]:
    """The view at the end of the log, from this one if no newer checkpoint exists; arguments as of `catch_up`."""
    changed = dict[int, bool]()
    new = yield from catch_up(view, seen, found, together, changed=changed)
    return new if new is not None else (yield from open_again(view, seen, changed))


def peek(view: View) -> Steps[View]:
    """Like `refresh`, but the view may end before records that it has read and not confirmed: one round of requests."""
    changed = dict[int, bool]()
    new = yield from catch_up(view, together=True, wave=PEEK, peek=True, changed=changed)
    return new if new is not None else (yield from open_again(view, changed=changed))


def open_again(
    view: View, seen: dict[str, int] | None = None, changed: Mapping[int, bool] | None = None
) -> Steps[View]:
    """Raises WrongRoot as `check_is_there` does.

    changed:  as `catch_up` has collected it.
    """
    if seen is not None:
        seen.clear()  # they may be leftovers: no batch of ours among them is applied
    yield from check_is_there(view.log)
    return _continued(view, (yield from open_view()), changed)


def _continued(view: View, opened: View, changed: Mapping[int, bool] | None = None) -> View:
    """A view that was opened again after another one, with what this process knows of the log.

    Records above the fence are never deleted, so one that has changed there is of another log.
    """
    old, new = view.state, opened.state
    is_other = was_set_back(new, seen_in(old)) or not has_line_of(new, old)
    is_other |= any(kept or version > new.fence for version, kept in (changed or {}).items())
    if -1 in (changed or {}) and not has_line_of(new, old):
        logger.warning("version %d has changed: an older copy of the log was restored, opened again", old.version)
    state = replaced(new, old, record_id(view.head)) if is_other else following(new, old)
    return opened._replace(log=view.log, state=state)


def poll(view: View, relist: bool, together: bool = False, direct: bool = False) -> Steps[View]:
    """Like `refresh`, for a waiting reader: one get if nothing is new and no listing is due.

    Log records below a checkpoint are deleted later, so a reader that only asks for the next version could wait
    forever.  It must list once a minute, and after any pause as long as records are kept (`relist`).

    direct:  a get costs almost nothing, and the folder may be gone or replaced: look for that, too.
    """
    if relist:
        return (yield from refresh(view, together=together))
    following = yield Get(log_key(view.state.version + 1))
    if following is None:
        is_other = direct and (yield from _is_other_log(view))
        return (yield from refresh(view)) if is_other else view
    return (yield from refresh(view, found=[following] if together else (), together=together))


def _is_other_log(view: View) -> Steps[bool]:
    """Whether another record has the view's version, or none has it because newer checkpoints replace it.

    Raises WrongRoot as `check_is_there` does, LogRestored if the log has fewer versions than the view.
    """
    version, head = view.state.version, view.head
    found = yield Get(log_key(version) if head else view.checkpoint or FORMAT_KEY, 0, max(1, len(head)))
    if found is not None:
        return bool(head) and found != head
    yield from check_is_there(view.log)
    newest = checkpoint_version(newest_checkpoint((yield List(CHECKPOINTS))))
    if head and newest < version:  # otherwise nobody has deleted the record
        raise restored_error(f"version {version}")
    return not head or newest > version


def follow(view: View, told: Answered | Changes) -> Steps[View]:
    """The view with the changes that the coordinator returned, or with those in the storage if it returned none."""
    if told.state is not None:
        return view._replace(state=told.state, head=b"", before=b"", unconfirmed=None)
    if not told.batches:
        return (yield from _skip_on(view))
    state = view.state
    for data in told.batches:
        batch = decode_batch(data, log_key(state.version + 1))
        if is_of_other_log(state, batch):
            return (yield from refresh(view))
        state = replay(state, batch)
    return view._replace(state=state, head=first_line(told.batches[-1]), before=b"", unconfirmed=None)


def _skip_on(view: View) -> Steps[View]:
    """Like `refresh`, for a view that is far behind: a newer checkpoint replaces the records before it.

    Raises WrongRoot as `check_is_there` does.
    """
    names = yield List(CHECKPOINTS)
    if follows_checkpoint(view, newest_checkpoint(names)):
        return (yield from refresh(view))
    yield from check_is_there(view.log)
    return _continued(view, (yield from open_view(names)))
