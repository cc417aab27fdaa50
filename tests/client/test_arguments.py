"""When a public call fails, its arguments are compared with its annotations: an odd one is refused by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_log import Log, NewTopic, TopicPartition
from spark_log.client.admin.admin import Admin
from spark_log.client.arguments import guarded
from spark_log.client.consumer.bookmark import Bookmark
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.producer.producer import Producer
from spark_log.client.producer.transaction import Transaction
from spark_log.errors import InvalidRequest
from tests.client.logs import new_log


@guarded
def call(
    names: Iterable[str] = (),
    at: Mapping[TopicPartition, int | str] | None = None,
    pairs: Sequence[tuple[str, bytes | None]] = (),
    wait: float = 0,
    data: object = None,
    then: Callable[[], object] | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    raise TypeError("a fault")


TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    "right",
    [
        {},
        {"names": ["a"]},
        {"names": {"a"}},
        {"names": iter(["a"])},
        {"at": {TP: 3, TopicPartition("u", 1): "latest"}},
        {"pairs": [("a", b"x"), ("b", None)]},
        {"wait": 1},
        {"wait": math.inf},
        {"wait": np.int64(5)},
        {"at": {TP: np.int64(3)}},
        {"data": [{"value": b"x", "at": 2**63 - 1}]},
        {"then": print},
    ],
)
def test_with_right_arguments_a_fault_of_pylog_continues(right: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="a fault"):
        call(**right)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"names": 5}, "call: invalid value 5 for names: expected Iterable[str]"),
        ({"names": "abc"}, "call: invalid value 'abc' for names: expected Iterable[str]"),
        ({"names": ["a", None]}, "call: invalid value None for names: expected Iterable[str]"),
        ({"at": {TP: None}}, "call: invalid value None for at: expected Mapping[TopicPartition, int | str] | None"),
        ({"at": {TopicPartition("t", "0"): 1}}, "call: invalid value '0' for at: expected "),  # type: ignore[arg-type]
        ({"pairs": [("a", "text")]}, "call: invalid value 'text' for pairs: expected "),
        ({"wait": math.nan}, "call: invalid value nan for wait: expected float"),
        ({"data": [{"x": 2**70}]}, f"call: invalid value {2**70} for data: expected a value, with numbers of 64 bits"),
        ({"data": "\udcff"}, "for data: expected a value, with text that can be encoded as UTF-8"),
        ({"then": 1}, "call: invalid value 1 for then: expected Callable[[], object] | None"),
    ],
)
def test_an_odd_argument_is_named(odd: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        call(**odd)
    assert message in str(refused.value)
    assert isinstance(refused.value.__cause__, TypeError)


def test_a_list_that_contains_itself_is_odd() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidRequest, match="for data"):
        call(data=endless)
    wide: dict[str, object] = {}
    wide.update(a=wide, b=wide)
    with pytest.raises(InvalidRequest, match="for options"):
        call(options=wide)


def test_python_itself_refuses_unknown_arguments() -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        call(other=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("owner", [Log, Admin, Producer, Consumer, Transaction, Bookmark])
def test_all_public_methods_are_guarded(owner: type) -> None:
    """`Producer.send` checks its own arguments: it takes about a microsecond, to which a guard would add."""
    methods = {name for name, method in vars(owner).items() if inspect.isfunction(method) and not name.startswith("_")}
    unguarded = {name for name in methods if not hasattr(getattr(owner, name), "__wrapped__")}
    assert unguarded == ({"send"} if owner is Producer else set())


def test_warnings_point_at_the_caller(tmp_path: Path) -> None:
    """Guards are frames between pylog and its caller."""
    with new_log(tmp_path, t=1) as log:
        topic = NewTopic("u", configs={"segment.jitter.ms": "5"})
        for create in (log.create_topic, lambda one: log.admin.create_topics([one])):
            with pytest.warns(UserWarning, match="no effect") as given:
                create(topic)
            assert given[0].filename == __file__
            log.admin.delete_topics(["u"])


@pytest.mark.parametrize("name", ["", " ", "a\x1b]0;x\x07", "\udcff", "two\nlines"])
def test_a_group_has_a_name_that_can_be_printed(tmp_path: Path, name: str) -> None:
    with new_log(tmp_path, t=1) as log:
        log.append("t", [{"value": b"x"}])

        def in_a_transaction() -> None:
            with log.transaction("etl") as txn:
                txn.commit_offsets(name, {TP: 1})

        for commit in (
            lambda: log.admin.alter_consumer_group_offsets(name, {TP: 1}),
            lambda: log.consumer("t", group_id=name),
            lambda: log.bookmark(name, "t"),
            in_a_transaction,
        ):
            with pytest.raises(InvalidRequest):
                commit()
        assert log.admin.list_consumer_groups() == []
