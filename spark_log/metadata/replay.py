"""`replay(state, batch)`: the only way to change a state.  Total and deterministic.

A record that does not match the state is void: it changes nothing but the version.  Examples are a commit below the
fence, a second swap of the same partition, a fenced producer, and a batch of a former coordinator or of the log before
a restore.  This is part of the protocol, and it makes replay total for leftovers that a reader may apply before a
listing confirms the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from immutables import Map
from msgspec.structs import replace as moved

from spark_log.configs.settings import cluster_config, topic_config
from spark_log.metadata import records as r
from spark_log.metadata.changes import extended
from spark_log.metadata.commits.identities import producer_of
from spark_log.metadata.commits.kafka_producers import with_batches, without_producers
from spark_log.metadata.commits.last_commit import last_commit
from spark_log.metadata.commits.pending_commits import (
    is_pending_in,
    lost_commit,
    must_wait,
    new_entries,
    newest_released,
    pending_commit,
    released,
    with_ends,
    with_entries,
    with_holes,
    with_lost,
)
from spark_log.metadata.erasures import replay_erased, replay_former_root, replay_wiped, without_erasures
from spark_log.metadata.groups.replay_groups import (
    groups_hold,
    replay_commit_offsets,
    replay_delete_offsets,
    replay_group_generation,
    replay_join_group,
    with_positions,
    without_positions,
)
from spark_log.metadata.lines import LINE_VERSIONS, follows, last_mark, mark_of
from spark_log.metadata.maintenance.cleaner_point import moved_point
from spark_log.metadata.maintenance.clock_reset import reset_clock
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.replicas.replay_reassignments import (
    places_of_slices,
    replay_moved,
    replay_reassign,
    with_late_slices,
    without_ended,
)
from spark_log.metadata.replicas.replay_replicas import (
    REPLAY_REPLICAS,
    is_led,
    lacking_isr,
    placed_rows,
    swapped_copies,
    with_missed,
    with_replicas,
)
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.restores import history_of, is_former, replay_restore
from spark_log.metadata.state import (
    CleanedPart,
    DroppedList,
    Leadership,
    ObjectRow,
    Partition,
    ProducerState,
    State,
    Topic,
    entries_of,
    without,
)
from spark_log.metadata.topics.schemas import replay_set_schema, with_first_schema
from spark_log.model import ACKS_ALL, DataObject, Slice

FORMER_HOLDERS = 100
ANSWER_MS = 900_000
"""Offsets of a plain writer's last commit are kept this long at least: longer than it sends a retry by default."""
TIMES_PER_AGE = 128
"""The fence moves in steps of about 1/128 of the age, so `State.times` has about that many rows."""


def replay(state: State, batch: r.Batch) -> State:
    """The state at the next version."""
    records = batch.records
    if not is_in_line(state, batch):
        records = ()
    elif batch.epoch != state.coordinator.in_force:
        records = tuple(record for record in records if isinstance(record, r.TakeOverRecord | r.ReleaseRecord))
    return end_version(state, batch, replay_records(next_version(state, batch.time), records))


def is_in_line(state: State, batch: r.Batch) -> bool:
    """Whether a batch was decided on this log: in its history, and on the state that the batch before it left.

    Otherwise it came from a copy of the log that went another way, or clients wrote it after versions were lost.
    """
    return follows(state, batch) and batch.history == history_of(state)


def is_of_other_log(state: State, batch: r.Batch) -> bool:
    """Whether a coordinator that reports this batch leads a restored copy of the log, unless the batch is void."""
    changes_leader = any(isinstance(record, r.TakeOverRecord | r.ReleaseRecord) for record in batch.records)
    return not is_in_line(state, batch) or (batch.epoch != state.coordinator.in_force and not changes_leader)


def _in_line(state: State, batch: r.Batch, new: State) -> State:
    """The version that follows `state`, with the batch in its line, or among those that are not of this log."""
    mark = mark_of(batch) if is_in_line(state, batch) else last_mark(state)
    strays = tuple(version for version in new.strays if version > new.fence)
    if not follows(state, batch) and not is_former(state, batch.history):
        strays = (*strays, new.version)[-LINE_VERSIONS:]
    return replace(new, line=_longer(state, mark), strays=strays)


def _longer(state: State, mark: str) -> tuple[str, ...]:
    return (*state.line[1 - LINE_VERSIONS :], mark)


def end_version(state: State, batch: r.Batch, new: State) -> State:
    """The version that follows `state`, after all of its records."""
    kept = set(map(id, new.pending))
    shown = [key for one in state.pending if id(one) not in kept for key in entries_of(one)]
    is_changed = not all(isinstance(record, r.FenceRecord) for record in batch.records)
    recent = extended(state.recent, new.version, batch.records, shown)
    new = replace(_in_line(state, batch, new), recent=recent, changed=new.version if is_changed else new.changed)
    if is_changed or new.fence < new.changed:
        return new
    # No version since the fence has a change: an idle log writes no more fences.
    return replace(new, times=tuple(entry for entry in new.times if entry[0] <= state.version) or state.times[-1:])


def next_version(state: State, time: int) -> State:
    """The next version before its records; the log's time never decreases."""
    time = max(time, state.time)
    times = state.times
    if time - times[-1][1] >= cluster_config(state.configs, "gc.fence.age.ms") // TIMES_PER_AGE:
        times += ((state.version + 1, time),)
    return replace(state, version=state.version + 1, time=time, times=times, line=_longer(state, ""))


def replay_records(state: State, records: Iterable[r.AnyRecord]) -> State:
    """Apply `records` within one version; void ones change nothing."""
    for record in records:
        before, state = state, _REPLAY[type(record)](state, record) or state
        if state.pending and _may_release(before, state, record):
            state = released(state)
    return state


def _may_release(before: State, state: State, record: r.AnyRecord) -> bool:
    """Whether readers may see pending commits after a record.  One of them alone changes nothing for the others."""
    if isinstance(record, r.CommitRecord):
        return state.placement_groups is not before.placement_groups
    return (
        state.copies is not before.copies
        or state.placement_groups is not before.placement_groups
        or state.topics is not before.topics
    )


def admits(state: State, record: r.CommitRecord) -> bool:
    """Whether a commit is the next of its producer; used by decisions and by replay.

    An unknown plain id must start at 0 and must have been drawn above the fence: an older one may have expired.
    """
    known = producer_of(state, record.producer, record.sequence)
    if known is None:
        return record.birth < 0 or (record.sequence == 0 and record.birth > state.fence)
    if record.epoch != known.epoch:
        return record.epoch == known.epoch + 1 and record.holder not in (known.holder, *known.former)
    if record.holder != known.holder:
        return False
    if record.dense:
        return record.sequence == known.last + 1
    return record.sequence > known.last or record.sequence in known.lost


def known_objects(state: State, objects: Iterable[DataObject]) -> list[str]:
    """Objects that a commit or a swap must not add: live or dropped ones, and those that it names twice.

    Replacing an object's row would lose the count of its live slices, and with it the records of other topics.  A
    dropped object whose name is in a list has no row, so it is not refused.
    """
    found, names = list[str](), set[str]()
    for name in (named.name for named in objects):
        if name in names or name in state.objects or name in state.dropped or name in state.dropped_lists:
            found.append(name)
        names.add(name)
    return found


def index_of(part: Partition, start: int, end: int) -> tuple[int, int] | None:
    """Entries that cover exactly [start, end), as a half-open range of their numbers; None if none do."""
    entries = part.entries
    low = next((i for i, entry in enumerate(entries) if entry.start == start), None)
    if low is None:
        return None
    for high in range(low, len(entries)):
        if entries[high].end == end:
            return low, high + 1
    return None


# --------------------------------------------------------------------------------------------------------------- topics


def _create_topic(state: State, record: r.CreateTopicRecord) -> State | None:
    if record.name in state.names or record.topic_id in state.topics:
        return None
    if len(record.replicas) not in (0, record.partitions):
        return None
    topic = Topic(record.name, record.partitions, Map(record.configs), state.time)
    state = replace(
        state,
        names=state.names.set(record.name, record.topic_id),
        topics=state.topics.set(record.topic_id, topic),
        partitions=_new_partitions(state, record.topic_id, 0, record.partitions),
    )
    if record.schema:
        state = with_first_schema(state, record.topic_id, record.schema, record.partitions)
    return with_replicas(state, record.topic_id, record.replicas) if record.replicas else state


def _new_partitions(state: State, topic_id: str, first: int, total: int) -> LayeredMap[tuple[str, int], Partition]:
    return state.partitions.update({(topic_id, number): Partition() for number in range(first, total)})


def _add_partitions(state: State, record: r.AddPartitionsRecord) -> State | None:
    topic = state.live_topic(record.topic_id)
    if topic is None or record.total <= topic.partitions:
        return None
    added = record.total - topic.partitions
    if len(record.replicas) not in (0, added):
        return None
    state = replace(
        state,
        topics=state.topics.set(record.topic_id, topic._replace(partitions=record.total)),
        partitions=_new_partitions(state, record.topic_id, topic.partitions, record.total),
    )
    if not record.replicas and record.topic_id not in state.assignments:
        return state
    return with_replicas(state, record.topic_id, record.replicas or ((OWN_BROKER,),) * added)


def _set_configs(state: State, record: r.SetConfigsRecord) -> State | None:
    if not record.topic_id:
        return replace(state, configs=_changed(state.configs, record.configs))
    topic = state.live_topic(record.topic_id)
    if topic is None:
        return None
    topic = topic._replace(configs=_changed(topic.configs, record.configs))
    return replace(state, topics=state.topics.set(record.topic_id, topic))


def _changed(configs: Map[str, str], changes: Mapping[str, str | None]) -> Map[str, str]:
    for name, value in sorted(changes.items()):
        if value is not None:
            configs = configs.set(name, value)
        elif name in configs:
            configs = configs.delete(name)
    return configs


def _delete_topic(state: State, record: r.DeleteTopicRecord) -> State | None:
    topic = state.live_topic(record.topic_id)
    if topic is None:
        return None
    for name, group in state.groups.items():
        state = without_positions(state, name, [key for key in group.offsets if key[0] == record.topic_id])
    keys = [(record.topic_id, number) for number in range(topic.partitions)]
    state = replace(
        state,
        names=state.names.delete(topic.name),
        topics=state.topics.set(record.topic_id, topic._replace(deleted=True)),
        lost=without(state.lost, [(record.topic_id, number) for number in range(topic.partitions)]),
        cleaned=without(state.cleaned, keys),
        reassignments=without(state.reassignments, keys),
    )
    for number in range(topic.partitions):
        key = (record.topic_id, number)
        if not state.partitions[key].entries and not is_pending_in(state, key):
            state = _drop_partition(state, key)
    return state


def _drop_partition(state: State, key: tuple[str, int]) -> State:
    """Remove a deleted topic's partition without slices; the last one also removes the topic."""
    state = replace(state, partitions=state.partitions.delete(key))
    topic_id = key[0]
    if any((topic_id, number) in state.partitions for number in range(state.topics[topic_id].partitions)):
        return state
    state = replace(
        state,
        topics=state.topics.delete(topic_id),
        assignments=without(state.assignments, [topic_id]),
        schemas=without(state.schemas, [topic_id]),
    )
    return without_erasures(state, [topic_id])


def _trim(state: State, record: r.TrimRecord) -> State | None:
    key = (record.topic_id, record.partition)
    part = state.partitions.get(key)
    if part is None or not part.start < record.start <= part.readable_end:
        return None
    return replace(state, partitions=state.partitions.set(key, part._replace(start=record.start)))


# -------------------------------------------------------------------------------------------------------------- commits


def _init_producer(state: State, record: r.InitProducerRecord) -> State:
    known = state.producers.get(record.producer)
    epoch = 0 if known is None else known.epoch + 1
    new = ProducerState(
        epoch=epoch,
        version=state.version,
        time=state.time,
        timeout_ms=record.timeout_ms,
        aborted=record.aborted,
    )
    return replace(state, producers=state.producers.set(record.producer, new))


def _commit(state: State, record: r.CommitRecord) -> State | None:
    if record.upload_epoch <= state.fence or not admits(state, record) or not groups_hold(state, record.groups):
        return None
    if known_objects(state, record.objects):
        return None
    new = new_entries(state, record)
    if new is None:
        return None
    waits = must_wait(state, record, new)
    placed = placed_rows(state, record.objects, record.placed, _counts(record), pending=waits)
    if placed is None:
        return None
    after, rows = _missed_by(placed[0], record), placed[1]
    if after is None:
        return None
    ranges = {key: (state.partitions[key].end, entries[-1].end) for key, entries in new.items()}
    after = replace(
        with_late_slices(with_positions(after, record.groups), places_of_slices(record)),
        partitions=with_ends(state, new) if waits else with_entries(state, new),
        objects=state.objects.update(rows),
        producers=state.producers.set(record.producer, _produced(state, record, ranges)),
        kafka_producers=with_batches(state, record) if record.kafka_batches else state.kafka_producers,
    )
    if not waits:
        return after
    after = replace(after, pending=(*after.pending, pending_commit(state, record, new)))
    return newest_released(after) if after.placement_groups is state.placement_groups else after


def _missed_by(state: State, record: r.CommitRecord) -> State | None:
    """The state without the replicas that a commit has missed; None if no in-sync replica has its objects."""
    if record.acks == ACKS_ALL:
        return with_missed(state, record.placed, record.upload_epoch)
    return state if is_led(state, record.placed) else None


def _lost(state: State, record: r.LostRecord) -> State | None:
    commit = lost_commit(state, record)
    if commit is None or record.upload_epoch <= state.fence or known_objects(state, record.objects):
        return None
    return with_holes(state, commit, record)


def _counts(record: r.CommitRecord) -> tuple[int, ...]:
    if record.counts:
        return record.counts
    counts = [0] * len(record.objects)
    for number, _ in record.slices:
        counts[number] += 1
    return tuple(counts)


def _produced(state: State, record: r.CommitRecord, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> ProducerState:
    known = producer_of(state, record.producer, record.sequence) or ProducerState(
        epoch=record.epoch, holder=record.holder
    )
    if record.epoch != known.epoch:
        former = (*known.former, known.holder)[-FORMER_HOLDERS:]
        known = ProducerState(epoch=record.epoch, holder=record.holder, former=former)
    new = known.last_commit
    if record.sequence >= known.last:
        new = last_commit(record.sequence, state.version, ranges, record.source)
    return known._replace(
        plain=record.birth >= 0,
        version=state.version,
        time=state.time,
        last_commit=new,
        lost=tuple(one for one in known.lost if one != record.sequence),
    )


# ---------------------------------------------------------------------------------------------------------- maintenance


def _swap(state: State, record: r.SwapRecord) -> State | None:
    if record.upload_epoch <= state.fence or known_objects(state, record.objects) or lacking_isr(state, record.placed):
        return None
    for change in record.changes:
        swapped = _swapped(state, change)
        if swapped is None:
            return None
        state = swapped
    counted = _counted(state, record)
    return with_lost(counted, record.lost) if counted is not None and record.lost else counted


def _swapped(state: State, change: r.Change) -> State | None:
    key = (change.topic_id, change.partition)
    part = state.partitions.get(key)
    if part is None or part.edition != change.edition:
        return None
    found = index_of(part, change.start, change.end)
    if found is None:
        return None
    low, high = found
    deleted = state.topics[change.topic_id].deleted
    new: list[Slice | r.Piece] = sorted((*change.slices, *change.pieces), key=lambda entry: entry.start)
    if not deleted and not _covers(new, max(change.start, min(part.start, change.end)), change.end):
        return None
    entries = (*part.entries[:low], *new, *part.entries[high:])
    if not entries and deleted and not is_pending_in(state, key):
        return _drop_partition(state, key)
    part = part._replace(edition=part.edition + 1, entries=entries)
    return replace(state, partitions=state.partitions.set(key, part))


def _covers(entries: Sequence[Slice | r.Piece], start: int, end: int) -> bool:
    """Whether the entries, in order and without gaps, cover all of [start, end)."""
    at = min(start, entries[0].start) if entries else start
    for entry in entries:
        if entry.start != at:
            return False
        at = entry.end
    return at == end


def _counted(state: State, record: r.SwapRecord) -> State | None:
    """The state with other numbers of entries in its objects."""
    live = [record.added.get(made.name, 0) - record.removed.get(made.name, 0) for made in record.objects]
    placed = placed_rows(state, record.objects, record.placed, [max(0, count) for count in live])
    if placed is None:
        return None
    (state, rows), known, gone = placed, state.objects, list[ObjectRow]()
    changed = {*record.added, *record.removed}
    dropped = [
        made.name for made, count in zip(record.objects, live, strict=True) if count <= 0 and made.name in changed
    ]
    for name in changed.difference(made.name for made in record.objects):
        row = known.get(name)
        if row is None:
            continue
        count = row.live + record.added.get(name, 0) - record.removed.get(name, 0)
        if count > 0:
            rows[name] = moved(row, live=count)
        else:
            dropped.append(name)
            gone.append(row)
    state = replace(
        state,
        objects=state.objects.without(dropped).update(rows),
        dropped=state.dropped.update(dict.fromkeys(dropped, state.version)),
    )
    return swapped_copies(state, gone, record.placed) if state.copies or record.placed else state


def _list_dropped(state: State, record: r.ListDroppedRecord) -> State | None:
    """No name is lost: after version `upto`, no object is dropped at or below it, so the list has all that leave."""
    upto = record.upload_epoch
    if not state.fence < upto < state.version or known_objects(state, [DataObject(record.object, 0, 0)]):
        return None
    left = Map({name: version for name, version in state.dropped.items() if version > upto})
    if len(left) == len(state.dropped):
        return None
    row = DroppedList(upto, len(state.dropped) - len(left))
    return replace(state, dropped=left, dropped_lists=state.dropped_lists.set(record.object, row))


def _cleaned(state: State, record: r.CleanedRecord) -> State | None:
    """A point only moves on, within a partition that exists."""
    new: dict[tuple[str, int], CleanedPart] = {}
    for topic_id, number, upto in record.partitions:
        key, topic = (topic_id, number), state.live_topic(topic_id)
        part, known = state.partitions.get(key), new.get(key) or state.cleaned.get(key)
        if topic is not None and part is not None and (known.upto if known else 0) < upto <= part.end:
            kept_ms = int(topic_config(topic.configs, "delete.retention.ms"))
            new[key] = moved_point(known, upto, state.time, kept_ms)
    return replace(state, cleaned=state.cleaned.update(new)) if new else None


def _fence(state: State, record: r.FenceRecord) -> State | None:
    if not state.fence < record.upto < state.version:
        return None
    return replace(
        without_ended(state, record.upto),
        fence=record.upto,
        times=tuple(entry for entry in state.times if entry[0] > record.upto) or state.times[-1:],
        dropped=Map({name: version for name, version in state.dropped.items() if version > record.upto}),
        dropped_lists=without(
            state.dropped_lists, [name for name, listed in state.dropped_lists.items() if listed.upto <= record.upto]
        ),
        forgotten=without(
            state.forgotten, [key for key, when in state.forgotten.items() if when.version <= record.upto]
        ),
        producers=_without_old_ranges(state),
    )


def _without_old_ranges(state: State) -> Map[str, ProducerState]:
    """Without the offsets of plain writers' old commits: each writer draws an id, so there may be many."""
    before = state.time - ANSWER_MS
    return state.producers.update(
        {
            name: known._replace(last_commit=known.last_commit.without_ranges())
            for name, known in state.producers.items()
            if known.plain and known.time < before and known.last_commit is not None and known.last_commit.packed
        }
    )


def _expire_producers(state: State, record: r.ExpireProducersRecord) -> State:
    """A producer expires only if its last commit is at or below the fence: no retry of it can be in progress."""
    producers = state.producers
    for name in record.producers:
        known = producers.get(name)
        if known is not None and known.version <= state.fence:
            producers = producers.delete(name)
    return without_producers(replace(state, producers=producers), record.kafka)


# --------------------------------------------------------------------------------------------------------- coordinators


def _take_over(state: State, record: r.TakeOverRecord) -> State | None:
    """A coordinator on shared storage takes the next epoch; one on a quorum has the epoch in which it was elected."""
    if record.epoch <= state.coordinator.epoch:
        return None
    return replace(state, coordinator=Leadership(record.epoch, record.address, record.host, state.time, record.purpose))


def _release(state: State, record: r.ReleaseRecord) -> State | None:
    held = state.coordinator
    if not held.address or record.epoch not in (held.epoch, held.epoch + 1):
        return None
    return replace(state, coordinator=Leadership(record.epoch))


def _feature_level(state: State, record: r.FeatureLevelRecord) -> State | None:
    if record.level <= state.features.get(record.name, 1):
        return None
    return replace(state, features=state.features.set(record.name, record.level))


_REPLAY: dict[type[r.Record], Callable[[State, Any], State | None]] = {
    r.CreateTopicRecord: _create_topic,
    r.AddPartitionsRecord: _add_partitions,
    r.SetConfigsRecord: _set_configs,
    r.SetSchemaRecord: replay_set_schema,
    r.DeleteTopicRecord: _delete_topic,
    r.TrimRecord: _trim,
    r.InitProducerRecord: _init_producer,
    r.CommitRecord: _commit,
    r.LostRecord: _lost,
    r.CommitOffsetsRecord: replay_commit_offsets,
    r.JoinGroupRecord: replay_join_group,
    r.GroupGenerationRecord: replay_group_generation,
    r.DeleteOffsetsRecord: replay_delete_offsets,
    r.SwapRecord: _swap,
    r.ListDroppedRecord: _list_dropped,
    r.CleanedRecord: _cleaned,
    r.FenceRecord: _fence,
    r.TakeOverRecord: _take_over,
    r.ReleaseRecord: _release,
    r.ResetClockRecord: lambda state, record: reset_clock(state, record.time),
    r.RestoreRecord: replay_restore,
    r.FeatureLevelRecord: _feature_level,
    r.ExpireProducersRecord: _expire_producers,
    r.ReassignRecord: replay_reassign,
    r.MovedRecord: replay_moved,
    r.ErasedRecord: replay_erased,
    r.WipedRecord: replay_wiped,
    r.FormerRootRecord: replay_former_root,
    **REPLAY_REPLICAS,
}
