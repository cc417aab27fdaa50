"""`pylog segment`: contents of segments and slice indexes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_log.cli.common.base import Noun, pass_session, verb
from spark_log.cli.common.output import Table, emit_parts, emit_rows
from spark_log.cli.common.session import CommandSession
from spark_log.positions import format_timestamp_ms

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_log.client.log import Log
    from spark_log.metadata.records import Piece
    from spark_log.metadata.state import State
    from spark_log.segment.batch_index import Index
    from spark_log.segment.reader import Place

INDEX_GUESS = 1 << 16
"""Bytes that are read from an object's end, because its index is probably in them."""
RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")


@click.group(cls=Noun)
def segment() -> None:
    """Show the contents of objects."""


@verb(segment)
@click.argument("name", metavar="OBJECT")
@click.option("--records", is_flag=True, help="Show the records of a segment; typed values are JSON.")
@pass_session
def dump(session: CommandSession, name: str, records: bool) -> None:
    """Show the record batches of a segment, or the slices of a slice index.

    OBJECT is a name relative to the log's root.  Slices that the log does not refer to have no topic, and their
    offsets count from 0.  Those of batches and records count from the first record of their run.

    \b
    Example:
      pylog segment dump data/0000000000000007/5f2c9a1b3d4e6f70.seg
      pylog segment dump data/0000000000000007/5f2c9a1b3d4e6f70.seg --records
      pylog segment dump data/0000000000000007/91d0c5a2e77b4f13.idx
    """
    from spark_log.store.object_names import INDEX

    log = session.connect()
    if records:
        if name.endswith(INDEX):
            raise click.UsageError("--records is for segments: a slice index has none")
        emit_rows(session, RECORD_COLUMNS, list(_records(log, name)))
        return
    fields, rows = _slices(log, name) if name.endswith(INDEX) else _batches(log, name)
    emit_parts(session, fields, {"index": Table(list(rows[0]) if rows else [], rows)})


def _size(log: Log, name: str) -> int:
    from spark_log.errors import ObjectNotFound

    size = log.journal.objects.size(name)
    if size is None:
        raise ObjectNotFound(f"object {name} does not exist", key=name)
    return size


def _topic(state: State, topic_id: str) -> str:
    topic = state.topics.get(topic_id)
    return topic_id if topic is None else topic.name


# ------------------------------------------------------------------------------------------------------------- segments


def _batches(log: Log, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    index = _load_index(log, name)
    versions = {number: version_in(message) for number, message in index.schemas.items()}
    rows = [_batch_row(row, log.journal.state, versions) for row in index.table.to_pylist()]
    fields = {
        "object": name,
        "size": index.size,
        "index_position": index.index_position,
        "batches": len(rows),
        "records": sum(row["rows"] for row in rows),
    }
    return fields, rows


def _load_index(log: Log, name: str) -> Index:
    from spark_log.segment.batch_index import TAIL, TAIL_BYTES, parse_index

    store, size = log.journal.objects, _size(log, name)
    data = store.get(name, max(0, size - INDEX_GUESS), size)
    if len(data) >= TAIL_BYTES and TAIL.unpack(data[-TAIL_BYTES:])[0] + TAIL_BYTES > len(data):
        data = store.get(name, 0, size)
    return parse_index(data, name=name, object_size=size)


def _records(log: Log, name: str) -> Iterator[dict[str, Any]]:
    """The records of a segment."""
    import pyarrow as pa

    from spark_log.segment.reader import Place, batches_of_topic, decode_batch

    index, state = _load_index(log, name), log.journal.state
    for topic_id in index.table.column("topic_id").unique().to_pylist():
        for partition, ref in batches_of_topic(index, topic_id):
            place = Place(name, _topic(state, topic_id), topic_id, partition)
            data = log.journal.objects.get(name, ref.position, ref.position + ref.length)
            offsets, records = decode_batch(data, ref, index, ["timestamp", "key", "value"], place=place)
            at = records.schema.get_field_index("timestamp")  # Python's times end at the years 1 and 9999
            records = records.set_column(at, "timestamp", records.column(at).view(pa.int64()))
            for offset, record in zip(offsets, records.to_pylist(), strict=True):
                yield _record_row(place, int(offset), record)


def _record_row(place: Place, offset: int, record: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": place.topic,
        "partition": place.partition,
        "offset": offset,
        "timestamp": format_timestamp_ms(record["timestamp"] // 1000),
        "key": _text(record["key"]),
        "value": _text(record["value"]),
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def version_in(message: bytes) -> int:
    """The version of the schema of a run's data columns, from its schema message; 0 for bytes."""
    import pyarrow as pa

    from spark_log.segment.schema import schema_version

    return schema_version(pa.ipc.read_schema(pa.py_buffer(message)))


def _batch_row(row: dict[str, Any], state: State, versions: Mapping[int, int]) -> dict[str, Any]:
    return {
        "topic": _topic(state, row["topic_id"]),
        "partition": row["partition"],
        "first": row["first"],
        "last": row["last"],
        "rows": row["rows"],
        "position": row["position"],
        "length": row["length"],
        "min_time": format_timestamp_ms(row["min_us"] // 1000),
        "max_time": format_timestamp_ms(row["max_us"] // 1000),
        "crc32c": f"{row['crc32c']:08x}",
        "schema": versions.get(row["schema"], 0),
    }


# -------------------------------------------------------------------------------------------------------- slice indexes


def _slices(log: Log, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from spark_log.metadata.formats.slice_index import decode_piece, pieces_in

    size, state = _size(log, name), log.journal.state
    data = log.journal.objects.get(name)
    known = _pieces_of(state, name)
    rows: list[dict[str, Any]] = []
    count = 0
    for position, length, table in pieces_in(name, data):
        topic, partition, piece = known.get(position, ("", None, None))
        found = table if piece is None else decode_piece(piece, data[position : position + length])
        rows += _slice_rows(topic, partition, found)
        count += 1
    records = sum(row["end"] - row["start"] for row in rows)
    return {"object": name, "size": size, "pieces": count, "slices": len(rows), "records": records}, rows


def _pieces_of(state: State, name: str) -> dict[int, tuple[str, int, Piece]]:
    """The pieces of an index that the log refers to, by position, with topic and partition."""
    from spark_log.metadata.records import Piece

    return {
        entry.position: (_topic(state, topic_id), number, entry)
        for (topic_id, number), part in state.partitions.items()
        for entry in part.entries
        if isinstance(entry, Piece) and entry.object == name
    }


def _slice_rows(topic: str, partition: int | None, table: pa.Table) -> Iterator[dict[str, Any]]:
    from spark_log.metadata.formats.slice_index import slices_of

    for found in slices_of(table):
        yield {
            "topic": topic,
            "partition": partition,
            "start": found.start,
            "end": found.end,
            "object": found.object,
            "position": found.position,
            "length": found.length,
            "batches": found.batches,
            "min_time": format_timestamp_ms(found.min_us // 1000),
            "max_time": format_timestamp_ms(found.max_us // 1000),
            "crc32c": f"{found.crc:08x}",
        }
