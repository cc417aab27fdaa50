"""The console as a process, `pylog console`.

It listens on this machine only, and reads with the rights of its user.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from spark_log.client.log import Log
from spark_log.console.history_file import state_folder
from spark_log.console.http_routes import Answers, ConsoleRoutes
from spark_log.console.local_changes import BODY_BYTES_MAX, PATH, LocalChanges
from spark_log.console.local_port import LIMITS, METRICS, LocalPort, MetricsPage
from spark_log.console.site import Site
from spark_log.errors import InvalidRequest
from spark_log.monitoring.embedded_metrics import EmbeddedMetrics
from spark_log.server.tokens import Grant, Tokens, parse_tokens


class ShownLog:
    """One log of the console: its pages, its metrics, and its changes; None: it is only read."""

    def __init__(self, site: Answers, metrics: Callable[[], str], changes: LocalChanges | None = None) -> None:
        self.pages = ConsoleRoutes(site)
        self.metrics = MetricsPage(metrics)
        self.changes = changes

    def close(self) -> None:
        self.pages.close()
        self.metrics.close()
        if self.changes is not None:
            self.changes.close()


class Standalone:
    """A port with the console and the metrics of some logs, for one token, and perhaps another one that only reads."""

    def __init__(self, logs: Sequence[ShownLog], token: str, reader: str = "") -> None:
        """
        logs:    a request names one by its number: `?log=1` is the second one.
        token:   makes the changes of the logs, if they have any.
        reader:  the other token.
        """
        changes = any(log.changes for log in logs)
        grants = {"console": f"{'admin' if changes else 'read'} {token}"}
        self._tokens: Tokens = parse_tokens({**grants, "reader": f"read {reader}"} if reader else grants)
        self._logs = logs
        self._port = LocalPort(self._answer, "--listen", BODY_BYTES_MAX if changes else LIMITS.body_bytes)

    async def start(self, listen: str) -> str:
        """Returns the address.  Raises InvalidRequest if it cannot listen."""
        return await self._port.start(listen)

    async def stop(self) -> None:
        for log in self._logs:
            log.close()
        await self._port.stop()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        log = self._log(request)
        if request.path == METRICS:
            await self._admit(request)
            return await log.metrics.answer(request)
        if request.path == PATH and log.changes is not None:
            return await log.changes.answer(request, await self._admit(request), self._port.read)
        if not log.pages.serves(request.path):
            raise web.HTTPNotFound(reason="no such page")
        return await log.pages.answer(request, self._admit)

    def _log(self, request: web.BaseRequest) -> ShownLog:
        text = request.query.get("log", "0")
        if text not in map(str, range(len(self._logs))):
            raise InvalidRequest(
                f"log: {text[:20]!r} is not one of the {len(self._logs)} logs of this console, from 0 on"
            )
        return self._logs[int(text)]

    async def _admit(self, request: web.BaseRequest) -> Grant:
        return self._tokens.grant(request.headers.get("Authorization"))


async def serve_console(
    logs: Sequence[Log], listen: str, token: str, say: Callable[[str], None], *, changes: bool = False, reader: str = ""
) -> None:
    """Serve until SIGTERM or SIGINT.

    token:    of the browser.
    say:      called with the address for the browser.
    changes:  whether the token may change the logs.
    reader:   another token, which only reads.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    urls, folder = [log.url for log in logs], state_folder()
    shown = [_shown(log, folder, urls, changes) for log in logs]
    console = Standalone(shown, token, reader)
    address = await console.start(listen)
    say(f"http://{address}/console/#token={token}")
    await stopping.wait()
    await console.stop()


def _shown(log: Log, folder: Path | None, urls: Sequence[str], changes: bool) -> ShownLog:
    site = Site(lambda: log, folder=folder, urls=urls)
    return ShownLog(site, EmbeddedMetrics(log).text, LocalChanges(log) if changes else None)
