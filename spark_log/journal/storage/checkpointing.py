"""Checkpoints: writes them, reads them back, and deletes the records and older checkpoints that they replace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_log.configs.settings import cluster_config
from spark_log.errors import CorruptObject, LogRestored
from spark_log.journal.context import Context
from spark_log.journal.storage.log_identity import check_is_no_mirror
from spark_log.journal.storage.opening import KEPT_CHECKPOINTS, WAVE_MAX, View, check_same_log, was_kept
from spark_log.journal.store_operations import Delete, Get, List, Put, Steps
from spark_log.log_lines import logger
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.formats.checkpoint_format import check_checkpoint, encode_checkpoint, folded, reads_back
from spark_log.store.object_names import (
    CHECKPOINTS,
    DAMAGED,
    LOG,
    META,
    checkpoint_key,
    checkpoint_version,
    log_key,
    log_version,
)


def is_due(view: View) -> bool:
    """Whether a checkpoint is due, or a newer one is damaged."""
    past = view.state.version - checkpoint_version(view.checkpoint)
    interval = cluster_config(view.state.configs, "metadata.checkpoint.interval")
    return past >= interval or any(name > view.checkpoint for name in view.damaged)


def look_again(view: View) -> Steps[View]:
    """The view with the newest checkpoint in the storage: a process that follows a coordinator does not list them.

    Raises LogRestored, WrongRoot if the storage has another log by now.
    """
    names = yield from check_same_log(view)
    return view.moved(view.state, names, (view.before, view.head))


def checkpoint_and_truncate(view: View, context: Context, fence_before: int) -> Steps[View]:
    """Write a checkpoint of a view, and delete what it replaces.  This and commits do not wait for each other.

    Records above the fence are kept although a checkpoint includes them: with a stale listing, a writer must still find
    the old record and not a free name.
    """
    view, intact = yield from checkpoint(view, context)
    names, older = yield from _replaced(intact)
    if older:
        yield Delete([name for name in names if name < older])
        first = max(0, min(fence_before, checkpoint_version(names[0])))
        upto = min(view.state.fence, checkpoint_version(older))
        yield Delete([log_key(version) for version in range(first + 1, upto + 1)[-context.limits.deletes_max :]])
    return view


def checkpoint(view: View, context: Context) -> Steps[tuple[View, frozenset[str]]]:
    """Write the state of a confirmed view as a checkpoint, and read it back.

    Returns the view with it, and the intact checkpoints that were read.  If the previous one is damaged, a second one
    is written, so that the newest two are intact.
    Raises CorruptObject if the storage returns other bytes than were put.
    """
    view = view._replace(state=folded(view.state))
    data = encode_checkpoint(view.state, "" if view.log is None else view.log.cluster_id)
    names = yield from check_same_log(view)
    yield from check_is_no_mirror(view.log)
    intact = frozenset[str]()
    for _ in range(KEPT_CHECKPOINTS):
        key = checkpoint_key(view.state.version, context.unique())
        if names and checkpoint_version(names[-1]) == view.state.version:
            key = f"{names[-1]}-{context.unique()}"  # sorts after it
        yield Put(key, (data,))
        found = yield Get(key)
        names = yield from _listed_after(view, key)
        if key not in names[-KEPT_CHECKPOINTS:]:
            break  # newer ones exist, and another process may have deleted this one
        if found != data or not reads_back(data, key, view.state):
            raise CorruptObject(f"{key} cannot be read back as it was written: older checkpoints and records are kept")
        others, damaged = yield from _read_checkpoints(frozenset(names[-KEPT_CHECKPOINTS:]) - intact - {key})
        intact |= others | {key}
        view = view._replace(damaged=view.damaged | damaged)
        if not damaged:
            break
    return view.moved(view.state, names, (view.before, view.head)), intact


def _listed_after(view: View, key: str) -> Steps[list[str]]:
    """The checkpoints after one was put.  Deletes it, and raises LogRestored, if the log was restored meanwhile."""
    try:
        yield from check_is_no_mirror(view.log)
        return (yield from check_same_log(view))
    except LogRestored:
        yield Delete([key])
        raise


def _read_checkpoints(names: Iterable[str]) -> Steps[tuple[frozenset[str], frozenset[str]]]:
    """The intact and the damaged checkpoints; deleted ones are in neither."""
    intact, damaged = set[str](), set[str]()
    for name in sorted(names):
        data = yield Get(name)
        if data is None:
            continue
        try:
            check_checkpoint(data, name)
            intact.add(name)
        except CorruptObject as error:
            logger.warning("a checkpoint cannot be read: %s", error)
            damaged.add(name)
    return frozenset(intact), frozenset(damaged)


def damaged_checkpoints() -> Steps[dict[str, str]]:
    """Kept checkpoints that cannot be read: name -> reason."""
    found = {}
    for name in (yield List(CHECKPOINTS))[-KEPT_CHECKPOINTS:]:
        data = yield Get(name)
        try:
            if data is not None:
                check_checkpoint(data, name)
        except CorruptObject as error:
            found[name] = str(error)
    return found


def lost_checkpoint() -> Steps[str]:
    """Why one of the two checkpoints is lost; empty if none is.  A log deletes its first records once it has two."""
    while len(names := (yield List(CHECKPOINTS))) < KEPT_CHECKPOINTS:
        records: list[str] = yield List(LOG)
        if (yield List(CHECKPOINTS)) != names:
            continue
        if not names or log_key(1) in records:
            return ""
        begins = f"and the metadata log begins with {records[0]}" if records else "and the metadata log has no records"
        return f"it is the only checkpoint, {begins}: another checkpoint is lost"
    return ""


def damaged_between() -> Steps[dict[str, str]]:
    """Records between the two kept checkpoints that are missing or cannot be read: name -> reason.

    The newer checkpoint replaces them; without them the older one cannot replace the newer one.
    """
    while True:
        newest = (yield List(CHECKPOINTS))[-KEPT_CHECKPOINTS:]
        if len(newest) < KEPT_CHECKPOINTS:
            return {}
        first, upto = (checkpoint_version(name) for name in newest)
        names = [name for name in (yield List(LOG)) if first < log_version(name) <= upto]
        found = _missing_between(first, upto, names)
        for at in range(0, len(names), WAVE_MAX):
            few = names[at : at + WAVE_MAX]
            found |= _damaged(zip(few, (yield [Get(name) for name in few]), strict=True))
        if not found or (yield List(CHECKPOINTS))[-KEPT_CHECKPOINTS:] == newest:
            return found


def _missing_between(first: int, upto: int, names: Sequence[str]) -> dict[str, str]:
    """The first missing version in (first, upto]; only the first, because the number of missing ones may be large."""
    there = {log_version(name) for name in names}
    if len(there) == upto - first:
        return {}
    lost = next(version for version in range(first + 1, upto + 1) if version not in there)
    return {log_key(lost): f"{log_key(lost)} is missing"}


def _damaged(files: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    found = {}
    for name, data in files:
        try:
            decode_batch(data or b"", name)
        except CorruptObject as error:
            found[name] = str(error)
    return found


def is_kept(version: int, fence: int) -> Steps[bool]:
    """Whether the record of a version was there until now, as `was_kept` says.

    fence:  of a state that is as new as the look at the record.
    """
    names = yield List(CHECKPOINTS)
    return version > fence or was_kept(version, names)


def _replaced(intact: frozenset[str]) -> Steps[tuple[list[str], str]]:
    """All checkpoints, and the older of the newest two: earlier checkpoints, and records up to it, may be deleted.

    Empty if nothing may be deleted, because there are fewer than two or one of them cannot be read.
    intact:  checkpoints that have just been read.
    """
    names: list[str] = yield List(CHECKPOINTS)
    newest = names[-KEPT_CHECKPOINTS:]
    others, _ = yield from _read_checkpoints(frozenset(newest) - intact)
    kept = len(newest) == KEPT_CHECKPOINTS and intact | others >= frozenset(newest)
    return names, newest[0] if kept else ""


def truncate(view: View, context: Context) -> Steps[int]:
    """Delete all checkpoints but the newest two, and the log records at or below the older one and the fence.

    Returns the number of deletes; nothing is deleted unless both checkpoints can be read.  Raises LogRestored if a
    mirror is in the place of the log.
    """
    names, older = yield from _replaced(frozenset())
    if not older:
        return 0
    yield from check_is_no_mirror(view.log)  # where two checkpoints of a lost log have come late
    upto = min(view.state.fence, checkpoint_version(older))
    old = [name for name in names if name < older]
    records = [name for name in (yield List(LOG)) if log_version(name) <= upto]
    yield Delete([*old, *records[: context.limits.deletes_max]])
    return len(old) + len(records[: context.limits.deletes_max])


def forget(view: View, context: Context, upto: int) -> Steps[tuple[View, bool]]:
    """Replace the checkpoints of versions before `upto`, and delete them and the records up to it.

    Returns the view with the newest checkpoint, and whether nothing of these versions is left.
    """
    for _ in range(KEPT_CHECKPOINTS):
        if all(checkpoint_version(name) >= upto for name in (yield List(CHECKPOINTS))[-KEPT_CHECKPOINTS:]):
            break
        view, _ = yield from checkpoint(view, context)
    yield from truncate(view, context)
    checkpoints, records = yield [List(CHECKPOINTS), List(LOG)]
    before = any(checkpoint_version(name) < upto for name in checkpoints)
    return view, not before and all(log_version(name) > upto for name in records)


def put_aside(names: Iterable[str]) -> Steps[None]:
    """Copy files to `meta/damaged/`."""
    for name in names:
        data = yield Get(name)
        if data is not None:
            yield Put(DAMAGED + name.removeprefix(META).replace("/", "-"), (data,))
