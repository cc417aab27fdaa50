"""Commits that too few replicas have: the objects of such a commit are copied from root to root, and it is tried again.

So a commit is not lost because its writers met a root that did not answer for some minutes, and no record is sent by
the committer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from msgspec.structs import replace

from spark_log.errors import NotEnoughReplicas, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.journal.replica_puts import Replica, copy_to
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.replicas import is_active, targets_of
from spark_log.metadata.state import State
from spark_log.model import DataObject, Placed
from spark_log.text import counted

logger = logging.getLogger("spark_log")

PARALLEL = 4
"""Objects that are copied at a time."""
COPY_MS, BYTES_PER_MS = 10_000, 10_000
"""A copy may take this long, and a millisecond more for so many bytes, before its root is passed over."""


def copied(journal: Journal, commit: CommitRecord, error: NotEnoughReplicas, until_ms: float) -> CommitRecord:
    """The commit, after objects were copied to in-sync replicas that lack them as far as these answer.

    until_ms:  deadline on the monotonic clock.
    """
    with suppress(StorageUnavailable):
        journal.refresh(round(until_ms))
    state, hung = journal.newest, set[int]()
    placed = {made.name: where for made, where in zip(commit.objects, commit.placed, strict=True)}
    sizes = {made.name: made for made in commit.objects}
    wanted = [(sizes[name], brokers) for name, brokers in sorted(error.lacking.items())]
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="pylog-copies") as pool:
        done = pool.map(
            lambda one: _copied(journal, state, one[0], one[1], placed[one[0].name], hung, until_ms), wanted
        )
        made = {one.name: new for (one, _), new in zip(wanted, done, strict=True)}
    _log(sizes, made)
    now = {name: _with_copies(where, made.get(name, ())) for name, where in placed.items()}
    return replace(commit, placed=tuple(now[one.name] for one in commit.objects))


def _copied(
    journal: Journal,
    state: State,
    made: DataObject,
    brokers: Sequence[int],
    where: Placed,
    hung: set[int],
    until_ms: float,
) -> Sequence[Replica]:
    """Copy an object to brokers; returns those that have it then.

    hung:  brokers that are passed over, because a copy to them did not end.
    """
    clock, limit_ms = journal.context.clock, COPY_MS + made.size / BYTES_PER_MS
    targets = [one for one in targets_of(state, where.group).all if one[0] in brokers]
    for source, _ in sorted(where.held, key=lambda one: not is_active(state, one[0])):
        waiting = [one for one in targets if one[0] not in hung and one[0] != source]
        if not waiting:
            return ()
        before = clock.monotonic_ms()
        done = copy_to(journal.roots, source, waiting, made.name, made.size, clock, until_ms, limit_ms)
        if clock.monotonic_ms() - before >= limit_ms:
            hung.update(broker for broker, epoch in waiting if (broker, epoch) not in done)
        if done:
            return done
    return ()


def _with_copies(where: Placed, new: Sequence[Replica]) -> Placed:
    """With the new copies.  A copy under another epoch of the same broker is replaced."""
    brokers = {broker for broker, _ in new}
    return Placed(where.group, (*(one for one in where.held if one[0] not in brokers), *new))


def _log(objects: Mapping[str, DataObject], made: Mapping[str, Sequence[Replica]]) -> None:
    copies = sum(map(len, made.values()))
    if copies:
        size = sum(objects[name].size * len(new) for name, new in made.items())
        brokers = sorted({broker for new in made.values() for broker, _ in new})
        logger.warning(
            "%s of objects (%d bytes) that are not committed yet went to brokers %s, which had missed them",
            counted(copies, "copy", "copies"),
            size,
            ", ".join(map(str, brokers)),
        )
