"""`pylog quorum adopt | restore`: a quorum continues a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_log.cli.common.base import Verb, confirmed, guarded, pass_session
from spark_log.cli.common.output import emit_line
from spark_log.cli.common.session import CommandSession
from spark_log.http.address import is_coordinator
from spark_log.text import counted

if TYPE_CHECKING:
    from spark_log.quorum.node.directory import DataDirectory
    from spark_log.quorum.voters import Voters
    from spark_log.rpc.messages import Health
    from spark_log.store.base import ObjectStore

voters_option = click.option(
    "--voters",
    "others",
    metavar="N@ID,…",
    help="The directories of the other nodes, which are formatted and empty. Without it, this node is the only one.",
)


@click.command(cls=Verb)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@voters_option
@click.option(
    "--to", "target", required=True, metavar="URL", help="The URL of the nodes for clients, pylog://HOST:PORT,…."
)
@guarded
@pass_session
def adopt(session: CommandSession, directory: str, others: str | None, target: str, dry_run: bool, yes: bool) -> None:
    """Move the metadata of a log from its storage into a quorum.

    Run it on one node; give the log's storage as -u URL. DIR and the directories of the other voters were formatted by
    `pylog quorum init` with the id of the log's cluster and without voters. Stop the log's coordinator first. The log
    is closed, and DIR gets its state. Then start all nodes: when a majority of the voters has the state, the log opens
    at the new URL. The records stay where they are.

    If this is killed, run it again. Until the nodes have opened the log, `pylog move --cancel` opens it in its former
    place again; after that it cannot return.

    \b
    Example:
      pylog quorum adopt /data/quorum --voters 2@ID,3@ID --to pylog://a:9550,b:9550,c:9550 -u s3://bucket/log --yes
    """
    from spark_log.journal.journal import Journal
    from spark_log.server.quorum.founding import adopt_log, check_adopt

    journal = Journal.open(_storage(session), create=False)
    with _opened(directory) as found:
        voters = _voters(found, others)
        check_adopt(journal, found, voters, target)
        if not confirmed(f"close {journal.metadata.url}, and move its metadata to {target}", dry_run=dry_run, yes=yes):
            return
        done = adopt_log(journal, found, voters, target)
    text = f"{directory} has version {done.version} of the log, which is closed: start the nodes of {target}"
    emit_line(session, text, {"directory": directory, "version": done.version, "url": target})


@click.command(cls=Verb)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@voters_option
@click.option(
    "--from", "source", metavar="DIR", type=click.Path(file_okay=False), help="A directory of a lost node that is left."
)
@click.option("--force", is_flag=True, help="Also if a node of the former quorum leads, or follows a leader.")
@guarded
@pass_session
def restore(
    session: CommandSession,
    directory: str,
    others: str | None,
    source: str | None,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Begin another quorum for a log that has lost a majority of its nodes' disks.

    Run it on one node, when no node of the former quorum runs any more. DIR and the directories of the other voters
    were formatted by `pylog quorum init` with the id of the log's cluster and without voters. Then start all nodes.

    The metadata is that of the newest copy, which the leader writes beside the records every few minutes. All that was
    committed after it is lost: records, topics, positions of consumers. With --from it is that of a node's disk that is
    left, which lacks what only the lost disks had. Nodes of the former quorum that come back do not lead any more.

    If this is killed, run it again.

    \b
    Example:
      pylog quorum restore /data/new --voters 2@ID,3@ID -u s3://bucket/log --dry-run
      pylog quorum restore /data/new --voters 2@ID,3@ID -u s3://bucket/log --from /data/quorum --yes
    """
    from spark_log.cli.commands.quorum import random_name
    from spark_log.client.admin.erasure_status import OF_A_COPY
    from spark_log.positions import format_timestamp_ms
    from spark_log.quorum.messages import EMPTY
    from spark_log.quorum.voters import voters_text
    from spark_log.runtime.clock import SystemClock
    from spark_log.server.quorum.founding import check_restore, content_to_restore, former_addresses, restore_log

    store = _storage(session)
    with _opened(directory) as found, nullcontext() if source is None else _opened(source) as left:
        voters = _voters(found, others)
        restored, form = check_restore(store, found, voters, left)
        if not force:
            _check_are_silent(former_addresses(store, form), form.cluster_id)
        state = content_to_restore(store, found, restored, form, left).state
        has = directory if restored.snapshot != EMPTY else source or "the newest copy"
        what = (
            f"replace the quorum of {store.url} by {voters_text(voters)}, and lose its changes after version "
            f"{state.version}, of {format_timestamp_ms(state.time)}, which {has} has; {OF_A_COPY}"
        )
        if not confirmed(what, dry_run=dry_run, yes=yes):
            return
        done = restore_log(store, found, voters, random_name(), left, now_ms=SystemClock().now_ms())
    lost = f"; {counted(done.missing, 'object')} of it missing, run `pylog verify`" if done.missing else ""
    text = (
        f"{directory} has version {done.version} of the log, of {format_timestamp_ms(done.time_ms)}: all later changes are lost{lost}; "
        f"{OF_A_COPY}; start the nodes"
    )
    emit_line(session, text, {"directory": directory, **asdict(done)})


def _storage(session: CommandSession) -> ObjectStore:
    from spark_log.roots.root_options import RootOptions
    from spark_log.store.open import open_store

    if not session.url or is_coordinator(session.url):
        raise click.UsageError("give the URL of the storage with the records, as in -u s3://bucket/log")
    return open_store(session.url, RootOptions.of(session.storage_options, "disk").own())


@contextmanager
def _opened(path: str) -> Iterator[DataDirectory]:
    from spark_log.quorum.node.directory import open_directory, read_meta

    meta = read_meta(path)
    with open_directory(path, cluster_id=meta.cluster_id, node_id=meta.node_id) as found:
        yield found


def _voters(directory: DataDirectory, others: str | None) -> Voters:
    from spark_log.quorum.node.directory import parse_voters

    return tuple(sorted([directory.meta.key, *(parse_voters(others) if others else ())]))


def _check_are_silent(addresses: Iterable[str], cluster_id: str) -> None:
    """Raises InvalidRequest if one of these nodes leads, or follows another one: then their quorum is not lost."""
    from spark_log.errors import InvalidRequest
    from spark_log.rpc.health_check import health_of

    for address in addresses:
        found = next(filter(None, (health_of(address, tls=tls) for tls in (True, False))), None)
        if found is not None and (does := what_it_does(found, cluster_id)):
            raise InvalidRequest(
                f"the node at {address} {does}: the quorum is not lost. Replace single disks by `pylog quorum remove-voter` "
                "and `add-voter`; to give that quorum up, stop its nodes, or give --force"
            )


def what_it_does(found: Health, cluster_id: str) -> str:
    """For a node of a cluster that leads or follows; empty for others.  It may follow one that cannot be reached from
    here."""
    if found.cluster_id != cluster_id or not (found.leading or found.healthy):
        return ""
    return "leads" if found.leading else "follows a leader"
