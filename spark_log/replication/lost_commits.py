"""Commits that were lost before readers saw them: objects without records take the place of theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spark_log.journal.journal import Journal
from spark_log.metadata.commands import Report
from spark_log.metadata.commits.pending_commits import lost_entries
from spark_log.metadata.records import LostRecord
from spark_log.metadata.replicas.replicas import group_number, targets_of
from spark_log.metadata.state import Entries, PendingCommit, State, TopicKey, entries_of
from spark_log.model import DataObject, Placed, Run
from spark_log.roots.replica_puts import put_replicas
from spark_log.segment.writer import SegmentWriter, WrittenSegment
from spark_log.store.base import Chunks
from spark_log.store.object_names import data_key
from spark_log.text import counted


def lose(journal: Journal, state: State, commit: PendingCommit) -> bool:
    """Replace the lost records of a pending commit by holes.  Returns False if an active broker has its objects now.

    Raises LeaderNotAvailable if the objects without records cannot be put.
    """
    groups, lost = dict[int, list[TopicKey]](), lost_entries(state, commit)
    for key in lost:
        if key in state.partitions:
            groups.setdefault(group_number(state, key), []).append(key)
    made, slices, placed = list[DataObject](), list[tuple[int, Run]](), list[Placed]()
    for number, keys in sorted(groups.items()):
        targets, clock = targets_of(state, number), journal.context.clock
        with _holes(journal, state, {key: lost[key] for key in keys}) as (one, written):
            placed.append(put_replicas(journal.roots, targets, one.name, written.chunks, clock))
        slices += [(len(made), run) for run in written.runs]
        made.append(one)
    record = _record(state, commit, made, slices, placed)
    return bool(journal.propose(Report.of(state, record)))


def lose_in_own_root(journal: Journal, commit: PendingCommit) -> str:
    """Replace all records of a pending commit by holes, in a log that has no other root any more.

    commit:  no broker is known to have its objects.
    Returns a sentence that names the records.
    """
    state, lost = journal.state, entries_of(commit)
    with _holes(journal, state, lost) as (one, written):
        journal.roots.own.put(one.name, Chunks(written.chunks))
    record = _record(state, commit, [one], [(0, run) for run in written.runs], [])
    journal.propose(Report.of(state, record), maintenance=False)
    return lost_text(state, lost)


def _record(
    state: State,
    commit: PendingCommit,
    made: Sequence[DataObject],
    slices: Sequence[tuple[int, Run]],
    placed: Sequence[Placed],
) -> LostRecord:
    return LostRecord(
        commit=commit.objects,
        upload_epoch=state.version,
        objects=tuple(made),
        slices=tuple(slices),
        placed=tuple(placed),
    )


@contextmanager
def _holes(journal: Journal, state: State, lost: Entries) -> Iterator[tuple[DataObject, WrittenSegment]]:
    """An object without records in place of these entries, to be put."""
    writer = SegmentWriter()
    try:
        for key, entries in lost.items():
            writer.extend(*key, entries[-1].end - entries[0].start)
        written = writer.finish()
        name = data_key(state.version, f"{journal.context.unique()}.seg")
        yield DataObject(name, written.size, written.index_position), written
    finally:
        writer.close()


def lost_text(state: State, lost: Entries) -> str:
    """A sentence that names the lost records."""
    rows = sum(entries[-1].end - entries[0].start for entries in lost.values())
    named = [
        f"offsets {entries[0].start} to {entries[-1].end - 1} of {state.topics[key[0]].name}-{key[1]}"
        for key, entries in sorted(lost.items())
        if key[0] in state.topics
    ]
    return f"{counted(rows, 'record')} {'was' if rows == 1 else 'were'} lost before all in-sync replicas had them: {', '.join(named)}"
