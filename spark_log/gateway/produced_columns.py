"""JSON that Kafka's clients send to topics with a schema, as columns.  Pure.

The values of all batches of a topic are read together.  If one of them does not fit, they are read again in portions of
a batch, and no further in it when there are enough errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from spark_log.client.producer.topic_rules import Fault, TopicSpec
from spark_log.errors import InvalidRecord
from spark_log.schema.topic_schema import TopicSchema
from spark_log.segment.json_columns import columns_of_json
from spark_log.segment.json_values import json_or_errors
from spark_log.segment.record_columns import Rows
from spark_log.segment.typed_rows import sifted

PORTION = 1_000
"""Values that are read together in a batch with errors."""
CELLS_MAX = 8 << 20
"""Values in the columns of a batch: an empty record has one in each column, and a null in a list of objects, too."""
CELL_BYTES = 8
"""Memory for a value counts as so many of them at least."""
FRAMED = b"\0"
"""Confluent's serializers begin with it, and with the id of a schema."""


def cells_of(schema: TopicSchema, records: int, body: bytes | memoryview) -> int:
    """The most values that the records of a batch have in all columns, given their bytes."""
    kind = pa.struct(list(schema.columns))
    cells, item = records * _width(kind), _item_width(kind)
    if item > 1:
        data = bytes(body)
        cells += (data.count(b"{") + data.count(b"null")) * item
    return cells


@lru_cache(maxsize=256)
def _width(kind: pa.DataType) -> int:
    """How many columns a value has; a list or a map is one."""
    return sum(_width(field.type) for field in kind) if pa.types.is_struct(kind) else 1


@lru_cache(maxsize=256)
def _item_width(kind: pa.DataType) -> int:
    """How many columns an item of a list or map has, of the widest one in a type; 0: there is none."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    own = 0 if pa.types.is_struct(kind) else max(map(_width, inner), default=0)
    return max([own, *map(_item_width, inner)])


def typed_rows(given: Rows, spec: TopicSpec, counts: Sequence[int], wrong_max: int) -> tuple[Rows, Fault | None]:
    """Records with JSON as rows of a topic with a schema; and which of them do not fit, and why.

    counts:     the numbers of records of the batches.
    wrong_max:  after so many errors, the rest of a batch is not read.
    """
    assert spec.schema is not None, "the topic has a schema"
    texts, kind = given.records.column("value"), pa.struct(list(spec.schema.columns))
    values, errors = columns_of_json(texts, kind), dict[int, str]()
    if values is None:
        values = pa.concat_arrays(_portions(texts, kind, counts, wrong_max, errors))
    columns = {name: given.records.column(name) for name in given.records.schema.names if name != "value"}
    rows, faults = sifted(pa.record_batch(columns | {"value": values}), spec.schema, now_us=0, topic=spec.name)
    if not errors and not faults:
        return Rows(rows.records, given.partitions), None
    wrong = np.logical_or.reduce([fault.rows for fault in faults] or [np.zeros(len(texts), np.bool_)])
    wrong[list(errors)] = True

    def reason(row: int) -> str:
        return errors.get(row) or next(fault.reason for fault in faults if fault.rows[row])

    return Rows(rows.records, given.partitions), Fault(InvalidRecord, wrong, reason)


def _portions(
    texts: pa.Array, kind: pa.StructType, counts: Sequence[int], wrong_max: int, errors: dict[int, str]
) -> Iterator[pa.Array]:
    """The structs of texts; null for those that do not fit, and for what is not read.  errors: get the reasons."""
    start = 0
    for end in np.cumsum(counts).tolist():
        known = len(errors)
        while start < end and len(errors) < known + wrong_max:
            part = texts.slice(start, min(PORTION, end - start))
            found, reasons = json_or_errors(part, kind, strict=True)
            errors |= {start + row: _said(part[row], reason) for row, reason in reasons.items()}
            yield found
            start += len(part)
        yield pa.nulls(end - start, kind)
        start = end


def _said(text: pa.Scalar, reason: str) -> str:
    if text.as_py().startswith(FRAMED):
        return (
            "the value begins with byte 0, as Confluent's serializers write it, and this topic has a schema: send JSON "
            "without the id of a schema, for example with another serializer"
        )
    return f"the value {reason}"
