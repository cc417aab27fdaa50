"""Schemas of every supported type, as Hypothesis draws them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from spark_log.schema.arrow_types import ELEMENT, map_of
from spark_log.schema.struct_json import PRIMITIVES

PRECISIONS = st.integers(1, 38)
DECIMALS = PRECISIONS.flatmap(lambda digits: st.builds(pa.decimal128, st.just(digits), st.integers(0, digits)))
LEAVES = st.sampled_from(sorted(PRIMITIVES.values(), key=str)) | DECIMALS
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)


def fields(types: st.SearchStrategy[pa.DataType], most: int = 4) -> st.SearchStrategy[list[pa.Field]]:
    names = st.lists(NAMES, min_size=1, max_size=most, unique_by=str.casefold)
    return names.flatmap(
        lambda chosen: st.tuples(*(st.builds(pa.field, st.just(name), types, st.booleans()) for name in chosen)).map(
            list
        )
    )


def _nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    lists = st.builds(lambda inner, null: pa.list_(pa.field(ELEMENT, inner, null)), types, st.booleans())
    maps = st.builds(map_of, st.sampled_from([pa.string(), pa.int32()]), types, st.booleans())
    return lists | maps | fields(types).map(pa.struct)


TYPES = st.recursive(LEAVES, _nested, max_leaves=6)
SCHEMAS = fields(TYPES).map(pa.schema)
