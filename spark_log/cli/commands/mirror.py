"""`pylog mirror set | run | status` and `pylog recover`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.common.base import DURATION, Failed, Verb, confirmed, guarded, pass_session, storage_option, verb
from spark_log.cli.common.output import emit_line, progress_bars
from spark_log.cli.common.session import CommandSession
from spark_log.display.units import size_text
from spark_log.errors import NoLog
from spark_log.log_lines import logger
from spark_log.positions import format_timestamp_ms
from spark_log.text import counted, duration_text

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.recovery.mirror import Mirrored


@click.group()
def mirror() -> None:
    """A copy of the log on another disk or bucket, which follows it.

    \b
    Example:
      pylog mirror set s3://other-bucket/log
      pylog mirror run s3://other-bucket/log --every 5s
    """


def _of_mirror(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument MIRROR and its storage options."""
    function = storage_option("--mirror-option", "the mirror's storage")(function)
    return click.argument("mirror_url", metavar="MIRROR")(function)


@verb(mirror, "set")
@_of_mirror
@pass_session
def set_(session: CommandSession, mirror_url: str, options: Mapping[str, str]) -> None:
    """Make an empty folder or prefix a mirror of the log.

    MIRROR is a path or URL.  Nothing is copied yet: run `pylog mirror run`.  A mirror can be read at its URL, and
    nothing else writes to it.

    \b
    Example:
      pylog mirror set /mnt/disk2/log
    """
    from spark_log.recovery.mirror import begin_mirror
    from spark_log.store.open import open_store

    store = open_store(mirror_url, options)
    begin_mirror(session.connect(), store)
    emit_line(session, f"{store.url} is a mirror: run `pylog mirror run {mirror_url}`", {"mirror": store.url})


@verb(mirror)
@_of_mirror
@click.option("--every", "every_ms", type=DURATION, metavar="DURATION", help="Repeat it this often, until interrupted.")
@click.option("--catch-up", is_flag=True, help="Copy the newest version, if the log has deleted those before it.")
@click.option("--force", is_flag=True, help="With --catch-up: also if the mirror has records that the log lacks.")
@click.option("--yes", is_flag=True, help="Do that without asking.")
@pass_session
def run(
    session: CommandSession,
    mirror_url: str,
    options: Mapping[str, str],
    every_ms: int | None,
    catch_up: bool,
    force: bool,
    yes: bool,
) -> None:
    """Copy what the log has and the mirror lacks.

    Records are copied in order, each after the objects that it names, so that the mirror is always the whole log at an
    earlier version.  The log does not wait for it: commits since the last run are lost with the log.  Several processes
    may run it for one mirror.  A log keeps what a mirror needs for gc.fence.age.ms (default: 24 hours); after that,
    give --catch-up once.

    \b
    Example:
      pylog mirror run s3://other-bucket/log --every 5s
    """
    from spark_log.recovery.mirror import Mirror
    from spark_log.store.open import open_store

    following = Mirror(_followed(session, mirror_url, options), open_store(mirror_url, options))
    if force and not catch_up:
        raise click.UsageError("--force is for --catch-up, which is missing")
    if catch_up and every_ms is not None:
        raise click.UsageError("--catch-up runs once: leave out --every")
    if catch_up:
        what = f"replace the mirror at {mirror_url} by the log's newest version, if the log has deleted earlier ones"
        confirmed(what, dry_run=False, yes=yes)
    if every_ms is None:
        with progress_bars() as progress:
            done = following.round(progress, catch_up=catch_up, force=force)
        _say(session, done)
        if done.problem:
            raise Failed(done.problem)
        return
    try:
        for done in following.rounds(every_ms):
            if done.versions:
                _say(session, done)
            if done.problem:
                logger.error("%s", done.problem)
    except KeyboardInterrupt:
        return


def _followed(session: CommandSession, mirror_url: str, options: Mapping[str, str]) -> Log:
    """The log that a mirror follows."""
    from spark_log.recovery.mirror import format_of
    from spark_log.store.open import open_store

    try:
        return session.connect()
    except NoLog:
        lost = f"there is no log at {session.url}: check the URL, and whether its disk is mounted"
        form = format_of(open_store(mirror_url, options))
        if form is not None and not form.mirrors:
            raise NoLog(
                f"{lost}. {mirror_url} is not a mirror, but a separate log: `pylog topic list -u {mirror_url}` lists what it has"
            ) from None
        raise NoLog(f"{lost}. If the log is lost, `pylog recover -u {mirror_url}` makes a log of its mirror") from None


def _say(session: CommandSession, done: Mirrored) -> None:
    text = (
        f"version {done.version}: {counted(done.versions, 'version')}, {counted(done.objects, 'object')} "
        f"({size_text(done.bytes)}) copied"
    )
    if done.behind:
        text += f"; {counted(done.behind, 'version')} since"
    emit_line(session, text, asdict(done))


@verb(mirror)
@_of_mirror
@pass_session
def status(session: CommandSession, mirror_url: str, options: Mapping[str, str]) -> None:
    """Show how far a mirror is behind its log.

    It fails if the log has deleted what the mirror lacks, so that `pylog mirror run` needs --catch-up; also if objects
    of the mirror are missing, or have another size.

    \b
    Example:
      pylog mirror status s3://other-bucket/log
    """
    from spark_log.recovery.mirror import Mirror, catch_up_text
    from spark_log.store.open import open_store

    log, store = _followed(session, mirror_url, options), open_store(mirror_url, options)
    found = Mirror(log, store).status()
    text = f"version {found.version}, {counted(found.behind, 'version')} behind"
    if found.behind:
        text += f", which were written in {duration_text(found.behind_ms)}"
    if found.after_loss:
        text += "; since the mirror's version, lost versions of the log were given up (`pylog repair --accept-loss`)"
    emit_line(session, text, asdict(found))
    if found.must_catch_up:
        raise Failed(catch_up_text(store.url, log.url, found.version))
    if found.problem:
        raise Failed(found.problem)


@click.command(cls=Verb)
@guarded
@click.option(
    "--force",
    is_flag=True,
    help="Do it although the log that it mirrors is there, or cannot be looked for, and without files that came late.",
)
@click.option("--cluster-id", metavar="ID", help="The log's id, for a mirror that has lost meta/format; new: a new id.")
@pass_session
def recover(session: CommandSession, dry_run: bool, yes: bool, force: bool, cluster_id: str | None) -> None:
    """Make a mirror a separate log, after its log was lost.

    The URL is the mirror's.  Commits after the mirror's version are lost.  Stop all clients of the lost log
    first, and start them again with the new URL: see "Restore a log from a copy" in docs/copies.md.
    The separate log has no brokers: each record has one copy, in its root.

    A mirror that has lost meta/format gets it again, with the log's id, which the roots of its brokers have. If nothing
    has it, give --cluster-id. If nothing has the URL of the lost log, so that it cannot be looked for, give --force.

    If the mirror is in the place of the lost log, a client that hung may have put a record or a checkpoint there, with
    which the mirror is not whole. With --force such files are moved to meta/damaged/.

    \b
    Example:
      pylog recover --url s3://other-bucket/log --dry-run
      pylog recover --url s3://other-bucket/log --yes
    """
    from spark_log.client.admin.erasure_status import OF_A_COPY
    from spark_log.recovery.mirror_recovery import recover as make_log
    from spark_log.store.open import open_store

    if session.url is None:
        raise click.UsageError("give the URL of the mirror with --url")
    store = open_store(session.url, session.storage_options)
    make = partial(make_log, store, session.storage_options, force=force, cluster_id=cluster_id or "")
    found = make(dry_run=True)
    what = f"make {session.url} a separate log, at version {found.version} of {format_timestamp_ms(found.time_ms)}"
    said = f"{what}{_without(found.late)}; later commits to {found.mirrored} are not in it, and {OF_A_COPY}"
    if not confirmed(said, dry_run=dry_run, yes=yes):
        return
    found = make()
    done = f"{session.url} is a separate log, at version {found.version}{_without(found.late)}; {OF_A_COPY}"
    lines = [done, *found.erase_again]
    emit_line(session, "\n".join(lines), asdict(found))


def _without(late: Sequence[str]) -> str:
    """The end of a sentence on a recovery that leaves out files of clients of the lost log."""
    from spark_log.recovery.late_files import late_text

    return f", without {late_text(late)}, which a client of the lost log may have put there late" if late else ""
