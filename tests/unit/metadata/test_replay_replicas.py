"""Replay of brokers, replicas and copies: roles, leaders, and which copies count."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_log.metadata import records as r
from spark_log.metadata.commands import DeleteTopic
from spark_log.metadata.commits.decide_commits import decide_commit
from spark_log.metadata.projection import apply, delta, held_of, nothing_held
from spark_log.metadata.replicas.replay_replicas import MISSES_KEPT_MS
from spark_log.metadata.replicas.replica_commands import ElectLeader, RemoveBroker, ResetReplicas
from spark_log.metadata.replicas.replica_state import NO_LEADER
from spark_log.metadata.replicas.replicas import Deficit, deficit, deficits, holders, lacked
from spark_log.model import Placed
from tests.unit.metadata.replica_history import ReplicaHistory

TWO, THREE = (0, 1), (0, 1, 2)


def counts(log: ReplicaHistory) -> dict[int, tuple[int, int]]:
    """The objects of each row of copies, and their bytes."""
    return {key: (copies.objects, copies.bytes) for key, copies in log.state.copies.items()}


def roles(log: ReplicaHistory, topic_id: str = "t") -> list[tuple[int, str]]:
    return [(member.broker, member.role) for member in log.group(topic_id).members]


# ------------------------------------------------------------------------------------------------------------ missed puts


def test_a_miss_is_counted_and_forgotten_after_an_hour() -> None:
    """The replicator waits longer before it lets a replica that misses often join again."""
    log = ReplicaHistory(1)
    log.topic(TWO)
    misses = []
    for waited in (0, MISSES_KEPT_MS - 1000, MISSES_KEPT_MS + 1000):
        log.now += waited
        log.copied(1, *log.put((0,)))
        misses.append(log.group().members[1].misses)
        assert log.join(1) and log.isr() == TWO
    assert misses == [1, 2, 1]


# Promise: format/metadata.md#brokers-and-placement-groups
def test_who_joined_after_an_upload_began_is_not_to_blame() -> None:
    """Its writer did not know that it had to put there: the replica joins again, without a miss."""
    log = ReplicaHistory(1)
    log.topic(TWO)
    (name,) = log.put((0,))
    log.copied(1, name)
    began = log.state.version
    log.join(1)
    assert log.isr() == TWO
    log.put((0,), upload_epoch=began)
    member = log.group().members[1]
    assert (member.role, member.misses) == ("joining", 1), "that of the first put"


def test_an_excused_miss_does_not_excuse_the_next() -> None:
    """Otherwise a hung replica would delay writers for ever, if each of them begins before the commit before it."""
    log = ReplicaHistory(1)
    log.topic(TWO)
    log.copied(1, *log.put((0,)))
    began = log.state.version
    log.join(1)
    log.put((0,), upload_epoch=began)
    assert roles(log)[1] == (1, "joining")
    log.put((0,), upload_epoch=log.state.version - 1)
    assert roles(log)[1] == (1, "out") and log.group().members[1].misses == 2


# Promise: format/metadata.md#brokers-and-placement-groups
def test_a_joining_replica_that_misses_is_out() -> None:
    """And an ISR that has everything is not touched."""
    log = ReplicaHistory(1, 2)
    log.topic(THREE)
    log.put((0, 1))
    log.join(2)
    assert roles(log)[2] == (2, "joining")
    log.put((0, 1))
    assert roles(log)[2] == (2, "out") and log.isr() == TWO


# Promise: format/metadata.md#brokers-and-placement-groups
def test_a_commit_that_no_in_sync_replica_has_is_void() -> None:
    """Leftovers may be replayed before a listing confirms them; so does one for a group that does not exist."""
    log = ReplicaHistory(1, 2)
    log.topic(THREE)
    log.put((0, 1))
    commit = log.upload_to((2,))
    assert log.is_void(commit)
    for placed in (
        (Placed(9, log.held(THREE)),),
        (Placed(log.number(), ((0, 5),)),),
        (Placed(log.number()),),
        (*commit.placed, *commit.placed),
        (Placed(log.number(), log.held((7,))),),
    ):
        assert log.is_void(replace(commit, placed=placed))
    assert not log.is_void(replace(commit, placed=(Placed(log.number(), log.held((1,))),)))


# ------------------------------------------------------------------------------------------------------ held and missing


def test_copies_are_counted_by_who_has_them() -> None:
    """An object moves from one row to another; a row without objects is gone, and its key is not used again."""
    log = ReplicaHistory(1, 2)
    log.topic(THREE)
    one, two = *log.put((0,)), *log.put((0,))
    assert counts(log) == {1: (2, 200)}
    assert log.copied(1, one, two) and log.copied(2, two)
    assert (log.brokers_of(one), log.brokers_of(two)) == ((0, 1), (0, 1, 2))
    assert counts(log) == {2: (1, 100), 3: (1, 100)}
    assert log.lost(1, one) and log.brokers_of(one) == (0,) and 4 in log.state.copies


def test_each_copy_of_a_record_is_void_alone() -> None:
    """An object that is gone, a broker that has returned or is not in the group, a copy that is known."""
    log = ReplicaHistory(1, 2)
    log.topic(TWO)
    log.create("own")
    (name,) = log.put((0,))
    own = log.state.names["own"]
    log.do(lambda state, now: decide_commit(state, log.upload((own, 0, 1))))
    (in_own_root,) = [one for one in log.state.objects if one != name]
    epoch = log.state.brokers[1].epoch
    void = (
        r.Copy("data/0000000000000001/gone", 1, epoch),
        r.Copy(name, 1, epoch - 1),
        r.Copy(name, 2, log.state.brokers[2].epoch),
        r.Copy(name, 7, 0),
        r.Copy(name, 0, 0),
        r.Copy(in_own_root, 1, epoch),
    )
    assert log.is_void(r.HeldRecord(copies=void))
    assert log.is_void(r.MissingRecord(copies=(*void[:4], r.Copy(name, 1, epoch), r.Copy(in_own_root, 0, 0))))
    good = r.Copy(name, 1, epoch)
    log.write(r.HeldRecord(copies=(*void, good, good)))
    assert log.brokers_of(name) == TWO


def test_a_joining_replica_enters_with_the_copy_of_what_it_lacked_last() -> None:
    log = ReplicaHistory(1, 2)
    log.topic(THREE)
    one, two = *log.put((0, 1)), *log.put((0, 1))
    assert log.copied(2, one) and log.join(2) and not log.join(2)
    assert roles(log)[2] == (2, "joining") and deficit(log.state, log.number(), 2) == Deficit(1, 100)
    assert not deficits(log.state, log.number()).keys() - {2} and len(list(lacked(log.state, log.number(), 2))) == 1
    log.copied(2, two)
    assert log.isr() == THREE


def test_a_joining_replica_enters_when_the_objects_that_it_lacks_are_gone() -> None:
    """By a swap, and by the loss of the only copy: nobody can bring it."""
    log = ReplicaHistory(1, 2)
    log.topic(THREE)
    log.put((0, 1))
    log.put((0, 1))
    log.join(2)
    assert log.swap_record(log.replaced(("t", 0), THREE)) and log.isr() == THREE
    (name,) = log.put((0,))
    assert log.isr() == (0,)
    log.join(1), log.join(2)
    log.lost(0, name)
    assert log.isr() == THREE and log.brokers_of(name) == ()
    assert holders(log.state, log.state.objects[name]) == THREE, "a damaged copy may have been repaired"


def test_a_replica_that_lost_a_copy_leaves_unless_it_is_the_last() -> None:
    log = ReplicaHistory(1, 2)
    log.topic(THREE)
    one, two = *log.put(), *log.put()
    log.lost(1, one)
    assert log.isr() == (0, 2)
    log.lost(0, one)
    assert log.isr() == (2,) and log.group().leader == 2
    log.lost(2, two)
    assert log.isr() == (2,), "0 and 1 lack the other one"
    log.copied(0, one)
    assert log.isr() == (0,), "it lacks nothing now, and takes the place of the one that does"
    assert log.group().leader == 0


# Promise: format/metadata.md#brokers-and-placement-groups
def test_of_replicas_that_all_lack_something_the_one_that_lacks_least_stays() -> None:
    """Not both: a commit that both have would count as two replicas, and neither has all that was acknowledged."""
    log = ReplicaHistory(1)
    log.topic((1, 0))
    one, two, three = *log.put(), *log.put(), *log.put()
    epoch = log.state.brokers[1].epoch
    log.write(r.MissingRecord(copies=(r.Copy(one, 1, epoch), r.Copy(two, 1, epoch), r.Copy(three, 0, 0))))
    assert log.isr() == (0,) and log.group().leader == 0


# ---------------------------------------------------------------------------------------------------- fencing and returns


def test_a_fenced_broker_leaves_and_the_next_in_order_leads() -> None:
    log = ReplicaHistory(1, 2)
    log.topic((1, 2, 0))
    before = log.group()
    log.fence(1)
    assert log.isr() == (2, 0) and log.group().leader == 2
    assert log.group().leader_epoch == before.leader_epoch + 1
    log.back(1)
    assert log.isr() == (1, 2, 0) and log.group().leader == 2, "the leader stays; the preferred one is elected by hand"


# Promise: format/metadata.md#brokers-and-placement-groups
def test_the_last_member_stays_and_returns_to_lead() -> None:
    """It has all that was acknowledged, and the others may not."""
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    log.put((1,))
    log.fence(1)
    assert log.isr() == (1,) and log.group().leader == NO_LEADER
    log.back(1)
    assert log.isr() == (1,) and log.group().leader == 1


# Promise: format/metadata.md#brokers-and-placement-groups
def test_another_replica_that_lacks_nothing_takes_the_place_of_the_last_member() -> None:
    """Whether it was joining or out."""
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    log.copied(2, *log.put((1,)))
    assert roles(log) == [(1, "isr"), (2, "out")]
    log.fence(1)
    assert roles(log) == [(1, "out"), (2, "isr")] and log.group().leader == 2


def test_a_fenced_last_member_leaves_when_another_one_is_as_good() -> None:
    """A copy from its root, which can still be read, or the return of another replica."""
    log = ReplicaHistory(1, 2, 3)
    log.topic((1, 2, 3))
    (name,) = log.put((1, 3))
    log.fence(3)
    log.fence(1)
    assert log.isr() == (1,)
    log.copied(2, name)
    assert log.isr() == (2,) and log.group().leader == 2
    log.fence(2)
    assert log.isr() == (2,)
    log.back(3)
    assert log.isr() == (3,) and log.group().leader == 3
    log.put()
    log.back(1)
    assert log.isr() == (3,) and deficit(log.state, log.number(), 1).objects == 1


def test_a_return_leaves_out_the_copies_that_it_lacks() -> None:
    log = ReplicaHistory(1)
    log.topic(TWO)
    one, two = *log.put(), *log.put()
    log.fence(1)
    assert log.back(1, missing=(two, "data/0000000000000001/unknown"))
    assert (log.brokers_of(one), log.brokers_of(two)) == (TWO, (0,))
    assert roles(log)[1] == (1, "out") and log.isr() == (0,)
    log.copied(1, two)
    assert log.join(1) and log.isr() == TWO


def test_a_broker_that_returned_in_vain_does_not_take_a_leadership() -> None:
    """The last member of the ISR comes back without an object that another active replica has."""
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    one, two = *log.put((1,)), *log.put((1,))
    log.copied(2, one)
    log.fence(1)
    assert log.isr() == (1,)
    log.back(1, missing=(one, two))
    assert log.isr() == (2,) and log.group().leader == 2 and log.brokers_of(two) == ()


# Promise: format/metadata.md#brokers-and-placement-groups
def test_another_directory_has_no_copies() -> None:
    """Its broker is out where it lacks something, and in sync where there is nothing."""
    log = ReplicaHistory(1, 2)
    log.topic(TWO, (1, 2))
    (name,) = log.put(None, ("t", 0))
    before = log.state.brokers[1].epoch
    log.renew(1)
    assert log.state.brokers[1].epoch > before and log.brokers_of(name) == (0,)
    assert log.isr("t", 0) == (0,) and log.isr("t", 1) == (1, 2)
    assert log.is_void(r.HeldRecord(copies=(r.Copy(name, 1, before),)))
    assert log.copied(1, name) and log.join(1) and log.isr("t", 0) == TWO


def test_an_isr_may_be_empty_after_a_disk_was_replaced() -> None:
    """Until a replica lacks nothing of what is left."""
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    (old,) = log.put()
    log.fence(2)
    (name,) = log.put((1,))
    log.renew(1, lose_data=True)
    assert log.isr() == () and log.group().leader == NO_LEADER and log.brokers_of(name) == ()
    assert log.is_void(log.upload_to((1,)))
    log.back(2)
    assert log.isr() == (2,) and log.brokers_of(old) == (2,)


def test_an_asynchronous_broker_is_never_in_sync() -> None:
    """It has copies, and is out; also if it was not asynchronous before its disk was replaced."""
    log = ReplicaHistory(1)
    log.add(2, is_async=True)
    log.topic(THREE)
    (name,) = log.put()
    log.copied(2, name)
    assert not log.join(2) and roles(log)[2] == (2, "out") and log.brokers_of(name) == THREE
    log.renew(1, is_async=True)
    assert log.isr() == (0,) and not log.join(1)
    log.fence(2)
    log.back(2)
    assert log.isr() == (0,)


# ----------------------------------------------------------------------------------------------------- the rest of a life


def test_a_reset_clock_sets_back_the_times_of_replicas() -> None:
    """Otherwise a swap would wait for a fenced broker until the wrong time is past, and a miss would never be old."""
    log = ReplicaHistory(1)
    log.topic(TWO)
    log.now += 10**9
    log.put((0,))
    log.fence(1)
    log.write(r.ResetClockRecord(time=5_000))
    assert log.state.brokers[1].since == 5_000 and log.group().members[1].missed == 5_000


def test_a_deleted_topic_leaves_no_assignment_and_no_copies() -> None:
    """Its group stays, for the next topic with these replicas."""
    log = ReplicaHistory(1)
    log.topic(TWO, TWO)
    log.put(None, ("t", 0))
    log.command(DeleteTopic(name="t"))
    assert "t" in log.state.assignments
    log.prune(("t", 0))
    assert not log.state.assignments and not log.state.copies and len(log.state.placement_groups) == 1
    log.topic(TWO, name="u")
    assert len(log.state.placement_groups) == 1
    log.topic(TWO, name="empty")
    log.command(DeleteTopic(name="empty"))
    assert set(log.state.assignments) == {"u"}


def test_an_unclean_leader_is_the_whole_isr_and_gives_way_to_the_one_that_has_all() -> None:
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    (lost,) = log.put((1,))
    log.fence(1)
    log.command(ElectLeader(group=log.number(), leader=2, unclean=True))
    assert log.isr() == (2,) and deficit(log.state, log.number(), 2).objects == 1
    (new,) = log.put()
    log.back(1)
    assert log.isr() == (2,), "each lacks what the other has"
    log.copied(2, lost)
    assert log.isr() == (2,) and not deficit(log.state, log.number(), 2).objects
    log.copied(1, new)
    assert log.join(1) and log.isr() == (1, 2)


def test_a_log_without_brokers_again() -> None:
    """All objects are in its own root; keys of copies are not used again, so old rows mean nothing."""
    log = ReplicaHistory(1)
    log.topic(TWO)
    (name,) = log.put()
    made = log.state.copies_made
    assert log.command(ResetReplicas()) and not log.command(ResetReplicas())
    assert not (log.state.brokers or log.state.placement_groups or log.state.assignments or log.state.copies)
    assert holders(log.state, log.state.objects[name]) == (0,)
    log.add(1)
    log.topic((1, 0), name="u")
    log.put(None, ("u", 0))
    assert set(log.state.copies) == {made + 1} and holders(log.state, log.state.objects[name]) == (0, 1)
    log.do(lambda state, now: decide_commit(state, log.upload(("t", 0, 1))))
    assert log.prune(("t", 0)) is False


def test_a_broker_without_a_group_is_removed_with_its_empty_groups() -> None:
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    log.command(DeleteTopic(name="t"))
    log.command(RemoveBroker(broker=1))
    assert set(log.state.brokers) == {2} and not log.state.placement_groups


def test_readers_try_the_leader_first_and_fenced_brokers_last() -> None:
    log = ReplicaHistory(1, 2)
    log.topic((1, 2, 0))
    (name,) = log.put()
    row = log.state.objects[name]
    assert holders(log.state, row) == (1, 2, 0)
    log.fence(1)
    assert holders(log.state, row) == (2, 0, 1)
    log.lost(0, name)
    row = log.state.objects[name]
    assert holders(log.state, row) == (2, 1, 0, 2), "then those that may have one after all, and the first again"


@pytest.mark.parametrize("renewed", [False, True])
def test_a_client_with_an_old_row_still_finds_a_copy(renewed: bool) -> None:
    """A client of some topics gets the rows of new objects only, and the copies of an old one may have moved."""
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    log.topic((1, 2), name="u")
    (name,) = log.put((1,))
    log.put((1,), ("u", 0))
    asked = nothing_held(["t"])
    client = apply(asked, delta(log.state, "head", held_of(asked), ""))
    assert holders(client, client.objects[name]) == (1, 2, 1), "at last the one that has it, with all retries"
    log.copied(2, name)
    if renewed:
        log.renew(1, lose_data=True)
    else:
        log.lost(1, name)
    assert log.brokers_of(name) == (2,)
    client = apply(client, delta(log.state, "head", held_of(client, "x"), "x"))
    assert client.objects[name] != log.state.objects[name] and 2 in holders(client, client.objects[name])
