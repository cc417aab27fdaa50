"""Which commits a copy of a log has: each one whole, with its positions of groups and its identity, or as a hole.

A commit with acks=all may carry positions and identities that make its writer skip the repeat.  So a copy has its
objects, also while readers do not see it yet.  A pending commit with acks=1 carries neither: a copy may lack its
objects, because the only root that has them may be away.  The log that the copy becomes gives it up as a whole
(docs/decisions/0104-whole-commits-in-copies.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from spark_log.errors import CorruptObject
from spark_log.journal.journal import Journal
from spark_log.metadata.commands import Report
from spark_log.metadata.commits.pending_commits import optional_copies
from spark_log.metadata.records import Copy, MissingRecord
from spark_log.metadata.replicas.replicas import copies_of, epoch_of
from spark_log.metadata.state import ObjectRow, PendingCommit, State
from spark_log.replication.lost_commits import lose_in_own_root
from spark_log.store.object_names import DATA, is_of_a_log, listed
from spark_log.text import counted

Needed: TypeAlias = Mapping[str, ObjectRow | None]
"""Objects by name; None: the row is not known."""


def needed_objects(state: State) -> Needed:
    """The objects that a copy of this state must have."""
    optional = optional_copies(state)
    rows: dict[str, ObjectRow | None] = {name: row for name, row in state.objects.items() if name not in optional}
    return rows | dict.fromkeys(state.dropped_lists)


def lacking_commits(copy: Journal) -> list[PendingCommit]:
    """The pending commits that a copy lacks, wholly or in part.

    Raises CorruptObject for other objects that are missing or have another size.
    """
    state = copy.state
    there, optional = _objects_of(copy), optional_copies(state)
    if lacking := sorted(name for name in state.objects if name not in there and name not in optional):
        raise CorruptObject(_lacking_text(copy, lacking, "COPY"))
    return [one for one in state.pending if not there.issuperset(one.objects)]


def lacking_in_mirror(mirror: Journal, log: str) -> str:
    """A sentence on the objects that a mirror must have and lacks, with what to do; empty if it has all.

    log:  URL of its log.
    """
    there = _objects_of(mirror)
    mirror.refresh()  # another process may have copied meanwhile, and deleted garbage
    lacking = sorted(
        name for name, row in needed_objects(mirror.state).items() if name not in there and row is not None
    )
    lacking = [name for name in lacking if mirror.metadata.size(name) != mirror.state.objects[name].size]
    return _lacking_text(mirror, lacking, log) if lacking else ""


def _objects_of(copy: Journal) -> set[str]:
    """The objects that a copy has, without those of another size than the state says."""
    store, rows = copy.metadata, copy.state.objects
    if store.local:
        there = listed(store, DATA)
        return {name for name in there if name not in rows or store.size(name) == rows[name].size}
    return {
        name
        for name, size in store.sizes(DATA).items()
        if is_of_a_log(name) and (name not in rows or size == rows[name].size)
    }


def _lacking_text(copy: Journal, lacking: Sequence[str], other: str) -> str:
    size = copy.metadata.size(lacking[0])
    found = "" if size is None else f", which has {size:,} bytes instead of {copy.state.objects[lacking[0]].size:,}"
    return (
        f"{copy.metadata.url} lacks {counted(len(lacking), 'object')} of version {copy.state.version}, such as "
        f"{lacking[0]}{found}: replace what it lacks with `pylog verify --repair-from {other} -u {copy.metadata.url}`, from "
        f"{'any copy of the log' if other == 'COPY' else 'the log'}, or give up the mirror"
    )


def give_up(journal: Journal, lacking: Sequence[PendingCommit]) -> list[str]:
    """Make holes of the commits that a copy lacks; a sentence for each.

    The copies of all are removed first: otherwise the holes of one would let readers see the next, whose objects are
    not there.
    """
    state = journal.state
    rows = [(name, copies_of(state, state.objects[name])) for one in lacking for name in one.objects]
    gone = [Copy(name, one, epoch_of(state, one) or 0) for name, known in rows if known for one in known.brokers]
    if gone:
        journal.propose(Report.of(state, MissingRecord(copies=tuple(gone))), maintenance=False)
    return [lose_in_own_root(journal, commit) for commit in lacking]
