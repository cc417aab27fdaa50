"""`pylog maintain | merge | gc | checkpoint | verify | repair`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_log.cli.common.base import DURATION, Failed, Verb, confirmed, guarded, pass_session, storage_option
from spark_log.cli.common.metrics_port import metrics_port
from spark_log.cli.common.output import Progress, echo, emit_line, emit_rows, progress_bars
from spark_log.cli.common.session import URL_VARIABLE, CommandSession
from spark_log.display.units import moved_text, size_text
from spark_log.errors import NoLog
from spark_log.text import counted, duration_text

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.journal.journal import Journal
    from spark_log.journal.lost_versions import LostVersions
    from spark_log.maintenance.maintain_report import MaintainReport, Plan
    from spark_log.metadata.state import Leadership, State
    from spark_log.recovery.lost_records import GivenUp
    from spark_log.recovery.repair import RepairReport
    from spark_log.recovery.verify_repair import Verified


GIVEN_UP = "give up all records that no root has in a readable form, those of damaged slice indexes, and lost versions of the log"
NAMED_MAX = 3
"""Objects that a line names."""


@click.command(cls=Verb)
@click.option("--every", "every_ms", type=DURATION, metavar="DURATION", help="Repeat it this often, until interrupted.")
@click.option(
    "--metrics",
    "listen",
    metavar="[HOST:]PORT",
    help="With --every: answer GET /metrics on this address of this machine, for Prometheus.",
)
@click.option("--dry-run", is_flag=True, help="Show the changes of one run, and write nothing.")
@pass_session
def maintain(session: CommandSession, every_ms: int | None, listen: str | None, dry_run: bool) -> None:
    """Run retention, compaction, merging and other maintenance, once.

    Several processes may run it concurrently, beside writers and readers. A duty that fails, or a partition that
    cannot be read, is reported and does not stop the others. The exit status of a single run is then 1. If the log's
    coordinator does not answer for 30 s, the run ends.

    \b
    Example:
      pylog maintain --every 10m
      pylog maintain --every 10m --metrics 9561
    """
    from spark_log.maintenance.maintain import maintain_round, plan_round

    if dry_run and every_ms is not None:
        raise click.UsageError("--dry-run runs once: leave out --every")
    if listen is not None and every_ms is None:
        raise click.UsageError("--metrics needs a process that keeps running: add --every 10m")
    log = session.connect()
    if dry_run:
        plan = plan_round(log)
        emit_line(session, plan_text(plan), asdict(plan))
        return
    if every_ms is None:
        with progress_bars() as progress:
            report = maintain_round(log, progress=progress)
        emit_line(session, report_text(report), asdict(report))
        if report.problems:
            raise Failed(f"{counted(len(report.problems), 'problem')}, logged above; {next_step(report)}")
        return
    try:
        _maintain_every(session, log, every_ms, listen)
    except KeyboardInterrupt:
        return


def _maintain_every(session: CommandSession, log: Log, every_ms: int, listen: str | None) -> None:
    """Repeat the maintenance, and serve metrics meanwhile if there is an address for them."""
    from spark_log.maintenance.maintain import maintain_every
    from spark_log.monitoring.embedded_metrics import EmbeddedMetrics

    metrics = EmbeddedMetrics(log, maintains=True)
    with metrics_port(metrics.text, listen):
        for report in maintain_every(log, every_ms):
            metrics.note(report)
            emit_line(session, report_text(report), asdict(report))


def plan_text(plan: Plan) -> str:
    """The changes that a run would make, for people."""
    compacts = ""
    if plan.cleaned_partitions:
        compacts = f"compact {counted(plan.cleaned_partitions, 'partition')} ({size_text(plan.cleaned_bytes)} new), "
    return (
        f"would expire {counted(plan.expired_records, 'record')} ({size_text(plan.expired_bytes)}), merge {counted(plan.merged_slices, 'slice')} "
        f"({size_text(plan.merged_bytes)}), {compacts}and delete {counted(plan.collected, 'object')} "
        f"({size_text(plan.collected_bytes)})"
    )


def next_step(report: MaintainReport) -> str:
    if not report.no_space:
        return "the other duties were completed"
    return (
        "the disk is full, and all data that may be deleted now was deleted. Records that expired, were trimmed or "
        "deleted leave the disk after gc.fence.age.ms: run `pylog maintain` again then. Remove more of them with "
        "`pylog topic trim`, `pylog topic delete` or a lower retention.ms"
    )


def compacted_text(partitions: int, records: int, size: int) -> str:
    """The result of compaction, in partitions and removed records and bytes; less than 0 bytes: segments grew.

    partitions:  those whose pass has ended; others may have lost records, too.
    """
    removed, change = counted(records, "record"), size_text(abs(size))
    less = f"{removed} less, {change} more" if size < 0 else f"{removed} and {change} less"
    return f"{counted(partitions, 'partition')} compacted ({less})" if partitions else f"compacted in part ({less})"


def deleted_by(report: MaintainReport) -> list[tuple[str, int]]:
    """The files that a run deleted, by their kind."""
    return [
        ("object", report.collected),
        ("old metadata record", report.truncated),
        ("query pin", report.pins),
        ("unfinished file", report.unfinished),
    ]


def report_text(report: MaintainReport) -> str:
    """The result of a run, for people."""
    done = [
        (
            report.expired_records,
            f"{counted(report.expired_records, 'record')} ({size_text(report.expired_bytes)}) expired",
        ),
        (
            report.merged_slices,
            f"{counted(report.merged_slices, 'slice')} merged into {counted(report.segments, 'segment')} "
            f"({size_text(report.segment_bytes)})",
        ),
        (
            report.cleaned_partitions or report.removed_records,
            compacted_text(report.cleaned_partitions, report.removed_records, report.removed_bytes),
        ),
        *((number, f"{counted(number, what)} deleted") for what, number in deleted_by(report)),
        (
            report.copied,
            f"{counted(report.copied, 'copy', 'copies')} made for brokers ({size_text(report.copied_bytes)})",
        ),
        (report.joined, f"{counted(report.joined, 'replica')} joined"),
    ]
    said = ", ".join(text for number, text in done if number) or "nothing was due"
    text = f"version {report.version}: {said}"
    text += moved_text(report.moved_bytes, report.moved_partitions)
    for broker in report.returned_brokers:
        text += f"; broker {broker} is back"
    for fenced in report.fenced_brokers:
        text += f"; fenced {fenced}"
    if report.waiting:
        text += f"; {counted(report.waiting, 'object')} can be deleted after {duration_text(report.fence_age_ms)} (gc.fence.age.ms)"
    if report.uncleaned:
        text += f"; {counted(report.uncleaned, 'partition')} left to compact"
    if report.uncleanable:
        text += f"; compaction leaves out records of {', '.join(report.uncleanable)}, which it could not read"
    if names := report.set_aside:
        more = f" and {counted(len(names) - NAMED_MAX, 'other')}" if len(names) > NAMED_MAX else ""
        why = (
            "is set aside, because it cannot be read"
            if len(names) == 1
            else "are set aside, because they cannot be read"
        )
        text += f"; {counted(len(names), 'object')} {why}: {', '.join(names[:NAMED_MAX])}{more} (`pylog verify --deep`)"
    for other in report.second_logs:
        text += f"; {other}"
    if report.problems:
        text += f"; {counted(len(report.problems), 'problem')}"
    return text


@click.command(cls=Verb)
@pass_session
def merge(session: CommandSession) -> None:
    """Rewrite small slices as segments of about 128 MiB.

    \b
    Example:
      pylog merge
    """
    from spark_log.maintenance.maintain import merge as run

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
def gc(session: CommandSession, dry_run: bool, yes: bool) -> None:
    """Delete objects that the log does not refer to.

    Uploads that were never committed, and data that was merged, trimmed or deleted, are deleted when they are older
    than gc.fence.age.ms (default: 24 hours).  Unfinished files of crashed writers on disks are deleted too.

    \b
    Example:
      pylog gc --dry-run
    """
    from spark_log.maintenance.maintain import collect_garbage, find_garbage

    log = session.connect()
    if dry_run:
        emit_rows(session, ["object"], [{"object": name} for name in find_garbage(log)])
        return
    if confirmed("delete objects that the log does not refer to", dry_run=False, yes=yes):
        names = collect_garbage(log)
        emit_line(session, f"{counted(len(names), 'object')} deleted", {"deleted": len(names)})


@click.command(cls=Verb)
@pass_session
def checkpoint(session: CommandSession) -> None:
    """Write the state of the log as a checkpoint.

    Replaced records of the metadata log and replaced checkpoints are deleted. A coordinator that serves the metadata,
    such as a quorum, writes its checkpoints alone: then this says how far they are.

    \b
    Example:
      pylog checkpoint
    """
    from spark_log.maintenance.maintain import checkpoint as run

    log = session.connect()
    if log.journal.metadata_log.is_served:
        version = log.journal.run(log.journal.metadata_log.status()).checkpoint
        text = (
            f"nothing was written: the coordinator keeps the metadata, and what it has saved goes to version {version}"
        )
    else:
        version = run(log)
        text = f"checkpoint of version {version} written"
    emit_line(session, text, {"version": version, "written": not log.journal.metadata_log.is_served})


@click.command(cls=Verb)
@click.option("--deep", is_flag=True, help="Read all records and check their checksums.")
@click.option("--repair", is_flag=True, help="Replace missing and damaged copies by good ones of other brokers.")
@click.option(
    "--repair-from",
    metavar="URL",
    help="Replace missing and damaged objects by the good ones of another copy of the log, such as a mirror.",
)
@storage_option("--repair-option", "that copy's storage")
@click.option(
    "--lose-data",
    is_flag=True,
    help="With --repair: give up records that no root has in a readable form, and those of damaged slice indexes.",
)
@click.option("--dry-run", is_flag=True, help="With --lose-data: show the offsets to give up, and change nothing.")
@click.option("--yes", is_flag=True, help="Do that without asking.")
@pass_session
def verify(
    session: CommandSession,
    deep: bool,
    repair: bool,
    repair_from: str | None,
    options: Mapping[str, str],
    lose_data: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Check that the storage holds what the metadata refers to.

    The exit status is 1 if it does not. Without --deep only missing objects, and those of another size, are found.
    Every copy on the root of every active broker is checked; fenced brokers, whose copies are not checked, are named.
    Objects whose only copies are on fenced brokers are problems, too: nobody can read them until one of these brokers
    is back.

    With --repair, a copy that is missing or damaged is replaced by a good one of another broker. If that is not
    possible, it is recorded as missing, and pylog replicate copies it later.

    With --repair --lose-data, records that no root has any more are given up, in a log without brokers, too: readers
    skip their offsets, which pylog topic describe shows. Records that can be read stay. It is refused while a broker
    that may have them is fenced, or its root cannot be read. The offsets of a slice index that is missing or damaged
    are given up as well: the index alone says where their records are. Add --deep to find damaged records, and
    --dry-run to see the offsets first.

    With --repair-from, what is missing or damaged is replaced by the object of the same name in another copy of the
    log, if that can be read and its checksums are right. Clients can use the log meanwhile. A mirror is repaired from
    its log in the same way: give the mirror's URL as --url.

    \b
    Example:
      pylog verify --deep
      pylog verify --deep --repair
      pylog verify --deep --repair-from s3://other-bucket/log
      pylog verify --deep --repair --lose-data --dry-run
      pylog verify --deep --repair --lose-data
    """
    from spark_log.recovery.verify_repair import invalid_repair, verify_and_repair

    wrong = invalid_repair(
        repair=repair, repair_from=repair_from, options=options, lose_data=lose_data, dry_run=dry_run
    )
    if wrong:
        raise click.UsageError(wrong)
    if dry_run:
        _say_plan(session, session.connect(), deep)
        return
    if lose_data:
        confirmed(GIVEN_UP, dry_run=False, yes=yes)
    log = session.connect()
    copy = None if repair_from is None else _copy(repair_from, options)
    looked = dict[str, int]()
    with progress_bars() as bars:
        progress = _noting(looked, bars)
        found = verify_and_repair(log, deep, repair=repair, copy=copy, lose_data=lose_data, progress=progress)
    columns = ["what", "message", "repaired"] if repair_from or repair else ["what", "message"]
    _end_verification(session, log, found, columns, looked_text(log.journal.state, looked, deep=deep))


def _end_verification(
    session: CommandSession, log: Log, found: Verified, columns: Sequence[str], looked_at: str
) -> None:
    """Say what was found, and which brokers were not checked.  Raises Failed if there are problems."""
    from spark_log.recovery.verify_copies import unchecked_brokers

    _say_verified(session, found, columns, looked_at)
    for text in unchecked_brokers(log.journal.state):
        echo(text, err=True)
    if found.problems:
        raise Failed(f"{counted(len(found.problems), 'problem')} found in {looked_at}")


def _say_verified(session: CommandSession, found: Verified, columns: Sequence[str], looked_at: str) -> None:
    """A row for each thing that was repaired, given up, lost, or is left; on a terminal a sentence if there is none."""
    left = [{**asdict(problem), "repaired": False} for problem in found.problems]
    rows = [*map(_replaced, found.repaired), *map(_given_up, found.given_up), *_lost(found.lost), *left]
    if rows or session.output not in ("table", "wide"):
        emit_rows(session, columns, rows)
    else:
        echo(f"no problems found in {looked_at}")


def _noting(looked: dict[str, int], bars: Progress | None) -> Progress:
    """Progress that also notes in `looked` how much there is of each kind."""

    def progress(what: str, done: int, total: int) -> None:
        looked[what] = total
        if bars is not None:
            bars(what, done, total)

    return progress


def looked_text(state: State, looked: Mapping[str, int], *, deep: bool) -> str:
    """The numbers of the things that were checked.

    looked:  totals of the progress, by the name of the work.
    deep:    all records were read.
    """
    said = [counted(len(state.names), "topic"), counted(len(state.partitions), "partition")]
    said += [counted(looked.get("objects", 0), "object")]
    if copies := looked.get("copies", 0):
        said.append(counted(copies, "copy", "copies"))
    if deep:
        return f"{', '.join(said)} and {size_text(looked.get('bytes', 0))} of records"
    return f"{', '.join(said)}; the records were not read (--deep reads them)"


def _replaced(name: str) -> dict[str, object]:
    return {"what": name, "message": "was missing or damaged, and has been replaced", "repaired": True}


def _given_up(lost: GivenUp) -> dict[str, object]:
    message = f"the records at offsets {lost.start} to {lost.end - 1} are given up"
    return {"what": f"{lost.topic}-{lost.partition}", "message": message, "repaired": True}


def _say_plan(session: CommandSession, log: Log, deep: bool) -> None:
    """Print the offsets that would be given up, and the lost versions of the log that would."""
    from spark_log.recovery.lost_ends import lost_text
    from spark_log.recovery.lost_records import plan_give_up

    plan, lost = plan_give_up(log, deep), lost_text(log.journal)
    rows = [{"what": f"{one.topic}-{one.partition}", "message": _would_give_up(one)} for one in plan]
    rows += [{"what": "meta/log/", "message": f"would be given up: {lost}"}] if lost else []
    if rows or session.output not in ("table", "wide"):
        emit_rows(session, ["what", "message"], rows)
    else:
        echo("no records would be given up")


def _would_give_up(lost: GivenUp) -> str:
    return f"the records at offsets {lost.start} to {lost.end - 1} would be given up"


def _lost(lost: LostVersions | None) -> list[dict[str, object]]:
    from spark_log.journal.lost_versions import versions_text

    if lost is None:
        return []
    message = f"the records of {versions_text(lost.after + 1, lost.upto)} of the log are given up"
    return [{"what": "meta/log/", "message": message, "repaired": True}]


def _copy(url: str, options: Mapping[str, str]) -> Journal:
    """Another copy of the log."""
    from spark_log.client.open_journal import open_journal

    try:
        return open_journal(url, options, create=False)
    except NoLog as error:
        raise Failed(f"{url} has no copy of the log: is its disk mounted?") from error


@click.command(cls=Verb)
@guarded
@click.option("--accept-loss", is_flag=True, help="Continue without versions that cannot be restored. Does not ask.")
@click.option(
    "--cluster-id",
    metavar="ID",
    help="The log's id, for a lost meta/format that no broker can replace, or in place of a wrong one; new: a new id.",
)
@pass_session
def repair(session: CommandSession, accept_loss: bool, cluster_id: str | None, dry_run: bool, yes: bool) -> None:
    """Rebuild the metadata of a log that does not open.

    The metadata is rebuilt from the checkpoints and records that can be read.
    Stop all clients and the coordinator first. Damaged files are moved to meta/damaged/, and two new checkpoints are
    written. If a version of the log is lost, nothing is changed, and the error names the files that are missing.

    With --accept-loss the log then keeps everything up to the first lost version, and the readable records of later
    versions. Every topic gets a new id, as if it had been deleted and created again, because offsets of lost records
    are reused. Streaming queries with their former checkpoints, running transactions and uploads then fail, and groups
    continue at the last position that is intact. --dry-run shows what is kept.

    A lost meta/format is written again with the log's id, which its checkpoints and the roots of its brokers have. If
    nothing has it, give --cluster-id: brokers, mirrors, backups and streaming queries work with no other id.

    \b
    Example:
      pylog repair --dry-run
      pylog repair --accept-loss
      pylog repair --cluster-id 96e13e30e46adde24d022041c57a662a
    """
    from spark_log.recovery.repair import repair as run
    from spark_log.recovery.repair import way_back
    from spark_log.roots.root_options import RootOptions
    from spark_log.rpc.health_check import health_of
    from spark_log.store.open import open_store

    if not session.url:
        raise click.UsageError(f"no URL: give the log's with -u URL or in {URL_VARIABLE}, as in -u file:///data/log")

    def is_alive(holder: Leadership) -> bool:
        return bool(holder.address) and any(health_of(holder.address, tls=tls) is not None for tls in (False, True))

    options = RootOptions.of(session.storage_options, "disk")
    store = open_store(session.url, options.own())
    report = run(store, is_alive=is_alive, dry_run=True, cluster_id=cluster_id or "", root_options=options)
    if not report.needed:
        text = (
            f"nothing to repair: the metadata in {store.url} can be read up to version {report.version}, and no file of it is "
            "damaged. `pylog verify --deep` checks the records"
        )
        emit_line(session, text, asdict(report))
        if report.left:
            raise Failed(f"the log is not healthy, but `pylog repair` does not help: {'; '.join(report.left)}")
        return
    asks = bool(_unproved(report)) if accept_loss else not report.lost
    if not dry_run and (not asks or confirmed(_changes(report), dry_run=False, yes=yes)):
        report = run(
            store, is_alive=is_alive, accept_loss=accept_loss, cluster_id=cluster_id or "", root_options=options
        )
    emit_line(session, _repair_text(report, dry_run), asdict(report))
    if report.lost and dry_run and not accept_loss:
        raise Failed(
            f"`pylog repair` would change nothing, because versions after {report.version} are lost. {way_back(report)}, or "
            "give --accept-loss. If a later record is not of this log, move it out of meta/log/ instead"
        )


def _changes(report: RepairReport) -> str:
    """The changes of a repair, to be confirmed."""
    if report.former_id:
        return (
            f"give the log the id {report.cluster_id} in place of {report.former_id}: brokers, mirrors, backups and queries "
            f"that know the log by the latter id would stop{_unproved(report)}"
        )
    return f"replace damaged files of the metadata{_unproved(report)}"


def _unproved(report: RepairReport) -> str:
    """The warning about an id that only the operator knows; empty if there is nothing to warn about."""
    if report.id_source or not report.cluster_id:
        return ""
    return (
        f". No record, no checkpoint and no root of a broker has the id {report.cluster_id}, so nothing here tells whether it "
        "is right. With a wrong id, mirrors, backups, exports and streaming queries of this log refuse it, and those of the "
        "log with that id take it for theirs: compare it with `pylog cluster info -u MIRROR`, or with backups.json beside "
        "the backups. The same command replaces it by another id"
    )


def _repair_text(report: RepairReport, dry_run: bool) -> str:
    """The result of a repair, or with --dry-run its plan."""
    base, files = report.base or "the first record", counted(len(report.moved), "file")
    condition = "with --accept-loss " if dry_run and report.lost else ""
    lines = [
        f"{condition}{'can be restored' if dry_run else 'restored'}: version "
        f"{report.version} from {base}, {files} moved to meta/damaged/"
    ]
    lines += [f"{name} is damaged" for name in report.damaged]
    lines += [f"{name} is missing, and two new checkpoints replace it" for name in report.absent]
    lines += [f"{one.key}: {one.text}" for one in report.others]
    if report.lost_format:
        source = f", which {report.id_source} has" if report.id_source else ", as given"
        identity = f"the log's id {report.cluster_id}{source}" if report.cluster_id else "a new id, as asked for"
        lines.append(
            f"meta/format is missing, and made again with {identity}; restart all clients and coordinators{_unproved(report)}"
        )
    elif report.former_id:
        lines.append(
            f"meta/format gets the id {report.cluster_id} in place of {report.former_id}; restart all clients and "
            f"coordinators{_unproved(report)}"
        )
    if report.lost:
        lines += report.lost
        lines.append(f"{condition}the log continues at version {report.continues_at}, with new topic ids")
        topics = f": {', '.join(report.kept_topics)}" if report.kept_topics else ""
        lines.append(f"{counted(len(report.kept_topics), 'topic')} kept{topics}")
        lines += report.left_out
        lines += report.kept
        lines += [f"no record refers to {name}; it is kept for gc.fence.age.ms" for name in report.unnamed]
        lines += [f"{name} is missing" for name in report.missing]
        lines += report.gone
    return "\n".join(lines)
