"""`pylog group …`: where consumer groups stand."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.base import POSITION, Failed, Session, confirmed, guarded, pass_session, verb
from spark_log.cli.output import age_text, emit_fields, emit_json, emit_line, emit_rows, size_text
from spark_log.cli.topics import partitions_named
from spark_log.groups.group import LIVE_STATES
from spark_log.positions import Position, format_timestamp_ms
from spark_log.words import counted

if TYPE_CHECKING:
    from spark_log.client.groups import GroupDescription, MemberDescription
    from spark_log.client.lag import PartitionLag
    from spark_log.client.log import Log
    from spark_log.journal.journal import Journal
    from spark_log.metadata.state import State
    from spark_log.model import TopicPartition

WATCH_SECONDS = 2
FOR_PEOPLE = {"lag_bytes": "bytes", "lag_ms": "age"}


@click.group()
def group() -> None:
    """List, describe, seek and delete consumer groups."""


@verb(group, "list")
@click.option(
    "--state", "states", metavar="STATE[,STATE…]", help=f"Only those in these states: {', '.join(LIVE_STATES)}."
)
@pass_session
def list_groups(session: Session, states: str | None) -> None:
    """List groups, with what they have not read yet: records, stored bytes, and how old the oldest record of it is.

    \b
    Example:
      pylog group list --state Stable,PreparingRebalance
    """
    from spark_log.client.groups import describe_groups
    from spark_log.client.lag import lags_of

    wanted = _states(states)
    journal = session.connect().journal
    found = {name: one for name, one in describe_groups(journal).items() if one.state in wanted}
    lags = lags_of(journal, [name for name in found if name in journal.state.groups])
    rows = [_listed(one, lags.get(name, [])) for name, one in found.items()]
    columns = [
        "group",
        "state",
        "topics",
        "partitions",
        "lag",
        "lag_bytes",
        "lag_ms",
        "generation",
        "members",
        "member",
    ]
    _emit(session, columns, rows)


def _states(text: str | None) -> tuple[str, ...]:
    """Names of states, in any case.  Raises a usage error."""
    if text is None:
        return LIVE_STATES
    by_name = {state.lower(): state for state in LIVE_STATES}
    given = [name.strip().lower() for name in text.split(",")]
    for name in given:
        if name not in by_name:
            raise click.BadParameter(
                f"{name!r} is no state; there are {', '.join(LIVE_STATES)}", param_hint="'--state'"
            )
    return tuple(by_name[name] for name in given)


def _listed(group: GroupDescription, lags: Sequence[PartitionLag]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "topics": len({lag.tp.topic for lag in lags}),
        "partitions": len(lags),
        **_total(lags),
        "generation": group.generation,
        "members": len(group.members),
        "member": _holder(group),
    }


def _holder(group: GroupDescription) -> str | None:
    """Who has a group for itself: a consumer, or a Spark query."""
    alone = [member for member in group.members if member.assignment is None]
    return (alone[0].owner or alone[0].member_id) if alone else None


def _lags(journal: Journal, name: str) -> list[PartitionLag]:
    from spark_log.client.lag import lags_of

    return lags_of(journal, [name])[name]


def _row(lag: PartitionLag) -> dict[str, Any]:
    return {
        **lag.tp._asdict(),
        "offset": lag.position.offset,
        "start": lag.start,
        "end": lag.end,
        "lag": lag.records,
        "lag_bytes": lag.bytes,
        "lag_ms": lag.ms,
        "trimmed": lag.trimmed,
        "committed": format_timestamp_ms(lag.position.time),
        "metadata": lag.position.metadata or None,
    }


def _total(lags: Sequence[PartitionLag]) -> dict[str, Any]:
    return {
        "lag": sum(lag.records for lag in lags),
        "lag_bytes": sum(lag.bytes for lag in lags),
        "lag_ms": max((lag.ms for lag in lags), default=0),
    }


def _emit(session: Session, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Rows with lags: numbers for programs; sizes and ages for people, under shorter names."""
    if session.json:
        emit_rows(session, columns, rows)
        return
    shown = [{**row, "bytes": size_text(row["lag_bytes"]), "age": age_text(row["lag_ms"])} for row in rows]
    emit_rows(session, [FOR_PEOPLE.get(column, column) for column in columns], shown)


@verb(group)
@click.argument("name", metavar="GROUP")
@pass_session
def describe(session: Session, name: str) -> None:
    """Show what a group is doing, who has it, its committed offsets, and what it has not read yet.

    Records that were trimmed away before the group read them are no lag; they are counted as trimmed.  A group that is
    rebalancing, PreparingRebalance or CompletingRebalance, is shown as such if its coordinator answers.

    \b
    Example:
      pylog group describe billing
    """
    from spark_log.client.groups import describe_groups

    journal = session.connect().journal
    found = describe_groups(journal, [name])[name]
    lags = [] if name not in journal.state.groups and found.members else _lags(journal, name)
    seen = journal.state.groups[name].seen if name in journal.state.groups else 0
    fields = {
        "group": name,
        "state": found.state,
        "generation": found.generation,
        "strategy": found.protocol or None,
        "seen": format_timestamp_ms(seen) if seen else None,
    }
    members = [_member_row(member, found.leader) for member in found.members]
    rows = [{**_row(lag), "member": _owner_of(found, lag.tp)} for lag in lags]
    if session.json:
        emit_json({**fields, "members": members, "offsets": rows})
        return
    emit_fields(session, fields)
    if members:
        click.echo()
        emit_rows(session, list(members[0]), [{**row, "partitions": _named(row["partitions"])} for row in members])
    if rows:
        click.echo()
        columns = ["topic", "partition", "offset", "start", "end", "lag", "lag_bytes", "lag_ms", "trimmed"]
        _emit(session, [*columns, "committed", "metadata", "member"], rows)


def _member_row(member: MemberDescription, leader: str) -> dict[str, Any]:
    """partitions:  by topic; None: all of the group's."""
    topics: dict[str, list[int]] | None = None
    if member.assignment is not None:
        topics = {}
        for tp in member.assignment:
            topics.setdefault(tp.topic, []).append(tp.partition)
    return {
        "member": member.member_id,
        "kind": member.kind,
        "owner": member.owner or None,
        "instance": member.group_instance_id,
        "leader": member.member_id == leader,
        "partitions": topics,
    }


def _named(topics: Mapping[str, Sequence[int]] | None) -> str:
    if topics is None:
        return "all"
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items()) or "none"


def _owner_of(group: GroupDescription, tp: TopicPartition) -> str | None:
    """The member that reads a partition."""
    for member in group.members:
        if member.assignment is None or tp in member.assignment:
            return member.member_id
    return None


@verb(group)
@click.argument("name", metavar="GROUP")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until interrupted.")
@pass_session
def lag(session: Session, name: str, watch: bool) -> None:
    """Show what a group has not read yet: records, stored bytes, and how old the oldest record of it is.

    \b
    Example:
      pylog group lag billing --watch
    """
    journal = session.connect().journal
    journal.refresh()
    _show_lag(session, journal, name)
    try:
        while watch:
            time.sleep(WATCH_SECONDS)
            journal.poll()
            _show_lag(session, journal, name)
    except KeyboardInterrupt:
        return


def _show_lag(session: Session, journal: Journal, name: str) -> None:
    lags = _lags(journal, name)
    rows = [_row(lag) for lag in lags]
    if not session.json:
        rows.append({"topic": "total", **_total(lags), "trimmed": sum(lag.trimmed for lag in lags)})
    _emit(session, ["topic", "partition", "offset", "end", "lag", "lag_bytes", "lag_ms", "trimmed"], rows)


@verb(group)
@click.argument("name", metavar="GROUP")
@click.option("--to", "position", type=POSITION, help="Where the group is to go on.")
@click.option("--to-group", "other", metavar="GROUP", help="Where this other group stands.")
@click.option("--topic", "where", metavar="TOPIC[:PARTITION]", help="Only there; otherwise wherever the group stands.")
@guarded
@pass_session
def seek(
    session: Session,
    name: str,
    position: Position | None,
    other: str | None,
    where: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move a group to a position, or to where another group stands.  No consumer of the group should be running.

    A Spark stream goes by its checkpoint: it starts at its group's position only with a new one.

    \b
    Example:
      pylog group seek billing --to now-1h --topic orders
    """
    from spark_log.model import OffsetAndMetadata

    if (position is None) == (other is None):
        raise click.UsageError("give either --to POSITION or --to-group GROUP")
    log = session.connect()
    state = log.journal.refresh()
    _check_free(log, name)
    if where is None and other is None and name not in state.groups:
        raise Failed(
            f"group {name!r} stands nowhere yet: say where it is to begin, with --topic TOPIC[:PARTITION]{_near(state, name)}"
        )
    tps = _wanted(log, state, where, name if other is None else other)
    new = _resolve(log, tps, position) if position is not None else _standing(state, str(other), tps)
    rows = _moves(state, name, new)
    if dry_run:
        emit_rows(session, ["topic", "partition", "from", "to"], rows)
    elif confirmed(f"move group {name} in {counted(len(rows), 'partition')}", dry_run=False, yes=yes):
        log.admin.alter_consumer_group_offsets(name, {tp: OffsetAndMetadata(offset) for tp, offset in new.items()})
        emit_rows(session, ["topic", "partition", "from", "to"], rows)


def _check_free(log: Log, name: str) -> None:
    """Raises GroupInUse before anybody is asked, also in a dry run."""
    from spark_log.metadata.decide import check_group_free

    check_group_free(log.journal.state, name, log.journal.context.clock.now_ms())


def _near(state: State, name: str) -> str:
    near = get_close_matches(name, list(state.groups), n=1)
    return f"; or did you mean {near[0]}?" if near else ""


def _wanted(log: Log, state: State, where: str | None, name: str) -> list[TopicPartition]:
    """Partitions that are named, or those in which a group stands."""
    from spark_log.client.lag import standings

    if where is None:
        return [at.tp for at in standings(state, name)]
    topic, colon, number = where.partition(":")
    if colon and not number.isdigit():
        raise click.BadParameter(f"{where!r} has not the form TOPIC or TOPIC:PARTITION", param_hint="'--topic'")
    return partitions_named(log, topic, int(number) if colon else None)


def _resolve(log: Log, tps: list[TopicPartition], position: Position) -> dict[TopicPartition, int]:
    from spark_log.client.resolve import resolve

    return resolve(log.journal, dict.fromkeys(tps, position))


def _standing(state: State, other: str, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    from spark_log.client.lag import standings

    found = {at.tp: at.position.offset for at in standings(state, other)}
    return {tp: found[tp] for tp in tps if tp in found}


def _moves(state: State, name: str, new: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    from spark_log.metadata.state import Group

    old = state.groups.get(name, Group()).offsets
    rows = []
    for tp, offset in new.items():
        position = old.get((state.names[tp.topic], tp.partition))
        rows.append({**tp._asdict(), "from": None if position is None else position.offset, "to": offset})
    return rows


@verb(group)
@click.argument("name", metavar="GROUP")
@guarded
@pass_session
def delete(session: Session, name: str, dry_run: bool, yes: bool) -> None:
    """Forget a group and its committed offsets.

    \b
    Example:
      pylog group delete billing --yes
    """
    from spark_log.client.lag import standings

    log = session.connect()
    positions = list(standings(log.journal.refresh(), name))
    _check_free(log, name)
    if confirmed(f"delete group {name} with {counted(len(positions), 'position')}", dry_run=dry_run, yes=yes):
        log.admin.delete_consumer_groups([name])
        emit_line(session, f"group {name} deleted", {"group": name})
