"""How often a reader that waits looks at the storage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import ManualClock
from simulation.harness.stores import ClockedStore, Wrapper
from spark_log.client.consumer.poll_interval import PollBackoff
from spark_log.journal.journal import Journal
from tests.client.logs import quick_store


class Bucket(Wrapper):
    """A store that is far away, and counts what it is asked for."""

    gets = 0

    @property
    def local(self) -> bool:
        return False

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets += 1
        return super().get(key, start, end)


def waits(backoff: PollBackoff, clock: ManualClock, until_ms: float) -> dict[int, float]:
    """How long was waited at which time."""
    found = {}
    while clock.ms < until_ms:
        found[int(clock.ms)] = wait = backoff.wait_ms()
        clock.sleep_ms(wait)
    return found


# Promise: measurements-kafka.md#where-a-triggers-time-goes
def test_a_reader_on_a_disk_waits_a_twentieth_of_how_long_nothing_came() -> None:
    """At least 2 ms, at most 50: a record is late by 5 % of the wait for it, and an idle reader is quiet."""
    backoff = PollBackoff(clock := ManualClock(0), local=True, most_ms=500)
    found = waits(backoff, clock, 3000)
    assert list(found.values()) == pytest.approx([max(2, min(at / 20, 50)) for at in found])
    assert set(found.values()) >= {2, 50}
    assert len([at for at in found if at < 1000]) < 100


def test_after_a_record_the_next_is_looked_for_soon() -> None:
    """Successive records are late by little, whatever was before it."""
    backoff = PollBackoff(clock := ManualClock(0), local=True, most_ms=500)
    waits(backoff, clock, 3000)
    backoff.found()
    assert backoff.wait_ms() == 2


# Promise: performance.md#what-to-set
def test_a_bucket_is_looked_at_four_times_a_second() -> None:
    """Each look is paid for; after a record there are some more."""
    backoff = PollBackoff(clock := ManualClock(0), local=False, most_ms=500)
    found = waits(backoff, clock, 10_000)
    assert len([at for at in found if at < 1000]) < 20
    assert [wait for at, wait in found.items() if at > 1000] == [250] * len([at for at in found if at > 1000])


def test_a_reader_may_be_told_to_look_more_often() -> None:
    """`fetch_max_wait_ms` is the longest that it waits, down to 2 ms."""
    for most_ms, longest in ((10, 10), (0, 2)):
        backoff = PollBackoff(clock := ManualClock(0), local=True, most_ms=most_ms)
        assert max(waits(backoff, clock, 2000).values()) == longest


@pytest.mark.parametrize(("timeout_ms", "polls"), [(200, 100), (5000, 42)])
def test_short_polls_of_a_bucket_cost_a_look_when_they_begin_and_one_when_they_end(
    tmp_path: Path, timeout_ms: int, polls: int
) -> None:
    """In ten seconds; how long nothing came counts, not how long a poll has waited."""
    store = Bucket(ClockedStore(quick_store(tmp_path), clock := ManualClock()))
    log = spark_log.Log(Journal.open(store, create=True, clock=clock, rng=random.Random(7)))
    log.append("t", [{"value": "x"}])
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        assert consumer.poll(timeout_ms)
        assert not consumer.poll(10_000)
        begun = store.gets
        for _ in range(10_000 // timeout_ms):
            assert not consumer.poll(timeout_ms)
    assert store.gets - begun == polls
