"""Garbage collection: deletes unreferenced objects below the fence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from spark_log.journal.context import Context
from spark_log.journal.dropped_lists import read_lists
from spark_log.journal.metadata_log import LogView
from spark_log.journal.object_names import DATA, epoch_prefixes, upload_epoch
from spark_log.journal.store_operations import OWN_ROOT, Delete, List, Steps
from spark_log.metadata.column_map import rows_with_copies
from spark_log.metadata.replicas import has_copy
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import State

logger = logging.getLogger("spark_log")

SCANNED_KEYS = 10
"""Finding a name in a large map takes as long as a scan of this many of its keys."""

DELETED_UNSEEN = 1000
"""Objects that are deleted between two looks at the log."""


class Collected(NamedTuple):
    """A collection that has left no garbage.

    Later garbage is what was uploaded above its fence, and what was dropped since: `dropped`, and what is in
    `dropped_lists`, if it was dropped before.
    """

    version: int
    fence: int
    dropped: Mapping[str, int]
    dropped_lists: frozenset[str]


def garbage(state: State, names: Iterable[str]) -> Steps[list[str] | None]:
    """Objects of a listing of `data/` without a current or future reference, in order: uploads at or below the fence.

    The state or its lists remember dropped objects until the fence has passed, so that readers can finish.  If a list
    cannot be read, any of these objects may be in it: None until the fence has passed the list.
    """
    found = {name for name in names if upload_epoch(name) <= state.fence}
    for kept in (state.objects, state.dropped, state.dropped_lists):
        found = _without(found, kept)
    lost = (yield from read_lists(state.dropped_lists, found.difference_update)) if found else {}
    for name, reason in lost.items():
        upto = state.dropped_lists[name].upto
        logger.warning(
            "no objects are deleted until the fence has passed version %d, at %d: %s", upto, state.fence, reason
        )
    return None if lost else sorted(found)


def _without(names: set[str], kept: Mapping[str, object]) -> set[str]:
    if len(names) * SCANNED_KEYS < len(kept):
        return {name for name in names if name not in kept}
    names.difference_update(kept)
    return names


def collect(
    state: State,
    context: Context,
    before: Collected | None = None,
    root: int = OWN_ROOT,
    look: Callable[[], Steps[LogView]] | None = None,
) -> Steps[tuple[list[str], Collected | None]]:
    """Delete garbage in one root; returns the names, and what the next collection of this process there needs to know.

    The state must be confirmed before the listing begins.  An old state is safe: garbage stays garbage, unless an older
    copy of the log was restored.  To a state of the lost log, the new objects of the restored one are garbage.

    look:  reads the newest state before deletions.  Raises LogRestored, or returns a state of another history, if
           the log was restored.
    """
    old = yield from garbage(state, (yield from _candidates(before, state, root)))
    if old is None:
        return [], before
    # In order: a list comes after the objects in it, because its upload epoch is higher than theirs.
    looked = -DELETED_UNSEEN
    for at in range(0, len(old), context.limits.deletes_max):
        if look is not None and at - looked >= DELETED_UNSEEN:
            looked = at
            if history_of((yield from look()).state) != history_of(state):
                return old[:at], None
        yield Delete(old[at : at + context.limits.deletes_max], root)
    return old, Collected(state.version, state.fence, state.dropped, frozenset(state.dropped_lists))


def collect_dropped(state: State, context: Context, broker: int, before: int | None = None) -> Steps[list[str]]:
    """Delete the old copies of a broker that keeps only the newest objects; returns their names.

    before:  the version up to which this process has deleted them.
    An old state is safe: a copy that was dropped does not count again.
    """
    known = state.brokers[broker]
    if not known.keep_ms or (before is not None and before >= known.deletable):
        return []
    prefixes = [DATA] if before is None else epoch_prefixes(before + 1, known.deletable)
    names = set[str]()
    for listed in (yield [List(prefix, broker) for prefix in prefixes]):
        names.update(listed)
    old = sorted(name for name in names if upload_epoch(name) <= known.deletable and not has_copy(state, broker, name))
    for at in range(0, len(old), context.limits.deletes_max):
        yield Delete(old[at : at + context.limits.deletes_max], broker)
    return old


def collected_up_to(state: State, broker: int) -> int:
    """The version up to which all copies of a broker are gone after `collect_dropped`."""
    end = state.brokers[broker].deletable
    kept = next(rows_with_copies(state.objects, {n for n, one in state.copies.items() if broker in one.brokers}), None)
    return end if kept is None else min(end, upload_epoch(kept[0]) - 1)


def _candidates(before: Collected | None, state: State, root: int) -> Steps[Iterable[str]]:
    """The objects that may have become garbage."""
    # Before a longer pause, objects may have been dropped that the fence has passed since.
    if before is None or not before.fence <= state.fence < before.version:
        return (yield List(DATA, root))
    if state.fence == before.fence:
        return []
    names = {name for name, version in before.dropped.items() if version <= state.fence}
    if (yield from read_lists(before.dropped_lists.difference(state.dropped_lists), names.update)):
        return (yield List(DATA, root))  # another process has deleted a list that the fence has passed
    for listed in (yield [List(prefix, root) for prefix in epoch_prefixes(before.fence + 1, state.fence)]):
        names.update(listed)
    return names
