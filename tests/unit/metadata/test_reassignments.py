"""Partitions get other replicas: decisions and their replay."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from spark_log.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignmentInProgress,
    NotEnoughReplicas,
    SparkLogError,
    UnknownTopicOrPartition,
    UploadFenced,
)
from spark_log.metadata import records as r
from spark_log.metadata.commands import AddPartitions, DeleteTopic, Report, SetConfigs
from spark_log.metadata.replicas.decide_replicas import WAITED_FOR_MS, lacking_for_swap, moves_to, swap_targets
from spark_log.metadata.replicas.reassignments import objects_elsewhere, reassignment_of
from spark_log.metadata.replicas.replica_commands import AlterReassignments, NewReplicas, RemoveBroker
from spark_log.metadata.replicas.replicas import group_numbers
from spark_log.model import ACKS_LEADER, Placed
from tests.unit.metadata.replica_history import ReplicaHistory

KEY = ("t", 0)


def moved(log: ReplicaHistory, *replicas: int, key: tuple[str, int] = KEY, version: int = 0) -> int:
    """Give a partition other replicas; without any, cancel that."""
    return int(log.command(AlterReassignments(partitions=(NewReplicas(*key, replicas or None, version),))))


def move_of(log: ReplicaHistory, key: tuple[str, int] = KEY) -> tuple[Any, ...] | None:
    move = reassignment_of(log.state, key)
    return None if move is None else tuple(move)


def ended(log: ReplicaHistory, key: tuple[str, int] = KEY, **fields: int) -> bool:
    """Record the end of a move, as a process does that has looked at the slices now."""
    known = {"version": log.state.reassignments[key].version, "seen": log.state.version, **fields}
    return bool(log.command(Report(record=r.MovedRecord(partitions=(r.Moved(*key, **known),)))))


def merged(log: ReplicaHistory, held: tuple[int, ...], key: tuple[str, int] = KEY) -> bool:
    """Rewrite the first two slices of a partition, or the only one."""
    return log.swap_record(log.replaced(key, held))


def three(*replicas: int) -> ReplicaHistory:
    """A log with three brokers, and two slices of a partition with these replicas."""
    log = ReplicaHistory(1, 2, 3)
    log.topic(replicas)
    log.put()
    log.put()
    return log


# ------------------------------------------------------------------------------------------------------------ the state


def test_a_move_adds_and_removes_replicas_until_its_slices_are_there() -> None:
    """New records go to the new group immediately; the old ones are where they were."""
    log = three(0, 1)
    old = log.state.objects
    moved(log, 1, 2)
    assert move_of(log) == ((1, 2, 0), (2,), (0,))
    assert log.group().replicas == (1, 2) and log.isr() == (1, 2) and log.group().leader == 1
    assert objects_elsewhere(log.state, KEY, old) == set(old)
    (new,) = log.put()
    assert log.brokers_of(new) == (1, 2)
    assert merged(log, (1, 2))
    assert objects_elsewhere(log.state, KEY, log.state.objects) == set()
    assert ended(log) and move_of(log) is None
    assert log.group().replicas == (1, 2)


def test_a_reordering_changes_the_preferred_leader_and_moves_nothing() -> None:
    log = three(0, 1)
    upload = log.upload_to()
    moved(log, 1, 0)
    assert move_of(log) is None and log.group().leader == 1
    assert objects_elsewhere(log.state, KEY, log.state.objects) == set()
    log.commit_record(upload)
    assert move_of(log) is None
    with pytest.raises(NoReassignmentInProgress):
        moved(log)


def test_a_new_target_replaces_the_old_one() -> None:
    """The first replicas stay those to which a cancellation returns; a target that got no records leaves no trace."""
    log = three(0, 1)
    moved(log, 2, 3)
    moved(log, 1, 2)
    assert move_of(log) == ((1, 2, 0), (2,), (0,))
    log.put()
    moved(log, 3)
    assert move_of(log) == ((3, 0, 1, 2), (3,), (0, 1, 2))
    moved(log)
    assert move_of(log) == ((0, 1, 2), (), (2,))
    assert log.group().replicas == (0, 1)


def test_a_cancellation_moves_back_and_cannot_be_cancelled() -> None:
    """Nothing is left to do if no record came to the new replicas."""
    log = three(0, 1)
    moved(log, 2, 3)
    version = log.state.reassignments[KEY].version
    moved(log)
    assert move_of(log) is None and log.group().replicas == (0, 1)
    assert moved(log, version=version) == 0  # a retry whose first answer was lost
    with pytest.raises(NoReassignmentInProgress, match="topic 't', partition 0: nothing to cancel"):
        moved(log)
    moved(log, 2, 3)
    assert move_of(log) == ((2, 3, 0, 1), (2, 3), (0, 1))
    log.put()
    moved(log)
    assert move_of(log) == ((0, 1, 2, 3), (), (2, 3))
    with pytest.raises(NoReassignmentInProgress):
        moved(log)


def test_an_empty_partition_is_moved_immediately() -> None:
    log = ReplicaHistory(1, 2)
    log.topic((0,), (0,))
    moved(log, 1, 2)
    assert move_of(log) is None and log.group().replicas == (1, 2)
    moved(log, 0)
    assert group_numbers(log.state, "t") == (0, 0) and "t" not in log.state.assignments


def test_the_same_replicas_change_nothing() -> None:
    log = three(0, 1)
    version = log.state.version
    assert moved(log, 0, 1) == 0 and log.state.version == version
    moved(log, 1, 2)
    assert moved(log, 1, 2) == 0 and move_of(log) is not None


def test_partitions_of_the_logs_own_root_get_replicas_and_lose_them() -> None:
    """Another replication factor is a list of another length.  Later partitions have that of the first one."""
    log = ReplicaHistory(1, 2)
    log.topic((0,), (0,))
    assert not log.state.assignments
    log.put((0,))
    moved(log, 0, 1, 2)
    assert move_of(log) == ((0, 1, 2), (1, 2), ())
    assert group_numbers(log.state, "t")[1] == 0
    log.command(AddPartitions(name="t", total=3))
    assert len(log.group("t", 2).replicas) == 3
    moved(log, 0)
    assert move_of(log) is None and group_numbers(log.state, "t")[:2] == (0, 0)


def test_a_deleted_topic_moves_no_more() -> None:
    log = three(0, 1)
    moved(log, 2)
    log.command(DeleteTopic(name="t"))
    assert not log.state.reassignments
    with pytest.raises(UnknownTopicOrPartition):
        moved(log, 2)


@pytest.mark.parametrize(
    ("replicas", "fields", "error", "said"),
    [
        ((0, 7), {}, InvalidReplicaAssignment, "topic 't', partition 0: unknown broker 7"),
        ((1, 1), {}, InvalidReplicaAssignment, "broker 1 is listed twice"),
        ((), {}, InvalidReplicaAssignment, "no broker is listed; expected one or more"),
        ((4,), {}, InvalidReplicaAssignment, "none of the brokers 4 of a partition is active and synchronous"),
        ((3,), {}, InvalidReplicaAssignment, "none of the brokers 3 of a partition is active and synchronous"),
        ((2,), {"keeps_factor": True}, InvalidReplicationFactor, "1 replica, and it has 2"),
        ((2, 4), {}, InvalidRequest, "min.insync.replicas=2, and its partitions have 1 replica"),
    ],
)
def test_bad_replicas_are_refused_with_what_is_wrong(
    replicas: tuple[int, ...], fields: dict[str, Any], error: type[SparkLogError], said: str
) -> None:
    """Broker 3 is fenced, 4 is asynchronous.  Nothing of a command is applied."""
    log = ReplicaHistory(1, 2, 3)
    log.add(4, is_async=True)
    log.fence(3)
    log.topic((0, 1), (0, 1), min_insync_replicas="2")
    good = NewReplicas("t", 1, (1, 2))
    with pytest.raises(error, match=re.escape(said)):
        log.command(AlterReassignments(partitions=(good, NewReplicas("t", 0, replicas)), **fields))
    with pytest.raises(UnknownTopicOrPartition, match="has no partition 2, it has 2"):
        log.command(AlterReassignments(partitions=(good, NewReplicas("t", 2, (1, 2)))))
    assert log.group("t", 1).replicas == (0, 1) and not log.state.reassignments


# -------------------------------------------------------------------------------------------------------------- commits


def test_an_upload_for_the_former_replicas_commits_and_is_moved_afterwards() -> None:
    """Also after the move was done.  One that began later must be in the new group."""
    log = three(0, 1)
    uploads = [log.upload_to(producer=f"w{number}") for number in range(2)]
    moved(log, 1, 2)
    log.commit_record(uploads[0])
    assert merged(log, (1, 2))
    assert not ended(log, seen=log.state.reassignments[KEY].late - 1)
    merged(log, (1, 2))
    assert ended(log)
    log.commit_record(uploads[1])
    assert move_of(log) == ((1, 2, 0), (2,), (0,))
    (name,) = (made.name for made in uploads[1].objects)
    assert log.brokers_of(name) == (0, 1)
    with pytest.raises(InvalidRequest, match="upload the data again"):
        log.commit_record(replace(log.upload_to(), placed=uploads[1].placed))


def test_an_upload_for_former_replicas_needs_as_many_as_they_can_be() -> None:
    """`min.insync.replicas` was raised together with the replication factor."""
    log = ReplicaHistory(1, 2)
    log.topic((1,))
    one, none = log.upload_to((1,), producer="a"), log.upload_to((1,), producer="b")
    moved(log, 0, 1, 2)
    log.command(SetConfigs(name="t", changes={"min.insync.replicas": "2"}))
    log.commit_record(one)
    log.renew(1, lose_data=True)
    with pytest.raises(NotEnoughReplicas):
        log.commit_record(none)
    with pytest.raises(NotEnoughReplicas):
        log.put((0,))


def test_after_the_fence_no_upload_for_former_replicas_commits_and_unused_groups_go() -> None:
    """The number of a group that is gone is not used again."""
    log = three(0, 1)
    upload, old = log.upload_to(), log.number()
    moved(log, 1, 2)
    merged(log, (1, 2))
    ended(log)
    assert old in log.state.placement_groups
    log.write(r.FenceRecord(upto=log.state.version - 1))
    log.write(r.FenceRecord(upto=log.state.version - 1))
    assert not log.state.reassignments and old not in log.state.placement_groups
    with pytest.raises(UploadFenced):
        log.commit_record(replace(upload, birth=-1))
    log.topic((0, 1), name="u")
    assert log.number("u") not in (old, log.number())


def test_a_move_that_is_not_done_outlives_the_fence() -> None:
    log = three(0, 1)
    moved(log, 1, 2)
    for _ in range(2):
        log.write(r.FenceRecord(upto=log.state.version - 1))
    assert move_of(log) is not None
    assert merged(log, (1, 2)) and ended(log)
    log.put()
    log.write(r.FenceRecord(upto=log.state.version - 1))
    assert not log.state.reassignments


def test_the_end_of_a_move_is_void_if_the_partition_was_reassigned_since() -> None:
    log = three(0, 1)
    moved(log, 1, 2)
    merged(log, (1, 2))
    assert not ended(log, version=log.state.reassignments[KEY].version - 1)
    assert ended(log)
    assert not ended(log)


# ---------------------------------------------------------------------------------------------------------------- swaps


def pending_on_the_leader() -> ReplicaHistory:
    """A log with three brokers, and a record with acks=1 that only the second one has, which is fenced."""
    log = ReplicaHistory(1, 2, 3)
    log.topic((1, 2))
    log.put((1,), acks=ACKS_LEADER)
    log.fence(1)
    assert len(log.state.pending) == 1
    return log


def test_a_busy_writer_with_acks_1_does_not_hold_up_the_end_of_a_move() -> None:
    """Its pending commits are in the new group.  One in a former group does hold it up: nobody has seen its slices."""
    log = pending_on_the_leader()
    moved(log, 2, 3)
    log.put((2,), acks=ACKS_LEADER)
    assert not ended(log) and move_of(log) is not None
    log.back(1)
    log.copied(2, *log.state.pending[0].objects)
    assert len(log.state.pending) == 1
    merged(log, (2, 3))
    assert log.state.partitions[KEY].end != log.state.partitions[KEY].readable_end
    assert ended(log) and move_of(log) is None


def test_a_pending_commit_in_a_former_group_is_late_whenever_it_becomes_visible() -> None:
    """The fence may have passed before: a move that ended blindly would leave its record on the old brokers."""
    log = pending_on_the_leader()
    (name,) = log.state.pending[0].objects
    moved(log, 2, 1)
    log.write(r.FenceRecord(upto=log.state.version - 1))
    log.write(r.FenceRecord(upto=log.state.version - 1))
    moved(log, 2, 3)
    seen = log.state.version
    log.back(1)
    log.copied(2, name)
    assert not log.state.pending and objects_elsewhere(log.state, KEY, [name])
    assert not ended(log, seen=seen) and move_of(log) is not None
    assert merged(log, (2, 3)) and ended(log)
    log.write(r.FenceRecord(upto=log.state.version - 1))
    assert KEY not in log.state.reassignments


def test_the_swap_of_a_move_waits_for_all_synchronous_replicas() -> None:
    """Those fenced for an hour are excepted, but not below `min.insync.replicas`; asynchronous ones are."""
    log = ReplicaHistory(1, 2, 3)
    log.add(4, is_async=True)
    log.topic((0,), min_insync_replicas="1")
    log.put((0,))
    log.put((0,))
    moved(log, 1, 2, 3, 4)
    log.fence(3)
    assert log.isr() == (1, 2)
    assert not merged(log, (1, 2))
    places, moves = [Placed(log.number(), log.held((1,)))], moves_to(log.state, [KEY])
    assert lacking_for_swap(log.state, places, [], moves) == {log.number(): (2, 3)}
    assert swap_targets(log.state, log.number(), [], moves) is None
    log.now += WAITED_FOR_MS + 1
    log.put()
    targets = swap_targets(log.state, log.number(), [], moves)
    assert targets is not None and {broker for broker, _ in targets.all} == {1, 2}
    assert merged(log, (1, 2))
    log.command(SetConfigs(name="t", changes={"min.insync.replicas": "3"}))
    assert swap_targets(log.state, log.number(), [], moves_to(log.state, [KEY])) is None


def test_a_swap_that_was_prepared_before_the_move_is_void() -> None:
    log = three(0, 1)
    swap = log.replaced(KEY, (0, 1))
    moved(log, 1, 2)
    assert not log.swap_record(swap)
    moved(log, 0)
    assert not log.swap_record(swap)


# -------------------------------------------------------------------------------------------------------------- brokers


def test_a_broker_goes_when_nothing_is_left_on_it() -> None:
    """Not while a move may return to it, and by force before the fence."""
    log = three(0, 1)
    upload = log.upload_to()
    moved(log, 0, 2)
    with pytest.raises(InvalidRequest, match=re.escape("partitions of 1 topic (t) are still being moved off broker 1")):
        log.command(RemoveBroker(broker=1))
    merged(log, (0, 2))
    ended(log)
    with pytest.raises(InvalidRequest, match=re.escape("moved off broker 1, and writes that began before may still")):
        log.command(RemoveBroker(broker=1))
    log.command(RemoveBroker(broker=1, force=True))
    assert 1 not in log.state.brokers
    with pytest.raises(InvalidRequest, match="upload the data again"):
        log.commit_record(upload)
    moved(log, 0)
    log.write(r.FenceRecord(upto=log.state.version - 1))
    log.write(r.FenceRecord(upto=log.state.version - 1))
    with pytest.raises(InvalidRequest, match="still being moved off broker 2"):
        log.command(RemoveBroker(broker=2))
