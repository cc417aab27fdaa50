"""The error for mixed-up arguments names them, and nothing is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log import NewTopic, TopicPartition
from spark_log.errors import InvalidRequest
from tests.client.logs import new_log

TP = TopicPartition("orders", 0)
Ask = Callable[[spark_log.Log], Any]

ASKS: list[tuple[Ask, str]] = [
    (lambda log: log.admin.create_topics("more"), r"create_topics: 'more' is not a list; give \['more'\]"),  # type: ignore[arg-type]
    (lambda log: log.admin.create_topics(["more"]), "create_topics: 'more' is not a NewTopic"),  # type: ignore[list-item]
    (lambda log: log.admin.create_topics([NewTopic("more", "3")]), "'more': '3' is not a number of partitions"),  # type: ignore[arg-type]
    (lambda log: log.admin.create_partitions({"orders": "3"}), "'orders': '3' is not a number of partitions"),  # type: ignore[dict-item]
    (lambda log: log.admin.delete_topics("ab"), r"delete_topics: 'ab' is not a list; give \['ab'\]"),
    (lambda log: log.admin.describe_topics("ab"), "describe_topics: 'ab' is not a list"),
    (lambda log: log.admin.describe_configs("ab"), "describe_configs: 'ab' is not a list"),
    (lambda log: log.admin.delete_consumer_groups("ab"), "delete_consumer_groups: 'ab' is not a list"),
    (lambda log: log.admin.delete_records({"orders": 1}), "delete_records: 'orders' is not a TopicPartition"),  # type: ignore[dict-item]
    (lambda log: log.admin.list_offsets({TP: -7}), "list_offsets: -7 for orders-0 is not a time in milliseconds"),
    (lambda log: log.consumer("orders").poll("5"), "invalid value '5' for timeout_ms: expected a number of"),  # type: ignore[arg-type]
    (lambda log: log.consumer("orders").poll_arrow(None), "invalid value None for timeout_ms"),  # type: ignore[arg-type]
    (lambda log: log.consumer().offsets_for_times({TP: "noon"}), "offsets_for_times: 'noon' for orders-0 is not a time"),  # type: ignore[dict-item]
    (lambda log: log.read("orders", partition="0"), "partition '0' of topic 'orders' is not a number"),  # type: ignore[arg-type]
    (lambda log: log.scan("orders", partitions=0), r"partitions: 0 is not a list; give \[0\]"),  # type: ignore[arg-type]
    (lambda log: log.scan("orders", columns="value"), r"columns: 'value' is not a list; give \['value'\]"),
    (lambda log: log.append("orders", [{"value": "v"}], partitioner=object()), "there is no partitioner"),  # type: ignore[arg-type]
    (lambda log: log.append("orders", [], "etl", 2**63), "txn_version: a number of 64 bits is more than 9223"),
    (lambda log: log.append("orders", [], "etl", "one"), "txn_version: 'one' is not a whole number"),  # type: ignore[arg-type]
    (lambda log: log.append("orders", [], "", 1), "txn_app_id is empty"),
    (lambda log: spark_log.connect(None), "url: None is not a URL"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> spark_log.Log:
    """Topics whose names are letters, too."""
    return new_log(tmp_path, orders=1, a=1, b=1)


@pytest.mark.parametrize(("ask", "expected"), ASKS, ids=[expected for _, expected in ASKS])
def test_a_mistake_is_named(log: spark_log.Log, ask: Ask, expected: str) -> None:
    """And the log is as before."""
    version = log.journal.refresh().version
    with pytest.raises(InvalidRequest, match=expected):
        ask(log)
    assert log.journal.refresh().version == version


def test_a_path_object_is_a_url(tmp_path: Path) -> None:
    """As text would be."""
    spark_log.connect(tmp_path / "log").append("t", [{"value": "v"}])
    assert spark_log.connect(str(tmp_path / "log")).read("t").num_rows == 1
