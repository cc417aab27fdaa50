"""Copies on the root of a fenced broker, and copies that the state does not know.

The simulation of replicas found both.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_log.errors import NotEnoughReplicas
from spark_log.metadata.commands import Report
from spark_log.metadata.commits.decide_commits import decide_commit
from spark_log.metadata.maintenance.decide_maintenance import bootstrap_records
from spark_log.metadata.records import CommitRecord, Copy, HeldRecord, MissingRecord
from spark_log.metadata.replicas.replica_commands import (
    FenceBroker,
    RegisterBroker,
    ReturnBroker,
)
from spark_log.metadata.replicas.replicas import deficit, holders
from spark_log.metadata.topics.decide_topics import decide_create_topic
from spark_log.model import Placed
from tests.unit.metadata.history import History

GROUP = 1


@pytest.fixture
def topic(log: History) -> str:
    """A topic on brokers 0 and 1."""
    log.write(*bootstrap_records(log.state))
    log.do(RegisterBroker(broker=1, directory="d1", url="file:///one"))
    log.do(lambda state, now: decide_create_topic(state, "t", 1, {}, "id", replication_factor=2))
    return "id"


def test_a_copy_of_a_fenced_broker_does_not_count(log: History, topic: str) -> None:
    """Its root was listed for its return, and lost the copy before; the commit comes between the listing and the
    return, which does not know of it."""
    epoch = log.state.brokers[1].epoch
    commit = _placed(log.upload((topic, 0, 1)), (0, 0), (1, epoch))
    log.do(FenceBroker(broker=1, epoch=epoch))
    log.do(lambda state, now: decide_commit(state, commit))
    log.do(ReturnBroker(broker=1, epoch=epoch))
    assert log.state.placement_groups[GROUP].isr == (0,)
    assert deficit(log.state, GROUP, 1).objects == 1


def test_a_commit_of_which_only_a_fenced_broker_has_a_copy_is_tried_again(log: History, topic: str) -> None:
    """The committer copies what the ISR lacks."""
    epoch = log.state.brokers[1].epoch
    commit = _placed(log.upload((topic, 0, 1)), (1, epoch))
    log.do(FenceBroker(broker=1, epoch=epoch))
    with pytest.raises(NotEnoughReplicas) as refused:
        log.do(lambda state, now: decide_commit(state, commit))
    assert refused.value.lacking == {commit.objects[0].name: (0,)}


def test_a_copy_that_was_made_while_the_broker_was_fenced_is_not_recorded(log: History, topic: str) -> None:
    """The replicator copies it again after the return."""
    epoch = log.state.brokers[1].epoch
    commit = _placed(log.upload((topic, 0, 1)), (0, 0))
    log.do(lambda state, now: decide_commit(state, commit))
    log.do(FenceBroker(broker=1, epoch=epoch))
    assert not log.do(Report(record=HeldRecord(copies=(Copy(commit.objects[0].name, 1, epoch),))))


def test_other_replicas_are_read_at_last(log: History, topic: str) -> None:
    """A late report of a damaged copy takes one away that was repaired meanwhile; then the other copies are lost."""
    epoch = log.state.brokers[1].epoch
    commit = _placed(log.upload((topic, 0, 1)), (0, 0), (1, epoch))
    log.do(lambda state, now: decide_commit(state, commit))
    log.do(Report(record=MissingRecord(copies=(Copy(commit.objects[0].name, 0, 0),))))
    assert holders(log.state, log.state.objects[commit.objects[0].name]) == (1, 0, 1)


def _placed(commit: CommitRecord, *held: tuple[int, int]) -> CommitRecord:
    return replace(commit, placed=(Placed(GROUP, held),))
