"""Commits that were lost before readers saw them: objects without records take the place of theirs."""

from __future__ import annotations

from spark_log.journal.journal import Journal
from spark_log.journal.object_names import data_key
from spark_log.journal.replica_puts import put_replicas
from spark_log.metadata.pending import lost_entries
from spark_log.metadata.records import LostRecord
from spark_log.metadata.replica_commands import LoseCommit
from spark_log.metadata.replicas import group_number, targets_of
from spark_log.metadata.state import PendingCommit, State, TopicKey
from spark_log.model import DataObject, Placed, Run
from spark_log.segment.writer import SegmentWriter
from spark_log.text import counted


def lose(journal: Journal, state: State, commit: PendingCommit) -> bool:
    """Make holes of what is lost of a pending commit; False if an active broker has its objects now.

    Raises LeaderNotAvailable if the objects without records cannot be put.
    """
    groups = dict[int, list[TopicKey]]()
    for key in lost_entries(state, commit):
        if key in state.partitions:
            groups.setdefault(group_number(state, key), []).append(key)
    made, slices, placed = list[DataObject](), list[tuple[int, Run]](), list[Placed]()
    for number, keys in sorted(groups.items()):
        one, runs, where = _holes(journal, state, commit, number, keys)
        slices += [(len(made), run) for run in runs]
        made.append(one)
        placed.append(where)
    lost = LostRecord(
        commit=commit.objects,
        upload_epoch=state.version,
        objects=tuple(made),
        slices=tuple(slices),
        placed=tuple(placed),
    )
    return bool(journal.propose(LoseCommit(lost=lost)))


def _holes(
    journal: Journal, state: State, commit: PendingCommit, group: int, keys: list[TopicKey]
) -> tuple[DataObject, tuple[Run, ...], Placed]:
    """An object without records for partitions of a group."""
    writer, entries = SegmentWriter(), lost_entries(state, commit)
    try:
        for key in keys:
            writer.extend(*key, entries[key][-1].end - entries[key][0].start)
        written = writer.finish()
        name = data_key(state.version, f"{journal.context.unique()}.seg")
        targets, clock = targets_of(state, group), journal.context.clock
        where = put_replicas(journal.roots, targets, name, written.chunks, clock)
    finally:
        writer.close()
    return DataObject(name, written.size, written.index_position), tuple(written.runs), where


def lost_text(state: State, commit: PendingCommit) -> str:
    """A sentence that names the records."""
    new = lost_entries(state, commit)
    rows = sum(entries[-1].end - entries[0].start for entries in new.values())
    named = [
        f"offsets {entries[0].start} to {entries[-1].end - 1} of {state.topics[key[0]].name}-{key[1]}"
        for key, entries in sorted(new.items())
        if key[0] in state.topics
    ]
    return f"{counted(rows, 'record')} were lost before all in-sync replicas had them: {', '.join(named)}"
