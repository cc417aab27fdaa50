"""A connection on which nothing behind the head of a request is parsed before its handler wants it.

aiohttp parses all that a read of the socket returns, 256 KiB, before any handler runs: chunks of a body, or thousands
of requests.  So peers without a token could keep the event loop busy.
"""

from __future__ import annotations

import math
from typing import Any

from aiohttp import web

END = b"\r\n\r\n"
"""The end of a head."""


class HeadFirst(web.RequestHandler):
    """aiohttp's protocol of a connection, which gets one head, then its body, then the next head."""

    def __init__(self, *arguments: Any, head_bytes: int, **settings: Any) -> None:
        """
        head_bytes:  limit of a head.
        """
        super().__init__(*arguments, **settings)
        self._head_max = head_bytes
        self._head: int | None = 0
        """Bytes of the head that were parsed; None: it is complete."""
        self._end = b""
        """Its last bytes."""
        self._body: float = 0
        """Bytes of the body that are still let in."""
        self._kept = bytearray()
        self._request: web.BaseRequest | None = None
        """The one that is handled."""
        self._is_decided = False
        """About its body."""
        self.parsed = 0
        """Bytes that were parsed."""

    def data_received(self, data: bytes) -> None:
        """Parse what the present request may send, and keep what follows."""
        if self._body >= len(data) and not self._kept:
            self._parse_body(data)
            return
        self._kept += data
        while self._kept and self._parse_next():
            pass
        if self._kept and self.transport is not None:
            self.transport.pause_reading()

    def begin(self, request: web.BaseRequest) -> None:
        """The next request is handled."""
        self._request, self._is_decided = request, False

    def let_in(self, request: web.BaseRequest) -> None:
        """The handler wants the body, or has answered.  A body in chunks stays out: the connection is then closed."""
        if self._is_decided or request is not self._request:
            return
        self._is_decided = True
        if "Transfer-Encoding" in request.headers:
            self._kept.clear()
        else:
            self._let_in(request.content_length or 0)

    def let_in_all(self) -> None:
        """The bytes behind the head belong to another protocol."""
        self._is_decided = True
        self._let_in(math.inf)

    def _let_in(self, count: float) -> None:
        self._head, self._end, self._body = 0, b"", count
        if self.transport is not None:
            self.transport.resume_reading()
        self.data_received(b"")

    def _parse_next(self) -> bool:
        """Parse a piece of a body or of a head; whether there was one."""
        if self._body:
            self._parse_body(self._take(int(min(self._body, len(self._kept)))))
            return True
        if self._head is None or self.transport is None:
            return False
        if not self._head and (empty := len(self._kept) - len(self._kept.lstrip(b"\r\n"))):
            self._take(empty)  # a server should ignore them before a request
            return True
        self._parse_head(self._head)
        return True

    def _parse_head(self, before: int) -> None:
        seen = self._end + self._kept[: self._head_max + len(END)]
        found = seen.find(END)
        part = self._take(found + len(END) - len(self._end) if found >= 0 else len(self._kept))
        if before + len(part) > self._head_max:
            self._refuse()
            return
        self._end = (self._end + part)[1 - len(END) :]
        self._head = None if found >= 0 else before + len(part)
        self._parse(part)

    def _parse_body(self, part: bytes) -> None:
        self._body -= len(part)
        self._parse(part)

    def _take(self, count: int) -> bytes:
        part = bytes(self._kept[:count])
        del self._kept[:count]
        return part

    def _parse(self, part: bytes) -> None:
        self.parsed += len(part)
        super().data_received(part)

    def _refuse(self) -> None:
        text = f"the head of the request has more than {self._head_max} bytes, the limit header.bytes\n".encode()
        head = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        if self.transport is not None:
            self.transport.write(head % len(text) + text)
        self._kept.clear()
        self.force_close()
