"""The state of a log that continues without lost versions.  Pure.

A lost version may have given offsets to records that consumers have seen, and their number is unknown.  So every topic
gets a new id: an offset is only valid with a topic's id, so older ones (in a stream's checkpoint, a position, an
               upload)
are rejected as after a topic was deleted and created again.  The new version is beyond any that a lost record may have
had, and the fence with it, so uploads in progress are void (docs/decisions/0035-accepted-loss.md).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from immutables import Map
from msgspec.structs import replace as moved

from spark_log.metadata import records as r
from spark_log.metadata.commands import TRANSACTIONAL
from spark_log.metadata.features import SUPPORTED
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.restores import is_former
from spark_log.metadata.state import ErasedTopic, GroupState, Leadership, PendingCommit, ProducerState, State, TopicKey

RAISED = 1_000_000
"""Generations and epochs grow by this: by more than lost versions can have raised any of them."""


def replay_after_loss(state: State, version: int, batch: r.Batch, known: State, stored: Container[str]) -> State:
    """Apply a version after a lost one as far as possible.

    Its records get the next offsets; commits count even if earlier ones of their producer or coordinator are lost.

    known:   the state before the first lost version.
    stored:  names of the objects in the storage: a commit that names another one adds nothing.
    """
    state = next_version(replace(state, version=version - 1), batch.time)
    if 0 < batch.epoch < state.coordinator.epoch or is_former(state, batch.history):
        return state  # of a coordinator that was fenced, or of the log before it was restored
    for record in batch.records:
        state = _replay_one(state, record, known, stored)
    return state


def _replay_one(state: State, record: r.AnyRecord, known: State, stored: Container[str]) -> State:
    """Offsets at or beyond the end of `known` had another meaning when the record was written."""
    match record:
        case r.TakeOverRecord() | r.ReleaseRecord():
            return replace(state, coordinator=Leadership(max(state.coordinator.epoch, record.epoch)))
        case r.SwapRecord() if not _is_certain(record, known, stored):
            return state
        case r.TrimRecord():
            record = moved(record, start=min(record.start, _end(known, (record.topic_id, record.partition))))
        case r.CommitOffsetsRecord():
            record = moved(record, commits=_within(known, record.commits))
        case r.CommitRecord():
            if any(named.name not in stored for named in record.objects):
                return state
            state = _without_older_epoch(state, record)
            record = moved(record, birth=-1, dense=False, groups=_within(known, record.groups))
        case _:
            pass
    return replay_records(state, [record])


def _is_certain(swap: r.SwapRecord, known: State, stored: Container[str]) -> bool:
    """Whether a swap has only records that are certain, and objects that exist: its inputs may be deleted."""
    within = all(change.end <= _end(known, (change.topic_id, change.partition)) for change in swap.changes)
    return within and all(named.name in stored for named in swap.objects)


def _end(state: State, key: TopicKey) -> int:
    part = state.partitions.get(key)
    return 0 if part is None else part.end


def _within(known: State, commits: Iterable[r.GroupCommit]) -> tuple[r.GroupCommit, ...]:
    return tuple(
        r.GroupCommit(
            commit.group,
            -1,
            tuple(
                at._replace(offset=min(at.offset, _end(known, (at.topic_id, at.partition)))) for at in commit.offsets
            ),
        )
        for commit in commits
    )


def _without_older_epoch(state: State, record: r.CommitRecord) -> State:
    """Removes the commit's producer if the record that began its epoch is lost."""
    producer = state.producers.get(record.producer)
    if producer is None or producer.epoch >= record.epoch:
        return state
    return replace(state, producers=state.producers.delete(record.producer))


def renew(state: State, version: int, ids: Mapping[str, str], stored: Iterable[str]) -> State:
    """The state with which the log continues at `version`.

    ids:     the new id of each topic that is not deleted.
    stored:  names of the objects in the storage.  Those that the state does not name may have records of lost versions,
             and are kept until the fence has passed `version`.
    """
    names = {key: ids.get(key, key) for key in state.topics}
    generation = max((group.generation for group in state.groups.values()), default=0)
    generation = max(generation, state.generations) + RAISED
    partitions = {(names[key], number): part for (key, number), part in state.partitions.items()}
    return replace(
        state,
        version=version,
        changed=version,
        progressed=version,
        fence=version - 1,
        times=((version, state.time),),
        names=Map({name: names[key] for name, key in state.names.items()}),
        topics=Map({names[key]: topic for key, topic in state.topics.items()}),
        partitions=LayeredMap(partitions),
        assignments=Map({names[key]: groups for key, groups in state.assignments.items() if key in names}),
        schemas=Map({names[key]: one for key, one in state.schemas.items()}),
        lost=Map({(names[key[0]], key[1]): some for key, some in state.lost.items() if key[0] in names}),
        restores=tuple(
            one._replace(ends=tuple((names.get(key, key), ends) for key, ends in one.ends)) for one in state.restores
        ),
        pending=tuple(_renew_pending(one, names) for one in state.pending),
        reassignments=Map({(names[key[0]], key[1]): row for key, row in state.reassignments.items()}),
        dropped=Map({name: version for name in stored if name not in state.objects}),
        dropped_lists=Map(),
        erasures=Map({names.get(key, key): _renew_erased(row, version) for key, row in state.erasures.items()}),
        cleaned=Map(),  # the swaps of a pass may be lost
        producers=Map({name: _renew_producer(state, name, version, names) for name in state.producers}),
        kafka_producers=Map(
            {
                key: row._replace(topic_id=names.get(row.topic_id, row.topic_id))
                for key, row in state.kafka_producers.items()
            }
        ),
        groups=Map(
            {name: _renew_group(state, group, version, generation, names) for name, group in state.groups.items()}
        ),
        forgotten=Map({key: when._replace(version=version) for key, when in state.forgotten.items()}),
        line=(),
        strays=(),
        generations=generation,
        coordinator=Leadership(state.coordinator.epoch + RAISED),
        features=Map(SUPPORTED),  # a lost version may have raised any
    )


def _renew_pending(one: PendingCommit, names: Mapping[str, str]) -> PendingCommit:
    return one._replace(
        slices=tuple((names.get(topic_id, topic_id), number, entry) for topic_id, number, entry in one.slices),
        pieces=tuple((names.get(topic_id, topic_id), number, entry) for topic_id, number, entry in one.pieces),
    )


def _renew_erased(row: ErasedTopic, version: int) -> ErasedTopic:
    """Objects with erased records are kept like all others, until the fence has passed `version`."""
    return row._replace(unfinished=tuple(one._replace(version=version) for one in row.unfinished))


def _renew_producer(state: State, name: str, version: int, names: Mapping[str, str]) -> ProducerState:
    """A transactional id gets a new epoch; other producers keep their last commit under the new topic ids."""
    known = state.producers[name]
    if name.startswith(TRANSACTIONAL):
        return ProducerState(epoch=known.epoch + RAISED, version=version, time=state.time, aborted=True)
    last = known.last_commit
    if last is None:
        return known
    topics = tuple(names.get(topic_id, topic_id) for topic_id in last.topics)
    return known._replace(last_commit=last._replace(topics=topics))


def _renew_group(
    state: State, group: GroupState, version: int, generation: int, names: Mapping[str, str]
) -> GroupState:
    """Its members are fenced; its positions stay, limited to the end."""
    offsets = {
        (names[key[0]], key[1]): at._replace(offset=min(at.offset, _end(state, key)), version=version)
        for key, at in group.offsets.items()
    }
    return GroupState(generation=generation, offsets=Map(offsets), seen=group.seen)
