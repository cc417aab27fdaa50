"""Unknown requests and requests for others are refused; and with `ca`, nothing is sent in plaintext."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import spark_log
from spark_log.display.health import holder_checks
from spark_log.errors import AuthenticationFailed, AuthorizationFailed, CoordinatorNotAvailable, InvalidRequest
from spark_log.groups.messages import JoinGroupRequest, MemberProtocol
from spark_log.groups.subscription import Subscription, encode
from spark_log.http.address import is_loopback, is_own_host, parse_target, this_host
from spark_log.journal.store_operations import Ask
from spark_log.metadata.commands import CreateTopic
from spark_log.metadata.state import Leadership as Holder
from spark_log.rpc.client import HttpLink
from spark_log.serve.serve import Running, leader_status
from spark_log.server.coordinator import LeaderStatus
from tests.logged import logged
from tests.server.asking import (
    ADMIN,
    BILLING,
    BILLING_TOPICS,
    TOKENS,
    WRITE,
    connect,
    eventually,
    make_certificate,
    raw,
    request,
)
from tests.services import Services

# ------------------------------------------------------------------------------------------------------------------- TLS


class Listener:
    """Accepts connections, and keeps what is said first on each."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(10)
                self.heard.append(connection.recv(1000))

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener()) as found:
        yield found


@pytest.fixture
def encrypted(services: Services, tmp_path: Path, certificate: tuple[str, str]) -> Iterator[Running]:
    running = services.start(tmp_path / "log", certificate=certificate[0], key=certificate[1], tokens=TOKENS)
    yield running
    services.stop(running)


def is_tls(said: bytes) -> bool:
    """The first record of a handshake."""
    return said[:2] == b"\x16\x03"


# Promise: security.md#tokens-and-tls
def test_with_ca_the_holder_that_the_log_names_is_asked_by_tls(
    listener: Listener, encrypted: Running, certificate: tuple[str, str]
) -> None:
    """A writer of the log can name any address in it: a change and its rows' names are not sent there in plaintext."""
    link = HttpLink(parse_target(f"pylog://{encrypted.coordinator.address}?ca={certificate[0]}"), WRITE)
    link.cluster_id = encrypted.coordinator.cluster_id
    services_down = HttpLink(parse_target(f"pylog://127.0.0.1:1?ca={certificate[0]}"), WRITE, link.cluster_id)
    holder = Holder(1, listener.address, this_host())
    with pytest.raises(CoordinatorNotAvailable):
        services_down.ask(Ask(holder, [CreateTopic(name="x", partitions=1, topic_id="x")], 0))
    assert listener.heard and all(map(is_tls, listener.heard))
    for one in (link, services_down):
        one.close()


# Promise: security.md#tokens-and-tls
def test_with_ca_an_address_that_hangs_up_is_not_asked_whether_it_is_kafka(
    listener: Listener, certificate: tuple[str, str]
) -> None:
    """The question is plaintext, too."""
    with pytest.raises(CoordinatorNotAvailable):
        spark_log.connect(f"pylog://{listener.address}?ca={certificate[0]}", token=WRITE)
    assert listener.heard and all(map(is_tls, listener.heard))


# Promise: security.md#tokens-and-tls
def test_the_health_of_a_holder_is_asked_by_tls(
    listener: Listener, certificate: tuple[str, str], tmp_path: Path
) -> None:
    """By `pylog cluster health`, with `ca` in the URL; without, both ways are tried."""
    with spark_log.connect(str(tmp_path / "log"), durability="os") as log:
        log.journal.take_over(0, listener.address, this_host())
        for url, said in ((f"pylog://127.0.0.1:1?ca={certificate[0]}", [True]), (log.url, [False, True])):
            listener.heard.clear()
            assert not any(check.healthy for check in holder_checks(log, url, []))
            assert [is_tls(first) for first in listener.heard] == said


# Promise: security.md#tokens-and-tls
@pytest.mark.parametrize("whose", ["its authority", "another"])
def test_a_standby_with_ca_believes_only_a_good_certificate(
    services: Services, tmp_path: Path, certificate: tuple[str, str], whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator that has the log and cannot prove who it is counts as silent."""
    tls = {"certificate": certificate[0], "key": certificate[1], "tokens": TOKENS}
    first = services.start(tmp_path / "log", **tls)
    eventually(lambda: first.coordinator.leading)
    (tmp_path / "other").mkdir()
    ca = certificate[0] if whose == "its authority" else make_certificate(tmp_path / "other")[0]
    url = str(tmp_path / "log")
    second = services.start(tmp_path / "second", url=url, ca=ca, takeover_ms=1, storage_timeout_ms=60_000, **tls)
    if whose == "its authority":
        held = first.coordinator.state.coordinator
        assert leader_status(held, True, ca) is LeaderStatus.LEADS
        eventually(lambda: second.coordinator.state.coordinator == held)
    else:
        eventually(lambda: second.coordinator.leading)
        assert logged(caplog, "its certificate is invalid")
    services.stop(second)
    services.stop(first)


# ----------------------------------------------------------------------------------------------------------------- groups

SUBSCRIPTION = encode(Subscription(topics=("billing.invoices",)))
SECRET = encode(Subscription(topics=("secret",)))


@pytest.mark.parametrize(
    ("kind", "metadata"),
    [
        ("consumer", (b"\x00\x01 of another client",)),
        ("consumer", (SUBSCRIPTION, b"")),
        ("consumer", (SUBSCRIPTION, b'{"topics": "secret"}')),
        ("connect", (SUBSCRIPTION,)),
        ("", (SUBSCRIPTION,)),
        ("consumer", (SUBSCRIPTION, SECRET)),
    ],
)
def test_a_join_whose_topics_cannot_be_read_is_refused_for_a_token_with_prefixes(
    guarded: str, kind: str, metadata: tuple[bytes, ...]
) -> None:
    """It could be for any topic.  A token for all topics needs no such check."""
    protocols = tuple(MemberProtocol(f"p{number}", data) for number, data in enumerate(metadata))
    asked = JoinGroupRequest(
        group_id="billing.spies",
        session_timeout_ms=6000,
        rebalance_timeout_ms=6000,
        protocol_type=kind,
        protocols=protocols,
    )
    eventually(lambda: request(guarded, "GET", "/health")[1]["leading"])
    with connect(guarded, ADMIN) as log:
        held = log.journal.state.coordinator
        for token in (BILLING, BILLING_TOPICS):
            link = HttpLink(parse_target(f"pylog://{guarded}"), token, log.cluster_id)
            with closing(link), pytest.raises(AuthorizationFailed, match="which topics it is for|'secret'"):
                link.ask_group(held, asked, 0)
        with closing(HttpLink(parse_target(f"pylog://{guarded}"), WRITE, log.cluster_id)) as link:
            link.ask_group(held, asked, 0)
        assert "billing.spies" not in log.journal.state.groups


# ------------------------------------------------------------------------------------------------------------------ bytes


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the server and its loop."""
    found = [
        record for record in caplog.records if record.name in {"asyncio", "spark_log.http"} or record.module == "server"
    ]
    return [record.getMessage() for record in found if record.exc_info]


@pytest.mark.parametrize(
    "value", [b"Bearer \xff\xfe\xfd-not-utf-8-at-all", b"\xc3\x28 x", b"Bearer \xed\xa0\x80", b"Bearer"]
)
def test_a_token_that_is_not_utf_8_is_not_known(guarded: str, value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Status 401 with a sentence, and no traceback in the log."""
    with caplog.at_level(logging.ERROR):
        answer = raw(
            guarded, b"GET /v1/cluster HTTP/1.1\r\nHost: x\r\nAuthorization: " + value + b"\r\n\r\n", ended=False
        )
    assert answer.startswith(b"HTTP/1.1 401") and b"token" in answer
    assert not tracebacks(caplog)


def test_a_clients_token_is_one_word(guarded: str) -> None:
    """A line break would begin another header; one at the end of a file is removed.  Any letters are allowed."""
    for wrong in ("", " ", "two words", "x\r\nHost: y", "x\0"):
        with pytest.raises(InvalidRequest, match="token: it is empty, or contains white space"):
            connect(guarded, wrong or "\n")
    with pytest.raises(AuthenticationFailed, match="does not know this token"):
        connect(guarded, "schlüssel-ключ-鍵")
    connect(guarded, WRITE + "\n").close()


def test_a_refused_token_is_named_by_where_it_is_from(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the coordinator that has refused it, and without the token."""
    given = "the token is from the option token, a token=… in Python, or a profile"
    for variables, token, said in (
        ({}, "wrong-token-1", given),
        ({"PYLOG_TOKEN": "wrong-token-2\n"}, None, "the token is from PYLOG_TOKEN"),
        ({"PYLOG_SOURCE_TOKEN": "wrong-token-3"}, "wrong-token-3", "the token is from PYLOG_SOURCE_TOKEN"),
        ({"PYLOG_TOKEN": "wrong-token-4"}, "wrong-token-5", given),
        ({}, None, "no token was sent: give"),
    ):
        for name in ("PYLOG_TOKEN", "PYLOG_SOURCE_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(AuthenticationFailed) as raised:
            connect(guarded, token)
        assert f"{guarded} has refused a request: " in str(raised.value) and said in str(raised.value)
        assert "wrong-token" not in str(raised.value)


@pytest.mark.parametrize("where", ["path", "query", "method", "Host"])
def test_bytes_that_are_not_utf_8_get_a_sentence_anywhere(
    small: Running, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A status of 4xx, and no traceback in the log."""
    parts = {"method": b"GET", "path": b"/nothing", "query": b"x", "Host": b"localhost"} | {
        where: b"/\xff\xfe\xed\xa0\x80"
    }
    lines = b"%(method)b %(path)b?cluster_id=%(query)b HTTP/1.1\r\nHost: %(Host)b\r\n\r\n" % {
        key.encode(): value for key, value in parts.items()
    }
    with caplog.at_level(logging.ERROR):
        answer = raw(small.coordinator.address, lines, ended=False)
    assert answer.startswith(b"HTTP/1.") and b" 4" in answer[:13]
    assert not tracebacks(caplog)


# ------------------------------------------------------------------------------------------------------------------ hosts


def ask_as(address: str, host: str, path: str = "/v1/cluster") -> bytes:
    return raw(address, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), ended=False)


# Promise: security.md#tokens-and-tls
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9550", "127.evil.example", "localhost.evil.example", "x y", "[::2]"]
)
@pytest.mark.parametrize("path", ["/v1/cluster", "/health", "/nothing"])
def test_a_coordinator_without_tokens_refuses_foreign_hosts(small: Running, host: str, path: str) -> None:
    """A page whose name resolves to 127.0.0.1 has the browser ask for that name."""
    answer = ask_as(small.coordinator.address, host, path)
    assert b" 421 " in answer[:20] and b"not an address of this coordinator" in answer


# Promise: security.md#tokens-and-tls
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "127.1.2.3", "[::1]:9550", "localhost."])
def test_the_machine_itself_is_served(small: Running, host: str) -> None:
    """Whatever port the name has: a tunnel may have another one.  HTTP/1.0 needs no Host."""
    assert ask_as(small.coordinator.address, host).startswith(b"HTTP/1.1 200")
    assert raw(small.coordinator.address, b"GET /health HTTP/1.0\r\n\r\n", ended=False).startswith(b"HTTP/1.0 200")


# Promise: security.md#tokens-and-tls
def test_the_advertised_host_is_served(services: Services, tmp_path: Path) -> None:
    """And with tokens any host is: a browser does not have them."""
    running = services.start(tmp_path / "log", advertise="Log.example.org:9550")
    address = f"127.0.0.1:{running.port}"
    assert ask_as(address, "log.example.org").startswith(b"HTTP/1.1 200")
    assert b" 421 " in ask_as(address, "other.example.org")[:20]
    services.stop(running)
    running = services.start(tmp_path / "log", tokens=TOKENS)
    assert b" 401 " in ask_as(running.coordinator.address, "other.example.org")[:20]
    services.stop(running)


def test_a_name_that_begins_as_loopback_does_is_another_host() -> None:
    """127.example.org belongs to who has example.org."""
    assert not is_loopback("127.example.org:9550") and not is_own_host("127.0.0.1.example.org", ())
    assert is_loopback("127.0.0.1:1") and is_loopback("[::1]:1") and is_loopback("LOCALHOST:1")
