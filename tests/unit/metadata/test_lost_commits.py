"""Commits with acks=1 of which the last copies are gone: they leave holes, once, and hold up nobody."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_log.errors import (
    DataLoss,
)
from spark_log.metadata import records as r
from spark_log.metadata.commands import DeleteTopic, Report, Start, Trim
from spark_log.metadata.commits.decide_commits import Committed, decide_commit
from spark_log.metadata.commits.pending_commits import lost_ranges, with_lost
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.replicas.replica_commands import AlterReassignments, NewReplicas
from spark_log.model import DataObject, Placed, Run
from tests.unit.metadata.test_pending import TWO, PendingHistory


@pytest.fixture
def log() -> PendingHistory:
    """A topic with two partitions on brokers 0 and 1."""
    log = PendingHistory(1, 2)
    log.topic(TWO, TWO)
    return log


def lost_record(log: PendingHistory, held: tuple[int, ...], topic: str = "u") -> r.LostRecord:
    """For the first pending commit, which has one record in one partition."""
    name = f"data/{log.state.version:016x}/holes-{len(log.batches)}"
    return r.LostRecord(
        commit=log.state.pending[0].objects,
        upload_epoch=log.state.version,
        objects=(DataObject(name, 50, 40),),
        slices=((0, Run(topic, 0, 0, 50, 7, 0, 0, 0, 0)),),
        placed=(Placed(log.number(topic), log.held(held)),),
    )


# Promise: replicas.md#wait-for-the-leader-only
def test_a_lost_commit_leaves_holes_and_holds_up_nobody(log: PendingHistory) -> None:
    """Its repeat gets an error; later records stay; nothing of its object is left."""
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    commit, (name,) = log.last, log.names()
    log.fence(1)
    later = log.leader_only(("u", 0), held=(2,))
    assert later.pending and log.ends(("u", 0)) == (0, 2)
    record = lost_record(log, (2,))
    assert log.command(Report(record=record))
    assert log.ends(("u", 0)) == (2, 2) and not log.state.pending
    assert [(one.start, one.end) for one in lost_ranges(log.state, ("u", 0))] == [(0, 1)]
    assert name in log.state.dropped and name not in log.state.objects
    with pytest.raises(DataLoss, match="offsets 0 to 0 of u-0"):
        log.commit_record(commit)
    assert log.is_void(record), "the same record again"
    assert decode_checkpoint(encode_checkpoint(log.state), "x") == log.state
    log.command(Trim(starts=(Start("u", 0, 1),)))
    assert lost_ranges(log.state, ("u", 0)) == ()


def test_offsets_are_lost_once(log: PendingHistory) -> None:
    """The root of the object without records is away, too, before an earlier commit lets readers pass."""
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    log.leader_only(("u", 0), held=(1,))
    log.fence(1)
    for broker in (2, 1):
        record = replace(lost_record(log, (broker,)), commit=log.state.pending[-1].objects)
        assert log.command(Report(record=record))
        log.fence(2)
        log.back(1)
    assert [(one.start, one.end) for one in lost_ranges(log.state, ("u", 0))] == [(1, 2)]
    assert not log.state.pending


def test_offsets_that_are_given_up_again_are_counted_once(log: PendingHistory) -> None:
    """With other records: the object without records was lost with them."""
    for _ in range(9):
        log.commit_record(log.upload_to(None, ("t", 0)))
    state = with_lost(log.state, [r.LostOffsets("t", 0, 2, 4), r.LostOffsets("t", 0, 6, 7)], 5)
    for _ in range(2):
        state = with_lost(state, [r.LostOffsets("t", 0, 1, 9), r.LostOffsets("another", 0, 0, 1)])
        found = [(one.start, one.end, one.version == 5) for one in lost_ranges(state, ("t", 0))]
        assert found == [(1, 2, False), (2, 4, True), (4, 6, False), (6, 7, True), (7, 9, False)]
    assert list(state.lost) == [("t", 0)]


def test_a_hole_on_new_replicas_moves_back_with_its_partition(log: PendingHistory) -> None:
    """The partition gets its former replicas again: its hole is on the others, although its end is that of before."""
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    log.fence(1)
    log.command(AlterReassignments(partitions=(NewReplicas("u", 0, (0, 2)),)))
    new = log.number("u")
    assert log.command(Report(record=lost_record(log, (0, 2))))
    log.back(1)
    log.command(AlterReassignments(partitions=(NewReplicas("u", 0, (1, 2)),)))
    assert log.state.reassignments["u", 0].left == (new,)


# Promise: replicas.md#wait-for-the-leader-only
def test_partitions_with_other_objects_lose_nothing(log: PendingHistory) -> None:
    """A producer with acks=1 writes to several partitions in one commit: an active broker has those of "t"."""
    log.topic((1, 2), name="u")
    log.leader_only(("t", 0), ("u", 0), held=(0, 1))
    of_t, of_u = log.names()
    log.fence(1)
    assert log.ends(("t", 0)) == (0, 1)
    assert log.command(Report(record=lost_record(log, (2,))))
    assert not log.state.pending and log.ends(("t", 0)) == log.ends(("u", 0)) == (1, 1)
    assert of_t in log.state.objects and of_u in log.state.dropped
    assert lost_ranges(log.state, ("t", 0)) == () and len(lost_ranges(log.state, ("u", 0))) == 1
    assert decode_checkpoint(encode_checkpoint(log.state), "x") == log.state


def test_a_commit_is_given_up_as_a_whole(log: PendingHistory) -> None:
    """If the record says so: a copy of the log lacks a part of it.  Nothing of it is left."""
    log.topic((1, 2), name="u")
    log.leader_only(("t", 0), ("u", 0), held=(0, 1))
    of_t, of_u = log.names()
    of_u_alone, run = lost_record(log, (2,)), Run("t", 0, 0, 50, 7, 0, 0, 0, 0)
    of_all = replace(
        of_u_alone,
        objects=(*of_u_alone.objects, DataObject(f"{of_u_alone.objects[0].name}-t", 50, 40)),
        slices=(*of_u_alone.slices, (1, run)),
        placed=(*of_u_alone.placed, Placed(log.number("t"), log.held((0,)))),
    )
    assert log.is_void(of_all), "active brokers have all of it"
    log.fence(1)
    assert log.command(Report(record=of_all))
    assert not log.state.pending and log.ends(("t", 0)) == log.ends(("u", 0)) == (1, 1)
    assert {of_t, of_u} <= set(log.state.dropped)
    assert all(len(lost_ranges(log.state, (topic, 0))) == 1 for topic in "tu")
    assert decode_checkpoint(encode_checkpoint(log.state), "x") == log.state


def test_a_commit_that_is_lost_after_its_topic_was_deleted_is_not_remembered(log: PendingHistory) -> None:
    """Its partition goes, and with it everything that the state knows of it."""
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    log.command(DeleteTopic(name="u"))
    log.fence(1)
    assert log.state.pending and log.command(Report(record=lost_record(log, (2,))))
    log.prune(("u", 0))
    assert "u" not in log.state.topics and not log.state.lost


# Promise: replicas.md#wait-for-the-leader-only
def test_what_an_active_broker_has_is_not_lost(log: PendingHistory) -> None:
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    assert log.is_void(lost_record(log, (1, 2)))
    log.fence(1)
    record = lost_record(log, (2,))
    assert log.is_void(replace(record, slices=())), "each partition of the commit gets its holes"
    log.back(1)
    assert log.is_void(record), "it came back meanwhile"
    log.renew(1, lose_data=True)
    assert log.command(Report(record=lost_record(log, (1, 2))))
    assert log.ends(("u", 0)) == (1, 1)


# Promise: replicas.md#wait-for-the-leader-only
@pytest.mark.parametrize(("sequence", "dense"), [(0, True), (5, False)])
def test_a_commit_with_acks_all_is_not_given_up_for_brokers_that_are_away(
    log: PendingHistory, sequence: int, dense: bool
) -> None:
    """All in-sync replicas had it.  When nobody has it any more, its repeat is written again: nobody has seen it."""
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    identity = {"producer": "stream", "birth": -1, "sequence": sequence, "dense": dense}
    batch = log.upload_to((2,), ("u", 0), **identity)
    assert log.commit_record(batch).pending and log.isr("u") == (2,)
    log.fence(2)
    log.fence(1)
    log.back(1)
    assert log.isr("u") == (1,) and log.ends(("u", 0)) == (1, 2)
    assert log.is_void(lost_record(log, (1,)))
    log.renew(2, lose_data=True)
    assert log.command(Report(record=lost_record(log, (1,)))) and log.ends(("u", 0)) == (2, 2)
    again = log.commit_record(log.upload_to((1,), ("u", 0), **identity))
    assert not again.repeated and list(again.ranges.values()) == [range(2, 3)]
    assert decode_checkpoint(encode_checkpoint(log.state), "x") == log.state


VERSION_OF_APP = {"producer": "app:nightly:", "birth": -1, "dense": False}


@pytest.fixture
def versions(log: PendingHistory) -> PendingHistory:
    """Version 5 of an application in u behind a commit with acks=1, which the root of broker 1 alone has."""
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    log.commit_record(log.upload_to((1, 2), ("u", 0), sequence=5, **VERSION_OF_APP))
    return log


def lose_both(log: PendingHistory) -> None:
    """The roots of u."""
    log.fence(1)
    log.renew(1, lose_data=True)
    log.renew(2, lose_data=True)


def rerun(log: PendingHistory, version: int, held: tuple[int, ...] = (1, 2)) -> Committed:
    upload = log.upload_to(held, ("u", 0), sequence=version, **VERSION_OF_APP)
    return log.do(lambda state, now: decide_commit(state, upload, skip_older=True))


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
def test_each_lost_version_of_an_application_is_written_again(versions: PendingHistory, order: tuple[int, ...]) -> None:
    """In whatever order they are given up.  The rerun of the earlier one was skipped, and its records were nowhere."""
    log = versions
    log.commit_record(log.upload_to((1, 2), ("u", 0), sequence=6, **VERSION_OF_APP))
    lose_both(log)
    gone = log.state.pending
    for number in order:
        record = lost_record(log, (1, 2))
        assert log.command(Report(record=replace(record, commit=gone[number].objects)))
    assert log.ends(("u", 0)) == (3, 3)
    assert decode_checkpoint(encode_checkpoint(log.state), "x") == log.state
    for version in (5, 6):
        assert not rerun(log, version).repeated
        assert rerun(log, version).repeated
    assert log.ends(("u", 0)) == (5, 5)
    assert rerun(log, 4).repeated, "it was never written, and is older"


def test_a_lost_version_of_an_application_is_written_again_after_a_later_one(versions: PendingHistory) -> None:
    """Readers have the later one: it is not written again, and stays the last one."""
    log = versions
    log.topic((0,), name="v")
    assert not log.commit_record(log.upload_to((0,), ("v", 0), sequence=6, **VERSION_OF_APP)).pending
    lose_both(log)
    for _ in range(2):
        assert log.command(Report(record=lost_record(log, (1, 2))))
    again = rerun(log, 5)
    assert not again.repeated and list(again.ranges.values()) == [range(2, 3)]
    assert rerun(log, 5).repeated and rerun(log, 6).repeated and log.ends(("u", 0)) == (3, 3)


def test_a_version_of_an_application_is_not_acknowledged_before_readers_see_it(versions: PendingHistory) -> None:
    """Its writer asks again.  After a later version, it was told that the commit is there, and that can be lost."""
    log = versions
    log.topic((0,), name="v")
    log.commit_record(log.upload_to((0,), ("v", 0), sequence=6, **VERSION_OF_APP))
    again = rerun(log, 5)
    assert again.repeated and again.pending and again.lacking
    log.copied(2, *log.names())
    assert not rerun(log, 5).pending
