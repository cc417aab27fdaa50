"""Changes of the console in a process, `pylog console --admin`: requests as a coordinator takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from spark_log.client.log import Log
from spark_log.console.plans import COMMANDS, may_change
from spark_log.errors import AuthorizationFailed, InvalidRequest, SparkLogError
from spark_log.http.failures import failure_of
from spark_log.rpc.messages import CommandOutcome, CommandsReply, CommandsRequest, decode
from spark_log.runtime.daemon_threads import DaemonThreads
from spark_log.server import audit
from spark_log.server.tokens import Grant

PATH = "/v1/commands"
BODY_BYTES_MAX = 1 << 20
"""A group may have positions in ten thousand partitions."""
Read = Callable[[web.BaseRequest], Awaitable[bytes]]
"""Reads the body of a request."""


class LocalChanges:
    """Makes the changes that the console offers, with the rights of the process, and audits them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._threads = DaemonThreads(1, "pylog-console-changes")

    async def answer(self, request: web.BaseRequest, grant: Grant, read: Read) -> web.Response:
        """Raises AuthorizationFailed for a token that only reads."""
        if request.method != "POST":
            raise web.HTTPMethodNotAllowed(request.method, ["POST"])
        if not may_change(grant):
            raise AuthorizationFailed(f"the token {grant.name!r} only reads")
        asked: CommandsRequest = decode(await read(request), CommandsRequest, "the request")
        found = await asyncio.shield(self._threads.submit(self._made, asked, grant.name, request.remote or ""))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    def _made(self, asked: CommandsRequest, principal: str, address: str) -> CommandsReply:
        journal = self._log.journal
        if asked.cluster_id != self._log.cluster_id:
            raise InvalidRequest("cluster_id: this console shows another log: load the page again")
        outcomes = []
        for command in asked.commands:
            if type(command) not in COMMANDS:
                raise InvalidRequest("the console makes no such change: use the command line")
            changes = audit.changes_of([command], journal.refresh())
            outcome: object = None
            try:
                journal.propose(command)
                outcomes.append(CommandOutcome())
            except SparkLogError as error:
                outcome = error
                outcomes.append(CommandOutcome(failure=failure_of(error)))
            for change in changes:
                audit.write(principal, address, change, outcome, journal.state.version)
        return CommandsReply(outcomes=tuple(outcomes))

    def close(self) -> None:
        self._threads.close()
