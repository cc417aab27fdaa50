"""Standbys that answer requests for changes: real processes, of which the leader is stopped or killed."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_log
from spark_log.metadata.commands import SetConfigs
from spark_log.rpc.messages import ChangesRequest, CommandsRequest, encode
from spark_log.server.leader_check import STALE_S
from spark_log.store.object_names import CHECKPOINTS
from tests.processes import ControlledProcess, Process, eventually, free_port
from tests.server.asking import request

LONG = "10m"
"""Nobody takes over during a test."""


class Pair:
    """A coordinator that leads, and a standby whose storage the test controls."""

    def __init__(self, folder: Path, takeover: str) -> None:
        self.folder = folder / "log"
        self.leader = Process(self.folder, free_port())
        eventually(lambda: self.leader.leads)
        self._port, self._control, self._takeover = free_port(), folder / "control", takeover
        self.standby = self._new_standby()
        self.cluster_id = self.leader.health()[1].cluster_id

    def _new_standby(self) -> ControlledProcess:
        return ControlledProcess(self.folder, self._port, self._control, takeover=self._takeover, storage_timeout=LONG)

    def restart_standby(self) -> None:
        self.standby.kill()
        self.standby = self._new_standby()

    @property
    def url(self) -> str:
        return f"pylog://{self.leader.address},{self.standby.address}"

    def ask_standby(self, since: int, wait_ms: int = 0, *, standby: bool = True) -> tuple[int, dict[str, object]]:
        asked = ChangesRequest(cluster_id=self.cluster_id, since=since, wait_ms=wait_ms, standby=standby)
        return request(self.standby.address, "POST", "/v1/changes", encode(asked))

    def end(self) -> None:
        self.leader.kill()
        self.standby.kill()


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    found = Pair(tmp_path, getattr(request, "param", LONG))
    yield found
    found.end()


def long_polls(process: Process) -> float:
    with urllib.request.urlopen(f"http://{process.address}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("pylog_long_polls ")))


# Promise: service.md#failover
def test_a_standby_answers_for_changes_and_refuses_everything_else(pair: Pair) -> None:
    """With the records themselves, soon after they were committed; changes are refused with the leader's address."""
    with spark_log.connect(pair.url) as log:
        log.append("t", [{"value": b"x"}])
        known = log.journal.state.version
        eventually(lambda: pair.ask_standby(0)[1].get("version") == known)
        threading.Timer(0.5, log.append, ("t", [{"value": b"y"}])).start()
        began = time.monotonic()
        status, reply = pair.ask_standby(known, 30_000)
        assert (status, reply["version"]) == (200, known + 1) and time.monotonic() - began < 15
        (batch,) = reply["batches"]  # type: ignore[misc]
        assert '"type":"commit"' in batch
        status, refusal = pair.ask_standby(known, standby=False)
        assert status == 503 and refusal["fields"]["address"] == pair.leader.address  # type: ignore[index]
        asked = CommandsRequest(cluster_id=pair.cluster_id, since=known, commands=())
        status, refusal = request(pair.standby.address, "POST", "/v1/commands", encode(asked))
        assert status == 503 and refusal["fields"]["address"] == pair.leader.address  # type: ignore[index]
        status, refusal = request(pair.standby.address, "GET", f"/v1/groups?cluster_id={pair.cluster_id}")
        assert status == 503 and refusal["error"] == "NotCoordinator"


# Promise: service.md#failover
def test_a_standby_that_is_behind_does_not_lead_clients_back(pair: Pair) -> None:
    """Its reply has the version that the client has, when the wait is over."""
    ahead = pair.leader.health()[1].version + 1000
    status, reply = pair.ask_standby(ahead, 300)
    assert (status, reply["version"], reply.get("batches", [])) == (200, ahead, [])


# Promise: service.md#failover
def test_a_standby_that_cannot_read_the_log_does_not_answer_for_it(pair: Pair) -> None:
    """After ten seconds.  It answers again as soon as it has read the log."""
    eventually(lambda: pair.ask_standby(0)[0] == 200)
    pair.standby.storage("hang")
    began = time.monotonic()
    eventually(lambda: pair.ask_standby(0)[0] == 503)
    assert STALE_S - 3 < time.monotonic() - began < STALE_S + 15
    pair.standby.storage("")
    eventually(lambda: pair.ask_standby(0)[0] == 200)


# Promise: measurements-alone.md#a-standby-for-readers, service.md#failover
@pytest.mark.parametrize("trouble", ["stopped", "killed"])
def test_readers_wait_at_a_standby_while_no_leader_answers(pair: Pair, trouble: str) -> None:
    """Instead of polling the storage."""
    with spark_log.connect(pair.url) as log, log.consumer("t", auto_offset_reset="earliest") as consumer:
        log.append("t", [{"value": b"x"}])
        assert next(consumer).value == b"x"
        pair.leader.stop() if trouble == "stopped" else pair.leader.kill()
        done = threading.Event()

        def poll() -> None:
            while not done.is_set():
                consumer.poll(2000)

        reading = threading.Thread(target=poll)
        reading.start()
        eventually(lambda: long_polls(pair.standby) >= 1, 40)
        done.set()
        reading.join(30)
        if trouble == "stopped":
            pair.leader.go_on()


# Promise: service.md#failover
@pytest.mark.parametrize("pair", ["6s"], indirect=True)
def test_a_reader_follows_from_the_leader_to_the_next_one(pair: Pair) -> None:
    """No version is seen twice or backwards, and no record is lost, also when the first leader continues."""
    with spark_log.connect(pair.url) as log, spark_log.connect(pair.url) as writer:
        writer.append("t", [{"value": b"0"}])
        versions, received, done = [0], list[bytes](), threading.Event()

        def read() -> None:
            with log.consumer("t", auto_offset_reset="earliest") as consumer:
                while not done.is_set():
                    for records in consumer.poll(500).values():
                        received.extend(record.value for record in records if record.value is not None)
                    versions.append(log.journal.state.version)

        reading = threading.Thread(target=read)
        reading.start()
        eventually(lambda: len(received) == 1)
        pair.leader.stop()
        writer.append("t", [{"value": b"1"}])
        eventually(lambda: len(received) == 2)
        assert pair.standby.leads
        pair.leader.go_on()
        eventually(lambda: not pair.leader.leads)
        writer.append("t", [{"value": b"2"}])
        eventually(lambda: len(received) == 3)
        done.set()
        reading.join(30)
        assert received == [b"0", b"1", b"2"] and versions == sorted(versions)


def test_a_standby_that_has_seen_no_change_since_its_start_answers_for_those_before(pair: Pair) -> None:
    """A reader that is behind gets its records, although nothing is written any more."""
    with (
        spark_log.connect(pair.url) as log,
        spark_log.connect(pair.url) as writer,
        log.consumer("t", auto_offset_reset="earliest") as consumer,
    ):
        writer.append("t", [{"value": b"x"}])
        assert next(consumer).value == b"x"
        writer.journal.propose(SetConfigs(name=None, changes={"metadata.checkpoint.interval": "1"}))
        writer.append("t", [{"value": b"y"}])
        version = writer.journal.state.version
        eventually(lambda: list((pair.folder / CHECKPOINTS).glob(f"{version:020}-*")))
        pair.restart_standby()  # it opens the log from the checkpoint, and reads no record
        eventually(lambda: pair.ask_standby(0)[0] == 200)
        pair.leader.stop()
        received = list[bytes | None]()
        eventually(lambda: received.extend(r.value for rs in consumer.poll(500).values() for r in rs) or received, 40)
        assert received == [b"y"]
        pair.leader.go_on()
