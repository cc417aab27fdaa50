"""Brokers that keep only the newest objects: which copies they drop, and when.  Pure.

The age of an object is that of its upload.  Its name has the version of the log at which the upload began.  The log
forgets the times of its versions, so a broker's row has marks: some versions, with the times at which they were
written.  Uploads under an older version than that of a mark began before the time of the mark.  Each record that drops
copies adds a mark, if anything else was written since the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from spark_log.metadata.maps.column_map import first_name, rows_with_copies
from spark_log.metadata.replicas.replica_state import Broker
from spark_log.metadata.replicas.replicas import is_active
from spark_log.metadata.state import State

MARKS_PER_TIME = 16
"""Copies are dropped this often in the time that they are kept: they are kept for up to 1/16 longer."""


def keeps_newest(state: State, broker: int) -> bool:
    """Whether a broker keeps only the newest objects."""
    known = state.brokers.get(broker)
    return known is not None and known.keep_ms > 0


def keeps_all(state: State, broker: int) -> bool:
    """Whether a broker is active, and keeps all objects."""
    return is_active(state, broker) and not keeps_newest(state, broker)


def first_dropped(state: State, known: Broker, keep_ms: int) -> Broker:
    """A new broker that keeps the objects of this time, of which it has none yet; 0: that keeps all.

    It need not have objects from before the times that the log remembers.
    """
    if not keep_ms:
        return known
    old = [version for version, time in state.times if time <= state.time - keep_ms]
    dropped = max(old, default=state.times[0][0]) - 1
    marks = tuple(mark for mark in state.times if mark[0] - 1 > dropped)
    seen = (state.version, state.time)
    return known._replace(keep_ms=keep_ms, dropped=dropped, deletable=dropped, marks=marks, dropped_at=seen)


def next_dropped(known: Broker, version: int, now_ms: int) -> int | None:
    """The version up to which copies are dropped now; None if it is not time yet, or nothing would change.

    version:  the last one of the log.
    """
    at_version, at_ms = known.dropped_at
    if not known.keep_ms or now_ms - at_ms < known.keep_ms // MARKS_PER_TIME:
        return None
    old = (version - 1 for version, time in known.marks if time <= now_ms - known.keep_ms)
    upto = max((known.dropped, *old))
    return upto if upto > known.deletable or version > at_version else None


def with_dropped(state: State, known: Broker, upto: int) -> Broker:
    """A broker whose copies of uploads up to a version are dropped at this version of the log."""
    now, marks = (state.version, state.time), tuple(mark for mark in known.marks if mark[0] - 1 > upto)
    if state.version - 1 > known.dropped_at[0]:
        marks = (*marks, now)
    return known._replace(dropped=upto, deletable=known.dropped, marks=marks, dropped_at=now)


def other_holders(state: State, broker: int) -> set[int]:
    """The active brokers that keep all objects, and have one of those of which a broker has a copy."""
    return {
        other
        for copies in state.copies.values()
        if broker in copies.brokers
        for other in copies.brokers
        if keeps_all(state, other)
    }


def droppable(state: State, broker: int, upto: int, answering: Collection[int]) -> Iterator[str]:
    """The objects of uploads up to a version of which a broker has a copy, if an active one has one that it keeps.

    answering:  the brokers whose roots have just answered; the others do not count.

    The disk of a fenced broker may be lost, and that of one that does not answer.  When it is back, the next record
    drops what was left because of it.
    """
    others = {one for one in other_holders(state, broker) if one in answering}
    keys = {
        number
        for number, copies in state.copies.items()
        if broker in copies.brokers and not others.isdisjoint(copies.brokers)
    }
    end = first_name(upto + 1)
    for name, _ in rows_with_copies(state.objects, keys) if keys else ():
        if name >= end:
            return
        yield name
