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
from spark_log.journal.object_names import DATA, listed
from spark_log.metadata.pending_commits import optional_copies
from spark_log.metadata.records import Copy
from spark_log.metadata.replica_commands import RemoveCopies
from spark_log.metadata.replicas import copies_of, epoch_of
from spark_log.metadata.restores import history_of
from spark_log.metadata.state import ObjectRow, PendingCommit, State
from spark_log.node.lost_commits import lose_in_own_root
from spark_log.text import counted

Needed: TypeAlias = Mapping[str, ObjectRow | None]
"""Objects by name; None: the row is not known."""


def needed_objects(state: State) -> Needed:
    """The objects that a copy of this state must have."""
    optional = optional_copies(state)
    rows: dict[str, ObjectRow | None] = {name: row for name, row in state.objects.items() if name not in optional}
    return rows | dict.fromkeys(state.dropped_lists)


def lacking_commits(copy: Journal) -> list[PendingCommit]:
    """The pending commits that a copy lacks, wholly or in part.  Raises CorruptObject for other missing objects."""
    there, state = set(listed(copy.objects, DATA)), copy.state
    optional = optional_copies(state)
    if missing := sorted(name for name in state.objects if name not in there and name not in optional):
        raise CorruptObject(
            f"{copy.metadata.url} lacks {counted(len(missing), 'object')} of version {state.version}, such as "
            f"{missing[0]}: restore them, or give up the mirror"
        )
    return [one for one in state.pending if not there.issuperset(one.objects)]


def give_up(journal: Journal, lacking: Sequence[PendingCommit]) -> list[str]:
    """Make holes of the commits that a copy lacks; a sentence for each.

    The copies of all are removed first: otherwise the holes of one would let readers see the next, whose objects are
    not there.
    """
    state = journal.state
    rows = [(name, copies_of(state, state.objects[name])) for one in lacking for name in one.objects]
    gone = [Copy(name, one, epoch_of(state, one) or 0) for name, known in rows if known for one in known.brokers]
    if gone:
        journal.propose(RemoveCopies(copies=tuple(gone), history=history_of(state)), upkeep=False)
    return [lose_in_own_root(journal, commit) for commit in lacking]
