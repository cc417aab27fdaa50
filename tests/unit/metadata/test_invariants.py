"""The rules of a state: each is broken by hand, and found by its name alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from immutables import Map
from msgspec.structs import replace as with_values

from spark_log.groups.group import Roster, RosterMember
from spark_log.groups.member_share import Share
from spark_log.metadata.changes import no_changes
from spark_log.metadata.commands import DeleteTopic
from spark_log.metadata.commits.decide_transactional_ids import decide_init_producer
from spark_log.metadata.groups.decide_groups import decide_commit_offsets, decide_delete_offsets
from spark_log.metadata.invariants import (
    STATE_RULES,
    STEP_RULES,
    check_state,
    check_step,
    clients,
    new_problems,
    partitions,
    replicas,
    steps,
    transitions,
    versions,
)
from spark_log.metadata.records import Piece
from spark_log.metadata.replicas.replica_state import NO_LEADER, PlacementGroup, Reassignment, ReplicaMember
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
    ProducerState,
    Restore,
    ShareMember,
    State,
    TopicSchemas,
)
from spark_log.model import ACKS_LEADER
from tests.unit.metadata.history import positions
from tests.unit.metadata.replica_history import ReplicaHistory

T, U = ("t", 0), ("u", 0)
PENDING = ("p", 0)


def names(problems: Any) -> set[str]:
    return {text.partition(":")[0] for text in problems}


def full() -> ReplicaHistory:
    """A log with some of everything: replicas, pending commits, transactions, groups, a dropped object."""
    log = ReplicaHistory(1, 2, 3)
    log.topic((0, 1), (0, 1), name="t")
    log.topic((1, 2), name="p")
    log.topic((0,), name="u")
    for _ in range(3):
        log.put(None, T)
    log.commit(("u", 0, 5), ("u", 0, 2), producer="q", birth=-1, dense=False, sequence=3)
    log.put((1,), PENDING, acks=ACKS_LEADER, producer="leader")
    log.put((1, 2), PENDING, producer="behind")
    log.do(lambda state, now: decide_init_producer(state, "x"))
    log.do(lambda state, now: decide_init_producer(state, "open", 1000))
    log.do(lambda state, now: decide_commit_offsets(state, (positions("g", "u", 3), positions("h", "t", 1)), now))
    log.do(lambda state, now: decide_delete_offsets(state, "h", (T,)))
    swap = log.replaced(T, (0, 1))
    log.swap_record(swap)
    return log


@pytest.fixture(scope="module")
def state() -> State:
    found = full().state
    assert found.pending and found.dropped and found.forgotten and found.copies
    return found


def test_a_state_of_every_kind_breaks_no_rule(state: State) -> None:
    assert not list(check_state(state)) and not list(check_step(state, state)) and not list(check_state(State()))


# -------------------------------------------------------------------------------------------------------- a state alone


def part(state: State, key: tuple[str, int], **fields: Any) -> State:
    return replace(state, partitions=state.partitions.set(key, state.partitions[key]._replace(**fields)))


def entry(state: State, key: tuple[str, int], number: int, **fields: Any) -> State:
    """Another slice of a partition."""
    entries = list(state.partitions[key].entries)
    entries[number] = with_values(entries[number], **fields)
    return part(state, key, entries=tuple(entries))


def in_map(state: State, name: str, key: Any, value: Any) -> State:
    return replace(state, **{name: getattr(state, name).set(key, value)})


def moved_row(state: State, name: str, key: Any, **fields: Any) -> State:
    row = getattr(state, name)[key]
    changed = with_values(row, **fields) if isinstance(row, ObjectRow) else row._replace(**fields)
    return in_map(state, name, key, changed)


def without(state: State, name: str, key: Any) -> State:
    return replace(state, **{name: getattr(state, name).delete(key)})


def of_kafka(state: State, batches: bytes) -> State:
    return replace(state, kafka_producers=Map({(1, "gone", 0): KafkaProducer("gone", 0, state.version, 0, batches)}))


def object_of(state: State, key: tuple[str, int]) -> str:
    return state.partitions[key].entries[0].object


def one_pending(state: State, number: int, **fields: Any) -> State:
    pending = list(state.pending)
    pending[number] = pending[number]._replace(**fields)
    return replace(state, pending=tuple(pending))


def group(state: State, name: str = "g", **fields: Any) -> State:
    return in_map(state, "groups", name, state.groups.get(name, GroupState())._replace(**fields))


def shares(*some: tuple[int, int, str]) -> tuple[ShareMember, ...]:
    session = MemberSession("token", "owner", 1, 0)
    return tuple(ShareMember(Share(number, of), member, 1, 0, session) for number, of, member in some)


def members(number: int, *roles: tuple[int, Any]) -> Callable[[State], State]:
    """Other replicas of a group; the first one leads."""
    return lambda state: moved_row(
        state, "placement_groups", number, members=tuple(ReplicaMember(*one) for one in roles), leader=roles[0][0]
    )


def rosters(generation: int, *ids: str, leader: str | None = None) -> Roster:
    some = tuple(RosterMember(one, None, "", "", 1, 1, b"", b"") for one in ids)
    return Roster(generation, leader=leader, members=some)


def shared_bytes(state: State) -> State:
    """The second slice of an object has the bytes of the first, too."""
    return entry(state, U, 1, position=state.partitions[U].entries[0].position + 50)


def elsewhere(state: State) -> State:
    """Partition u-0 is on other brokers, and nothing says that its records move."""
    return in_map(state, "assignments", "u", (1,))


def not_lacking(state: State) -> State:
    """All in-sync replicas have the object of the first pending commit."""
    row = state.objects[state.pending[0].objects[0]]
    return moved_row(state, "copies", row.copies, brokers=(1, 2))


def copies_twice(state: State) -> State:
    """A row of copies with a key that was not given away."""
    key = next(iter(state.copies))
    row, new = state.copies[key], state.copies_made + 5
    objects = {name: with_values(one, copies=new) for name, one in state.objects.items() if one.copies == key}
    return replace(state, copies=state.copies.delete(key).set(new, row), objects=state.objects.update(objects))


BROKEN: dict[Any, Callable[[State], State]] = {
    partitions.names_are_of_live_topics: lambda s: in_map(s, "names", "other", "t"),
    partitions.topics_have_their_partitions: lambda s: moved_row(s, "topics", "u", partitions=2),
    partitions.partitions_are_ranges: lambda s: part(s, U, start=8),
    partitions.entries_have_no_gaps: lambda s: entry(s, U, 0, end=4),
    partitions.slices_have_records: lambda s: entry(s, U, 0, min_us=30),
    partitions.slices_share_no_bytes: shared_bytes,
    partitions.objects_count_their_slices: lambda s: moved_row(s, "objects", object_of(s, U), live=3),
    partitions.dropped_objects_are_not_live: lambda s: in_map(s, "dropped", object_of(s, U), s.version),
    partitions.pending_commits_follow_the_high_watermark: lambda s: part(s, PENDING, end=5),
    partitions.pending_commits_are_in_order: lambda s: one_pending(s, 0, version=s.version),
    partitions.pending_commits_wait: not_lacking,
    partitions.pending_objects_are_marked: lambda s: moved_row(
        s, "copies", s.objects[object_of(s, T)].copies, pending=True
    ),
    replicas.brokers_have_their_directories: lambda s: moved_row(s, "brokers", 2, directory=s.brokers[1].directory),
    replicas.only_fenced_brokers_have_reasons: lambda s: moved_row(s, "brokers", 1, reason="it does not answer"),
    replicas.brokers_delete_what_they_have_dropped: lambda s: moved_row(s, "brokers", 1, deletable=1),
    replicas.former_roots_are_not_in_use: lambda s: in_map(
        s, "former_roots", s.brokers[1].directory, FormerRoot(1, "/b1", 1)
    ),
    replicas.replicas_are_registered: lambda s: in_map(
        s, "placement_groups", 9, PlacementGroup((ReplicaMember(7, "out"),))
    ),
    replicas.leaders_are_in_sync: lambda s: moved_row(s, "placement_groups", 1, leader=NO_LEADER),
    replicas.in_sync_replicas_lack_nothing: lambda s: moved_row(
        s, "copies", s.objects[object_of(s, T)].copies, brokers=(0,)
    ),
    replicas.copies_are_on_replicas: lambda s: moved_row(
        s, "copies", s.objects[object_of(s, T)].copies, brokers=(0, 1, 3)
    ),
    replicas.copies_count_their_objects: lambda s: moved_row(s, "copies", s.objects[object_of(s, T)].copies, bytes=1),
    replicas.keys_of_copies_were_made: copies_twice,
    replicas.assignments_name_groups: lambda s: in_map(s, "assignments", "u", (0,)),
    replicas.reassignments_name_groups: lambda s: in_map(s, "reassignments", U, Reassignment(0, (9,), (), 1)),
    replicas.partitions_elsewhere_move: elsewhere,
    clients.producers_have_one_holder: lambda s: moved_row(s, "producers", "q", holder="a", former=("a",)),
    clients.last_commits_are_of_their_producers: lambda s: moved_row(s, "producers", "q", version=1),
    clients.last_commits_count_their_rows: lambda s: moved_row(
        s, "producers", "q", last_commit=cast(Any, s.producers["q"].last_commit)._replace(rows=6)
    ),
    clients.lost_sequences_are_not_ahead: lambda s: moved_row(s, "producers", "q", lost=(2, 1)),
    clients.aborted_transactions_have_no_commit: lambda s: moved_row(s, "producers", "open", aborted=True),
    clients.batches_of_kafka_are_in_order: lambda s: of_kafka(s, b"\x90"),
    clients.groups_have_one_kind_of_owner: lambda s: group(s, member="m", roster=rosters(0)),
    clients.shares_do_not_overlap: lambda s: group(s, generation=1, shares=shares((0, 2, "a"), (0, 2, "b"))),
    clients.rosters_are_of_their_generation: lambda s: group(s, generation=2, roster=rosters(2, "a", leader="b")),
    clients.positions_are_of_partitions: lambda s: group(
        s, offsets=s.groups["g"].offsets.set(("u", 1), GroupPosition(0, "", 0))
    ),
    clients.positions_are_progress: lambda s: replace(
        s, progressed=s.groups["g"].offsets[U].version - 1, forgotten=State().forgotten
    ),
    clients.removed_positions_are_gone: lambda s: in_map(s, "forgotten", ("g", "u", 0), Forgotten(s.progressed, 0)),
    versions.versions_are_not_ahead: lambda s: replace(s, changed=s.version + 1),
    versions.times_are_not_ahead: lambda s: moved_row(s, "topics", "u", created_ms=s.time + 1),
    versions.remembered_times_ascend: lambda s: replace(s, times=((3, 0), (2, 0))),
    versions.fence_is_behind: lambda s: replace(s, fence=-2),
    versions.fence_ends_what_it_passes: lambda s: in_map(s, "dropped_lists", "data/list", DroppedList(-1, 1)),
    versions.cleaner_points_are_in_partitions: lambda s: in_map(s, "cleaned", U, CleanedPart(8, ((8, 0),))),
    versions.lost_ranges_are_in_partitions: lambda s: in_map(s, "lost", U, (LostRange(3, 9, 1),)),
    versions.schemas_are_of_topics: lambda s: in_map(s, "schemas", "u", TopicSchemas(("{}",), (8,))),
    versions.erasures_are_of_topics: lambda s: in_map(
        s, "erasures", "u", ErasedTopic("u", 1, (OpenErasure(1, 0, ()),))
    ),
    versions.restores_are_in_order: lambda s: replace(s, restores=(Restore("a", 3, 0, ()), Restore("b", 2, 0, ()))),
    versions.levels_are_supported: lambda s: in_map(s, "features", "metadata.version", 99),
    versions.coordinators_have_an_epoch: lambda s: replace(s, coordinator=Leadership(0, "here:1")),
}
"""By rule, a change that breaks it and no other."""


def name_of(rule: Any) -> str:
    return str(rule.__name__)


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("rule", BROKEN, ids=name_of)
def test_a_broken_state_is_found_by_the_name_of_its_rule(rule: Any, state: State) -> None:
    found = list(check_state(BROKEN[rule](state)))
    assert names(found) == {rule.__name__}, found


# ---------------------------------------------------------------------------------------------- a state and a later one


def later(state: State, **fields: Any) -> State:
    """The next version."""
    return replace(state, version=state.version + 1, **fields)


def both(state: State) -> tuple[State, State]:
    return state, later(state)


Step = tuple[State, State]


def step(change: Callable[[State], State]) -> Callable[[State], Step]:
    """A state, and what a change made of it in the next version."""
    return lambda state: (state, change(later(state)))


def from_to(before: Callable[[State], State], after: Callable[[State], State]) -> Callable[[State], Step]:
    return lambda state: (before(state), later(after(state)))


def led(epoch: int, leader: int) -> Callable[[State], State]:
    return lambda state: moved_row(state, "placement_groups", 1, leader_epoch=epoch, leader=leader)


BROKEN_STEPS: dict[Any, Callable[[State], Step]] = {
    steps.counters_never_fall: step(lambda s: replace(s, generations=-1)),
    steps.time_falls_by_a_reset_only: step(lambda s: replace(s, time=s.time - 1, recent=(no_changes(1),))),
    steps.restores_stay: from_to(
        lambda s: replace(s, restores=(Restore("a", 1, 0, ()), Restore("b", 2, 0, ()))),
        lambda s: replace(s, restores=(Restore("a", 1, 0, ()),)),
    ),
    steps.topic_ids_are_never_used_again: step(
        lambda s: in_map(s, "topics", "u", s.topics["u"]._replace(name="other"))
    ),
    steps.offsets_never_fall: from_to(lambda s: part(s, U, start=2), lambda s: s),
    steps.partitions_go_with_their_topics: step(lambda s: without(s, "partitions", U)),
    steps.entries_change_by_swaps_only: step(lambda s: entry(s, U, 0, crc=1)),
    steps.objects_are_live_once: step(lambda s: without(s, "objects", object_of(s, U))),
    steps.schemas_grow: from_to(
        lambda s: in_map(s, "schemas", "u", TopicSchemas(("{}",), (0,))),
        lambda s: in_map(s, "schemas", "u", TopicSchemas(("[]",), (0,))),
    ),
    steps.cleaner_points_never_fall: from_to(
        lambda s: in_map(s, "cleaned", U, CleanedPart(5)), lambda s: in_map(s, "cleaned", U, CleanedPart(4))
    ),
    steps.lost_ranges_stay: from_to(lambda s: in_map(s, "lost", U, (LostRange(3, 4, 1),)), lambda s: s),
    steps.erasures_never_fall: from_to(
        lambda s: in_map(s, "erasures", "u", ErasedTopic("u", 5)),
        lambda s: in_map(s, "erasures", "u", ErasedTopic("u", 4)),
    ),
    steps.sequences_never_fall: step(
        lambda s: moved_row(
            s, "producers", "q", last_commit=cast(Any, s.producers["q"].last_commit)._replace(sequence=2)
        )
    ),
    steps.producers_expire_behind_the_fence: step(lambda s: without(s, "producers", "q")),
    steps.kafkas_producers_expire_behind_the_fence: from_to(lambda s: of_kafka(s, b"\x91\x94\0\1\0\0"), lambda s: s),
    steps.generations_never_fall: from_to(lambda s: group(s, generation=3), lambda s: group(s, generation=2)),
    steps.positions_have_the_version_of_their_commit: step(
        lambda s: group(s, offsets=s.groups["g"].offsets.set(U, GroupPosition(4, "", 0, 1)))
    ),
    steps.group_numbers_are_never_used_again: step(lambda s: without(s, "placement_groups", 1)),
    steps.keys_of_copies_are_never_used_again: from_to(lambda s: without(s, "copies", min(s.copies)), lambda s: s),
    steps.leader_epochs_never_fall: from_to(led(3, 0), led(2, 0)),
    steps.isr_keeps_a_member: step(
        lambda s: moved_row(
            s,
            "placement_groups",
            1,
            members=(ReplicaMember(0, "out"), ReplicaMember(1, "out")),
            leader_epoch=9,
        )
    ),
    steps.broker_epochs_never_fall: step(lambda s: moved_row(s, "brokers", 1, epoch=0)),
    transitions.roles_change_as_they_may: from_to(led(3, 0), led(3, 1)),
}
"""By rule, a state and one that cannot follow it by this rule, and may by all others."""


@pytest.mark.parametrize("rule", BROKEN_STEPS, ids=name_of)
def test_a_state_that_cannot_follow_is_found_by_the_name_of_its_rule(rule: Any, state: State) -> None:
    found = list(check_step(*BROKEN_STEPS[rule](state)))
    assert names(found) == {rule.__name__}, found


def test_each_rule_is_checked_and_is_broken_here() -> None:
    """A predicate that is in no list checks nothing."""
    modules = (clients, partitions, replicas, steps, transitions, versions)
    written: set[Any] = {
        function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and [*inspect.signature(function).parameters] in (["state"], ["old", "new"])
        and inspect.signature(function).return_annotation == "Iterator[str]"
    }
    assert written == {*STATE_RULES, *STEP_RULES}
    assert set(BROKEN) == set(STATE_RULES) and set(BROKEN_STEPS) == set(STEP_RULES)


# ---------------------------------------------------------------------------------------------------------------- roles


def broker(**fields: Any) -> Callable[[State], State]:
    return lambda state: moved_row(state, "brokers", 1, **fields)


def producer(**fields: Any) -> Callable[[State], State]:
    return lambda state: in_map(state, "producers", "new", ProducerState(**fields))


def coordinator(*fields: Any) -> Callable[[State], State]:
    return lambda state: replace(state, coordinator=Leadership(*fields))


FENCED = {"fenced": True, "reason": "it does not answer"}


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (
            coordinator(2, "a:1"),
            coordinator(2, "b:1"),
            "coordinator of the log changes from leads (a:1) to leads (b:1)",
        ),
        (coordinator(2), coordinator(2, "a:1"), "from released to leads (a:1) within epoch 2"),
        (broker(**FENCED), broker(), "broker 1 changes from fenced (it does not answer) to active"),
        (broker(**FENCED), broker(fenced=True, reason="other"), "from fenced (it does not answer) to fenced (other)"),
        (broker(), broker(directory="other"), "broker 1 changes from active"),
        (producer(aborted=True), producer(timeout_ms=5), "transaction new changes from aborted to open within epoch 0"),
        (producer(holder="a"), producer(holder="b"), "transaction new changes from idle (a) to idle (b)"),
    ],
)
def test_a_role_changes_within_its_epoch_only_as_it_may(
    state: State, before: Callable[[State], State], after: Callable[[State], State], text: str
) -> None:
    found = [one for one in check_step(before(state), later(after(state))) if one.startswith("roles_change")]
    assert len(found) == 1 and text in found[0], found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (coordinator(2, "a:1"), coordinator(2)),
        (coordinator(2, "a:1"), coordinator(3, "b:1")),
        (broker(), broker(**FENCED)),
        (broker(**FENCED), lambda state: broker(epoch=state.version + 1)(state)),
        (producer(timeout_ms=5), producer(timeout_ms=5, last_commit=full().state.producers["q"].last_commit)),
        (producer(aborted=True), producer(epoch=1)),
    ],
)
def test_roles_that_may_follow_each_other(
    state: State, before: Callable[[State], State], after: Callable[[State], State]
) -> None:
    assert not list(check_step(before(state), later(after(state))))


# -------------------------------------------------------------------------------------------------------------- changes


def test_a_change_answers_for_what_it_breaks_alone(state: State) -> None:
    """A log that is damaged already can be repaired."""
    damaged = replace(state, changed=state.version + 2)
    assert not new_problems(damaged, part(damaged, U, start=2))
    found = new_problems(damaged, part(damaged, U, start=8))
    assert names(found) == {"partitions_are_ranges"}


def test_what_names_a_row_that_is_not_there_is_a_problem_and_no_error(state: State) -> None:
    broken = replace(state, placement_groups=State().placement_groups, topics=State().topics)
    assert "assignments_name_groups" in names(check_state(broken))


def test_a_slice_index_of_replicated_slices_is_in_the_own_root() -> None:
    """It is not a slice on other brokers, and its slices are not counted without it."""
    log = full()
    assert log.seal(T) and isinstance(log.state.partitions[T].entries[0], Piece)
    assert not list(check_state(log.state)) and not list(check_state(log.state, [replicas.partitions_elsewhere_move]))


def test_a_dropped_object_is_never_live_again(state: State) -> None:
    name = next(iter(state.dropped))
    new = in_map(later(state), "objects", name, ObjectRow(1, 1, 1))
    assert f"objects_are_live_once: {name} was dropped" in "".join(check_step(state, new))


def test_a_deleted_topic_takes_everything_with_it() -> None:
    """Its partitions lose their slices in any order, and its rows go."""
    log = full()
    log.command(DeleteTopic(name="u"))
    log.prune(U)
    assert "u" not in log.state.topics and not list(check_state(log.state))
