"""The client's side of the wire: requests to coordinators, over connections that are kept."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from spark_log.errors import (
    CoordinatorNotAvailable,
    InconsistentClusterId,
    InvalidRequest,
    NotCoordinator,
    SparkLogError,
)
from spark_log.groups.messages import Request, Response
from spark_log.journal.forks import renew_after_fork
from spark_log.journal.ops import Answered, Changes
from spark_log.metadata.commands import Command
from spark_log.metadata.state import Coordinator
from spark_log.net.address import Target, is_loopback, split_address, this_host
from spark_log.net.messages import (
    GROUP_PATHS,
    PROTOCOL,
    ChangesReply,
    ClusterInfo,
    CommandsReply,
    CommandsRequest,
    Failure,
    GroupAnswered,
    GroupsReply,
    GroupView,
    Health,
    decode,
    encode,
    error_of,
)

CONNECT_S = 3.0
ANSWER_S = 30.0
"""A coordinator answers within this, the time that it was asked to wait apart, or is taken for gone."""
START_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.0)
"""Pauses in which a coordinator whose address refuses connections, or that hung up, may have started again."""
IDLE_S = 30.0
"""A connection that lay idle for longer is not used again: the other side may be about to close it."""
REPLY_BYTES_MAX = 64 << 20


class HttpLink:
    """The way to the coordinators of one log.  Safe for threads and forks."""

    def __init__(self, target: Target, token: str | None = None, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        """Of the log; empty until it is known."""
        self._target = target
        self._token = token
        self._tls = _tls_context(target.ca)
        self._last = ""
        self._lock = threading.Lock()
        self._free: _Free = {}
        # Not __del__: the collector may end sockets of a link that is part of a circle before it, each with a warning.
        weakref.finalize(self, _close_all, self._free)
        renew_after_fork(self)

    def info(self) -> ClusterInfo:
        """What the first coordinator that answers says of its log; one that starts anew is waited for.

        Raises CoordinatorNotAvailable, with what each address said.
        """
        for pause_s in START_S:
            try:
                return self._info()
            except CoordinatorNotAvailable as error:
                if not isinstance(error.__cause__, ConnectionError):
                    raise
            time.sleep(pause_s)
        return self._info()

    def _info(self) -> ClusterInfo:
        said, last = [], None
        for address in self._target.addresses:
            try:
                data = self._request(address, "GET", "/v1/cluster", None, ANSWER_S)
            except CoordinatorNotAvailable as error:
                kafka = _is_kafka(address)
                said.append(f"{address}: this is Kafka, not pylog" if kafka else str(error))
                last = None if kafka else error.__cause__
                continue
            found: ClusterInfo = decode(data, ClusterInfo, f"the answer of {address}")
            if found.pylog != PROTOCOL:
                raise InvalidRequest(
                    f"{address} speaks version {found.pylog} of the protocol, this pylog {PROTOCOL}: update the older one"
                )
            return found
        raise CoordinatorNotAvailable(
            f"{'; '.join(said)}; `pylog serve` starts a coordinator, and a log that has none is opened by its storage's URL"
        ) from last

    def ask(self, holder: Coordinator, commands: Sequence[Any], since: int) -> Answered:
        for command in commands:
            assert isinstance(command, Command), f"{command!r} cannot travel: it is no command"
        body = encode(CommandsRequest(cluster_id=self.cluster_id, since=since, commands=tuple(commands)))
        data = self._first(holder, "POST", "/v1/commands", body, ANSWER_S)
        reply: CommandsReply = decode(data, CommandsReply, "the coordinator's answer")
        outcomes = [
            command.unpack(outcome.reply) if outcome.failure is None else error_of(outcome.failure)
            for command, outcome in zip(commands, reply.outcomes, strict=True)
        ]
        return Answered(outcomes, [text.encode() for text in reply.batches])

    def changes(
        self,
        holder: Coordinator,
        since: int,
        wait_ms: int,
        group: str = "",
        topics: Sequence[str] | None = None,
    ) -> Changes:
        path = f"/v1/changes?cluster_id={self.cluster_id}&since={since}&wait_ms={wait_ms}"
        if group:
            path += f"&group={quote(group, safe='')}"
        if topics is not None:
            path += f"&topics={quote(','.join(topics))}"
        data = self._first(holder, "GET", path, None, ANSWER_S + wait_ms / 1000)
        reply: ChangesReply = decode(data, ChangesReply, "the coordinator's answer")
        return Changes(reply.version, [text.encode() for text in reply.batches])

    def ask_group(self, holder: Coordinator, request: Request, wait_ms: int) -> Response:
        """What a member of a group is answered; that may take `wait_ms`.  Raises CoordinatorNotAvailable."""
        path = next(path for path, kind in GROUP_PATHS.items() if isinstance(request, kind))
        body = encode({"cluster_id": self.cluster_id, "request": request, "wait_ms": wait_ms})
        data = self._first(holder, "POST", path, body, ANSWER_S + wait_ms / 1000)
        answered: GroupAnswered = decode(data, GroupAnswered, "the coordinator's answer")
        return answered.response

    def groups(self, holder: Coordinator) -> dict[str, GroupView]:
        """Groups that members share, as they are at the moment.  Raises CoordinatorNotAvailable."""
        data = self._first(holder, "GET", f"/v1/groups?cluster_id={self.cluster_id}", None, ANSWER_S)
        reply: GroupsReply = decode(data, GroupsReply, "the coordinator's answer")
        return {view.group_id: view for view in reply.groups}

    # ---------------------------------------------------------------------------------------------------------- requests

    def _first(self, holder: Coordinator, method: str, path: str, body: bytes | None, timeout: float) -> bytes:
        """The answer of the first that leads.  An address that may have done it is the last that is asked."""
        said = []
        for address in self._candidates(holder):
            try:
                data = self._request(address, method, path, body, timeout)
            except (CoordinatorNotAvailable, NotCoordinator) as error:
                if error.maybe_applied:
                    raise
                said.append(f"{address}: {error}" if isinstance(error, NotCoordinator) else str(error))
                continue
            self._last = address
            return data
        hint = (
            "" if self._target.addresses else "; if it is gone for good, `pylog cluster release --force` frees the log"
        )
        raise CoordinatorNotAvailable("; ".join(said) + hint)

    def _candidates(self, holder: Coordinator) -> list[str]:
        """Whom to ask, the one that answered last first.  Raises NotCoordinator for an address that means nothing here."""
        there = [holder.address] if holder.address else []
        if there and is_loopback(holder.address) and holder.host != this_host():
            if not self._target.addresses:
                raise NotCoordinator(
                    f"the log is written by a coordinator that listens on {holder.host} for that machine alone, at "
                    f"{holder.address}: start it with --listen and an address that can be reached from {this_host()}",
                    address=holder.address,
                    epoch=holder.epoch,
                )
            there = []
        found = dict.fromkeys([*self._target.addresses, *there])
        return sorted(found, key=lambda address: address != self._last)

    def _request(self, address: str, method: str, path: str, body: bytes | None, timeout: float) -> bytes:
        """The body of a good answer.

        Raises CoordinatorNotAvailable (`maybe_applied` if it was sent), or the error that was answered.
        """
        sent, connection = False, self._idle(address)
        try:
            if connection is None:
                connection = self._open(address)
            connection.sock.settimeout(timeout)
            sent = True
            connection.request(method, path, body, self._headers(address))
            answer = connection.getresponse()
            data = answer.read(REPLY_BYTES_MAX)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, OSError | http.client.HTTPException):
                raise
            self._check_tls(address, error)
            what = (
                "its certificate is not good"
                if isinstance(error, ssl.SSLCertVerificationError)
                else "it does not answer"
            )
            failed = CoordinatorNotAvailable(f"{address}: {what} ({_words(error)})")
            failed.maybe_applied = sent and method != "GET"
            raise failed from error
        if answer.will_close:
            connection.close()
        else:
            self._keep(address, connection)
        if answer.status != 200:
            raise _refusal(address, method, answer.status, data)
        return data

    def _check_tls(self, address: str, error: BaseException) -> None:
        """Raises InvalidRequest if a coordinator hung up because it speaks TLS and was not asked for that: it has read nothing."""
        if not isinstance(error, http.client.RemoteDisconnected) or self._tls_of(address) is not None:
            return
        if health_of(address, tls=True) is not None:
            raise InvalidRequest(
                f"{address} speaks TLS: give it as pylog://{address}?ca=FILE, with the certificate of its authority"
            ) from error

    def _tls_of(self, address: str) -> ssl.SSLContext | None:
        return self._tls if address in self._target.addresses else None

    def _headers(self, address: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._token is not None and address in self._target.addresses:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _open(self, address: str) -> http.client.HTTPConnection:
        host, port = split_address(address, "address")
        tls = self._tls_of(address)
        if tls is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host.strip("[]"), port, timeout=CONNECT_S, context=tls
            )
        else:
            connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=CONNECT_S)
        connection.connect()
        return connection

    def _idle(self, address: str) -> http.client.HTTPConnection | None:
        """A connection that was used not long ago."""
        with self._lock:
            free = self._free.get(address, [])
            while free:
                used, connection = free.pop()
                if time.monotonic() - used < IDLE_S and not _is_dropped(connection):
                    return connection
                connection.close()
        return None

    def _keep(self, address: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._free.setdefault(address, []).append((time.monotonic(), connection))

    def close(self) -> None:
        """Close connections that nobody uses.  The link can be used further."""
        with self._lock:
            _close_all(self._free)

    def after_fork(self) -> None:
        """Connections are the parent's: they are closed in the child, and go on in the parent."""
        self._lock = threading.Lock()
        _close_all(self._free)

    def __getstate__(self) -> dict[str, Any]:
        return {"cluster_id": self.cluster_id, "target": self._target, "token": self._token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        HttpLink.__init__(self, state["target"], state["token"], state["cluster_id"])


_Free = dict[str, list[tuple[float, http.client.HTTPConnection]]]
"""By address, connections that nobody uses and when they were used last."""


def _close_all(free: _Free) -> None:
    while free:
        _, connections = free.popitem()
        for _, connection in connections:
            connection.close()


def _tls_context(ca: str | None) -> ssl.SSLContext | None:
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=None if ca == "system" else ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(f"url: ca={ca} is no file with certificates ({_words(error)})") from error


def _is_dropped(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has closed it: what is sent on it would be lost, and nobody could say that it was not done."""
    waiting = select.poll()
    waiting.register(connection.sock, select.POLLIN)
    return bool(waiting.poll(0))


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _refusal(address: str, method: str, status: int, data: bytes) -> SparkLogError:
    try:
        return error_of(decode(data, Failure, "the error"))
    except InvalidRequest:
        said = f"it answered {status}, {data[:80]!r}"
        if status >= 500:
            # Of something in between, which may have passed the request on before.
            failed = CoordinatorNotAvailable(f"{address}: {said}")
            failed.maybe_applied = method != "GET"
            return failed
        return InvalidRequest(f"{address} is no pylog coordinator: {said}")


def health_of(address: str, *, tls: bool) -> Health | None:
    """What a coordinator says of its health; None if none answers.  With TLS any certificate will do: nothing is told."""
    host, port = split_address(address, "address")
    if tls:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host.strip("[]"), port, timeout=CONNECT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=CONNECT_S)
    try:
        connection.request("GET", "/health")
        found: Health = decode(connection.getresponse().read(REPLY_BYTES_MAX), Health, "the answer")
        return found
    except (OSError, http.client.HTTPException, InvalidRequest):
        return None
    finally:
        connection.close()


def check_cluster(found: str, expected: str, where: str) -> None:
    """Raises InconsistentClusterId."""
    if found != expected:
        raise InconsistentClusterId(f"{where} has the log {found}, not {expected}: it is another one")


# ------------------------------------------------------------------------------------------------------------------ Kafka

_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 0x70796C67, -1)
"""Kafka's ApiVersions request, version 0: every broker answers it, before anybody has logged in."""


def _is_kafka(address: str) -> bool:
    """Whether a broker listens there.  It closes the connection on HTTP, so it is asked in its own words."""
    host, port = split_address(address, "address")
    try:
        with socket.create_connection((host.strip("[]"), port), CONNECT_S) as connection:
            connection.settimeout(CONNECT_S)
            connection.sendall(_API_VERSIONS)
            head = connection.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return head[4:8] == _API_VERSIONS[8:12]
