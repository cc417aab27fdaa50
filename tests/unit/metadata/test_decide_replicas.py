"""Decisions about brokers and replicas: where topics go, what a commit needs, and what is refused."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from spark_log.errors import (
    BrokerNotAvailable,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
    SparkLogError,
    UploadFenced,
)
from spark_log.metadata import records as r
from spark_log.metadata.commands import AddPartitions, CreateTopic, DeleteTopic, SetConfigs
from spark_log.metadata.commits.decide_commits import decide_commit
from spark_log.metadata.replicas.decide_replicas import WAITED_FOR_MS
from spark_log.metadata.replicas.replica_commands import (
    ElectLeader,
    FenceBroker,
    RegisterBroker,
    RemoveBroker,
    ResetReplicas,
    ReturnBroker,
)
from spark_log.metadata.replicas.replica_state import NO_LEADER, OWN_BROKER
from spark_log.metadata.replicas.replicas import group_numbers
from spark_log.model import Placed
from tests.unit.metadata.history import History
from tests.unit.metadata.replica_history import ReplicaHistory

TWO, THREE = (0, 1), (0, 1, 2)


def created(log: History, partitions: int = 1, name: str = "t", **fields: Any) -> list[tuple[int, ...]]:
    """The replicas of the partitions of a new topic."""
    made = CreateTopic(name=name, partitions=partitions, topic_id=name, **fields)
    log.do(lambda state, now: made(state, now))
    groups = group_numbers(log.state, name)
    return [log.state.placement_groups[n].replicas if n else (OWN_BROKER,) for n in groups]


# ----------------------------------------------------------------------------------------------------------------- topics


def test_a_factor_places_replicas_on_a_ring_with_even_leaders() -> None:
    """As many groups as brokers, and each broker leads the same number of partitions, one more or less."""
    log = ReplicaHistory(1, 2, 3)
    lists = created(log, 10, replication_factor=3)
    assert all(len(set(one)) == 3 for one in lists)
    leaders = Counter(one[0] for one in lists)
    assert set(leaders) == {0, 1, 2, 3} and max(leaders.values()) - min(leaders.values()) <= 1
    assert len(log.state.placement_groups) == 4
    assert all(group.isr == group.replicas for group in log.state.placement_groups.values())
    assert [group.leader for group in log.state.placement_groups.values()] == [
        group.replicas[0] for group in log.state.placement_groups.values()
    ]
    assert created(log, 10, "u", replication_factor=3) and len(log.state.placement_groups) == 4


def test_each_rack_has_a_replica_before_any_has_two() -> None:
    log = ReplicaHistory()
    for broker, rack in enumerate("aabbcc", 1):
        log.add(broker, rack=rack)
    racks = {broker: known.rack for broker, known in log.state.brokers.items()}
    for one in created(log, 24, replication_factor=4):
        assert {racks.get(broker, "own") for broker in one} == {"a", "b", "c", "own"}
    for one in created(log, 24, "u", replication_factor=3):
        assert len({racks.get(broker, "own") for broker in one}) == 3


# Promise: replicas.md#replicas
def test_factor_1_is_the_logs_own_root_and_has_no_rows() -> None:
    """The metadata is there, so another single root gains nothing; an assignment by hand can say otherwise."""
    log = ReplicaHistory(1, 2)
    assert created(log, 3, replication_factor=1) == [(0,)] * 3
    assert created(log, 3, "u") == [(0,)] * 3
    assert created(log, 1, "v", replicas=((0,),)) == [(0,)]
    assert not log.state.assignments and not log.state.placement_groups
    assert created(log, 2, "w", replicas=((2,), (0,))) == [(2,), (0,)]


def test_the_default_factor_is_that_of_the_log() -> None:
    log = ReplicaHistory(1)
    log.command(SetConfigs(name=None, changes={"default.replication.factor": "2"}))
    assert {tuple(sorted(one)) for one in created(log, 2)} == {(0, 1)}
    assert created(log, 2, "u", replication_factor=1) == [(0,)] * 2


def test_an_assignment_is_taken_as_it_is() -> None:
    """The first broker leads; partitions with the same list share a group, also across topics."""
    log = ReplicaHistory(1, 2)
    assert created(log, 3, replicas=((2, 1), (0, 1), (2, 1))) == [(2, 1), (0, 1), (2, 1)]
    assert created(log, 1, "u", replicas=((0, 1),)) == [(0, 1)]
    assert [group.leader for _, group in sorted(log.state.placement_groups.items())] == [2, 0]


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"replication_factor": 5}, InvalidReplicationFactor, "5, and 4 brokers can hold replicas (0, 1, 2, 3)"),
        ({"replication_factor": 0}, InvalidReplicationFactor, "factor 0; expected 1 or more"),
        ({"replicas": ((0, 7),) * 2}, InvalidReplicaAssignment, "partition 0: unknown broker 7"),
        ({"replicas": ((0, 1), (1, 1))}, InvalidReplicaAssignment, "partition 1: broker 1 is listed twice"),
        ({"replicas": ((0, 1), ())}, InvalidReplicaAssignment, "partition 1: no broker is listed"),
        ({"replicas": ((0, 1), (1,))}, InvalidReplicaAssignment, "partition 1: 1 replica; partition 0 has 2"),
        ({"replicas": ((0, 1),)}, InvalidReplicaAssignment, "the assignment has 1 partition, expected 2"),
        ({"replicas": ((3,), (4,))}, InvalidReplicaAssignment, "none of the brokers 3 of a partition is active"),
        ({"replicas": ((4,), (3,))}, InvalidReplicaAssignment, "none of the brokers 4 of a partition is active"),
        ({"replicas": ((0, 1),) * 2, "replication_factor": 2}, InvalidReplicaAssignment, "not both"),
    ],
)
def test_a_bad_placement_is_refused_with_what_is_wrong(fields: Any, error: type[SparkLogError], said: str) -> None:
    """Broker 3 is fenced, 4 is asynchronous: they can hold replicas, and a partition cannot have only them."""
    log = ReplicaHistory(1, 2, 3)
    log.add(4, is_async=True)
    log.fence(3)
    with pytest.raises(error, match=re.escape(said)):
        created(log, 2, **fields)
    assert not log.state.topics


def test_more_partitions_keep_the_factor() -> None:
    """On the brokers that there are now."""
    log = ReplicaHistory(1)
    created(log, 2, replication_factor=2)
    log.add(2)
    log.command(AddPartitions(name="t", total=8))
    replicas = [log.group("t", number).replicas for number in range(8)]
    assert all(len(one) == 2 for one in replicas) and {broker for one in replicas[2:] for broker in one} == {0, 1, 2}
    created(log, 1, "u")
    log.command(AddPartitions(name="u", total=3))
    assert group_numbers(log.state, "u") == (0, 0, 0) and "u" not in log.state.assignments
    log.fence(1)
    log.fence(2)
    log.command(AddPartitions(name="t", total=9))
    assert (log.group("t", 8).replicas, log.isr("t", 8)) == ((0, 1), (0,)), "a fenced broker, as none else is left"


def test_new_partitions_of_one_other_root_are_in_the_logs_own() -> None:
    """The rule of factor 1; the older partition stays."""
    log = ReplicaHistory(1)
    created(log, 1, replicas=((1,),))
    log.command(AddPartitions(name="t", total=3))
    assert [log.group("t", number).replicas for number in range(3)] == [(1,), (0,), (0,)]


def test_a_topic_that_no_write_could_satisfy_is_refused() -> None:
    """When it is created, and when its config is set; not when another config is set."""
    log = ReplicaHistory(1)
    with pytest.raises(InvalidRequest, match=r"min.insync.replicas=3, and its partitions have 2 replicas"):
        created(log, 1, replication_factor=2, configs={"min.insync.replicas": "3"})
    with pytest.raises(InvalidRequest, match=r"min.insync.replicas=2, and its partitions have 1 replica:"):
        created(log, 1, configs={"min.insync.replicas": "2"})
    created(log, 1, replication_factor=2, configs={"min.insync.replicas": "2"})
    with pytest.raises(InvalidRequest, match="no write would succeed"):
        log.command(SetConfigs(name="t", changes={"min.insync.replicas": "3"}))
    log.write(r.SetConfigsRecord(topic_id="t", configs={"min.insync.replicas": "9"}))  # as an earlier pylog could
    log.command(SetConfigs(name="t", changes={"retention.ms": "5"}))
    log.command(SetConfigs(name="t", changes={"min.insync.replicas": None}))


def test_asynchronous_replicas_do_not_count_for_the_minimum() -> None:
    """They are never in sync."""
    log = ReplicaHistory(1)
    log.command(RegisterBroker(broker=3, directory="d3", url="memory://3", is_async=True))
    with pytest.raises(InvalidRequest, match=r"min.insync.replicas=2, and its partitions have 1 replica:"):
        created(log, 1, replicas=((0, 3),), configs={"min.insync.replicas": "2"})
    created(log, 1, replicas=((0, 3),))
    with pytest.raises(InvalidRequest, match="no write would succeed"):
        log.command(SetConfigs(name="t", changes={"min.insync.replicas": "2"}))


# ---------------------------------------------------------------------------------------------------------------- commits


# Promise: replicas.md#what-an-acknowledged-record-survives
def test_a_commit_succeeds_with_enough_replicas_and_the_others_leave() -> None:
    log = ReplicaHistory(1, 2)
    log.topic(THREE, min_insync_replicas="2")
    (name,) = log.put((0, 2))
    assert log.isr() == (0, 2) and log.brokers_of(name) == (0, 2)
    missed = log.group().members[1]
    assert (missed.role, missed.missed, missed.misses) == ("out", log.state.time, 1)
    assert log.state.partitions["t", 0].end == 1


def test_a_commit_without_enough_replicas_says_what_is_lacking() -> None:
    """By object and broker, so that its writer can copy; nothing is written."""
    log = ReplicaHistory(1, 2)
    log.topic(THREE, THREE, min_insync_replicas="2")
    commit = log.upload_to((0,), ("t", 0), ("t", 1))
    commit = replace(commit, placed=(commit.placed[0], Placed(commit.placed[1].group, log.held((0, 1)))))
    version = log.state.version
    with pytest.raises(NotEnoughReplicas, match=r"1 of the in-sync replicas 0, 1, 2 have .* is 2") as raised:
        log.commit_record(commit)
    first, second = (made.name for made in commit.objects)
    assert raised.value.lacking == {first: (1, 2), second: (2,)} and raised.value.retriable
    assert log.state.version == version
    both = tuple(Placed(one.group, log.held((0, 2))) for one in commit.placed)
    assert log.commit_record(replace(commit, placed=both)).ranges == {("t", 0): range(1), ("t", 1): range(1)}


def test_an_isr_that_is_too_small_is_not_enough_although_nothing_is_lacking() -> None:
    log = ReplicaHistory(1, 2)
    log.topic(THREE, min_insync_replicas="2")
    log.fence(1)
    log.fence(2)
    with pytest.raises(NotEnoughReplicas, match="broker 1 is fenced: it does not answer; broker 2 is fenced") as raised:
        log.put()
    assert raised.value.lacking == {}


def test_the_highest_minimum_of_the_topics_in_a_group_counts() -> None:
    log = ReplicaHistory(1, 2)
    log.topic(THREE, name="t", min_insync_replicas="1")
    log.topic(THREE, name="u", min_insync_replicas="3")
    log.put((0,), ("t", 0))
    log.copied(1, *log.state.objects)
    log.copied(2, *log.state.objects)
    log.join(1), log.join(2)
    with pytest.raises(NotEnoughReplicas):
        log.put((0, 1), ("t", 0), ("u", 0))


# Promise: format/metadata.md#brokers-and-placement-groups
def test_a_copy_under_an_older_epoch_does_not_count() -> None:
    """Nobody has looked whether it is still there."""
    log = ReplicaHistory(1)
    log.topic(TWO, min_insync_replicas="2")
    commit = log.upload_to((0, 1))
    log.fence(1)
    log.back(1)
    assert log.isr() == (0, 1)
    with pytest.raises(NotEnoughReplicas) as raised:
        log.commit_record(commit)
    assert raised.value.lacking == {commit.objects[0].name: (1,)}


def test_without_an_active_replica_nothing_is_appended() -> None:
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    log.fence(1)
    log.fence(2)
    assert log.group().leader == NO_LEADER and log.isr() == (2,)
    with pytest.raises(
        LeaderNotAvailable, match=r"no in-sync replica of brokers 1, 2 .*broker 1 is fenced: it does not"
    ):
        log.put((2,))
    log.back(1)
    assert log.isr() == (1,) and log.put()


def test_a_repeat_is_answered_before_all_checks() -> None:
    """It was acknowledged, whatever has become of the replicas since."""
    log = ReplicaHistory(1)
    log.topic((1,))
    commit = log.upload_to((1,))
    first = log.commit_record(commit)
    log.fence(1)
    assert log.commit_record(commit) == first._replace(repeated=True, last=0)


def test_older_reasons_come_before_replicas() -> None:
    log = ReplicaHistory(1)
    log.topic(TWO)
    commit = log.upload_to((), upload_epoch=1, birth=-1, dense=False)
    log.pass_fence()
    log.pass_fence()
    with pytest.raises(UploadFenced):
        log.commit_record(commit)


def test_an_object_must_be_where_its_partitions_are() -> None:
    """Otherwise its copies would be elsewhere than readers, checks and the replicator look for them."""
    log = ReplicaHistory(1, 2)
    log.topic(TWO, (0, 2))
    log.create("u")
    right = log.upload_to(None, ("t", 0), ("t", 1), (log.state.names["u"], 0))
    swapped = (right.placed[1], right.placed[0], right.placed[2])
    for placed in (
        (),
        swapped,
        (*right.placed[:2], right.placed[0]),
        (*right.placed[:2], Placed(9)),
        right.placed[:2],
    ):
        with pytest.raises(InvalidRequest, match="upload the data again|expected the same number"):
            log.commit_record(replace(right, placed=placed))
    assert log.commit_record(right)


def test_an_upload_from_before_the_brokers_were_forgotten_is_refused() -> None:
    """Its objects are on roots that the log does not know."""
    log = ReplicaHistory(1)
    log.topic(TWO)
    commit = log.upload_to()
    log.command(ResetReplicas())
    with pytest.raises(InvalidRequest, match="placement groups 1 do not exist"):
        log.commit_record(commit)


def test_a_place_of_the_logs_own_root_is_not_written() -> None:
    """Records of a log without brokers are as before, and an older pylog can read them."""
    log = History()
    topic = log.create()
    commit = replace(log.upload((topic, 0, 1)), placed=(Placed(0),))
    log.do(lambda state, now: decide_commit(state, commit))
    assert log.batches[-1].records[0].placed == ()  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------------------ swaps


def two_objects(log: ReplicaHistory, *replicas: int) -> None:
    log.topic(replicas)
    log.put()
    log.put()


def test_a_swap_needs_all_in_sync_replicas() -> None:
    log = ReplicaHistory(1, 2)
    two_objects(log, *THREE)
    assert not log.swap_record(log.replaced(("t", 0), (0, 1)))
    assert log.swap_record(log.replaced(("t", 0), THREE))
    assert len(log.state.copies) == 1


def test_a_swap_needs_the_holders_of_what_it_replaces() -> None:
    """A replica that is fenced may come back, and has what was acknowledged; after an hour nothing waits for it."""
    log = ReplicaHistory(1, 2)
    two_objects(log, *THREE)
    log.fence(2)
    assert log.isr() == (0, 1)
    assert not log.swap_record(log.replaced(("t", 0), (0, 1)))
    log.now += WAITED_FOR_MS - 100
    assert not log.swap_record(log.replaced(("t", 0), (0, 1)))
    log.now += 200
    assert log.swap_record(log.replaced(("t", 0), (0, 1)))


def test_a_swap_waits_for_a_holder_that_is_out_and_never_for_an_asynchronous_one() -> None:
    log = ReplicaHistory(1)
    log.add(2, is_async=True)
    two_objects(log, *THREE)
    names = tuple(log.state.objects)
    log.copied(2, *names)
    log.put((0,))
    assert log.isr() == (0,) and log.brokers_of(names[0]) == (0, 1, 2)
    assert not log.swap_record(log.replaced(("t", 0), (0, 2)))
    assert log.swap_record(log.replaced(("t", 0), (0, 1)))


def test_a_swap_with_an_object_elsewhere_is_an_error() -> None:
    """A rewrite that does not know of replicas would leave one copy."""
    log = ReplicaHistory(1, 2)
    two_objects(log, *TWO)
    right = log.replaced(("t", 0), TWO)
    for placed in ((), (Placed(0),), (Placed(7, log.held(TWO)),), (*right.placed, *right.placed)):
        with pytest.raises(InvalidRequest):
            log.swap_record(replace(right, placed=placed))
    assert log.swap_record(right)


def test_records_are_given_up_only_if_no_broker_has_them() -> None:
    """A copy may have been found since the swap was prepared."""
    log = ReplicaHistory(1, 2)
    log.topic((0, 1, 2))
    log.put(THREE)
    swap = log.replaced(("t", 0), THREE, lost=(r.LostOffsets("t", 0, 0, 1),))
    assert not log.swap_record(swap)
    for broker in THREE:
        log.lost(broker, *swap.removed)
    assert log.swap_record(swap) and [one.start for one in log.state.lost["t", 0]] == [0]


def test_a_swap_without_any_copy_that_counts_is_not_written() -> None:
    """Replay would take it for void."""
    log = ReplicaHistory(1, 2)
    two_objects(log, 1, 2)
    log.renew(1, lose_data=True)
    log.fence(2)
    log.write(r.MissingRecord(copies=tuple(r.Copy(name, 2, log.state.brokers[2].epoch) for name in log.state.objects)))
    log.fence(1)
    assert not log.swap_record(log.replaced(("t", 0), ()))


# ---------------------------------------------------------------------------------------------------------------- brokers


def test_a_broker_is_registered_once() -> None:
    """A retry changes nothing; another directory, root or id is named in the error."""
    log = ReplicaHistory(1)
    version = log.state.version
    log.command(RegisterBroker(broker=1, directory=log.state.brokers[1].directory, url="/b1"))
    assert log.state.version == version
    for command, said in (
        (RegisterBroker(broker=1, directory="new", url="/b1"), "broker 1 is registered already, with /b1: .*replace 1"),
        (RegisterBroker(broker=2, directory="new", url="/b1"), "/b1 is the root of broker 1"),
        (RegisterBroker(broker=0, directory="new", url="/b0"), "expected an id from 1 to 999; 0 is the log's own root"),
        (RegisterBroker(broker=1000, directory="new", url="/b0"), "broker 1000: expected an id from 1 to 999"),
        (RegisterBroker(broker=-1, directory="new", url="/b0"), "broker -1: expected an id"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            log.command(command)
    with pytest.raises(BrokerNotAvailable, match="broker 2 is not registered"):
        log.command(RegisterBroker(broker=2, directory="new", url="/b2", replaces=True))


def test_last_copies_are_not_given_up_without_a_word() -> None:
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    log.put((1,))
    with pytest.raises(InvalidRequest, match="broker 1 has the last copies of 1 object: .*--lose-data"):
        log.renew(1)
    log.copied(2, *log.state.objects)
    log.renew(1)


def test_copies_on_fenced_brokers_do_not_replace_those_of_an_active_one() -> None:
    """Nobody knows whether their disks come back.  A broker that is fenced, too, gives up no more than it alone has."""
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    log.put((1, 2))
    log.fence(2)
    with pytest.raises(
        InvalidRequest, match=r"broker 1 has the last copies of 1 object, beside .* fenced \(2\): .*--lose"
    ):
        log.renew(1)
    log.renew(2)
    log.copied(2, *log.state.objects)
    log.renew(1)


def test_a_broker_with_replicas_is_not_removed() -> None:
    """Until its topics are deleted, and their records are gone."""
    log = ReplicaHistory(1, 2)
    log.topic(TWO, name="t")
    log.topic((0, 2), name="u")
    log.put(None, ("t", 0))
    with pytest.raises(InvalidRequest, match=r"broker 1 has replicas of 1 topic \(t\)"):
        log.command(RemoveBroker(broker=1))
    log.command(DeleteTopic(name="t"))
    with pytest.raises(
        InvalidRequest, match=r"broker 1 has replicas of 1 topic \(t\): move them to .* `pylog broker drain 1`, or"
    ):
        log.command(RemoveBroker(broker=1))
    assert log.prune(("t", 0))
    log.command(RemoveBroker(broker=1))
    assert set(log.state.brokers) == {2} and set(log.state.placement_groups) == {log.number("u")}
    with pytest.raises(BrokerNotAvailable):
        log.command(RemoveBroker(broker=1))


def test_a_removal_that_is_sent_again_is_done() -> None:
    """Its answer was lost; a broker that has got the id since is kept."""
    log = ReplicaHistory(1, 2)
    first = RemoveBroker(broker=1, directory=log.state.brokers[1].directory)
    for _ in range(2):
        log.command(first)
        assert set(log.state.brokers) == {2}
    log.command(RegisterBroker(broker=1, directory="another", url="/another"))
    log.command(first)
    assert set(log.state.brokers) == {1, 2}


def test_broker_0_is_never_fenced_or_removed() -> None:
    log = ReplicaHistory(1)
    for command in (FenceBroker(broker=0), RemoveBroker(broker=0)):
        with pytest.raises(InvalidRequest, match="broker 0 is the log's own root"):
            log.command(command)


def test_a_fence_is_for_the_epoch_that_did_not_answer() -> None:
    """The reply is False if the broker has returned since, or is fenced already."""
    log = ReplicaHistory(1)
    epoch = log.state.brokers[1].epoch
    assert log.command(FenceBroker(broker=1, epoch=epoch, reason="slow"))
    assert not log.fence(1) and log.state.brokers[1].reason == "slow"
    assert log.back(1) and log.state.brokers[1].epoch == log.state.version
    assert not log.command(FenceBroker(broker=1, epoch=epoch))
    assert not log.back(1)
    with pytest.raises(BrokerNotAvailable):
        log.fence(7)


def test_a_fence_by_hand_takes_the_place_of_one_by_a_check() -> None:
    """A return that is under way then is void, and the next check changes nothing."""
    log = ReplicaHistory(1)
    epoch = log.state.brokers[1].epoch
    check = FenceBroker(broker=1, epoch=epoch, reason="its root is not usable", cause="check")
    assert log.command(check) and log.state.brokers[1].returns
    since = log.state.brokers[1].since
    log.now += 60_000
    assert log.command(FenceBroker(broker=1, reason="new cable"))
    known = log.state.brokers[1]
    assert (known.reason, known.since, known.returns) == ("new cable", since, False)
    assert not log.command(ReturnBroker(broker=1, epoch=epoch))
    assert not log.command(check) and not log.command(
        FenceBroker(broker=1, reason="its root is not usable", cause="check")
    )
    assert log.state.brokers[1] == known
    assert log.back(1)


def test_an_election_is_clean_unless_there_is_no_leader() -> None:
    log = ReplicaHistory(1, 2)
    log.topic((1, 2))
    number = log.number()
    assert log.command(ElectLeader(group=number, leader=2)) and not log.command(ElectLeader(group=number, leader=2))
    assert log.group().leader == 2 and log.isr() == (1, 2)
    log.put((2,))
    for unclean, said in ((False, "broker 1 is not in sync"), (True, "has a leader, broker 2: an unclean election is")):
        with pytest.raises(InvalidRequest, match=said):
            log.command(ElectLeader(group=number, leader=1, unclean=unclean))
    log.fence(2)
    before = log.group()
    with pytest.raises(InvalidRequest, match="not in sync"):
        log.command(ElectLeader(group=number, leader=1))
    with pytest.raises(LeaderNotAvailable, match="broker 2 cannot lead: broker 2 is fenced"):
        log.command(ElectLeader(group=number, leader=2))
    with pytest.raises(InvalidRequest, match="broker 0 is not a replica"):
        log.command(ElectLeader(group=number, leader=0))
    assert log.command(ElectLeader(group=number, leader=1, unclean=True))
    assert log.isr() == (1,) and (log.group().leader, log.group().leader_epoch) == (1, before.leader_epoch + 1)
    assert log.put()
