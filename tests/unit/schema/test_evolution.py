"""Which schema may follow another one."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given

from spark_log.errors import IncompatibleSchema
from spark_log.schema.arrow_types import all_nullable, storable
from spark_log.schema.evolution import check_evolution
from spark_log.schema.topic_schema import as_schema
from tests.unit.schema.strategies import SCHEMAS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a INT", "b STRING, a INT"),
        ("a INT", "a BIGINT"),
        ("a INT", "a DOUBLE"),
        ("a FLOAT", "a DOUBLE"),
        ("a SMALLINT", "a DECIMAL(7,2)"),
        ("a DECIMAL(5,2)", "a DECIMAL(8,4)"),
        ("a INT NOT NULL", "a INT"),
        ("a STRUCT<b: INT NOT NULL>", "a STRUCT<b: BIGINT, c: STRING>"),
        ("a ARRAY<INT>, m MAP<STRING, FLOAT>", "a ARRAY<BIGINT>, m MAP<STRING, DOUBLE>"),
    ],
)
def test_additions_and_wider_numbers_are_accepted(old: str, new: str) -> None:
    check_evolution("orders", as_schema(old), as_schema(new))


# Promise: tasks/typed.md#change-a-schema
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a BIGINT", "a INT", "column 'a' is BIGINT and cannot become INT: only numbers change"),
        ("a BIGINT", "a DOUBLE", "column 'a' is BIGINT and cannot become DOUBLE"),
        ("a INT", "a STRING", "Add a column of another name, or write to a new topic"),
        ("a INT", "a DECIMAL(11,2)", "cannot become DECIMAL(11,2)"),
        ("a DECIMAL(8,2)", "a DECIMAL(9,4)", "is DECIMAL(8,2) and cannot become DECIMAL(9,4)"),
        ("a INT, b INT", "a INT", "column 'b' (INT) is missing in the new schema"),
        ("a INT", "A INT", "column 'a' (INT) is spelt 'A'"),
        ("a INT", "a INT, b INT NOT NULL", "column 'b' is new and INT NOT NULL"),
        ("a INT", "a INT NOT NULL", "column 'a' is INT and cannot become INT NOT NULL"),
        ("a STRUCT<b: INT>", "a STRUCT<b: SMALLINT>", "column 'a.b' is INT and cannot become SMALLINT"),
        ("a ARRAY<INT>", "a ARRAY<DATE>", "column 'a.element' is INT and cannot become DATE"),
        ("a MAP<STRING, INT>", "a STRUCT<b: INT>", "is MAP<STRING, INT> and cannot become STRUCT<b: INT>"),
        ("a TIMESTAMP", "a TIMESTAMP_NTZ", "is TIMESTAMP and cannot become TIMESTAMP_NTZ"),
    ],
)
def test_all_else_is_refused_with_the_column_both_types_and_the_way_round(old: str, new: str, message: str) -> None:
    with pytest.raises(IncompatibleSchema, match=re.escape(message)):
        check_evolution("orders", as_schema(old), as_schema(new))


@given(SCHEMAS)
def test_each_schema_may_follow_itself_and_become_nullable(schema: pa.Schema) -> None:
    old = storable(schema)
    check_evolution("orders", old, old)
    check_evolution("orders", old, pa.schema([pa.field(field.name, all_nullable(field.type)) for field in old]))
