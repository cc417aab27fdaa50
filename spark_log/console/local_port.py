"""A port that only this machine can reach: that of `pylog console`, and of the metrics of `pylog maintain`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

from spark_log.errors import InvalidRequest, RequestTimedOut, SparkLogError
from spark_log.http.address import is_loopback, is_own_host, parse_address, split_address
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.http.http_port import HttpPort, failure_response
from spark_log.runtime.daemon_threads import DaemonThreads
from spark_log.runtime.threads import SYSTEM_THREADS

LIMITS = ConnectionLimits(body_bytes=1 << 10, connections=200, silent_connections=200, request_ms=10_000)
METRICS = "/metrics"
SCRAPE_S = 10.0
"""How long a scrape waits for the storage; Prometheus's own limit."""


class LocalPort:
    """Listens on a loopback address, and answers only requests for a name of this machine: a web page cannot ask it."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        option: str,
        body_bytes: int = LIMITS.body_bytes,
    ) -> None:
        self._answer = answer
        self._option = option
        """The option of the command that names the address."""
        self._port = HttpPort(self._handle, LIMITS._replace(body_bytes=body_bytes))

    async def start(self, listen: str) -> str:
        """Returns the address with the port.  Raises InvalidRequest if it cannot listen."""
        address = parse_address(f"127.0.0.1:{listen}" if listen.isdigit() else listen, "listen")
        if not is_loopback(address):
            raise InvalidRequest(
                f"{self._option} {listen}: other machines could reach it; the port of `pylog serve` has tokens and TLS"
            )
        host, port = split_address(address, "listen")
        try:
            return f"{host}:{await self._port.start(host, port, None)}"
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"cannot listen on {address}: {reason}; choose another {self._option} address"
            raise InvalidRequest(message) from error

    async def read(self, request: web.BaseRequest) -> bytes:
        """The body of a request whose sender is known.  Raises InvalidRequest, RequestTimedOut."""
        return await self._port.read(request)

    async def stop(self) -> None:
        await self._port.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        peer = self._port.peer(request)
        self._port.connections.begin(peer)
        try:
            if not is_own_host(request.headers.get("Host", ""), frozenset()):
                return failure_response(InvalidRequest("Host: not an address of this machine"), 421)
            return await self._answer(request)
        except SparkLogError as error:
            return failure_response(error)
        except web.HTTPException as error:
            return failure_response(InvalidRequest(f"{request.method} {request.path}: {error.reason}"), error.status)
        finally:
            self._port.connections.end(peer, asyncio.get_running_loop().time() + 75.0)


class MetricsPage:
    """Answers `GET /metrics`.  Scrapes that wait for the storage at the same time share one answer."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._threads: DaemonThreads | None = None
        self._asked: asyncio.Future[str] | None = None

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Raises SparkLogError for an answer that fails."""
        if request.path != METRICS:
            raise web.HTTPNotFound(reason=f"no such page; metrics are at {METRICS}")
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET"])
        if self._asked is None or self._asked.done():
            self._threads = self._threads or DaemonThreads(1, "pylog-metrics")
            self._asked = self._threads.submit(self._text)
            self._asked.add_done_callback(_retrieved)
        try:
            text = await asyncio.wait_for(asyncio.shield(self._asked), SCRAPE_S)
        except asyncio.TimeoutError as error:
            raise RequestTimedOut(f"no answer within {SCRAPE_S:.0f} s: the storage is slow or unreachable") from error
        return web.Response(text=text, content_type="text/plain")

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()


def _retrieved(asked: asyncio.Future[str]) -> None:
    if not asked.cancelled():
        asked.exception()  # the request may be gone


@contextmanager
def serving_metrics(text: Callable[[], str], listen: str, option: str) -> Iterator[str]:
    """Serve metrics in a thread while the block runs.  Gives the address; raises InvalidRequest if it cannot listen."""
    loop, page = asyncio.new_event_loop(), MetricsPage(text)
    port = LocalPort(page.answer, option)
    thread = SYSTEM_THREADS.start(loop.run_forever, "pylog-metrics-port")
    try:
        yield asyncio.run_coroutine_threadsafe(port.start(listen), loop).result()
    finally:
        page.close()
        asyncio.run_coroutine_threadsafe(port.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
