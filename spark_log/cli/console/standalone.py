"""The console as a process, `pylog console`.

It listens on this machine only, and reads with the rights of its user.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from aiohttp import web

from spark_log.cli.console.http_routes import Answers, ConsoleRoutes
from spark_log.cli.console.site import Site
from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.net.address import is_loopback, is_own_host, parse_address, split_address
from spark_log.net.connection_limits import ConnectionLimits
from spark_log.net.http_port import HttpPort
from spark_log.net.server import failure_response
from spark_log.net.tokens import Grant, Tokens, parse_tokens

LIMITS = ConnectionLimits(body_bytes=1 << 10, connections=200, silent_connections=200, request_ms=10_000)


class Standalone:
    """A port with the console of one log, for one token."""

    def __init__(self, site: Answers, token: str) -> None:
        self._tokens: Tokens = parse_tokens({"console": f"read {token}"})
        self._pages = ConsoleRoutes(site)
        self._port = HttpPort(self._handle, LIMITS)

    async def start(self, listen: str) -> int:
        """Returns the port.  Raises InvalidRequest if it cannot listen."""
        if not is_loopback(listen):
            raise InvalidRequest(
                f"--listen {listen}: other machines could reach it; the console of `pylog serve` has tokens and TLS"
            )
        host, port = split_address(listen, "listen")
        try:
            return await self._port.start(host, port, None)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidRequest(f"cannot listen on {listen}: {reason}; choose another --listen address") from error

    async def stop(self) -> None:
        self._pages.close()
        await self._port.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        peer = self._port.peer(request)
        self._port.connections.begin(peer)
        try:
            if not is_own_host(request.headers.get("Host", ""), frozenset()):
                return failure_response(InvalidRequest("Host: not an address of this machine"), 421)
            if not self._pages.serves(request.path):
                raise web.HTTPNotFound(reason="no such page")
            return await self._pages.answer(request, self._admit)
        except SparkLogError as error:
            return failure_response(error)
        except web.HTTPException as error:
            return failure_response(InvalidRequest(f"{request.method} {request.path}: {error.reason}"), error.status)
        finally:
            self._port.connections.end(peer, asyncio.get_running_loop().time() + 75.0)

    async def _admit(self, request: web.BaseRequest) -> Grant:
        return self._tokens.grant(request.headers.get("Authorization"))


async def serve_console(log: Log, listen: str, token: str, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    say:  called with the address for the browser.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    address = parse_address(f"127.0.0.1:{listen}" if listen.isdigit() else listen, "listen")
    console = Standalone(Site(lambda: log), token)
    port = await console.start(address)
    say(f"http://{split_address(address, 'listen')[0]}:{port}/console/#token={token}")
    await stopping.wait()
    await console.stop()
