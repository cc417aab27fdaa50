"""Addresses of coordinators, and what listens there instead."""

from __future__ import annotations

import socket
import threading

import pytest

import spark_log
from spark_log.errors import CoordinatorNotAvailable, InvalidRequest
from spark_log.net.address import Target, parse_target


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


def test_a_kafka_broker_is_recognised() -> None:
    """It hangs up on HTTP; asked in its own words, it answers, and the error says what it is."""
    with Broker() as address, pytest.raises(CoordinatorNotAvailable, match="this is Kafka, not pylog"):
        spark_log.connect(f"pylog://{address}")


class Broker:
    """Closes on what is no Kafka request, and answers ApiVersions."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                data = connection.recv(1000)
                if data[4:6] == b"\x00\x12":
                    connection.sendall(b"\x00\x00\x00\x0a" + data[8:12] + b"\x00" * 6)

    def __enter__(self) -> str:
        self._thread.start()
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
