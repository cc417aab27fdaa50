"""Projected states, against the whole states that they are of."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import UnknownTopicOrPartition
from spark_log.metadata.projection import Delta, Holdings, apply, asking_for, delta, held_of, holds, nothing_held
from spark_log.metadata.state import GroupState, ObjectRow, State, TopicKey
from spark_log.metadata.topics.decide_topics import topic_named
from spark_log.model import Slice
from tests.unit.metadata.history import History
from tests.unit.metadata.test_replay import carry_out, commands


def sent(state: State, held: Holdings) -> Delta:
    """The delta as the client gets it, for what it has sent."""
    asked = msgspec.json.decode(msgspec.json.encode(held), type=Holdings)
    found = delta(state, head(state.version), asked, head(held.version))
    return msgspec.json.decode(msgspec.json.encode(found), type=Delta)


def head(version: int) -> str:
    """The first line of a record."""
    return f"record {version}"


def project(state: State, topics: list[str], groups: list[str]) -> State:
    """The projection of a state for a client that has nothing."""
    nothing = nothing_held(topics, groups)
    return apply(nothing, sent(state, held_of(nothing)))


def keys_of(state: State, topic: str) -> list[TopicKey]:
    topic_id, found = topic_named(state, topic)
    return [(topic_id, number) for number in range(found.partitions)]


names = st.lists(st.sampled_from(["t0", "t1", "t2", "t3"]), unique=True)
group_names = st.lists(st.sampled_from(["g", "h"]), unique=True)


# Promise: service.md#what-a-client-keeps-in-memory
@given(commands, names, group_names, st.data())
def test_a_delta_leads_from_one_projection_to_another(
    command: list[tuple[str, int, int]], topics: list[str], groups: list[str], data: st.DataObject
) -> None:
    """Of any two states of a log, in any number of steps."""
    log = carry_out(command)
    steps = sorted(data.draw(st.lists(st.integers(0, len(log.states) - 1), min_size=1)))
    state = project(log.states[steps[0]], topics, groups)
    for number in steps[1:]:
        state = apply(state, sent(log.states[number], held_of(state, head(state.version))))
        assert state == project(log.states[number], topics, groups)
        assert apply(state, sent(log.states[number], held_of(state, head(number)))) is state


# Promise: service.md#what-a-client-keeps-in-memory
@given(commands, names, group_names)
def test_a_projection_agrees_with_the_whole_state(
    command: list[tuple[str, int, int]], topics: list[str], groups: list[str]
) -> None:
    """Topics, entries, the objects that reads need, and positions: all that plans, positions and lags are made of."""
    whole = carry_out(command).state
    state = project(whole, topics, groups)
    assert (state.version, state.time, state.fence, state.configs) == (
        whole.version,
        whole.time,
        whole.fence,
        whole.configs,
    )
    for name in topics:
        assert (name in state.names) == (name in whole.names)
        for key in keys_of(whole, name) if name in whole.names else []:
            assert state.topics[key[0]] == whole.topics[key[0]]
            assert state.partitions[key] == whole.partitions[key]
            for entry in whole.partitions[key].entries:
                if isinstance(entry, Slice):
                    row = whole.objects[entry.object]
                    assert state.objects[entry.object] == ObjectRow(row.size, row.index_position, 0)
    for group in groups:
        assert (group in state.groups) == (group in whole.groups)
        there = whole.groups.get(group, GroupState())
        held = {whole.names[name] for name in topics if name in whole.names}
        offsets = {key: position for key, position in there.offsets.items() if key[0] in held}
        projected = state.groups.get(group, GroupState())
        assert dict(projected.offsets) == offsets
        assert (projected.generation, projected.member, projected.seen) == (
            there.generation,
            there.member,
            there.seen,
        )


@given(commands, names, names, group_names)
def test_more_topics_can_be_asked_for(
    command: list[tuple[str, int, int]], topics: list[str], others: list[str], groups: list[str]
) -> None:
    """The result is the projection of all of them."""
    whole = carry_out(command).state
    state = asking_for(project(whole, topics, []), others, groups)
    assert holds(state, [*topics, *others], groups)
    assert apply(state, sent(whole, held_of(state, head(state.version)))) == project(whole, [*topics, *others], groups)


# Promise: service.md#what-a-client-keeps-in-memory
def test_a_topic_that_was_not_asked_for_is_not_said_to_be_missing(log: History) -> None:
    """Nor is a group; and nothing can be said about all of them."""
    log.create("t")
    log.create("other")
    state = project(log.state, ["t", "missing"], [])
    assert "t" in state.names and "missing" not in state.names and state.names.get("missing") is None
    with pytest.raises(UnknownTopicOrPartition, match="'missing' does not exist"):
        topic_named(state, "missing")
    for lookup in (
        lambda: "other" in state.names,
        lambda: state.names.get("other"),
        lambda: topic_named(state, "other"),
        lambda: state.groups.get("g"),
        lambda: list(state.names),
        lambda: len(state.groups),
        lambda: state.producers.get("p"),
    ):
        with pytest.raises(AssertionError, match="asked for|only some topics"):
            lookup()


def test_a_delta_has_what_is_new(log: History) -> None:
    """Not the entries that the client has, and no partition that is the same."""
    topic = log.create("t", 3)
    log.commit((topic, 0, 1), (topic, 1, 1))
    state = project(log.state, ["t"], [])
    log.commit((topic, 1, 5))
    changes = sent(log.state, held_of(state, head(state.version)))
    (part,) = changes.topics["t"].partitions
    assert part.number == 1 and [(piece.start, piece.end) for piece in part.slices] == [(1, 6)]
    state = apply(state, changes)
    assert not sent(log.state, held_of(state, head(state.version))).topics["t"].partitions


@given(commands, commands, names, group_names)
def test_a_client_of_another_history_gets_everything(
    ours: list[tuple[str, int, int]], theirs: list[tuple[str, int, int]], topics: list[str], groups: list[str]
) -> None:
    """Its version is another record in this history, or is not known: what it has is not compared."""
    state, whole = project(carry_out(theirs).state, topics, groups), carry_out(ours).state
    for known, restored in (("another record", True), ("", False)):
        changes = delta(whole, "head", held_of(state, head(state.version)), known)
        assert (changes.whole, changes.restored) == (True, restored)
        assert apply(state, changes) == project(whole, topics, groups)
