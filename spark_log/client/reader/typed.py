"""How the values of a topic are read: as data columns, as one struct, or as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.plan import SliceRead
from spark_log.conditions import Condition
from spark_log.errors import InvalidRequest
from spark_log.metadata.state import State
from spark_log.metadata.topics.schemas import schema_of, typed_from
from spark_log.schema.arrow_types import all_nullable
from spark_log.segment.column_conditions import bound
from spark_log.segment.schema import data_names, schema_version
from spark_log.segment.value_read import ValueRead, no_records, with_values

COLUMNS, STRUCT, JSON = FORMATS = ("columns", "struct", "json")


def value_read(state: State, topic: str, value_format: str | None, value_parse: str | None) -> ValueRead | None:
    """How to read the values of a topic; None: as bytes.  As bytes, values of a topic with a schema are JSON.

    value_format:  None: as columns, if the topic has a schema.
    value_parse:   "json": parse bytes that are older than the topic's schema as JSON.
    Raises InvalidRequest for an invalid format, or for one that needs a schema if the topic has none.
    """
    check_formats(value_format, value_parse)
    topic_id = state.names.get(topic)
    schema = None if topic_id is None else schema_of(state, topic_id)
    if value_format == JSON:
        return None
    if schema is not None:
        return ValueRead(schema, value_format == STRUCT, value_parse == JSON)
    if value_format is not None and topic_id is not None:
        raise InvalidRequest(
            f"topic {topic!r} has no schema, so its values are bytes and cannot be read as {value_format}: leave "
            f"value_format out, or give it a schema with `pylog topic alter {topic} --schema …`"
        )
    return None


def bound_to_topic(state: State, topic: str, where: Condition) -> Condition:
    """A condition with its columns looked up in the newest schema of a topic.  Raises InvalidRequest."""
    topic_id = state.names.get(topic)
    schema = None if topic_id is None else schema_of(state, topic_id)
    columns = None if schema is None else {field.name: all_nullable(field.type) for field in schema.columns}
    return bound(where, columns, topic)


def fetched_as(
    state: State, topic: str, value: ValueRead | None, where: Condition, value_parse: str | None
) -> ValueRead | None:
    """How values are fetched: also by columns, if a condition needs them and the topic is read as JSON."""
    if value is not None or where.rows is None or not data_names(where.rows.columns):
        return value
    schema = schema_of(state, state.names[topic])
    assert schema is not None, "a condition has columns of a schema"
    return ValueRead(schema, parse_json=value_parse == JSON)


def common_read(
    state: State, topics: Iterable[str], value_format: str | None, value_parse: str | None
) -> ValueRead | None:
    """How values of several topics are read into one table; None: as bytes.

    Raises InvalidRequest for topics with different schemas, unless they are read as JSON.
    """
    names = sorted(topics)
    if value_format == JSON or not names:
        return None
    reads = {name: value_read(state, name, value_format, value_parse) for name in names}
    first = reads[names[0]]
    other = next((name for name in names if _columns(reads[name]) != _columns(first)), None)
    if other is not None:
        raise InvalidRequest(
            f"topics {names[0]!r} and {other!r} have different schemas, and their values cannot be columns of one table: "
            "set value_format='json', or read them apart"
        )
    return first


def _columns(value: ValueRead | None) -> pa.Schema | None:
    return None if value is None else value.schema.columns


def in_form(part: Fetched, columns: Sequence[str], value: ValueRead | None = None) -> Fetched:
    """Records that were fetched as they are stored, with these columns."""
    records = part.records
    if tuple(records.schema.names) == tuple(columns) and value is None:
        return part
    if not records.num_rows:
        return part._replace(records=no_records(columns, value))
    read = part.read
    where = f"{read.topic}-{read.partition} from offset {int(part.offsets[0])} on"
    return part._replace(records=with_values(records, columns, schema_version(records.schema), value, where))


def check_formats(value_format: str | None, value_parse: str | None) -> None:
    """Raises InvalidRequest for a value that does not exist."""
    if value_format not in (None, *FORMATS):
        raise InvalidRequest(f"invalid value {value_format!r} for value_format: expected one of {', '.join(FORMATS)}")
    if value_parse not in (None, JSON):
        raise InvalidRequest(f"invalid value {value_parse!r} for value_parse: expected json")


def check_typed(state: State, reads: Sequence[SliceRead], value: ValueRead | None) -> None:
    """Raises InvalidRequest for reads of bytes from before the topic had a schema, if they are not parsed."""
    if value is None or value.parse_json:
        return
    for read in reads:
        first = typed_from(state, read.topic_id, read.partition)
        if first is not None and read.start < first:
            raise InvalidRequest(
                f"the records of {read.topic}-{read.partition} before offset {first} are bytes from before the topic had a "
                "schema: read them as JSON with value.parse=json (value_parse='json' in Python), as bytes with "
                f"value.format=json (value_format='json'), or start at offset {first}"
            )
