"""A token for some topics changes no replicas that topics of others use too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_log import Log
from spark_log.errors import AuthorizationFailed, NotEnoughReplicas
from spark_log.metadata.commands import Append
from spark_log.metadata.records import CommitRecord
from spark_log.metadata.replica_commands import AddPendingCopies
from spark_log.metadata.replicas import epoch_of, group_at, group_number
from spark_log.model import ACKS_ALL, ACKS_LEADER, DataObject, Placed, Run
from spark_log.node.serve import Running
from tests.net.asking import ADMIN, BILLING_TOPICS, TOKENS, connect
from tests.node.replicated_logs import create_topic, replicated_log
from tests.services import Services


@pytest.fixture
def running(services: Services, tmp_path: Path) -> Running:
    """Of a log with two brokers, with a topic of each tenant on both, and one of billing alone on other replicas."""
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
    """A commit that says that only broker 1 has its object."""
    state = log.journal.refresh()
    topic_id = state.names[topic]
    made = DataObject(f"data/{state.version:016x}/{name}", 100, 90)
    return Append(
        commit=CommitRecord(
            producer=name,
            sequence=0,
            birth=state.version,
            upload_epoch=state.version,
            acks=acks,
            objects=(made,),
            slices=((0, Run(topic_id, 0, 0, 90, 1, 1, 1, 0, 0)),),
            placed=(Placed(group_number(state, (topic_id, 0)), ((1, epoch_of(state, 1) or 0),)),),
        )
    )


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


def test_a_token_does_not_say_that_replicas_of_others_are_late(running: Running) -> None:
    """A commit with acks=1 waits for them; the coordinator judges whether they are late."""
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        log.admin.describe_topics()
        commit = held_by_one(log, "billing.x", "d", ACKS_LEADER)
        log.journal.propose(commit)
        with pytest.raises(AuthorizationFailed, match="the coordinator decides"):
            log.journal.propose(AddPendingCopies(copies=(), late=((commit.commit.objects[0].name, 2),)))
        assert isr(log, "billing.x") == (1, 2)


def test_a_writer_copies_what_a_replica_has_missed(running: Running, tmp_path: Path) -> None:
    """A root that did not take one object answers again: the record is acknowledged, and nobody has left the ISR."""
    with connect(running.coordinator.address, BILLING_TOPICS) as log:
        producer = log.producer(delivery_timeout_ms=30_000)
        assert producer.send("billing.x", value=b"1").result(30).offset == 0
        data = next((tmp_path / "broker-2").glob("*/data"))
        shutil.rmtree(data)
        data.write_text("in the way")
        sent = producer.send("billing.x", value=b"2")
        with pytest.raises(TimeoutError):
            sent.result(1)
        data.unlink()
        assert sent.result(30).offset == 1
        producer.close()
        assert isr(log, "orders") == (1, 2)
