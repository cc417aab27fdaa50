"""A log as it was, from one of its backups, in an empty root.

The root is a mirror (`mirror.py`) until all is there, so a restoration that was killed is not taken for a log.  Then it
becomes a separate log, as a mirror that is recovered.  It has a new id: no client, coordinator, mirror or export takes
it for the log of which the backup was made, which may still be there.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_log.client.admin.erasure_status import to_repeat_texts
from spark_log.client.log import Log
from spark_log.errors import ConcurrentChange, CorruptObject, InvalidRequest
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_format import OF_BACKUP, Format
from spark_log.journal.storage.storage_log import begin_log
from spark_log.journal.store_operations import Stores
from spark_log.metadata.erasures import to_repeat
from spark_log.metadata.state import State
from spark_log.recovery.backup_copies import BackupShare, CopyShares, NeededObject, shares_of
from spark_log.recovery.backup_files import Backup, BackupFiles, file_of_backups
from spark_log.recovery.mirror import file_of_log, format_of, write_state
from spark_log.recovery.mirror_recovery import become_log
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_objects import Problem
from spark_log.recovery.whole_copies import Needed, needed_objects
from spark_log.rewriting.rewrite import Progress
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG, listed
from spark_log.text import counted

ELSEWHERE = "restore to a folder without files of a log or of backups"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of restoring a log."""

    cluster_id: str
    """The id of the new log."""
    objects: int
    bytes: int
    """Number and size of the objects that were copied."""
    problems: list[Problem]
    """Those that `verify` has found in the new log."""
    erase_again: tuple[str, ...]
    """Sentences about erasures after the backup, as far as later backups know.  The new log lists them."""


def plan_restore(files: BackupFiles, backup: Backup, store: ObjectStore) -> tuple[State, list[BackupShare]]:
    """The state of a backup, and the objects that a root lacks of it, by the folder that has them.

    store:  the root of the log that is to be, empty or left by a restoration of this backup.
    Raises InvalidRequest if the root has something else, and CorruptObject if the backup lacks objects.
    """
    here, there = f"{files.store.url}/", f"{store.url}/"
    if here.startswith(there) or there.startswith(here):
        raise InvalidRequest(f"{here} and {there}: a log and its backups must not lie within each other")
    _check_root(files, backup, store)
    state = files.state(backup.end.state)
    if state is None:
        raise InvalidRequest(f"the backup {backup.id} was removed meanwhile")
    needed, there_now = needed_objects(state), set(listed(store, DATA))
    return state, _shares(files, {name: row for name, row in needed.items() if name not in there_now}, backup)


def restore(
    files: BackupFiles,
    backup: Backup,
    store: ObjectStore,
    context: Context,
    copy: CopyShares,
    progress: Progress | None = None,
) -> RestoreReport:
    """Make a log of a backup, and verify it.  If this is killed, run it again.

    Raises the errors of `plan_restore`, and those of the storages; ConcurrentChange if a client of a lost log still
    writes there.
    """
    state, shares = plan_restore(files, backup, store)
    if _check_root(files, backup, store) is None:
        begin_log(Stores.of(store), context, context.unique() + context.unique(), _source(files, backup))
    total, objects, size = sum(share.bytes for share in shares), 0, 0
    for done in copy(shares):
        if done.absent:
            raise CorruptObject(f"{next(iter(done.absent.values()))}: the backup {backup.id} cannot be restored")
        objects, size = objects + done.objects, size + done.bytes
        if progress is not None:
            progress("copy", size, total)
    if _check_root(files, backup, store) is None:
        raise InvalidRequest(f"{store.url} is empty: was its disk unmounted?")
    erased = files.erased_since(backup, state)
    _make_log(store, to_repeat(state, erased), context)
    log = Log(Journal.open(store, create=False, clock=context.clock))
    return RestoreReport(log.cluster_id, objects, size, verify(log), to_repeat_texts(erased))


def _make_log(store: ObjectStore, state: State, context: Context) -> None:
    """Make a log of a root that has all objects of a state.

    Its metadata begins with the state: what is there is of a former attempt, or of a client of a log that was lost.
    """
    store.delete([*listed(store, LOG), *listed(store, CHECKPOINTS)])
    write_state(store, state, context)
    try:
        become_log(Journal.open(store, create=False, clock=context.clock), (), state.version)
    except CorruptObject as error:
        raise ConcurrentChange(
            f"{error}, although the whole backup was there: does a client of a lost log still use {store.url}? Stop it, "
            "and run the restoration again"
        ) from error


def _source(files: BackupFiles, backup: Backup) -> str:
    return f"{OF_BACKUP}{files.store.url}/{backup.id}"


def _check_root(files: BackupFiles, backup: Backup, store: ObjectStore) -> Format | None:
    """The format of a root in which this backup is being restored; None if the root has nothing of a log or of backups.
    Other files do not matter."""
    form = format_of(store)
    if form is None:
        found = file_of_log(store) or file_of_backups(store)
        if found:
            raise InvalidRequest(f"{store.url} has {found}: {ELSEWHERE}")
    elif form.mirrors != _source(files, backup):
        other = form.mirrors.removeprefix(OF_BACKUP)
        what = "a log" if not other else f"a mirror of {other}"
        if other != form.mirrors:
            what = f"what is left of a restoration of the backup {other}"
        raise InvalidRequest(f"{store.url} has {what}: {ELSEWHERE}")
    return form


def _shares(files: BackupFiles, needed: Needed, backup: Backup) -> list[BackupShare]:
    places, by_folder, lost = files.places(), dict[str, list[NeededObject]](), list[str]()
    for name, row in needed.items():
        if name in places:
            by_folder.setdefault(places[name][-1], []).append(NeededObject(name, row))
        else:
            lost.append(name)
    if lost:
        raise CorruptObject(
            f"{files.store.url} lacks {counted(len(lost), 'object')} of the backup {backup.id}, such as {lost[0]}: "
            "restore an older or newer backup; the next backup copies what the log still has"
        )
    return [share for folder, objects in by_folder.items() for share in shares_of(folder, objects)]
