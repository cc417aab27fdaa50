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

from spark_log.configs.settings import topic_config
from spark_log.metadata import records as r
from spark_log.metadata.commits.last_commit import last_commit
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.replicas.reassignments import places_of_pending
from spark_log.metadata.replicas.replay_reassignments import with_late_slices, with_new_objects
from spark_log.metadata.replicas.replay_replicas import not_pending, placed_rows, swapped_copies
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.replicas.replicas import (
    copies_of,
    epoch_of,
    group_at,
    is_active,
    is_async,
    min_insync,
    targets_of,
)
from spark_log.metadata.state import (
    Entries,
    LostRange,
    Partition,
    PendingCommit,
    ProducerState,
    State,
    TopicKey,
    entries_of,
)
from spark_log.model import ACKS_ALL, APPEND_TIME, CREATE_TIME, Slice, kind_and_stats

PENDING_MAX = 10_000
"""The most pending commits of a partition: each change of copies looks at all of them."""
LACKING_MAX = 256
"""The most objects that the reply to a commit says must be copied first."""


class LackingObject(NamedTuple):
    """An object of a pending commit, and the replicas that must get it before readers see the commit."""

    name: str
    size: int
    group: int
    held: tuple[tuple[int, int], ...]
    """(broker, epoch) of the active replicas that have it."""
    lacking: tuple[tuple[int, int], ...]
    """(broker, epoch) of the in-sync replicas that do not have it."""


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
    if stamp_us is None:
        return placed
    kind = kind_and_stats(APPEND_TIME, placed.stats) if isinstance(placed, Slice) else APPEND_TIME
    name = "more" if isinstance(placed, Slice) else "time_kind"
    return moved(placed, min_us=stamp_us, max_us=stamp_us, **{name: kind})


def _named_entries(record: r.CommitRecord) -> Iterator[tuple[str, int, Slice | r.Piece]]:
    """The commit's slices or pieces, with offsets relative to their base."""
    stats = record.stats or (b"",) * len(record.slices)
    for (number, run), of_run in zip(record.slices, stats, strict=True):
        name, more = record.objects[number].name, kind_and_stats(CREATE_TIME, of_run)
        piece = Slice(0, run.rows, name, run.position, run.length, run.crc, run.batches, run.min_us, run.max_us, more)
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
    """The state in which each pending commit that readers may see is visible.

    Whether one is due depends on those before it, and not on copies that they change: so all are released together.
    """
    due, ends = list[PendingCommit](), dict[TopicKey, int]()
    for commit in state.pending:
        if is_due(state, commit, ends):
            due.append(commit)
            ends.update({key: entries[-1].end for key, entries in entries_of(commit).items()})
    return _released(state, due) if due else state


def newest_released(state: State) -> State:
    """The state in which the newest commit is visible, if readers may see it: nothing has changed for the others."""
    return _released(state, state.pending[-1:]) if is_due(state, state.pending[-1], {}) else state


def _released(state: State, due: Sequence[PendingCommit]) -> State:
    new, places, gone = dict[TopicKey, list[Slice | r.Piece]](), dict[TopicKey, set[int]](), set(map(id, due))
    for commit in due:
        for key, entries in entries_of(commit).items():
            new.setdefault(key, []).extend(entries)
        for key, groups in places_of_pending(state, commit).items():
            places.setdefault(key, set()).update(groups)
    state = replace(
        not_pending(state, [name for commit in due for name in commit.objects]),
        partitions=with_entries(state, new),
        pending=tuple(one for one in state.pending if id(one) not in gone),
    )
    return with_late_slices(state, places)


def is_due(state: State, commit: PendingCommit, ends: Mapping[TopicKey, int]) -> bool:
    """Whether readers may see a commit: no earlier one of its partitions is pending, and the replicas have it.

    ends:  the high watermarks of partitions in which earlier commits are due.
    """
    for key, entries in entries_of(commit).items():
        if not _is_next(state, key, ends.get(key), entries[0].start):
            return False
    return _is_held(state, commit)


def _is_next(state: State, key: TopicKey, end: int | None, start: int) -> bool:
    part = state.partitions.get(key)
    return part is None or state.topics[key[0]].deleted or (part.readable_end if end is None else end) == start


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
    return not _is_short(state, commit)


def _is_short(state: State, commit: PendingCommit) -> bool:
    """Whether an ISR is below `min.insync.replicas`."""
    return any(
        key in state.partitions and _is_below_min(state, group, min_insync(state, key[0]))
        for key, groups in places_of_pending(state, commit).items()
        for group in groups
    )


def _is_below_min(state: State, number: int, least: int) -> bool:
    """A group whose partitions have got other replicas since may have fewer replicas than `least`."""
    group = group_at(state, number)
    return len(group.isr) < min(least, sum(not is_async(state, broker) for broker in group.replicas))


def is_pending_in(state: State, key: TopicKey) -> bool:
    """Whether a pending commit has records of a partition."""
    return any(_has(one, key) for one in state.pending)


def _has(commit: PendingCommit, key: TopicKey) -> bool:
    return any(key == (topic_id, number) for topic_id, number, _ in (*commit.slices, *commit.pieces))


def is_lost(state: State, commit: PendingCommit) -> bool:
    """Whether no active broker has an object of a commit.  One with acks=all is not given up for brokers that are away:
    its writer may be a stream, whose batch must be in the log once."""
    if commit.acks == ACKS_ALL:
        return is_gone(state, commit)
    return any(_is_away(state, name) for name in commit.objects)


def is_gone(state: State, commit: PendingCommit) -> bool:
    """Whether no broker at all is known to have an object of a commit."""
    rows = (copies_of(state, state.objects[name]) for name in commit.objects)
    return any(known is not None and not known.brokers for known in rows)


def is_given_up(state: State, commit: PendingCommit) -> bool:
    """Whether that is so because somebody has replaced or removed a broker since: its disk does not come back."""
    rows = (copies_of(state, state.objects[name]) for name in commit.objects)
    return any(
        known is not None
        and not known.brokers
        and any(_is_replaced(state, one, commit.version) for one in state.placement_groups[known.group].replicas)
        for known in rows
    )


def _is_replaced(state: State, broker: int, version: int) -> bool:
    known = state.brokers.get(broker)
    if known is None:
        return broker != OWN_BROKER
    return bool(known.former) and known.former[0][1] > version


def lost_commit(state: State, record: r.LostRecord) -> PendingCommit | None:
    """The commit that a record makes a hole; None if it is not pending, not lost, or has other partitions."""
    commit = next((one for one in state.pending if one.objects == record.commit), None)
    if commit is None or not commit.objects or not is_lost(state, commit):
        return None
    keys = sorted((run.topic_id, run.partition) for _, run in record.slices)
    if any(run.rows for _, run in record.slices):
        return None
    return commit if keys in (sorted(lost_entries(state, commit)), sorted(entries_of(commit))) else None


def lost_entries(state: State, commit: PendingCommit) -> Entries:
    """The entries of a lost commit that become holes, unless it is given up as a whole.

    With acks=1 those of partitions in whose objects, or in those of partitions that share these, one is lost.  With
    acks=all, and if the slices are in an index, all.
    """
    new = entries_of(commit)
    if commit.acks == ACKS_ALL or commit.pieces:
        return new
    lost, count = {name for name in commit.objects if _is_away(state, name)}, -1
    keys = set[TopicKey]()
    while len(keys) != count:
        count = len(keys)
        keys.update((topic_id, number) for topic_id, number, piece in commit.slices if piece.object in lost)
        lost.update(piece.object for topic_id, number, piece in commit.slices if (topic_id, number) in keys)
    return {key: entries for key, entries in new.items() if key in keys}


def _is_away(state: State, name: str) -> bool:
    """Whether no active broker has an object."""
    known = copies_of(state, state.objects[name])
    return known is not None and not any(is_active(state, broker) for broker in known.brokers)


def with_holes(state: State, commit: PendingCommit, record: r.LostRecord) -> State | None:
    """The state with holes in place of a pending commit's lost entries.  They wait for their turn as it did."""
    live = [0] * len(record.objects)
    for number, _ in record.slices:
        live[number] += 1
    placed = placed_rows(state, record.objects, record.placed, live, pending=True)
    if placed is None:
        return None
    keys = {(run.topic_id, run.partition) for _, run in record.slices}
    old = {key: entries for key, entries in entries_of(commit).items() if key in keys}
    kept = tuple(one for one in commit.slices if (one[0], one[1]) not in old)
    stay = {piece.object for _, _, piece in kept}
    names = [name for name in commit.objects if name not in stay]
    (after, rows), gone = placed, [state.objects[name] for name in names]
    after = replace(
        after,
        objects=state.objects.without(names).update(rows),
        dropped=state.dropped.update(dict.fromkeys(names, state.version)),
    )
    holes = list[tuple[str, int, Slice]]()
    for number, run in record.slices:
        entries, name = old[run.topic_id, run.partition], record.objects[number].name
        newest_us = max(entry.max_us for entry in entries)
        span = (entries[0].start, entries[-1].end, name, run.position, run.length, run.crc, run.batches)
        holes.append((run.topic_id, run.partition, Slice(*span, newest_us, newest_us)))
    objects = (*(name for name in commit.objects if name in stay), *(made.name for made in record.objects))
    producer = "" if commit.acks == ACKS_ALL else commit.producer  # whose repeat is another commit
    new = commit._replace(producer=producer, objects=objects, slices=(*kept, *holes), pieces=())
    after = swapped_copies(after, gone, record.placed)
    pending = tuple(new if one is commit else one for one in state.pending)
    after = replace(after, pending=pending, producers=_taken_back(state, commit))
    spans = [r.LostOffsets(*key, some[0].start, some[-1].end) for key, some in old.items()]
    return with_new_objects(with_lost(after, spans, commit.version), old)


def _taken_back(state: State, commit: PendingCommit) -> Map[str, ProducerState]:
    """The producers without a lost commit with acks=all: its repeat is written again, because nobody has seen it."""
    known = state.producers.get(commit.producer)
    last = None if known is None else known.last_commit
    if known is None or last is None or commit.acks != ACKS_ALL:
        return state.producers
    if (last.version, last.sequence) == (commit.version, commit.sequence):
        before = last_commit(last.sequence - 1, last.version, {}, "") if last.sequence else None
        return state.producers.set(commit.producer, known._replace(last_commit=before))
    if known.plain or known.holder or commit.sequence > known.last:  # they repeat their last commit only
        return state.producers
    lost = tuple(sorted({*known.lost, commit.sequence}))
    return state.producers.set(commit.producer, known._replace(lost=lost))


def with_lost(state: State, lost: Iterable[r.LostOffsets], version: int | None = None) -> State:
    """The state that names some offsets as lost, but for those of deleted topics.

    version:  of their commit; None: of the record that gave them up, after readers saw them.
    """
    found, at = state.lost, state.version if version is None else version
    for topic_id, number, start, end in lost:
        part, known = state.partitions.get((topic_id, number)), found.get((topic_id, number), ())
        if part is None or state.live_topic(topic_id) is None:
            continue
        kept = [one for one in known if one.end > part.start]
        new = [LostRange(*span, at) for span in _unnamed(known, start, end)]
        found = found.set((topic_id, number), tuple(sorted([*kept, *new])))
    return replace(state, lost=found)


def _unnamed(known: Iterable[LostRange], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a range that are not named yet: the object without records may be lost, too."""
    for one in known:
        if start < min(one.start, end):
            yield start, min(one.start, end)
        start = max(start, one.end)
    if start < end:
        yield start, end


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


def optional_copies(state: State) -> set[str]:
    """Those of commits with acks=1, which a copy of the log may lack: such a commit has no positions of groups."""
    pending = pending_copies(state)
    return {name for one in state.pending if one.acks != ACKS_ALL for name in one.objects if name in pending}


# ------------------------------------------------------------------------------------------------------------ decisions


def pending_of(state: State, producer: str, sequence: int) -> PendingCommit | None:
    """The commit of a producer, if it is pending."""
    return next((one for one in state.pending if (one.producer, one.sequence) == (producer, sequence)), None)


def is_full(state: State, key: TopicKey) -> bool:
    """Whether as many commits of a partition are pending as there may be."""
    part = state.partitions[key]
    if min(part.end - part.readable_end, len(state.pending)) < PENDING_MAX:
        return False
    return sum(_has(one, key) for one in state.pending) >= PENDING_MAX


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


def stuck_partition(state: State, keys: Iterable[TopicKey]) -> TopicKey | None:
    """The first partition in which a new commit would be behind pending ones that copies do not make visible."""
    behind = [key for key in keys if (part := state.partitions.get(key)) and part.end != part.readable_end]
    if not behind or not any(_is_stuck(state, one) for one in _in_front_of(state.pending, behind)):
        return None
    return next(key for key in behind if any(_is_stuck(state, one) for one in _in_front_of(state.pending, [key])))


def _in_front_of(pending: Sequence[PendingCommit], keys: Iterable[TopicKey]) -> Iterator[PendingCommit]:
    """Those of some pending commits for which one after them in these partitions waits, the newest first."""
    named = set(keys)
    for one in reversed(pending):
        if not named.isdisjoint(new := entries_of(one)):
            named.update(new)
            yield one


def _is_stuck(state: State, commit: PendingCommit) -> bool:
    """Whether a broker has to come back before readers see a commit, or the log has to give it up."""
    for known in (copies_of(state, state.objects[name]) for name in commit.objects):
        if known is not None and not any(is_active(state, broker) for broker in known.brokers):
            return True
        if known is not None and not state.placement_groups[known.group].isr:
            return True
    return _is_short(state, commit)


def waited_for(state: State, commit: PendingCommit) -> list[PendingCommit]:
    """A pending commit, and those before it that must become visible first, in order."""
    before = state.pending[: state.pending.index(commit)]
    return [*reversed(list(_in_front_of(before, entries_of(commit)))), commit]
