"""Which rows of a batch break a topic's rules: first by whole batches, then by rows if something is wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_log.client.producer.topic_rules import (
    Fault,
    TopicRows,
    TopicSpec,
    TopicTable,
    faults_of,
    keyless_topics,
)
from spark_log.errors import InvalidRecord, MessageTooLarge
from spark_log.segment.compression import topic_compression
from spark_log.segment.record_columns import conform

LIMIT, NOW = 1000, 1_700_000_000_000
SPEC = TopicSpec("id", "t", 4, LIMIT, topic_compression({}), False, 2**63 - 1, 3_600_000, False)
ROW = 16
"""The memory of a row besides its bytes."""


def faults(values: list[bytes | None], **more: object) -> list[Fault]:
    (rows,) = conform(pa.table({"value": pa.array(values, pa.binary()), **more}), now_us=NOW * 1000)
    return faults_of(TopicRows.of(SPEC, rows), NOW)


def test_a_batch_larger_than_a_message_may_be_has_no_faults_if_its_rows_are_small() -> None:
    """The limit is of a message."""
    assert faults([b"x" * 100] * 999) == []
    assert faults([b"x" * (LIMIT - ROW)] * 7) == []


# Promise: topic-configs.md#topics
@pytest.mark.parametrize("row", [0, 4, 499, 998])
def test_the_one_row_that_is_too_large_is_found_wherever_it_is(row: int) -> None:
    """By one byte, among rows that are not."""
    values = [b"x" * (LIMIT - ROW + (number == row)) for number in range(999)]
    (fault,) = faults(values)
    assert fault.kind is MessageTooLarge
    assert fault.rows.nonzero()[0].tolist() == [row]
    assert f"{LIMIT + 1} bytes" in fault.reason(row)


def test_headers_weigh_more_than_their_bytes() -> None:
    """16 bytes each, so many empty ones are too large where a row of their bytes would not be."""
    headers = pa.array(
        [[("", b"")] * 70, [], [("k", b"v")]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    (fault,) = faults([b"", b"x" * 900, b""], headers=headers)
    assert fault.rows.tolist() == [True, False, False]


KEYS = [b"k", None, b"", None]


def of_topics(numbers: list[int]) -> TopicRows:
    """Rows with KEYS, of a compacted topic (0) and one that is not."""
    (rows,) = conform(pa.table({"key": pa.array(KEYS, pa.binary()), "value": [b"v"] * len(KEYS)}), now_us=NOW * 1000)
    compacted = SPEC._replace(topic_id="c", name="latest", compacted=True)
    return TopicRows(TopicTable((compacted, SPEC)), np.array(numbers), rows)


def test_a_record_of_a_compacted_topic_needs_a_key() -> None:
    """An empty key is a key, and other topics take records without one."""
    (fault,) = faults_of(of_topics([0, 0, 0, 1]), NOW)
    assert fault.kind is InvalidRecord
    assert fault.rows.tolist() == [False, True, False, False]
    assert "'latest' has no key" in fault.reason(1) and "cleanup.policy=compact" in fault.reason(1)
    assert faults_of(of_topics([0, 1, 0, 1]), NOW) == []


@pytest.mark.parametrize(
    ("numbers", "topics"), [([0, 0, 0, 1], {"c", "id"}), ([0, 1, 0, 1], {"id"}), ([1, 0, 1, 0], {"c"})]
)
def test_topics_of_records_without_a_key_are_found(numbers: list[int], topics: set[str]) -> None:
    """A commit names them, for the case that the policy of one has changed."""
    assert keyless_topics(of_topics(numbers)) == topics
