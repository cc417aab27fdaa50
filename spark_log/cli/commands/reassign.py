"""`pylog reassign …`: partitions move to other brokers, as by kafka-reassign-partitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from spark_log.cli.commands.reassignment_file import (
    Assignment,
    Wanted,
    check_reassignment,
    check_topics,
    encode_reassignment,
    read_reassignment,
    read_topics,
)
from spark_log.cli.common.base import LONG, RATE, Failed, Noun, pass_session, verb
from spark_log.cli.common.completion import complete_topics
from spark_log.cli.common.output import echo, emit_line, emit_rows, emit_value
from spark_log.cli.common.session import CommandSession
from spark_log.configs.settings import THROTTLE
from spark_log.text import counted

if TYPE_CHECKING:
    from spark_log.client.admin.replica_plans import Plan
    from spark_log.client.log import Log
    from spark_log.metadata.replicas.placement import Replicas
    from spark_log.metadata.replicas.reassignments import PartitionReassignment
    from spark_log.model import TopicPartition

COMPLETE = "complete"

throttle_option = click.option(
    "--throttle",
    type=RATE,
    metavar="RATE",
    help="From now on, each process copies and moves at most this many bytes per second, such as 50MB.",
)
JSON_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)
plan_file = click.argument("file", metavar="FILE", type=JSON_FILE)


@click.group(cls=Noun)
def reassign() -> None:
    """Move partitions to other brokers."""


def parse_brokers(text: str) -> list[int]:
    """Broker ids joined by ','."""
    parts = [one.strip() for one in text.split(",")]
    if not all(one.isascii() and one.isdigit() for one in parts):
        raise click.BadParameter(f"{text!r}: expected the ids of brokers, as in 1,2,3")
    return [int(one) for one in parts]


@verb(reassign)
@click.option("--topics-to-move", "file", type=JSON_FILE, metavar="FILE", help="Topics, in Kafka's JSON.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="A topic, instead of a file; may be repeated.",
)
@click.option(
    "--brokers",
    required=True,
    metavar="1,2,3",
    callback=lambda ctx, param, value: parse_brokers(value),
    help="The brokers that are to have the partitions.",
)
@click.option("--disable-rack-aware", is_flag=True, help="Ignore the racks of brokers.")
@click.option(
    "-r", "--replication-factor", "factor", type=LONG, metavar="N", help="Also change the number of replicas."
)
@pass_session
def generate(
    session: CommandSession,
    file: str | None,
    topics: tuple[str, ...],
    brokers: list[int],
    disable_rack_aware: bool,
    factor: int | None,
) -> None:
    """Print the replicas that topics have, and new ones that are spread evenly over some brokers.

    Nothing is changed. The last line of the output is a file for `pylog reassign execute`. Partitions keep as many of
    their replicas as an even spread over brokers and racks allows.

    \b
    Example:
      pylog reassign generate -t orders --brokers 1,2,3 | tail -n 1 > move.json
      pylog reassign generate --topics-to-move topics.json --brokers 1,2,3 -r 3
    """
    from spark_log.client.admin.replica_plans import current_replicas, spread_over

    if (file is None) == (not topics):
        raise click.UsageError("give either --topics-to-move FILE or --topic TOPIC")
    state = session.connect().journal.refresh()
    names = list(dict.fromkeys(topics))
    if file is not None:
        names = list(listed := read_topics(file))
        check_topics(state, listed)
    proposed = spread_over(state, names, brokers, factor, rack_aware=not disable_rack_aware)
    emit_assignments(session, current_replicas(state, names), proposed)


@verb(reassign)
@plan_file
@click.option("--additional", is_flag=True, help="Even if other partitions are being moved.")
@throttle_option
@pass_session
def execute(session: CommandSession, file: str, additional: bool, throttle: int | None) -> None:
    """Give partitions the replicas in a file, in Kafka's JSON; - for standard input.

    Prints their present replicas first: save them, and execute them to go back. New records are written to the new
    replicas immediately. A coordinator, pylog replicate or pylog maintain moves the older ones.

    --throttle sets follower.replication.throttled.rate of the log, which pylog reassign verify removes at the end.

    \b
    Example:
      pylog reassign execute move.json --throttle 50MB > before.json
      pylog reassign verify move.json
    """
    from spark_log.metadata.replicas.reassignments import moving
    from spark_log.metadata.replicas.replica_commands import check_not_moving

    log = session.connect()
    wanted = read_reassignment(file)
    check_reassignment(file, log.journal.refresh(), wanted)
    if not additional:
        check_not_moving(log.journal.state, moving(log.journal.state))
    start(session, log, {tp: one.replicas for tp, one in wanted.items()}, throttle, replace=additional)


def start(session: CommandSession, log: Log, plan: Plan, throttle: int | None, *, replace: bool = True) -> None:
    """Print the replicas that partitions have, and give them others.

    throttle:  None: as it is.
    replace:   also partitions that move.
    """
    from spark_log.client.admin.replica_plans import current_replicas

    moving = log.admin.list_partition_reassignments(plan)
    now = current_replicas(log.journal.state, {tp.topic: None for tp in plan})
    current = {tp: _before(moving[tp]) if tp in moving else now[tp] for tp in plan}
    if not session.structured:
        echo("Current partition replica assignment, for a rollback", err=True)
        echo(encode_reassignment(current))
    if throttle is not None:
        log.admin.incremental_alter_configs({None: {THROTTLE: str(throttle)}})
    log.admin.alter_partition_reassignments(plan, replace=replace)
    if session.structured:
        emit_value(session, _both(current, plan))
    else:
        text = (
            f"{counted(len(plan), 'partition')} reassigned. `pylog reassign list` shows those whose records are moving."
        )
        echo(text, err=True)


def _before(move: PartitionReassignment) -> Replicas:
    return tuple(broker for broker in move.replicas if broker not in move.adding_replicas)


@verb(reassign)
@plan_file
@click.option("--preserve-throttles", is_flag=True, help="Keep the throttle, also when nothing is moving any more.")
@pass_session
def verify(session: CommandSession, file: str, preserve_throttles: bool) -> None:
    """Show which partitions of a file have all of their records on the replicas in it.

    The exit status is 1 if some do not. When all have, and no other partition is moving, the throttle is removed.

    \b
    Example:
      pylog reassign verify move.json
    """
    log, wanted = session.connect(), read_reassignment(file)
    rows = [{**tp._asdict(), **row} for tp, row in _statuses(log, wanted).items()]
    emit_rows(session, ["topic", "partition", "status", "replicas", "expected"], rows)
    if open_ones := sum(row["status"] != COMPLETE for row in rows):
        raise Failed(f"not complete yet: {open_ones} of {counted(len(rows), 'partition')}")
    if not preserve_throttles:
        _remove_throttle(log)


def _remove_throttle(log: Log) -> None:
    """Unless something is moving, which may need it."""
    if THROTTLE in log.journal.state.configs and not log.admin.list_partition_reassignments():
        log.admin.incremental_alter_configs({None: {THROTTLE: None}})


def _statuses(log: Log, wanted: Mapping[TopicPartition, Wanted]) -> dict[TopicPartition, dict[str, str]]:
    from spark_log.client.admin.replica_plans import current_replicas

    moving = log.admin.list_partition_reassignments()
    state = log.journal.state
    now = current_replicas(state, {tp.topic: None for tp in wanted if tp.topic in state.names})
    found = {}
    for tp, (_, replicas) in wanted.items():
        known = now.get(tp)
        if known is None:
            status = "no such partition"
        elif known != replicas:
            status = "other replicas"
        else:
            status = "in progress" if tp in moving else COMPLETE
        found[tp] = {"status": status, "replicas": "-" if known is None else ids(known), "expected": ids(replicas)}
    return found


@verb(reassign)
@plan_file
@pass_session
def cancel(session: CommandSession, file: str) -> None:
    """Return partitions to the replicas that they had, if they are still moving to those in a file.

    Others in the file are left alone.

    \b
    Example:
      pylog reassign cancel move.json
    """
    log, wanted = session.connect(), read_reassignment(file)
    found = [tp for tp, row in _statuses(log, wanted).items() if row["status"] == "in progress"]
    log.admin.alter_partition_reassignments(dict.fromkeys(found))
    text = (
        f"the move of {counted(len(found), 'partition')} is cancelled: {_named(found)}"
        if found
        else "nothing to cancel"
    )
    emit_line(session, text, {"cancelled": [f"{tp.topic}-{tp.partition}" for tp in found]})


@verb(reassign, "list")
@pass_session
def list_moves(session: CommandSession) -> None:
    """List the partitions whose records are being moved: their replicas, the new ones, and those that they leave.

    \b
    Example:
      pylog reassign list
    """
    moving = session.connect().admin.list_partition_reassignments()
    rows = [
        {**tp._asdict(), "replicas": ids(one[0]), "adding": ids(one[1]), "removing": ids(one[2])}
        for tp, one in sorted(moving.items())
    ]
    emit_rows(session, ["topic", "partition", "replicas", "adding", "removing"], rows)


def _named(partitions: Iterable[TopicPartition]) -> str:
    """The first of some partitions."""
    some = [f"{tp.topic}-{tp.partition}" for tp in sorted(partitions)]
    return ", ".join([*some[:3], *(["…"] if some[3:] else [])])


def emit_assignments(session: CommandSession, current: Assignment, proposed: Assignment) -> None:
    """Print two assignments in Kafka's JSON; as CSV, a row for each partition."""
    if session.structured:
        emit_value(session, _both(current, proposed))
    elif session.output == "csv":
        rows = [{**tp._asdict(), "current": ids(current[tp]), "proposed": ids(proposed[tp])} for tp in proposed]
        emit_rows(session, ["topic", "partition", "current", "proposed"], rows)
    else:
        echo(f"Current partition replica assignment\n{encode_reassignment(current)}\n")
        echo(f"Proposed partition reassignment configuration\n{encode_reassignment(proposed)}")


def _both(current: Assignment, proposed: Assignment) -> dict[str, object]:
    return {name: json.loads(encode_reassignment(one)) for name, one in (("current", current), ("proposed", proposed))}


def ids(brokers: Sequence[int]) -> str:
    """Brokers as Kafka's tools print them."""
    return ",".join(map(str, brokers))
