"""The part of a state that a client of some topics needs, and its changes as messages.

A *projected* state has some topics with their partitions, and the positions of some groups in them.  Its maps of names
and groups know which keys were asked for: any other key, or an iteration, is an assertion and not an answer, so code
that has not asked for a topic cannot take it for missing.

A client describes what it holds (`held_of`).  The coordinator compares that with its state (`delta`), and the client
applies the difference (`apply`).  So the coordinator keeps no older states:

    apply(projection of a, delta(b, held_of(projection of a))) == projection of b

Both name the record of their version by its first line.  If the client's is another one in the history of the
coordinator, or not known there, the delta has everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from immutables import Map
from msgspec import Struct, structs

from spark_log.bounds import Long
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.records import Piece
from spark_log.metadata.replicas.replica_state import Broker, Copies, PlacementGroup
from spark_log.metadata.state import (
    ErasedTopic,
    GroupPosition,
    GroupState,
    Leadership,
    LostRange,
    ObjectRow,
    Partition,
    Restore,
    ShareMember,
    State,
    Topic,
    TopicKey,
    TopicSchemas,
)
from spark_log.model import Slice

Value = TypeVar("Value")


class Projected(Mapping[str, Value]):
    """The values of some keys of a map.  Raises AssertionError for other keys, and for what needs all of them."""

    __slots__ = ("_rows", "keys_held")

    def __init__(self, keys: frozenset[str] = frozenset(), rows: Mapping[str, Value] | None = None) -> None:
        self.keys_held = keys
        self._rows: Mapping[str, Value] = rows or {}

    def __getitem__(self, key: str) -> Value:
        if key not in self.keys_held:  # not an assert statement, which `python -O` leaves out
            raise AssertionError(f"{key!r} was not asked for, so this client does not know whether it exists")
        return self._rows[key]

    def rows(self) -> Mapping[str, Value]:
        """The keys that exist, with their values."""
        return self._rows

    def _unknown(self) -> NoReturn:
        raise AssertionError("this client holds only some topics: open the whole state first")

    def __iter__(self) -> Iterator[str]:
        self._unknown()

    def __len__(self) -> int:
        self._unknown()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Projected) and (self.keys_held, self._rows) == (other.keys_held, other._rows)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Projected({sorted(self.keys_held)!r}, {dict(self._rows)!r})"


class HeldPartition(NamedTuple):
    """A partition, as far as a client has it."""

    start: Long
    end: Long
    edition: Long
    readable_end: Long


class HeldTopic(Struct, frozen=True, array_like=True):
    """A topic, as far as a client has it."""

    topic_id: str = ""
    """Empty: it is new to the client, or did not exist."""
    partitions: tuple[HeldPartition, ...] = ()


class Holdings(Struct, frozen=True, array_like=True):
    """The contents of a client's projected state."""

    version: Long
    head: str
    """First line of the record of that version, which identifies the history; empty if not known."""
    topics: dict[str, HeldTopic]
    """By name."""
    groups: tuple[str, ...]

    def size_in(self, state: State) -> int:
        """The number of partitions, missing topics and groups that are compared with a state."""
        ids = [topic_id for name in self.topics if (topic_id := state.names.get(name)) is not None]
        missing = len(self.topics) - len(ids)
        return sum(state.topics[topic_id].partitions for topic_id in ids) + missing + len(self.groups)

    def names_only(self) -> Holdings:
        """Holdings of the topics and groups, of which the client has nothing that can be compared."""
        return structs.replace(self, topics=dict.fromkeys(self.topics, HeldTopic()))


class PartitionDelta(Struct, frozen=True, array_like=True):
    """A partition that differs from what the client has."""

    number: int
    start: int
    end: int
    edition: int
    slices: tuple[Slice, ...]
    """With `pieces`: the entries after the client's, if it has the same edition, otherwise all."""
    pieces: tuple[Piece, ...] = ()


class TopicDelta(Struct, frozen=True, array_like=True):
    """A topic that exists."""

    topic_id: str
    created_ms: int
    count: int
    """Number of partitions."""
    configs: dict[str, str]
    partitions: tuple[PartitionDelta, ...] = ()


class ProjectedGroup(Struct, frozen=True, array_like=True):
    """A group that exists, with its positions in the client's topics."""

    generation: int
    member: str
    seen: int
    positions: tuple[tuple[str, int, GroupPosition], ...]
    shares: tuple[ShareMember, ...] = ()


class Delta(Struct, frozen=True, array_like=True):
    """A state compared with what a client has.  Topics and groups that are left out do not exist."""

    version: int
    head: str
    """First line of the record of that version, as in `Holdings`."""
    time: int
    fence: int
    coordinator: Leadership
    configs: dict[str, str]
    topics: dict[str, TopicDelta]
    groups: dict[str, ProjectedGroup]
    objects: dict[str, tuple[int, int, int]]
    """Size, index position and key of the copies of the objects of the slices in it."""
    whole: bool = False
    """It has everything: what the client has is of another history, or that is not known."""
    restored: bool = False
    """The client's version is another one in this history: an older copy of the log was restored."""
    brokers: dict[int, Broker] = {}
    placement_groups: dict[int, PlacementGroup] = {}
    assignments: dict[str, tuple[int, ...]] = {}
    """The groups of the partitions of its topics."""
    copies: dict[int, Copies] = {}
    schemas: dict[str, TopicSchemas] = {}
    """The schemas of its topics."""
    erasures: dict[str, ErasedTopic] = {}
    """Erasures of the topics in this view."""
    restores: tuple[Restore, ...] = ()
    """With the ends of the topics in it."""
    lost: tuple[tuple[str, int, tuple[LostRange, ...]], ...] = ()
    """By topic id and partition, those of its topics."""


def nothing_held(topics: Iterable[str] = (), groups: Iterable[str] = ()) -> State:
    """A projected state of these topics and groups in which none of them exists."""
    return _projected(State(), frozenset(topics), {}, frozenset(groups), {})


def asking_for(state: State, topics: Iterable[str], groups: Iterable[str]) -> State:
    """A projected state to which topics and groups are added that do not exist in it: the base of a `delta`."""
    names, known = _held(state.names), _held(state.groups)
    return _projected(state, names.keys_held.union(topics), names.rows(), known.keys_held.union(groups), known.rows())


def is_projected(state: State) -> bool:
    """Whether a state has only some topics."""
    return isinstance(state.names, Projected)


def holds(state: State, topics: Iterable[str], groups: Iterable[str] = ()) -> bool:
    """Whether a state has these topics and groups, or knows that they do not exist."""
    if not is_projected(state):
        return True
    return _held(state.names).keys_held.issuperset(topics) and _held(state.groups).keys_held.issuperset(groups)


def held_of(state: State, head: str = "") -> Holdings:
    """The contents of a projected state."""
    names, groups = _held(state.names), _held(state.groups)
    rows = names.rows()
    topics = {name: _held_topic(state, rows.get(name)) for name in sorted(names.keys_held)}
    return Holdings(state.version, head, topics, tuple(sorted(groups.keys_held)))


def _held_topic(state: State, topic_id: str | None) -> HeldTopic:
    if topic_id is None:
        return HeldTopic()
    return HeldTopic(topic_id, tuple(_held_partition(part) for _, part in state.topic_partitions(topic_id)))


def _held_partition(part: Partition) -> HeldPartition:
    return HeldPartition(part.start, part.end, part.edition, part.readable_end)


def delta(state: State, head: str, held: Holdings, known: str) -> Delta:
    """A whole state compared with what a client has.

    head:   the first line of the record of its version.
    known:  the first line of the record of the client's version, in the same history; empty if it is not known.
    """
    whole = not held.head or held.head != known
    restored = whole and bool(held.head and known)
    held = held.names_only() if whole else held
    live = {name: topic_id for name in held.topics if (topic_id := state.names.get(name)) is not None}
    topics = {name: _topic_delta(state, topic_id, held.topics[name]) for name, topic_id in live.items()}
    ids = list(live.values())
    new = {piece.object for topic in topics.values() for part in topic.partitions for piece in part.slices}
    return Delta(
        version=state.version,
        head=head,
        time=state.time,
        fence=state.fence,
        coordinator=state.coordinator,
        configs=dict(state.configs),
        topics=topics,
        groups={name: _group_row(state, group, ids) for name in held.groups if (group := state.groups.get(name))},
        objects=object_rows(state, sorted(new)),
        whole=whole,
        restored=restored,
        brokers=dict(state.brokers),
        placement_groups=dict(state.placement_groups),
        assignments={one: numbers for one in ids if (numbers := state.assignments.get(one)) is not None},
        copies=dict(state.copies),
        schemas={one: state.schemas[one] for one in ids if one in state.schemas},
        erasures={one: state.erasures[one] for one in ids if one in state.erasures},
        restores=tuple(one._replace(ends=tuple(row for row in one.ends if row[0] in ids)) for one in state.restores),
        lost=tuple((*key, ranges) for key, ranges in sorted(state.lost.items()) if key[0] in ids),
    )


def object_rows(state: State, names: Iterable[str]) -> dict[str, tuple[int, int, int]]:
    """Size, index position and key of the copies of the objects that are in a state."""
    rows = state.objects
    return {name: (row.size, row.index_position, row.copies) for name in names if (row := rows.get(name)) is not None}


def _topic_delta(state: State, topic_id: str, held: HeldTopic) -> TopicDelta:
    topic = state.topics[topic_id]
    known = held.partitions if held.topic_id == topic_id else ()
    found = []
    for number, part in state.topic_partitions(topic_id):
        had = known[number] if number < len(known) else None
        if had != _held_partition(part):
            entries = part.entries
            if had is not None and had.edition == part.edition:
                entries = tuple(entry for entry in entries if entry.start >= had.readable_end)
            slices = tuple(entry for entry in entries if isinstance(entry, Slice))
            pieces = tuple(entry for entry in entries if isinstance(entry, Piece))
            found.append(PartitionDelta(number, part.start, part.end, part.edition, slices, pieces))
    return TopicDelta(topic_id, topic.created_ms, topic.partitions, dict(topic.configs), tuple(found))


def _group_row(state: State, group: GroupState, topic_ids: Sequence[str]) -> ProjectedGroup:
    """Looks up the positions in these topics: a group may have many in others."""
    keys = [key for topic_id in topic_ids for key in _keys(state, topic_id)]
    positions = tuple((*key, position) for key in keys if (position := group.offsets.get(key)) is not None)
    return ProjectedGroup(group.generation, group.member, group.seen, positions, group.shares)


def apply(state: State, changes: Delta) -> State:
    """A projected state with the changes that were computed for it; the same object if there are none."""
    if _is_same(state, changes):
        return state
    if changes.whole:
        state = nothing_held(_held(state.names).keys_held, _held(state.groups).keys_held)
    partitions, replaced = _without_gone(state, changes)
    for topic in changes.topics.values():
        for part in topic.partitions:
            key = topic.topic_id, part.number
            known, entries = partitions.get(key, Partition()), _entries(part)
            if known.edition == part.edition:
                entries = known.entries + entries
            else:
                replaced = True
            partitions = partitions.set(key, Partition(part.start, part.end, part.edition, entries))
    topics = Map(
        {
            topic.topic_id: Topic(name, topic.count, Map(topic.configs), topic.created_ms)
            for name, topic in changes.topics.items()
        }
    )
    objects = state.objects.update({name: object_row(row) for name, row in changes.objects.items()})
    base = State(
        version=changes.version,
        time=changes.time,
        fence=changes.fence,
        coordinator=changes.coordinator,
        configs=Map(changes.configs),
        topics=state.topics if topics == state.topics else topics,
        partitions=partitions,
        objects=_in_use(objects, partitions) if replaced else objects,
        brokers=Map(changes.brokers),
        placement_groups=Map(changes.placement_groups),
        assignments=Map(changes.assignments),
        copies=Map(changes.copies),
        schemas=Map(changes.schemas),
        erasures=Map(changes.erasures),
        restores=changes.restores,
        lost=Map({(topic_id, number): ranges for topic_id, number, ranges in changes.lost}),
    )
    names = {name: topic.topic_id for name, topic in changes.topics.items()}
    groups = {name: _group(row) for name, row in changes.groups.items()}
    return _projected(base, _held(state.names).keys_held, names, _held(state.groups).keys_held, groups)


def object_row(row: tuple[int, int, int]) -> ObjectRow:
    """A row that a coordinator has sent; its number of slices is unknown."""
    size, index_position, copies = row
    return ObjectRow(size, index_position, 0, copies)


def _is_same(state: State, changes: Delta) -> bool:
    """Whether changes are of the state's version, and have no topics or groups that it lacks."""
    there = _held(state.names).rows().keys(), _held(state.groups).rows().keys()
    return (
        changes.version == state.version
        and not changes.whole
        and there == (changes.topics.keys(), changes.groups.keys())
    )


def _without_gone(state: State, changes: Delta) -> tuple[LayeredMap[TopicKey, Partition], bool]:
    """The partitions without those of topics that were deleted, or created again; whether there were any."""
    there = {topic.topic_id for topic in changes.topics.values()}
    gone = [key for topic_id in state.topics if topic_id not in there for key in _keys(state, topic_id)]
    partitions = state.partitions
    for key in gone:
        partitions = partitions.delete(key)
    return partitions, bool(gone)


def _keys(state: State, topic_id: str) -> list[TopicKey]:
    return [(topic_id, number) for number in range(state.topics[topic_id].partitions)]


def _entries(part: PartitionDelta) -> tuple[Slice | Piece, ...]:
    return tuple(sorted((*part.slices, *part.pieces), key=attrgetter("start"))) if part.pieces else part.slices


def _in_use(
    objects: LayeredMap[str, ObjectRow], partitions: LayeredMap[TopicKey, Partition]
) -> LayeredMap[str, ObjectRow]:
    """The objects of the slices in partitions."""
    slices = (entry for part in partitions.values() for entry in part.entries if isinstance(entry, Slice))
    return LayeredMap({piece.object: objects[piece.object] for piece in slices})


def _group(row: ProjectedGroup) -> GroupState:
    offsets: Map[TopicKey, GroupPosition] = Map([((at[0], at[1]), at[2]) for at in row.positions])
    return GroupState(generation=row.generation, member=row.member, seen=row.seen, offsets=offsets, shares=row.shares)


def _projected(
    state: State,
    topics: frozenset[str],
    names: Mapping[str, str],
    group_names: frozenset[str],
    groups: Mapping[str, GroupState],
) -> State:
    """A state with maps that know only these topics and groups.  The other maps know nothing."""
    unknown: Any = Projected()
    return replace(
        state,
        names=cast(Any, Projected(topics, names)),
        groups=cast(Any, Projected(group_names, groups)),
        dropped=unknown,
        cleaned=unknown,
        reassignments=unknown,
        producers=unknown,
        kafka_producers=unknown,
        forgotten=unknown,
        features=unknown,
    )


def _held(of: Mapping[str, Value]) -> Projected[Value]:
    assert isinstance(of, Projected), "only a projected state is held in part"
    return of
