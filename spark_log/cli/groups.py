"""`pylog group …`: where consumer groups stand."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.base import POSITION, Failed, Session, confirmed, guarded, pass_session, verb
from spark_log.cli.output import age_text, emit_line, emit_rows, size_text
from spark_log.cli.topics import partitions_named
from spark_log.positions import Position, format_timestamp_ms

if TYPE_CHECKING:
    from spark_log.client.lag import PartitionLag
    from spark_log.client.log import Log
    from spark_log.journal.journal import Journal
    from spark_log.metadata.state import Group, State
    from spark_log.model import TopicPartition

WATCH_SECONDS = 2
FOR_PEOPLE = {"lag_bytes": "bytes", "lag_ms": "age"}


@click.group()
def group() -> None:
    """List, describe, seek and delete consumer groups."""


@verb(group, "list")
@pass_session
def list_groups(session: Session) -> None:
    """List groups, with what they have not read yet: records, stored bytes, and how old the oldest record of it is.

    \b
    Example:
      pylog group list
    """
    from spark_log.client.lag import lags_of

    journal = session.connect().journal
    state = journal.refresh()
    rows = [
        {
            "group": name,
            "topics": len({lag.tp.topic for lag in lags}),
            "partitions": len(lags),
            **_total(lags),
            "generation": state.groups[name].generation,
            "member": _member(state.groups[name]),
        }
        for name, lags in lags_of(journal, sorted(state.groups)).items()
    ]
    _emit(session, ["group", "topics", "partitions", "lag", "lag_bytes", "lag_ms", "generation", "member"], rows)


def _member(group: Group) -> str | None:
    """Who holds a group: a consumer, or a Spark query."""
    return group.session.owner if group.session else group.member or None


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
    """Show a group's committed offsets, and what it has not read yet.

    Records that were trimmed away before the group read them are no lag; they are counted as trimmed.

    \b
    Example:
      pylog group describe billing
    """
    journal = session.connect().journal
    journal.refresh()
    rows = [_row(lag) for lag in _lags(journal, name)]
    columns = ["topic", "partition", "offset", "start", "end", "lag", "lag_bytes", "lag_ms", "trimmed"]
    _emit(session, [*columns, "committed", "metadata"], rows)


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
    elif confirmed(f"move group {name} in {_counted(rows, 'partition')}", dry_run=False, yes=yes):
        log.admin.alter_consumer_group_offsets(name, {tp: OffsetAndMetadata(offset) for tp, offset in new.items()})
        emit_rows(session, ["topic", "partition", "from", "to"], rows)


def _check_free(log: Log, name: str) -> None:
    """Raises GroupInUse before anybody is asked, also in a dry run."""
    from spark_log.metadata.decide import check_group_free

    check_group_free(log.journal.state, name, log.journal.context.clock.now_ms())


def _near(state: State, name: str) -> str:
    near = get_close_matches(name, list(state.groups), n=1)
    return f"; or did you mean {near[0]}?" if near else ""


def _counted(things: Sequence[object], what: str) -> str:
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"


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
    if confirmed(f"delete group {name} with {_counted(positions, 'position')}", dry_run=dry_run, yes=yes):
        log.admin.delete_consumer_groups([name])
        emit_line(session, f"group {name} deleted", {"group": name})
