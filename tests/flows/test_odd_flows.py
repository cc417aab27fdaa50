"""An odd argument of a flow is accepted, or refused when the flow starts; so is one of a call of a running flow."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_log
from spark_log import Log
from spark_log.recovery.verify import verify
from tests.client.logs import new_log
from tests.client.test_odd_arguments import ODD, forms, outcome, public, raw

WAIT_S = 60.0


def unchanged(table: pa.Table) -> pa.Table:
    return table


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """The log stays whole, and another flow works in the end."""
    with new_log(tmp_path, t=1, out=1) as log:
        yield log
        log.append("t", [{"value": b"x"}])
        with spark_log.flow(log.url, name="neighbour", source="t", target="out", function=unchanged) as flow:
            flow.process_all_available(WAIT_S)
        assert verify(log) == [] and log.read("out").num_rows == 1


def started(**given: Any) -> None:
    with spark_log.flow(**given) as flow:
        assert flow.name


# Promise: tasks/flow.md#start-a-flow
def test_an_odd_argument_is_refused_when_the_flow_starts(log: Log) -> None:
    """Each parameter of `flow` and of `keyed` is tried, so a new one is, too."""
    usual = {"url": log.url, "name": "f", "source": "t", "function": unchanged}
    odd = [form for one in ODD for form in forms(one)]
    given = [{name: form} for name in inspect.signature(spark_log.flow).parameters for form in odd]
    given += [{"state": state} for form in odd for state in (spark_log.keyed(form), spark_log.keyed("s", form))]
    errors = [(list(one), repr(error)[:200]) for one in given if (error := outcome(started, **{**usual, **one}))]
    assert errors == []


def test_calls_of_a_running_flow(log: Log) -> None:
    """`stop` ends it; what is called after that has an answer, too."""
    with spark_log.flow(log.url, name="f", source="t", function=unchanged) as flow:
        assert [error for name, call in public(flow) for error in raw(lambda: flow, name, call)] == []
