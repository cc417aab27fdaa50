"""`pylog plan`, and what shows the inside of a log: segment, metadata, cluster, config, producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spark_log.cli.base import POSITION, Session, Verb, config_option, pass_session, verb
from spark_log.cli.output import emit_fields, emit_json, emit_line, emit_rows
from spark_log.cli.topics import alter_configs
from spark_log.positions import Position, format_timestamp_ms

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.client.plan import SliceRead
    from spark_log.segment.index import Index

INDEX_GUESS = 1 << 16
"""Bytes of an object's end that are read in the hope that its index is in them."""


# ------------------------------------------------------------------------------------------------------------------- plan


class Touched(NamedTuple):
    """What a read takes."""

    segments: int
    batches: int
    bytes: int


@click.command(cls=Verb)
@click.argument("topic")
@click.option("--start", type=POSITION, default="earliest", show_default=True, help="Where the read begins.")
@click.option("--end", type=POSITION, default="latest", show_default=True, help="Where it ends.")
@pass_session
def plan(session: Session, topic: str, start: Position, end: Position) -> None:
    """Show the segments, batches and bytes that a read will touch, of the total that is there.

    \b
    Example:
      pylog plan orders --start @2026-01-31T10:00Z --end @2026-01-31T11:00Z
    """
    log = session.connect()
    reads = log.plan(topic, start=start, end=end)
    rows = []
    for number in range(log.journal.state.topics[log.journal.state.names[topic]].partitions):
        part = [read for read in reads if read.partition == number]
        total = _whole(log.plan(topic, [number]))
        rows.append(_plan_row(number, part, _touched(log, part), total))
    if session.json:
        emit_json({"topic": topic, "partitions": rows, "total": _sums(rows)})
        return
    shown = [*rows, {"partition": "total", **_sums(rows)}]
    emit_rows(session, ["partition", "records", "segments", "batches", "bytes"], [_of_total(row) for row in shown])


def _plan_row(number: int, part: Sequence[SliceRead], touched: Touched, total: Touched) -> dict[str, Any]:
    return {
        "partition": number,
        "records": sum(read.end - read.start for read in part),
        **touched._asdict(),
        **{f"total_{name}": value for name, value in total._asdict().items()},
    }


def _whole(reads: Sequence[SliceRead]) -> Touched:
    pieces = [read.slice for read in reads]
    return Touched(
        len({piece.object for piece in pieces}),
        sum(piece.batches for piece in pieces),
        sum(piece.length for piece in pieces),
    )


def _touched(log: Log, reads: Sequence[SliceRead]) -> Touched:
    """As `client.fetch` reads: small runs whole, of others the batches that overlap."""
    from spark_log.client.fetch import WHOLE_BYTES_MAX, load_index
    from spark_log.segment.reader import Place, find_batches

    batches = size = 0
    for read in reads:
        piece = read.slice
        whole = (read.start, read.end) == (piece.start, piece.end)
        if whole or piece.batches == 1 or piece.length <= WHOLE_BYTES_MAX:
            batches, size = batches + piece.batches, size + piece.length
            continue
        place = Place(piece.object, read.topic, read.topic_id, read.partition)
        wanted = (read.start - piece.start, read.end - piece.start)
        refs = find_batches(load_index(log.journal.store, read), piece, wanted, place=place)
        batches, size = batches + len(refs), size + sum(ref.length for ref in refs)
    return Touched(len({read.slice.object for read in reads}), batches, size)


def _sums(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in rows[0] if name != "partition"}


def _of_total(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: f"{row[name]} of {row[f'total_{name}']}" for name in Touched._fields}
    return {"partition": str(row["partition"]), "records": row["records"], **shown}


# ---------------------------------------------------------------------------------------------------------------- segment


@click.group()
def segment() -> None:
    """Look into objects."""


@verb(segment)
@click.argument("name", metavar="OBJECT")
@pass_session
def dump(session: Session, name: str) -> None:
    """Show the record batches of an object, named relative to the log's root.

    \b
    Example:
      pylog segment dump data/0000000000000007/5f2c9a1b3d4e6f70.seg
    """
    log = session.connect()
    index = _load_index(log, name)
    topics = {topic_id: found.name for topic_id, found in log.journal.state.topics.items()}
    rows = [_batch_row(row, topics) for row in index.table.to_pylist()]
    fields = {
        "object": name,
        "size": index.size,
        "index_position": index.index_position,
        "batches": len(rows),
        "records": sum(row["rows"] for row in rows),
    }
    if session.json:
        emit_json({**fields, "index": rows})
        return
    emit_fields(session, fields)
    if rows:
        click.echo()
        emit_rows(session, list(rows[0]), rows)


def _load_index(log: Log, name: str) -> Index:
    from spark_log.errors import ObjectNotFound
    from spark_log.segment.index import TAIL, TAIL_BYTES, parse_index

    store = log.journal.store
    size = store.size(name)
    if size is None:
        raise ObjectNotFound(f"object {name} is not there", key=name)
    data = store.get(name, max(0, size - INDEX_GUESS), size)
    if len(data) >= TAIL_BYTES and TAIL.unpack(data[-TAIL_BYTES:])[0] + TAIL_BYTES > len(data):
        data = store.get(name, 0, size)
    return parse_index(data, name=name, object_size=size)


def _batch_row(row: dict[str, Any], topics: dict[str, str]) -> dict[str, Any]:
    return {
        "topic": topics.get(row["topic_id"], row["topic_id"]),
        "partition": row["partition"],
        "first": row["first"],
        "last": row["last"],
        "rows": row["rows"],
        "position": row["position"],
        "length": row["length"],
        "min_time": format_timestamp_ms(row["min_us"] // 1000),
        "max_time": format_timestamp_ms(row["max_us"] // 1000),
        "crc32c": f"{row['crc32c']:08x}",
    }


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


# ---------------------------------------------------------------------------------------------------------------- cluster


@click.group()
def cluster() -> None:
    """The log as a whole."""


@verb(cluster)
@pass_session
def info(session: Session) -> None:
    """Show what the log is and what it holds.

    \b
    Example:
      pylog cluster info
    """
    from spark_log.journal.protocol import CHECKPOINTS, checkpoint_version

    log = session.connect()
    state = log.journal.refresh()
    fields = {
        "url": log.url,
        "cluster_id": log.cluster_id,
        "version": state.version,
        "checkpoint": checkpoint_version(max(log.journal.store.list(CHECKPOINTS), default="")),
        "fence": state.fence,
        "topics": len(state.names),
        "partitions": len(state.partitions),
        "records": sum(part.end - part.start for part in state.partitions.values()),
        "objects": len(state.objects),
        "bytes": sum(row.size for row in state.objects.values()),
        "groups": len(state.groups),
        "producers": len(state.producers),
    }
    emit_fields(session, fields)


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
