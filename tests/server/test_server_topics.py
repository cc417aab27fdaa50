"""Clients that hold some topics of a log, through a real coordinator."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import spark_log
from spark_log.client.open_journal import open_journal
from spark_log.errors import AuthenticationFailed
from spark_log.http.address import parse_target
from spark_log.journal.journal import LONG_POLL_MS_MAX, Journal
from spark_log.journal.sealing import seal
from spark_log.journal.store_operations import AskObjects, AskTopics
from spark_log.metadata.projection import Holdings, apply, held_of, nothing_held
from spark_log.metadata.records import Piece
from spark_log.metadata.state import Leadership
from spark_log.rpc.client import HttpLink
from spark_log.rpc.messages import encode
from spark_log.serve.serve import Running
from spark_log.server.large_requests import LARGE_BYTES
from spark_log.server.server import HELD_MAX
from tests.maintenance.logs import maintenance
from tests.processes import Process, eventually, free_port
from tests.server.asking import request
from tests.services import Services

PARTITIONS = 5
"""So that maintenance seals."""


@pytest.fixture
def running(services: Services, tmp_path: Path) -> Running:
    found = services.start(tmp_path / "log")
    with spark_log.connect(f"pylog://{found.coordinator.address}") as log:
        log.admin.create_topics([spark_log.NewTopic(name, PARTITIONS) for name in ("mine", "other")])
    return found


@pytest.fixture
def url(running: Running) -> str:
    return f"pylog://{running.coordinator.address}"


def client(url: str) -> Journal:
    return open_journal(url, create=False, partial=True)


# Promise: service.md#what-a-client-keeps-in-memory
def test_an_acknowledged_change_is_in_a_refreshed_state(url: str) -> None:
    """Of any other client, each time."""
    journal = client(url)
    state = journal.require(["mine"])
    topic_id = state.names["mine"]
    with spark_log.connect(url) as writer:
        for number in range(30):
            writer.append("mine", [{"value": b"x", "partition": 1}])
            assert journal.refresh().partitions[topic_id, 1].end == number + 1
    assert journal.view.held is not None and len(journal.state.partitions) == PARTITIONS


def test_a_waiting_client_is_woken_by_its_topic(url: str) -> None:
    """And not by another one."""
    journal = client(url)
    topic_id = journal.require(["mine"]).names["mine"]
    with spark_log.connect(url) as writer:
        for topic, woken in (("other", False), ("mine", True)):
            append = threading.Timer(0.2, writer.append, (topic, [{"value": b"x", "partition": 0}]))
            append.start()
            before = journal.state.partitions[topic_id, 0]
            journal.wait(0, 1000 if topic == "other" else LONG_POLL_MS_MAX, topics=[topic_id])
            append.join()
            assert (journal.state.partitions[topic_id, 0] != before) == woken


def test_records_whose_slices_are_in_indexes_are_read(url: str, running: Running) -> None:
    """The client asks for the objects of such slices, and keeps its topics."""
    with spark_log.connect(url) as writer:
        for number in range(40):
            writer.append("mine", [{"value": b"%d" % number, "partition": number % PARTITIONS}])
        maintenance(writer.journal, seal)
    log = spark_log.connect(url)
    assert sorted(int(value.as_py()) for value in log.read("mine").column("value")) == list(range(40))
    state = log._journal.state
    entries = [entry for part in state.partitions.values() for entry in part.entries]
    assert any(isinstance(entry, Piece) for entry in entries) and log._journal.view.held is not None
    assert log._journal.object_rows(state, ["data/gone"]) is None
    log.close()


# Promise: service.md#what-a-client-keeps-in-memory
@pytest.mark.parametrize("held", [["wide"], [f"missing-{number}" for number in range(HELD_MAX + 1)]])
def test_a_client_of_very_many_partitions_opens_the_log(url: str, held: list[str]) -> None:
    """It would describe each of them in each request; so would a client of many names without a topic."""
    journal = client(url)
    with spark_log.connect(url) as log:
        log.admin.create_topics([spark_log.NewTopic("wide", HELD_MAX + 1)])
    assert "mine" in journal.require(["mine"]).names and journal.view.held is not None
    journal.require(held)
    assert journal.view.held is None


def test_what_a_client_holds_is_refused_above_the_size_of_a_large_request(running: Running, url: str) -> None:
    """The server keeps it while the request waits."""
    held = bytes(encode(held_of(nothing_held())))
    for padding, status in ((0, 200), (LARGE_BYTES, 400)):
        padded = held[:1] + b" " * padding + held[1:]
        body = b'{"cluster_id":"%s","confirmed":true,"held":%s}' % (running.coordinator.cluster_id.encode(), padded)
        found, answer = request(running.coordinator.address, "POST", "/v1/topics", body)
        assert found == status, answer


def test_a_topic_that_grows_beyond_that_is_followed(url: str) -> None:
    """Also by a client that only waits for its records."""
    journal = client(url)
    topic_id = journal.require(["mine"]).names["mine"]
    with spark_log.connect(url) as log:
        log.admin.create_partitions({"mine": HELD_MAX + 1})
    assert journal.wait(0, 1000, topics=[topic_id]).topics[topic_id].partitions == HELD_MAX + 1
    assert journal.view.held is None


# Promise: service.md#what-a-client-keeps-in-memory
def test_a_standby_answers_with_the_newest_state(services: Services, tmp_path: Path) -> None:
    """Once it has read the log after the request arrived."""
    folder = tmp_path / "log"
    first = Process(folder, free_port())
    try:
        eventually(lambda: first.leads)
        standby = services.start(folder, takeover_ms=600_000)
        with spark_log.connect(f"pylog://{first.address}") as writer:
            writer.append("mine", [{"value": b"x"}])
            link = HttpLink(parse_target(f"pylog://{standby.coordinator.address}"), cluster_id=writer.cluster_id)
            nothing = nothing_held(["mine"])
            found = link.topics(AskTopics(Leadership(), held_of(nothing), confirmed=True))
            writer.append("mine", [{"value": b"y"}])
            again = link.topics(AskTopics(Leadership(), held_of(apply(nothing, found), found.head), confirmed=True))
            assert [part.end for part in found.topics["mine"].partitions] == [1]
            assert [part.end for part in again.topics["mine"].partitions] == [2]
            assert found.whole and not again.whole
            link.close()
        assert not standby.coordinator.leading
    finally:
        first.kill()


def test_a_valid_token_is_required(guarded: str) -> None:
    """As for all that the log contains."""
    link = HttpLink(parse_target(f"pylog://{guarded}"))
    with pytest.raises(AuthenticationFailed):
        link.topics(AskTopics(Leadership(), Holdings(0, "", {}, ())))
    with pytest.raises(AuthenticationFailed):
        link.objects(AskObjects(Leadership(), ["data/x"]))
    link.close()


@pytest.mark.parametrize(
    "held", [None, 1, [], [0, "", {"t": 1}, []], ["x", "", {}, []], [0, "", {"t": ["id", [[1]]]}, []]]
)
def test_what_no_client_has_gets_a_sentence(small: Running, held: object) -> None:
    """With a status of 4xx."""
    asked = {"cluster_id": small.coordinator.cluster_id, "held": held}
    code, answer = request(small.coordinator.address, "POST", "/v1/topics", json.dumps(asked).encode())
    assert code == 400 and "not valid" in answer["message"]
