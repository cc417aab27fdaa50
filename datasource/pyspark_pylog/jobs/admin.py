"""Creates and alters topics and groups, and moves replicas, as a file describes them.

    spark-submit jobs/admin.py --url s3://bucket/log plan topics.yaml
    spark-submit jobs/admin.py --url s3://bucket/log apply topics.yaml

The file has the partitions, replicas and configs of each topic, and where groups begin:

    topics:
      orders:
        partitions: 6
        replication_factor: 3
        configs: {retention.ms: 604800000, cleanup.policy: delete}
      old-orders:
        delete: true
    groups:
      billing:
        positions: {orders: earliest}

`plan` prints the changes that `apply` would make.  Both check the whole file against the log first, and change nothing
if anything is wrong.  `apply` makes all changes in one commit.

`configs` has all configs of a topic: those that it does not have are unset.  A topic's `partitions`, `configs` and
replicas stay as they are if the file does not have them.  Topics and groups that are not in the file are left alone.
`replicas: [[1, 2], [2, 1]]` names the brokers of each partition, the preferred leader first.  Groups get a position
where they have none; --reset-groups moves them where they have another one.  Deletions need `delete: true` in the file
and --allow-delete.  A file of Kafka's kafka-reassign-partitions moves the partitions in it.  With --create, `apply`
begins a log if there is none, and `plan` shows what it would have.

The job starts no Spark, so `python jobs/admin.py` is enough.  The last line of standard output is a summary in JSON.
Exit status: 0 nothing to change, or all changes were made; 1 refused or failed; 2 wrong usage; 3 `plan` has found
changes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark_pylog.jobs.admin_changes import Draft, plan_changes
from pyspark_pylog.jobs.admin_file import read_file
from pyspark_pylog.jobs.job_support import job_parser, location_of, progress, run_alone
from pyspark_pylog.log.open_log import journal_of
from spark_log.client.admin.keyless import keyless_warnings
from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, NoLog
from spark_log.journal.journal import Journal
from spark_log.metadata.replicas.reassignments import moving
from spark_log.text import printable_lines

HAS_CHANGES = 3
"""Exit status of `plan`.  Not 2, which is wrong usage."""


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = job_parser(__doc__)
    parser.add_argument("verb", choices=("plan", "apply"))
    parser.add_argument("file", type=Path, metavar="topics.yaml", help="YAML or JSON")
    parser.add_argument("--create", action="store_true", help="begin a log if there is none")
    parser.add_argument("--allow-delete", action="store_true", help="delete what has `delete: true`")
    parser.add_argument(
        "--reset-groups", action="store_true", help="also move groups to `positions` where they have other ones"
    )
    return parser.parse_args(args)


def administer(args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Plan or apply; the summary and the exit status."""
    declared = read_file(args.file)
    with Log(declared_journal(args)) as log:
        draft = plan_changes(log.journal, declared, resets=args.reset_groups)
        lines = list(draft.changes.lines())
        changes = [*(lines or ["nothing to change"]), *draft.changes.kept_lines()]
        text = "\n".join(changes)
        sys.stdout.write(f"{printable_lines(text)}\n")
        sys.stdout.flush()
        for note in dict.fromkeys(draft.changes.notes()):
            progress(f"warning: {note}")
        if not args.allow_delete:
            check_deletes_nothing(draft, args.verb)
        if args.verb == "apply":
            apply_changes(log, draft)
        moves = len(moving(log.journal.refresh()))
    if moves:
        progress("records move to other replicas: a coordinator, `pylog replicate` or jobs/maintain.py moves them")
    summary = {"verb": args.verb, "changes": len(lines), **draft.changes.summary(), "moving": moves}
    return summary, HAS_CHANGES if args.verb == "plan" and lines else 0


def declared_journal(args: argparse.Namespace) -> Journal:
    """The journal of the log.  Where there is none, --create begins it after the file was checked on an empty log."""
    location = location_of(args)
    try:
        return journal_of(location)
    except NoLog:
        if not args.create:
            raise
    empty = journal_of(replace(location, url=f"memory://{uuid4().hex}"), create=True)
    draft = plan_changes(empty, read_file(args.file))
    if args.verb == "plan" or not list(draft.changes.lines()):
        return empty
    return journal_of(location, create=True)


def check_deletes_nothing(draft: Draft, verb: str) -> None:
    """Raises InvalidRequest for an `apply` that would delete something."""
    names = [*draft.changes.delete, *draft.changes.delete_groups]
    if names:
        progress(f"to delete {', '.join(names)}, give --allow-delete")
        if verb == "apply":
            raise InvalidRequest("nothing was changed: the file has `delete: true`, and --allow-delete is not given")


def apply_changes(log: Log, draft: Draft) -> None:
    """Commit the changes.  If it fails, or is killed before, nothing is changed."""
    draft.commit()
    for name, configs in draft.changes.configs.items():
        if "cleanup.policy" in configs:
            for note in keyless_warnings(log.journal, name):
                progress(f"warning: {note}")


def main() -> None:
    args = parse_args()
    run_alone("admin", partial(administer, args))
