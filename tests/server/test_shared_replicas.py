"""A token for some topics changes no replicas that topics of others use too."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from spark_log import Log
from spark_log.errors import AuthorizationFailed, InvalidRequest, NotEnoughReplicas
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import Append, Report, SeveralCommands
from spark_log.metadata.object_tags import tagged
from spark_log.metadata.records import CommitRecord, Copy, HeldRecord
from spark_log.metadata.replicas.replica_commands import AddPendingCopies, JoinIsr
from spark_log.metadata.replicas.replicas import epoch_of, group_at, group_number
from spark_log.metadata.state import State
from spark_log.model import ACKS_ALL, ACKS_LEADER, DataObject, Placed, Run
from spark_log.replication.broker_prober import Prober
from spark_log.serve.serve import Running
from spark_log.serve.serve_quorum import start_quorum
from spark_log.server.shared_replicas import check_written
from spark_log.server.tokens import Grant
from tests.quorum.node.quorum_nodes import one_node
from tests.replication.replicated_logs import add_broker, create_topic, replicated_log
from tests.server.asking import ADMIN, BILLING_TOPICS, TOKENS, connect
from tests.services import Services


@pytest.fixture
def running(services: Services, tmp_path: Path) -> Running:
    """A log with two brokers, a topic of each tenant on both, and one of billing alone on other replicas."""
    log = replicated_log(tmp_path, brokers=2)
    create_topic(log, "orders", (1, 2))
    create_topic(log, "billing.x", (1, 2))
    create_topic(log, "billing.alone", (2, 1))
    log.close()
    return services.start(tmp_path / "log", tokens=TOKENS)


def isr(log: Log, topic: str) -> tuple[int, ...]:
    state = log.journal.refresh()
    return tuple(group_at(state, group_number(state, (state.names[topic], 0))).isr)


def held_by_one(log: Log, topic: str, name: str, acks: int = ACKS_ALL) -> Append:
    """A commit with an object that is on broker 1 alone."""
    append = claiming(log, topic, name, (1,), acks)
    log.journal.roots[1].put(append.commit.objects[0].name, [b"x" * 100])
    return append


def claiming(log: Log, topic: str, name: str, brokers: tuple[int, ...], acks: int = ACKS_ALL) -> Append:
    """A commit that says that brokers have its object."""
    state = log.journal.refresh()
    topic_id = state.names[topic]
    made = DataObject(f"data/{state.version:016x}/{tagged(name, 'seg', log.journal.context.tag)}", 100, 90)
    return Append(
        commit=CommitRecord(
            producer=name,
            sequence=0,
            birth=state.version,
            upload_epoch=state.version,
            acks=acks,
            objects=(made,),
            slices=((0, Run(topic_id, 0, 0, 90, 1, 1, 1, 0, 0)),),
            placed=(Placed(group_number(state, (topic_id, 0)), tuple((b, epoch_of(state, b) or 0) for b in brokers)),),
        )
    )


# Promise: security.md#what-a-token-protects
def test_a_tokens_commit_takes_no_replica_out_of_the_isr_of_others(running: Running) -> None:
    """The error says which objects are to be copied where, as for too few replicas."""
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        log.admin.describe_topics()
        before, wanted = isr(log, "billing.x"), held_by_one(log, "billing.x", "a")
        with pytest.raises(NotEnoughReplicas, match="has no access") as caught:
            log.journal.propose(wanted)
        assert caught.value.lacking == {wanted.commit.objects[0].name: (2,)}
        assert isr(log, "billing.x") == before == (1, 2)


def test_it_does_where_all_topics_are_its_own_or_the_token_is_for_all(running: Running) -> None:
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        log.admin.describe_topics()
        log.journal.propose(held_by_one(log, "billing.alone", "b"))
        assert isr(log, "billing.alone") == (1,)
    with connect(running.coordinator.address, ADMIN) as log:
        log.journal.propose(held_by_one(log, "billing.x", "c"))
        assert isr(log, "billing.x") == isr(log, "orders") == (1,)


# Promise: security.md#what-a-token-protects
def test_a_token_does_not_say_that_replicas_of_others_are_late(running: Running) -> None:
    """A commit with acks=1 waits for them; the coordinator judges whether they are late."""
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        log.admin.describe_topics()
        commit = held_by_one(log, "billing.x", "d", ACKS_LEADER)
        log.journal.propose(commit)
        with pytest.raises(AuthorizationFailed, match="the coordinator decides"):
            log.journal.propose(AddPendingCopies(copies=(), late=((commit.commit.objects[0].name, 2),)))
        assert isr(log, "billing.x") == (1, 2)


# Promise: security.md#what-a-token-protects
@pytest.mark.parametrize("acks", [ACKS_ALL, ACKS_LEADER])
def test_copies_that_are_not_there_are_not_believed(running: Running, acks: int) -> None:
    """The check of roots would take their brokers for disks that were set back, and fence them for everybody."""
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        log.admin.describe_topics()
        false = claiming(log, "billing.x", "e", (1, 2), acks)
        with pytest.raises(NotEnoughReplicas, match="broker 1 does not have data/.* with 100 bytes") as caught:
            log.journal.propose(false)
        assert caught.value.lacking == {false.commit.objects[0].name: (1, 2)}
        shorter = held_by_one(log, "billing.alone", "f")
        long = msgspec.structs.replace(shorter.commit, objects=(shorter.commit.objects[0]._replace(size=101),))
        with pytest.raises(NotEnoughReplicas, match="with 101 bytes"):
            log.journal.propose(Append(commit=long))
    with connect(running.coordinator.address, ADMIN) as log:
        assert not Prober(log).round(5_000).fenced
        assert isr(log, "orders") == (1, 2)


# Promise: security.md#what-a-token-protects
def test_a_copy_that_was_not_made_is_not_believed(running: Running) -> None:
    """The replica would leave the ISR of others when somebody finds that it lacks the object."""
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        log.admin.describe_topics()
        log.journal.propose(commit := held_by_one(log, "billing.x", "g", ACKS_LEADER))
        name, epoch = commit.commit.objects[0].name, epoch_of(log.journal.newest, 2) or 0
        made = AddPendingCopies(copies=(Copy(name, 2, epoch),))
        with pytest.raises(InvalidRequest, match=f"broker 2 does not have {name}"):
            log.journal.propose(made)
        log.journal.roots[2].put(name, [b"x" * 100])
        assert log.journal.propose(made)


# Promise: security.md#what-a-token-protects
def test_a_commit_is_believed_while_its_root_does_not_answer(running: Running, tmp_path: Path) -> None:
    """Its broker is fenced before long; until then no more is known than without this check."""
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        log.admin.describe_topics()
        commit = claiming(log, "billing.alone", "h", (1, 2))
        log.journal.roots[2].put(commit.commit.objects[0].name, [b"x" * 100])
        (tmp_path / "broker-1").rename(tmp_path / "away")
        log.journal.propose(commit)


def test_the_isr_is_the_one_of_the_decision(running: Running) -> None:
    """A replica that joins after the request has arrived, and before it is decided, stays in the ISR."""
    grant = Grant("billing", "write", ("billing.",))
    with connect(running.coordinator.address, ADMIN) as log:
        log.journal.propose(first := held_by_one(log, "billing.x", "i"))
        assert isr(log, "orders") == (1,)
        state, name = log.journal.newest, first.commit.objects[0].name
        log.journal.roots[2].put(name, [b"x" * 100])
        group = group_number(state, (state.names["orders"], 0))
        joins = SeveralCommands(
            commands=(
                Report(record=HeldRecord(copies=(Copy(name, 2, epoch_of(state, 2) or 0),))),
                JoinIsr(members=((group, 2),)),
            )
        )
        commit = held_by_one(log, "billing.x", "j")

        def allow(command: Command, state: State) -> None:
            if command is commit:
                check_written(grant, (), command, state)

        answered = running.coordinator.submit([joins, commit], allow).result(30)
        assert isinstance(answered.outcomes[1], NotEnoughReplicas)
        assert isr(log, "orders") == (1, 2)


def test_a_repeat_is_answered_although_its_object_is_gone(running: Running) -> None:
    """Maintenance may have merged it since: nothing is written, so nothing is checked."""
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        log.admin.describe_topics()
        commit = held_by_one(log, "billing.alone", "k")
        first = log.journal.propose(commit)
        log.journal.roots[1].delete([commit.commit.objects[0].name])
        again = log.journal.propose(commit)
        assert again.repeated and again.ranges == first.ranges


def test_a_writer_copies_what_a_replica_has_missed(running: Running, tmp_path: Path) -> None:
    """A root that did not take one object answers again: the record is acknowledged, and nobody has left the ISR.  The
    wait is short, so that the coordinator does not check the root meanwhile.
    """
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        producer = log.producer(delivery_timeout_ms=30_000)
        assert producer.send("billing.x", value=b"1").result(30).offset == 0
        data = next((tmp_path / "broker-2").glob("*/data"))
        shutil.rmtree(data)
        data.write_text("in the way")
        sent = producer.send("billing.x", value=b"2")
        with pytest.raises(TimeoutError):
            sent.result(0.3)  # before the next check of the root
        data.unlink()
        assert sent.result(30).offset == 1
        producer.close()
        assert isr(log, "orders") == (1, 2)


def test_the_leader_of_a_quorum_looks_too(tmp_path: Path) -> None:
    """It checks where it decides."""

    def claim(address: str) -> None:
        with connect(address, ADMIN) as log:
            for broker in (1, 2):
                add_broker(log, broker, str(tmp_path / f"broker-{broker}"))
            create_topic(log, "orders", (1, 2))
            create_topic(log, "billing.x", (1, 2))
        with connect(address, BILLING_TOPICS) as log:
            log.admin.describe_topics()
            with pytest.raises(NotEnoughReplicas, match="broker 1 does not have data/"):
                log.journal.propose(claiming(log, "billing.x", "l", (1, 2)))
            with pytest.raises(NotEnoughReplicas, match="has no access"):
                log.journal.propose(held_by_one(log, "billing.x", "m"))
            assert log.append("billing.x", [{"value": b"1"}])

    async def scenario() -> None:
        node = await start_quorum(replace(one_node(tmp_path), tokens=TOKENS))
        try:
            while not node.coordinator.leading:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(claim, node.coordinator.address)
        finally:
            await node.stop()

    asyncio.run(scenario())
