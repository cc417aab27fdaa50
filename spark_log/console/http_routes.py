"""The console over HTTP: files for everybody, and answers for tokens.  Runs on an event loop, and never blocks it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from aiohttp import web

from spark_log.errors import InvalidRequest, QuotaExceeded, RequestTimedOut
from spark_log.runtime.daemon_threads import DaemonThreads
from spark_log.server.tokens import Grant

ROOT = "/console/"
API = "/console/api/"
ANSWER_S = 15.0
"""How long a request waits for its answer.  A thread that waits for the storage continues."""
THREADS = 2
"""For answers from the state, and as many for those that read the storage: it may hang."""
WAITING_MAX = 16
"""Requests that wait for each of these; further ones are rejected."""
STATIC = Path(__file__).parent / "static"
TYPES = MappingProxyType({".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"})

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
)
Admit = Callable[[web.BaseRequest], Awaitable[Grant]]
"""The rights of a request's token.  Raises the errors of a token that is missing or unknown."""


class Answers(Protocol):
    """`site.Site`, as seen from here.  Called in threads."""

    def reads(self, name: str) -> bool | None:
        """True for an answer that needs the storage; None if no answer has this name."""

    def ask(self, grant: Grant, name: str, query: Mapping[str, str]) -> bytes:
        """JSON.  May block.  Raises SparkLogError."""

    def close(self) -> None: ...


class File(NamedTuple):
    """A file of the pages."""

    body: bytes
    kind: str


class ConsoleRoutes:
    """Answers the requests below `/console/`, and sends `/` there."""

    def __init__(self, site: Answers) -> None:
        self._site = site
        self._threads: dict[bool, DaemonThreads] = {}
        """Whether they read the storage; started by the first request."""
        self._waiting = {True: 0, False: 0}

    @staticmethod
    def serves(path: str) -> bool:
        return path in ("/", ROOT[:-1]) or path.startswith(ROOT)

    async def answer(self, request: web.BaseRequest, admit: Admit) -> web.StreamResponse:
        """Raises SparkLogError for an answer that fails."""
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET"])
        if request.path.startswith(API):
            grant = await admit(request)
            found = await self._answered(grant, request.path.removeprefix(API), dict(request.query))
            headers = {**HEADERS, "Cache-Control": "no-store"}
            return web.Response(body=found, content_type="application/json", headers=headers)
        return _file(request)

    async def _answered(self, grant: Grant, name: str, query: dict[str, str]) -> bytes:
        """In a thread: an answer takes longer than requests of clients may wait for the event loop."""
        reads = self._site.reads(name)
        if reads is None:
            raise InvalidRequest(f"{API}{name[:80]}: no such path")
        if self._waiting[reads] >= WAITING_MAX:
            raise QuotaExceeded("the console has too many requests that wait; try again in a moment")
        if reads not in self._threads:
            self._threads[reads] = DaemonThreads(THREADS, "pylog-console-reads" if reads else "pylog-console")
        self._waiting[reads] += 1
        answer = self._threads[reads].submit(self._site.ask, grant, name, query)
        answer.add_done_callback(lambda done: self._note_done(reads, done))
        try:
            return await asyncio.wait_for(asyncio.shield(answer), ANSWER_S)
        except asyncio.TimeoutError as error:
            raise RequestTimedOut(f"no answer within {ANSWER_S:.0f} s: the storage is slow or unreachable") from error

    def _note_done(self, reads: bool, done: asyncio.Future[bytes]) -> None:
        self._waiting[reads] -= 1
        if not done.cancelled():
            done.exception()  # the request may be gone

    def close(self) -> None:
        self._site.close()
        for threads in self._threads.values():
            threads.close()


@cache
def files() -> dict[str, File]:
    """All files of the pages, by path."""
    return {
        ROOT + file.name: File(file.read_bytes(), TYPES[file.suffix])
        for file in sorted(STATIC.iterdir())
        if file.suffix in TYPES
    }


def _file(request: web.BaseRequest) -> web.Response:
    path = request.path
    if path in ("/", ROOT[:-1]):
        raw = request.rel_url.raw_query_string
        asked = f"?{raw}" if raw else ""
        return web.Response(status=302, headers={**HEADERS, "Location": ROOT + asked})
    found = files().get(ROOT + "index.html" if path == ROOT else path)
    if found is None:
        raise web.HTTPNotFound(reason="no such page")
    headers = {**HEADERS, "Cache-Control": "no-cache"}
    return web.Response(body=found.body, content_type=found.kind, charset="utf-8", headers=headers)
