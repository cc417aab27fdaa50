"""`pylog maintain | merge | gc | checkpoint | verify | repair`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_log.cli.base import DURATION, Failed, Verb, confirmed, guarded, pass_session
from spark_log.cli.output import emit_line, emit_rows, progress_bars
from spark_log.cli.session import URL_VARIABLE, Session
from spark_log.cli.units import size_text
from spark_log.words import counted

if TYPE_CHECKING:
    from spark_log.metadata.state import Coordinator
    from spark_log.node.maintain import Report


@click.command(cls=Verb)
@click.option("--every", "every_ms", type=DURATION, metavar="DURATION", help="Repeat it this often, until interrupted.")
@pass_session
def maintain(session: Session, every_ms: int | None) -> None:
    """Run retention, merging, sealing, checkpointing and gc, once.

    Any number may run, at any time, beside writers and readers. A duty that fails, or a partition that cannot be read, is
    reported and does not stop the others. The exit status of a single round is then 1.

    \b
    Example:
      pylog maintain --every 10m
    """
    from spark_log.node.maintain import maintain_every, maintain_round

    log = session.connect()
    if every_ms is None:
        with progress_bars() as progress:
            report = maintain_round(log, progress=progress)
        _say(session, report)
        if report.problems:
            raise Failed(f"{counted(len(report.problems), 'problem')}, logged above; everything else was done")
        return
    try:
        for report in maintain_every(log, every_ms):
            _say(session, report)
    except KeyboardInterrupt:
        return


def _say(session: Session, report: Report) -> None:
    text = (
        f"version {report.version}: {counted(report.expired_records, 'record')} expired, "
        f"{counted(report.merged_slices, 'slice')} merged into {counted(report.segments, 'segment')} "
        f"({size_text(report.segment_bytes)}), {counted(report.collected, 'object')}, {counted(report.truncated, 'old record')}, "
        f"{counted(report.pins, 'pin')} and {counted(report.unfinished, 'unfinished file')} deleted"
    )
    if report.problems:
        text += f"; {counted(len(report.problems), 'problem')}"
    emit_line(session, text, asdict(report))


@click.command(cls=Verb)
@pass_session
def merge(session: Session) -> None:
    """Rewrite small slices as segments of about 128 MiB.

    \b
    Example:
      pylog merge
    """
    from spark_log.node.maintain import merge as run

    log = session.connect()
    with progress_bars() as progress:
        tally = run(log, progress=progress)
    text = (
        f"{counted(tally.slices, 'slice')} merged into {counted(tally.segments, 'segment')} ({size_text(tally.bytes)})"
    )
    emit_line(session, text, asdict(tally))


@click.command(cls=Verb)
@guarded
@pass_session
def gc(session: Session, dry_run: bool, yes: bool) -> None:
    """Delete objects that the log does not refer to.

    Uploads that were never committed, and data that was merged, trimmed or deleted, are deleted when they are older than
    gc.fence.age.ms (24 hours, unless configured otherwise).  So are unfinished files that crashed writers left on disks.

    \b
    Example:
      pylog gc --dry-run
    """
    from spark_log.node.maintain import collect_garbage, find_garbage

    log = session.connect()
    if dry_run:
        emit_rows(session, ["object"], [{"object": name} for name in find_garbage(log)])
        return
    if confirmed("delete objects that the log does not refer to", dry_run=False, yes=yes):
        names = collect_garbage(log)
        emit_line(session, f"{counted(len(names), 'object')} deleted", {"deleted": len(names)})


@click.command(cls=Verb)
@pass_session
def checkpoint(session: Session) -> None:
    """Write the state of the log as a checkpoint.

    Records of the metadata log and older checkpoints that it replaces are deleted.

    \b
    Example:
      pylog checkpoint
    """
    from spark_log.node.maintain import checkpoint as run

    version = run(session.connect())
    emit_line(session, f"checkpoint of version {version} written", {"version": version})


@click.command(cls=Verb)
@click.option("--deep", is_flag=True, help="Read all records and check their checksums.")
@pass_session
def verify(session: Session, deep: bool) -> None:
    """Check that the storage holds what the metadata refers to.

    The exit status is 1 if it does not.

    \b
    Example:
      pylog verify --deep
    """
    from spark_log.node.verify import verify as run

    log = session.connect()
    with progress_bars() as progress:
        problems = run(log, deep, progress=progress)
    if problems or session.output not in ("table", "wide"):
        emit_rows(session, ["what", "message"], [asdict(problem) for problem in problems])
    else:
        click.echo("no problems found")
    if problems:
        raise Failed(f"{counted(len(problems), 'problem')} found")


@click.command(cls=Verb)
@guarded
@pass_session
def repair(session: Session, dry_run: bool, yes: bool) -> None:
    """Rebuild the metadata of a log that does not open.

    The metadata is rebuilt from the checkpoints and records that can be read.
    Stop all clients and the coordinator first. Damaged files are moved to meta/damaged/, and two new checkpoints are
    written. If a version of the log is lost, nothing is changed, and the error names the files that are missing.

    \b
    Example:
      pylog repair --dry-run
    """
    from spark_log.net.client import health_of
    from spark_log.node.repair import repair as run
    from spark_log.store.open import open_store

    if not session.url:
        raise click.UsageError(f"which log? give its URL with -u URL or in {URL_VARIABLE}, as in -u file:///data/log")

    def is_alive(holder: Coordinator) -> bool:
        return bool(holder.address) and any(health_of(holder.address, tls=tls) is not None for tls in (False, True))

    store = open_store(session.url, session.storage_options)
    report = run(store, is_alive=is_alive, dry_run=True)
    text = f"version {report.version} from {report.base or 'the first record'}, {counted(len(report.damaged), 'damaged file')}"
    if dry_run:
        lines = [*(f"{name} is damaged" for name in report.damaged), *report.lost]
        emit_line(session, "\n".join([f"can be restored: {text}", *lines]), asdict(report))
    elif report.lost or confirmed("replace damaged files of the metadata", dry_run=False, yes=yes):
        run(store, is_alive=is_alive)
        emit_line(session, f"restored: {text} moved to meta/damaged/", asdict(report))
