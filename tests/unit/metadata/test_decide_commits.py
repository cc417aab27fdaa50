"""Decisions about commits: offsets, duplicates, producers and their epochs, uploads."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from spark_log.errors import (
    InvalidRecord,
    InvalidRequest,
    OutOfOrderSequence,
    ProducerFenced,
    SequenceConflict,
    UnknownProducerId,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.metadata.commits.decide_commits import Committed, decide_commit
from spark_log.metadata.commits.decide_transactional_ids import decide_init_producer, epoch_of_holder
from spark_log.metadata.records import DeleteTopicRecord, FenceRecord
from spark_log.metadata.replay import ANSWER_MS
from spark_log.metadata.topics.decide_topics import (
    decide_delete_topic,
    decide_set_configs,
    decide_trim,
)
from spark_log.model import APPEND_TIME, DataObject
from tests.unit.metadata.history import History


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
    first = log.do(lambda state, now: decide_commit(state, commit))
    log.commit((topic, 0, 1))
    version = log.state.version
    again = log.do(lambda state, now: decide_commit(state, commit))
    assert again == first._replace(repeated=True, last=0)
    assert log.state.version == version


def test_the_last_commit_of_a_producer_is_known_with_its_offsets(log: History) -> None:
    """A producer sends a commit after the answer to the one before it, so only the last is sent again."""
    topic, other, birth = log.create(partitions=2), log.create("u"), log.state.version
    for sequence in range(7):
        log.commit((topic, 1, 1), (other, 0, 300), (topic, 0, 2), producer="p", sequence=sequence, birth=birth)
    assert log.commit((topic, 0, 1), producer="p", sequence=6).ranges == {
        (topic, 1): range(6, 7),
        (other, 0): range(1800, 2100),
        (topic, 0): range(12, 14),
    }
    with pytest.raises(OutOfOrderSequence):
        log.commit((topic, 0, 1), producer="p", sequence=5)


def test_a_plain_writers_offsets_are_forgotten_and_its_commit_is_not(log: History) -> None:
    """With the fence, after 15 minutes: each writer draws an id, so there are many.  A repeat still adds nothing."""
    topic, birth = log.create(), log.state.version
    first = log.commit((topic, 0, 3), producer="p", sequence=0, birth=birth)
    query = log.commit((topic, 0, 1), producer="q", sequence=0, birth=-1, dense=False)
    for waited, known in ((ANSWER_MS - 100, first.ranges), (200, {})):
        log.now += waited
        log.write(FenceRecord(upto=log.state.fence + 1))
        assert log.commit((topic, 0, 3), producer="p", sequence=0, birth=birth).ranges == known
    again = log.commit((topic, 0, 3), producer="p", sequence=0, birth=birth)
    assert again == first._replace(ranges={}, repeated=True, last=0)
    assert log.commit((topic, 0, 1), producer="q", sequence=0, birth=-1, dense=False).ranges == query.ranges
    assert log.state.partitions[topic, 0].end == 4
    assert log.commit((topic, 0, 2), producer="p", sequence=1).ranges == {(topic, 0): range(4, 6)}


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
    assert again == first._replace(repeated=True, last=0)


def test_a_batch_of_the_last_number_with_other_rows_is_a_conflict(log: History) -> None:
    """In all; also if the topic of the first rows was deleted and pruned since."""
    topic, other = log.create(), log.create("u")
    log.commit((topic, 0, 2), producer="q", sequence=4, birth=-1, dense=False)
    with pytest.raises(SequenceConflict, match="commit 4 has 3 rows, and in the log it has 2 rows"):
        log.commit((topic, 0, 1), (other, 0, 2), producer="q", sequence=4, birth=-1, dense=False)
    log.do(lambda state, now: decide_delete_topic(state, "t"))
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


# Promise: spark-streams.md#a-checkpoint-that-is-behind-the-log
def test_a_batch_with_the_same_source_offsets_is_a_repeat_whatever_its_rows_are(log: History) -> None:
    """Compaction and retention have removed some of the records that it read.  Where equal offsets may be of other
    records, in another plan, rows are compared.
    """
    topic = log.create()

    def commit(producer: str, rows: int, source: str) -> Committed:
        return log.commit((topic, 0, rows), producer=producer, sequence=4, birth=-1, dense=False, source=source)

    for producer, source in (("q", "a"), ("files", "a@1")):
        first = commit(producer, 5, source)
        for rows in (1, 5, 7):
            assert commit(producer, rows, source) == first._replace(repeated=True, last=4)
    assert commit("files", 5, "a@2").repeated
    with pytest.raises(SequenceConflict, match="commit 4 has 3 rows, and in the log it has 5 rows"):
        commit("files", 3, "a@2")
    with pytest.raises(SequenceConflict, match="read other source offsets"):
        commit("files", 5, "b@1")
    assert log.state.partitions[topic, 0].end == 10


def test_an_applications_older_version_is_skipped(log: History) -> None:
    """As in Delta, whatever its rows are; the reply has the last version.  That one with other rows is a conflict."""
    topic = log.create()
    log.commit((topic, 0, 2), producer="app:a:t", sequence=5, birth=-1, dense=False)

    def again(version: int, rows: int) -> Committed:
        commit = log.upload((topic, 0, rows), producer="app:a:t", sequence=version, birth=-1, dense=False)
        return log.do(lambda state, now: decide_commit(state, commit, skip_older=True))

    assert again(5, 2) == Committed(
        log.state.version, {(topic, 0): range(2)}, repeated=True, last=5, time_ms=log.state.time
    )
    assert again(4, 3) == Committed(log.state.version, {}, repeated=True, last=5)
    with pytest.raises(SequenceConflict, match="commit 5 has 3 rows, and in the log it has 2 rows"):
        again(5, 3)


def test_versions_in_a_deleted_topic_do_not_count_in_one_that_is_created_again(log: History) -> None:
    """Nor lower ones.  They count while one of the topics is there to which rows of the last one went."""
    topic, other = log.create(), log.create("other")

    def write(version: int, producer: str, *topics: str) -> Committed:
        runs = [(one, 0, 2 // len(topics)) for one in topics]
        commit = log.upload(*runs, producer=producer, sequence=version, birth=-1, dense=False)
        return log.do(lambda state, now: decide_commit(state, commit, skip_older=True))

    query = f"{'0' * 8}-{'-'.join(['0' * 4] * 3)}-{'0' * 12}/sink"
    for producer in ("app:a:t", "app:b:t", f"app:{query}:t", "query:q"):
        write(5, producer, topic)
    write(5, "app:both:", topic, other)
    log.write(DeleteTopicRecord(topic_id=topic))
    new = log.create()
    assert write(5, "app:a:t", new).ranges == {(new, 0): range(2)}
    assert write(3, "app:b:t", new).ranges == {(new, 0): range(2, 4)}
    assert write(3, "app:b:t", new).repeated and write(2, "app:b:t", new).repeated
    for producer in ("app:both:", f"app:{query}:t", "query:q"):
        assert write(5, producer, new).repeated
    assert log.state.partitions[new, 0].end == 4


def test_an_older_version_stays_skipped_in_a_topic_that_is_still_there(log: History) -> None:
    """The last version went to topics that were deleted since, such as one for bad rows; the older one did not."""
    topic, other = log.create(), log.create("other")

    def write(version: int, producer: str, *topics: str) -> Committed:
        commit = log.upload(
            *((one, 0, 1) for one in topics), producer=producer, sequence=version, birth=-1, dense=False
        )
        return log.do(lambda state, now: decide_commit(state, commit, skip_older=True))

    for producer in ("app:a:t", "app:b:"):
        write(5, producer, topic)
        write(6, producer, other)
    log.write(DeleteTopicRecord(topic_id=other))
    for producer in ("app:a:t", "app:b:"):
        assert write(5, producer, topic).repeated
    assert log.state.partitions[topic, 0].end == 2
    new = log.create("other")
    assert write(6, "app:a:t", new).ranges == {(new, 0): range(1)}


# Promise: tasks/backfill.md#a-large-table
def test_a_version_that_was_planned_by_an_older_one_is_refused(log: History) -> None:
    """Another writer has committed since, or the application has expired.  A repeat of the last commit is a repeat."""
    topic = log.create()

    def write(version: int, after: int) -> Committed:
        commit = log.upload((topic, 0, 2), producer="app:a:t", sequence=version, birth=-1, dense=False)
        return log.do(lambda state, now: decide_commit(state, commit, skip_older=True, after=after))

    with pytest.raises(SequenceConflict, match="commit 5 follows 4, and the last one in the log is -1"):
        write(5, after=4)
    assert not write(5, after=-1).repeated
    assert write(5, after=-1).repeated
    for version, after in ((4, -1), (7, -1), (7, 4)):
        with pytest.raises(SequenceConflict, match=f"follows {after}, and the last one in the log is 5") as caught:
            write(version, after)
        assert caught.value.last == 5
    assert not write(7, after=5).repeated
    assert log.state.partitions[topic, 0].end == 4


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
    assert log.do(lambda state, now: decide_init_producer(state, "x")) == 0
    log.commit((topic, 0, 1), producer="x", epoch=0, sequence=0, birth=-1)
    assert log.do(lambda state, now: decide_init_producer(state, "x")) == 1
    with pytest.raises(ProducerFenced) as caught:
        log.commit((topic, 0, 1), producer="x", epoch=0, sequence=1, birth=-1)
    assert caught.value.current == 1
    assert log.commit((topic, 0, 1), producer="x", epoch=1, sequence=0, birth=-1).ranges == {(topic, 0): range(1, 2)}


def test_a_new_holder_takes_over_and_the_former_one_is_fenced_for_good(log: History) -> None:
    """A new query under a known producerId: a new epoch that starts afresh; the old query cannot come back."""
    topic = log.create()
    log.commit((topic, 0, 1), producer="s", holder="query1", sequence=8, birth=-1, dense=False)
    epoch = epoch_of_holder(log.state, "s", "query2")
    taken = log.commit((topic, 0, 1), producer="s", holder="query2", epoch=epoch, sequence=0, birth=-1, dense=False)
    assert (epoch, taken.ranges) == (1, {(topic, 0): range(1, 2)})
    assert epoch_of_holder(log.state, "s", "query2") == 1
    with pytest.raises(ProducerFenced, match="query1 was replaced by query2"):
        epoch_of_holder(log.state, "s", "query1")
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


def test_an_upload_from_beyond_the_log_is_refused(log: History) -> None:
    """It began in a log that has since been set back to an older copy, which may lack the objects."""
    topic = log.create()
    with pytest.raises(UploadFenced, match="set back to an older copy"):
        log.commit((topic, 0, 1), upload_epoch=log.state.version + 1)
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
    log.do(lambda state, now: decide_trim(state, {(first, 0): 8}))
    for objects, slices in (
        ((DataObject(live, 1000, 900),), upload.slices),
        ((*upload.objects, *upload.objects), (*upload.slices, (1, upload.slices[0][1]))),
    ):
        stolen = replace(upload, objects=objects, slices=slices)
        with pytest.raises(InvalidRequest, match=re.escape(objects[0].name)):
            log.do(lambda state, now, stolen=stolen: decide_commit(state, stolen))
        before = log.state
        log.write(stolen)
        assert (log.state.objects, log.state.partitions) == (before.objects, before.partitions)
    assert log.prune((first, 0)) and live in log.state.dropped
    stolen = replace(upload, objects=(DataObject(live, 1000, 900),))
    with pytest.raises(InvalidRequest, match="in the log already"):
        log.do(lambda state, now: decide_commit(state, stolen))


def test_a_deleted_topic_refuses_what_was_on_its_way(log: History) -> None:
    """Also under the name of a new topic: records go by the id."""
    topic = log.create("t")
    commit = log.upload((topic, 0, 1))
    log.do(lambda state, now: decide_delete_topic(state, "t"))
    assert log.create("t") != topic
    with pytest.raises(UnknownTopicOrPartition, match="deleted"):
        log.do(lambda state, now: decide_commit(state, commit))


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


def test_records_without_a_key_are_refused_if_their_topic_was_compacted_meanwhile(log: History) -> None:
    """Their writer knew an older policy.  A retry of a commit that was applied before is a duplicate, as always."""
    topic, other = log.create(), log.create("u")
    applied, late = log.upload((topic, 0, 1), producer="p"), log.upload((topic, 0, 1), (other, 0, 1), producer="q")
    log.do(lambda state, now: decide_commit(state, applied, keyless=[topic]))
    log.do(lambda state, now: decide_set_configs(state, "t", {"cleanup.policy": "compact,delete"}))
    with pytest.raises(InvalidRecord, match=r"'t' was changed to cleanup\.policy=compact .*nothing was written"):
        log.do(lambda state, now: decide_commit(state, late, keyless=[other, topic]))
    assert log.do(lambda state, now: decide_commit(state, applied, keyless=[topic])).repeated
    assert log.do(lambda state, now: decide_commit(state, late, keyless=[other])).ranges[topic, 0] == range(1, 2)
