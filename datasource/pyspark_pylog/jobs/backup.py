"""Backups of a log: whole versions in another folder or bucket, which share the objects that they have in common.

    spark-submit jobs/backup.py --url s3://bucket/log --backups s3://other/log-backups --create
    spark-submit jobs/backup.py --url s3://bucket/log --backups s3://other/log-backups --keep 30d
    spark-submit jobs/backup.py --backups s3://other/log-backups --list
    spark-submit jobs/backup.py --backups s3://other/log-backups --prune --keep 10
    spark-submit jobs/backup.py --backups s3://other/log-backups --restore latest --url s3://bucket/restored

A backup has the log at one version, and copies the objects that no earlier backup has.  Writers and maintenance may run
meanwhile.  --restore makes a new log of a backup, in an empty folder.  A job that is killed leaves nothing that counts;
run it again, and it continues.  --list, --prune and --dry-run start no Spark.

The last line of standard output is a summary in JSON.  Exit status: 0 done, 1 refused or failed, 2 wrong usage.
See docs/tasks/backup.md.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from pyspark_pylog.jobs.job_support import (
    add_storage_option,
    duration_ms,
    in_tasks,
    job_parser,
    location_of,
    progress,
    rate_bytes,
    run_alone,
    run_job,
    storage_beside,
    waves,
)
from pyspark_pylog.log.open_log import journal_of, planned_log
from pyspark_pylog.log.planned_log import PlannedLog
from spark_log.client.admin.erasure_status import OF_A_COPY, to_repeat_texts
from spark_log.client.log import Log
from spark_log.display.units import size_text
from spark_log.errors import CorruptObject, InvalidRequest
from spark_log.http.address import is_coordinator
from spark_log.journal.context import Context
from spark_log.metadata.state import ErasedTopic
from spark_log.positions import format_timestamp_ms, parse_timestamp_ms
from spark_log.recovery.backup import (
    back_up,
    begin_place,
    check_follows,
    check_place,
    kept_by_version,
    missing,
    prune,
)
from spark_log.recovery.backup_copies import BackupShare, CopiedShare, CopyShares, copy_share
from spark_log.recovery.backup_files import Backup, BackupFiles
from spark_log.recovery.lost_ends import lost_text
from spark_log.recovery.restore_backup import plan_restore, restore
from spark_log.replication.copy_throttle import Pace, rate_of
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from spark_log.store.retry import with_retries
from spark_log.text import counted


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__, url_required=False)
    parser.add_argument("--backups", required=True, metavar="URL", help="the folder of the backups: a path, s3://…")
    add_storage_option(parser, "--backup-option", "for the storage of the backups")
    parser.add_argument("--create", action="store_true", help="begin backups in an empty folder")
    parser.add_argument(
        "--force",
        action="store_true",
        help="make a backup of a log that lacks commits of its last backup; this run removes no backups",
    )
    parser.add_argument(
        "--keep",
        type=_keep,
        metavar="NUMBER|DURATION",
        help="remove older backups than so many, or than so long (30d); the newest one is always kept",
    )
    parser.add_argument(
        "--throttle", type=rate_bytes, metavar="RATE", help="copy at most this many bytes per second, such as 50MB"
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--list", action="store_true", help="show the backups")
    other.add_argument("--prune", action="store_true", help="only remove backups, as --keep says")
    other.add_argument(
        "--restore",
        metavar="WHICH",
        help="make a log at --url of a backup: latest, an id, a version, or the last one up to a time (@2026-01-31T10:00)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    found = parser.parse_args(args)
    if not found.url and not (found.list or found.prune):
        parser.error("--url is missing")
    if found.prune and found.keep is None:
        parser.error("--prune needs --keep")
    if found.force and (found.list or found.prune or found.restore):
        parser.error("--force is for backups")
    if found.keep is not None and (found.list or found.restore):
        parser.error("--keep is for backups and --prune")
    return found


def _keep(text: str) -> dict[str, int]:
    if not text.isdigit():
        return {"keep_ms": duration_ms(text)}
    if not int(text):
        raise argparse.ArgumentTypeError("0 would keep no backup")
    return {"keep": int(text)}


def run(spark: SparkSession, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Make a backup, or a log of one; the summary and the exit status."""
    files = files_of(args)
    return (make_log if args.restore else make_backup)(spark, args, files)


def check_args(args: argparse.Namespace) -> None:
    """Raises what `run` would raise before it copies anything."""
    files = files_of(args)
    if args.restore:
        restoration(args, files)
        return
    with Log(journal_of(location_of(args))) as log:
        check_log(log, args, files)


def check_log(log: Log, args: argparse.Namespace, files: BackupFiles) -> None:
    """Raises InvalidRequest, NoLog or LogRestored if there can be no backup of the log in this folder."""
    check_place(log, files, create=args.create)
    if not args.force:
        check_follows(log, files)


def without_tasks(args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """List or remove backups, or say what would be copied; the summary and the exit status."""
    files = files_of(args)
    if not (args.list or args.prune or args.restore):
        return planned_backup(args, files), 0
    files.check()
    if args.list:
        return {"backups": listed(files), "unfinished": files.unfinished()}, 0
    return (pruned if args.prune else planned_log_of)(args, files), 0


def files_of(args: argparse.Namespace) -> BackupFiles:
    options = storage_beside(args.backup_option, args.backups, args)
    url = args.backups.rstrip("/")
    return BackupFiles(
        with_retries(open_store(url, options)), lambda folder: with_retries(open_store(f"{url}/{folder}", options))
    )


def shown(backup: Backup) -> dict[str, Any]:
    """A backup, for JSON."""
    end = backup.end
    time = format_timestamp_ms(end.time_ms)
    return {"id": backup.id, "version": end.version, "time": time, "objects": end.objects, "bytes": end.bytes}


def listed(files: BackupFiles) -> list[dict[str, Any]]:
    """The backups, for JSON.  Those that were made before an erasure have it, as far as the newest backup knows."""
    known = files.complete()
    rows = list[ErasedTopic]()
    with suppress(CorruptObject):  # `--restore` names the damage
        state = files.state(known[-1].end.state) if known else None
        rows = [] if state is None else sorted(state.erasures.values(), key=lambda row: row.version)
    found = list[dict[str, Any]]()
    for one in known:  # the versions begin again before an erasure if the log was restored
        after = [row for row in rows if row.version > one.end.version or row.time > one.end.time_ms]
        later = [f"{row.name} {format_timestamp_ms(row.time)}" for row in after]
        found.append(shown(one) | ({"erased_since": later} if later else {}))
    return found


def pruned(args: argparse.Namespace, files: BackupFiles) -> dict[str, Any]:
    now_ms = SystemClock().now_ms()
    done = prune(files, now_ms, dry_run=args.dry_run, **args.keep)
    kept = kept_by_version(files, now_ms, **args.keep)
    for one in kept:
        progress(
            f"backup {one.id} is kept, because its version {one.end.version} is higher than those of later backups: the log "
            "was restored from an older copy, or a clock was wrong. It may have records that were erased since. If you do "
            f"not need it, delete {files.store.url}/{one.end.state}, and run this with --prune again"
        )
    summary = {"removed": done.removed, "objects_deleted": done.objects}
    return summary | ({"kept_by_version": [one.id for one in kept]} if kept else {})


def tell(_: str, done: int, total: int) -> None:
    """How far the copies are."""
    progress(f"{size_text(done)} of {size_text(total)} copied")


# ------------------------------------------------------------------------------------------------------------- backups


def planned_backup(args: argparse.Namespace, files: BackupFiles) -> dict[str, Any]:
    with Log(journal_of(location_of(args))) as log:
        check_log(log, args, files)
        objects, size = missing(log, files)
    return {"dry_run": True, "version": log.journal.state.version, "objects": objects, "bytes": size}


def make_backup(spark: SparkSession, args: argparse.Namespace, files: BackupFiles) -> tuple[dict[str, Any], int]:
    """No backup is removed by force, or while versions of the log are lost: an older one may have what it lacks."""
    with Log(journal_of(location_of(args))) as log:
        check_log(log, args, files)
        begin_place(log, files, create=args.create)
        made = back_up(log, files, from_log(spark, args, log, files), tell)
        lost = noted_text(log)
    if lost:
        progress(f"no backup is removed, because {lost}")
    progress(f"backup {made.backup.id}: {counted(made.objects, 'object')} copied")
    summary = {"backup": shown(made.backup), "copied_objects": made.objects, "copied_bytes": made.bytes}
    summary |= pruned(args, files) if args.keep and not (args.force or lost) else {}
    return summary | ({"problems": [lost]} if lost else {}), int(bool(lost))


def noted_text(log: Log) -> str:
    """The versions that the log has lost, and the ways out; empty: none are known."""
    try:
        return lost_text(log.journal)
    except CorruptObject as error:
        return str(error)


def from_log(spark: SparkSession, args: argparse.Namespace, log: Log, files: BackupFiles) -> CopyShares:
    """Tasks copy objects of a log to a backup."""

    def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
        planned, rate = planned_log(location_of(args), log.journal), rate_of(log, args.throttle)
        for some in waves(spark, shares):
            of_task = rate_of_task(spark, rate, len(some))
            known = planned.of_objects(one.name for share in some for one in share.objects)
            yield from in_tasks(spark, some, partial(back_up_in_task, known, files, of_task))

    return copy


def back_up_in_task(
    planned: PlannedLog, files: BackupFiles, bytes_per_s: int | None, share: BackupShare
) -> CopiedShare:
    """In a task: copy the objects of a share to their backup.  Reads no metadata."""
    return copy_share(planned.objects(), files.folder(share.folder), share, Pace(SystemClock(), bytes_per_s))


def rate_of_task(spark: SparkSession, bytes_per_s: int | None, tasks: int) -> int | None:
    """The bytes per second of each of some tasks."""
    slots = min(spark.sparkContext.defaultParallelism, tasks)
    return None if bytes_per_s is None else max(1, bytes_per_s // slots)


# ----------------------------------------------------------------------------------------------------------- restoring


class Restoration(NamedTuple):
    """A backup, and the store where a log is made of it."""

    backup: Backup
    store: ObjectStore

    def summary(self) -> dict[str, Any]:
        return {"backup": shown(self.backup), "url": self.store.url}


def restoration(args: argparse.Namespace, files: BackupFiles) -> Restoration:
    """Raises InvalidRequest for an unknown backup, and for a coordinator as the place of the log."""
    files.check()
    time = parse_timestamp_ms(args.restore[1:], "--restore") if args.restore.startswith("@") else None
    backup = files.find(args.restore, time)
    if is_coordinator(args.url):
        raise InvalidRequest(f"--url {args.url}: give the folder or bucket of the new log")
    return Restoration(backup, with_retries(open_store(args.url, dict(args.storage_option))))


def planned_log_of(args: argparse.Namespace, files: BackupFiles) -> dict[str, Any]:
    new = restoration(args, files)
    state, shares = plan_restore(files, new.backup, new.store)
    again = tell_erased(to_repeat_texts(files.erased_since(new.backup, state)))
    objects, size = sum(len(share.objects) for share in shares), sum(share.bytes for share in shares)
    return new.summary() | {"dry_run": True, "objects": objects, "bytes": size} | again


def make_log(spark: SparkSession, args: argparse.Namespace, files: BackupFiles) -> tuple[dict[str, Any], int]:
    new = restoration(args, files)
    context = Context(SystemClock(), random.SystemRandom())
    made = restore(files, new.backup, new.store, context, from_backup(spark, args, files, new.store), tell)
    problems = [f"{problem.what}: {problem.message}" for problem in made.problems]
    progress(f"{new.store.url} is a log now, with the id {made.cluster_id}")
    again = tell_erased(made.erase_again)
    copied = {"cluster_id": made.cluster_id, "copied_objects": made.objects, "copied_bytes": made.bytes}
    return new.summary() | copied | {"problems": problems} | again, int(bool(problems))


def tell_erased(later: Sequence[str]) -> dict[str, Any]:
    """Say that the backup has records that were erased since; the known erasures, for JSON."""
    progress(f"the log is that of the backup: {OF_A_COPY}")
    for text in later:
        progress(text)
    return {"erase_again": list(later)}


def from_backup(spark: SparkSession, args: argparse.Namespace, files: BackupFiles, store: ObjectStore) -> CopyShares:
    """Tasks copy objects of a backup to a log."""

    def copy(shares: Sequence[BackupShare]) -> Iterator[CopiedShare]:
        for some in waves(spark, shares):
            of_task = rate_of_task(spark, args.throttle, len(some))
            yield from in_tasks(spark, some, partial(restore_in_task, files, store, of_task))

    return copy


def restore_in_task(files: BackupFiles, store: ObjectStore, bytes_per_s: int | None, share: BackupShare) -> CopiedShare:
    """In a task: copy the objects of a share from a backup."""
    return copy_share(files.folder(share.folder), store, share, Pace(SystemClock(), bytes_per_s))


def main() -> None:
    args = parse_args()
    if args.list or args.prune or args.dry_run:
        run_alone("backup", partial(without_tasks, args))
    else:
        run_job("backup", partial(run, args=args), partial(check_args, args))
