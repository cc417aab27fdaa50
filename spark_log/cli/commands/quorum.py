"""`pylog quorum` and `pylog storage`: the directories of a quorum's nodes."""

from __future__ import annotations

import click

from spark_log.bounds import INT_MAX
from spark_log.cli.common.base import Noun, pass_session, verb
from spark_log.cli.common.output import emit_fields, emit_line
from spark_log.cli.common.session import CommandSession


@click.group(cls=Noun)
def quorum() -> None:
    """Prepare, show and change a quorum."""


@verb(quorum, "random-id")
@pass_session
def random_id(session: CommandSession) -> None:
    """Print a random id, for a cluster or a directory.

    \b
    Example:
      pylog quorum random-id
    """
    found = random_name()
    emit_line(session, found, {"id": found})


def random_name() -> str:
    """22 characters, as Kafka's, and with a letter first: it may follow an option."""
    import secrets
    import string

    return secrets.choice(string.ascii_letters) + secrets.token_urlsafe(16)[:21]


@verb(quorum, "init")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@click.option(
    "--cluster-id",
    required=True,
    metavar="ID",
    help="The id of the cluster, the same on all nodes, from `pylog quorum random-id` or `pylog cluster info`.",
)
@click.option(
    "--node", "node_id", required=True, type=click.IntRange(0, INT_MAX), metavar="N", help="The id of this node."
)
@click.option("--standalone", is_flag=True, help="This node is the first voter of a new cluster.")
@click.option(
    "--initial-voters",
    metavar="N@ID,…",
    help="All first voters of a new cluster, this node among them, with the ids of their directories.",
)
@pass_session
def init(
    session: CommandSession,
    directory: str,
    cluster_id: str,
    node_id: int,
    standalone: bool,
    initial_voters: str | None,
) -> None:
    """Format the directory of a node.

    Begin a cluster with --standalone on one node, or with the same --initial-voters on all.  Without them the node
    joins a cluster: it fetches from the others, and votes after it was added.  A node that has lost its disk joins as
    well.  Under its old directory id it could vote twice, so never give that again.

    \b
    Example:
      pylog quorum init /var/lib/pylog/quorum --cluster-id "$(pylog quorum random-id)" --node 1 --standalone
      pylog quorum init /var/lib/pylog/quorum --cluster-id CLUSTER --node 2
    """
    from spark_log.errors import InvalidRequest
    from spark_log.quorum.node.directory import format_directory, parse_voters
    from spark_log.quorum.node.vote_and_identity import Meta

    if standalone and initial_voters:
        raise click.UsageError("give --standalone or --initial-voters, not both")
    voters = parse_voters(initial_voters) if initial_voters else ()
    own = [key.directory for key in voters if key.id == node_id]
    if voters and not own:
        raise InvalidRequest(f"--initial-voters: node {node_id} is not among them; leave the option out to join")
    meta = Meta(cluster_id=cluster_id, node_id=node_id, directory_id=own[0] if own else random_name())
    format_directory(directory, meta, (meta.key,) if standalone else voters)
    fields = {"directory": directory, "cluster_id": cluster_id, "node_id": node_id, "directory_id": meta.directory_id}
    emit_line(session, f"formatted {directory} for node {node_id}, with the directory id {meta.directory_id}", fields)


@click.group(cls=Noun)
def storage() -> None:
    """Show the directories of a quorum's nodes."""


@verb(storage, "info")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@pass_session
def storage_info(session: CommandSession, directory: str) -> None:
    """Show the identity and the content of a node's directory, also while a node uses it.

    \b
    Example:
      pylog storage info /var/lib/pylog/quorum
    """
    from spark_log.quorum.node.inspection import storage_info

    emit_fields(session, storage_info(directory))
