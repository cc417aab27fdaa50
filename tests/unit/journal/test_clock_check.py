"""A writer whose clock is far from the storage's is refused, and a log whose time is wrong can be put right."""

from __future__ import annotations

import itertools
import logging
import os
import random
import uuid
from pathlib import Path

import pytest

import spark_log
from simulation.harness.clocks import ManualClock, SkewedClock
from simulation.harness.slow_store import SlowStore, counts
from simulation.harness.stores import ClockedStore
from spark_log.errors import ClockSkewed
from spark_log.journal.journal import Journal
from spark_log.maintenance.maintain import maintain_once
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from tests.logged import logged

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
YEAR = 365 * DAY
seeds = itertools.count()


@pytest.fixture
def true() -> ManualClock:
    """The storage's clock."""
    return ManualClock()


@pytest.fixture
def store(true: ManualClock) -> ObjectStore:
    return ClockedStore(MemoryStore(uuid.uuid4().hex), true)


def log_by(store: ObjectStore, clock: Clock) -> spark_log.Log:
    return spark_log.Log(Journal.open(store, create=True, clock=clock, rng=random.Random(next(seeds))))


def append(log: spark_log.Log) -> None:
    log.append("t", [{"value": "v"}])


@pytest.fixture
def honest(store: ObjectStore, true: ManualClock) -> spark_log.Log:
    log = log_by(store, true)
    append(log)
    return log


def poison(store: ObjectStore, true: ManualClock, off: int = 10 * YEAR) -> None:
    """As a pylog that does not check."""
    unchecked = ClockedStore(store.inner, ahead := SkewedClock(true, off))  # type: ignore[attr-defined]
    append(log_by(unchecked, ahead))


# --------------------------------------------------------------------------------------------------------------- refusing


# Promise: storage.md#clocks
@pytest.mark.parametrize("off", [10 * YEAR, -10 * YEAR, HOUR, -HOUR])
def test_a_writer_whose_clock_is_far_off_is_refused(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock, off: int
) -> None:
    """With both times, the distance and the cure; the log's time is as it was."""
    before = honest.journal.state
    with pytest.raises(
        ClockSkewed, match=r"clock of .* UTC, is .* storage's .*log.clock.skew.max.ms=600000.*NTP"
    ) as raised:
        append(log_by(store, SkewedClock(true, off)))
    assert not raised.value.maybe_applied
    after = honest.journal.refresh()
    assert (after.version, after.time) == (before.version, before.time)
    append(honest)


@pytest.mark.parametrize("off", [10 * YEAR, -10 * YEAR])
def test_a_log_is_not_begun_by_a_wrong_clock(store: ObjectStore, true: ManualClock, off: int) -> None:
    """Its first commit has no time to be compared with but the storage's."""
    with pytest.raises(ClockSkewed):
        append(log_by(store, SkewedClock(true, off)))


def test_a_real_disk_s_clock_counts(tmp_path: Path) -> None:
    """A process whose own clock is wrong, on a machine whose clock is right."""

    store = LocalStore(str(tmp_path))
    append(log_by(store, SystemClock()))
    with pytest.raises(ClockSkewed):
        append(log_by(store, SkewedClock(SystemClock(), 10 * YEAR)))
    assert not list(tmp_path.glob("meta/pin/*"))


def test_an_maintenance_with_a_wrong_clock_expires_nothing(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock
) -> None:
    """Retention goes by the clock of who applies it."""
    with pytest.raises(ClockSkewed):
        maintain_once(log_by(store, SkewedClock(true, 10 * YEAR)))
    assert honest.read("t").num_rows == 1


# Promise: storage.md#clocks
def test_a_log_that_was_idle_for_months_takes_the_next_commit(honest: spark_log.Log, true: ManualClock) -> None:
    """Its time is old, and the storage confirms the clock."""
    true.ms += 200 * DAY
    append(honest)
    assert honest.journal.state.time == true.ms


def test_a_machine_that_slept_for_a_week_goes_on(store: ObjectStore, true: ManualClock) -> None:
    """Its monotonic clock stood still: what was remembered by it does not refuse a clock."""
    log = log_by(store, machine := SkewedClock(ManualClock()))
    append(log)
    true.ms += 7 * DAY
    machine.skew_ms += 7 * DAY
    append(log)


def test_a_clock_that_steps_back_is_refused_until_it_is_right(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock
) -> None:
    """By an hour, within a session."""
    log = log_by(store, clock := SkewedClock(true))
    append(log)
    clock.skew_ms = -HOUR
    with pytest.raises(ClockSkewed):
        append(log)
    clock.skew_ms = 0
    append(log)


def test_two_wrong_clocks_do_not_confirm_each_other(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock
) -> None:
    """Each is compared with the storage."""
    for off in (YEAR, YEAR + MINUTE):
        with pytest.raises(ClockSkewed):
            append(log_by(store, SkewedClock(true, off)))


def test_the_bound_is_a_config(store: ObjectStore, honest: spark_log.Log, true: ManualClock) -> None:
    """-1: no check."""
    honest.admin.incremental_alter_configs({None: {"log.clock.skew.max.ms": str(2 * HOUR)}})
    append(log_by(store, SkewedClock(true, HOUR)))
    honest.admin.incremental_alter_configs({None: {"log.clock.skew.max.ms": "-1"}})
    append(log_by(store, SkewedClock(true, YEAR)))


# Promise: storage.md#clocks
def test_a_small_distance_is_warned_of_once(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A clock that is a minute behind works."""
    behind = log_by(store, SkewedClock(true, -MINUTE))
    with caplog.at_level(logging.WARNING, "spark_log"):
        append(behind)
        append(behind)
    assert len(logged(caplog, "this machine's clock is 0:01:00 behind the l")) == 1


def test_a_coordinator_with_a_wrong_clock_leads_no_log_and_can_release_one(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock
) -> None:
    """It stamps all batches."""
    wrong = log_by(store, clock := SkewedClock(true, YEAR)).journal
    with pytest.raises(ClockSkewed):
        wrong.take_over(0, "host:1", "host")
    clock.skew_ms = 0
    wrong.take_over(0, "host:1", "host")
    clock.skew_ms = YEAR
    assert wrong.release(1)
    assert honest.journal.refresh().time <= true.ms


def test_writers_that_agree_with_the_log_ask_nothing(true: ManualClock) -> None:
    """An append makes no other requests than without the check."""
    memory = MemoryStore(os.urandom(8).hex())
    store = SlowStore(ClockedStore(memory, true), get_ms=0, put_ms=0, jitter=False)
    log = log_by(store, true)
    append(log)
    with store.watched() as requests:
        append(log)
    assert counts(requests) == {"put": 1, "put_new": 1, "get": 2, "list": 1}


# -------------------------------------------------------------------------------------------------------------- resetting


def test_a_poisoned_log_takes_commits_and_says_what_to_do(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The clocks of its writers are right."""
    poison(store, true)
    with caplog.at_level(logging.WARNING, "spark_log"):
        append(honest)
        append(honest)
    assert len(logged(caplog, "pylog cluster reset-clock")) == 1


def test_a_wrong_clock_on_a_poisoned_log_is_told_both(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock
) -> None:
    """Its own cure, and the log's."""
    poison(store, true)
    with pytest.raises(ClockSkewed, match=r"NTP.*pylog cluster reset-clock"):
        append(log_by(store, SkewedClock(true, YEAR)))


# Promise: storage.md#clocks
def test_a_reset_puts_the_log_s_time_right(store: ObjectStore, honest: spark_log.Log, true: ManualClock) -> None:
    """Fences move again, a day after it and not before; a checkpoint and a replay have the same state."""
    poison(store, true)
    assert honest.admin.reset_clock() == 10 * YEAR
    state = honest.journal.refresh()
    assert state.time == true.ms and all(time <= true.ms for _, time in state.times)
    assert honest.admin.reset_clock() == 0
    true.ms += DAY - HOUR
    append(honest)
    assert maintain_once(honest).fence == -1
    true.ms += 2 * HOUR
    append(honest)
    assert maintain_once(honest).fence > 0
    assert log_by(store, true).journal.state == honest.journal.refresh()


def test_nothing_in_the_state_is_later_than_a_reset(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock
) -> None:
    """Groups, producers and transactions continue as if stamped by it, and end in their time."""
    ahead = SkewedClock(true, 10 * YEAR)
    wrong = log_by(ClockedStore(store.inner, ahead), ahead)  # type: ignore[attr-defined]
    append(wrong)
    with wrong.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.poll()
        consumer.commit()
    wrong.transaction("x")
    honest.admin.reset_clock()
    state = honest.journal.refresh()
    times = [known.time for known in state.producers.values()]
    times += [position.time for group in state.groups.values() for position in group.offsets.values()]
    times += [group.seen for group in state.groups.values()]
    times += [topic.created_ms for topic in state.topics.values()]
    assert len(times) > 3 and max(times) <= true.ms


def test_a_reset_by_a_wrong_clock_is_refused(store: ObjectStore, honest: spark_log.Log, true: ManualClock) -> None:
    """The log's time does not go where nobody is."""
    poison(store, true)
    with pytest.raises(ClockSkewed):
        log_by(store, SkewedClock(true, -YEAR)).admin.reset_clock()


# Promise: cli.md#pylog-cluster-reset-clock, storage.md#clocks
def test_a_reset_by_a_clock_that_commits_are_later_than_wants_force(true: ManualClock) -> None:
    """On a disk that is stamped by the same clock nobody else knows whether it is behind."""
    store = ClockedStore(MemoryStore(os.urandom(8).hex()), true)
    log = log_by(store, true)
    for _ in range(3):
        append(log)
        true.ms += HOUR
    before = log.journal.state
    true.ms -= DAY
    with pytest.raises(ClockSkewed, match="is earlier than the commits from version"):
        log.admin.reset_clock()
    assert log.journal.refresh() == before
    assert log.admin.reset_clock(force=True) == before.time - true.ms
    assert log.journal.refresh().time == true.ms


# Promise: cli.md#pylog-cluster-reset-clock
def test_a_reset_deletes_nothing_that_a_reader_may_read(
    store: ObjectStore, honest: spark_log.Log, true: ManualClock
) -> None:
    """Objects that were dropped while the log's time was wrong have a whole day from the reset on."""
    for _ in range(20):
        append(honest)
    poison(store, true)
    (old,) = {read.slice.object for read in honest.plan("t", start=0, end=1)}
    maintain_once(honest)
    assert old not in {read.slice.object for read in honest.plan("t")}, "it was merged"
    honest.admin.reset_clock()
    true.ms += DAY - HOUR
    append(honest)
    maintain_once(honest)
    assert store.size(old) is not None
    for _ in range(3):
        true.ms += DAY
        append(honest)
        maintain_once(honest)
    assert store.size(old) is None


class Suspended(ClockedStore):
    """The process sleeps for an hour between the storage's look at its clock and the answer, once."""

    def __init__(self, inner: ObjectStore, true: ManualClock) -> None:
        super().__init__(inner, true)
        self.true, self.naps = true, 1

    def written_ms(self, key: str) -> int | None:
        found = super().written_ms(key)
        self.true.ms += self.naps * HOUR
        self.naps = 0
        return found


def test_a_process_that_is_suspended_while_it_asks_asks_again(store: ObjectStore, true: ManualClock) -> None:
    """Its clock is right; an answer that is an hour old says nothing about it."""
    log = log_by(Suspended(store.inner, true), true)  # type: ignore[attr-defined]
    append(log)
    true.ms += 2 * DAY
    append(log)
    assert log.read("t").num_rows == 2
