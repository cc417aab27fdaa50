"""Tests of a flow's function need no log."""

from __future__ import annotations

import pyarrow as pa
import pytest

import spark_log
from spark_log import NewTopic
from spark_log.errors import FunctionFailed
from spark_log.testing.flows import make_flow_test


def doubled(table: pa.Table) -> dict[str, pa.Table]:
    numbers = [int(value) for value in table["value"].to_pylist()]
    return {"doubles": pa.table({"n": [2 * number for number in numbers]})}


# Promise: test-your-jobs.md#a-flow
def test_outputs_are_returned_by_topic() -> None:
    """Also those of a typed topic, and dead letters; without a rule for bad records, the error is raised."""
    rows = {"a": [{"value": "1"}, {"value": "x"}], "b": [{"value": "3"}]}
    topics = [NewTopic("doubles", 1, schema=pa.schema([("n", pa.int64())]))]
    found = make_flow_test(doubled, rows, topics=topics, bad_records="topic:bad")
    assert sorted(found["doubles"]["n"].to_pylist()) == [2, 6] and found["bad"]["value"].to_pylist() == [b"x"]
    assert set(found) == {"doubles", "bad"}
    with pytest.raises(FunctionFailed, match="a-0, offset 1: ValueError"):
        make_flow_test(doubled, rows, topics=topics)


# Promise: test-your-jobs.md#a-flow
def test_state_is_returned_as_its_topic() -> None:
    """The last value of each key."""

    def latest(table: pa.Table, state: pa.Table) -> tuple[None, pa.Table]:
        known = dict(zip(state["key"].to_pylist(), state["value"].to_pylist(), strict=True))
        known |= dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        return None, pa.table({"key": list(known), "value": list(known.values())})

    rows = {"in": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}
    found = make_flow_test(latest, rows, state=spark_log.keyed("last"), batch_bytes=1)
    assert found["last"]["value"].to_pylist()[-1] == b"2"


# Promise: test-your-jobs.md#a-flow
def test_a_flow_may_begin_with_a_state() -> None:
    """Its rows are given for the topic of the state, and are no source."""

    def added(table: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        total = pa.table({"key": ["a"], "n": [table.num_rows + sum(state["n"].to_pylist())]})
        return total, total

    topics = [NewTopic("out", 1, schema=pa.schema([("n", pa.int64())]))]
    rows = {"in": [{"key": "a", "value": ""}] * 2, "counts": [{"key": "a", "value": {"n": 5}}]}
    state = spark_log.keyed("counts", pa.schema([("n", pa.int64())]))
    found = make_flow_test(added, rows, target="out", state=state, topics=topics)
    assert found["out"]["n"].to_pylist() == [7] and found["counts"]["n"].to_pylist() == [5, 7]
