"""Backups of a log: copies of whole versions in another root, which share the objects that they have in common.

A backup puts the newest state of the log, copies the objects that no complete backup has, and is complete when one file
says so.  The log knows nothing of it and keeps nothing for it: objects that it drops are there for `gc.fence.age.ms`.
If a copy takes longer, the backup becomes one of a newer version, and keeps what it has copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from spark_log.client.log import Log
from spark_log.errors import CorruptObject, InvalidRequest, LogRestored, NoLog, NoSpace
from spark_log.log_lines import logger
from spark_log.metadata.formats.checkpoint_format import folded
from spark_log.metadata.state import State
from spark_log.recovery.backup_copies import CopyShares, NeededObject, shares_of
from spark_log.recovery.backup_files import (
    OBJECTS,
    Backup,
    BackupFiles,
    End,
    FilesOfBackup,
    backup_id,
    end_key,
    file_of_backups,
)
from spark_log.recovery.lost_log import has_other_versions
from spark_log.recovery.whole_copies import Needed, needed_objects
from spark_log.rewriting.rewrite import Progress
from spark_log.store.object_names import DATA, listed
from spark_log.text import counted

DAY_MS = 86_400_000
ABANDONED_MS = 7 * DAY_MS
"""An unfinished backup without a new state for so long is given up when backups are removed."""
MARKED_MS = 30 * DAY_MS
"""The mark of a removed backup stays for so long, so that a process that was stopped does not complete the backup."""


class Made(NamedTuple):
    """The result of a backup."""

    backup: Backup
    objects: int
    bytes: int
    """Number and size of the objects that were copied; the others were there."""


def check_place(log: Log, files: BackupFiles, *, create: bool) -> None:
    """Raises InvalidRequest if a folder cannot have the backups of a log, and NoLog if it has none and not `create`.

    Writes nothing.
    """
    here, there = f"{files.store.url}/", f"{log.journal.objects.url}/"
    if here.startswith(there) or there.startswith(here):
        raise InvalidRequest(f"{here} and {there}: a log and its backups must not lie within each other")
    if files.about() is not None or file_of_backups(files.store):
        files.check(log.cluster_id)
    elif create:
        files.check_empty()
    else:
        raise NoLog(f"{files.store.url} has no backups: is its disk mounted? Give --create for the first backup")


def begin_place(log: Log, files: BackupFiles, *, create: bool) -> None:
    """Check a place as `check_place` does, and begin backups if it has none."""
    check_place(log, files, create=create)
    if files.about() is None:
        files.begin(log.cluster_id, log.url)
        files.check(log.cluster_id)


def check_follows(log: Log, files: BackupFiles) -> None:
    """Raises LogRestored if the log lacks what its last backup has: it was set back, or has lost its last versions.

    Raises CorruptObject if a damaged list of dropped objects hides whether it does.

    To make another backup would be harmless, but the next removal would take the only copy of what is lost.
    """
    if not (known := files.complete()):
        return
    backup, there = known[-1], log.journal.refresh()
    url, version, diverged = log.journal.metadata.url, backup.end.version, there.version < backup.end.version
    if not diverged:
        state = _state_of(files, backup)
        diverged = state is not None and has_other_versions(state, log.journal)
    if diverged:
        raise LogRestored(
            f"{files.store.url} has backup {backup.id} of version {version}, and {url} has version {there.version}, and not the "
            "same one: an older copy of the log was restored, or it has lost its last versions. Only the backups have the later "
            "commits. To continue with these, stop all clients of the log, and give --restore "
            f"{backup.id} with an empty folder as --url. To continue without them, give --force once, or begin new backups in "
            "an empty folder, with --create"
        )


def _state_of(files: BackupFiles, backup: Backup) -> State | None:
    """None if it was removed meanwhile, or is damaged."""
    try:
        return files.state(backup.end.state)
    except CorruptObject as error:
        logger.error("%s", error)
        return None


def back_up(log: Log, files: BackupFiles, copy: CopyShares, progress: Progress | None = None) -> Made:
    """Make a backup of the newest version, or complete one that was interrupted as a backup of that version.

    files:     begun by `begin_place`.
    copy:      copies some shares.
    progress:  called with ("copy", bytes, total).
    Raises CorruptObject if an object of the log is missing or damaged.
    """
    return _Backup(log, files, copy, progress).run()


def missing(log: Log, files: BackupFiles) -> tuple[int, int]:
    """Number and size of the objects that a backup would copy now."""
    needed = needed_objects(log.journal.refresh())
    unfinished = files.unfinished()
    left = _lacking(files, needed, unfinished[-1] if unfinished else "") if files.about() is not None else needed
    return len(left), sum(row.size for row in left.values() if row is not None)


@dataclass
class _Backup:
    """A backup that is being made."""

    log: Log
    files: BackupFiles
    copy: CopyShares
    progress: Progress | None
    objects: int = 0
    bytes: int = 0

    def run(self) -> Made:
        context, unfinished = self.log.journal.context, self.files.unfinished()
        backup = unfinished[-1] if unfinished else ""
        while True:
            backup = backup or backup_id(context.clock.now_ms(), context.unique())
            end = self._copied(backup)
            self.files.check(self.log.cluster_id)  # its disk may not be mounted any more
            if self.files.put_end(backup, end):
                return Made(Backup(backup, end), self.objects, self.bytes)
            other = self.files.end(backup)
            if other is not None and other.complete and other.version >= end.version:
                return Made(Backup(backup, other), self.objects, self.bytes)
            backup = ""  # it was given up, or another process has completed it with an older version

    def _copied(self, backup: str) -> End:
        """Copy all that the newest version needs.  Returns the end of the backup, to be put."""
        journal, absent = self.log.journal, dict[str, str]()
        while True:
            time_ms, state = journal.context.clock.now_ms(), folded(journal.refresh())
            needed = needed_objects(state)
            if still := next((name for name in absent if name in needed), ""):
                raise CorruptObject(f"{absent[still]}: no backup can be made; run `pylog verify`")
            key = self.files.put_state(backup, journal.context.unique(), state)
            left = _lacking(self.files, needed, backup)
            absent = self._copy(backup, left)
            if not absent:
                self._check_copied(backup, left)
                size = sum(row.size for row in needed.values() if row is not None)
                return End(
                    complete=True, time_ms=time_ms, state=key, version=state.version, objects=len(needed), bytes=size
                )

    def _copy(self, backup: str, left: Needed) -> dict[str, str]:
        """Copy objects; those that are absent, with the reasons."""
        shares = list(shares_of(backup, [NeededObject(name, row) for name, row in left.items()]))
        total, at, absent = sum(share.bytes for share in shares), 0, dict[str, str]()
        for done in self.copy(shares):
            self.objects += done.objects
            self.bytes += done.bytes
            at += done.bytes
            absent |= done.absent
            if self.progress is not None:
                self.progress("copy", min(at, total), total)
        return absent

    def _check_copied(self, backup: str, copied: Needed) -> None:
        """Raises InvalidRequest if objects that were copied are not there, unless the backup was given up meanwhile."""
        lost = sorted(copied.keys() - set(listed(self.files.folder(backup), DATA))) if copied else []
        if lost and self.files.end(backup) is None:
            raise InvalidRequest(
                f"{self.files.store.url} lacks {counted(len(lost), 'object')} that tasks have copied there, such as "
                f"{lost[0]}: is it the same folder on all machines, and was its disk mounted all the time?"
            )


def _lacking(files: BackupFiles, needed: Needed, own: str) -> Needed:
    """The objects that neither a complete backup nor this one has.

    An object that is there, and that no complete backup needs, may be deleted at this moment.
    own:  the id of this backup, whose state was put before.
    """
    places = files.places()
    left = {name: row for name, row in needed.items() if own not in places.get(name, ())}
    doubtful = {name for name in left if name in places}
    for backup in reversed(files.complete()):
        if not doubtful:
            break
        sure = doubtful & _needed_by(files, backup)
        doubtful -= sure
        left = {name: row for name, row in left.items() if name not in sure}
    return left


def _needed_by(files: BackupFiles, backup: Backup) -> Set[str]:
    """The objects of a complete backup; none if it was removed meanwhile, or cannot be restored."""
    state = _state_of(files, backup)
    return frozenset() if state is None else needed_objects(state).keys()


# ------------------------------------------------------------------------------------------------------------- removal


class Pruned(NamedTuple):
    """The result of removing backups."""

    removed: tuple[str, ...]
    """Ids of the backups."""
    objects: int
    """Number of the objects that were deleted, because no backup needs them."""


def prune(files: BackupFiles, now_ms: int, *, keep: int = 0, keep_ms: int = 0, dry_run: bool = False) -> Pruned:
    """Remove old backups, and the objects that none of the others needs.  If this is killed, run it again.

    keep, keep_ms:  the newest backups, and those that are at most so old, are kept; in any case the newest one.
    Raises CorruptObject if it is not known what a backup needs.
    """
    known = files.complete()
    kept = _newest(known, max(keep, 1))
    old = [one.id for one in known if one.id not in kept and now_ms - one.end.time_ms > keep_ms]
    if not dry_run:
        _give_up(files, now_ms)
    useless = _useless_states(files, old)
    if not dry_run:
        files.store.delete(useless)
    by_id, places = files.files(), files.places()
    named = _named(files, [key for one in by_id.values() for key in one.states if key not in useless])
    garbage = [(at, name) for name, ids in places.items() if name not in named for at in ids if _has_ended(by_id, at)]
    if not dry_run:
        files.store.delete([f"{OBJECTS}{at}/{name}" for at, name in garbage])
        left = {at for name, ids in places.items() if name in named for at in ids}
        files.store.delete([end_key(at) for at in by_id if at not in left and _is_past(files, by_id[at], at, now_ms)])
    return Pruned(tuple(old), len(garbage))


def kept_by_version(files: BackupFiles, now_ms: int, *, keep: int = 0, keep_ms: int = 0) -> list[Backup]:
    """Backups that `prune` keeps for their versions alone: the backups after them have lower ones, because the log was
    restored from an older copy, or a clock was wrong.  They may have records that were erased since.
    """
    known = files.complete()
    by_time = {one.id for one in known[-max(keep, 1) :]}
    kept = _newest(known, max(keep, 1)) - by_time
    return [one for one in known if one.id in kept and now_ms - one.end.time_ms > keep_ms]


def _newest(known: Sequence[Backup], number: int) -> set[str]:
    """By time, and by version: the clock of a process may have been wrong."""
    by_version = sorted(known, key=lambda one: one.end.version)
    return {one.id for some in (known, by_version) for one in some[-number:]}


def _give_up(files: BackupFiles, now_ms: int) -> None:
    """End the unfinished backups that no process continues."""
    for backup, found in files.files().items():
        if not found.has_end:
            times = [files.store.written_ms(key) for key in found.states]
            if all(time is not None and now_ms - time > ABANDONED_MS for time in times):
                with suppress(NoSpace):  # the removal makes space, and the next one ends it
                    files.put_end(backup, End(complete=False, time_ms=now_ms))


def _useless_states(files: BackupFiles, old: Collection[str]) -> list[str]:
    """States of old backups, and those of ended ones that they do not have."""
    found = list[str]()
    for backup, one in files.files().items():
        if one.has_end and (end := files.end(backup)) is not None:
            kept = end.state if end.complete and backup not in old else ""
            found += [key for key in one.states if key != kept]
    return found


def _named(files: BackupFiles, keys: Iterable[str]) -> set[str]:
    """The objects that states name."""
    found = set[str]()
    for key in keys:
        if (state := files.state(key)) is not None:
            found |= needed_objects(state).keys()
    return found


def _has_ended(by_id: Mapping[str, FilesOfBackup], backup: str) -> bool:
    """Whether a backup had ended when the states were listed.  Objects of others are left alone."""
    return backup in by_id and by_id[backup].has_end


def _is_past(files: BackupFiles, found: FilesOfBackup, backup: str, now_ms: int) -> bool:
    """Whether nobody needs the mark of a removed backup any more."""
    end = files.end(backup) if found.has_end and not found.states else None
    return end is not None and now_ms - end.time_ms > MARKED_MS
