"""What was sent and is not on its way yet."""

from __future__ import annotations

import threading

from spark_log.client.futures import RecordFuture
from spark_log.client.lanes import Lane


def lane(granted: int = 0, left: int = 0) -> Lane:
    """Nobody can be urged here."""
    made = Lane("orders", threading.Lock(), lambda: None)
    made.granted, made.left = granted, left
    return made


def sent(into: Lane, value: bytes, stamp: int = 0) -> RecordFuture:
    """As a producer does it."""
    future = RecordFuture(into, None, value, stamp, None)
    into.rows.append(future)
    return future


def test_a_record_that_comes_after_the_taking_finds_the_lane_idle() -> None:
    """So that whoever appends it wakes the thread; it is in the next batch."""
    orders = lane()
    first = sent(orders, b"1")
    batch = orders.take(now_ms=5)
    assert orders.idle and orders.batch_of(first) is batch and batch.count == 1
    second = sent(orders, b"2")
    assert orders.batch_of(second) is orders.batch is not batch


def test_taking_ends_the_credit() -> None:
    """What was used of it is the batch's, and who sends next has to ask for more."""
    orders = lane(granted=100, left=30)
    assert orders.take(now_ms=5).bytes == 70
    assert (orders.granted, orders.left, orders.used) == (0, 0, 0)


def test_a_batch_is_as_old_as_its_first_record() -> None:
    """Which is when the thread was woken; of one that came in between, the age is not known."""
    orders = lane()
    orders.idle, orders.opened_ms = False, 3
    assert orders.take(now_ms=5).opened_ms == 3
    assert orders.take(now_ms=9).opened_ms == 9


def test_times_are_those_of_the_clock_or_given() -> None:
    """The clock's are nanoseconds; given ones reach further than nanoseconds do."""
    orders = lane()
    latest = (2**63 - 1) // 1000
    for stamp in (1_700_000_000_123_999_999, -1 - 0, -1 - latest):
        sent(orders, b"x", stamp)
    columns = orders.take(now_ms=5).columns
    assert columns is not None and columns.times.tolist() == [1_700_000_000_123, 0, latest]
