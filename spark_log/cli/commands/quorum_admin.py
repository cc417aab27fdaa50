"""`pylog quorum describe | add-voter | remove-voter | transfer`: a quorum that runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.common.base import DURATION, LONG, Failed, Verb, confirmed, guarded, pass_session
from spark_log.cli.common.output import emit_fields, emit_line, emit_rows
from spark_log.cli.common.session import CommandSession
from spark_log.http.address import is_coordinator

if TYPE_CHECKING:
    from spark_log.quorum.node.admin import QuorumAdmin
    from spark_log.rpc.messages import QuorumInfo, ReplicaState

NODES, SECRET_FILE, CA = "PYLOG_QUORUM_NODES", "PYLOG_QUORUM_SECRET_FILE", "PYLOG_QUORUM_CA"


def node_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """How the nodes are reached, as an argument `access`."""

    @click.option(
        "--conf",
        type=click.Path(dir_okay=False),
        help="The file of `pylog serve`: the nodes, the secret and the certificates of its section [quorum].",
    )
    @click.option("--nodes", envvar=NODES, metavar="HOST:PORT,…", help=f"Addresses of nodes. [env: {NODES}]")
    @click.option(
        "--secret-file",
        envvar=SECRET_FILE,
        type=click.Path(dir_okay=False),
        help=f"A file with the secret of the nodes. [env: {SECRET_FILE}]",
    )
    @click.option(
        "--ca", envvar=CA, metavar="FILE", help=f"Certificates that verify the nodes, or `system`. [env: {CA}]"
    )
    @wraps(function)
    def wrapped(
        *args: Any, conf: str | None, nodes: str | None, secret_file: str | None, ca: str | None, **more: Any
    ) -> Any:
        return function(*args, access=Access(conf, nodes, secret_file, ca), **more)

    return wrapped


class Access:
    """Values of the options."""

    def __init__(self, conf: str | None, nodes: str | None, secret_file: str | None, ca: str | None) -> None:
        self.is_given = bool(conf or nodes)
        self._conf, self._nodes, self._secret_file, self._ca = conf, nodes, secret_file, ca

    def admin(self) -> QuorumAdmin:
        """Raises a usage error for an option that is missing."""
        from spark_log.errors import InvalidRequest
        from spark_log.quorum.node.admin import QuorumAdmin
        from spark_log.quorum.node.handshake import check_secret

        if self._conf:
            from spark_log.serve.serve_config import read_sections
            from spark_log.server.quorum.config import quorum_access

            return QuorumAdmin(*quorum_access(read_sections(self._conf)["quorum"], self._conf))
        if not self._nodes:
            raise click.UsageError(
                f"no nodes: give --conf FILE, or their addresses with --nodes or in {NODES}, as in --nodes 10.0.0.1:9551"
            )
        if not self._secret_file:
            raise click.UsageError(f"no secret: give the file with the secret of the nodes, or {SECRET_FILE}")
        try:
            with open(self._secret_file, encoding="utf-8-sig") as file:
                secret = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Failed(f"{self._secret_file} cannot be read: {error}") from error
        try:
            check_secret(secret)
        except InvalidRequest as error:
            raise Failed(f"{self._secret_file} has no secret of nodes: {error}") from error
        return QuorumAdmin(self._nodes.split(","), secret, self._ca)


timeout = click.option(
    "--timeout", "timeout_ms", type=DURATION, default="30s", show_default=True, help="How long to try again."
)


@click.command(cls=Verb)
@click.option("--status", "status", is_flag=True, help="Show the quorum as a whole. The default.")
@click.option("--replication", is_flag=True, help="Show the log of each replica.")
@node_options
@pass_session
def describe(session: CommandSession, access: Access, status: bool, replication: bool) -> None:
    """Show who leads, what is committed, and who votes, or how far each replica is.

    The leader answers. If no node leads, the error has the answer of each node, and the exit status is 1. Times are
    milliseconds since 1970, as in Kafka's tool. Of a replica that has not fetched from this leader, offset, lag and
    times are -1, and max_follower_lag counts the whole log. With the URL for clients, no secret of the nodes is needed.

    \b
    Example:
      pylog quorum describe -u pylog://10.0.0.1:9550
      pylog quorum describe --conf coordinator.ini
      pylog quorum describe --replication --nodes 10.0.0.1:9551,10.0.0.2:9551 --secret-file node.secret
    """
    if status and replication:
        raise click.UsageError("give --status or --replication, not both")
    now_ms = _now_ms()
    found, cluster_id = _described_quorum(session, access, now_ms)
    if replication:
        columns = ("node_id", "directory_id", "log_end_offset", "lag", "last_fetch_timestamp")
        emit_rows(session, (*columns, "last_caught_up_timestamp", "status"), replication_rows(found))
    else:
        fields = status_fields(found, cluster_id, now_ms)
        if not session.structured:
            for name in ("current_voters", "current_observers"):
                fields[name] = ", ".join(f"{one['id']}@{one['directory_id']}" for one in fields[name]) or None
        emit_fields(session, fields)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _described_quorum(session: CommandSession, access: Access, now_ms: int) -> tuple[QuorumInfo, str]:
    """The quorum, and its cluster id: from the nodes that the options name, or else by the URL of clients."""
    from spark_log.server.quorum.description import quorum_reply

    if session.url and is_coordinator(session.url) and not access.is_given:
        log = session.connect()
        return log.admin.describe_metadata_quorum(), log.cluster_id
    _, status = access.admin().leader()
    return quorum_reply(status, now_ms), status.cluster_id


def status_fields(found: QuorumInfo, cluster_id: str, now_ms: int) -> dict[str, Any]:
    """Under the names of kafka-metadata-quorum."""
    end = next(one.log_end_offset for one in found.voters if one.replica_id == found.leader_id)
    lags = [(end if one.lag < 0 else one.lag, one) for one in found.voters if one.replica_id != found.leader_id]
    lag, slowest = max(lags, key=lambda pair: pair[0], default=(0, None))
    caught_up = -1 if slowest is None else slowest.last_caught_up_timestamp
    return {
        "cluster_id": cluster_id,
        "leader_id": found.leader_id,
        "leader_epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
        "max_follower_lag": lag,
        "max_follower_lag_time_ms": 0 if lag == 0 else -1 if caught_up < 0 else now_ms - caught_up,
        "current_voters": [_described(found, one) for one in found.voters],
        "current_observers": [_described(found, one) for one in found.observers],
    }


def _described(found: QuorumInfo, one: ReplicaState) -> dict[str, Any]:
    """The names of a replica, and the address of its node."""
    return {
        "id": one.replica_id,
        "directory_id": one.replica_directory_id,
        "endpoint": found.nodes.get(one.replica_id),
    }


def replication_rows(found: QuorumInfo) -> list[dict[str, Any]]:
    """The leader's, then those of the followers and the observers."""
    voters = [(one, "Leader" if one.replica_id == found.leader_id else "Follower") for one in found.voters]
    voters.sort(key=lambda row: row[1] != "Leader")
    return [
        {
            "node_id": one.replica_id,
            "directory_id": one.replica_directory_id,
            "log_end_offset": one.log_end_offset,
            "lag": one.lag,
            "last_fetch_timestamp": one.last_fetch_timestamp,
            "last_caught_up_timestamp": one.last_caught_up_timestamp,
            "status": is_now,
        }
        for one, is_now in (*voters, *((one, "Observer") for one in found.observers))
    ]


@click.command("add-voter", cls=Verb)
@click.argument("voter", metavar="ID[@DIRECTORY-ID]")
@timeout
@node_options
@pass_session
def add_voter(session: CommandSession, access: Access, voter: str, timeout_ms: int) -> None:
    """Let a node vote that runs and fetches from the leader already.

    Returns when the change is committed. While the node lacks entries the command tries again. If the node has had
    other directories, the one that fetches now is meant.

    \b
    Example:
      pylog quorum add-voter 4
      pylog quorum add-voter 3@uR5nyd2dTvGpPb6GdkqdJw
    """
    key = access.admin().add_voter(voter, timeout_ms / 1000)
    emit_line(session, f"node {key.id} votes, with the directory {key.directory}", _fields(key))


def _fields(key: Any) -> dict[str, Any]:
    return {"node_id": key.id, "directory_id": key.directory}


@click.command("remove-voter", cls=Verb)
@click.argument("voter", metavar="ID[@DIRECTORY-ID]")
@timeout
@guarded
@node_options
@pass_session
def remove_voter(
    session: CommandSession, access: Access, voter: str, timeout_ms: int, dry_run: bool, yes: bool
) -> None:
    """Let a node no longer vote, such as one that has lost its disk.

    Returns when the change is committed. A majority of the voters that stay has to run. The node that leads cannot be
    removed: let another one lead first, with `pylog quorum transfer`.

    \b
    Example:
      pylog quorum remove-voter 3 --yes
    """
    from spark_log.quorum.node.admin import key_of

    admin = access.admin()
    key = key_of(admin.leader()[1], voter)
    if confirmed(f"remove the voter {key.id}, with the directory {key.directory}", dry_run=dry_run, yes=yes):
        admin.remove_voter(key, timeout_ms / 1000)
        emit_line(session, f"node {key.id} with the directory {key.directory} votes no longer", _fields(key))


@click.command(cls=Verb)
@click.argument("node", metavar="[ID]", type=LONG, required=False)
@node_options
@pass_session
def transfer(session: CommandSession, access: Access, node: int | None) -> None:
    """Let another node lead, before the one that leads is stopped.

    Without ID, it is the voter with the longest log. The leader accepts no appends until it has committed what it has,
    which takes milliseconds.

    \b
    Example:
      pylog quorum transfer
      pylog quorum transfer 2
    """
    admin = access.admin()
    before = admin.hand_over(node)
    after = admin.wait_for_leader(10.0)
    emit_line(session, f"node {after} leads", {"leader_id": after, "before": before})
    if node is not None and after != node:
        raise Failed(f"node {after} leads, not node {node}: that one was not ready; try again")


RUNNING = (describe, add_voter, remove_voter, transfer)
"""Commands of a quorum that runs."""
