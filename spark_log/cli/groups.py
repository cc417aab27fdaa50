"""`pylog group …`: where consumer groups stand."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.base import POSITION, Session, confirmed, guarded, pass_session, verb
from spark_log.cli.output import emit_line, emit_rows
from spark_log.cli.topics import partitions_named
from spark_log.positions import Position, format_timestamp_ms

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.metadata.state import Group, State
    from spark_log.model import TopicPartition

WATCH_SECONDS = 2


@click.group()
def group() -> None:
    """List, describe, seek and delete consumer groups."""


@verb(group, "list")
@pass_session
def list_groups(session: Session) -> None:
    """List groups, with the records that they have not read yet.

    \b
    Example:
      pylog group list
    """
    state = session.connect().journal.refresh()
    rows = []
    for name in sorted(state.groups):
        positions, found = list(_positions(state, name)), state.groups[name]
        rows.append(
            {
                "group": name,
                "topics": len({row["topic"] for row in positions}),
                "partitions": len(positions),
                "lag": sum(row["lag"] for row in positions),
                "generation": found.generation,
                "member": found.session.owner if found.session else found.member or None,
            }
        )
    emit_rows(session, ["group", "topics", "partitions", "lag", "generation", "member"], rows)


def _group(state: State, name: str) -> Group:
    """Raises GroupIdNotFound, with the nearest names."""
    from difflib import get_close_matches

    from spark_log.errors import GroupIdNotFound

    if name not in state.groups:
        near = get_close_matches(name, list(state.groups), n=1)
        hint = f"; did you mean {near[0]}?" if near else "; `pylog group list` shows those that have"
        raise GroupIdNotFound(f"group {name!r} has committed nothing{hint}")
    return state.groups[name]


def _positions(state: State, name: str) -> Iterator[dict[str, Any]]:
    found = _group(state, name).offsets
    for topic, topic_id in sorted(state.names.items()):
        for number, part in state.topic_partitions(topic_id):
            position = found.get((topic_id, number))
            if position is not None:
                yield {
                    "topic": topic,
                    "partition": number,
                    "offset": position.offset,
                    "start": part.start,
                    "end": part.end,
                    "lag": max(0, part.end - max(position.offset, part.start)),
                    "committed": format_timestamp_ms(position.time),
                    "metadata": position.metadata or None,
                }


@verb(group)
@click.argument("name", metavar="GROUP")
@pass_session
def describe(session: Session, name: str) -> None:
    """Show a group's committed offsets.

    \b
    Example:
      pylog group describe billing
    """
    rows = list(_positions(session.connect().journal.refresh(), name))
    emit_rows(session, ["topic", "partition", "offset", "start", "end", "lag", "committed", "metadata"], rows)


@verb(group)
@click.argument("name", metavar="GROUP")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until interrupted.")
@pass_session
def lag(session: Session, name: str, watch: bool) -> None:
    """Show how many records a group has not read yet.

    \b
    Example:
      pylog group lag billing --watch
    """
    log = session.connect()
    _show_lag(session, log.journal.refresh(), name)
    try:
        while watch:
            time.sleep(WATCH_SECONDS)
            _show_lag(session, log.journal.poll(), name)
    except KeyboardInterrupt:
        return


def _show_lag(session: Session, state: State, name: str) -> None:
    rows = list(_positions(state, name))
    if not session.json:
        rows.append({"topic": "total", "lag": sum(row["lag"] for row in rows)})
    emit_rows(session, ["topic", "partition", "offset", "end", "lag"], rows)


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
    tps = _wanted(log, state, where, name if other is None else other)
    new = _resolve(log, tps, position) if position is not None else _standing(state, str(other), tps)
    rows = _moves(state, name, new)
    if dry_run:
        emit_rows(session, ["topic", "partition", "from", "to"], rows)
    elif confirmed(f"move group {name} in {len(rows)} partitions", dry_run=False, yes=yes):
        log.admin.alter_consumer_group_offsets(name, {tp: OffsetAndMetadata(offset) for tp, offset in new.items()})
        emit_rows(session, ["topic", "partition", "from", "to"], rows)


def _wanted(log: Log, state: State, where: str | None, name: str) -> list[TopicPartition]:
    """Partitions that are named, or those in which a group stands."""
    from spark_log.model import TopicPartition

    if where is None:
        return [TopicPartition(row["topic"], row["partition"]) for row in _positions(state, name)]
    topic, colon, number = where.partition(":")
    if colon and not number.isdigit():
        raise click.BadParameter(f"{where!r} has not the form TOPIC or TOPIC:PARTITION", param_hint="'--topic'")
    return partitions_named(log, topic, int(number) if colon else None)


def _resolve(log: Log, tps: list[TopicPartition], position: Position) -> dict[TopicPartition, int]:
    from spark_log.client.resolve import resolve

    return resolve(log.journal, dict.fromkeys(tps, position))


def _standing(state: State, other: str, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    found: dict[tuple[str, int], int] = {
        (row["topic"], row["partition"]): row["offset"] for row in _positions(state, other)
    }
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
    log = session.connect()
    found = _group(log.journal.refresh(), name)
    if confirmed(f"delete group {name} with {len(found.offsets)} positions", dry_run=dry_run, yes=yes):
        log.admin.delete_consumer_groups([name])
        emit_line(session, f"group {name} deleted", {"group": name})
