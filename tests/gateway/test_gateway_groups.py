"""Consumer groups of Kafka's clients: their members, their positions, and what operators do with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log import NewTopic, OffsetAndMetadata, TopicPartition
from spark_log.errors import GroupIdNotFound
from spark_log.gateway.api import (
    COMMIT_POSITIONS,
    DELETE_GROUPS,
    DELETE_POSITIONS,
    DESCRIBE_GROUPS,
    FETCH_POSITIONS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    SYNC_GROUP,
)
from spark_log.gateway.error_codes import (
    FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_REQUEST,
    MEMBER_ID_REQUIRED,
    NON_EMPTY_GROUP,
    NONE,
    OFFSET_METADATA_TOO_LARGE,
    REBALANCE_IN_PROGRESS,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from spark_log.gateway.groups.consumer_protocol import (
    KafkaSubscription,
    _written,
    assignment_to_kafka,
    assignment_to_log,
    kafka_assignment,
    subscription_to_kafka,
    subscription_to_log,
)
from spark_log.gateway.groups.group_messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    MemberHeartbeatRequest,
    MemberJoinRequest,
    MembersAssignment,
    MembersLeaveRequest,
    MemberSyncRequest,
    MemberToLeave,
    OfferedProtocol,
)
from spark_log.gateway.groups.position_messages import (
    CommitPositionsRequest,
    DeletePositionsRequest,
    FetchPositionsRequest,
    GroupPositionsAsked,
    PartitionToDelete,
    PositionsAsked,
    PositionsOfTopic,
    PositionsToDelete,
    PositionToCommit,
)
from spark_log.gateway.leader_epochs import EPOCH_MS, leader_epoch
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from spark_log.metadata.groups.group_commands import JoinGroup
from spark_log.monitoring.log_metrics import summary_of
from spark_log.runtime.clock import SystemClock
from spark_log.store.local import LocalStore
from tests.cli.commands import Pylog
from tests.gateway.running import DEADLINE_S, Running, frame, received
from tests.processes import eventually
from tests.services import Services

Serve = Callable[..., Running]
GROUP = "billing"
SUBSCRIPTION = b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff"
"""Version 0: `orders`, no data."""


@pytest.fixture(params=["storage", "coordinator"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a log, with and without a coordinator."""
    services = Services()
    try:
        yield services.url(tmp_path / "led") if request.param == "coordinator" else str(tmp_path / "embedded")
    finally:
        services.close()


@pytest.fixture
def log(url: str) -> Iterator[spark_log.Log]:
    """A log with the topic `orders`, of two partitions."""
    with spark_log.connect(url, durability="os") as opened:
        opened.create_topic(NewTopic("orders", 2))
        yield opened


@pytest.fixture
def gateway(serve: Serve) -> Running:
    return serve()


class Member:
    """A member of a group, request by request."""

    def __init__(self, gateway: Any, instance: str | None = None, session_ms: int = 30_000) -> None:
        self.gateway = gateway
        self.instance = instance
        self._session_ms = session_ms
        self.id, self.generation = "", -1

    def join(self, version: int = 9, **more: Any) -> int:
        """The error code of the second join of a new member, or of its only one."""
        request = MemberJoinRequest(
            group_id=GROUP,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=5_000,
            member_id=self.id,
            group_instance_id=self.instance,
            **{
                "protocol_type": "consumer",
                "protocols": [OfferedProtocol(name="range", metadata=SUBSCRIPTION)],
                **more,
            },
        )
        answer = self.gateway.ask(JOIN_GROUP, version, request)
        self.id = answer.member_id or self.id
        if answer.error_code == MEMBER_ID_REQUIRED:
            return self.join(version, **more)
        self.joined, self.generation = answer, answer.generation_id
        return int(answer.error_code)

    def sync(self, version: int = 5, **partitions: Iterable[int]) -> Any:
        """partitions:  of `orders`, by member id."""
        assignments = [
            MembersAssignment(member_id=name, assignment=kafka_assignment(TopicPartition("orders", n) for n in numbers))
            for name, numbers in partitions.items()
        ]
        request = MemberSyncRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        return self.gateway.ask(SYNC_GROUP, version, request)

    def enter(self) -> None:
        """Be the only member, of both partitions."""
        assert self.join() == NONE and self.joined.leader == self.id
        assert self.sync(**{self.id: (0, 1)}).error_code == NONE

    def heartbeat(self) -> int:
        request = MemberHeartbeatRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self.id, group_instance_id=self.instance
        )
        return int(self.gateway.ask(HEARTBEAT, 4, request).error_code)

    def commit(self, offset: int, version: int = 9, topic: str = "orders", **more: Any) -> int:
        fields = {"generation_id": self.generation, "member_id": self.id, "group_instance_id": self.instance, **more}
        return committed(self.gateway, offset, version, topic, **fields)


def committed(gateway: Any, offset: int, version: int = 9, topic: str = "orders", **more: Any) -> int:
    """The error code of a commit."""
    position = PositionToCommit(partition_index=0, committed_offset=offset, committed_metadata="m")
    request = CommitPositionsRequest(
        group_id=GROUP, topics=[PositionsOfTopic(name=topic, partitions=[position])], **more
    )
    return int(gateway.ask(COMMIT_POSITIONS, version, request).topics[0].partitions[0].error_code)


def positions(log: spark_log.Log, group: str = GROUP) -> dict[int, int]:
    """The log's committed offsets of `orders`."""
    with suppress(GroupIdNotFound):
        return {tp.partition: at.offset for tp, at in log.admin.list_consumer_group_offsets(group).items()}
    return {}


# ------------------------------------------------------------------------------------------------------------- requests


# Promise: gateway.md#groups
def test_each_version_of_the_protocol_makes_a_member(log: spark_log.Log, gateway: Running) -> None:
    """Before version 4 of JoinGroup, a member gets no id in advance."""
    for version in range(10):
        member = Member(gateway)
        assert member.join(version) == NONE and member.joined.protocol_name == "range"
        (one,) = member.joined.members
        assert subscription_to_log(one.metadata) == subscription_to_log(SUBSCRIPTION)
        synced = member.sync(min(version, 5), **{member.id: (0, 1)})
        assert synced.assignment == kafka_assignment([TopicPartition("orders", 0), TopicPartition("orders", 1)])
        assert member.heartbeat() == NONE
        assert member.commit(version, min(max(version, 2), 9)) == NONE and positions(log) == {0: version}
        request = MembersLeaveRequest(group_id=GROUP, member_id=member.id, members=[MemberToLeave(member_id=member.id)])
        left = gateway.ask(LEAVE_GROUP, min(version, 5), request)
        assert left.error_code == NONE and all(one.error_code == NONE for one in left.members)
        assert member.heartbeat() == UNKNOWN_MEMBER_ID


# Promise: gateway.md#groups
def test_a_member_of_an_old_generation_is_fenced(log: spark_log.Log, gateway: Running) -> None:
    """Its commits get the errors of Kafka, and change nothing."""
    first, second = Member(gateway), Member(gateway)
    first.enter()
    assert first.commit(1) == NONE
    joining = threading.Thread(target=second.join)
    joining.start()
    while first.heartbeat() != REBALANCE_IN_PROGRESS:
        time.sleep(0.01)
    assert first.commit(2) == NONE, "until the rebalance ends it owns its partitions"
    old = first.generation
    assert first.join() == NONE and first.generation == old + 1
    joining.join(DEADLINE_S)
    assert first.commit(3) == REBALANCE_IN_PROGRESS
    leader, other = (first, second) if first.joined.members else (second, first)
    assert leader.sync(**{leader.id: (0,), other.id: (1,)}).error_code == NONE
    assert first.commit(3, generation_id=old) == ILLEGAL_GENERATION
    assert first.commit(3, member_id="nobody") == UNKNOWN_MEMBER_ID
    assert committed(gateway, 3) == UNKNOWN_MEMBER_ID, "it is not a member, and there are some"
    assert positions(log) == {0: 2}
    assert first.commit(3) == NONE and positions(log) == {0: 3}


# Promise: gateway.md#groups
def test_a_static_member_is_replaced_by_its_next_process(log: spark_log.Log, gateway: Running) -> None:
    """No rebalance; the former one is fenced."""
    first, second = Member(gateway, "a"), Member(gateway, "a")
    first.enter()
    assert second.join() == NONE and second.generation == first.generation and second.joined.skip_assignment
    assert second.sync().assignment == kafka_assignment(TopicPartition("orders", n) for n in (0, 1))
    assert first.heartbeat() == FENCED_INSTANCE_ID and first.commit(1) == FENCED_INSTANCE_ID
    assert second.commit(2) == NONE and positions(log) == {0: 2}


def test_a_member_that_falls_silent_is_removed(gateway: Running) -> None:
    member = Member(gateway, session_ms=2000)
    member.enter()
    while member.heartbeat() == NONE:
        time.sleep(3)
    assert member.heartbeat() == UNKNOWN_MEMBER_ID


# Promise: gateway.md#groups
def test_positions_have_their_own_errors(log: spark_log.Log, gateway: Running) -> None:
    """A position that is right is committed beside wrong ones."""
    topics = [
        PositionsOfTopic(
            name="orders",
            partitions=[
                PositionToCommit(partition_index=0, committed_offset=7, committed_metadata="m"),
                PositionToCommit(partition_index=1, committed_offset=-5),
                PositionToCommit(partition_index=2, committed_offset=1),
            ],
        ),
        PositionsOfTopic(name="none", partitions=[PositionToCommit(partition_index=0, committed_offset=1)]),
    ]
    request = CommitPositionsRequest(group_id=GROUP, topics=topics)
    found = gateway.ask(COMMIT_POSITIONS, 9, request).topics
    codes = [one.error_code for topic in found for one in topic.partitions]
    assert codes == [NONE, INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION]
    large = PositionToCommit(partition_index=0, committed_offset=9, committed_metadata="m" * 5000)
    request = CommitPositionsRequest(group_id=GROUP, topics=[PositionsOfTopic(name="orders", partitions=[large])])
    (topic,) = gateway.ask(COMMIT_POSITIONS, 9, request).topics
    assert [one.error_code for one in topic.partitions] == [OFFSET_METADATA_TOO_LARGE]
    assert positions(log) == {0: 7}


# Promise: gateway.md#groups
def test_a_position_of_a_former_topic_is_not_committed(log: spark_log.Log, gateway: Running) -> None:
    """A new topic of the same name has other records, which the group has not read."""
    log.append("orders", [{"value": "x", "partition": 0}] * 5)
    former = leader_epoch(log.journal.refresh(), log.journal.state.names["orders"])
    assert commit_of_epoch(gateway, 5, former) == NONE and commit_of_epoch(gateway, 4, -1) == NONE
    time.sleep(EPOCH_MS / 1000)
    log.admin.delete_topics(["orders"])
    log.create_topic(NewTopic("orders", 2))
    log.append("orders", [{"value": "x", "partition": 0}] * 9)
    assert commit_of_epoch(gateway, 5, former) == UNKNOWN_TOPIC_OR_PARTITION
    assert positions(log) == {}
    new = leader_epoch(log.journal.refresh(), log.journal.state.names["orders"])
    assert commit_of_epoch(gateway, 6, new) == NONE and positions(log) == {0: 6}


def commit_of_epoch(gateway: Running, offset: int, epoch: int) -> int:
    """The error code of a commit of a client that has read records of this epoch."""
    position = PositionToCommit(partition_index=0, committed_offset=offset, committed_leader_epoch=epoch)
    topics = [PositionsOfTopic(name="orders", partitions=[position])]
    answer = gateway.ask(COMMIT_POSITIONS, 9, CommitPositionsRequest(group_id=GROUP, topics=topics))
    return int(answer.topics[0].partitions[0].error_code)


class Ahead(SystemClock):
    """The clock of a later time."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


# Promise: gateway.md#groups
def test_a_group_with_members_does_not_expire(tmp_path: Path) -> None:
    """Also without a coordinator, and without new records; it expires after its last member has left."""
    clock = Ahead()
    journal = Journal.open(LocalStore(str(tmp_path / "log"), durability="os"), create=True, clock=clock)
    with spark_log.Log(journal) as log:
        log.create_topic(NewTopic("orders", 2))
        log.admin.incremental_alter_configs({None: {"offsets.retention.minutes": "1"}})
        gateway = Running(log)
        try:
            member = Member(gateway)
            member.enter()
            assert member.commit(1) == NONE
            for _ in range(3):
                clock.ahead_ms += 40_000
                assert member.heartbeat() == NONE
                maintain_once(log)
                assert positions(log) == {0: 1}
            request = MembersLeaveRequest(group_id=GROUP, members=[MemberToLeave(member_id=member.id)])
            assert gateway.ask(LEAVE_GROUP, 5, request).error_code == NONE
            clock.ahead_ms += 80_000
            maintain_once(log)
            assert positions(log) == {}
        finally:
            gateway.close()


# Promise: gateway.md#groups
@pytest.mark.parametrize("field", ["group_id", "group_instance_id", "protocol_type", "name"])
def test_a_text_that_the_log_cannot_store_ends_the_connection(
    url: str, log: spark_log.Log, gateway: Running, field: str
) -> None:
    """Compact texts of Kafka may be longer than those of the log."""
    long = "g" * 40_000
    fields = {"group_id": GROUP, "protocol_type": "x", "group_instance_id": None, "name": "range", field: long}
    protocol = OfferedProtocol(name=fields.pop("name"), metadata=b"")
    join = MemberJoinRequest(session_timeout_ms=30_000, rebalance_timeout_ms=5_000, protocols=[protocol], **fields)
    commit = CommitPositionsRequest(group_id=long, topics=[])
    for api, version, request in (JOIN_GROUP, 7, join), (COMMIT_POSITIONS, 8, commit):
        with gateway.connection() as opened:
            opened.sendall(frame(api, version, request))
            assert received(opened) == b""
    assert committed(gateway, 1) == NONE
    with spark_log.connect(url) as other:
        assert positions(other) == {0: 1}


# Promise: gateway.md#groups
def test_metadata_that_the_log_cannot_store_is_refused(url: str, log: spark_log.Log, gateway: Running) -> None:
    """Kafka's form of a subscription, or of an assignment, is shorter than the log's."""
    subscription = _written(KafkaSubscription(topics=["orders"], user_data=b"u" * 900_000))
    member = Member(gateway)
    assert member.join(protocols=[OfferedProtocol(name="range", metadata=subscription)]) == INVALID_REQUEST
    assert member.join() == NONE
    assert member.sync(**{member.id: range(90_000)}).error_code == INVALID_REQUEST
    # The coordinator closes the connection of a request that it refuses: then a client tries again.
    eventually(lambda: member.sync(**{member.id: (0, 1)}).error_code == NONE)
    assert member.commit(1) == NONE
    with spark_log.connect(url) as other:
        assert positions(other) == {0: 1}


# Promise: gateway.md#groups
def test_each_version_reads_positions(log: spark_log.Log, gateway: Running) -> None:
    """A partition without a position has the offset -1."""
    log.admin.alter_consumer_group_offsets(GROUP, {TopicPartition("orders", 1): OffsetAndMetadata(5, "m")})
    asked = [PositionsAsked(name="orders", partition_indexes=(0, 1))]
    for version in range(1, 10):
        groups = [GroupPositionsAsked(group_id=GROUP, topics=asked), GroupPositionsAsked(group_id="none", topics=asked)]
        request = FetchPositionsRequest(group_id=GROUP, topics=asked, groups=groups)
        found = gateway.ask(FETCH_POSITIONS, version, request)
        topics = found.topics if version < 8 else found.groups[0].topics
        assert [(one.partition_index, one.committed_offset, one.metadata) for one in topics[0].partitions] == [
            (0, -1, ""),
            (1, 5, "m"),
        ]
        if version >= 8:
            assert [one.committed_offset for one in found.groups[1].topics[0].partitions] == [-1, -1]
        if version >= 2:
            everything = FetchPositionsRequest(
                group_id=GROUP, topics=None, groups=[GroupPositionsAsked(group_id=GROUP, topics=None)]
            )
            found = gateway.ask(FETCH_POSITIONS, version, everything)
            (topic,) = found.topics if version < 8 else found.groups[0].topics
            assert [(topic.name, one.partition_index) for one in topic.partitions] == [("orders", 1)]


# Promise: gateway.md#limits
def test_a_small_request_does_not_get_a_huge_answer(log: spark_log.Log, gateway: Running) -> None:
    """A group is answered once, and groups after 50,000 positions get an error."""
    log.create_topic(NewTopic("wide", 5000))
    names = [f"g{number}" for number in range(12)]
    for name in names:
        wide = {TopicPartition("wide", number): OffsetAndMetadata(0) for number in range(5000)}
        log.admin.alter_consumer_group_offsets(name, wide)
    groups = [GroupPositionsAsked(group_id=name, topics=None) for name in names for _ in range(100)]
    found = gateway.ask(FETCH_POSITIONS, 8, FetchPositionsRequest(groups=groups)).groups
    assert [one.group_id for one in found] == names
    counts = [sum(len(topic.partitions) for topic in one.topics) for one in found]
    assert counts == [5000] * 10 + [0, 0]
    assert [one.error_code for one in found] == [NONE] * 10 + [INVALID_REQUEST] * 2


def test_the_gateway_is_the_coordinator_of_groups_alone(gateway: Running) -> None:
    host, _, port = gateway.address.rpartition(":")
    for version in range(7):
        request = FindCoordinatorRequest(key=GROUP, coordinator_keys=[GROUP, "other"])
        found = gateway.ask(FIND_COORDINATOR, version, request)
        for one in [found] if version < 4 else found.coordinators:
            assert (one.error_code, one.node_id, one.host, one.port) == (NONE, 0, host, int(port))
        if version >= 1:
            request = FindCoordinatorRequest(key="t", key_type=1, coordinator_keys=["t"])
            found = gateway.ask(FIND_COORDINATOR, version, request)
            (one,) = [found] if version < 4 else found.coordinators
            assert one.error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# Promise: gateway.md#groups
def test_groups_are_listed_described_and_deleted(log: spark_log.Log, gateway: Running) -> None:
    """One with members is not deleted, and not the positions that they need."""
    member = Member(gateway)
    member.enter()
    assert member.commit(4) == NONE
    log.admin.alter_consumer_group_offsets("idle", {TopicPartition("orders", 0): OffsetAndMetadata(1)})
    for version in range(6):
        found = gateway.ask(LIST_GROUPS, version, ListGroupsRequest()).groups
        assert [(one.group_id, one.protocol_type) for one in found] == [(GROUP, "consumer"), ("idle", "consumer")]
    assert [(one.group_state, one.group_type) for one in found] == [("Stable", "classic"), ("Empty", "classic")]
    found = gateway.ask(LIST_GROUPS, 5, ListGroupsRequest(states_filter=["stable"], types_filter=["Classic"])).groups
    assert [one.group_id for one in found] == [GROUP]
    for version in range(7):
        request = DescribeGroupsRequest(groups=[GROUP, "idle", "none"])
        ours, idle, none = gateway.ask(DESCRIBE_GROUPS, version, request).groups
        assert (ours.group_state, ours.protocol_type, ours.protocol_data) == ("Stable", "consumer", "range")
        assert [(one.member_id, one.client_id) for one in ours.members] == [(member.id, "a test")]
        assert ours.members[0].member_assignment == kafka_assignment(TopicPartition("orders", n) for n in (0, 1))
        assert (idle.group_state, idle.members) == ("Empty", [])
        assert (none.group_state, none.error_code) == ("Dead", GROUP_ID_NOT_FOUND if version == 6 else NONE)
    topic = PositionsToDelete(name="orders", partitions=[PartitionToDelete(partition_index=0)])
    for group, code in ((GROUP, GROUP_SUBSCRIBED_TO_TOPIC), ("idle", NONE)):
        answer = gateway.ask(DELETE_POSITIONS, 0, DeletePositionsRequest(group_id=group, topics=[topic]))
        assert answer.topics[0].partitions[0].error_code == code
    assert positions(log) == {0: 4} and positions(log, "idle") == {}
    found = gateway.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[GROUP, "idle", "none"])).results
    assert [one.error_code for one in found] == [NON_EMPTY_GROUP, NONE, GROUP_ID_NOT_FOUND]
    assert [one.group_id for one in log.admin.list_consumer_groups()] == [GROUP]


# Promise: gateway.md#groups, clients.md#admin
def test_the_log_names_the_members_of_a_gateway(tmp_path: Path, log: spark_log.Log, gateway: Running) -> None:
    """Without a coordinator they may have died with it: an operator sees them, and may change the group."""
    member = Member(gateway)
    member.enter()
    assert member.commit(4) == NONE
    found = log.admin.describe_consumer_groups([GROUP])[GROUP]
    assert [(one.member_id, one.assignment) for one in found.members] == [
        (member.id, (TopicPartition("orders", 0), TopicPartition("orders", 1)))
    ]
    if log.journal.state.coordinator.address:
        assert found.state == "Stable"
        return
    assert found.state == "Unknown" == summary_of(log.journal.refresh(), GROUP).state
    pylog = Pylog(tmp_path / "embedded")
    dry = pylog.run("group", "seek", GROUP, "--to", "earliest", "--dry-run")
    assert dry.exit_code == 0 and f"group {GROUP} has 1 member" in dry.stderr and "stop them first" in dry.stderr
    assert [row["state"] for row in pylog.json("group", "list", "--state", "unknown")] == ["Unknown"]
    pylog.ok("group", "remove-members", GROUP, "--yes")
    found = log.admin.describe_consumer_groups([GROUP])[GROUP]
    assert (found.state, found.members) == ("Empty", []) and member.commit(5) == UNKNOWN_MEMBER_ID


# Promise: gateway.md#start
def test_a_gateway_that_only_reads_has_no_members(log: spark_log.Log, serve: Serve) -> None:
    """It commits nothing and deletes nothing, and shows positions."""
    log.admin.alter_consumer_group_offsets(GROUP, {TopicPartition("orders", 0): OffsetAndMetadata(5)})
    gateway = serve(read_only=True)
    member = Member(gateway)
    assert member.join() == member.heartbeat() == member.commit(9) == GROUP_AUTHORIZATION_FAILED
    assert member.sync().error_code == committed(gateway, 9) == GROUP_AUTHORIZATION_FAILED
    (deleted,) = gateway.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[GROUP])).results
    assert deleted.error_code == GROUP_AUTHORIZATION_FAILED
    asked = [PositionsAsked(name="orders", partition_indexes=(0,))]
    found = gateway.ask(FETCH_POSITIONS, 5, FetchPositionsRequest(group_id=GROUP, topics=asked))
    assert found.topics[0].partitions[0].committed_offset == 5 and positions(log) == {0: 5}


# Promise: gateway.md#start
def test_a_prefix_limits_groups_by_their_topics(log: spark_log.Log, serve: Serve) -> None:
    """Members read served topics, and a group with other positions is not touched."""
    log.create_topic(NewTopic("shop.a", 1))
    gateway = serve("shop.")
    member = Member(gateway)
    assert member.join() == TOPIC_AUTHORIZATION_FAILED
    assert committed(gateway, 1) == TOPIC_AUTHORIZATION_FAILED and committed(gateway, 1, topic="shop.a") == NONE
    log.admin.alter_consumer_group_offsets(GROUP, {TopicPartition("orders", 0): OffsetAndMetadata(5)})
    shop = subscription_to_kafka(subscription_to_log(SUBSCRIPTION.replace(b"orders", b"shop.a")))
    assert member.join(protocols=[OfferedProtocol(name="range", metadata=shop)]) == GROUP_AUTHORIZATION_FAILED
    assert committed(gateway, 9, topic="shop.a") == GROUP_AUTHORIZATION_FAILED
    assert gateway.ask(LIST_GROUPS, 5, ListGroupsRequest()).groups == []
    (deleted,) = gateway.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[GROUP])).results
    assert deleted.error_code == GROUP_AUTHORIZATION_FAILED and len(positions(log)) == 1


# Promise: gateway.md#start
def test_a_prefix_hides_groups_that_have_not_committed(log: spark_log.Log, serve: Serve) -> None:
    """Their members subscribe to other topics, and nobody else removes them."""
    whole, limited = serve(), serve("shop.")
    member = Member(whole)
    member.enter()
    assert limited.ask(LIST_GROUPS, 5, ListGroupsRequest()).groups == []
    (described,) = limited.ask(DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[GROUP])).groups
    assert described.error_code == GROUP_AUTHORIZATION_FAILED and not described.members
    leaving = MembersLeaveRequest(group_id=GROUP, members=[MemberToLeave(member_id=member.id)])
    assert limited.ask(LEAVE_GROUP, 5, leaving).error_code == GROUP_AUTHORIZATION_FAILED
    assert Member(limited).join() != NONE and member.heartbeat() == NONE
    assert [one.group_id for one in whole.ask(LIST_GROUPS, 5, ListGroupsRequest()).groups] == [GROUP]


def test_other_kinds_of_members_keep_their_bytes(log: spark_log.Log, gateway: Running) -> None:
    """Members of Connect and of schema registries have other metadata."""
    member = Member(gateway)
    offered = {"protocol_type": "connect", "protocols": [OfferedProtocol(name="compatible", metadata=b"\xff\0")]}
    assert member.join(**offered) == NONE and member.joined.members[0].metadata == b"\xff\0"
    request = MemberSyncRequest(
        group_id=GROUP,
        generation_id=member.generation,
        member_id=member.id,
        protocol_type="connect",
        protocol_name="compatible",
        assignments=[MembersAssignment(member_id=member.id, assignment=b"\xfe\1")],
    )
    assert gateway.ask(SYNC_GROUP, 5, request).assignment == b"\xfe\1"
    assert Member(gateway).join() == INCONSISTENT_GROUP_PROTOCOL
    (found,) = gateway.ask(LIST_GROUPS, 5, ListGroupsRequest()).groups
    assert found.protocol_type == "connect"


def test_subscriptions_and_assignments_keep_everything() -> None:
    """Assignors keep state in them."""
    newer = b"\0\7" + SUBSCRIPTION[2:-4] + b"\0\0\0\1u" + bytes(4) + b"\0\0\0\5" + b"\0\1r" + b"later"
    again = subscription_to_kafka(subscription_to_log(newer))
    assert again == b"\0\3" + newer[2:-5]
    assert subscription_to_kafka(b"{") == b"{" and KafkaSubscription().generation_id == -1
    assignment = kafka_assignment([TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("a", 0)], b"u")
    assert assignment_to_kafka(assignment_to_log(assignment)) == assignment


# Promise: gateway.md#groups
def test_positions_are_those_of_the_log(log: spark_log.Log, gateway: Running) -> None:
    """pylog's consumer continues where Kafka's client has committed, and the other way round."""
    log.append("orders", [{"value": str(n), "partition": 0} for n in range(10)])
    assert committed(gateway, 4) == NONE
    with log.consumer("orders", group_id=GROUP, auto_offset_reset="earliest") as consumer:
        found: list[int] = []
        while len(found) < 6:
            found += [int(one.value) for several in consumer.poll(timeout_ms=100).values() for one in several]
        assert found == list(range(4, 10))
        consumer.commit()
    asked = [PositionsAsked(name="orders", partition_indexes=(0,))]
    (topic,) = gateway.ask(FETCH_POSITIONS, 5, FetchPositionsRequest(group_id=GROUP, topics=asked)).topics
    assert topic.partitions[0].committed_offset == 10


# Promise: gateway.md#groups
def test_a_group_of_a_query_is_not_joined(
    log: spark_log.Log, gateway: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway logs which query has it."""
    log.journal.propose(JoinGroup(group=GROUP, member="m", token="t", owner="the query q", timeout_ms=600_000))
    assert Member(gateway).join() == INCONSISTENT_GROUP_PROTOCOL
    assert committed(gateway, 4) == UNKNOWN_MEMBER_ID and positions(log) == {}
    assert "the query q" in caplog.text
