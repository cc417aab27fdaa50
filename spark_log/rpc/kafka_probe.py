"""Detection of a Kafka broker at an address.

A broker closes a connection on which it reads HTTP.  The probe sends Kafka's ApiVersions request, version 0, which
every broker answers before authentication (KIP-35).  The reply begins with its length and the request's correlation id.
"""

from __future__ import annotations

import socket
import ssl
import struct

from spark_log.http.address import split_address
from spark_log.http.tls import any_certificate

PROBE_S = 3.0
"""Timeout for connecting, and for each reply."""
CORRELATION_ID = 0x70796C67
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, CORRELATION_ID, -1)
"""Length, api key 18, version 0, correlation id, no client id."""
ANSWER_BYTES_MIN = 10
"""Correlation id, error code and the count of APIs."""


def is_kafka(address: str, *, tls_only: bool = False) -> bool:
    """Whether a broker answers, with or without TLS."""
    try:
        return (not tls_only and _answers(address, None)) or _answers(address, any_certificate())
    except OSError:
        return False


def _answers(address: str, tls: ssl.SSLContext | None) -> bool:
    """Whether a broker replies; False if the other side closed the connection.  Raises OSError, also on a timeout."""
    host, port = split_address(address, "address")
    plain = socket.create_connection((host.strip("[]"), port), PROBE_S)
    with plain if tls is None else tls.wrap_socket(plain) as connection:
        try:
            connection.sendall(API_VERSIONS)
            return is_answer(_read(connection, 8))
        except ConnectionError:
            return False


def is_answer(head: bytes) -> bool:
    """Whether these eight bytes are the beginning of a reply to the request."""
    if len(head) < 8:
        return False
    length, correlation_id = struct.unpack(">ii", head)
    return length >= ANSWER_BYTES_MIN and correlation_id == CORRELATION_ID


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data
