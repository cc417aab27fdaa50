"""Readers from before a restore, and the records that they have in common with the log."""

from __future__ import annotations

import pytest

from spark_log.errors import InvalidRequest, SparkLogError, UnknownProducerId, UploadFenced
from spark_log.metadata.commands import BeginHistory
from spark_log.metadata.commits.decide_commits import decide_commit
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.maintenance.accepted_loss import replay_after_loss
from spark_log.metadata.projection import apply, delta, held_of, nothing_held
from spark_log.metadata.records import (
    Batch,
    DeleteTopicRecord,
    ExpireProducersRecord,
    FenceRecord,
    RestoreRecord,
    TakeOverRecord,
)
from spark_log.metadata.replay import replay
from spark_log.metadata.restores import (
    KEPT,
    SeenLog,
    common_end,
    history_of,
    is_former,
    new_history,
    restores_after,
    seen_in,
    was_set_back,
    with_restore,
)
from spark_log.metadata.state import State
from spark_log.model import PROGRESS_TOPIC
from tests.unit.metadata.history import History


@pytest.fixture
def log() -> History:
    return History()


def begin(log: History, history: str, version: int) -> None:
    log.do(BeginHistory(history=history, version=version))


# Promise: format/metadata.md#restores
def test_records_are_the_same_up_to_the_end_of_each_copy_since(log: History) -> None:
    """In partitions and topics that came later, nothing is."""
    topic = log.create(partitions=2)
    log.commit((topic, 0, 5), (topic, 1, 2))
    first = log.state
    begin(log, "a", first.version)
    log.commit((topic, 0, 3))
    begin(log, "b", log.state.version)
    other = log.create("u", partitions=3)
    log.commit((topic, 0, 4), (other, 2, 1))
    state = log.state
    assert (history_of(first), history_of(state)) == ("", "b")
    ends = {name: [common_end(state, name, (topic, number)) for number in (0, 1, 2)] for name in ("", "a", "b", "x")}
    assert ends == {"": [5, 2, 0], "a": [8, 2, 0], "b": [None] * 3, "x": [0, 0, 0]}
    assert common_end(state, "a", (other, 2)) == 0 and common_end(first, "a", (topic, 0)) == 0
    assert common_end(state, "", (PROGRESS_TOPIC, 7)) == first.progressed + 1
    assert [one.version for one in restores_after(state, "") or ()] == [first.version, state.restores[1].version]
    assert restores_after(state, "x") is None


def test_a_command_that_is_sent_twice_begins_one_history(log: History) -> None:
    for _ in range(2):
        begin(log, "a", log.state.version)
    assert [one.history for one in log.state.restores] == ["a"]
    for command in (BeginHistory(history="", version=0), BeginHistory(history="b", version=10**9)):
        with pytest.raises(InvalidRequest):
            log.do(command)


def test_only_the_last_restores_are_known() -> None:
    state = History().state
    for number in range(KEPT + 2):
        state = with_restore(state, str(number), 0)
    assert len(state.restores) == KEPT
    assert restores_after(state, "") is None and restores_after(state, "1") is None
    assert len(restores_after(state, "2") or ()) == KEPT - 1


# Promise: format/metadata.md#restores
def test_restores_are_in_records_checkpoints_and_projections(log: History) -> None:
    topic, other = log.create(), log.create("u")
    log.commit((topic, 0, 5), (other, 0, 2))
    begin(log, "a", 2)
    batch = Batch(id="x", time=1, records=(RestoreRecord(history="a", version=2),))
    assert decode_batch(encode_batch(batch), "x") == batch
    assert decode_checkpoint(encode_checkpoint(log.state), "c").restores == log.state.restores
    nothing = nothing_held(["u"])
    held = apply(nothing, delta(log.state, "h", held_of(nothing), ""))
    assert common_end(held, "", (other, 0)) == 2 and [ends for ends, _ in held.restores[0].ends] == [other]


@pytest.mark.parametrize("history", ["", "other"])
def test_a_batch_of_another_history_is_void(log: History, history: str) -> None:
    """Whatever it has, and also in a repair if it is of a former history."""
    topic = log.create()
    begin(log, "a", 2)
    take = TakeOverRecord(epoch=1, address="a:1", host="h", cluster_id="c")
    batch = Batch(id="x", time=1, history=history, records=(DeleteTopicRecord(topic_id=topic), take))
    assert decode_batch(encode_batch(batch), "x") == batch
    after = replay(log.state, batch)
    assert after.version == log.state.version + 1
    assert after.names == log.state.names and after.coordinator == log.state.coordinator
    assert is_former(log.state, history) == (history == "")
    repaired = replay_after_loss(log.state, after.version, batch, log.state, ())
    assert (repaired.names == log.state.names) == (history == "")


@pytest.mark.parametrize(("in_copy", "error"), [(True, UnknownProducerId), (False, UploadFenced)])
def test_a_commit_that_the_copy_may_have_is_not_sent_again(
    log: History, in_copy: bool, error: type[SparkLogError]
) -> None:
    """Its writer got no answer.  The producer has expired, so nobody knows whether the commit was in the copy."""
    topic = log.create()
    commit, version = log.upload((topic, 0, 1)), log.state.version
    if in_copy:
        log.do(lambda state, now: decide_commit(state, commit))
        version = log.state.version
    log.write(FenceRecord(upto=log.state.version), ExpireProducersRecord(producers=(commit.producer,)))
    begin(log, "a", version)
    with pytest.raises(error):
        log.do(lambda state, now: decide_commit(state, commit))


def test_a_log_that_has_less_or_was_there_later_was_set_back(log: History) -> None:
    """Within a history.  After a restore, the ends say more."""
    topic = log.create()
    log.commit((topic, 0, 1))
    seen = seen_in(log.state)
    assert not was_set_back(log.state, seen)
    assert was_set_back(log.state, seen._replace(version=seen.version + 1))
    assert was_set_back(log.state, SeenLog("", seen.version, -1))
    assert not was_set_back(log.state, SeenLog("other", seen.version + 1, 0))


def test_a_history_that_began_earlier_than_the_present_one_is_former() -> None:
    """Of two that began after one copy; whatever the clocks say, one that began after the present history is not."""
    copy = State()
    first, second = new_history(copy, 1000, "x"), new_history(copy, 2000, "x")
    state = with_restore(copy, second, 0)
    assert is_former(state, first) and not is_former(with_restore(copy, first, 0), second)
    later = new_history(state, 500, "y")
    assert not is_former(state, later) and is_former(with_restore(state, later, 0), second)
    assert is_former(state, "") and not is_former(copy, first) and not is_former(state, "founding")
