"""Consumers of thousands of topics, and servers that do not support what a client sends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import InvalidRequest
from spark_log.http.address import Target
from spark_log.http.failures import Failure
from spark_log.journal.store_operations import AskChanges
from spark_log.metadata.state import Leadership as Holder
from spark_log.rpc.client import HttpLink
from spark_log.rpc.messages import PROTOCOL, ClusterInfo, encode
from tests.services import Services

TOPICS = 3000


def test_a_consumer_of_3000_topics_polls_and_is_woken(services: Services, tmp_path: Path) -> None:
    """It waits for records of all its topics, and receives one that is appended meanwhile."""
    url = services.url(tmp_path / "log")
    with spark_log.connect(url) as log, spark_log.connect(url) as other:
        names = [f"t{number}" for number in range(TOPICS)]
        log.admin.create_topics([spark_log.NewTopic(name) for name in names])
        with log.consumer(*names) as consumer:
            assert consumer.poll(0) == {}
            appended = threading.Timer(0.5, other.append, (names[-1], [{"value": b"x"}]))
            appended.start()
            (records,) = consumer.poll(60_000).values()
            assert [record.value for record in records] == [b"x"]
            appended.join()


class Older(BaseHTTPRequestHandler):
    """A coordinator that takes requests for changes without a body only."""

    def do_GET(self) -> None:
        found = ClusterInfo(pylog=2, cluster_id="c", storage="s", leading=True, address="a", epoch=1, version=1)
        self._reply(200, encode(found))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(405, encode(Failure(error="InvalidRequest", message="/v1/changes: use GET, not POST")))

    def _reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def older() -> Iterator[str]:
    """Address of an older coordinator."""
    server = HTTPServer(("127.0.0.1", 0), Older)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_coordinator_of_an_older_version_is_named_as_such(older: str) -> None:
    """The error says which request it does not support, and what to do."""
    link = HttpLink(Target((older,)))
    with pytest.raises(InvalidRequest, match=f"{older} does not support POST /v1/changes.*update the older one"):
        link.changes(AskChanges(Holder(), 1))
    link.close()


def test_a_coordinator_that_does_not_know_the_topics_of_records_without_a_key_is_refused(older: str) -> None:
    """It would refuse each append of such records: the client says which of the two to update."""
    assert PROTOCOL == 4
    link = HttpLink(Target((older,)))
    with pytest.raises(InvalidRequest, match=f"{older} uses protocol version 2, this pylog 4: update the older one"):
        link.info()
    link.close()
