"""Addresses of coordinators, and what listens there instead."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

import spark_log
from spark_log.errors import CoordinatorNotAvailable, InvalidRequest
from spark_log.http.address import Target, parse_target
from spark_log.rpc.client import HttpLink
from spark_log.rpc.client_timeouts import ClientTimeouts
from spark_log.rpc.kafka_probe import is_answer, is_kafka
from tests.logged import logged


@pytest.mark.parametrize(
    ("url", "addresses", "ca"),
    [
        ("pylog://a", ("a:9550",), None),
        ("pylog://a:1,b:2/", ("a:1", "b:2"), None),
        ("pylog://[::1]:7?ca=/x.pem", ("[::1]:7",), "/x.pem"),
    ],
)
def test_addresses_are_read(url: str, addresses: tuple[str, ...], ca: str | None) -> None:
    """Several after commas; the port is 9550 unless given."""
    assert parse_target(url) == Target(addresses, ca)


@pytest.mark.parametrize(
    "url", ["pylog://", "pylog://a:b", "pylog://a:99999", "pylog://a b", "pylog://a?tls=1", "pylog://a/x"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidRequest, match="url: "):
        parse_target(url)


API_VERSIONS = bytes.fromhex("0000000a00120000")
"""How the request begins: its length, api key 18, version 0."""
BRIEF = ClientTimeouts(check_s=0.5, health_s=0.5, first_answer_s=1.0, start_s=(0.1, 0.9))
"""For nobody who could answer."""
OF_A_BROKER = bytes.fromhex("0000 0000000c 00000000000d 000100000011 00020000000a 000300000000000d".replace(" ", ""))
"""The part of an answer after the correlation id: no error, and versions of Produce and the next APIs."""


def plain(connection: socket.socket) -> socket.socket:
    return connection


@pytest.fixture(scope="module")
def over_tls(certificate: tuple[str, str]) -> Callable[[socket.socket], socket.socket]:
    """The server's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return lambda connection: context.wrap_socket(connection, server_side=True)


# Promise: service.md#leadership
def test_a_kafka_broker_is_recognised() -> None:
    """It closes HTTP connections, and answers a Kafka request.  The error names it, without waiting for a start."""
    with Broker() as address, pytest.raises(CoordinatorNotAvailable) as error:
        spark_log.connect(f"pylog://{address}")
    assert f"{address}: this is a Kafka broker, not pylog; Spark reads and writes it with format('kafka')" in str(
        error.value
    )


# Promise: service.md#leadership
def test_a_kafka_broker_with_tls_is_recognised(over_tls: Callable[[socket.socket], socket.socket]) -> None:
    """It hangs up on whatever is not TLS."""
    with Broker(over_tls) as address:
        assert is_kafka(address)


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1", API_VERSIONS, bytes.fromhex("0000000970796c67"), bytes.fromhex("ffffffff70796c67")]
)
def test_other_answers_are_not_a_brokers(head: bytes) -> None:
    """Closed, HTTP, an echo, a length that is too short or negative."""
    assert not is_answer(head)


# Promise: service.md#leadership
def test_a_port_that_hangs_up_on_everything_is_reported_so() -> None:
    """Neither pylog nor Kafka as far as can be seen: both are in the message, and how long a start was waited for."""
    with Broker(refuses=True) as address, pytest.raises(CoordinatorNotAvailable) as error:
        HttpLink(Target((address,)), timeouts=BRIEF).info()
    assert "for 1 s: it closed the connection, as a Kafka broker does" in str(error.value)


# Promise: service.md#leadership
def test_a_silent_port_is_given_up() -> None:
    """The kernel accepts, and nobody answers: the message names the address and how long it was waited for."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            CoordinatorNotAvailable,
            match=rf"{address} is silent: no conn\S+ within 3 s or no answer within 1 s; check the address[^;]*$",
        ):
            HttpLink(Target((address,)), timeouts=BRIEF).info()


# Promise: service.md#leadership
def test_a_port_that_refuses_is_waited_for_aloud(caplog: pytest.LogCaptureFixture) -> None:
    """A coordinator may be starting there: a warning says where and how long it is waited for, before the waiting."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(CoordinatorNotAvailable, match=rf"{address}: it does not answer .*refused\) for 1 s"):
        HttpLink(Target((address,)), timeouts=BRIEF).info()
    (warning,) = logged(caplog, address)
    assert "refused; waiting up to 1 s for a coordinator to start" in warning


class Broker:
    """Closes on what is not a Kafka request, and answers ApiVersions as a broker does."""

    def __init__(self, secured: Callable[[socket.socket], socket.socket] = plain, *, refuses: bool = False) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._secured = secured
        self._refuses = refuses

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            with accepted, suppress(OSError), self._secured(accepted) as connection:
                data = connection.recv(1000)
                if data.startswith(API_VERSIONS) and not self._refuses:
                    answer = data[8:12] + OF_A_BROKER
                    connection.sendall(len(answer).to_bytes(4, "big") + answer)

    def __enter__(self) -> str:
        self._thread.start()
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
