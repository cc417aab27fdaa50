"""After an accepted loss, the log has everything that it had, under new topic ids, and nothing under the old ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, cast

import msgspec
import pytest
from immutables import Map

from spark_log.groups.group import Roster
from spark_log.groups.member_share import Share
from spark_log.metadata.commands import TRANSACTIONAL
from spark_log.metadata.commits.last_commit import LastCommit
from spark_log.metadata.erasures import waits_for
from spark_log.metadata.features import SUPPORTED
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.invariants import check_state
from spark_log.metadata.maintenance.accepted_loss import RAISED, renew
from spark_log.metadata.maps.layered_map import LayeredMap
from spark_log.metadata.records import Piece
from spark_log.metadata.replicas.replica_state import Broker, Copies, PlacementGroup, Reassignment, ReplicaMember
from spark_log.metadata.state import (
    CleanedPart,
    DroppedList,
    ErasedTopic,
    Forgotten,
    FormerRoot,
    GroupPosition,
    GroupState,
    KafkaProducer,
    Leadership,
    LostRange,
    MemberSession,
    ObjectRow,
    OpenErasure,
    Partition,
    PendingCommit,
    ProducerState,
    Restore,
    SetBack,
    ShareMember,
    State,
    Topic,
    TopicKey,
    TopicSchemas,
)
from spark_log.model import Slice
from tests.unit.metadata.test_invariants import full

OLD, NEW = "id-before", "id-after"
VERSION = 1_000_000_000
SLICE = Slice(2, 5, "a.seg", 1, 2, 3, 4, 5, 6, (2, b"stats"))
PIECE = Piece(5, 9, "a.idx", 1, 2, 3, 4, 5, 6, 7, 2)
SESSION = MemberSession("token", "owner", 1, 2)
OF_PRODUCER: dict[str, Any] = {"epoch": 1, "holder": "holder", "former": ("former",), "version": 2, "time": 3}
OF_BROKER: dict[str, Any] = {
    "rack": "rack",
    "options": (("name", "text"),),
    "is_async": True,
    "epoch": 1,
    "fenced": True,
    "reason": "why",
    "since": 2,
    "keep_ms": 3,
    "dropped": 4,
    "deletable": 5,
    "marks": ((6, 7),),
    "dropped_at": (8, 9),
    "drained": True,
    "former": (("directory", 10),),
    "mount_point": "/mnt",
}

STATE = State(
    version=90,
    time=91,
    changed=92,
    fence=93,
    times=((94, 95),),
    configs=Map({"name": "value"}),
    names=Map({"t": OLD}),
    topics=Map({OLD: Topic("t", 1, Map({"a": "b"}), 1), "deleted": Topic("u", 1, Map({"a": "b"}), 1, deleted=True)}),
    partitions=LayeredMap(
        {(OLD, 0): Partition(1, 20, 3, (SLICE, PIECE)), ("deleted", 0): Partition(1, 2, 3, (SLICE,))}
    ),
    objects=LayeredMap({"a.seg": ObjectRow(1, 2, 3, 4)}),
    dropped=Map({"gone.seg": 1}),
    dropped_lists=Map({"list": DroppedList(1, 2)}),
    cleaned=Map({(OLD, 0): CleanedPart(1, ((2, 3),))}),
    producers=Map(
        {
            "app": ProducerState(
                **OF_PRODUCER, plain=True, last_commit=LastCommit(1, 2, 3, (OLD,), "source", b"packed"), lost=(0,)
            ),
            f"{TRANSACTIONAL}x": ProducerState(**OF_PRODUCER, timeout_ms=4, aborted=True),
        }
    ),
    kafka_producers=Map({(1, "orders", 0): KafkaProducer(OLD, 2, 3, 4, b"packed")}),
    kafka_expired=5,
    groups=Map(
        {
            "g": GroupState(
                generation=7,
                member="m",
                offsets=Map({(OLD, 0): GroupPosition(11, "note", 12, 13)}),
                seen=14,
                session=SESSION,
                roster=Roster(1),
                shares=(ShareMember(Share(1, 2), "m", 1, 2, SESSION),),
            )
        }
    ),
    coordinator=Leadership(15, "host:1", "host", 16, "moved"),
    forgotten=Map({("g", "t", 1): Forgotten(1, 2)}),
    progressed=17,
    generations=18,
    brokers=Map({1: Broker("url", "directory", **OF_BROKER, cause="check")}),
    placement_groups=Map({1: PlacementGroup((ReplicaMember(1, "isr", 2, 3, 4),), 1, 2)}),
    assignments=Map({OLD: (1,)}),
    groups_made=19,
    reassignments=Map({(OLD, 0): Reassignment(1, (2,), (3,), 4, 5, 6, 7)}),
    copies=Map({4: Copies(1, (1,), 2, 3, pending=True)}),
    copies_made=20,
    pending=(PendingCommit("app", 1, 2, ("a.seg",), ((OLD, 0, SLICE),), ((OLD, 0, PIECE),), -1),),
    restores=(Restore("h", 1, 2, ((OLD, (3,)),)),),
    schemas=Map({OLD: TopicSchemas(("json",), (2,)), "deleted": TopicSchemas(("json",), (2,))}),
    lost=Map({(OLD, 0): (LostRange(1, 2, 3),)}),
    erasures=Map({OLD: ErasedTopic("t", 8, (OpenErasure(8, 9, ((0, ""), (1, "d")), True, "e"),), 9)}),
    former_roots=Map({"d": FormerRoot(3, "/disks/3", 3, True)}),
    line=("b1", "b2"),
    strays=(7,),
    features=Map({"metadata.version": 1}),
    set_backs=(SetBack("8-a", {("any", 0): 3}),),
)
"""With a value in each field of each class."""

OF_THE_PROCESS = {"recent", "set_backs"}
"""Fields that are no part of the log's contents."""
RENEWED: dict[str, object] = {
    "version": VERSION,
    "changed": VERSION,
    "progressed": VERSION,
    "fence": VERSION - 1,
    "times": ((VERSION, 91),),
    "dropped": Map({"gone.seg": VERSION, "stray.seg": VERSION}),
    "dropped_lists": Map(),
    "cleaned": Map(),
    "forgotten": Map({("g", "t", 1): Forgotten(VERSION, 2)}),
    "generations": 18 + RAISED,
    "coordinator": Leadership(15 + RAISED),
    "line": (),
    "strays": (),
    "features": Map(SUPPORTED),
    "erasures": Map({NEW: ErasedTopic("t", 8, (OpenErasure(VERSION, 9, ((0, ""), (1, "d")), True, "e"),), 9)}),
}
"""Fields that do not stay as they are, and what they become."""


def renewed() -> State:
    return renew(STATE, VERSION, {OLD: NEW}, ["a.seg", "gone.seg", "stray.seg"])


def with_new_ids(value: Any) -> Any:
    """A value in which the topic has its new id."""
    if value == OLD:
        return NEW
    if isinstance(value, Mapping):
        made = {with_new_ids(key): with_new_ids(one) for key, one in value.items()}
        return LayeredMap(made) if isinstance(value, LayeredMap) else Map(made)
    if isinstance(value, tuple):
        some = [with_new_ids(one) for one in value]
        return value._make(some) if hasattr(value, "_make") else tuple(some)
    return value


def values_in(value: Any) -> Iterator[Any]:
    """A value, and all those in it."""
    yield value
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, tuple):
        parts = list(value)
    elif is_dataclass(value):
        parts = [getattr(value, one.name) for one in fields(value)]
    for part in parts:
        yield from values_in(part)


def defaults_of(kind: type[Any]) -> dict[str, object]:
    """By field of a class, the default; fields without one have None."""
    if is_dataclass(kind):
        return {
            one.name: one.default_factory() if one.default_factory is not MISSING else one.default
            for one in fields(kind)
            if one.name not in OF_THE_PROCESS
        }
    if issubclass(kind, msgspec.Struct):
        return {one.name: one.default for one in msgspec.structs.fields(kind)}
    return {name: kind._field_defaults.get(name) for name in kind._fields}


# Promise: storage-failures.md#continue-without-what-is-lost
def test_the_state_of_these_tests_has_a_value_in_each_field() -> None:
    """A new field fails here until it has a value, and the next test says whether it is carried over."""
    by_kind = dict[type[Any], list[Any]]()
    for value in values_in(STATE):
        if is_dataclass(value) or isinstance(value, msgspec.Struct) or hasattr(value, "_fields"):
            by_kind.setdefault(type(value), []).append(value)
    of_state = {kind for kind in by_kind if kind.__module__.startswith("spark_log.metadata.")}
    assert {State, Partition, PendingCommit, Piece, Broker, LastCommit, TopicSchemas, Reassignment} <= of_state
    left = [
        f"{kind.__name__}.{name}"
        for kind in of_state
        for name, default in defaults_of(kind).items()
        if all(getattr(one, name) in (default, (), "") for one in by_kind[kind])
    ]
    assert left == []


# Promise: storage-failures.md#continue-without-what-is-lost
@pytest.mark.parametrize("name", sorted({one.name for one in fields(State)} - OF_THE_PROCESS - {"producers", "groups"}))
def test_a_field_is_carried_over(name: str) -> None:
    expected = RENEWED[name] if name in RENEWED else with_new_ids(getattr(STATE, name))
    assert getattr(renewed(), name) == expected


def test_the_state_breaks_no_rule() -> None:
    """Of a log with some of everything: what was removed is remembered until the fence passes the new version."""
    state = full().state
    after = renew(state, VERSION, {one: f"{one}-new" for one in state.topics}, state.objects)
    assert after.forgotten and not list(check_state(after))


def test_writers_and_positions_are_carried_over() -> None:
    """Transactions and members of groups are fenced, since a lost version may have let others in."""
    after, plain = renewed(), STATE.producers["app"]
    assert after.producers["app"] == with_new_ids(plain) != plain
    assert after.producers[f"{TRANSACTIONAL}x"] == ProducerState(1 + RAISED, version=VERSION, time=91, aborted=True)
    known = cast(GroupState, with_new_ids(STATE.groups["g"]))
    offsets: Map[TopicKey, GroupPosition] = Map(
        {key: at._replace(version=VERSION) for key, at in known.offsets.items()}
    )
    assert after.groups == Map({"g": GroupState(18 + RAISED, offsets=offsets, seen=known.seen)})


def test_an_erasure_stays_open_as_long_as_its_objects_are_kept() -> None:
    """It was reported as done, and the files with erased records were there until the fence had passed."""
    state = renewed()
    assert "gone.seg" in state.dropped and not waits_for(state, (0, ""))
    assert waits_for(replace(state, fence=VERSION), (0, ""))


def test_nothing_has_an_old_id() -> None:
    assert OLD in values_in(STATE)
    assert OLD not in values_in(renewed())


def test_a_checkpoint_has_all_fields() -> None:
    """Those of before the loss, and those that continue it."""
    for state in (STATE, replace(renewed(), recent=(), set_backs=())):
        assert decode_checkpoint(encode_checkpoint(state), "x") == state
