"""`pylog move`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_log.cli.common.base import Verb, confirmed, guarded, pass_session, storage_option
from spark_log.cli.common.output import emit_line, progress_bars
from spark_log.cli.common.session import CommandSession
from spark_log.http.address import is_coordinator
from spark_log.text import duration_text

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.roots.root_options import RootOptions


@click.command(cls=Verb)
@click.argument("target", metavar="TARGET", required=False)
@storage_option("--target-option", "the new storage")
@click.option("--cancel", is_flag=True, help="Open the log again in its former place, if the move has not ended.")
@click.option("--force", is_flag=True, help="Cancel although the move has ended, when the new place is lost.")
@guarded
@pass_session
def move(
    session: CommandSession,
    target: str | None,
    options: Mapping[str, str],
    cancel: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move the log to another disk or bucket.

    TARGET is an empty folder or prefix, or a mirror of the log. Everything is copied first, while clients write. Then
    the log is closed for some seconds, the rest is copied, and the log opens in TARGET. Its former URL leads there as
    long as the former root exists. Processes that have the log open end with LogMoved when they next use it, except
    streaming queries between two batches, which follow. Uploads in progress are void, and have to be run again.

    Stop the coordinator before, and start it with the new URL. A log with brokers cannot be moved. If the command is
    killed, run it again.

    \b
    Example:
      pylog move s3://bucket/log --url file:///data/log --yes
    """
    from spark_log.metadata.decide_coordinators import moved_to
    from spark_log.recovery.log_move import cancel_move, check_cancel, check_move, move_log
    from spark_log.store.open import open_store

    if (target is None) != cancel:
        raise click.UsageError(
            "give either TARGET or --cancel: `pylog move TARGET -u OLD`, or `pylog move --cancel -u OLD`"
        )
    if force and not cancel:
        raise click.UsageError("--force is for --cancel")
    log = _opened(session)
    if target is None:
        there = options or _own(session).at(moved_to(log.journal.state.coordinator)).own()
        check_cancel(log, there, force=force)
        if confirmed(f"open {log.url} for writers again", dry_run=dry_run, yes=yes):
            cancel_move(log, there, force=force)
            emit_line(session, f"the log is at {log.url}", {"url": log.url})
        return
    store = open_store(target, options or _own(session).at(target).own())
    check_move(log, store)
    if confirmed(f"move the log from {log.url} to {store.url}", dry_run=dry_run, yes=yes):
        with progress_bars() as progress:
            done = move_log(log, store, progress)
        text = f"the log is at {done.url}; it was closed for {duration_text(done.closed_ms)}"
        emit_line(session, text, asdict(done))


def _opened(session: CommandSession) -> Log:
    """The log in the root of its URL, even if it was moved from there."""
    from spark_log.client.log import Log
    from spark_log.journal.journal import Journal
    from spark_log.store.open import open_store

    if not session.url or is_coordinator(session.url):
        raise click.UsageError(
            "give the URL of the log's storage, as in -u file:///data/log; a log whose metadata is in a quorum cannot be "
            "moved yet, see docs/quorum.md"
        )
    options = _own(session)
    return Log(Journal.open(open_store(session.url, options.own()), create=False, root_options=options))


def _own(session: CommandSession) -> RootOptions:
    """The options of the log's storage."""
    from spark_log.roots.root_options import RootOptions

    return RootOptions.of(session.storage_options, "disk")
