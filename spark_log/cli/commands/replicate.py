"""`pylog replicate`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING

import click

from spark_log.cli.common.base import DURATION, LONG, RATE, Failed, Verb, pass_session
from spark_log.cli.common.output import emit_line, progress_bars
from spark_log.cli.common.session import CommandSession
from spark_log.display.units import moved_text, size_text
from spark_log.text import counted, duration_text

if TYPE_CHECKING:
    from spark_log.replication.replicator import ReplicationReport


@click.command(cls=Verb)
@click.option("--every", "every_ms", type=DURATION, metavar="DURATION", help="Repeat it this often, until interrupted.")
@click.option(
    "--throttle", type=RATE, metavar="RATE", help="Copy and move at most this many bytes per second, such as 50MB."
)
@click.option(
    "--broker",
    "brokers",
    type=LONG,
    multiple=True,
    metavar="ID",
    help="Check and copy to this broker only; repeatable.",
)
@pass_session
def replicate(session: CommandSession, every_ms: int | None, throttle: int | None, brokers: tuple[int, ...]) -> None:
    """Check the roots of brokers, and copy to each what it lacks.

    A broker whose root fails all checks for broker.session.timeout.ms is fenced, and taken back when its root answers
    again. Each copy is checked byte by byte before it counts. Replicas that have caught up join their ISR. Partitions
    that got other replicas are moved there, unless --broker is given. Several processes may run it, and each may be
    killed at any time. A coordinator does the same automatically. So does pylog maintain at the start of each run, but
    without moves. A lower follower.replication.throttled.rate of the log takes precedence over --throttle.

    Without --every, the exit status is 1 if something could not be copied.

    \b
    Example:
      pylog replicate --every 1s --throttle 50MB
      pylog replicate --every 1s --broker 2     # on the machine with its disk
    """
    from spark_log.maintenance.replicate import replicate_every, replicate_once

    log, only = session.connect(), brokers or None
    if every_ms is None:
        with progress_bars() as progress:
            report = replicate_once(log, bytes_per_s=throttle, brokers=only, progress=progress)
        _say(session, report)
        if report.problems or report.unrecoverable:
            raise Failed(f"{counted(len(report.problems) + len(report.unrecoverable), 'problem')}, named above")
        return
    with _ended_by_sigterm():
        for report in replicate_every(log, every_ms, bytes_per_s=throttle, brokers=only):
            moved = report.moved_bytes or report.moved_partitions
            if report.objects or report.joined or report.removed or report.found or moved:
                _say(session, report)


def _say(session: CommandSession, report: ReplicationReport) -> None:
    emit_line(session, report_text(report), asdict(report))


def report_text(report: ReplicationReport) -> str:
    """The report of a round in a line."""
    text = f"version {report.version}: {counted(report.objects, 'object')} ({size_text(report.bytes)}) copied"
    if report.joined:
        text += f"; {counted(len(report.joined), 'replica')} joined"
    if report.removed:
        text += f"; bad copies: {', '.join(report.removed)}"
    if report.found:
        text += f"; {counted(report.found, 'lost copy', 'lost copies')} found"
    text += moved_text(report.moved_bytes, report.moved_partitions)
    if report.unrecoverable:
        text += f"; no good copy of {', '.join(report.unrecoverable)}"
    for broker, lag in report.lag.items():
        if lag.objects:
            since = duration_text(int(lag.seconds * 1000))
            text += (
                f"; broker {broker} lacks {counted(lag.objects, 'object')} ({size_text(lag.bytes)}) for up to {since}"
            )
    for problem in report.problems:
        text += f"; {problem}"
    return text


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM and Ctrl-C end the body.  A copy that is under way is begun again by the next run."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
