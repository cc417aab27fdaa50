"""Commits that too few replicas have: the objects of such a commit are copied from root to root, and it is tried again.

So a commit is not lost because its writers met a root that did not answer for some minutes, and no record is sent by
the committer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from msgspec.structs import replace

from spark_log.errors import NotEnoughReplicas, StorageUnavailable
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.replicas.replicas import targets_of
from spark_log.metadata.state import State
from spark_log.model import DataObject, Placed
from spark_log.roots.replica_puts import COPY_MS, copy_missing
from spark_log.text import counted

PARALLEL = 4
"""Objects that are copied at a time."""


def copied(journal: Journal, commit: CommitRecord, error: NotEnoughReplicas, until_ms: float) -> CommitRecord:
    """Copy a commit's objects to the in-sync replicas that lack them, and return the commit with the new copies.

    A replica that does not answer gets none.

    until_ms:  deadline on the monotonic clock.
    """
    with suppress(StorageUnavailable):
        journal.refresh(round(until_ms))
    state, hung = journal.newest, set[int]()
    placed = {made.name: where for made, where in zip(commit.objects, commit.placed, strict=True)}
    wanted = [(made, error.lacking[made.name]) for made in commit.objects if made.name in error.lacking]
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="pylog-copies") as pool:
        done = list(
            pool.map(lambda one: _copied(journal, state, one[0], one[1], placed[one[0].name], hung, until_ms), wanted)
        )
    now = placed | {one.name: where for (one, _), where in zip(wanted, done, strict=True)}
    _log(commit, placed, now)
    return replace(commit, placed=tuple(now[one.name] for one in commit.objects))


def _copied(
    journal: Journal,
    state: State,
    made: DataObject,
    brokers: Sequence[int],
    where: Placed,
    hung: set[int],
    until_ms: float,
) -> Placed:
    """Where an object is after it was copied to brokers as far as they answer.

    hung:  brokers that are left out, because a copy to them did not end, although the root with the object answers.
    """
    clock = journal.context.clock
    targets = [one for one in targets_of(state, where.group).all if one[0] in brokers and one[0] not in hung]
    if not targets:
        return where
    before = clock.monotonic_ms()
    new = copy_missing(journal.roots, made.name, made.size, where, targets, clock, until_ms)
    if clock.monotonic_ms() - before >= COPY_MS and not any(journal.roots.is_late(one) for one, _ in where.held):
        hung.update(broker for broker, epoch in targets if (broker, epoch) not in new.held)
    return new


def _log(commit: CommitRecord, before: Mapping[str, Placed], now: Mapping[str, Placed]) -> None:
    new = {made: {*now[made.name].held} - {*before[made.name].held} for made in commit.objects}
    copies = sum(map(len, new.values()))
    if copies:
        logger.warning(
            "%s of objects (%d bytes) that are not committed yet went to brokers %s, which had missed them",
            counted(copies, "copy", "copies"),
            sum(made.size * len(some) for made, some in new.items()),
            ", ".join(map(str, sorted({broker for some in new.values() for broker, _ in some}))),
        )
