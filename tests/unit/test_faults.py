"""Which rows of a batch break a topic's rules: first by whole batches, then by rows if something is wrong."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_log.client.producing.topic_rules import Fault, TopicRows, TopicSpec, faults_of
from spark_log.errors import MessageTooLarge
from spark_log.segment.conform import conform

LIMIT, NOW = 1000, 1_700_000_000_000
SPEC = TopicSpec("id", "t", 4, LIMIT, "producer", False, 2**63 - 1, 3_600_000)
ROW = 16
"""The memory of a row besides its bytes."""


def faults(values: list[bytes | None], **more: object) -> list[Fault]:
    (rows,) = conform(pa.table({"value": pa.array(values, pa.binary()), **more}), now_us=NOW * 1000)
    return faults_of(TopicRows.of(SPEC, rows), NOW)


def test_a_batch_larger_than_a_message_may_be_has_no_faults_if_its_rows_are_small() -> None:
    """The limit is of a message."""
    assert faults([b"x" * 100] * 999) == []
    assert faults([b"x" * (LIMIT - ROW)] * 7) == []


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
