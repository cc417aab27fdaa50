"""`pylog repair`: rebuilds the metadata of a log that does not open, from the checkpoints and records that can be read.

Only a log of which every version is known is written again: its damaged files are moved to `meta/damaged/`, and two new
checkpoints take their place.  If a version is lost, the offsets that its records had could be given to other records, so
nothing is changed, and the report says what is lost.  No client and no coordinator may use the log meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_log.clock import Clock, SystemClock
from spark_log.errors import CorruptObject, InvalidRequest, NoLog, SparkLogError
from spark_log.journal.journal import FORMAT_KEY, parse_format
from spark_log.journal.ops import Delete, Get, List, Put, Steps, run
from spark_log.journal.protocol import (
    CHECKPOINTS,
    LOG,
    META,
    Context,
    View,
    checkpoint_version,
    log_key,
    log_version,
    open_view,
    state_in,
)
from spark_log.journal.upkeep import checkpoint
from spark_log.metadata.records import Batch, Commit, decode_batch
from spark_log.metadata.replay import replay
from spark_log.metadata.state import Coordinator, State
from spark_log.store.base import ObjectStore
from spark_log.store.retry import with_retries
from spark_log.words import counted

DAMAGED = f"{META}damaged/"
SHOWN = 20
"""Lost changes that an error names."""

IsAlive = Callable[[Coordinator], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found, and what a repair does about it."""

    version: int
    """The newest version that can be restored."""
    base: str
    """The checkpoint from which it is; empty: from the first record on."""
    damaged: tuple[str, ...]
    """Files that cannot be read and are not needed: they are moved to `meta/damaged/`."""
    lost: tuple[str, ...] = ()
    """Versions that cannot be restored: what is known of each.  If there are any, the log is not changed."""


@dataclass(frozen=True, slots=True)
class _Found:
    report: Report
    state: State


def repair(
    store: ObjectStore, *, is_alive: IsAlive, dry_run: bool = False, clock: Clock | None = None, seed: int | None = None
) -> Report:
    """Make a damaged log one that opens, with every record that was acknowledged; or, with `dry_run`, say what would be done.

    is_alive:  whether a coordinator that has the log answers.
    Raises NoLog if there is none, InvalidRequest if there is nothing to repair or a coordinator serves the log,
    CorruptObject, with all that is lost, if versions cannot be restored, UnsupportedVersion for files of a newer pylog.
    """
    clock = clock or SystemClock()
    store = with_retries(store, clock)
    rng = random.SystemRandom() if seed is None else random.Random(seed)
    found = run(_find(store.url), store, clock)
    if is_alive(found.state.coordinator):
        raise InvalidRequest(
            f"the coordinator at {found.state.coordinator.address} serves {store.url}: stop it, then repair the log"
        )
    if found.report.lost and not dry_run:
        more = len(found.report.lost) - SHOWN
        raise CorruptObject(
            f"{store.url} can be restored up to version {found.report.version}, and nothing was changed, for more is lost: "
            f"{'; '.join(found.report.lost[:SHOWN])}{f'; and {more} more' if more > 0 else ''}. Restore the first of these "
            "files from a copy of the log, and run `pylog repair` again"
        )
    if not dry_run:
        run(_rebuild(found, Context(clock, rng)), store, clock)
    return found.report


def _find(url: str) -> Steps[_Found]:
    form = yield Get(FORMAT_KEY)
    if form is None:
        raise NoLog(f"there is no log at {url}: it has no {FORMAT_KEY}")
    parse_format(form, url)
    names: list[str] = yield List(CHECKPOINTS)
    records: list[str] = yield List(LOG)
    states, damaged = yield from _read_checkpoints(names)
    best = yield from _furthest(states, frozenset(records))
    newest = max([*map(log_version, records), *map(checkpoint_version, names)], default=0)
    lost = (yield from _lost(best[1], newest, frozenset(records))) if best[1].version < newest else ()
    if not lost and not damaged and (yield from _opens()):
        raise InvalidRequest(
            f"nothing to repair: {url} opens at version {best[1].version}, and no checkpoint is damaged"
        )
    return _Found(Report(version=best[1].version, base=best[0], damaged=damaged, lost=lost), best[1])


def _read_checkpoints(names: Sequence[str]) -> Steps[tuple[dict[str, State], tuple[str, ...]]]:
    """The states of those that can be read, newest first, and the names of the others."""
    states, damaged = dict[str, State](), list[str]()
    for name in reversed(names):
        try:
            states[name] = state_in((yield Get(name)), name)
        except CorruptObject:
            damaged.append(name)
    return states, tuple(sorted(damaged))


def _furthest(states: dict[str, State], records: frozenset[str]) -> Steps[tuple[str, State]]:
    """The checkpoint from which the records lead furthest, and the state there; of equals, the newest checkpoint."""
    best = ("", State())
    for name, start in [*states.items(), ("", State())]:
        state = start
        while (key := log_key(state.version + 1)) in records:
            batch = yield from _batch(key)
            if batch is None:
                break
            state = replay(state, batch)
        if state.version > best[1].version:
            best = (name, state)
    return best


def _batch(key: str) -> Steps[Batch | None]:
    """The records of a version; None if they cannot be read."""
    try:
        return decode_batch((yield Get(key)) or b"", key)
    except CorruptObject:
        return None


def _lost(state: State, newest: int, records: frozenset[str]) -> Steps[tuple[str, ...]]:
    """What is known of the versions after `state`."""
    said = []
    for version in range(state.version + 1, newest + 1):
        key = log_key(version)
        if key not in records:
            said.append(f"{key} is missing")
        elif (batch := (yield from _batch(key))) is None:
            said.append(f"{key} is damaged")
        else:
            said.append(f"{key} can be read, and cannot be applied{_content(state, batch)}")
    return tuple(said)


def _content(state: State, batch: Batch) -> str:
    """How many records it adds to which partitions."""
    rows = Counter[str]()
    for record in batch.records:
        if isinstance(record, Commit):
            for _, run_ in record.slices:
                rows[_named(state, run_.topic_id, run_.partition)] += run_.rows
            for topic_id, number, piece in record.pieces:
                rows[_named(state, topic_id, number)] += piece.end - piece.start
    parts = ", ".join(f"{counted(count, 'record')} of {name}" for name, count in sorted(rows.items()))
    return f": {parts}" if parts else ""


def _named(state: State, topic_id: str, number: int) -> str:
    topic = state.topics.get(topic_id)
    return f"{topic.name if topic else topic_id}-{number}"


def _opens() -> Steps[bool]:
    try:
        yield from open_view()
    except SparkLogError:
        return False
    return True


def _rebuild(found: _Found, context: Context) -> Steps[None]:
    """Copy the damaged files, write two checkpoints, and delete the damaged files: it may be broken off at any point."""
    damaged = found.report.damaged
    for name in damaged:
        data = yield Get(name)
        yield Put(DAMAGED + name.removeprefix(META).replace("/", "-"), (data or b"",))
    view = View(found.report.base, found.state, frozenset(damaged))
    yield from checkpoint(view, context)
    yield Delete(list(damaged))
    yield from checkpoint(view, context)
    yield from open_view()
