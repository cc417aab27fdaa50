"""Commits with acks=1: when readers see them, and in which order (docs/decisions/0071-acks.md)."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from msgspec.structs import replace

from spark_log.errors import (
    AuthorizationFailed,
    DataLoss,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
    OffsetOutOfRange,
)
from spark_log.metadata import pending_commits
from spark_log.metadata import records as r
from spark_log.metadata.batch_format import encode_batch
from spark_log.metadata.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.commands import DeleteTopic, SetConfigs, Start, Trim
from spark_log.metadata.decide.commits import Committed, decide_commit
from spark_log.metadata.decide.reassignments import NewReplicas
from spark_log.metadata.pending_commits import lost_ranges, with_lost
from spark_log.metadata.projection import apply, delta, held_of, nothing_held
from spark_log.metadata.replica_commands import AddPendingCopies, AlterReassignments, LoseCommit, ResetReplicas
from spark_log.metadata.replicas import deficit, deficits, last_copies
from spark_log.model import ACKS_LEADER, DataObject, Placed, Run
from spark_log.net.tokens import Grant, check_allowed
from tests.unit.metadata.replica_history import ReplicaHistory

TWO, THREE = (0, 1), (0, 1, 2)


class PendingHistory(ReplicaHistory):
    def leader_only(self, *keys: tuple[str, int], held: tuple[int, ...] = (0,), **fields: Any) -> Committed:
        """A commit with acks=1 that is on the leader's root alone."""
        self.last = self.upload_to(held, *keys, acks=ACKS_LEADER, **fields)
        return self.commit_record(self.last)

    def names(self) -> tuple[str, ...]:
        """Of the objects of the last such commit."""
        return tuple(made.name for made in self.last.objects)

    def ends(self, key: tuple[str, int] = ("t", 0)) -> tuple[int, int]:
        """The high watermark and the end of a partition."""
        part = self.state.partitions[key]
        return part.readable_end, part.end


@pytest.fixture
def log() -> PendingHistory:
    """A topic with two partitions on brokers 0 and 1."""
    log = PendingHistory(1, 2)
    log.topic(TWO, TWO)
    return log


# Promise: format/metadata.md#pending-commits
def test_readers_see_a_record_when_all_in_sync_replicas_have_it(log: PendingHistory) -> None:
    """Its offset is given away before, and the replica that lacks it stays in the ISR."""
    committed = log.leader_only()
    assert committed.pending and list(committed.ranges.values()) == [range(1)]
    assert [(one.name, one.held, one.lacking) for one in committed.lacking] == [
        (log.names()[0], log.held((0,)), log.held((1,)))
    ]
    assert log.ends() == (0, 1) and log.isr() == TWO and deficits(log.state, log.number()) == {}
    assert log.copied(1, *log.names())
    assert log.ends() == (1, 1) and not log.state.pending


def test_a_record_that_all_in_sync_replicas_have_is_visible_immediately(log: PendingHistory) -> None:
    assert not log.leader_only(held=TWO).pending
    log.fence(1)
    assert not log.leader_only().pending, "the leader is the only one in sync"
    assert log.ends() == (2, 2) and deficit(log.state, log.number(), 1).objects == 1


# Promise: format/metadata.md#pending-commits, replicas.md#wait-for-the-leader-only
def test_commits_become_visible_in_the_order_of_offsets(log: PendingHistory) -> None:
    """A later one that all replicas have waits for an earlier one, with acks=all too."""
    log.leader_only()
    first = log.names()
    log.leader_only()
    later = log.upload_to(TWO)
    assert log.commit_record(later).pending and log.ends() == (0, 3)
    log.copied(1, *log.names())
    assert log.ends() == (0, 3)
    log.copied(1, *first)
    assert log.ends() == (3, 3)
    assert not log.commit_record(later).pending, "its repeat is answered: it is acknowledged"


# Promise: replicas.md#wait-for-the-leader-only
def test_a_commit_is_visible_as_a_whole(log: PendingHistory) -> None:
    """Also with a partition of another group, and one that has no replicas."""
    log.topic((1, 2), name="u")
    log.topic((0,), name="v")
    log.leader_only(("t", 0), ("u", 0), ("v", 0), held=(0, 1))
    assert [log.ends((name, 0)) for name in "tuv"] == [(0, 1)] * 3, "broker 2 lacks the object of u"
    log.copied(2, log.names()[1])
    assert [log.ends((name, 0)) for name in "tuv"] == [(1, 1)] * 3


def test_a_topic_without_replicas_has_nothing_pending(log: PendingHistory) -> None:
    """And the record is written as ever."""
    log.topic((0,), name="v")
    assert not log.leader_only(("v", 0)).pending
    (record,) = log.batches[-1].records
    assert isinstance(record, r.CommitRecord) and b"acks" not in encode_batch(log.batches[-1])


def test_a_repeat_of_a_pending_commit_is_answered(log: PendingHistory) -> None:
    """With its offsets, and with what is still lacking."""
    log.leader_only()
    again = log.commit_record(log.last)
    assert again.repeated and again.pending and again.lacking and list(again.ranges.values()) == [range(1)]


def test_the_reply_to_acks_all_names_what_it_waits_for(log: PendingHistory) -> None:
    """The objects of the commits before it; that to acks=1 only its own."""
    log.leader_only()
    first = log.names()
    committed = log.leader_only()
    assert [one.name for one in committed.lacking] == list(log.names())
    waiting = log.commit_record(log.upload_to(TWO))
    assert [one.name for one in waiting.lacking] == [*first, *log.names()]


def test_a_commit_waits_for_no_commit_of_other_partitions(log: PendingHistory) -> None:
    """Unless an earlier one of its partitions does."""
    log.leader_only(("t", 1))
    other = log.names()
    log.leader_only(("t", 0))
    first = log.names()
    assert [one.name for one in log.commit_record(log.upload_to(TWO)).lacking] == [*first]
    log.leader_only(("t", 0), ("t", 1))
    waiting = log.commit_record(log.upload_to(TWO))
    assert [one.name for one in waiting.lacking] == [*other, *first, *log.names()]


def test_a_tenant_records_no_copies_of_others(log: PendingHistory) -> None:
    """Readers would see records that are on one root only; and a replica would be taken out of another's ISR."""
    log.leader_only()
    name, tenant = log.names()[0], Grant("tenant", "write", ("u",))
    for command in (
        AddPendingCopies(copies=(r.Copy(name, 1, log.held((1,))[0][1]),)),
        AddPendingCopies(copies=(), late=((name, 1),)),
    ):
        check_allowed(Grant("owner", "write", ("t",)), command, log.state)
        with pytest.raises(AuthorizationFailed, match="topics that begin with u, not 't'"):
            check_allowed(tenant, command, log.state)


# Promise: format/metadata.md#pending-commits, replicas.md#wait-for-the-leader-only
def test_an_isr_below_the_minimum_shows_nothing_new(log: PendingHistory) -> None:
    """As in Kafka (KIP-966): such a record would be lost with one root.  A lower minimum shows it."""
    log.topic(TWO, name="s", min_insync_replicas="2")
    log.fence(1)
    with pytest.raises(NotEnoughReplicas):
        log.commit_record(log.upload_to((0,), ("s", 0)))
    log.leader_only(("s", 0))
    assert log.ends(("s", 0)) == (0, 1)
    log.command(SetConfigs(name="s", changes={"min.insync.replicas": "1"}))
    assert log.ends(("s", 0)) == (1, 1)


def test_a_fenced_replica_is_not_waited_for(log: PendingHistory) -> None:
    log.leader_only()
    log.fence(1)
    assert log.ends() == (1, 1)
    assert deficit(log.state, log.number(), 1).objects == 1, "from then on it lacks the object"
    log.back(1)
    assert log.isr() == (0,)


def test_a_replica_that_an_acks_all_commit_misses_is_not_waited_for(log: PendingHistory) -> None:
    log.leader_only()
    log.put((0,))
    assert log.isr() == (0,) and log.ends() == (2, 2)


def test_a_new_leader_does_not_show_what_it_lacks(log: PendingHistory) -> None:
    """The record waits for the return of the root that has it; later ones wait behind it."""
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    log.fence(1)
    assert log.group("u").leader == 2
    committed = log.leader_only(("u", 0), held=(2,))
    assert committed.pending and log.ends(("u", 0)) == (0, 2)
    log.back(1)
    log.copied(2, *(name for one in log.state.pending for name in one.objects))
    assert log.isr("u") == (1, 2), "a replica that lacks pending objects may be in the ISR, and is then waited for"
    assert log.ends(("u", 0)) == (1, 2)


# Promise: replicas.md#wait-for-the-leader-only
def test_a_replica_that_is_late_leaves_the_isr(log: PendingHistory) -> None:
    """By `replica.lag.time.max.ms` of who copies; never the last member, and not for what nobody could copy."""
    log.leader_only()
    late = AddPendingCopies(copies=(), late=((log.names()[0], 1),))
    assert log.command(late) and log.isr() == (0,) and log.ends() == (1, 1)
    assert log.group().members[1].misses == 1
    assert not log.command(late), "the commit is not pending any more"


def test_no_replica_is_late_with_what_no_active_broker_has(log: PendingHistory) -> None:
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    log.fence(1)
    assert not log.command(AddPendingCopies(copies=(), late=((log.names()[0], 2),)))
    assert log.isr("u") == (2,) and log.ends(("u", 0)) == (0, 1)


def test_writers_record_copies_of_pending_objects_only(log: PendingHistory) -> None:
    """All other copies are an admin's: a wrong one hides a loss."""
    log.fence(1)
    old = log.put((0,))
    log.back(1)
    epoch = dict(log.held((1,)))[1]
    assert not log.command(AddPendingCopies(copies=(r.Copy(old[0], 1, epoch),)))
    log.copied(1, *old)
    log.join(1)
    log.leader_only()
    assert log.command(AddPendingCopies(copies=(r.Copy(log.names()[0], 1, epoch),)))
    assert log.ends() == (2, 2)


def test_the_only_root_with_a_pending_commit_is_not_replaced_lightly(log: PendingHistory) -> None:
    log.topic((1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    assert last_copies(log.state, 1).objects == 1


def test_a_commit_that_no_in_sync_replica_has_is_refused(log: PendingHistory) -> None:
    """The committer copies it to one of them, as with acks=all."""
    with pytest.raises(NotEnoughReplicas):
        log.leader_only(held=(2,))
    assert log.is_void(replace(log.upload_to((2,)), acks=ACKS_LEADER))
    log.topic((1, 2), name="u")
    commit = log.upload_to((1,), ("u", 0), acks=ACKS_LEADER)
    log.fence(1)
    log.fence(2)
    with pytest.raises(LeaderNotAvailable):
        log.commit_record(commit)


@pytest.mark.parametrize("fields", [{"birth": -1}, {"groups": (r.GroupCommit("g", -1, ()),)}])
def test_exactly_once_writes_need_acks_all(log: PendingHistory, fields: Any) -> None:
    """As Kafka's idempotence does."""
    with pytest.raises(InvalidRequest, match="need acks=all"):
        log.leader_only(**fields)


def test_records_are_deleted_up_to_the_high_watermark(log: PendingHistory) -> None:
    """And what is pending becomes visible after them."""
    log.put(TWO)
    log.leader_only()
    with pytest.raises(OffsetOutOfRange):
        log.command(Trim(starts=(Start("t", 0, 2),)))
    assert log.command(Trim(starts=(Start("t", 0, -1),))) == {("t", 0): 1}
    assert log.is_void(r.TrimRecord(topic_id="t", partition=0, start=2))
    log.copied(1, *log.names())
    assert log.ends() == (2, 2)


def test_a_topic_with_pending_commits_is_deleted(log: PendingHistory) -> None:
    """Their other topics are not concerned, and no object stays behind: the entries are pruned like others."""
    log.topic(TWO, name="u")
    log.leader_only(("t", 0), ("u", 0))
    log.command(DeleteTopic(name="t"))
    log.copied(1, *log.names())
    assert log.ends(("u", 0)) == (1, 1)
    assert [entry.object for entry in log.state.partitions["t", 0].entries] == [log.names()[0]]  # type: ignore[union-attr]
    assert ("t", 1) not in log.state.partitions


def test_a_log_that_was_recovered_shows_what_was_pending(log: PendingHistory) -> None:
    """Its one root has all objects."""
    log.leader_only()
    log.command(ResetReplicas())
    assert log.ends() == (1, 1) and not log.state.pending


def test_clients_of_some_topics_see_when_a_commit_becomes_visible(log: PendingHistory) -> None:
    """Neither the end nor the edition of the partition changes then."""
    view = nothing_held(["t"])
    for step in (lambda: log.put(TWO), log.leader_only, log.leader_only, lambda: log.copied(1, *log.names())):
        step()
        view = apply(view, delta(log.state, "", held_of(view), ""))
        assert view.partitions["t", 0] == log.state.partitions["t", 0]
    known = log.state
    log.copied(1, *(name for one in log.state.pending for name in one.objects))
    assert log.ends() == (3, 3)
    changes = log.state.changes_since(known)
    assert changes is not None and ("t", 0) in changes.partitions and "t" in changes.appended
    assert apply(view, delta(log.state, "", held_of(view), "")).partitions["t", 0] == log.state.partitions["t", 0]


def test_pending_commits_are_in_checkpoints(log: PendingHistory) -> None:
    log.leader_only(("t", 0), ("t", 1))
    log.commit_record(log.upload_to(TWO))
    assert decode_checkpoint(encode_checkpoint(log.state), "x") == log.state


def test_a_log_without_pending_commits_decides_as_before(log: PendingHistory) -> None:
    commit = log.upload_to(TWO)
    decision = decide_commit(log.state, commit)
    assert decision.records == (commit,) and not decision.reply.pending


# Promise: replicas.md#wait-for-the-leader-only
def test_acks_all_is_refused_behind_what_no_active_broker_has(log: PendingHistory) -> None:
    """Nothing is written: it would hold up its other partitions, and would be in the log when its writer gives up."""
    log.topic((1, 2), (1, 2), name="u")
    log.leader_only(("u", 0), held=(1,))
    behind = log.upload_to((1, 2), ("t", 0), ("u", 0))
    assert log.commit_record(behind).pending, "copies make it visible"
    log.fence(1)
    for stuck in (("u", 0), ("t", 0)):
        with pytest.raises(NotEnoughReplicas, match=f"earlier records of {stuck[0]}-0") as refused:
            log.commit_record(log.upload_to((0, 2), ("u", 1), stuck))
        assert (refused.value.partition, refused.value.placement_group) == (stuck, log.number(*stuck))
    assert not log.commit_record(log.upload_to((2,), ("u", 1))).pending
    log.back(1)
    assert log.commit_record(log.upload_to((1, 2), ("u", 0))).pending


def released_together(count: int) -> tuple[PendingHistory, int]:
    """A queue that the copy of its first object releases, and how many calls that took."""
    log, calls = PendingHistory(1, 2), 0
    log.topic(TWO, TWO)
    log.leader_only()
    first = log.names()
    for _ in range(count):
        log.leader_only(held=TWO)
    assert log.ends() == (0, count + 1)

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        log.copied(1, *first)
    finally:
        sys.setprofile(before)
    return log, calls


def test_the_end_of_a_long_queue_takes_as_long_as_its_commits() -> None:
    """A root that was away for hours may hold up thousands; the time did grow with their square."""
    (log, calls), (_, twice) = released_together(125), released_together(250)
    assert log.ends() == (126, 126) and not log.state.pending
    assert twice < 2.2 * calls


# Promise: replicas.md#wait-for-the-leader-only
def test_a_partition_with_too_many_pending_commits_takes_no_more(
    log: PendingHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the group, so that producers write to the others.  Repeats are answered."""
    monkeypatch.setattr(pending_commits, "PENDING_MAX", 2)
    log.leader_only()
    log.leader_only(("t", 0), ("t", 1))
    log.leader_only(("t", 1))
    with pytest.raises(NotEnoughReplicas, match="t-0 has .* commits with acks=0 or 1") as caught:
        log.leader_only(("t", 0))
    assert caught.value.placement_group == log.number()
    with pytest.raises(NotEnoughReplicas):
        log.put(TWO, ("t", 0))
    log.topic(TWO, name="u")
    assert log.leader_only(("u", 0)).pending
    assert log.commit_record(log.last).repeated


# ------------------------------------------------------------------------------------------------------------------ lost


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
    assert log.command(LoseCommit(lost=record))
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
        assert log.command(LoseCommit(lost=record))
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
    assert log.command(LoseCommit(lost=lost_record(log, (0, 2))))
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
    assert log.command(LoseCommit(lost=lost_record(log, (2,))))
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
    assert log.command(LoseCommit(lost=of_all))
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
    assert log.state.pending and log.command(LoseCommit(lost=lost_record(log, (2,))))
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
    assert log.command(LoseCommit(lost=lost_record(log, (1, 2))))
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
    assert log.command(LoseCommit(lost=lost_record(log, (1,)))) and log.ends(("u", 0)) == (2, 2)
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
        assert log.command(LoseCommit(lost=replace(record, commit=gone[number].objects)))
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
        assert log.command(LoseCommit(lost=lost_record(log, (1, 2))))
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
