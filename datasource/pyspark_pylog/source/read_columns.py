"""Converts fetched records to Spark's columns, exactly: Spark 4.2 compares order, types and nullability."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from pyspark_pylog.options.parse import ReadOptions
from spark_log.client.reader.fetch import Fetched
from spark_log.errors import InvalidRequest
from spark_log.schema.ddl import sql_type
from spark_log.schema.struct_json import from_json, to_json
from spark_log.segment.arrays.numpy_arrays import array_of, repeated
from spark_log.segment.schema import HEADERS

TYPES = {
    "key": ("binary", pa.binary()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC")),
    "timestampType": ("int", pa.int32()),
    "headers": ("array<struct<key:string,value:binary>>", HEADERS),
}
TEXTS = ("key", "value")
"""Columns that a frame can have as text, too: `STRING`."""
FORMATS: Mapping[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "string": ("STRING", pa.types.is_string),
    "struct": ("a struct", pa.types.is_struct),
    "json": ("bytes", lambda type_: not pa.types.is_struct(type_)),
}
"""The type that a format gives, and a test of the columns in a user's schema; the other formats take any."""
NO_DATA: Mapping[str, str] = MappingProxyType({})
"""No data columns."""
STORED = ("key", "value", "timestamp", "headers")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of the batches that a read yields for a Spark schema, which may be a projection by the user.

    A column that is not a column of a record is a data column (`data_columns.py`).  So is `value` if it is a struct.
    Raises InvalidRequest for a column of a record with another type, for a type that no column can have, and for a
    nested type that does not allow nulls inside.
    """
    return pa.schema([_arrow_field(field) for field in schema.fields])


def record_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema for a topic that has no data columns."""
    found = arrow_schema(schema)
    for field in found:
        if field.name not in TYPES or pa.types.is_struct(field.type):
            raise InvalidRequest(f"schema: there is no column {field.name!r}; the columns are {', '.join(TYPES)}")
    return found


def frame_schema(schema: StructType, options: ReadOptions) -> pa.Schema:
    """The Arrow schema of the batches of a read.

    Raises as `arrow_schema`, and InvalidRequest if the schema contradicts the options `key.format` and `value.format`.
    """
    found = record_schema(schema) if options.of_progress else arrow_schema(schema)
    _check_formats(found, options)
    return found


def _check_formats(schema: pa.Schema, options: ReadOptions) -> None:
    for name, asked in (("key", options.key_format), ("value", options.value_format)):
        if asked not in FORMATS or name not in schema.names:
            continue
        type_, (gives, fits) = schema.field(name).type, FORMATS[asked]
        if not fits(type_):
            raise InvalidRequest(
                f"schema: column {name!r} is {sql_type(type_)}, and {name}.format={asked} gives {gives}: change one of the two"
            )


def _arrow_field(field: StructField) -> pa.Field:
    spark_type, arrow_type = TYPES.get(field.name, ("", None))
    is_data = arrow_type is None or (field.name == "value" and isinstance(field.dataType, StructType))
    if field.name in TEXTS and isinstance(field.dataType, StringType):
        spark_type, arrow_type = field.dataType.simpleString(), pa.string()
    if is_data:
        arrow_type = _data_type(field)
        spark_type = field.dataType.simpleString()
    if field.dataType.simpleString() != spark_type:
        raise InvalidRequest(
            f"schema: column {field.name!r} is {spark_type}{' or string' if field.name in TEXTS else ''}, not "
            f"{field.dataType.simpleString()}; cast it after load"
        )
    if (found := _spelled(field.dataType)) != spark_type:
        raise InvalidRequest(
            f"schema: column {field.name!r} is {found}, which excludes nulls inside it; expected {field.name} {spark_type}: "
            "leave out NOT NULL and containsNull=False within the type, and filter after load"
        )
    return pa.field(field.name, arrow_type, field.nullable)


def _data_type(field: StructField) -> pa.DataType:
    """Raises InvalidSchema, a kind of InvalidRequest, for a type that no column of a topic has."""
    return from_json(StructType([field]).json()).field(0).type


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of columns, all nullable."""
    return StructType.fromJson(json.loads(to_json(pa.schema([field.with_nullable(True) for field in schema]))))


def _spelled(type_: DataType) -> str:
    """A type as text, including whether nulls are possible inside it."""
    if isinstance(type_, ArrayType):
        return f"array<{_spelled(type_.elementType)}{'' if type_.containsNull else ' NOT NULL'}>"
    if isinstance(type_, MapType):
        value = f"{_spelled(type_.valueType)}{'' if type_.valueContainsNull else ' NOT NULL'}"
        return f"map<{_spelled(type_.keyType)},{value}>"
    if isinstance(type_, StructType):
        return f"struct<{','.join(map(_member, type_.fields))}>"
    return type_.simpleString()


def _member(field: StructField) -> str:
    return f"{field.name}:{_spelled(field.dataType)}{'' if field.nullable else ' NOT NULL'}"


def stored_columns(schema: pa.Schema, data: Mapping[str, str] = NO_DATA) -> Sequence[str]:
    """The columns that are stored in objects and must be decoded, by their names there.

    data:  the names of data columns in objects.
    """
    return [data.get(name, name) for name in schema.names if name in STORED or name in data]


def to_batch(part: Fetched, schema: pa.Schema, data: Mapping[str, str] = NO_DATA) -> pa.RecordBatch:
    """Fetched records with the columns of `schema`.  Raises InvalidRequest for nulls that a user's schema excludes.

    data:  the names of data columns in objects.
    """
    rows, read = part.records.num_rows, part.read
    columns = []
    for name in schema.names:
        match name:
            case "topic":
                columns.append(repeated(read.topic, rows))
            case "partition":
                columns.append(repeated(read.partition, rows))
            case "offset":
                columns.append(array_of(part.offset_array(), pa.int64()))
            case "timestampType":
                columns.append(repeated(int(read.slice.time_kind != 0), rows))
            case "headers":
                columns.append(_or_null(part.records.column(name)))
            case "key" | "value" if pa.types.is_string(schema.field(name).type):
                # Without a check, as Spark's cast: invalid UTF-8 stays as it is.
                columns.append(part.records.column(name).view(pa.string()))
            case _:
                columns.append(part.records.column(data.get(name, name)))
        if columns[-1].null_count and not schema.field(name).nullable:
            raise InvalidRequest(
                f"schema: column {name!r} is NOT NULL there, and null between offsets {part.offsets[0]} and {part.offsets[-1]} "
                f"of {read.topic}-{read.partition}: leave NOT NULL out, and filter after load"
            )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _or_null(headers: pa.Array) -> pa.Array:
    """Headers, null if there are none: Kafka's connector returns null for an empty list."""
    import pyarrow.compute as pc  # 40 ms, and most readers do not need it

    return pc.if_else(pc.greater(pc.list_value_length(headers), 0), headers, None)
