"""One HTTP connection to a coordinator.  Every wait has a limit, even if the other side accepts and never answers, or
sends one byte a second."""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from spark_log.http.address import split_address

CONNECT_S = 3.0
REPLY_BYTES_MAX = 64 << 20


class Endpoint(NamedTuple):
    """The destination of a connection.  A name with several machines has an endpoint for each."""

    address: str
    """`host:port`, as given."""
    ip: str
    """Empty if the name cannot be resolved: connecting then raises the error."""


class HttpResponse(NamedTuple):
    """A reply."""

    status: int
    data: bytes
    reusable: bool
    """Whether the connection can carry another request."""


class Wait:
    """The time limit of a reply.

    Calls `check` every `check_s` until the reply is complete; `check` raises if further waiting is pointless.
    """

    def __init__(self, limit_s: float, check_s: float | None = None, check: Callable[[], None] = lambda: None) -> None:
        self._began = time.monotonic()
        self._limit_s = limit_s
        self._check_s = limit_s if check_s is None else check_s
        self._check = check
        self._checked = self._began

    def left_s(self) -> float:
        """Seconds until the next check; runs the check if it is due.  Raises TimeoutError, or the check's error."""
        now = time.monotonic()
        if now - self._began >= self._limit_s:
            raise TimeoutError(f"no complete reply within {self._limit_s:g} s")
        if now - self._checked >= self._check_s:
            self._check()
            self._checked = now = time.monotonic()
        until = min(self._began + self._limit_s, self._checked + self._check_s)
        return max(until - now, 0.001)


class Connection:
    """Connects on construction.  Raises OSError."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, connect_s: float = CONNECT_S) -> None:
        host, port = split_address(endpoint.address, "address")
        self._host = endpoint.address
        sock = socket.create_connection((endpoint.ip or host.strip("[]"), port), connect_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock = sock if tls is None else tls.wrap_socket(sock, server_hostname=host.strip("[]"))
        except BaseException:
            sock.close()
            raise

    def ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], wait: Wait) -> HttpResponse:
        """The reply to one request.  After OSError or http.client.HTTPException, the connection cannot be reused."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join((*lines, "", "")).encode()
        self._send(memoryview(head + (body or b"")), wait)
        with http.client.HTTPResponse(cast(socket.socket, _Source(self._sock, wait)), method=method) as response:
            response.begin()
            data = response.read(REPLY_BYTES_MAX)
            return HttpResponse(response.status, data, response.isclosed() and not response.will_close)

    def _send(self, data: memoryview, wait: Wait) -> None:
        while data:
            self._sock.settimeout(wait.left_s())
            try:
                data = data[self._sock.send(data) :]
            except TimeoutError:
                continue

    def is_dropped(self) -> bool:
        """Whether the other side has closed it.  A request on it would be lost with an unknown outcome."""
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        return bool(waiting.poll(0))

    def close(self) -> None:
        self._sock.close()


class _Source:
    """The source of http.client's responses, in place of a socket."""

    def __init__(self, sock: socket.socket, wait: Wait) -> None:
        self._sock, self._wait = sock, wait

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock, self._wait))


class _Reader(io.RawIOBase):
    def __init__(self, sock: socket.socket, wait: Wait) -> None:
        self._sock, self._wait = sock, wait

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            self._sock.settimeout(self._wait.left_s())
            try:
                return self._sock.recv_into(buffer)
            except TimeoutError:
                continue


def resolve(address: str) -> list[Endpoint]:
    """The endpoints of an address, in the system's order of preference."""
    host, port = split_address(address, "address")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError:
        return [Endpoint(address, "")]
    return list(dict.fromkeys(Endpoint(address, str(sockaddr[0])) for *_, sockaddr in found))
