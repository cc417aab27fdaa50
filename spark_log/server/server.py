"""The server's side of the protocol: HTTP on one port, with connection limits."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

import msgspec
from aiohttp import web

from spark_log.errors import (
    AuthorizationFailed,
    CoordinatorNotAvailable,
    InvalidRequest,
    QuotaExceeded,
    SparkLogError,
)
from spark_log.groups.messages import Code, JoinGroupRequest, Response
from spark_log.groups.subscription import CONSUMER, subscribed_topics
from spark_log.http.address import is_own_host
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.http.failures import failure_of
from spark_log.http.http_port import KEEPALIVE_S, Handler, HttpPort, failure_response
from spark_log.journal.store_operations import Answered
from spark_log.log_lines import logger
from spark_log.metadata.commands import AnyCommand
from spark_log.metadata.projection import Holdings, object_rows
from spark_log.rpc.messages import (
    GROUP_PATHS,
    PROTOCOL,
    SERVED,
    WAIT_MS_MAX,
    ChangesRequest,
    ClaimReply,
    ClaimRequest,
    ClusterInfo,
    CommandOutcome,
    CommandsReply,
    CommandsRequest,
    GroupAsked,
    GroupsReply,
    ObjectsReply,
    ObjectsRequest,
    QuorumInfo,
    SnapshotRequest,
    StatusReply,
    TopicsRequest,
    decode,
    encode,
)
from spark_log.runtime.daemon_threads import DaemonThreads, ThreadResults
from spark_log.server import audit
from spark_log.server.change_replies import READ_BYTES_MAX, ChangeReplies
from spark_log.server.claimed_copies import absent_copies, claimed_copies
from spark_log.server.large_requests import LARGE_BYTES, LargeRequests, check_count
from spark_log.server.leader_check import LeaderCheck
from spark_log.server.long_poll import LongPolls, PausedConnections, of_few
from spark_log.server.quotas import Claim, Quota, Quotas
from spark_log.server.service import GroupService, Rule, Service
from spark_log.server.shared_claims import SharedClaims
from spark_log.server.shared_replicas import check_written
from spark_log.server.snapshots import Snapshots
from spark_log.server.tokens import ANYBODY, Grant, Tokens, check_allowed, check_names, with_identities

REPLY_BYTES_MAX = 1 << 20
"""Limit of new log records in a reply to commands.  Clients that are further behind read them from storage."""
HELD_MAX = 1000
"""Partitions, missing topics and groups of a client that holds topics.  A client of more reads the log: it describes
each of them in each request, and the event loop waits while they are compared."""
STANDBY_LOOK_S = 0.05
"""How often a request checks whether a standby has read the log since it arrived."""
STORAGE_THREADS = 4
"""For claims and other requests that use the storage: one that hangs leaves the others."""


class Pages(Protocol):
    """Web pages on the same port."""

    def serves(self, path: str) -> bool: ...

    async def answer(
        self, request: web.BaseRequest, admit: Callable[[web.BaseRequest], Awaitable[Grant]]
    ) -> web.StreamResponse:
        """
        admit:  the grant of a request's token.  Raises the errors of a token that is missing or unknown.
        """

    def close(self) -> None: ...


class Server:
    """Serves one coordinator.  Runs on the event loop."""

    def __init__(
        self,
        service: Service,
        groups: GroupService,
        *,
        tokens: Tokens,
        limits: ConnectionLimits,
        quotas: Mapping[str, Quota] | None = None,
        hosts: Collection[str] | None = None,
        serves_metadata: bool = False,
        pages: Pages | None = None,
        describe_quorum: Callable[[], QuorumInfo] | None = None,
        daemon_threads: Callable[[int, str], DaemonThreads] = DaemonThreads,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        hosts:  without tokens, requests for other hosts than these and this machine are rejected; None: they are
                accepted.
        serves_metadata:  clients read the metadata log here, and not on the storage.
        pages:  None: there are none.
        describe_quorum:  for a leader; None: the metadata is not in a quorum.
        daemon_threads, monotonic_s:  as a `NodeHost` has them.
        """
        self._describe_quorum = describe_quorum
        self._service = service
        self._monotonic_s = monotonic_s
        self._groups = groups
        self._tokens = tokens
        self._limits = limits
        self._quotas = Quotas(quotas or {})
        self._hosts = hosts
        self._pages = pages
        self._held: dict[asyncio.Task[Any], Callable[[], object]] = {}
        """Tasks of group requests that may wait, each with a check of its token."""
        self._revoked: dict[asyncio.Task[Any], SparkLogError] = {}
        """The errors of those that were cancelled, because their tokens lost access."""
        self._leader = LeaderCheck(service, monotonic_s)
        self._replies = ChangeReplies(service)
        self._large = LargeRequests(monotonic_s)
        self._serves_metadata = serves_metadata
        self._storage_threads = daemon_threads(STORAGE_THREADS, "pylog-serve-storage")
        self._encoding_threads = daemon_threads(1, "pylog-serve-encoding")
        self._snapshots = Snapshots(service, self._encoding_threads, self._storage_threads, monotonic_s)
        self._claims = SharedClaims(service, self._storage_threads, monotonic_s)
        self._waiters = LongPolls()
        self._led = False
        """Whether it led when waiting requests were last woken."""
        self._port = HttpPort(self.answer, limits)
        self._connections = self._port.connections
        self._routes = self._handlers()

    def _handlers(self) -> dict[str, tuple[str, Handler]]:
        """The method and the handler of each path."""
        return {
            "/health": ("GET", self._health),
            "/alive": ("GET", self._alive),
            "/metrics": ("GET", self._metrics),
            "/v1/cluster": ("GET", self._cluster),
            "/v1/commands": ("POST", self._commands),
            "/v1/changes": ("POST", self._changes),
            "/v1/topics": ("POST", self._topics),
            "/v1/objects": ("POST", self._objects),
            "/v1/snapshot": ("POST", self._snapshot),
            "/v1/claim": ("POST", self._claim),
            "/v1/status": ("GET", self._status),
            "/v1/quorum": ("GET", self._quorum),
            "/v1/groups": ("GET", self._group_views),
            **dict.fromkeys(GROUP_PATHS, ("POST", self._group)),
        }

    # --------------------------------------------------------------------------------------------------- start and stop

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen, and return the port.  Raises OSError."""
        self.begin()
        return await self._port.start(host, port, tls)

    def begin(self) -> None:
        """Be able to answer."""
        loop = asyncio.get_running_loop()
        self._stopping = False

        def changed() -> None:
            loop.call_soon_threadsafe(self._wake)

        self._service.on_change = changed
        self._thread_results = ThreadResults(loop)
        self._parking = PausedConnections(loop)
        self._watching = loop.create_task(self._watch_pauses())

    async def stop(self) -> None:
        """Answer waiting requests, and close."""
        self._stopping = True
        self._wake()
        self._claims.stop()
        self._watching.cancel()
        if self._pages is not None:
            self._pages.close()
        await self._port.stop()
        self._parking.close()
        self._storage_threads.close()
        self._encoding_threads.close()

    def replace(self, tokens: Tokens, quotas: Mapping[str, Quota], tls: ssl.SSLContext | None) -> None:
        """Apply new tokens, quotas and TLS settings.  Waiting requests with removed tokens end."""
        self._tokens = tokens
        self._quotas.replace(quotas)
        self._port.use(tls)
        self._connections.close_idle([grant.name for grant in tokens.grants])
        for task, check in self._held.items():
            try:
                check()
            except SparkLogError as error:
                self._revoked[task] = error
                task.cancel()
        self._waiters.wake(None)

    def _wake(self) -> None:
        self._groups.notice()
        self._quotas.note(self._service.state)
        touched, leading = self._service.change_feed.drain(), self._service.leading
        self._waiters.wake(None if self._stopping or (self._led and not leading) else touched)
        self._led = leading

    async def _watch_pauses(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._leader.note_pause()
            self._snapshots.forget_unused()

    # --------------------------------------------------------------------------------------------------------- requests

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Apply limits, and convert errors to messages with a matching status."""
        peer = self._port.peer(request)
        self._connections.begin(peer)
        try:
            if (wrong := self._wrong_host(request)) is not None:
                return failure_response(wrong, 421)
            if (size := request.content_length or 0) > self._limits.body_bytes:
                raise web.HTTPRequestEntityTooLarge(self._limits.body_bytes, size)
            if self._pages is not None and self._pages.serves(request.path):
                return await self._pages.answer(request, self._reader)
            method, handler = self._routes.get(request.path, ("", _nothing))
            asked = "GET" if request.method == "HEAD" else request.method
            if method and asked != method:
                return failure_response(InvalidRequest(f"{request.path}: use {method}, not {request.method}"), 405)
            return await handler(request)
        except SparkLogError as error:
            return failure_response(error)
        except web.HTTPException as error:
            return failure_response(InvalidRequest(f"{request.method} {request.path}: {error.reason}"), error.status)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            failed = CoordinatorNotAvailable("an error in the coordinator; its log has the details")
            failed.maybe_applied = request.method != "GET"  # the outcome is unknown
            return failure_response(failed, 500)
        finally:
            self._connections.end(peer, self._monotonic_s() + KEEPALIVE_S)

    def _wrong_host(self, request: web.BaseRequest) -> InvalidRequest | None:
        """The error for a request that a web page may have made a browser on this machine send."""
        host = request.headers.get("Host")
        if host is None or self._tokens or self._hosts is None or is_own_host(host, self._hosts):
            return None
        return InvalidRequest(
            f"Host: {host!r} is not an address of this coordinator, which has no tokens and serves this machine only; "
            "use localhost, or give it that address with --advertise, or tokens"
        )

    async def _admit(self, request: web.BaseRequest) -> bytes:
        """The body of a request.  Marks the connection as a client's.

        Raises AuthenticationFailed, RequestTimedOut, and CoordinatorNotAvailable or QuotaExceeded for too many
        connections.
        """
        grant = self._grant(request)
        body = await self._port.read(request)
        self._connections.establish(self._port.peer(request), grant.name, self._quotas.of(grant.name).connections)
        return body

    async def _asked(self, request: web.BaseRequest, kind: type[msgspec.Struct]) -> tuple[Grant, Any]:
        """The grant of a request's token, and what it asks."""
        async with self._admitted(request) as (grant, body):
            return grant, decode(body, kind, "the request")

    @asynccontextmanager
    async def _admitted(self, request: web.BaseRequest) -> AsyncIterator[tuple[Grant, bytes]]:
        """Admit a request as `_admit` does, in the turn of a large one."""
        grant = self._grant(request)
        async with self._large.body(request, grant.name, partial(self._admit, request)) as body:
            yield grant, body

    async def _reader(self, request: web.BaseRequest) -> Grant:
        await self._admit(request)
        return self._grant(request)

    def _grant(self, request: web.BaseRequest) -> Grant:
        return self._tokens.grant(request.headers.get("Authorization"))

    async def _health(self, request: web.BaseRequest) -> web.Response:
        """200 if it leads or is a standby, and its storage accepts writes."""
        health = self._service.health()
        return web.Response(body=encode(health), status=200 if health.healthy else 503, content_type="application/json")

    async def _alive(self, request: web.BaseRequest) -> web.Response:
        """200 while the process answers."""
        return _answer(self._service.health())

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        await self._admit(request)
        # In another thread: with thousands of groups it takes longer than requests may wait for the event loop.
        return web.Response(text=await asyncio.to_thread(self._metrics_text), content_type="text/plain")

    def _metrics_text(self) -> str:
        usage = self._quotas.usage(self._tokens.grants, self._service.state, self._connections.of_principal)
        text = self._service.metrics_text(polls=self._waiters.waiting, connections=self._connections, usage=usage)
        return text + self._snapshots.metrics_text() + self._groups.metrics_text()

    async def _cluster(self, request: web.BaseRequest) -> web.Response:
        await self._admit(request)
        grant = self._grant(request)
        state = self._service.state
        info = ClusterInfo(
            pylog=PROTOCOL,
            cluster_id=self._service.cluster_id,
            storage=self._service.storage,
            leading=self._service.leading,
            address=state.coordinator.address,
            epoch=state.coordinator.epoch,
            version=state.version,
            metadata=SERVED if self._serves_metadata else "",
            principal="" if grant == ANYBODY else grant.name,
        )
        return _answer(info)

    async def _commands(self, request: web.BaseRequest) -> web.Response:
        async with self._admitted(request) as (grant, body):
            asked: CommandsRequest = decode(body, CommandsRequest, "the request")
            return await self._answered(request, grant, asked)

    async def _answered(self, request: web.BaseRequest, grant: Grant, asked: CommandsRequest) -> web.Response:
        check_count(asked.commands)
        await self._check(asked.cluster_id)
        changes = audit.changes_of(asked.commands, self._service.state)
        found: Sequence[object] = ()
        try:
            found = await self._carried_out(grant, asked.commands)
        except BaseException as error:
            found = [error] * len(asked.commands)
            raise
        finally:
            version = self._service.state.version
            for change, outcome in zip(changes, found, strict=False):
                audit.write(grant.name, request.remote or "", change, outcome, version)
        outcomes = tuple(map(_outcome, asked.commands, found))
        if asked.held is not None:
            return _answer(CommandsReply(outcomes=outcomes, delta=self._service.delta(asked.held)))
        batches = self._replies.batches(asked, self._service.state.version, REPLY_BYTES_MAX)
        return _answer(CommandsReply(outcomes=outcomes, batches=batches))

    async def _check(self, cluster_id: str, *, standby: bool = False) -> None:
        """Raises the error for a request that this coordinator must not answer.  Waits a moment for an election."""
        if not standby:
            await self._service.leader_known()
        self._leader.check(cluster_id, standby=standby)

    async def _carried_out(self, grant: Grant, commands: Sequence[AnyCommand]) -> list[object]:
        """The reply to each command, or its error."""
        claim = self._quotas.claim(grant)
        commands = [with_identities(grant, command, self._service.state) for command in commands]
        try:
            refused = [self._refusal(grant, claim, command) for command in commands]
            allowed = [command for command, error in zip(commands, refused, strict=True) if error is None]
            decided = iter((await self._decided(grant, allowed)).outcomes if allowed else ())
        finally:
            claim.release()
        if not self._service.answers_final:
            self._leader.check_leads(changed=True)
        return [next(decided) if error is None else error for error in refused]

    async def _decided(self, grant: Grant, commands: Sequence[AnyCommand]) -> Answered:
        """The outcomes of commands, which a limited token may not write where they would harm others."""
        allow: Rule | None = None
        if grant.is_limited:
            state = self._service.state
            claimed = [one for command in commands for one in claimed_copies(command, state)] if grant.topics else []
            absent = await absent_copies(self._service.roots, claimed) if claimed else ()
            allow = partial(check_written, grant, absent)
        return await self._thread_results.of(self._service.submit(commands, allow))

    def _refusal(self, grant: Grant, claim: Claim, command: AnyCommand) -> SparkLogError | None:
        """The error of a single command: other commands of the request may come from other threads, and continue."""
        try:
            check_allowed(grant, command, self._service.state)
            claim.add(command, self._service.state, self._monotonic_s())
        except (AuthorizationFailed, QuotaExceeded) as error:
            return error
        return self._groups.refusal(command)

    async def _changes(self, request: web.BaseRequest) -> web.Response:
        asked: ChangesRequest = of_few((await self._asked(request, ChangesRequest))[1])
        await self._check(asked.cluster_id, standby=asked.standby)
        if asked.confirmed:
            await self._confirm(standby=asked.standby)
            data = self._replies.changes(asked, affected=True, limit=READ_BYTES_MAX)
        else:
            data = self._replies.changes(asked, await self._await_changes(request, asked, asked.since))
        return web.Response(body=data, content_type="application/json")

    async def _topics(self, request: web.BaseRequest) -> web.Response:
        asked: TopicsRequest = of_few((await self._asked(request, TopicsRequest))[1])
        await self._check(asked.cluster_id, standby=asked.standby)
        held: Holdings = decode(asked.held, Holdings, "the request")
        if len(bytes(asked.held)) > LARGE_BYTES:
            raise InvalidRequest(f"held: more than {LARGE_BYTES:,} bytes: read the log instead")
        if (size := held.size_in(self._service.published)) > HELD_MAX:
            raise InvalidRequest(
                f"held: {size:,} partitions, missing topics and groups, more than {HELD_MAX:,}: read the log instead"
            )
        if asked.confirmed:
            await self._confirm(standby=asked.standby)
        else:
            await self._await_changes(request, asked, held.version)
        return web.Response(body=self._replies.delta(bytes(asked.held), held), content_type="application/json")

    async def _confirm(self, *, standby: bool) -> None:
        """Read the log up to its end.  Afterwards the state has every change that was acknowledged before."""
        asked_s = self._monotonic_s()
        while not self._leader.leads():
            if self._service.has_followed_since(asked_s):
                return
            await asyncio.sleep(STANDBY_LOOK_S)
            self._leader.check_leads(standby=standby)
        await self._thread_results.of(self._service.submit([]))

    async def _objects(self, request: web.BaseRequest) -> web.Response:
        asked: ObjectsRequest = (await self._asked(request, ObjectsRequest))[1]
        await self._check(asked.cluster_id, standby=asked.standby)
        return _answer(ObjectsReply(rows=object_rows(self._service.state, asked.names)))

    async def _snapshot(self, request: web.BaseRequest) -> web.Response:
        """The whole state, to any token, as all requests for changes: it names the records that a client can read."""
        asked: SnapshotRequest = (await self._asked(request, SnapshotRequest))[1]
        await self._check(asked.cluster_id, standby=asked.standby)
        data = await self._snapshots.reply(asked)
        self._leader.check_leads(standby=asked.standby)
        return web.Response(body=data, content_type="application/octet-stream")

    async def _claim(self, request: web.BaseRequest) -> web.Response:
        grant, asked = await self._asked(request, ClaimRequest)
        await self._check(asked.cluster_id)
        if asked.value is not None:
            self._quotas.note_change(grant.name, self._monotonic_s())
            # One that does not lead any more may lack the version of the claim, and would refuse it.
            await self._confirm(standby=False)
        value = await self._claims.ask(asked)
        self._leader.check_leads(changed=asked.value is not None)
        return _answer(ClaimReply(value=None if value is None else value.decode()))

    async def _status(self, request: web.BaseRequest) -> web.Response:
        await self._admit(request)
        await self._check(request.query.get("cluster_id", ""))
        found = await self._storage_threads.submit(self._service.ask_log, lambda log: log.status())
        return _answer(StatusReply(checkpoint=found.checkpoint))

    async def _quorum(self, request: web.BaseRequest) -> web.Response:
        await self._admit(request)
        await self._check(request.query.get("cluster_id", ""))
        if self._describe_quorum is None:
            raise InvalidRequest("the metadata of this log is on its storage, not in a quorum")
        return _answer(self._describe_quorum())

    async def _await_changes(self, request: web.BaseRequest, asked: ChangesRequest | TopicsRequest, since: int) -> bool:
        """Wait for changes that concern the requester, as long as it asks; whether there are any."""
        self._parking.park(request.transport)
        rebalance = self._groups.rebalance_begun(asked.group)

        def has_changes() -> bool:
            return self._service.change_feed.has_changes(asked.topics, since)

        def is_over() -> bool:
            self._grant(request)  # tokens may have been replaced
            return has_changes() or self._stopping or not self._leader.may_answer(asked.standby)

        await self._waiters.until(is_over, asked.topics, min(asked.wait_ms, WAIT_MS_MAX) / 1000, rebalance)
        self._leader.check_leads(standby=asked.standby)
        return has_changes() or (rebalance is not None and rebalance.done())

    async def _group(self, request: web.BaseRequest) -> web.Response:
        grant, asked = await self._asked(request, GroupAsked)
        await self._check(asked.cluster_id)
        if not isinstance(asked.request, GROUP_PATHS[request.path]):
            raise InvalidRequest(f"{request.path}: this is a {type(asked.request).__name__}")
        change = audit.change_of_member(asked.request) if audit.is_on() else None
        outcome: object = None
        try:
            response = await self._shared(request, asked)
            if response.error is Code.MEMBER_ID_REQUIRED:
                change = None  # the first part of a join, without a member id
            elif response.error is not Code.NONE:
                outcome = InvalidRequest(response.error.name)
        except BaseException as error:
            outcome = error
            raise
        finally:
            audit.write(grant.name, request.remote or "", change, outcome, self._service.state.version)
        return _answer({"response": response})

    async def _shared(self, request: web.BaseRequest, asked: GroupAsked) -> Response:
        """The reply to a group member.  The wait for other members ends if its token loses access."""
        claim = self._quotas.claim(self._member_grant(request, asked))
        task = asyncio.current_task()
        assert task is not None, "requests are handled in tasks"
        self._held[task] = partial(self._member_grant, request, asked)
        try:
            if isinstance(asked.request, JoinGroupRequest):
                claim.add_group(asked.request.group_id, self._service.state)
            wait_ms = min(asked.wait_ms, WAIT_MS_MAX)
            response = await self._groups.ask(asked.request, wait_ms, request.remote or "")
        except asyncio.CancelledError:
            if task not in self._revoked:
                raise
            raise self._revoked[task] from None
        finally:
            self._held.pop(task)
            self._revoked.pop(task, None)
            claim.release()
        self._leader.check_leads(changed=True)
        return response

    def _member_grant(self, request: web.BaseRequest, asked: GroupAsked) -> Grant:
        """Raises AuthenticationFailed, or AuthorizationFailed for a group or topics that the token has no access to."""
        grant = self._grant(request)
        if grant.topics and isinstance(asked.request, JoinGroupRequest):
            check_names(grant, topics=_topics_of(grant, asked.request))
        check_names(grant, groups=(asked.request.group_id,))
        return grant

    async def _group_views(self, request: web.BaseRequest) -> web.Response:
        await self._admit(request)
        await self._check(request.query.get("cluster_id", ""))
        return _answer(GroupsReply(groups=self._groups.views()))


async def _nothing(request: web.BaseRequest) -> web.StreamResponse:
    return failure_response(InvalidRequest(f"{request.path}: no such path"), 404)


def _outcome(command: AnyCommand, found: Any) -> CommandOutcome:
    if isinstance(found, SparkLogError):
        return CommandOutcome(failure=failure_of(found))
    return CommandOutcome(reply=command.pack(found))


def _topics_of(grant: Grant, request: JoinGroupRequest) -> Sequence[str]:
    """The topics a member subscribes to.  Raises AuthorizationFailed if the form of its subscription is unknown."""
    topics = subscribed_topics(protocol.metadata for protocol in request.protocols)
    if request.protocol_type != CONSUMER or topics is None:
        raise AuthorizationFailed(
            f"the token {grant.name!r} is for some topics, and the request to join the group {request.group_id!r} "
            "does not say "
            f"which topics it is for: expected subscriptions of the protocol type {CONSUMER!r}"
        )
    return sorted(topics)


def _answer(message: object) -> web.Response:
    return web.Response(body=encode(message), content_type="application/json")
