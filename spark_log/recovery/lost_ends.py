"""Objects that are left of versions which the metadata log has lost at its end: no record names them.

`journal/lost_versions.py` says when versions are lost, and keeps the objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from spark_log.errors import SparkLogError
from spark_log.journal.dropped_lists import read_lists
from spark_log.journal.journal import Journal
from spark_log.journal.lost_versions import (
    LostVersions,
    both,
    find_lost,
    give_up_versions,
    known_loss,
    loss_text,
    lost_record,
)
from spark_log.journal.storage.seen_log import is_mirror
from spark_log.log_lines import logger
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.state import State
from spark_log.recovery.verify_objects import Problem
from spark_log.segment.batch_index import TAIL, TAIL_BYTES, Index, parse_index
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import DATA, INDEX, LOG, listed, prefixes_above, upload_epoch
from spark_log.text import counted

NAMED_MAX = 20
"""Objects that a message names."""
COUNTED_MAX = 1000
"""Objects of which the records are counted."""
INDEX_GUESS = 1 << 16
"""Bytes that are read from an object's end, because its index is probably in them."""
OLD_MS = 600_000
"""An upload that ended so long ago was given up, or the record of its commit is lost."""
Names = Mapping[int, Collection[str]]
"""By root, the names of the objects in it."""


def lost_ends(journal: Journal, brokers: Iterable[int]) -> list[Problem]:
    """The versions that are lost at the end of the log, as problems, with the objects that are left of them.

    brokers:  the roots to look at.  Those that cannot be read are reported by other checks.
    """
    names = dict(_listed(journal, brokers))
    state = journal.refresh()
    gone = _lost_record(journal, state)
    found = [journal.run(find_lost(state, some, broker, gone)) for broker, some in names.items()]
    newest = max(filter(None, found), key=lambda one: one.upto, default=None)
    lost = journal.run(known_loss(state, newest))
    if lost is None:
        _warn_of_last(journal, state, names.get(OWN_BROKER, ()))
        return []
    if is_mirror(journal):  # it gets objects before the records that name them
        return []
    left = unnamed(journal, state, names, lost.after, max(lost.upto, state.version))
    return [Problem(LOG, f"{journal.run(loss_text(state, lost))}{left and f'. {left}'}")]


def lost_text(journal: Journal) -> str:
    """A text on lost versions, as noted, or as objects in the log's own root show; empty: there are none."""
    root = journal.roots[OWN_BROKER]
    prefixes = prefixes_above(journal.state.version) if journal.metadata_log.reads_newest else []
    names = [name for prefix in prefixes for name in listed(root, prefix)]
    state = journal.refresh()
    found = journal.run(find_lost(state, names, OWN_BROKER, _lost_record(journal, state)))
    lost = journal.run(known_loss(state, found))
    return "" if lost is None or is_mirror(journal) else journal.run(loss_text(state, lost))


def _lost_record(journal: Journal, state: State) -> int:
    return -1 if journal.metadata_log.is_served else journal.run(lost_record(state))


def _listed(journal: Journal, brokers: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
    for broker in sorted({OWN_BROKER, *brokers}):
        try:
            yield broker, listed(journal.roots[broker], DATA)
        except (SparkLogError, OSError, KeyError) as error:
            logger.debug("objects on broker %d: %s", broker, error)


def unnamed(journal: Journal, state: State, names: Names, first: int, last: int) -> str:
    """A sentence on the objects that were uploaded at these versions, and that the log does not name."""
    roots = {name: broker for broker, some in names.items() for name in some if first <= upload_epoch(name) <= last}
    left = set(roots) - {*state.objects, *state.dropped, *state.dropped_lists}
    if left:
        journal.run(read_lists(state.dropped_lists, left.difference_update))
    if not left:
        return ""
    shown = sorted(left)[:COUNTED_MAX]
    records = sum(_records(journal.roots[roots[name]], name) for name in shown)
    more = f" and {len(left) - NAMED_MAX} more" if len(left) > NAMED_MAX else ""
    least = "at least " if len(left) > COUNTED_MAX else ""
    return (
        f"No record names {counted(len(left), 'object')} of these versions, with {least}{counted(records, 'record')}: "
        f"{', '.join(shown[:NAMED_MAX])}{more} (`pylog segment dump --records OBJECT`)"
    )


def _records(store: ObjectStore, name: str) -> int:
    index = index_of(store, name)
    return 0 if index is None else int(index.numbers["rows"].sum())


def index_of(store: ObjectStore, name: str) -> Index | None:
    """The index of a segment; None for other objects, and for one that cannot be read."""
    try:
        size = store.size(name)
        if size is None or name.endswith(INDEX) or size < TAIL_BYTES:
            return None
        data = store.get(name, max(0, size - INDEX_GUESS), size)
        if TAIL.unpack(data[-TAIL_BYTES:])[0] + TAIL_BYTES > len(data):
            data = store.get(name)
        return parse_index(data, name=name, object_size=size)
    except (SparkLogError, OSError):
        return None


def _warn_of_last(journal: Journal, state: State, names: Collection[str]) -> None:
    """Warn of uploads at the newest version that ended long ago: perhaps the last record of the log named them."""
    left = [name for name in names if upload_epoch(name) == state.version and name not in state.objects]
    now_ms, store = journal.context.clock.now_ms(), journal.roots[OWN_BROKER]
    old = [name for name in left if (ms := store.written_ms(name)) is not None and ms < now_ms - OLD_MS]
    if old:
        text = unnamed(journal, state, {OWN_BROKER: old}, state.version, state.version)
        logger.warning(
            "%s: either a writer was killed before its commit, or the last record of %s, version %d, is lost: compare "
            "with a mirror, a backup, or what clients have read",
            text or "objects were uploaded at the newest version",
            LOG,
            state.version + 1,
        )


def give_up_lost_ends(journal: Journal) -> LostVersions | None:
    """Give up the versions that are lost at the end of the log; returns them, None if there are none."""
    if is_mirror(journal):
        return None
    given_up: LostVersions | None = None
    for broker, names in _listed(journal, journal.roots.brokers):
        state = journal.refresh()
        found = journal.run(give_up_versions(state, names, broker, _lost_record(journal, state)))
        given_up = both(given_up, found) if given_up and found else given_up or found
    return given_up
