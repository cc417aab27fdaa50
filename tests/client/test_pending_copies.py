"""Which objects of pending commits show that a replica is late."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_log import Log
from spark_log.client.producer.pending_copies import from_answering
from spark_log.metadata.commits.pending_commits import LackingObject
from spark_log.metadata.replicas.replicas import epoch_of
from tests.replication.replicated_logs import replicated_log

THERE, GONE = "data/0000000000000001/there.seg", "data/0000000000000001/gone.seg"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Broker 1 has one object, and lacks the other one that it should have."""
    log = replicated_log(tmp_path)
    log.journal.roots[1].put(THERE, [b"x" * 100])
    return log


def lacking(log: Log, name: str, *brokers: int) -> LackingObject:
    """An object of which only broker 1 has a copy, as the log knows."""
    epochs = {one: epoch_of(log.journal.newest, one) or 0 for one in (1, *brokers)}
    return LackingObject(name, 100, 1, ((1, epochs[1]),), tuple((one, epochs[one]) for one in brokers))


def test_an_object_that_is_gone_hides_no_other_one(log: Log) -> None:
    """Broker 2 is late with the second one: a false commit would keep it in the ISR, and readers would wait."""
    there, gone = lacking(log, THERE, 2), lacking(log, GONE, 2)
    assert from_answering(log.journal, [gone, there]) == [there]
    assert from_answering(log.journal, [there, gone]) == [there]


def test_an_object_that_is_there_does_not_speak_for_one_that_is_gone(log: Log) -> None:
    """Nobody could copy that one to broker 0, which is not late."""
    there, gone = lacking(log, THERE, 2), lacking(log, GONE, 0)
    assert from_answering(log.journal, [there, gone]) == [there]


def test_nothing_is_known_while_no_root_answers(log: Log, tmp_path: Path) -> None:
    (tmp_path / "broker-1").rename(tmp_path / "away")
    assert from_answering(log.journal, [lacking(log, THERE, 2)]) == []
