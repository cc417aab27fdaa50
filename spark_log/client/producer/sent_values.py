"""Values of single records for topics with a schema: dicts, which are packed when they are sent."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_log.client.producer.topic_rules import TopicSpec
from spark_log.errors import InvalidRecord, SparkLogError
from spark_log.segment.arrays.python_values import array_or_errors
from spark_log.segment.record_columns import Rows
from spark_log.segment.typed_rows import sifted
from spark_log.text import shown, type_of


class SentDict(bytes):
    """A dict, packed: what the caller changes in it later is not sent.  Never leaves the process."""

    __slots__ = ()


def packed(value: Mapping[str, Any]) -> SentDict:
    """The dict of a record.  Raises InvalidRecord for a value that no column can have."""
    try:
        return SentDict(pickle.dumps(dict(value), pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        raise InvalidRecord(f"value is a dict that cannot be sent: {shown(error, str)}") from error


def sent_value(value: object, spec: TopicSpec) -> bytes:
    """A value as it waits to be written.  Raises InvalidRecord for a dict for a topic without a schema."""
    if not isinstance(value, Mapping):
        return to_bytes("value", value)
    if spec.schema is None:
        raise not_typed(spec)
    return packed(value)


def to_bytes(what: str, given: object) -> bytes:
    """Bytes of a key or value.  Raises InvalidRecord."""
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"{what} cannot be encoded as UTF-8: {error}") from error
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise InvalidRecord(f"{what} is {type_of(given)}: expected bytes or str, or set {what}_serializer")


def not_typed(spec: TopicSpec) -> InvalidRecord:
    """The error for a dict that is sent to a topic without a schema: one dict does not show a whole schema."""
    topic = spec.name
    if spec.auto_schema:
        return InvalidRecord(
            f"value is a dict, and topic {topic!r} has no schema yet: with schema.auto, a frame sets it and a single record "
            f"does not; begin with log.append({topic!r}, rows) of rows that have values in all columns, or give it a schema "
            f"with `pylog topic alter {topic} --schema …`"
        )
    return InvalidRecord(
        f"value is a dict, and topic {topic!r} has no schema: send bytes, as json.dumps(value).encode() makes them, or "
        f"give it a schema with `pylog topic alter {topic} --schema …`"
    )


def typed_rows(given: Rows, values: Sequence[bytes | None], spec: TopicSpec) -> tuple[Rows, dict[int, SparkLogError]]:
    """Single records as rows of a topic with a schema, and errors by row for the records that do not fit.

    A row with an error has no value.

    given:   the other columns of the records; its values are ignored.
    values:  dicts, packed; None for a tombstone.
    """
    assert spec.schema is not None, "the topic has a schema"
    errors: dict[int, SparkLogError] = {}
    dicts = [_unpacked(row, value, spec.name, errors) for row, value in enumerate(values)]
    array, wrong = array_or_errors("value", dicts, pa.struct(list(spec.schema.columns)))
    errors |= wrong
    columns = {name: given.records.column(name) for name in given.records.schema.names if name != "value"}
    rows, faults = sifted(pa.record_batch(columns | {"value": array}), spec.schema, now_us=0, topic=spec.name)
    for fault in faults:
        errors |= {row: InvalidRecord(fault.reason) for row in np.flatnonzero(fault.rows).tolist() if row not in errors}
    return Rows(rows.records, given.partitions), errors


def _unpacked(row: int, value: bytes | None, topic: str, errors: dict[int, SparkLogError]) -> Any:
    if value is None:
        return None
    if type(value) is SentDict:
        try:
            return pickle.loads(value)
        except Exception as error:  # noqa: BLE001  values of a dict may be anything
            errors[row] = InvalidRecord(f"value is a dict that cannot be sent: {shown(error, str)}")
            return None
    errors[row] = InvalidRecord(
        f"topic {topic!r} has a schema, and value is {type_of(value)}: send a dict of its columns"
    )
    return None
