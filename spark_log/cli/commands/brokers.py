"""`pylog broker …` and `pylog elect`: the roots that hold copies, and who leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from spark_log.cli.commands.reassign import emit_assignments, start, throttle_option
from spark_log.cli.commands.topics import notes_said, partitions_named
from spark_log.cli.common.base import (
    DURATION,
    LONG,
    Failed,
    Noun,
    confirmed,
    guarded,
    pass_session,
    storage_option,
    verb,
)
from spark_log.cli.common.completion import complete_topics
from spark_log.cli.common.output import Table, echo, emit_line, emit_parts, emit_rows
from spark_log.cli.common.session import CommandSession
from spark_log.positions import format_timestamp_ms
from spark_log.text import counted

if TYPE_CHECKING:
    from spark_log.client.admin.admin import Admin
    from spark_log.client.admin.broker_views import BrokerDescription
    from spark_log.client.log import Log
    from spark_log.model import TopicPartition
    from spark_log.monitoring.health_findings import Needed

broker_id = click.argument("broker", metavar="ID", type=LONG)
root_options = storage_option(
    "--root-option", "the broker's root", "endpoint_url; it is stored in the log, so it must not be a secret"
)


ANSWER_S = 10.0
"""How long a root may take to answer before its broker counts as silent."""


@click.group(cls=Noun)
def broker() -> None:
    """Add, list, fence, drain, replace and remove brokers."""


@verb(broker)
@broker_id
@click.option("--root", metavar="URL", required=True, help="An empty folder, or an empty prefix of a bucket.")
@click.option("--rack", metavar="NAME", help="Replicas of a partition are on different racks, if possible.")
@click.option("--async", "is_async", is_flag=True, help="No write waits for it: it gets its copies later.")
@click.option("--keep", "keep_ms", type=DURATION, metavar="DURATION", help="With --async: it keeps newer objects only.")
@root_options
@pass_session
def add(
    session: CommandSession,
    broker: int,
    root: str,
    rack: str | None,
    is_async: bool,
    keep_ms: int | None,
    options: Mapping[str, str],
) -> None:
    """Register a broker, in which topics can have replicas.

    All clients must reach its root under this URL.  Give secrets of its storage to each client, as storage options
    ID.KEY, for example 1.secret.

    \b
    Example:
      pylog broker add 1 --root /mnt/disk1/log
      pylog broker add 2 --root s3://bucket-b/log --rack b
      pylog broker add 3 --root /mnt/nvme/log --async --keep 1d
    """
    with notes_said():
        session.connect().admin.add_broker(
            broker, root, rack=rack or "", storage_options=options, is_async=is_async, keep_ms=keep_ms or 0
        )
    emit_line(session, f"broker {broker} added at {root}", {"broker": broker, "root": root, "rack": rack or ""})


@verb(broker, "list")
@pass_session
def list_brokers(session: CommandSession) -> None:
    """List brokers: where they are, whether they are active, what they have and what they lack.

    The log does not know what the root of a fenced broker has lost meanwhile, so a table shows ? for what it lacks.

    \b
    Example:
      pylog broker list
    """
    rows = [_row(session, one) for one in session.connect().admin.describe_cluster().brokers]
    columns = [
        "broker",
        "state",
        "rack",
        "leads",
        "replicas",
        "objects",
        "bytes",
        "lacking_objects",
        "lacking_bytes",
        "root",
    ]
    emit_rows(session, columns, rows, wide=["keep_ms", "is_drained", "epoch", "directory", "reason"])


def _row(session: CommandSession, one: BrokerDescription) -> dict[str, object]:
    """A broker as a table shows it: nobody knows what the root of a fenced one has lost meanwhile."""
    row = one._asdict()
    if session.structured or session.output == "csv":
        return row
    row["keep_ms"] = row["keep_ms"] or "all"
    if one.is_drained:
        row["state"] += ", drained"
    if one.state == "fenced":
        row.update(lacking_objects="?", lacking_bytes="?")
    return row


def _described(admin: Admin, broker: int) -> BrokerDescription:
    """A broker that is registered.  Raises Failed for another one."""
    found = next((one for one in admin.describe_cluster().brokers if one.broker == broker), None)
    if found is None:
        raise Failed(f"broker {broker} is not registered: `pylog broker list` shows those that are")
    return found


def _removable(admin: Admin, broker: int) -> BrokerDescription:
    """A description like that of `_described`, for a broker that may be replaced or removed."""
    if broker == 0:
        raise Failed("broker 0 is the log's own root: it is never replaced or removed")
    return _described(admin, broker)


@verb(broker)
@broker_id
@pass_session
def describe(session: CommandSession, broker: int) -> None:
    """Show a broker, and the partitions that have a replica on it.

    needed_for says what would fail without its disk if the broker is fenced.

    \b
    Example:
      pylog broker describe 1
    """
    log = session.connect()
    admin = log.admin
    found = _described(admin, broker)
    since = format_timestamp_ms(found.since) if found.since else None
    sizes = admin.describe_log_dirs()[broker].partitions
    rows = [{"topic": tp.topic, "partition": tp.partition, "bytes": size} for tp, size in sorted(sizes.items())]
    needs = _needed(log, broker).uses
    fields = {**_row(session, found), "since": since, "needed_for": needs if session.structured else _listed(needs)}
    emit_parts(session, fields, {"partitions": Table(["topic", "partition", "bytes"], rows)})


@verb(broker)
@broker_id
@click.option("--rack", metavar="NAME", help="Its rack; '' for none.")
@click.option("--drained/--not-drained", default=None, help="Whether new topics and automatic plans leave it out.")
@pass_session
def alter(session: CommandSession, broker: int, rack: str | None, drained: bool | None) -> None:
    """Change the rack of a broker, which may be 0, the log's own root, or whether it gets replicas.

    Replicas stay where they are; new topics are placed by the new rack, and readers in it read from there first.

    \b
    Example:
      pylog broker alter 0 --rack a
      pylog broker alter 1 --not-drained
    """
    if rack is None and drained is None:
        raise click.UsageError("nothing to alter: give --rack, --drained or --not-drained")
    done = session.connect().admin.alter_broker(broker, rack=rack, drained=drained)
    parts = []
    if rack is not None:
        parts.append(f"is in rack {rack!r}" if rack else "has no rack")
    if drained is not None:
        parts.append("gets no replicas automatically" if drained else "may get replicas")
    fields = {"broker": broker, "rack": rack, "drained": drained, "changed": done}
    emit_line(session, f"broker {broker} {' and '.join(parts)}", fields)


@verb(broker)
@broker_id
@click.option("--root", metavar="URL", help="Another root; by default, the same one, which was emptied.")
@click.option("--lose-data", is_flag=True, help="Even if the old root has the only copies of records: they are lost.")
@root_options
@guarded
@pass_session
def replace(
    session: CommandSession,
    broker: int,
    root: str | None,
    lose_data: bool,
    options: Mapping[str, str],
    dry_run: bool,
    yes: bool,
) -> None:
    """Give a broker an empty root, after its disk was lost or replaced.

    `pylog replicate` then copies what it should have.

    \b
    Example:
      pylog broker replace 1 --yes
    """
    admin = session.connect().admin
    known = _removable(admin, broker)
    what = f"forget all copies of broker {broker}, and begin in {root or known.root}, which must be empty"
    if confirmed(what, dry_run=dry_run, yes=yes):
        with notes_said():
            admin.replace_broker(broker, root, storage_options=options or None, lose_data=lose_data)
        new = _described(admin, broker)
        lacks = f"{counted(new.lacking_objects, 'object')}: run `pylog replicate`" if new.lacking_objects else "nothing"
        fields = {"broker": broker, "root": new.root, "lacking_objects": new.lacking_objects}
        emit_line(session, f"broker {broker} has an empty root, and lacks {lacks}", fields)


@verb(broker)
@broker_id
@click.option("--force", is_flag=True, help="Even if writes that began before a move may still put records there.")
@guarded
@pass_session
def remove(session: CommandSession, broker: int, force: bool, dry_run: bool, yes: bool) -> None:
    """Remove a broker that has no replicas.

    After its partitions were moved to other brokers, it can be removed when gc.fence.age.ms is over, or with --force:
    then writes that began before the move fail, and have to be run again.

    \b
    Example:
      pylog broker remove 1 --yes
    """
    admin = session.connect().admin
    _removable(admin, broker)
    if confirmed(f"remove broker {broker}", dry_run=dry_run, yes=yes):
        admin.remove_broker(broker, force=force)
        emit_line(session, f"broker {broker} removed", {"broker": broker})


@verb(broker)
@broker_id
@click.option("--dry-run", is_flag=True, help="Print the replicas before and after, and change nothing.")
@throttle_option
@pass_session
def drain(session: CommandSession, broker: int, dry_run: bool, throttle: int | None) -> None:
    """Move all replicas from a broker to others, so that it can be removed.

    Another broker takes the place of this one in each partition, in the same rack order and as evenly as possible. The
    partitions without a replica on it stay as they are. New topics and automatic plans leave the broker out from now
    on. Prints the replicas before, to undo it with pylog reassign execute and pylog broker alter --not-drained.

    \b
    Example:
      pylog broker drain 1 > before.json
      pylog reassign list
      pylog broker remove 1 --yes
    """
    from spark_log.client.admin.replica_plans import current_replicas, drained

    log = session.connect()
    plan = drained(log.journal.refresh(), broker)
    if not dry_run:
        log.admin.alter_broker(broker, drained=True)
        plan = drained(log.journal.refresh(), broker)  # also of topics that were created meanwhile
    if dry_run:
        current = current_replicas(log.journal.state, {tp.topic: None for tp in plan})
        emit_assignments(session, {tp: current[tp] for tp in plan}, plan)
    elif plan:
        start(session, log, plan, throttle)
    else:
        emit_line(session, f"broker {broker} has no replicas, and gets none", {"broker": broker})


@verb(broker)
@broker_id
@click.option("--reason", metavar="TEXT", help="Shown while it is fenced.")
@pass_session
def fence(session: CommandSession, broker: int, reason: str | None) -> None:
    """Take a broker out of all ISRs, before its disk is taken away.

    The exit status is 0 if its disk may be taken away now, and 1 if something still needs it: the command says what it
    is, and what helps. The broker is fenced in both cases, and stays so until you unfence it. pylog replicate copies
    what no other broker has; pylog broker drain moves partitions without another replica.

    \b
    Example:
      pylog broker fence 1 --reason "new disk at 10:00" && umount /mnt/disk1
    """
    from spark_log.client.admin.erasure_status import erasures_waiting_for

    log = session.connect()
    done = log.admin.fence_broker(broker, reason or "")
    needs, helps = _needed(log, broker)
    may = f"Its disk is still needed, for {_listed(needs)}" if needs else "Its disk may be taken away"
    waiting = erasures_waiting_for(log.journal.state, broker)
    wait = f". {_waiting(waiting, broker)}" if waiting else ""
    text = f"broker {broker} {'fenced' if done else 'was fenced already'}. {may}{wait}"
    fields = {
        "broker": broker,
        "state": "fenced",
        "changed": done,
        "may_be_taken_away": not needs,
        "needed_for": needs,
        "erased_topics": waiting,
    }
    emit_line(session, text, fields)
    if needs:
        back = f"`pylog broker unfence {broker}` takes it back"
        raise Failed(". ".join([f"do not take the disk of broker {broker} away yet", *helps, back]))


def _waiting(topics: Sequence[str], broker: int) -> str:
    return (
        f"Its root may have copies of records that were erased from {', '.join(topics)}: `pylog broker unfence {broker}` "
        "deletes them, and `pylog topic erasures` names these erasures until then"
    )


def _needed(log: Log, broker: int) -> Needed:
    """Other brokers count only if their roots answer here: one that fails may not be fenced yet; broker 0 never is."""
    from spark_log.client.admin.answering_roots import RootAnswers
    from spark_log.metadata.replicas.replica_state import OWN_BROKER
    from spark_log.metadata.replicas.replicas import is_active
    from spark_log.monitoring.health_findings import why_needed

    state = log.journal.refresh()
    others = {other for other in {OWN_BROKER, *state.brokers} - {broker} if is_active(state, other)}
    return why_needed(state, broker, others - RootAnswers(log.journal).among(others, ANSWER_S))


def _listed(needs: Sequence[str]) -> str:
    return "; for ".join(needs) or "nothing"


@verb(broker)
@broker_id
@click.option("--deep", is_flag=True, help="Compare the sizes of its copies, too.")
@pass_session
def unfence(session: CommandSession, broker: int, deep: bool) -> None:
    """Take a fenced broker back, with the copies that its root has.

    \b
    Example:
      pylog broker unfence 1
    """
    done = session.connect().admin.unfence_broker(broker, deep=deep)
    text = f"broker {broker} {'is active' if done else 'was active already'}"
    emit_line(session, text, {"broker": broker, "state": "active", "changed": done})


@verb(broker)
@click.argument("directory")
@guarded
@pass_session
def forget_root(session: CommandSession, directory: str, dry_run: bool, yes: bool) -> None:
    """Record that a root that a broker had before has no files any more.

    Erasures wait for that, because the files of removed and replaced brokers stay. `pylog topic erasures` names the
    directories.

    \b
    Example:
      pylog broker forget-root 5b33e61a5657a8bc
    """
    if confirmed(f"record that all files of directory {directory} are deleted", dry_run=dry_run, yes=yes):
        session.connect().admin.forget_root(directory)
        emit_line(session, f"directory {directory} is forgotten", {"directory": directory})


@click.group(cls=Noun)
def elect() -> None:
    """Choose leaders by hand."""


of_topic = click.argument("topic", metavar="[TOPIC[:PARTITION]]", required=False, shell_complete=complete_topics)


@verb(elect)
@of_topic
@pass_session
def preferred(session: CommandSession, topic: str | None) -> None:
    """Make the first replica of each partition its leader, where it is in sync.

    Without TOPIC, of all topics.  Partitions with the same list of replicas share one leader.

    \b
    Example:
      pylog elect preferred orders
    """
    _elect(session, "preferred", topic)


@verb(elect)
@of_topic
@guarded
@pass_session
def unclean(session: CommandSession, topic: str | None, dry_run: bool, yes: bool) -> None:
    """Choose a leader for partitions without one, although it may lack records that were acknowledged.

    Without TOPIC, for all partitions without a leader. Reads of records that only fenced brokers have fail until one of
    these is back.

    \b
    Example:
      pylog elect unclean orders:3 --yes
    """
    from spark_log.recovery.verify_copies import only_on_fenced

    only = sum(only_on_fenced(session.connect().journal.refresh()).values())
    lacked = f" ({counted(only, 'object')} of the log on fenced brokers alone)" if only else ""
    if confirmed(f"choose leaders that may lack acknowledged records{lacked}", dry_run=dry_run, yes=yes):
        _elect(session, "unclean", topic)


def _elect(session: CommandSession, kind: str, topic: str | None) -> None:
    log = session.connect()
    done = log.admin.elect_leaders(kind, _partitions(log, topic))
    rows = [{"topic": tp.topic, "partition": tp.partition, "leader": leader} for tp, leader in sorted(done.items())]
    if rows or session.structured:
        emit_rows(session, ["topic", "partition", "leader"], rows)
    else:
        echo(f"nothing to change: {counted(0, 'leader')} elected")


def _partitions(log: Log, text: str | None) -> list[TopicPartition] | None:
    """The partitions of a topic, or one of them; None: all."""
    if text is None:
        return None
    name, colon, number = text.rpartition(":")
    if colon and not number.isdecimal():
        raise click.UsageError(f"{text!r}: expected TOPIC or TOPIC:PARTITION, such as orders:3")
    return partitions_named(log, name if colon else text, int(number) if colon else None)
