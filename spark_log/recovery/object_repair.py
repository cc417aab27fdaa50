"""`pylog verify --repair-from`: replaces missing and damaged objects by their copies in another root of the log.

The other root is a mirror of the log, the log that a mirror follows, or any older copy.  A copy is taken only if all
that the log refers to in it can be read and has the right checksums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_log.client.admin.brokers import check_answers
from spark_log.client.log import Log
from spark_log.errors import InvalidRequest
from spark_log.journal.journal import Journal
from spark_log.journal.storage.seen_log import is_mirror
from spark_log.metadata.records import Piece
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import copies_of, is_active
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice
from spark_log.recovery.verify import is_whole, resolve, verify
from spark_log.recovery.verify_objects import Problem, Spread
from spark_log.rewriting.rewrite import Progress
from spark_log.store.base import ObjectStore
from spark_log.store.copy_object import copy_object
from spark_log.store.object_names import LOG

Entries = dict[str, list[tuple[TopicKey, Slice | Piece]]]
"""By object, what the state refers to in it."""


@dataclass(frozen=True, slots=True)
class ObjectRepair:
    """The result of a repair."""

    repaired: tuple[str, ...]
    """Names of the objects that were replaced."""
    problems: tuple[Problem, ...]
    """Those that remain."""


def repair_objects(
    log: Log, copy: Journal, deep: bool = False, *, progress: Progress | None = None, spread: Spread | None = None
) -> ObjectRepair:
    """Verify a log or a mirror, and replace missing or damaged objects by good copies.

    copy:  the journal of another root with the same log; the good copies come from there.
    deep:  read every byte, as in `verify`.  If False, only missing objects, and objects of another size, are found.
    spread:  looks for damaged objects, which this process replaces; None: this process does both.
    Raises InvalidRequest if `copy` has another log, or the same root; WrongRoot as `verify` does, and if the log's own
    root is not mounted on this machine.
    """
    journal = log.journal
    if copy.cluster_id != journal.cluster_id:
        raise InvalidRequest(f"{copy.objects.url} has another log, with the id {copy.cluster_id}")
    if copy.objects.url == journal.objects.url:
        raise InvalidRequest(f"{copy.objects.url} is the log itself: name a mirror, or another copy of it")
    source, repaired = copy.objects, list[str]()
    while True:
        problems = verify(log, deep, progress=progress, spread=spread)
        found = list(_replaced(journal, source, [p.what for p in problems if p.what not in repaired], progress))
        if not found:
            break
        repaired += found  # a slice index that can be read again shows further objects
    problems += _newer(journal, copy)
    return ObjectRepair(tuple(repaired), tuple(_with_reason(journal.state, problem, source) for problem in problems))


def _newer(journal: Journal, copy: Journal) -> list[Problem]:
    """A problem if the copy has versions which the log has lost: a log is never behind its copies."""
    there = copy.refresh().version
    here = journal.refresh().version
    if there <= here or is_mirror(journal):
        return []
    return [
        Problem(
            LOG,
            f"the log is at version {here}, and {copy.objects.url} has version {there}: the log has lost the versions "
            f"after {here}, and objects alone do not bring them back. Stop all clients, and continue with the copy: for a mirror, "
            f"`pylog recover -u {copy.objects.url}`. Or copy its files of meta/ckpt/, and then of meta/log/, into the log",
        )
    ]


def _replaced(journal: Journal, source: ObjectStore, names: Sequence[str], progress: Progress | None) -> Iterator[str]:
    """Replace the objects among `names` that are damaged; the names of those that were."""
    state = journal.refresh()
    entries = _entries(journal, state, names)
    if entries:  # found by others, and its disk may not be mounted here
        check_answers(journal.roots, OWN_BROKER)
    for number, (name, found) in enumerate(sorted(entries.items())):
        damaged = [store for store in _stores(journal, state, name) if not is_whole(store, state, name, found)]
        if damaged and is_whole(source, state, name, found):
            for store in damaged:
                copy_object(source, store, name, state.objects[name].size)
                _remove_if_dropped(journal, store, name)
            yield name
        if progress is not None:
            progress("repair", number + 1, len(entries))


def _entries(journal: Journal, state: State, names: Sequence[str]) -> Entries:
    entries: Entries = {name: [] for name in names if name in state.objects}
    if not entries:
        return entries
    slices, _ = journal.run(resolve(state))
    for key, part in state.partitions.items():
        within: list[Slice | Piece] = [*slices[key], *(entry for entry in part.entries if isinstance(entry, Piece))]
        for entry in within:
            if entry.object in entries:
                entries[entry.object].append((key, entry))
    return entries


def _stores(journal: Journal, state: State, name: str) -> list[ObjectStore]:
    """Where an object has to be: the active brokers with a copy, or without any known copy, all its replicas.

    The replicator then finds the copies that the log does not know.
    """
    copies = copies_of(state, state.objects[name])
    if copies is None:
        return [journal.objects]
    brokers = copies.brokers or state.placement_groups[copies.group].replicas
    return [journal.roots[broker] for broker in brokers if is_active(state, broker)]


def _remove_if_dropped(journal: Journal, store: ObjectStore, name: str) -> None:
    """Garbage collection may have passed while this process was stopped: then nobody else would delete the object."""
    state = journal.refresh()
    if name not in state.objects and name not in state.dropped:
        store.delete([name])


def _with_reason(state: State, problem: Problem, source: ObjectStore) -> Problem:
    if problem.what not in state.objects:
        return problem
    return replace(problem, message=f"{problem.message}; {source.url} has no good copy")
