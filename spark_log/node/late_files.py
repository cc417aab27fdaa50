"""Files that clients of a lost log have put into a copy of it, in its place, before the copy has begun a history.

A client may hang in a request while its log is lost, and while a copy is put in the same place.  Then it puts a
record behind versions that the copy lacks, a record whose objects are lost, or a checkpoint of the lost log.  Nothing
in such a file says that it is not of the copy.  But the copy is whole without it: a mirror gets each record after its
objects, and after the record before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from spark_log.clock import SystemClock
from spark_log.errors import CorruptObject, ObjectNotFound
from spark_log.journal.checkpointing import put_aside
from spark_log.journal.journal import Journal
from spark_log.journal.object_names import CHECKPOINTS, DATA, LOG, checkpoint_version, log_key, log_version
from spark_log.journal.opening import KEPT_CHECKPOINTS, WAVE_MAX, state_in
from spark_log.journal.store_operations import OWN_ROOT, Delete, Get, List, Steps, Stores, run
from spark_log.metadata.batch_format import decode_batch
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State
from spark_log.node.whole_copies import lacking_commits, needed_objects
from spark_log.store.base import ObjectStore
from spark_log.store.retry import RetryingStore

SHOWN = 3
Names: TypeAlias = list[str]
"""Needed because a class below has a method named `list`."""


def open_copy(
    store: ObjectStore, open_it: Callable[[ObjectStore], Journal], *, force: bool
) -> tuple[Journal, tuple[str, ...]]:
    """Open a copy that is to become a log; with it, the late files that the journal leaves out, if `force`.

    Raises CorruptObject if the copy is not whole, and names the late files if it is whole without them.
    """
    try:
        journal = open_it(store)
        lacking_commits(journal)
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
    yield from put_aside(names)
    yield Delete(list(names))


def late_files() -> Steps[list[str]]:
    """The files without which a copy is whole; empty if it is not whole without any that may have come late.

    A record before the first absent version may have come late only if it brings an object that is missing.  A
    checkpoint may have come late only if there is an older one, and no record of its version.
    """
    checkpoints, records, stored = yield [List(CHECKPOINTS), List(LOG), List(DATA, OWN_ROOT)]
    objects = frozenset[str](stored)
    late = list[str]()
    while checkpoints:
        newest, states = yield from _states(checkpoints, frozenset(records))
        while len(states) > 1 and _missing(states[-1], objects) > _missing(states[-2], objects):
            states.pop()
        if states and not _missing(states[-1], objects):
            return late + [name for name in records if log_version(name) > states[-1].version]
        version = checkpoint_version(newest)
        if log_key(version) in records or checkpoint_version(checkpoints[0]) == version:
            break
        late += [name for name in checkpoints if checkpoint_version(name) == version]
        checkpoints = [name for name in checkpoints if checkpoint_version(name) < version]
    return []


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


def _missing(state: State, objects: frozenset[str]) -> frozenset[str]:
    return frozenset(needed_objects(state).keys() - objects)


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
