"""Files that clients of a lost log have put into a copy of it, in its place, before the copy has begun a history.

A client may hang in a request while its log is lost, and while a copy is put in the same place.  Then it puts a record
behind versions that the copy lacks, a record whose objects are lost, or a checkpoint of the lost log.  If it writes
more, its next records need the same objects, although their own are there.  Nothing in such a file says that it is not
of the copy.  But the copy is whole without it: a mirror gets each record after its objects, and after the record before
it.  It notes up to which version it has come (`meta/mirrored`), and what that needs has not come late: if it is
missing, the mirror is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.journal.journal import Journal
from spark_log.journal.storage.checkpointing import put_aside
from spark_log.journal.storage.opening import KEPT_CHECKPOINTS, WAVE_MAX, state_in
from spark_log.journal.store_operations import OWN_ROOT, Delete, Get, List, Steps, Stores, run
from spark_log.metadata.commits.pending_commits import optional_copies
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State
from spark_log.recovery.whole_copies import lacking_commits, needed_objects
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import CHECKPOINTS, DATA, LOG, MIRRORED, checkpoint_version, log_key, log_version
from spark_log.store.retry import RetryingStore

SHOWN = 3
Names: TypeAlias = list[str]
"""Needed because a class below has a method named `list`."""


def open_copy(
    store: ObjectStore, open_it: Callable[[ObjectStore], Journal], *, force: bool
) -> tuple[Journal, tuple[str, ...]]:
    """Open a copy that is to become a log; with it, the late files that the journal leaves out, if `force`.

    Raises CorruptObject if the copy is not whole, and names the late files if it is whole without them; also if it is
    a mirror that has lost records which it had noted.
    """
    try:
        journal = open_it(store)
        lacking_commits(journal)
        _check_reached(journal.state.version, run(mirrored_version(), Stores.of(store), SystemClock()))
    except CorruptObject as error:
        late = tuple(run(late_files(), Stores.of(store), SystemClock()))
        if not late:
            raise
        if not force:
            raise CorruptObject(
                f"{error}. The copy is whole without {late_text(late)}: a client of the lost log may have put that there "
                "after the copy. Then stop all clients, and give --force, which continues without it. Otherwise the copy "
                "is damaged: use another one"
            ) from error
    else:
        return journal, ()
    journal = open_it(_Without(store, frozenset(late)))
    lacking_commits(journal)
    return journal, late


def late_text(late: Sequence[str]) -> str:
    """The files for a message."""
    more = f" and {len(late) - SHOWN} more" if len(late) > SHOWN else ""
    return ", ".join(late[:SHOWN]) + more


def move_late_files(store: ObjectStore, late: Sequence[str]) -> None:
    """Move the files to `meta/damaged/`."""
    run(_move(late), Stores.of(store), SystemClock())


def _move(names: Sequence[str]) -> Steps[None]:
    """Another recovery may have moved a file meanwhile, and given its version to a record of the new log."""
    found = yield [Get(name) for name in names]
    yield from put_aside(names)
    for name, data in zip(names, found, strict=True):
        if data is not None and (yield Get(name)) == data:
            yield Delete([name])


def late_files() -> Steps[list[str]]:
    """The files without which a copy is whole; empty if it is not whole without any that may have come late.

    Any checkpoint but the oldest, any record that needs an object that is missing, and any record behind an absent
    version may have come late, if the mirror has not noted its version.
    Raises CorruptObject if the mirror has lost records of the versions that it has noted.
    """
    checkpoints, records, stored = yield [List(CHECKPOINTS), List(LOG), List(DATA, OWN_ROOT)]
    own, objects, late = (yield from mirrored_version()), frozenset[str](stored), list[str]()
    while checkpoints:
        newest, states = yield from _states(checkpoints, frozenset(records))
        if (end := _whole(states, own, objects)) is not None:
            _check_reached(end, own)
            return late + [name for name in records if log_version(name) > end]
        version = checkpoint_version(newest)
        if version <= own or checkpoint_version(checkpoints[0]) == version:
            break
        late += [name for name in checkpoints if checkpoint_version(name) == version]
        checkpoints = [name for name in checkpoints if checkpoint_version(name) < version]
    return []


def _check_reached(end: int, own: int) -> None:
    """Raises CorruptObject if a mirror ends before the version that it has noted."""
    if end < own:
        raise CorruptObject(
            f"the mirror is damaged: it has noted version {own} in {MIRRORED}, and ends at version {end}, because "
            f"{log_key(end + 1)} is missing or cannot be read. Restore that file from a copy, or use another mirror. To "
            f"lose the changes after version {end}, delete {MIRRORED}, and give --force"
        )


def _whole(states: Sequence[State], own: int, objects: frozenset[str]) -> int | None:
    """The newest version that is whole, at `own` or beyond; the last one, if that is before.  None: it is not whole."""
    missing = ""
    for state in reversed(states):
        if not _needs(state, missing):  # it is the same one in most states: all names are looked up once
            missing = next((name for name in needed_objects(state) if name not in objects), "")
        if not missing:
            return state.version
        if state.version <= own:
            break
    return None


def _needs(state: State, name: str) -> bool:
    is_named = name in state.objects or name in state.dropped_lists
    return is_named and name not in optional_copies(state)


def mirrored_version() -> Steps[int]:
    """The version that a mirror has noted: everything up to it is its own.  0 if it has noted none."""
    noted: bytes | None = yield Get(MIRRORED)
    found = re.fullmatch(rb"([0-9]{1,20})\n", noted or b"")
    return int(found[1]) if found else 0


def note_version(store: ObjectStore, version: int) -> None:
    """Note that a mirror has everything up to a version.  Call it when it has."""
    store.put(MIRRORED, (b"%d\n" % version,))


def _states(checkpoints: Sequence[str], records: frozenset[str]) -> Steps[tuple[str, list[State]]]:
    """The newest readable checkpoint, and the states from it to the first version that is absent or unreadable."""
    for name in list(reversed(checkpoints))[:KEPT_CHECKPOINTS]:
        try:
            states = [state_in((yield Get(name)), name)]
        except CorruptObject:
            continue
        while keys := _next_keys(states[-1].version, records):
            for key, data in zip(keys, (yield [Get(key) for key in keys]), strict=True):
                try:
                    states.append(replay(states[-1], decode_batch(data or b"", key)))
                except CorruptObject:
                    return name, states
        return name, states
    return checkpoints[-1], []


def _next_keys(version: int, records: frozenset[str]) -> list[str]:
    keys = list[str]()
    while len(keys) < WAVE_MAX and (key := log_key(version + 1 + len(keys))) in records:
        keys.append(key)
    return keys


class _Without(RetryingStore):
    """A store without some files of its metadata."""

    def __init__(self, inner: ObjectStore, hidden: frozenset[str]) -> None:
        super().__init__(inner)
        self._hidden = hidden

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key in self._hidden:
            raise ObjectNotFound(f"{self.url}/{key} came late", key=key)
        return super().get(key, start, end)

    def size(self, key: str) -> int | None:
        return None if key in self._hidden else super().size(key)

    def list(self, prefix: str) -> Names:
        return [name for name in super().list(prefix) if name not in self._hidden]
