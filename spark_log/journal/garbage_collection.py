"""Garbage collection: deletes unreferenced objects below the fence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from spark_log.journal.context import Context
from spark_log.journal.dropped_lists import read_lists
from spark_log.journal.lost_versions import check_none_lost, find_lost, known_loss
from spark_log.journal.metadata_log import LogView
from spark_log.journal.store_operations import OWN_ROOT, Delete, List, Refresh, Steps
from spark_log.log_lines import logger
from spark_log.metadata.maintenance.decide_maintenance import decide_fence
from spark_log.metadata.maps.column_map import rows_with_copies
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.replicas.replicas import has_copy
from spark_log.metadata.state import State
from spark_log.store.object_names import DATA, epoch_prefixes, prefixes_above, upload_epoch

SCANNED_KEYS = 10
"""Finding a name in a large map takes as long as a scan of this many of its keys."""

DELETED_UNSEEN = 1000
"""Objects that are deleted between two looks at the log: as many as one request to S3 deletes."""

Look: TypeAlias = Callable[[], Steps[LogView]]
"""Reads the newest state before deletions.  Raises LogRestored if an older copy of the log was restored, and that has
fewer versions."""


class Collected(NamedTuple):
    """A collection that has left no garbage.

    Later garbage is what was uploaded above its fence, and what was dropped since: `dropped`, and what is in
    `dropped_lists`, if it was dropped before.
    """

    version: int
    fence: int
    dropped: Mapping[str, int]
    dropped_lists: frozenset[str]


def garbage(state: State, names: Iterable[str], but: Mapping[str, object] | None = None) -> Steps[list[str] | None]:
    """Objects of a listing of `data/` without a current or future reference, in order: uploads at or below the fence.

    The state or its lists remember dropped objects until the fence has passed, so that readers can finish.  If a list
    cannot be read, any of these objects may be in it: None until the fence has passed the list.

    but:  lists that are known not to have any of these names.
    """
    found = {name for name in names if upload_epoch(name) <= state.fence}
    for kept in (state.objects, state.dropped, state.dropped_lists):
        found = _without(found, kept)
    lists = set(state.dropped_lists).difference(but or ())
    lost = (yield from read_lists(lists, found.difference_update)) if found else {}
    for name, reason in lost.items():
        upto = state.dropped_lists[name].upto
        logger.warning(
            "no objects are deleted until the fence has passed version %d, at %d: %s", upto, state.fence, reason
        )
    return None if lost else sorted(found)


def garbage_from(state: State, now_ms: int) -> Steps[list[str]]:
    """Objects in the log's own root that can be deleted once the fence has advanced as far as it may now.

    Steps for `decided`: others may have written since the state was read.
    """
    names: list[str] = yield List(DATA, OWN_ROOT)
    newest: State = (yield Refresh()) if any(upload_epoch(name) > state.version for name in names) else state
    if (yield from known_loss(newest, (yield from find_lost(newest, names)))):
        return []
    state = next_version(state, now_ms)
    fenced = replay_records(state, decide_fence(state, now_ms).records)
    return (yield from garbage(fenced, names)) or []


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
    look: Look | None = None,
    *,
    notices_loss: bool = False,
) -> Steps[tuple[list[str], Collected | None]]:
    """Delete garbage in one root; returns the names, and what the next collection of this process there needs to know.

    The state must be confirmed before the listing begins.  An old state is safe: garbage stays garbage, unless an older
    copy of the log was restored, or a snapshot of its disk.  That may need what the lost log had dropped, and its new
    objects are garbage to a state of the lost log.

    before:  None: look at all objects, not only at those that may have become garbage since.  An upload that took
             longer than the fence has an old name.
    notices_loss:  delete nothing if versions of the log are lost (`lost_versions.py`).
    Raises CorruptObject then.
    """
    names = yield from _candidates(before, state, root, looks_ahead=notices_loss)
    if notices_loss and names:
        yield from check_none_lost(state, names, context.clock.now_ms(), root, look)
    old = yield from garbage(state, names)
    if old is None:
        return [], before
    still = partial(garbage, but=state.dropped_lists)
    # In order: a list comes after the objects in it, because its upload epoch is higher than theirs.
    deleted = yield from _delete(old, state, context, root, look, still)
    if deleted != old:
        return deleted, None
    return old, Collected(state.version, state.fence, state.dropped, frozenset(state.dropped_lists))


def collect_dropped(
    state: State, context: Context, broker: int, before: int | None = None, look: Look | None = None
) -> Steps[tuple[list[str], int | None]]:
    """Delete the old copies of a broker that keeps only the newest objects.

    Returns their names, and the version up to which all are gone, which the next call needs to know.

    before:  the version up to which this process has deleted them.
    An old state is safe, as for `collect`: a copy that was dropped does not count again.
    """
    known = state.brokers[broker]
    if not known.keep_ms or (before is not None and before >= known.deletable):
        return [], _collected_up_to(state, broker)
    prefixes = [DATA] if before is None else epoch_prefixes(before + 1, known.deletable)
    names = set[str]()
    for listed in (yield [List(prefix, broker) for prefix in prefixes]):
        names.update(listed)

    def deletable(state: State, names: Iterable[str]) -> Steps[list[str]]:
        yield from ()
        upto = state.brokers[broker].deletable if broker in state.brokers else 0
        return sorted(name for name in names if upload_epoch(name) <= upto and not has_copy(state, broker, name))

    old = yield from deletable(state, names)
    deleted = yield from _delete(old, state, context, broker, look, deletable)
    return deleted, _collected_up_to(state, broker) if deleted == old else None


def _delete(
    names: list[str],
    state: State,
    context: Context,
    root: int,
    look: Look | None,
    still: Callable[[State, list[str]], Steps[list[str] | None]],
) -> Steps[list[str]]:
    """Delete names that a state does not need, until a newer one needs some.  Returns those that were deleted.

    still:  those of the names that another state does not need either; None: it cannot tell.
    """
    step = min(context.limits.deletes_max, DELETED_UNSEEN)
    for at in range(0, len(names), step):
        some = names[at : at + step]
        newest = state if look is None else (yield from look()).state
        if newest is not state and (yield from still(newest, some)) != some:
            logger.warning("an older copy of the log was restored: it may need %s, which is not deleted", some[0])
            return names[:at]
        yield Delete(some, root)
    return names


def _collected_up_to(state: State, broker: int) -> int:
    end = state.brokers[broker].deletable
    kept = next(rows_with_copies(state.objects, {n for n, one in state.copies.items() if broker in one.brokers}), None)
    return end if kept is None else min(end, upload_epoch(kept[0]) - 1)


def _candidates(before: Collected | None, state: State, root: int, *, looks_ahead: bool) -> Steps[Collection[str]]:
    """The objects that may have become garbage, and some others; of versions after the state, too, if `looks_ahead`."""
    # Before a longer pause, objects may have been dropped that the fence has passed since.
    if before is None or not before.fence <= state.fence < before.version:
        return (yield List(DATA, root))
    if state.fence == before.fence:
        return []
    names = {name for name, version in before.dropped.items() if version <= state.fence}
    if (yield from read_lists(before.dropped_lists.difference(state.dropped_lists), names.update)):
        return (yield List(DATA, root))  # another process has deleted a list that the fence has passed
    prefixes = epoch_prefixes(before.fence + 1, state.fence)
    prefixes += prefixes_above(state.version) if looks_ahead else []
    for listed in (yield [List(prefix, root) for prefix in prefixes]):
        names.update(listed)
    return names
