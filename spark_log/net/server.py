"""The server's side of the wire: HTTP on one port, with limits on whoever connects."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeVar

from aiohttp import web

from spark_log.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    CoordinatorNotAvailable,
    InconsistentClusterId,
    InvalidRequest,
    NotCoordinator,
    RequestTimedOut,
    SparkLogError,
)
from spark_log.groups.messages import JoinGroupRequest, Request, Response
from spark_log.groups.subscription import subscribed_topics
from spark_log.journal.ops import Answered
from spark_log.metadata.commands import AnyCommand
from spark_log.metadata.state import State
from spark_log.net.messages import (
    GROUP_PATHS,
    PROTOCOL,
    WAIT_MS_MAX,
    ChangesReply,
    ClusterInfo,
    CommandsReply,
    CommandsRequest,
    GroupAsked,
    GroupsReply,
    GroupView,
    Health,
    MemberRequest,
    Outcome,
    batches_as_text,
    decode,
    encode,
    failure_of,
)
from spark_log.net.parking import Parking
from spark_log.net.tokens import Grant, Tokens, check_allowed, check_names
from spark_log.net.waiters import Topics, Waiters

KEEPALIVE_S = 75.0
REPLY_BYTES_MAX = 1 << 20
"""Of records that a client has not seen, with the answer to its commands.  Who is further behind reads from the storage."""
CHANGES_BYTES_MAX = 128 << 10
"""With the answer to one that waited.  Thousands are answered at a time, so each has to be cheap to write."""
SHUTDOWN_S = 2.0
"""For requests that are being answered, at the end."""
logger = logging.getLogger("spark_log")
_broken = logging.getLogger("spark_log.http")
_broken.setLevel(logging.CRITICAL)
"""Of aiohttp, which has a traceback for every request that is no HTTP: whoever sends them must not fill the log."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Result = TypeVar("Result")


class Limits(NamedTuple):
    """What a client may ask of the server."""

    body_bytes: int = 64 << 20
    header_bytes: int = 16 << 10
    connections: int = 10_000
    request_ms: int = 30_000
    """For a request to arrive whole."""


class Noted(Protocol):
    """What is news to whom."""

    def there_is(self, topics: Sequence[str] | None, since: int) -> bool: ...

    def untold(self) -> Collection[str] | None: ...


class Service(Protocol):
    """What is served: a coordinator."""

    on_change: Callable[[], None]

    @property
    def news(self) -> Noted: ...

    @property
    def state(self) -> State: ...

    @property
    def leading(self) -> bool: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def storage(self) -> str:
        """URL of the storage."""

    def submit(self, commands: Sequence[AnyCommand]) -> Future[Answered]: ...

    def after(self, since: int, upto: int, limit: int) -> Sequence[bytes]:
        """Objects of the log, versions (since, upto]; none if they are more than `limit` bytes."""

    def not_leading(self) -> NotCoordinator: ...

    def metrics_text(self, *, polls: int, connections: int) -> str: ...


class GroupService(Protocol):
    """The groups that members share."""

    def notice(self) -> None:
        """Another one leads, or there is a new version."""

    def stirred(self, group_id: str) -> asyncio.Future[None] | None:
        """Is done when members begin to share a group out anew; None if nobody shares it."""

    async def ask(self, request: Request, wait_ms: int, client_host: str) -> Response: ...

    def refusal(self, command: AnyCommand) -> SparkLogError | None:
        """Why a command that commits positions of a member is refused."""

    def views(self) -> tuple[GroupView, ...]: ...

    def metrics_text(self) -> str: ...


class _Http(web.Server):
    """aiohttp's server, which counts its connections."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.open = 0

    def connection_made(self, handler: Any, transport: Any) -> None:
        self.open += 1
        super().connection_made(handler, transport)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        self.open -= 1
        super().connection_lost(handler, exc)


class _Landings:
    """Results of another thread on their way to the event loop, which is woken once for those that are there together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._landed: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._called = False

    def of(self, found: Future[Result]) -> asyncio.Future[Result]:
        """Is done on the event loop soon after `found` is."""
        answer: asyncio.Future[Result] = self._loop.create_future()
        found.add_done_callback(lambda done: self._land(answer, done))
        return answer

    def _land(self, answer: asyncio.Future[Any], done: Future[Any]) -> None:
        self._landed.append((answer, done))
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._called = False  # before it looks: what lands from now on calls again
        while self._landed:
            answer, done = self._landed.popleft()
            if answer.done():
                continue  # whoever asked has hung up
            if (error := done.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(done.result())


class Server:
    """Serves one coordinator.  All of it runs on the event loop."""

    def __init__(self, service: Service, groups: GroupService, *, tokens: Tokens, limits: Limits) -> None:
        self._service = service
        self._groups = groups
        self._tokens = tokens
        self._limits = limits
        self._polls = 0
        self._waiters = Waiters()
        self._idle: dict[Any, float] = {}
        """Connections on which no request is being handled, and until when one has to have arrived."""
        self._body: tuple[int, int, bool, bytes] = (-1, -1, False, b"")
        self._http: _Http | None = None
        self._server: asyncio.Server | None = None
        self._routes: dict[str, tuple[str, Handler]] = {
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/v1/cluster": ("GET", self._cluster),
            "/v1/commands": ("POST", self._commands),
            "/v1/changes": ("GET", self._changes),
            "/v1/groups": ("GET", self._group_views),
            **dict.fromkeys(GROUP_PATHS, ("POST", self._group)),
        }

    # ------------------------------------------------------------------------------------------------------ start and stop

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; the port.  Raises OSError."""
        loop = asyncio.get_running_loop()
        self._stopping = False

        def changed() -> None:
            loop.call_soon_threadsafe(self._wake)

        self._service.on_change = changed
        self._landings = _Landings(loop)
        self._parking = Parking(loop)
        make = self._http = _Http(
            self._guard,
            request_factory=self._request,
            access_log=None,
            logger=_broken,
            keepalive_timeout=KEEPALIVE_S,
            max_line_size=self._limits.header_bytes,
            max_field_size=self._limits.header_bytes,
        )

        def connected() -> Any:
            connection = make()
            self._idle[connection] = time.monotonic() + self._limits.request_ms / 1000
            return connection

        self._server = await loop.create_server(connected, host.strip("[]"), port, ssl=tls, backlog=4096)
        self._sweeper = loop.create_task(self._sweep())
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop, limit = asyncio.get_running_loop(), self._limits.body_bytes
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=limit)

    async def stop(self) -> None:
        """Answer who waits, and close."""
        self._stopping = True
        self._wake()
        self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        if self._http is not None:
            self._http.pre_shutdown()
            await self._http.shutdown(SHUTDOWN_S)
        self._parking.close()

    def _wake(self) -> None:
        self._groups.notice()
        touched = self._service.news.untold()
        self._waiters.wake(None if self._stopping or not self._service.leading else touched)

    async def _sweep(self) -> None:
        """Close connections on which a request does not arrive: they would count as long as their owners like."""
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for connection, deadline in tuple(self._idle.items()):
                if connection.transport is None:
                    del self._idle[connection]  # it is closed
                elif deadline < now:
                    connection.transport.abort()

    # ------------------------------------------------------------------------------------------------------------ requests

    async def _guard(self, request: web.BaseRequest) -> web.StreamResponse:
        """Limits; and errors as messages with the status that fits."""
        connection = request.protocol
        self._idle.pop(connection, None)
        try:
            if self._connections() > self._limits.connections:
                raise CoordinatorNotAvailable(f"more than {self._limits.connections} connections are open")
            if (size := request.content_length or 0) > self._limits.body_bytes:
                raise web.HTTPRequestEntityTooLarge(self._limits.body_bytes, size)
            method, handler = self._routes.get(request.path, ("", _nothing))
            asked = "GET" if request.method == "HEAD" else request.method
            if method and asked != method:
                return _failed(InvalidRequest(f"{request.path}: use {method}, not {request.method}"), 405)
            return await handler(request)
        except SparkLogError as error:
            return _failed(error)
        except web.HTTPException as error:
            return _failed(InvalidRequest(f"{request.method} {request.path}: {error.reason}"), error.status)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            failed = CoordinatorNotAvailable("an error in the coordinator; its log has the details")
            failed.maybe_applied = request.method != "GET"  # nobody knows how far it went
            return _failed(failed, 500)
        finally:
            self._idle[connection] = time.monotonic() + KEEPALIVE_S

    def _connections(self) -> int:
        return 0 if self._http is None else self._http.open

    async def _health(self, request: web.BaseRequest) -> web.Response:
        """200 where it leads or stands by."""
        state = self._service.state
        leading, epoch = self._service.leading, state.coordinator.epoch
        return _answer(Health(cluster_id=self._service.cluster_id, leading=leading, epoch=epoch, version=state.version))

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        self._tokens.grant(request.headers.get("Authorization"))
        text = self._service.metrics_text(polls=self._polls, connections=self._connections())
        return web.Response(text=text + self._groups.metrics_text(), content_type="text/plain")

    async def _cluster(self, request: web.BaseRequest) -> web.Response:
        self._tokens.grant(request.headers.get("Authorization"))
        state = self._service.state
        info = ClusterInfo(
            pylog=PROTOCOL,
            cluster_id=self._service.cluster_id,
            storage=self._service.storage,
            leading=self._service.leading,
            address=state.coordinator.address,
            epoch=state.coordinator.epoch,
            version=state.version,
        )
        return _answer(info)

    async def _commands(self, request: web.BaseRequest) -> web.Response:
        grant = self._tokens.grant(request.headers.get("Authorization"))
        data = await self._read(request)
        asked: CommandsRequest = decode(data, CommandsRequest, "the request")
        self._check(asked.cluster_id)
        refused = [self._refusal(grant, command) for command in asked.commands]
        allowed = [command for command, error in zip(asked.commands, refused, strict=True) if error is None]
        decided = iter((await self._landings.of(self._service.submit(allowed))).outcomes if allowed else ())
        outcomes = tuple(
            _outcome(command, error or next(decided)) for command, error in zip(asked.commands, refused, strict=True)
        )
        batches = self._service.after(asked.since, self._service.state.version, REPLY_BYTES_MAX)
        return _answer(CommandsReply(outcomes=outcomes, batches=batches_as_text(batches)))

    def _refusal(self, grant: Grant, command: AnyCommand) -> SparkLogError | None:
        """Of one command alone: others that came with it may be of other threads, which go on."""
        try:
            check_allowed(grant, command, self._service.state)
        except AuthorizationFailed as error:
            return error
        return self._groups.refusal(command)

    async def _changes(self, request: web.BaseRequest) -> web.Response:
        self._tokens.grant(request.headers.get("Authorization"))
        self._check(request.query.get("cluster_id", ""))
        self._parking.park(request.transport)
        since, wait_ms = _number(request, "since"), min(_number(request, "wait_ms"), WAIT_MS_MAX)
        deadline = time.monotonic() + wait_ms / 1000
        stirred = self._groups.stirred(request.query.get("group", ""))
        topics = _topics(request)
        while not self._service.news.there_is(topics, since) and not self._stopping:
            left = deadline - time.monotonic()
            if left <= 0 or not self._service.leading or (stirred is not None and stirred.done()):
                break
            self._polls += 1
            waiter = self._waiters.join(topics)
            try:
                awaited = [waiter] if stirred is None else [waiter, stirred]
                await asyncio.wait(awaited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiters.leave(topics, waiter)
                self._polls -= 1
        if not self._service.leading:
            raise self._service.not_leading()
        told = self._service.news.there_is(topics, since) or (stirred is not None and stirred.done())
        return web.Response(body=self._changes_body(since, told), content_type="application/json")

    async def _group(self, request: web.BaseRequest) -> web.Response:
        grant = self._tokens.grant(request.headers.get("Authorization"))
        asked: GroupAsked = decode(await self._read(request), GroupAsked, "the request")
        self._check(asked.cluster_id)
        if not isinstance(asked.request, GROUP_PATHS[request.path]):
            raise InvalidRequest(f"{request.path}: this is a {type(asked.request).__name__}")
        check_names(grant, topics=_topics_of(asked.request), groups=(asked.request.group_id,))
        response = await self._groups.ask(asked.request, min(asked.wait_ms, WAIT_MS_MAX), request.remote or "")
        return _answer({"response": response})

    async def _group_views(self, request: web.BaseRequest) -> web.Response:
        self._tokens.grant(request.headers.get("Authorization"))
        self._check(request.query.get("cluster_id", ""))
        return _answer(GroupsReply(groups=self._groups.views()))

    def _changes_body(self, since: int, told: bool) -> bytes:
        """Made once for all that wait at the same version.

        told:  there is news for who asked; who has none stays behind where more has come than one answer may hold.
        """
        version = self._service.state.version
        if self._body[:3] != (since, version, told):
            batches = batches_as_text(self._service.after(since, version, CHANGES_BYTES_MAX))
            reached = version if told or batches else since
            self._body = (since, version, told, encode(ChangesReply(version=reached, batches=batches)))
        return self._body[3]

    def _check(self, cluster_id: str) -> None:
        if cluster_id != self._service.cluster_id:
            raise InconsistentClusterId(
                f"this coordinator has the log {self._service.cluster_id}, not {cluster_id or '(none given)'}"
            )
        if not self._service.leading:
            raise self._service.not_leading()

    async def _read(self, request: web.BaseRequest) -> bytes:
        if request.content.is_eof():
            return await request.read()  # it is here: no timer is needed
        try:
            return await asyncio.wait_for(request.read(), self._limits.request_ms / 1000)
        except asyncio.TimeoutError as error:
            raise RequestTimedOut(f"the request did not arrive within {self._limits.request_ms} ms") from error


async def _nothing(request: web.BaseRequest) -> web.StreamResponse:
    return _failed(InvalidRequest(f"{request.path}: there is nothing here"), 404)


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS with a certificate.  Raises InvalidRequest for files that are none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(f"[tls]: {certificate} and {key} cannot be used: {error}") from error
    return context


def _outcome(command: AnyCommand, found: Any) -> Outcome:
    if isinstance(found, SparkLogError):
        return Outcome(failure=failure_of(found))
    return Outcome(reply=command.pack(found))


def _topics(request: web.BaseRequest) -> Topics:
    text = request.query.get("topics")
    return None if text is None else tuple(set(filter(None, text.split(","))))


def _topics_of(request: MemberRequest) -> Sequence[str]:
    """Those that a member asks for."""
    if not isinstance(request, JoinGroupRequest):
        return ()
    return sorted(subscribed_topics(protocol.metadata for protocol in request.protocols) or ())


def _number(request: web.BaseRequest, name: str) -> int:
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequest(f"{name}: {text!r} is no number")
    return int(text)


def _answer(message: object) -> web.Response:
    return web.Response(body=encode(message), content_type="application/json")


def _failed(error: SparkLogError, status: int | None = None) -> web.Response:
    if status is None:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 400)
    return web.Response(body=encode(failure_of(error)), status=status, content_type="application/json")


_STATUS: tuple[tuple[type[SparkLogError], int], ...] = (
    (AuthenticationFailed, 401),
    (AuthorizationFailed, 403),
    (RequestTimedOut, 408),
    (InconsistentClusterId, 409),
    (NotCoordinator, 503),
    (CoordinatorNotAvailable, 503),
)
