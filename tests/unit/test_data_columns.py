"""The columns of a Spark frame over topics with schemas: of a load, of a user's schema, and what is refused."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from pyspark.sql.types import DayTimeIntervalType, StructType
from pyspark_pylog.options.parse import ReadOptions, read_options
from pyspark_pylog.source.data_columns import DataColumns, Versions, check_text, columns_of_load, data_columns
from pyspark_pylog.source.read_columns import arrow_schema, frame_schema, record_schema, spark_schema

from spark_log.errors import InvalidRequest
from spark_log.schema.ddl import from_ddl
from spark_log.schema.struct_json import to_json
from spark_log.schema.topic_schema import TopicSchema, as_schema
from tests.spark.builders import asked

V1 = "id BIGINT NOT NULL, amount INT, timestamp TIMESTAMP_NTZ"
V2 = "id BIGINT NOT NULL, amount BIGINT, timestamp TIMESTAMP_NTZ, Tags ARRAY<STRING>, place STRUCT<lat: DOUBLE>"


def versions(**schemas: list[str]) -> Versions:
    """By topic, its schemas in DDL, the newest first."""
    return {
        topic: [TopicSchema(len(ddls) - number, to_json(as_schema(ddl))) for number, ddl in enumerate(ddls)]
        for topic, ddls in schemas.items()
    }


ORDERS = versions(orders=[V2, V1])
TWO = versions(orders=[V2, V1], returns=["amount BIGINT, id BIGINT, reason STRING"])


def options(**given: str) -> ReadOptions:
    return read_options(
        asked("/log", "orders", **{name.replace("_", "."): value for name, value in given.items()}), streaming=False
    )


def loaded(found: Versions, **given: str) -> list[str]:
    return columns_of_load(found, options(**given)).names


def frame(ddl: str) -> StructType:
    """Spark's schema, without a session to parse it."""
    return StructType.fromJson(json.loads(to_json(from_ddl(ddl))))


def wanted(ddl: str, found: Versions = ORDERS, **given: str) -> DataColumns | None:
    """The data columns of a frame with the user's schema."""
    asked = options(**given)
    columns = frame_schema(frame(ddl), asked)
    check_text(found, columns, asked)
    return data_columns(found, columns, asked)


# ------------------------------------------------------------------------------------------------------------- of a load


# Promise: spark-typed.md#read-data-columns
def test_data_columns_take_the_place_of_the_value() -> None:
    """One that has the name of a column of the record is called value.NAME."""
    assert loaded(ORDERS) == [
        *("key", "id", "amount", "value.timestamp", "Tags", "place"),
        *("topic", "partition", "offset", "timestamp", "timestampType"),
    ]
    assert loaded(ORDERS, includeHeaders="true")[-1] == "headers"


# Promise: spark-typed.md#read-data-columns
def test_the_value_is_a_struct_or_bytes_as_asked() -> None:
    """Both keep the columns of a record without a schema."""
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    found = columns_of_load(ORDERS, options(value_format="struct"))
    assert found.names == names
    assert [field.name for field in found.field("value").type] == ["id", "amount", "timestamp", "Tags", "place"]
    assert columns_of_load(ORDERS, options(value_format="json")).field("value").type == pa.binary()
    assert loaded(versions(orders=[])) == loaded({}) == names


def test_keys_and_values_are_text_as_asked() -> None:
    """A schema may say so, too; with `value.format=json` also for a topic with a schema."""
    found = columns_of_load({}, options(key_format="string", value_format="string"))
    assert (found.field("key").type, found.field("value").type) == (pa.string(), pa.string())
    assert columns_of_load(ORDERS, options(key_format="string")).field("key").type == pa.string()
    assert wanted("key STRING, value STRING", {}) is None
    assert wanted("value STRING", ORDERS, value_format="json") is None


def test_values_of_a_topic_with_a_schema_are_not_text() -> None:
    """The error says how to read them."""
    with pytest.raises(InvalidRequest, match=r"topic 'orders' has a schema.*set value\.format=json and cast value"):
        columns_of_load(ORDERS, options(value_format="string"))


def test_the_option_columns_chooses_them_in_its_order() -> None:
    """Also those of a record; case does not matter."""
    assert loaded(ORDERS, columns="TAGS, offset,id") == ["Tags", "offset", "id"]
    assert loaded(versions(orders=[]), columns="value,headers") == ["value", "headers"]


# Promise: spark-typed.md#read-data-columns
def test_topics_of_different_schemas_need_a_choice() -> None:
    """As JSON, by the columns that they have in common, or each alone; never by one of the schemas."""
    with pytest.raises(InvalidRequest, match="'orders' and 'returns' have different schemas: column 'value.timestamp'"):
        loaded(TWO)
    assert loaded(TWO, value_format="json")[1] == "value"
    assert loaded(TWO, columns="id,amount,topic") == ["id", "amount", "topic"]
    with pytest.raises(InvalidRequest, match="there is no column 'reason'; the columns are key, id, amount, topic"):
        loaded(TWO, columns="reason")
    with pytest.raises(InvalidRequest, match="'orders' has a schema and topic 'plain' has none: read both as bytes"):
        loaded({**ORDERS, **versions(plain=[])})
    assert loaded(versions(a=["x INT, y INT"], b=["y INT, x INT NOT NULL"]))[1:3] == ["x", "y"]


def test_every_type_comes_back_from_spark_as_it_is() -> None:
    """The columns of a load are the user's schema of the reader that Spark creates for it."""
    ddl = (
        "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(20,4), i STRING, j BINARY, k DATE, "
        "l TIMESTAMP, m TIMESTAMP_NTZ, n ARRAY<STRUCT<x: INT>>, o MAP<STRING, ARRAY<INT>>, p STRUCT<q: MAP<INT, DATE>>"
    )
    found = columns_of_load(versions(orders=[ddl]), options())
    again = arrow_schema(spark_schema(found))
    assert again == found
    data = data_columns(versions(orders=[ddl]), again, options())
    assert data is not None and data.value.schema.columns == as_schema(ddl)


# -------------------------------------------------------------------------------------------------- of a user's schema


# Promise: spark-typed.md#read-data-columns
def test_a_users_schema_names_what_is_decoded() -> None:
    """By the names of the topic's schema, in any case; and no data column at all for the columns of a record."""
    data = wanted("AMOUNT BIGINT, offset BIGINT, `value.timestamp` TIMESTAMP_NTZ")
    assert data is not None
    assert data.stored == {"AMOUNT": "value.amount", "value.timestamp": "value.timestamp"}
    assert data.value.schema.columns.names == ["amount", "timestamp"]
    assert wanted("value BINARY, key BINARY") is None
    assert wanted("offset BIGINT") is None


def test_a_struct_may_have_some_of_the_columns() -> None:
    """Then only those are decoded."""
    data = wanted("value STRUCT<amount: BIGINT>, key BINARY", value_parse="json")
    assert data is not None and data.stored == {}
    assert (data.value.as_struct, data.value.parse_json) == (True, True)
    assert data.value.schema.columns.names == ["amount"]


def test_a_condition_parses_values_for_a_frame_without_data_columns() -> None:
    """Records from before the schema are chosen by it, too, if they may be parsed."""
    data = wanted("key BINARY", where="amount > 1", value_parse="json")
    assert data is not None and data.value is not None and data.rows is not None
    assert (data.stored, data.value.parse_json, data.rows.columns) == ({}, True, ("value.amount",))


def test_a_type_of_an_earlier_version_is_kept() -> None:
    """That of a frame, or of a query, that was loaded before the topic's schema evolved."""
    data = wanted("amount INT")
    assert data is not None and data.value.schema.columns.field("amount").type == pa.int32()


REFUSED = [
    ("price DOUBLE", ORDERS, {}, "no column 'price' in topic 'orders'; its data columns are id, amount"),
    ("amount STRING", ORDERS, {}, "column 'amount' of topic 'orders' is BIGINT, not STRING"),
    ("reason STRING", TWO, {}, "no column 'reason' in topic 'orders'"),
    ("price DOUBLE", versions(orders=[]), {}, "there is no column 'price'; the columns are key, value"),
    ("timestamp TIMESTAMP_NTZ", ORDERS, {}, "column 'timestamp' is timestamp, not timestamp_ntz"),
    ("place STRUCT<lat: DOUBLE NOT NULL>", ORDERS, {}, "excludes nulls inside it"),
    ("value STRUCT<id: BIGINT>, amount BIGINT", ORDERS, {}, "'amount' cannot be beside it"),
    (
        "value BINARY",
        ORDERS,
        {"value_format": "struct"},
        "column 'value' is BINARY, and value.format=struct gives a struct",
    ),
    ("value BINARY", {}, {"value_format": "string"}, "'value' is BINARY, and value.format=string gives STRING"),
    ("key BINARY", ORDERS, {"key_format": "string"}, "'key' is BINARY, and key.format=string gives STRING"),
    ("value STRING", ORDERS, {}, "topic 'orders' has a schema, so its values are columns, not text"),
    ("value INT", {}, {}, "column 'value' is binary or string, not int"),
    ("id BIGINT", ORDERS, {"columns": "amount"}, "option columns: the schema has other columns (id)"),
    ("Amount BIGINT", versions(a=["amount BIGINT"], b=["Amount BIGINT"]), {}, "is spelt 'Amount' and 'amount'"),
]


@pytest.mark.parametrize(("ddl", "found", "given", "expected"), REFUSED, ids=[one[3][:40] for one in REFUSED])
def test_what_cannot_be_read_is_refused(ddl: str, found: Versions, given: dict[str, str], expected: str) -> None:
    """The message names the column, and both types."""
    with pytest.raises(InvalidRequest, match=re.escape(expected)):
        wanted(ddl, found, **given)


def test_a_type_that_no_topic_has_is_refused() -> None:
    """By its name."""
    with pytest.raises(
        InvalidRequest, match="column 'i' has type interval day, which a topic cannot have: use an integer"
    ):
        arrow_schema(StructType().add("i", DayTimeIntervalType(0, 0)))


def test_the_progress_of_groups_has_no_data_columns() -> None:
    """It has its own reader."""
    with pytest.raises(InvalidRequest, match="there is no column 'price'; the columns are key, value"):
        record_schema(frame("price DOUBLE"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"columns": "id,,offset"}, "option columns: 'id,,offset' has an empty name"),
        ({"columns": "id,ID"}, "option columns: 'id' is in it twice"),
        ({"value_format": "avro"}, "option value.format: 'avro' is not one of columns, struct, json, string"),
        ({"key_format": "avro"}, "option key.format: 'avro' is not one of binary, string"),
        ({"value_parse": "csv"}, "option value.parse: 'csv' is not one of json"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], expected: str) -> None:
    """As all others."""
    with pytest.raises(InvalidRequest, match=re.escape(expected)):
        options(**given)
