"""`pylog cluster …`: the log as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_log.cli.commands.quorum_admin import Access, node_options
from spark_log.cli.common.base import Failed, Noun, confirmed, guarded, pass_session, verb
from spark_log.cli.common.output import emit_fields, emit_line, emit_rows, emit_value
from spark_log.cli.common.session import CommandSession
from spark_log.display.cluster import info_fields
from spark_log.display.health import Check, coordinator_checks, log_checks
from spark_log.errors import (
    SparkLogError,
)
from spark_log.http.address import is_coordinator
from spark_log.text import duration_text

if TYPE_CHECKING:
    pass


@click.group(cls=Noun)
def cluster() -> None:
    """Show, check and release the log as a whole."""


@verb(cluster)
@pass_session
def info(session: CommandSession) -> None:
    """Show the log's id, version and level, its coordinator, and how many topics, records, objects and groups it has.

    \b
    Example:
      pylog cluster info
    """
    emit_fields(session, info_fields(session.connect()))


@verb(cluster)
@click.option("--force", is_flag=True, help="Release the log from a coordinator that crashed.")
@pass_session
def release(session: CommandSession, force: bool) -> None:
    """Let clients write directly again after a coordinator crash.

    The URL is the storage's.  A coordinator that stops in order releases the log itself.  Stop a coordinator that
    still runs before you release its log: it commits nothing more under its old epoch, but it takes over a log that
    no other coordinator has.

    \b
    Example:
      pylog cluster release --force
    """
    if is_coordinator(session.url or ""):
        raise click.UsageError("give the URL of the log's storage: a coordinator that is gone cannot release it")
    from spark_log.metadata.decide_coordinators import check_is_here

    journal = session.journal()
    held = journal.refresh().coordinator
    if not held.address:
        emit_line(session, "no coordinator has this log", {"released": False})
        return
    check_is_here(held)
    if not force:
        raise Failed(
            f"the coordinator at {held.address} has this log: stop it to release the log; if it crashed, give --force"
        )
    released = journal.release(held.epoch + 1)
    emit_line(session, f"released: {held.address} no longer has the log", {"released": released})


@verb(cluster)
@click.option("--force", is_flag=True, help="Reset although commits at several times are later than the clock.")
@guarded
@pass_session
def reset_clock(session: CommandSession, force: bool, dry_run: bool, yes: bool) -> None:
    """Put the log's time back to the present, after a machine whose clock was ahead has written to the log.

    While the log's time is ahead, nothing expires and no garbage is collected.  Timestamps of records stay as they
    are.  Check this machine's clock first: if it is behind, groups and producers expire when a machine with the right
    time writes again.  If commits at several times are later than this machine's clock, the reset is refused without
    --force.

    \b
    Example:
      pylog cluster reset-clock --yes
    """
    from spark_log.journal.storage.clock_check import time_text

    log = session.connect()
    time, now = log.journal.refresh().time, log.journal.context.clock.now_ms()
    if time <= now:
        emit_line(session, "the log's time is not ahead of this machine's clock: nothing to reset", {"ahead_ms": 0})
    elif confirmed(f"put the log's time back from {time_text(time)} to {time_text(now)}", dry_run=dry_run, yes=yes):
        ahead = log.admin.reset_clock(force=force)
        emit_line(session, f"the log's time was put back by {duration_text(ahead)}", {"ahead_ms": ahead})


@verb(cluster)
@guarded
@pass_session
def upgrade(session: CommandSession, dry_run: bool, yes: bool) -> None:
    """Raise a log that an older pylog created to the newest level of its metadata that this pylog supports.

    A new log begins at the newest level of the pylog that creates it.  Update every pylog that uses the log first: one
    that does not support the level cannot open the log afterwards.  A level is never lowered.

    \b
    Example:
      pylog cluster upgrade --yes
    """
    from spark_log.metadata.features import METADATA_VERSION, SUPPORTED

    log = session.connect()
    level, newest = log.journal.refresh().levels[METADATA_VERSION], SUPPORTED[METADATA_VERSION]
    if level == newest:
        emit_line(session, f"the log is at level {level} of {METADATA_VERSION}: nothing to raise", {"level": level})
    elif confirmed(f"raise {METADATA_VERSION} from {level} to {newest}", dry_run=dry_run, yes=yes):
        log.admin.update_features({METADATA_VERSION: newest})
        emit_line(session, f"the log is at level {newest} of {METADATA_VERSION}", {"level": newest})


# --------------------------------------------------------------------------------------------------------------- health


@verb(cluster)
@click.option("--read-only", is_flag=True, help="Do not check whether this user can write.")
@node_options
@pass_session
def health(session: CommandSession, access: Access, read_only: bool) -> None:
    """Check that the log can be read and written, and that its coordinators, brokers, checkpoints and clock are well.

    Without a coordinator, this writes a small object and deletes it. A user who may not write gives --read-only. A
    coordinator checks its own storage. With --nodes or --conf, the nodes of a quorum are checked as well, or alone
    without a URL.

    The exit status is 1 if a check fails.

    \b
    Example:
      pylog cluster health -u pylog://127.0.0.1:9550
      pylog cluster health --conf coordinator.ini
    """
    checks = coordinator_checks(session.url) if session.url else []
    checks += _quorum(access) if access.is_given else []
    if session.url or not access.is_given:
        checks += _of_log(session, [check.check for check in checks], writes=not read_only)
    wrong = [check for check in checks if not check.healthy]
    if session.structured:
        emit_value(session, {"healthy": not wrong, "checks": [check._asdict() for check in checks]})
    else:
        emit_rows(session, Check._fields, [check._asdict() for check in checks])
    if wrong:
        raise Failed(f"not healthy: {', '.join(check.check for check in wrong)}")


def _quorum(access: Access) -> list[Check]:
    from spark_log.quorum.node.health import quorum_findings

    return [Check(*finding) for finding in quorum_findings(access.admin().answers())]


def _of_log(session: CommandSession, asked: list[str], *, writes: bool) -> list[Check]:
    """
    asked:   the checks that were made before.
    writes:  whether this user is to write.
    """
    try:
        log = session.connect()
        return log_checks(log, session.url or "", asked, writes=writes)
    except SparkLogError as error:
        return [Check("log", False, str(error))]
