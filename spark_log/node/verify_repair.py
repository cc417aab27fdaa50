"""`pylog verify` with repairs: what can be replaced is replaced first, then the log is verified.

The command and `jobs/verify.py` take the same options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_log.client.log import Log
from spark_log.journal.journal import Journal
from spark_log.node.lost_records import GivenUp, give_up_lost
from spark_log.node.object_repair import repair_objects
from spark_log.node.rewrite import Progress
from spark_log.node.verify import verify
from spark_log.node.verify_copies import CopyRepair, repair_copies
from spark_log.node.verify_objects import Problem, Spread


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification with repairs."""

    problems: tuple[Problem, ...]
    """Those that are left."""
    repaired: tuple[str, ...] = ()
    """Objects, and copies as `broker 2: data/…`, that were replaced by good ones."""
    removed: tuple[str, ...] = ()
    """Bad copies that could not be replaced: the log knows now that they are missing."""
    given_up: tuple[GivenUp, ...] = ()


def invalid_repair(*, repair: bool, repair_from: str | None, options: Mapping[str, str], lose_data: bool) -> str:
    """Why these options do not fit together; empty if they do."""
    if options and repair_from is None:
        return "--repair-option is for the storage of --repair-from, which is missing"
    if repair and repair_from is not None:
        return "--repair takes copies from the log's own brokers: leave out --repair-from"
    if lose_data and not repair:
        return "--lose-data needs --repair: what can be repaired is not given up"
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
    lose_data:  with `repair`, give up the records of which no broker has a good copy, and of slice indexes that cannot
                be read.  A log without brokers has no other copies, and only the latter.
    spread:     does what reads objects; None: this process.
    Raises the errors of `repair_copies`, `give_up_lost`, `repair_objects` and `verify`.
    """
    if copy is not None:
        found = repair_objects(log, copy, deep, progress=progress, spread=spread)
        return Verified(found.problems, found.repaired)
    if not repair:
        return Verified(tuple(verify(log, deep, progress=progress, spread=spread)))
    has_copies = bool(log.journal.refresh().brokers) or not lose_data
    copies = repair_copies(log, deep, progress=progress, spread=spread) if has_copies else CopyRepair((), ())
    given_up = tuple(give_up_lost(log)) if lose_data else ()
    problems = verify(log, deep, progress=progress, spread=spread)
    return Verified(tuple(problems), copies.repaired, copies.removed, given_up)
