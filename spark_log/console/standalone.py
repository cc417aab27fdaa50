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
from spark_log.console.local_changes import BODY_BYTES_MAX, PATH, LocalChanges
from spark_log.console.local_port import LIMITS, METRICS, LocalPort, MetricsPage
from spark_log.console.site import Site
from spark_log.monitoring.embedded_metrics import EmbeddedMetrics
from spark_log.server.tokens import Grant, Tokens, parse_tokens


class Standalone:
    """A port with the console and the metrics of one log, for one token, and perhaps another one that only reads."""

    def __init__(
        self,
        site: Answers,
        token: str,
        metrics: Callable[[], str],
        changes: LocalChanges | None = None,
        reader: str = "",
    ) -> None:
        """
        changes:  made for `token`; None: it only reads.
        reader:   the other token.
        """
        grants = {"console": f"{'read' if changes is None else 'admin'} {token}"}
        self._tokens: Tokens = parse_tokens({**grants, "reader": f"read {reader}"} if reader else grants)
        self._pages = ConsoleRoutes(site)
        self._metrics = MetricsPage(metrics)
        self._changes = changes
        self._port = LocalPort(self._answer, "--listen", LIMITS.body_bytes if changes is None else BODY_BYTES_MAX)

    async def start(self, listen: str) -> str:
        """Returns the address.  Raises InvalidRequest if it cannot listen."""
        return await self._port.start(listen)

    async def stop(self) -> None:
        self._pages.close()
        self._metrics.close()
        if self._changes is not None:
            self._changes.close()
        await self._port.stop()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == METRICS:
            await self._admit(request)
            return await self._metrics.answer(request)
        if request.path == PATH and self._changes is not None:
            return await self._changes.answer(request, await self._admit(request), self._port.read)
        if not self._pages.serves(request.path):
            raise web.HTTPNotFound(reason="no such page")
        return await self._pages.answer(request, self._admit)

    async def _admit(self, request: web.BaseRequest) -> Grant:
        return self._tokens.grant(request.headers.get("Authorization"))


async def serve_console(
    log: Log, listen: str, token: str, say: Callable[[str], None], *, changes: bool = False, reader: str = ""
) -> None:
    """Serve until SIGTERM or SIGINT.

    token:    of the browser.
    say:      called with the address for the browser.
    changes:  whether the token may change the log.
    reader:   another token, which only reads.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    metrics = EmbeddedMetrics(log).text
    console = Standalone(
        Site(lambda: log, folder=state_folder()), token, metrics, LocalChanges(log) if changes else None, reader
    )
    address = await console.start(listen)
    say(f"http://{address}/console/#token={token}")
    await stopping.wait()
    await console.stop()
