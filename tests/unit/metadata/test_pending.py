"""Commits with acks=1: when readers see them, and in which order (docs/decisions/0071-acks.md)."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from msgspec.structs import replace

from spark_log.errors import (
    AuthorizationFailed,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
    OffsetOutOfRange,
)
from spark_log.metadata import records as r
from spark_log.metadata.commands import DeleteTopic, SetConfigs, Start, Trim
from spark_log.metadata.commits import pending_commits
from spark_log.metadata.commits.decide_commits import Committed, decide_commit
from spark_log.metadata.formats.batch_format import encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint
from spark_log.metadata.projection import apply, delta, held_of, nothing_held
from spark_log.metadata.replay import next_version
from spark_log.metadata.replicas.replica_commands import AddPendingCopies, ResetReplicas
from spark_log.metadata.replicas.replicas import deficit, deficits, last_copies
from spark_log.model import ACKS_LEADER
from spark_log.server.tokens import Grant, check_allowed
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
    decision = decide_commit(next_version(log.state, log.now), commit)
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
