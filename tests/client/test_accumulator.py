"""Records that were sent and not yet written."""

from __future__ import annotations

from typing import Any

from spark_log.client.producer.accumulator import TopicQueue
from spark_log.client.producer.futures import RecordFuture, stamp_of
from spark_log.runtime.threads import SYSTEM_THREADS


def queue(granted: int = 0, left: int = 0) -> TopicQueue:
    """Nobody can be urged here."""
    made = TopicQueue("orders", lambda: None, SYSTEM_THREADS)
    made.granted, made.left = granted, left
    return made


def sent(into: TopicQueue, value: bytes, stamp: int = 0) -> RecordFuture:
    """As a producer does it."""
    batch, rows = into.open
    future = RecordFuture(batch, len(rows))
    rows += (future, None, value, stamp)
    return future


def taken(from_: TopicQueue, now_ms: int = 5) -> list[Any]:
    """The values of the batch that is closed now."""
    batch = from_.close_batch(now_ms)
    batch.take()
    assert batch.columns is not None
    return list(batch.columns.values)


def test_a_record_that_comes_after_the_closing_finds_the_batch_idle() -> None:
    """The thread that appends it must handle it; it is in the next batch, and its future knows."""
    orders = queue()
    first = sent(orders, b"1")
    old, rows = orders.open
    batch = orders.close_batch(now_ms=5)
    late = RecordFuture(old, len(rows))
    rows += (late, None, b"2", 0)
    assert batch is old and batch.idle and first.batch is batch
    orders.keep(late, rows)
    assert late.batch is orders.open[0] is not batch
    batch.take()
    assert batch.columns is not None and batch.columns.values == [b"1"]
    assert taken(orders) == [b"2"]


def test_a_record_that_was_counted_stays() -> None:
    """A thread that finds the mark after it has appended in time has nothing to do."""
    orders = queue()
    future, rows = sent(orders, b"1"), orders.open[1]
    batch = orders.close_batch(now_ms=5)
    orders.keep(future, rows)
    assert future.batch is batch and orders.open[1] == []


def test_two_that_send_at_the_same_instant_find_their_own_places() -> None:
    """Both have taken the same start for theirs; the second is moved to where its row is."""
    orders = queue()
    batch, rows = orders.open
    first, second = RecordFuture(batch, 0), RecordFuture(batch, 0)
    rows += (first, None, b"1", 0)
    rows += (second, None, b"2", 0)
    orders.keep(second, rows)
    assert rows[first.start] is first and rows[second.start] is second


def test_closing_ends_the_credit() -> None:
    """The used part belongs to the batch, and the next sender has to request more."""
    orders = queue(granted=100, left=30)
    assert orders.close_batch(now_ms=5).bytes == 70
    assert (orders.granted, orders.left, orders.used) == (0, 0, 0)


def test_a_batch_is_as_old_as_its_first_record() -> None:
    """Which is when the thread was woken; of one that came in between, the age is not known."""
    orders = queue()
    orders.open[0].idle, orders.open[0].opened_ms = False, 3
    assert orders.close_batch(now_ms=5).opened_ms == 3
    assert orders.close_batch(now_ms=9).opened_ms == 9


def test_times_are_those_of_the_clock_or_given() -> None:
    """The clock's are nanoseconds; given ones reach further than nanoseconds do."""
    orders = queue()
    latest = (2**63 - 1) // 1000
    for stamp in (1_700_000_000_123_999_999, stamp_of(0), stamp_of(latest), stamp_of(-5)):
        sent(orders, b"x", stamp)
    batch = orders.close_batch(now_ms=5)
    batch.take()
    assert batch.columns is not None and batch.columns.times.tolist() == [1_700_000_000_123, 0, latest, -5]
