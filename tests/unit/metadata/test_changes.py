"""The changes that a state names, against the states themselves."""

from __future__ import annotations

import pytest
from hypothesis import given

from spark_log.metadata import records as r
from spark_log.metadata.changes import NAMES_MAX, RECENT_VERSIONS
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.replay import replay
from spark_log.metadata.state import State
from tests.unit.metadata.history import History, positions
from tests.unit.metadata.test_replay import carry_out, commands


def differing(old: object, new: object) -> set[object]:
    """Keys whose values differ, or that only one of two maps has."""
    before, after = dict(old), dict(new)  # type: ignore[call-overload]
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


@given(commands)
def test_everything_that_differs_is_named(command: list[tuple[str, int, int]]) -> None:
    """Between any two states of a log: topics, partitions, objects and groups.  A reset or a restore has no names."""
    log = carry_out(one for one in command if one[0] not in ("clock", "restore"))
    for start, old in enumerate(log.states[1:], 1):
        for new in log.states[start : start + RECENT_VERSIONS]:
            changes = new.changes_since(old)
            assert changes is not None
            either = [
                state.topics[topic_id]
                for topic_id in changes.topics
                for state in (old, new)
                if topic_id in state.topics
            ]
            assert differing(old.names, new.names) <= {topic.name for topic in either}
            pruned = {key[0] for key in changes.partitions}
            assert differing(old.topics, new.topics) <= changes.topics.keys() | pruned
            named = {key for key in differing(old.partitions, new.partitions) if key[0] not in changes.topics}
            assert named <= changes.partitions.keys()
            grown = {
                key[0] for key in named & set(new.partitions) if new.partitions[key].end != old.partitions[key].end
            }
            assert grown <= changes.appended.keys()
            assert differing(old.objects, new.objects) <= changes.objects.keys()
            gone = {
                name
                for name, group in old.groups.items()
                if any(topic_id in changes.topics for topic_id, _ in group.offsets)
            }
            assert differing(old.groups, new.groups) <= changes.groups.keys() | gone


@given(commands)
def test_a_state_from_a_checkpoint_knows_no_changes_before_it(command: list[tuple[str, int, int]]) -> None:
    """Not even at the same version: another log may have been restored there."""
    log = carry_out(command)
    loaded = decode_checkpoint(encode_checkpoint(log.state), "checkpoint")
    assert loaded == log.state and loaded.changes_since(log.state) is None and log.state.changes_since(loaded) is None
    batch = r.Batch(id="b", time=log.now, records=(r.InitProducerRecord(producer="p"),))
    first = replay(loaded, batch)
    assert first.changes_since(log.state) is None and replay(log.state, batch).changes_since(first) is None
    second = replay(first, batch)
    changes = second.changes_since(first)
    assert changes is not None and changes.version == second.version and not changes.groups


def test_a_log_that_was_restored_is_not_compared_by_versions(log: History) -> None:
    """Version 2 of one history says nothing about version 3 of another."""
    topic = log.create("t", 2)
    log.commit((topic, 0, 3))
    known = log.state
    other = History()
    topic = other.create("t", 2)
    other.commit((topic, 1, 3))
    other.commit((topic, 1, 3))
    assert other.state.version == known.version + 1
    assert other.state.changes_since(known) is None


def test_a_reader_that_is_too_far_behind_compares_everything(log: History) -> None:
    """Changes are kept for some versions only."""
    topic = log.create("t")
    known = log.state
    for _ in range(RECENT_VERSIONS - 1):
        log.commit((topic, 0, 1))
    assert log.state.changes_since(known) is not None
    log.commit((topic, 0, 1))
    assert log.state.changes_since(known) is None
    assert log.state.changes_since(log.states[-2]) is not None


@pytest.mark.parametrize("kind", ["clock", "many names"])
def test_after_a_version_that_may_have_changed_anything_changes_are_named_again(log: History, kind: str) -> None:
    """Readers compare everything once."""
    topic = log.create("t", NAMES_MAX + 1)
    log.commit((topic, 0, 1))
    known = log.state
    if kind == "clock":
        log.write(r.ResetClockRecord(time=1))
    else:
        log.commit(*((topic, number, 1) for number in range(NAMES_MAX + 1)))
    at = log.state
    assert at.changes_since(known) is None
    log.commit((topic, 1, 1))
    changes = log.state.changes_since(at)
    assert changes is not None and list(changes.partitions) == [(topic, 1)]
    assert log.state.changes_since(known) is None


def test_which_versions_concern_clients_that_wait_for_records(log: History) -> None:
    """Records concern those of their topics, positions and maintenance nobody, a new topic everybody."""
    topic = log.create("t")

    def changes(old: State) -> tuple[list[str], bool]:
        found = log.state.changes_since(old)
        assert found is not None
        return list(found.appended), found.concerns_all

    known = log.state
    log.commit((topic, 0, 1))
    assert changes(known) == ([topic], False)
    known = log.state
    log.write(r.CommitOffsetsRecord(commits=(positions("g", topic, 1),)))
    log.commit((topic, 0, 1))
    quiet = log.state
    assert log.seal((topic, 0))
    assert changes(quiet) == ([], False)
    assert changes(known) == ([topic], False)
    log.create("other")
    assert changes(known) == ([topic], True)
