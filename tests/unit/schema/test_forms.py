"""A schema as Arrow, as DDL and as the JSON of a StructType."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given

from spark_log.errors import InvalidSchema
from spark_log.schema.arrow_types import all_nullable, storable
from spark_log.schema.ddl import from_ddl, to_ddl
from spark_log.schema.struct_json import from_json, to_json
from spark_log.schema.topic_schema import TopicSchema, as_schema, shown_columns
from tests.unit.schema.strategies import SCHEMAS


@given(SCHEMAS)
def test_json_keeps_a_schema(schema: pa.Schema) -> None:
    assert from_json(to_json(storable(schema))).equals(storable(schema))


@given(SCHEMAS)
def test_ddl_keeps_all_but_required_elements(schema: pa.Schema) -> None:
    again = from_ddl(to_ddl(storable(schema)))
    assert again.names == schema.names
    assert [field.nullable for field in again] == [field.nullable for field in schema]
    assert [all_nullable(field.type) for field in again] == [all_nullable(field.type) for field in storable(schema)]


@given(SCHEMAS)
def test_the_canonical_form_is_its_own(schema: pa.Schema) -> None:
    assert storable(storable(schema)).equals(storable(schema))


# Promise: tasks/typed.md#schemas
def test_all_forms_give_the_same() -> None:
    ddl = "id BIGINT NOT NULL, tags ARRAY<STRING>, at TIMESTAMP, sum decimal(10, 2) COMMENT 'in EUR'"
    schema = as_schema(ddl)
    text = to_json(schema)
    spark = {"name": "id", "type": "long", "nullable": False, "metadata": {}}
    assert json.loads(text)["fields"][0] == spark
    assert (
        as_schema(text) == as_schema(json.loads(text)) == as_schema(schema) == as_schema(TopicSchema(1, text)) == schema
    )
    assert as_schema("struct<id: bigint not null, tags: array<string>, at: timestamp, sum: decimal(10,2)>") == schema


def test_a_struct_type_of_spark_is_taken() -> None:
    from pyspark.sql.types import LongType, StructField, StructType, VarcharType

    found = as_schema(StructType([StructField("id", LongType(), False), StructField("name", VarcharType(10))]))
    assert found == as_schema("id BIGINT NOT NULL, name STRING")


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        (pa.uint16(), pa.int32()),
        (pa.large_string(), pa.string()),
        (pa.binary(4), pa.binary()),
        (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.list_(pa.int8(), 3), pa.list_(pa.field("element", pa.int8()))),
        (pa.date64(), pa.date32()),
    ],
)
def test_types_that_convert_without_loss(given_: pa.DataType, kept: pa.DataType) -> None:
    assert storable(pa.schema([("x", given_)])).field("x").type == kept


# Promise: tasks/typed.md#schemas
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([]), "needs one column"),
        (
            pa.schema([("x", pa.duration("us"))]),
            "column 'x' has type duration[us], which a topic cannot have: use an int",
        ),
        (pa.schema([("x", pa.month_day_nano_interval())]), "use an integer with the microseconds, or two timestamps"),
        (pa.schema([("x", pa.time64("us"))]), "microseconds of the day"),
        (pa.schema([("x", pa.uint64())]), r"use int64, or decimal\(20, 0\)"),
        (pa.schema([("x", pa.null())]), "use the type that the values will have"),
        (pa.schema([("x", pa.decimal256(40, 2))]), "1 to 38 digits"),
        (pa.schema([("Id", pa.int8()), ("id", pa.int8())]), "'Id' and 'id' have the same name"),
        (pa.schema([("a", pa.struct([("x", pa.int8()), ("X", pa.int8())]))]), "in 'a' have the same name"),
        (pa.schema([("Value.timestamp", pa.int8())]), "column 'Value.timestamp' begins with 'value.'"),
        ("", "found the end, expected the name of a column"),
        ("id", "at character 3: found the end, expected a type"),
        ("id BIGINT NOT", "expected NULL after NOT"),
        ("id BIGNT", "at character 4: found 'BIGNT', expected a type"),
        ("id INT name STRING", "at character 8: found 'name', expected a comma or the end"),
        ("a ARRAY<INT", "expected '>'"),
        ("a DECIMAL(39,1)", r"decimal\(39,1\)"),
        ("a INTERVAL YEAR TO MONTH", "has type interval YEAR TO MONTH"),
        ("a VARIANT", "use a string of JSON, or a struct"),
        ("a ARRAY<VOID>", "has type void"),
        ("{", "does not parse"),
        ('{"type":"array"}', "is not that of a StructType"),
        ('{"type":"struct","fields":[{"name":"a","type":"variant"}]}', "column 'a' has type variant"),
        ('{"type":"struct","fields":[{"name":"a","type":{"type":"udt"}}]}', "column 'a' has type udt"),
        ('{"type":"struct","fields":[{"type":"long"}]}', "has no 'name'"),
        (7, "cannot be taken from an int"),
        (f"a {'ARRAY<' * 60}INT{'>' * 60}", "60 deep at most"),
        (f"a {'STRUCT<b: ' * 2000}INT{'>' * 2000}", "60 deep at most"),
    ],
)
def test_bad_schemas_are_refused(schema: object, message: str) -> None:
    with pytest.raises(InvalidSchema, match=message.replace("[us]", r"\[us\]")):
        as_schema(schema)


def test_columns_with_the_name_of_a_record_column_are_shown_with_a_prefix() -> None:
    schema = TopicSchema(1, to_json(as_schema("Timestamp DATE, amount INT NOT NULL")))
    assert shown_columns(schema) == pa.schema([("value.Timestamp", pa.date32()), ("amount", pa.int32())])
