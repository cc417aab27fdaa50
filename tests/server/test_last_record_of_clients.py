"""Requests of clients whose last record a coordinator does not have: its log is a restored copy."""

from __future__ import annotations

import pytest

import spark_log
from spark_log.journal.store_operations import AskChanges, Changes
from spark_log.metadata.state import State
from spark_log.rpc.client import HttpLink
from spark_log.rpc.messages import CommandsRequest, encode
from spark_log.serve.serve import Running
from tests.server.asking import request


@pytest.fixture
def log(small: Running) -> spark_log.Log:
    """A client that knows the coordinator's last two records."""
    log = spark_log.connect(f"pylog://{small.coordinator.address}")
    for _ in range(2):
        log.append("t", [{"value": b"x"}])
    return log


def changes(log: spark_log.Log, since: int, head: bytes) -> Changes:
    state: State = log.journal.state
    assert isinstance(log.journal.link, HttpLink)
    return log.journal.link.changes(AskChanges(state.coordinator, since, head=head))


def test_the_records_after_a_record_of_the_coordinator_are_sent(small: Running, log: spark_log.Log) -> None:
    """Also to a client that does not know its last record's first line, after it opened the log at a checkpoint."""
    version = log.journal.refresh().version
    own = small.coordinator.tail.records.head(version - 1)
    for head in (own, b""):
        reply = changes(log, version - 1, head)
        assert (reply.version, len(reply.batches), reply.lacks_head) == (version, 1, False)


# Promise: copies.md#restore-a-log-from-a-copy
def test_the_records_after_another_record_are_not_sent(small: Running, log: spark_log.Log) -> None:
    """They do not follow the client's state; nor with the reply to its commands."""
    version = log.journal.refresh().version
    reply = changes(log, version - 1, b"another")
    assert (list(reply.batches), reply.lacks_head) == ([], True)
    assert changes(log, version, b"another").lacks_head
    for head, count in (("another", 0), ("", 1)):
        asked = CommandsRequest(cluster_id=log.journal.cluster_id, since=version - 1, head=head, commands=())
        _, answered = request(small.coordinator.address, "POST", "/v1/commands", encode(asked))
        assert len(answered.get("batches", [])) == count


def test_records_after_one_that_the_coordinator_does_not_remember_are_read_from_the_storage(
    small: Running, log: spark_log.Log
) -> None:
    """The storage shows whether they follow."""
    version = log.journal.refresh().version
    small.coordinator.tail.records.forget()
    log.append("t", [{"value": b"y"}])
    reply = changes(log, version, b"forgotten")
    assert (reply.version, list(reply.batches), reply.lacks_head) == (version + 1, [], False)


def test_a_leader_does_not_have_records_after_its_last_one(log: spark_log.Log) -> None:
    """A client that is ahead of it learns that when its wait is over."""
    assert changes(log, log.journal.refresh().version + 1, b"").lacks_head
