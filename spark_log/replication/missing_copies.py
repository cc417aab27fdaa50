"""The objects that one broker lacks, the oldest uploads first, and the records of the copies that were made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from spark_log.errors import SparkLogError
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import Report
from spark_log.metadata.records import Copy, HeldRecord, MissingRecord
from spark_log.metadata.replicas.replicas import (
    epoch_of,
    has_active,
    has_copy,
    holders,
    is_active,
    keeps,
    lacked,
    lacked_objects,
)
from spark_log.metadata.state import ObjectRow, State
from spark_log.replication.copy_throttle import Pace
from spark_log.replication.copy_to_broker import CopiedObjects, Moved, ObjectCopying, WantedCopy

OBJECTS_AT_ONCE, BYTES_AT_ONCE = 1024, 256 << 20
"""After about so many, a record says that the broker has them."""
RECORDED_MAX = 10_000
"""Copies in one record."""


@dataclass(slots=True)
class CopyTally:
    """The result of a pass."""

    objects: int = 0
    bytes: int = 0
    failed: set[int] = field(default_factory=set)
    """Placement groups of objects that could not be copied."""
    denied: set[str] = field(default_factory=set)
    """Those of which a copy may be on a root to which this process has no access."""
    bad: list[Copy] = field(default_factory=list)
    """Bad copies that were met, and recorded as missing."""
    problems: list[str] = field(default_factory=list)
    left: bool = False
    """The time was over before all was copied, or the broker's root failed."""
    is_under_way: bool = False
    """The pass has not ended, and copies."""
    planned: tuple[State, int] | None = None
    """The state whose objects were copied, and when it was read, on the monotonic clock; None: those of the caller."""


def copies_wanted(state: State, broker: int) -> Iterator[WantedCopy]:
    """The objects that a broker lacks and an active one has, the oldest uploads first."""
    for name, row in lacked_objects(state, broker, lambda copies: has_active(state, copies)):
        near = sorted(_known_holders(state, row), key=lambda source: not _is_near(state, source, broker))
        yield _wanted(state, name, row, [source for source in near if is_active(state, source)])


def is_behind(state: State, broker: int) -> bool:
    """Whether there are such objects.  Looks at none of them, unless the broker keeps only the newest ones."""
    known = state.brokers.get(broker)
    if known is not None and known.keep_ms:
        return next(copies_wanted(state, broker), None) is not None
    groups = [number for number, group in state.placement_groups.items() if broker in group.replicas]
    return any(has_active(state, state.copies[one]) for number in groups for one in lacked(state, number, broker))


def backlog_bytes(state: State, broker: int) -> int:
    """About the size of these objects: of a broker that keeps only the newest ones, older ones are counted, too."""
    groups = [number for number, group in state.placement_groups.items() if broker in group.replicas]
    some = (state.copies[one] for number in groups for one in lacked(state, number, broker))
    return sum(copies.bytes for copies in some if has_active(state, copies))


def copies_wanted_of_fenced(state: State, broker: int, *, pending: bool) -> Iterator[WantedCopy]:
    """The objects that a broker lacks and fenced brokers alone have: those of pending commits, or the others."""
    for name, row in lacked_objects(
        state, broker, lambda copies: copies.pending == pending and not has_active(state, copies)
    ):
        yield _wanted(state, name, row, _known_holders(state, row))


def _wanted(state: State, name: str, row: ObjectRow, sources: Iterable[int]) -> WantedCopy:
    known = tuple((source, epoch) for source in sources if (epoch := epoch_of(state, source)) is not None)
    return WantedCopy(name, row, state.copies[row.copies].group, known)


def _known_holders(state: State, row: ObjectRow) -> list[int]:
    """Other replicas are no sources: their copies may be made at this moment, and would be reported as missing."""
    known = state.copies[row.copies].brokers
    return [source for source in dict.fromkeys(holders(state, row)) if source in known]


def _is_near(state: State, source: int, target: int) -> bool:
    """Whether two brokers are known to be in one rack."""
    known, other = state.brokers.get(source), state.brokers.get(target)
    return known is not None and other is not None and bool(known.rack) and known.rack == other.rack


def next_share(wanted: Iterator[WantedCopy], bytes_max: int = BYTES_AT_ONCE) -> list[WantedCopy]:
    """The next objects, of about so many bytes; at least one, if any is left."""
    share, size = list[WantedCopy](), 0
    while len(share) < OBJECTS_AT_ONCE and size < bytes_max and (one := next(wanted, None)) is not None:
        share.append(one)
        size += one.row.size
    return share


def catch_up_broker(
    journal: Journal, state: State, broker: int, pace: Pace, until_ms: int, moved: Moved = lambda doing: None
) -> CopyTally:
    """Copy what the broker lacks in a state, until the time is over.  May hang with the broker's root.

    moved:  as for `ObjectCopying`.
    """
    wanted = copies_wanted(state, broker)
    return copy_objects(journal, state, broker, wanted, pace, until_ms, moved)


def copy_objects(
    journal: Journal,
    state: State,
    broker: int,
    wanted: Iterator[WantedCopy],
    pace: Pace,
    until_ms: float | None,
    moved: Moved = lambda doing: None,
) -> CopyTally:
    """Copy objects to a broker, and record the copies in the log.

    state:     the one from which `wanted` was made.
    until_ms:  when to stop, on the monotonic clock; None: when all are copied.
    moved:     as for `ObjectCopying`.
    """
    context, done = journal.context, CopyTally()
    copying = ObjectCopying(journal.roots, broker, pace, context.threads, moved)
    while not done.left and (share := next_share(wanted)):
        record_copies(journal, state, broker, [copying.run(share)], done)
        if until_ms is not None and context.clock.monotonic_ms() >= until_ms:
            done.left = done.left or next(wanted, None) is not None
            break
    return done


def record_copies(
    journal: Journal, state: State, broker: int, results: Iterable[CopiedObjects], done: CopyTally
) -> None:
    """Record in the log which copies were made, and which copies were found to be bad.

    state:  the one from which the copies were planned.
    done:   gets the results in addition to those that it has.
    """
    made, bad = dict[str, int](), dict[Copy, None]()
    for one in results:
        made.update(one.done)
        bad.update(dict.fromkeys(one.bad))
        done.failed |= one.failed
        done.denied |= one.denied
        done.problems += one.problems
        done.left = done.left or one.stopped
    if made:
        added = [Copy(name, broker, epoch_of(state, broker) or 0) for name in made]
        for at in range(0, len(added), RECORDED_MAX):
            journal.propose(Report.of(state, HeldRecord(copies=tuple(added[at : at + RECORDED_MAX]))))
        done.objects += len(made)
        done.bytes += sum(made.values())
        try:
            _remove_if_gone(journal, broker, made)
        except (SparkLogError, OSError, KeyError) as error:
            done.left = True
            done.problems.append(f"copying to broker {broker} stopped: {error}")
    if bad:
        newest = journal.refresh()
        held = tuple(copy for copy in bad if _is_held(newest, copy))
        if held:
            journal.propose(Report.of(state, MissingRecord(copies=held)))
        done.bad += held


def _remove_if_gone(journal: Journal, broker: int, names: Collection[str]) -> None:
    """Garbage collection may have passed while this process was stopped: then nobody else would delete a copy.

    A broker that keeps only the newest objects may have the last copy of an old one.
    """
    state = journal.refresh()
    gone = [name for name in names if name not in state.objects and name not in state.dropped]
    gone = [] if state.dropped_lists else gone
    old = [name for name in names if name in state.objects and not keeps(state, broker, name)]
    gone += [name for name in old if not has_copy(state, broker, name)]
    if gone:
        journal.roots[broker].delete(gone)


def _is_held(state: State, copy: Copy) -> bool:
    """Whether a copy counts.  One of a fenced broker is judged when the broker returns: an older backup of its disk may
    be mounted for a moment."""
    if not is_active(state, copy.broker) or epoch_of(state, copy.broker) != copy.epoch:
        return False
    return has_copy(state, copy.broker, copy.object)
