"""Commits at the ends of partitions, and when readers see them (docs/decisions/0071-acks.md).  Pure.

A commit with acks=1 is *pending* until all in-sync replicas of its groups have its objects, and a commit behind a
pending one is pending too.  Readers see each commit as a whole, and those of a partition in the order of offsets.  The
entries of pending commits are not in their partitions yet, so nothing else in pylog meets them: `Partition.end` is
after them, and `Partition.readable_end`, the high watermark, is before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from immutables import Map
from msgspec.structs import replace as moved

from spark_log.metadata import records as r
from spark_log.metadata.last_commit import last_commit
from spark_log.metadata.layered_map import LayeredMap
from spark_log.metadata.replay_reassignments import with_late_slices
from spark_log.metadata.replay_replicas import not_pending, placed_rows, swapped_copies
from spark_log.metadata.replica_state import OWN_GROUP
from spark_log.metadata.replicas import copies_of, epoch_of, group_at, is_active, is_async, min_insync, targets_of
from spark_log.metadata.state import LostRange, Partition, PendingCommit, ProducerState, State, TopicKey
from spark_log.model import ACKS_ALL, APPEND_TIME, CREATE_TIME, Slice
from spark_log.settings import topic_config

LACKING_MAX = 256
"""The most objects that the reply to a commit says must be copied first."""

Entries = Mapping[TopicKey, Sequence[Slice | r.Piece]]


class LackingObject(NamedTuple):
    """An object of a pending commit, and the replicas that must get it before readers see the commit."""

    name: str
    size: int
    group: int
    held: tuple[tuple[int, int], ...]
    """(broker, epoch) of the active replicas that have it."""
    lacking: tuple[tuple[int, int], ...]
    """The same of in-sync replicas that do not."""


# ------------------------------------------------------------------------------------------------------------- replay


def new_entries(state: State, record: r.CommitRecord) -> Entries | None:
    """The entries of a commit at the ends of its partitions; None if a topic is gone."""
    new: dict[TopicKey, list[Slice | r.Piece]] = {}
    stamped: dict[str, bool] = {}
    for topic_id, number, entry in _named_entries(record):
        key = (topic_id, number)
        if key not in new:
            topic = state.topics.get(topic_id)
            if topic is None or topic.deleted or key not in state.partitions:
                return None
            stamped[topic_id] = topic_config(topic.configs, "message.timestamp.type") == "LogAppendTime"
            new[key] = []
        base = new[key][-1].end if new[key] else state.partitions[key].end
        new[key].append(_at(entry, base, state.time * 1000 if stamped[topic_id] else None))
    return new


def _at(entry: Slice | r.Piece, base: int, stamp_us: int | None) -> Slice | r.Piece:
    """An entry behind an offset, with the log's time if it has one."""
    placed: Slice | r.Piece = moved(entry, start=base + entry.start, end=base + entry.end)
    if stamp_us is not None:
        placed = moved(placed, min_us=stamp_us, max_us=stamp_us, time_kind=APPEND_TIME)
    return placed


def _named_entries(record: r.CommitRecord) -> Iterator[tuple[str, int, Slice | r.Piece]]:
    """The commit's slices or pieces, with offsets relative to their base."""
    for number, run in record.slices:
        name = record.objects[number].name
        piece = Slice(
            0, run.rows, name, run.position, run.length, run.crc, run.batches, run.min_us, run.max_us, CREATE_TIME
        )
        yield run.topic_id, run.partition, piece
    yield from record.pieces


def must_wait(state: State, record: r.CommitRecord, keys: Iterable[TopicKey]) -> bool:
    """Whether a commit is written as pending: not all replicas need to have it, or an earlier one is pending."""
    if record.acks != ACKS_ALL:
        return True
    return bool(state.pending) and any((part := state.partitions[key]).end != part.readable_end for key in keys)


def with_entries(state: State, new: Entries) -> LayeredMap[TopicKey, Partition]:
    """The partitions with a commit that readers see."""
    return state.partitions.update(
        {
            key: part._replace(end=max(part.end, entries[-1].end), entries=part.entries + tuple(entries))
            for key, entries in new.items()
            if (part := state.partitions.get(key)) is not None
        }
    )


def with_ends(state: State, new: Entries) -> LayeredMap[TopicKey, Partition]:
    """The partitions with a pending commit: its offsets are given away."""
    return state.partitions.update(
        {key: state.partitions[key]._replace(end=entries[-1].end) for key, entries in new.items()}
    )


def pending_commit(state: State, record: r.CommitRecord, new: Entries) -> PendingCommit:
    """A commit that is written as pending in the state's version."""
    some = [(*key, entry) for key, entries in new.items() for entry in entries]
    return PendingCommit(
        record.producer,
        record.sequence,
        state.version,
        tuple(made.name for made in record.objects),
        tuple((topic_id, number, entry) for topic_id, number, entry in some if isinstance(entry, Slice)),
        tuple((topic_id, number, entry) for topic_id, number, entry in some if isinstance(entry, r.Piece)),
        record.acks,
    )


def released(state: State) -> State:
    """The state in which each pending commit that readers may see is visible."""
    for commit in state.pending:
        if is_due(state, commit):
            state = _released(state, commit)
    return state


def newest_released(state: State) -> State:
    """The same for the newest commit only: nothing has changed for the others."""
    return _released(state, state.pending[-1]) if is_due(state, state.pending[-1]) else state


def _released(state: State, commit: PendingCommit) -> State:
    new, places = entries_of(commit), _places(state, commit)
    state = replace(
        not_pending(state, commit.objects),
        partitions=with_entries(state, new),
        pending=tuple(one for one in state.pending if one is not commit),
    )
    return with_late_slices(state, places)


def _places(state: State, commit: PendingCommit) -> dict[TopicKey, set[int]]:
    """The groups of the objects of a commit, by partition.  For one whose slices are in an index: all groups."""
    groups = {name: _group_of(state, name) for name in commit.objects}
    found: dict[TopicKey, set[int]] = {}
    for topic_id, number, piece in commit.slices:
        found.setdefault((topic_id, number), set()).add(groups[piece.object])
    for topic_id, number, _ in commit.pieces:
        found.setdefault((topic_id, number), set()).update(groups.values())
    return found


def _group_of(state: State, name: str) -> int:
    known = copies_of(state, state.objects[name])
    return OWN_GROUP if known is None else known.group


def entries_of(commit: PendingCommit) -> Entries:
    """By partition, in the order of offsets."""
    found: dict[TopicKey, list[Slice | r.Piece]] = {}
    for topic_id, number, piece in commit.slices:
        found.setdefault((topic_id, number), []).append(piece)
    for topic_id, number, piece_of_index in commit.pieces:
        found.setdefault((topic_id, number), []).append(piece_of_index)
    return found


def is_due(state: State, commit: PendingCommit) -> bool:
    """Whether readers may see a commit: no earlier one of its partitions is pending, and the replicas have it."""
    new = entries_of(commit)
    return all(_is_next(state, key, entries[0].start) for key, entries in new.items()) and _is_held(state, commit)


def _is_next(state: State, key: TopicKey, start: int) -> bool:
    part = state.partitions.get(key)
    return part is None or state.topics[key[0]].deleted or part.readable_end == start


def _is_held(state: State, commit: PendingCommit) -> bool:
    """Whether all in-sync replicas have the objects.

    As in Kafka, readers see nothing new while the ISR is below `min.insync.replicas`.
    """
    for name in commit.objects:
        known = copies_of(state, state.objects[name])
        if known is not None:
            isr = state.placement_groups[known.group].isr
            if not isr or not set(isr).issubset(known.brokers):
                return False
    return not any(
        key in state.partitions and _is_below_min(state, group, min_insync(state, key[0]))
        for key, groups in _places(state, commit).items()
        for group in groups
    )


def _is_below_min(state: State, number: int, least: int) -> bool:
    """A group whose partitions have got other replicas since may have fewer replicas than `least`."""
    group = group_at(state, number)
    return len(group.isr) < min(least, sum(not is_async(state, broker) for broker in group.replicas))


def is_pending_in(state: State, key: TopicKey) -> bool:
    """Whether a pending commit has records of a partition."""
    return any(key == (topic_id, number) for one in state.pending for topic_id, number, _ in (*one.slices, *one.pieces))


def is_lost(state: State, commit: PendingCommit) -> bool:
    """Whether no active broker has an object of a commit.  One with acks=all is not given up for brokers that are away:
    its writer may be a stream, whose batch must be in the log once."""
    if commit.acks == ACKS_ALL:
        return is_gone(state, commit)
    return any(
        known is not None and not any(is_active(state, broker) for broker in known.brokers)
        for known in (copies_of(state, state.objects[name]) for name in commit.objects)
    )


def is_gone(state: State, commit: PendingCommit) -> bool:
    """Whether no broker at all is known to have an object of a commit."""
    rows = (copies_of(state, state.objects[name]) for name in commit.objects)
    return any(known is not None and not known.brokers for known in rows)


def lost_commit(state: State, record: r.LostRecord) -> PendingCommit | None:
    """The commit that a record makes a hole; None if it is not pending, not lost, or has other partitions."""
    commit = next((one for one in state.pending if one.objects == record.commit), None)
    if commit is None or not commit.objects or not is_lost(state, commit):
        return None
    keys = [(run.topic_id, run.partition) for _, run in record.slices]
    if any(run.rows for _, run in record.slices) or sorted(keys) != sorted(entries_of(commit)):
        return None
    return commit


def with_holes(state: State, commit: PendingCommit, record: r.LostRecord) -> State | None:
    """The state with holes in place of a pending commit.  They wait for their turn as it did."""
    live = [0] * len(record.objects)
    for number, _ in record.slices:
        live[number] += 1
    placed = placed_rows(state, record.objects, record.placed, live, pending=True)
    if placed is None:
        return None
    (after, rows), gone = placed, [state.objects[name] for name in commit.objects]
    after = replace(
        after,
        objects=state.objects.without(commit.objects).update(rows),
        dropped=state.dropped.update(dict.fromkeys(commit.objects, state.version)),
    )
    holes, old = list[tuple[str, int, Slice]](), entries_of(commit)
    for number, run in record.slices:
        entries, name = old[run.topic_id, run.partition], record.objects[number].name
        newest_us = max(entry.max_us for entry in entries)
        span = (entries[0].start, entries[-1].end, name, run.position, run.length, run.crc, run.batches)
        holes.append((run.topic_id, run.partition, Slice(*span, newest_us, newest_us)))
    new = commit._replace(objects=tuple(made.name for made in record.objects), slices=tuple(holes), pieces=())
    after = swapped_copies(after, gone, record.placed)
    pending = tuple(new if one is commit else one for one in state.pending)
    return replace(after, pending=pending, lost=_with_lost(state, commit), producers=_taken_back(state, commit))


def _taken_back(state: State, commit: PendingCommit) -> Map[str, ProducerState]:
    """The producers without a lost commit with acks=all: its repeat is written again, because nobody has seen it."""
    known = state.producers.get(commit.producer)
    last = None if known is None else known.last_commit
    if known is None or last is None or commit.acks != ACKS_ALL:
        return state.producers
    if (last.version, last.sequence) != (commit.version, commit.sequence):
        return state.producers
    before = last_commit(last.sequence - 1, last.version, {}, "") if last.sequence else None
    return state.producers.set(commit.producer, known._replace(last_commit=before))


def _with_lost(state: State, commit: PendingCommit) -> Map[TopicKey, tuple[LostRange, ...]]:
    lost = state.lost
    for key, entries in entries_of(commit).items():
        part, known = state.partitions.get(key), lost.get(key, ())
        kept = [one for one in known if part is not None and one.end > part.start]
        here = LostRange(
            entries[0].start, entries[-1].end, commit.version
        )  # known if the root of its hole is lost, too
        lost = lost.set(key, tuple(sorted({*kept, here})))
    return lost


def lost_ranges(state: State, key: TopicKey) -> tuple[LostRange, ...]:
    """The lost ranges of a partition above its start."""
    return tuple(one for one in state.lost.get(key, ()) if one.end > state.partitions[key].start)


def entries_with_pending(state: State) -> dict[TopicKey, tuple[Slice | r.Piece, ...]]:
    """The entries of each partition, in order of keys, with those of pending commits: all that objects are live for."""
    found = {key: part.entries for key, part in sorted(state.partitions.items())}
    for commit in state.pending:
        for key, entries in entries_of(commit).items():
            found[key] = (*found[key], *entries)
    return found


def pending_copies(state: State) -> set[str]:
    """Objects on the roots of brokers that readers do not need yet."""
    names = (name for one in state.pending for name in one.objects)
    return {name for name in names if copies_of(state, state.objects[name]) is not None}


def visible_end(state: State, key: TopicKey) -> int:
    """Where the first pending commit of a partition begins, or its end: what `Partition.readable_end` must be."""
    starts = (new[key][0].start for one in state.pending if key in (new := entries_of(one)))
    return next(starts, state.partitions[key].end)


# ------------------------------------------------------------------------------------------------------------ decisions


def pending_of(state: State, producer: str, sequence: int) -> PendingCommit | None:
    """The commit of a producer, if it is pending."""
    return next((one for one in state.pending if (one.producer, one.sequence) == (producer, sequence)), None)


def lacking_objects(state: State, commits: Iterable[PendingCommit]) -> tuple[LackingObject, ...]:
    """The objects of pending commits that in-sync replicas lack, although an active broker has them."""
    found: list[LackingObject] = []
    for name in (name for one in commits for name in one.objects):
        row = state.objects.get(name)
        known = None if row is None else copies_of(state, row)
        if row is None or known is None or len(found) >= LACKING_MAX:
            continue
        held = tuple((one, epoch_of(state, one) or 0) for one in known.brokers if is_active(state, one))
        lacking = tuple(one for one in targets_of(state, known.group).isr if one[0] not in known.brokers)
        if held and lacking:
            found.append(LackingObject(name, row.size, known.group, held, lacking))
    return tuple(found)


def pending_until(state: State, commit: PendingCommit) -> Iterator[PendingCommit]:
    """The pending commits up to one."""
    for one in state.pending:
        yield one
        if one is commit:
            return
