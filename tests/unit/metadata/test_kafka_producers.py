"""Batches of Kafka's idempotent producers: each is in the log once, in order, however often it is sent."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import InvalidRequest, OutOfOrderSequence
from spark_log.metadata import commands as c
from spark_log.metadata.commits.decide_commits import decide_commit
from spark_log.metadata.commits.kafka_batches import KafkaBatch, KafkaBatches
from spark_log.metadata.commits.kafka_producers import (
    BATCHES_KEPT,
    HOUR_MS,
    RANDOM_BITS,
    SEQUENCES,
    Numbered,
    WrittenBatch,
    batches_of,
    is_lost,
    producer_id,
    written,
    wrong,
)
from spark_log.metadata.commits.pending_commits import with_lost
from spark_log.metadata.formats.batch_format import decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.formats.state_digest import state_digest
from spark_log.metadata.maintenance.accepted_loss import renew
from spark_log.metadata.records import CommitRecord, LostOffsets
from spark_log.metadata.replay import replay_records
from spark_log.metadata.state import State, TopicKey
from spark_log.metadata.topics.decide_topics import decide_delete_topic
from tests.unit.metadata.history import History

DAY_MS = 86_400_000
WRITERS = count()
"""Each commit is of another writer: its own identity does not recognise its batches."""


def new_id(log: History, random: int = 7) -> int:
    return producer_id(log.now, random)


def upload(log: History, key: TopicKey, *batches: Numbered, before: int = 0) -> CommitRecord:
    """A commit of batches.

    before:  records of other producers before the first of them.
    """
    found, at = [], before
    for one in batches:
        found.append(KafkaBatch(*one, at))
        at += one.records
    writer = f"w{next(WRITERS)}"
    return log.upload((*key, at), producer=writer, kafka_batches=(KafkaBatches(*key, tuple(found)),))


def commit(log: History, key: TopicKey, *batches: Numbered, before: int = 0) -> None:
    record = upload(log, key, *batches, before=before)
    log.do(lambda state, now: decide_commit(state, record))


@pytest.fixture
def log() -> History:
    """A log whose clock is that of a day on which it was used for long."""
    log = History()
    log.now = 400 * DAY_MS
    return log


@pytest.fixture
def key(log: History) -> TopicKey:
    return log.create("t", 2), 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "send", "send", "arrive", "restart"]), st.integers(0, 3)), max_size=60
)


@given(STEPS)
def test_each_batch_is_written_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    """Two producers have up to five batches under way.  Some commits arrive late, or never: then their batches were
    sent again, maybe as parts of other commits."""
    log, there = History(), dict[int, list[int]]()
    log.now = 400 * DAY_MS
    key = log.create("t", 1), 0
    ids, acked, late = [new_id(log, n) for n in (1, 2)], {0: 0, 1: 0}, list[CommitRecord]()

    def arrive(record: CommitRecord) -> bool:
        try:
            log.do(lambda state, now: decide_commit(state, record))
        except OutOfOrderSequence:
            return False
        for part in record.kafka_batches:
            for one in part.batches:
                there.setdefault(one.producer, []).append(one.sequence)
        return True

    for step, amount in steps:
        which = amount % 2
        batches = [Numbered(ids[which], 0, 2 * n, 2) for n in range(acked[which], acked[which] + BATCHES_KEPT)]
        if step == "arrive" and late:
            arrive(late.pop(amount % len(late)))
        elif step == "restart":  # a commit whose answer is lost, of what is not written
            late.append(upload(log, key, *[one for one in batches if not written(log.state, key, one)][: 1 + amount]))
        elif step == "send":
            new = [one for one in batches[: 1 + amount] if not written(log.state, key, one)]
            if not new or arrive(upload(log, key, *new, before=amount)):
                acked[which] += 1 + amount
    for producer, sequences in there.items():
        assert sequences == [2 * n for n in range(len(sequences))]
        assert len(sequences) >= acked[ids.index(producer)]


# Promise: format/metadata.md#kafkas-producers
def test_a_repeat_has_the_offset_of_the_first(log: History, key: TopicKey) -> None:
    """Other records may be before it in its commit, and it may be any of the last five."""
    one = new_id(log)
    for n in range(7):
        commit(log, key, Numbered(one, 0, n, 1), before=2)
        with pytest.raises(OutOfOrderSequence, match=f"sequence {n} is in the log"):
            commit(log, key, Numbered(one, 0, n, 1))
    found = [written(log.state, key, Numbered(one, 0, n, 1)) for n in range(7)]
    assert found == [None, None, *(WrittenBatch(n, 1, 3 * n + 2, -1) for n in range(2, 7))]
    assert (
        written(log.state, key, Numbered(one, 0, 3, 2)) is None
        and written(log.state, (key[0], 1), Numbered(one, 0, 3, 1)) is None
    )


def test_a_batch_out_of_order_is_refused(log: History, key: TopicKey) -> None:
    """Nothing of its commit is written.  A client sends it again when the one before it is there."""
    one = new_id(log)
    first, second = Numbered(one, 0, 0, 10), Numbered(one, 0, 10, 5)
    with pytest.raises(OutOfOrderSequence, match="t-0: sequence 10, expected 0"):
        commit(log, key, second)
    commit(log, key, first)
    for wrong_one in (Numbered(one, 0, 5, 5), Numbered(one, 0, 15, 5), Numbered(one, 0, 0, 5), Numbered(one, 1, 10, 5)):
        with pytest.raises(OutOfOrderSequence, match="expected"):
            commit(log, key, wrong_one)
    with pytest.raises(OutOfOrderSequence, match="sequence 10, expected 15"):
        commit(log, key, second, second)
    commit(log, key, second, Numbered(one, 1, 0, 1))
    with pytest.raises(OutOfOrderSequence, match="epoch 0, and the last one was 1"):
        commit(log, key, Numbered(one, 0, 15, 1))
    assert log.state.partitions[key].end == 16


def test_sequences_begin_again_after_the_highest(log: History, key: TopicKey) -> None:
    """Sequences have 31 bits, as in Kafka."""
    log.now += 2 * DAY_MS
    old = producer_id(log.now - 2 * DAY_MS, 1)
    commit(log, key, Numbered(old, 0, SEQUENCES - 5, 10))
    commit(log, key, Numbered(old, 0, 5, 1))
    assert log.state.partitions[key].end == 11


def test_only_a_producer_that_may_have_expired_begins_anywhere(log: History, key: TopicKey) -> None:
    """A young producer that the log does not know has earlier batches that are still to come."""
    young, old = producer_id(log.now - DAY_MS + 3_600_000, 1), producer_id(log.now - DAY_MS - 3_600_000, 1)
    state = log.state
    assert wrong(state, key, Numbered(young, 0, 3, 1)) is not None
    assert wrong(state, key, Numbered(old, 0, 3, 1)) is None
    assert producer_id(100 * 365 * DAY_MS, (1 << RANDOM_BITS) - 1) < 1 << 63


# Promise: gateway.md#writes, format/metadata.md#kafkas-producers
def test_an_idle_producer_expires_behind_the_fence(log: History, key: TopicKey) -> None:
    """Producers expire like other writers, and continue with their next sequence."""
    one, other = new_id(log), new_id(log, 8)
    commit(log, key, Numbered(one, 0, 0, 3))
    assert log.do(c.Expire()) == 0
    log.pass_fence()
    commit(log, key, Numbered(other, 0, 0, 1))
    assert log.do(c.Expire(only_producers=(), only_kafka=((one, "t", 1),))) == 0
    assert log.do(c.Expire(only_producers=(), only_kafka=((one, "t", 0), (other, "t", 0)))) == 1
    assert set(log.state.kafka_producers) == {(other, "t", 0)}
    commit(log, key, Numbered(one, 0, 3, 1))


# Promise: gateway.md#writes
def test_a_producer_that_was_forgotten_continues_whatever_the_time_is_by_now(log: History, key: TopicKey) -> None:
    """Its row expired by a shorter time.  A producer that was made later cannot have expired."""
    log.do(c.SetConfigs(name=None, changes={"producer.id.expiration.ms": "1000"}))
    one = new_id(log)
    commit(log, key, Numbered(one, 0, 0, 3))
    log.now += HOUR_MS
    later = new_id(log)
    log.pass_fence()
    commit(log, key, Numbered(later, 0, 0, 1))
    assert log.do(c.Expire(only_producers=())) == 1
    log.do(c.SetConfigs(name=None, changes={"producer.id.expiration.ms": str(7 * DAY_MS)}))
    again = decode_checkpoint(encode_checkpoint(log.state), "x")
    assert again == log.state
    with pytest.raises(OutOfOrderSequence, match="sequence 3, expected 0"):
        commit(log, (key[0], 1), Numbered(later, 0, 3, 1))
    commit(log, key, Numbered(one, 0, 3, 1))


def test_a_topic_that_is_created_again_has_other_batches(log: History, key: TopicKey) -> None:
    """A producer continues there with its next sequence, or with the first one."""
    one, other = new_id(log, 1), new_id(log, 2)
    commit(log, key, Numbered(one, 0, 0, 2), Numbered(other, 0, 0, 2))
    log.do(lambda state, now: decide_delete_topic(state, "t"))
    again = log.create("t"), 0
    assert written(log.state, again, Numbered(one, 0, 0, 2)) is None
    with pytest.raises(OutOfOrderSequence, match="sequence 3, expected 2"):
        commit(log, again, Numbered(one, 0, 3, 1))
    commit(log, again, Numbered(one, 0, 2, 1), Numbered(other, 0, 0, 2))
    assert [len(batches_of(row)) for row in log.state.kafka_producers.values()] == [1, 1]


# Promise: gateway.md#writes, format/metadata.md#kafkas-producers
@pytest.mark.parametrize("answered", range(4))
def test_a_batch_without_an_answer_is_written_again_in_the_topic_that_was_created_again(
    log: History, key: TopicKey, answered: int
) -> None:
    """The client sends all from the first one on; none of another size, or of another epoch."""
    one = new_id(log)
    batches = [Numbered(one, 0, 2 * n, 2) for n in range(4)]
    commit(log, key, *batches)
    log.do(lambda state, now: decide_delete_topic(state, "t"))
    again = log.create("t"), 0
    for other in (batches[1]._replace(records=1), batches[1]._replace(first=3), batches[1]._replace(epoch=1)):
        with pytest.raises(OutOfOrderSequence, match="expected"):
            commit(log, again, other)
    commit(log, again, *batches[answered:])
    assert written(log.state, again, batches[-1]) is not None
    with pytest.raises(OutOfOrderSequence, match="expected 8"):
        commit(log, again, batches[answered]._replace(records=1))


def test_times_of_the_log_are_those_of_the_commit(log: History) -> None:
    """In a topic with `LogAppendTime`: the repeat has them, too."""
    key, one = (log.create("stamped", 1, message_timestamp_type="LogAppendTime"), 0), new_id(log)
    commit(log, key, Numbered(one, 0, 0, 1))
    assert written(log.state, key, Numbered(one, 0, 0, 1)) == WrittenBatch(0, 1, 0, log.state.time)


def test_lost_records_are_not_a_repeat(log: History, key: TopicKey) -> None:
    """They are not there, although their offsets are."""
    one = Numbered(new_id(log), 0, 0, 2)
    commit(log, key, one)
    found = written(log.state, key, one)
    assert found is not None and not is_lost(log.state, key, found)
    lost = with_lost(log.state, [LostOffsets(*key, 0, 2)])
    assert is_lost(lost, key, found)


def test_a_log_that_gives_lost_versions_up_knows_its_producers(log: History, key: TopicKey) -> None:
    """Its topics have other ids."""
    one = Numbered(new_id(log), 0, 0, 2)
    commit(log, key, one)
    state = renew(log.state, log.state.version + 10, {key[0]: "another id"}, ())
    assert written(state, ("another id", 0), one) == WrittenBatch(0, 2, 0, -1)


def test_a_clock_that_is_set_back_takes_the_rows_with_it(log: History, key: TopicKey) -> None:
    """Otherwise they would not expire for long."""
    commit(log, key, Numbered(new_id(log), 0, 0, 1))
    log.now = DAY_MS
    log.do(c.ResetClock(force=True))
    assert {row.time for row in log.state.kafka_producers.values()} == {DAY_MS + 1}


def test_a_clock_that_is_set_back_takes_the_time_of_expired_rows_with_it(log: History, key: TopicKey) -> None:
    """Otherwise, younger producers would pass for expired ones."""
    commit(log, key, Numbered(new_id(log), 0, 0, 1))
    log.pass_fence()
    log.now += 2 * DAY_MS
    assert log.do(c.Expire(only_producers=())) == 1 and log.state.kafka_expired > 400 * DAY_MS - 1
    log.now = DAY_MS
    log.do(c.ResetClock(force=True))
    assert log.state.kafka_expired == log.state.time


def test_records_and_checkpoints_have_the_batches(log: History, key: TopicKey) -> None:
    """A state that is read back has the same digest, and one without them has another."""
    commit(log, key, Numbered(new_id(log), 0, 0, 1), Numbered(new_id(log, 8), 3, 0, 1))
    assert [decode_batch(encode_batch(one), "x") for one in log.batches] == log.batches
    again = decode_checkpoint(encode_checkpoint(log.state), "x")
    assert again == log.state and state_digest(again) == state_digest(log.state)
    assert state_digest(log.state) != state_digest(without_batches(log.state))


def without_batches(state: State) -> State:
    return replace(state, kafka_producers=State().kafka_producers)


@pytest.mark.parametrize(
    "batches",
    [
        [(0, 0, 0, 2, 0)],  # more records than there are
        [(0, 0, 0, 1, 1)],  # behind the last record
        [(0, 0, 0, 0, 0)],  # none
        [(0, 0, 0, 1, 0), (1, 0, 0, 1, 0)],  # the record of another
    ],
)
def test_batches_that_are_not_of_the_commit_are_refused(
    log: History, key: TopicKey, batches: list[tuple[Any, ...]]
) -> None:
    """They would give offsets that have other records."""
    named = KafkaBatches(*key, tuple(KafkaBatch(*one) for one in batches))
    with pytest.raises(InvalidRequest, match="is not a batch of the 1 records"):
        log.commit((*key, 1), kafka_batches=(named,))
    with pytest.raises(InvalidRequest, match="is not a batch of the 0 records"):
        log.commit((*key, 1), kafka_batches=(named._replace(partition=1),))


def test_replay_leaves_out_batches_of_partitions_that_are_gone(log: History, key: TopicKey) -> None:
    """Replay is total."""
    record = log.upload((*key, 1), kafka_batches=(KafkaBatches("gone", 0, (KafkaBatch(1, 0, 0, 1, 0),)),))
    assert not replay_records(log.state, [record]).kafka_producers
