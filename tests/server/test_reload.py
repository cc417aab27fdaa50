"""SIGHUP: `pylog serve` reads tokens, quotas and certificate again, and nobody else notices."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import spark_log
from spark_log.errors import AuthenticationFailed, AuthorizationFailed, SparkLogError
from spark_log.groups.messages import HeartbeatRequest
from spark_log.http.address import parse_target
from spark_log.journal.store_operations import AskChanges
from spark_log.quorum.node.directory import format_directory
from spark_log.quorum.node.vote_and_identity import Meta
from spark_log.rpc.client import HttpLink
from tests.processes import Process, free_port
from tests.server.asking import ADMIN, READ, WRITE, eventually, make_certificate
from tests.server.test_tenants import write

OTHER = "another-token-of-the-tests"


class Reloading:
    """A process with a configuration that changes."""

    def __init__(self, folder: Path, text: str) -> None:
        self.conf, self.said = folder / "coordinator.ini", folder / "said"
        self.conf.write_text(text)
        self.process = Process(folder / "log", free_port(), "--conf", str(self.conf), stderr=self.said)
        self.address = self.process.address
        self._count = 0

    def reload(self, text: str) -> str:
        """Load another configuration and return its log lines."""
        self.conf.write_text(text)
        self._count += 1
        self.process.reload()
        eventually(lambda: len(self._lines()) == self._count)
        return self._lines()[-1]

    def _lines(self) -> list[str]:
        return [
            line for line in self.said.read_text().splitlines(keepends=True) if "SIGHUP" in line and line[-1] == "\n"
        ]


def tokens(**tokens: str) -> str:
    return "[groups]\ninitial.rebalance.delay = 1ms\n[tokens]\n" + "".join(
        f"{name} = {text}\n" for name, text in tokens.items()
    )


@pytest.fixture
def reloading(tmp_path: Path) -> Iterator[Reloading]:
    found = Reloading(tmp_path, tokens(writer=f"write {WRITE}", reader=f"read {READ}", boss=f"admin {ADMIN}"))
    yield found
    assert found.process.terminate() == 0


def link_of(address: str, token: str, log: spark_log.Log) -> HttpLink:
    return HttpLink(parse_target(f"pylog://{address}"), token, log.cluster_id)


# Promise: security.md#change-tokens-and-certificates
def test_tokens_are_read_again(reloading: Reloading) -> None:
    """A new token is valid, a removed one invalid, a changed role applies; clients with other tokens continue."""
    url = f"pylog://{reloading.address}"
    with spark_log.connect(url, token=ADMIN) as boss, spark_log.connect(url, token=WRITE) as writer:
        writer.append("t", [{"value": b"x"}])
        boss.append("t", [{"value": b"x"}])
        with pytest.raises(AuthenticationFailed):
            spark_log.connect(url, token=OTHER)
        said = reloading.reload(tokens(other=f"write {OTHER}", reader=f"write {READ}", boss=f"read {ADMIN}"))
        assert "INFO SIGHUP: tokens (other, reader, boss)" in said
        with pytest.raises(AuthenticationFailed):
            writer.append("t", [{"value": b"x"}])
        with pytest.raises(AuthorizationFailed, match="has the role read"):
            boss.append("t", [{"value": b"x"}])
        for token in (OTHER, READ):
            with spark_log.connect(url, token=token) as log:
                log.append("t", [{"value": b"x"}])
        assert boss.read("t").num_rows == 4


# Promise: security.md#change-tokens-and-certificates
def test_a_token_that_is_replaced_under_its_name_is_the_same_writer(reloading: Reloading) -> None:
    """A batch of a query is a repeat for the new token, and not for one with another name."""
    url = f"pylog://{reloading.address}"
    with spark_log.connect(url, token=WRITE) as log:
        log.append("t", [{"value": b"x"}])
        before = write(log, "query:q", 3, "t")
    reloading.reload(tokens(writer=f"write {OTHER}", boss=f"admin {ADMIN}"))
    with spark_log.connect(url, token=OTHER) as log:
        again = write(log, "query:q", 3, "t")
        assert again.repeated and again.ranges == before.ranges
    reloading.reload(tokens(renamed=f"write {OTHER}", boss=f"admin {ADMIN}"))
    with spark_log.connect(url, token=OTHER) as log:
        assert not write(log, "query:q", 3, "t").repeated


# Promise: security.md#change-tokens-and-certificates
def test_connections_go_on(reloading: Reloading) -> None:
    """The same socket is good before and after."""
    host, _, port = reloading.address.partition(":")
    asked = f"GET /v1/cluster HTTP/1.1\r\nHost: {reloading.address}\r\nAuthorization: Bearer {ADMIN}\r\n\r\n".encode()
    with socket.create_connection((host, int(port)), 10) as connection:
        for _ in range(2):
            connection.sendall(asked)
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
            reloading.reload(tokens(boss=f"admin {ADMIN}"))


# Promise: security.md#change-tokens-and-certificates
def test_requests_that_wait_under_a_revoked_token_end(reloading: Reloading) -> None:
    """A long poll and a heartbeat are refused; those of other tokens wait on."""
    url = f"pylog://{reloading.address}"
    with spark_log.connect(url, token=ADMIN) as log, ExitStack() as opened:
        log.append("t", [{"value": b"x"}])
        for token in (READ, WRITE):
            reader = opened.enter_context(spark_log.connect(url, token=token))
            opened.enter_context(reader.consumer("t", group_id=token)).poll(5000)
        holder, version = log.journal.state.coordinator, log.journal.state.version + 1000
        links = {token: link_of(reloading.address, token, log) for token in (READ, WRITE)}
        found: dict[str, list[object]] = {READ: [], WRITE: []}

        def wait(token: str) -> None:
            try:
                found[token].append(links[token].changes(AskChanges(holder, version, wait_ms=60_000)))
            except SparkLogError as error:
                found[token].append(error)

        threads = [threading.Thread(target=wait, args=(token,), daemon=True) for token in found]
        for thread in threads:
            thread.start()
        eventually(lambda: b"pylog_long_polls 2" in metrics(reloading.address, ADMIN))
        reloading.reload(tokens(boss=f"admin {ADMIN}", writer=f"write {WRITE}"))
        threads[0].join(20)
        assert [type(one) for one in found[READ]] == [AuthenticationFailed]
        assert not found[WRITE]
        with closing(links[READ]), pytest.raises(AuthenticationFailed):
            links[READ].ask_group(holder, HeartbeatRequest(group_id="g", member_id="m", generation_id=1), 0)
    eventually(lambda: b"pylog_long_polls 2" not in metrics(reloading.address, ADMIN))


def metrics(address: str, token: str) -> bytes:
    host, _, port = address.partition(":")
    head = f"GET /metrics HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(head.encode())
        data = b""
        while part := connection.recv(65536):
            data += part
    return data


# Promise: security.md#change-tokens-and-certificates
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tokens]\nboss = owner x\n", "boss has the unknown role 'owner'"),
        ("[token]\n", "unknown section [token]"),
        ("nonsense", "cannot be read"),
        ("", "removing the last token requires a restart"),
        (
            "[tls]\ncertificate = /no/such\nkey = /no/such\n" + tokens(boss=f"admin {ADMIN}"),
            "enabling or disabling TLS requires a restart",
        ),
        (tokens(boss=f"admin {ADMIN}") + "[quotas]\nother = topics=1\n", "no token is called 'other'"),
    ],
)
def test_a_configuration_that_cannot_be_used_changes_nothing(reloading: Reloading, text: str, message: str) -> None:
    """And is named in the log."""
    said = reloading.reload(text)
    assert "ERROR SIGHUP: tokens, quotas and certificate are unchanged" in said and message in said
    with spark_log.connect(f"pylog://{reloading.address}", token=WRITE) as log:
        log.append("t", [{"value": b"x"}])


# Promise: security.md#change-tokens-and-certificates
def test_certificates_are_read_again(tmp_path: Path) -> None:
    """New connections get the new one, open ones continue; a certificate that does not fit its key changes nothing."""
    files = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        files.append(make_certificate(tmp_path / name))

    def text(certificate: str, key: str) -> str:
        return f"[tls]\ncertificate = {certificate}\nkey = {key}\n" + tokens(writer=f"write {WRITE}")

    def shown() -> str:
        host, _, port = reloading.address.partition(":")
        return ssl.get_server_certificate((host, int(port)))

    reloading = Reloading(tmp_path, text(*files[0]))
    with spark_log.connect(f"pylog://{reloading.address}?ca={files[0][0]}", token=WRITE) as log:
        log.append("t", [{"value": b"x"}])
        assert "INFO SIGHUP" in reloading.reload(text(*files[1]))
        assert shown() == Path(files[1][0]).read_text()
        log.append("t", [{"value": b"x"}])
    assert "ERROR SIGHUP" in reloading.reload(text(files[0][0], files[1][1]))
    with spark_log.connect(f"pylog://{reloading.address}?ca={files[1][0]}", token=WRITE) as log:
        log.append("t", [{"value": b"x"}])
    assert reloading.process.terminate() == 0


# Promise: quorum.md#stop-restart-and-update-nodes
def test_the_certificates_of_a_node_are_read_again(tmp_path: Path) -> None:
    """Of the port for the other nodes; a certificate that does not fit its key changes nothing."""
    files = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        files.append(make_certificate(tmp_path / name))
    meta = Meta(cluster_id="a-cluster", node_id=1, directory_id="directory-1")
    format_directory(str(tmp_path / "quorum"), meta, (meta.key,))
    address = ("127.0.0.1", free_port())

    def text(certificate: str, key: str) -> str:
        quorum = f"[quorum]\ndirectory = {tmp_path}/quorum\nlisten = {address[0]}:{address[1]}\n"
        return quorum + f"certificate = {certificate}\nkey = {key}\nca = {certificate}\n"

    reloading = Reloading(tmp_path, text(*files[0]))
    assert "INFO SIGHUP" in reloading.reload(text(*files[1]))
    assert ssl.get_server_certificate(address) == Path(files[1][0]).read_text()
    said = reloading.reload(text(files[0][0], files[1][1]))
    assert "ERROR SIGHUP" in said and f"certificate {files[0][0]} and key {files[1][1]} cannot be used" in said
    assert "enabling or disabling TLS requires a restart" in reloading.reload(text("", "").replace("ca = ", ""))
    assert ssl.get_server_certificate(address) == Path(files[1][0]).read_text()
    assert reloading.process.terminate() == 0
