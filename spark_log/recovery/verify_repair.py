"""`pylog verify` with repairs: what can be replaced is replaced first, then the log is verified.

The command and `jobs/verify.py` take the same options.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_log.client.log import Log
from spark_log.errors import SparkLogError
from spark_log.journal.journal import Journal
from spark_log.journal.lost_versions import LostVersions
from spark_log.log_lines import logger
from spark_log.maintenance.memory_file import load_memory, save_memory
from spark_log.metadata.state import State, TopicKey
from spark_log.model import Slice
from spark_log.recovery.lost_ends import give_up_lost_ends
from spark_log.recovery.lost_records import GivenUp, give_up_lost
from spark_log.recovery.object_repair import repair_objects
from spark_log.recovery.verify import verify
from spark_log.recovery.verify_copies import CopyRepair, repair_copies
from spark_log.recovery.verify_objects import Problem, Spread
from spark_log.rewriting.rewrite import Progress


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification with repairs."""

    problems: tuple[Problem, ...]
    """Problems that the repair has left."""
    repaired: tuple[str, ...] = ()
    """Objects, and copies as `broker 2: data/…`, that were replaced by good ones, or whose records were all written
    again."""
    removed: tuple[str, ...] = ()
    """Bad copies that could not be replaced: the log knows now that they are missing."""
    given_up: tuple[GivenUp, ...] = ()
    lost: LostVersions | None = None
    """Versions of the log that were given up: maintenance may delete the objects that are left of them."""


def invalid_repair(
    *, repair: bool, repair_from: str | None, options: Mapping[str, str], lose_data: bool, dry_run: bool = False
) -> str:
    """Why these options do not fit together; empty if they do."""
    if options and repair_from is None:
        return "--repair-option is for the storage of --repair-from, which is missing"
    if repair and repair_from is not None:
        return "--repair takes copies from the log's own brokers: leave out --repair-from"
    if lose_data and not repair:
        return "--lose-data needs --repair: what can be repaired is not given up"
    if dry_run and not lose_data:
        return (
            "--dry-run shows what --repair --lose-data would give up: leave it out, since verify alone changes nothing"
        )
    return ""


def verify_and_repair(
    log: Log,
    deep: bool = False,
    *,
    repair: bool = False,
    copy: Journal | None = None,
    lose_data: bool = False,
    progress: Progress | None = None,
    spread: Spread | None = None,
) -> Verified:
    """Verify a log, after repairs.

    repair:     replace bad copies by good ones of other brokers.
    copy:       another copy of the log, from which bad objects are replaced; not with `repair`.
    lose_data:  with `repair`, give up the records that cannot be read from any root, those of slice indexes that cannot
                be read, and the objects that are left of lost versions of the log.
    spread:     does what reads objects; None: this process.
    Raises the errors of `repair_copies`, `give_up_lost`, `repair_objects` and `verify`.
    """
    if copy is not None:
        found = repair_objects(log, copy, deep, progress=progress, spread=spread)
        _forget_set_aside(log, found.repaired, (), found.problems if deep else None)
        return Verified(found.problems, found.repaired)
    if not repair:
        problems = verify(log, deep, progress=progress, spread=spread)
        _forget_set_aside(log, (), (), problems if deep else None)
        return Verified(tuple(problems))
    has_copies = bool(log.journal.refresh().brokers) or not lose_data
    copies = repair_copies(log, deep, progress=progress, spread=spread) if has_copies else CopyRepair((), ())
    rewritten = set[str]()
    given_up = tuple(give_up_lost(log, deep, spread=spread, rewritten=rewritten)) if lose_data else ()
    lost = give_up_lost_ends(log.journal) if lose_data else None
    problems = verify(log, deep, progress=progress, spread=spread)
    repaired = [name.rpartition(": ")[2] for name in copies.repaired]
    _forget_set_aside(log, repaired, given_up, problems if deep else None)
    return Verified(tuple(problems), (*copies.repaired, *sorted(rewritten)), copies.removed, given_up, lost)


def _forget_set_aside(
    log: Log, repaired: Sequence[str], given_up: Sequence[GivenUp], left: Sequence[Problem] | None
) -> None:
    """Maintenance reads the repaired objects in its next run, and health no longer names them.

    left:  the problems that there are, if all records were read: somebody may have restored other objects.
    A coordinator finds out itself: its maintenance keeps no file.
    """
    journal = log.journal
    state = journal.refresh()
    if not (repaired or given_up or left is not None) or state.coordinator.address or journal.metadata_log.is_served:
        return
    memory = journal.run(load_memory(state))
    if memory is None:
        return
    intact = set(repaired)
    if left is not None:
        intact.update(
            name for name in memory.aside.objects if not any(name in f"{one.what} {one.message}" for one in left)
        )
    done = [(key, one.piece) for key, one in memory.aside if _is_done(state, key, one.piece, intact, given_up)]
    for key, piece in done:
        memory.aside.drop(key, piece.start)
    try:
        if done:
            journal.run(save_memory(memory, state))
    except (SparkLogError, OSError) as error:  # this user may only read
        logger.warning("health names them until maintenance reads them again: %s", error)


def _is_done(state: State, key: TopicKey, piece: Slice, intact: Collection[str], given_up: Sequence[GivenUp]) -> bool:
    """Whether a slice is in an object that can be read again, or has records that are given up."""
    where = (state.topics[key[0]].name, key[1])
    return piece.object in intact or any(
        one[:2] == where and one.start < piece.end and piece.start < one.end for one in given_up
    )
