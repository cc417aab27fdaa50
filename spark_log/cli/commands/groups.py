"""`pylog group …`: members, positions and lag of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.commands.seek import check_free, seek
from spark_log.cli.common.base import Noun, confirmed, guarded, pass_session, verb
from spark_log.cli.common.completion import complete_groups
from spark_log.cli.common.output import Table, echo, emit_line, emit_parts, emit_rows
from spark_log.cli.common.session import CommandSession
from spark_log.cli.common.watch import watch_option, watch_rows
from spark_log.display.groups import group_parts, group_rows, lag_rows, lags_of_group
from spark_log.groups.group import LIVE_STATES
from spark_log.text import counted

if TYPE_CHECKING:
    pass

LAG_RATES = {"appended_per_second": "end", "consumed_per_second": "offset"}
"""Rates, with the columns that grow, of a partition or as sums."""

group_argument = click.argument("name", metavar="GROUP", shell_complete=complete_groups)


@click.group(cls=Noun)
def group() -> None:
    """List, describe, seek and delete consumer groups."""


@verb(group, "list")
@click.option(
    "--state", "states", metavar="STATE[,STATE…]", help=f"List groups in these states only: {', '.join(LIVE_STATES)}."
)
@watch_option
@pass_session
def list_groups(session: CommandSession, states: str | None, watch: bool) -> None:
    """List groups with their state and their lag.

    A lag is shown in records, in stored bytes, and as the age of the oldest record that the group has not read.  A
    group that has committed nothing has none.  -o
    wide adds topics, partitions, the generation, and the member of a group that has only one.

    \b
    Example:
      pylog group list --state Stable,PreparingRebalance
    """
    wanted = _states(states)
    journal = session.journal()

    def read() -> list[dict[str, Any]]:
        return group_rows(journal, wanted)

    def show(rows: list[dict[str, Any]], rates: Sequence[str] = tuple(LAG_RATES)) -> None:
        columns = ["group", "state", "members", "lag", "lag_bytes", "lag_ms", *rates]
        emit_rows(session, columns, rows, wide=["topics", "partitions", "generation", "member"])

    if watch:
        watch_rows(session, "groups", read, show, keys=["group"], rates=LAG_RATES)
    else:
        show(read(), ())


def _states(text: str | None) -> tuple[str, ...]:
    """Names of states, case-insensitive.  Raises a usage error."""
    if text is None:
        return LIVE_STATES
    by_name = {state.lower(): state for state in LIVE_STATES}
    given = [name.strip().lower() for name in text.split(",")]
    for name in given:
        if name not in by_name:
            raise click.BadParameter(
                f"{name!r} is not a state; expected {', '.join(LIVE_STATES)}", param_hint="'--state'"
            )
    return tuple(by_name[name] for name in given)


@verb(group)
@group_argument
@click.option("--export", is_flag=True, help="Print the committed offsets in the form of `group seek --from-file`.")
@pass_session
def describe(session: CommandSession, name: str, export: bool) -> None:
    """Show a group's state, its members, its committed offsets, and how far it is behind.

    Records that were trimmed before the group read them are not lag: they are counted as trimmed.  A group that is
    rebalancing, PreparingRebalance or CompletingRebalance, is shown as such if its coordinator answers.  A member is
    shown with its client id and its host, and with its process if it owns the whole group.  -o wide adds the names and
    the static ids of members, the start of each partition, the time of the commit and its metadata.

    \b
    Example:
      pylog group describe billing
      pylog group describe billing --export > offsets.csv
    """
    from spark_log.client.admin.group_listing import describe_groups

    journal = session.journal()
    if export:
        journal.refresh()
        for lag in lags_of_group(journal, name):
            echo(f"{lag.tp.topic},{lag.tp.partition},{lag.position.offset}")
        return
    found = describe_groups(journal, [name])[name]
    fields, members, rows = group_parts(journal, found)
    if not session.structured:
        members = [{**row, "partitions": _named(row["partitions"])} for row in members]
    columns = ["topic", "partition", "offset", "end", "lag", "lag_bytes", "lag_ms", "trimmed", "member"]
    parts = {
        "members": Table(
            ["member", "kind", "client_id", "host", "process", "leader", "partitions"],
            members,
            wide=["owner", "instance"],
        ),
        "offsets": Table(columns, rows, wide=["start", "committed", "metadata"]),
    }
    emit_parts(session, fields, parts)


def _named(topics: Mapping[str, Sequence[int]] | None) -> str:
    if topics is None:
        return "all"
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items()) or "none"


@verb(group)
@group_argument
@watch_option
@pass_session
def lag(session: CommandSession, name: str, watch: bool) -> None:
    """Show how far a group is behind: records, stored bytes, and the age of the oldest record that it has not read.

    \b
    Example:
      pylog group lag billing --watch
    """
    journal = session.journal()
    journal.refresh()
    if not watch:
        _show_lag(session, lag_rows(journal, name))
        return

    def read() -> list[dict[str, Any]]:
        journal.poll()
        return lag_rows(journal, name)

    def show(rows: list[dict[str, Any]]) -> None:
        _show_lag(session, rows, list(LAG_RATES))

    watch_rows(session, f"group {name}", read, show, keys=["topic", "partition"], rates=LAG_RATES)


def _sum(values: Iterable[float | None]) -> float | None:
    """None if there are values and all of them are unknown, as rates are at first."""
    given = list(values)
    known = [value for value in given if value is not None]
    return None if given and not known else sum(known)


def _show_lag(session: CommandSession, rows: list[dict[str, Any]], rates: Sequence[str] = ()) -> None:
    if not session.structured and session.output != "csv":
        sums = {name: _sum(row[name] for row in rows) for name in ("lag", "lag_bytes", "trimmed", *rates)}
        rows = [*rows, {"topic": "total", **sums, "lag_ms": max((row["lag_ms"] for row in rows), default=0)}]
    emit_rows(session, ["topic", "partition", "offset", "end", "lag", "lag_bytes", "lag_ms", "trimmed", *rates], rows)


group.add_command(seek)


@verb(group, "remove-members")
@group_argument
@guarded
@pass_session
def remove_members(session: CommandSession, name: str, dry_run: bool, yes: bool) -> None:
    """Remove all members from a group, for example if one of them hangs.

    Their next commit is rejected.  Members that share the group through a coordinator may join it again.

    \b
    Example:
      pylog group remove-members billing --yes
    """
    from spark_log.client.admin.lag import standings

    log = session.connect()
    members = [member.member_id for member in log.admin.describe_consumer_groups([name])[name].members]
    if not members:
        next(standings(log.journal.state, name), None)  # raises GroupIdNotFound with the nearest name
        emit_line(session, f"group {name} has no members", {"group": name, "removed": []})
    elif confirmed(f"remove {counted(len(members), 'member')} from group {name}", dry_run=dry_run, yes=yes):
        log.admin.remove_members_from_consumer_group(name)
        emit_line(
            session, f"{counted(len(members), 'member')} removed from group {name}", {"group": name, "removed": members}
        )


@verb(group)
@group_argument
@guarded
@pass_session
def delete(session: CommandSession, name: str, dry_run: bool, yes: bool) -> None:
    """Delete a group and its committed offsets.

    \b
    Example:
      pylog group delete billing --yes
    """
    from spark_log.client.admin.lag import standings

    log = session.connect()
    positions = list(standings(log.journal.refresh(), name))
    check_free(log, name)
    if confirmed(f"delete group {name} with {counted(len(positions), 'position')}", dry_run=dry_run, yes=yes):
        log.admin.delete_consumer_groups([name])
        emit_line(session, f"group {name} deleted", {"group": name})
