"""Gives up records that nobody can read any more: readers skip their offsets, and the log names and counts them.

They are in objects that no root has, in damaged parts of objects that only the log's own root has, or in those of a
slice index that is lost: it alone has their offsets.  Nothing does this automatically: a root that cannot be reached
may come back.  Somebody has said that the last one is lost, by `pylog broker replace --lose-data`, or all copies are
damaged or missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from spark_log.client.admin.brokers import check_answers
from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, StorageUnavailable
from spark_log.journal.context import Context
from spark_log.journal.failure_isolation import raise_failure, resolve_each
from spark_log.journal.journal import Journal
from spark_log.journal.metadata_log import LogView, decided
from spark_log.journal.set_aside import SetAside
from spark_log.journal.store_operations import Steps
from spark_log.metadata.commands import Report
from spark_log.metadata.commits.pending_commits import pending_copies
from spark_log.metadata.maintenance.swaps import unread_slice
from spark_log.metadata.maps.column_map import rows_with_copies
from spark_log.metadata.records import Copy, HeldRecord, Piece
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import copies_of, epoch_of, group_number, is_active, keeps
from spark_log.metadata.state import State, TopicKey
from spark_log.model import CREATE_TIME, Slice
from spark_log.recovery.damaged_slices import find_damaged, rest_of, stretches_of
from spark_log.recovery.verify_copies import check_copies
from spark_log.recovery.verify_objects import Spread
from spark_log.replication.checked_copies import SourceFailed, is_good
from spark_log.rewriting.lost_index import drop_unnamed, find_unread
from spark_log.rewriting.rewrite import Rest, Rewriting, Span, open_spool, rewrite
from spark_log.rewriting.rewrite_packs import Stretch
from spark_log.runtime.daemon_tasks import Task
from spark_log.segment.reader import Decoded

LOOK_S = 60.0
"""How long a root may take to answer for one object."""


class GivenUp(NamedTuple):
    """Offsets that have no records from now on."""

    topic: str
    partition: int
    start: int
    end: int


def lost_objects(state: State) -> list[str]:
    """The objects that readers need and no broker is known to have.  Pending ones are the replicator's."""
    keys = {number for number, copies in state.copies.items() if not copies.brokers}
    pending = pending_copies(state)
    return [name for name, _ in rows_with_copies(state.objects, keys) if name not in pending] if keys else []


def plan_give_up(log: Log, deep: bool = False, *, spread: Spread | None = None) -> list[GivenUp]:
    """The offsets that `give_up_lost` would give up, after the repair of copies.  Changes nothing.

    deep, spread:  as for `give_up_lost`.
    Raises StorageUnavailable or WrongRoot as `give_up_lost` does.
    """
    journal = log.journal
    state = journal.refresh()
    names = frozenset([*lost_objects(state), *check_copies(journal, state, deep, None, spread).lost])
    spans = [(key, piece.start, piece.end) for key, piece in _unread_indexes(journal)]
    spans += [(one.key, start, end) for one in find_damaged(journal, deep, spread) for start, end in one.lost]
    stretches = journal.run(_stretches(state, names)) if names else []
    spans += [(one.key, one.slices[0].start, one.slices[-1].end) for one in stretches]
    return _joined(
        GivenUp(state.topics[key[0]].name, key[1], start, end) for key, start, end in spans if key[0] in state.topics
    )


def _joined(found: Iterable[GivenUp]) -> list[GivenUp]:
    """The offsets in order, adjacent ones as one."""
    joined = list[GivenUp]()
    for one in sorted(found):
        if joined and joined[-1][:2] == one[:2] and joined[-1].end == one.start:
            one = joined.pop()._replace(end=one.end)
        joined.append(one)
    return joined


def give_up_lost(
    log: Log, deep: bool = False, *, spread: Spread | None = None, rewritten: set[str] | None = None
) -> list[GivenUp]:
    """Give up the records of objects that no root has any more, and of slice indexes that cannot be read.

    Of an object in the log's own root that is cut or damaged, the records that can be read stay.  Also drops objects
    that formerly lost indexes have left.  Returns the offsets that have no records from now on.

    deep:    reads all bytes of the log's own root; if False, only missing and cut objects are found there.
    spread:  does what reads these; None: this process.
    rewritten:  collects damaged objects that had no unreadable record: their records were written again.
    First looks at each root that may have a copy.  A copy that is found there is recorded, and its records are kept.
    Raises InvalidRequest if a broker with such a root is fenced; StorageUnavailable or WrongRoot if its root, or that
    of the log, cannot be read; NotEnoughReplicas if a broker is fenced that must get one of the empty objects, which
    replace the lost ones.
    """
    journal = log.journal
    journal.require(None)
    looked = _look_on_roots(journal, journal.refresh())
    indexes, damaged = _unread_indexes(journal), find_damaged(journal, deep, spread)
    known, metadata_log, context = journal.view, journal.metadata_log, journal.context

    def run() -> Steps[tuple[LogView, list[GivenUp]]]:
        view = yield from metadata_log.refresh(known)
        view, found = yield from decided(metadata_log, view, give_up_indexes(view.state, context, indexes))
        view, more = yield from decided(metadata_log, view, give_up(view.state, context, looked))
        rest = rest_of(journal, view.state, damaged)
        parts = _give_up(view.state, context, stretches_of(damaged), rest)
        view, own = yield from decided(metadata_log, view, parts)
        view, _ = yield from decided(metadata_log, view, drop_unnamed(view.state, context))
        return view, _joined([*found, *more, *own])

    view, found = journal.run(run())
    journal.adopt(view, known)
    if rewritten is not None:
        rewritten |= {one.piece.object for one in damaged if not one.lost}
    return found


def _look_on_roots(journal: Journal, state: State) -> frozenset[str]:
    """Look for the objects; returns their names."""
    wanted, names = dict[int, list[str]](), lost_objects(state)
    for name in names:
        copies = copies_of(state, state.objects[name])
        assert copies is not None, "it is on the roots of brokers"
        for broker in state.placement_groups[copies.group].replicas:
            if keeps(state, broker, name):
                wanted.setdefault(broker, []).append(name)
    for broker in sorted(wanted):
        if not is_active(state, broker):
            raise InvalidRequest(
                f"broker {broker} is fenced, and may have records that no other broker has: bring it back, or say that its "
                f"disk is lost by `pylog broker replace {broker} --lose-data`"
            )
    found = [
        Copy(name, broker, epoch_of(state, broker) or 0)
        for broker, names in sorted(wanted.items())
        for name in _found_on(journal, state, broker, names)
    ]
    if found:
        journal.propose(Report.of(state, HeldRecord(copies=tuple(found))))
    return frozenset(names)


def _found_on(journal: Journal, state: State, broker: int, names: Iterable[str]) -> Iterator[str]:
    """Those of some objects of which a root has a good copy after all.

    Raises StorageUnavailable or WrongRoot if the root cannot be read, also if that was so for a moment: what was not
    found then may be there.
    """
    mount = journal.roots.mount(broker)
    check_answers(journal.roots, broker)
    store = journal.roots[broker]
    for name in names:
        row = state.objects[name]
        task = Task(lambda name=name, row=row: is_good(store, name, row), "pylog-look", journal.context.threads)  # type: ignore[misc]
        if not task.wait(LOOK_S):
            raise StorageUnavailable(f"broker {broker}: its root does not answer, and may have {name}")
        try:
            good = task.result()
        except SourceFailed as error:
            raise StorageUnavailable(f"broker {broker} may have {name}, and cannot be read: {error}") from error
        if good:
            yield name
    check_answers(journal.roots, broker)
    if journal.roots.mount(broker) != mount:
        raise StorageUnavailable(f"the root of broker {broker} was mounted again meanwhile: run the command again")


def _unread_indexes(journal: Journal) -> list[tuple[TopicKey, Piece]]:
    """Slice indexes that are missing or damaged.

    Raises StorageUnavailable or WrongRoot if the log's own root, which has them, cannot be read: all would be missing.
    """
    mount = journal.roots.mount(OWN_BROKER)
    check_answers(journal.roots, OWN_BROKER)
    found = journal.run(find_unread(journal.refresh()))
    if found:  # an index may be missing because a newer state has replaced it
        found = journal.run(find_unread(journal.refresh()))
    check_answers(journal.roots, OWN_BROKER)
    if journal.roots.mount(OWN_BROKER) != mount:
        raise StorageUnavailable("the log's own root was mounted again meanwhile: run the command again")
    return found


def give_up_indexes(state: State, context: Context, lost: Iterable[tuple[TopicKey, Piece]]) -> Steps[list[GivenUp]]:
    """Give up the records of slice indexes that cannot be read, as far as the state still has them."""
    pieces = [
        (key, piece) for key, piece in lost if (part := state.partitions.get(key)) is not None and piece in part.entries
    ]
    return (yield from _give_up(state, context, [Stretch(key, [unread_slice(piece)]) for key, piece in pieces]))


def give_up(state: State, context: Context, looked: frozenset[str]) -> Steps[list[GivenUp]]:
    """Give up the records of those of some objects that no broker is known to have."""
    stretches = yield from _stretches(state, looked.intersection(lost_objects(state)))
    return (yield from _give_up(state, context, stretches))


def _nothing(key: TopicKey, piece: Slice) -> tuple[Iterable[Decoded], Sequence[Span]]:
    return (), ((piece.start, piece.end),)


def _give_up(
    state: State, context: Context, stretches: Sequence[Stretch], rest: Rest = _nothing
) -> Steps[list[GivenUp]]:
    how = Rewriting(
        name="give up", activity="giving up records of", open_spool=open_spool, on_waiting=raise_failure, rest=rest
    )
    after, done = yield from rewrite(state, context, stretches, how)
    return [
        GivenUp(after.topics[one.key[0]].name, one.key[1], *span)
        for one in sorted(done, key=lambda one: (one.key, one.new.start))
        for span in one.lost
        if one.key[0] in after.topics
    ]


def _stretches(state: State, names: frozenset[str]) -> Steps[list[Stretch]]:
    """The adjacent slices of these objects that readers need."""
    groups = {copies.group for name in names if (copies := copies_of(state, state.objects[name])) is not None}
    entries = {key: state.partitions[key].entries for key in _partitions_in(state, groups)}
    slices = yield from resolve_each(state, entries, _ignore, SetAside())
    found = list[Stretch]()
    for key, pieces in slices.items():
        live = [piece for piece in pieces if piece.end > state.partitions[key].start]
        for (is_lost, _), some in groupby(live, lambda piece: _kind(piece, names)):
            if is_lost:
                found.append(Stretch(key, list(some)))
    return found


def _ignore(what: str, error: Exception) -> None:
    """`verify` names slice indexes that cannot be read."""


def _partitions_in(state: State, groups: set[int]) -> Iterator[TopicKey]:
    """Partitions that may have slices in objects of these groups."""
    for key in sorted(state.partitions) if groups else ():
        row = state.reassignments.get(key)
        places = {group_number(state, key), *(() if row is None else (row.origin, *row.left, *row.former))}
        if not state.topics[key[0]].deleted and not places.isdisjoint(groups):
            yield key


def _kind(piece: Slice, names: frozenset[str]) -> tuple[bool, bool]:
    return piece.object in names, piece.time_kind == CREATE_TIME
