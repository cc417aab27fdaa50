"""The files of the backups of a log, in a folder or bucket that is not a log.

    backups.json                   names the log whose backups these are
    backups/<id>/<unique>.state    the state of the log, as a checkpoint: it names the objects that the backup needs
    backups/<id>/end.json          the backup is complete, or was given up; the first process puts it
    objects/<id>/data/…            the objects that this backup has copied; later backups need them, too

A backup is *complete* if `end.json` says so and the state that it names is there.  It is *unfinished* without
`end.json`: its process copies, or was killed, and the next one continues it.  To remove a backup, its states are
deleted first: what is left of it counts as nothing from then on.

A new backup does without copying an object only if a complete backup needs the object, and it looks for these after its
own state was put.  Removing looks for states after it has removed those of old backups, and deletes no object that one
of the states names, nor any that an unfinished backup has copied.  So both may run at any time, without clocks
(docs/decisions/0090-backups.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import CorruptObject, InvalidRequest, NoLog, ObjectNotFound
from spark_log.metadata.erasures import erased_since
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.state import ErasedTopic, State
from spark_log.positions import format_timestamp_ms
from spark_log.recovery.mirror import file_of_log
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import is_of_a_log

ABOUT = "backups.json"
BACKUPS = "backups/"
OBJECTS = "objects/"
END = "end.json"
STATE = ".state"
FORMAT = 1
_OF_A_BACKUP = re.compile(r"(?:backups|objects)/([0-9]{8}T[0-9]{6}Z-[0-9a-z]+)/(end\.json|[0-9a-z]+\.state|data/.+)")
"""Files with other names are passed over, as in a log (`store/object_names.py`)."""
SHOWN = 3
"""First and last backups that an error names."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `backups.json`."""

    pylog_backups: int
    """Version of the format."""
    log: str
    """The log's id."""
    url: str
    """The log's URL when the first backup was made."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `end.json`."""

    complete: bool
    time_ms: int
    """When the state was read, by the clock of the process that made the backup; or when the backup was given up."""
    state: str = ""
    """The name of its file."""
    version: int = 0
    """The version of the log."""
    objects: int = 0
    bytes: int = 0
    """Number and size of the objects that the backup needs."""


class Backup(NamedTuple):
    """A complete backup."""

    id: str
    end: End


@dataclass(slots=True)
class FilesOfBackup:
    """The files of one backup."""

    states: list[str] = field(default_factory=list)
    has_end: bool = False


class BackupFiles:
    """The files of all backups of a log."""

    def __init__(self, store: ObjectStore, open_folder: Callable[[str], ObjectStore]) -> None:
        """
        open_folder:  gives the store of a folder in `store`, by its name.
        """
        self.store, self._open_folder = store, open_folder

    def folder(self, backup: str) -> ObjectStore:
        """The objects that a backup has copied, under the names that they have in the log."""
        return self._open_folder(f"{OBJECTS}{backup}")

    def check_empty(self) -> None:
        """Raises InvalidRequest if a folder without backups has anything of a log, or of former backups."""
        if found := file_of_log(self.store) or file_of_backups(self.store):
            raise InvalidRequest(f"{self.store.url} has {found}: backups begin in an empty folder")

    def begin(self, log: str, url: str) -> None:
        """Make an empty folder one for the backups of a log."""
        about = About(pylog_backups=FORMAT, log=log, url=url)
        self.store.put_new(ABOUT, msgspec.json.encode(about))

    def about(self) -> About | None:
        """None if no backup was ever made there, or if its disk is not mounted.  Raises InvalidRequest."""
        try:
            found = msgspec.json.decode(self.store.get(ABOUT), type=About)
        except ObjectNotFound:
            return None
        except UNREADABLE as error:
            raise InvalidRequest(f"{self.store.url}/{ABOUT} is damaged, or of something else: {error}") from error
        if found.pylog_backups != FORMAT:
            raise InvalidRequest(f"{self.store.url} has backups of format {found.pylog_backups}: update pylog")
        return found

    def check(self, log: str = "") -> None:
        """Raises NoLog if there are no backups; InvalidRequest if they are of another log than that with this id, or if
        that is not known because `backups.json` is lost."""
        about = self.about()
        if about is None and not file_of_backups(self.store):
            raise NoLog(f"{self.store.url} has no backups: is its disk mounted?")
        if about is None:
            if not log:
                return
            line = msgspec.json.encode(About(pylog_backups=FORMAT, log=log, url="")).decode()
            raise InvalidRequest(
                f"{self.store.url} has backups, and {ABOUT} is lost, so nothing says of which log they are. If they are "
                f"of this one, put this line into {ABOUT} there: {line}. They can be listed and restored without it"
            )
        if log not in ("", about.log):
            raise InvalidRequest(
                f"{self.store.url} has backups of another log, with the id {about.log}, which was at {about.url}: give "
                "another folder. A log that was restored from a backup is a new log"
            )

    def files(self) -> dict[str, FilesOfBackup]:
        """The files of each backup, by its id."""
        found: dict[str, FilesOfBackup] = {}
        for key, backup, name in _listed(self.store, BACKUPS):
            files = found.setdefault(backup, FilesOfBackup())
            if name == END:
                files.has_end = True
            else:
                files.states.append(key)
        return found

    def complete(self) -> list[Backup]:
        """The complete backups, by time."""
        found = list[Backup]()
        for backup, files in self.files().items():
            end = self.end(backup) if files.has_end else None
            if end is not None and end.complete and end.state in files.states:
                found.append(Backup(backup, end))
        return sorted(found, key=lambda one: (one.end.time_ms, one.id))

    def unfinished(self) -> list[str]:
        """Ids of unfinished backups."""
        return sorted(backup for backup, files in self.files().items() if files.states and not files.has_end)

    def end(self, backup: str) -> End | None:
        """How a backup has ended; None if it is unfinished.  Raises CorruptObject."""
        try:
            return msgspec.json.decode(self.store.get(end_key(backup)), type=End)
        except ObjectNotFound:
            return None
        except UNREADABLE as error:
            raise CorruptObject(
                f"{self.store.url}/{end_key(backup)} is damaged: {error}. Delete it, and the next job continues this backup"
            ) from error

    def put_end(self, backup: str, end: End) -> bool:
        """End a backup.  False if another process was first."""
        return self.store.put_new(end_key(backup), msgspec.json.encode(end))

    def put_state(self, backup: str, unique: str, state: State) -> str:
        """Put the state that a backup is to have; the name of its file."""
        key = f"{BACKUPS}{backup}/{unique}{STATE}"
        self.store.put(key, (encode_checkpoint(state),))
        return key

    def state(self, key: str) -> State | None:
        """None if the backup was removed.  Raises CorruptObject."""
        try:
            return decode_checkpoint(self.store.get(key), f"{self.store.url}/{key}")
        except ObjectNotFound:
            return None
        except CorruptObject as error:
            raise CorruptObject(
                f"{error}. The backup cannot be restored: delete this file, which removes it"
            ) from error

    def find(self, wanted: str, until_ms: int | None) -> Backup:
        """The complete backup with an id or version, the last one up to a time, or the `latest`.

        Raises InvalidRequest if there is none, or if it is doubtful which one is the latest.
        """
        known = self.complete()
        if wanted == "latest":
            found = known
            self._check_order(known)
        elif until_ms is not None:
            found = [one for one in known if one.end.time_ms <= until_ms]
        else:
            found = [one for one in known if wanted in (one.id, str(one.end.version))]
        if not found:
            raise InvalidRequest(f"{self.store.url} has no backup {wanted!r}; it has {_shown(known)}")
        return found[-1]

    def _check_order(self, known: Sequence[Backup]) -> None:
        last, highest = known[-1:], max(known, key=lambda one: one.end.version, default=None)
        if highest is not None and last[0].end.version < highest.end.version:
            raise InvalidRequest(
                f"{self.store.url} has {last[0].id} as the last backup by time, with version {last[0].end.version}, and "
                f"{highest.id} has version {highest.end.version}: a clock was wrong, or an older copy of the log took its "
                "place. Give the id of the one that you want"
            )

    def erased_since(self, backup: Backup, state: State) -> dict[str, ErasedTopic]:
        """By topic id: topics of a backup, which has this state, from which records were erased later, as far as later
        backups know.  Damaged ones count as unknown.  After a restore of the log, later ones may have older versions.
        """
        found = dict[str, ErasedTopic]()
        for other in self.complete():
            if other.end.version > backup.end.version or other.end.time_ms > backup.end.time_ms:
                with suppress(CorruptObject):
                    newer = self.state(other.end.state)
                    found.update({} if newer is None else erased_since(state, newer))
        return found

    def places(self) -> dict[str, list[str]]:
        """By object, the backups that have copied it."""
        found: dict[str, list[str]] = {}
        for _, backup, name in _listed(self.store, OBJECTS):
            found.setdefault(name, []).append(backup)
        return found


def file_of_backups(store: ObjectStore) -> str:
    """A file of a backup in a folder; "" if there is none."""
    return next((key for prefix in (BACKUPS, OBJECTS) for key, *_ in _listed(store, prefix)), "")


def _listed(store: ObjectStore, prefix: str) -> Iterator[tuple[str, str, str]]:
    """The files of backups under a prefix: key, id of the backup, and name in its folder."""
    for key in store.list(prefix):
        found = _OF_A_BACKUP.fullmatch(key)
        if found is not None and (prefix == BACKUPS or is_of_a_log(found[2])):
            yield key, found[1], found[2]


def _shown(known: Sequence[Backup]) -> str:
    """Backups in an error: the first ones and the last ones."""
    ids = [f"{one.id} (version {one.end.version}, {format_timestamp_ms(one.end.time_ms)})" for one in known]
    if len(ids) > 2 * SHOWN:
        ids[SHOWN:-SHOWN] = [f"{len(ids) - 2 * SHOWN} others, which --list shows"]
    return ", ".join(ids) or "none"


def end_key(backup: str) -> str:
    """The name of the file that ends a backup."""
    return f"{BACKUPS}{backup}/{END}"


def backup_id(now_ms: int, unique: str) -> str:
    """The id of a new backup."""
    when = format_timestamp_ms(now_ms).partition(".")[0]
    return f"{when.replace('-', '').replace(':', '')}Z-{unique[:6]}"
