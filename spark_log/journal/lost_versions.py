"""Versions that the metadata log has lost at its end, as the names of objects show.

The name of an object has the version that its writer had read (`upload_epoch`).  So an object above the newest version
shows that the records up to its version are lost.  If nobody notices, the log reaches that version again, and gives
the offsets of the lost records to others; later, garbage collection deletes their objects.  Therefore garbage
collection looks for such objects first, and notes what is lost in `data/lost-versions`.  It deletes nothing until the
log names each of these objects again, or somebody gives them up, even when the log has long passed their versions
(docs/decisions/0132-lost-ends.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.configs.settings import cluster_config
from spark_log.errors import CorruptObject, SparkLogError
from spark_log.journal.dropped_lists import read_lists
from spark_log.journal.metadata_log import LogView
from spark_log.journal.store_operations import OWN_ROOT, Delete, Get, Put, Steps, WrittenTime
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.restores import began_ms
from spark_log.metadata.state import State
from spark_log.store.object_names import FORMAT_KEY, LOST_VERSIONS, log_key, upload_epoch
from spark_log.text import counted

NAMES = 1000
"""Objects that are noted: the newest ones.  When the log names them again, it has all records before."""
TIMED = 16
"""Objects of which the time is read: the newest ones."""
EPOCHS_MAX = 1 << 62
"""No log has so many versions: a client has not given such a name, and no log could continue beyond it."""
ROUNDED_MS = 2000
"""File systems round the times of files."""
LATE_MS = 3_600_000
"""A client of a lost log, which was not stopped, may put an object so long after a copy has taken the log's place."""
GIVE_UP = "`pylog verify --repair --lose-data`"


class LostVersions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contents of `data/lost-versions`."""

    after: int
    """The newest version that the log had when the loss was found."""
    upto: int
    """The newest version that is known to be lost."""
    objects: tuple[str, ...] = ()
    """Objects that show it.  The log names all of them again when its lost files were restored."""
    put_ms: int = 0
    """When one of the last was put, by the storage's clock; 0: not known."""
    found_ms: int = 0
    """When the loss was noted, by the clock of the process that did; 0: it is not noted."""
    again: int = 0
    """The first version that is known to have been given again; 0: times tell."""
    restored: int = 0
    """The versions up to this one were copied back: the log names objects again that show it."""
    given_up: bool = False
    """Somebody has given up the lost versions: their objects are garbage like all others."""


def lost_record(state: State) -> Steps[int]:
    """The newest version, if its record is lost; -1: it is there.  For a log on storage: a quorum has no such records.

    Then the log was opened from a checkpoint that somebody has copied back, and may have had later versions.
    """
    if state.version <= max(0, state.fence) or (yield Get(log_key(state.version), 0, 1)) is not None:
        return -1
    return state.version


def _is_ahead(state: State, name: str, without_record: int) -> bool:
    """Whether an object was put after the newest version, or after a newest version whose next ones may be lost."""
    epoch = upload_epoch(name)
    return state.version < epoch < EPOCHS_MAX or epoch == state.version == without_record


def find_lost(
    state: State, names: Iterable[str], root: int = OWN_ROOT, without_record: int = -1
) -> Steps[LostVersions | None]:
    """The versions after a state that a listing of `data/` in a root shows to be lost; None: it shows none.

    without_record:  as `lost_record` says.
    The state was read after the listing.  In a log that was restored from a copy, objects do not count that clients of
    the lost log have put: those from before the restore, and for a while after it.
    """
    ahead = [name for name in names if _is_ahead(state, name, without_record)]
    ahead = sorted((yield from unnamed_in(state, ahead)))
    began = began_ms(state)
    if ahead and began is not None:
        put = yield [WrittenTime(name, root) for name in ahead]
        ahead = [name for name, ms in zip(ahead, put, strict=True) if ms is not None and ms > began + LATE_MS]
    if not ahead:
        return None
    upto, put_ms = upload_epoch(ahead[-1]), (yield from _put_ms(ahead, root))
    return LostVersions(after=state.version, upto=upto, objects=tuple(ahead[-NAMES:]), put_ms=put_ms)


def _put_ms(names: list[str], root: int) -> Steps[int]:
    """When the first object of one of the last lost versions was put; 0: not known.

    A client that was not stopped still puts objects for the version that it has read.  So that is an earlier version
    than the last one, if there is another, and the first of its objects.
    """
    earlier = [name for name in names if upload_epoch(name) < upload_epoch(names[-1])]
    timed = (earlier or names)[-TIMED:]
    times: dict[int, list[int]] = {}
    for name, ms in zip(timed, (yield [WrittenTime(name, root) for name in timed]), strict=True):
        if ms is not None:
            times.setdefault(upload_epoch(name), []).append(ms)
    return max(map(min, times.values()), default=0)


class _Quorum(msgspec.Struct):
    quorum: str = ""


def noted_loss() -> Steps[LostVersions | None]:
    """The loss that garbage collection has noted; None: there is none.  Raises CorruptObject for a damaged file."""
    data: bytes | None = yield Get(LOST_VERSIONS, root=OWN_ROOT)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=LostVersions)
    except UNREADABLE as error:
        raise CorruptObject(
            f"{LOST_VERSIONS}, which says which versions of the log are lost, is damaged ({error}): {GIVE_UP} writes it "
            "again"
        ) from error


def known_loss(state: State, found: LostVersions | None) -> Steps[LostVersions | None]:
    """The loss that is noted or was found, and not given up; None: there is none."""
    noted = yield from _left_of(state, (yield from noted_loss()))
    lost = _joined(noted, found)
    return None if lost is None or lost.given_up else lost


def _left_of(state: State, noted: LostVersions | None) -> Steps[LostVersions | None]:
    """A noted loss without the objects that the log names again; None if it names all of them."""
    if noted is None or not noted.objects:
        return noted
    left = yield from unnamed_in(state, noted.objects)
    named = [upload_epoch(name) + 1 for name in noted.objects if name not in left]
    restored = max([noted.restored, *named])
    return msgspec.structs.replace(noted, objects=tuple(sorted(left)), restored=restored) if left else None


def unnamed_in(state: State, names: Iterable[str]) -> Steps[set[str]]:
    """The objects, among these names, that a state does not have, and has not dropped."""
    left = set(names).difference(state.dropped_lists)
    left = {name for name in left if name not in state.objects and name not in state.dropped}
    if left:
        yield from read_lists(state.dropped_lists, left.difference_update)
    return left


def check_none_lost(
    state: State,
    names: Iterable[str],
    now_ms: int,
    root: int = OWN_ROOT,
    look: Callable[[], Steps[LogView]] | None = None,
    *,
    is_noted: bool = True,
    without_record: int = -1,
) -> Steps[None]:
    """Note the versions that a listing of `data/` in a root shows to be lost.

    look:      reads the newest state: the one that is given may be older than the listing.
    is_noted:  a loss that is noted counts, also if the listing does not show it.
    Raises CorruptObject if versions are lost, here or as noted before, and were not given up.
    """
    names = [name for name in names if _is_ahead(state, name, without_record)]
    if names and look is not None:
        state = (yield from look()).state
    found = yield from find_lost(state, names, root, without_record)
    before = yield from noted_loss()
    noted = yield from _left_of(state, before)
    lost = _joined(noted, found)
    if lost is None and before is not None:
        yield Delete([LOST_VERSIONS], OWN_ROOT)
    if lost is None or (found is None and not is_noted):
        return
    if not lost.found_ms:
        lost = msgspec.structs.replace(lost, found_ms=_noted_ms(state, now_ms))
    if lost != before:
        yield Put(LOST_VERSIONS, (msgspec.json.encode(lost),), OWN_ROOT)
    if not lost.given_up:
        raise CorruptObject(f"no objects are deleted, because {(yield from loss_text(state, lost))}")
    if found is None and state.version > lost.upto:
        yield Delete([LOST_VERSIONS], OWN_ROOT)


def lost_ahead(
    state: State,
    names: Iterable[str],
    now_ms: int,
    look: Callable[[], Steps[LogView]],
    root: int = OWN_ROOT,
    without_record: int = -1,
) -> Steps[CorruptObject | None]:
    """The error of `check_none_lost` if a listing shows that versions right after the state are lost.

    Then nothing must be written: it would take the place of a lost version, and hide it.
    """
    names = [name for name in names if _is_ahead(state, name, without_record)]
    try:
        if names:
            yield from check_none_lost(state, names, now_ms, root, look, is_noted=False, without_record=without_record)
    except CorruptObject as error:
        return error
    return None


def note_loss(state: State, found: LostVersions, now_ms: int) -> Steps[None]:
    """Note a loss beside the one that is noted, so that its objects are kept until somebody gives them up."""
    try:
        noted = yield from _left_of(state, (yield from noted_loss()))
    except CorruptObject:
        noted = None
    if not found.found_ms:
        found = msgspec.structs.replace(found, found_ms=_noted_ms(state, now_ms))
    if (lost := _joined(noted, found)) != noted and lost is not None:
        yield Put(LOST_VERSIONS, (msgspec.json.encode(lost),), OWN_ROOT)


def _noted_ms(state: State, now_ms: int) -> int:
    """A time after which no record of the lost versions was written: the clocks of writers may be ahead."""
    ahead_ms = max(0, cluster_config(state.configs, "log.clock.skew.max.ms")) if state.time > now_ms else 0
    return max(now_ms, state.time) + ahead_ms


def partly_restored(state: State) -> Steps[CorruptObject | None]:
    """The error if only some of the noted versions were copied back, and nothing was written since.

    A new version would take the place of the next one.
    """
    try:
        lost = yield from known_loss(state, None)
    except CorruptObject:  # garbage collection reports the note
        return None
    if lost is None or (yield from given_again(state, lost)):
        return None
    return CorruptObject((yield from loss_text(state, lost)))


def give_up_versions(
    state: State, names: Iterable[str], root: int = OWN_ROOT, without_record: int = -1
) -> Steps[LostVersions | None]:
    """Give up the versions that are noted as lost, or that a listing shows to be; returns them."""
    try:
        noted = yield from noted_loss()
    except CorruptObject:
        noted = LostVersions(after=state.version, upto=state.version)
    lost = _joined(noted, (yield from find_lost(state, names, root, without_record)))
    if lost is None or lost.given_up:
        return None
    every = lost if noted is None else both(noted, lost)
    yield Put(LOST_VERSIONS, (msgspec.json.encode(msgspec.structs.replace(every, given_up=True)),), OWN_ROOT)
    return lost


def _joined(noted: LostVersions | None, found: LostVersions | None) -> LostVersions | None:
    """One loss of both, without what was given up if more is found."""
    if noted is None or found is None:
        return noted or found
    if noted.given_up:
        return noted if found.upto <= noted.upto and _knows(noted, found) else found
    return both(noted, found)


def _knows(noted: LostVersions, found: LostVersions) -> bool:
    """Whether a loss has the objects of another one, as far as it has names: the log may lose its end once more."""
    first = noted.objects[0] if len(noted.objects) == NAMES else ""
    return {name for name in found.objects if name >= first} <= {*noted.objects}


def both(noted: LostVersions, found: LostVersions) -> LostVersions:
    return msgspec.structs.replace(
        noted,
        after=min(noted.after, found.after),
        upto=max(noted.upto, found.upto),
        objects=tuple(sorted({*noted.objects, *found.objects})[-NAMES:]),
        put_ms=min(filter(None, (noted.put_ms, found.put_ms)), default=0),
        again=min(filter(None, (noted.again, found.again)), default=0),
    )


def given_again(state: State, lost: LostVersions) -> Steps[int]:
    """The first version that the log has given to another change since a loss; 0: none is known.

    Records are compared by their times: those before the loss are older than the objects that were put after they were
    read, and records that were copied back are older than the note.  A clock may have been ahead (`_is_later`).
    """
    if lost.again:
        return lost.again
    last, newest = max(min(lost.after, state.version), lost.restored), state.version
    if lost.put_ms and state.time > lost.put_ms:
        again = yield from _first_later(lost.restored, last, lost.put_ms, is_missing_later=False)
        if again <= last:
            return again
    if lost.found_ms and state.time > lost.found_ms:
        again = yield from _first_later(last, newest, lost.found_ms, is_missing_later=True)
        return again if again <= newest else 0
    return 0


def _first_later(before: int, last: int, time_ms: int, *, is_missing_later: bool) -> Steps[int]:
    """The first version in (before, last] with a record that is later than a time; last + 1: there is none."""
    low, high = before + 1, last + 1
    while low < high:
        version = (low + high) // 2
        try:
            data, written_ms = yield [Get(log_key(version)), WrittenTime(log_key(version))]
            written_at = None if data is None else decode_batch(data, log_key(version)).time
            is_later = is_missing_later if written_at is None else _is_later(written_at, written_ms, time_ms)
        except SparkLogError:  # it is damaged, or this client may not read the metadata
            is_later = is_missing_later
        low, high = (low, version) if is_later else (version + 1, high)
    return low


def _is_later(record_ms: int, file_ms: int | None, time_ms: int) -> bool:
    """Whether a record is certainly later than a time.  If it is also later than its file, its clock was ahead."""
    return record_ms > time_ms and (file_ms is None or (file_ms > time_ms and record_ms <= file_ms + ROUNDED_MS))


def loss_text(state: State, lost: LostVersions) -> Steps[str]:
    """The lost versions, and the ways out, for a message."""
    again = yield from given_again(state, lost)
    if again:
        return _given_again_text(state, lost, min(again, state.version))
    if (yield from _is_in_quorum()):
        return _quorum_text(state, lost)
    copies = (
        f"Stop all clients. Copy ALL files of meta/log/ after version {state.version}, or the newest file of meta/ckpt/"
    )
    if state.version < lost.upto:
        return (
            f"{_ahead_text(state, lost)}. {copies} if it is of version {lost.upto} or later, from a copy or a mirror of the log, or make a "
            "log of a mirror: `pylog recover -u MIRROR`. Without a copy, run `pylog repair --accept-loss --dry-run`"
        )
    return (
        f"{_unnamed_text(state, lost)}. {copies}, from a copy or a mirror of the log. If there is none, {GIVE_UP} gives these "
        "objects up"
    )


def _is_in_quorum() -> Steps[bool]:
    """Whether `meta/format` beside the records names a quorum that has the metadata."""
    try:
        data: bytes | None = yield Get(FORMAT_KEY, root=OWN_ROOT)
        return data is not None and bool(msgspec.json.decode(data, type=_Quorum).quorum)
    except (SparkLogError, *UNREADABLE):  # this client may not read the metadata
        return False


def _quorum_text(state: State, lost: LostVersions) -> str:
    found = _ahead_text(state, lost) if state.version < lost.upto else _unnamed_text(state, lost)
    return (
        f"{found}. Stop all clients and nodes: the directory of a node was set back, or a majority lost its disks. If the "
        "directory of another node, or the one that was replaced, has the later versions, `pylog quorum restore NEW-DIR --from "
        "DIR -u RECORDS --dry-run` shows its version, and without --dry-run makes a new quorum of it, in an empty directory of "
        f"`pylog quorum init`. If none has, {GIVE_UP} continues without them"
    )


def _ahead_text(state: State, lost: LostVersions) -> str:
    first = state.version + 1
    return (
        f"at least {versions_text(first, lost.upto)} of the log {_are(first, lost.upto)} lost: clients that had read version "
        f"{lost.upto} have put objects, and the newest record of the metadata is that of version {state.version}"
    )


def _unnamed_text(state: State, lost: LostVersions) -> str:
    """Objects that are left when the log has all versions again that they show to be lost."""
    return (
        f"the log is at version {state.version}, and no record names {counted(len(lost.objects), 'object')} that clients had "
        f"put after they had read up to version {lost.upto}: later versions are lost, too, unless these clients ended before their "
        "commits"
    )


def _given_again_text(state: State, lost: LostVersions, again: int) -> str:
    if again > lost.upto:
        return (
            f"{_unnamed_text(state, lost)}. Clients have written since, from version {again} on, so do not copy files of lost "
            "versions into the log. If a mirror or a backup has records that the log lacks, append them to the log from "
            f"there. Then {GIVE_UP} gives these objects up"
        )
    last, until = lost.upto, max(again, min(state.version, lost.upto))
    return (
        f"at least {versions_text(again, last)} of the log {_are(again, last)} lost: the log is at version {state.version}, and "
        f"{again_text(again, until)}. The objects of the lost records are kept; `pylog verify` names them. If a mirror "
        f"or a backup has the records, append them to the log from there. Then {GIVE_UP} gives up the rest"
    )


def again_text(first: int, last: int) -> str:
    """Versions that clients have written since a loss, and why no copies help."""
    return (
        f"{versions_text(first, last)} {'was' if first == last else 'were'} given again, with offsets of lost records, to other "
        "changes. Do not copy files of lost versions into the log: they do not fit what clients have written since"
    )


def versions_text(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _are(first: int, last: int) -> str:
    return "is" if first == last else "are"
