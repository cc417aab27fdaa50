"""`pylog topic erase`."""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_log.cli.commands.topics import existing_topic
from spark_log.cli.common.base import POSITION, Failed, Verb, confirmed, guarded, pass_session
from spark_log.cli.common.output import emit_line, progress_bars
from spark_log.cli.common.session import CommandSession
from spark_log.display.units import size_text
from spark_log.errors import InvalidRequest
from spark_log.positions import Position, format_timestamp_ms
from spark_log.text import counted

if TYPE_CHECKING:
    from spark_log.client.admin.erasure import ErasureReport
    from spark_log.client.admin.erasure_status import ErasureListing

DECODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "text": lambda text: text.decode().encode(),
    "base64": lambda text: base64.b64decode(text, validate=True),
    "hex": binascii.unhexlify,
}
"""How keys are written, by the name of the form."""
ELSEWHERE = (
    "the log does not know its mirrors: run `pylog mirror run MIRROR --catch-up` for each after that time, or delete it",
    "the log does not know its backups: make a new one, and remove the others with jobs/backup.py --prune --keep 1",
)
"""Copies that a report cannot name, since the log does not know them."""


@click.command(cls=Verb)
@existing_topic
@click.option("--key", "given", multiple=True, metavar="KEY", help="A key to erase; may be repeated.")
@click.option(
    "--keys",
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="A file with a key in each line; - for standard input.",
)
@click.option(
    "--key-format",
    "form",
    type=click.Choice(tuple(DECODERS)),
    default="text",
    show_default=True,
    help="How the keys are written.",
)
@click.option(
    "--before",
    type=POSITION,
    default="latest",
    metavar="POSITION",
    show_default=True,
    help="Keep the records from this position on, as it is when the command begins.",
)
@guarded
@pass_session
def erase(
    session: CommandSession,
    name: str,
    given: tuple[str, ...],
    file: str | None,
    form: str,
    before: Position,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove every record of some keys from a topic.

    It works on any topic, compacted or not. Offsets do not change. Records that are appended while it runs stay, so
    stop the writers of these keys first. If it is interrupted, run it again. Maintenance deletes the old objects later;
    the report says by which time, and which topics, producers and groups may have copies.

    \b
    Example:
      pylog topic erase orders --key customer-17 --dry-run
      pylog topic erase orders --keys customers.txt --yes
    """
    keys = read_keys(given, file, form)
    admin = session.connect().admin
    if not any(one.deleted and one.topic_id == name for one in admin.list_erasures()):
        admin.describe_topics([name])
    if not dry_run and not confirmed(
        f"erase the records of {counted(len(keys), 'key')} from topic {name}", dry_run=False, yes=yes
    ):
        return
    with progress_bars() as progress:
        report = admin.erase_records(name, keys, before, dry_run=dry_run, progress=progress)
    emit_line(session, report_text(report), asdict(report))
    if report.problems:
        ends = "would not be done" if dry_run else "is not done"
        raise Failed(f"{counted(len(report.problems), 'problem')}: the erasure {ends}; {report.problems[0]}")


@click.command(cls=Verb)
@pass_session
def erasures(session: CommandSession) -> None:
    """List the erasures that are not done, with the roots that may have copies of their records.

    An erasure is done when maintenance has deleted the last copy on each root. The exit status is 1 if something has to
    be done for that.

    \b
    Example:
      pylog topic erasures
    """
    log = session.connect()
    found = log.admin.list_erasures()
    for one in found:
        emit_line(session, listing_text(one), asdict(one))
    if not found:
        emit_line(session, "all erasures are done", {})
    problems = [problem for one in found for problem in one.problems(log.journal.context.clock.now_ms())]
    if problems:
        raise Failed(f"{counted(len(problems), 'problem')}: {problems[0]}")


def listing_text(listing: ErasureListing) -> str:
    """An erasure that is not done, for people."""
    at, gone_by = format_timestamp_ms(listing.time_ms), format_timestamp_ms(listing.gone_by_ms)
    title = f"{listing.topic}: {'began' if listing.running else 'ended'} {at}, not done; "
    title += f"maintenance deletes the copies that it reaches by {gone_by}"
    lines = [title, *(f"  {one}" for one in listing.waits_for)]
    return "\n".join([*lines, f"  {listing.left}"] if listing.incomplete else lines)


def read_keys(given: tuple[str, ...], file: str | None, form: str) -> list[bytes]:
    """Raises a usage error without keys, or with --key and --keys; InvalidRequest for an invalid or empty line."""
    if bool(given) == (file is not None):
        raise click.UsageError("give either --key KEY or --keys FILE")
    if file is None:
        return [_decoded(key.encode(errors="surrogateescape"), form, f"--key {key!r}") for key in given]
    with click.open_file(file, "rb") as stream:
        lines = stream.read().removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n")
    name = "standard input" if file == "-" else file
    if lines == [b""]:
        raise InvalidRequest(f"{name} is empty: give a key in each line")
    return [_line(number, line.removesuffix(b"\r"), form, name) for number, line in enumerate(lines, 1)]


def _line(number: int, line: bytes, form: str, name: str) -> bytes:
    where = f"line {number} of {name}"
    if not line:
        raise InvalidRequest(f"{where} is empty: give a key in each line, and the empty key as --key ''")
    return _decoded(line, form, where)


def _decoded(text: bytes, form: str, where: str) -> bytes:
    try:
        key = DECODERS[form](text)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{where} is not UTF-8: give such keys with --key-format base64 or hex") from error
    except binascii.Error as error:
        raise InvalidRequest(f"{where} is not {form}: {error}") from error
    if form == "text" and b"\0" in key:
        raise InvalidRequest(
            f"{where} has a zero byte, as text in UTF-16 has: save the file as UTF-8, or give keys with such bytes by "
            "--key-format base64 or hex"
        )
    return key


def report_text(report: ErasureReport) -> str:
    """The report for people."""
    ends = ", ".join(f"{number}: {end:,}" for number, end in report.before.items())
    found = (
        f"{counted(report.records, 'record')} of {counted(report.keys, 'key')} in {counted(report.objects, 'object')} "
        f"({size_text(report.bytes)} rewritten)"
    )
    if report.gone_by_ms is None:
        lines = [f"would erase {found}"]
    else:
        where = "on the roots that can be reached" if report.unreached else "in this log"
        lines = [
            f"erased {found}",
            f"the last copy {where} is gone by {format_timestamp_ms(report.gone_by_ms)}, if maintenance runs",
        ]
    if len(report.problems) > len(report.unreached):
        lines.insert(0, "not all records with these keys were erased, and readers still see the others")
    elif not report.records and report.before:
        lines.insert(
            0, "no record has these keys: check them, and --key-format; copies may be left of records that expired"
        )
    searched = f"the records before these offsets (partition: offset): {ends}"
    lines.append(f"searched {searched if ends else 'what the deleted topic has left in objects of other topics'}")
    for title, names in (
        ("dead-letter topics that may have copies", report.dead_letters),
        ("producers that may write the records again", [_writer(report, name) for name in report.writers]),
        ("flows with state in it, from whose sources the keys have to be erased first", report.flows),
        ("groups that have read the topic", [_reader(report, name) for name in report.readers]),
    ):
        if names:
            lines.append(f"{title}: {', '.join(names)}")
    not_done = "would not be done" if report.gone_by_ms is None else "not done"
    lines += [f"{not_done}: {problem}" for problem in report.problems]
    return "\n".join([*lines, *report.ended, *report.former_roots, *ELSEWHERE])


def _writer(report: ErasureReport, name: str) -> str:
    mirrors = name.endswith(f"/{report.topic}")
    return f"{name} (probably a mirror of topics: erase the keys in its source, too)" if mirrors else name


def _reader(report: ErasureReport, name: str) -> str:
    return f"{name} ({report.notes[name]})" if name in report.notes else name
