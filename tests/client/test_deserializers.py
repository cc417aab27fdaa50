"""Deserializers of consumers."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_log.errors import (
    RecordDeserialization,
)
from tests.client.logs import new_log
from tests.client.test_consumer import P0, P1, fill, reader


def test_deserializers_are_the_users(tmp_path: Path) -> None:
    """Functions or objects with `deserialize`."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"key": "k", "value": "5"}, {"value": None}])
    with reader(log, "orders", value_deserializer=int, key_deserializer=lambda key: key.decode()) as consumer:
        assert [(record.key, record.value) for record in consumer] == [("k", 5), (None, None)]


def test_a_record_that_a_deserializer_fails_at_is_named_after_those_before_it(tmp_path: Path) -> None:
    """The first poll returns the records before it; later polls raise its error until a seek passes it."""
    log = new_log(tmp_path, orders=2)
    fill(log)
    fill(log, 3, partition=1)
    log.append("orders", [{"value": "10", "partition": 0}])
    broken = {b"5"}

    def number(value: bytes) -> int:
        if value in broken:
            raise ValueError(value)
        return int(value)

    polling, iterating = (reader(log, "orders", value_deserializer=number) for _ in range(2))
    assert {tp: [record.value for record in records] for tp, records in polling.poll().items()} == {
        P0: [0, 1, 2, 3, 4],
        P1: [0, 1, 2],
    }
    assert sorted(next(iterating).value for _ in range(8)) == [0, 0, 1, 1, 2, 2, 3, 4]
    for again in (polling.poll, polling.poll, lambda: next(iterating)):
        with pytest.raises(
            RecordDeserialization, match=r"orders-0, offset 5: the value .*ValueError.*; seek to 6"
        ) as error:
            again()
        assert (error.value.topic, error.value.partition, error.value.offset) == ("orders", 0, 5)
    polling.seek(P0, 6)
    assert [record.value for record in polling.poll()[P0]] == [6, 7, 8, 9, 10]
    broken.clear()
    assert [record.value for record in iterating] == [5, 6, 7, 8, 9, 10]


def test_keys_are_deserialized_as_values_are(tmp_path: Path) -> None:
    """The error names what is broken first, the key or the value."""
    log = new_log(tmp_path, orders=1)
    log.append("orders", [{"key": b"1", "value": b"1"}, {"key": b"1", "value": b"x"}, {"key": b"x", "value": b"1"}])
    with reader(log, "orders", key_deserializer=int, value_deserializer=int) as consumer:
        assert len(consumer.poll()[P0]) == 1
        for offset, column in ((1, "value"), (2, "key")):
            with pytest.raises(RecordDeserialization, match=f"offset {offset}: the {column}"):
                consumer.poll()
            consumer.seek(P0, offset + 1)
