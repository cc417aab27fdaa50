"""The console as a process, `pylog console`.

It listens on this machine only, and reads with the rights of its user.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from aiohttp import web

from spark_log.client.log import Log
from spark_log.console.history_file import state_folder
from spark_log.console.http_routes import Answers, ConsoleRoutes
from spark_log.console.local_port import METRICS, LocalPort, MetricsPage
from spark_log.console.site import Site
from spark_log.monitoring.embedded_metrics import EmbeddedMetrics
from spark_log.server.tokens import Grant, Tokens, parse_tokens


class Standalone:
    """A port with the console and the metrics of one log, for one token."""

    def __init__(self, site: Answers, token: str, metrics: Callable[[], str]) -> None:
        self._tokens: Tokens = parse_tokens({"console": f"read {token}"})
        self._pages = ConsoleRoutes(site)
        self._metrics = MetricsPage(metrics)
        self._port = LocalPort(self._answer, "--listen")

    async def start(self, listen: str) -> str:
        """Returns the address.  Raises InvalidRequest if it cannot listen."""
        return await self._port.start(listen)

    async def stop(self) -> None:
        self._pages.close()
        self._metrics.close()
        await self._port.stop()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == METRICS:
            await self._admit(request)
            return await self._metrics.answer(request)
        if not self._pages.serves(request.path):
            raise web.HTTPNotFound(reason="no such page")
        return await self._pages.answer(request, self._admit)

    async def _admit(self, request: web.BaseRequest) -> Grant:
        return self._tokens.grant(request.headers.get("Authorization"))


async def serve_console(log: Log, listen: str, token: str, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    say:  called with the address for the browser.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    console = Standalone(Site(lambda: log, folder=state_folder()), token, EmbeddedMetrics(log).text)
    address = await console.start(listen)
    say(f"http://{address}/console/#token={token}")
    await stopping.wait()
    await console.stop()
