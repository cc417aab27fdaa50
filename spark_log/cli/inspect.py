"""`pylog plan`, and what shows the inside of a log: metadata, config, producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.base import POSITION, Session, Verb, config_option, pass_session, verb
from spark_log.cli.output import emit_json, emit_line, emit_rows
from spark_log.cli.topics import alter_configs
from spark_log.positions import Position, format_timestamp_ms

if TYPE_CHECKING:
    from spark_log.client.fetch import Touched
    from spark_log.client.log import Log
    from spark_log.client.plan import SliceRead, Window


# ------------------------------------------------------------------------------------------------------------------- plan


SUMS = ("records", "segments", "batches", "bytes")
"""What is said of a read."""


@click.command(cls=Verb)
@click.argument("topic")
@click.option("--start", type=POSITION, default="earliest", show_default=True, help="Where the read begins.")
@click.option("--end", type=POSITION, default="latest", show_default=True, help="Where it ends.")
@click.option(
    "--where",
    metavar="CONDITION",
    help="As in SQL, over timestamp, offset and partition; times without a zone are UTC.",
)
@pass_session
def plan(session: Session, topic: str, start: Position, end: Position, where: str | None) -> None:
    """Show the segments, batches and bytes that a read will touch, of the total that is there.

    Batches are read whole, so some of their records may not be wanted. Bytes are those of segments, with the indexes in them
    that the read looks into; the metadata that says where they are is not counted. Tasks of Spark that share a large segment
    each look into its index, and read the batch between them twice.

    \b
    Example:
      pylog plan orders --start @2026-01-31T10:00Z --end @2026-01-31T11:00Z
      pylog plan orders --where "timestamp >= '2026-01-31 10:00' and timestamp < '2026-01-31 11:00'"
    """
    from spark_log.conditions import as_condition

    log, condition = session.connect(), as_condition(where)
    found = _touched(log, log.plan(topic, start=start, end=end, where=condition), condition.window)
    there = _touched(log, log.plan(topic), None)
    count = log.journal.state.topics[log.journal.state.names[topic]].partitions
    rows = [_plan_row(number, _of(found, number), _of(there, number)) for number in range(count)]
    total = {name: value for name, value in _plan_row(-1, found, there).items() if name != "partition"}
    if session.json:
        emit_json({"topic": topic, "partitions": rows, "total": total})
        return
    shown = [*rows, {"partition": "total", **total}]
    emit_rows(session, ["partition", *SUMS], [_of_total(row) for row in shown])


def _touched(log: Log, reads: Sequence[SliceRead], window: Window | None) -> list[tuple[SliceRead, Touched]]:
    from spark_log.client.fetch import touched

    return [(read, touched(log.journal.store, read, window)) for read in reads]


def _of(found: Sequence[tuple[SliceRead, Touched]], number: int) -> list[tuple[SliceRead, Touched]]:
    return [one for one in found if one[0].partition == number]


def _plan_row(
    number: int, found: Sequence[tuple[SliceRead, Touched]], there: Sequence[tuple[SliceRead, Touched]]
) -> dict[str, Any]:
    return {"partition": number, **_sums(found), **{f"total_{name}": value for name, value in _sums(there).items()}}


def _sums(found: Sequence[tuple[SliceRead, Touched]]) -> dict[str, int]:
    """Objects that several partitions share count once."""
    counts = [one for _, one in found]
    return {
        "records": sum(one.records for one in counts),
        "segments": len({read.slice.object for read, _ in found}),
        "batches": sum(one.batches for one in counts),
        "bytes": sum(one.bytes for one in counts),
    }


def _of_total(row: dict[str, Any]) -> dict[str, Any]:
    return {"partition": str(row["partition"]), **{name: f"{row[name]} of {row[f'total_{name}']}" for name in SUMS}}


# --------------------------------------------------------------------------------------------------------------- metadata


@click.group()
def metadata() -> None:
    """Look into the metadata log."""


@verb(metadata, "dump")
@click.option("--state", "of_state", is_flag=True, help="The state that the records come to, as JSON.")
@pass_session
def dump_metadata(session: Session, of_state: bool) -> None:
    """Show the records of the metadata log that are still there.

    With --output json, a line for each version with its records whole.

    \b
    Example:
      pylog metadata dump --output json
    """
    import msgspec

    from spark_log.journal.protocol import LOG
    from spark_log.metadata.checkpoint import state_json
    from spark_log.metadata.records import decode_batch

    log = session.connect()
    store = log.journal.store
    if of_state:
        click.echo(msgspec.json.format(state_json(log.journal.refresh()), indent=2))
        return
    rows = []
    for key in store.list(LOG):
        batch = decode_batch(store.get(key), key)
        version = int(key.removeprefix(LOG)[:20])
        if session.json:
            click.echo(msgspec.json.encode({"version": version, **msgspec.structs.asdict(batch)}))
        kinds = ", ".join(str(record.__struct_config__.tag) for record in batch.records)
        rows.append({"version": version, "time": format_timestamp_ms(batch.time), "id": batch.id, "records": kinds})
    if not session.json:
        emit_rows(session, ["version", "time", "id", "records"], rows)


# ----------------------------------------------------------------------------------------------------------------- config


@click.group()
def config() -> None:
    """Configs of the log, and of its topics."""


@verb(config, "describe")
@click.option("--topic", metavar="TOPIC", help="Of this topic, instead of the log.")
@click.option("--all", "everything", is_flag=True, help="Those that are not in force, too.")
@pass_session
def describe_config(session: Session, topic: str | None, everything: bool) -> None:
    """Show configs with their values.

    \b
    Example:
      pylog config describe --topic orders
    """
    entries = session.connect().admin.describe_configs([topic])[topic]
    rows = [
        {
            "config": name,
            "value": entry.value,
            "source": "default" if entry.is_default else "set",
            "in_force": entry.in_force,
            "meaning": entry.doc,
        }
        for name, entry in entries.items()
        if everything or entry.in_force or not entry.is_default
    ]
    emit_rows(session, ["config", "value", "source", "in_force", "meaning"], rows)


@verb(config, "alter")
@config_option
@click.option("--unset", multiple=True, metavar="KEY", help="A config that goes back to its default; may be repeated.")
@click.option("--topic", metavar="TOPIC", help="Of this topic, instead of the log.")
@pass_session
def alter_config(session: Session, configs: dict[str, str], unset: tuple[str, ...], topic: str | None) -> None:
    """Change configs.

    \b
    Example:
      pylog config alter -c gc.fence.age.ms=3600000
    """
    if not configs and not unset:
        raise click.UsageError("nothing to alter: give -c KEY=VALUE or --unset KEY")
    alter_configs(session.connect(), topic, configs, unset)
    emit_line(session, "configs altered", {"set": configs, "unset": list(unset)})


# --------------------------------------------------------------------------------------------------------------- producer


@click.group()
def producer() -> None:
    """Who has written."""


@verb(producer, "list")
@pass_session
def list_producers(session: Session) -> None:
    """List the identities under which records were committed, as long as they are remembered.

    \b
    Example:
      pylog producer list
    """
    state = session.connect().journal.refresh()
    rows = [
        {
            "producer": name,
            "kind": "plain" if found.plain else "named",
            "epoch": found.epoch,
            "sequence": found.last,
            "holder": found.holder or None,
            "version": found.version,
            "time": format_timestamp_ms(found.time),
        }
        for name, found in sorted(state.producers.items())
    ]
    emit_rows(session, ["producer", "kind", "epoch", "sequence", "holder", "version", "time"], rows)
