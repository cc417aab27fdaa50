"""Nothing behind the head of a request is parsed before its handler wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from spark_log.errors import InvalidRequest
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.http.head_first import HeadFirst
from spark_log.http.http_port import HttpPort

LIMITS = ConnectionLimits(body_bytes=8 << 20, header_bytes=1000, request_ms=5_000)
Read = Callable[[web.BaseRequest], Awaitable[bytes]]


class Handler:
    """Notes how many bytes were parsed when it was called; returns the body of a request that has a token."""

    def __init__(self) -> None:
        self.parsed: list[int] = []
        self.read: Read | None = None

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request.protocol, HeadFirst) and self.read is not None
        await asyncio.sleep(0.05)  # whatever has arrived could have been parsed by now
        self.parsed.append(request.protocol.parsed)
        if "Authorization" not in request.headers:
            return web.Response(status=401, text="none")
        try:
            return web.Response(body=await self.read(request))
        except InvalidRequest as error:
            return web.Response(status=400, text=str(error))


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Handler, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A port, and a connection to it."""
    handler = Handler()
    port = HttpPort(handler, LIMITS)
    handler.read = port.read
    number = await port.start("127.0.0.1", 0, None)
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    try:
        yield handler, reader, writer
    finally:
        writer.close()
        await port.stop()


def head(body: int | None = None, *more: str, method: str = "POST", token: bool = False) -> bytes:
    lines = [f"{method} /x HTTP/1.1", "Host: x", *more, *(["Authorization: Bearer x"] if token else [])]
    return "\r\n".join([*lines, *([] if body is None else [f"Content-Length: {body}"]), "", ""]).encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of the next answer."""
    found = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    size = int(found.lower().partition(b"content-length:")[2].split()[0])
    return int(found.split()[1]), await asyncio.wait_for(reader.readexactly(size), 10)


CHUNKED = head(None, "Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (CHUNKED, b"1\r\nx\r\n" * 10_000),
        (head(60_000), b"x" * 60_000),
        (head(None, method="CONNECT"), b"x" * 60_000),
        (head(method="GET"), head(method="GET") * 1000),
    ],
    ids=["chunks", "body", "another protocol", "requests"],
)
def test_only_the_head_is_parsed_of_a_request_without_a_token(first: bytes, rest: bytes) -> None:
    """The whole request arrives before the handler begins."""

    async def ask() -> None:
        async with served() as (handler, reader, writer):
            writer.write(first + rest)
            assert (await answer(reader))[0] == 401
            assert handler.parsed == [len(first)]

    asyncio.run(ask())


def test_a_body_in_chunks_is_never_parsed() -> None:
    """With a token, its sender hears why."""

    async def ask() -> None:
        async with served() as (handler, reader, writer):
            first = head(None, "Transfer-Encoding: chunked", token=True)
            writer.write(first + b"2\r\n{}\r\n0\r\n\r\n")
            status, text = await answer(reader)
            assert status == 400 and b"Content-Length" in text
            assert handler.parsed == [len(first)]

    asyncio.run(ask())


@pytest.mark.parametrize("at_once", [1, 7, 100_000, 1 << 23])
def test_requests_arrive_whole_in_any_pieces(at_once: int) -> None:
    """Several on one connection, with the end of a head in a body, and lines without text between two."""
    bodies = [b"", b"\r\n\r\n", b"POST /x HTTP/1.1\r\n\r\n", b"\r\nx\r\n\r" * (1 if at_once < 9 else 100_000), b"last"]

    async def ask() -> None:
        async with served() as (handler, reader, writer):
            sent = b"\r\n".join(head(len(body), token=True) + body for body in bodies)
            for at in range(0, len(sent), at_once):
                writer.write(sent[at : at + at_once])
                if at_once < 9:
                    await writer.drain()
                    await asyncio.sleep(0)
            assert [await answer(reader) for _ in bodies] == [(200, body) for body in bodies]
            assert len(handler.parsed) == len(bodies)

    asyncio.run(ask())


def test_a_request_after_a_refused_body_is_answered() -> None:
    """The body is passed over, and the requests behind it wait for their turn."""

    async def ask() -> None:
        async with served() as (handler, reader, writer):
            refused, good = head(100_000), head(2, token=True)
            writer.write(refused + b"x" * 100_000 + good + b"{}" + CHUNKED + b"1\r\nx\r\n" * 100)
            assert [(await answer(reader))[0] for _ in range(3)] == [401, 200, 401]
            to_good = len(refused) + 100_000 + len(good)
            assert handler.parsed == [len(refused), to_good, to_good + 2 + len(CHUNKED)]

    asyncio.run(ask())


@pytest.mark.parametrize("end", [b"\r\n", b"\r\n\r\n"])
def test_all_headers_together_have_a_limit(end: bytes) -> None:
    """Also while the head has no end."""

    async def ask() -> None:
        async with served() as (handler, reader, writer):
            writer.write(b"GET /x HTTP/1.1\r\n" + b"\r\n".join(b"name: value" for _ in range(100)) + end)
            status, text = await answer(reader)
            assert status == 431 and b"header.bytes" in text
            assert await reader.read() == b"" and not handler.parsed

    asyncio.run(ask())


def test_a_request_that_was_answered_lets_in_nothing_of_the_next_one() -> None:
    """On a loop with eager tasks, the next handler may begin before the answer of the one before is noted."""

    async def ask() -> None:
        async with served() as (handler, reader, writer):
            first, second, seen = head(5, token=True), head(3), list[web.BaseRequest]()
            read = handler.read
            assert read is not None

            async def noted(request: web.BaseRequest) -> bytes:
                seen.append(request)
                return await read(request)

            handler.read = noted
            writer.write(first + b"first" + second + b"two")
            assert (await answer(reader)) == (200, b"first")
            protocol = seen[0].protocol
            assert isinstance(protocol, HeadFirst)
            protocol.let_in(seen[0])  # the handler of the second one waits
            assert (await answer(reader))[0] == 401
            assert handler.parsed[1] == len(first + b"first" + second)

    asyncio.run(ask())
