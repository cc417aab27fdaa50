"""The client's side of the protocol: requests to coordinators, over persistent connections."""

from __future__ import annotations

import http.client
import math
import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from spark_log.errors import (
    AuthenticationFailed,
    CoordinatorNotAvailable,
    InconsistentClusterId,
    InvalidRequest,
    LogMoved,
    NotCoordinator,
    SparkLogError,
)
from spark_log.groups.messages import Request, Response
from spark_log.http.address import Target, is_loopback, this_host
from spark_log.http.client_connection import CONNECT_S, Connection, Endpoint, Wait, resolve
from spark_log.http.failures import error_of
from spark_log.http.tls import ca_context
from spark_log.journal import store_operations as ops
from spark_log.log_lines import logger
from spark_log.metadata.command_base import Command
from spark_log.metadata.decide_coordinators import check_is_here
from spark_log.metadata.projection import Delta
from spark_log.metadata.state import Leadership
from spark_log.rpc.client_timeouts import ONE_ADDRESS, SEVERAL_ADDRESSES, ClientTimeouts
from spark_log.rpc.health_check import get_health, health_of
from spark_log.rpc.kafka_probe import is_kafka
from spark_log.rpc.messages import (
    GROUP_PATHS,
    PROTOCOL,
    ChangesReply,
    ChangesRequest,
    ClaimReply,
    ClaimRequest,
    ClusterInfo,
    CommandsReply,
    CommandsRequest,
    GroupAnswered,
    GroupsReply,
    GroupView,
    ObjectsReply,
    ObjectsRequest,
    SnapshotRequest,
    StatusReply,
    TopicsRequest,
    decode,
    encode,
)
from spark_log.rpc.request_errors import no_answer, refusal_of
from spark_log.rpc.snapshot_download import download
from spark_log.runtime.fork_safety import renew_after_fork
from spark_log.store.open import is_other_storage

ANSWER_S = 30.0
"""Timeout for a reply, in addition to the time that the request asks the coordinator to wait."""
CHECKED_WAIT_S = 15.0
"""A request that asks the coordinator to wait longer is checked while it waits.  Heartbeats are not, by default: each
check takes a connection, and the coordinator has thousands of members."""
SILENT_S = 30.0
"""How long an endpoint that did not answer is tried last, and only after a successful `GET /health`."""
LEADERLESS_S = 10.0
"""How long standbys are asked for changes immediately after no leader answered."""
SILENT_PAUSE_S = 2.0
"""How long such an endpoint is not tried at all."""
RESOLVED_S = 30.0
"""How long the resolved endpoints of a name are cached."""
KAFKA = "this is a Kafka broker, not pylog; Spark reads and writes it with format('kafka')"
NOT_KAFKA = ": it closed the connection, as a Kafka broker does, and did not answer Kafka's ApiVersions request either"
NO_COORDINATOR = (
    "start one with `pylog serve`, or open a log without a coordinator by its storage's URL; of a quorum, "
    "give the addresses of all nodes"
)
GONE = (
    "; it has the log: start it again, or another one on this log, with `pylog serve`; if it is gone for good, "
    "`pylog cluster release --force` gives the log back to embedded writers"
)
SILENT = "check the address, and that the coordinator's process runs and is not suspended"
IDLE_S = 30.0
"""A connection that was idle for longer is not reused: the other side may be about to close it."""
Resolve = Callable[[str], "list[Endpoint]"]


class HttpLink:
    """The connections to the coordinators of one log.  Safe for threads and forks."""

    def __init__(
        self,
        target: Target,
        token: str | None = None,
        cluster_id: str = "",
        resolve: Resolve = resolve,
        storage: str = "",
        timeouts: ClientTimeouts | None = None,
    ) -> None:
        """
        storage:   URL of the log's storage, if the log was opened there and names its coordinator.
        timeouts:  None: those for the number of addresses.
        """
        self.cluster_id = cluster_id
        """The id of the log; empty until known."""
        self._target = target
        self._timeouts = timeouts or (SEVERAL_ADDRESSES if len(target.addresses) > 1 else ONE_ADDRESS)
        self._storage = storage
        self._checked_storage: tuple[str, int] | None = None
        """The coordinator, by address and epoch, that has the log in `storage`."""
        self._token = None if token is None else _checked_token(token)
        self._tls = None if target.ca is None else ca_context(target.ca)
        self._resolve = resolve
        self._resolved: dict[str, tuple[float, list[Endpoint]]] = {}
        self._last: Endpoint | None = None
        """The endpoint that last answered as the leader."""
        self._leaderless = (-1, -math.inf)
        """The epoch, and when, in which no leader answered a request for changes."""
        self._silent: dict[Endpoint, float] = {}
        """Endpoints that did not answer, and when."""
        self._lock = threading.Lock()
        self._free: _Free = {}
        # Not __del__: in a reference cycle, the collector may finalize the sockets first, each with a warning.
        weakref.finalize(self, _close_all, self._free)
        renew_after_fork(self)

    def info(self) -> ClusterInfo:
        """The reply of the first coordinator that answers.  Waits for a coordinator that is restarting.

        Raises CoordinatorNotAvailable, with the reply of each address.
        """
        for number, pause_s in enumerate(self._timeouts.start_s):
            try:
                return self._info()
            except CoordinatorNotAvailable as error:
                if not isinstance(error.__cause__, ConnectionError):
                    raise
                if number == 0:
                    where, seconds = ", ".join(self._target.addresses), sum(self._timeouts.start_s)
                    logger.warning(
                        "%s: %s; waiting up to %.0f s for a coordinator to start",
                        where,
                        _words(error.__cause__),
                        seconds,
                    )
            time.sleep(pause_s)
        return self._info(f" for {sum(self._timeouts.start_s):.0f} s")

    def _info(self, waited: str = "") -> ClusterInfo:
        failures, last, hint = [], None, SILENT
        for endpoint in self._endpoints(self._target.addresses):
            address = endpoint.address
            try:
                data = self._request(endpoint, "GET", "/v1/cluster", limit_s=self._timeouts.first_answer_s)
            except CoordinatorNotAvailable as error:
                last = error.__cause__
                if isinstance(last, TimeoutError):
                    failures.append(
                        f"{address} is silent: no connection within {CONNECT_S:g} s or no answer within "
                        f"{self._timeouts.first_answer_s:g} s"
                    )
                    continue
                hint = NO_COORDINATOR
                if not isinstance(last, http.client.RemoteDisconnected | ConnectionResetError):
                    failures.append(f"{error}{waited}")
                elif is_kafka(address, tls_only=self._tls is not None):
                    failures.append(f"{address}: {KAFKA}")
                    last = None
                else:
                    failures.append(f"{error}{waited}{NOT_KAFKA}")
                continue
            found: ClusterInfo = decode(data, ClusterInfo, f"the reply of {address}")
            if found.pylog != PROTOCOL:
                raise InvalidRequest(
                    f"{address} uses protocol version {found.pylog}, this pylog {PROTOCOL}: update the older one"
                )
            return found
        raise CoordinatorNotAvailable(f"{'; '.join(failures)}; {hint}") from last

    def ask(self, asked: ops.Ask) -> ops.Answered:
        for command in asked.commands:
            assert isinstance(command, Command), f"{command!r} is not a command and cannot be sent"
        request = CommandsRequest(
            cluster_id=self.cluster_id,
            since=asked.since,
            head=asked.head.decode(),
            commands=tuple(asked.commands),
            held=asked.held,
        )
        limit_s = min(ANSWER_S, asked.limit_ms / 1000)
        data = self._first(asked.holder, "POST", "/v1/commands", encode(request), limit_s=limit_s)
        reply: CommandsReply = decode(data, CommandsReply, "the coordinator's reply")
        outcomes = [
            command.unpack(outcome.reply) if outcome.failure is None else error_of(outcome.failure)
            for command, outcome in zip(asked.commands, reply.outcomes, strict=True)
        ]
        return ops.Answered(outcomes, [text.encode() for text in reply.batches], delta=reply.delta)

    def changes(self, asked: ops.AskChanges) -> ops.Changes:
        request = ChangesRequest(
            cluster_id=self.cluster_id,
            since=asked.since,
            head=asked.head.decode(),
            wait_ms=asked.wait_ms,
            topics=None if asked.topics is None else tuple(asked.topics),
            group=asked.group,
            confirmed=asked.confirmed,
        )
        data = self._any(asked.holder, "/v1/changes", request, asked.wait_ms)
        reply: ChangesReply = decode(data, ChangesReply, "the coordinator's reply")
        return ops.Changes(reply.version, [text.encode() for text in reply.batches], lacks_head=reply.lacks_head)

    def topics(self, asked: ops.AskTopics) -> Delta:
        request = TopicsRequest(
            cluster_id=self.cluster_id,
            held=msgspec.Raw(encode(asked.held)),
            confirmed=asked.confirmed,
            wait_ms=asked.wait_ms,
            topics=None if asked.topics is None else tuple(asked.topics),
            group=asked.group,
        )
        data = self._any(asked.holder, "/v1/topics", request, asked.wait_ms)
        found: Delta = decode(data, Delta, "the coordinator's reply")
        return found

    def objects(self, asked: ops.AskObjects) -> Mapping[str, tuple[int, int, int]]:
        request = ObjectsRequest(cluster_id=self.cluster_id, names=tuple(asked.names))
        data = self._any(asked.holder, "/v1/objects", request)
        reply: ObjectsReply = decode(data, ObjectsReply, "the coordinator's reply")
        return reply.rows

    def snapshot(self, asked: ops.AskSnapshot) -> ops.Snapshot | None:
        wanted = SnapshotRequest(cluster_id=self.cluster_id, version=asked.version, at_least=asked.at_least)
        return download(lambda request: self._any(asked.holder, "/v1/snapshot", request), wanted)

    def claim(self, asked: ops.AskClaim) -> bytes | None:
        text = None if asked.value is None else asked.value.decode()
        request = ClaimRequest(cluster_id=self.cluster_id, name=asked.name, value=text, wait_ms=asked.wait_ms)
        data = self._first(asked.holder, "POST", "/v1/claim", encode(request), asked.wait_ms, changes_nothing=True)
        reply: ClaimReply = decode(data, ClaimReply, "the coordinator's reply")
        return None if reply.value is None else reply.value.encode()

    def status(self, asked: ops.AskStatus) -> int:
        reply: StatusReply = self.get(asked.holder, "/v1/status", StatusReply)
        return reply.checkpoint

    def get(self, holder: Leadership, path: str, kind: type[msgspec.Struct]) -> Any:
        """The leader's reply.  Raises CoordinatorNotAvailable."""
        data = self._first(holder, "GET", f"{path}?cluster_id={self.cluster_id}", changes_nothing=True)
        return decode(data, kind, "the coordinator's reply")

    def _any(
        self,
        holder: Leadership,
        path: str,
        asked: ChangesRequest | TopicsRequest | ObjectsRequest | SnapshotRequest,
        wait_ms: int = 0,
    ) -> bytes:
        """The reply of the leader; if no leader answers, that of a standby."""
        if not self._lacks_leader(holder):
            try:
                return self._first(holder, "POST", path, encode(asked), wait_ms, changes_nothing=True)
            except (CoordinatorNotAvailable, NotCoordinator):
                self._leaderless = holder.epoch, time.monotonic()
        anyone = encode(msgspec.structs.replace(asked, standby=True))
        return self._first(holder, "POST", path, anyone, wait_ms, changes_nothing=True, leads=False)

    def _lacks_leader(self, holder: Leadership) -> bool:
        """Whether no leader answered a request for changes a short time ago, and none has taken over since."""
        epoch, when_s = self._leaderless
        return epoch == holder.epoch and time.monotonic() - when_s < LEADERLESS_S

    def ask_group(self, holder: Leadership, request: Request, wait_ms: int, limit_s: float = ANSWER_S) -> Response:
        """The reply to a group member's request, which may take `wait_ms`.  Raises CoordinatorNotAvailable, also
        `limit_s` after that time."""
        path = next(path for path, kind in GROUP_PATHS.items() if isinstance(request, kind))
        body = encode({"cluster_id": self.cluster_id, "request": request, "wait_ms": wait_ms})
        data = self._first(holder, "POST", path, body, wait_ms, limit_s=limit_s)
        answered: GroupAnswered = decode(data, GroupAnswered, "the coordinator's reply")
        return answered.response

    def groups(self, holder: Leadership) -> dict[str, GroupView]:
        """The current state of shared groups.  Raises CoordinatorNotAvailable."""
        reply: GroupsReply = self.get(holder, "/v1/groups", GroupsReply)
        return {view.group_id: view for view in reply.groups}

    # --------------------------------------------------------------------------------------------------------- requests

    def _first(
        self,
        holder: Leadership,
        method: str,
        path: str,
        body: bytes | None = None,
        wait_ms: int = 0,
        *,
        limit_s: float = ANSWER_S,
        changes_nothing: bool = False,
        leads: bool = True,
    ) -> bytes:
        """The reply of the first endpoint that answers.  After an endpoint that may have applied the request, none is
        tried.

        leads:  only the leader answers the request.
        Raises CoordinatorNotAvailable; LogMoved if there are only nodes of a quorum that another one has replaced.
        """
        failures: list[tuple[str, SparkLogError]] = []
        candidates = self._candidates(holder)
        for endpoint in candidates:
            try:
                self._check_storage(endpoint, holder)
                data = self._request(endpoint, method, path, body, wait_ms, limit_s)
            except (CoordinatorNotAvailable, NotCoordinator, LogMoved) as error:
                if error.maybe_applied and not changes_nothing:
                    raise
                failures.append((endpoint.address, error))
                if isinstance(error, NotCoordinator) and leads:
                    candidates += self._named_by(error, endpoint, candidates)
                continue
            if leads:
                self._last = endpoint
            return data
        raise no_answer(failures, "" if self._target.addresses else GONE)

    def _named_by(self, error: NotCoordinator, by: Endpoint, known: Sequence[Endpoint]) -> list[Endpoint]:
        """The leader that a coordinator has named, if it is not among the known ones."""
        address = error.address
        if not address or (is_loopback(address) and not is_loopback(by.address)):
            return []  # an address of that machine only
        return [endpoint for endpoint in self._endpoints([address]) if endpoint not in known]

    def _check_storage(self, endpoint: Endpoint, holder: Leadership) -> None:
        """Raises InconsistentClusterId if the log is a copy of the coordinator's log.

        A copy names the coordinator of the original and has its id: changes would be made in the original.
        """
        if not self._storage or self._checked_storage == (endpoint.address, holder.epoch):
            return
        data = self._request(endpoint, "GET", "/v1/cluster", limit_s=self._timeouts.first_answer_s)
        found: ClusterInfo = decode(data, ClusterInfo, f"the reply of {endpoint.address}")
        if is_other_storage(self._storage, found.storage, same_machine=holder.host == this_host()):
            raise InconsistentClusterId(
                f"{self._storage} is a copy of the log at {found.storage}, whose coordinator is at {endpoint.address}: "
                f"nothing was changed. To use the copy as a separate log, first run `pylog -u {self._storage} "
                "cluster release --force`"
            )
        self._checked_storage = endpoint.address, holder.epoch

    def _candidates(self, holder: Leadership) -> list[Endpoint]:
        """Endpoints in the order to try.  Raises NotCoordinator if the leader's address cannot be reached from this
        machine.

        The leader that the log names comes first.  If the URL has only other addresses, the endpoint that led last
        comes first.
        """
        check_is_here(holder)
        there = [holder.address] if holder.address else []
        if there and is_loopback(holder.address) and holder.host != this_host():
            if not self._target.addresses:
                raise NotCoordinator(
                    f"the log is written by a coordinator that listens on {holder.host} for that machine only, at "
                    f"{holder.address}: start it with --listen and an address that can be reached from {this_host()}",
                    address=holder.address,
                    epoch=holder.epoch,
                )
            there = []
        if holder.address in self._target.addresses:
            of_holder = self._last is not None and self._last.address == holder.address
            return self._endpoints([*there, *self._target.addresses], self._last if of_holder else None)
        return self._endpoints([*self._target.addresses, *there], self._last)

    def _endpoints(self, addresses: Sequence[str], first: Endpoint | None = None) -> list[Endpoint]:
        """Endpoints of addresses, in order, `first` first; endpoints that recently did not answer are last."""
        found = dict.fromkeys(endpoint for address in addresses for endpoint in self._resolved_now(address))
        return sorted(found, key=lambda endpoint: (self._silent_s(endpoint) < SILENT_S, endpoint != first))

    def _resolved_now(self, address: str) -> list[Endpoint]:
        now = time.monotonic()
        when, found = self._resolved.get(address, (now - RESOLVED_S, []))
        if now - when >= RESOLVED_S:
            found = self._resolve(address)
            self._resolved[address] = (now, found)
        return found

    def _silent_s(self, endpoint: Endpoint) -> float:
        """Seconds since an endpoint did not answer; infinite if it has answered since."""
        return time.monotonic() - self._silent.get(endpoint, -math.inf)

    def _request(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        body: bytes | None = None,
        wait_ms: int = 0,
        limit_s: float = ANSWER_S,
    ) -> bytes:
        """The body of a successful reply.

        Raises CoordinatorNotAvailable (`maybe_applied` if the request was sent), or the error in the reply.
        """
        self._check_silent(endpoint)
        wait_s = wait_ms / 1000
        check_s = self._timeouts.check_s + min(wait_s, CHECKED_WAIT_S)
        wait = Wait(limit_s + wait_s, check_s, lambda: self._check_alive(endpoint, check_s))
        sent, connection = False, self._idle(endpoint)
        try:
            if connection is None:
                connection = Connection(endpoint, self._tls)
            sent = True
            answer = connection.ask(method, path, body, self._headers(endpoint.address), wait)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, OSError | http.client.HTTPException):
                raise
            if isinstance(error, TimeoutError) and limit_s >= self._timeouts.first_answer_s:
                self._silent[endpoint] = time.monotonic()
            self._check_tls(endpoint.address, error)
            failed = CoordinatorNotAvailable(f"{endpoint.address}: {_failure(error)} ({_words(error)})")
            failed.maybe_applied = sent and method != "GET"
            raise failed from error
        if answer.reusable:
            self._keep(endpoint, connection)
        else:
            connection.close()
        if answer.status != 200:
            refusal = refusal_of(endpoint.address, method, path, answer)
            if isinstance(refusal, AuthenticationFailed):
                raise self._unknown_token(endpoint.address, refusal) from refusal
            raise refusal
        return answer.data

    def _unknown_token(self, address: str, refusal: AuthenticationFailed) -> AuthenticationFailed:
        """The refusal, with the coordinator's address, and where the token is from."""
        if address not in self._target.addresses:
            return AuthenticationFailed(
                f"the coordinator at {address} has this log and requires a token, which is sent only to addresses in the "
                f'URL: open the log as pylog://{address}, with token="…" or PYLOG_TOKEN'
            )
        origin = "" if self._token is None else f"; the token is from {_origin(self._token)}"
        return AuthenticationFailed(f"pylog://{address} has refused a request: {refusal}{origin}")

    def _check_silent(self, endpoint: Endpoint) -> None:
        """Raises CoordinatorNotAvailable, before the request is sent, if an endpoint that did not answer still does
        not."""
        silent_s = self._silent_s(endpoint)
        if silent_s >= SILENT_S:
            return
        if silent_s >= SILENT_PAUSE_S and self._is_alive(endpoint):
            self._silent.pop(endpoint, None)
            return
        if silent_s >= SILENT_PAUSE_S:
            self._silent[endpoint] = time.monotonic()
        raise CoordinatorNotAvailable(f"{endpoint.address}: it does not answer (timed out, retried later)")

    def _check_alive(self, endpoint: Endpoint, waited_s: float) -> None:
        """Check the process while waiting for its reply.  Raises TimeoutError."""
        if not self._is_alive(endpoint):
            raise TimeoutError(
                f"no complete reply within {waited_s:g} s, nor to GET /health within another {self._timeouts.health_s:g} s"
            )

    def _is_alive(self, endpoint: Endpoint) -> bool:
        """Whether the process answers `GET /health`."""
        return get_health(endpoint, self._tls, self._timeouts.health_s) is not None

    def _check_tls(self, address: str, error: BaseException) -> None:
        """Raises InvalidRequest if a coordinator hung up because it requires TLS.  It has not read the request."""
        if not isinstance(error, http.client.RemoteDisconnected) or self._tls is not None:
            return
        if health_of(address, tls=True) is not None:
            raise InvalidRequest(
                f"{address} requires TLS: give it as pylog://{address}?ca=FILE, with the certificate of its authority"
            ) from error

    def _headers(self, address: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        # An authority of the operator's, not the machine's list, vouches for other addresses.
        vouched = self._target.ca not in (None, "system") or address in self._target.addresses
        if self._token is not None and vouched:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _idle(self, endpoint: Endpoint) -> Connection | None:
        """A connection that was used recently."""
        with self._lock:
            free = self._free.get(endpoint, [])
            while free:
                used, connection = free.pop()
                if time.monotonic() - used < IDLE_S and not connection.is_dropped():
                    return connection
                connection.close()
        return None

    def _keep(self, endpoint: Endpoint, connection: Connection) -> None:
        with self._lock:
            self._free.setdefault(endpoint, []).append((time.monotonic(), connection))

    def close(self) -> None:
        """Close idle connections.  The link can still be used."""
        with self._lock:
            _close_all(self._free)

    def after_fork(self) -> None:
        """Close the parent's connections in the child; they stay open in the parent."""
        self._lock = threading.Lock()
        _close_all(self._free)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "target": self._target,
            "token": self._token,
            "storage": self._storage,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        HttpLink.__init__(self, state["target"], state["token"], state["cluster_id"], storage=state["storage"])


_Free = dict[Endpoint, list[tuple[float, Connection]]]
"""Idle connections by endpoint, with the time of their last use."""


def _close_all(free: _Free) -> None:
    while free:
        _, connections = free.popitem()
        for _, connection in connections:
            connection.close()


def _checked_token(token: str) -> str:
    """A token that is valid in a header.  Raises InvalidRequest, without showing it."""
    found = token.strip()
    if not found.isprintable() or len(found.split()) != 1:
        raise InvalidRequest("token: it is empty, or contains white space or control characters; give one word")
    return found


def _failure(error: BaseException) -> str:
    return "its certificate is invalid" if isinstance(error, ssl.SSLCertVerificationError) else "it does not answer"


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _origin(token: str) -> str:
    """Where a token is from: the variable of this process that has it, or an argument."""
    names = sorted(name for name, value in os.environ.items() if name.startswith("PYLOG_") and value.strip() == token)
    return " or ".join(names) or "the option token, a token=… in Python, or a profile of the command line"


def check_cluster(found: str, expected: str, where: str) -> None:
    """Raises InconsistentClusterId."""
    if found != expected:
        raise InconsistentClusterId(f"{where} has a different log: {found}, not {expected}")
