"""The decisions, one by one."""

from __future__ import annotations

import dataclasses
import re
from typing import cast

import pytest
from msgspec.structs import replace

from spark_log.errors import (
    GroupInUse,
    IllegalGeneration,
    InvalidConfig,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    SequenceConflict,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownProducerId,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.groups.group import Roster
from spark_log.metadata import commands as c
from spark_log.metadata import decide as d
from spark_log.metadata import records as r
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.state import State, TopicKey
from spark_log.model import APPEND_TIME, DataObject, Slice
from tests.unit.metadata.history import History, positions


@pytest.fixture
def log() -> History:
    return History()


# -------------------------------------------------------------------------------------------------------------- commits


def test_offsets_follow_from_the_order_of_commits_and_of_slices(log: History) -> None:
    """Base offsets are given by the place in the log, gap-free in every partition."""
    topic = log.create(partitions=2)
    assert log.commit((topic, 0, 3), (topic, 1, 5)).ranges == {(topic, 0): range(3), (topic, 1): range(5)}
    assert log.commit((topic, 0, 2), (topic, 0, 4)).ranges == {(topic, 0): range(3, 9)}
    assert [(s.start, s.end) for s in log.slices((topic, 0))] == [(0, 3), (3, 5), (5, 9)]


def test_a_repeated_commit_gets_the_first_offsets_and_adds_nothing(log: History) -> None:
    """A retry of an applied commit gets its offsets."""
    topic = log.create()
    commit = log.upload((topic, 0, 3), producer="p", sequence=0)
    first = log.do(lambda state, now: d.decide_commit(state, commit))
    log.commit((topic, 0, 1))
    version = log.state.version
    again = log.do(lambda state, now: d.decide_commit(state, commit))
    assert again == d.Committed(first.version, first.ranges, repeated=True, last=0)
    assert log.state.version == version


def test_the_last_five_commits_of_a_producer_are_known_with_their_offsets(log: History) -> None:
    """As Kafka: five are recognised; an older one is out of order."""
    topic, birth = log.create(), log.state.version
    for sequence in range(7):
        log.commit((topic, 0, 1), producer="p", sequence=sequence, birth=birth)
    for sequence in range(2, 7):
        assert log.commit((topic, 0, 1), producer="p", sequence=sequence).ranges == {
            (topic, 0): range(sequence, sequence + 1)
        }
    with pytest.raises(OutOfOrderSequence):
        log.commit((topic, 0, 1), producer="p", sequence=1)


def test_a_gap_in_a_dense_sequence_is_refused(log: History) -> None:
    """A commit that is missing may still come; nothing overtakes it."""
    topic, birth = log.create(), log.state.version
    log.commit((topic, 0, 1), producer="p", sequence=0, birth=birth)
    with pytest.raises(OutOfOrderSequence, match="commit 2 does not follow 0"):
        log.commit((topic, 0, 1), producer="p", sequence=2, birth=birth)


def test_a_stream_skips_empty_batches(log: History) -> None:
    """A streaming sequence must grow, not be the next."""
    topic = log.create()
    log.commit((topic, 0, 1), producer="q", sequence=3, birth=-1, dense=False)
    assert log.commit((topic, 0, 1), producer="q", sequence=7, birth=-1, dense=False).ranges == {
        (topic, 0): range(1, 2)
    }


@pytest.mark.parametrize("sequence", [3, 8, 18])
def test_a_batch_below_the_last_one_is_a_conflict(log: History, sequence: int) -> None:
    """Spark repeats its newest batch alone: this one would be lost, whether the log still knows its number or not."""
    topic = log.create()
    for batch in (3, *range(8, 20)):
        last = log.commit((topic, 0, 1), producer="q", sequence=batch, birth=-1, dense=False)
    with pytest.raises(SequenceConflict, match=f"q: commit {sequence} is older than the last one, 19") as raised:
        log.commit((topic, 0, 1), producer="q", sequence=sequence, birth=-1, dense=False)
    assert (raised.value.last, raised.value.version, raised.value.retriable) == (19, last.version, False)
    assert log.state.partitions[topic, 0].end == 13


def test_a_repeated_batch_may_lie_otherwise_over_partitions_and_topics(log: History) -> None:
    """The number of tasks may have changed, rows without a key go anywhere, and a bad row may not be bad any more."""
    topic, other = log.create(partitions=3), log.create("dead")
    first = log.commit((topic, 0, 4), (other, 0, 2), producer="q", sequence=0, birth=-1, dense=False, source="s")
    again = log.commit((topic, 2, 5), (topic, 1, 1), producer="q", sequence=0, birth=-1, dense=False, source="s")
    assert again == d.Committed(first.version, first.ranges, repeated=True, last=0)


def test_a_batch_of_the_last_number_with_other_rows_is_a_conflict(log: History) -> None:
    """In all; also if the topic of the first rows was deleted and pruned since."""
    topic, other = log.create(), log.create("u")
    log.commit((topic, 0, 2), producer="q", sequence=4, birth=-1, dense=False)
    with pytest.raises(SequenceConflict, match="commit 4 has 3 rows, and in the log it has 2 rows"):
        log.commit((topic, 0, 1), (other, 0, 2), producer="q", sequence=4, birth=-1, dense=False)
    log.do(lambda state, now: d.decide_delete_topic(state, "t"))
    log.prune((topic, 0))
    assert (topic, 0) not in log.state.partitions
    assert log.commit((other, 0, 2), producer="q", sequence=4, birth=-1, dense=False).repeated


def test_a_batch_of_the_last_number_with_other_source_offsets_is_a_conflict(log: History) -> None:
    """Under maxOffsetsPerTrigger other records come in the same number; offsets that one side does not know decide
    nothing.
    """
    topic = log.create()
    log.commit((topic, 0, 2), producer="q", sequence=4, birth=-1, dense=False, source="a")
    log.commit((topic, 0, 2), producer="r", sequence=4, birth=-1, dense=False)
    with pytest.raises(SequenceConflict, match="q: commit 4 read other source offsets"):
        log.commit((topic, 0, 2), producer="q", sequence=4, birth=-1, dense=False, source="b")
    for producer, source in (("q", "a"), ("q", ""), ("r", "b")):
        assert log.commit((topic, 0, 2), producer=producer, sequence=4, birth=-1, dense=False, source=source).repeated


def test_an_applications_older_version_is_skipped(log: History) -> None:
    """As in Delta, whatever its rows are; the reply has the last version.  That one with other rows is a conflict."""
    topic = log.create()
    log.commit((topic, 0, 2), producer="app:a:t", sequence=5, birth=-1, dense=False)

    def again(version: int, rows: int) -> d.Committed:
        commit = log.upload((topic, 0, rows), producer="app:a:t", sequence=version, birth=-1, dense=False)
        return log.do(lambda state, now: d.decide_commit(state, commit, skip_older=True))

    assert again(5, 2) == d.Committed(log.state.version, {(topic, 0): range(2)}, repeated=True, last=5)
    assert again(4, 3) == d.Committed(log.state.version, {}, repeated=True, last=5)
    with pytest.raises(SequenceConflict, match="commit 5 has 3 rows, and in the log it has 2 rows"):
        again(5, 3)


def test_a_transactional_application_writes_a_version_once(log: History) -> None:
    """txnAppId and txnVersion: the second write of a version adds nothing, another application's does."""
    topic = log.create()
    for _ in range(2):
        log.commit((topic, 0, 2), producer="app:a:t", sequence=5, birth=-1, dense=False)
    log.commit((topic, 0, 1), producer="app:b:t", sequence=5, birth=-1, dense=False)
    assert log.state.partitions[topic, 0].end == 3


def test_an_older_epoch_of_a_producer_is_fenced(log: History) -> None:
    """A takeover of a transactional id fences the previous holder, and starts at sequence 0."""
    topic = log.create()
    assert log.do(lambda state, now: d.decide_init_producer(state, "x")) == 0
    log.commit((topic, 0, 1), producer="x", epoch=0, sequence=0, birth=-1)
    assert log.do(lambda state, now: d.decide_init_producer(state, "x")) == 1
    with pytest.raises(ProducerFenced) as caught:
        log.commit((topic, 0, 1), producer="x", epoch=0, sequence=1, birth=-1)
    assert caught.value.current == 1
    assert log.commit((topic, 0, 1), producer="x", epoch=1, sequence=0, birth=-1).ranges == {(topic, 0): range(1, 2)}


def test_a_new_holder_takes_over_and_the_former_one_is_fenced_for_good(log: History) -> None:
    """A new query under a known producerId: a new epoch that starts afresh; the old query cannot come back."""
    topic = log.create()
    log.commit((topic, 0, 1), producer="s", holder="query1", sequence=8, birth=-1, dense=False)
    epoch = d.epoch_of_holder(log.state, "s", "query2")
    taken = log.commit((topic, 0, 1), producer="s", holder="query2", epoch=epoch, sequence=0, birth=-1, dense=False)
    assert (epoch, taken.ranges) == (1, {(topic, 0): range(1, 2)})
    assert d.epoch_of_holder(log.state, "s", "query2") == 1
    with pytest.raises(ProducerFenced, match="query1 was replaced by query2"):
        d.epoch_of_holder(log.state, "s", "query1")
    for stale in (0, 2):
        with pytest.raises(ProducerFenced):
            log.commit((topic, 0, 1), producer="s", holder="query1", epoch=stale, sequence=9, birth=-1, dense=False)


def test_an_upload_below_the_fence_is_refused(log: History) -> None:
    """Garbage cannot be committed."""
    topic = log.create()
    old = log.state.version
    assert log.pass_fence() >= old
    with pytest.raises(UploadFenced, match="write the data again"):
        log.commit((topic, 0, 1), upload_epoch=old)
    assert log.commit((topic, 0, 1)).ranges == {(topic, 0): range(1)}


def test_an_unknown_producer_born_below_the_fence_may_have_committed_before(log: History) -> None:
    """Its commits may have been applied and forgotten: the error says so, and it does not start again."""
    topic, birth = log.create(), log.state.version
    log.pass_fence()
    for fields in ({"sequence": 0, "birth": birth}, {"sequence": 3, "birth": log.state.version}):
        with pytest.raises(UnknownProducerId) as caught:
            log.commit((topic, 0, 1), producer="p", **fields)
        assert caught.value.maybe_applied


def test_a_commit_does_not_name_objects_that_are_in_the_log(log: History) -> None:
    """Live or dropped, or twice: the count of an object's live slices would be another, and its records be deleted."""
    first, second = log.create("a"), log.create("b")
    log.commit((first, 0, 3), (first, 0, 4))
    upload = log.upload((second, 0, 5), producer="thief")
    (live,) = log.state.objects
    log.commit((first, 0, 1))
    log.do(lambda state, now: d.decide_trim(state, {(first, 0): 8}))
    for objects, slices in (
        ((DataObject(live, 1000, 900),), upload.slices),
        ((*upload.objects, *upload.objects), (*upload.slices, (1, upload.slices[0][1]))),
    ):
        stolen = replace(upload, objects=objects, slices=slices)
        with pytest.raises(InvalidRequest, match=re.escape(objects[0].name)):
            log.do(lambda state, now, stolen=stolen: d.decide_commit(state, stolen))
        before = log.state
        log.write(stolen)
        assert (log.state.objects, log.state.partitions) == (before.objects, before.partitions)
    assert log.prune((first, 0)) and live in log.state.dropped
    stolen = replace(upload, objects=(DataObject(live, 1000, 900),))
    with pytest.raises(InvalidRequest, match="in the log already"):
        log.do(lambda state, now: d.decide_commit(state, stolen))


def test_a_swap_does_not_bring_in_objects_that_are_in_the_log(log: History) -> None:
    """The same for what merging writes: it does not fit."""
    topic = log.create()
    log.commit((topic, 0, 3))
    log.commit((topic, 0, 4))
    one, two = log.slices((topic, 0))
    merged = Slice(0, 7, two.object, 0, 100, 7, 1, 10, 20)
    assert not log.swap((topic, 0), 0, 2, new=(merged,), objects=(DataObject(two.object, 1000, 900),))
    assert log.slices((topic, 0)) == [one, two]


def test_a_deleted_topic_refuses_what_was_on_its_way(log: History) -> None:
    """Also under the name of a new topic: records go by the id."""
    topic = log.create("t")
    commit = log.upload((topic, 0, 1))
    log.do(lambda state, now: d.decide_delete_topic(state, "t"))
    assert log.create("t") != topic
    with pytest.raises(UnknownTopicOrPartition, match="deleted"):
        log.do(lambda state, now: d.decide_commit(state, commit))


def test_a_partition_that_a_topic_does_not_have_is_refused(log: History) -> None:
    """Nothing of the commit is in."""
    topic = log.create(partitions=2)
    with pytest.raises(UnknownTopicOrPartition, match="no partition 2, it has 2"):
        log.commit((topic, 0, 1), (topic, 2, 1))
    assert log.state.partitions[topic, 0].end == 0


def test_slices_of_a_log_append_time_topic_carry_the_time_of_their_commit(log: History) -> None:
    """In one commit, topics of both kinds."""
    stamped = log.create("stamped", message_timestamp_type="LogAppendTime")
    plain = log.create("plain")
    log.commit((stamped, 0, 1), (plain, 0, 1))
    (mine,), (theirs,) = log.slices((stamped, 0)), log.slices((plain, 0))
    assert (mine.min_us, mine.max_us, mine.time_kind) == (log.state.time * 1000, log.state.time * 1000, APPEND_TIME)
    assert (theirs.min_us, theirs.max_us, theirs.time_kind) == (10, 20, 0)


# --------------------------------------------------------------------------------------------------------------- topics


def test_names_that_differ_only_in_dots_and_underscores_collide(log: History) -> None:
    """As in Kafka, whose metrics cannot tell them apart; the same name twice is another error."""
    log.create("a.b")
    with pytest.raises(InvalidTopic, match=r"collides with 'a\.b'"):
        log.create("a_b")
    with pytest.raises(TopicAlreadyExists):
        log.create("a.b")
    assert log.create("ab")


def test_creating_a_topic_again_under_its_id_is_no_change(log: History) -> None:
    """A retry whose first try was in."""
    for _ in range(2):
        assert log.do(lambda state, now: d.decide_create_topic(state, "t", 1, {}, "id")) == "id"
    assert log.state.version == 1


def test_partitions_can_only_be_added(log: History) -> None:
    """As in Kafka there is no way down."""
    topic = log.create(partitions=2)
    with pytest.raises(InvalidPartitions, match="has 2 partitions already"):
        log.do(lambda state, now: d.decide_add_partitions(state, "t", 2))
    log.do(lambda state, now: d.decide_add_partitions(state, "t", 5))
    assert log.commit((topic, 4, 1)).ranges == {(topic, 4): range(1)}


def test_trimming_moves_the_start_forward_and_never_back(log: History) -> None:
    """Up to the end, not beyond; below the start it changes nothing."""
    topic = log.create()
    log.commit((topic, 0, 10))

    def trim(start: int) -> dict[TopicKey, int]:
        return cast(dict[TopicKey, int], log.do(lambda state, now: d.decide_trim(state, {(topic, 0): start})))

    assert trim(4) == {(topic, 0): 4}
    version = log.state.version
    assert trim(2) == {(topic, 0): 4} and log.state.version == version
    with pytest.raises(
        OffsetOutOfRange, match=r"cannot trim \w+-0 to 11: expected an offset from 4 to its end, 10"
    ) as caught:
        trim(11)
    assert (caught.value.start, caught.value.end) == (4, 10)
    assert trim(10) == {(topic, 0): 10}


def test_deleting_a_topic_frees_its_name_and_forgets_its_positions(log: History) -> None:
    """Its slices stay until they are pruned; then nothing of it is left."""
    topic = log.create()
    log.commit((topic, 0, 1), groups=(positions("g", topic, 1),))
    log.do(lambda state, now: d.decide_delete_topic(state, "t"))
    assert "t" not in log.state.names and not log.state.groups["g"].offsets
    assert log.counts() == log.recount() != {}
    assert log.prune((topic, 0))
    assert topic not in log.state.topics and not log.state.partitions and log.counts() == {}
    assert len(log.state.dropped) == 1


def test_topics_cannot_be_deleted_where_the_log_says_so(log: History) -> None:
    """delete.topic.enable."""
    log.create()
    log.do(lambda state, now: d.decide_set_configs(state, None, {"delete.topic.enable": "false"}))
    with pytest.raises(TopicDeletionDisabled):
        log.do(lambda state, now: d.decide_delete_topic(state, "t"))


def test_a_topic_that_is_not_there_is_named_with_its_neighbours(log: History) -> None:
    """The next thing to try is in the message."""
    log.create("orders")
    with pytest.raises(UnknownTopicOrPartition, match="did you mean orders"):
        log.do(lambda state, now: d.decide_delete_topic(state, "order"))


def test_configs_are_set_and_go_back_to_their_defaults(log: History) -> None:
    """None takes a config back; what stands already writes nothing."""
    log.create(retention_ms="5")

    def change(value: str | None) -> None:
        log.do(lambda state, now: d.decide_set_configs(state, "t", {"retention.ms": value}))

    change("7")
    version = log.state.version
    change("7")
    assert log.state.version == version
    change(None)
    assert dict(next(iter(log.state.topics.values())).configs) == {}


def test_only_a_config_that_there_is_goes_back_to_its_default(log: History) -> None:
    """The error names the nearest config."""
    log.create()
    with pytest.raises(InvalidConfig, match="did you mean retention.ms"):
        log.do(lambda state, now: d.decide_set_configs(state, "t", {"retention.mss": None}))
    with pytest.raises(InvalidConfig, match="unknown cluster config"):
        log.do(lambda state, now: d.decide_set_configs(state, None, {"num.partition": None}))


# --------------------------------------------------------------------------------------------------------------- groups


def test_a_consumer_of_an_older_generation_is_refused(log: History) -> None:
    """A newer one owns the group: neither positions alone nor positions with records are taken."""
    topic = log.create()
    first = log.do(lambda state, now: d.decide_join_group(state, "g", "m1"))
    second = log.do(lambda state, now: d.decide_join_group(state, "g", "m2"))
    assert first < second
    stale = positions("g", topic, 0, generation=first)
    with pytest.raises(IllegalGeneration) as caught:
        log.do(lambda state, now: d.decide_commit_offsets(state, (stale,)))
    assert caught.value.current == second
    with pytest.raises(IllegalGeneration):
        log.commit((topic, 0, 1), groups=(stale,))
    assert log.state.partitions[topic, 0].end == 0
    log.do(lambda state, now: d.decide_commit_offsets(state, (positions("g", topic, 5, generation=second),)))
    assert log.state.groups["g"].offsets[topic, 0].offset == 5


def test_joining_again_as_the_same_member_keeps_the_generation(log: History) -> None:
    """A retry whose first try was in."""
    first, again = (log.do(lambda state, now: d.decide_join_group(state, "g", "m")) for _ in range(2))
    assert first == again
    assert log.state.version == 1


def hold(log: History, member: str, token: str) -> int:
    """Take group g as a member with a session of 100 ms."""

    def decide(state: State, now: int) -> d.Decision[int]:
        d.check_group_free(state, "g", now, token)
        return d.decide_join_group(state, "g", member, token=token, owner=f"query {token}", timeout_ms=100)

    return log.do(decide)


def test_a_member_that_is_alive_keeps_its_group(log: History) -> None:
    """Another one is refused, with who holds it; each sign of life counts, and when they stop, the group is free."""
    first = hold(log, "m1", "a")
    for _ in range(3):
        log.now += 80
        with pytest.raises(GroupInUse, match=r"held by query a since 1970-01-01T00:00:01.*free in 1 s") as caught:
            hold(log, "m2", "b")
        assert caught.value.owner == "query a"
        log.do(lambda state, now: d.decide_sign_of_life(state, "g", first))
    log.now += 101
    assert hold(log, "m2", "b") > first
    with pytest.raises(IllegalGeneration):
        log.do(lambda state, now: d.decide_sign_of_life(state, "g", first))


def test_a_commit_is_known_again_though_its_group_was_taken_meanwhile(log: History) -> None:
    """Its answer was lost; to refuse the repeat would say of a commit that is in that it is not."""
    topic = log.create()
    moves = (r.GroupCommit("g", c.UNFENCED, (r.OffsetEntry(topic, 0, 1),)),)
    command = c.Append(commit=log.upload((topic, 0, 3), producer="p", sequence=0, groups=moves))
    first = log.do(command)
    hold(log, "m", "a")
    assert log.do(command) == first._replace(repeated=True, last=0)
    with pytest.raises(GroupInUse):
        log.do(c.Append(commit=log.upload((topic, 0, 3), producer="p", sequence=1, groups=moves)))


def test_a_query_that_comes_back_has_its_group_at_once(log: History) -> None:
    """The same token, alive or not; what is left of it from before is fenced."""
    first = hold(log, "m1", "a")
    assert hold(log, "m2", "a") > first
    with pytest.raises(IllegalGeneration):
        log.do(lambda state, now: d.decide_sign_of_life(state, "g", first))


def test_positions_committed_by_the_member_are_a_sign_of_life(log: History) -> None:
    """Those of somebody who names the group only are not."""
    topic = log.create()
    generation = hold(log, "m1", "a")
    log.now += 80
    log.do(lambda state, now: d.decide_commit_offsets(state, (positions("g", topic, 1, generation=generation),)))
    log.now += 80
    with pytest.raises(GroupInUse):
        hold(log, "m2", "b")
    log.do(lambda state, now: d.decide_commit_offsets(state, (positions("g", topic, 2),)))
    log.now += 30
    hold(log, "m2", "b")


def test_a_group_that_is_left_is_free(log: History) -> None:
    """And so is one without a session."""
    hold(log, "m1", "a")
    log.do(lambda state, now: d.decide_join_group(state, "g", ""))
    hold(log, "m2", "b")
    log.do(lambda state, now: d.decide_join_group(state, "g", "consumer"))
    hold(log, "m3", "c")


def test_positions_of_a_group_in_use_do_not_expire(log: History) -> None:
    """The time counts from when the group was last in use, as in Kafka: partitions may be idle for long."""
    topic = log.create()
    log.do(lambda state, now: d.decide_set_configs(state, None, {"offsets.retention.minutes": "1"}))
    generation = hold(log, "m1", "a")
    log.do(lambda state, now: d.decide_commit_offsets(state, (positions("g", topic, 1, generation=generation),)))
    log.now += 70_000
    log.do(lambda state, now: d.decide_sign_of_life(state, "g", generation))
    assert log.do(d.decide_expire) == 0
    log.now += 70_000
    assert log.do(d.decide_expire) == 1
    assert "g" not in log.state.groups


def test_a_group_that_never_committed_expires_as_well(log: History) -> None:
    """Otherwise each name that a consumer ever joined with would stay in the state for ever."""
    log.create()
    log.do(lambda state, now: d.decide_set_configs(state, None, {"offsets.retention.minutes": "1"}))
    log.do(lambda state, now: d.decide_join_group(state, "g", "m1"))
    log.now += 50_000
    assert log.do(d.decide_expire) == 0
    log.now += 20_000
    assert log.do(d.decide_expire) == 1
    assert "g" not in log.state.groups


def test_a_group_deleted_in_the_version_of_a_join_is_gone_and_its_generation_is_not_given_again(log: History) -> None:
    """A coordinator decides commands that come together in one version: two consumers would commit under one
    generation.
    """
    state = next_version(log.state, log.now)
    generations = []
    for member in ("m1", "m2"):
        join = d.decide_join_group(state, "g", member)
        generations.append(join.reply)
        state = replay_records(state, join.records)
        state = replay_records(state, d.decide_delete_offsets(state, "g", ()).records)
        assert "g" not in state.groups
    assert generations == [1, 2]


def test_generations_do_not_grow_with_the_log(log: History) -> None:
    """They fit into the 32 bits of Kafka's protocol, however old the log is."""
    state = dataclasses.replace(log.state, version=2**40)
    join = d.decide_join_group(state, "g", "m")
    assert join.reply == 1
    state = replay_records(state, join.records)
    state = replay_records(state, d.decide_join_group(state, "other", "m").records)
    state = replay_records(state, d.decide_join_group(state, "other", "n").records)
    state = replay_records(state, d.decide_delete_offsets(state, "other", ()).records)
    assert d.decide_join_group(state, "g", "n").reply == 2, "of a group that is there, its own"
    assert d.decide_join_group(state, "new", "m").reply == 3, "it may be one that was deleted"


@pytest.mark.parametrize("again", ["bookmark", "roster"])
def test_a_group_that_comes_back_is_above_its_former_generations(log: History, again: str) -> None:
    """Also if it comes back by positions that nobody fenced, or by members of a coordinator."""
    topic = log.create()
    for member in ("m1", "m2"):
        log.do(lambda state, now, member=member: d.decide_join_group(state, "g", member))
    log.do(lambda state, now: d.decide_delete_offsets(state, "g", ()))
    if again == "bookmark":
        log.do(lambda state, now: d.decide_commit_offsets(state, (positions("g", topic, 1),)))
        assert log.do(lambda state, now: d.decide_join_group(state, "g", "m3")) == 3
    else:
        with pytest.raises(IllegalGeneration):
            log.do(lambda state, now: d.decide_set_generation(state, "g", Roster(2)))
        log.do(lambda state, now: d.decide_set_generation(state, "g", Roster(3)))


def test_a_bookmark_is_kept_longer_than_a_group(log: History) -> None:
    """Otherwise a job that runs once a month would begin again."""
    topic = log.create()
    log.do(lambda state, now: d.decide_set_configs(state, None, {"streaming.identity.retention.ms": "2000000000"}))
    log.do(lambda state, now: d.decide_commit_offsets(state, (positions("monthly", topic, 1),)))
    log.now += 1_900_000_000
    assert log.do(d.decide_expire) == 0
    log.now += 200_000_000
    assert log.do(d.decide_expire) == 1


def test_positions_that_stand_already_write_nothing(log: History) -> None:
    """A consumer that polls an idle topic leaves the log alone."""
    topic = log.create()
    for _ in range(2):
        log.do(lambda state, now: d.decide_commit_offsets(state, (positions("g", topic, 3),)))
    assert log.state.version == 2


def test_positions_of_unknown_partitions_are_refused(log: History) -> None:
    """Nothing can be committed for what is not there."""
    with pytest.raises(UnknownTopicOrPartition):
        log.do(lambda state, now: d.decide_commit_offsets(state, (positions("g", "nothing", 3),)))


@pytest.mark.parametrize("offset", [-1, -5])
def test_a_negative_offset_is_not_a_position(log: History, offset: int) -> None:
    """Alone, and with records: the group and the partition are named."""
    topic = log.create("orders")
    moved = positions("g", topic, offset)
    commit = log.upload((topic, 0, 1), groups=(moved,))
    for decide in (
        lambda state, now: d.decide_commit_offsets(state, (moved,)),
        lambda state, now: d.decide_commit(state, commit),
    ):
        with pytest.raises(
            InvalidRequest, match=rf"group 'g': invalid offset {offset} for orders-0: expected 0 or more"
        ):
            log.do(decide)


def test_a_note_is_as_long_as_kafkas_at_most(log: History) -> None:
    """With positions alone, and with those that go with records: nothing of the commit is in."""
    topic = log.create()
    longest, longer = (
        r.GroupCommit("g", -1, (r.OffsetEntry(topic, 0, 1, note),)) for note in ("\u00e9" * 2048, "\u00e9" * 2049)
    )
    log.do(lambda state, now: d.decide_commit_offsets(state, (longest,)))
    with pytest.raises(OffsetMetadataTooLarge, match="of t-0 has 4098 bytes; expected at most 4096"):
        log.do(lambda state, now: d.decide_commit_offsets(state, (longer,)))
    with pytest.raises(OffsetMetadataTooLarge):
        log.commit((topic, 0, 1), groups=(longer,))
    assert log.state.partitions[topic, 0].end == 0


def test_positions_are_forgotten_one_by_one_or_with_their_group(log: History) -> None:
    """No partitions named: the group goes."""
    topic = log.create(partitions=2)
    both = tuple(positions("g", topic, 1, partition=number) for number in range(2))
    log.do(lambda state, now: d.decide_commit_offsets(state, both))
    log.do(lambda state, now: d.decide_delete_offsets(state, "g", ((topic, 0),)))
    assert set(log.state.groups["g"].offsets) == {(topic, 1)}
    log.do(lambda state, now: d.decide_delete_offsets(state, "g", ()))
    assert "g" not in log.state.groups


def test_a_position_that_was_forgotten_is_remembered_as_such_for_a_while(log: History) -> None:
    """Until the fence has passed that, or it is committed again."""
    topic = log.create(partitions=2)
    both = tuple(positions("g", topic, 1, partition=number) for number in range(2))
    log.do(lambda state, now: d.decide_commit_offsets(state, both))
    log.do(lambda state, now: d.decide_delete_topic(state, "t"))
    gone = (log.state.version, log.state.time)
    assert dict(log.state.forgotten) == {("g", "t", 0): gone, ("g", "t", 1): gone}
    topic = log.create()
    log.do(lambda state, now: d.decide_commit_offsets(state, (positions("g", topic, 2),)))
    assert dict(log.state.forgotten) == {("g", "t", 1): gone}
    log.pass_fence()
    assert not log.state.forgotten


# --------------------------------------------------------------------------------------------------------------- upkeep


def test_the_fence_stops_before_the_newest_version_that_is_old_enough(log: History) -> None:
    """And never goes back or repeats itself."""
    for name in ("a", "b", "c"):
        log.create(name)
        log.now += 1_000_000
    log.now += 86_400_000 - 2_000_000
    log.create("d")
    assert log.do(d.decide_fence) == 1
    version = log.state.version
    assert log.do(d.decide_fence) == 1 and log.state.version == version


def test_an_idle_log_writes_one_fence_and_no_more(log: History) -> None:
    """A fence does not cause the next one."""
    log.create()
    log.pass_fence()
    version = log.state.version
    for _ in range(3):
        log.now += 100_000_000
        log.do(d.decide_fence)
    assert log.state.version <= version + 1


def test_a_producer_expires_only_below_the_fence_and_after_its_time(log: History) -> None:
    """Before that a retry of its last commit may be under way."""
    topic = log.create()
    log.commit((topic, 0, 1), producer="plain")
    log.commit((topic, 0, 1), producer="stream", birth=-1, dense=False)
    log.now += 100_000_000
    assert log.do(d.decide_expire) == 0
    log.pass_fence()
    assert log.do(d.decide_expire) == 1
    assert set(log.state.producers) == {"stream"}


def test_a_swap_that_does_not_fit_any_more_is_not_written(log: History) -> None:
    """Two that were prepared on the same partition exclude each other."""
    topic = log.create()
    for _ in range(4):
        log.commit((topic, 0, 1))
    edition = log.state.partitions[topic, 0].edition
    assert log.seal((topic, 0))
    late = r.SwapRecord(upload_epoch=log.state.version, changes=(r.Change(topic, 0, edition, 0, 4),))
    version = log.state.version
    assert log.do(lambda state, now: d.decide_swap(state, late)) is False
    assert log.state.version == version
